"""A loss of a class outside this package: taken in as data and checked once.

The class belongs to the user and stays in the user's process. The library keeps only plain data of it: a name, options,
links, and a slope for the report. Only the controller's process calls it, for tables and start scores, and checks each
time what it returns: a gradient must have exactly a class in `gradients.GRADIENTS`, which computes its own bounds
(docs/privacy.md P1). So a mistake in the user's class can spoil a model, but not a bound.
"""

import hashlib
from dataclasses import dataclass, field, fields
from typing import Any, Self, cast

import numpy as np

from dpgb_dask.errors import PlanError
from dpgb_dask.frozen import settle
from dpgb_dask.losses.contract import SECOND, GradientOptions, Loss
from dpgb_dask.losses.gradients import GRAD_ONE, Gradient, check_gradient
from dpgb_dask.losses.links import LINKS_OF
from dpgb_dask.scalars import finite_float, plain_text, python_scalar, same_text

DEEPEST = 16  # tuples in tuples of an option
FARTHEST_START = 1000.0  # scores are int32 in steps of 2**-16: 2**15 of them on either side


@dataclass(frozen=True, slots=True)
class OutsideLoss(Loss):
    """A loss of a class outside the package.

    Parameters
    ----------
    source : Loss
        A frozen dataclass whose options are numbers, texts, truth values, None, or tuples of these.

    Attributes
    ----------
    name : str
    kinds : tuple of str
    options : tuple of (str, value)
        The options of the source, without its name and kinds.
    links : tuple of str
        One for each kind.
    slope : float
        `Loss.largest_slope`, for the report.

    Raises
    ------
    PlanError
        If the source is no loss, or its properties cannot be written to a report and a model file.

    Privacy
    -------
    Controller side: no worker gets it (`private.reading.chunks.Reading` leaves it out), and no bound relies on what it
    states.
    """

    source: Loss = field(repr=False, compare=False)
    name: str = field(init=False)
    kinds: tuple[str, ...] = field(init=False)
    options: tuple[tuple[str, Any], ...] = field(init=False)
    links: tuple[str, ...] = field(init=False)
    slope: float = field(init=False)

    def __post_init__(self) -> None:
        """Read the source once, and check everything that is read."""
        source = self.source
        if not _is_frozen_loss(source):
            raise PlanError(
                f"loss={source!r} is no Loss: make it a frozen dataclass of losses.Loss."
            )
        told: Any = getattr(source, "name", None)
        name = plain_text(told)
        if name is None or not name.isidentifier() or not name.isascii():
            raise PlanError(f"name={told!r} of a loss must be a word of ASCII letters.")
        told = getattr(source, "kinds", None)
        kinds = _texts(told, tuple(LINKS_OF)) if isinstance(told, tuple) else ()
        if not kinds:
            raise PlanError(f"kinds={told!r} of loss={name!r} must be of {sorted(LINKS_OF)}.")
        links = tuple(_link(name, kind, source.link(kind)) for kind in kinds)
        options = tuple(
            (item.name, _plain(item.name, getattr(source, item.name)))
            for item in fields(cast("Any", source))
            if item.name not in ("name", "kinds")
        )
        slope = _finite("largest_slope", source.largest_slope)
        settle(
            self,
            name=name,
            kinds=kinds,
            options=options,
            links=links,
            slope=slope,
        )

    @property
    def largest_slope(self) -> float:
        """Return the slope that the source states."""
        return self.slope

    def link(self, kind: str) -> str:
        """Return the source's link, which was checked before."""
        return self.links[self.kinds.index(kind)]

    def bounded(self, low: float, high: float) -> Self:
        """Return the outside loss of the source for these bounds."""
        source = self.source.bounded(low, high)
        if type(source) is not type(self.source):
            raise PlanError(f"loss={self.name!r} is a loss of another class once it has bounds.")
        loss = type(self)(source)
        if (loss.name, loss.kinds, loss.links) != (self.name, self.kinds, self.links):
            raise PlanError(
                f"loss={self.name!r} has another name, other kinds or other links once it has bounds."
            )
        return loss

    def start(self, mean: float) -> float:
        """Return the source's start score, clipped to the range that scores can have."""
        score = _finite("start", self.source.start(mean))
        return min(max(score, -FARTHEST_START), FARTHEST_START)

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return the source's gradient if kernels compute its class and it fits the target and a packed sum."""
        made = self.source.integer_gradient(asked)
        check_gradient(made, asked.n_scores)
        if asked.kind not in made.kinds or made.max_abs > GRAD_ONE:
            raise PlanError(
                f"loss={self.name!r} gives a gradient that does not fit a {asked.kind} target, or is above 2**15 steps."
            )
        if asked.counts and asked.hess_scale == 1 and not made.counts:
            raise PlanError(
                f"loss={self.name!r} gives no count beside the gradient where a stage asks one: look at asked.second."
            )
        return made

    def digest(self, kind: str, n_scores: int) -> str:
        """Return a hash of the gradients, so that a fit is not resumed with another class of this name and options."""
        sink = hashlib.sha256()
        for second in SECOND:
            try:
                made = self.gradient(kind, n_scores, second=second)
            except PlanError:  # a loss need not serve all of them; a stage that asks it will say so
                continue
            sink.update(f"{second} {type(made).__name__}".encode())
            for item in fields(made):
                value = getattr(made, item.name)
                shown = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
                sink.update(b" %s=%d:" % (item.name.encode(), len(shown)) + shown)
        return sink.hexdigest()


@dataclass(frozen=True, slots=True)
class AbsentLoss:
    """A loss of a class outside the package, as named in a saved model. It records what was used and cannot train.

    Parameters
    ----------
    name : str
    options : tuple of (str, value)
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()


def _is_frozen_loss(source: Any) -> bool:
    parameters = getattr(type(source), "__dataclass_params__", None)
    return isinstance(source, Loss) and parameters is not None and bool(parameters.frozen)


def _plain(name: str, value: Any, depth: int = 0) -> Any:
    """Return an option as a plain Python value; raise `PlanError` if a digest or a file could not hold it."""
    value = python_scalar(value)
    if isinstance(value, tuple | list) and depth < DEEPEST:
        return tuple(_plain(name, part, depth + 1) for part in value)
    if type(value) in (int, float) and finite_float(value) is None:
        raise PlanError(f"{name} of a loss must hold finite numbers, which fit into a float.")
    if type(value) is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise PlanError(f"{name} of a loss holds a text that no file can hold.") from None
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise PlanError(
        f"{name} of a loss is a {type(value).__name__}: give numbers, texts, truth values, None or flat tuples."
    )


def _texts(told: tuple[Any, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return texts of our own that are equal to the given ones; none if one of these is unknown."""
    own = [same_text(text, known) for text in told]
    return tuple(text for text in own if text is not None) if None not in own else ()


def _link(name: str, kind: str, told: Any) -> str:
    """Return a link as a text of our own: a member of an Enum of texts is equal to its link, but prints otherwise."""
    link = same_text(told, LINKS_OF[kind])
    if link is None:
        raise PlanError(
            f"loss={name!r} has no link of a {kind} target: {told!r} is not one of {LINKS_OF[kind]}."
        )
    return link


def _finite(name: str, value: Any) -> float:
    number = finite_float(value)
    if number is None:
        raise PlanError(f"{name} of a loss must be a finite number.")
    return number
