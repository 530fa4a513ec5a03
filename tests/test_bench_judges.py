"""The benches that judge the default (`ci/bench/utility.py --development`, `ci/bench/stress.py`) judge right."""

import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpgb_dask import Schema

BENCHES = Path(__file__).resolve().parents[1] / "ci" / "bench"


@pytest.fixture(autouse=True)
def benches(monkeypatch):
    monkeypatch.syspath_prepend(BENCHES)


def line(now, then, metric="auc"):
    floors = importlib.import_module("floors")
    scores, earlier = (
        {split: {metric: value, "cpu_s": 1.0} for split, value in enumerate(values, 4)}
        for values in (now, then)
    )
    return floors.Line("magic", "dpgb", 1.0, scores, earlier)


@pytest.mark.parametrize(
    ("metric", "now", "mark"),
    [
        ("auc", (0.0, 0.90, 0.90, 0.91), ""),  # a mean above the earlier one, within two errors
        ("auc", (0.9, 0.87, 0.88, 0.89), "WORSE"),
        ("auc", (0.0, 0.898, 0.899, 0.8970), "worse"),  # surely, and by less than .5 %
        ("auc", (0.0, 0.93, 0.93, 0.92), "better"),
        ("rmse", (0.0, 0.93, 0.93, 0.92), "WORSE"),
    ],
)
def test_difference_to_an_earlier_run_is_paired_over_splits_that_report(metric, now, mark):
    floors = importlib.import_module("floors")
    assert floors.compare(line(now, (0.0, 0.90, 0.90, 0.90), metric), metric)[0] == mark


def test_floors_are_judged_by_the_splits_that_report(capsys):
    floors = importlib.import_module("floors")
    floor = floors.FLOORS["magic", "dpgb", "auc"][1]
    good, bad = floor + 0.01, floor - 0.01
    assert not floors.judge([line((bad, good, good, good), ())])
    assert floors.judge([line((good, bad, bad, bad + 1e-4), ())])
    assert "0 met, 0 missed within 2 s.e., 1 missed" in capsys.readouterr().out
    assert not floors.judge([line((good, bad, floor, floor), ())])
    assert "1 missed within 2 s.e." in capsys.readouterr().out


def test_judge_of_the_stress_table_names_the_constant_and_rivals(capsys):
    stress = importlib.import_module("stress")
    table, seeds = "rows_200_numeric", range(2)
    constant = [stress.constant_loss(table, seed) for seed in seeds]

    def failures(above, rival_below):
        cells = {}
        for seed in seeds:
            mine = constant[seed] * (1 + above)
            rival = mine - rival_below - 0.001 * seed
            cells[stress.key(table, "dpgb", 1.0, seed)] = {"rmse": mine}
            cells[stress.key(table, "dp-ebm", 1.0, seed)] = {"rmse": rival}
        return [failure.against for failure in stress.judge(table, 1.0, "dpgb", cells, seeds)]

    assert failures(0.009, -0.1) == []
    assert failures(0.011, -0.1) == ["constant"]
    assert failures(-0.5, 0.1) == ["dp-ebm"]
    assert failures(np.nan, 0.0) == ["constant"]  # nothing was fitted
    capsys.readouterr()


def test_stress_tables_are_made_anew_within_their_bounds(monkeypatch):
    tables = importlib.import_module("stress_tables")
    for name in ("ROWS", "TEST_ROWS", "NOISE_ROWS"):
        monkeypatch.setattr(tables, name, 100)
    for name, make in tables.TABLES.items():
        split, again = make(0), make(0)
        np.testing.assert_array_equal(split.y_train, again.y_train, err_msg=name)
        assert list(split.train) == list(split.schema.names)
        if split.regression:
            target = split.schema.target
            assert target.low <= split.y_train.min() <= split.y_train.max() <= target.high, name
        else:
            assert set(split.y_train) <= set(split.schema.target.classes), name
        for column in split.train.select_dtypes("number"):
            feature, values = split.schema.features[column], split.train[column].dropna()
            assert values.between(feature.low, feature.high).all(), name


def test_rows_beside_an_earlier_commit_are_judged_by_the_least_of_each():
    before = importlib.import_module("before")
    small, large = before.SMALL, before.LARGE
    seconds = {
        ("fit", small, "now"): [1.0, 1.5], ("fit", small, "e0dd442"): [2.0, 2.5],
        ("fit", large, "now"): [9.0, 2.5], ("fit", large, "e0dd442"): [5.0, 6.0],
        ("fit", large, "XGBoost"): [16.0],
        ("predict", small, "now"): [0.1], ("predict", small, "e0dd442"): [0.3],
        ("predict", large, "now"): [0.4, 0.3], ("predict", large, "e0dd442"): [0.5, 0.7],
    }  # fmt: skip
    rows = before.report(before.rows_to_print((small, large), seconds))
    assert [(row["name"], row["ratio"], row["met"]) for row in rows] == [
        ("200000 x 28, as then", 0.5, True),
        ("1000000 x 28, as then", 0.5, True),
        ("1000000 x 28, as then: predictions", 0.6, False),
        ("1000000 x 28, as then: 100 trees", 2.5 / 16, True),
        ("a further 1 M rows x 28, as then", 0.5, True),
    ]


def test_two_versions_see_the_same_noise_if_asked_to():
    utility = importlib.import_module("utility")

    def scores(no_secret):
        cell = utility.Cell("synthetic", "dpgb", 1.0, 0)
        told = utility.run((None, cell, no_secret))[1]
        return {name: value for name, value in told.items() if not name.endswith("_s")}

    assert scores(True) == scores(True)
    assert scores(False) != scores(False)


@pytest.mark.parametrize("same", [True, False])
def test_a_run_goes_on_with_the_noise_that_it_began_with(tmp_path, same):
    utility = importlib.import_module("utility")
    path, cells = tmp_path / "utility.json", {"synthetic|dpgb|1|0": {"auc": 0.5}}
    utility.write(path, cells, same_noise=same)
    assert utility.begun(path, same_noise=same) == cells
    way = "without" if not same else "with"
    with pytest.raises(SystemExit, match=f"go on {way} --same-noise, or give another --json"):
        utility.begun(path, same_noise=not same)
    path.write_text('{"cells": {}}', encoding="utf-8")  # of an earlier version
    assert utility.begun(path, same_noise=False) == {}


def test_any_table_beside_its_schema_is_a_set(tmp_path, capsys):
    utility, datasets = importlib.import_module("utility"), importlib.import_module("datasets")
    rows = pd.DataFrame({"x": [0, 1, 2], "y": ["a", "b", "c"]})
    for name, classes in (("two", ["a", "b"]), ("three", ["a", "b", "c"])):
        rows.to_parquet(tmp_path / f"{name}.parquet")
        Schema({"x": (0, 2)}, classes=classes, target="y").save(tmp_path / f"{name}.schema.json")
    rows.to_parquet(tmp_path / "bare.parquet")
    options = utility.parse(["--data", str(tmp_path), "--sets", "all", "--rivals"])
    assert options.sets == ["three", "two"]
    asked = {(cell.data_set, cell.method) for cell in utility.cells_of(options)}
    assert ("two", "constant") in asked
    assert ("three", "dp-ebm") not in asked
    assert not datasets.has_several_classes(tmp_path, "two")
    with pytest.raises(SystemExit):
        utility.parse(["--data", str(tmp_path), "--sets", "bare"])
    assert "known: " in capsys.readouterr().err


def test_contests_count_sets_by_paired_differences(capsys):
    utility = importlib.import_module("utility")
    ours_ahead = {
        "better": (0.01, 0.011, 0.012),
        "level": (0.01, -0.01, 0.001),
        "worse": (-0.2,) * 3,
    }
    results = {}
    for data_set, ahead in ours_ahead.items():
        for split, by in enumerate(ahead):
            mine = utility.Cell(data_set, "dpgb", 1.0, split)
            rival = utility.Cell(data_set, "lightgbm", 0.0, split)
            results[mine.key], results[rival.key] = {"rmse": 2.0 - by}, {"rmse": 2.0}
    refused = utility.Cell("level", "xgboost", 0.0, 0)
    order = [
        utility.Cell(*key.split("|")[:2], float(key.split("|")[2]), int(key[-1])) for key in results
    ]
    utility.print_contests(results | {refused.key: {}}, [*order, refused])
    assert capsys.readouterr().out.split()[-3:] == ["1", "1", "1"]


def test_tables_of_r_have_bounds_of_one_digit_and_no_other_target():
    r_tables = importlib.import_module("r_tables")
    rows = pd.DataFrame({
        "rownames": range(4), "pay": [-0.034, 0.0, 12.1, np.nan], "age": [17, 90, 30, 31], "one": 1.0,
        "kind": pd.Categorical(["u", None, "v", "v"]), "left": [True, False, True, True],
        "tells": range(4), "y": [3.0, 17.2, np.nan, 5.0],
    })  # fmt: skip
    source = r_tables.Source("package", "item", "y", "tells")
    table, schema = r_tables.table_of(rows, source, numbers=True)
    assert list(table) == ["pay", "age", "kind", "left", "y"]
    assert len(table) == 3
    pay, age, kind, left = schema.features.values()
    assert (pay.low, pay.high) == (-0.04, 0.0)
    assert (age.low, age.high, age.integer) == (10, 90, True)
    assert (kind.categories, left.categories) == (("u", "v"), ("False", "True"))
    assert (schema.target.low, schema.target.high) == (3.0, 20.0)
    _, schema = r_tables.table_of(rows, source._replace(target="kind"), numbers=False)
    assert schema.target.classes == ("u", "v")
