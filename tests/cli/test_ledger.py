"""``ledger``: accounts opened, shown and settled."""

import getpass
import hashlib
import json
import re
import shutil
import socket

import pandas as pd
import pytest
from cli_parts import break_off, fit_people, interrupt_rounds, model_of, run

from dpgb_dask import DPGBClassifier, Ledger, cli
from dpgb_dask.cli.begun import CommandLedger

SETTLED = re.compile(r"resumed: (\S+) % of the cap stays charged, of (\S+) % of the cap that it")


def test_ledger_opens_shows_and_refuses(place, capsys):
    url = f"sqlite:///{place}/budget.db"
    assert run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6) == 0
    fit = (*fit_people(place), "--quiet")
    charged = ("--ledger", url, "--account", "people")
    assert run(*fit, "--epsilon", 0.9, "--out", place / "a.json", *charged) == 0
    capsys.readouterr()
    assert run("ledger", "show", url) == 0
    shown = capsys.readouterr().out
    assert "people: cap epsilon=1, delta=1e-06" in shown
    assert run(*fit, "--epsilon", 0.9, "--out", place / "b.json", *charged) == 3
    failed = capsys.readouterr()
    assert "\n  would fit   epsilon=" in failed.err  # its lines are lined up
    would = re.search(r"would fit   epsilon=(\S+)", failed.err)[1]
    told = re.search(r"may ask epsilon=(\S+)", shown)[1]
    assert float(told) <= float(would) <= Ledger(url).remaining("people")
    assert not (place / "b.json").exists()
    assert run(*fit, "--epsilon", would, "--out", place / "b.json", *charged) in (0, 4)
    assert run("ledger", "show", url, "nobody") == 1
    assert run("ledger", "settle", url, "no-such-fit") == 1
    assert "no-such-fit" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///"])
@pytest.mark.parametrize("action", ["open", "show", "verify", "restore", "settle"])
def test_a_ledger_in_memory_is_refused_by_every_command(url, action, capsys):
    """An empty one agrees with itself: in cron, with a variable that is not set, verify would ring no alarm."""
    given = {"open": ("people", "--epsilon", 1, "--delta", 1e-6), "settle": ("no-such-fit",)}
    assert run("ledger", action, url, *given.get(action, ())) == 1
    assert "is a ledger in memory, which ends with this command" in capsys.readouterr().err


def test_an_account_that_is_opened_again_says_what_is_left(place, capsys):
    url = f"sqlite:///{place}/budget.db"
    opened = ("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6)
    assert run(*opened) == 0
    assert capsys.readouterr().out.startswith("account 'people' opened: epsilon=1, delta=1e-06")
    assert run(*opened) == 0
    again = capsys.readouterr().out
    assert again.startswith("account 'people' exists already, and nothing changed: epsilon=1,")
    assert again.endswith("may ask epsilon=1 (100.00 % left)\n")
    charged = ("--quiet", "--ledger", url, "--account", "people", "--out", place / "a.json")
    assert run(*fit_people(place), "--epsilon", 0.6, *charged) == 0
    capsys.readouterr()
    assert run(*opened) == 0
    again = capsys.readouterr().out
    assert run("ledger", "show", url) == 0
    shown = capsys.readouterr().out.splitlines()[0]
    assert "opened" not in again
    assert "100.00" not in again
    assert again.rstrip().endswith(shown.split("; ")[-1])
    assert run("ledger", "open", url, "people", "--epsilon", 2, "--delta", 1e-6) == 2
    assert "exists with another cap" in capsys.readouterr().err
    assert run("ledger", "open", url, "others", "--epsilon", 1, "--delta", 1e-6) == 0
    assert "'others' opened" in capsys.readouterr().out


@pytest.mark.slow
def test_ledger_accounts_have_an_analysis(place, capsys):
    """A pure account takes fits of pure recipes alone, and no delta."""
    url = f"sqlite:///{place}/pure.db"
    opened = ("ledger", "open", url, "people", "--epsilon", 3, "--delta", 0)
    assert run(*opened, "--analysis", "pure") == 0
    assert "analysis pure" in capsys.readouterr().out
    assert run(*opened) == 2  # Gaussian noise needs a delta
    with pytest.raises(SystemExit):
        run(*opened, "--analysis", "magic")
    common = ("--schema", place / "schema.json", "--delta", 1e-6, "--epsilon", 1, "--quiet")
    charged = ("--ledger", url, "--account", "people")
    fit = ("fit", place / "people.parquet", *common, *charged, "--out", place / "p.json")
    capsys.readouterr()
    assert run(*fit) == 1
    assert "not ε-differentially private" in capsys.readouterr().err
    trees = ("--recipe", "dpboost", "--max-depth", 3, "--n-estimators", 4, "--learning-rate", 0.3)
    assert run(*fit, *trees, "--loss", "log_loss") == 0
    assert "(1, 0)-differential privacy, pure" in capsys.readouterr().out
    assert run("ledger", "show", url) == 0
    shown = capsys.readouterr().out
    assert "analysis pure" in shown
    assert "66.67 % left" in shown


def test_an_interrupted_fit_is_resumed_by_its_id(place, monkeypatch):
    url, out = break_off(place, monkeypatch), place / "a.json"
    (fit,) = Ledger(url).fits("people")
    left = Ledger(url).remaining("people")
    assert not (place / "broken.json").exists()
    charged = ("--epsilon", 0.5, "--quiet", "--ledger", url, "--account", "people")
    assert run(*fit_people(place), "--out", out, *charged, "--resume", fit.fit_id) == 0
    assert Ledger(url).remaining("people") == left
    assert DPGBClassifier.load(out).fit_id_ == fit.fit_id


def test_a_command_that_is_run_again_goes_on_with_its_fit(place, monkeypatch, capsys):
    """One charge, whether a run is killed before its charge, in mid-fit, or when its model is to be written."""
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "people", "--epsilon", 2, "--delta", 1e-6)
    out = place / "m.json"
    fit = (*fit_people(place), "--epsilon", 0.5, "--out", out, "--quiet", "--resume", "auto")
    charged = (*fit, "--ledger", url, "--account", "people")

    def killed(*_told, **_facts):
        raise KeyboardInterrupt

    def break_off_at(name=None):
        with monkeypatch.context() as patch:
            if name is None:
                interrupt_rounds(patch)
            else:
                patch.setattr(f"dpgb_dask.{name}", killed)
            assert run(*charged) == 130

    assert run(*fit) == 2
    assert "--ledger" in capsys.readouterr().err
    break_off_at("controller.ledger_book.Book.reserve")
    assert not Ledger(url).fits("people")
    for moment in (None, "estimators.DPGBClassifier.save"):
        break_off_at(moment)
        assert not out.exists()
    capsys.readouterr()
    assert run(*charged) == 0
    assert "has ended: its model is made again" in capsys.readouterr().err
    (done,) = Ledger(url).fits("people")
    assert (done.state, DPGBClassifier.load(out).fit_id_) == ("RELEASED", done.fit_id)
    assert run(*charged[: charged.index("--resume")], *charged[-4:], "--overwrite") == 0
    assert run(*charged, "--overwrite") == 2  # two fits of this command are here now
    said = capsys.readouterr().err
    assert f"{done.fit_id} (ended, account 'people')" in said
    assert "--resume FIT_ID; or leave --resume out" in said


@pytest.fixture
def automatic(place):
    """Runs ``fit --resume auto`` on a table for a model file, with further options; and the ledger."""
    url = f"sqlite:///{place}/budget.db"
    for account in ("people", "others"):
        run("ledger", "open", url, account, "--epsilon", 4, "--delta", 1e-6)
    shutil.copy(place / "people.parquet", place / "next.parquet")

    def fit(data, out, *options, account="people", resume=("--resume", "auto")):
        charged = ("--ledger", url, "--account", account, *resume, "--quiet")
        plan = ("--recipe", "fdp-tr-newton", "--n-estimators", 1, "--epsilon", 0.5, "--delta", 1e-6)
        given = ("--schema", place / "schema.json", "--out", place / out)
        return run("fit", place / data, *given, *plan, *charged, *options)

    return fit, Ledger(url)


def test_a_run_for_other_rows_is_not_given_the_model_of_earlier_ones(place, automatic, capsys):
    fit, ledger = automatic
    assert fit("people.parquet", "jan.json") == 0
    assert fit("next.parquet", "feb.json") == 0
    january, february = ledger.fits("people")
    assert DPGBClassifier.load(place / "jan.json").fit_id_ == january.fit_id
    assert DPGBClassifier.load(place / "feb.json").fit_id_ == february.fit_id
    # each is given again to its own command, for nothing
    for data, out in (("people.parquet", "jan.json"), ("next.parquet", "feb.json")):
        model = (place / out).read_bytes()
        assert fit(data, out, "--overwrite") == 0
        assert (place / out).read_bytes() == model
    assert "For rows that are new, leave --resume auto out" in capsys.readouterr().err
    assert len(ledger.fits("people")) == 2
    assert fit("people.parquet", "other.json") == 0
    facts = json.loads((place / "schema.json").read_text(encoding="utf-8"))
    facts["features"]["age"]["high"] += 1
    (place / "schema.json").write_text(json.dumps(facts), encoding="utf-8")
    assert fit("people.parquet", "other.json", "--overwrite") == 0
    assert len({one.fit_id for one in ledger.fits("people")}) == 4


def test_what_is_noted_of_a_command_holds_nothing_of_rows(place, automatic):
    fit, ledger = automatic
    assert fit("people.parquet", "m.json") == 0
    (path,) = (ledger.directory / "commands").iterdir()
    note = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == ledger.fits("people")[0].fit_id
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(note) == ["--out", "data", "schema"]
    assert note["data"] == hashlib.sha256(str(place / "people.parquet").encode()).hexdigest()
    few = pd.read_parquet(place / "people.parquet").iloc[:7]
    few.to_parquet(place / "people.parquet")
    assert (
        fit("people.parquet", "m.json", "--overwrite") == 0
    )  # the same command, whatever the rows
    assert len(ledger.fits("people")) == 1


def test_too_little_budget_leaves_no_note(automatic):
    fit, ledger = automatic
    assert fit("people.parquet", "m.json", "--epsilon", 9) == 3
    assert list((ledger.directory / "commands").iterdir()) == []


def test_an_unfinished_fit_of_another_command_is_left_alone(automatic, monkeypatch, capsys):
    """It may be running: it is neither taken over nor charged beside."""
    fit, ledger = automatic
    with monkeypatch.context() as patch:
        interrupt_rounds(patch)
        assert fit("people.parquet", "jan.json") == 130
    (begun,) = ledger.fits("people")
    entries = len(ledger.history("people"))
    capsys.readouterr()
    assert fit("next.parquet", "jan.json") == 2
    said = capsys.readouterr().err
    assert f"{begun.fit_id} (unfinished, account 'people', begun with other data)" in said
    assert "dpgb-dask ledger settle" in said
    assert len(ledger.history("people")) == entries
    assert fit("people.parquet", "jan.json", account="others") == 0  # in a file, accounts are apart
    assert fit("people.parquet", "jan.json", "--overwrite") == 0
    assert [one.state for one in ledger.fits("people")] == ["RELEASED"]


def test_an_unfinished_fit_goes_on_before_one_that_ended_is_given_again(
    place, automatic, monkeypatch
):
    fit, ledger = automatic
    assert fit("people.parquet", "m.json") == 0
    with monkeypatch.context() as patch:
        interrupt_rounds(patch)
        assert fit("people.parquet", "m.json", "--overwrite", resume=()) == 130
    assert fit("people.parquet", "m.json", "--overwrite") == 0
    _, second = ledger.fits("people")
    assert second.state == "RELEASED"
    assert DPGBClassifier.load(place / "m.json").fit_id_ == second.fit_id


def test_a_fit_without_a_note_is_not_taken_for_the_commands_own(place, automatic, capsys):
    """As one of the library, or of an earlier version."""
    fit, ledger = automatic
    assert fit("people.parquet", "m.json") == 0
    (first,) = ledger.fits("people")
    (ledger.directory / "commands" / f"{first.fit_id}.json").unlink()
    assert fit("people.parquet", "m.json", "--overwrite") == 0
    assert len(ledger.fits("people")) == 2
    assert DPGBClassifier.load(place / "m.json").fit_id_ != first.fit_id
    assert fit("people.parquet", "m.json", "--overwrite", "--resume", first.fit_id) == 0
    assert DPGBClassifier.load(place / "m.json").fit_id_ == first.fit_id
    capsys.readouterr()


@pytest.mark.parametrize("case", ["settled", "account", "ended", "note"])
def test_a_folder_of_one_run_takes_no_second(automatic, monkeypatch, capsys, case):
    """With a ledger on a server: here a file acts as one."""
    fit, ledger = automatic
    monkeypatch.setattr(CommandLedger, "folder_of_one_run", True)
    with monkeypatch.context() as patch:
        interrupt_rounds(patch)
        assert fit("people.parquet", "m.json") == 130
    (first,) = ledger.fits("people")
    again = {"data": "people.parquet", "account": "people"}
    if case == "settled":
        ledger.settle(first.fit_id)
        told = "settled, account 'people'"
    if case == "account":
        again["account"] = "others"
        told = "unfinished, account 'people'"
    if case == "ended":
        assert fit("people.parquet", "m.json") == 0
        again["data"] = "next.parquet"
        told = "ended, account 'people', begun with other data"
    if case == "note":
        (ledger.directory / "commands" / f"{first.fit_id}.json").unlink()
        told = "unfinished, account 'people', no note of its command"
    entries = [len(ledger.history(name)) for name in ("people", "others")]
    capsys.readouterr()
    assert fit(again["data"], "m.json", "--overwrite", account=again["account"]) == 2
    said = capsys.readouterr().err
    assert f"{first.fit_id} ({told})" in said
    assert "a Job of a new name" in said
    assert [len(ledger.history(name)) for name in ("people", "others")] == entries


def test_a_note_that_cannot_be_written_charges_nothing(automatic, capsys):
    fit, ledger = automatic
    (ledger.directory / "commands").write_text("in the way")
    assert fit("people.parquet", "m.json") == 1
    assert "so nothing is charged" in capsys.readouterr().err
    assert not ledger.fits("people")


def test_settle_gives_back_what_was_not_opened(place, monkeypatch, capsys):
    url = break_off(place, monkeypatch)
    (fit,) = Ledger(url).fits("people")
    left = Ledger(url).remaining("people")
    capsys.readouterr()
    assert run("ledger", "settle", url, fit.fit_id) == 0
    stays, reserved = SETTLED.search(capsys.readouterr().out).groups()
    assert float(stays) < float(reserved)
    assert Ledger(url).remaining("people") > left
    assert run("ledger", "settle", url, fit.fit_id) == 0
    assert f"its charge stands ({stays} % of the cap)" in capsys.readouterr().out


def test_settle_after_a_restore_says_that_the_whole_charge_stays(place, monkeypatch, capsys):
    url = break_off(place, monkeypatch)
    (fit,) = Ledger(url).fits("people")
    (Ledger(url).directory / "head").unlink()
    assert run("ledger", "restore", url) == 0
    assert run("ledger", "settle", url, fit.fit_id) == 0
    stays, reserved = SETTLED.search(capsys.readouterr().out).groups()
    assert stays == reserved != "0.00"


def test_ledger_shows_fits_in_a_table(place, capsys, monkeypatch):
    url, name = break_off(place, monkeypatch), "people"
    (unfinished,) = {e.fit_id for e in Ledger(url).history(name)} - {""}
    fit = (*fit_people(place), "--recipe", "fdp-tr-newton", "--n-estimators", 1)
    charged = ("--quiet", "--ledger", url, "--account", name)
    assert run(*fit, "--out", place / "a.json", "--epsilon", 0.1, *charged) == 0
    released = DPGBClassifier.load(place / "a.json").fit_id_
    opened = {e.fit_id: e.at for e in Ledger(url).history(name) if e.kind == "RESERVED"}
    share = 100 * (1 - Ledger(url).account(name).left / Ledger(url).account(name).cap)
    capsys.readouterr()
    assert run("ledger", "show", url) == 0
    _, head, *fits, hint = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "fit", "opened", "(UTC)", "who", "recipe", "epsilon", "delta", "state", "model", "charge",
    ]  # fmt: skip
    digest = json.loads((place / "a.json").read_text())["digests"]["fit"]
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    told = [
        [unfinished, who, "auto", "0.5", "1e-06", "UNFINISHED", "–"],
        [released, who, "fdp-tr-newton", "0.1", "1e-06", "RELEASED", digest[:12]],
    ]
    charges = 0.0
    for line, (fit_id, *others) in zip(fits, told, strict=True):
        words = line.split()
        assert words[:9] == [fit_id, opened[fit_id][:10], opened[fit_id][11:16], *others]
        assert line.index(others[4]) == head.index("state")
        assert " ".join(words[10:]) == "% of the cap"
        charges += float(words[9])
    assert abs(charges - share) < 0.02
    assert "--resume" in hint
    assert run("ledger", "show", url, "--json") == 0
    (account,) = json.loads(capsys.readouterr().out)
    assert (account["account"], account["epsilon"], account["unit_id"]) == (name, 1.0, None)
    assert account["share_left"] == pytest.approx(1 - share / 100)
    assert account["epsilon_left"] == Ledger(url).remaining(name)
    broken, fit = account["fits"]
    assert (broken["fit_id"], broken["state"], broken["model"]) == (unfinished, "UNFINISHED", None)
    assert (fit["fit_id"], fit["who"], fit["recipe"]) == (released, who, "fdp-tr-newton")
    assert (fit["epsilon"], fit["delta"], fit["model"]) == (0.1, 1e-6, digest)
    assert broken["share_of_cap"] + fit["share_of_cap"] == pytest.approx(share / 100)
    assert run("ledger", "settle", url, unfinished) == 0
    capsys.readouterr()
    assert run("ledger", "show", url) == 0
    _, _, settled, last = capsys.readouterr().out.splitlines()  # no hint: no fit is unfinished
    assert "SETTLED" in settled
    assert "RELEASED" in last


def test_errors_of_the_ledger_name_flags_and_commands(place, monkeypatch, capsys):
    url = break_off(place, monkeypatch)
    (fit_id,) = {e.fit_id for e in Ledger(url).history("people")} - {""}
    assert f"dpgb-dask ledger settle URL {fit_id}" in capsys.readouterr().err
    assert run("ledger", "show", url, "nobody") == 1
    assert "dpgb-dask ledger open" in capsys.readouterr().err
    assert run("ledger", "settle", url, "nothing") == 1
    assert "dpgb-dask ledger show" in capsys.readouterr().err
    fit = (*fit_people(place), "--epsilon", 0.5, "--out", place / "m.json", "--quiet")
    again = ("--ledger", url, "--account", "people", "--resume", fit_id)
    assert run(*fit, "--max-bins", 9, *again) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2  # what differs is on lines of its own
    assert lines[-1].startswith("Resume it with the same settings")


def test_a_misspelt_ledger_makes_no_new_one(place, capsys):
    url = f"sqlite:///{place}/typo.db"
    assert run("ledger", "show", url) == 1
    assert "no ledger" in capsys.readouterr().err
    code = run("fit", place / "people.parquet", *model_of(place), "--ledger", url, "--account", "a")
    assert code == 1
    assert not (place / "typo.db").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--epsilon", 2, "--delta", 1e-6), "AccountError: Account 'people' exists with another cap"),
        (("--epsilon", 1, "--delta", 1e-7), "AccountError: Account 'people' exists with another cap"),
        (("--unit", "person"), "AccountError: Account 'people' exists with another cap"),
        (("--analysis", "zcdp"), "AccountError: Account 'people' exists with another cap"),
        (("--epsilon", 0), "PlanError: --epsilon=0.0 must be"),
        (("--delta", 1), "PlanError: --delta=1.0 must be"),
        (("--epsilon", 500), "PlanError: --epsilon=500 is too large for --delta=1e-06"),
        (("--unit", ""), "AccountError: unit_id='' must be text of 1 to 200 characters"),
    ],
)  # fmt: skip
def test_an_account_that_cannot_be_as_asked_for_is_wrong_usage(place, options, said, capsys):
    """A Job that opens accounts ends at once then, and is tried again where the server is not up yet."""
    url = f"sqlite:///{place}/budget.db"
    opened = ("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6)
    assert run(*opened) == 0
    capsys.readouterr()
    assert run(*opened, *options) == 2
    assert capsys.readouterr().err.startswith(f"dpgb-dask: {said}")
    assert run("ledger", "open", url, " people", "--epsilon", 1, "--delta", 1e-6) == 2
    assert [account.name for account in Ledger(url).accounts()] == ["people"]
    away = f"sqlite:///{place}/no/such/folder/budget.db"
    assert run("ledger", "open", away, "people", "--epsilon", 1, "--delta", 1e-6) == 1


def test_ledger_open_fixes_what_an_account_protects(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/budget.db"
    opened = ("ledger", "open", url, "people", "--epsilon", "3", "--delta", "1e-6")
    assert cli.main([*opened, "--unit", "person"]) == 0
    assert "for all rows of one 'person'" in capsys.readouterr().out
    assert cli.main(list(opened)) == 2
    assert "unit_id='person'" in capsys.readouterr().err
    assert cli.main(["ledger", "show", url]) == 0
    assert "for all rows of one 'person'" in capsys.readouterr().out
    assert cli.main(["ledger", "verify", url]) == 0
    assert "it is no signature" in capsys.readouterr().out
