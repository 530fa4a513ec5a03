"""The cost of fits in accounts of each analysis."""

import json
import math
import re
import sqlite3
from contextlib import suppress
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from controller_parts import choice_query, query, raw, reserve, tree_query
from scipy.stats import binom, norm

from dpgb_dask.contracts.boundary import Raw, Sensitivity
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE, RowDraw
from dpgb_dask.contracts.spending import Item, amplified
from dpgb_dask.controller import account_units, accounting
from dpgb_dask.controller import ledger as ledger_module
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import Opened, Tally
from dpgb_dask.errors import BudgetExceededError, LedgerError, PlanError
from dpgb_dask.names import ACCOUNT_UNITS


@pytest.fixture
def open_ledger(tmp_path):
    """Return a function that opens a ledger with account 'a' of an analysis."""

    def opened(analysis, epsilon=3.0, delta=1e-6):
        ledger = Ledger(f"sqlite:///{tmp_path}/{analysis}.db")
        ledger.open_account("a", epsilon=epsilon, delta=delta, analysis=analysis)
        return ledger

    return opened


def fit(ledger, pure, epsilon=1.0, bill=()):
    """Reserve and bind a fit."""
    budget = Budget(epsilon=epsilon, delta=1e-6)
    controller = reserve(ledger, pure=pure, budget=budget, bill=bill)
    controller.bind(1)
    return controller


def test_caps():
    assert account_units.cap(3.0, 1e-6, "gdp") == accounting.total_price(3.0, 1e-6)
    assert account_units.cap(3.0, 0.0, "pure") == 3 * PRICE_ONE
    rho = account_units.cap(3.0, 1e-6, "zcdp") / PRICE_ONE
    # the conversion of Canonne, Kamath and Steinke: 0.1380 by dp_accounting's RDP of a Gaussian
    assert accounting.zcdp_epsilon(math.sqrt(2 * rho), 1e-6) <= 3.0
    assert accounting.zcdp_epsilon(math.sqrt(2 * rho) * 1.0001, 1e-6) > 3.0
    assert rho < account_units.cap(3.0, 1e-6, "gdp") / PRICE_ONE / 2


def charge(price, pure, analysis):
    return account_units.charge(price, pure=pure, analysis=analysis)


def test_charges_are_rounded_up():
    assert charge(7, False, "gdp") == 7
    assert charge(7, False, "zcdp") == 4
    assert charge(7, True, "pure") == 7
    assert charge(1, True, "zcdp") == 1
    one = PRICE_ONE
    exact = one * math.tanh(0.5)
    assert exact <= charge(one, True, "zcdp") <= exact * (1 + 1e-11)
    assert account_units.cost(one, "zcdp", choice=True) == one // 8
    assert account_units.cost(one, "pure", choice=True) == one
    mu = 2 * NormalDist().inv_cdf(math.e / (1 + math.e))
    assert charge(one, True, "gdp") / one == pytest.approx(mu * mu, rel=1e-6)
    assert charge(0, True, "gdp") == charge(0, True, "zcdp") == 0


@pytest.mark.parametrize(
    ("epsilon", "mu_squared", "rho", "choice_mu_squared", "choice_rho"),
    [
        (0.01, 1.57079e-4, 4.99996e-5, 3.92699e-5, 1.25e-5),
        (0.1, 0.0157023, 0.00499584, 0.00392664, 0.00125),
        (1.0, 1.51791, 0.462117, 0.389242, 0.125),
        (8.0, 46.2749, 7.99463, 17.5936, 7.99463),
    ],
)
def test_prices_of_one_release(epsilon, mu_squared, rho, choice_mu_squared, choice_rho):
    """Of Φ⁻¹ by SciPy: (2Φ⁻¹(1/(1+e^-ε)))², ε tanh(ε/2); of a choice (2Φ⁻¹(1/(1+e^-ε/2)))², min(ε²/8, ε tanh(ε/2))."""
    price = int(epsilon * PRICE_ONE)
    known = (mu_squared, rho, choice_mu_squared, choice_rho)
    asked = [(analysis, choice) for choice in (False, True) for analysis in ("gdp", "zcdp")]
    for (analysis, choice), expected in zip(asked, known, strict=True):
        cost = account_units.cost(price, analysis, choice=choice) / PRICE_ONE
        assert cost == pytest.approx(expected, rel=1e-5)
        exact = {
            "gdp": 4 * norm.isf(1 / (1 + math.exp(epsilon / (2 if choice else 1)))) ** 2,
            "zcdp": min(epsilon * math.tanh(epsilon / 2), epsilon**2 / 8 if choice else math.inf),
        }[analysis]
        assert exact * (1 - 1e-13) <= cost <= exact * (1 + 1e-9)


def renyi(epsilon, order):
    """Return the Rényi divergence of randomised response, by its two outcomes."""
    yes = 1 / (1 + math.exp(-epsilon))
    return math.log(
        yes**order * (1 - yes) ** (1 - order) + (1 - yes) ** order * yes ** (1 - order)
    ) / (order - 1)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 8.0, 20.0])
def test_rho_of_a_pure_release_bounds_randomised_response_at_every_order(epsilon):
    rho = account_units.cost(int(epsilon * PRICE_ONE), "zcdp") / PRICE_ONE
    orders = 1 + np.logspace(-4, 1.4, 200)
    assert all(renyi(epsilon, order) <= order * rho * (1 + 1e-7) for order in orders)
    assert renyi(epsilon, orders[0]) == pytest.approx(orders[0] * rho, rel=1e-3)  # tight
    assert any(renyi(epsilon, order) > 0.7 * order * rho for order in orders)


def test_releases_one_by_one_bound_what_they_cost_together():
    """Fifty randomised responses of ε, and three hundred choices of range ε/6, by their exact joint losses."""

    def profile(epsilons, e):
        """Return δ at e of randomised responses: losses are sums of ±ε."""
        losses, chances = np.zeros(1), np.ones(1)
        for epsilon, times in epsilons:
            k = np.arange(times + 1)
            own = binom.pmf(k, times, 1 / (1 + math.exp(-epsilon)))
            losses = np.add.outer(losses, (2 * k - times) * epsilon).ravel()
            chances = np.multiply.outer(chances, own).ravel()
        return float(chances @ np.maximum(-np.expm1(e - losses), 0))

    def mu(*items, share=1.0):
        bill = [Item(int(PRICE_ONE * epsilon), times, kind) for epsilon, times, kind in items]
        whole = account_units.charge(PRICE_ONE, pure=True, analysis="gdp", bill=bill)
        return math.sqrt(share * whole / PRICE_ONE)

    # a choice's worst law has losses of ± half of its range
    releases, choices = (0.01, 50), (1 / 1200, 300)
    bound = mu((0.01, 50, "sums"), (1 / 600, 300, "choice"))
    for e in np.linspace(0, 0.4, 9):
        assert profile([releases, choices], e) <= accounting.delta_of(bound, e)
    # one release touches its Gaussian; of many, the Gaussian's μ is too large by √(π/2)
    assert accounting.delta_of(bound, 0) < 1.26 * profile([releases, choices], 0)
    for own, item in (((0.3, 1), (0.3, 1, "sums")), ((0.3, 1), (0.6, 1, "choice"))):
        assert profile([own], 0) == pytest.approx(accounting.delta_of(mu(item), 0), rel=1e-9)
        assert profile([own], 0) > 1.1 * accounting.delta_of(mu(item, share=0.7), 0)
    assert 180 * bound**2 < mu((1.0, 1, "sums")) ** 2


@pytest.mark.parametrize("epsilon", [1e-5, 0.01, 0.5, 1.0, 5.0, 30.0, 200.0, 900.0])
def test_pure_epsilon_in_mu_is_the_exact_curve(epsilon):
    """μ-GDP dominates ε-DP: randomised response's trade-off curve lies above G_μ, and touches it."""
    mu = accounting.mu_of_pure(epsilon)
    assert accounting.logit_of_phi(mu / 2) == pytest.approx(epsilon, rel=1e-10)
    assert accounting.logit_of_phi(mu / 2) * (1 - 1e-12) >= epsilon
    if epsilon <= 30:
        for e in np.linspace(0, epsilon, 20)[:-1]:
            # δ of randomised response at e
            top, low = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
            assert top - math.exp(e) * low <= accounting.delta_of(mu, e) * (1 + 1e-9)
        # 30 % less is not enough at some e
        short = 0.7 * mu
        assert any(
            1 / (1 + math.exp(-epsilon)) - math.exp(e) / (1 + math.exp(epsilon))
            > accounting.delta_of(short, e) * (1 + 1e-9)
            for e in np.linspace(0, epsilon, 40)[:-1]
        )


def test_logit_of_phi_is_odd_convex_and_its_square_superadditive():
    """The properties that the proofs in accounting.py and analyses.py use: L is convex, and u L' <= 2 L."""
    u = np.linspace(1e-3, 60, 4001)
    value = np.array([accounting.logit_of_phi(x) for x in u])
    # the slope is φ/(ΦΦ̄); its logarithm grows where m(u) - m(-u) >= u, with m the hazard
    hazard = np.array([1 / accounting._mills(x) for x in u])
    below = (
        np.exp(-u * u / 2)
        / math.sqrt(2 * math.pi)
        / (1 - 0.5 * np.vectorize(math.erfc)(u / math.sqrt(2)))
    )
    assert (hazard - below >= u * (1 - 1e-12)).all()
    slope = hazard + below
    assert np.allclose(np.gradient(value, u)[1:-1], slope[1:-1], rtol=1e-3)
    assert (u * slope <= 2 * value * (1 + 1e-12)).all()
    assert (np.diff(value) > 0).all()


@pytest.mark.parametrize("price", [PRICE_ONE // 10**8, PRICE_ONE // 100, PRICE_ONE, 30 * PRICE_ONE])
def test_choice_epsilon_is_the_worst_two_point_law(price):
    """Bounded range ε in μ²: for every t, the law with losses t and t - ε is within G_μ, and for t = ε/2 it touches."""
    mu, epsilon = math.sqrt(price / PRICE_ONE), accounting.choice_epsilon(price)
    assert epsilon / 2 == pytest.approx(accounting.logit_of_phi(mu / 2), rel=1e-10)
    assert epsilon < 2 * accounting.logit_of_phi(mu / 2)

    def needed(t, epsilon):
        """Return the μ of the kink: Φ⁻¹(1 - a) + Φ⁻¹(1 - b)."""
        a = (math.exp(-t) - math.exp(-epsilon)) / -math.expm1(-epsilon)
        b = math.exp(-epsilon) * math.expm1(t) / -math.expm1(-epsilon)
        return quantile(1 - a) + quantile(1 - b)

    def quantile(p):
        low, high = -40.0, 40.0
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if 0.5 * math.erfc(-middle / math.sqrt(2)) < p else (low, middle)
            )
        return low

    if epsilon > 1e-3:
        worst = max(needed(t, epsilon) for t in np.linspace(0, epsilon, 101)[1:-1])
        assert worst == pytest.approx(mu, rel=1e-6)
        assert max(needed(t, 1.3 * epsilon) for t in np.linspace(0, 1.3 * epsilon, 101)[1:-1]) > mu


def two_point(t, epsilon):
    """Return the losses t and t - ε, and the chances that a law without the row gives them."""
    low = math.expm1(t) / (math.exp(t) - math.exp(t - epsilon))
    return np.array([t, t - epsilon]), np.array([1 - low, low])


def to_come(x, s, sign=1):
    """V_s(x) = E(e^(x+Z) - 1)₊ with Z ~ N(-s/2, s), as in docs/privacy.md P8; less e^x - 1 where the sign is -1."""
    root = math.sqrt(s)
    above, below = sign * (x / root + root / 2), sign * (x / root - root / 2)
    return sign * (np.exp(x) * norm.cdf(above) - norm.cdf(below))


def beyond_the_filter(epsilon, p, s):
    """Return how far a choice of bounded range ε exceeds what p of μ² allows with s to come, relative to its worst."""
    x = np.linspace(-8, 8, 401) * math.sqrt(s) + s / 2
    sign = np.where(
        x > 0, -1, 1
    )  # a loss leaves the mean of e^x - 1 as it is: so nothing large cancels
    allowed, before = to_come(x, s + p, sign), to_come(x, s, sign)
    worst = -math.inf
    for t in np.linspace(0, epsilon, 41)[1:-1]:
        losses, chances = two_point(t, epsilon)
        assert chances @ np.exp(losses) == pytest.approx(1)
        after = sum(q * to_come(x + loss, s, sign) for loss, q in zip(losses, chances, strict=True))
        worst = max(worst, float(((after - allowed) / (allowed - before).max()).max()))
    return worst


@pytest.mark.parametrize("p", [1e-4, 0.01, 0.3, 3.0])
@pytest.mark.parametrize("ratio", [0.05, 0.5, 2.0, 8.0, 100.0])
def test_a_choice_beside_what_follows_keeps_the_filter(p, ratio):
    """For every two-point law, and so for every law, whatever was released before; and not with 30 % more."""
    price, after = round(p * PRICE_ONE), round(p * ratio * PRICE_ONE)
    epsilon = float(accounting.choice_epsilon(price, after))
    assert beyond_the_filter(epsilon, p, p * ratio) <= 1e-7
    assert beyond_the_filter(1.3 * epsilon, p, p * ratio) > 0.05


@pytest.mark.parametrize(
    "price", [1, PRICE_ONE // 10**8, PRICE_ONE // 100, PRICE_ONE, 13 * PRICE_ONE]
)
def test_what_follows_makes_choices_cheaper(price):
    """1/p + 1/s = 4/ε², rounded down; by itself a choice costs at most 11/7 of that."""
    alone = accounting.choice_epsilon(price)
    assert accounting.choice_epsilon(price, 0) == accounting.choice_epsilon(price, -1) == alone
    for after in (price // 3, price, 10 * price, 10**6 * price):
        epsilon = accounting.choice_epsilon(price, after)
        assert epsilon >= alone
        if epsilon > alone:
            unit = Fraction(price * after, (price + after) * PRICE_ONE)
            assert epsilon**2 / 4 <= unit
            assert (epsilon * (1 + Fraction(1, 10**12))) ** 2 / 4 > unit
    by_itself = accounting.mu_of_bounded_range(float(epsilon)) ** 2
    assert by_itself <= accounting.ALONE * Fraction(price, PRICE_ONE)
    if price < PRICE_ONE:
        assert epsilon > 1.24 * alone
    if price > 12 * PRICE_ONE:  # beyond what is proved
        assert epsilon == alone


@pytest.mark.parametrize("where", [0.3, 0.5, 0.7])
def test_choices_and_noise_stay_within_the_curve(where):
    """δ of ten choices, and of noise after them, is below that of all their prices together; not with 30 % more."""
    n, p, s = 10, 0.02, 0.2
    total = n * p + s

    def largest(factor):
        loss, chance = np.zeros(1), np.ones(1)
        for k in range(n):
            left = round((total - (k + 1) * p) * PRICE_ONE)
            epsilon = factor * float(accounting.choice_epsilon(round(p * PRICE_ONE), left))
            losses, chances = two_point(where * epsilon, epsilon)
            loss, chance = np.add.outer(loss, losses).ravel(), np.outer(chance, chances).ravel()
        shares = []
        for c in (0.0, 0.5, 1.0, 2.0):
            delta = math.exp(c) * float(chance @ to_come(loss - c, s))
            shares.append(delta / accounting.delta_of(math.sqrt(total), c))
        return max(shares)

    assert 0.9 < largest(1.0) < 1
    assert largest(1.3) > 1.05


# an account of pure ε takes fits of pure ε alone
TAKEN = [(a, p) for a in ("gdp", "zcdp", "pure") for p in (True, False) if p or a != "pure"]


@pytest.mark.parametrize(("analysis", "pure"), TAKEN)
@pytest.mark.parametrize("share", [1.0, 0.3, 1e-4])
def test_epsilon_within_fits_and_is_the_largest(analysis, pure, share):
    amount = int(account_units.cap(2.0, 1e-6, analysis) * share)
    found = account_units.epsilon_within(amount, 1e-6, pure=pure, analysis=analysis)

    def cost(epsilon):
        return charge(accounting.total_price(epsilon, 1e-6, pure=pure), pure, analysis)

    assert cost(found) <= amount < cost(found * (1 + 1e-9))
    assert account_units.epsilon_within(0, 1e-6, pure=pure, analysis=analysis) == 0.0
    assert account_units.epsilon_within(-1, 1e-6, pure=pure, analysis=analysis) == 0.0


@pytest.mark.parametrize("analysis", ["gdp", "zcdp", "pure"])
@pytest.mark.parametrize("pure", [True, False])
def test_fits_are_charged_in_the_unit_of_the_account(open_ledger, analysis, pure):
    ledger = open_ledger(analysis)
    if analysis == "pure" and not pure:
        with pytest.raises(LedgerError, match=r"analysis='pure'\. Choose a recipe of pure"):
            reserve(ledger)
        assert ledger.account("a").spent == 0
        assert not list(ledger.directory.glob("*.key"))
        return
    before = ledger.remaining("a")
    controller = fit(ledger, pure, 0.3)
    account = ledger.account("a")
    assert account.analysis == analysis
    assert account.spent == charge(controller.total, pure, analysis)
    assert ledger.remaining("a") < before
    left = ledger.remaining("a")
    if pure == (analysis == "pure"):
        fit(ledger, pure, left * (1 - 1e-9))
        with pytest.raises(BudgetExceededError, match=f"Amounts are {ACCOUNT_UNITS[analysis]}"):
            fit(ledger, pure, 0.01)
    ledger.verify()
    assert [e.kind for e in ledger.history("a")][:3] == ["OPEN", "RESERVED", "BOUND"]


def test_a_pure_account_adds_epsilon_to_the_bit(open_ledger):
    ledger = open_ledger("pure", epsilon=3.0, delta=0.0)
    assert ledger.remaining("a") == 3.0
    for _ in range(3):
        fit(ledger, pure=True)
    assert ledger.account("a").left == 0
    assert ledger.remaining("a") == 0.0
    with pytest.raises(BudgetExceededError, match="nothing: the account is spent"):
        fit(ledger, pure=True, epsilon=1e-5)


BILL = [(100, 2, "choice"), (200, 1, "sums")]  # thousandths of ε
SAMPLED = [(250, 3, "sample")]


def billed(ledger, items, epsilon=1.0):
    """Reserve and bind a pure fit of ε that is charged by its bill."""
    bill = [Item(int(PRICE_ONE * price) // 1000, times, kind) for price, times, kind in items]
    budget = Budget(epsilon=epsilon, delta=1e-6)
    controller = reserve(ledger, pure=True, budget=budget, bill=bill)
    controller.bind(1)
    return controller, account_units.charge(0, pure=True, analysis="gdp", bill=bill)


def ask(controller, price, kind="sums", rows=None):
    """Release one query of a price in thousandths of ε."""
    price = PRICE_ONE * price // 1000
    if kind == "choice":
        found = choice_query(price=price, rows=rows)
        sums = np.zeros(found.n_sums, np.int64)
        return controller.release(found, Raw(sums, Sensitivity(1, 1, 1)))
    if rows is None:
        return controller.release(query(price=price), raw())
    return controller.release(
        tree_query(price, rows), Raw(np.zeros(2, np.int64), Sensitivity(1, 1))
    )


def of(price, *, choice=False):
    return account_units.cost(PRICE_ONE * price // 1000, "gdp", choice=choice)


@pytest.mark.parametrize("durable", [True, False])
def test_a_pure_fit_is_charged_by_its_releases(open_ledger, durable):
    ledger = open_ledger("gdp")
    if not durable:
        ledger = Ledger.in_memory()
        ledger.open_account("a", epsilon=3.0, delta=1e-6)
    controller, whole = billed(ledger, BILL)
    assert ledger.account("a").spent == whole == 2 * of(100, choice=True) + of(200)
    assert whole < charge(PRICE_ONE, True, "gdp") / 20
    for _ in range(2):
        ask(controller, 100, "choice")
    with pytest.raises(BudgetExceededError, match=r"Amounts are 2\*\*-64 of μ²"):
        ask(controller, 201)
    ask(controller, 200)
    with pytest.raises(BudgetExceededError, match=r"Amounts are 2\*\*-64 of μ²"):
        ask(controller, 1)
    controller.finish()
    assert ledger.account("a").spent == whole
    ledger.verify()


def test_settle_of_a_fit_that_is_charged_by_its_releases(open_ledger):
    ledger = open_ledger("gdp")
    controller, _ = billed(ledger, [(100, 4, "sums")])
    for k in range(4):
        ask(controller, 100 - k, rows=RowDraw("part", 0, k, k + 1))
    ask(controller, 100)
    assert ledger.settle(controller.fit_id) == 2 * of(100) == ledger.account("a").spent
    ledger.verify()


def test_a_sample_pays_for_all_its_queries_when_the_first_is_asked(open_ledger):
    ledger = open_ledger("gdp")
    controller, whole = billed(ledger, SAMPLED)
    tenth = (1 << 32) // 10
    for group in range(2):
        for _ in range(3):
            ask(controller, 400, rows=RowDraw("sample", group, 0, tenth))
    assert controller.spent == 2 * amplified(3 * (400 * PRICE_ONE // 1000), tenth / 2**32)
    with pytest.raises(BudgetExceededError, match="of one sample"):
        ask(controller, 400, rows=RowDraw("sample", 1, 0, tenth))
    assert ledger.settle(controller.fit_id) == 2 * of(250) == whole * 2 // 3
    ledger.verify()
    controller, _ = billed(ledger, [(300, 1, "sums")])
    with pytest.raises(BudgetExceededError, match="of one sample"):  # none is in the bill
        ask(controller, 100, rows=RowDraw("sample", 0, 0, tenth))


def test_every_sample_costs_as_much_as_the_dearest(open_ledger):
    """Which price a sample has is not known when its first query is asked."""
    ledger = open_ledger("gdp")
    controller, _ = billed(ledger, [(50, 2, "sample"), (250, 2, "sample")])
    tenth = (1 << 32) // 10
    for group in range(2):
        ask(controller, 400 if group else 100, rows=RowDraw("sample", group, 0, tenth))
    assert ledger.settle(controller.fit_id) == 2 * of(250)
    ledger.verify()


def test_an_entry_with_a_cost_that_is_too_small_is_seen(open_ledger, monkeypatch):
    ledger = open_ledger("gdp")
    controller, _ = billed(ledger, BILL)
    exact = account_units.cost
    monkeypatch.setattr(account_units, "cost", lambda *asked, **how: exact(*asked, **how) * 7 // 10)
    ask(controller, 200)
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="more than it reserved, or counted less"):
        ledger.verify()


def check_seen(path):
    """Whoever adds up the entries anew refuses one."""
    with pytest.raises(LedgerError, match="does not follow from those before"):
        Ledger(f"sqlite:///{path}").verify()


@pytest.mark.parametrize(
    ("analysis", "pure"),
    [("gdp", False), ("gdp", True), ("zcdp", False), ("zcdp", True), ("pure", True)],
)
def test_a_charge_below_the_price_of_a_fit_is_seen(
    open_ledger, tmp_path, monkeypatch, analysis, pure
):
    """By a writer that computes it in another way; a bill in the terms of a fit with Gaussian noise changes nothing."""
    ledger = open_ledger(analysis)
    exact, bill = account_units.charge, () if pure else [Item(1, 1, "sums")]
    fit(ledger, pure, epsilon=0.3, bill=bill)
    monkeypatch.setattr(
        account_units, "charge", lambda *asked, **how: exact(*asked, **how) * 7 // 10
    )
    with suppress(LedgerError):  # a writer that looks at it itself
        fit(ledger, pure, epsilon=0.3, bill=bill)
    monkeypatch.undo()
    check_seen(tmp_path / f"{analysis}.db")


@pytest.mark.parametrize(
    ("analysis", "pure", "restored"),
    [
        ("gdp", False, False),
        ("gdp", True, False),
        ("zcdp", False, False),
        ("pure", True, False),
        ("gdp", False, True),
    ],
)
def test_a_refund_of_what_was_opened_is_seen(
    open_ledger, tmp_path, monkeypatch, analysis, pure, restored
):
    """Of a fit whose ledger was restored since, of anything: its rounds may be lost."""
    ledger = open_ledger(analysis)
    controller = fit(ledger, pure, epsilon=0.3)
    ask(controller, 1)
    if restored:
        with ledger._transaction() as book:
            book.add_restored(None)
    with ledger._transaction() as book:
        running = book.running(controller.fit_id)
        stands = running.reserved if restored else book.tally().opened_charge(controller.fit_id)
    monkeypatch.setattr(Tally, "opened_charge", lambda *_: stands * 7 // 10)
    ledger.settle(controller.fit_id)
    monkeypatch.undo()
    check_seen(tmp_path / f"{analysis}.db")


def test_noise_is_as_fine_as_the_account_asks(open_ledger):
    """The slack of a fit counts at its account's ε, of which many small fits have to have room."""
    ledger = open_ledger("gdp", epsilon=20.0)
    for _ in range(5):
        controller = reserve(ledger, budget=Budget(epsilon=0.3, delta=1e-6))
    record = ledger.record(controller.fit_id)
    assert record.terms.min_sigma_bits == accounting.min_sigma_bits_for(20.0, 1e-6)
    assert accounting.min_sigma_bits_for(0.3, 1e-6) < record.terms.min_sigma_bits
    ledger.verify()


@pytest.mark.parametrize("share", [0, 0.7])
def test_slack_that_a_fit_does_not_state_is_seen(open_ledger, tmp_path, monkeypatch, share):
    ledger = open_ledger("gdp")
    exact = accounting.distance
    monkeypatch.setattr(accounting, "distance", lambda bits: share * exact(bits))
    fit(ledger, False, epsilon=0.3)
    monkeypatch.undo()
    check_seen(tmp_path / "gdp.db")


@pytest.mark.parametrize(
    ("items", "price", "rows"),
    [(BILL, 300, None), (SAMPLED, 2000, RowDraw("sample", 0, 0, (1 << 32) // 10))],
)
def test_an_entry_beyond_what_the_account_was_charged_is_seen(
    open_ledger, monkeypatch, items, price, rows
):
    """By a client that does not check: a round that costs too much, and one on a sample that paid for less."""
    ledger = open_ledger("gdp")
    controller, _ = billed(ledger, items)
    with pytest.raises(BudgetExceededError):
        ask(controller, price, rows=rows)
    monkeypatch.setattr(ledger_module, "_check_reserved", lambda *_: None)
    ask(controller, price, rows=rows)
    assert controller.spent < controller.total
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="more than it reserved, or counted less"):
        ledger.verify()


def test_a_unit_of_rounding_is_no_flaw_but_a_cost_of_nothing_is(open_ledger, monkeypatch):
    """A server rounds exact costs up, and the client what it computes in double precision."""
    ledger = open_ledger("gdp")
    controller, _ = billed(ledger, BILL)
    exact = account_units.cost
    monkeypatch.setattr(account_units, "cost", lambda *asked, **how: exact(*asked, **how) - 1)
    ask(controller, 100)
    monkeypatch.undo()
    ledger.verify()
    monkeypatch.setattr(account_units, "cost", lambda *_, **__: 0)
    controller.release(query(price=1 << 12), raw())
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="counted less"):
        ledger.verify()


def test_a_fit_that_does_not_fit_is_told_what_would(open_ledger):
    ledger = open_ledger("gdp", epsilon=0.3)
    with pytest.raises(BudgetExceededError) as refused:
        billed(ledger, [(500, 20, "sums")], epsilon=10.0)
    would = float(re.search(r"would fit +epsilon=([\d.]+)", str(refused.value))[1])
    items = [(500 * would / 10 * 0.999, 20, "sums")]
    _, whole = billed(ledger, items, epsilon=would)
    assert 0.99 * ledger.account("a").cap < whole <= ledger.account("a").cap


def test_pure_fits_have_their_way_out_in_other_accounts(open_ledger):
    with pytest.raises(BudgetExceededError, match="cost least in an account with analysis='pure'"):
        fit(open_ledger("gdp"), pure=True)


def test_zcdp_accounts_need_no_slack(open_ledger):
    """A discrete Gaussian is zCDP by itself, so zCDP accounts take an ε that is too large for any slack."""
    open_ledger("zcdp", epsilon=500.0)
    with pytest.raises(PlanError, match="too large"):
        open_ledger("gdp", epsilon=500.0)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"analysis": "pld"}, LedgerError, "analysis='pld'"),
        ({"delta": 0.0}, PlanError, "Only analysis='pure'"),
        ({"delta": 0.0, "analysis": "zcdp"}, PlanError, "Only analysis='pure'"),
        ({"delta": -1e-9, "analysis": "pure"}, PlanError, "delta=-1e-09"),
        ({"delta": 1.0, "analysis": "pure"}, PlanError, r"delta=1\.0"),
        ({"delta": math.nan, "analysis": "pure"}, PlanError, "delta=nan"),
        ({"epsilon": math.inf, "analysis": "pure"}, PlanError, "epsilon=inf"),
        ({"epsilon": "1", "analysis": "pure"}, PlanError, "epsilon='1'"),
        ({"epsilon": -1.0, "analysis": "zcdp"}, PlanError, r"epsilon=-1\.0"),
        ({"epsilon": 1e-9, "analysis": "pure"}, PlanError, "leaves nothing"),
    ],
)
def test_open_account_refuses(ledger, options, error, named):
    with pytest.raises(error, match=named):
        ledger.open_account("b", **({"epsilon": 1.0, "delta": 1e-6} | options))
    assert len(ledger.accounts()) == 2


def test_the_analysis_is_fixed(open_ledger):
    ledger = open_ledger("zcdp")
    ledger.open_account("a", epsilon=3.0, delta=1e-6, analysis="zcdp")
    with pytest.raises(LedgerError, match="analysis=zcdp"):
        ledger.open_account("a", epsilon=3.0, delta=1e-6)


@pytest.mark.parametrize(("analysis", "pure"), TAKEN)
def test_settle_charges_opened_rounds_in_the_unit(open_ledger, analysis, pure):
    ledger = open_ledger(analysis)
    controller = fit(ledger, pure, 0.3)
    assert ledger.settle(fit(ledger, pure, 0.01).fit_id) == 0
    price = controller.total // 5
    controller.release(query(price=price), raw())
    for i in range(4):
        rows = RowDraw("part", 0, i, i + 1)
        controller.release(tree_query(price, rows), Raw(np.zeros(2, np.int64), Sensitivity(1, 1)))
    stands = charge(2 * price, pure, analysis)
    assert ledger.settle(controller.fit_id) == stands == ledger.account("a").spent
    ledger.verify()


@pytest.mark.parametrize("analysis", ["gdp", "zcdp", "pure"])
def test_settle_of_a_pure_fit_with_a_sample(open_ledger, analysis):
    """Amplification holds for a whole sample: only ε adds it up; in other units the whole charge stands."""
    ledger = open_ledger(analysis)
    controller = fit(ledger, True, 0.3)
    rows = RowDraw("sample", 0, 0, (1 << 32) // 10)
    price = controller.total
    controller.release(tree_query(price, rows), Raw(np.zeros(2, np.int64), Sensitivity(1, 1)))
    stands = ledger.settle(controller.fit_id)
    if analysis == "pure":
        assert stands == amplified(price, rows.high / 2**32)
    else:
        assert stands == charge(controller.total, True, analysis)
    ledger.verify()


def test_a_ledger_remembers_spending_of_rounds_it_did_not_open(open_ledger):
    """As in another process, which reads the groups back from the entries."""
    ledger = open_ledger("pure")
    controller = fit(ledger, True)
    sums = Raw(np.zeros(2, np.int64), Sensitivity(1, 1))
    part = controller.total // 2
    controller.release(tree_query(part, RowDraw("part", 0, 0, 5)), sums)
    ledger._tallies.clear()
    controller.release(tree_query(part, RowDraw("part", 0, 5, 9)), sums)
    ledger._tallies.clear()
    with pytest.raises(BudgetExceededError):
        ledger.open_round(
            controller.fit_id, controller._lease, 2, Opened("q", "s"), query(price=part + 1)
        )
    with pytest.raises(PlanError, match="disjoint"):
        ledger.open_round(
            controller.fit_id,
            controller._lease,
            2,
            Opened("q", "s"),
            tree_query(1, RowDraw("part", 0, 4, 6)),
        )
    controller.release(query(price=part), raw())
    ledger.verify()


def test_a_ledger_of_before_still_counts(open_ledger, tmp_path):
    """Entries of the first version, which have no charge, no currency and no rows."""
    ledger = open_ledger("gdp")
    lease = "l" * 32
    body = {
        "epsilon": 1.0, "delta": 1e-6, "price": str(accounting.total_price(1.0, 1e-6)), "min_sigma_bits": 20,
        "tau": accounting.distance(20), "plan_digest": "00", "version": "dpgb_dask 0.1.0, sampler 1", "public_seed": 5,
        "commitment": "c",
    }  # fmt: skip
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    tau = math.nextafter(body["tau"], math.inf)
    with ledger._transaction(keep_head=True) as book:
        book.append("RESERVED", "a", "old", body)
        book.append(
            "OPENED",
            "a",
            "old",
            {"position": 0, "query_id": "q", "seal": "s", "price": "7", "spent": "7"},
        )
    connection = sqlite3.connect(tmp_path / "gdp.db")
    connection.execute("UPDATE dpgb_accounts SET spent = ?, tau = ?", (body["price"], repr(tau)))
    connection.execute(
        "INSERT INTO dpgb_fits VALUES ('old', 'a', 'RESERVED', ?, ?, '', ?)",
        (body["price"], text, lease),
    )
    connection.commit()
    connection.close()
    ledger.verify()
    assert not ledger.look("old").terms.pure
    assert ledger.settle("old") == 7
    ledger.verify()
    assert Fraction(ledger.account("a").spent) == 7


@pytest.mark.parametrize("price", [1, 3, PRICE_ONE // 1000 + 1, PRICE_ONE // 7])
def test_a_choice_costs_rho_rounded_up(price):
    assert 8 * PRICE_ONE * account_units.cost(price, "zcdp", choice=True) >= price * price
