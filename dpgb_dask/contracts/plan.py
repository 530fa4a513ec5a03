"""A Plan is a tuple of Stages: what a stage is asked, and what a fit knows between two questions."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask import losses
from dpgb_dask.contracts.boundary import Raw, Released
from dpgb_dask.contracts.model import MAX_BINS, FeatureBins, Model
from dpgb_dask.contracts.part import Part
from dpgb_dask.contracts.queries import Query
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import Loss


def _check_between(name: str, value: Any, high: float, rule: str) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < value < high:  # NaN compares false
        raise PlanError(f"{name}={value!r} must be {rule}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The privacy asked for; no default anywhere, never read from a file or the environment.

    Parameters
    ----------
    epsilon : float, > 0
    delta : float, in [0, 1)
        A constant chosen in advance, never 1/n. 0 for a plan of pure differential privacy, which asks nothing of it.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check_between("epsilon", self.epsilon, float("inf"), "a finite number above 0")
        if self.delta != 0:
            _check_between(
                "delta", self.delta, 1.0, "strictly between 0 and 1, or 0 for a pure plan"
            )


FEW_SD = (
    3.0  # below so many standard deviations of its noise, a number of rows cannot be told from none
)
FINEST_WEIGHT_BITS = 8
MOST_WEIGHT_STEPS = (1 << 16) - 1  # times 2**15, the largest |g| or h, one row stays below 2**31


def weight_bits_for(max_weight: int) -> int:
    """Return the bits of a fractional weight: steps of 1/256, or coarser where one row would overflow a packed sum."""
    return min(FINEST_WEIGHT_BITS, (MOST_WEIGHT_STEPS // max_weight).bit_length() - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Public facts that stages may use.

    Parameters
    ----------
    schema : Schema
    weight_bits : int
        Weights are integers in steps of 2**-weight_bits.
    max_weight : int
        Largest total weight of one row (or unit), in natural units.
    loss : Loss
        None for the target's own: log-loss, or the squared error. It is given a numeric target's public bounds; one of
        a class outside the package is kept as a `losses.OutsideLoss`.

    Raises
    ------
    PlanError
        If one row of the largest weight could overflow a packed sum, or `losses.get` refuses the loss, or it does not
        serve the target or cannot have its bounds; before any charge.
    """

    schema: Schema
    weight_bits: int = 0
    max_weight: int = 1
    loss: Loss = None  # type: ignore[assignment]  # __post_init__ puts the default

    def __post_init__(self) -> None:
        if self.loss is None:
            object.__setattr__(self, "loss", losses.default_loss(self.kind))  # type: ignore[unreachable]
        object.__setattr__(self, "loss", losses.get(self.loss))
        losses.check_loss(self.loss, self.kind)
        if self.kind == "numeric":
            target = self.schema.target
            object.__setattr__(self, "loss", self.loss.bounded(target.low, target.high))
        if self.max_weight << self.weight_bits > MOST_WEIGHT_STEPS:
            raise PlanError(
                f"max_weight={self.max_weight} with weight_bits={self.weight_bits} lets one row overflow a packed sum: "
                f"at most {MOST_WEIGHT_STEPS} steps. Choose a smaller max_weight."
            )

    @property
    def kind(self) -> str:
        """Type of the target: binary, multiclass or numeric."""
        return self.schema.target.type

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.schema.n_features

    @property
    def n_scores(self) -> int:
        """Score columns."""
        return len(self.schema.target.classes) if self.kind == "multiclass" else 1


class PublicRng:
    """Public randomness (partitions, trees): reproducible from a seed, one stream per label, no state to replay."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, *label: int | str) -> np.random.Generator:
        """Return the generator of a label; the same label gives the same numbers."""
        words = [
            part if isinstance(part, int) else int.from_bytes(part.encode(), "little")
            for part in label
        ]
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *words])))


@dataclass(frozen=True, slots=True)
class NoisyCount:
    """A released number of rows (weighted), and the standard deviation of its noise."""

    value: float
    sd: float

    @property
    def is_few(self) -> bool:
        """Whether it cannot be told from none: below three of its own standard deviations."""
        return self.value < FEW_SD * self.sd

    def __str__(self) -> str:
        return f"{self.value:.0f} ± {self.sd:.2g}"


@dataclass(frozen=True, slots=True)
class Unread:
    """Released rows whose value of a feature is missing, or not a declared category; one cell of noise each.

    Parameters
    ----------
    missing : float
    other : float or None
        None for a numeric feature.
    sd : float
        Standard deviation of the noise of each.
    n_cells : int
        Of the feature; their sum is part of the released number of rows.
    """

    missing: float
    other: float | None
    sd: float
    n_cells: int


class Facts:
    """What the stages of one method tell each other; released or public. A frozen dataclass inherits from it."""

    __slots__ = ()


F = TypeVar("F", bound=Facts)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class State:
    """What a fit knows between rounds; all of it public or released.

    Parameters
    ----------
    shape : Shape
    rng : PublicRng
    budget : Budget
    total : int
        Price of the whole plan, units of 2⁻⁶⁴ of its currency.
    left : int
        What no query has spent yet.
    n_threads : int
        Threads that decisions may take; any number gives the same bits.
    n_rows : float
        Noisy number of rows (weighted), at least 1.
    count : NoisyCount or None
        The release that ``n_rows`` is made of; None where no stage released one.
    unread : tuple of Unread
        Per feature, if bins were released.
    counts : tuple of ((n_bins,) float64)
        Noisy rows per bin, at least 1, per feature.
    model : Model or None
        None before the bins are released.
    memory : Any
        The running stage's own frozen record; None when a stage begins.
    facts : tuple of Facts
        What stages tell later ones: one record per class.
    """

    shape: Shape
    rng: PublicRng
    budget: Budget
    total: int
    left: int
    n_threads: int = 1
    n_rows: float = 1.0
    count: NoisyCount | None = None
    unread: tuple[Unread, ...] = ()
    counts: tuple[NDArray[np.float64], ...] = ()
    model: Model | None = None
    memory: Any = None
    facts: tuple[Facts, ...] = ()

    @classmethod
    def first(
        cls, shape: Shape, seed: int, budget: Budget, total: int, n_threads: int = 1
    ) -> "State":
        """Return what a fit knows before its first question."""
        rng = PublicRng(seed)
        return cls(
            shape=shape, rng=rng, budget=budget, total=total, left=total, n_threads=n_threads
        )

    def fact(self, kind: type[F]) -> F:
        """Return the record of a class; a `Plan` checks that what a stage uses is given before it."""
        for fact in self.facts:
            if isinstance(fact, kind):
                return fact
        raise PlanError(f"No stage has given {kind.__name__}: name it in the stage's uses.")

    def with_fact(self, fact: Facts) -> "State":
        """Return the state with a record, in the place of one of the same class."""
        others = (known for known in self.facts if type(known) is not type(fact))
        return replace(self, facts=(*others, fact))


@dataclass(frozen=True, slots=True)
class Demand:
    """What a stage will ask in a whole run; gates move it only within these limits.

    Parameters
    ----------
    at_least, at_most : float
        Share of the plan's whole price.
    n_queries : int
        Most queries it asks, for progress.
    n_values : int
        Most values it has released, where that may be very many; 0 where it cannot.
    """

    at_least: float
    at_most: float
    n_queries: int
    n_values: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Memory that a plan takes beside the rows, at most; from public numbers alone.

    Parameters
    ----------
    n_sums : int
        Most sums that every thread of a process adds up for one answer, 8 bytes each.
    held : int
        Bytes that the largest stage's decisions hold, in the process that controls the fit.
    per_thread : int
        Bytes that each thread that decides works with there.
    """

    n_sums: int = 0
    held: int = 0
    per_thread: int = 0

    def to_sum(self, n_threads: int) -> int:
        """Return the bytes in which a process of some threads adds up an answer: about 12 a sum and thread."""
        return 12 * self.n_sums * (n_threads + 2)

    def to_decide(self, n_threads: int) -> int:
        """Return the bytes that decisions take on some threads."""
        return self.held + n_threads * self.per_thread


NO_NEEDS = Needs()


Answer: TypeAlias = Released[NDArray[np.int64]]  # the noisy sums that a query is answered with


class Stage(Part, ABC):
    """A part of a plan: asks queries, turns released answers into the model. Holds options, no state.

    Inherit from it with a frozen dataclass whose fields are the options. What a plan asks beside the four methods has
    a default, so that a stage says only what is special about it.

    Attributes
    ----------
    makes_bins : bool
        Whether the model has bins when the stage ends: the first stage of every plan does.
    starts : bool
        Whether it makes the start model: bins, first scores, or counts for them. A fit with too few rows ends there.
    is_random : bool
        Whether it draws from `State.rng`: else the same answers give the same model for every seed.
    refines_bins : bool
        Whether bins change while it runs: rows are then encoded several times.
    row_draw : str or None
        Kind of the secret draw of rows that its queries carry (`queries.RowDraw`): "sample" or "part"; None for none.
    gives, uses : tuple of types of Facts
        Records that it leaves to later stages, and those that it needs of earlier ones.
    """

    __slots__ = ()

    makes_bins: ClassVar[bool] = False
    starts: ClassVar[bool] = False
    gives: ClassVar[tuple[type[Facts], ...]] = ()
    uses: ClassVar[tuple[type[Facts], ...]] = ()

    @property
    def is_random(self) -> bool:
        """Whether it draws from `State.rng`."""
        return False

    @property
    def refines_bins(self) -> bool:
        """Whether bins change while it runs."""
        return False

    @property
    def row_draw(self) -> str | None:
        """Kind of the secret draw of rows that its queries carry."""
        return None

    def public_bins(self, shape: Shape) -> tuple[FeatureBins, ...] | None:  # noqa: ARG002
        """Return the bins that it makes, if the schema alone decides them; None otherwise."""
        return None

    def most_bins(self, shape: Shape) -> tuple[int, ...]:
        """Return how many bins each feature has at most, if it is the stage that makes them."""
        known = self.public_bins(shape)
        return (MAX_BINS,) * shape.n_features if known is None else tuple(b.n_bins for b in known)

    def needs(self, shape: Shape, most_bins: Sequence[int]) -> Needs:  # noqa: ARG002
        """Return the memory that it takes beside the rows, where that may be more than a few MiB."""
        return NO_NEEDS

    @abstractmethod
    def declare(self, shape: Shape) -> Demand:
        """Return what the stage will ask for in a whole run."""

    def begin(self, state: State) -> State:
        """Set the stage's memory, which is None so far; called once, before its first query."""
        return state

    @abstractmethod
    def next_query(self, state: State) -> Query | None:
        """Return the next query, or None when the stage is done."""

    @abstractmethod
    def update(self, state: State, query: Query, released: Answer) -> State:
        """Turn a released answer into the next state (post-processing)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A method, as a value: decides the model and its privacy.

    Parameters
    ----------
    name : str
    source : str
        Paper and algorithm.
    stages : tuple of Stage
    deviations : tuple of str
        Where a step of the source is not private as published, and what is done instead.
    pure : bool
        True: pure ε-differential privacy, Laplace noise, prices in ε. False: Gaussian noise, prices in μ².
    draws_rows : bool
        Whether some queries are served by rows that a secret draw chooses (`queries.RowDraw`).
    losses : tuple of str
        Names of the losses it can serve.
    kinds : tuple of str
        Types of target it can serve.
    stops_on_few_rows : bool
        Whether a fit ends with the start model where the released number of rows cannot be told from none.

    Raises
    ------
    PlanError
        If no bins are made first, or rows are drawn in a way that could not be paid for.
    """

    name: str
    source: str
    stages: tuple[Stage, ...]
    deviations: tuple[str, ...] = ()
    pure: bool = False
    draws_rows: bool = False
    losses: tuple[str, ...] = ("log_loss", "squared_error")
    kinds: tuple[str, ...] = ("binary", "multiclass", "numeric")
    stops_on_few_rows: bool = True

    def __post_init__(self) -> None:
        """Refuse what a fit would stumble over after its charge."""
        given: Any  # whatever a caller put there
        for given in self.stages:
            # the digest of a plan is of what its stages print: a dataclass prints its options
            if not isinstance(given, Stage) or not is_dataclass(given):
                raise PlanError(
                    f"{given!r} is no stage of {self.name!r}: give a frozen dataclass that inherits from Stage."
                )
        known: set[type[Facts]] = set()
        for stage in self.stages:
            if lacking := [kind.__name__ for kind in stage.uses if kind not in known]:
                raise PlanError(
                    f"{type(stage).__name__} of {self.name!r} uses what no stage before it gives: {lacking}."
                )
            known.update(stage.gives)
        if not self.stages or not self.stages[0].makes_bins:
            raise PlanError(
                f"The first stage of {self.name!r} makes no bins: begin with Bins or PublicBins."
            )
        drawn = [stage.row_draw for stage in self.stages if stage.row_draw is not None]
        if drawn and not self.draws_rows:
            raise PlanError(f"A stage of {self.name!r} draws rows: give draws_rows=True.")
        if "sample" in drawn and not self.pure:
            raise PlanError(
                f"A stage of {self.name!r} asks samples of rows, which gain nothing under Gaussian noise: give"
                " pure=True, or let all rows serve."
            )
        if len(drawn) > 1:
            raise PlanError(
                f"{len(drawn)} stages of {self.name!r} draw rows: their draws would be the same. Let one stage draw."
            )

    def parameters(self) -> frozenset[str]:
        """Return the estimator's parameters that its stages take."""
        return frozenset().union(*(stage.parameters() for stage in self.stages))

    def with_parameter(self, name: str, value: Any) -> "Plan":
        """Return the plan with an estimator's parameter set in all stages that take it."""
        stages = tuple(
            stage.with_parameter(name, value) if name in stage.parameters() else stage
            for stage in self.stages
        )
        return replace(self, stages=stages)

    def brief(self) -> "Plan":
        """Return the plan cut short for tests: every stage asks what it asks, in few rounds."""
        return replace(self, stages=tuple(stage.brief() for stage in self.stages))

    def stops_before(self, stage: Stage, state: State) -> bool:
        """Return whether a fit ends before a stage: a function of released numbers alone, so a resumed fit agrees."""
        few = state.count is not None and state.count.is_few
        return self.stops_on_few_rows and few and not stage.starts

    def demand(self, shape: Shape) -> Demand:
        """Return what a run asks for in all; raises `PlanError` if the stages declare more than there is."""
        demands = [stage.declare(shape) for stage in self.stages]
        if not all(type(demand) is Demand for demand in demands):
            raise PlanError(f"A stage of {self.name!r} does not declare a Demand.")
        if (declared := sum(d.at_least for d in demands)) > 1:
            raise PlanError(
                f"The stages of {self.name!r} declare {declared:.3f} of the budget: at most 1 is there."
            )
        return Demand(
            declared, 1.0, sum(d.n_queries for d in demands), sum(d.n_values for d in demands)
        )

    def public_bins(self, shape: Shape) -> tuple[FeatureBins, ...] | None:
        """Return the first stage's bins, if the schema alone decides them: then one pass over the source is enough."""
        return self.stages[0].public_bins(shape)

    def needs(self, shape: Shape) -> Needs:
        """Return the memory that a run takes beside the rows: each need of its largest stage."""
        any_number = (MAX_BINS,) * shape.n_features
        most_bins = any_number if self.refines_bins else self.stages[0].most_bins(shape)
        needs = [stage.needs(shape, most_bins) for stage in self.stages]
        return Needs(
            n_sums=max(n.n_sums for n in needs),
            held=max(n.held for n in needs),
            per_thread=max(n.per_thread for n in needs),
        )

    @property
    def refines_bins(self) -> bool:
        """Whether a stage changes the bins while it runs: rows are then encoded several times."""
        return any(stage.refines_bins for stage in self.stages)

    @property
    def is_random(self) -> bool:
        """Whether a stage draws from the public randomness."""
        return any(stage.is_random for stage in self.stages)

    def digest(self) -> bytes:
        """Return a hash of the plan's stages and options, the same on every machine."""
        return hashlib.sha256(repr(self).encode()).digest()


class Rounds(Protocol):
    """Broadcast a message, reduce int64: the one interface of the back ends. Private side."""

    def ask(self, model: Model | None, query: Query) -> Raw[NDArray[np.int64]]:
        """Return the sealed sums of a query over all rows, at the scores of ``model``."""
        ...

    def fingerprint(self) -> int:
        """Return Σ over rows of a keyed PRF of what the fit can see of the row, mod 2²⁵⁶. Private."""
        ...

    def close(self) -> None:
        """Release shards and threads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Speed and memory; never changes the model.

    Parameters
    ----------
    backend : {"auto", "local", "tasks", "comms"}
        "auto": the current Dask client for Dask collections, else threads in this process. On a cluster "auto" begins
        with a task per shard and round, and goes over to Dask's own comms where many rounds make it pay.
    n_threads : int or None
        Threads of the local back end, and of what decides between two rounds; None for the number of cores.
    fan_in : int
        Sums added per task of the reduction tree; below ``64`` workers a plain gather is used.
    block_rows : int
        Rows per kernel call.
    cache : str
        Where codes are kept: "memory", "disk" (the worker's own folder), a folder, or the URL of a Zarr store; "auto":
        in memory while they fit, else on disk.
    memory_limit : int or None
        Bytes that one process may hold, all it does included; None for what Dask grants a worker, or the machine has.
    worker_wait : float
        Seconds to wait for a cluster's first worker.
    """

    backend: str = "auto"
    n_threads: int | None = None
    fan_in: int = 16
    block_rows: int = 1 << 16
    cache: str = "auto"
    memory_limit: int | None = None
    worker_wait: float = 60.0


Progress = Callable[
    [str, int, int], None
]  # (stage label, round, of how many); counts rounds, never rows
