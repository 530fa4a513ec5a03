import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from dpgb_dask.controller import gaussian, words
from dpgb_dask.controller.gaussian import (
    MAX_SIGMA,
    SATURATION,
    TAIL,
    DiscreteGaussian,
    discrete_gaussian,
    exp_between,
    product,
    strips_of,
)
from dpgb_dask.controller.noise import KeyStream
from dpgb_dask.errors import PlanError

# one number a strip; the narrowest and the widest strips for σ; few and many bits
SIGMAS = [1, 2, 3, 10, 31, 32, 63, 64, 1000, 1 << 20, (1 << 21) - 1, (1 << 32) - 5, MAX_SIGMA]


def stream(seed=0):
    return KeyStream(seed.to_bytes(32, "little"))


class Listed:
    """Some words, and then zeros, which give zeros."""

    def __init__(self, *listed):
        self._left = list(listed)

    def read(self, out):
        for k in range(len(out)):
            out[k] = self._left.pop(0) if self._left else 0


def curve(strips, size):
    """Return c f(size) to 60 digits and more, by the decimal module's exponential, which is correctly rounded."""
    with localcontext() as context:
        context.prec = 100
        return strips.top * (-Decimal(size * size) / Decimal(2 * strips.sigma**2)).exp()


def arrays(strips):
    return (
        strips.strip, strips.start, strips.sure, strips.low, strips.high,
        np.uint64(strips.bits), strips.h,
    )  # fmt: skip


def word_at(strips, size, v):
    """Return the word that falls at height ``v`` of the strip of ``size``, above its sure part, as the proof has it."""
    i = size >> strips.bits
    assert strips.sure[i] <= v < strips.high[i]
    return int(strips.start[i]) + v - int(strips.sure[i])


def place_of(strips, size, minus):
    return (size & (1 << strips.bits) - 1) << 1 | minus


# ---- the parts -------------------------------------------------------------------------------------------------------


def test_product_is_the_upper_half():
    rng = np.random.default_rng(0)
    ends = [0, 1, (1 << 32) - 1, 1 << 32, (1 << 63) + 1, (1 << 64) - 1]
    numbers = ends + [int(x) for x in rng.integers(0, 1 << 64, 30, np.uint64)]
    for a in numbers:
        for b in numbers:
            assert int(product(np.uint64(a), np.uint64(b))) == a * b >> 64


@pytest.mark.parametrize(
    ("a", "b"), [(0, 3), (1, 1), (1, 3), (7, 2), (288, 1), (10**30, 10**30 + 1)]
)
@pytest.mark.parametrize("bits", [1, 20, 128, 192])
def test_exp_between_holds_the_exponential(a, b, bits):
    low, high = exp_between(a, b, bits)
    with localcontext() as context:
        context.prec = 300
        exact = (Decimal(a) / Decimal(b)).exp() * 2**bits
        assert low <= exact <= high
        assert high - low <= 40 * (1 + exact / 2**bits)
    assert (low == high) == (a == 0)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_boxes_hold_the_curve_and_lie_side_by_side(sigma):
    strips = strips_of(sigma)
    n, w = len(strips.sure), 1 << strips.bits
    assert (w == 1 and sigma < 64) or 32 * w <= sigma < 64 * w
    assert n * w >= TAIL * sigma
    low, high, sure, start = (
        [int(x) for x in column] for column in (strips.low, strips.high, strips.sure, strips.start)
    )
    for i in range(n + 1):
        assert low[i] <= curve(strips, i * w) <= high[i]
        assert high[i] - low[i] < 1 << 26
    # sure parts are whole columns below the whole strip's curve, and as many as fit; the columns name their strips
    assert all(sure[i] <= low[i + 1] < sure[i] + (1 << 52) for i in range(n))
    assert all(part % (1 << 52) == 0 for part in sure)
    columns = np.bincount(strips.strip, minlength=n)
    assert [int(k) << 52 for k in columns] == sure
    # the rests follow them, each as long as its box is high
    assert start[0] == sum(sure)
    assert all(start[i + 1] - start[i] == high[i] - sure[i] for i in range(n))
    assert start[n] <= 1 << 64
    # so a value is nearly always one word, and an attempt seldom fails
    if sigma >= 32:
        assert start[0] > 0.94 * 2**64
        assert sum(high) > 0.98 * 2**64


@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_judgement_is_never_wrong_and_seldom_left_open(sigma):
    strips, rng = strips_of(sigma), np.random.default_rng(1)
    w, said = 1 << strips.bits, set()
    for _ in range(60):
        size = min(int(abs(rng.normal()) * sigma * rng.choice([1, 6])), TAIL * sigma - 1)
        i, j = size >> strips.bits, size & w - 1
        exact = curve(strips, size)
        for gap in (0, 1, 1 << 12, 1 << 20, 1 << 30, 1 << 50):
            for v in (int(exact) - gap, int(exact) + gap):
                if not 0 <= v < strips.high[i]:
                    continue
                judged = gaussian._judge(
                    *(np.uint64(x) for x in (v, i, (j << 64) // w, strips.h)),
                    strips.low[i], strips.high[i],
                )  # fmt: skip
                said.add(judged)
                if judged == gaussian.KEPT:
                    assert v + 1 <= exact
                elif judged == gaussian.DROPPED:
                    assert v >= exact
                else:
                    assert abs(v - exact) < 1 << 40
    assert gaussian.UNDECIDED in said
    assert gaussian.KEPT in said


@pytest.mark.parametrize("i", [0, 1, 30, 100, 300, 766])
def test_what_the_series_leaves_out_is_left_open(i):
    """At the widest strips, and a height that is known exactly: heights near the curve are judged rightly, or not."""
    h, one = 1 << 53, 1 << 63  # w = σ/32
    for t in (0, 1, (1 << 63) + 12345, (1 << 64) - 1):
        with localcontext() as context:
            context.prec = 60
            share = Decimal(t) / 2**64
            exact = one * (-Decimal(h) / 2**64 * share * (2 * i + share)).exp()
        open_heights = 0
        for gap in (0, *(1 << k for k in range(62))):
            for v in {int(exact) - gap, int(exact) + gap}:
                if v < 0:
                    continue
                numbers = (np.uint64(x) for x in (v, i, t, h, one, one))
                judged = gaussian._judge(*numbers)
                assert judged == gaussian.UNDECIDED or (judged == gaussian.KEPT) == (v < exact)
                open_heights += judged == gaussian.UNDECIDED
        # the bounds are 2**14 units apart, or as far as y⁸/8!
        assert open_heights <= 2 * 15 + 2 * max(
            0, 44 + 8 * math.log2(max(float(share * i), 1) / 512)
        )


# ---- every branch, by words made for it ------------------------------------------------------------------------------


@pytest.mark.parametrize("minus", [0, 1])
@pytest.mark.parametrize("where", [0.1, 1.01, 2.5, 5.0])
@pytest.mark.parametrize("sigma", [1, 3, 33, 1000, (1 << 21) - 1, (1 << 32) - 5, MAX_SIGMA])
def test_a_height_at_the_curve_is_decided_by_further_words(sigma, where, minus):
    strips = strips_of(sigma)
    w = 1 << strips.bits
    size = max(int(where * sigma) & -w | w // 2, 1)
    value, place = (-size if minus else size), place_of(strips, size, minus)
    # the heights just below, at and above the curve, and the next words, as digits of what is left
    height = int(curve(strips, size))
    with localcontext() as context:
        context.prec = 100
        rest = (curve(strips, size) - height) * 2**64
        digits = int(rest)
        more = int((rest - digits) * 2**64)
    column = len(strips.strip) - 1  # a sure word with another value, to see which words were read
    mark = int(strips.strip[column]) << strips.bits
    cases = [
        ((height - 1,), True),
        ((height, digits - 1), True),
        ((height, digits, more - 1), True),
        ((height, digits, more + 1), False),
        ((height, digits + 1), False),
        ((height + 1,), False),
    ]
    for (v, *digit), kept in cases:
        if v >= strips.high[size >> strips.bits]:
            assert w == 1  # its box is as high as the curve
            continue
        listed = [word_at(strips, size, v), place, *digit, column << 52]
        some = np.array(listed, np.uint64)
        _, _, undecided = gaussian._fill(some, 0, *arrays(strips), 0, np.empty(2, np.int64))
        assert undecided
        seen = discrete_gaussian(2, sigma, Listed(*listed)).tolist()
        assert seen == ([value, mark] if kept else [mark, 0])
        # the same if words run out before they decide
        for n in range(1, len(listed) - 1):
            done = strips.fill(some[:n], 0, np.empty(2, np.int64))
            assert done == (0, 0)


@pytest.mark.parametrize("sigma", [1000, (1 << 32) - 5, MAX_SIGMA])
def test_a_height_off_the_curve_is_decided_at_once(sigma):
    strips = strips_of(sigma)
    size = sigma & -(1 << strips.bits) | 1 << strips.bits - 1
    for gap, values in ((-(1 << 40), [size, 0]), (1 << 40, [0, 0])):
        word = word_at(strips, size, int(curve(strips, size)) + gap)
        listed = np.array([word, place_of(strips, size, 0), 0, 0], np.uint64)
        out = np.empty(2, np.int64)
        done, _, undecided = gaussian._fill(listed, 0, *arrays(strips), 0, out)
        assert (done, undecided, out.tolist()) == (2, False, values)


@pytest.mark.parametrize("sigma", [1, 33, 1 << 20])
def test_a_word_above_all_boxes_and_minus_zero_are_passed_over(sigma):
    strips = strips_of(sigma)
    column = len(strips.strip) - 1
    mark = int(strips.strip[column]) << strips.bits
    # between the columns, in the last unit of a word's range; then a zero with a minus, sure and by the rest
    above = [(1 << 64) - 1, column << 52]
    assert discrete_gaussian(1, sigma, Listed(*above)) == [mark]
    assert discrete_gaussian(1, sigma, Listed(1, column << 52)) == [mark]
    rest = word_at(strips, 0, int(strips.sure[0]))
    assert discrete_gaussian(2, sigma, Listed(rest, 1, column << 52)).tolist() == [mark, 0]
    assert discrete_gaussian(2, sigma, Listed(rest, 0, column << 52)).tolist() == [0, mark]


def test_a_sure_word_holds_strip_sign_and_place():
    strips = strips_of(1 << 20)  # strips of 2**15
    for column in (0, 100, 3000):
        for place in (0, 1, 12345, (1 << 15) - 1):
            size = (int(strips.strip[column]) << 15) + place
            word = column << 52 | place << 1
            expected = [size, -size] if size else [0]
            assert (
                discrete_gaussian(2, 1 << 20, Listed(word, word | 1)).tolist()[: len(expected)]
                == expected
            )


@pytest.mark.parametrize("sigma", SIGMAS)
def test_kernel_and_exact_draw_agree(sigma):
    some = np.empty(1000, np.uint64)
    stream(9).read(some)
    strips, position, values = strips_of(sigma), 0, []
    for _ in range(300):
        value, position = strips.draw(some, position)
        values.append(value)
    assert discrete_gaussian(300, sigma, stream(9)).tolist() == values


def test_compiled_and_plain_agree():
    """The kernels use no float by accident: they give the same values without compilation."""
    some = np.empty(1000, np.uint64)
    stream(4).read(some)
    plain = getattr(gaussian._fill, "py_func", gaussian._fill)
    for sigma in (1, 3, MAX_SIGMA - 1):
        out = np.zeros(200, np.int64)
        assert plain(some, 0, *arrays(strips_of(sigma)), 0, out)[0] == 200
        assert np.array_equal(out, discrete_gaussian(200, sigma, stream(4)))


# ---- the law ---------------------------------------------------------------------------------------------------------


def chi_squared(values, sigma, width=1):
    """Return the statistic of cells of ``width`` numbers within 4σ, and the tails; and its degrees of freedom.

    Wide cells are compared with the normal law, whose mass between half numbers is theirs but for O(1/σ²).
    """
    reach = 4 * sigma // width
    if width == 1:
        weights = np.exp(-(np.arange(-40 * sigma, 40 * sigma + 1) ** 2) / (2 * sigma**2))
        middle = (weights / weights.sum())[40 * sigma - reach : 40 * sigma + reach]
    else:
        edges = (np.arange(-reach, reach + 1) * width - 0.5) / sigma
        middle = np.diff([0.5 * math.erfc(-x / math.sqrt(2)) for x in edges])
    cells = np.floor_divide(values, width) + reach
    inside = cells[(cells >= 0) & (cells < 2 * reach)]
    expected = np.append(middle, 1 - middle.sum()) * len(values)
    seen = np.append(np.bincount(inside, minlength=2 * reach), len(values) - len(inside))
    return float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1


def check_law(values, sigma, width=1):
    statistic, freedom = chi_squared(values, sigma, width)
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)  # p about 3e-5


N = 1_000_000
# of large σ in half strips, whose ends are those of other cells than the sampler's
LARGE = [1000, 1 << 20, (1 << 21) - 1, (1 << 32) + 12345, MAX_SIGMA]


@pytest.mark.parametrize("sigma", [1, 2, 3, 10, 16, 33, 50])
def test_discrete_gaussian_has_the_exact_distribution(sigma):
    check_law(discrete_gaussian(N, sigma, stream(sigma)), sigma)


@pytest.mark.parametrize("sigma", LARGE)
def test_discrete_gaussian_is_normal_at_large_sigma(sigma):
    values = discrete_gaussian(N, sigma, stream(7))
    check_law(values, sigma, max((1 << strips_of(sigma).bits) // 2, 1))
    check_law(values, sigma, sigma // 25)


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_law_of_another_sigma_is_refused(factor):
    for sigma in (10, 1 << 20):
        other = discrete_gaussian(N, round(factor * sigma), stream(7))
        with pytest.raises(AssertionError):
            check_law(other, sigma, max(sigma // 25, 1))


def test_nearly_the_law_is_refused():
    rng = np.random.default_rng(0)
    rounded = np.rint(rng.normal(0, 1, N)).astype(np.int64)
    with pytest.raises(AssertionError):  # a rounded Gaussian has variance σ² + 1/12
        check_law(rounded, 1)
    # all that falls beside the sure parts is kept: a staircase, one strip wide
    strips = strips_of(1 << 20)
    height = np.diff(strips.start.astype(float)) + strips.sure
    strip = rng.choice(len(height), N, p=height / height.sum())
    stairs = ((strip << strips.bits) + rng.integers(0, 1 << strips.bits, N)) * rng.choice(
        [-1, 1], N
    )
    with pytest.raises(AssertionError):
        check_law(stairs, 1 << 20, 1 << strips.bits - 1)


@pytest.mark.parametrize("sigma", [40, 1 << 20, MAX_SIGMA])
def test_discrete_gaussian_is_symmetric_with_normal_tails(sigma):
    values = discrete_gaussian(2 * N, sigma, stream(3)) / sigma
    signs = int((values > 0).sum()) - int((values < 0).sum())
    assert abs(signs) < 5 * math.sqrt(len(values))
    for far in (1, 2, 3, 4):
        # from the half number beside it
        share = math.erfc((far - 0.5 / sigma) / math.sqrt(2))
        seen = int((np.abs(values) >= far).sum())
        assert abs(seen - share * len(values)) < 5 * math.sqrt(share * len(values))
    assert abs(values.mean()) < 5 / math.sqrt(len(values))
    assert abs((values**2).mean() - 1) < 5 * math.sqrt(2 / len(values))


@pytest.mark.parametrize("sigma", [(1 << 32) + 12345, MAX_SIGMA])
def test_discrete_gaussian_fills_the_low_digits(sigma):
    z = discrete_gaussian(64_000, sigma, stream(3))
    seen = np.bincount(z & 15, minlength=16)
    assert ((seen - 4000) ** 2 / 4000).sum() < 15 + 4 * math.sqrt(30)


def test_discrete_gaussian_values_are_uncorrelated():
    z = discrete_gaussian(N, 1000, stream(5)).astype(float)
    for lag in (1, 2, 3):
        assert abs(np.corrcoef(z[:-lag], z[lag:])[0, 1]) < 4 / math.sqrt(len(z))
        assert abs(np.corrcoef(z[:-lag] ** 2, z[lag:] ** 2)[0, 1]) < 4 / math.sqrt(len(z))


# ---- as a function of the stream -------------------------------------------------------------------------------------


def test_discrete_gaussian_repeats_for_one_key_only():
    first = discrete_gaussian(1000, 1 << 20, stream(1))
    assert np.array_equal(first, discrete_gaussian(1000, 1 << 20, stream(1)))
    assert not np.array_equal(first, discrete_gaussian(1000, 1 << 20, stream(2)))


def test_discrete_gaussian_golden_values():
    """A change of these values needs a new SAMPLER_VERSION, because resumed fits would draw other noise."""
    assert words.SAMPLER_VERSION == 3
    z = discrete_gaussian(6, 1 << 20, KeyStream(bytes(range(32))))
    assert z.tolist() == [-622236, -417478, 1448645, 878169, -1053077, -558879]
    z = discrete_gaussian(100_000, 12345, KeyStream(bytes(range(32))))
    assert int((z * np.arange(len(z))).sum()) == -5488455757


@pytest.mark.parametrize("batch", [1, 2, 7, 50, 1000])
@pytest.mark.parametrize("sigma", [1, 5, (1 << 32) + 1])
def test_discrete_gaussian_does_not_depend_on_buffer_ends(batch, sigma, monkeypatch):
    whole = discrete_gaussian(1000, sigma, stream(11))
    monkeypatch.setattr(words, "BATCH_WORDS", batch)
    assert np.array_equal(discrete_gaussian(1000, sigma, stream(11)), whole)


def test_discrete_gaussian_prefix_is_the_same():
    assert np.array_equal(
        discrete_gaussian(100, 77, stream(1)), discrete_gaussian(5000, 77, stream(1))[:100]
    )


@pytest.mark.parametrize("sigma", [0, -1, MAX_SIGMA + 1])
def test_discrete_gaussian_refuses_sigma(sigma):
    with pytest.raises(PlanError, match=r"sigma_steps=-?\d+ must be"):
        discrete_gaussian(1, sigma, stream())


def test_gaussian_answer_adds_scaled_sums():
    sums = np.array([5, -3, 0], np.int64)
    noise = discrete_gaussian(3, 1 << 20, stream(2))
    assert np.array_equal(DiscreteGaussian(1 << 20, 0).answer(sums, stream(2)), sums + noise)
    assert np.array_equal(DiscreteGaussian(1 << 20, 4).answer(sums, stream(2)), sums * 16 + noise)


@pytest.mark.parametrize("scale_bits", [0, 12])
def test_gaussian_answer_is_total(scale_bits):
    ends = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max], np.int64)
    noisy = DiscreteGaussian(MAX_SIGMA, scale_bits).answer(ends, stream(2))
    noise = discrete_gaussian(2, MAX_SIGMA, stream(2))
    assert np.array_equal(noisy - noise, [-SATURATION, SATURATION])


def test_gaussian_answer_accepts_no_values():
    assert DiscreteGaussian(5, 0).answer(np.empty(0, np.int64), stream()).shape == (0,)
