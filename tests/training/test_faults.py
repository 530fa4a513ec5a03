"""Ctrl-C, a full disk, a disk that became read-only: nothing is released, and the error says how to go on."""

import json
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from faults import fill_disk, forbid_writing, interrupt
from small_fits import FIT_ID, SCHEMA, fit, ledger_in, rows

from dpgb_dask import cli
from dpgb_dask.controller.accounting import total_price
from dpgb_dask.controller.release import Controller
from dpgb_dask.errors import ChunkError, ClusterError, LedgerUnavailableError, ScratchError
from dpgb_dask.private.rounds.local import LocalRounds

RECIPE = "fdp-tr-newton"
PRICE = total_price(2.0, 1e-6)
FAULTS = {
    interrupt: KeyboardInterrupt,
    fill_disk: LedgerUnavailableError,
    forbid_writing: LedgerUnavailableError,
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    fit(folder, RECIPE)
    return (folder / "model.json").read_bytes(), json.loads((folder / "steps.json").read_text())


def kinds_of(folder):
    ledger = ledger_in(folder)
    ledger.verify()
    return [entry.kind for entry in ledger.history("people") if entry.fit_id]


def check_resumable(folder, error, model):
    """Check what an error left: nothing, or a fit that is charged once, named in a note, and ends on resume."""
    notes = getattr(error, "__notes__", [])
    kinds = kinds_of(folder)
    assert ledger_in(folder).account("people").spent == (PRICE if kinds else 0)
    if not kinds:
        assert not notes
        for key in folder.rglob("*.key"):  # made just when Ctrl-C was pressed, and never used
            key.unlink()
        fit(folder, RECIPE)
    else:
        assert len(notes) == 1
        assert f"resume='{FIT_ID}'" in notes[0]
        assert f"--resume {FIT_ID}" in notes[0]
        fit(folder, RECIPE, resume=FIT_ID)
    assert (folder / "model.json").read_bytes() == model
    assert ledger_in(folder).account("people").spent == PRICE
    assert kinds_of(folder).count("RESERVED") == 1
    assert not list(folder.rglob("*.key"))


def places(fault, steps):
    """Return the numbers of the steps at which a fault can be: a disk does not fail after it has done its part."""
    return [
        at
        for at, name in enumerate(steps)
        if fault is interrupt or not name.endswith("after") or name.startswith("commit")
    ]


def fault_at(folder, fault, at, model):
    folder.mkdir()
    shown = []
    with pytest.raises(FAULTS[fault]) as info:
        fit(folder, RECIPE, at, fault=fault, callbacks=[lambda *seen: shown.append(seen)])
    journals = list(folder.rglob("*.jsonl"))
    lines = journals[0].read_text().count("\n") if journals else 0
    assert len(shown) <= lines <= kinds_of(folder).count("OPENED")  # shown only what is durable
    check_resumable(folder, info.value, model)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_at_a_durable_step(fault, every, undisturbed, tmp_path, record_property):
    model, steps = undisturbed
    tried = places(fault, steps)
    if not every:
        kinds = {steps[at]: at for at in tried}
        tried = list(kinds.values())[list(FAULTS).index(fault) :: 6]  # half of the kinds, in turn
    for at in tried:
        fault_at(tmp_path / str(at), fault, at, model)
    record_property("saw", f"{RECIPE}, {fault.__name__} at {len(tried)} steps: resumed")


@pytest.mark.parametrize("error", [ClusterError, ScratchError, ChunkError, OSError])
@pytest.mark.parametrize("when", ["fingerprint", "ask"])
def test_what_the_rows_raise(error, when, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(LocalRounds, when, Mock(side_effect=error("lost")))
    with pytest.raises(error) as info:
        fit(tmp_path, RECIPE)
    monkeypatch.undo()
    check_resumable(tmp_path, info.value, undisturbed[0])


def test_what_a_callback_raises(undisturbed, tmp_path):
    def stop(_label, done, _total):
        if done == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as info:
        fit(tmp_path, RECIPE, callbacks=[stop])
    assert kinds_of(tmp_path) == ["RESERVED", "BOUND", "OPENED", "OPENED"]
    check_resumable(tmp_path, info.value, undisturbed[0])


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt, cli.INTERRUPTED), (ClusterError, cli.ERROR), (OSError, cli.ERROR)],
)
def test_the_command_line_says_how_to_go_on(error, code, tmp_path, monkeypatch, capsys):
    x, y = rows()
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "target": y})
    frame.to_parquet(tmp_path / "people.parquet")
    SCHEMA.save(tmp_path / "people.schema.json")
    ledger = ledger_in(tmp_path)
    ledger.open_account("people", epsilon=3.0, delta=1e-5)
    arguments = [
        "fit", f"{tmp_path}/people.parquet", "--schema", f"{tmp_path}/people.schema.json", "--recipe", RECIPE,
        "--epsilon", "2", "--delta", "1e-6", "--ledger", f"sqlite:///{tmp_path}/budget.db", "--account", "people",
        "--n-estimators", "2", "--out", f"{tmp_path}/model.json", "--quiet",
    ]  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(Controller, "release", Mock(side_effect=error))
        assert cli.main(arguments) == code
    fit_id = ledger.history("people")[-1].fit_id
    opened, message, hint = capsys.readouterr().err.splitlines()
    assert f"--resume {fit_id}" in opened  # said in good time, for a kill says nothing
    assert message.startswith("dpgb-dask: ")
    assert f"--resume {fit_id}" in hint
    assert cli.main([*arguments, "--resume", fit_id]) == 0
    assert ledger.account("people").spent == PRICE


@pytest.mark.slow
def test_ctrl_c_at_random_times(forks, undisturbed, tmp_path, record_property):
    """As in a terminal: the signal comes at any instruction, and each time the fit goes on where it broke off."""
    forks.warm("small_fits:warm", RECIPE)
    rng = np.random.default_rng(5)
    for trial in range(20):  # sooner or later a signal comes before the end of a fit
        folder = tmp_path / str(trial)
        if interrupted := interrupt_until_it_ends(forks, folder, rng):
            break
    assert interrupted
    assert (folder / "model.json").read_bytes() == undisturbed[0]
    assert ledger_in(folder).account("people").spent == PRICE
    record_property(
        "saw", f"{RECIPE}: Ctrl-C {interrupted} times at random: same model, one charge"
    )


def interrupt_until_it_ends(forks, folder, rng):
    folder.mkdir()
    ledger_in(folder).open_account("people", epsilon=3.0, delta=1e-5)
    interrupted, resume = 0, None
    while True:
        after = rng.uniform(0.002, 0.04) if interrupted < 5 else 0.0  # never
        if forks.run("small_fits:fit_interrupted", str(folder), RECIPE, after, resume) == 0:
            return interrupted
        interrupted += 1
        resume = FIT_ID if kinds_of(folder) else None
        if resume is None:
            for key in folder.rglob("*.key"):  # never used
                key.unlink()
