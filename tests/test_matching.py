"""Columns of X, matched by name, or by position if the caller says so; an unintended match by position warns."""

import json
import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from dpgb_dask import DPGBClassifier, DPGBRegressor, Ledger, Schema
from dpgb_dask.cli import main
from dpgb_dask.errors import (
    PlanError,
    PrefixedColumnsWarning,
    SchemaError,
    StructureError,
    UnnamedColumnsWarning,
)
from dpgb_dask.io import open_dataset, write_dataset
from dpgb_dask.matching import in_order
from dpgb_dask.testing import SeededNoise

NAMES = ["age", "job", "pay"]
SCHEMA = Schema({"age": (0, 100), "job": [0, 1, 2], "pay": (-5.0, 5.0)}, classes=[0, 1])
OTHER = ["pay", "age", "job"]  # the columns of the arrays below, where they are in another order
SETTINGS = {
    "schema": SCHEMA, "epsilon": 3.0, "delta": 1e-6, "recipe": "fdp-tr-newton", "n_estimators": 3, "random_state": 0,
    "noise": SeededNoise(0),
}  # fmt: skip


def rows(n=400):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(0, 100, n), rng.integers(0, 3, n), rng.normal(0, 2, n)])
    return pd.DataFrame(x, columns=NAMES), (x[:, 2] + x[:, 0] / 50 > 1).astype(int)


FRAME, Y = rows()
UNNAMED = {
    "NumPy": lambda x: x,
    "Fortran": np.asfortranarray,
    "objects": lambda x: x.astype(object),
    "list": lambda x: x.tolist(),
    "tuples": lambda x: tuple(map(tuple, x.tolist())),
    "pandas": pd.DataFrame,
    "Dask Array": lambda x: da.from_array(x, chunks=(150, 2)),
    "Dask DataFrame": lambda x: dd.from_pandas(pd.DataFrame(x), npartitions=3),
    "Zarr": lambda x: zarr.create_array({}, data=x, chunks=(150, 3)),
    "DataArray": lambda x: xr.DataArray(x, dims=("row", "feature")),
    "lazy DataArray": lambda x: xr.DataArray(da.from_array(x, chunks=(150, 3)), dims=("r", "f")),
}
NAMED = {
    "pandas": lambda x: x,
    "Dask DataFrame": lambda x: dd.from_pandas(x, npartitions=3),
    "DataArray": lambda x: xr.DataArray(
        x.to_numpy(), dims=("row", "feature"), coords={"feature": list(x.columns)}
    ),
    "Dataset": lambda x: xr.Dataset({name: ("row", x[name].to_numpy()) for name in x}),
}


def values_of(X):
    return np.asarray(X.compute() if hasattr(X, "compute") else X, dtype=float)


def model_of(X, y=None, **options):
    given = Y if y is None else y
    if isinstance(X, dd.DataFrame):
        given = dd.from_pandas(pd.Series(Y), npartitions=3)
    return DPGBClassifier(**(SETTINGS | options)).fit(X, given)


def chances(clf, X):
    return np.asarray(values_of(clf.predict_proba(X)))


@pytest.fixture(scope="module")
def expected():
    clf = model_of(FRAME)
    return chances(clf, FRAME)


@pytest.mark.parametrize("kind", UNNAMED)
def test_a_match_by_position_warns_each_time_and_names_the_first_columns(kind, expected):
    X = UNNAMED[kind](FRAME.to_numpy())
    match = r"column 0 → 'age', column 1 → 'job', column 2 → 'pay'\. .*columns='position'.*pandas"
    with pytest.warns(UnnamedColumnsWarning, match=match) as told:
        clf = model_of(X)
    assert len(told) == 1
    assert told[0].filename == __file__
    for method in (clf.predict, clf.predict_proba, clf.decision_function, clf.explain_local):
        for _ in range(2):
            with pytest.warns(UnnamedColumnsWarning, match=match):
                method(X)
    with pytest.warns(UnnamedColumnsWarning):
        np.testing.assert_array_equal(chances(clf, X), expected)


@pytest.mark.parametrize("kind", UNNAMED)
def test_what_is_meant_does_not_warn(kind, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X = UNNAMED[kind](FRAME.to_numpy())
        clf = model_of(X, columns="position")
        np.testing.assert_array_equal(chances(clf, X), expected)
        X = UNNAMED[kind](FRAME[OTHER].to_numpy())
        clf = model_of(X, columns=OTHER)
        np.testing.assert_array_equal(chances(clf, X), expected)


@pytest.mark.parametrize("kind", ["Dask Array", "Dask DataFrame", "Zarr", "lazy DataArray"])
def test_lazy_arrays_stay_lazy_as_they_are_put_in_order(kind):
    X = in_order(UNNAMED[kind](FRAME[OTHER].to_numpy()), SCHEMA, OTHER)
    lazy = X.data if isinstance(X, xr.DataArray) else X
    assert isinstance(lazy, da.Array | dd.DataFrame)
    np.testing.assert_array_equal(values_of(X), FRAME.to_numpy())


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("columns", [None, "position", OTHER])
def test_names_are_what_named_data_are_matched_by(kind, columns, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf = model_of(NAMED[kind](FRAME), columns=columns)
        np.testing.assert_array_equal(chances(clf, NAMED[kind](FRAME)), expected)


NUMBERED = {
    "pandas": lambda x, numbers: pd.DataFrame(x, columns=numbers),
    "Dask DataFrame": lambda x, numbers: dd.from_pandas(
        pd.DataFrame(x, columns=numbers), npartitions=3
    ),
    "DataArray": lambda x, numbers: xr.DataArray(x, dims=("r", "c"), coords={"c": numbers}),
}


@pytest.mark.parametrize("kind", NUMBERED)
@pytest.mark.parametrize("names", [NAMES, ["x0", "x1", "x2"]])
def test_numbered_columns_in_another_order_warn_even_under_default_names(kind, names):
    schema = Schema(dict(zip(names, SCHEMA.features.values(), strict=True)), classes=[0, 1])
    X = NUMBERED[kind](FRAME.to_numpy(), [2, 0, 1])
    for _ in range(2):
        with pytest.warns(UnnamedColumnsWarning, match=f"whatever their numbers.*{names[0]}"):
            in_order(X, schema)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_order(X, schema, "position")
        if names != NAMES:
            in_order(NUMBERED[kind](FRAME.to_numpy(), [0, 1, 2]), schema)


@pytest.mark.parametrize("kind", NUMBERED)
def test_numbers_that_a_schema_declares_are_what_columns_are_matched_by(kind):
    schema = Schema(dict(zip((1, 2, 3), SCHEMA.features.values(), strict=True)), classes=[0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_order(NUMBERED[kind](FRAME.to_numpy(), [1, 2, 3]), schema)
        in_order(NUMBERED[kind](FRAME.to_numpy(), [1, 3, 2]), schema, "position")
    for numbers, match in (
        ([1, 3, 2], "another order"),
        ([3, 4, 5], "missing"),
        ([1, 1, 1], "missing"),
    ):
        with pytest.raises(SchemaError, match=match):
            in_order(NUMBERED[kind](FRAME.to_numpy(), numbers), schema)
    # 0, 1 and 2: as if made of an array
    with pytest.warns(UnnamedColumnsWarning, match="X has no column names"):
        in_order(NUMBERED[kind](FRAME.to_numpy(), [0, 1, 2]), schema)


def test_what_has_default_names_or_none_to_know_does_not_warn():
    x = FRAME.to_numpy()
    plain = Schema({"x0": (0, 100), "x1": [0, 1, 2], "x2": (-5.0, 5.0)}, classes=[0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model_of(x, schema=plain).predict(x)
        model_of(x, schema="infer").predict(x)
        model_of(x, schema="infer", columns="position").predict(x)


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ("positions", "must be None, 'position', or a list"),
        (3, "must be None"),
        ([], "must be None"),
        (["age", 1, "pay"], "must be None"),
        ({"age", "job", "pay"}, "must be None"),
        (["age", "age", "job", "pay"], r"\['age'\] twice"),
        (["age", "job"], r"missing=\['pay'\]\. Name every"),
        (
            ["age", "job", "pay", "more"],
            r"does not match the schema\. It has names that the schema does not",
        ),
    ],
)
def test_a_list_that_does_not_match_is_refused_before_the_charge(columns, match, tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=9, delta=1e-5)
    asked = {"columns": columns, "noise": None, "ledger": ledger, "account": "people"}
    with pytest.raises(PlanError, match=match):
        model_of(FRAME.to_numpy(), **asked)
    assert [entry.kind for entry in ledger.history("people")] == ["OPEN"]


@pytest.mark.parametrize("kind", UNNAMED)
def test_an_array_of_another_width_is_refused(kind):
    X = UNNAMED[kind](np.ones((400, 4)))
    with pytest.raises(StructureError, match="columns"):
        model_of(X, columns=OTHER)


def test_infer_takes_no_list():
    with pytest.raises(PlanError, match="needs a declared schema"):
        model_of(FRAME.to_numpy(), schema="infer", columns=NAMES)


def test_a_list_may_name_what_the_schema_leaves_out():
    facts = SCHEMA.to_dict() | {"ignore": ["id"]}
    table = np.column_stack([np.arange(400), FRAME[OTHER].to_numpy(), Y])
    want = model_of(FRAME, schema=facts)
    got = model_of(table, schema=facts, columns=["id", *OTHER, "target"])
    np.testing.assert_array_equal(chances(got, table), chances(want, FRAME))


@pytest.mark.parametrize("kind", ["NumPy", "Dask Array", "pandas", "Dask DataFrame", "Zarr"])
def test_a_list_may_name_the_unit(kind):
    units = {"unit_id": "person", "max_rows_per_unit": 2}
    person = np.repeat(np.arange(200), 2).astype(float)
    want = model_of(FRAME.assign(person=person), **units)
    table = UNNAMED[kind](np.column_stack([person, FRAME[OTHER].to_numpy()]))
    got = model_of(table, **units, columns=["person", *OTHER])
    np.testing.assert_array_equal(chances(got, table), chances(want, FRAME))
    rows = UNNAMED[kind](FRAME[OTHER].to_numpy())  # as named tables need no unit to predict, either
    assert got.n_features_in_ == len(OTHER)
    np.testing.assert_array_equal(chances(got, rows), chances(want, FRAME))


# ---- prefixes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NAMED)
def test_prefixes_of_transformers_are_understood(kind, expected):
    named = FRAME.rename(columns={"age": "scale__age", "job": "remainder__job"})
    match = r"'age' from a name that ends in '__age', 'job' from .*verbose_feature_names_out"
    with pytest.warns(PrefixedColumnsWarning, match=match) as told:
        clf = model_of(NAMED[kind](named))
    assert len(told) == 1
    assert told[0].filename == __file__
    assert "scale" not in str(told[0].message)  # a name that is not the schema's may be a value
    for _ in range(2):
        with pytest.warns(PrefixedColumnsWarning, match=match):
            got = chances(clf, NAMED[kind](named))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("columns", [None, "position", OTHER])
def test_another_thing_under_a_prefix_is_not_taken_without_a_word(columns):
    clf = model_of(FRAME, columns=columns)
    for method in (clf.predict, clf.predict_proba, clf.explain_local):
        with pytest.warns(PrefixedColumnsWarning, match="'pay'"):
            method(FRAME.rename(columns={"pay": "before__pay"}))


@pytest.mark.parametrize(
    "names",
    [
        ["one__age", "job", "pay", "other__age"],  # two may be meant
        ["one__age", "job", "pay", "other__job"],  # job is there already: the other is not declared
        ["age_", "job", "pay"],
        ["one_age", "job", "pay"],
    ],
)
@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.filterwarnings("ignore::dpgb_dask.errors.PrefixedColumnsWarning")
def test_prefixes_that_may_mean_two_things_are_refused(kind, names):
    wide = FRAME.assign(more=1.0)[[*NAMES, "more"][: len(names)]]
    with pytest.raises(SchemaError) as told:
        model_of(NAMED[kind](wide.set_axis(names, axis=1)))
    assert "other__age" not in str(told.value)


def test_a_name_that_ends_as_two_features_do_is_refused():
    schema = Schema({"job": (0, 1), "a__job": (0, 1)}, classes=[0, 1])
    X = pd.DataFrame({"one__a__job": [0.0, 1.0]})
    with pytest.raises(SchemaError):
        in_order(X, schema)


def test_the_unit_and_the_target_are_never_found_under_a_prefix():
    table = FRAME.assign(before__person=np.repeat(np.arange(200), 2))
    with pytest.raises((SchemaError, StructureError), match="person"):
        model_of(table, unit_id="person", max_rows_per_unit=2)
    named = Schema(SCHEMA.features, classes=[0, 1], target="y")
    with pytest.raises((SchemaError, StructureError)):
        DPGBClassifier(**(SETTINGS | {"schema": named})).fit(FRAME.assign(lag__y=Y), None)
    with pytest.raises((SchemaError, StructureError)):
        model_of(FRAME.assign(lag__y=Y), schema=named)


# ---- scikit-learn ----------------------------------------------------------------------------------------------------


def transformer():
    """Puts the columns into another order, as ColumnTransformer does."""
    return make_column_transformer(
        (FunctionTransformer(), ["pay"]), remainder="passthrough", verbose_feature_names_out=False
    )


def test_a_transformer_that_permutes_columns_warns_or_keeps_their_names(expected):
    array = make_pipeline(transformer(), DPGBClassifier(**SETTINGS))
    with pytest.warns(UnnamedColumnsWarning):
        array.fit(FRAME, Y)
    said = make_pipeline(transformer(), DPGBClassifier(**SETTINGS, columns=["pay", "age", "job"]))
    said.fit(FRAME, Y)
    np.testing.assert_array_equal(said.predict_proba(FRAME), expected)
    named = make_pipeline(transformer().set_output(transform="pandas"), DPGBClassifier(**SETTINGS))
    with pytest.raises(SchemaError, match="another order"):
        named.fit(FRAME, Y)
    in_order_first = make_column_transformer(
        (FunctionTransformer(), ["age"]),
        remainder="passthrough",
        verbose_feature_names_out=False,
    )
    named = make_pipeline(
        in_order_first.set_output(transform="pandas"), DPGBClassifier(**SETTINGS)
    ).fit(FRAME, Y)
    np.testing.assert_array_equal(named.predict_proba(FRAME), expected)


def test_one_hot_names_under_a_prefix_are_understood():
    features = {"job_0": bool, "job_1": bool, "job_2": bool, "age": (-9, 9), "pay": (-5, 5)}
    schema = Schema(features, classes=[0, 1])
    encode = make_column_transformer(
        (OneHotEncoder(sparse_output=False, dtype=int), ["job"]), (StandardScaler(), ["age"]), remainder="passthrough"
    )  # fmt: skip
    table = FRAME.astype({"job": int})
    clf = make_pipeline(
        encode.set_output(transform="pandas"), DPGBClassifier(**(SETTINGS | {"schema": schema}))
    )
    with pytest.warns(PrefixedColumnsWarning):
        assert clf.fit(table, Y).predict(table).shape == (400,)


def test_the_choice_is_cloned_searched_and_saved(tmp_path, expected):
    array = FRAME[OTHER].to_numpy()
    clf = DPGBClassifier(**SETTINGS, columns=OTHER)
    assert clone(clf).columns == OTHER
    search = GridSearchCV(clf, {"epsilon": [1.0, 3.0]}, cv=2).fit(array, Y)
    assert search.best_estimator_.columns == OTHER
    for given in (OTHER, tuple(OTHER), np.array(OTHER), pd.Index(OTHER), "position"):
        x = FRAME.to_numpy() if isinstance(given, str) else array
        model_of(x, columns=given).save(tmp_path / "model.json")
        loaded = DPGBClassifier.load(tmp_path / "model.json")
        assert loaded.columns == (given if isinstance(given, str) else OTHER)
        np.testing.assert_array_equal(loaded.predict_proba(x), expected)


@pytest.mark.parametrize("wrong", [5, "age", ["age", "age"], {"age": 1}, [["age"]]])
def test_a_model_file_with_another_choice_is_refused(wrong, tmp_path):
    model_of(FRAME).save(tmp_path / "model.json")
    file = json.loads((tmp_path / "model.json").read_text())
    file["version"] = 2  # older files carry no digests
    file["parameters"]["columns"] = wrong
    for name in set(file) - {
        "format",
        "version",
        "estimator",
        "parameters",
        "schema",
        "model",
        "report",
    }:
        del file[name]
    (tmp_path / "model.json").write_text(json.dumps(file))
    with pytest.raises(StructureError):
        DPGBClassifier.load(tmp_path / "model.json")


def test_regression_takes_the_choice_too():
    schema = Schema(SCHEMA.features, target_bounds=(0, 1))
    settings = {**SETTINGS, "schema": schema}
    want = DPGBRegressor(**settings).fit(FRAME, Y.astype(float)).predict(FRAME)
    array = FRAME[OTHER].to_numpy()
    got = DPGBRegressor(**settings, columns=OTHER).fit(array, Y.astype(float)).predict(array)
    np.testing.assert_array_equal(got, want)


# ---- data sets and the command line ----------------------------------------------------------------------------------


def test_a_data_set_keeps_the_names(tmp_path, expected):
    with pytest.warns(UnnamedColumnsWarning):
        write_dataset(tmp_path / "position.zarr", FRAME.to_numpy(), Y, schema=SCHEMA)
    array = np.column_stack([FRAME[OTHER].to_numpy(), Y])
    write_dataset(tmp_path / "list.zarr", array, schema=SCHEMA, columns=[*OTHER, "target"])
    for name in ("position", "list"):
        data = open_dataset(tmp_path / f"{name}.zarr")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            clf = model_of(data.X, data.y)
            np.testing.assert_array_equal(chances(clf, data.X), expected)


def test_the_command_line_takes_the_choice(tmp_path, capsys):
    SCHEMA.save(tmp_path / "s.json")
    store = zarr.create_group(tmp_path / "rows.zarr")
    store.create_array("X", data=FRAME[OTHER].to_numpy())
    store.create_array("y", data=Y)
    common = [str(tmp_path / "rows.zarr"), "--schema", str(tmp_path / "s.json")]
    fit = [*common, "--epsilon", "1", "--delta", "1e-6", "--quiet", "--recipe", "fdp-tr-newton"]
    assert main(["fit", *fit, "--out", str(tmp_path / "warned.json")]) == 0
    assert "dpgb-dask: UnnamedColumnsWarning: X has no column names" in capsys.readouterr().err
    said = ["--columns", "pay, age,job"]
    assert main(["fit", *fit, *said, "--out", str(tmp_path / "m.json")]) == 0
    assert DPGBClassifier.load(tmp_path / "m.json").columns == OTHER
    assert main(["fit", *fit, "--columns", "pay,age", "--out", str(tmp_path / "n.json")]) == 2
    assert "missing=['job']" in capsys.readouterr().err
    assert main(["convert", *common, *said, "--out", str(tmp_path / "set.zarr")]) == 0
    np.testing.assert_array_equal(open_dataset(tmp_path / "set.zarr").X, FRAME.to_numpy())


@pytest.mark.parametrize("rows", [[[1.0, 2.0]], [[1.0, 2.0, 3.0], [1.0]], [1.0, 2.0, 3.0]])
def test_a_row_of_a_list_has_exactly_the_declared_columns(rows):
    """As a fit does, predict and check say which row it is that has another width, whatever NumPy would make of it."""
    assert SCHEMA.n_features == 3
    with pytest.raises(StructureError, match="a row in it is not a list of 3 columns"):
        in_order(rows, SCHEMA, "position")
