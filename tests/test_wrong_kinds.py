"""Every argument of every public function and method, given as another kind of value: our error, or none.

A value of another kind may be as good (a schema's path as its name), but Python's own error is never the answer.
"""

import inspect
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest

import dpgb_dask
from dpgb_dask import (
    Bool,
    DPGBClassifier,
    DPGBError,
    DPGBRegressor,
    Ledger,
    Numeric,
    Schema,
    io,
    plots,
    recipes,
)

WRONG = (
    3,
    -1,
    np.array(2),
    None,
    "a",
    b"a",
    object(),
    [],
    [3],
    ("a",),
    {},
    pd.DataFrame({"a": [1.5]}),
)
ROWS = pd.DataFrame({"a": np.linspace(0, 1, 60), "b": np.linspace(1, 0, 60)})
TARGET = (ROWS["a"] > 0.5).astype(int)
FACTS = {"a": (0.0, 1.0), "b": (0.0, 1.0)}
SCHEMA = Schema(FACTS, classes=[0, 1])
FIT = {"epsilon": 4.0, "delta": 1e-6, "schema": SCHEMA, "recipe": recipes.RECIPES["auto"].brief()}
# what the arguments without a default are given, while another one is of the wrong kind
RIGHT = {
    "X": ROWS, "y": TARGET, "path": "out", "url": "sqlite:///c.db", "row": ROWS.head(1), "schema": SCHEMA,
    "source": ROWS, "data": SCHEMA.to_dict(), "features": FACTS, "name": "people", "fit_id": "x", "epsilon": 1.0,
    "delta": 1e-6, "feature": "a", "term": "a", "low": 0.0, "high": 1.0, "sample_weight": None, "key": None,
}  # fmt: skip
# scikit-learn's own; how a mapping is read; and what training calls on a ledger, which is no part of docs/api
NOT_OURS = {
    "set_fit_request",
    "set_score_request",
    "get_metadata_routing",
    "get_params",
    "get",
    "finish",
}
LEDGER = ("open_account", "remaining", "account", "accounts", "fits", "history", "settle", "verify")
VARIADIC = inspect.Parameter.VAR_POSITIONAL
OWN_WORDS = (
    r"must be a name: give text or a Path\.$|No term of .*the terms are|pip install 'dpgb_dask\["
)
FLAGS = {"header", "overwrite", "strict", "private", "missing", "integer", "has_exp"}


def fit_with(**given):
    DPGBClassifier(**{**FIT, **given}).fit(ROWS, TARGET)


def fit_on(X=ROWS, y=TARGET, sample_weight=None, resume=None):
    DPGBClassifier(**FIT).fit(X, y, sample_weight, resume=resume)


def declare(kind, **given):
    Schema({"a": kind(**given)}, classes=[0, 1])


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """By name: a public function, and the names of its arguments."""
    place = tmp_path_factory.mktemp("ledger")
    ledger = Ledger(f"sqlite:///{place}/budget.db")
    ledger.open_account("people", epsilon=1, delta=1e-6)
    model = DPGBClassifier(**FIT).fit(ROWS, TARGET)
    overall, local = model.explain_global(), model.explain_local(ROWS.head(2))
    objects = {
        "model": (model, None),
        "schema": (SCHEMA, None),
        "draft": (Schema.draft(ROWS), None),
        "report": (model.privacy_report_, None),
        "editor": (model.edit(), None),
        "overall": (overall, None),
        "local": (local, None),
        "ledger": (ledger, LEDGER),
    }
    found = {}
    for label, (made, listed) in objects.items():
        names = [name for name in dir(type(made)) if not name.startswith("_")]
        for name in listed or names:
            method = getattr(made, name)
            if callable(method) and name not in {*NOT_OURS, "fit", "set_params"}:
                found[f"{label}.{name}"] = (method, [*inspect.signature(method).parameters])
    functions = {
        **{name: getattr(io, name) for name in ("read_csv", "write_dataset", "open_dataset")},
        "verify": dpgb_dask.verify,
        "plot_budget": dpgb_dask.plot_budget,
        "plot_model": partial(plots.plot_model, overall),
        "plot_model of": plots.plot_model,
        "plot_row": partial(plots.plot_row, local),
        "plot_row of": plots.plot_row,
        "Schema": partial(Schema, classes=[0, 1]),
        "Ledger": Ledger,
        "fit": fit_on,
    }
    for name, function in functions.items():
        found[name] = (function, [*inspect.signature(function).parameters])
    found["estimator"] = (fit_with, [*inspect.signature(DPGBClassifier).parameters])
    found["Numeric"] = (partial(declare, Numeric, low=0, high=1), ["integer", "missing"])
    found["Bool"] = (partial(declare, Bool), ["missing"])
    return found


def arguments_of(function, wrong):
    """The arguments without a default, but the wrong one."""
    return {
        name: RIGHT.get(name, "a")
        for name, known in inspect.signature(function).parameters.items()
        if name != wrong
        and known.default is known.empty
        and known.kind not in (known.VAR_POSITIONAL, known.VAR_KEYWORD)
    }


@pytest.mark.filterwarnings("ignore")
def test_an_argument_of_another_kind_is_our_error_or_none(calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tried, failures = 0, []
    for label, (function, names) in calls.items():
        for name in names:
            for wrong in WRONG:
                tried += 1
                said = f"{label}({name}={type(wrong).__name__})"
                try:
                    known = inspect.signature(function).parameters.get(name)
                    if known is not None and known.kind is VARIADIC:
                        function(wrong)
                    else:
                        function(**{**arguments_of(function, name), name: wrong})
                    if name in FLAGS and wrong is not None:
                        failures.append(f"{said} is taken for true or false")
                except DPGBError:
                    pass
                except Exception as error:
                    if not re.search(OWN_WORDS, str(error)):
                        failures.append(f"{said}: {type(error).__name__}: {error}")
    assert tried > 1000
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("verbose", ["a", 1.5, -1, object(), [], [1]])
def test_a_display_of_progress_is_asked_for_by_a_truth_value_or_a_number(verbose):
    with pytest.raises(DPGBError, match="verbose="):
        fit_with(verbose=verbose)


@pytest.mark.parametrize("estimator", [DPGBClassifier, DPGBRegressor])
def test_features_alone_are_no_schema_and_the_error_says_what_is(estimator):
    with pytest.raises(DPGBError, match=r"Features alone .* give dpgb_dask.Schema\(features"):
        estimator(schema={"age": (0, 1)}).fit(ROWS, TARGET)


def test_an_error_never_shows_a_table():
    with pytest.raises(DPGBError, match="max_weight=<DataFrame>"):
        Schema(FACTS, classes=[0, 1], max_weight=ROWS)
