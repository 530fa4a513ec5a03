"""Accountants of frozen schedules, compared with definitions by quadrature and with dp-accounting."""

import itertools
import logging
import math

import numpy as np
import pytest

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.queries import PRICE_ONE, RowDraw
from dpgb_dask.controller.accounting import choice_epsilon, delta_of, epsilon_of
from dpgb_dask.controller.comparison import pld as pld_module
from dpgb_dask.controller.comparison.pld import compared, distributions, pld
from dpgb_dask.controller.comparison.records import (
    ORDERS,
    Choice,
    Gaussian,
    Joint,
    Laplace,
    basic,
    best_order,
    gdp,
    rdp,
    records_of,
    renyi,
    zcdp,
)
from dpgb_dask.errors import PlanError

DELTA = 1e-6
SCHEDULES = {
    "one Gaussian": [Gaussian(0.5)],
    "300 Gaussians": [Gaussian(0.05, 300)],
    "a loud Gaussian": [Gaussian(3.0)],
    "one Laplace": [Laplace(1.0)],
    "100 Laplace": [Laplace(0.05, 100)],
    "sampled Laplace": [Laplace(0.5, 10, 0.1)],
    "a sampled Laplace": [Laplace(2.0, 1, 0.3)],
    "sampled Gaussians": [Gaussian(1.0, 100, 0.01)],
    "many sampled Gaussians": [Gaussian(0.5, 1000, 0.1)],
    "a rare sample": [Gaussian(1.0, 10_000, 1e-4)],
    "half of the rows": [Gaussian(4.0, 1, 0.5)],
    "mixed": [Gaussian(0.05, 100), Laplace(0.05, 50), Gaussian(1.0, 100, 0.01), Laplace(0.3, 30, 0.1)],
}  # fmt: skip


def pld_delta(records, epsilon, delta):
    """δ at ε, rounded up; sharpest for a result near ``delta``."""
    return max(one.delta(epsilon) for one in distributions(records, delta))


@pytest.fixture(scope="module")
def oracle():
    """dp-accounting, and its form of our records; install dpgb_dask[oracle]."""
    dp = pytest.importorskip(
        "dp_accounting", reason="dp-accounting is missing: NO ORACLE for accountants"
    )
    logging.getLogger("absl").setLevel(logging.ERROR)

    def event(records):
        events = []
        for r in records:
            base = (
                dp.GaussianDpEvent(1 / r.level)
                if isinstance(r, Gaussian)
                else dp.LaplaceDpEvent(1 / r.level)
            )
            if r.rate < 1:
                base = dp.PoissonSampledDpEvent(r.rate, base)
            events.append(dp.SelfComposedDpEvent(base, r.count))
        return dp.ComposedDpEvent(events)

    return event


def oracle_pld(event, records, **options):
    from dp_accounting.pld import PLDAccountant  # noqa: PLC0415

    return PLDAccountant(**options).compose(event(records)).get_epsilon(DELTA)


@pytest.mark.parametrize("name", SCHEDULES)
def test_pld_agrees_with_dp_accounting(oracle, name):
    theirs = oracle_pld(oracle, SCHEDULES[name])  # pessimistic, on a grid of 1e-4
    ours = pld(SCHEDULES[name], DELTA)
    slack = 2e-3 if name == "a rare sample" else 0.0  # their grid is coarse there
    assert theirs * (1 - 1e-5) - slack <= ours <= theirs * 1.001


def test_rare_samples_agree_on_a_finer_grid(oracle):
    records = [Gaussian(1.0, 300, 2e-3)]
    theirs = oracle_pld(oracle, records, value_discretization_interval=2e-5)
    assert theirs * (1 - 1e-3) <= pld(records, DELTA) <= theirs * 1.01


@pytest.mark.parametrize("name", [n for n in SCHEDULES if not any(
    isinstance(r, Laplace) and r.rate < 1 for r in SCHEDULES[n])])  # fmt: skip
def test_rdp_agrees_with_dp_accounting(oracle, name):
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    records = SCHEDULES[name]
    theirs = RdpAccountant(list(ORDERS)).compose(oracle(records)).get_epsilon(DELTA)
    ours = min(
        sum(r.count * renyi(r, order) for r in records)
        + math.log1p(-1 / order)
        - math.log(DELTA * order) / (order - 1)
        for order in ORDERS
    )
    assert theirs * (1 - 1e-9) <= ours <= theirs * 1.0001
    assert rdp(records, DELTA) <= ours


@pytest.mark.parametrize("name", SCHEDULES)
def test_pld_is_the_tightest(name):
    records = SCHEDULES[name]
    exact = pld(records, DELTA)
    assert exact <= rdp(records, DELTA) * (1 + 1e-6)
    assert exact <= gdp(records, DELTA) * (1 + 1e-4)
    assert exact <= zcdp(records, DELTA) * (1 + 1e-6)


@pytest.mark.parametrize("level", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_pld_of_a_gaussian_is_the_exact_curve(level, delta):
    exact = epsilon_of(level, delta)
    assert exact <= pld([Gaussian(level)], delta) <= exact * 1.0001
    assert (
        exact
        <= pld([Gaussian(level / 10, 50), Gaussian(level / math.sqrt(2))], delta)
        <= exact * 1.0001
    )


def mixture_delta(record, epsilon, *, add):
    """δ(ε) of one release on a sample by quadrature of densities: the definition."""
    q = record.rate
    if isinstance(record, Gaussian):
        x = np.linspace(-14, 14 + record.level, 400_001)
        base, moved = np.exp(-x * x / 2), np.exp(-((x - record.level) ** 2) / 2)
        norm = math.sqrt(2 * math.pi)
    else:
        x = np.linspace(-40, 40 + record.level, 800_001)
        base, moved = np.exp(-np.abs(x)), np.exp(-np.abs(x - record.level))
        norm = 2.0
    mixed = q * moved + (1 - q) * base
    upper, lower = (mixed, base) if add else (base, mixed)
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0).sum() * (x[1] - x[0]) / norm)


@pytest.mark.parametrize(
    "record", [Gaussian(1.5, 1, 0.2), Laplace(1.5, 1, 0.2), Laplace(0.7), Gaussian(2.0)]
)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_delta_of_one_release_is_the_integral(record, epsilon):
    exact = max(mixture_delta(record, epsilon, add=add) for add in (True, False))
    ours = pld_delta([record], epsilon, exact)
    assert exact * (1 - 1e-5) <= ours <= exact * 1.002 + 1e-12


def test_directions_differ_and_the_larger_counts():
    record = Gaussian(1.0, 50, 0.1)
    add, remove = (one.delta(0.5) for one in distributions([record], 1e-3))
    assert add != pytest.approx(remove, rel=1e-3)
    assert pld_delta([record], 0.5, 1e-3) == max(add, remove)


@pytest.mark.parametrize(
    "record", [Gaussian(1.2, 1, 0.1), Laplace(1.2, 1, 0.1), Laplace(0.8), Gaussian(0.7)]
)
@pytest.mark.parametrize("order", [2, 3, 7])
def test_renyi_is_the_integral(record, order):
    """Both directions by quadrature; the binomial sum is the larger one."""
    x = np.linspace(-40, 42, 820_001)
    if isinstance(record, Gaussian):
        base, moved = np.exp(-x * x / 2), np.exp(-((x - record.level) ** 2) / 2)
        norm = math.sqrt(2 * math.pi)
    else:
        base, moved = np.exp(-np.abs(x)), np.exp(-np.abs(x - record.level))
        norm = 2.0
    mixed = record.rate * moved + (1 - record.rate) * base

    def divergence(p, q):
        with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
            inside = np.where(q > 1e-250, p * (p / q) ** (order - 1), 0.0)
        return math.log(float(inside.sum()) * (x[1] - x[0]) / norm) / (order - 1)

    ours = renyi(record, order)
    assert ours == pytest.approx(divergence(mixed, base), rel=1e-5)
    assert ours >= divergence(base, mixed) * (1 - 1e-6)


def test_renyi_between_whole_orders_is_a_chord():
    record = Gaussian(1.0, 1, 0.1)
    for order in (1.3, 2.5, 6.9):
        assert renyi(record, order) <= renyi(record, math.ceil(order))
        whole = Gaussian(1.0)
        assert renyi(whole, order) == order / 2
    assert renyi(record, 2.0000001) == pytest.approx(renyi(record, 2), rel=1e-6)


def test_tiny_rates_do_not_cancel():
    for rate in (1e-6, 1e-9):
        assert renyi(Gaussian(1.0, 1, rate), 2) == pytest.approx(
            rate**2 * math.expm1(1.0), rel=1e-6
        )


@pytest.mark.parametrize(
    "record", [Gaussian(1.0), Laplace(1.0), Choice(1.0), Gaussian(1.0, 20, 0.05)]
)
@pytest.mark.parametrize("account", [gdp, rdp, pld, zcdp])
def test_accountants_notice_thirty_percent(record, account):
    """A record whose level is 30 % too small costs visibly less, so a comparison with the right one fails."""
    small = type(record)(0.7 * record.level, record.count, record.rate)
    assert account([small], DELTA) < 0.9 * account([record], DELTA)


def test_choices_cost_what_their_bounded_range_allows():
    records = [Choice(0.05, 100), Laplace(0.05, 100)]
    assert basic(records) == pytest.approx(10.0)
    # notes: 2.673 by RDP with ε²/8; 2.501 is the non-adaptive two-point law, below what we may claim
    assert rdp(records, DELTA) == pytest.approx(2.673, abs=5e-3)
    assert 2.501 < pld(records, DELTA) < rdp(records, DELTA)
    price = 2**64 // 9
    choice = Choice(choice_epsilon(price))
    assert gdp([choice], DELTA) == pytest.approx(epsilon_of(1 / 3, DELTA), rel=1e-9)
    # worst two-point laws by hand: δ of ε-BR at t is p - e^ε' q
    for t in np.linspace(0, choice.level, 21)[1:-1]:
        q = (math.exp(-t) - math.exp(-choice.level)) / -math.expm1(-choice.level)
        p = math.exp(t) * q
        for e in (0.0, 0.05, 0.1):
            assert p - math.exp(e) * q <= delta_of(choice.mu, e) * (1 + 1e-9)
            assert pld_delta([choice], e, 1e-2) >= p - math.exp(e) * q


def test_basic_amplifies_samples_and_refuses_gaussians():
    assert basic([Laplace(1.0, 2), Choice(0.5, 1, 0.1)]) == pytest.approx(
        2 + math.log1p(0.1 * math.expm1(0.5))
    )
    with pytest.raises(PlanError, match="no epsilon with delta=0"):
        basic([Laplace(1.0), Gaussian(1.0)])


def test_gdp_and_zcdp_add_up():
    records = [Gaussian(0.3), Gaussian(0.4)]
    assert gdp(records, DELTA) == pytest.approx(epsilon_of(0.5, DELTA), rel=1e-9)
    assert zcdp(records, DELTA) == pytest.approx(rdp(records, DELTA), rel=1e-4)
    # a sample lowers the cost of pure ε, and not that of Gaussian noise
    assert gdp([Laplace(1.0, 10, 0.1)], DELTA) < gdp([Laplace(1.0, 10)], DELTA) / 3
    assert gdp([Gaussian(1.0, 10, 0.1)], DELTA) == gdp([Gaussian(1.0, 10)], DELTA)


def test_vector_laplace_is_no_worse_than_one_coordinate():
    """With two coordinates moved by half of ε each, δ of the composition is below that of one moved by ε."""
    for e in (0.0, 0.3, 0.6):
        assert pld_delta([Laplace(0.5, 2)], e, 1e-3) <= pld_delta([Laplace(1.0)], e, 1e-3) * (
            1 + 1e-6
        )


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_records_check_themselves(wrong):
    with pytest.raises(PlanError, match="is no record"):
        Gaussian(wrong)
    with pytest.raises(PlanError, match="is no record"):
        Laplace(1.0, 0)
    with pytest.raises(PlanError, match="is no record"):
        Choice(1.0, 1, 1.5)


def test_the_error_of_the_transform_is_counted(monkeypatch):
    monkeypatch.setattr(pld_module, "ROUNDING", 1e-3)
    assert (
        pld([Gaussian(0.05, 300)], DELTA) > 1.0001 * epsilon_of(0.05 * math.sqrt(300), DELTA) * 1.01
    )


def test_best_order_is_near_the_optimum():
    epsilon, order = best_order([Gaussian(0.5)], DELTA)
    assert epsilon == pytest.approx(zcdp([Gaussian(0.5)], DELTA), rel=1e-3)
    assert 8 < order < 16


@pytest.mark.parametrize("record", [Gaussian(1.0), Gaussian(1.5, 1, 0.2)])
def test_mass_beyond_grids_and_windows_is_counted(monkeypatch, record):
    monkeypatch.setattr(pld_module, "CUT", 0.5)
    monkeypatch.setattr(pld_module, "FINENESS", 1e-3)
    for delta, epsilon in ((0.1, 0.2), (0.01, 0.5)):
        for one, add in zip(distributions([record], delta), (True, False), strict=False):
            exact = mixture_delta(record, epsilon, add=add)
            total = one.delta(epsilon)
            # all mass that was cut off counts: δ is above the exact curve by more than the grid explains
            assert exact * 1.001 < total
            assert one.apart > 0


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("made_for", [1e-9, 1e-3])
def test_delta_far_from_what_it_was_made_for_is_still_above(epsilon, made_for):
    assert pld_delta([Gaussian(0.05, 300)], epsilon, made_for) >= delta_of(
        0.05 * math.sqrt(300), epsilon
    ) * (1 - 1e-9)


@pytest.mark.parametrize(
    "record", [Gaussian(1.0), Gaussian(1.5, 1, 0.2), Laplace(1.0), Laplace(2.0, 1, 0.2)]
)
@pytest.mark.parametrize("add", [True, False])
def test_no_mass_is_lost_on_the_grid(record, add):
    losses = pld_module._losses(record, 0.01, 0.1, add=add)
    assert np.exp(losses.log_mass).sum() + losses.infinite == pytest.approx(1.0, abs=1e-12)
    # the other side of the pair keeps its finite part: E_P[e^-L] <= 1
    assert losses.log_moment(-1.0, 0.01) <= 1e-12


# ---- the releases of a fit -------------------------------------------------------------------------------------------

ALL = 1 << 32


def receipts(*releases):
    """Receipts of (mechanism, price in units of the currency)."""
    return [
        Receipt("f", f"{k:02x}", k, f"{k}", round(price * PRICE_ONE), 0, 0, mechanism)
        for k, (mechanism, price) in enumerate(releases)
    ]


def close(records, wanted):
    """Check that levels are prices, rounded up to nine digits."""
    assert [(type(r), r.count, r.rate) for r in records] == [
        (type(r), r.count, r.rate) for r in wanted
    ]
    for ours, exact in zip(records, wanted, strict=True):
        assert exact.level * (1 - 1e-12) <= ours.level <= exact.level * (1 + 1e-9)


def test_equal_releases_are_counted_together():
    told = receipts(("laplace", 0.3), ("choice", 0.1), ("laplace", 0.3), ("choice", 0.2))
    records = records_of(told, [None] * 4, pure=True)
    close(records, [Laplace(0.3, 2), Choice(0.1), Choice(0.2)])
    told = receipts(("gaussian", 0.25), ("choice", 0.25), ("gaussian", 0.25))
    records = records_of(told, [None] * 3, pure=False)
    close(records, [Gaussian(0.5, 3)])  # a choice counts as noise of its price
    assert gdp(records, DELTA) == pytest.approx(epsilon_of(math.sqrt(0.75), DELTA), rel=1e-8)


def test_prices_that_rounding_alone_tells_apart_are_one_level():
    """A total is split into whole units, so 5000 releases that should cost the same have two prices."""
    total, n = round(0.7 * PRICE_ONE), 5000
    prices = [total * (t + 1) // n - total * t // n for t in range(n)]
    assert len(set(prices)) == 2
    told = [Receipt("f", "", 0, "", price, 0, 0, "laplace") for price in prices]
    (record,) = records_of(told, [None] * n, pure=True)
    assert record.count == n
    assert 0.7 <= basic([record]) <= 0.7 * (1 + 1e-9)


def part(group, low, high):
    return RowDraw("part", group, int(low * ALL), int(high * ALL))


def test_a_group_is_the_part_that_holds_all_releases_of_the_others():
    a, b, c = part(0, 0, 0.5), part(0, 0.5, 0.75), part(1, 0, 0.1)
    told = receipts(
        ("laplace", 0.3), ("choice", 0.1), ("choice", 0.1), ("laplace", 0.3), ("laplace", 0.2)
    )
    close(records_of(told, [a, a, b, b, c], pure=True), [Laplace(0.3), Choice(0.1), Laplace(0.2)])
    close(records_of(told, [a, a, b, None, c], pure=True), [Laplace(0.3, 2), Choice(0.1), Laplace(0.2)])  # fmt: skip
    # neither part holds the other's releases, so it depends on ε which is worse
    assert records_of(told, [a, a, b, c, b], pure=True) is None
    assert records_of(told[:2], [a, b], pure=True) is None


def test_a_sample_is_one_release_of_all_that_it_answers():
    first, second = RowDraw("sample", 0, 0, ALL // 4), RowDraw("sample", 1, 0, ALL // 4)
    told = receipts(*[("laplace", 0.3), ("choice", 0.1), ("laplace", 0.3)] * 2)
    (record,) = records_of(told, [first] * 3 + [second] * 3, pure=True)
    assert isinstance(record, Joint)
    assert (record.count, record.rate) == (2, 0.25)
    close(record.parts, [Laplace(0.3, 2, 0.25), Choice(0.1, 1, 0.25)])
    assert basic([record]) == pytest.approx(2 * math.log1p(0.25 * math.expm1(0.7)))
    # a single release is a record of its own; a sample of all rows counts as all rows
    close(records_of(told[:1], [first], pure=True), [Laplace(0.3, 1, 0.25)])
    whole = RowDraw("sample", 0, 0, ALL)
    close(records_of(told[:3], [whole] * 3, pure=True), [Laplace(0.3, 2), Choice(0.1)])
    # of what a choice of a Gaussian fit costs beside a sample nothing is known
    told = receipts(("gaussian", 0.25), ("choice", 0.25))
    for draws in ([first] * 2, [first, None], [None, first]):
        assert records_of(told, draws, pure=False) is None
    assert records_of(told, [None, part(2, 0, 0.5)], pure=False) == (Gaussian(0.5, 2),)


@pytest.fixture(scope="module")
def joint():
    """Laplace and Gaussian noise on one sample, and its densities: with the row in the sample, and without."""
    x, y = np.linspace(-25, 26, 2041), np.linspace(-8, 9, 681)
    laplace = [np.exp(-np.abs(x - shift)) / 2 for shift in (0, 0.9)]
    normal = [np.exp(-((y - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (0, 0.8)]
    cell = (x[1] - x[0]) * (y[1] - y[0])
    without, served = (np.outer(a, b) * cell for a, b in zip(laplace, normal, strict=True))
    record = Joint.of([Laplace(0.9, 1, 0.2), Gaussian(0.8, 1, 0.2)])
    return record, 0.2 * served + 0.8 * without, without


@pytest.mark.parametrize("order", [2, 5])
def test_renyi_of_joint_releases_is_the_integral(joint, order):
    record, mixed, without = joint
    for p, q in ((mixed, without), (without, mixed)):
        exact = math.log(float((p * (p / q) ** (order - 1)).sum())) / (order - 1)
        assert renyi(record, order) >= exact * (1 - 1e-3)
    assert renyi(record, order) == pytest.approx(
        math.log(float((mixed * (mixed / without) ** (order - 1)).sum())) / (order - 1), rel=2e-3
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_delta_of_joint_releases_is_never_below_the_integral(joint, epsilon):
    record, mixed, without = joint
    for p, q in itertools.permutations((mixed, without)):
        exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
        assert pld_delta([record], epsilon, 1e-2) >= exact * (1 - 1e-3)


def test_releases_that_share_a_sample_cost_more_than_on_a_new_one_each():
    shared = Joint.of([Laplace(1.0, 4, 0.1)])
    for order in (2, 8, 32):
        assert renyi(shared, order) > 1.5 * renyi(Laplace(1.0, 4, 0.1), order) * 4
    assert rdp([shared], DELTA) > 1.3 * rdp([Laplace(1.0, 4, 0.1)], DELTA)


@pytest.mark.parametrize("level", [1e-9, 1e-5, 0.1])
def test_renyi_of_weak_laplace_noise_does_not_cancel(level):
    assert Laplace(level).renyi(2) == pytest.approx(level**2, rel=level + 1e-3)


def test_comparison_names_the_accountants_that_serve():
    records = [Laplace(0.05, 10), Choice(0.1, 20)]
    assert compared(records, DELTA) == {
        "gdp": gdp(records, DELTA),
        "zcdp": zcdp(records, DELTA),
        "basic": basic(records),
        "rdp": rdp(records, DELTA),
        "pld": pld(records, DELTA),
    }
    assert set(compared([*records, Gaussian(0.1)], DELTA)) == {"gdp", "zcdp", "rdp", "pld"}
    distinct = [Laplace(0.01 * k) for k in range(1, pld_module.MOST_RECORDS + 2)]
    assert set(compared(distinct, DELTA)) == {"gdp", "zcdp", "basic"}
    # where e^loss overflows
    assert "pld" not in compared([Laplace(1000.0)], DELTA)
    assert "pld" not in compared([Laplace(1.0)], 1e-320)


def test_comparison_notices_thirty_percent():
    """Prices that are 30 % too small change every accountant's number."""
    sample = RowDraw("sample", 7, 0, ALL // 2)
    draws = [None, None, sample, sample]
    right, small = (
        compared(records_of(receipts(*releases), draws, pure=True), DELTA)
        for releases in (
            [("laplace", f * 0.4), ("choice", f * 0.2), ("laplace", f * 0.4), ("choice", f * 0.3)]
            for f in (1, 0.7)
        )
    )
    assert right.keys() == small.keys()
    for name, epsilon in right.items():
        assert small[name] < 0.8 * epsilon
