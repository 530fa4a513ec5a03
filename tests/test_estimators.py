"""The public face: inputs and outputs of every kind, the report, model files, accounts, scikit-learn's tools."""

import copy
import inspect
import json
import logging
import pickle
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectFromModel
from sklearn.metrics import get_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import has_fit_parameter
from thinned import thinned

import dpgb_dask
from dpgb_dask import DPGBClassifier, DPGBRegressor, Ledger, PlanError, Schema, StructureError
from dpgb_dask.cli import main
from dpgb_dask.contracts.model import SHARE_ONE
from dpgb_dask.estimators import load
from dpgb_dask.losses import Quantile
from dpgb_dask.recipes import RECIPES
from dpgb_dask.released import export
from dpgb_dask.testing import SeededNoise

SEEDED = {"noise": SeededNoise(0), "random_state": 0}
SHORT = {"recipe": "fdp-tr-newton", "n_estimators": 3}  # where the model itself is not the subject
BRIEF = RECIPES["auto"].brief()


@pytest.fixture(scope="module")
def multiclass(multiclass_schema, features, names_of_class):
    return DPGBClassifier(epsilon=8.0, schema=multiclass_schema, **SEEDED).fit(
        features, names_of_class
    )


def model_bytes(estimator, path):
    estimator.save(path)
    return path.read_bytes()


# ---- what is learnt --------------------------------------------------------------------------------------------------


def test_classifier_learns(classifier, features, labels):
    assert roc_auc_score(labels, classifier.predict_proba(features)[:, 1]) > 0.8
    assert classifier.score(features, labels) > 0.7
    np.testing.assert_array_equal(classifier.classes_, [0, 1])
    assert list(classifier.feature_names_in_) == ["x", "z", "age", "color"]
    assert classifier.n_features_in_ == 4
    assert classifier.fit_id_ == classifier.privacy_report_.fit_id


def test_regressor_learns_in_units_of_the_target(regressor, features, numbers):
    assert regressor.score(features, numbers) > 0.5
    predicted = regressor.predict(features)
    assert predicted.min() >= -15
    assert predicted.max() <= 15
    assert not hasattr(regressor, "classes_")


def test_multiclass_learns(multiclass, features, names_of_class):
    assert multiclass.score(features, names_of_class) > 0.5
    probability = multiclass.predict_proba(features)
    assert probability.shape == (len(features), 3)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    best = multiclass.classes_[multiclass.decision_function(features).argmax(axis=1)]
    np.testing.assert_array_equal(multiclass.predict(features), best)


def with_classes(schema, classes, X, y, **settings):
    """Return a fit on labels of a binary target, declared in this order."""
    schema = Schema(schema.features, classes=classes)
    return DPGBClassifier(epsilon=4.0, schema=schema, **SEEDED, **settings).fit(X, y)


def test_classes_of_the_estimator_are_sorted_whatever_is_declared(
    binary_schema, features, labels, tmp_path
):
    words = np.where(labels == 1, "no", "yes")
    turned = with_classes(binary_schema, ["yes", "no"], features, words)
    assert list(turned.classes_) == ["no", "yes"]
    assert turned.schema_.target.classes == ("yes", "no")
    proba, decision = turned.predict_proba(features), turned.decision_function(features)
    assert get_scorer("roc_auc")(turned, features, words) > 0.8
    assert roc_auc_score(labels, proba[:, 0]) > 0.8
    np.testing.assert_array_equal(turned.predict(features), turned.classes_[proba.argmax(axis=1)])
    np.testing.assert_array_equal(decision > 0, turned.predict(features) == "yes")
    told = turned.explain_local(features)
    np.testing.assert_allclose(told.intercept[0] + told.scores.sum(axis=1), -decision)
    turned.to_python(tmp_path / "scorer.py")  # in the schema's order
    exported, rows = runpy.run_path(str(tmp_path / "scorer.py")), features.iloc[:20]
    records = rows.astype(object).to_dict("records")
    assert [exported["predict"](row) for row in records] == turned.predict(rows).tolist()
    in_order = [exported["predict_proba"](row)[::-1] for row in records]
    np.testing.assert_allclose(in_order, proba[:20], atol=1e-14)


def test_classes_that_cannot_be_compared_stay_as_declared(binary_schema, features, labels):
    y = np.array(["a", 1], dtype=object)[labels.astype(int)]
    fitted = with_classes(binary_schema, ["a", 1], features, y, **SHORT)
    assert fitted.classes_.tolist() == ["a", 1]
    assert roc_auc_score(labels, fitted.predict_proba(features)[:, 1]) > 0.7


def test_several_classes_are_sorted_in_every_collection(binary_schema, features, names_of_class):
    schema = Schema(binary_schema.features, classes=["middle", "low", "high"])
    fitted = DPGBClassifier(epsilon=20.0, schema=schema, **SHORT, **SEEDED)
    fitted.fit(features, names_of_class)
    proba = fitted.predict_proba(features)
    assert list(fitted.classes_) == ["high", "low", "middle"]
    assert get_scorer("roc_auc_ovr")(fitted, features, names_of_class) > 0.7
    assert get_scorer("neg_log_loss")(fitted, features, names_of_class) > -np.log(3)
    np.testing.assert_array_equal(fitted.predict(features), fitted.classes_[proba.argmax(axis=1)])
    lazy = dd.from_pandas(features, npartitions=3)
    dataset = xr.Dataset({n: ("row", features[n].to_numpy()) for n in features.columns})
    for method in ("predict_proba", "decision_function"):
        frame, array = (getattr(fitted, method)(given) for given in (lazy, dataset))
        assert list(frame.columns) == array["class"].to_numpy().tolist() == list(fitted.classes_)
        np.testing.assert_array_equal(frame.compute(), getattr(fitted, method)(features))
        np.testing.assert_array_equal(array, getattr(fitted, method)(features))
    scores = fitted.explain_local(features)
    told = scores.intercept + np.stack([part.sum(axis=1) for part in scores.scores], axis=1)
    np.testing.assert_allclose(told[:, ::-1], fitted.decision_function(features))


def test_a_row_is_told_by_its_own_class_whatever_order_is_declared(
    binary_schema, features, names_of_class
):
    schema = Schema(binary_schema.features, classes=["middle", "low", "high"])
    fitted = DPGBClassifier(epsilon=20.0, schema=schema, **SHORT, **SEEDED)
    fitted.fit(features, names_of_class)
    column, said = fitted._told(features.iloc[:1])
    assert schema.target.classes[column] == fitted.predict(features.iloc[:1])[0]
    assert f"= {schema.target.classes[column]}:" in said


def test_constraints_speak_of_the_class_declared_second(binary_schema, features, labels):
    words = np.where(labels == 1, "no", "yes")
    settings = {"monotonic_cst": {"x": 1}, **SHORT}
    fitted = with_classes(binary_schema, ["yes", "no"], features, words, **settings)
    rows = (
        features.iloc[:50]
        .reset_index(drop=True)
        .assign(x=np.linspace(-3, 3, 50), z=0.0, age=40, color="red")
    )
    chance = fitted.predict_proba(rows)[:, 0]
    assert (np.diff(chance) >= 0).all()
    assert chance[-1] > chance[0]


@pytest.mark.parametrize("classes", [[False, True], [0.5, 1.5], ["a", 1], [-1, 2**63]])
def test_labels_of_any_type_come_back(binary_schema, features, labels, classes, tmp_path):
    schema = Schema(binary_schema.features, classes=classes)
    y = np.array(classes, dtype=object)[labels.astype(int)]
    fitted = DPGBClassifier(epsilon=40.0, schema=schema, **SHORT, **SEEDED).fit(features, y)
    told = {(type(label), label) for label in fitted.predict(features).tolist()}
    assert told == {(type(label), label) for label in classes}
    fitted.save(tmp_path / "m.json")
    back = DPGBClassifier.load(tmp_path / "m.json")
    assert back.classes_.dtype == fitted.classes_.dtype
    np.testing.assert_array_equal(back.predict(features), fitted.predict(features))


# ---- inputs and outputs ----------------------------------------------------------------------------------------------


def test_every_input_gives_the_same_model(binary_schema, features, labels, tmp_path):
    frame, series = (
        dd.from_pandas(features, npartitions=5),
        dd.from_pandas(pd.Series(labels), npartitions=5),
    )
    inputs = {
        "pandas": (features, labels),
        "lists": (features.astype(object).to_numpy().tolist(), labels.tolist()),
        "dask frame": (frame, series),
        "arrow": (features.convert_dtypes(dtype_backend="pyarrow"), pd.Series(labels)),
        "dataset": (
            xr.Dataset({n: ("row", features[n].to_numpy()) for n in reversed(features.columns)}),
            labels,
        ),
    }
    files = {
        name: model_bytes(
            DPGBClassifier(schema=binary_schema, **SHORT, **SEEDED).fit(X, y), tmp_path / "m.json"
        )
        for name, (X, y) in inputs.items()
    }
    assert len(set(files.values())) == 1, {name: hash(text) for name, text in files.items()}


def test_schema_forms_give_the_same_model(binary_schema, features, labels, tmp_path):
    path = tmp_path / "s.json"
    binary_schema.save(path)
    files = {
        model_bytes(
            DPGBClassifier(schema=form, **SHORT, **SEEDED).fit(features, labels),
            tmp_path / "m.json",
        )
        for form in (binary_schema, binary_schema.to_dict(), path, str(path))
    }
    assert len(files) == 1


def test_weights_count(binary_schema, features, labels):
    schema = Schema.from_dict(binary_schema.to_dict() | {"max_weight": 2})
    settings = {"schema": schema, "epsilon": 50.0, "delta": 1e-4, **SHORT, **SEEDED}
    heavy = np.where(labels == 1, 2.0, 0.25)
    plain = DPGBClassifier(**settings).fit(features, labels)
    weighted = DPGBClassifier(**settings).fit(features, labels, sample_weight=heavy)
    assert (
        weighted.predict_proba(features)[:, 1].mean()
        > plain.predict_proba(features)[:, 1].mean() + 0.1
    )
    assert weighted.privacy_report_.public["largest weight of a row"] == 2


@pytest.mark.parametrize("declared", [False, True])
def test_units_are_protected_whole(binary_schema, features, labels, declared, tmp_path):
    table = features.assign(person=np.arange(len(features)) % 700)
    schema = binary_schema
    if declared:
        schema = Schema.from_dict(schema.to_dict() | {"unit_id": "person"})
    settings = {"unit_id": None if declared else "person", "max_rows_per_unit": 2, "epsilon": 4.0}
    fitted = DPGBClassifier(schema=schema, **settings, **SHORT, **SEEDED).fit(table, labels)
    report = fitted.privacy_report_
    assert (report.unit, report.relation) == ("person", "add or remove all rows of one 'person'")
    assert report.public["largest weight of a unit"] == 2
    assert "same 'person'" in str(report)
    fitted.save(tmp_path / "m.json")
    back = DPGBClassifier.load(tmp_path / "m.json")
    np.testing.assert_array_equal(back.predict(features), fitted.predict(table))
    with pytest.raises(PlanError, match="weight"):
        DPGBClassifier(schema=schema, **settings).fit(
            table, labels, sample_weight=np.ones(len(labels))
        )
    with pytest.raises(PlanError, match="declared schema"):
        DPGBClassifier(schema="infer", unit_id="person", **SEEDED).fit(table, labels)


# ---- privacy ---------------------------------------------------------------------------------------------------------


def test_secret_noise_differs_from_fit_to_fit(binary_schema, features, labels):
    fits = [
        DPGBClassifier(schema=binary_schema, random_state=0, **SHORT).fit(features, labels)
        for _ in range(2)
    ]
    assert all(fit.privacy_report_.private for fit in fits)
    assert not np.array_equal(fits[0].predict_proba(features), fits[1].predict_proba(features))
    assert fits[0].fit_id_ != fits[1].fit_id_


def test_random_state_drives_public_randomness(binary_schema, features, labels):
    def fit(state):
        fitted = DPGBClassifier(
            schema=binary_schema, noise=SeededNoise(0), random_state=state, **SHORT
        ).fit(features, labels)
        return fitted.privacy_report_.public["seed of public randomness"]

    assert fit(3) == 3
    assert fit(np.random.RandomState(1)) == fit(np.random.RandomState(1))
    assert fit(None) != fit(None)


# ---- losses and recipes ----------------------------------------------------------------------------------------------


def fit_numbers(schema, features, numbers, **settings):
    return DPGBRegressor(epsilon=20.0, schema=schema, **settings, **SEEDED).fit(features, numbers)


def test_a_loss_by_name_or_value_is_the_same(regression_schema, features, numbers, tmp_path):
    recipe = {"recipe": "fdp-tr-newton"}
    models = [
        fit_numbers(regression_schema, features, numbers, loss=loss, **recipe)
        for loss in ("quantile", Quantile(0.5), Quantile(0.9))
    ]
    named, valued, upper = (fitted.predict(features) for fitted in models)
    np.testing.assert_array_equal(named, valued)
    assert upper.mean() > named.mean()
    for fitted in models:
        assert clone(fitted).loss == fitted.loss
        fitted.save(tmp_path / "m.json")
        back = DPGBRegressor.load(tmp_path / "m.json")
        assert back.loss == fitted.loss
        np.testing.assert_array_equal(back.predict(features), fitted.predict(features))
    data = json.loads((tmp_path / "m.json").read_text())
    data["parameters"]["loss"]["quantile"] = 9
    data["digests"] = export._digests(data)  # as somebody does who edits by hand
    (tmp_path / "bad.json").write_text(json.dumps(data))
    with pytest.raises(StructureError, match="malformed: its loss"):
        DPGBRegressor.load(tmp_path / "bad.json")


def test_default_loss_is_that_of_the_target(regression_schema, features, numbers, tmp_path):
    files = []
    for loss in (None, "squared_error"):
        fitted = fit_numbers(regression_schema, features, numbers, loss=loss, recipe=BRIEF)
        files.append(json.loads(model_bytes(fitted, tmp_path / "m.json")))
        assert files[-1]["parameters"].pop("loss") == loss
        for name in ("parameters", "fit"):  # both are of the parameters as they were given
            del files[-1]["digests"][name]
    assert files[0] == files[1]


def numbers_in(text):
    """Whole numbers that are no part of a fraction or of a digest in hex."""
    return {int(word) for word in re.findall(r"(?<![\da-fA-F.-])\d+(?![\da-fA-F.])", text)}


def test_nothing_that_is_let_out_holds_a_count(binary_schema, features, labels, caplog, tmp_path):
    rng = np.random.default_rng(5)
    rows = rng.integers(0, len(features), 23_459)  # sizes that no parameter has
    X, y = features.iloc[rows].reset_index(drop=True), labels[rows]
    counts = {
        len(y),
        int(y.sum()),
        int((1 - y).sum()),
        int(X["z"].isna().sum()),
        int((X["color"] == "red").sum()),
    }
    seen = []
    with caplog.at_level(logging.DEBUG):
        fitted = DPGBClassifier(
            schema=binary_schema,
            noise=SeededNoise(0),
            random_state=0,
            callbacks=[lambda *event: seen.append(event)],
        ).fit(X, y)
    fitted.save(tmp_path / "m.json")
    texts = {
        "file": (tmp_path / "m.json").read_text(),
        "report": str(fitted.privacy_report_),
        "report html": fitted.privacy_report_._repr_html_(),
        "repr": repr(fitted) + repr(fitted.privacy_report_) + repr(fitted.schema_),
        "html": fitted._repr_html_(),
        "log": "\n".join(record.getMessage() for record in caplog.records),
        "progress": repr(seen),
        "attributes": repr(
            {k: v for k, v in vars(fitted).items() if k not in FLOATS and k != "callbacks"}
        ),
    }
    file = json.loads(texts["file"])
    for record in (file["model"]["bins"], file["model"]["pairs"]):
        assert all(
            set(item) <= {"edges", "cell_to_bin", "n_bins", "i", "j", "map_i", "map_j", "table"}
            for item in record
        )
    # noised scores and shares of noised counts may hit a count by chance: their keys and sums say what they are
    assert set(file["shares"]) == {"weights", "released"}
    assert {sum(weights) for weights in file["shares"]["weights"]} == {SHARE_ONE}
    assert set(file["bands"]) == {"mains", "pairs", "leaves"}  # functions of released numbers
    del file["model"], file["shares"], file["bands"]
    texts["file"] = json.dumps(file)
    for name, text in texts.items():
        assert not counts & numbers_in(text), name


# attributes that hold many
FLOATS = ("model_", "model_of_fit_", "bin_shares_", "bands_", "_adopted")


def test_only_released_values_are_attributes(classifier):
    assert classifier.privacy_report_.digests
    fitted = {name for name in vars(classifier) if name.endswith("_")}
    assert fitted == {
        "schema_", "model_", "model_of_fit_", "edits_", "bin_shares_", "bands_", "privacy_report_",
        "fit_id_",
        "classes_", "n_features_in_", "feature_names_in_",
    }  # fmt: skip
    assert [name for name in vars(classifier) if name.startswith("_")] == ["_adopted"]
    assert type(classifier._adopted) is export.ModelFile  # what a file of it holds, and no more


def test_a_report_tells_the_digests_of_the_fit_whenever_it_is_asked_for(classifier, tmp_path):
    """They are made late, and by then parameters that act in `predict` may have been set."""
    path = tmp_path / "m.json"
    classifier.save(path)
    told = json.loads(path.read_text())["digests"]
    late = load(path)
    assert "privacy_report_" not in vars(late)
    late.set_params(columns="position")
    assert pickle.loads(pickle.dumps(late)).privacy_report_.digests == told
    assert late.privacy_report_ is late.privacy_report_
    assert late.privacy_report_.digests == copy.deepcopy(classifier).privacy_report_.digests == told
    assert classifier.privacy_report_.digests == told  # of which a change must not keep the report
    edited = classifier.edit().monotone(classifier.schema_.names[0], 1).done()
    assert edited.privacy_report_.edits
    assert edited.privacy_report_.digests["parameters"] != told["parameters"]
    assert not hasattr(DPGBClassifier(schema=classifier.schema), "privacy_report_")


# ---- files, copies, tools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classifier", "regressor", "multiclass"])
def test_model_file_predicts_the_same(name, features, request, tmp_path):
    fitted = request.getfixturevalue(name)
    path = tmp_path / "m.json"
    fitted.save(path)
    back = type(fitted).load(path)
    np.testing.assert_array_equal(back.predict(features), fitted.predict(features))
    assert back.privacy_report_ == fitted.privacy_report_
    assert all(fitted.bin_shares_.released)
    for got, want in zip(back.bin_shares_.weights, fitted.bin_shares_.weights, strict=True):
        np.testing.assert_array_equal(got, want)
    assert back.get_params()["epsilon"] == fitted.epsilon
    assert type(load(path)) is type(fitted)
    again = tmp_path / "again.json"
    back.save(again)
    assert again.read_bytes() == path.read_bytes()
    other = DPGBRegressor if isinstance(fitted, DPGBClassifier) else DPGBClassifier
    with pytest.raises(StructureError, match="holds a"):
        other.load(path)


def test_inferred_model_file_stays_marked(features, labels, tmp_path):
    fitted = DPGBClassifier(schema="infer", **SHORT, **SEEDED).fit(features[["x", "age"]], labels)
    fitted.save(tmp_path / "m.json")
    back = DPGBClassifier.load(tmp_path / "m.json")
    assert not back.schema_.private
    assert not back.privacy_report_.private
    np.testing.assert_array_equal(
        back.predict(features[["x", "age"]]), fitted.predict(features[["x", "age"]])
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: DPGBClassifier(n_estimator=3),
            r"DPGBClassifier\(\) got .*'n_estimator'\. Did you mean 'n_estimators'\?",
        ),
        (lambda: DPGBClassifier(eta=0.1), r"DPGBClassifier\(\) got .*'eta'\. It is 'learning_rate' here\."),
        (lambda: DPGBRegressor(num_boost_round=9), r".*'num_boost_round'\. It is 'n_estimators' here\."),
        (lambda: DPGBRegressor(warm_start=True), r".*'warm_start'\. It takes epsilon, .*"),
        (lambda: DPGBRegressor().fit([], [], seed=1), r".*'seed'\. It takes X, y, .*"),
        (lambda: DPGBRegressor(n_trees=3), r"DPGBRegressor\(\) got .*'n_trees'\. It takes epsilon, .*"),
        (lambda: DPGBClassifier(1.0), r"DPGBClassifier\(\) too many .*\. Give the rest by name\."),
        (lambda: DPGBClassifier().fit(), r"DPGBClassifier\.fit\(\) missing .*'X'\."),
        (
            lambda: DPGBRegressor().fit([], [], sample_weights=["Jane Doe"]),
            r"DPGBRegressor\.fit\(\) got .*\. Did you mean 'sample_weight'\?",
        ),
        (lambda: DPGBClassifier().plot(term="a"), r"DPGBClassifier\.plot\(\) .* mean 'terms'\?"),
        (DPGBClassifier.fit, r"fit\(\) missing .*'self'\. Call it on an object\."),
        (lambda: DPGBClassifier.fit(y=["Jane Doe"]), r"fit\(\) missing .*'self'\. Call it on an object\."),
        (lambda: DPGBRegressor().explain_global(1), r"DPGBRegressor\.explain_global\(\) too many .*"),
        (lambda: DPGBRegressor().predict([], []), r"DPGBRegressor\.predict\(\) too many .*"),
        (lambda: DPGBClassifier().to_sql(), r"DPGBClassifier\.to_sql\(\) missing .*'path'\."),
    ],
)  # fmt: skip
def test_a_wrong_call_names_the_public_class(call, said):
    with pytest.raises(TypeError, match=f"^{said}$") as caught:
        call()
    assert caught.value.__context__ is None


@pytest.mark.parametrize("estimator", [DPGBClassifier, DPGBRegressor])
def test_every_wrong_call_of_ours_names_the_public_class(estimator):
    """Python would name the class that a method is written in."""
    methods = [
        name
        for name, function in inspect.getmembers(estimator, inspect.isfunction)
        if not name.startswith("_") and function.__module__ == estimator.__module__
    ]
    assert {"fit", "save", "explain_local", "to_onnx", "predict", "score"} <= {*methods}
    for name in methods:
        with pytest.raises(TypeError, match=rf"^{estimator.__name__}\.{name}\(\) ") as caught:
            getattr(estimator(), name)(wrong=1)
        assert "_Boosting" not in str(caught.value)


def test_names_of_other_libraries_are_answered_with_ours_as_the_documentation_says():
    page = (Path(__file__).parent.parent / "docs" / "parameters.md").read_text(encoding="utf-8")
    asked = 0
    for row in re.findall(r"^\| `(?:\w+)`.*", page, flags=re.MULTILINE):
        here, *others, _note = (re.findall("`([a-z_]+)`", part) for part in row.split("|")[1:-1])
        for name in {name for names in others for name in names} - {*DPGBClassifier().get_params()}:
            if not name.startswith("_"):  # the end of another one
                asked += 1
                with pytest.raises(
                    TypeError, match=rf"'{name}'\. It is '({'|'.join(here)})' here\."
                ):
                    DPGBClassifier(**{name: None})
    assert asked > 15


def test_a_checked_call_keeps_its_signature():
    """scikit-learn reads parameters from it, and finds who takes sample weights."""
    assert has_fit_parameter(DPGBClassifier(), "sample_weight")
    assert list(inspect.signature(DPGBClassifier.fit).parameters)[:3] == ["self", "X", "y"]
    assert "epsilon" in inspect.signature(DPGBClassifier).parameters
    assert set(DPGBClassifier().get_params()) == set(inspect.signature(DPGBClassifier).parameters)


def test_warnings_of_a_fit_point_to_its_call(binary_schema, features, labels):
    est = DPGBClassifier(schema=binary_schema, delta=0.1, **SHORT, **SEEDED)
    with pytest.warns(dpgb_dask.LargeDeltaWarning) as caught:
        est.fit(features, labels)
    assert {warning.filename for warning in caught} == {__file__}


def test_pickle_keeps_the_model(classifier, features):
    back = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(back.predict_proba(features), classifier.predict_proba(features))


def test_unfitted_estimators_say_so(features, tmp_path):
    for call in (
        lambda e: e.predict(features),
        lambda e: e.explain_global(),
        lambda e: e.explain_local(features),
        lambda e: e.save(tmp_path / "m.json"),
    ):
        with pytest.raises(NotFittedError):
            call(DPGBRegressor())
    assert not hasattr(DPGBClassifier(), "partial_fit")


def test_explanations_add_up(classifier, regressor, multiclass, features):
    for fitted in (classifier, multiclass):
        local = fitted.explain_local(features)
        parts = local.scores if fitted is multiclass else [local.scores]
        total = np.stack([part.sum(axis=1) for part in parts], axis=1) + local.intercept
        score = fitted.decision_function(features).reshape(len(features), -1)
        np.testing.assert_array_equal(total, score)  # bit for bit: steps of 2**-16
    local = regressor.explain_local(features)
    total = local.scores.sum(axis=1) + local.intercept
    inside = np.abs(total) < 15
    np.testing.assert_allclose(total[inside], regressor.predict(features)[inside], atol=1e-9)
    assert regressor.explain_global().names[:4] == ("x", "z", "age", "color")


def test_importances_select_features(classifier, regressor, features, labels):
    for fitted in (classifier, regressor):
        found = fitted.feature_importances_
        assert found.shape == (4,)
        assert found.min() >= 0
        assert abs(found.sum() - 1) < 1e-12
        chooser = SelectFromModel(fitted, prefit=True, threshold="mean").fit(features)
        assert list(chooser.get_feature_names_out()) == list(
            features.columns[found >= found.mean()]
        )
    unfitted = DPGBClassifier(schema=classifier.schema_, **SHORT, **SEEDED)
    assert not hasattr(unfitted, "feature_importances_")
    assert SelectFromModel(unfitted).fit(features, labels).get_support().any()


@pytest.mark.parametrize(
    ("one", "two", "wrapper"),
    [
        (0, 1, OneVsRestClassifier),
        (0, 1, OneVsOneClassifier),
        (-1, 1, partial(OutputCodeClassifier, code_size=4, random_state=0)),
    ],
)
def test_classifiers_of_two_classes_serve_several(binary_schema, features, one, two, wrapper):
    """As docs/schema.md says: whatever the labels are, these two are fitted."""
    y = np.array(["a", "b", "c"])[np.digitize(features["age"], [35, 60])]
    schema = Schema({"age": binary_schema.features["age"]}, classes=[one, two])
    alone = DPGBClassifier(schema=schema, epsilon=20.0, recipe=BRIEF, columns="position", **SEEDED)
    numbers = features[["age"]]
    assert wrapper(alone).fit(numbers, y).score(numbers, y) > 0.8


@pytest.fixture
def ledger(tmp_path):
    book = Ledger(f"sqlite:///{tmp_path}/budget.db")
    book.open_account("people", epsilon=3.0, delta=1e-6)
    return book


def test_fit_charges_its_account(ledger, binary_schema, features, labels):
    estimator = DPGBClassifier(epsilon=1.0, schema=binary_schema, ledger=ledger, account="people")
    share = estimator.privacy_cost().share
    fitted = estimator.fit(features, labels)
    account = ledger.account("people")
    assert account.spent == fitted.privacy_report_.declared
    assert account.spent / account.cap == pytest.approx(share)
    assert fitted.privacy_report_.account == "people"
    kinds = [entry.kind for entry in ledger.history("people")]
    assert kinds[:3] == ["OPEN", "RESERVED", "BOUND"]
    assert kinds[-1] == "RELEASED"
    assert kinds.count("OPENED") == len(fitted.privacy_report_.receipts)


def test_grid_search_charges_every_fit_to_one_account(ledger, binary_schema, features, labels):
    estimator = DPGBClassifier(
        epsilon=0.5, schema=binary_schema, recipe="fdp-tr-newton", ledger=ledger, account="people"
    )
    assert clone(estimator).ledger is ledger
    search = GridSearchCV(estimator, {"n_estimators": [5, 10]}, cv=2, n_jobs=1)
    search.fit(features, labels)
    fits = [entry for entry in ledger.history("people") if entry.kind == "RESERVED"]
    assert len(fits) == 5  # two settings, two folds, one refit
    one = search.best_estimator_.privacy_report_.declared
    assert ledger.account("people").spent == 5 * one


def test_pipeline_fits(binary_schema, features, labels):
    pipeline = make_pipeline("passthrough", DPGBClassifier(schema=binary_schema, **SHORT, **SEEDED))
    assert pipeline.fit(features, labels).predict(features).shape == labels.shape


def test_progress_counts_rounds(binary_schema, features, labels, capfd):
    seen = []
    DPGBClassifier(
        schema=binary_schema, verbose=1, callbacks=[lambda *event: seen.append(event)], **SEEDED
    ).fit(features, labels)
    assert [done for _, done, _ in seen] == list(range(1, len(seen) + 1))
    assert all(done <= total for _, done, total in seen)
    assert "round" in capfd.readouterr().err


def test_check_of_a_schema_counts_and_says_it_is_not_private(binary_schema, features, labels):
    table = features.copy()
    table.loc[0, "x"] = 99.0
    table.loc[1, "color"] = "ultraviolet"
    y = labels.astype(float)
    y[:3] = np.nan
    for X, t in (
        (table, y),
        (dd.from_pandas(table, npartitions=3), dd.from_pandas(pd.Series(y), npartitions=3)),
    ):
        diagnosis = binary_schema.check(X, t)
        text = str(diagnosis)
        assert "NOT PRIVATE" in text
        assert "x: 1 above" in text
        assert "1 unknown" in text
        assert f"{table['z'].isna().sum()} missing" in text
        assert diagnosis.bad_targets == 3
        assert diagnosis.n_rows == len(table)


def test_public_names_are_those_of_the_design():
    for name in (
        "DPGBClassifier",
        "DPGBRegressor",
        "Schema",
        "Ledger",
        "Numeric",
        "Categorical",
        "__version__",
    ):
        assert name in dpgb_dask.__all__
        assert hasattr(dpgb_dask, name)


@pytest.mark.parametrize(
    "name", thinned(["losses", "datasets", "io", "plots", "recipes", "testing"], every=6)
)
def test_modules_are_there_from_the_first_use_on(name):
    """Whatever was imported before."""
    code = f"import dpgb_dask; print(dpgb_dask.{name}.__name__); assert {name!r} in dir(dpgb_dask)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"dpgb_dask.{name}"
    assert name in dpgb_dask.__all__


@pytest.mark.parametrize("bound", [1e3, 1.7e308])
def test_no_range_of_target_bounds_overflows(bound):
    """Explanations, importances and edits in units of the target are those of small bounds, in proportion."""
    x = np.random.default_rng(0).random((400, 2))
    schema = Schema({"x": (0, 1), "z": (0, 1)}, target_bounds=(-bound, bound))
    model = DPGBRegressor(epsilon=50.0, schema=schema, columns="position", recipe=BRIEF, **SEEDED)
    model.fit(
        x, bound * (1.8 * x[:, 0] - 0.9)
    )  # beyond 1.05 of the largest bound there are no numbers
    assert model.feature_importances_[0] > 0.5
    moved = np.ptp(model.explain_global().term("x").scores / bound)
    assert 0.1 < moved < 2.0  # it is 1.8
    edited = model.edit().clamp("x", low=-bound / 100, high=bound / 100).done()
    assert 0.01 < np.ptp(edited.explain_global().term("x").scores / bound) <= 0.02


def test_parameters_may_be_numpy_numbers(features, binary_schema):
    y = (features["x"] > 0).astype(int)
    clf = DPGBClassifier(
        epsilon=np.float32(1.0),
        delta=np.float32(1e-6),
        schema=binary_schema,
        recipe="fdp-tr-newton",
        n_estimators=np.int64(3),
        max_depth=np.int32(2),
        learning_rate=np.float32(0.3),
        noise=SeededNoise(0),
    )
    assert clf.fit(features, y).model_.trees.n_trees == 3


def test_pure_recipes_need_no_delta(features, binary_schema):
    y = (features["x"] > 0).astype(int)
    clf = DPGBClassifier(
        schema=binary_schema, recipe="dpboost", n_estimators=2, delta=0, noise=SeededNoise(0)
    )
    assert clf.privacy_cost().delta == 0
    assert clf.fit(features, y).privacy_report_.delta == 0
    with pytest.raises(PlanError, match="delta=0 must be strictly between"):
        clf.set_params(recipe="auto", n_estimators=None).fit(features, y)


# ---- what is not private ---------------------------------------------------------------------------------------------


def shown_by(fitted, rows):
    """Return what shows a model, by name."""
    drawn, waterfall = fitted.plot(n_terms=1), fitted.plot_local(rows)
    told, row = fitted.explain_global(), fitted.explain_local(rows)
    return {
        "estimator": repr(fitted),
        "estimator, html": fitted._repr_mimebundle_()["text/html"],
        "explain_global": repr(told),
        "explain_global, html": told._repr_html_(),
        "explain_local": repr(row),
        "explain_local, html": row._repr_html_(),
        "lazy explain_local": repr(fitted.explain_local(dd.from_pandas(rows, npartitions=1))),
        "plot": drawn.get_suptitle(),
        "plot_local": waterfall.axes[0].get_title(),
        "report": repr(fitted.privacy_report_),
    }


def test_a_model_that_is_not_private_says_so_wherever_it_shows(
    binary_schema, features, labels, tmp_path
):
    rows = features.iloc[:1]
    secret = DPGBClassifier(epsilon=40.0, schema=binary_schema, **SHORT).fit(features, labels)
    assert not [name for name, text in shown_by(secret, rows).items() if "private=False" in text]
    seeded = DPGBClassifier(epsilon=40.0, schema=binary_schema, **SHORT, **SEEDED)
    seeded.fit(features, labels).save(tmp_path / "m.json")
    for fitted in (seeded, DPGBClassifier.load(tmp_path / "m.json"), seeded.edit().done()):
        shown = shown_by(fitted, rows)
        assert not [name for name, text in shown.items() if "private=False" not in text]


def test_an_old_pickle_keeps_its_own_order_of_classes(binary_schema, features, labels):
    """Of before ``classes_`` was sorted: chances and decisions are of the classes that it names."""
    words = np.where(labels == 1, "no", "yes")
    fitted = with_classes(binary_schema, ["yes", "no"], features, words)
    chances, decision = fitted.predict_proba(features), fitted.decision_function(features)
    fitted.classes_ = np.array(["yes", "no"])
    np.testing.assert_array_equal(fitted.predict_proba(features), chances[:, ::-1])
    np.testing.assert_array_equal(fitted.decision_function(features), -decision)


def test_a_pickle_of_version_0_2_is_saved(features, labels, binary_schema, tmp_path):
    fitted = DPGBClassifier(schema=binary_schema, **SHORT, **SEEDED).fit(features, labels)
    saved = model_bytes(fitted, tmp_path / "m.json")
    assert fitted.privacy_report_  # made by the fit then, which kept no file
    del fitted._adopted
    assert model_bytes(fitted, tmp_path / "m.json") == saved


class Narrow(DPGBClassifier):
    """A subclass whose constructor takes less, and something of its own."""

    def __init__(self, *, schema=None, epsilon=1.0, extra=3):
        super().__init__(schema=schema, epsilon=epsilon, recipe="fdp-tr-newton", n_estimators=2)
        self.extra = extra


def test_a_subclass_whose_constructor_takes_less_loads(features, labels, binary_schema, tmp_path):
    fitted = Narrow(schema=binary_schema).fit(features, labels)
    fitted.save(tmp_path / "model.json")
    loaded = Narrow.load(tmp_path / "model.json")
    assert (loaded.epsilon, loaded.delta, loaded.extra) == (1.0, fitted.delta, 3)
    np.testing.assert_array_equal(loaded.predict(features), fitted.predict(features))


@pytest.mark.parametrize("name", ["DPGBClassifier", "Narrow"])  # of now, and of before
def test_a_file_of_a_subclass_is_read_as_the_class_of_the_library(
    features, labels, binary_schema, name, tmp_path
):
    path = tmp_path / "model.json"
    fitted = Narrow(schema=binary_schema).fit(features, labels)
    fitted.save(path)
    assert json.loads(path.read_text())["estimator"] == "DPGBClassifier"
    export.save(replace(export.load(path), estimator=name), path)
    for read in (load, DPGBClassifier.load, Narrow.load):
        np.testing.assert_array_equal(read(path).predict(features), fitted.predict(features))
    assert type(load(path)) is DPGBClassifier
    with pytest.raises(StructureError, match=r"Load it with DPGBClassifier\.load"):
        DPGBRegressor.load(path)
    assert main(["verify", str(path)]) == 0


def test_saved_parameters_are_those_of_the_fit(features, labels, binary_schema, tmp_path):
    fitted = DPGBClassifier(schema=binary_schema, **SHORT, **SEEDED).fit(features, labels)
    saved = model_bytes(fitted, tmp_path / "m.json")
    fitted.set_params(epsilon=0.1, monotonic_cst={"age": 1}, loss="none", class_weight={5: 1})
    assert model_bytes(fitted, tmp_path / "m.json") == saved
    fitted.set_params(columns="position")  # which acts in predict
    assert DPGBClassifier.load(tmp_path / "m.json").columns is None
    fitted.save(tmp_path / "m.json")
    assert DPGBClassifier.load(tmp_path / "m.json").columns == "position"
