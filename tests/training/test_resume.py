"""A fit that broke off goes on with the same noise and without a new charge; a chunk that fails is named."""

import json

import dask
import dask.array as da
import numpy as np
import pytest

from dpgb_dask import DPGBClassifier, Ledger, Schema
from dpgb_dask.errors import ChunkError, ResumeError

SCHEMA = Schema({"a": (0.0, 1.0), "b": (-4.0, 4.0)}, classes=[0, 1])


class BreakError(Exception):
    pass


@pytest.fixture
def rows():
    rng = np.random.default_rng(3)
    x = np.column_stack([rng.random(800), rng.normal(0, 1, 800)])
    return x, (x[:, 0] + x[:, 1] > 0.5).astype(int)


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=3.0, delta=1e-5)
    return ledger


def classifier(ledger, **changes):
    settings = {"epsilon": 2.0, "delta": 1e-6, "schema": SCHEMA, "n_estimators": 4} | changes
    return DPGBClassifier(ledger=ledger, account="people", random_state=0, **settings)


def break_off(ledger, rows, after):
    """Fit until ``after`` answers were released; return the fit id and the labels of those answers."""
    labels = []

    def stop(label, done, _total):
        labels.append(label)
        if done == after:
            raise BreakError

    with pytest.raises(BreakError):
        classifier(ledger, callbacks=[stop]).fit(*rows)
    fit_ids = {e.fit_id for e in ledger.history("people") if e.fit_id}
    assert len(fit_ids) == 1
    return fit_ids.pop(), labels


@pytest.mark.parametrize("after", [1, 2, 5, 8])
def test_resume_replays_and_charges_nothing(after, ledger, rows):
    fit_id, labels = break_off(ledger, rows, after)
    left = ledger.account("people").left
    journal = next(ledger.directory.rglob(f"{fit_id}.jsonl"))
    kept = journal.read_text()
    assert kept.count("\n") == after
    with journal.open("a") as file:  # a crash in the middle of a line
        file.write('{"receipt": {"fit')
    seen = []
    clf = classifier(ledger, callbacks=[lambda label, *_: seen.append(label)])
    clf.fit(*rows, resume=fit_id)
    assert ledger.account("people").left == left
    assert clf.fit_id_ == fit_id
    assert seen[:after] == labels
    assert journal.read_text().startswith(kept)  # what was released stands
    assert len(clf.privacy_report_.receipts) == len(seen) == journal.read_text().count("\n")
    assert not list(ledger.directory.rglob("*.key"))  # erased with the fit's end
    ledger.verify()


def test_resume_refuses_other_data_or_settings(ledger, rows):
    fit_id, _ = break_off(ledger, rows, 4)
    x, y = rows
    other = x.copy()
    other[17, 0] = 1 - other[17, 0]
    with pytest.raises(ResumeError, match="other data"):
        classifier(ledger).fit(other, y, resume=fit_id)
    with pytest.raises(ResumeError, match=r"settings: rounds of stage 3 \(MainEffects\)"):
        classifier(ledger, n_estimators=5).fit(x, y, resume=fit_id)
    with pytest.raises(ResumeError, match="epsilon"):
        classifier(ledger, epsilon=1.5).fit(x, y, resume=fit_id)
    classifier(ledger).fit(x, y, resume=fit_id)


@pytest.mark.parametrize(
    "line",
    ["garbage", "[]", '{"receipt": {}, "value": [1], "seal": ""}', '{"value": []}', "\udcff"],
)
def test_a_damaged_journal_says_the_way_out(ledger, rows, line):
    fit_id, _ = break_off(ledger, rows, 4)
    journal = next(ledger.directory.rglob(f"{fit_id}.jsonl"))
    assert journal.stat().st_mode & 0o777 == 0o600
    assert journal.parent.stat().st_mode & 0o777 == 0o700
    kept = journal.read_bytes()
    journal.write_bytes(kept + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(ResumeError, match=r"damaged.*move it away"):
        classifier(ledger).fit(*rows, resume=fit_id)
    for value in ("[" + "1," * 5000 + "1]", "1", "[[1]]", f"[{2**70}]"):  # of the last answer
        lines = kept.decode().splitlines()
        last = json.loads(lines[-1]) | {"value": json.loads(value)}
        journal.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
        with pytest.raises(ResumeError, match="move it away"):
            classifier(ledger).fit(*rows, resume=fit_id)
    journal.unlink()
    classifier(ledger).fit(*rows, resume=fit_id)  # the way out: the same answers, drawn again
    again = [json.loads(entry) for entry in journal.read_bytes().splitlines()]
    assert again[:4] == [json.loads(entry) for entry in kept.splitlines()]


def test_settle_charges_what_was_opened_and_ends_the_fit(ledger, rows):
    fit_id, _ = break_off(ledger, rows, 4)
    held = ledger.account("people").left
    ledger.settle(fit_id)
    assert ledger.account("people").left > held
    assert not list(ledger.directory.rglob("*.key"))
    with pytest.raises(ResumeError):
        classifier(ledger).fit(*rows, resume=fit_id)


def test_a_chunk_that_fails_is_named_and_the_charge_stands(ledger, rows):
    x, y = rows

    def load(block, block_info=None):
        if block_info and block_info[0]["chunk-location"][0] == 2:
            raise OSError("row 17: income 12345")  # a reader's message may hold a value
        return block

    lazy = da.from_array(x, chunks=(200, 2)).map_blocks(load, dtype=x.dtype, meta=x[:0])
    before = ledger.account("people").left
    with (
        dask.config.set({"dpgb-dask.backend": "local"}),
        pytest.raises(ChunkError, match="2") as caught,
    ):
        classifier(ledger).fit(lazy, da.from_array(y, chunks=200))
    assert "12345" not in str(caught.value)
    assert ledger.account("people").left < before
    fit_id = {e.fit_id for e in ledger.history("people") if e.fit_id}.pop()
    classifier(ledger).fit(x, y, resume=fit_id)  # the same rows, from a place that works
