"""A Plan is a tuple of Stages. Here: the methods of a stage, and the state of a fit between two queries."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from dpgb_dask import losses
from dpgb_dask.contracts.boundary import Raw, Released
from dpgb_dask.contracts.constraints import UNCONSTRAINED, Constraints, Interactions
from dpgb_dask.contracts.model import MAX_BINS, FeatureBins, Model, check_bins
from dpgb_dask.contracts.part import Part
from dpgb_dask.contracts.queries import ChoiceQuery, Query, SharedChoiceQuery
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.contracts.spending import Item
from dpgb_dask.errors import PlanError
from dpgb_dask.frozen import settle
from dpgb_dask.kernels.histogram import scores_at_once
from dpgb_dask.kernels.warming import ALWAYS, GRADIENTS
from dpgb_dask.losses import Loss
from dpgb_dask.scalars import finite_float, is_number, whole_number


def _between(name: str, value: Any, high: float, rule: str) -> float:
    number = finite_float(value)
    if number is None or not 0 < number < high:
        raise PlanError(f"{name}={value!r} must be {rule}.")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The privacy that the user asks for. It has no default and is never read from a file or the environment.

    Parameters
    ----------
    epsilon : float, > 0
    delta : float, in [0, 1)
        A constant chosen in advance, never 1/n. 0 for a plan of pure differential privacy.

    Both are kept as Python floats: from a NumPy scalar of 32 bits, a price would be computed, and rounded up, in 32.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon = _between("epsilon", self.epsilon, float("inf"), "a finite number above 0")
        settle(self, epsilon=epsilon)
        rule = "strictly between 0 and 1, or 0 for a pure plan"
        delta = (
            0.0
            if is_number(self.delta) and self.delta == 0
            else _between("delta", self.delta, 1.0, rule)
        )
        settle(self, delta=delta)


# below this many standard deviations of its noise, a number of rows cannot be told from zero
FEW_SD = 3.0
# of a weight's step: finer ones of rows would take the choice of splits beyond 64 bits from some 100 million rows on
# (controller/choices.py). The rows of a unit add up to its largest weight, so there are fewer steps in a sum of theirs
FINEST_WEIGHT_BITS, FINEST_BITS_OF_UNITS = 10, 13
MOST_WEIGHT_STEPS = (1 << 16) - 1  # times 2**15, the largest |g| or h, is below 2**31 for one row


def weight_bits_for(max_weight: int, *, of_units: bool = False) -> int:
    """Return the bits of a fractional weight, fewer if one row could overflow a packed sum.

    Of a unit with more rows than K · 2**bits, no row weighs anything.
    """
    finest = FINEST_BITS_OF_UNITS if of_units else FINEST_WEIGHT_BITS
    return min(finest, (MOST_WEIGHT_STEPS // max_weight).bit_length() - 1)


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
        None for the default of the target: log-loss or squared error. The loss is stored with the public bounds of a
        numeric target; a loss of a class outside the package is stored as a `losses.OutsideLoss`.
    class_weight : tuple of float, optional
        What the weight of a row is multiplied by, for each declared class; each in [0, max_weight].
    constraints : Constraints
        What every model of the fit must keep.

    Raises
    ------
    PlanError
        If one row of the largest weight could overflow a packed sum, `losses.get` refuses the loss, the loss does not
        fit the target or its bounds, or the constraints do not fit the schema. All of this is checked before any
        charge.
    """

    schema: Schema
    weight_bits: int = 0
    max_weight: int = 1
    loss: Loss = None  # type: ignore[assignment]  # __post_init__ sets the default
    class_weight: tuple[float, ...] | None = None
    constraints: Constraints = UNCONSTRAINED

    def __post_init__(self) -> None:
        given: Any = self.loss
        loss = losses.get(losses.default_loss(self.kind) if given is None else given, self.kind)
        if self.kind == "numeric":
            target = self.schema.target
            bounded = loss.bounded(target.low, target.high)
            if bounded is not loss:  # a class may give another loss for these bounds
                losses.check_loss(bounded, self.kind)
            loss = bounded
        settle(self, loss=loss)
        for name, least in (("weight_bits", 0), ("max_weight", 1)):
            own = whole_number(getattr(self, name))
            if own is None or own < least:
                value = getattr(self, name)
                raise PlanError(f"{name}={value!r} must be a whole number, at least {least}.")
            settle(self, **{name: own})
        most_bits = MOST_WEIGHT_STEPS.bit_length()
        if self.max_weight << min(self.weight_bits, most_bits) > MOST_WEIGHT_STEPS:
            raise PlanError(
                f"max_weight={self.max_weight} with weight_bits={self.weight_bits} lets one row overflow a packed sum: "
                f"at most {MOST_WEIGHT_STEPS} steps. Choose a smaller max_weight."
            )
        if self.class_weight is not None:
            times = tuple(float(weight) for weight in self.class_weight)
            fits = len(times) == len(self.schema.target.classes)
            if not fits or not all(0 <= weight <= self.max_weight for weight in times):
                raise PlanError(
                    f"class_weight={times!r} must be one number in [0, {self.max_weight}] for each declared class."
                )
            settle(self, class_weight=times)
        self.constraints.check(self.schema)

    @property
    def kind(self) -> str:
        """Type of the target: "binary", "multiclass" or "numeric"."""
        return self.schema.target.type

    @property
    def n_features(self) -> int:
        """Number of encoded columns, of which a feature may have several."""
        return len(self.schema.encoded)

    @property
    def n_scores(self) -> int:
        """Number of score columns."""
        return len(self.schema.target.classes) if self.kind == "multiclass" else 1

    @property
    def directions(self) -> NDArray[np.int8] | None:
        """Direction of every encoded column, -1, 0 or 1; None if no feature is constrained."""
        return self.constraints.directions(self.schema) if self.constraints.monotonic else None

    @property
    def interactions(self) -> Interactions | None:
        """Which columns may interact; None if any may."""
        return Interactions.of(self.constraints, self.schema)

    @property
    def n_pairs(self) -> int:
        """Number of pairs of columns that may interact."""
        return self._pairs_among(np.arange(self.n_features))

    @property
    def n_free_pairs(self) -> int:
        """Number of pairs of columns that may interact and have no monotonic constraint: those that trees may draw."""
        directions = self.directions
        if directions is None:
            return self.n_pairs
        return self._pairs_among(np.flatnonzero(directions == 0))

    def _pairs_among(self, columns: NDArray[np.int64]) -> int:
        interactions = self.interactions
        if interactions is None:
            return len(columns) * (len(columns) - 1) // 2
        return int(np.triu(interactions.may_pair()[np.ix_(columns, columns)], 1).sum())


class PublicRng:
    """Public randomness (partitions, trees): reproducible from a seed, with one stateless stream per label."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, *label: int | str) -> Generator:
        """Return the generator of a label; the same label gives the same numbers."""
        # the words that `SeedSequence` makes of whole numbers itself, in half the time of all the rest
        words = np.frombuffer(b"".join(map(_words_of, (self.seed, *label))), "<u4")
        return Generator(PCG64(SeedSequence(words.astype(np.uint32))))


@lru_cache(maxsize=1024)
def _words_of(part: int | str) -> bytes:
    """Return a number, or the bytes of a text as one, in as many words of 32 bits as it needs."""
    number = part if isinstance(part, int) else int.from_bytes(part.encode(), "little")
    return number.to_bytes(4 * max(1, -(-number.bit_length() // 32)), "little")


@dataclass(frozen=True, slots=True)
class NoisyCount:
    """A released number of rows (weighted), and the standard deviation of its noise."""

    value: float
    sd: float

    @property
    def is_few(self) -> bool:
        """Whether it cannot be told from zero: it is below three standard deviations of its noise."""
        return self.value < FEW_SD * self.sd

    def __str__(self) -> str:
        return f"{self.value:.0f} ± {self.sd:.2g}"


@dataclass(frozen=True, slots=True)
class Unread:
    """Released numbers of rows whose value of a feature is missing, or no declared category; one noisy cell each.

    Parameters
    ----------
    missing : float
    other : float or None
        None for a numeric feature.
    sd : float
        Standard deviation of the noise on each.
    n_cells : int
        Number of cells of the feature; their sum is part of the released number of rows.
    """

    missing: float
    other: float | None
    sd: float
    n_cells: int


class Facts:
    """Base of what a stage leaves to later stages, released or public; subclasses are frozen dataclasses."""

    __slots__ = ()


F = TypeVar("F", bound=Facts)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class State:
    """The state of a fit between rounds; all of it is public or released.

    Parameters
    ----------
    shape : Shape
    rng : PublicRng
    budget : Budget
    total : int
        Price of the whole plan, in units of 2⁻⁶⁴ of μ², or of ε for a pure plan.
    left : int
        Price that no query has spent yet.
    n_threads : int
        Threads that decisions may use; the result has the same bits for any number.
    n_rows : float
        Noisy number of rows (weighted), at least 1.
    count : NoisyCount or None
        The release that ``n_rows`` comes from; None if no stage released one.
    unread : tuple of Unread
        One per feature, if bins were released.
    counts : tuple of ((n_bins,) float64)
        Per feature, the noisy number of rows in each bin, at least 1.
    model : Model or None
        None before the bins are released.
    memory : Any
        The current stage's own frozen record; None when a stage begins.
    facts : tuple of Facts
        What stages left to later stages: one record per class.
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
        """Return the state of a fit before its first query.

        Parameters
        ----------
        shape : Shape
        seed : int
            Of the public randomness.
        budget : Budget
        total : int
            Price of the whole plan; all of it is left.
        n_threads : int
        """
        rng = PublicRng(seed)
        return cls(
            shape=shape, rng=rng, budget=budget, total=total, left=total, n_threads=n_threads
        )

    def fact(self, kind: type[F]) -> F:
        """Return the record of a class; `Plan` checks that an earlier stage gives each record that a stage uses.

        Parameters
        ----------
        kind : type of Facts

        Raises
        ------
        PlanError
            If no stage has left such a record: the stage that asks does not name it in ``uses``.
        """
        found = self.find(kind)
        if found is None:
            raise PlanError(f"No stage has given {kind.__name__}: name it in the stage's uses.")
        return found

    def find(self, kind: type[F]) -> F | None:
        """Return the record of a class; None if no stage has left one.

        Parameters
        ----------
        kind : type of Facts
        """
        return next((fact for fact in self.facts if isinstance(fact, kind)), None)

    def with_fact(self, fact: Facts) -> "State":
        """Return the state with a record for later stages.

        Parameters
        ----------
        fact : Facts
            It replaces a record of the same class.
        """
        others = (known for known in self.facts if type(known) is not type(fact))
        return replace(self, facts=(*others, fact))


@dataclass(frozen=True, slots=True)
class Demand:
    """What a stage will spend and ask in a whole run; its gates can change the spending only within these limits.

    Parameters
    ----------
    at_least, at_most : float
        Limits of its share of the plan's whole price.
    n_queries : int
        The most queries that it asks, for the progress bar.
    n_values : int
        The most values that it has released, if these may be very many; otherwise 0.
    extra : float
        A share beyond ``at_least`` that it spends only if released answers call for it; later stages have to leave it.
    """

    at_least: float
    at_most: float
    n_queries: int
    n_values: int = 0
    extra: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The most memory that a plan takes besides the rows, from public numbers alone.

    Parameters
    ----------
    n_sums : int
        The most sums, of 8 bytes each, that a thread adds up for one answer.
    held : int
        Bytes that the largest stage's decisions hold in the process that controls the fit, with what stages before it
        keep.
    per_thread : int
        Bytes that each of the deciding threads works with there.
    kept : int
        Bytes of a stage's ``held`` that stay until the end of the fit, in its facts.
    """

    n_sums: int = 0
    held: int = 0
    per_thread: int = 0
    kept: int = 0

    def to_sum(self, n_threads: int) -> int:
        """Return the bytes that a process needs to add up an answer: about 12 per sum and thread."""
        return 12 * self.n_sums * (n_threads + 2)

    def to_decide(self, n_threads: int) -> int:
        """Return the bytes that decisions take with this many threads."""
        return self.held + n_threads * self.per_thread


NO_NEEDS = Needs()


Answer: TypeAlias = Released[NDArray[np.int64]]  # the noisy sums that answer a query


class Stage(Part, ABC):
    """A part of a plan: asks queries and turns released answers into the model. Holds options, no state.

    A stage is a frozen dataclass that inherits from this class; its fields are the options. Everything besides
    `declare`, `next_query` and `update` has a default, so that a stage declares only what is special about it.

    Attributes
    ----------
    makes_bins : bool
        Whether the model has bins when the stage ends; required of the first stage of a plan.
    starts : bool
        Whether it belongs to the start model: bins, first scores, or counts for them. A fit with too few rows ends
        after these stages.
    is_random : bool
        Whether it draws from `State.rng`. If not, the same answers give the same model for every seed.
    refines_bins : bool
        Whether bins change while it runs: rows are then encoded several times.
    row_draw : str or None
        Kind of the secret draw of rows for its queries (`queries.RowDraw`): "sample", "part", or None.
    queries : tuple of types of Query, or None
        Classes of the queries that it may ask: their kernels, and no others, are compiled before the fit. None for any.
    gives, uses : tuple of types of Facts
        Records that it leaves to later stages, and records that it needs from earlier stages.
    bills_exactly : bool
        Whether it asks all that `bill` says, whatever is released; required of all but the last stage of a plan that
        is to be charged by its bill.
    deepest : int
        Depth of the deepest trees that it grows; 0 if it grows none.
    adds_to : int
        Depth of the deepest trees of earlier stages to which it can add its own; a plan refuses others.
    keeps_monotonic, keeps_interactions : bool
        Whether what it adds to the model keeps these constraints (`Shape.constraints`). A plan refuses constraints that
        one of its stages does not keep.
    """

    __slots__ = ()

    makes_bins: ClassVar[bool] = False
    starts: ClassVar[bool] = False
    gives: ClassVar[tuple[type[Facts], ...]] = ()
    uses: ClassVar[tuple[type[Facts], ...]] = ()
    bills_exactly: ClassVar[bool] = False
    adds_to: ClassVar[int] = 0
    keeps_monotonic: ClassVar[bool] = False
    keeps_interactions: ClassVar[bool] = False

    @property
    def deepest(self) -> int:
        """Depth of the deepest trees that it grows."""
        return 0

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
        """Kind of the secret draw of rows for its queries."""
        return None

    @property
    def queries(self) -> tuple[type[Query], ...] | None:
        """Classes of the queries that it may ask; None for any."""
        return None

    def public_bins(self, shape: Shape) -> tuple[FeatureBins, ...] | None:  # noqa: ARG002
        """Return the bins that it makes if they depend on the schema alone; otherwise None, which is the default.

        Parameters
        ----------
        shape : Shape

        Returns
        -------
        tuple of FeatureBins, one per encoded column, or None
        """
        return None

    def most_bins(self, shape: Shape) -> tuple[int, ...]:
        """Return the most bins that each feature can have, if this stage makes the bins; by default 256.

        Bins that depend on the schema alone are counted.

        Parameters
        ----------
        shape : Shape
        """
        known = self.public_bins(shape)
        return (MAX_BINS,) * shape.n_features if known is None else tuple(b.n_bins for b in known)

    def needs(self, shape: Shape, most_bins: Sequence[int]) -> Needs:  # noqa: ARG002
        """Return the memory that it takes besides the rows; by default none, for a stage that needs a few MiB at most.

        Parameters
        ----------
        shape : Shape
        most_bins : sequence of int
            The most bins that each encoded column can have.
        """
        return NO_NEEDS

    @abstractmethod
    def declare(self, shape: Shape) -> Demand:
        """Return what the stage will ask for in a whole run; it is charged before the first query.

        Parameters
        ----------
        shape : Shape

        Returns
        -------
        Demand
        """

    def bill(
        self,
        shape: Shape,  # noqa: ARG002
        budget: Budget,  # noqa: ARG002
        total: int,  # noqa: ARG002
        left: int,  # noqa: ARG002
    ) -> tuple[Item, ...] | None:
        """Return the most that it asks in a pure plan; None if prices or kinds are not known before the fit.

        Parameters
        ----------
        shape : Shape
        budget : Budget
        total, left : int
            Price of the whole plan, and what earlier stages leave of it.
        """
        return None

    def most_queries(self, state: State) -> int:
        """Return the most queries that it asks in this fit, as far as released facts tell; for the progress bar.

        Parameters
        ----------
        state : State
            As the stage finds it.
        """
        return self.declare(state.shape).n_queries

    def begin(self, state: State) -> State:
        """Return the state with the stage's memory set, which is None at first; by default unchanged.

        Parameters
        ----------
        state : State
            As earlier stages left it. This is called once, before the stage's first query.
        """
        return state

    @abstractmethod
    def next_query(self, state: State) -> Query | None:
        """Return the next query, with its price, or None when the stage is done.

        Parameters
        ----------
        state : State

        Returns
        -------
        Query or None
            Its price comes out of ``state.left``. The same state gives the same query.
        """

    @abstractmethod
    def update(self, state: State, query: Query, released: Answer) -> State:
        """Return the state that follows from a released answer; this is post-processing.

        Parameters
        ----------
        state : State
            That in which the query was asked, less its price.
        query : Query
            As `next_query` returned it.
        released : Released of int64
            The noisy sums, with their receipt, which tells how large the noise is.
        """


def _prints_all(options: Any) -> bool:
    """Whether a dataclass is frozen and prints all its fields, and so do the dataclasses that it holds."""
    if not is_dataclass(options) or isinstance(options, type):
        return True
    kind: Any = type(options)
    own = fields(options)
    values = [getattr(options, field.name) for field in own]
    said = ", ".join(f"{field.name}={v!r}" for field, v in zip(own, values, strict=True))
    return (
        kind.__dataclass_params__.frozen
        and repr(options) == f"{kind.__qualname__}({said})"
        and all(map(_prints_all, values))
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A method, as a value. It decides the model and its privacy.

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
        Whether some queries are answered by rows that a secret draw chooses (`queries.RowDraw`).
    losses : tuple of str
        Names of the losses it can serve.
    kinds : tuple of str
        Types of target it can serve.
    stops_on_few_rows : bool
        Whether a fit ends with the start model if the released number of rows cannot be told from zero.

    Raises
    ------
    PlanError
        If the first stage makes no bins, or rows are drawn in a way that cannot be charged for.
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
        """Refuse a plan that would make a fit fail after its charge."""
        given: Any = self.stages  # a caller may have put anything there
        if not isinstance(given, tuple | list):
            raise PlanError(
                f"stages of {self.name!r} is a {type(given).__name__}. Give a tuple of stages, as in (Bins(), Start())."
            )
        for given in self.stages:
            # the digest of a plan hashes what its stages print, and a dataclass prints its options
            if not isinstance(given, Stage) or not is_dataclass(given):
                raise PlanError(
                    f"{given!r} is no stage of {self.name!r}: give a frozen dataclass that inherits from Stage."
                )
        known: set[type[Facts]] = set()
        for stage in self.stages:
            if not _prints_all(stage):
                raise PlanError(
                    f"{stage!r} of {self.name!r} must be a frozen dataclass that prints all of its fields: a fit is"
                    " resumed only under the options that it had."
                )
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
        """Return the estimator's parameters that the plan's stages take."""
        return frozenset().union(*(stage.parameters() for stage in self.stages))

    def with_parameter(self, name: str, value: Any) -> "Plan":
        """Return the plan with one of an estimator's parameters set in every stage that takes it.

        Parameters
        ----------
        name : str
            One of `parameters`.
        value : Any

        Raises
        ------
        PlanError
            If a stage refuses the value.
        """
        stages = tuple(
            stage.with_parameter(name, value) if name in stage.parameters() else stage
            for stage in self.stages
        )
        return replace(self, stages=stages)

    def brief(self) -> "Plan":
        """Return a short form for tests: every stage asks the same queries, in few rounds."""
        return replace(self, stages=tuple(stage.brief() for stage in self.stages))

    def stops_before(self, stage: Stage, state: State) -> bool:
        """Return whether a fit ends before a stage; it depends on released numbers alone, so a resumed fit agrees.

        Parameters
        ----------
        stage : Stage
        state : State
            As the stage would find it.
        """
        few = state.count is not None and state.count.is_few
        return self.stops_on_few_rows and few and not stage.starts

    def demand(self, shape: Shape) -> Demand:
        """Return the demand of the whole plan.

        Parameters
        ----------
        shape : Shape

        Raises
        ------
        PlanError
            If the stages declare more than there is, or leave nothing for others; if one does not keep the constraints
            of the shape, or would lose the trees of another.
        """
        self._check_constraints(shape)
        self._check_trees()
        demands = [stage.declare(shape) for stage in self.stages]
        if not all(type(demand) is Demand for demand in demands):
            raise PlanError(f"A stage of {self.name!r} does not declare a Demand.")
        for k, (stage, one) in enumerate(zip(self.stages, demands, strict=True)):
            if one.at_most >= 1 and any(later.at_most > 0 for later in demands[k + 1 :]):
                raise PlanError(
                    f"{type(stage).__name__} of {self.name!r} may take the whole budget, so that nothing is left for"
                    " the stages after it that ask for some. Give it a share below 1, or put it after them."
                )
        declared = sum(d.at_least for d in demands)
        most = declared + sum(d.extra for d in demands)
        if most > 1:
            raise PlanError(
                f"The stages of {self.name!r} declare {most:.3f} of the budget: at most 1 is there."
            )
        return Demand(
            declared, 1.0, sum(d.n_queries for d in demands), sum(d.n_values for d in demands)
        )

    def bill(self, shape: Shape, budget: Budget, total: int) -> tuple[Item, ...]:
        """Return the most that a pure plan asks, for accounts that charge each release by itself (docs/privacy.md P11).

        Empty if a stage cannot say, or an earlier one may ask less than it says: later prices follow from what is left.
        Empty, too, for Gaussian noise, whose prices add up in μ² and ρ as they are.

        Parameters
        ----------
        shape : Shape
        budget : Budget
        total : int
            Price of the whole plan.

        Raises
        ------
        PlanError
            If a stage bills anything but Items.
        """
        if not self.pure or not all(stage.bills_exactly for stage in self.stages[:-1]):
            return ()
        items: list[Item] = []
        left = total
        for stage in self.stages:
            asked = stage.bill(shape, budget, total, left)
            if asked is None:
                return ()
            if not all(type(item) is Item for item in asked):
                raise PlanError(f"A stage of {self.name!r} does not bill Items.")
            items += asked
            left -= sum(item.price * item.times for item in asked)
        return tuple(items)

    def _check_constraints(self, shape: Shape) -> None:
        asked = {
            "monotonic_cst": (bool(shape.constraints.monotonic), "keeps_monotonic"),
            "interaction_cst": (shape.constraints.interactions is not None, "keeps_interactions"),
        }
        for name, (given, kept) in asked.items():
            unable = [type(stage).__name__ for stage in self.stages if not getattr(stage, kept)]
            if given and unable:
                raise PlanError(
                    f"{name}: {', '.join(unable)} of recipe {self.name!r} cannot keep it. Leave it out, or choose a"
                    " recipe whose stages keep it."
                )

    def _check_trees(self) -> None:
        grown = 0
        for stage in self.stages:
            if stage.deepest and grown > stage.adds_to:
                most = f"trees deeper than {stage.adds_to}" if stage.adds_to else "trees"
                raise PlanError(
                    f"{type(stage).__name__} of {self.name!r} cannot add to {most}, and a stage before it grows some of"
                    f" depth={grown}. Leave out one of the two, or give the first shallower trees."
                )
            grown = max(grown, stage.deepest)

    def public_bins(self, shape: Shape) -> tuple[FeatureBins, ...] | None:
        """Return the first stage's bins if they depend on the schema alone; one pass over the source is then enough.

        Parameters
        ----------
        shape : Shape

        Raises
        ------
        PlanError
            If they do not fit the schema (`check_bins`).
        """
        bins = self.stages[0].public_bins(shape)
        if bins is not None:
            check_bins(bins, shape.schema)
        return bins

    def needs(self, shape: Shape) -> Needs:
        """Return the memory that a run takes besides the rows: for each kind of need, that of the neediest stage.

        Parameters
        ----------
        shape : Shape
        """
        any_number = (MAX_BINS,) * shape.n_features
        most_bins = any_number if self.refines_bins else self.stages[0].most_bins(shape)
        needs = [stage.needs(shape, most_bins) for stage in self.stages]
        before = accumulate((n.kept for n in needs), initial=0)
        return Needs(
            n_sums=max(n.n_sums for n in needs),
            held=max(n.held + kept for n, kept in zip(needs, before, strict=False)),
            per_thread=max(n.per_thread for n in needs),
            kept=sum(n.kept for n in needs),
        )

    @property
    def refines_bins(self) -> bool:
        """Whether a stage changes the bins while it runs; rows are then encoded several times."""
        return any(stage.refines_bins for stage in self.stages)

    @property
    def is_random(self) -> bool:
        """Whether a stage draws from the public randomness."""
        return any(stage.is_random for stage in self.stages)

    @property
    def chooses(self) -> bool:
        """Whether a stage may ask for choices, as far as stages say what they ask."""
        queries = [query for stage in self.stages for query in stage.queries or ()]
        return any(issubclass(query, ChoiceQuery | SharedChoiceQuery) for query in queries)

    def kernels(self, shape: Shape) -> tuple[str, ...] | None:
        """Return the names (`kernels.warming.GROUPS`) of the kernels that a fit may call, as far as its stages say it.

        None for all: a stage does not say which queries it asks, or a query not which kernels it takes. A kernel that
        is missing here is compiled at its first call.

        Parameters
        ----------
        shape : Shape
        """
        names = [*ALWAYS, *(["draws"] if self.draws_rows else [])]
        if shape.weight_bits or shape.max_weight > 1:
            names.append("weights")
        for stage in self.stages:
            if stage.queries is None:
                return None
            for query in stage.queries:
                if query.kernels is None:
                    return None
                names += query.kernels
        if len(scores_at_once(shape.n_scores)) < shape.n_scores:
            names.append("sums of classes")  # four scores at once
        gradient = type(shape.loss.gradient(shape.kind, shape.n_scores)).__name__
        return tuple(dict.fromkeys([*names, *GRADIENTS.get(gradient, ())]))

    def digest(self) -> bytes:
        """Return a hash of the plan's stages and options, the same on every machine."""
        return hashlib.sha256(repr(self).encode()).digest()


class Rounds(Protocol):
    """The interface of all back ends: broadcast a message, add up int64 answers. Private side."""

    def ask(self, model: Model | None, query: Query) -> Raw[NDArray[np.int64]]:
        """Return the sealed sums of a query over all rows, at the scores of ``model``."""
        ...

    def fingerprint(self) -> int:
        """Return Σ over rows of a keyed PRF of everything the fit can see of the row, mod 2²⁵⁶. Private."""
        ...

    def close(self) -> None:
        """Release shards and threads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Settings of speed and memory; they never change the model.

    Parameters
    ----------
    backend : {"auto", "local", "tasks", "comms"}
        "auto": the current Dask client for Dask collections, otherwise threads in this process. On a cluster, "auto"
        begins with one task per shard and round, and changes to Dask's own comms when there are enough rounds to make
        that worthwhile.
    n_threads : int or None
        Threads of the local back end, and of the decisions between two rounds; None for the number of cores.
    fan_in : int
        Number of sums that one task of the reduction tree adds. The tree serves from 64 workers on, and answers of
        1 MiB or more; otherwise all sums are gathered directly.
    block_rows : int
        Rows per kernel call.
    cache : str
        Where codes are stored: "memory", "disk" (the worker's own folder), a folder, or the URL of a Zarr store.
        "auto": in memory while they fit, otherwise on disk.
    memory_limit : int or None
        Bytes that one process may use in total; None for the memory that Dask grants a worker, or that the machine has.
    worker_wait : float
        Seconds to wait for the first worker of a cluster.
    """

    backend: str = "auto"
    n_threads: int | None = None
    fan_in: int = 16
    block_rows: int = 1 << 16
    cache: str = "auto"
    memory_limit: int | None = None
    worker_wait: float = 60.0


# called with (stage label, round, number of rounds); counts rounds, never rows
Progress = Callable[[str, int, int], None]
