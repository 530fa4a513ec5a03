"""Bad input: wrong structure gives one clear error before any charge; a value never raises, warns, or is shown."""

import json
import logging
import os
import warnings
from itertools import product
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from thinned import one_of_each, thinned

from dpgb_dask import (
    BudgetExceededError,
    DPGBClassifier,
    DPGBError,
    DPGBRegressor,
    Ledger,
    LedgerError,
    LedgerUnavailableError,
    PlanError,
    Schema,
    SchemaError,
    StructureError,
    UnreadValuesWarning,
    UnsupportedCollectionError,
    recipes,
)
from dpgb_dask.losses import Huber, Quantile
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training import config

ACCOUNT = "people"


@pytest.fixture
def ledger(tmp_path):
    book = Ledger(f"sqlite:///{tmp_path}/budget.db")
    book.open_account(ACCOUNT, epsilon=1.0, delta=1e-6)
    return book


def check_refused(ledger, error, match, fit, estimator):
    """The fit raises one of our errors; the account and the estimator are as before."""
    before = ledger.account(ACCOUNT), ledger.history(ACCOUNT)
    state = dict(vars(estimator))
    files = sorted(os.listdir(ledger.directory)) if ledger.directory.exists() else []
    with pytest.raises(error, match=match) as caught:
        fit()
    assert isinstance(caught.value, DPGBError)
    assert (ledger.account(ACCOUNT), ledger.history(ACCOUNT)) == before
    assert vars(estimator) == state
    assert (sorted(os.listdir(ledger.directory)) if ledger.directory.exists() else []) == files
    return str(caught.value)


# ---- schema and parameters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"schema": None}, SchemaError, "schema is missing"),
        ({"schema": 7}, SchemaError, "int"),
        (
            {"schema": {"features": {"x": {"type": "numeric"}}, "target": {}}},
            SchemaError,
            "target type",
        ),
        (
            {
                "schema": {
                    "features": {"x": {"type": "numeric"}},
                    "target": {"type": "binary", "classes": [0, 1]},
                }
            },
            SchemaError,
            "'x' has no bounds",
        ),
        (
            {
                "schema": {
                    "features": {"x": {"type": "categorical", "categories": list(range(251))}},
                    "target": {"type": "binary", "classes": [0, 1]},
                }
            },
            SchemaError,
            "251 categories, more than 250",
        ),
        ({"schema": "nowhere.json"}, SchemaError, "cannot be read"),
        ({"epsilon": 0}, PlanError, "epsilon=0"),
        ({"epsilon": -1.0}, PlanError, "epsilon=-1"),
        ({"epsilon": float("nan")}, PlanError, "epsilon=nan"),
        ({"epsilon": float("inf")}, PlanError, "epsilon=inf"),
        ({"epsilon": "1"}, PlanError, "epsilon='1'"),
        ({"epsilon": True}, PlanError, "epsilon=True"),
        ({"delta": 0}, PlanError, "delta=0"),
        ({"delta": 1}, PlanError, "delta=1"),
        ({"delta": -1e-6}, PlanError, "delta=-1e-06"),
        ({"delta": float("nan")}, PlanError, "delta=nan"),
        ({"recipe": "nonsense"}, PlanError, "recipe='nonsense'"),
        ({"recipe": ["auto"]}, PlanError, "list"),
        ({"loss": "hinge"}, PlanError, "loss='hinge'"),
        ({"loss": 3}, PlanError, "loss=3"),
        ({"loss": "squared_error"}, PlanError, "does not (fit|serve) a binary target"),
        ({"loss": Quantile(0.9)}, PlanError, "loss='quantile'"),
        ({"recipe": "dpboost", "max_depth": 11}, PlanError, "max_depth=11"),
        ({"recipe": "dpboost", "max_depth": 0}, PlanError, "max_depth=0"),
        ({"recipe": "dpboost", "n_estimators": 0}, PlanError, "n_estimators=0"),
        ({"recipe": "dpboost", "n_estimators": 2.5}, PlanError, "n_estimators=2.5"),
        ({"recipe": "dpboost", "learning_rate": 0}, PlanError, "learning_rate=0"),
        ({"recipe": "fdp-tr-newton", "max_bins": 1}, PlanError, "max_bins=1"),
        ({"recipe": "fdp-tr-newton", "max_bins": 300}, PlanError, "max_bins=300"),
        ({"recipe": "fdp-tr-newton", "max_depth": True}, PlanError, "max_depth=True"),
        ({"max_bins": 1}, PlanError, "max_bins=1"),
        ({"max_bins": 1000}, PlanError, "max_bins=1000"),
        ({"n_estimators": 0}, PlanError, "n_estimators=0"),
        ({"learning_rate": -1}, PlanError, "learning_rate=-1"),
        ({"max_depth": 0}, PlanError, "max_depth=0"),
        ({"max_depth": 9}, PlanError, r"in \[1, 8\]\. That is the rule of recipe 'auto'\."),
        ({"cache": "everything"}, PlanError, "cache='everything'"),
        ({"cache": 3}, PlanError, "cache=3"),
        ({"memory_limit": "lots"}, PlanError, "memory_limit='lots'"),
        ({"callbacks": [3]}, PlanError, "callbacks="),
        ({"callbacks": print}, PlanError, "must be a sequence"),
        (
            {"callbacks": [len]},
            PlanError,
            r"functions of \(stage, round, of how many\)",
        ),
        (
            {"noise": SeededNoise},
            PlanError,
            r"Leave it None; for a test, give .*SeededNoise\(seed\)",
        ),
        ({"memory_limit": 0}, PlanError, "memory_limit=0"),
        ({"memory_limit": True}, PlanError, "memory_limit=True"),
        ({"cache": "memory", "memory_limit": "4 GB"}, PlanError, "memory_limit=4000000000"),
        ({"random_state": -1}, PlanError, "random_state=-1"),
        ({"random_state": "x"}, PlanError, "random_state='x'"),
        ({"unit_id": "person"}, SchemaError, "'person' is not a column"),
        ({"unit_id": "age"}, SchemaError, "unit_id='age' is also a feature"),
        ({"max_rows_per_unit": 2}, PlanError, "max_rows_per_unit=2 needs a unit_id"),
        ({"unit_id": "person", "max_rows_per_unit": 0}, PlanError, "max_rows_per_unit=0"),
        ({"unit_id": "person", "max_rows_per_unit": 1.5}, PlanError, "max_rows_per_unit=1.5"),
        ({"noise": SeededNoise(0)}, PlanError, "SeededNoise"),
        ({"schema": "infer"}, PlanError, "infer"),
        ({"account": None}, PlanError, "ledger is given without account"),
        ({"ledger": None}, PlanError, "account is given without ledger"),
        ({"ledger": "sqlite:///x.db"}, PlanError, "ledger is a str"),
        ({"account": "others"}, LedgerError, "'others' is not in the ledger"),
        ({"account": ["others"]}, LedgerError, "'others'. is not in the ledger"),
    ],
)
def test_parameters_are_refused_before_any_charge(
    ledger, binary_schema, features, labels, changes, error, match
):
    settings = {"schema": binary_schema, "ledger": ledger, "account": ACCOUNT}
    estimator = DPGBClassifier(**(settings | changes))
    check_refused(ledger, error, match, lambda: estimator.fit(features, labels), estimator)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block-rows", -5), ("block-rows", 0), ("block-rows", "many"), ("block-rows", 1.5), ("n-threads", -3),
        ("n-threads", "two"), ("n-threads", True), ("fan-in", 1), ("worker-wait", 0), ("backend", "x"), ("speed", 1),
    ],
)  # fmt: skip
def test_settings_of_dask_are_refused_before_any_charge(
    ledger, binary_schema, features, labels, key, value
):
    estimator = DPGBClassifier(schema=binary_schema, ledger=ledger, account=ACCOUNT)
    with dask.config.set({"dpgb-dask": {key: value}}):
        check_refused(ledger, PlanError, key, lambda: estimator.fit(features, labels), estimator)


def test_settings_of_dask_have_underscores_in_the_environment():
    given = dask.config.collect_env({"DASK_DPGB_DASK__N_THREADS": "2"})
    with dask.config.set(given):
        assert config.execution().n_threads == 2


@pytest.mark.parametrize(
    ("recipe", "loss", "bounds", "match"),
    [
        ("auto", "absolute_error", (-15, 15), "Recipes that have it: .*dp-ebm"),
        ("dp-rf", "poisson", (0, 15), "Recipes that have it: .*fdp-tr-newton"),
        ("dp-rf", Huber(0.2), (-15, 15), "Recipes that have it: .*fdp-tr-newton"),
        ("fdp-tr-newton", "poisson", (-15, 15), "never negative"),
        ("fdp-tr-newton", "log_loss", (-15, 15), "does not (fit|serve) a numeric target"),
    ],
)
def test_losses_that_cannot_be_are_refused_before_any_charge(
    ledger, binary_schema, features, numbers, recipe, loss, bounds, match
):
    schema = Schema(binary_schema.features, target_bounds=bounds)
    settings = {"schema": schema, "ledger": ledger, "account": ACCOUNT}
    estimator = DPGBRegressor(recipe=recipe, loss=loss, **settings)
    check_refused(ledger, PlanError, match, lambda: estimator.fit(features, numbers), estimator)


def test_targets_that_a_recipe_cannot_serve_are_refused_before_any_charge(
    ledger, multiclass_schema, features, names_of_class
):
    settings = {"schema": multiclass_schema, "ledger": ledger, "account": ACCOUNT}
    estimator = DPGBClassifier(recipe="dpboost", **settings)
    check_refused(
        ledger, PlanError, "class", lambda: estimator.fit(features, names_of_class), estimator
    )


@pytest.mark.parametrize("form", ["object", "dict", "file", "unit"])
def test_facts_read_from_data_charge_nothing_in_any_form(
    ledger, binary_schema, features, labels, form, tmp_path
):
    inferred = Schema(binary_schema.features, classes=[0, 1], private=False)
    inferred.save(tmp_path / "s.json")
    given = {"dict": inferred.to_dict(), "file": tmp_path / "s.json"}.get(form, inferred)
    unit = {"unit_id": "person", "max_rows_per_unit": 2} if form == "unit" else {}
    estimator = DPGBClassifier(schema=given, ledger=ledger, account=ACCOUNT, **unit)
    table = features.assign(person=range(len(features))) if unit else features
    check_refused(
        ledger, PlanError, "private=False", lambda: estimator.fit(table, labels), estimator
    )


def test_schema_files_that_cannot_be_read_are_refused(
    ledger, binary_schema, features, labels, tmp_path
):
    path = tmp_path / "s.json"
    for text, match in (("{", "not JSON"), ("[]", "JSON object"), ('{"version": 2}', "newer")):
        path.write_text(text)
        estimator = DPGBClassifier(schema=path, ledger=ledger, account=ACCOUNT)
        check_refused(
            ledger, SchemaError, match, lambda e=estimator: e.fit(features, labels), estimator
        )
    data = binary_schema.to_dict() | {"colour": 1}
    path.write_text(json.dumps(data))
    check_refused(ledger, SchemaError, "colour", lambda: estimator.fit(features, labels), estimator)


def test_target_of_the_other_kind_is_refused(
    ledger, binary_schema, regression_schema, features, labels
):
    for kind, schema, way_out in (
        (
            DPGBRegressor,
            binary_schema,
            r"declare their bounds, Schema\(\.\.\., target_bounds=\(low, high\)\)\.$",
        ),
        (
            DPGBClassifier,
            regression_schema,
            r"declare them, Schema\(\.\.\., classes=\[\.\.\.\]\)\.$",
        ),
    ):
        estimator = kind(schema=schema, ledger=ledger, account=ACCOUNT)
        check_refused(
            ledger,
            SchemaError,
            way_out,
            lambda e=estimator: e.fit(features, labels),
            estimator,
        )


# ---- structure of the data -------------------------------------------------------------------------------------------


def without_known_chunks(array):
    return array[array[:, 2] >= 0]


def as_numbers(table):
    return table.assign(color=0.0).to_numpy(np.float64)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda t: t.drop(columns="age"), SchemaError, r"missing=\['age'\]"),
        (
            lambda t: t.rename(columns={"age": "Age"}),
            SchemaError,
            r"missing=\['age'\], and the data have columns that the schema does not declare; schema.check",
        ),
        (lambda t: t[["z", "x", "age", "color"]], SchemaError, "another order"),
        (
            lambda t: t.assign(Jane="n"),
            SchemaError,
            "schema: the data have columns that the schema does not",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    ledger, binary_schema, features, labels, change, error, match, lazy
):
    estimator = DPGBClassifier(schema=binary_schema, ledger=ledger, account=ACCOUNT)
    table, y = change(features), pd.Series(labels)
    if lazy:
        table, y = dd.from_pandas(table, npartitions=3), dd.from_pandas(y, npartitions=3)
    check_refused(ledger, error, match, lambda: estimator.fit(table, y), estimator)


@pytest.mark.parametrize(
    ("X", "y", "error", "match"),
    [
        (lambda x, _: x[:, :3], lambda y: y, StructureError, "columns"),
        (lambda x, _: np.hstack([x, x]), lambda y: y, StructureError, "columns"),
        (
            lambda x, _: x[0],
            lambda y: y,
            StructureError,
            r"dimension.*Of one row, X\.reshape\(1, -1\)",
        ),
        (
            lambda _, t: t.iloc[0],
            lambda y: y,
            StructureError,
            r"dimension.*Of one row, X\.to_frame\(\)\.T",
        ),
        (lambda _, t: [t], lambda y: y, UnsupportedCollectionError, r"list.*parts: pandas\.concat"),
        (lambda _, t: [dask.delayed(t)], lambda y: y, UnsupportedCollectionError, "from_delayed"),
        (
            lambda _, t: t.to_dict("list"),
            lambda y: y,
            UnsupportedCollectionError,
            r"pandas\.DataFrame\(X\)",
        ),
        (lambda x, _: x[:-1], lambda y: y, StructureError, "different numbers of rows"),
        (lambda x, _: x, lambda _: None, StructureError, "y is None"),
        (lambda x, _: x, lambda y: np.stack([y, y], axis=1), StructureError, "one column"),
        (lambda x, _: x, lambda y: y[:-1], StructureError, "different numbers of rows"),
        (lambda x, _: scipy.sparse.csr_array(x), lambda y: y, UnsupportedCollectionError, "sparse"),
        (
            lambda x, _: da.from_array(x, chunks=(500, 4)).map_blocks(
                scipy.sparse.csr_array, meta=scipy.sparse.csr_array((0, 0))
            ),
            lambda y: y,
            UnsupportedCollectionError,
            "csr_array",
        ),
        (lambda x, _: iter(x), lambda y: y, UnsupportedCollectionError, "iterator"),
        (lambda _, t: dask.delayed(t), lambda y: y, UnsupportedCollectionError, "from_delayed"),
        (lambda *_: Path("x.parquet"), lambda y: y, UnsupportedCollectionError, "Read the file"),
        (lambda x, _: [*x.tolist(), [1, 2, 3]], lambda y: [*y, 1], StructureError, "4 columns"),
        (lambda x, _: x[:, 0].tolist(), lambda y: y, StructureError, "4 columns"),
        (lambda _, t: t.to_dict("records"), lambda y: y, StructureError, "4 columns"),
        (lambda x, _: list(x[:, :, None]), lambda y: y, StructureError, "4 columns"),
        (
            lambda x, _: da.from_array(x, chunks=(500, 4)),
            lambda y: da.from_array(y[:-1], chunks=500),
            StructureError,
            "different numbers of rows",
        ),
        (
            lambda _, t: dd.from_pandas(t, npartitions=3),
            lambda y: dd.from_pandas(pd.Series(y), npartitions=4),
            StructureError,
            "different numbers of chunks.*persist the whole table",
        ),
        (
            lambda x, _: without_known_chunks(da.from_array(x, chunks=(500, 4))),
            lambda y: da.from_array(y, chunks=750),
            StructureError,
            "different numbers of chunks",
        ),
    ],
)
def test_data_that_do_not_fit_together_are_refused(
    ledger, binary_schema, features, labels, X, y, error, match
):
    estimator = DPGBClassifier(schema=binary_schema, ledger=ledger, account=ACCOUNT)
    x = as_numbers(features)
    message = check_refused(
        ledger, error, match, lambda: estimator.fit(X(x, features), y(labels)), estimator
    )
    assert str(len(x)) not in message
    assert str(len(x) - 1) not in message


BRIEF = recipes.RECIPES["auto"].brief()  # where reading is the subject
ODD = [[1], [1, 2], (), {}, "x", None, np.arange(3), np.nan, b"\xff", 10**400]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", thinned([(odd,) for odd in ODD], every=2), ids=repr)
@pytest.mark.parametrize("n_odd", thinned([1, 5, 6], every=3))
def test_values_in_lists_never_decide_a_shape_or_type(binary_schema, odd, n_odd):
    """NumPy makes one more dimension of lists in a list if all are of one length, and text of all if one is."""
    rows, labels, weights = [[0.5, -1, 30, "red"] for _ in range(6)], [0, 1] * 3, [1] * 6
    schema = Schema(binary_schema.features, classes=[0, 1], max_weight=2)
    settings = {"schema": schema, "noise": SeededNoise(0), "random_state": 0}
    settings |= {"on_few_rows": "continue", "columns": "position", "recipe": BRIEF}
    rows[:n_odd] = [[odd] * 4 for _ in range(n_odd)]
    labels[:n_odd] = weights[:n_odd] = [odd] * n_odd
    DPGBClassifier(**settings).fit(rows, [0, 1] * 3)
    DPGBClassifier(**settings).fit([tuple(row) for row in rows], labels)
    DPGBClassifier(**settings).fit(rows, labels, sample_weight=weights)
    numbers = Schema(binary_schema.features, target_bounds=(0, 1))
    DPGBRegressor(**(settings | {"schema": numbers})).fit(rows, labels)


def test_a_target_of_the_other_estimator_is_told_how_to_declare_its_own():
    """Two numbers in the place of ``classes`` are two classes, which bounds may be meant by."""
    rows, features = np.zeros((9, 1)), {"x": (-5, 5)}
    numbers = (
        r"declares the classes \[-6, 6\] as its target, which DPGBClassifier predicts\. DPGBRegressor predicts"
        r" numbers: declare their bounds, Schema\(\.\.\., target_bounds=\(low, high\)\)\."
    )
    with pytest.raises(SchemaError, match=numbers):
        DPGBRegressor(epsilon=1, schema=Schema(features, (-6, 6))).fit(rows, rows[:, 0])
    classes = (
        r"declares numbers from -6 to 6 as its target, which DPGBRegressor predicts\. DPGBClassifier predicts"
        r" classes: declare them, Schema\(\.\.\., classes=\[\.\.\.\]\)\."
    )
    bounds = Schema(features, target_bounds=(-6, 6))
    with pytest.raises(SchemaError, match=classes):
        DPGBClassifier(epsilon=1, schema=bounds).fit(rows, rows[:, 0])


def test_lists_of_no_rows_train_as_arrays_do(binary_schema):
    settings = {"schema": binary_schema, "noise": SeededNoise(0), "random_state": 0}
    settings |= {"on_few_rows": "continue", "recipe": BRIEF}
    empty = DPGBClassifier(**settings).fit([], [])
    same = DPGBClassifier(**settings).fit(np.empty((0, 4)), np.empty(0))
    rows = [[0.5, -1, 30, "red"]]
    np.testing.assert_array_equal(empty.predict_proba(rows), same.predict_proba(rows))


def test_labels_may_be_a_column_of_lists(binary_schema, features, labels):
    settings = {"schema": binary_schema, "noise": SeededNoise(0), "random_state": 0}
    settings["recipe"] = BRIEF
    nested = DPGBClassifier(**settings).fit(features, [[label] for label in labels.tolist()])
    flat = DPGBClassifier(**settings).fit(features, labels.tolist())
    np.testing.assert_array_equal(nested.predict_proba(features), flat.predict_proba(features))


def test_ignored_columns_may_stay(binary_schema, features, labels):
    schema = Schema.from_dict(binary_schema.to_dict() | {"ignore": ["id"]})
    wide = features.assign(target=labels).assign(id="someone")[["id", *features.columns, "target"]]
    settings = {"noise": SeededNoise(0), "random_state": 0, "recipe": BRIEF}
    with_them = DPGBClassifier(schema=schema, **settings).fit(wide, labels)
    without = DPGBClassifier(schema=schema, **settings).fit(features, labels)
    np.testing.assert_array_equal(with_them.predict_proba(wide), without.predict_proba(features))


def test_array_query_planning_is_refused(ledger, binary_schema, features, labels):
    estimator = DPGBClassifier(schema=binary_schema, ledger=ledger, account=ACCOUNT)
    with dask.config.set({"array.query-planning": True}):
        check_refused(
            ledger,
            UnsupportedCollectionError,
            "query planning",
            lambda: estimator.fit(features, labels),
            estimator,
        )


# ---- ledger ----------------------------------------------------------------------------------------------------------


def test_account_with_too_little_left_is_refused(ledger, binary_schema, features, labels):
    settings = {"schema": binary_schema, "ledger": ledger, "account": ACCOUNT}
    DPGBClassifier(epsilon=0.8, recipe=BRIEF, **settings).fit(features, labels)
    estimator = DPGBClassifier(epsilon=0.9, **settings)
    message = check_refused(
        ledger,
        BudgetExceededError,
        "too little left",
        lambda: estimator.fit(features, labels),
        estimator,
    )
    for part in ("requested", "remaining", "difference", "would fit"):
        assert part in message
    assert estimator.privacy_cost().share > 1


def test_ledger_that_cannot_be_used_is_refused(ledger, binary_schema, features, labels, tmp_path):
    nowhere = Ledger(f"sqlite:///{tmp_path}/no/such/directory/budget.db")
    estimator = DPGBClassifier(schema=binary_schema, ledger=nowhere, account=ACCOUNT)
    check_refused(
        ledger,
        LedgerUnavailableError,
        "charged",
        lambda: estimator.fit(features, labels),
        estimator,
    )


def test_read_only_ledger_is_refused(ledger, binary_schema, features, labels, tmp_path):
    copy = tmp_path / "kept"
    copy.mkdir()
    book = Ledger(f"sqlite:///{copy}/budget.db")
    book.open_account(ACCOUNT, epsilon=1.0, delta=1e-6)
    estimator = DPGBClassifier(
        schema=binary_schema,
        ledger=Ledger(f"sqlite:///file:{copy}/budget.db?mode=ro&uri=true"),
        account=ACCOUNT,
    )
    check_refused(
        ledger,
        LedgerUnavailableError,
        "charged",
        lambda: estimator.fit(features, labels),
        estimator,
    )
    assert book.remaining(ACCOUNT) == 1.0


# ---- values ----------------------------------------------------------------------------------------------------------


REPEATED = {"recipe": BRIEF, "noise": SeededNoise(0), "random_state": 0}


def let_out(estimator, tmp_path):
    """Everything a fit lets out but the numbers themselves: file structure, attributes, text around the numbers."""
    path = tmp_path / "model.json"
    estimator.save(path)
    assert estimator.privacy_report_ is not None  # an attribute once it is asked for

    def shape(value):
        if isinstance(value, dict):
            return {key: shape(item) for key, item in value.items()}
        if isinstance(value, list):
            records = [item for item in value if isinstance(item, dict)]
            return (
                sorted({json.dumps(shape(item), sort_keys=True) for item in records}) or "numbers"
            )
        return "number" if isinstance(value, float) else type(value).__name__

    data = json.loads(path.read_text())  # how long its lists are is decided by released numbers
    attributes = sorted((name, type(value).__name__) for name, value in vars(estimator).items())
    parts = {"pairs": None, "trees": None}  # how many there are is decided by released numbers
    return shape(data["model"] | parts), shape(data["report"]["public"]), attributes, str(estimator)


def quietly(fit, caplog):
    """Fit with warnings as errors and every log record caught; return what was logged above DEBUG."""
    with warnings.catch_warnings(), caplog.at_level(logging.DEBUG):
        warnings.simplefilter("error")
        warnings.simplefilter(
            "ignore", UnreadValuesWarning
        )  # told by released numbers, as noise allows
        caplog.clear()
        out = fit()
    return out, [record for record in caplog.records if record.levelno >= logging.WARNING]


ODD_ROWS = {
    "plus infinity": {"x": np.inf},
    "minus infinity": {"x": -np.inf},
    "huge": {"x": 1e308},
    "missing where none is declared": {"x": np.nan},
    "fraction in an integer column": {"age": 33.5},
    "unknown category": {"color": "ultraviolet"},
    "missing category": {"color": None},
    "empty text": {"color": ""},
}


@pytest.mark.parametrize("case", thinned(ODD_ROWS, every=2))
def test_odd_value_fits_in_silence(binary_schema, features, labels, case, caplog, tmp_path, capfd):
    odd = features.assign(age=features["age"].astype(float))
    for name, value in ODD_ROWS[case].items():
        odd.loc[7, name] = value
    estimator = DPGBClassifier(schema=binary_schema, **REPEATED)
    without, _ = quietly(lambda: clone(estimator).fit(features, labels), caplog)
    fitted, loud = quietly(lambda: clone(estimator).fit(odd, labels), caplog)
    assert loud == []
    assert capfd.readouterr() == ("", "")
    assert let_out(fitted, tmp_path) == let_out(without, tmp_path)
    np.testing.assert_array_equal(np.isfinite(fitted.predict_proba(odd)), True)


@pytest.mark.parametrize(
    ("odd", "same_as"),
    [
        ({"x": np.inf}, {"x": 3.0}),
        ({"x": -1e300}, {"x": -3.0}),
        ({"age": 1e9}, {"age": 90}),
        ({"color": "ultraviolet"}, {"color": "infrared"}),
        ({"color": np.nan}, {"color": None}),
    ],
)
def test_value_out_of_range_is_its_bound(binary_schema, features, labels, odd, same_as, tmp_path):
    files = []
    for change in (odd, same_as):
        table = features.assign(age=features["age"].astype(float))
        for name, value in change.items():
            table.loc[7, name] = value
        estimator = DPGBClassifier(schema=binary_schema, **REPEATED).fit(table, labels)
        estimator.save(tmp_path / "m.json")
        files.append((tmp_path / "m.json").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("label", thinned([2, np.nan, -1, np.inf], every=2))
def test_unknown_label_is_a_row_left_out(binary_schema, features, labels, label, caplog, tmp_path):
    estimator = DPGBClassifier(schema=binary_schema, **REPEATED)
    y = labels.astype(float)
    y[7] = label
    fitted, loud = quietly(lambda: clone(estimator).fit(features, y), caplog)
    assert loud == []
    keep = np.arange(len(y)) != 7
    without = clone(estimator).fit(features[keep], labels[keep])
    for one, name in ((fitted, "a"), (without, "b")):
        one.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_missing_target_is_a_row_left_out(regression_schema, features, numbers, caplog, tmp_path):
    estimator = DPGBRegressor(schema=regression_schema, **REPEATED)
    y = numbers.copy()
    y[7] = np.nan
    fitted, loud = quietly(lambda: clone(estimator).fit(features, y), caplog)
    assert loud == []
    keep = np.arange(len(y)) != 7
    without = clone(estimator).fit(features[keep], numbers[keep])
    for one, name in ((fitted, "a"), (without, "b")):
        one.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert np.all(fitted.predict(features) <= 15)


@pytest.mark.parametrize(
    ("odd", "same_as"),
    thinned([(np.nan, 0), (-1, 0), (1e9, 4), (-np.inf, 0), (np.inf, 4), (4.5, 4)], every=2),
)
def test_weight_out_of_range_is_its_bound(
    binary_schema, features, labels, odd, same_as, caplog, tmp_path
):
    schema = Schema.from_dict(binary_schema.to_dict() | {"max_weight": 4})
    estimator = DPGBClassifier(schema=schema, **REPEATED)
    files = []
    for weight in (odd, same_as):
        w = np.full(len(labels), 1.5)
        w[7] = weight
        fitted, loud = quietly(
            lambda w=w: clone(estimator).fit(features, labels, sample_weight=w), caplog
        )
        assert loud == []
        fitted.save(tmp_path / "m.json")
        files.append((tmp_path / "m.json").read_bytes())
    assert files[0] == files[1]


@pytest.fixture(scope="module")
def of_any_table(binary_schema, features, labels):
    """An estimator that may be fitted again on any table; fitted on a good one."""
    settings = {"schema": binary_schema, "random_state": 0, "on_few_rows": "continue"}
    settings["recipe"] = BRIEF
    return DPGBClassifier(noise=SeededNoise(0), **settings).fit(features, labels)


@pytest.mark.parametrize(
    "change",
    [
        lambda t, y: (t.assign(x=0.5), y),
        lambda t, y: (t.assign(x=np.nan), y),
        lambda t, y: (t.assign(x=np.nan, z=np.nan, age=np.nan, color=None), y),
        lambda t, y: (t, np.zeros_like(y)),
        lambda t, y: (t, np.full(len(y), 9)),
        lambda t, y: (t[:1], y[:1]),
        lambda t, y: (t[:0], y[:0]),
    ],
    ids=[
        "constant",
        "missing column",
        "all missing",
        "one class",
        "no known label",
        "one row",
        "no rows",
    ],
)
@pytest.mark.parametrize("lazy", thinned([True, False], every=2))
def test_any_table_fits_in_silence(of_any_table, features, labels, change, lazy, caplog, tmp_path):
    table, y = change(features, labels)
    X, t = table, pd.Series(y, table.index)
    if lazy:
        X, t = dd.from_pandas(table, npartitions=2), dd.from_pandas(t, npartitions=2)
    with dask.config.set(scheduler="sync"):
        fitted, loud = quietly(lambda: clone(of_any_table).fit(X, t), caplog)
    assert loud == []
    assert [part for k, part in enumerate(let_out(fitted, tmp_path)) if k] == [
        part for k, part in enumerate(let_out(of_any_table, tmp_path)) if k
    ]
    probability = fitted.predict_proba(features)
    assert np.all(np.isfinite(probability))
    np.testing.assert_allclose(probability.sum(axis=1), 1)


@pytest.mark.parametrize("max_weight", thinned([4096, 255, 256, 1000], every=3))
def test_the_largest_weights_fit(max_weight, binary_schema, features, labels):
    schema = Schema.from_dict(binary_schema.to_dict() | {"max_weight": max_weight})
    clf = DPGBClassifier(schema=schema, **REPEATED)
    clf.fit(features, labels, sample_weight=np.full(len(labels), float(max_weight)))
    assert clf.privacy_report_.charged > 0


NAMES = {
    "tuples": [("a", 1), ("b", 2)],
    "levels": pd.MultiIndex.from_tuples([("a", "x"), ("b", "y")]),
    "bytes": [b"a", b"b"],
    "truth values": [False, True],
    "mixed": ["a", 1],
}


@pytest.mark.parametrize(("case", "lazy"), one_of_each(product(NAMES, [False, True])))
def test_columns_with_names_of_any_type_are_matched_by_them(case, lazy):
    """Tuples and bytes are names too: in another order, they were matched by position without a word."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((1000, 2)), columns=NAMES[case])
    y = (frame.iloc[:, 0] > 0.5).astype(int)
    schema = Schema({str(name): (0, 1) for name in frame.columns}, classes=[0, 1])
    turned = frame.iloc[:, ::-1]
    if lazy:
        frame, turned, y = (dd.from_pandas(part, npartitions=2) for part in (frame, turned, y))
    settings = {"schema": schema, **REPEATED}
    fitted = DPGBClassifier(**settings).fit(frame, y)
    with pytest.raises(SchemaError, match="another order"):
        DPGBClassifier(**settings).fit(turned, y)
    with pytest.raises(SchemaError, match="another order"):
        fitted.predict(turned)
    named = Schema({"a": (0, 1), "b": (0, 1)}, classes=[0, 1])
    with pytest.raises(SchemaError, match="do not match the schema"):
        DPGBClassifier(**(settings | {"schema": named})).fit(frame, y)
