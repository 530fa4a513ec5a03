import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from controller_parts import (
    BUDGET,
    FixedNoise,
    ListJournal,
    choice_query,
    query,
    raw,
    reserve,
    tree_query,
)

from dpgb_dask.contracts.boundary import Raw, Receipt, Sensitivity
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE, RowDraw
from dpgb_dask.contracts.spending import amplified
from dpgb_dask.controller import accounting
from dpgb_dask.controller import release as releases
from dpgb_dask.controller.gaussian import DiscreteGaussian
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.noise import SecretNoise, canonical
from dpgb_dask.errors import (
    BudgetExceededError,
    LedgerError,
    PlanError,
    ResumeError,
    StructureError,
)


class Watched(Raw):
    """Sums that count how often they are opened, and fail on anything else."""

    __slots__ = ("opened",)

    def __init__(self, value, sensitivity):
        super().__init__(value, sensitivity)
        self.opened = 0

    def _open(self, receipt):
        self.opened += 1
        return super()._open(receipt)


def watched(*values):
    return Watched(np.array(values or (10, 20, 30), np.int64), Sensitivity(1, 1))


def bound(ledger, **changes):
    controller = reserve(ledger, **changes)
    controller.bind(77)
    return controller


def test_reserve_charges_the_whole_fit_before_anything(ledger):
    controller = reserve(ledger)
    assert controller.total == accounting.total_price(1.0, 1e-6) == ledger.account("a").spent
    assert controller.private
    assert controller.public_seed == 5
    assert controller.slack < 1e-9
    assert [e.kind for e in ledger.history("a")] == ["OPEN", "RESERVED"]


def test_reserve_without_a_ledger_keeps_an_account_of_its_own():
    controller = reserve()
    account = controller._ledger.accounts()[0]
    assert account.cap == account.spent == controller.total
    assert controller.account is None


def test_release_adds_the_noise_that_was_paid_for():
    controller = reserve(noise=FixedNoise())
    asked = query(n_values=50_000, price=PRICE_ONE // 100)
    sums = np.arange(50_000)
    released = controller.release(asked, Raw(sums, Sensitivity(3, 3)))
    receipt = released.receipt
    assert receipt.price == asked.price
    assert receipt.sigma_steps >= 1 << 20
    assert accounting.price(3 << 2 * receipt.scale_bits, receipt.sigma_steps) <= asked.price
    noise = released.value - (sums << receipt.scale_bits)
    natural = noise / 2**receipt.scale_bits  # σ = √(3 / 0.01)
    assert natural.std() == pytest.approx(np.sqrt(300), rel=0.02)


def test_release_is_keyed_by_query_and_sums():
    def noise(label="q", values=(1, 2, 3), seed=0, l2_squared=1, price=PRICE_ONE // 1000):
        controller = reserve(noise=FixedNoise(seed))
        released = controller.release(
            query(label, price=price), raw(*values, l2_squared=l2_squared)
        )
        return tuple(released.value - (np.array(values) << released.receipt.scale_bits))

    assert noise() == noise()
    draws = [
        noise(), noise("r"), noise(values=(1, 2, 4)), noise(seed=1), noise(l2_squared=2),
        noise(price=PRICE_ONE // 999),
    ]  # fmt: skip
    assert len(set(draws)) == len(draws)


def test_release_of_the_same_query_again_is_another_release():
    controller = reserve(noise=FixedNoise())
    first, second = (controller.release(query(), raw()) for _ in range(2))
    assert first.receipt.query_id != second.receipt.query_id
    assert not np.array_equal(first.value, second.value)
    assert [r.position for r in controller.receipts] == [0, 1]
    assert controller.spent == 2 * query().price


def test_overspending_is_refused_before_opening(ledger):
    controller = bound(ledger)
    controller.release(query(price=controller.total - 5), raw())
    sums = watched()
    with pytest.raises(
        BudgetExceededError, match=r"(?s)requested +6\n +remaining +5\n +difference +1"
    ):
        controller.release(query(price=6), sums)
    assert sums.opened == 0
    assert [e.kind for e in ledger.history("a")][-1] == "OPENED"
    assert controller.release(query(price=5), watched()).receipt.price == 5
    assert controller.spent == controller.total


def test_release_refuses_what_no_noise_fits():
    controller = reserve()
    for bad, sums in (
        (query(price=0), watched()),
        (query(price=1), Watched(np.zeros(3, np.int64), Sensitivity(1 << 60, 1 << 60))),
    ):
        with pytest.raises(PlanError):
            controller.release(bad, sums)
        assert sums.opened == 0


def test_release_refuses_more_values_than_the_slack_covers(monkeypatch):
    monkeypatch.setattr(accounting, "MAX_VALUES", 5)
    controller = reserve()
    controller.release(query(), raw())
    sums = watched()
    with pytest.raises(PlanError, match="released values"):
        controller.release(query("q 2"), sums)
    assert sums.opened == 0


@pytest.mark.parametrize("value", [np.zeros(4, np.int64), np.zeros((3, 1), np.int64), np.zeros(3)])
def test_release_refuses_sums_of_another_shape_without_numbers(value):
    with pytest.raises(StructureError) as info:
        reserve().release(query(), Raw(value, Sensitivity(1, 1)))
    assert not set("1234567890") & set(str(info.value).replace("int64", "").replace("'q 1'", ""))


def test_release_needs_bind_on_a_durable_ledger(ledger):
    sums = watched()
    with pytest.raises(LedgerError, match="bind"):
        reserve(ledger).release(query(), sums)
    assert sums.opened == 0


def test_finish_erases_the_key_and_ends_the_fit(ledger):
    controller = bound(ledger)
    path = ledger.key_path(controller.fit_id)
    assert path.stat().st_mode & 0o777 == 0o600
    controller.finish()
    assert not path.exists()
    sums = watched()
    for act in (
        lambda: controller.release(query(), sums),
        controller.finish,
        lambda: controller.fingerprint_key,
    ):
        with pytest.raises(LedgerError, match="ended"):
            act()
    assert sums.opened == 0
    assert ledger.account("a").spent == controller.total


def test_a_fit_that_ended_is_replayed_from_its_journal(ledger):
    journal = ListJournal()
    controller = bound(ledger, journal=journal)
    answers = [controller.release(query(f"q {i}"), raw(i, i, i)).value for i in range(2)]
    controller.finish()
    history = ledger.history("a")
    ledger.key_path(controller.fit_id).write_bytes(bytes(32))  # killed before it was unlinked
    again = reserve(ledger, resume=controller.fit_id, journal=journal)
    assert again.ended
    for i in range(2):
        released = again.replayed(query(f"q {i}"), Sensitivity(1, 1))
        assert np.array_equal(released.value, answers[i])
    sums = watched()
    with pytest.raises(ResumeError, match="does not repeat itself at release 2"):
        again.release(query("q 2"), sums)
    for act in (lambda: again.bind(77), lambda: again.fingerprint_key):
        with pytest.raises(LedgerError, match="ended"):
            act()
    assert sums.opened == 0
    again.finish()
    assert not ledger.key_path(controller.fit_id).exists()
    assert ledger.history("a") == history
    assert again.receipts == controller.receipts
    true = journal.kept.pop()
    for forged in (
        [],
        [true, true],
        [replace(true, value=true.value + 1)],
        [replace(true, receipt=replace(true.receipt, price=1))],
    ):
        with pytest.raises(ResumeError, match="not here whole"):
            reserve(ledger, resume=controller.fit_id, journal=ListJournal([*journal.kept, *forged]))
    with pytest.raises(ResumeError, match="not here whole"):
        reserve(ledger, resume=controller.fit_id)
    with pytest.raises(ResumeError, match=r"settings:\n  plan: recorded"):
        reserve(ledger, resume=controller.fit_id, journal=journal, plan_digest=b"other")


def test_a_settled_fit_is_not_replayed(ledger):
    controller = bound(ledger)
    ledger.settle(controller.fit_id)
    with pytest.raises(ResumeError, match="SETTLED"):
        reserve(ledger, resume=controller.fit_id)


@pytest.mark.parametrize("durable", [True, False])
def test_a_controller_works_in_its_own_process_only(ledger, monkeypatch, durable):
    controller = bound(ledger) if durable else reserve()
    sums = watched()
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a fork
    for act in (lambda: controller.release(query(), sums), controller.finish):
        with pytest.raises(LedgerError, match="process that reserved it"):
            act()
    assert sums.opened == 0


def test_effects_come_in_order(ledger, monkeypatch):
    """OPENED is durable before noise is drawn, the journal before the answer is returned."""
    journal = ListJournal()
    controller = bound(ledger, journal=journal)
    seen = []

    def spy(self, *args):
        seen.append([e.kind for e in ledger.history("a")][-1])
        seen.append(len(journal.kept))
        return answer(self, *args)

    answer = DiscreteGaussian.answer
    monkeypatch.setattr(DiscreteGaussian, "answer", spy)
    released = controller.release(query(), raw())
    assert seen == ["OPENED", 0]
    assert journal.kept[0].receipt == released.receipt
    assert np.array_equal(journal.kept[0].value, released.value)


def broken_fit(ledger):
    """Return the journal of a fit that answered two queries and, in the third, crashed between OPENED and journal."""
    journal = ListJournal()
    controller = bound(ledger, journal=journal)
    for i in range(2):
        controller.release(query(f"q {i}"), raw(i, i, i))
    journal.broken = True
    with pytest.raises(OSError, match="disk full"):
        controller.release(query("q 2"), raw(2, 2, 2))
    journal.broken = False
    return controller, journal


def test_resume_goes_on_with_the_same_noise_and_no_charge(ledger, url):
    old, journal = broken_fit(ledger)
    answers = list(journal.kept)
    other = Ledger(url)
    controller = reserve(other, resume=old.fit_id, journal=journal, public_seed=99)
    assert controller.public_seed == 5
    assert controller.fingerprint_key == old.fingerprint_key
    for i in range(2):
        asked = query(f"q {i}")
        released = controller.replayed(asked, Sensitivity(1, 1))
        assert released.receipt == answers[i].receipt
        assert np.array_equal(released.value, answers[i].value)
    assert controller.replayed(query("q 2"), Sensitivity(1, 1)) is None
    controller.bind(77)
    released = controller.release(query("q 2"), raw(2, 2, 2))
    assert (released.receipt, released.value.tolist()) == (
        journal.lost[0].receipt,
        journal.lost[0].value.tolist(),
    )
    controller.release(query("q 3"), raw())
    controller.finish()
    assert [e.kind for e in ledger.history("a")] == [
        "OPEN", "RESERVED", "BOUND", "OPENED", "OPENED", "OPENED", "LEASED", "OPENED", "RELEASED"
    ]  # fmt: skip
    assert ledger.account("a").spent == controller.total
    assert len(controller.receipts) == 4
    ledger.verify()


def test_resume_without_a_journal_draws_the_same_answers(ledger):
    old, journal = broken_fit(ledger)
    controller = reserve(ledger, resume=old.fit_id)
    controller.bind(77)
    for i in range(2):
        released = controller.release(query(f"q {i}"), raw(i, i, i))
        assert np.array_equal(released.value, journal.kept[i].value)


@pytest.mark.parametrize("durable", [False, True])
def test_a_round_that_failed_is_not_answered_for_other_sums(ledger, durable):
    """Its first answer may be with someone: a second one, of other noise, would not be paid for."""
    journal = ListJournal(broken=True)
    controller = reserve(ledger if durable else None, journal=journal)
    controller.bind(1)
    with pytest.raises(OSError, match="disk full"):
        controller.release(query(), raw())
    with pytest.raises(ResumeError, match="does not follow the newest one"):
        controller.release(query(), raw(10, 20, 31))
    assert len(journal.lost) == 1
    if durable:
        with pytest.raises(OSError, match="disk full"):
            controller.release(query(), raw())
        first, again = journal.lost
        np.testing.assert_array_equal(again.value, first.value)


def test_release_of_a_journalled_answer_opens_nothing(ledger):
    old, journal = broken_fit(ledger)
    controller = reserve(ledger, resume=old.fit_id, journal=journal)
    sums = watched(5, 5, 5)
    controller.release(query("q 0"), sums)
    assert sums.opened == 0


def test_resume_takes_the_lease(ledger):
    old, journal = broken_fit(ledger)
    reserve(ledger, resume=old.fit_id, journal=journal)
    with pytest.raises(LedgerError, match="resumed by another process"):
        old.finish()
    journal.kept.append(journal.lost[0])
    old._count(journal.lost[0].receipt, query("q 2"), old._spending.after(query("q 2")))
    with pytest.raises(LedgerError, match="resumed by another process"):
        old.release(query("q 3"), raw())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"plan_digest": b"other"}, r"settings:\n  plan: recorded"),
        ({"budget": Budget(epsilon=1.5, delta=1e-6)}, r"settings:\n  epsilon: recorded"),
        ({"budget": Budget(epsilon=1.0, delta=1e-7)}, r"settings:\n  delta: recorded"),
        ({"account": "b"}, r"settings:\n  account: recorded"),
        ({"account": None}, r"settings:\n  account: recorded"),
        ({"noise": FixedNoise(private=True)}, "own key"),
        ({"resume": "nobody"}, "'nobody' is not in the ledger"),
        ({"ledger": None, "account": None}, "needs the ledger"),
    ],
)
def test_resume_refuses_another_fit(ledger, changes, named):
    old, journal = broken_fit(ledger)
    before = ledger.history("a")
    with pytest.raises(ResumeError, match=named):
        reserve(**({"ledger": ledger, "resume": old.fit_id, "journal": journal} | changes))
    assert ledger.history("a") == before  # the lease was not taken either


def test_resume_names_the_settings_that_differ(ledger):
    facts = {"recipe": "auto", "loss": "Log()", "weights": "1"}
    old = bound(ledger, facts=facts)
    with pytest.raises(ResumeError) as info:
        reserve(ledger, resume=old.fit_id, facts=facts | {"loss": "Squared()"}, plan_digest=b"o")
    lines = str(info.value).splitlines()
    assert lines[0].endswith("other settings:")
    assert lines[1:-1] == ["  loss: recorded Log(), asked Squared()"]
    assert "dpgb-dask ledger settle" in lines[-1]
    long = {"loss": f"Log({'1, ' * 60}2)"}
    with pytest.raises(ResumeError, match=r"\n  loss: recorded Log\(\), asked Log\(1.{50,60}…\n"):
        reserve(ledger, resume=old.fit_id, facts=facts | long)
    with pytest.raises(ResumeError, match=r"settings:\n  weights: recorded 1, asked \(none\)\n"):
        reserve(ledger, resume=old.fit_id, facts={"recipe": "auto", "loss": "Log()"})
    with pytest.raises(ResumeError, match=r"\n  and 92 more\n"):
        reserve(ledger, resume=old.fit_id, facts=facts | {str(i): "x" for i in range(100)})
    assert reserve(ledger, resume=old.fit_id, facts=facts).total == old.total


def test_resume_refuses_another_version(ledger, monkeypatch):
    old, _ = broken_fit(ledger)
    monkeypatch.setattr("dpgb_dask.controller.release.SAMPLER_VERSION", 1)
    with pytest.raises(ResumeError, match=r"settings:\n  version: recorded"):
        reserve(ledger, resume=old.fit_id)


def test_resume_refuses_other_data_queries_and_sums(ledger):
    old, journal = broken_fit(ledger)
    controller = reserve(ledger, resume=old.fit_id, journal=journal)
    with pytest.raises(ResumeError, match="other data"):
        controller.bind(78)
    controller.bind(77)
    with pytest.raises(ResumeError, match="does not repeat itself at release 0"):
        controller.replayed(query("q 1"), Sensitivity(1, 1))
    with pytest.raises(ResumeError, match="does not repeat itself at release 0"):
        controller.replayed(query("q 0"), Sensitivity(2, 2))
    for i in range(2):
        controller.replayed(query(f"q {i}"), Sensitivity(1, 1))
    with pytest.raises(ResumeError, match="does not repeat itself at release 2"):
        controller.release(query("q 2"), raw(2, 2, 3))
    with pytest.raises(ResumeError, match="does not repeat itself at release 2"):
        controller.release(query("other"), raw(2, 2, 2))
    assert controller.spent == 2 * query().price


def test_resume_refuses_a_foreign_journal_or_key(ledger):
    old, journal = broken_fit(ledger)
    stranger = ListJournal()
    other = bound(ledger, journal=stranger)
    other.release(query(), raw())
    with pytest.raises(ResumeError, match="does not know"):
        reserve(ledger, resume=old.fit_id, journal=stranger)
    ledger.key_path(old.fit_id).write_bytes(ledger.key_path(other.fit_id).read_bytes())
    with pytest.raises(ResumeError, match="committed"):
        reserve(ledger, resume=old.fit_id, journal=journal)
    for length in (0, 20, 33):
        ledger.key_path(old.fit_id).write_bytes(bytes(length))
        with pytest.raises(ResumeError, match="committed"):
            reserve(ledger, resume=old.fit_id, journal=journal)
    ledger.key_path(old.fit_id).unlink()
    with pytest.raises(ResumeError, match="cannot be read"):
        reserve(ledger, resume=old.fit_id, journal=journal)


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("forge", ["value", "order", "price", "seal"])
def test_resume_refuses_an_answer_that_was_not_given(ledger, forge, position):
    """The last answer decides the next query just as the first one does."""
    old, journal = broken_fit(ledger)
    true = journal.kept[position]
    journal.kept[position] = {
        "value": replace(true, value=true.value + 1),
        "order": replace(true, value=true.value[::-1]),
        "price": replace(true, receipt=replace(true.receipt, price=1)),
        "seal": replace(true, seal=journal.kept[1 - position].seal),
    }[forge]
    with pytest.raises(ResumeError, match="an answer is not the one that was released"):
        reserve(ledger, resume=old.fit_id, journal=journal)
    journal.kept[position] = true
    reserve(ledger, resume=old.fit_id, journal=journal)


@pytest.mark.parametrize("noise", [FixedNoise(), FixedNoise(private=True), SecretNoise()])
def test_a_ledger_takes_no_noise_source(ledger, noise):
    """Whatever a source says of itself, its author may know its keys."""
    assert reserve(noise=noise).private == (type(noise) is SecretNoise)
    for resume in (None, reserve(ledger).fit_id):
        spent = ledger.account("a").spent
        with pytest.raises(LedgerError, match="Leave noise=None"):
            reserve(ledger, noise=noise, resume=resume)
        assert ledger.account("a").spent == spent
        assert len(list(ledger.directory.glob("*.key"))) == bool(spent)


def test_test_noise_repeats_the_whole_fit():
    def fit(seed, plan=b"plan"):
        controller = reserve(noise=FixedNoise(seed), plan_digest=plan)
        return controller.fit_id, controller.release(query(), raw()).value.tolist()

    assert fit(0) == fit(0)
    assert fit(0)[0].startswith("seeded-")
    assert len({fit(0)[0], fit(1)[0], fit(0, b"other")[0]}) == 3


def test_secret_noise_never_repeats():
    first, second = (reserve().release(query(), raw()).value.tolist() for _ in range(2))
    assert first != second


def test_reserve_needs_ledger_and_account_together(ledger):
    for changes in ({"account": None}, {"ledger": None, "account": "a"}):
        with pytest.raises(LedgerError, match="belong together"):
            reserve(**({"ledger": ledger} | changes))


def test_reserve_refuses_a_budget_without_meaning(ledger):
    with pytest.raises(PlanError, match="too large"):
        reserve(ledger, budget=Budget(epsilon=500.0, delta=1e-6))
    assert ledger.account("a").spent == 0


def test_nothing_that_is_kept_holds_a_sum_or_a_key(ledger, url):
    controller = bound(ledger)
    key = ledger.key_path(controller.fit_id).read_bytes()
    controller.release(query(), raw(918273645, 192837465, 564738291))
    path = Path(url.removeprefix("sqlite:///"))
    kept = b"".join(file.read_bytes() for file in path.parent.glob("budget.db*") if file.is_file())
    shown = repr(controller) + repr(controller.receipts) + repr(ledger) + repr(ledger.history("a"))
    for secret in (
        b"918273645",
        b"192837465",
        (918273645).to_bytes(8, "little"),
        key,
        key.hex().encode(),
    ):
        assert secret not in kept
        assert secret not in shown.encode()


def test_receipt_names_the_release():
    controller = reserve()
    receipt = controller.release(query("main 3/20"), raw()).receipt
    assert isinstance(receipt, Receipt)
    assert (receipt.fit_id, receipt.position, receipt.label) == (controller.fit_id, 0, "main 3/20")
    assert len(receipt.query_id) == 64


def test_a_pure_fit_adds_the_laplace_noise_that_was_paid_for():
    controller = reserve(noise=FixedNoise(), pure=True)
    assert controller.pure
    assert controller.total == PRICE_ONE
    assert controller.slack == 0
    assert controller.mu == pytest.approx(1.23204, abs=1e-5)  # 2Φ⁻¹(e/(1+e))
    asked = query(n_values=50_000, price=PRICE_ONE // 10)
    released = controller.release(asked, Raw(np.arange(50_000), Sensitivity(9, 5)))
    receipt = released.receipt
    assert receipt.mechanism == "laplace"
    natural = released.value / 2**receipt.scale_bits - np.arange(50_000)
    assert np.abs(natural).mean() == pytest.approx(50, rel=0.02)  # Δ₁/ε: l1, not l2
    assert receipt.sigma_steps / 2**receipt.scale_bits == pytest.approx(50 * np.sqrt(2), rel=1e-5)
    with pytest.raises(BudgetExceededError, match="of ε"):
        controller.release(query(price=PRICE_ONE), raw())


@pytest.mark.parametrize("l1", [1, 3, 1 << 15, 14 * (3 << 16)])
@pytest.mark.parametrize("price", [PRICE_ONE // 10**6, PRICE_ONE // 7, PRICE_ONE, 50 * PRICE_ONE])
def test_laplace_scale_is_the_least_that_is_paid_for(l1, price):
    scale, t = accounting.laplace_scale_for(l1, price)
    assert t >= 1 << 20
    assert (l1 << scale) * PRICE_ONE <= price * t  # ε = Δ₁ 2ᵏ / t
    assert (l1 << scale) * PRICE_ONE > price * (t - 1)
    assert scale == 0 or accounting.laplace_scale_for(l1 << (scale - 1), price)[1] >= 1 << 20
    assert scale == 0 or -((-l1 << (scale - 1)) * PRICE_ONE // price) < 1 << 20


def test_pure_and_gaussian_fits_do_not_resume_each_other(ledger):
    old = bound(ledger)
    with pytest.raises(ResumeError, match=r"settings:\n  currency: recorded"):
        reserve(ledger, resume=old.fit_id, pure=True)
    pure = bound(ledger, pure=True, account="pure")
    resumed = reserve(ledger, resume=pure.fit_id, pure=True, account="pure")
    assert resumed.pure
    assert resumed.total == PRICE_ONE


@pytest.mark.parametrize("pure", [True, False])
def test_a_choice_is_released_and_replayed(ledger, pure):
    journal = ListJournal()
    options = {"pure": True, "account": "pure"} if pure else {}
    controller = bound(ledger, journal=journal, **options)
    asked = choice_query(depth=1, sizes=(5, 4))
    sums = np.random.default_rng(0).integers(0, 1 << 20, asked.n_sums)
    sensitivity = Sensitivity(2 << 30, 2 << 15, 4 << 30)
    released = controller.release(asked, Raw(sums, sensitivity))
    assert released.value.shape == (2,)
    assert ((released.value >= 0) & (released.value < 7)).all()
    receipt = released.receipt
    assert (receipt.mechanism, receipt.sigma_steps, receipt.scale_bits) == ("choice", 0, 0)
    assert controller.spent == asked.price
    again = reserve(ledger, resume=controller.fit_id, journal=journal, **options)
    replayed = again.replayed(asked, sensitivity)
    assert np.array_equal(replayed.value, released.value)
    drawn = reserve(ledger, resume=controller.fit_id, **options)  # without the journal
    drawn.bind(77)
    assert np.array_equal(drawn.release(asked, Raw(sums, sensitivity)).value, released.value)


def test_a_choice_needs_a_bounded_range_and_all_sums():
    controller = reserve()
    sums = Watched(np.zeros(10, np.int64), Sensitivity(1, 1))
    with pytest.raises(PlanError, match="bounded range"):
        controller.release(choice_query(), sums)
    assert sums.opened == 0
    with pytest.raises(StructureError):  # one value per node: the answer's length, not the sums'
        controller.release(choice_query(), Raw(np.zeros(1, np.int64), Sensitivity(1, 1, 4 << 30)))


def test_the_mechanism_is_part_of_the_query_id():
    ids = {
        reserve(noise=FixedNoise(), pure=pure).release(query(), raw()).receipt.query_id
        for pure in (True, False)
    }
    assert len(ids) == 2
    sensitivities = (
        Sensitivity(1, 1, 4 << 30),
        Sensitivity(1, 1, 5 << 30),
        Sensitivity(1, 2, 4 << 30),
    )
    receipts = [
        reserve(noise=FixedNoise()).release(choice_query(), Raw(np.zeros(10, np.int64), s)).receipt
        for s in sensitivities
    ]
    assert len({r.query_id for r in receipts}) == 3


def test_parts_cost_the_dearest_here_and_in_the_ledger(ledger):
    controller = bound(ledger)
    third = controller.total // 3
    for i in range(6):
        rows = RowDraw("part", 0, i << 20, (i + 1) << 20)
        controller.release(tree_query(2 * third, rows), raw(1, 2))
    assert controller.spent == 2 * third
    with pytest.raises(BudgetExceededError):
        controller.release(tree_query(2 * third, RowDraw("part", 1, 0, 1)), raw(1, 2))
    with pytest.raises(PlanError, match="disjoint"):
        controller.release(tree_query(1, RowDraw("part", 0, 0, 1 << 21)), raw(1, 2))
    controller.release(tree_query(third, RowDraw("part", 1, 0, 1)), raw(1, 2))
    ledger.verify()
    assert [e.body.get("rows") for e in ledger.history("a")][3] == ["part", 0, 0, 1 << 20]
    assert ledger.settle(controller.fit_id) == 3 * third
    ledger.verify()


def test_samples_are_amplified_in_a_pure_fit_only():
    rows = RowDraw("sample", 0, 0, (1 << 32) // 10)
    for pure in (True, False):
        controller = reserve(pure=pure)
        price = PRICE_ONE // 100 if not pure else 2 * PRICE_ONE
        controller.release(tree_query(price, rows), raw(1, 2))
        cost = amplified(price, ((1 << 32) // 10) / 2**32) if pure else price
        assert controller.spent == cost


def test_the_rows_key_is_its_own(ledger):
    controller = bound(ledger)
    assert len(controller.rows_key) == 16
    assert controller.rows_key != controller.fingerprint_key[:16]
    resumed = reserve(ledger, resume=controller.fit_id)
    assert resumed.rows_key == controller.rows_key != bound(ledger).rows_key
    resumed.finish()
    with pytest.raises(LedgerError, match="ended"):
        _ = resumed.rows_key


def test_a_pure_fit_of_many_values_has_no_slack_to_exceed(monkeypatch):
    monkeypatch.setattr(accounting, "MAX_VALUES", 5)
    controller = reserve(pure=True)
    for _ in range(3):
        controller.release(query(), raw())
    assert reserve(pure=True, budget=Budget(epsilon=500.0, delta=1e-6)).total == 500 * PRICE_ONE


@pytest.mark.parametrize("label", ["main 3/20", 'ä "quoted" \\ \n 100 %s', ""])
def test_an_answer_is_sealed_with_its_receipt_as_json(label):
    receipt = Receipt("seeded-0", "ab", 3, label, PRICE_ONE, 1 << 40, 8)
    value = np.array([1, -2])
    told = json.dumps(asdict(receipt), sort_keys=True).encode()
    assert releases._content(receipt, value) == told + canonical(value)


def test_noise_is_as_fine_as_the_account_needs(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/fine.db")
    ledger.open_account("a", epsilon=25.0, delta=1e-6)
    least = accounting.min_sigma_bits_for(25.0, 1e-6)
    assert least > accounting.min_sigma_bits_for(BUDGET.epsilon, BUDGET.delta)
    assert ledger.record(reserve(ledger).fit_id).terms.min_sigma_bits == least
