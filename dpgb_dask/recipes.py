"""The methods as named Plans; data only. A departure from a paper is noted beside it and in the plan's deviations."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpgb_dask.components import constants
from dpgb_dask.components.auto.chosen import ChosenTrees
from dpgb_dask.components.auto.forest import Forest
from dpgb_dask.components.auto.linear_effects import LinearEffects
from dpgb_dask.components.auto.main_effects import MainEffects
from dpgb_dask.components.auto.mean import Mean
from dpgb_dask.components.auto.pairs import Pairs
from dpgb_dask.components.auto.start import Start
from dpgb_dask.components.bins import Bins
from dpgb_dask.components.counts import BaseScore, RowCount
from dpgb_dask.components.trees.budgets import Classic, Local, Shares
from dpgb_dask.components.trees.candidates import IterativeHessian, PublicBins, Sketch
from dpgb_dask.components.trees.leaves import Averaging, BinCountStep, GradientStep, NewtonStep
from dpgb_dask.components.trees.sampling import Cyclic, Ensembles, PoissonRows
from dpgb_dask.components.trees.splits import (
    ExponentialSplit,
    HistogramSplit,
    PartiallyRandom,
    TotallyRandom,
)
from dpgb_dask.components.trees.stage import Trees
from dpgb_dask.contracts.plan import Plan, Stage
from dpgb_dask.errors import PlanError, did_you_mean
from dpgb_dask.losses import LOSSES, Loss

EVERY_LOSS = tuple(LOSSES)
MEANS = ("log_loss", "squared_error")  # losses that a mean of targets minimises
ONE_SCORE = ("binary", "numeric")  # an exponential choice can weigh only one score

_REACHABLE = "A row's gradient is bounded over the scores that the released model can reach, if that bound is smaller."

_BINS = Bins(closer=constants.CLOSER_SHARE)
AUTO = Plan(
    name="auto",
    source="this project: Bayesian Gaussian-noise boosting",
    stages=(
        _BINS,
        Start(),
        LinearEffects(),
        MainEffects(),
        Pairs(),
        ChosenTrees(),
        Forest(),
        Mean(),
    ),
)
ADDITIVE = Plan(
    name="additive",
    source="this project: `auto` without trees",
    stages=(_BINS, Start(trees=False), LinearEffects(), MainEffects(), Pairs(), Mean()),
)

# ---- DP-EBM (Nori et al. 2021, algorithm 2)

# leaves shrink towards the step of the node above, with the prior scale that `auto` starts from (not in the papers)
_NEWTON = NewtonStep(prior=0.4)
_GRADIENT = GradientStep(prior=0.4)

_EBM_DEVIATIONS = (
    "Residuals of a regression are clipped: noise by the range of the target alone is too small.",
    "Categories are declared: names read from the rows would be released.",
    "No exact number of rows is used or kept: bins merge by released counts.",
    _REACHABLE,
)
# 10 % together with the row count at the beginning of the stage
_EBM_BINS = Bins(share=0.098, max_bins=32)
_EBM_TREES = Trees(
    n_trees=300,
    per_feature=True,
    depth=2,
    split=TotallyRandom(max_leaves=3),
    leaf=BinCountStep(learning_rate=0.01, largest=1e3),  # the paper does not clip leaves
    features=Cyclic(k=1),
)
DP_EBM = Plan(
    name="dp-ebm",
    source="Nori et al. 2021, algorithm 2",
    stages=(_EBM_BINS, BaseScore(), _EBM_TREES),
    deviations=_EBM_DEVIATIONS,
    losses=EVERY_LOSS,
)
DP_EBM_CLASSIC = replace(
    DP_EBM,
    name="dp-ebm-classic",
    source="Nori et al. 2021, algorithm 2 with strong composition",
    stages=(_EBM_BINS, BaseScore(), replace(_EBM_TREES, budget=Classic(share=0.9))),
)
DP_EBM_NEWTON = Plan(
    name="dp-ebm-newton",
    source="Maddock et al. 2022, §5.3.3",
    stages=(
        PublicBins(n_bins=32),
        BaseScore(),
        Trees(n_trees=100, depth=4, leaf=_NEWTON, features=Cyclic(k=1)),
    ),
    deviations=("delta is a constant, not one over the number of rows.", _REACHABLE),
    losses=EVERY_LOSS,
)

# ---- FDP-GBDT (Maddock et al. 2022): η .3, β 2, λ 1, Q 32, s 5, depth 4

_FDP_DEVIATIONS = (
    "delta is a constant, not one over the number of rows.",
    "Candidates come from declared bounds and lists, or are paid for: the authors' code reads bounds from the rows.",
    "Where leaves are Newton steps on log-loss, the Hessian is released beside the gradient at no extra noise.",
    "Gains and leaves of released histograms know their noise: a prior keeps leaves of noise small.",
    "Partially random splits release a node's sum and a contrast per feature, not both sides: less noise at one price.",
    _REACHABLE,
)
_IH = IterativeHessian(rounds=5, n_bins=32)
_FDP_BINS = PublicBins(n_bins=32)


def _fdp(name: str, what: str, trees: Trees, bins: Stage = _FDP_BINS) -> Plan:
    means = trees.leaf.means  # means of the targets themselves need no start score
    return Plan(
        name=name,
        source=f"Maddock et al. 2022, {what}",
        stages=(bins, trees) if means else (bins, BaseScore(), trees),
        deviations=_FDP_DEVIATIONS,
        losses=MEANS if means else EVERY_LOSS,
    )


_FDP = (
    _fdp("fdp-tr-newton", "totally random, Newton", Trees(leaf=_NEWTON)),
    _fdp("fdp-tr-gradient", "totally random, gradient", Trees(leaf=_GRADIENT)),
    _fdp(
        "fdp-tr-newton-ih",
        "totally random, Newton, iterative Hessian",
        Trees(leaf=_NEWTON, candidates=_IH),
    ),
    _fdp(
        "fdp-tr-newton-log",
        "totally random, Newton, log candidates",
        Trees(leaf=_NEWTON),
        replace(_FDP_BINS, spacing="log"),
    ),
    # quantiles come from one released histogram; those of the paper are not private
    _fdp(
        "fdp-tr-newton-quantile",
        "totally random, Newton, quantiles",
        Trees(leaf=_NEWTON),
        Bins(share=0.098, max_bins=32),
    ),
    replace(
        _fdp("ldp", "§5.3.4: local differential privacy", Trees(leaf=_NEWTON)),
        stages=(_FDP_BINS, RowCount(share=0.002), Trees(leaf=_NEWTON, budget=Local())),
        deviations=(
            *_FDP_DEVIATIONS,
            "No row is noised by itself: the controller draws the noises of all rows as one, by their noisy number. The"
            " guarantee is the one above, and no local one: it trusts whoever runs the cluster.",
        ),
    ),
    _fdp(
        "fdp-tr-newton-ih-ebm",
        "totally random, Newton, iterative Hessian, one feature a tree",
        Trees(leaf=_NEWTON, candidates=_IH, features=Cyclic(k=1)),
    ),
    _fdp(
        "fdp-tr-batch-25",
        "totally random, Newton, iterative Hessian, one feature a tree, batches of a quarter",
        Trees(leaf=_NEWTON, candidates=_IH, features=Cyclic(k=1), batch=0.25),
    ),
    _fdp(
        "fdp-tr-batch-100",
        "totally random, Newton, iterative Hessian, one feature a tree, one batch",
        # there is a single step, from the start score: it is taken in full
        Trees(
            leaf=replace(_NEWTON, learning_rate=1.0),
            candidates=_IH,
            features=Cyclic(k=1),
            batch=1.0,
        ),
    ),
    _fdp("dp-rf", "table 2: DP-RF", Trees(leaf=Averaging(), batch=1.0)),
    _fdp("feverless", "table 2: FEVERLESS", Trees(n_trees=25, split=HistogramSplit())),
    _fdp(
        "dp-gbm", "§5.3.2: DP-GBM", Trees(n_trees=25, split=HistogramSplit(), leaf=GradientStep())
    ),
    *(
        _fdp(
            f"fdp-{short}-{update}",
            f"{words}, {update}",
            Trees(n_trees=25, split=split, leaf=leaf, batch=batch),
        )
        for short, words, split in (
            ("hist", "noisy histograms", HistogramSplit()),
            ("pr", "partially random", PartiallyRandom()),
        )
        for update, leaf, batch in (
            ("newton", _NEWTON, 1),
            ("gradient", _GRADIENT, 1),
            ("averaging", Averaging(), 1.0),
        )
    ),
)

# ---- DPBoost (Li et al. 2020) and its baselines: λ .1, depth 6, g* 1, half of the budget for leaves

_CHOICE = (
    "A split is chosen by the range of its gain, which is tighter than twice its sensitivity, and its gradients are"
    " clipped at the stage's clip, if it has one."
)
_DPBOOST_DEVIATIONS = (
    "Rows join a tree by secret independent draws: fixed sizes do not compose in parallel when a row is added.",
    "Candidates are public: the authors' code takes quantiles of the rows.",
    _CHOICE,
    "A leaf is a noisy sum over a noisy Hessian, shrunk by a prior: less noise than by the bound of a leaf's value.",
    _REACHABLE,
)
_HALVES = Shares(candidates=0.0, splits=0.5, leaves=0.5)


def _dpboost(name: str, what: str, **options: Any) -> Plan:
    trees = {"n_trees": 50, "depth": 6, "split": ExponentialSplit(ridge=0.1), "budget": _HALVES}
    return Plan(
        name=name,
        source=f"Li et al. 2020, {what}",
        stages=(PublicBins(n_bins=32), BaseScore(), Trees(**{**trees, **options})),
        deviations=_DPBOOST_DEVIATIONS,
        pure=True,
        draws_rows=name != "seq",
        losses=EVERY_LOSS,
        kinds=ONE_SCORE,
    )


_LEAF = NewtonStep(learning_rate=0.1, ridge=0.1, clip=1.0, prior=1.0, laplace=True)
_DPBOOST = (
    _dpboost(
        "dpboost",
        "algorithm 2",
        leaf=replace(_LEAF, filtered=True),
        rows=Ensembles(size=50, decay=0.1),
        leaf_decay=0.1,
    ),
    _dpboost("seq", "§4: sequential composition", leaf=_LEAF),
    # every tree takes half of the rows that are left
    _dpboost("para", "§4: parallel composition", leaf=_LEAF, rows=Ensembles(size=50, decay=0.5)),
)

# ---- DP-XGBoost (Grislain and Gonzalvez 2021)

DP_XGBOOST = Plan(
    name="dp-xgboost",
    source="Grislain and Gonzalvez 2021",
    stages=(
        PublicBins(n_bins=255),  # the paper's sketch has 1024 bins; codes are uint8
        BaseScore(),
        Trees(
            n_trees=20,
            depth=6,
            split=ExponentialSplit(ridge=0.1),
            leaf=NewtonStep(learning_rate=0.3, ridge=0.1, prior=1.0, laplace=True),
            candidates=Sketch(n_bins=32),
            rows=PoissonRows(rate=0.1),
            budget=Shares(candidates=1 / 3, splits=1 / 3, leaves=1 / 3),
            least_weight=5.0,  # the paper's 50, for the tenth of the rows that serves a tree
        ),
    ),
    deviations=(
        "The least weight of a child acts on noisy sums after the split: on exact sums its loss is infinite.",
        "A leaf is a noisy sum over a noisy Hessian, shrunk by a prior: algorithm 1's exact count is not private.",
        _CHOICE,
        "Classes are fitted by log-loss, whose Hessian costs no noise; the paper takes their squared error.",
        _REACHABLE,
    ),
    pure=True,
    draws_rows=True,
    losses=EVERY_LOSS,
    kinds=ONE_SCORE,
)

RECIPES: Mapping[str, Plan] = {
    plan.name: plan
    for plan in (
        AUTO,
        ADDITIVE,
        DP_EBM,
        DP_EBM_CLASSIC,
        DP_EBM_NEWTON,
        *_FDP,
        *_DPBOOST,
        DP_XGBOOST,
    )
}
"""All recipes by name: what `recipe=` takes, each a `Plan` that can be looked at, changed and compared."""


def get(recipe: str | Plan, *, kind: str, loss: Loss | None = None, **parameters: Any) -> Plan:
    """Return a Plan, by name or as given, with an estimator's parameters set.

    Parameters
    ----------
    recipe : str or Plan
    kind : {"binary", "multiclass", "numeric"}
        Type of the target.
    loss : Loss or None
        None for the target's own: log-loss, or the squared error.
    **parameters
        Parameters of the estimator; ``None`` means the recipe's own value.

    Raises
    ------
    PlanError
        If there is no such recipe, or it has no such parameter or cannot serve the loss.
    """
    if isinstance(recipe, Plan):
        plan = recipe
        # reports and files must not give a changed plan the name of a recipe
        if recipe.name in RECIPES and recipe != RECIPES[recipe.name]:
            plan = replace(recipe, name=f"{recipe.name} (changed)")
    elif recipe in RECIPES:
        plan = RECIPES[recipe]
    else:
        raise PlanError(
            f"recipe={recipe!r} is unknown. Choose one of {sorted(RECIPES)} or give a Plan."
            f"{did_you_mean(recipe, RECIPES)}"
        )
    if kind not in plan.kinds:
        able = sorted(name for name, other in RECIPES.items() if kind in other.kinds)
        raise PlanError(
            f"recipe={plan.name!r} does not serve a {kind} target, only {plan.kinds}. Recipes that do: {able}."
        )
    if loss is not None:
        _check_loss(plan, kind, loss)
    for name, value in parameters.items():
        if value is None:
            continue
        if name not in plan.parameters():
            raise PlanError(
                f"{name}={value!r}: recipe {plan.name!r} does not have it. It has {sorted(plan.parameters())}."
            )
        try:
            plan = plan.with_parameter(name, value)
        except PlanError as error:
            raise PlanError(f"{error} That is the rule of recipe {plan.name!r}.") from None
    return plan


def _check_loss(plan: Plan, kind: str, loss: Loss) -> None:
    """Refuse a loss that does not fit the target or the recipe; the message names losses or recipes that do."""
    if kind not in loss.kinds:
        fitting = sorted(name for name, known in LOSSES.items() if kind in known.kinds)
        raise PlanError(
            f"loss={loss.name!r} does not fit a {kind} target. Choose one of {fitting}."
        )
    if not _serves(plan, kind, loss):
        able = sorted(name for name, other in RECIPES.items() if _serves(other, kind, loss))
        raise PlanError(
            f"loss={loss.name!r}: recipe {plan.name!r} has {sorted(plan.losses)}. Recipes that have it: {able}."
        )


def _serves(plan: Plan, kind: str, loss: Loss) -> bool:
    """Whether a plan can serve a loss: it names the loss, or the loss is from outside the package and it serves all.

    All losses, not all of this kind: a plan that has only the means' losses may never ask a loss for its gradient.
    """
    named = set(plan.losses)
    if kind not in plan.kinds:
        return False
    return loss.name in named or (loss.name not in LOSSES and set(LOSSES) <= named)
