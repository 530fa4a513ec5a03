"""Sums plus discrete Laplace noise of integer parameter t, P(Z = n) ∝ exp(-|n| / t), drawn exactly: docs/privacy.md P5.

No float decides a sample. Uniform integers are exact: rejection on masked words (`uniform_wide`), or Lemire's
multiplication with rejection (`uniform_small`).

Canonne, Kamath and Steinke (2020), algorithm 2, for scale t: propose j uniform in {0, …, t-1}, keep it with probability
exp(-j/t); count k successes before the first failure of Bernoulli(exp(-1)); then k t + j has weight
exp(-(k t + j)/t), with a uniform sign, and zero of one sign is dropped.

Bernoulli(exp(-γ)), 0 <= γ <= 1 (algorithm 1): let K be the first step at which Bernoulli(γ/K) fails. P(K > m) = γᵐ/m!,
so P(K odd) = Σ (-γ)ᵐ/m! = exp(-γ). For γ = j/t a step is two events, both of which must happen: a uniform integer below
K is 0, and one below t is less than j.

A value |z| >= `FAR` is reported as `FAR`. `DiscreteLaplace` clips sums to ±`LAPLACE_SATURATION` and answers to twice
that, so with such noise the answer does not depend on the sum, and clipping is post-processing. Hence the answer is
exactly ε-differentially private for ε = Δ₁ 2ᵏ/t (sums scaled by 2ᵏ): P(S + Z = a)/P(S' + Z = a) =
exp((|a - S'| - |a - S|)/t) in every coordinate (Ghosh, Roughgarden and Sundararajan 2009; Dwork et al. 2006).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.controller.gaussian import add_scaled
from dpgb_dask.controller.words import EXHAUSTED, LOW32, U1, U2, U32, Words, collect
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels import kernel

FAR = 1 << 62  # stands for Laplace noise of this size or more
LAPLACE_SATURATION = 1 << 60  # FAR - LAPLACE_SATURATION >= 2 * LAPLACE_SATURATION
MAX_T = 1 << 56

WORDS_PER_VALUE = 24  # about how many one value takes; only a first guess of how many to read

_U0 = np.uint64(0)
_TWO32 = np.uint64(1 << 32)


@kernel
def uniform_small(
    words: NDArray[np.uint64],  # IN (n_words,)
    position: int,
    bound: np.uint64,  # 1 <= bound < 2**31
) -> tuple[np.uint64, int]:
    """Return a uniform integer below ``bound`` and the next position; ``bound`` itself when the words run out.

    Lemire (2019): of the 2³² products r·bound, exactly ⌊2³²/bound⌋ for each value of the high half have a low half of
    at least 2³² mod bound.
    """
    while position < words.size:
        product = (words[position] >> U32) * bound
        position += 1
        low = product & LOW32
        # the remainder is below bound, so the division is needed only if low is too
        if low >= bound or low >= _TWO32 % bound:
            return product >> U32, position
    return bound, EXHAUSTED


@kernel
def uniform_wide(
    words: NDArray[np.uint64],  # IN (n_words,)
    position: int,
    bound: np.uint64,
    mask: np.uint64,  # 2**b - 1 >= bound - 1
) -> tuple[np.uint64, int]:
    """Return a uniform integer below ``bound`` and the next position; ``bound`` itself when the words run out."""
    while position < words.size:
        value = words[position] & mask
        position += 1
        if value < bound:
            return value, position
    return bound, EXHAUSTED


@kernel
def exp_minus(
    words: NDArray[np.uint64],  # IN (n_words,)
    position: int,
    above: np.uint64,  # 0 <= above < below
    below: np.uint64,
    mask: np.uint64,  # 2**b - 1 >= below - 1
) -> tuple[bool, int]:
    """Draw Bernoulli(exp(-above/below)); return it and the next position."""
    step = 1
    while True:  # every draw fails when the words run out, so the loop ends then
        if step > 1:
            u, position = uniform_small(words, position, np.uint64(step))
            if u != _U0:
                break
        u, position = uniform_wide(words, position, below, mask)
        if u >= above:
            break
        step += 1
    return step % 2 == 1, position


@kernel
def exp_minus_one(
    words: NDArray[np.uint64],  # IN (n_words,)
    position: int,
) -> tuple[bool, int]:
    """Draw Bernoulli(exp(-1)); return it, false when the words run out, and the next position."""
    step = 2  # Bernoulli(1/1) always succeeds
    while True:
        u, position = uniform_small(words, position, np.uint64(step))
        if u != _U0:
            return step % 2 == 1 and position <= words.size, position
        step += 1


@kernel
def _draw_laplace(
    words: NDArray[np.uint64],  # IN (n_words,)
    position: int,
    t: np.uint64,
    mask: np.uint64,
) -> tuple[np.int64, int]:
    """Return one value and the next position, which lies beyond the buffer if the words ran out."""
    most = np.uint64(FAR) // t  # k >= most: at or beyond FAR, or within t of it
    while position < words.size:
        j, position = uniform_wide(words, position, t, mask)
        if j >= t:
            break
        keep, position = exp_minus(words, position, j, t, mask)
        if not keep:
            continue
        k = _U0
        while True:
            more, position = exp_minus_one(words, position)
            if not more:
                break
            k += U1
        minus, position = uniform_small(words, position, U2)
        if position > words.size:
            break
        if k == _U0 and j == _U0 and minus != _U0:
            continue
        size = np.int64(FAR)
        if k < most or (k == most and j < np.uint64(FAR) - most * t):
            size = np.int64(k) * np.int64(t) + np.int64(j)
        return (-size if minus != _U0 else size), position
    return np.int64(0), EXHAUSTED


@kernel
def _fill_laplace(
    words: NDArray[np.uint64],  # IN (n_words,)
    t: np.uint64,
    mask: np.uint64,
    start: int,
    out: NDArray[np.int64],  # OUT (n,), from start on
) -> tuple[int, int]:
    """Fill ``out`` while the words last; return how many are done, and the first word of the next value."""
    position = 0
    for i in range(start, out.size):
        value, following = _draw_laplace(words, position, t, mask)
        if following > words.size:
            return i, position
        out[i] = value
        position = following
    return out.size, position


def discrete_laplace(n: int, t_steps: int, stream: Words) -> NDArray[np.int64]:
    """Draw ``n`` independent values of the discrete Laplace law; values beyond ±`FAR` are reported as ±`FAR`.

    Parameters
    ----------
    n : int
    t_steps : int
        In [1, 2**56].
    stream : Words

    Raises
    ------
    PlanError
        If ``t_steps`` is not a whole number in [1, 2**56].

    Privacy
    -------
    Controller side. Exact (module docstring), given uniform words.
    """
    if not 1 <= t_steps <= MAX_T:
        raise PlanError(
            f"t_steps={t_steps!r} must be a whole number in [1, 2**56]: it is drawn in int64. "
            "Choose a larger epsilon or a smaller max_weight."
        )
    t, mask = np.uint64(t_steps), mask_of(t_steps)
    return collect(
        n,
        stream,
        lambda words, done, out: _fill_laplace(words, t, mask, done, out),
        WORDS_PER_VALUE,
    )


def mask_of(bound: int) -> np.uint64:
    """Return the least 2**b - 1 that holds all numbers below ``bound``."""
    return np.uint64((1 << (bound - 1).bit_length()) - 1)


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """Sums times ``2**scale_bits`` plus discrete Laplace noise of scale ``t_steps``.

    Privacy
    -------
    Controller side; the answer may be released: exactly Δ₁ 2^scale_bits / t_steps differentially private (module
    docstring).
    """

    t_steps: int
    scale_bits: int
    name: ClassVar[str] = "laplace"

    @property
    def sigma_steps(self) -> int:
        """Standard deviation √2 t, rounded."""
        return (math.isqrt(8 * self.t_steps * self.t_steps) + 1) // 2

    @property
    def parameters(self) -> tuple[int, ...]:
        """What decides the noise, for the query id."""
        return (self.t_steps, self.scale_bits)

    def answer(self, sums: NDArray[np.int64], stream: Words) -> NDArray[np.int64]:
        """Return the noisy scaled sums, clipped to ±2**61."""
        noisy = discrete_laplace(len(sums), self.t_steps, stream)
        add_scaled(sums, self.scale_bits, LAPLACE_SATURATION, noisy)  # |sum| + FAR < 2**63
        return np.clip(noisy, -2 * LAPLACE_SATURATION, 2 * LAPLACE_SATURATION)
