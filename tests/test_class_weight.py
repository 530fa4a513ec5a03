"""``class_weight``: weights of rows by their label, within the schema's largest weight."""

from dataclasses import replace

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dpgb_dask import (
    DPGBClassifier,
    DPGBRegressor,
    Ledger,
    PlanError,
    ResumeError,
    Schema,
    StructureError,
    verify,
)
from dpgb_dask.contracts.plan import Execution, Shape, weight_bits_for
from dpgb_dask.estimators import of_file
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.rounds import open_rounds
from dpgb_dask.released import export
from dpgb_dask.testing import SeededNoise

SEEDED = {
    "noise": SeededNoise(0),
    "random_state": 0,
    "epsilon": 20.0,
    "recipe": "fdp-tr-newton",
    "n_estimators": 5,
}
TIMES = {0: 0.5, 1: 3}


@pytest.fixture(scope="module")
def schema(binary_schema):
    return Schema(binary_schema.features, classes=[0, 1], max_weight=4)


def read_by(schema, X, y, weight=None, times=None):
    """Fingerprint of rows as they are read, labels and weights included."""
    source = read_source(X, y, weight, schema)
    shape = Shape(schema=schema, max_weight=4, weight_bits=weight_bits_for(4), class_weight=times)
    rounds = open_rounds(source, shape, Execution(n_threads=1), bytes(32), bytes(16))
    try:
        return rounds.fingerprint()
    finally:
        rounds.close()


def test_class_weights_multiply_sample_weights_and_are_clipped_after(schema, features, labels):
    times = np.where(labels == 1, 3.0, 0.5)
    by_class = read_by(schema, features, labels, times=(0.5, 3.0))
    assert by_class == read_by(schema, features, labels, times)
    given = np.resize(
        [0.25, 1.0, 2.0, np.nan, np.inf, -1.0], len(labels)
    )  # 4 at most, once multiplied
    product = read_by(schema, features, labels, times * given)
    assert product == read_by(schema, features, labels, given, (0.5, 3.0))
    assert product != by_class
    frame = dd.from_pandas(features, npartitions=3)
    y, w = (dd.from_pandas(pd.Series(part), npartitions=3) for part in (labels, given))
    assert product == read_by(schema, frame, y, w, (0.5, 3.0))


def test_class_weights_move_a_model(schema, features, labels):
    def share(class_weight):
        model = DPGBClassifier(schema=schema, class_weight=class_weight, **SEEDED)
        return model.fit(features, labels).predict(features).mean()

    assert share({0: 0.25, 1: 4}) > share({}) > share({0: 4, 1: 0.25})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("balanced", "read from the labels"),
        ({0: 5.0}, "max_weight=4"),
        ({1: -1}, "max_weight=4"),
        ({0: 0, 1: 0}, "leaves no row a weight"),
        ({1: np.nan}, "max_weight=4"),
        ({1: "2"}, "max_weight=4"),
        ({2: 1.0}, "no declared class"),
        ([1, 2], "dict of class to weight"),
    ],
)
def test_wrong_class_weights_are_told_before_any_charge(schema, features, labels, wrong, words):
    ledger = Ledger("sqlite://")
    ledger.open_account("a", epsilon=4.0, delta=1e-5)
    model = DPGBClassifier(schema=schema, class_weight=wrong, ledger=ledger, account="a")
    with pytest.raises(PlanError, match=words):
        model.fit(features, labels)
    assert ledger.account("a").spent == 0


def test_class_weights_are_refused_for_units_and_for_numbers(schema, regression_schema, features):
    person = Schema(schema.features, classes=[0, 1], unit_id="person")
    y = np.zeros(len(features))
    with pytest.raises(PlanError, match="unit_id"):
        DPGBClassifier(schema=person, class_weight={0: 1}).fit(features.assign(person="a"), y)
    with pytest.raises(PlanError, match="numeric"):
        DPGBRegressor(schema=regression_schema, class_weight={0: 1}).fit(features, y)
    with pytest.raises(PlanError, match="for each declared class"):
        Shape(schema=schema, max_weight=4, class_weight=(1.0, 5.0))


def test_class_weights_are_saved_verified_and_bound_to_the_fit(schema, features, labels, tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.open_account("a", epsilon=9.0, delta=1e-5)
    options = {"recipe": "fdp-tr-newton", "n_estimators": 2, "ledger": ledger, "account": "a"}
    model = DPGBClassifier(schema=schema, class_weight=TIMES, **options).fit(features, labels)
    model.save(tmp_path / "model.json")
    again = DPGBClassifier.load(tmp_path / "model.json")
    assert again.class_weight == TIMES
    assert model.privacy_report_.public["weights of the classes"] == [[0, 0.5], [1, 3.0]]
    np.testing.assert_array_equal(again.predict(features), model.predict(features))
    assert "bit for bit" in str(verify(tmp_path / "model.json", ledger))
    other = DPGBClassifier(schema=schema, class_weight={1: 2}, **options)
    with pytest.raises(ResumeError, match="class_weight"):
        other.fit(features, labels, resume=model.fit_id_)
    file = export.load(tmp_path / "model.json")
    bad = replace(file, parameters=file.parameters | {"class_weight": [[7, 1.0]]})
    with pytest.raises(StructureError, match="class_weight"):
        of_file(bad, "bad.json")


def test_shares_of_bins_are_of_weight():
    """Three quarters of the rows have label 0 and x below 1/2; the others weigh three times as much, so half of all."""
    n = 4000
    labels = np.arange(n) % 4 == 3
    x = np.where(labels, 0.9, 0.1)[:, None]
    schema = Schema({"x": (0, 1)}, classes=[False, True], max_weight=3)
    options = {"schema": schema, "epsilon": 20.0, "noise": SeededNoise(0), "columns": "position"}
    upper = []
    for times in (None, {False: 1, True: 3}):
        model = DPGBClassifier(class_weight=times, n_estimators=2, **options).fit(x, labels)
        shares, edges = model.bin_shares_.weights[0] / 2**20, model.model_.bins[0].edges
        upper.append(shares[np.searchsorted(edges, 0.5) :].sum())
    assert upper == pytest.approx([1 / 4, 1 / 2], abs=0.02)


@pytest.mark.filterwarnings("ignore::dpgb_dask.MaxWeightWarning")
def test_small_weights_count_by_their_ratio():
    """Of .0077 and .0039, steps of 1/256 would make 1 and 0."""
    X, y = np.zeros((40_000, 1)), np.arange(40_000) % 2
    share = 0.0077 / (0.0077 + 0.0039)
    schema = Schema({"x": (0, 1)}, classes=[0, 1])
    options = {"epsilon": 50.0, "recipe": "fdp-tr-newton", "columns": "position", "random_state": 0}
    by_row = DPGBClassifier(schema=schema, noise=SeededNoise(0), **options)
    by_row.fit(X, y, sample_weight=np.where(y == 1, 0.0077, 0.0039))
    weights = {0: 0.0039, 1: 0.0077}
    by_class = DPGBClassifier(schema=schema, noise=SeededNoise(0), class_weight=weights, **options)
    by_class.fit(X, y)
    assert by_row.predict_proba(X)[0, 1] == pytest.approx(share, abs=0.03)
    assert by_class.predict_proba(X)[0, 1] == pytest.approx(share, abs=0.03)
