"""The command line as a whole: help, errors of one line, exit codes."""

import argparse
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from cli_parts import BUDGET, fit_people, model_of, run
from thinned import one_of_each, thinned

from dpgb_dask import DPGBClassifier, Ledger, __version__, names, recipes
from dpgb_dask.cli import COMMANDS, add_to
from dpgb_dask.cli.options import Parser, in_flags


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_output_is_written_in_an_encoding_that_lacks_a_letter(place, encoding, monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", written)
    assert run("fit", place / "people.parquet", *model_of(place)) == 0
    assert run("report", place / "m.json") == 0
    assert run("verify", place / "m.json") == 0
    text = written.buffer.getvalue().decode(encoding)
    assert "\\u03bc" in text
    assert "model written to" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--n-estimators", 0), "PlanError: --n-estimators=0 must be a whole number"),
        (("--loss", "squared_error"), "PlanError: --loss='squared_error' does not serve a binary target."),
        (("--memory-limit", "lots"), "PlanError: --memory-limit='lots' must be"),
        (("--monotonic", "nope=1"), "PlanError: --monotonic contains unexpected feature names: ['nope']."),
        (("--interaction", "x,nope"), "PlanError: --interaction holds 'nope': give names of features,"),
        (("--max-rows-per-unit", 3), "PlanError: --max-rows-per-unit=3 needs a --unit: without one,"),
        (("--unit", "x"), "SchemaError: --unit='x' is also a feature."),
        (("--unit", "nope"), "StructureError: column 'nope' is not in the data. Name another with --unit;"),
        (("--target", "x"), "SchemaError: --target='x' is also a feature."),
        (("--weight", "x"), "SchemaError: --weight 'x' is a feature of the schema. Name a column that is neither,"),
        (("--weight", "target"), "SchemaError: --weight 'target' is the target of the schema. Name a column that is"),
        (("--delimiter", ";;"), "StructureError: --delimiter=';;' must be one character"),
        (("--resume", "abc"), "ResumeError: --resume='abc' needs the ledger"),
    ],
)  # fmt: skip
def test_errors_name_the_flags_of_the_command(options, said, place, capsys, monkeypatch):
    monkeypatch.setattr(Parser, "flags", set())  # as in a process of its own
    schema = ("--schema", place / "schema.json")
    assert run("fit", place / "people.csv", *schema, "--out", place / "m.json", *BUDGET, *options)
    assert f"dpgb-dask: {said}" in capsys.readouterr().err
    assert not (place / "m.json").exists()


def test_only_what_a_command_takes_becomes_a_flag():
    options = argparse.Namespace(recipe="auto", target=None, unit=None, overwrite=True)
    for name in ("recipe", "target", "unit", "overwrite"):
        Parser().add_argument(f"--{name}")
    for said, told in (
        ("recipe='x' is unknown", "--recipe='x' is unknown"),
        ("it needs a unit_id: without", "it needs a --unit: without"),
        ("the rule of recipe 'x'", "the rule of recipe 'x'"),
        # of a file, and no flag was given
        ("target='age' is also a feature", "target='age' is also a feature"),
        ("max_weight=0 must be", "max_weight=0 must be"),
        # a column, a file and a flag without a value
        ("missing=['unit_id']", "missing=['unit_id']"),
        ("'recipe=1.csv' does not exist", "'recipe=1.csv' does not exist"),
        ("replace it: overwrite=True", "replace it: overwrite=True"),
    ):
        assert in_flags(said, options) == told


def test_misspelt_words_are_recognised(place, capsys, monkeypatch):
    elsewhere = "is an option of other commands, or stands behind its command."
    for arguments, words in (
        (("ftt", "x"), "Did you mean 'fit'?"),
        (
            ("predict", "m.json", "d.csv", "--out", "o.csv", "--keeep", "id"),
            "Did you mean '--keep'?",
        ),
        (("check", "d.csv", "--keep", "id"), f"--keep {elsewhere}"),
        (("--schema=s.json", "check", "d.csv"), f"--schema {elsewhere}"),
        (("ledger", "shw", "x"), "Did you mean 'show'?"),
        (("fit", "d.csv", *BUDGET, "--out", "o", "--seed", 3), " 3 It is --random-state here."),
        (("fit", "d.csv", *BUDGET, "--out", "o", "--monotone-constraints", 1), "It is --monotonic"),
        # nothing is like it: --version and --keep are not
        (("fit", "d.csv", *BUDGET, "--out", "o", "--verbose"), "arguments: --verbose\n"),
        (("demo", "--rows", "x"), "--rows: 'x' is not a whole number above 0"),
        (("demo", "--rows", 0), "--rows: '0' is not a whole number above 0"),
        (
            ("ledger", "open", "u", "a", "--epsilon", 1, "--delta", 1, "--analysis", "zcpd"),
            "'zcdp'?",
        ),
    ):
        monkeypatch.setattr(Parser, "flags", set())  # as in a process of its own
        with pytest.raises(SystemExit):
            run(*arguments)
        assert words in capsys.readouterr().err
    fit = ("fit", place / "people.csv", "--out", place / "m.json", *BUDGET)
    schema = ("--schema", place / "schema.json")
    facts = json.loads((place / "schema.json").read_text())
    facts["features"]["x"]["hihg"] = facts["features"]["x"].pop("high")
    (place / "typo.json").write_text(json.dumps(facts))
    (place / "broken.json").write_text('{"version": 1,\n "features": oops}')
    (place / "latin.json").write_bytes(b'{"version": "\xe9"}')
    for options, words, code in (
        ((*schema, "--recipe", "fdp-tr-newtn"), "Did you mean 'fdp-tr-newton'?", 2),
        ((*schema, "--loss", "logloss"), "Did you mean 'log_loss'?", 2),
        (("--schema", place / "typo.json"), "Did you mean 'high'?", 1),
        (
            ("--schema", place / "broken.json"),
            "is not JSON (line 2, column 14: Expecting value)",
            1,
        ),
        (("--schema", place / "latin.json"), "is not JSON (byte 13 is no UTF-8)", 1),
        (
            (*schema, "--ledger", "budget.db", "--account", "a"),
            "Did you mean 'sqlite:///budget.db'?",
            1,
        ),
    ):
        assert run(*fit, *options) == code
        assert words in capsys.readouterr().err
    assert run("report", place / "broken.json") == 1
    assert "is not JSON (line 2, column 14" in capsys.readouterr().err


def test_fit_and_predict_join_a_scheduler(place, people, client):
    address = ("--scheduler", client.scheduler.address)
    model = place / "model.json"
    options = ("--schema", place / "schema.json", "--out", model, *BUDGET, *address)
    assert run("fit", place / "people.parquet", *options) == 0
    assert (
        run("predict", model, place / "people.parquet", "--out", place / "out.csv", *address) == 0
    )
    want = DPGBClassifier.load(model).predict(people)
    np.testing.assert_array_equal(pd.read_csv(place / "out.csv")["prediction"], want)


@pytest.mark.parametrize(
    ("command", "fate"), [("fit", "weighs nothing"), ("check", "weighs"), ("predict", "an error")]
)
def test_help_says_how_csv_lines_are_read(command, fate, capsys):
    with pytest.raises(SystemExit):
        run(command, "--help")
    text = capsys.readouterr().out
    assert "no line breaks" in text
    assert fate in text


@pytest.mark.parametrize("limit", ["1.5", "-1GiB", "nan", "0", "GiB", "", "many", "True"])
def test_memory_limits_that_are_none_are_refused(place, limit, capsys):
    assert run("fit", place / "people.csv", *model_of(place), f"--memory-limit={limit}") == 2
    assert f"--memory-limit={limit!r} must be a whole number of bytes" in capsys.readouterr().err


def test_errors_name_flags_and_commands(place, monkeypatch, capsys):
    out = ("--schema", place / "schema.json", "--out", place / "d.zarr")
    assert run("convert", place / "people.csv", *out) == 0
    assert run("convert", place / "people.csv", *out) == 1
    assert "--overwrite" in capsys.readouterr().err
    monkeypatch.setattr("dpgb_dask.io.writing._write", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr("dpgb_dask.io.place.Place.remove", lambda _self: None)
    half = ("--schema", place / "schema.json", "--out", "memory://half.zarr")
    assert run("convert", place / "people.csv", *half) == 130
    capsys.readouterr()
    assert run("check", "memory://half.zarr") == 1
    assert "not written to its end" in (printed := capsys.readouterr().err)
    assert "--overwrite" in printed


@pytest.mark.parametrize("quiet", [("--quiet",), ()])
def test_a_fit_says_its_id_before_a_row_is_read(place, quiet, monkeypatch, capsys):
    """After kill -9 there is no error that could say it."""
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6)
    told = []

    def read(*_arguments, **_options):
        told.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    options = ("--epsilon", 0.5, *quiet, "--ledger", url, "--account", "people")
    options += ("--out", place / "m.json")
    with monkeypatch.context() as patched:
        patched.setattr("dpgb_dask.training.fit.open_rounds", read)
        assert run(*fit_people(place), *options) == 130
    (fit_id,) = {e.fit_id for e in Ledger(url).history("people")} - {""}
    (line,) = (line for line in told[0].splitlines() if fit_id in line)
    assert line.split("\r")[-1].strip().startswith(f"dpgb-dask: Fit {fit_id} is charged.")
    assert f"--resume {fit_id}" in line
    capsys.readouterr()
    assert run(*fit_people(place), *options, "--resume", fit_id) == 0
    assert f"Fit {fit_id} is charged." in capsys.readouterr().err
    again = ("--resume", fit_id, "--quiet", *options[:-1], place / "again.json")
    assert run(*fit_people(place), *again) == 0  # it ended: there is nothing to resume
    assert fit_id not in capsys.readouterr().err


FIT = ("fit", "{}/people.parquet", "--schema", "{}/schema.json", "--out", "{}/m.json")


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (
            ("fit", "{}/schema.json", "--schema", "{}/schema.json", "--out", "{}/m.json"),
            "cannot be read",
            1,
        ),
        (
            ("fit", "{}/people.parquet", "--schema", "{}/nowhere.json", "--out", "{}/m.json"),
            "cannot be read",
            1,
        ),
        (
            ("fit", "{}/people.parquet", "--schema", "{}/schema.json", "--out", "{}/no/m.json"),
            "directory",
            1,
        ),
        ((*FIT, "--target", "nothing"), "'nothing' is not in the data", 1),
        (
            (*FIT, "--weight", "nothing"),
            "'nothing' is not in the data. Name another with --weight",
            1,
        ),
        # scratch may be writable when the command is run again
        ((*FIT, "--cache", "{}/nowhere"), "cannot be written (No such file or directory)", 1),
        # the others are of arguments alone
        ((*FIT, "--account", "a"), "belong together", 2),
        ((*FIT, "--resume", "auto"), "--resume auto needs --ledger and --account", 2),
        ((*FIT, "--recipe", "magic"), "recipe='magic'", 2),
        ((*FIT, "--loss", "huber:0.2"), "loss='huber'", 2),
        ((*FIT, "--loss", "quantile:high"), "must be a number", 2),
        ((*FIT, "--loss", "log_loss:2"), "only ['huber', 'quantile'] have an option", 2),
        ((*FIT, "--max-depth", "40"), "--max-depth=40", 2),
        ((*FIT, "--epsilon", "0"), "--epsilon=0.0 must be", 2),
        ((*FIT, "--epsilon", "-1"), "--epsilon=-1.0 must be", 2),
        ((*FIT, "--delta", "1"), "--delta=1.0 must be", 2),
    ],
)
def test_errors_are_one_clear_line(place, arguments, words, code, capsys):
    given = [argument.format(place) for argument in arguments]
    assert run(given[0], *BUDGET, *given[1:]) == code
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.startswith("dpgb-dask: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    assert not (place / "m.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("fly",),
        ("fit", "x.parquet"),
        ("ledger",),
        ("demo", "--rows", "-1"),
        ("demo", "--rows", "x"),
    ],
)
def test_wrong_usage_exits_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(*arguments)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("demo",),
        ("fit",),
        ("predict",),
        ("report",),
        ("check",),
        ("ledger", "open"),
        ("ledger", "show"),
    ],
)
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(*command, "--help")
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "example" in out
    assert f"dpgb-dask {command[0] if command else 'demo'}" in out


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("at", ["dpgb_dask.cli.import_module", "dpgb_dask.cli.fit.check_out"])
def test_a_command_that_is_stopped_says_so(place, sent, at, monkeypatch, capsys):
    """Also while its modules are loaded, which takes most of the time of many commands."""
    monkeypatch.setattr(at, lambda *_, **__: os.kill(os.getpid(), sent))
    of_all = signal.SIGTERM, signal.SIGHUP
    before = [signal.getsignal(one) for one in of_all]
    # a shell has what it starts in the background ignore Ctrl-C, the tests too
    as_started = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert run("fit", place / "people.parquet", *model_of(place)) == 130
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, as_started)
        signal.signal(signal.SIGHUP, hangup)
    assert capsys.readouterr().err.startswith("dpgb-dask: interrupted; what was charged stands")
    assert [signal.getsignal(one) for one in of_all] == before


def test_a_command_below_nohup_outlives_its_terminal(place, monkeypatch):
    monkeypatch.setattr(
        "dpgb_dask.cli.fit.check_out", lambda *_, **__: os.kill(os.getpid(), signal.SIGHUP)
    )
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run("fit", place / "people.parquet", *model_of(place)) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, hangup)


def test_a_terminal_that_closes_stops_a_command_once(place, monkeypatch, capsys):
    """Its shell sends the signal, too: the second one would break off the cleaning up."""
    cleaned = []

    def close(*_, **__):
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            cleaned.append(True)

    monkeypatch.setattr("dpgb_dask.cli.fit.check_out", close)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert run("fit", place / "people.parquet", *model_of(place)) == 130
    finally:
        signal.signal(signal.SIGHUP, hangup)
    assert cleaned
    assert "what was charged stands" in capsys.readouterr().err


def test_an_interruption_needs_no_terminal_that_is_still_there(place, monkeypatch):
    monkeypatch.setattr("dpgb_dask.cli.fit.check_out", Mock(side_effect=KeyboardInterrupt))
    closed = Mock(write=Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    monkeypatch.setattr(sys, "stderr", closed)
    assert run("fit", place / "people.parquet", *model_of(place)) == 130
    assert closed.write.called


@pytest.mark.parametrize("command", ["predict", "convert"])
def test_a_disk_that_is_full_is_told_with_a_way_out(
    place, command, monkeypatch, capsys, fitted_model
):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("dask.dataframe.DataFrame.to_csv", Mock(side_effect=full))
    monkeypatch.setattr("dpgb_dask.cli.data.write_dataset", Mock(side_effect=full))
    csv, schema = place / "people.csv", ("--schema", place / "schema.json")
    given = (fitted_model, csv) if command == "predict" else (csv, *schema)
    assert (
        run(command, *given, "--out", place / f"out.{'csv' if command == 'predict' else 'zarr'}")
        == 1
    )
    assert "No space left on device. Make room where the command writes" in capsys.readouterr().err


@pytest.mark.slow
def test_what_other_libraries_deprecate_is_no_error(place):
    run = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "dpgb_dask",
            "check",
            "people.parquet",
            "--schema",
            "schema.json",
        ],
        cwd=place,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        run("--version")
    assert __version__ in capsys.readouterr().out


def test_a_scheduler_out_of_reach_is_one_line(place, capsys):
    assert run("fit", place / "people.parquet", *model_of(place), "--scheduler", "nonsense") == 1
    error = capsys.readouterr().err
    assert "tcp://HOST:PORT" in error
    assert "Traceback" not in error


def test_help_says_that_a_given_schema_wins(capsys):
    with pytest.raises(SystemExit):
        run("fit", "--help")
    assert "wins" in " ".join(capsys.readouterr().out.split())


def test_the_schema_file_of_the_docs_serves(tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs" / "schema.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (tmp_path / "s.json").write_text(text)
    (tmp_path / "d.csv").write_text("age,hours,job,zip,high_income\n40,8,office,10115,1\n")
    assert run("check", tmp_path / "d.csv", "--schema", tmp_path / "s.json") == 0
    assert "job: fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    one_of_each([*product(["report m.json", "--help", "report --help"], ["", "1"])]),
)
def test_output_that_nobody_reads_ends_in_silence(place, classifier, words, unbuffered):
    """As after ``| head``, which goes away when it has read enough."""
    classifier.save(place / "m.json")
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from dpgb_dask.cli import main; sys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code, *words.split()],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    os.close(writer)
    assert ended.stderr == ""
    assert ended.returncode == 141


@pytest.mark.parametrize("words", thinned(["--help", "report m.json", "ledger list"], every=3))
def test_a_closed_output_is_no_error(place, classifier, words):
    """As a daemon's: Python has no standard output then."""
    classifier.save(place / "m.json")
    code = "import sys; from dpgb_dask.cli import main; sys.exit(main())"
    ended = subprocess.run(
        f'"{sys.executable}" -P -c "{code}" {words} >&-',
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == (2 if words == "ledger list" else 0)


def test_an_error_goes_to_no_standard_output_where_standard_error_is_closed(
    tmp_path, monkeypatch, capsys
):
    """`print` takes standard output for a standard error that is None: `--json 2>&-` had the error in its output."""
    monkeypatch.setattr(sys, "stderr", None)
    assert run("ledger", "show", f"sqlite:///{tmp_path}/none.db", "--json") == 1
    sys.stderr.close()
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "error"), [(True, "ValueError(1)"), (False, "BrokenPipeError(32)")]
)
def test_an_error_is_said_though_nobody_reads_the_output(place, classifier, broken, error):
    """A failed command keeps its code; so does one whose other pipe, as to a database, is broken."""
    classifier.save(place / "m.json")
    reader, writer = os.pipe()
    os.close(reader)
    lines = (
        "import sys, os; from dpgb_dask.cli import main, model",
        "load = model.load",
        f"def broken(path): print('begun'); raise {error}",
        "model.load = broken",
        "sys.exit(main())",
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", "\n".join(lines), "report", "m.json"],
        stdout=writer if broken else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env=os.environ | {"PYTHONUNBUFFERED": ""},  # else the first line breaks, not the load
        check=False,
    )
    os.close(writer)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"dpgb-dask: {error.split('(')[0]}")
    assert ended.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_output_on_a_full_disk_is_an_error(place, classifier):
    classifier.save(place / "m.json")
    code = "import sys; from dpgb_dask.cli import main; sys.exit(main())"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", code, "report", "m.json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=place,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == (
        "dpgb-dask: OSError: No space left on device. Make room where the command writes, or in the folder of temporary"
        " files, and run it again.\n"
    )


@pytest.mark.slow
def test_the_command_line_loads_no_model_without_privacy_unless_the_demo_needs_it():
    """Each import is time that every ``--help`` takes."""
    code = "import sys, dpgb_dask.cli; sys.exit('sklearn.ensemble' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_every_command_says_of_itself_what_the_help_says_of_it():
    for name, command in COMMANDS.items():
        commands = argparse.ArgumentParser().add_subparsers()
        add_to(commands, command)
        assert list(commands.choices) == [name]
        assert commands.choices[name].description == command.text
        (line,) = commands._choices_actions
        assert line.help == command.text


@pytest.mark.parametrize("error", [OSError("no libllvmlite.so\nat …"), ImportError("no x")])
def test_a_library_that_cannot_be_loaded_is_one_line(error, monkeypatch, capsys):
    """As under ``ulimit -v``."""
    load = import_module

    def fail(name):
        if name == "dpgb_dask.cli.model":
            raise error
        return load(name)

    monkeypatch.setattr("dpgb_dask.cli.import_module", fail)
    assert run("report", "m.json") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"a library cannot be loaded: {str(error).splitlines()[0]}. It may" in line
    assert "ulimit -v" in line


LARGE = {"numba", "pandas", "dask", "distributed", "sklearn", "sqlalchemy", "zarr"}


@pytest.mark.parametrize("command", [*COMMANDS, "ledger open"])
def test_help_and_errors_of_usage_import_no_large_library(command):
    """They take seconds to import."""
    code = (
        "import sys; from dpgb_dask.cli import main",
        "for option in ('--help', '--no-such-option'):",
        "    try: main([*sys.argv[1:], option])",
        "    except SystemExit as stopped: print('ended:', stopped.code)",
        "print('imported:', *sys.modules)",
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", "\n".join(code), *command.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.findall("^ended: (.*)$", ran.stdout, re.MULTILINE) == ["0", "2"]
    imported = ran.stdout.splitlines()[-1].removeprefix("imported: ").split()
    assert "dpgb_dask.cli.parsers" in imported
    assert not LARGE & {*imported}


def test_the_help_names_all_recipes():
    assert tuple(sorted(recipes.RECIPES)) == names.RECIPES


@pytest.mark.parametrize("words", [("-c", "import dpgb_dask"), ("-m", "dpgb_dask", "--help")])
def test_help_and_the_bare_package_import_no_large_library(words):
    """Dask and scikit-learn take seconds to import."""
    run = subprocess.run(
        [sys.executable, "-P", "-X", "importtime", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rsplit("|")[-1].strip() for line in run.stderr.splitlines()}
    assert "dpgb_dask.errors" in imported
    assert not imported & {"numpy", *LARGE}


def test_an_output_is_a_file_and_no_stream(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    assert run("fit", place / "people.parquet", *model_of(place)) == 0
    model, data, schema = place / "m.json", place / "people.csv", place / "schema.json"
    capsys.readouterr()
    for command, option in (
        (("fit", data, "--schema", schema, *BUDGET), "--out"),
        (("predict", model, data), "--out"),
        (("edit", model, "--remove", "x"), "--out"),
        (("export", model, "--to", "python"), "--out"),
        (("schema", data), "--out"),
        (("report", model), "--html"),
    ):
        assert run(*command, option, "-") == 1
        assert f"{option} '-': the output is a file" in capsys.readouterr().err
        assert not (place / "-").exists()


@pytest.mark.parametrize("command", ["fit", "check", "predict"])
def test_a_file_of_another_delimiter_is_asked_for_it(place, people, command, capsys, fitted_model):
    people.to_csv(place / "semi.csv", sep=";", index=False)
    schema = ("--schema", place / "schema.json")
    given = {
        "fit": ("fit", place / "semi.csv", *schema, "--out", place / "n.json", *BUDGET),
        "check": ("check", place / "semi.csv", *schema),
        "predict": ("predict", fitted_model, place / "semi.csv", "--out", place / "o.csv"),
    }[command]
    assert run(*given) == 1
    assert "Is it the --delimiter, or a title" in capsys.readouterr().err
    assert run(*given, "--delimiter", ";") == 0


@pytest.fixture
def fitted_model(classifier, place):
    classifier.save(place / "fitted.json")
    return place / "fitted.json"
