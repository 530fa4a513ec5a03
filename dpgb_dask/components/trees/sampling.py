"""Which features (A1) and which rows a tree uses, and how much it may cost."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.options import check_decay, check_rate, check_whole
from dpgb_dask.contracts.part import Part
from dpgb_dask.contracts.queries import DRAW_BITS, RowDraw
from dpgb_dask.contracts.spending import price_on_sample
from dpgb_dask.frozen import frozen


@dataclass(frozen=True, slots=True)
class AllFeatures(Part):
    """Every tree may use every feature."""

    is_random = False

    def chosen(self, n_features: int, t: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the features of tree ``t``."""
        return np.arange(n_features)

    def n_used(self, n_features: int) -> int:
        """Return how many features a tree uses."""
        return n_features

    def cycle(self, n_features: int) -> int:  # noqa: ARG002
        """Return how many trees it takes until every feature had its turn; 1 where there are no turns."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclic(Part):
    """Consecutive trees use the next ``k`` features. FDP-GBDT §5.1; with ``k = 1``, DP-EBM."""

    k: int = 1

    is_random = False

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("k", self.k, 1, 1 << 16)

    def chosen(self, n_features: int, t: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the features of tree ``t``."""
        n = self.n_used(n_features)
        return _turn(t * n % n_features, n, n_features)

    def n_used(self, n_features: int) -> int:
        """Return how many features a tree uses."""
        return min(self.k, n_features)

    def cycle(self, n_features: int) -> int:
        """Return how many trees it takes until every feature had its turn."""
        return -(-n_features // self.n_used(n_features))


@lru_cache(maxsize=1024)  # the turns repeat
def _turn(first: int, n: int, n_features: int) -> NDArray[np.int64]:
    """Return ``n`` consecutive features, in increasing order; the first one follows the last one."""
    return frozen(np.sort(np.arange(first, first + n) % n_features))


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFeatures(Part):
    """Every tree uses ``k`` random features. FDP-GBDT §5.1."""

    k: int = 1

    is_random = True

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("k", self.k, 1, 1 << 16)

    def chosen(self, n_features: int, t: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the features of tree ``t``."""
        return np.sort(rng.choice(n_features, self.n_used(n_features), replace=False))

    def n_used(self, n_features: int) -> int:
        """Return how many features a tree uses."""
        return min(self.k, n_features)

    def cycle(self, n_features: int) -> int:  # noqa: ARG002
        """Return how many trees it takes until every feature had its turn; 1 where there are no turns."""
        return 1


@dataclass(frozen=True, slots=True)
class AllRows(Part):
    """Every row serves every tree, so the prices of all trees add up."""

    kind = None

    def draw(self, t: int, n_trees: int) -> RowDraw | None:  # noqa: ARG002
        """Return which rows serve tree ``t``."""
        return None

    def price(self, total: int, t: int, n_trees: int) -> int:
        """Return what the queries of tree ``t`` may cost together."""
        return total * (t + 1) // n_trees - total * t // n_trees

    def dearest(self, total: int, n_trees: int) -> int:
        """Return the largest price of a tree."""
        return -(-total // n_trees)

    def most_served(self, n_trees: int) -> int:
        """Return how many trees a row serves at most."""
        return n_trees


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonRows(Part):
    """Each row serves a tree with probability ``rate``, drawn in secret (amplification by sampling). DP-XGBoost §3.3.

    Parameters
    ----------
    rate : float
        Rounded to a multiple of 2⁻³².
    """

    rate: float = 0.1

    kind = "sample"

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("rate", self.rate)

    def brief(self) -> Self:
        """Return the part with most rows in every sample, for tests: a single row is then likely to be drawn."""
        return replace(self, rate=0.8)

    def _high(self) -> int:
        return max(1, round(self.rate * 2**DRAW_BITS))

    def draw(self, t: int, n_trees: int) -> RowDraw:  # noqa: ARG002
        """Return which rows serve tree ``t``."""
        return RowDraw(self.kind, t, 0, self._high())

    def price(self, total: int, t: int, n_trees: int) -> int:  # noqa: ARG002
        """Return what the queries of a tree may cost on its sample, before amplification."""
        return price_on_sample(total // n_trees, self._high() / 2**DRAW_BITS)

    def dearest(self, total: int, n_trees: int) -> int:
        """Return the price of every tree."""
        return self.price(total, 0, n_trees)

    def most_served(self, n_trees: int) -> int:
        """Return how many trees a row serves at most."""
        return n_trees


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensembles(Part):
    """The trees of an ensemble get disjoint rows; every ensemble draws anew from all rows. DPBoost §3.2 (EoE).

    Tree t of an ensemble gets a share ∝ decay · (1 - decay)^t of the rows (even shares at 0); rows are assigned by
    secret independent draws. Parts of fixed size would break the parallel composition for adding a row.

    Parameters
    ----------
    size : int
        Number of trees in an ensemble.
    decay : float
        In [0, 1).
    """

    size: int = 50
    decay: float = 0.01

    kind = "part"

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("size", self.size, 1, 10_000)
        check_decay("decay", self.decay)

    def brief(self) -> Self:
        """Return the part with ensembles of two trees, for tests."""
        return replace(self, size=2)

    def draw(self, t: int, n_trees: int) -> RowDraw:
        """Return which rows serve tree ``t``."""
        size = min(self.size, n_trees)
        share = (1 - self.decay) ** np.arange(size)
        ends = np.rint(np.append(0.0, np.cumsum(share) / share.sum()) * 2**DRAW_BITS)
        ends = np.minimum(ends, 2.0**DRAW_BITS - size + np.arange(size + 1))  # no part is empty
        group, k = divmod(t, size)
        return RowDraw(self.kind, group, int(ends[k]), int(ends[k + 1]))

    def price(self, total: int, t: int, n_trees: int) -> int:  # noqa: ARG002
        """Return what the queries of a tree may cost: the price of its whole ensemble."""
        return total // self.most_served(n_trees)

    def dearest(self, total: int, n_trees: int) -> int:
        """Return the price of every tree."""
        return self.price(total, 0, n_trees)

    def most_served(self, n_trees: int) -> int:
        """Return how many trees a row serves: one of each ensemble."""
        return -(-n_trees // min(self.size, n_trees))
