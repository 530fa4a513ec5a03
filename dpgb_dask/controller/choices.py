"""The exponential choice of a split: gains of opened histograms as integers, and one exact draw per node or group.

Why it is private is docs/privacy.md P6. There are two scores: a gain, which the following is about, and for
`SharedChoice` a sum of absolute values, whose rules stand with the class.

A candidate's gain is G = Σ S²/(n + λ) over both children, where S is a child's sum of gradients and n its sum of
weights. Candidate c of a node is drawn with chance ∝ exp(-(u_max - u_c)/D), with integers D and u_c = ⌊G_c/unit⌋.

What one row, or unit, of total weight at most W changes
--------------------------------------------------------
Let 0 and the g of every row lie in an interval of width b. Put weight w on a child little by little: s = S/(n + λ) lies
in the interval too, and dG/dw = 2sg - s² = g² - (g - s)² lies in [g² - b², g²], so G changes by a number in
[(g² - b²)w, g²w], whatever other rows the child holds. The row brings the same g to one child of each candidate, in one
node: the gains of that node change within an interval of length b²w that holds 0. Rows of one unit add up, and the w of
all nodes sum to at most W: `Sensitivity.choice_range` is b²W, which is at most 4g*²W for |g| <= g*. Clipping gains at a
constant is monotone and never enlarges a change, so they stay within the interval.

What the choice costs
---------------------
If the scores of all candidates move within an interval of length R, a draw ∝ exp(u/D) changes every log-probability
within an interval of length R/D that holds 0: R/D-differentially private (McSherry and Talwar 2007, in range form) and
R/D-bounded range (Durfee and Rogers 2019; Dong, Durfee and Rogers 2020). Nodes are drawn independently given the sums,
so a level costs the sum of its nodes' intervals (parallel composition, for adding or removing a row).

What rounding adds
------------------
Sums are exact integers. In double precision, with v = 2⁻⁵³: S, n, n + λ, S² and the quotient are each rounded once, S
counting twice, and the sum of two children once: within (1 + v)⁷ < 1 + 2⁻⁵⁰ (scaling by powers of two is exact).
Gains are clipped at `CAP` · gain_range, so the absolute error is at most e = 2⁻⁵⁰ · CAP · gain_range, on both data
sets: the interval grows by 4e at most. The floor moves each end by less than one unit. A unit of data may lie in every
node of the level, so R = ⌈(gain_range + 4e · n_nodes)/unit⌉ + 2 n_nodes, and all of it is charged.

Exactness of the draw: propose c by its odds, which are all 1 but for those of a `SharedChoiceQuery`, keep it with
chance exp(-(u_max - u_c)/D), else start over. With (u_max - u_c)/D = m + a/D, m whole, c is kept if m draws of
Bernoulli(exp(-1)) and one of Bernoulli(exp(-a/D)) all succeed; both are drawn in integers (laplace.py).

What odds change
----------------
Odds π_c that are public, or follow from what was released before, are the same on neighbouring data sets. So a draw
∝ π_c exp(u_c/D) changes log-probabilities as it does without them: by the change of u_c/D less that of
log Σ π exp(u/D), which lies between the least and the largest of these (McSherry and Talwar 2007 state the mechanism
with such a measure).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.boundary import Sensitivity
from dpgb_dask.contracts.queries import SLOPE_BITS, ChoiceQuery, SharedChoiceQuery
from dpgb_dask.controller.laplace import exp_minus, exp_minus_one, mask_of, uniform_small
from dpgb_dask.controller.words import EXHAUSTED, Words, collect
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels import inner, kernel, readable
from dpgb_dask.losses import GRAD_BITS

# gains are clipped at CAP * gain_range, which no node of fewer than 2**30 rows reaches
CAP = 1 << 30
# sums under a slope are clipped here, divided by the nodes of a group; a row adds at most 2**31
MOST_SUM = 1 << 52
UNIT_BITS = 27  # at least 2**27 units in the range, so scores stay below 2**59
MAX_D = 1 << 62
WORDS_PER_CHOICE = 256


@kernel
def _draw_choice(
    words: NDArray[np.uint64],  # IN (n_words,)
    position: int,
    score: NDArray[np.int64],  # IN (n_candidates,)
    best: np.int64,
    odds: NDArray[np.int64],  # IN (n_candidates,) of all candidates up to each one
    d: np.int64,
    mask: np.uint64,
) -> tuple[np.int64, int, int]:
    """Return one candidate, the next position, beyond the buffer if the words ran out, and the last proposal's first.

    What is refused is final: where the words run out, the draw goes on with the proposal that they did not decide.
    """
    n, begun = np.uint64(odds[-1]), position
    while position < words.size:
        drawn, position = uniform_small(words, position, n)
        if drawn >= n:
            break
        c = np.searchsorted(odds, np.int64(drawn), side="right")
        gap = best - score[c]
        keep = True
        for _ in range(gap // d):
            keep, position = exp_minus_one(words, position)
            if not keep:
                break
        if keep:
            keep, position = exp_minus(words, position, np.uint64(gap % d), np.uint64(d), mask)
        if position <= words.size:
            if keep:
                return np.int64(c), position, begun
            begun = position
    return np.int64(0), EXHAUSTED, begun


@kernel
def _fill_choices(
    words: NDArray[np.uint64],  # IN (n_words,)
    score: NDArray[np.int64],  # IN (n_nodes, n_candidates)
    best: NDArray[np.int64],  # IN (n_nodes,)
    odds: NDArray[np.int64],  # IN (n_candidates,) of all candidates up to each one
    d: np.int64,
    mask: np.uint64,
    start: int,
    out: NDArray[np.int64],  # OUT (n_nodes,), from start on
) -> tuple[int, int]:
    """Choose for node after node while the words last; return how many are done, and the first word not yet used up."""
    position = 0
    for i in range(start, out.size):
        value, following, begun = _draw_choice(words, position, score[i], best[i], odds, d, mask)
        if following > words.size:
            return i, begun
        out[i] = value
        position = following
    return out.size, position


@inner
def _absolute(grad: int, second: int, slope: int, most: int) -> int:
    """Return |A·G - r·S| of one child and score."""
    grad, second = min(max(grad, -most), most), min(max(second, -most), most)
    return abs((grad << SLOPE_BITS) - slope * second)


@kernel
def _add_absolute(
    sums: NDArray[np.int64],  # IN (n_nodes, n_cells, n_scores, 2)
    n_levels: NDArray[np.int64],  # IN (n_features,), n_cells in all
    slope: NDArray[np.int64],  # IN (n_nodes, n_scores)
    most: int,  # at which a sum is clipped
    out: NDArray[np.int64],  # IN OUT (n_groups, n_candidates)
) -> None:
    """Add |A·G - r·S| of both children of every node and score to the candidates of the node's group."""
    n_nodes, _, n_scores, _ = sums.shape
    total, left = np.empty((n_scores, 2), np.int64), np.empty((n_scores, 2), np.int64)
    for v in range(n_nodes):
        total[:] = sums[v, : n_levels[0]].sum(axis=0)
        cell, candidate, score = 0, 0, out[v * out.shape[0] // n_nodes]
        for n in n_levels:
            left[:] = 0
            for level in range(cell, cell + n - 1):
                for k in range(n_scores):
                    left[k, 0] += sums[v, level, k, 0]
                    left[k, 1] += sums[v, level, k, 1]
                    right_grad, right_second = total[k, 0] - left[k, 0], total[k, 1] - left[k, 1]
                    score[candidate] += _absolute(left[k, 0], left[k, 1], slope[v, k], most)
                    score[candidate] += _absolute(right_grad, right_second, slope[v, k], most)
                candidate += 1
            cell += n


@dataclass(frozen=True, slots=True)
class Choice:
    """The exponential choice of one query: one position in the candidates per node.

    Parameters
    ----------
    query : ChoiceQuery
    gain_range : int
        That of the sums' sensitivity, in gradient steps² times natural weight.
    d : int
        D, in units of ``2**unit_bits``.
    unit_bits : int
        May be negative.

    Privacy
    -------
    Controller side; the answer may be released (module docstring). In a node without rows all gains are equal, so its
    draw is uniform. No value of the sums raises an error.
    """

    query: ChoiceQuery
    gain_range: int
    d: int
    unit_bits: int
    name: ClassVar[str] = "choice"
    sigma_steps: ClassVar[int] = 0
    scale_bits: ClassVar[int] = 0

    @classmethod
    def at(cls, query: ChoiceQuery, sensitivity: Sensitivity, epsilon: Fraction) -> Self:
        """Return the choice that is ``epsilon``-bounded range, and so ``epsilon``-differentially private.

        Raises
        ------
        PlanError
            If the query allows no choice: its gains have no bounded range, or its candidates are not in its bins.
        """
        unit_bits = sensitivity.choice_range.bit_length() - 1 - UNIT_BITS
        choice = cls(query, sensitivity.choice_range, 1, unit_bits)
        choice._check()
        d = _divisor(query.label, choice._range_in_units(), epsilon)
        return cls(query, sensitivity.choice_range, d, unit_bits)

    @property
    def parameters(self) -> tuple[int, ...]:
        """The numbers, besides the query, that decide the choice; they are part of the query id."""
        return (self.gain_range, self.d, self.unit_bits)

    def answer(self, sums: NDArray[np.int64], stream: Words) -> NDArray[np.int64]:
        """Return one candidate per node, drawn from the opened histogram."""
        return _draw(self.scores(sums), self.d, stream)

    def scores(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ⌊gain/unit⌋, (n_nodes, n_candidates) int64. Private."""
        query = self.query
        start, stop, after = self._cells()
        nodes = sums.reshape(query.splits.n_leaves, sum(query.sizes), 2)
        scores = np.empty((len(nodes), len(start)), np.int64)
        below = np.zeros((sum(query.sizes) + 1, 2), np.int64)
        for node, out in zip(nodes, scores, strict=True):
            np.cumsum(node, axis=0, out=below[1:])
            right = np.where(
                query.candidate_only[:, None],
                below[after] - below[after - 1],
                below[stop] - below[after],
            )
            gain = self._gain(right) + self._gain(below[stop] - below[start] - right)
            gain = np.minimum(gain, float(CAP * self.gain_range))
            out[:] = np.floor(np.ldexp(gain, -self.unit_bits))
        return scores

    def _gain(self, child: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return S²/(n + λ) in gradient steps² times natural weight."""
        total, weight = child[:, 0].astype(np.float64), child[:, 1].astype(np.float64)
        total = np.ldexp(total, -self.query.weight_bits)
        weight = np.ldexp(np.maximum(weight, 0.0), -GRAD_BITS - self.query.weight_bits)
        return total * total / (weight + self.query.ridge)

    def _cells(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Return, per candidate, the first cell of its feature, the one after its last, and the one after its bin."""
        offsets = np.concatenate(([0], np.cumsum(self.query.sizes))).astype(np.intp)
        feature = self.query.candidate_feature.astype(np.intp)
        start = offsets[feature]
        return start, offsets[feature + 1], start + self.query.candidate_bin.astype(np.intp) + 1

    def _range_in_units(self) -> int:
        """Return R, the length of the interval within which the scores change, rounding included."""
        n_nodes = self.query.splits.n_leaves
        error = Fraction(CAP * self.gain_range, 1 << 50)
        unit = Fraction(2) ** self.unit_bits
        return math.ceil((self.gain_range + 4 * error * n_nodes) / unit) + 2 * n_nodes

    def _check(self) -> None:
        query = self.query
        if self.gain_range <= 0 or query.n_scores != 1:
            raise PlanError(
                f"Choice {query.label!r}: this loss gives gains without a bounded range. "
                "Choose a loss with Hessian 1 and one score, or a recipe that splits otherwise."
            )


@dataclass(frozen=True, slots=True)
class SharedChoice:
    """The exponential choice of one query whose nodes share splits: one position in the candidates per group.

    Parameters
    ----------
    query : SharedChoiceQuery
    choice_range : int
        That of the sums' sensitivity: R, the length of the interval within which one row, or unit, moves the scores.
    d : int
        D: a candidate is drawn with chance ∝ its odds times exp(score/D).

    Privacy
    -------
    Controller side; the answer may be released. A score is u = Σ |A·G - r·S| over the children of a group's nodes and
    over the model's score columns, in whole numbers, with A = 2**SLOPE_BITS; nothing is rounded, so R is `choice_range`
    itself (private/sensitivity.py). G and S are clipped first, at `MOST_SUM` over nodes of a group times columns:
    clipping moves a sum by no more than the row does, so the bound, which takes |A g| and |r s| apart, holds; and u is
    at most 2 · 2 · A · MOST_SUM = 2**62. A row is in one group, and the intervals of a unit's groups sum to R at most;
    so a level costs R/D, whatever the number of features, thresholds, nodes and groups. No value of the sums raises an
    error.
    """

    query: SharedChoiceQuery
    choice_range: int
    d: int
    name: ClassVar[str] = Choice.name
    sigma_steps: ClassVar[int] = 0
    scale_bits: ClassVar[int] = 0

    @classmethod
    def at(cls, query: SharedChoiceQuery, sensitivity: Sensitivity, epsilon: Fraction) -> Self:
        """Return the choice that is ``epsilon``-bounded range, and so ``epsilon``-differentially private.

        Raises
        ------
        PlanError
            If the choice would be uniform.
        """
        most = sensitivity.choice_range
        return cls(query, most, _divisor(query.label, most, epsilon))

    @property
    def parameters(self) -> tuple[int, ...]:
        """The numbers, besides the query, that decide the choice; they are part of the query id."""
        return (self.choice_range, self.d)

    def answer(self, sums: NDArray[np.int64], stream: Words) -> NDArray[np.int64]:
        """Return one candidate per group, drawn from the opened histogram."""
        return _draw(self.scores(sums), self.d, stream, self.query.odds)

    def scores(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return u, (n_groups, n_candidates) int64. Private."""
        query = self.query
        nodes = sums.reshape(query.splits.n_leaves, sum(query.n_levels), query.n_scores, 2)
        nodes = readable("sums", nodes, np.int64, 4)
        scores = np.zeros((query.n_groups, len(query.candidates[0])), np.int64)
        most = MOST_SUM // (query.slope.size // query.n_groups)
        _add_absolute(nodes, np.array(query.n_levels), query.slope, most, scores)
        return scores


def _divisor(label: str, most: int, epsilon: Fraction) -> int:
    """Return the least D at which scores that move within an interval of length ``most`` cost ``epsilon``.

    Raises
    ------
    PlanError
        If the choice would be uniform.
    """
    d = math.ceil(most / epsilon)
    if not 0 < d <= MAX_D:
        raise PlanError(
            f"Choice {label!r} at epsilon={float(epsilon):.3g} would be uniform. Choose a larger epsilon."
        )
    return d


def _draw(
    score: NDArray[np.int64], d: int, stream: Words, odds: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return one candidate for each row of scores, with chance ∝ odds · exp(score/d); without odds, all have 1."""
    best, mask = score.max(axis=1), mask_of(d)
    below = np.cumsum(np.ones(score.shape[1], np.int64) if odds is None else odds)
    return collect(
        len(score),
        stream,
        lambda words, done, out: _fill_choices(
            words, score, best, below, np.int64(d), mask, done, out
        ),
        WORDS_PER_CHOICE,
    )
