"""Sums plus discrete Gaussian noise of integer parameter σ, P(Z = n) ∝ f(n) = exp(-n²/2σ²), drawn exactly from words.

One word decides 19 of 20 values. The proof of exactness is docs/privacy.md P15; in short:

Strips. With w = 2**bits, strip i >= 0 holds the n of iw <= |n| < (i+1)w. Points below the curve c·f are drawn by
rejection: `low` and `high` are integers around c f(iw), the boxes [0, high) of all strips lie side by side in
[0, 2**64), and a word that falls at height v of strip i, with a uniform place (sign and j, |n| = iw + j) inside it,
gives n if v + u < c f(n), where u in [0, 1) is a uniform real number whose digits are further words.

    high[0] ┌─┐          1 the sure part: whole columns of 2**52 heights below low[i+1] <= c f(n). They come first in
            │2├─┐          [0, 2**64), so that the upper 12 bits of a word give the strip, and the others the place.
    low[1]  ├─┤2├─┐      2 the rest of each box: the strip by binary search, the place by a second word. c f(n) is
            │ ├─┤2├─       bounded in integers; a height between the bounds is *undecided*: then `Strips.draw` draws the
            │1│1├─┤        value once more, from its first word, with bounds as narrow and words as many as it takes.
            └─┴─┴─┴─

No float occurs. What is drawn is a function of the words by the rule above, not of how narrow the bounds are.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.controller.words import EXHAUSTED, LOW32, U1, U2, U32, Words, collect
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels import kernel, readable

MAX_SIGMA = 1 << 56
# larger sums are clipped to it; |noise| < 24 * 2**56 + 2**51 < 2**61, so sum and noise together fit an int64
SATURATION = 1 << 62
STRIPS_BITS = 5  # w <= σ/32, where σ >= 32
TAIL = 24  # |n| < TAIL σ + w: the law moves by less than exp(-TAIL²/2) = exp(-288)
COLUMN_BITS = 12
PLACE_BITS = 64 - COLUMN_BITS  # hold a sign and j < w <= 2**51
SPARE = 1 << 40  # what the sum of `high` may be above the sum of c f(iw)
TERMS = 8
SERIES_ERROR = 1 << 14  # of exp(-y) in units of 2**-64, without the terms left out

DROPPED, KEPT, UNDECIDED = 0, 1, -1

_PLACE_BITS = np.uint64(PLACE_BITS)
_SERIES_ERROR = np.uint64(SERIES_ERROR)


@kernel
def product(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return ⌊a b / 2**64⌋; no partial sum reaches 2**64."""
    a1, a0 = a >> U32, a & LOW32
    b1, b0 = b >> U32, b & LOW32
    upper = a1 * b0 + (a0 * b0 >> U32)
    lower = a0 * b1 + (upper & LOW32)
    return a1 * b1 + (upper >> U32) + (lower >> U32)


@kernel
def _heights(
    ratio_low: np.uint64,  # <= 2**64 exp(-h) <= ratio_high, h = w²/2σ²
    ratio_high: np.uint64,
    low: NDArray[np.uint64],  # OUT (n_strips + 1,), from 1 on
    high: NDArray[np.uint64],  # OUT (n_strips + 1,), from 1 on
) -> None:
    """Bound c f(iw) for all i by f((i+1)w) = f(iw) exp(-(2i+1)h), each product rounded outwards."""
    twice_low, twice_high = product(ratio_low, ratio_low), product(ratio_high, ratio_high) + U1
    for i in range(low.size - 1):
        low[i + 1] = product(low[i], ratio_low)
        high[i + 1] = product(high[i], ratio_high) + U1
        ratio_low = product(ratio_low, twice_low)
        ratio_high = product(ratio_high, twice_high) + U1


@kernel
def _judge(
    v: np.uint64,
    i: np.uint64,
    t: np.uint64,  # 2**64 j/w
    h: np.uint64,  # ⌊2**64 w²/2σ²⌋
    low: np.uint64,  # <= c f(iw) <= high
    high: np.uint64,
) -> int:
    """Say whether v + u < c f(n) for every u in [0, 1), for none, or neither can be said.

    c f(n) = c f(iw) (1 - d), with y = (n² - (iw)²)/2σ² = h t (2i + t) < 0.76 and d = 1 - exp(-y) = y - y²/2! + y³/3! …
    """
    part = product(h, t)
    y = U2 * i * part + product(part, t)
    d = term = y
    for k in range(2, TERMS + 1):
        term = product(term, y) // np.uint64(k)
        d = d - term if k % 2 == 0 else d + term
    error = _SERIES_ERROR + term
    if v < low - min(low, product(low, d + error) + U1):
        return KEPT
    if v >= high - product(high, d - min(d, error)):
        return DROPPED
    return UNDECIDED


@kernel
def _find(start: NDArray[np.uint64], word: np.uint64) -> int:
    """Return the last i with start[i] <= word; start[0] is."""
    i, above = 0, start.size
    while above - i > 1:
        middle = (i + above) // 2
        if start[middle] <= word:
            i = middle
        else:
            above = middle
    return i


@kernel
def _fill(
    words: NDArray[np.uint64],  # IN (n_words,)
    first: int,
    strip: NDArray[np.int16],  # IN (n_columns,)
    start: NDArray[np.uint64],  # IN (n_strips + 1,)
    sure: NDArray[np.uint64],  # IN (n_strips,)
    low: NDArray[np.uint64],  # IN (n_strips + 1,)
    high: NDArray[np.uint64],  # IN (n_strips + 1,)
    bits: np.uint64,
    h: np.uint64,
    done: int,
    out: NDArray[np.int64],  # OUT (n,), from done on
) -> tuple[int, int, bool]:
    """Fill ``out`` from word ``first`` on; return how many are done, the next first word, and if it is undecided."""
    mask = (U1 << bits) - U1
    position = first
    while done < out.size and position < words.size:
        word = words[position]
        position += 1
        column = np.int64(word >> _PLACE_BITS)
        if column < strip.size:
            i, place = int(strip[column]), word
        else:
            i = _find(start, word)
            if i == sure.size:
                continue
            if position == words.size:
                break
            place = words[position]
            position += 1
            # of w = 1, j and t are 0
            t = (place >> U1 & mask) << (np.uint64(64) - bits if bits else bits)
            said = _judge(word - start[i] + sure[i], np.uint64(i), t, h, low[i], high[i])
            if said == UNDECIDED:
                return done, first, True
            if said == DROPPED:
                continue
        size, minus = np.int64(np.uint64(i) << bits | place >> U1 & mask), np.int64(place & U1)
        if minus > size:  # zero has one sign
            continue
        out[done] = size * (1 - 2 * minus)
        done, first = done + 1, position
    return done, first, False


@dataclass(frozen=True, slots=True, eq=False)
class Strips:
    """The boxes around the curve c·f of one σ, and how a value is drawn from them (docs/privacy.md P15).

    Parameters
    ----------
    sigma : int
    bits : int
        A strip is ``2**bits`` numbers wide.
    top : int
        c, the height of the curve at 0.
    h : uint64
        ⌊2**64 w²/2σ²⌋.
    low, high : (n_strips + 1,) uint64
        low[i] <= c f(iw) <= high[i].
    sure : (n_strips,) uint64
        Where the sure part of a box ends: a multiple of 2**52, at most low[i + 1].
    strip : (n_columns,) int16
        Strip of each column of the sure parts.
    start : (n_strips + 1,) uint64
        Where the rest of each box begins in [0, 2**64), after all sure parts; then where the last one ends.

    Privacy
    -------
    Controller side; a function of σ alone.
    """

    sigma: int
    bits: int
    top: int
    h: np.uint64
    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    sure: NDArray[np.uint64]
    strip: NDArray[np.int16]
    start: NDArray[np.uint64]

    def fill(self, words: NDArray[np.uint64], done: int, out: NDArray[np.int64]) -> tuple[int, int]:
        """Fill ``out`` from ``done`` on while the words last; return how many are done, and the next first word."""
        tables = self.strip, self.start, self.sure, self.low, self.high, np.uint64(self.bits)
        used = 0
        while True:
            done, used, undecided = _fill(words, used, *tables, self.h, done, out)
            if not undecided:
                return done, used
            value, following = self.draw(words, used)
            if following > len(words):
                return done, used
            out[done] = value
            done, used = done + 1, following

    def draw(self, words: NDArray[np.uint64], position: int) -> tuple[int, int]:
        """Return the value whose first word is at ``position``, as the kernel does, and the next position.

        Every comparison is exact, so no value is undecided; for that it takes a thousand times as long.
        """
        while position < len(words):
            word = place = int(words[position])
            position += 1
            column, kept = word >> PLACE_BITS, True
            if column < len(self.strip):
                i = int(self.strip[column])
            else:
                i = int(np.searchsorted(self.start, np.uint64(word), side="right")) - 1
                if i == len(self.sure):
                    continue
                if position == len(words):
                    break
                place = int(words[position])
                position += 1
            size = (i << self.bits) + (place >> 1 & (1 << self.bits) - 1)
            if column >= len(self.strip):
                v = word - int(self.start[i]) + int(self.sure[i])
                kept, position = self._is_below(v, size, words, position)
            if position > len(words):
                break
            if kept and (size or not place & 1):
                return (-size if place & 1 else size), position
        return 0, EXHAUSTED

    def _is_below(
        self, v: int, size: int, words: NDArray[np.uint64], position: int
    ) -> tuple[bool, int]:
        """Return whether v + u < c f(size), and the next position; u has as many digits as decide it."""
        top, bits = self.top, 128
        while True:
            low, high = exp_between(size * size, 2 * self.sigma * self.sigma, bits)
            # c f lies in [top 2**bits / high, top 2**bits / low], and v + u in [v, v + 1)
            if (v + 1) * high <= top << bits:
                return True, position
            if v * low >= top << bits:
                return False, position
            if v * high < top << bits < (v + 1) * low:
                if position >= len(words):
                    return False, EXHAUSTED
                v, top = (v << 64) + int(words[position]), top << 64
                position += 1
            bits += 64


def exp_between(a: int, b: int, bits: int) -> tuple[int, int]:
    """Return integers around ``2**bits exp(a/b)``, for a >= 0 and b > 0; they agree if a = 0.

    Sums of Taylor's terms, all rounded down in one and up in the other. It stops at a term k >= 2a/b: those from there
    on halve at least, and are less than twice this one.
    """
    low = high = 0
    down = up = 1 << bits
    k = 0
    while up > 1 or k * b < 2 * a:
        low, high, k = low + down, high + up, k + 1
        down, up = down * a // (b * k), -(-up * a // (b * k))
    return low, high + 2 * up


@lru_cache(maxsize=32)
def strips_of(sigma: int) -> Strips:
    """Return the strips of ``sigma``, with the bounds of docs/privacy.md P15.

    Parameters
    ----------
    sigma : int
        In [1, 2**56].
    """
    bits = max(sigma.bit_length() - 1 - STRIPS_BITS, 0)
    w = 1 << bits
    n = -(-TAIL * sigma // w)
    # f falls, so its sum over iw is at most 1 + (σ/w) √(π/2), and √(π/2) < 1.2534
    top = ((1 << 64) - SPARE) * 10_000 * w // (10_000 * w + 12_534 * sigma)
    low, high = np.empty((2, n + 1), np.uint64)
    low[0] = high[0] = top
    below, above = exp_between(w * w, 2 * sigma * sigma, 128)  # of exp(h)
    _heights(np.uint64((1 << 192) // above), np.uint64(-(-(1 << 192) // below)), low, high)
    columns = low[1:] >> _PLACE_BITS
    sure = columns << _PLACE_BITS
    start = np.empty(n + 1, np.uint64)
    start[0] = columns.sum() << _PLACE_BITS
    np.cumsum(high[:-1] - sure, out=start[1:])
    start[1:] += start[0]
    strip = np.repeat(np.arange(n, dtype=np.int16), columns.astype(np.int64))
    h = np.uint64((w * w << 63) // (sigma * sigma))
    return Strips(sigma, bits, top, h, low, high, sure, strip, start)


def discrete_gaussian(n: int, sigma_steps: int, stream: Words) -> NDArray[np.int64]:
    """Draw ``n`` independent values of the discrete Gaussian.

    Parameters
    ----------
    n : int
    sigma_steps : int
        In [1, 2**56].
    stream : Words
        Uniform words; the values do not depend on how many are read at a time.

    Raises
    ------
    PlanError
        If ``sigma_steps`` is not a whole number in [1, 2**56].

    Privacy
    -------
    Controller side. Exact up to exp(-288) in total variation per value (docs/privacy.md P15), given uniform words.
    """
    if not 1 <= sigma_steps <= MAX_SIGMA:
        raise PlanError(
            f"sigma_steps={sigma_steps!r} must be a whole number in [1, 2**56]: it is drawn in int64. "
            "Choose a larger epsilon or a smaller max_weight."
        )
    return collect(n, stream, strips_of(sigma_steps).fill, 1)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """Sums times ``2**scale_bits`` plus discrete Gaussian noise of ``sigma_steps``.

    Privacy
    -------
    Controller side; the answer may be released (docs/privacy.md P3). Scaled sums are clipped to ±2**62 first, so that
    every sum has an answer. Clipping never moves two sums further apart, so the scaled sensitivity still holds.
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
        noisy = discrete_gaussian(len(sums), self.sigma_steps, stream)
        add_scaled(sums, self.scale_bits, SATURATION, noisy)
        return noisy


@kernel
def _add_scaled(sums: NDArray[np.int64], bits: int, limit: int, out: NDArray[np.int64]) -> None:
    """Add sums, clipped to ±``limit``, times ``2**bits`` to ``out``."""
    for i in range(sums.size):
        out[i] += min(max(sums[i], -limit), limit) << bits


def add_scaled(
    sums: NDArray[np.int64], scale_bits: int, saturation: int, noise: NDArray[np.int64]
) -> None:
    """Add sums times ``2**scale_bits``, clipped to ±``saturation``, to as many values of noise, in place."""
    _add_scaled(
        readable("sums", np.ascontiguousarray(sums), np.int64, 1),
        scale_bits,
        saturation >> scale_bits,
        noise,
    )
