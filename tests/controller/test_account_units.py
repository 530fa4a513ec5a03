"""The cost of fits in accounts of each analysis."""

import json
import math
import sqlite3
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from controller_parts import query, raw, reserve, tree_query

from dpgb_dask.contracts.boundary import Raw, Sensitivity
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE, RowDraw
from dpgb_dask.contracts.spending import amplified
from dpgb_dask.controller import account_units, accounting
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.errors import BudgetExceededError, LedgerError, PlanError


@pytest.fixture
def open_ledger(tmp_path):
    """Return a function that opens a ledger with account 'a' of an analysis."""

    def opened(analysis, epsilon=3.0, delta=1e-6):
        ledger = Ledger(f"sqlite:///{tmp_path}/{analysis}.db")
        ledger.open_account("a", epsilon=epsilon, delta=delta, analysis=analysis)
        return ledger

    return opened


def fit(ledger, pure, epsilon=1.0):
    """Reserve and bind a fit."""
    controller = reserve(ledger, pure=pure, budget=Budget(epsilon=epsilon, delta=1e-6))
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
    assert charge(one, True, "zcdp") == one // 2
    mu = 2 * NormalDist().inv_cdf(math.e / (1 + math.e))
    assert charge(one, True, "gdp") / one == pytest.approx(mu * mu, rel=1e-6)
    assert charge(0, True, "gdp") == charge(0, True, "zcdp") == 0


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


@pytest.mark.parametrize("analysis", ["gdp", "zcdp", "pure"])
@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("share", [1.0, 0.3, 1e-4])
def test_epsilon_within_fits_and_is_the_largest(analysis, pure, share):
    if analysis == "pure" and not pure:
        return
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
        with pytest.raises(
            BudgetExceededError, match=f"Amounts are {account_units.UNITS[analysis]}"
        ):
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


@pytest.mark.parametrize("analysis", ["gdp", "zcdp", "pure"])
@pytest.mark.parametrize("pure", [True, False])
def test_settle_charges_opened_rounds_in_the_unit(open_ledger, analysis, pure):
    if analysis == "pure" and not pure:
        return
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
    ledger._spending.clear()
    controller.release(tree_query(part, RowDraw("part", 0, 5, 9)), sums)
    ledger._spending.clear()
    with pytest.raises(BudgetExceededError):
        ledger.open_round(
            controller.fit_id, controller._lease, 2, controller._opened[0], query(price=part + 1)
        )
    with pytest.raises(PlanError, match="disjoint"):
        ledger.open_round(
            controller.fit_id,
            controller._lease,
            2,
            controller._opened[0],
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
