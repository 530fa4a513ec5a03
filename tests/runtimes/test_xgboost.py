"""XGBoost files: margins are the scores to the bit, in XGBoost itself; SHAP explains them."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from runtimes.cases import fit, kinds_fit, natural, never_falls, scores

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.errors import StructureError
from dpgb_dask.losses.links import LINKS
from dpgb_dask.released.runtimes.content import Content
from dpgb_dask.released.runtimes.python import document
from dpgb_dask.released.runtimes.scorer import Scorer
from dpgb_dask.testing import SeededNoise

xgb = pytest.importorskip("xgboost")


def encoded(model, rows):
    """Return rows as the documentation's snippet encodes them, in float32; and the same rows with float32 numbers."""
    content = Content(model.model_, model.schema_, model.privacy_report_, model.bin_shares_)
    encode = Scorer(document(content)).encode
    numbers = {
        name: rows[name].to_numpy(np.float32, na_value=np.nan)
        for name, feature in model.schema_.features.items()
        if isinstance(feature, Numeric)
    }
    same = rows.assign(**numbers)
    return np.array([encode(row) for row in rows.to_dict("records")], np.float32), same


def booster_of(model, path):
    model.to_xgboost(path)
    return xgb.Booster(model_file=path)


def margins(booster, X):
    matrix = xgb.DMatrix(X, feature_names=booster.feature_names)
    out = booster.predict(matrix, output_margin=True)
    return out[:, None] if out.ndim == 1 else out


def in_natural_units(encoder, margin):
    """Return predictions from margins, by what the file says of the target."""
    target = encoder["target"]
    value = LINKS[target["link"]](margin.astype(np.float64))
    if target["type"] != "numeric":
        return value
    return np.clip(target["middle"] + target["half"] * value, target["low"], target["high"])[
        :, None
    ]


def check(model, rows, path):
    booster = booster_of(model, path)
    X, same = encoded(model, rows)
    margin = margins(booster, X)
    np.testing.assert_array_equal(margin.astype(np.float64) * 65536, scores(model, same))
    encoder = json.loads(booster.attr("dpgb_dask.encoder"))
    want = natural(model, same)
    np.testing.assert_allclose(in_natural_units(encoder, margin), want, rtol=1e-6)
    if model.model_.link in ("logit", "softmax"):
        own = booster.predict(xgb.DMatrix(X, feature_names=booster.feature_names))
        own = np.stack([1 - own, own], axis=1) if own.ndim == 1 else own
        np.testing.assert_allclose(own, want, atol=1e-6)
    assert "Privacy report" in booster.attr("dpgb_dask.statement")
    assert json.loads(booster.attr("dpgb_dask.report"))["fit_id"] == model.fit_id_
    return margin


def test_margins_are_the_scores_of_real_sets_to_the_bit(real, tmp_path):
    check(*real, tmp_path / "model.ubj")


def test_margins_are_the_scores_of_every_recipe_to_the_bit(small, tmp_path):
    check(*small, tmp_path / "model.ubj")


def test_margins_are_the_scores_of_changed_models(changed, tmp_path):
    assert never_falls(check(*changed, tmp_path / "model.json"))


def test_margins_are_the_scores_of_features_of_every_kind(tmp_path):
    check(*kinds_fit(), tmp_path / "model.ubj")


@pytest.mark.parametrize("name", ["m.ubj", "m.UBJ", "m.json", "m.JSON"])
def test_a_file_is_in_the_format_that_its_name_says(classifier, features, name, tmp_path):
    """XGBoost takes a suffix in any case."""
    X = encoded(classifier, features[:20])[0]
    want = margins(booster_of(classifier, tmp_path / "plain.json"), X)
    np.testing.assert_array_equal(margins(booster_of(classifier, tmp_path / name), X), want)


@pytest.mark.parametrize("kind", ["clipped", "logit", "classes", "softmax", "numeric"])
def test_an_estimator_of_xgboost_is_right_or_refuses_the_file(kind, features, labels, tmp_path):
    """It would take a margin for a probability, a label or a value."""
    schema = Schema(
        {name: (-100, 100) for name in ("x", "age")},
        **{"target_bounds": (0, 3)}
        if kind == "numeric"
        else {"classes": [0, 1, 2][: 3 if kind in ("classes", "softmax") else 2]},
    )
    y = labels + (features["age"].to_numpy() > 50) * (kind not in ("clipped", "logit"))
    recipe = "fdp-tr-newton" if kind in ("logit", "softmax") else "auto"
    rows = features[["x", "age"]].fillna(0.0).astype(np.float32)
    make = DPGBRegressor if kind == "numeric" else DPGBClassifier
    model = make(
        schema=schema, recipe=recipe, epsilon=8, delta=1e-6, noise=SeededNoise(0), random_state=0
    )
    model.fit(rows, y).to_xgboost(tmp_path / "m.ubj")
    loaded = {}
    for name in ("XGBClassifier", "XGBRegressor"):
        loaded[name] = getattr(xgb, name)()
        if kind in ("logit", "softmax") and name == "XGBClassifier":
            loaded[name].load_model(tmp_path / "m.ubj")
            got = loaded[name].predict_proba(rows.to_numpy())
            np.testing.assert_allclose(got, model.predict_proba(rows), atol=1e-6)
            np.testing.assert_array_equal(
                loaded[name].predict(rows.to_numpy()), model.predict(rows)
            )
        else:
            with pytest.raises(
                TypeError, match=r"different type.*xgboost\.Booster|got: classifier"
            ):
                loaded[name].load_model(tmp_path / "m.ubj")


def test_shap_explains_the_file(features, labels, binary_schema, tmp_path):
    shap = pytest.importorskip("shap")
    model = fit(binary_schema, features, labels)
    booster = booster_of(model, tmp_path / "model.ubj")
    X, _ = encoded(model, features[:40])
    margin = margins(booster, X)[:, 0]
    # every path is given weight by the released shares, so that no part is lost
    for explainer in (shap.TreeExplainer(booster), shap.TreeExplainer(booster, data=X[20:])):
        values = explainer.shap_values(X)
        assert np.isfinite(values).all()
        np.testing.assert_allclose(values.sum(axis=1) + explainer.expected_value, margin, atol=1e-4)


@pytest.mark.parametrize(
    ("low", "high"), [(-3e250, 3e250), (0.0, 1e-50), (1e9, 1e9 + 100), (0.0, 1e9), (1.5e9, 1.7e9), (0.0, 1e-30)]
)  # fmt: skip
def test_a_feature_of_few_values_in_float32_is_refused(low, high, tmp_path):
    """Its rows got the score of another bin, without a word."""
    numbers = np.linspace(low, high, 4000)
    model = DPGBClassifier(
        schema=Schema({"x": (low, high)}, classes=[0, 1]), epsilon=20.0, recipe="additive", columns="position"
    ).fit(numbers.reshape(-1, 1), numbers > numbers[2500])  # fmt: skip
    if high in (1e9, 1.7e9, 1e-30):
        check(model, pd.DataFrame({"x": numbers}), tmp_path / "model.json")
        return
    with pytest.raises(StructureError, match=r"Feature 'x' has bounds .* fewer than 4096 values"):
        model.to_xgboost(tmp_path / "model.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("low", [-(1 << 24), 20_500, 840_001, (1 << 24) - 100])
def test_whole_numbers_that_float32_holds_are_exported_however_few(low, tmp_path):
    """Codes of places and of months, of which float32 has fewer than 4,096 values between the bounds."""
    numbers = np.arange(low, low + 101).repeat(40)
    model = DPGBClassifier(
        schema=Schema({"x": Numeric(low, low + 100, integer=True)}, classes=[0, 1]), epsilon=20.0, recipe="additive"
    ).fit(pd.DataFrame({"x": numbers}), numbers > low + 70)  # fmt: skip
    check(model, pd.DataFrame({"x": numbers}), tmp_path / "model.json")
    assert len(np.unique(model.decision_function(pd.DataFrame({"x": numbers})))) > 2


def test_scores_beyond_float32_are_refused(classifier, tmp_path):
    own = classifier.model_
    large = replace(own, intercept=own.intercept + (1 << 24))
    model = type(classifier)(schema=classifier.schema_)
    model.__dict__ |= classifier.__dict__ | {"model_": large}
    with pytest.raises(StructureError, match="float32"):
        model.to_xgboost(tmp_path / "model.json")
    assert not list(tmp_path.iterdir())
