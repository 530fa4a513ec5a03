"""Discrete Gaussian and discrete Laplace noise on vectors of integers; no float decides a sample.

The parameters are positive integers: σ in P(Z = n) ∝ exp(-n² / 2σ²), t in P(Z = n) ∝ exp(-|n| / t).

The discrete Gaussian: algorithm and proof of exactness (docs/privacy.md P3)
----------------------------------------------------------------------------
Karney, *Sampling exactly from the normal distribution*, ACM TOMS 42 (2016), algorithm D, for integer σ and mean 0,
with the Bernoulli(exp(-γ)) of Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy* (2020),
algorithm 1. One attempt proposes ``n = s (σ k + j)`` and keeps or drops it:

1. k >= 0 with probability ∝ exp(-k/2): count the successes before the first failure of Bernoulli(exp(-1/2)).
2. Keep with probability exp(-k(k-1)/2): k(k-1) successes of Bernoulli(exp(-1/2)). Together exp(-k²/2).
3. s = ±1 and j in {0, …, σ-1}, both uniform. (k = 0, j = 0, s = -1) is dropped, since zero has one sign only.
4. With x = j/σ, keep with probability exp(-x(2k+x)/2): k+1 successes of Bernoulli(exp(-γ)), γ = x(2k+x)/(2k+2) < 1.

Each n ≠ 0 is proposed by exactly one (s, k, j), and zero by exactly one that is not dropped; the weight of n is a
constant times exp(-k²/2 - x(2k+x)/2) = exp(-(k+x)²/2) = exp(-n²/2σ²). Starting over after a drop gives the normalised
law.

Bernoulli(exp(-γ)), 0 <= γ <= 1: let K be the first step at which Bernoulli(γ/K) fails. P(K > m) = γᵐ/m!, so
P(K odd) = Σ (-γ)ᵐ/m! = exp(-γ). For γ = 1/2 the step is Bernoulli(1/2K): a uniform integer below 2K is 0. For
γ = x(2k+x)/(2k+2) it is three independent events, all of which must happen:

- Bernoulli(1/K): a uniform integer below K is 0;
- Bernoulli(x): a uniform integer u below σ is less than j;
- Bernoulli((2k+x)/(2k+2)): with u' below σ and f below 2k+2 uniform, fσ + u' is uniform below (2k+2)σ and is compared
  with 2kσ + j, which means f < 2k, or f = 2k and u' < j. No product is formed, so no wide integer is needed.

Uniform integers are exact: rejection on masked words (`uniform_wide`), or Lemire's multiplication with rejection
(`uniform_small`).
The only departure is that k stops at `MAX_K` (so that σ k + j fits an int64): the law moves by less than
exp(-MAX_K²/2) = exp(-512) in total variation.

The discrete Laplace (docs/privacy.md P5)
-----------------------------------------
Canonne, Kamath and Steinke (2020), algorithm 2, for scale t: propose j uniform in {0, …, t-1}, keep it with probability
exp(-j/t) (algorithm 1, as above, with Bernoulli(j/t) and Bernoulli(1/K)); count k successes before the first failure of
Bernoulli(exp(-1)); then k t + j has weight exp(-(k t + j)/t), with a uniform sign, and zero of one sign is dropped.
A value |z| >= `FAR` is reported as `FAR`. `DiscreteLaplace` clips sums to ±`LAPLACE_SATURATION` and answers to twice
that, so with such noise the answer does not depend on the sum, and clipping is post-processing. Hence the answer is
exactly ε-differentially private for ε = Δ₁ 2ᵏ/t (sums scaled by 2ᵏ): P(S + Z = a)/P(S' + Z = a) =
exp((|a - S'| - |a - S|)/t) in every coordinate (Ghosh, Roughgarden and Sundararajan 2009; Dwork et al. 2006).

The samplers
------------
Each sampler is a deterministic function of an endless sequence of uniform words: value i reads words from where value
i-1 stopped. When the buffer of words runs out inside a value, that value is drawn again *from its first word*, with
more words appended. Starting the value over with fresh words instead would favour values that need few words.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.errors import PlanError
from dpgb_dask.kernels import kernel

# part of every query id: change it whenever the same words would give other values
SAMPLER_VERSION = 2
MAX_SIGMA = 1 << 56
MAX_K = 32  # MAX_K * MAX_SIGMA <= 2**61
# larger sums are clipped to it; |noise| < 2**61 + 2**56, so sum and noise together fit an int64
SATURATION = 1 << 62

FAR = 1 << 62  # stands for Laplace noise of this size or more
LAPLACE_SATURATION = 1 << 60  # FAR - LAPLACE_SATURATION >= 2 * LAPLACE_SATURATION
MAX_T = 1 << 56

WORDS_PER_VALUE = 24  # about how many one value takes; only a first guess of how many to fetch
BATCH_WORDS = (
    1 << 15
)  # of keystream at a time, in one buffer: 256 KB, which stay in the processor's cache

EXHAUSTED = 1 << 62  # a position beyond every buffer
_U0 = np.uint64(0)
_U1 = np.uint64(1)
_U2 = np.uint64(2)
_U32 = np.uint64(32)
_LOW32 = np.uint64(0xFFFFFFFF)
_TWO32 = np.uint64(1 << 32)


class Words(Protocol):
    """An endless sequence of uniform 64-bit words."""

    def read(self, out: NDArray[np.uint64]) -> None:
        """Write the next ``len(out)`` words into ``out``."""
        ...


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
        product = (words[position] >> _U32) * bound
        position += 1
        low = product & _LOW32
        # the remainder is below bound, so the division is needed only if low is too
        if low >= bound or low >= _TWO32 % bound:
            return product >> _U32, position
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
def _exp_minus_half(
    words: NDArray[np.uint64],  # IN (n_words,)
    position: int,
) -> tuple[bool, int]:
    """Draw Bernoulli(exp(-1/2)); return it and the next position."""
    step = 1
    while True:
        u, position = uniform_small(words, position, np.uint64(2 * step))
        if u != _U0:  # also when the words run out
            return step % 2 == 1, position
        step += 1


@kernel
def _exp_minus_rest(
    words: NDArray[np.uint64],  # IN (n_words,)
    position: int,
    k: int,
    j: np.uint64,
    sigma: np.uint64,
    mask: np.uint64,
) -> tuple[bool, int]:
    """Draw Bernoulli(exp(-x(2k+x)/(2k+2))) with x = j/σ; return it and the next position."""
    two_k = np.uint64(2 * k)
    step = 1
    while True:  # every draw fails when the words run out, so the loop ends then
        if step > 1:
            u, position = uniform_small(words, position, np.uint64(step))
            if u != _U0:
                break
        u, position = uniform_wide(words, position, sigma, mask)
        if u >= j:
            break
        f, position = uniform_small(words, position, two_k + _U2)
        if f > two_k:
            break
        if f == two_k:
            u, position = uniform_wide(words, position, sigma, mask)
            if u >= j:
                break
        step += 1
    return step % 2 == 1, position


@kernel
def _draw(
    words: NDArray[np.uint64],  # IN (n_words,)
    position: int,
    sigma: np.uint64,
    mask: np.uint64,
) -> tuple[np.int64, int]:
    """Return one value and the next position, which lies beyond the buffer if the words ran out."""
    while position < words.size:
        k = 0
        while k < MAX_K:
            more, position = _exp_minus_half(words, position)
            if not more:
                break
            k += 1
        keep = k < MAX_K
        trial = 0
        while keep and trial < k * (k - 1):
            keep, position = _exp_minus_half(words, position)
            trial += 1
        if not keep:
            continue
        j, position = uniform_wide(words, position, sigma, mask)
        minus, position = uniform_small(words, position, _U2)
        if k == 0 and j == _U0 and minus != _U0:
            continue
        trial = 0
        while keep and trial <= k:
            keep, position = _exp_minus_rest(words, position, k, j, sigma, mask)
            trial += 1
        if keep and position <= words.size:
            # int64 with uint64 would become a float
            value = np.int64(k) * np.int64(sigma) + np.int64(j)
            return (-value if minus != _U0 else value), position
    return np.int64(0), EXHAUSTED


@kernel
def _fill(
    words: NDArray[np.uint64],  # IN (n_words,)
    sigma: np.uint64,
    mask: np.uint64,
    start: int,
    out: NDArray[np.int64],  # OUT (n,), from start on
) -> tuple[int, int]:
    """Fill ``out`` while the words last; return how many are done, and the first word of the next value."""
    position = 0
    for i in range(start, out.size):
        value, following = _draw(words, position, sigma, mask)
        if following > words.size:
            return i, position
        out[i] = value
        position = following
    return out.size, position


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
            k += _U1
        minus, position = uniform_small(words, position, _U2)
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


def discrete_gaussian(n: int, sigma_steps: int, stream: Words) -> NDArray[np.int64]:
    """Draw ``n`` independent values of the discrete Gaussian.

    Parameters
    ----------
    n : int
    sigma_steps : int
        In [1, 2**56].
    stream : Words
        Uniform words; the values do not depend on how many are fetched at a time.

    Raises
    ------
    PlanError
        If ``sigma_steps`` is not a whole number in [1, 2**56].

    Privacy
    -------
    Controller side. Exact up to exp(-512) in total variation per value (module docstring), given uniform words.
    """
    if not 1 <= sigma_steps <= MAX_SIGMA:
        raise PlanError(
            f"sigma_steps={sigma_steps!r} must be a whole number in [1, 2**56]: it is drawn in int64. "
            "Choose a larger epsilon or a smaller max_weight."
        )
    sigma, mask = np.uint64(sigma_steps), mask_of(sigma_steps)
    return collect(
        n, stream, lambda words, done, out: _fill(words, sigma, mask, done, out), WORDS_PER_VALUE
    )


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


Fill = Callable[[NDArray[np.uint64], int, NDArray[np.int64]], tuple[int, int]]


def collect(n: int, stream: Words, fill: Fill, words_per_value: int) -> NDArray[np.int64]:
    """Fill ``n`` values from a stream, fetching more words while a value is not complete.

    Parameters
    ----------
    n : int
    stream : Words
    fill : callable
        ``fill(words, done, out)`` fills ``out`` from ``done`` on while the words last; it returns how many values are
        done, and the first word of the next one.
    words_per_value : int
        A first guess only: the values do not depend on how many words are fetched at a time.
    """
    out = np.empty(n, np.int64)
    words = np.empty(0, np.uint64)  # [used:end] are left over
    done = used = end = 0
    while done < n:
        left = end - used
        # at least as many as the words left over, which did not suffice: so a long value is redrawn only a few times
        fetch = max(min((n - done) * words_per_value + 64, BATCH_WORDS), left)
        before, end = words[used:end], left + fetch
        if end > len(words):
            words = np.empty(end, np.uint64)
        words[:left] = before
        stream.read(words[left:end])
        done, used = fill(words[:end], done, out)
    return out


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """Sums times ``2**scale_bits`` plus discrete Gaussian noise of ``sigma_steps``.

    Privacy
    -------
    Controller side; the answer may be released. Scaled sums are clipped to ±2**62 first, so that every sum has an
    answer. Clipping never moves two sums further apart, so the scaled sensitivity still holds.
    """

    sigma_steps: int
    scale_bits: int
    name: ClassVar[str] = "gaussian"

    @property
    def parameters(self) -> tuple[int, ...]:
        """What decides the noise, for the query id."""
        return (self.sigma_steps, self.scale_bits)

    def answer(self, sums: NDArray[np.int64], stream: Words) -> NDArray[np.int64]:
        """Return the noisy scaled sums."""
        scaled = _scaled(sums, self.scale_bits, SATURATION)
        return scaled + discrete_gaussian(len(sums), self.sigma_steps, stream)


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
        scaled = _scaled(sums, self.scale_bits, LAPLACE_SATURATION)
        # |sum| + FAR < 2**63
        noisy = scaled + discrete_laplace(len(sums), self.t_steps, stream)
        return np.clip(noisy, -2 * LAPLACE_SATURATION, 2 * LAPLACE_SATURATION)


def _scaled(sums: NDArray[np.int64], scale_bits: int, saturation: int) -> NDArray[np.int64]:
    limit = saturation >> scale_bits
    return np.clip(sums, -limit, limit) << scale_bits
