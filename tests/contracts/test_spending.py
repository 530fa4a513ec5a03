"""`Spending` bounds the exact privacy loss of adaptive toy protocols, and needs each of its rules to do so."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from dpgb_dask.contracts.model import Splits
from dpgb_dask.contracts.queries import PRICE_ONE, CountQuery, RowDraw, TreeSumsQuery
from dpgb_dask.contracts.spending import Item, Spending, amplified, price_on_sample
from dpgb_dask.controller import account_units
from dpgb_dask.controller.account_units import RoundCosts
from dpgb_dask.controller.accounting import delta_of
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import logistic_gradient

ALL = 1 << 32


def part(group, low, high):
    return RowDraw("part", group, int(low * ALL), int(high * ALL))


def sample(group, rate):
    return RowDraw("sample", group, 0, int(rate * ALL))


def units(amount):
    return round(amount * PRICE_ONE)


@dataclass(frozen=True)
class Asked:
    """Randomised response to "does the row serve this query", ε-DP on the rows that serve it."""

    epsilon: float
    draw: RowDraw | None = None


def transcripts(protocol, history=()):
    """Yield all (asked, answer) sequences of an adaptive protocol: answers so far -> Asked or None."""
    asked = protocol(tuple(answer for _, answer in history))
    if asked is None:
        yield history
        return
    for answer in (0, 1):
        yield from transcripts(protocol, (*history, (asked, answer)))


def served(history):
    """Yield every outcome of the row's draws that matters: the chance, and whether it serves each query."""
    outcomes = [(1.0, {})]
    for group in {asked.draw.group for asked, _ in history if asked.draw is not None}:
        cuts = {0, ALL}
        for asked, _ in history:
            if asked.draw is not None and asked.draw.group == group:
                cuts |= {asked.draw.low, asked.draw.high}
        cells = sorted(cuts)
        outcomes = [
            (chance * (high - low) / ALL, draws | {group: low})
            for chance, draws in outcomes
            for low, high in itertools.pairwise(cells)
        ]
    for chance, draws in outcomes:
        yield (
            chance,
            [
                asked.draw is None or asked.draw.low <= draws[asked.draw.group] < asked.draw.high
                for asked, _ in history
            ],
        )


def ratio(history):
    """Return ln P(history | with the row) / P(history | without it), exactly."""
    chance_with = sum(
        chance
        * math.prod(
            math.exp(asked.epsilon * (1 if answer else -1)) if serves else 1.0
            for (asked, answer), serves in zip(history, serving, strict=True)
        )
        for chance, serving in served(history)
    )
    return math.log(chance_with)


def loss(history):
    return abs(ratio(history))


def spent(history, spending):
    for asked, _ in history:
        spending = spending.plus(units(asked.epsilon), asked.draw)
    return spending.spent / PRICE_ONE


def fixed(*asked):
    return lambda answers: asked[len(answers)] if len(answers) < len(asked) else None


def adaptive(answers):
    """Groups, prices and draws that depend on the answers."""
    steps = [
        Asked(0.3, part(0, 0, 0.5)),
        Asked(
            0.2 if answers[:1] == (1,) else 0.6, part(0, 0.5, 1) if answers[:1] == (1,) else None
        ),
        Asked(0.4, sample(1, 0.25)),
        Asked(0.5, part(0, 0, 0.5) if sum(answers) % 2 else part(2, 0.1, 0.2)),
        Asked(0.7, sample(1, 0.25)),
        Asked(0.9, sample(3, 0.5)) if sum(answers) > 2 else None,
        Asked(0.2),
    ]
    return steps[len(answers)] if len(answers) < len(steps) else None


PROTOCOLS = {
    "all rows": fixed(Asked(0.5), Asked(0.25)),
    "parts": fixed(Asked(1.0, part(0, 0, 0.5)), Asked(0.5, part(0, 0.5, 1)), Asked(0.2)),
    "one part twice": fixed(Asked(0.5, part(0, 0, 1)), Asked(0.5, part(0, 0, 1))),
    "two groups": fixed(Asked(1.0, part(0, 0, 1)), Asked(0.5, part(1, 0, 1))),
    "sample": fixed(Asked(0.5, sample(0, 0.1)), Asked(0.6, sample(0, 0.1))),
    "two samples": fixed(Asked(2.0, sample(0, 0.1)), Asked(2.0, sample(1, 0.3))),
    "adaptive": adaptive,
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_spending_bounds_the_loss_of_every_transcript(name):
    for history in transcripts(PROTOCOLS[name]):
        assert loss(history) <= spent(history, Spending(pure=True)) + 1e-12


@pytest.mark.parametrize(
    "name", ["all rows", "one part twice", "two groups", "sample", "two samples"]
)
def test_spending_is_tight(name):
    worst = max(transcripts(PROTOCOLS[name]), key=loss)
    assert loss(worst) == pytest.approx(spent(worst, Spending(pure=True)), rel=1e-9)


class CheapestPart(Spending):
    def _cost(self, parts):
        return min(parts.values())


class MeanPart(Spending):
    def _cost(self, parts):
        return sum(p * (d.high - d.low) for d, p in parts.items()) // ALL


class ForgetsAllRows(Spending):
    @property
    def spent(self):
        return super().spent - self.on_all


class DearestGroup(Spending):
    @property
    def spent(self):
        return self.on_all + max(map(self._cost, self.groups.values()), default=0)


class DearestQuery(Spending):
    def plus(self, price, draw, label=""):
        known = self.groups.get(draw.group, {}).get(draw, 0) if draw else 0
        return super().plus(max(price - known, 0), draw, label)


class HalfRate(Spending):
    def _cost(self, parts):
        ((draw, price),) = parts.items()
        return amplified(price, (draw.high - draw.low) / 2 / ALL)


class LinearRate(Spending):
    """q·ε: the amplification of small ε only."""

    def _cost(self, parts):
        ((draw, price),) = parts.items()
        return price * (draw.high - draw.low) // ALL


class SamplesAsParts(Spending):
    """Takes the dearest sample instead of the sum."""

    @property
    def spent(self):
        return self.on_all + max(map(self._cost, self.groups.values()), default=0)


class AmplifiesEachQuery(Spending):
    """Amplifies queries of one sample one by one, as if each drew anew."""

    def plus(self, price, draw, label=""):
        return super().plus(amplified(price, (draw.high - draw.low) / ALL), None, label)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (CheapestPart, "parts"),
        (MeanPart, "parts"),
        (ForgetsAllRows, "all rows"),
        (DearestGroup, "two groups"),
        (DearestQuery, "one part twice"),
        (HalfRate, "sample"),
        (LinearRate, "sample"),
        (SamplesAsParts, "two samples"),
        (AmplifiesEachQuery, "sample"),
    ],
)
def test_every_rule_is_needed(mutant, name):
    assert any(loss(h) > spent(h, mutant(pure=True)) * 1.001 for h in transcripts(PROTOCOLS[name]))


def test_overlapping_parts_would_break_the_rule():
    asked = Asked(1.0, part(0, 0, 0.6)), Asked(1.0, part(0, 0.4, 1))
    worst = max(transcripts(fixed(*asked)), key=loss)
    assert loss(worst) > 1.001  # what the dearest part alone would claim
    with pytest.raises(PlanError, match="disjoint"):
        spent(worst, Spending(pure=True))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (part(0, 0, 0.5), sample(0, 0.1)),
        (part(0, 0, 0.1), sample(0, 0.1)),
        (sample(0, 0.1), sample(0, 0.2)),
        (sample(0, 0.1), part(0, 0.5, 1)),
        (RowDraw("sample", 0, 0, 100), RowDraw("sample", 0, 100, 200)),  # disjoint: not independent
        (part(0, 0, 0.5), part(0, 0.25, 0.5)),
    ],
)
def test_a_group_is_of_one_kind(first, second):
    spending = Spending().plus(1, first)
    with pytest.raises(PlanError, match="does not go with"):
        spending.plus(1, second)
    assert spending.plus(1, RowDraw(second.kind, 1, second.low, second.high)).spent >= 1


def test_gaussian_parts_cost_the_dearest():
    """δ of the mixture over a row's part, in both directions, against the curve of the dearest part's price."""
    chances, mus = (0.5, 0.5), (1.5, 0.1)
    spending = Spending()
    for i, mu in enumerate(mus):
        spending = spending.plus(units(mu * mu), part(0, i / 2, (i + 1) / 2))
    claimed = math.sqrt(spending.spent / PRICE_ONE)
    assert claimed == pytest.approx(1.5)
    x = np.linspace(-9, 11, 401)
    a, b = np.meshgrid(x, x, indexing="ij")
    without = np.exp(-(a * a + b * b) / 2)
    ratio = chances[0] * np.exp(a * mus[0] - mus[0] ** 2 / 2) + chances[1] * np.exp(
        b * mus[1] - mus[1] ** 2 / 2
    )
    without /= without.sum()
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        added = float((without * np.maximum(ratio - math.exp(epsilon), 0)).sum())
        removed = float((without * np.maximum(1 - math.exp(epsilon) * ratio, 0)).sum())
        assert max(added, removed) <= delta_of(claimed, epsilon) * (1 + 1e-3)
    cheapest = CheapestPart(False, 0, spending.groups).spent / PRICE_ONE
    assert added > delta_of(math.sqrt(cheapest), 2.0)


def test_gaussian_samples_are_not_amplified():
    spending = Spending().plus(5, sample(0, 0.01)).plus(6, sample(0, 0.01))
    assert spending.spent == 11


@pytest.mark.parametrize("rate", [1 / ALL, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 1.0, 20.0, 499.0, 501.0])
def test_amplified_is_rounded_up_and_inverted(rate, epsilon):
    price = units(epsilon)
    cost = amplified(price, rate)
    exact = min(epsilon, math.log1p(rate * math.expm1(epsilon))) if epsilon < 500 else epsilon
    assert exact * (1 - 1e-13) <= cost / PRICE_ONE <= exact * (1 + 1e-11) + 2 / PRICE_ONE
    assert cost <= price
    affordable = price_on_sample(cost, rate)
    assert amplified(affordable, rate) <= cost < amplified(affordable + 1, rate)


def test_an_interval_that_holds_no_draw_costs_nothing_less():
    """A price amplified at a rate below 0 would be below 0: a query would give budget back."""
    turned = sample(0, 0.5)
    object.__setattr__(turned, "high", 0)
    object.__setattr__(turned, "low", 1 << 31)
    spending = Spending(pure=True, groups={0: {turned: units(1)}})
    with pytest.raises(PlanError, match="no interval"):
        _ = spending.spent


def test_after_reads_price_and_rows():
    tree = Splits.plain(np.zeros((1, 1), np.uint16), np.zeros((1, 1), np.uint8))
    gradient = logistic_gradient(0.5, 0.5)

    def query(price, rows):
        return TreeSumsQuery(
            label="t", price=price, gradient=gradient, n_scores=1, splits=tree, rows=rows
        )

    spending = Spending().after(CountQuery(label="n", price=3)).after(query(5, None))
    assert spending.on_all == spending.spent == 8
    spending = spending.after(query(4, part(7, 0, 0.5))).after(query(6, part(7, 0.5, 1)))
    spending = spending.after(query(1, part(7, 0, 0.5)))
    assert spending.spent == 14
    with pytest.raises(PlanError, match="'t'"):
        spending.after(query(1, part(7, 0, 1)))


def curve(protocol, e, *, removed):
    """Return the exact δ at e between the transcripts with and without the row."""
    with_row, without = [], []
    for history in transcripts(protocol):
        chance = math.prod(
            1 / (1 + math.exp(asked.epsilon * (1 if answer else -1))) for asked, answer in history
        )
        without.append(chance)
        with_row.append(chance * math.exp(ratio(history)))
    one, other = (with_row, without) if removed else (without, with_row)
    return math.fsum(max(p - math.exp(e) * q, 0.0) for p, q in zip(one, other, strict=True))


def cost_of(history, sample):
    """Return the charge of a transcript in μ² by `RoundCosts`, with the ε of its samples."""
    rounds = RoundCosts("gdp", sample)
    for asked, _ in history:
        cost = rounds.cost(units(asked.epsilon), asked.draw, choice=False)
        rounds = rounds.plus(cost, asked.draw)
    return rounds.spent / PRICE_ONE


def most_on_a_sample(protocol):
    """Return the largest amplified price of a group on a sample."""
    most = 0
    for history in transcripts(protocol):
        spending = Spending(pure=True)
        for asked, _ in history:
            spending = spending.plus(units(asked.epsilon), asked.draw)
        groups = {a.draw.group for a, _ in history if a.draw and a.draw.kind == "sample"}
        most = max([most, *(spending.of_group(group) for group in groups)])
    return most


@pytest.mark.parametrize("name", PROTOCOLS)
def test_releases_by_themselves_bound_the_exact_curve(name):
    """In μ², also with parts and samples that interleave, and prices that depend on answers."""
    protocol = PROTOCOLS[name]
    sample = most_on_a_sample(protocol)
    mu = math.sqrt(max(cost_of(history, sample) for history in transcripts(protocol)))
    for e in np.linspace(0, 2, 9):
        for removed in (False, True):
            assert curve(protocol, e, removed=removed) <= delta_of(mu, e) + 1e-12


@pytest.mark.parametrize(
    "asked", [Asked(0.5), Asked(1.0, part(0, 0, 1)), Asked(2.0, sample(0, 0.95))]
)
def test_a_charge_30_percent_too_low_is_seen(asked):
    protocol = fixed(asked)
    mu = math.sqrt(0.7 * cost_of(((asked, 0),), most_on_a_sample(protocol)))
    assert any(
        curve(protocol, e, removed=removed) > delta_of(mu, e)
        for removed in (False, True)
        for e in (0.0, 0.05, 0.1, 0.2)
    )


@pytest.mark.parametrize(
    ("price", "times", "kind"),
    [
        (0, 1, "sums"), (-5, 1, "sums"), (5, 0, "sums"), (5, -1, "sums"), (5, 1, "x"), (5, 1, None),
        (0.5, 1, "sums"), (math.nan, 1, "sums"), (5, 1e-9, "sums"), (5, math.nan, "sums"), (5, True, "sums"),
        ("5", 1, "sums"),
    ],
)  # fmt: skip
def test_an_item_is_of_whole_numbers(price, times, kind):
    with pytest.raises(PlanError, match="whole numbers above 0"):
        Item(price, times, kind)


def test_an_item_of_numpy_does_not_overflow():
    """Its charge was below 0, which the account was given."""
    item = Item(np.int64(PRICE_ONE // 10), np.int64(1 << 62), "sums")
    assert type(item.price) is type(item.times) is int
    one = account_units.cost(PRICE_ONE // 10, "zcdp")
    assert account_units.charge(PRICE_ONE, pure=True, analysis="zcdp", bill=[item]) == one << 62
