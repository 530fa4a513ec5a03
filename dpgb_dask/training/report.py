"""The privacy report of a fit: what was asked, what it cost, what was assumed."""

import math
from collections.abc import Sequence
from typing import Any

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.features import Grouped, Hashed, in_words
from dpgb_dask.contracts.plan import Budget, NoisyCount, Plan, Shape, Unread
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.controller import account_units, accounting
from dpgb_dask.controller.comparison.pld import compared
from dpgb_dask.controller.comparison.records import Gaussian, records_of
from dpgb_dask.display import exact
from dpgb_dask.errors import first_few
from dpgb_dask.installed import VERSIONS
from dpgb_dask.losses import GRAD_BITS, LOSSES
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.released.statement import MAPPINGS
from dpgb_dask.training.build import build
from dpgb_dask.training.claims import relation
from dpgb_dask.training.fit import Asked, FitResult

SUSPECT_SHARE = 0.5  # warn about a feature if, for sure, a higher share of its values is unread …
EXPECTED_SHARE = 0.95  # … or a higher share of missing values, if the schema declares them
SURE_SD = 3.0  # "for sure" means by this many standard deviations of the noise
ASSUMPTIONS = (
    "The facts above are known to the reader without looking at the rows.",
    "delta is a constant that was chosen without looking at the rows.",
    "Whoever runs the cluster and reads its memory, disks and dashboard is trusted; the reader of the model is not.",
    "The keyed noise stream (ChaCha20) cannot be told from random bits.",
)
# on simulated rows, AUC begins to exceed .5 at this pull, for `auto` as for the papers' recipes
CLEAR_PULL = 0.1
MOST_COMPARED = 100.0  # above this ε nothing is private by any accountant
# a public constant: the delta at which pure recipes, which have none, are compared
COMPARED_DELTA = 1e-6
ONE_ROW = "One person has at most one row."
SAME_ORDER = (
    "Rows are drawn by their place in the source. A source that gives other rows, or another order, when it is read"
    " again is noticed, but for a chance of 2**-32, and the fit stops."
)


def report_of(result: FitResult, plan: Plan, shape: Shape) -> PrivacyReport:
    """Return the report of what was asked, charged and assumed."""
    controller = result.controller
    schema, budget = shape.schema, controller.budget
    unit = schema.unit_id
    neighbours, protected = relation(schema)
    few = result.count is not None and result.count.is_few
    return PrivacyReport(
        private=controller.private and schema.private,
        epsilon=budget.epsilon,
        delta=0.0 if plan.pure else budget.delta,
        mu=controller.mu,
        epsilon_zcdp=budget.epsilon
        if plan.pure
        else accounting.zcdp_epsilon(controller.mu, budget.delta),
        relation=neighbours,
        unit=protected,
        recipe=plan.name,
        source=plan.source,
        deviations=plan.deviations,
        fit_id=controller.fit_id,
        account=controller.account,
        receipts=controller.receipts,
        declared=controller.total,
        charged=controller.spent,
        slack=controller.slack,
        public=_public(shape, controller.public_seed),
        assumptions=(
            ONE_ROW if unit is None else f"All rows of one person have the same {unit!r}.",
            *((SAME_ORDER,) if plan.draws_rows and unit is None else ()),
            *ASSUMPTIONS,
        ),
        version=VERSIONS["dpgb_dask"],
        pure=plan.pure,
        loss=_loss_in_words(result.asked, shape),
        signal=_signal_in_words(controller.receipts, result.asked, result.count),
        stopped=result.stopped,
        warnings=(
            *((few_rows(result, shape),) if few else ()),
            *unread(result, schema),
            *large_delta(budget.delta, plan),
            *large_beside_rows(result, plan, shape),
        ),
        shares=_shares(result, schema),
        draws=_draws(result.asked),
        build=build(),
        compared=_compared(controller.receipts, result.asked, budget, pure=plan.pure),
        compared_delta=COMPARED_DELTA if plan.pure else budget.delta,
    )


def _public(shape: Shape, seed: int) -> dict[str, Any]:
    """Return the facts that were assumed to be public, by name."""
    schema, target = shape.schema, shape.schema.target
    bounds = (
        f"in [{exact(target.low)}, {exact(target.high)}]"
        if target.type == "numeric"
        else f"one of {list(target.classes)}"
    )
    public = {
        "features": {name: in_words(feature) for name, feature in schema.features.items()},
        "target": f"{target.name}: {bounds}",
        f"largest weight of a {'row' if schema.unit_id is None else 'unit'}": shape.max_weight,
        "seed of public randomness": seed,
        **shape.constraints.to_dict(),
    }
    mapped = {n: dict(f.mapping) for n, f in schema.features.items() if isinstance(f, Grouped)}
    if mapped:
        public[MAPPINGS] = mapped
    if shape.weight_bits and schema.unit_id is None and shape.class_weight is None:
        public["weighted by a column"] = "yes"
    if shape.class_weight is not None:
        weights = zip(target.classes, shape.class_weight, strict=True)
        public["weights of the classes"] = [[label, weight] for label, weight in weights]
    return public


def few_rows(result: FitResult, shape: Shape) -> str:
    """Say that the number of rows cannot be told from zero, and what the fit did.

    Privacy
    -------
    Post-processing: it prints released numbers, and causes that are possible by what is public of the fit.
    """
    if not result.stopped:
        done = "The fit went on all the same."
    elif result.controller.account is None:
        done = "The fit ended with the start model."
    else:
        done = "The fit ended with the start model, and only what it had opened is charged."
    causes, look = _causes_of_few_rows(shape)
    return (
        f"FEW ROWS: their released number is {result.count}, below three standard deviations of its noise, so that it"
        f" cannot be told from none. {done} Either {', or '.join(causes)}: {look}, the owner's own look, counts them."
        " Choose a larger epsilon, correct what is wrong, or go on with on_few_rows='continue'."
    )


def _causes_of_few_rows(shape: Shape) -> tuple[list[str], str]:
    """Return why rows may weigh too little in a fit of such a shape, and the call that counts such rows."""
    target, unit = shape.schema.target, shape.schema.unit_id
    causes = [
        "there are few rows for this epsilon",
        "targets are no numbers"
        if target.type == "numeric"
        else "labels are none of the declared classes",
    ]
    if unit is not None:
        causes += [
            f"values of {unit!r} cannot be read, or are or spell numbers of 2**53 or more, as 12e34567 does (put a"
            " letter before ids), which leaves their rows out",
            f"few units share the rows, as all rows of one {unit!r} together weigh at most max_rows_per_unit",
        ]
        return causes, "model.schema_.check(X, y)"
    if not shape.weight_bits and shape.max_weight == 1:  # every row weighs 1
        return causes, "schema.check(X, y)"
    what = "sample weights" if shape.class_weight is None else "sample weights times class_weight"
    causes.append(
        f"{what} are missing, not above 0, or small beside the schema's max_weight={shape.max_weight}, which the noise"
        " is for"
    )
    return causes, "schema.check(X, y, sample_weight)"


def large_delta(delta: float, plan: Plan) -> tuple[str, ...]:
    """Say that delta is large by itself, which is known before a fit; a pure plan spends none."""
    return () if plan.pure else account_units.large_delta(delta)


def large_beside_rows(result: FitResult, plan: Plan, shape: Shape) -> tuple[str, ...]:
    """Say that delta is not below one over the number of rows or units; prints released numbers only.

    Privacy
    -------
    Post-processing of the released number of rows: a row, or a unit, adds at most the largest weight to it.
    """
    delta, count = result.controller.budget.delta, result.count
    if plan.pure or count is None or count.is_few or large_delta(delta, plan):
        return ()
    least = (count.value - SURE_SD * count.sd) / shape.max_weight
    if delta * least < 1:
        return ()
    unit = shape.schema.unit_id
    what = "rows" if unit is None else f"units {unit!r}"
    return (
        f"LARGE DELTA: delta={exact(delta)} is not below one over the number of {what}: by a released number, there are"
        f" {least:.3g} or more. A method that publishes one of them, drawn at random, would keep the promise too."
        f" {account_units.SMALLER_DELTA}.",
    )


def _shares(result: FitResult, schema: Schema) -> dict[str, dict[str, list[float]]]:
    """Return, per feature, the released share of rows whose value is missing or "other", and the noise of each.

    Privacy
    -------
    Post-processing: released cells over the released number of rows.
    """
    count = result.count
    if count is None or count.is_few:  # a ratio of noise means nothing
        return {}
    out = {}
    named = zip(schema.encoded_names, schema.sources, result.unread, strict=False)
    for name, source, cells in named:
        # a hash has a bucket for any value
        hashed = isinstance(schema.features[source], Hashed)
        found = {"missing": cells.missing, "other": None if hashed else cells.other}
        out[name] = {
            what: _share(rows, cells, count) for what, rows in found.items() if rows is not None
        }
    return out


def _share(rows: float, cells: Unread, count: NoisyCount) -> list[float]:
    """Return a share of the rows, and the standard deviation of its noise.

    The number of rows is a mean of sums over cells, weighted by their precision. It contains the noise of one cell with
    weight count.sd² / (n_cells · sd²), so cell and number of rows are correlated.
    """
    share = rows / count.value
    variance = cells.sd**2 + (share**2 - 2 * share / cells.n_cells) * count.sd**2
    return [round(share, 6), round(math.sqrt(max(variance, 0.0)) / count.value, 6)]


def unread(result: FitResult, schema: Schema) -> tuple[str, ...]:
    """Say which features are mostly missing or "other"; a wrong type or wrong categories would look like this."""
    if not schema.private:  # the schema was read from these rows
        return ()
    suspects = []
    told = set()
    sources = dict(zip(schema.encoded, schema.sources, strict=True))
    for column, found in _shares(result, schema).items():
        name = sources[column]
        if name in told:  # a value that is missing is so in every column of its feature
            continue
        told.add(name)
        expected = EXPECTED_SHARE if schema.features[name].missing else SUSPECT_SHARE
        for what, limit in (("missing", expected), ("other", SUSPECT_SHARE)):
            share, sd = found.get(what, (0.0, 0.0))
            if share - SURE_SD * sd > limit:
                suspects.append(f"{name!r} ({what} {100 * share:.3g} ± {100 * sd:.2g} %)")
    if not suspects:
        return ()
    return (
        "MOSTLY UNREAD: by released counts, most rows have no value that the schema can read in"
        f" {first_few(suspects)}. Is it declared as what it is? schema.check(X), the owner's own look, tells.",
    )


def _draws(asked: Sequence[Asked | None]) -> tuple[list[Any] | None, ...]:
    """Return which rows answered each release; an empty tuple if all rows answered every release."""
    rows = [None if part is None else part.rows for part in asked]
    if not any(rows):
        return ()
    return tuple(None if r is None else [r.kind, r.group, r.low, r.high] for r in rows)


def _compared(
    receipts: Sequence[Receipt], asked: Sequence[Asked | None], budget: Budget, *, pure: bool
) -> dict[str, float]:
    """Return, by accountant, what the releases would cost as a schedule fixed in advance.

    Empty if this gives nothing new: Gaussian noise on all rows costs under GDP what was charged, and no accountant
    finds less. Also empty for parts of the rows of which none is the most expensive, and above `MOST_COMPARED`.

    Privacy
    -------
    Post-processing of receipts and draws. No charge depends on it.
    """
    if budget.epsilon > MOST_COMPARED:
        return {}
    draws = [None if part is None else part.rows for part in asked]
    records = records_of(receipts, draws, pure=pure)
    if not records or all(isinstance(r, Gaussian) and r.rate == 1 for r in records):
        return {}
    # the distance between discrete and continuous Gaussians uses a share of delta; discrete Laplace noise uses none
    share = 1.0 if pure else float(1 - accounting.SLACK)
    return compared(records, share * (COMPARED_DELTA if pure else budget.delta))


def _loss_in_words(asked: Sequence[Asked | None], shape: Shape) -> str:
    """Say how far a row can move a gradient sum, and whether a clip limits it."""
    one = 1 << (GRAD_BITS + shape.weight_bits)
    bounds = [part.largest_grad / one for part in asked if part is not None and part.largest_grad]
    if not bounds:
        return shape.loss.name
    low, high = min(bounds), max(bounds)
    text = f"{high:.3g}" if high - low < 1e-3 * high else f"{low:.3g} to {high:.3g}"
    unit = {"identity": " of half the target's range", "log": " of the target's upper bound"}
    text = f"{shape.loss.name}; a row's gradient is at most {text}{unit.get(shape.loss.link(shape.kind), '')}"
    widest = shape.loss.largest_slope
    # of a loss from outside the number is its author's; no bound rests on it
    whose = "" if shape.loss.name in LOSSES else ", as the loss itself says"
    # a bound that changes from query to query follows a running clip, or the scores that the model can reach
    cause = "a clip" + (
        " or the scores that the model can reach" if high - low > 1e-3 * high else ""
    )
    return f"{text}, by {cause} ({widest:g} without{whose})" if high < 0.99 * widest else text


def _signal_in_words(
    receipts: Sequence[Receipt], asked: Sequence[Asked | None], count: NoisyCount | None
) -> tuple[str, ...]:
    """Say how many rows the noise on one leaf equals, and below how many rows in all it hides the leaves.

    A leaf is taken to be clear if the net gradient of its rows, assumed to be a tenth of its maximum, exceeds the noise
    of all releases together, which is √(number of releases) times smaller than the noise of one.

    Privacy
    -------
    Post-processing of receipts, queries and the noisy number of rows, which is compared and not printed.
    """
    stages: dict[str, list[tuple[float, float]]] = {}
    for receipt, part in zip(receipts, asked, strict=True):
        if part is None or part.cell_share is None or not part.largest_grad:
            continue
        if receipt.mechanism != "choice":
            sigma = receipt.sigma_steps / 2**receipt.scale_bits
            stage = receipt.label.split(" ")[0]
            stages.setdefault(stage, []).append((sigma / part.largest_grad, part.cell_share))
    out = []
    for stage, releases in stages.items():
        rows = min(rows for rows, _ in releases)
        share = max(share for _, share in releases)
        least = rows / math.sqrt(len(releases)) / share / CLEAR_PULL
        times = "" if len(releases) == 1 else f" in each of {len(releases)} releases"
        text = (
            f"{stage}: the noise on the sum of one leaf weighs as much as {_in_digits(rows, 3)} rows that all pull one"
            f" way{times}; with fewer than about {_in_digits(least, 2)} rows in all, noise drowns the leaves."
        )
        if count is not None and max(count.value, 1.0) < least:
            text += (
                " THIS FIT HAS FEWER, by its released number of rows: what this stage learned is mostly noise. Choose a"
                " larger epsilon, or fewer leaves, or fit on more rows."
            )
        out.append(text)
    if count is None:
        out.append(
            "The recipe releases no number of rows: a fit on none, as where no label is a declared class, looks like"
            " any other. schema.check(X, y), the owner's own look, counts them."
        )
    return tuple(out)


def _in_digits(value: float, digits: int) -> str:
    """Return a rounded number of rows; with commas from a thousand on, up to where nobody has so many."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text and value < 1e12 else text
