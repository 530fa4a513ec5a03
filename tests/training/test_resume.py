"""An interrupted fit goes on with the same noise and without a new charge; a chunk that fails is named."""

import json
import re
import struct
from dataclasses import fields, replace
from itertools import pairwise
from unittest.mock import Mock

import dask
import dask.array as da
import numpy as np
import pytest
from faults import Steps
from thinned import thinned

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.constraints import Constraints
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.errors import ChunkError, LedgerUnavailableError, ResumeError
from dpgb_dask.losses import Huber
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.recipes import AUTO
from dpgb_dask.training.fit import digest

SCHEMA = Schema({"a": (0.0, 1.0), "b": (-4.0, 4.0)}, classes=[0, 1])


class BreakError(Exception):
    pass


@pytest.fixture
def rows():
    rng = np.random.default_rng(3)
    x = np.column_stack([rng.random(800), rng.normal(0, 1, 800)])
    return x, (x[:, 0] + x[:, 1] > 0.5).astype(int)


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


DIFFERENT = {
    r"\n  epsilon: recorded 2.0, asked 1.5\n": {"epsilon": 1.5},
    r"\n  delta: recorded 1e-06, asked 1e-07\n": {"delta": 1e-7},
    r"\n  recipe: recorded auto, asked dp-ebm\n.*\n  and [0-9]+ more\n": {"recipe": "dp-ebm"},
    r"\n  rounds of stage 4 \(MainEffects\): recorded 4, asked 5\n": {"n_estimators": 5},
    r"\n  feature 'a' of the schema: recorded …[^\n]*1.0[^\n]*, asked …[^\n]*2.0[^\n]*\n": {
        "schema": Schema({"a": (0.0, 2.0), "b": (-4.0, 4.0)}, classes=[0, 1])
    },
    r"\n  order of the features: recorded a, b, asked b, a\n": {
        "schema": Schema({"b": (-4.0, 4.0), "a": (0.0, 1.0)}, classes=[0, 1])
    },
    r"\n  max_weight of the schema: recorded 1, asked 2\n": {
        "schema": Schema(SCHEMA.features, classes=[0, 1], max_weight=2)
    },
    r"\n  target of the schema: recorded ": {"schema": Schema(SCHEMA.features, classes=[0, 2])},
}  # fmt: skip


def test_a_fit_whose_key_cannot_be_erased_has_ended(ledger, rows, monkeypatch):
    def refuse(_path):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("dpgb_dask.controller.ledger.erase_key", refuse)
    with pytest.raises(LedgerUnavailableError, match="could not be erased") as caught:
        classifier(ledger).fit(*rows)
    (note,) = caught.value.__notes__
    assert "has ended" in note
    assert "goes on" not in note
    assert "settle" not in note
    monkeypatch.undo()
    (record,) = ledger.fits("people")
    assert ledger.settle(record.fit_id) == record.charge == ledger.account("people").spent
    clf = classifier(ledger).fit(*rows, resume=record.fit_id)
    assert clf.fit_id_ == record.fit_id
    assert ledger.account("people").spent == record.charge
    assert not list(ledger.directory.rglob("*.key"))
    ledger.verify()


SHAPE_FACTS = {
    "schema": Schema(SCHEMA.features, classes=[0, 2], max_weight=2),
    "weight_bits": 3,
    "max_weight": 1,
    "loss": Huber(0.25),
    "class_weight": (1.0, 2.0),
    "constraints": Constraints(monotonic=(("a", 1),)),
}


@pytest.mark.parametrize("name", [field.name for field in fields(Shape)])
def test_every_public_fact_of_a_fit_is_in_its_digest(name):
    # of losses for classes, the package has one
    target = {"target_bounds": (0, 1)} if name == "loss" else {"classes": [0, 1]}
    shape = Shape(schema=Schema(SCHEMA.features, **target, max_weight=2), max_weight=2)
    assert digest(AUTO, shape) == digest(AUTO, replace(shape))
    assert digest(AUTO, replace(shape, **{name: SHAPE_FACTS[name]})) != digest(AUTO, shape)


@pytest.mark.filterwarnings("ignore::dpgb_dask.MaxWeightWarning")
def test_resume_refuses_other_data_or_settings(ledger, rows):
    fit_id, _ = break_off(ledger, rows, 4)
    x, y = rows
    other = x.copy()
    other[17, 0] = 1 - other[17, 0]
    with pytest.raises(ResumeError, match="began on other data") as info:
        classifier(ledger).fit(other, y, resume=fit_id)
    assert not set("0123456789") & set(str(info.value).replace(fit_id, ""))
    before = ledger.history("people")
    for unknown, words in (
        ("auto", r"\. 'auto' is for dpgb-dask fit --resume alone"),
        ("no", r"\."),
    ):
        match = rf"'{unknown}' is not in the ledger{words}.* ledger\.history\(account\)"
        with pytest.raises(ResumeError, match=match):
            classifier(ledger).fit(x, y, resume=unknown)
    for named, changes in DIFFERENT.items():
        with pytest.raises(ResumeError, match=f"(?s){named}"):
            classifier(ledger, **changes).fit(x, y, resume=fit_id)
    with pytest.raises(ResumeError, match=r"\n  weights: .*up to 1, in steps of 2\*\*-10"):
        classifier(ledger).fit(x, y, sample_weight=np.full(len(y), 0.5), resume=fit_id)
    assert ledger.history("people") == before  # not even the lease was taken
    classifier(ledger).fit(x, y, resume=fit_id)


def test_resume_refuses_another_loss(ledger, rows):
    schema = Schema(SCHEMA.features, target_bounds=(0.0, 1.0))
    stop = Mock(side_effect=BreakError)
    options = {"epsilon": 2.0, "schema": schema, "recipe": "dp-ebm", "n_estimators": 1}
    options |= {"ledger": ledger, "account": "people"}
    with pytest.raises(BreakError):
        DPGBRegressor(loss=Huber(0.2), callbacks=[stop], **options).fit(*rows)
    fit_id = ledger.history("people")[-1].fit_id
    with pytest.raises(ResumeError, match=r"\n  loss: .*delta=0.2.*delta=0.3"):
        DPGBRegressor(loss=Huber(0.3), **options).fit(*rows, resume=fit_id)


def test_what_is_kept_during_a_fit_holds_no_sum_and_no_value(ledger, rows, tmp_path, monkeypatch):
    """Every file of the ledger's folder is read while the fit runs, and searched for what must not leave."""
    x, y = rows
    sums, kept = [], set()
    ask = LocalRounds.ask

    def watched(self, model, query):
        raw = ask(self, model, query)
        sums.append(raw._open(Receipt("f", "q", 0, "l", 1, 1, 0)).copy())
        return raw

    def read(step):
        if not step.startswith(("commit", "fsync journal")):
            return
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert {path.suffix for path in files} >= {".db", ".db-wal"}
        kept.update(path.read_bytes() for path in files)

    monkeypatch.setattr(LocalRounds, "ask", watched)
    with Steps(tmp_path, read, at=None):
        classifier(ledger).fit(x, y)
    everything = b"".join(kept)
    assert everything.count(b'"receipt"') > len(sums) > 5
    numbers = set(pairwise(map(int, re.findall(rb"-?[0-9]{5,30}", everything))))
    for vector in sums:
        assert vector.tobytes() not in everything
        # one number may be there by chance, two in a row are not
        assert numbers.isdisjoint(pairwise(vector[np.abs(vector) > 1 << 16].tolist()))
    for value in x[:20].ravel().tolist():
        assert repr(value).encode() not in everything
        assert struct.pack("<d", value) not in everything


@pytest.mark.parametrize(
    "line",
    thinned(
        ['{"receipt": {}, "value": [1], "seal": ""}', "garbage", "[]", '{"value": []}', "\udcff"],
        every=4,
    ),
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


def test_the_log_tells_the_id_of_a_fit_that_can_be_resumed(ledger, rows, caplog):
    caplog.set_level("INFO", "dpgb_dask")
    DPGBClassifier(schema=SCHEMA, n_estimators=1).fit(*rows)  # its ledger ends with this process
    assert not caplog.records
    fit_id, _ = break_off(ledger, rows, 1)
    (record,) = caplog.records
    assert record.name == "dpgb_dask"
    assert f"resume={fit_id!r}" in record.getMessage()
    assert f"--resume {fit_id}" in record.getMessage()
    assert not set("0123456789") & set(
        record.getMessage().replace(fit_id, "")
    )  # nothing of the rows
    classifier(ledger).fit(*rows, resume=fit_id)
    assert len(caplog.records) == 2
    classifier(ledger).fit(*rows, resume=fit_id)  # it has ended
    assert len(caplog.records) == 2


def test_settle_charges_what_was_opened_and_ends_the_fit(ledger, rows):
    fit_id, _ = break_off(ledger, rows, 4)
    held = ledger.account("people").left
    ledger.settle(fit_id)
    assert ledger.account("people").left > held
    assert not list(ledger.directory.rglob("*.key"))
    with pytest.raises(ResumeError):
        classifier(ledger).fit(*rows, resume=fit_id)


def test_a_chunk_that_fails_is_told_and_the_charge_stands(ledger, rows):
    x, y = rows

    def load(block, block_info=None):
        if block_info and block_info[0]["chunk-location"][0] == 2:
            raise OSError("row 17: income 12345")  # a reader's message may hold a value
        return block

    lazy = da.from_array(x, chunks=(200, 2)).map_blocks(load, dtype=x.dtype, meta=x[:0])
    before = ledger.account("people").left
    with (
        dask.config.set({"dpgb-dask.backend": "local"}),
        pytest.raises(ChunkError, match="failed to load") as caught,
    ):
        classifier(ledger).fit(lazy, da.from_array(y, chunks=200))
    assert "12345" not in str(caught.value)
    assert ledger.account("people").left < before
    fit_id = {e.fit_id for e in ledger.history("people") if e.fit_id}.pop()
    classifier(ledger).fit(x, y, resume=fit_id)  # the same rows, from a place that works
