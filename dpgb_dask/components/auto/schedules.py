"""Rules for which stages run and how the budget is divided, computed from released and public numbers only.

The constants are in `components/constants.py`.
"""

from dataclasses import dataclass

import numpy as np

from dpgb_dask.components import constants
from dpgb_dask.components.prices import share_of
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.kernels.directions import MOST_DIRECTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSplit:
    """Prices of the stages after the start, in units of 2⁻⁶⁴ of μ².

    Parameters
    ----------
    main, screen, pairs, chosen, forest : int
    rich : bool
        Whether trees have most of what the main effects leave.
    signal : float
        `tree_signal`, where the data are rich; otherwise 0.
    """

    main: int
    screen: int
    pairs: int
    forest: int
    chosen: int = 0
    rich: bool = False
    signal: float = 0.0


def pair_signal(
    kind: str, n_pairs: int, n_rows: float, hess: float, clip: float, mu2: float
) -> float:
    """Return the expected squared signal-to-noise of an interaction in the screening release.

    Parameters
    ----------
    kind : {"binary", "multiclass", "numeric"}
    n_pairs : int
        Pairs of features that may interact.
    n_rows : float
        Noisy number of rows, in units of the largest weight.
    hess : float
        Mean Hessian of a row, as released.
    clip : float
        Bound of a row's gradient.
    mu2 : float
        μ² left for all stages after the start.
    """
    n_candidates = min(n_pairs, constants.MAX_CANDIDATES)
    if n_candidates == 0 or mu2 <= 0:
        return 0.0
    share = (1 - constants.FOREST_SHARE) * constants.PAIR_SHARES[1][1] * constants.SCREEN_SHARE
    noise2 = clip**2 * n_candidates / (share * mu2)
    return (constants.PAIR_EFFECT[kind] * n_rows * hess / constants.PAIR_CELLS) ** 2 / noise2


def most_candidates(kind: str, of_pairs: float) -> int:
    """Return how many pairs may be candidates: as many as keep the signal clear, given that of the usual number."""
    usual, most = constants.MAX_CANDIDATES, constants.MOST_CANDIDATES
    return int(np.clip(usual * of_pairs / constants.PAIR_CLEAR[kind], usual, most))


def tree_signal(n_rows: float, hess: float, clip: float, mu2: float) -> float:
    """Return the Σh of all rows over the noise of one sum that takes all that main effects leave where it is strong.

    Parameters
    ----------
    n_rows : float
        Noisy number of rows, in units of the largest weight.
    hess : float
        Mean Hessian of a row; `constants.NUMERIC_HESS` for a numeric target.
    clip : float
        Bound of a row's gradient.
    mu2 : float
        μ² left for all stages after the start.
    """
    return n_rows * hess * float(np.sqrt((1 - constants.CHOSEN_MAIN) * max(mu2, 0.0))) / clip


def main_share(kind: str, signal: float) -> float:
    """Return the share of the main effects on rich data: the stronger the signal, the less, as trees tell more."""
    signals = constants.RICH_SIGNAL, constants.CHOSEN_MAIN_SIGNAL, constants.LEAST_MAIN_SIGNAL
    shares = constants.RICH_MAIN[kind], constants.CHOSEN_MAIN, constants.LEAST_MAIN
    return _between(signal, signals, shares)


def effects_known(signal: float) -> float:
    """Return how far places of splits follow effects: not where data are not rich, wholly where trees are deep."""
    return _between(signal, (constants.RICH_SIGNAL, constants.DEEP_SIGNAL), (0, 1))


def forest_depth(signal: float) -> int:
    """Return the depth of random trees at the signal of rich data, 0 of others."""
    return max(depth for depth, least in constants.FOREST_DEPTHS.items() if signal >= least)


def chosen_trees(kind: str, signal: float, n_rows: float) -> int:
    """Return how many trees are chosen, unless they gain too little before: more cost CPU, and less is for each."""
    root, most = constants.CHOSEN_ROOT[kind], constants.MOST_ROOT
    wanted = max(min(root * float(np.sqrt(signal)), most), signal / constants.CHOSEN_EACH)
    work = max(constants.CHOSEN_WORK / max(n_rows, 1.0), constants.WORTH_WORK)
    return max(int(min(wanted, work, constants.MOST_CHOSEN)), 1)


def chosen_rate(signal: float, n_trees: int) -> float:
    """Return what the learning rate of ``n_trees`` chosen trees is multiplied by, at most 1: many learn slower."""
    return min(float(np.sqrt(np.sqrt(signal) / (constants.CHOSEN_FAST * n_trees))), 1.0)


def _between(signal: float, signals: tuple[float, ...], values: tuple[float, ...]) -> float:
    """Return what goes from each value to the next with the logarithm of the signal, between the signals of both."""
    value = np.interp(np.log(max(signal, 1.0)), np.log(signals), values)
    return round(float(value), 3)  # the same on processors whose logarithms differ in the last bit


def split_rich(kind: str, signal: float, left: int, *, chosen: bool, pairs: bool) -> BudgetSplit:
    """Divide ``left`` among main effects, pairs and chosen trees if there are to be any, and forest."""
    main = share_of(left, main_share(kind, signal))
    both = share_of(left - main, constants.RICH_PAIRS) if pairs else 0
    screen = share_of(both, constants.SCREEN_SHARE)
    trees = share_of(left - main - both, constants.CHOSEN_SHARE[kind]) if chosen else 0
    return BudgetSplit(
        main=main,
        screen=screen,
        pairs=both - screen,
        forest=left - main - both - trees,
        chosen=trees,
        rich=True,
        signal=signal,
    )


def split_budget(of_pairs: float, left: int, *, forest: bool) -> BudgetSplit:
    """Divide ``left`` among main effects, pairs by their signal, and the forest, if there is to be one.

    Parameters
    ----------
    of_pairs : float
        `pair_signal`.
    left : int
        Price of all stages after the start.
    forest : bool
        Whether trees follow.
    """
    trees = share_of(left, constants.FOREST_SHARE) if forest else 0
    share = next(share for below, share in constants.PAIR_SHARES if of_pairs < below)
    both = share_of(left - trees, share)
    screen = share_of(both, constants.SCREEN_SHARE)
    return BudgetSplit(main=left - trees - both, screen=screen, pairs=both - screen, forest=trees)


def linear_price(n_numeric: int, n_features: int, n_rows: float, main: int) -> int:
    """Return the price of linear effects of ``n_numeric`` features; 0 where noise would hide how these vary together.

    A rank between -1 and 1 has a variance of a third.

    Parameters
    ----------
    n_numeric, n_features : int
    n_rows : float
        Noisy number of rows, in units of the largest weight.
    main : int
        Price of the main effects, out of which it comes.
    """
    if not 2 <= n_numeric <= MOST_DIRECTIONS:
        return 0
    price = share_of(main, constants.LINEAR_SHARE * n_numeric / n_features)
    square = constants.LINEAR_NORM * n_numeric / 3
    mu = float(np.sqrt(constants.LINEAR_PRODUCTS * price / PRICE_ONE))
    sd = float(np.sqrt(0.5)) * square / max(mu * n_rows, 1e-300)
    return price if hidden_variance(n_numeric, sd) <= constants.LINEAR_HIDDEN else 0


def hidden_variance(n: int, sd: float) -> float:
    """Return about the largest eigenvalue of a symmetric matrix of n² noises of sd (Wigner's semicircle law)."""
    return 2 * float(np.sqrt(n)) * sd


def leaves_per_partition(n_rows: float, hess: float, sd_of_run: float, effect: float) -> int:
    """Return how many leaves a random partition gets, given ``sd_of_run``: the noise on a sum over the whole run."""
    wanted = effect * n_rows * hess / (constants.LEAF_SIGNAL * sd_of_run)
    return int(np.clip(wanted, constants.MIN_LEAVES, constants.MAX_LEAVES))
