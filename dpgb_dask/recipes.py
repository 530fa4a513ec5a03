"""The methods as named Plans; data only."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpgb_dask.components.stages import Bins, Forest, MainEffects, Pairs, Start
from dpgb_dask.contracts.plan import Plan
from dpgb_dask.errors import PlanError

AUTO = Plan(
    name="auto",
    source="this project: Bayesian Gaussian-noise boosting",
    stages=(Bins(), Start(), MainEffects(), Pairs(), Forest()),
)

RECIPES: Mapping[str, Plan] = {"auto": AUTO}

# which stage option an estimator parameter sets, per recipe; what is not listed, the recipe does not have
PARAMETERS: Mapping[str, Mapping[str, tuple[type, str]]] = {
    "auto": {
        "n_estimators": (MainEffects, "rounds"),
        "learning_rate": (MainEffects, "damping"),
        "max_depth": (Forest, "depth"),
        "max_bins": (Bins, "max_bins"),
    },
}

LOSSES = {"binary": "log_loss", "multiclass": "log_loss", "numeric": "squared_error"}


def get(recipe: str | Plan, *, kind: str, loss: str | None = None, **parameters: Any) -> Plan:
    """Return a Plan, by name or as given, with an estimator's parameters set.

    Parameters
    ----------
    recipe : str or Plan
    kind : {"binary", "multiclass", "numeric"}
        Type of the target.
    loss : str or None
        None for the only one the target has.
    **parameters
        ``None`` means the recipe's own value.

    Raises
    ------
    PlanError
        If there is no such recipe, or it does not have a parameter or the loss.
    """
    if isinstance(recipe, Plan):
        plan, known = recipe, PARAMETERS.get(recipe.name, {})
    elif recipe in RECIPES:
        plan, known = RECIPES[recipe], PARAMETERS[recipe]
    else:
        raise PlanError(
            f"recipe={recipe!r} is unknown. Choose one of {sorted(RECIPES)} or give a Plan."
        )
    if loss not in (None, LOSSES[kind]):
        raise PlanError(
            f"loss={loss!r}: recipe {plan.name!r} has {LOSSES[kind]!r} for this target."
        )
    for name, value in parameters.items():
        if value is None:
            continue
        if name not in known:
            raise PlanError(
                f"{name}={value!r}: recipe {plan.name!r} does not have it. It has {sorted(known)}."
            )
        stage_type, option = known[name]
        stages = tuple(
            _with_option(stage, option, name, value) if isinstance(stage, stage_type) else stage
            for stage in plan.stages
        )
        plan = replace(plan, stages=stages)
    return plan


def _with_option(stage: Any, option: str, name: str, value: Any) -> Any:
    """Set one option; an error names the estimator's parameter, not the stage's."""
    try:
        return replace(stage, **{option: value})
    except PlanError as error:
        raise PlanError(str(error).replace(f"{option}=", f"{name}=", 1)) from None
