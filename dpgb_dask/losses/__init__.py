"""Losses by name: which targets they serve, their integer gradients, and the links from scores to predictions.

Each loss has its own file. To add a loss, write the file and import its class here, `as` itself: that puts it into
`LOSSES` (docs/design.md §12). A loss outside the package needs none of that: pass the estimator an object of a class
that derives from `Loss`.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from dpgb_dask.errors import PlanError, did_you_mean
from dpgb_dask.losses.absolute_error import AbsoluteError as AbsoluteError
from dpgb_dask.losses.contract import CORNER, GradientOptions, Loss, table_gradient
from dpgb_dask.losses.gradients import (
    FREE_HESS_SCALE,
    GRAD_BITS,
    GRAD_ONE,
    GRADIENTS,
    NORM_SHIFT,
    NORM_SIZE,
    RATE_SHIFT,
    RESIDUAL_SHIFT,
    SOFTMAX_HESS_SCALE,
    TABLE_SHIFT,
    TABLE_SIZE,
    TARGET_BITS,
    ClippedSoftmaxGradient,
    FreeSquaredGradient,
    Gradient,
    LabelGradient,
    LogisticGradient,
    PoissonGradient,
    SlopeGradient,
    SoftmaxGradient,
    SquaredGradient,
    TableGradient,
    check_gradient,
    clipped_softmax_gradient,
    label_gradient,
    logistic_gradient,
    poisson_gradient,
    sigmoid,
    softmax_gradient,
    table_points,
    unpack,
)
from dpgb_dask.losses.huber import Huber as Huber
from dpgb_dask.losses.links import (
    CLASS_CLIP,
    LINKS,
    LINKS_OF,
    clip_multipliers,
    clipped_probabilities,
    clipped_probability,
)
from dpgb_dask.losses.log_loss import LogLoss as LogLoss
from dpgb_dask.losses.outside import AbsentLoss, OutsideLoss
from dpgb_dask.losses.poisson import Poisson as Poisson
from dpgb_dask.losses.quantile import Quantile as Quantile
from dpgb_dask.losses.squared_error import SquaredError as SquaredError

__all__ = [  # and the losses
    "CLASS_CLIP", "CORNER", "FREE_HESS_SCALE", "GRADIENTS", "GRAD_BITS", "GRAD_ONE", "LINKS", "LINKS_OF", "LOSSES",
    "NORM_SHIFT", "NORM_SIZE", "RATE_SHIFT", "RESIDUAL_SHIFT", "SOFTMAX_HESS_SCALE", "TABLE_SHIFT", "TABLE_SIZE",
    "TARGET_BITS", "AbsentLoss", "ClippedSoftmaxGradient", "FreeSquaredGradient", "Gradient", "GradientOptions",
    "LabelGradient", "LogisticGradient", "Loss", "OutsideLoss", "PoissonGradient", "SlopeGradient", "SoftmaxGradient",
    "SquaredGradient", "TableGradient", "check_gradient", "check_loss", "clip_multipliers", "clipped_probabilities",
    "clipped_probability", "clipped_softmax_gradient", "default_loss", "from_json", "get", "label_gradient",
    "logistic_gradient", "options_in_words", "parse", "poisson_gradient", "sigmoid", "softmax_gradient",
    "table_gradient", "table_points", "to_json", "unpack",
]  # fmt: skip


def _shipped() -> Mapping[str, Loss]:
    """Return a loss of each class that is imported above, with its default options, in the order of their names."""
    classes = [
        made
        for made in globals().values()
        if isinstance(made, type) and issubclass(made, Loss) and made not in (Loss, OutsideLoss)
    ]
    shipped: list[Loss] = sorted((made() for made in classes), key=lambda loss: loss.name)
    return {loss.name: loss for loss in shipped}


LOSSES: Mapping[str, Loss] = _shipped()
__all__ += [type(loss).__name__ for loss in LOSSES.values()]


def get(loss: Any, kind: str | None = None) -> Loss:
    """Return a loss by scikit-learn's name, or as given; a loss of a class outside the package as an `OutsideLoss`.

    Parameters
    ----------
    loss : Any
    kind : {"binary", "multiclass", "numeric"}, optional
        Type of the target that it has to serve.

    Raises
    ------
    PlanError
        If there is no such loss, or `check_loss` refuses it.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            name, _, option = loss.partition(":")
            # and no objective of XGBoost's, such as "reg:squarederror"
            if option.replace(".", "", 1).isdigit():
                made = type(LOSSES[name]).__name__ if name in LOSSES else "MyLoss"
                raise PlanError(
                    f"loss={loss!r}: that form is the command line's. In Python, give a value: {made}({option})."
                )
            raise PlanError(
                f"loss={loss!r} is unknown. Choose one of {sorted(LOSSES)} or give a Loss."
                f"{did_you_mean(loss, LOSSES)}"
            )
        loss = LOSSES[loss]
    if type(loss) is AbsentLoss:
        raise PlanError(
            f"loss={loss.name!r} is of a class outside this library, which a model file does not hold. Import it and"
            f" give the loss anew, or choose one of {sorted(LOSSES)}."
        )
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise PlanError(
            f"loss={loss.__name__} is a class: give a value of it, as in {loss.__name__}(). Or choose one of"
            f" {sorted(LOSSES)}."
        )
    if isinstance(loss, Loss) and type(loss) not in _KNOWN and type(loss) is not OutsideLoss:
        loss = OutsideLoss(loss)
    check_loss(loss, kind)
    return cast("Loss", loss)


def parse(text: str) -> Loss:
    """Return a loss by its name, or by its name and option, as in "quantile:0.9".

    Raises
    ------
    PlanError
        If there is no such loss, or it does not accept the option.
    """
    name, colon, option = text.partition(":")
    if not colon:
        return get(name)
    able = {known.name: known for known in LOSSES.values() if known.option is not None}
    if name not in able:
        raise PlanError(f"loss={text!r} is unknown: only {sorted(able)} have an option.")
    try:
        value = float(option)
    except ValueError:
        raise PlanError(
            f"loss={text!r}: the option after the colon must be a number, as in {name}:0.2."
        ) from None
    return cast("Loss", replace(cast("Any", able[name]), **{str(able[name].option): value}))


def options_in_words() -> str:
    """Return how the command line sets an option of a loss: "huber:0.1 and quantile:0.5"."""
    able = (known for known in LOSSES.values() if known.option is not None)
    return " and ".join(f"{known.name}:{getattr(known, str(known.option))}" for known in able)


def check_loss(loss: Any, kind: str | None = None) -> None:
    """Refuse a loss that is neither exactly one of those here nor an `OutsideLoss` with its own name.

    A loss decides which kernel runs, what a score means and how a fit is reported. So a subclass that overrides a
    shipped loss is a different loss, and needs a name of its own.

    Parameters
    ----------
    loss : Any
    kind : {"binary", "multiclass", "numeric"}, optional
        Type of the target that it has to serve.

    Raises
    ------
    PlanError
    """
    known = _KNOWN.get(type(loss))
    if type(loss) is OutsideLoss:
        if loss.name in LOSSES:
            raise PlanError(
                f"loss={loss!r} is no Loss of this library, and the name {loss.name!r} is one of the library's: give"
                " yours another."
            )
    elif known is None or (loss.name, loss.kinds) != (known.name, known.kinds):
        raise PlanError(
            f"loss={loss!r} is no Loss of this library. Choose one of {sorted(LOSSES)}, or a value of"
            " dpgb_dask.losses, such as Quantile(0.9), or of a class that derives from dpgb_dask.losses.Loss."
        )
    if kind is not None and kind not in loss.kinds:
        serving = sorted(name for name, other in LOSSES.items() if kind in other.kinds)
        raise PlanError(
            f"loss={loss.name!r} does not serve a {kind} target. Choose one of {serving}."
        )


def default_loss(kind: str) -> Loss:
    """Return the default loss for a type of target: log-loss or squared error."""
    return LOSSES["squared_error" if kind == "numeric" else "log_loss"]


def to_json(loss: Any) -> Any:
    """Return the JSON form of a loss in a model file: a name, or a name and its options."""
    if type(loss) is AbsentLoss:
        return {"outside": loss.name, "options": dict(loss.options)}
    if type(loss) in _KNOWN:
        options = {item.name: getattr(loss, item.name) for item in fields(loss)}
        return {name: value for name, value in options.items() if name != "kinds"}
    if isinstance(loss, Loss):
        outside = get(loss)
        assert isinstance(outside, OutsideLoss)
        return {"outside": outside.name, "options": dict(outside.options)}
    return getattr(loss, "name", loss)


def from_json(data: Any) -> str | Loss | AbsentLoss | None:
    """Return the loss of a JSON form; a loss of a class outside the package becomes an `AbsentLoss`.

    Raises
    ------
    KeyError, TypeError, ValueError
        If the data are malformed.
    """
    if not isinstance(data, dict):
        return data if isinstance(data, str) else None
    if "outside" in data:
        name, options = data["outside"], data["options"]
        if len(data) > 2 or not isinstance(name, str) or not isinstance(options, dict):
            raise ValueError("outside")
        return AbsentLoss(name, tuple((key, _plain(value)) for key, value in options.items()))
    return cast("Loss", replace(cast("Any", LOSSES[data["name"]]), **data))


def _plain(value: Any) -> Any:
    """Return an option with lists turned back into tuples, which JSON does not have."""
    return tuple(map(_plain, value)) if isinstance(value, list) else value


_KNOWN: Mapping[type, Loss] = {type(loss): loss for loss in LOSSES.values()}
