"""Journals: an answer is on disk before it is used; a file that is no journal is refused with a clear error."""

import json
import os

import numpy as np
import pytest

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.journal import JournalEntry
from dpgb_dask.errors import DPGBError, ResumeError
from dpgb_dask.training.journal import FileJournal

MUTANTS = 400


def answer(position=0, values=(1, -2, 3)):
    receipt = Receipt("fit", f"query {position}", position, "label", 10, 100, 4)
    return JournalEntry(receipt, np.array(values, np.int64), "seal")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journals" / "fit.jsonl"


def test_an_answer_is_synced_whole_before_append_returns(path, monkeypatch):
    """After a power cut only what was synced is there: so nothing may be written after the last sync."""
    synced = {}
    really = os.fsync

    def sync(descriptor):
        really(descriptor)
        found = os.fstat(descriptor)
        synced[found.st_ino] = found.st_size

    monkeypatch.setattr(os, "fsync", sync)
    journal = FileJournal(path)
    assert path.parent.stat().st_ino in synced  # its name
    for position in range(3):
        journal.append(answer(position))
        found = path.stat()
        assert synced.get(found.st_ino) == found.st_size > 0
    assert len(FileJournal(path).entries()) == 3
    path.write_bytes(path.read_bytes()[:-5])  # cut short by a crash
    again = FileJournal(path)
    assert len(again.entries()) == 2
    again.append(answer(2))
    assert synced[path.stat().st_ino] == path.stat().st_size


def test_a_journal_that_others_change_meanwhile_is_not_written_to(path):
    journal = FileJournal(path)
    for position in range(2):
        journal.append(answer(position))
    whole = path.read_bytes()
    for changed in (whole[:-5], b"", whole + b"another line\n"):
        path.write_bytes(changed)
        with pytest.raises(ResumeError, match="was changed while this process fitted"):
            journal.append(answer(2))
        assert path.read_bytes() == changed
    path.write_bytes(whole + b"cut sho")
    journal.append(answer(2))
    assert len(FileJournal(path).entries()) == 3


LINE = {
    "receipt": {
        "fit_id": "fit", "query_id": "q", "position": 0, "label": "l", "price": 1, "sigma_steps": 2, "scale_bits": 3,
        "mechanism": "gaussian",
    },
    "value": [1, 2],
    "seal": "s",
}  # fmt: skip
ODD = [
    None, True, -1, 0.5, 10**400, "x", "\ud800", [], {}, [[1]], [1, "2"], [1.5], {"fit_id": "x"}, float("nan"),
]  # fmt: skip


def mutants(rng):
    """Lines that are nearly journals: a field dropped, added or of another type, nested deeply, cut."""
    for _ in range(MUTANTS):
        line = json.loads(json.dumps(LINE))
        part = line if rng.random() < 0.5 else line["receipt"]
        name = list(part)[rng.integers(len(part))]
        way = rng.integers(5)
        if way == 0:
            del part[name]
        elif way == 1:
            part["another"] = 1
        else:
            part[name] = ODD[rng.integers(len(ODD))]
        yield json.dumps(line)
    for depth in (200, 500, 900, 10**5):
        yield '{"receipt": ' + "[" * depth + "]" * depth + "}"
        yield json.dumps(LINE).replace("[1, 2]", "[" * depth + "]" * depth)
        yield json.dumps(LINE).replace('"l"', "[" * depth + "]" * depth)
    yield from ("", "[]", "1", '"x"', "null", "{", "\x00", "1" * 5000, json.dumps([LINE]))


def test_a_damaged_journal_is_refused_clearly(path):
    FileJournal(path).append(answer())
    whole = path.read_bytes()
    refused = 0
    for line in mutants(np.random.default_rng(3)):
        path.write_bytes(whole + line.encode() + b"\n")
        try:
            entries = FileJournal(path).entries()
        except DPGBError as error:
            refused += isinstance(error, ResumeError)
        else:  # as good as before
            assert entries[1].value.dtype == np.int64
            assert isinstance(entries[1].receipt.label, str | int)
    assert refused > MUTANTS // 2


def test_an_answer_is_whole_where_the_system_writes_part_of_it(tmp_path, monkeypatch):
    really = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: really(file, data[:7], at))
    journal = FileJournal(tmp_path / "fit.jsonl")
    for position in range(2):
        receipt = Receipt("fit", f"query {position}", position, "label", 10, 100, 4)
        journal.append(JournalEntry(receipt, np.array([1, -2, position], np.int64), "seal"))
    found = FileJournal(journal.path).entries()
    assert [entry.value.tolist() for entry in found] == [[1, -2, 0], [1, -2, 1]]
