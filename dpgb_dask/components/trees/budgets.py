"""How the price of a stage of trees is divided among its queries (docs/privacy.md P13)."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dpgb_dask.components.options import check_rate
from dpgb_dask.contracts.part import Part
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.errors import PlanError

_FINE = 30  # bits of a share; shares are whole numbers, so that a price is never rounded up
# σ <= 2**56 steps (gaussian.MAX_SIGMA) pays for ‖(g, h)‖ <= 2**32 steps, weights included, in 2**8 joint trees
LEAST_PRICE = 1 << 24


class Kappa(NamedTuple):
    """Units that queries for candidates, splits and leaf weights cost: κ_c, κ_s, κ_w of FDP-GBDT's table 1."""

    candidates: int
    splits: int
    leaves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """What a budget rule may look at; all of it is public or released.

    Parameters
    ----------
    total : int
        Price of the whole stage.
    tree : int
        What the queries of the current tree may cost together, on the rows that serve it.
    n_trees : int
    kappa : Kappa
        Units that the whole stage costs.
    all_rows : bool
        Whether every row serves every tree.
    budget : Budget
        Budget of the whole fit.
    n_rows : float
        Noisy number of rows.
    """

    total: int
    tree: int
    n_trees: int
    kappa: Kappa
    all_rows: bool
    budget: Budget
    n_rows: float


class Pricing(Part, ABC):
    """A rule that prices queries. Holds options, no state.

    Attributes
    ----------
    spends_all : bool
        Whether a stage's queries cost all that it may spend, up to rounding.
    serves_draws : bool
        Whether it can price queries that are served by drawn rows.
    plans_ahead : bool
        Whether prices follow from the stage's whole price, and from nothing that a fit releases.
    """

    __slots__ = ()

    spends_all: ClassVar[bool] = True
    serves_draws: ClassVar[bool] = False
    plans_ahead: ClassVar[bool] = False

    @abstractmethod
    def unit(self, view: BudgetView, part: str) -> int:
        """Return the price of one unit of a part: "candidates", "splits" or "leaves"."""


@dataclass(frozen=True, slots=True)
class Even(Pricing):
    """Every unit costs the same. FDP-GBDT theorem 4.1."""

    serves_draws = True
    plans_ahead = True

    def unit(self, view: BudgetView, part: str) -> int:  # noqa: ARG002
        """Return the price of one unit."""
        if view.all_rows:
            return view.total // sum(view.kappa)
        return view.tree * view.n_trees // sum(view.kappa)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares(Pricing):
    """Each part of a tree has a share of the tree's price, divided evenly among the part's units.

    Parameters
    ----------
    candidates, splits, leaves : float
        Shares; their sum is at most 1.
    """

    candidates: float
    splits: float
    leaves: float

    serves_draws = True
    plans_ahead = True

    def __post_init__(self) -> None:
        """Check that the shares do not sum to more than 1."""
        parts = (self.candidates, self.splits, self.leaves)
        if min(parts) < 0 or not 0 < sum(parts) <= 1 + 1e-12:
            raise PlanError(f"{self!r}: shares are at least 0 and sum to at most 1.")

    def unit(self, view: BudgetView, part: str) -> int:
        """Return the price of one unit of a part."""
        share = int(getattr(self, part) * 2**_FINE)
        return view.tree * share * view.n_trees // (getattr(view.kappa, part) << _FINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classic(Pricing):
    """The noise of the strong composition of Kairouz, Oh and Viswanath (2015), theorem 4.3: DP-EBM's "classic".

    k queries of sensitivity 1 get σ² = 8 k ln(e + ε/δ) / ε², which is more noise than GDP requires. The budget it
    leaves unspent is charged all the same: the account reserves (ε, δ) under every rule.

    Parameters
    ----------
    share : float
        Share of the fit's ε and δ.
    """

    share: float = 0.9

    spends_all = False

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("share", self.share)

    def unit(self, view: BudgetView, part: str) -> int:  # noqa: ARG002
        """Return 1/σ² as a price."""
        epsilon, delta = self.share * view.budget.epsilon, self.share * view.budget.delta
        price = epsilon**2 / (8 * sum(view.kappa) * math.log(math.e + epsilon / delta))
        return min(int(price * PRICE_ONE), view.total // sum(view.kappa))


@dataclass(frozen=True, slots=True)
class Local(Pricing):
    """As much noise as if every row had added noise to its own answers: the LDP baseline of FDP-GBDT §5.3.4.

    Under local privacy a row sends all leaves of a tree, noised so that any two rows look alike. This needs twice the
    noise that protects adding one row, as replacing a row may change everything it sends; and in every leaf the noises
    of n rows add up. So each unit has 1/(4n) of the price under `Even`. The sum of the rows' noises has the
    distribution of a single draw with their total variance, so the controller draws it, and no worker holds noise. A
    noisy number of rows may be absurdly large, so the noise is limited to what can still be drawn.
    """

    spends_all = False

    def unit(self, view: BudgetView, part: str) -> int:
        """Return the price of one unit."""
        even = Even().unit(view, part)
        return max(int(even / (4 * max(view.n_rows, 1.0))), min(even, LEAST_PRICE))
