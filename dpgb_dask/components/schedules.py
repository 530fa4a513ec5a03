"""Public rules: which stages run and how the budget is spread, from released and public numbers only.

Every constant of `auto`'s schedule is here, with its reason (notes/default-method.md §3-4). They are the same for every
data set.
"""

from dataclasses import dataclass

import numpy as np

COUNT_SHARE = 0.002  # a rough row count for the choice of the grid; 1 % off is good enough
BINS_SHARE = 0.10  # 5 % loses .005 AUC on adult at ε = 1, 20 % is flat
START_SHARE = 0.01  # of what the bins left: base rate, or mean; the same again per residual scale
RESIDUAL_REFRESHES = (
    4  # at the start, a third into the main effects, before pairs, before the forest
)
FINE_GRID_SIGNAL = (
    1500.0  # noisy rows per standard deviation of a cell from which 1024 edges beat 256
)

FOREST_SHARE = 0.3
FOREST_GATE = {
    "binary": 0.005,
    "multiclass": 0.005,
    "numeric": 0.2,
}  # below this signal the forest's noise costs more than it finds
PAIR_SHARES = (
    (0.2, 0.0),
    (5.0, 0.3),
    (np.inf, 0.5),
)  # (signal below, share of what the forest leaves)
PAIR_EFFECT = {
    "binary": 0.1,
    "multiclass": 0.1,
    "numeric": 0.05,
}  # the size of an interaction worth finding, score units
SCREEN_SHARE = 0.2  # of the pairs' budget, to choose them
MAX_CANDIDATES = 200  # candidate pairs: noise grows with the square root of their number
PAIR_CELLS = 6  # each feature of a pair is coarsened to at most 6 bins

MAIN_ROUNDS = 20  # 10 lose up to .01 AUC, 40 gain nothing
PAIR_ROUNDS = 15
DAMPING = 0.4  # all features step at once: .15 to .5 are alike, 1 overshoots
LEAF_SIGNAL = 25.0  # leaves per partition = rows · Hessian / (25 · noise), so that a leaf's step is mostly signal
MIN_LEAVES, MAX_LEAVES = 6, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Prices of the stages after the start, in units of 2⁻⁶⁴ of μ²."""

    main: int
    screen: int
    pairs: int
    forest: int


def pair_signal(
    kind: str, n_features: int, n_rows: float, hess: float, clip: float, mu2: float
) -> float:
    """Return the expected squared signal-to-noise of an interaction in the screening release.

    Parameters
    ----------
    n_rows : float
        Noisy rows, in units of the largest weight.
    hess : float
        Released mean Hessian of a row.
    mu2 : float
        μ² left for all stages after the start.
    """
    n_candidates = min(n_features * (n_features - 1) // 2, MAX_CANDIDATES)
    if n_candidates == 0 or mu2 <= 0:
        return 0.0
    share = (1 - FOREST_SHARE) * PAIR_SHARES[1][1] * SCREEN_SHARE
    noise2 = clip**2 * n_candidates / (share * mu2)
    return (PAIR_EFFECT[kind] * n_rows * hess / PAIR_CELLS) ** 2 / noise2


def split_budget(kind: str, signal: float, left: int) -> Split:
    """Divide ``left`` among main effects, pairs and forest by the expected signal."""
    forest = int(left * FOREST_SHARE) if signal >= FOREST_GATE[kind] else 0
    share = next(share for below, share in PAIR_SHARES if signal < below)
    both = int((left - forest) * share)
    screen = int(both * SCREEN_SHARE)
    return Split(main=left - forest - both, screen=screen, pairs=both - screen, forest=forest)


def leaves_per_partition(n_rows: float, hess: float, sd_of_run: float, effect: float) -> int:
    """Return how many leaves a random partition gets, from the noise of the whole run on one sum."""
    wanted = effect * n_rows * hess / (LEAF_SIGNAL * sd_of_run)
    return int(np.clip(wanted, MIN_LEAVES, MAX_LEAVES))
