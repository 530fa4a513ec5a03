"""Neighbouring data sets: few rows for every kind of target, rows to add to them, and a fit that asks both sets."""

import datetime
from fractions import Fraction

import numpy as np
import pandas as pd

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.features import Datetime
from dpgb_dask.contracts.plan import Budget, Execution, State
from dpgb_dask.contracts.queries import ChoiceQuery, SharedChoiceQuery
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.controller.choices import Choice, SharedChoice
from dpgb_dask.controller.release import Controller
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.rounds import open_rounds
from dpgb_dask.private.sensitivity import sensitivity
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training.loop import run

FEATURES = {"a": (0.0, 1.0), "b": (-4.0, 4.0), "c": ["x", "y", "z"]}
SCHEMAS = {
    "binary": Schema(FEATURES, classes=["no", "yes"]),
    "multiclass": Schema(FEATURES, classes=["p", "q", "r"]),
    "numeric": Schema(FEATURES, target_bounds=(-2.0, 2.0)),
}
# every kind of feature; the dates are three columns
KINDS = FEATURES | {
    "when": Datetime("2020-01-01", "2020-12-31", parts=("days", "month", "hour")),
    "zip": {"from": {"10115": "east", "20095": "north", "80331": "south"}},
    "hash": {"buckets": 4},
    "flag": bool,
}
TICKET = Receipt("test", "test", 0, "test", 1, 1, 0)


def some_rows(kind, n=600):
    rng = np.random.default_rng(11)
    x = np.empty((n, 3), dtype=object)
    x[:, 0], x[:, 1] = rng.random(n), rng.normal(0, 2, n)
    x[:, 2] = rng.choice(["x", "y", "z"], n)
    effect = 2 * x[:, 0].astype(float) + x[:, 1].astype(float) * (x[:, 2] == "x")
    if kind == "numeric":
        return x, np.clip(effect + rng.normal(0, 0.3, n), -2, 2)
    classes = np.array(SCHEMAS[kind].target.classes, dtype=object)
    level = effect + rng.normal(0, 0.5, n) > 1
    return x, classes[level + (rng.random(n) < 0.2) * (len(classes) - 2)]


def with_every_kind(x):
    """The rows of `some_rows` with values for the other features of `KINDS`."""
    rng = np.random.default_rng(12)
    more = np.empty((len(x), len(KINDS) - 3), dtype=object)
    days = np.datetime64("2020-01-01T00", "h") + rng.integers(0, 366 * 24, len(x))
    more[:, 0] = days.astype(str) if len(x) % 2 else days.astype("datetime64[s]").tolist()
    more[:, 1] = rng.choice(["10115", "20095", "80331", "99999"], len(x))
    more[:, 2] = rng.integers(0, 40, len(x))
    more[:, 3] = rng.choice([True, False], len(x))
    return np.hstack([x, more])


# what a row may hold in them: extreme, and broken
VALUES_OF_EVERY_KIND = [
    ("2020-06-15 12:00", "80331", "a", True),
    (pd.NaT, None, np.nan, None),
    (np.datetime64(1 << 40, "Y"), [1], {}, "maybe"),
    (pd.Timestamp("2020-12-31 23:30", tz="America/New_York"), 1e300, 1 << 70, 2),
    ("no date", "\ud800", "\ud800", pd.NA),
    (datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=14))), 10115.0, b"", "FALSE"),
    (datetime.date(9999, 12, 31), True, -0.0, b"1"),
]  # fmt: skip


def rows_to_add(kind):
    """Extreme and broken rows; the last of each kind counts for nothing."""
    labels = {
        "binary": ["no", "yes", "unknown"],
        "multiclass": ["p", "q", "r", None],
        "numeric": [-2.0, 2.0, np.inf, np.nan],
    }[kind]
    values = [(0.0, 4.0, "x"), (1.0, np.nan, None), (np.inf, -np.inf, "new"), ("text", 1e300, 3.5)]
    return [(row, label) for row in values for label in labels]


def source(x, y, kind, weight=None):
    return read_source(x, y, weight, SCHEMAS[kind])


def open_local(x, y, shape, weight=None):
    """All rows in this process, with a known key for their draws."""
    rows = read_source(x, y, weight, shape.schema)
    return open_rounds(rows, shape, Execution(n_threads=1), bytes(32), bytes(16))


def drive(plan, shape, rounds, others, check, seed=0):
    """Run a plan on ``rounds``; ask ``others`` every query too, at the same released answers, and call ``check`` with
    the query, its sensitivity, the sums and theirs.
    """
    budget = Budget(epsilon=8.0, delta=1e-5)
    controller = Controller.reserve(
        budget=budget,
        plan_digest=plan.digest(),
        public_seed=seed,
        noise=SeededNoise(seed),
        pure=plan.pure,
    )
    controller.bind(rounds.fingerprint())

    def ask(_stage, state, query):
        raw = rounds.ask(state.model, query)
        sums = raw._open(TICKET).astype(object)
        theirs = [other.ask(state.model, query)._open(TICKET).astype(object) for other in others]
        check(query, raw.sensitivity, sums, theirs)
        return controller.release(query, raw)

    ran = run(plan, State.first(shape, seed, budget, controller.total), ask)
    assert not ran.stopped
    assert 0 <= controller.spent <= controller.total


def check_choice(query, bound, sums, changed):
    """Compare the intervals within which a row moves the scores, over all nodes or groups, with what is charged."""
    kind = Choice if isinstance(query, ChoiceQuery) else SharedChoice
    choice = kind.at(
        query, bound, Fraction(1)
    )  # so its divisor is the charged range, in units of its scores
    before, *after = (
        choice.scores(part.astype(np.int64)).astype(object) for part in (sums, *changed)
    )
    for theirs in after:
        moves = theirs - before
        moved = np.maximum(moves.max(1), 0) - np.minimum(moves.min(1), 0)
        assert moved.sum() <= choice.d, query.label


def check_neighbours(plan, kind, shape, weight=None, added_weights=(1.0,), rows=None, added=None):
    """Ask both data sets every query of a run; return how many queries there were."""
    x, y = rows or some_rows(kind, 300)
    w = None if weight is None else weight(len(y))
    alone = open_local(x, y, shape, w)
    others = []
    for k, (row, label) in enumerate(added or rows_to_add(kind)):
        x2 = np.vstack([x, np.array(row, dtype=object)])
        y2 = np.append(np.asarray(y, dtype=object), label)
        y2 = y2.astype(float) if kind == "numeric" else y2
        w2 = None if w is None else np.append(w, added_weights[k % len(added_weights)])
        others.append(open_local(x2, y2, shape, w2))
    n_queries, moved_at_all = 0, 0

    def check(query, bound, sums, changed):
        nonlocal n_queries, moved_at_all
        assert bound == sensitivity(query, shape)
        n_queries += 1
        for theirs in changed:
            change = theirs - sums
            assert sum(int(d) ** 2 for d in change) <= bound.l2_squared, query.label
            assert sum(abs(int(d)) for d in change) <= bound.l1, query.label
            moved_at_all += any(change)
        if isinstance(query, ChoiceQuery | SharedChoiceQuery):
            check_choice(query, bound, sums, changed)

    drive(plan, shape, alone, others, check)
    for rounds in (alone, *others):
        rounds.close()
    assert moved_at_all  # the test sees the rows it adds
    return n_queries
