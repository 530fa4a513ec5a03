"""A fit: the only place where rows, controller and components come together. The loop itself is in `loop.py`.

Order of effects: reserve the whole fit → read the data and bind its fingerprint → per round: sums → open, noise,
journal → only then the answer is used (docs/design.md §4).
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.system import cpu_count

from dpgb_dask.contracts.boundary import Released
from dpgb_dask.contracts.journal import Journal
from dpgb_dask.contracts.model import BinShares, FeatureBins, Model, NoiseBands
from dpgb_dask.contracts.plan import (
    Budget,
    Demand,
    Execution,
    Needs,
    NoisyCount,
    Plan,
    Progress,
    Rounds,
    Shape,
    Stage,
    State,
    Unread,
)
from dpgb_dask.contracts.queries import GradientQuery, Query, RowDraw
from dpgb_dask.contracts.spending import Item
from dpgb_dask.controller.accounting import MAX_VALUES, total_price
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import CHOICES
from dpgb_dask.controller.noise import NoiseSource
from dpgb_dask.controller.release import Controller
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import OutsideLoss
from dpgb_dask.private.keeping.store import remove_saved
from dpgb_dask.private.reading.rows import Source
from dpgb_dask.private.rounds import Backend, check_backend, open_rounds
from dpgb_dask.private.sensitivity import sensitivity
from dpgb_dask.released.export import ModelFile, fit_digest
from dpgb_dask.training.bands import bands_of
from dpgb_dask.training.config import check_folder
from dpgb_dask.training.journal import FileJournal
from dpgb_dask.training.loop import run

MOST_CHARACTERS = 160  # most characters of one setting in words

logger = logging.getLogger("dpgb_dask")

# NumPy's defaults: with the caller's np.seterr(all="raise"), released numbers would end a fit that is charged
_usual_floats = np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the report needs to know of a query for gradient sums; public or released, like the query.

    Parameters
    ----------
    largest_grad : int
        Largest |g| of one row of weight 1, in the steps of the sums.
    cell_share : float or None
        Average share of all rows that one cell holds; None if cells are no leaves.
    rows : RowDraw or None
        The draw of the rows that answered it; None for all rows.
    """

    largest_grad: int
    cell_share: float | None
    rows: RowDraw | None = None

    @classmethod
    def of(cls, query: Query) -> "Asked | None":
        """Return the facts about a query; None if it does not ask for gradients."""
        if not isinstance(query, GradientQuery):
            return None
        served = 1.0 if query.rows is None else query.rows.rate
        largest = query.gradient.largest_grad << query.weight_bits
        share = query.cell_share
        return cls(largest, None if share is None else served * share, query.rows)


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What a plan says of itself for some public facts; computed once, before the charge.

    Parameters
    ----------
    bins : tuple of FeatureBins or None
        Bins that follow from the schema alone.
    demand : Demand
    needs : Needs
    """

    bins: tuple[FeatureBins, ...] | None
    demand: Demand
    needs: Needs

    @classmethod
    def of(cls, plan: Plan, shape: Shape) -> "PlanFacts":
        """Ask a plan; raises `PlanError` if its bins do not fit the schema, or it declares more than there is."""
        return cls(plan.public_bins(shape), plan.demand(shape), plan.needs(shape))


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """The outcome of a fit; everything in it is released.

    Parameters
    ----------
    model : Model
    shares : BinShares
        Shares of the model's bins, by the counts that the plan released.
    bands : NoiseBands
        Standard deviations of the noise in the model, or why they are not known.
    controller : Controller
        The controller after the last release; it holds receipts and prices for the report.
    asked : tuple of (Asked or None)
        One per receipt.
    count : NoisyCount or None
        Number of rows, if the plan released one.
    unread : tuple of Unread
        Per feature, the rows whose value is missing or "other", if the plan released them.
    stopped : bool
        Whether the fit ended with the start model because the number of rows could not be told from zero.
    file : ModelFile or None
        The model file of the fit; the ledger's entry contains its digest.
    """

    model: Model
    shares: BinShares
    bands: NoiseBands
    controller: Controller
    asked: tuple[Asked | None, ...]
    count: NoisyCount | None
    unread: tuple[Unread, ...]
    stopped: bool
    file: ModelFile | None = None


@_usual_floats
def fit(
    source: Source,
    *,
    shape: Shape,
    plan: Plan,
    budget: Budget,
    execution: Execution,
    ledger: Ledger | None = None,
    account: str | None = None,
    noise: NoiseSource | None = None,
    seed: int,
    progress: Progress | None = None,
    resume: str | None = None,
    describe: Callable[[FitResult], ModelFile] | None = None,
    adopt: Callable[[ModelFile], None] | None = None,
) -> FitResult:
    """Run a plan on rows, within one budget.

    Parameters
    ----------
    source : Source
        Rows whose structure has been checked; no value has been read yet.
    shape, plan, budget, execution
    ledger, account
        None for a ledger in memory that holds only this fit.
    noise : NoiseSource or None
        None for the secret source; `SeededNoise` in tests.
    seed : int
        Seed of public randomness. A resumed fit uses the recorded seed.
    progress : callable or None
        Called with (label, rounds done, most rounds) after each release. It counts rounds, never rows.
    resume : str or None
        Fit id of a fit in the ledger. An unfinished fit is resumed. If the fit has ended, its model is rebuilt from the
        journal, and no rows are read.
    describe : callable or None
        Makes the model file of the result, with its report. Without it the ledger's entry contains no digest.
    adopt : callable or None
        Takes the model file once the fit has ended. An exception until it has done so gets a note on how to get the
        model.

    Raises
    ------
    BudgetExceededError, LedgerError, PlanError
        Before any charge.
    ChunkError, ClusterError, ScratchError, or what a callback raises
        The charge stands and the fit can be resumed; a note on the exception says how.

    Notes
    -----
    The logger ``dpgb_dask`` logs the fit id at level INFO as soon as the charge stands.

    Privacy
    -------
    The whole price is charged before a row is read; only `Controller.release` opens a sum.
    """
    if ledger is not None and not shape.schema.private:
        raise PlanError(
            "Facts read from the data (schema='infer') are not private: no ledger charge."
        )
    check_source(source, shape)
    known = PlanFacts.of(plan, shape)  # refused here if its bins do not fit the schema
    if known.demand.n_values > MAX_VALUES:
        raise PlanError(
            f"recipe={plan.name!r} may release {known.demand.n_values} values, above {MAX_VALUES}: its noise could not"
            " be proved fine enough. Choose fewer or shallower trees, or fewer bins."
        )
    backend = check_backend(source, execution, known.needs)
    # on a cluster the folder belongs to the workers and may not be visible from here
    if backend.client is None:
        check_folder(execution.cache)
    controller = reserve(
        plan, shape, budget, ledger, account, seed=seed, noise=noise, resume=resume
    )
    with (
        noting(controller, ledger),
        opened(controller, source, plan, shape, execution, backend, known) as rounds,
    ):
        n_threads = execution.n_threads or cpu_count()
        result = boost(plan, shape, controller, rounds, n_threads, progress)
        if rounds is not None:  # an interrupted fit needs it to be resumed
            remove_saved(execution.cache, controller.fingerprint_key)
        if describe is not None:
            result = replace(result, file=describe(result))
        named = "" if ledger is None or result.file is None else fit_digest(result.file)
        controller.finish(model=named, only_opened=result.stopped)
        if adopt is not None and result.file is not None:
            adopt(result.file)
    return result


@_usual_floats
def replay(
    *, shape: Shape, plan: Plan, budget: Budget, ledger: Ledger, account: str, fit_id: str
) -> FitResult:
    """Rebuild the model of a fit that has ended from its journal; reads no rows and writes nothing.

    Raises
    ------
    ResumeError
        If the settings are not those of the fit, or its journal is missing or incomplete.
    """
    recorded = 0  # placeholder; the recorded seed of the fit is used
    controller = reserve(plan, shape, budget, ledger, account, seed=recorded, resume=fit_id)
    return boost(plan, shape, controller, None, cpu_count(), None)


def reserve(
    plan: Plan,
    shape: Shape,
    budget: Budget,
    ledger: Ledger | None,
    account: str | None,
    *,
    seed: int,
    noise: NoiseSource | None = None,
    resume: str | None = None,
) -> Controller:
    """Charge a new fit, or resume or replay a fit, whose settings must then be the same."""
    return Controller.reserve(
        budget=budget,
        ledger=ledger,
        account=account,
        plan_digest=digest(plan, shape),
        facts=facts(plan, shape),
        public_seed=seed,
        noise=noise,
        pure=plan.pure,
        unit_id=shape.schema.unit_id,
        bill=bill_of(plan, shape, budget),
        journal=partial(open_journal, ledger),
        resume=resume,
    )


def bill_of(plan: Plan, shape: Shape, budget: Budget) -> tuple[Item, ...]:
    """Return what a pure plan asks at most under a budget; empty if it does not say."""
    if not plan.pure:
        return ()
    return plan.bill(shape, budget, total_price(budget.epsilon, budget.delta, pure=True))


def boost(
    plan: Plan,
    shape: Shape,
    controller: Controller,
    rounds: Rounds | None,
    n_threads: int,
    progress: Progress | None,
) -> FitResult:
    """Run the stages of a plan. Without ``rounds``, every answer must be in the journal."""
    asked: list[Asked | None] = []
    total = _Total(plan)

    def ask(stage: Stage, state: State, query: Query) -> Released[Any]:
        released = one_round(state, query, rounds, controller)
        if progress is not None:
            most = total.at(stage, state, len(asked))
            progress(query.label, len(asked) + 1, most)
        asked.append(Asked.of(query))
        return released

    ran = run(
        plan,
        State.first(shape, controller.public_seed, controller.budget, controller.total, n_threads),
        ask,
    )
    state = ran.state
    assert state.model is not None  # the first stage makes the model
    # refined bins are others than those that were counted
    shares = BinShares.of(state.model.bins, () if plan.refines_bins else state.counts)
    return FitResult(
        model=state.model,
        shares=shares,
        bands=bands_of(state, state.model, shares),
        controller=controller,
        asked=tuple(asked),
        count=state.count,
        unread=state.unread,
        stopped=ran.stopped,
    )


class _Total:
    """The most rounds of a fit, as far as released facts tell: stages end early, or do not run at all."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._current, self._before = -1, 0

    def at(self, stage: Stage, state: State, n_asked: int) -> int:
        """Return the most rounds, when a stage asks after ``n_asked`` queries."""
        stages = self._plan.stages
        if self._current < 0 or stage is not stages[self._current]:
            self._before = n_asked
            self._current += 1
            while stage is not stages[self._current]:
                self._current += 1  # stages that asked nothing
        later = [s for s in stages[self._current + 1 :] if not self._plan.stops_before(s, state)]
        return self._before + sum(s.most_queries(state) for s in (stage, *later))


def check_source(source: Source, shape: Shape) -> None:
    """Refuse rows that were prepared under other facts than the fit's, which state the sensitivity.

    Raises
    ------
    PlanError
        If the rows have no units although the schema names a unit column, or the other way round, because each row of a
        person would then count by itself; or if the rows were read under another schema.
    """
    unit = shape.schema.unit_id
    if source.units != (unit is not None):
        said = "has no units" if unit is not None else "has units"
        raise PlanError(
            f"unit_id={unit!r} of the schema, but the source {said}. Read it with read_source(..., unit=unit_id)."
        )
    if source.schema != shape.schema:
        raise PlanError(
            "The source was read under another schema than the fit's. Read it under that one."
        )


@contextmanager
def noting(controller: Controller, ledger: Ledger | None) -> Iterator[None]:
    """Say how to resume a charged fit: in the log, in case it is killed, and in any exception, even Ctrl-C."""
    try:
        if ledger is not None and ledger.durable and not controller.ended:
            logger.info(
                "Fit %s is charged. If it breaks off, fit(..., resume=%r) or the same command and --resume %s goes on.",
                *(3 * [controller.fit_id]),
            )
        yield
    except BaseException as error:
        controller.note(error)
        raise


@contextmanager
def opened(
    controller: Controller,
    source: Source,
    plan: Plan,
    shape: Shape,
    execution: Execution,
    backend: Backend,
    known: PlanFacts,
) -> Iterator[Rounds | None]:
    """Read the rows and bind the fit to them; None for a fit that has ended, which needs no rows."""
    if controller.ended:
        yield None
        return
    rows_key = controller.rows_key if plan.draws_rows else None
    rounds = open_rounds(
        source,
        shape,
        execution,
        controller.fingerprint_key,
        rows_key,
        known.bins,
        known.demand.n_queries,
        refines=plan.refines_bins,
        needs=known.needs,
        backend=backend,
        kernels=plan.kernels(shape),
    )
    try:
        controller.bind(rounds.fingerprint())
        yield rounds
    finally:
        rounds.close()


def digest(plan: Plan, shape: Shape) -> bytes:
    """Return a hash of everything that decides a fit's queries before its first answer: plan, schema, weights."""
    facts = [
        plan.digest().hex(), shape.schema.to_dict(), shape.weight_bits, shape.max_weight, repr(shape.loss)
    ]  # fmt: skip
    if gradients := _gradients(shape):
        facts.append(gradients)
    if shape.class_weight is not None:
        facts.append(["class_weight", *shape.class_weight])
    if shape.constraints:
        facts.append(shape.constraints.to_dict())
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=repr).encode()).digest()


def facts(plan: Plan, shape: Shape) -> dict[str, str]:
    """Return the facts that `digest` hashes, in words and by name, so that errors can name a difference; all public."""
    schema = shape.schema.to_dict()
    features = schema.pop("features")
    told: dict[str, Any] = {"recipe": plan.name, "loss": repr(shape.loss)}
    told |= {
        f"{name} of the plan": value
        for name, value in _options(plan).items()
        if name not in ("name", "stages")
    }
    if gradients := _gradients(shape):
        told["gradients of the loss"] = gradients
    told |= shape.constraints.to_dict()
    told["stages"] = ", ".join(type(stage).__name__ for stage in plan.stages)
    if plan.chooses and not plan.pure:
        told[CHOICES] = "priced beside what the fit may spend after them"
    for number, stage in enumerate(plan.stages, start=1):
        where = f"stage {number} ({type(stage).__name__})"
        told |= {f"{name} of {where}": value for name, value in _options(stage).items()}
    told["weights"] = f"up to {shape.max_weight}, in steps of 2**-{shape.weight_bits}"
    if shape.class_weight is not None:
        told["class_weight"] = shape.class_weight
    told["order of the features"] = ", ".join(features)
    told |= {f"feature {name!r} of the schema": feature for name, feature in features.items()}
    told |= {f"{name} of the schema": value for name, value in schema.items()}
    return {name: _short(value) for name, value in told.items()}


def _gradients(shape: Shape) -> str | None:
    """Return a hash of the gradients of a loss from outside: its name and options do not tell what its class does."""
    loss = shape.loss
    return loss.digest(shape.kind, shape.n_scores) if isinstance(loss, OutsideLoss) else None


def _options(part: Any) -> dict[str, Any]:
    """Return the options of a plan or stage."""
    if not is_dataclass(part):
        return {"options": part}
    return {option.name: getattr(part, option.name) for option in fields(part)}


def _short(value: Any) -> str:
    """Return a value as text; if it is long, its beginning and a hash of the whole."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}… (sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def open_journal(ledger: Ledger | None, fit_id: str) -> Journal | None:
    """Return the journal of a fit, a file beside its ledger; None in memory, where nothing can be resumed."""
    path = None if ledger is None else ledger.journal_path(fit_id)
    return None if path is None else FileJournal(path)


def one_round(
    state: State, query: Query, rounds: Rounds | None, controller: Controller
) -> Released[Any]:
    """Ask a query and release its answer; a resumed fit uses the journal's answer without asking the rows."""
    if controller.answered:
        known = controller.replayed(query, sensitivity(query, state.shape))
        assert known is not None  # the controller refuses a query that was not asked before
        return known
    assert rounds is not None  # a fit that has ended has all answers in its journal, or was refused
    return controller.release(query, rounds.ask(state.model, query))
