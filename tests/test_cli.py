"""The command line: what it prints, what it writes, and its exit codes."""

import json

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.metrics import roc_auc_score

from dpgb_dask import DPGBClassifier, Ledger, Schema, __version__, cli
from dpgb_dask.cli import demo_block, demo_data, main

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def client(client):
    """The client of conftest, which dask is told to use."""
    with dask.config.set(scheduler=None):
        yield client


@pytest.fixture
def people(features, labels):
    return features.assign(target=labels)


@pytest.fixture
def place(tmp_path, binary_schema, people):
    """A directory with a schema file and the same rows as Parquet, CSV and Zarr."""
    binary_schema.save(tmp_path / "schema.json")
    people.to_parquet(tmp_path / "people.parquet")
    people.to_csv(tmp_path / "people.csv", index=False)
    group = zarr.create_group(tmp_path / "people.zarr")
    for name in ("x", "z", "age", "target"):
        group.create_array(name, data=people[name].to_numpy(np.float64), chunks=(400,))
    color = people["color"].map({"blue": 0, "green": 1, "red": 2}).fillna(-1).to_numpy(np.float64)
    group.create_array("color", data=color, chunks=(300,))
    return tmp_path


def run(*arguments):
    return main([str(argument) for argument in arguments])


BUDGET = ("--epsilon", 4, "--delta", 1e-6, "--quiet")


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_fit_and_predict_read_tables(place, people, kind, capsys):
    model = place / "model.json"
    data = place / f"people.{kind}"
    assert run("fit", data, "--schema", place / "schema.json", "--out", model, *BUDGET) == 0
    printed = capsys.readouterr()
    assert "(4, 1e-06)-differential privacy" in printed.out
    assert str(model) in printed.out
    assert run("predict", model, data, "--proba", "--out", place / "out.csv") == 0
    table = pd.read_csv(place / "out.csv")
    assert list(table.columns) == ["prediction", "proba_0", "proba_1"]
    assert roc_auc_score(people["target"], table["proba_1"]) > 0.8
    assert run("predict", model, data, "--out", place / "out") == 0
    again = pd.read_parquet(place / "out")
    np.testing.assert_array_equal(again["prediction"], table["prediction"])
    want = DPGBClassifier.load(model).predict(people)
    np.testing.assert_array_equal(table["prediction"], want)


def test_predict_does_not_overwrite(place, capsys):
    (place / "out.csv").write_text("kept")
    assert (
        run("predict", place / "model.json", place / "people.csv", "--out", place / "out.csv") == 1
    )
    assert "exists already" in capsys.readouterr().err
    assert (place / "out.csv").read_text() == "kept"


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


def test_fit_and_predict_read_zarr(place, binary_schema, people):
    data = binary_schema.to_dict()
    data["features"]["color"]["categories"] = [0, 1, 2]
    Schema.from_dict(data).save(place / "numbers.json")
    model = place / "model.json"
    assert (
        run(
            "fit",
            place / "people.zarr",
            "--schema",
            place / "numbers.json",
            "--out",
            model,
            *BUDGET,
        )
        == 0
    )
    assert run("predict", model, place / "people.zarr", "--proba", "--out", place / "out.csv") == 0
    assert roc_auc_score(people["target"], pd.read_csv(place / "out.csv")["proba_1"]) > 0.8
    matrix = zarr.create_group(place / "matrix.zarr")
    source = zarr.open_group(place / "people.zarr", mode="r")
    columns = [source[name][:] for name in binary_schema.names]
    matrix.create_array("X", data=np.stack(columns, axis=1), chunks=(500, 4))
    matrix.create_array("y", data=source["target"][:], chunks=(500,))
    again = place / "again.json"
    assert (
        run(
            "fit",
            place / "matrix.zarr",
            "--schema",
            place / "numbers.json",
            "--out",
            again,
            *BUDGET,
        )
        == 0
    )
    assert run("predict", again, place / "matrix.zarr", "--out", place / "out2.csv") == 0
    assert len(pd.read_csv(place / "out2.csv")) == len(people)


def test_csv_types_come_from_the_schema_not_from_values(place, people, capsys):
    odd = people.astype({"x": object, "age": object}).copy()
    odd.loc[1400, "x"] = "not a number"
    odd.loc[1401, "age"] = ""
    odd.to_csv(place / "odd.csv", index=False)
    assert (
        run(
            "fit",
            place / "odd.csv",
            "--schema",
            place / "schema.json",
            "--out",
            place / "m.json",
            *BUDGET,
        )
        == 0
    )
    assert capsys.readouterr().err == ""


def test_target_and_weight_are_columns(place, people):
    people.rename(columns={"target": "bought"}).assign(times=2.0).to_parquet(
        place / "other.parquet"
    )
    model = place / "model.json"
    options = ("--schema", place / "schema.json", "--out", model, *BUDGET)
    assert (
        run("fit", place / "other.parquet", "--target", "bought", "--weight", "times", *options)
        == 0
    )
    fitted = DPGBClassifier.load(model)
    assert fitted.schema_.target.name == "bought"
    assert "times" in fitted.schema_.ignore
    assert run("predict", model, place / "other.parquet", "--out", place / "out") == 0


def test_report_prints_and_is_json(place, capsys):
    model = place / "model.json"
    run("fit", place / "people.parquet", "--schema", place / "schema.json", "--out", model, *BUDGET)
    capsys.readouterr()
    assert run("report", model) == 0
    assert "add or remove one row" in capsys.readouterr().out
    assert run("report", model, "--json") == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == 4


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_check_says_loudly_that_it_is_not_private(place, people, kind, capsys):
    assert run("check", place / f"people.{kind}", "--schema", place / "schema.json") == 0
    out = capsys.readouterr().out
    assert "NOT PRIVATE" in out
    assert f"z: {people['z'].isna().sum()} missing" in out
    assert "target: 0 unknown" in out


def test_ledger_opens_shows_and_refuses(place, capsys):
    url = f"sqlite:///{place}/budget.db"
    assert run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6) == 0
    fit = (
        "fit",
        place / "people.parquet",
        "--schema",
        place / "schema.json",
        "--delta",
        1e-6,
        "--quiet",
    )
    charged = ("--ledger", url, "--account", "people")
    assert run(*fit, "--epsilon", 0.9, "--out", place / "a.json", *charged) == 0
    capsys.readouterr()
    assert run("ledger", "show", url) == 0
    shown = capsys.readouterr().out
    assert "people: cap epsilon=1, delta=1e-06" in shown
    assert "RELEASED" in shown
    assert run(*fit, "--epsilon", 0.9, "--out", place / "b.json", *charged) == 3
    failed = capsys.readouterr()
    assert "would fit" in failed.err
    assert failed.err.count("\n") == 1
    assert not (place / "b.json").exists()
    assert run("ledger", "show", url, "nobody") == 1
    assert run("ledger", "settle", url, "no-such-fit") == 1
    assert "no-such-fit" in capsys.readouterr().err


def test_ledger_settles_an_interrupted_fit(place, monkeypatch, capsys):
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6)

    def stop(*_event):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpgb_dask.estimators._Bar.show", stop)
    fit = (
        "fit",
        place / "people.parquet",
        "--schema",
        place / "schema.json",
        "--delta",
        1e-6,
        "--epsilon",
        0.9,
    )
    out = place / "a.json"
    assert run(*fit, "--out", out, "--quiet", "--ledger", url, "--account", "people") == 130
    assert not out.exists()
    left = Ledger(url).remaining("people")
    fit_id = next(e.fit_id for e in Ledger(url).history("people") if e.fit_id)
    monkeypatch.undo()
    options = ("--out", out, "--quiet", "--ledger", url, "--account", "people", "--resume", fit_id)
    assert run(*fit, *options) == 0
    assert Ledger(url).remaining("people") == left
    assert DPGBClassifier.load(out).fit_id_ == fit_id
    capsys.readouterr()


def test_settle_gives_back_what_was_not_opened(place, monkeypatch):
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6)

    def stop(*_event):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpgb_dask.estimators._Bar.show", stop)
    fit = (
        "fit",
        place / "people.parquet",
        "--schema",
        place / "schema.json",
        "--delta",
        1e-6,
        "--epsilon",
        0.9,
    )
    assert (
        run(*fit, "--out", place / "a.json", "--quiet", "--ledger", url, "--account", "people")
        == 130
    )
    left = Ledger(url).remaining("people")
    fit_id = next(e.fit_id for e in Ledger(url).history("people") if e.fit_id)
    assert run("ledger", "settle", url, fit_id) == 0
    assert Ledger(url).remaining("people") > left


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("fit", "{}/nowhere.parquet", "--schema", "{}/schema.json", "--out", "{}/m.json"),
            "cannot be read",
        ),
        (
            ("fit", "{}/people.parquet", "--schema", "{}/nowhere.json", "--out", "{}/m.json"),
            "cannot be read",
        ),
        (
            ("fit", "{}/people.parquet", "--schema", "{}/schema.json", "--out", "{}/no/m.json"),
            "directory",
        ),
        (
            (
                "fit",
                "{}/people.parquet",
                "--schema",
                "{}/schema.json",
                "--out",
                "{}/m.json",
                "--target",
                "nothing",
            ),
            "'nothing' is not in the data",
        ),
        (
            (
                "fit",
                "{}/people.parquet",
                "--schema",
                "{}/schema.json",
                "--out",
                "{}/m.json",
                "--weight",
                "nothing",
            ),
            "'nothing' is not in the data",
        ),
        (
            (
                "fit",
                "{}/people.parquet",
                "--schema",
                "{}/schema.json",
                "--out",
                "{}/m.json",
                "--account",
                "a",
            ),
            "belong together",
        ),
        (
            (
                "fit",
                "{}/people.parquet",
                "--schema",
                "{}/schema.json",
                "--out",
                "{}/m.json",
                "--recipe",
                "magic",
            ),
            "recipe='magic'",
        ),
    ],
)
def test_errors_are_one_clear_line(place, arguments, words, capsys):
    assert (
        run(*(a.format(place) for a in arguments), "--epsilon", 1, "--delta", 1e-6, "--quiet") == 1
    )
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.startswith("dpgb-dask: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    assert not (place / "m.json").exists()


def test_wrong_model_files_are_one_clear_line(place, capsys):
    (place / "bad.json").write_text("{}")
    assert run("report", place / "bad.json") == 1
    assert run("predict", place / "bad.json", place / "people.parquet", "--out", place / "o") == 1
    assert capsys.readouterr().err.count("\n") == 2


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


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        run("--version")
    assert __version__ in capsys.readouterr().out


def test_demo_data_are_chunked_and_repeat():
    X, y = demo_data(25_000)
    assert X.shape == (25_000, 10)
    assert X.chunks == ((10_000, 10_000, 5_000), (10,))
    block = demo_block(5_000, 2)
    np.testing.assert_array_equal(X.blocks[2].compute(), block[:, :10])
    np.testing.assert_array_equal(y.blocks[2].compute(), block[:, 10])
    assert 0.2 < float(y.mean().compute()) < 0.45
    schema = Schema.from_dict(cli.DEMO_SCHEMA)
    diagnosis = schema.check(X, y)
    assert diagnosis.bad_targets == 0
    assert all(c.below == c.above == c.unknown == c.fractional == 0 for c in diagnosis.columns)


def test_demo_writes_a_private_model(tmp_path, capsys):
    out = tmp_path / "demo.json"
    with dask.config.set(scheduler=None):
        assert run("demo", "--rows", 20_000, "--workers", 1, "--out", out, "--quiet") == 0
    printed = capsys.readouterr().out
    for words in (
        "AUC on held-out rows",
        "no privacy",
        "Privacy report",
        "price of the fit",
        str(out),
    ):
        assert words in printed
    assert DPGBClassifier.load(out).privacy_report_.private
