"""Calls with arguments that a public name does not take: what is called, and what to give instead."""

import inspect

import pytest

import dpgb_dask
from dpgb_dask import (
    DPGBClassifier,
    DPGBRegressor,
    Ledger,
    PrivacyReport,
    Schema,
    datasets,
    io,
    losses,
    plots,
    testing,
)
from dpgb_dask.released.edit import Editor

FEATURES = {"age": (17, 90), "job": ["office", "field"]}
# what a person calls with arguments, of what is exported
EXPORTED = [
    *(getattr(dpgb_dask, name) for name in dpgb_dask.__all__ if name not in ("PrivacyReport", "__version__")),
    *(getattr(module, name) for module in (io, plots) for name in module.__all__ if name != "Dataset"),
    datasets.make_census,
    losses.Huber,
    losses.Quantile,
    testing.SeededNoise,
]  # fmt: skip
CALLED = [
    thing
    for thing in dict.fromkeys(EXPORTED)
    if callable(thing) and not (isinstance(thing, type) and issubclass(thing, BaseException))
]
# methods of the ledger that people call; the others are the library's
OF_LEDGER = [
    "open_account",
    "account",
    "accounts",
    "remaining",
    "fits",
    "history",
    "settle",
    "verify",
    "grant",
    "revoke",
]
METHODS = [
    *((Ledger, name) for name in OF_LEDGER),
    *((Schema, name) for name in ("load", "save", "draft", "check")),
    *((PrivacyReport, name) for name in ("to_dict", "to_json", "to_html", "to_text")),
    *((Editor, name) for name in ("monotone", "clamp", "remove", "done")),
    *((kind, "load") for kind in (DPGBClassifier, DPGBRegressor)),
]


@pytest.mark.parametrize("thing", CALLED, ids=lambda thing: thing.__name__)
def test_a_public_name_says_what_it_takes(thing):
    known = list(inspect.signature(thing).parameters)
    with pytest.raises(TypeError) as caught:
        thing(wrong_of_all=1)
    assert str(caught.value).startswith(f"{thing.__name__}() ")
    assert str(caught.value).endswith(f" It takes {', '.join(known)}.")


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_a_public_method_says_what_it_takes(kind, name):
    function = inspect.getattr_static(kind, name)
    known = [
        own for own in inspect.signature(getattr(function, "__func__", function)).parameters
        if own not in ("self", "cls")
    ]  # fmt: skip
    bound = isinstance(function, classmethod)
    owner = kind if bound else object.__new__(kind)
    with pytest.raises(TypeError) as caught:
        getattr(owner, name)(wrong_of_all=1)
    assert str(caught.value).startswith(f"{kind.__name__}.{name}() ")
    assert str(caught.value).endswith(f" It takes {', '.join(known) or 'nothing'}.")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Schema(FEATURES, labels=[0, 1]), "Schema() got an unexpected keyword argument 'labels'. It is"
         " 'classes' here."),
        (lambda: Schema(FEATURES, [0, 1], None, "y"), "Schema() too many positional arguments. Give the rest by name."),
        (lambda: dpgb_dask.Numeric(min=1, high=2), "Numeric() missing a required argument: 'low'. 'min' is 'low'"
         " here."),
        (lambda: io.read_csv("a.csv", sep=";"), "read_csv() got an unexpected keyword argument 'sep'. It is 'delimiter'"
         " here."),
        (lambda: datasets.make_census(9, seed=1), "make_census() got an unexpected keyword argument 'seed'. It is"
         " 'random_state' here."),
        (lambda: losses.Quantile(alpha=0.9), "Quantile() got an unexpected keyword argument 'alpha'. It is 'quantile'"
         " here."),
        (lambda: Ledger("sqlite://").open_account("a", eps=3, delta=1e-6), "Ledger.open_account() missing a required"
         " argument: 'epsilon'. 'eps' is 'epsilon' here."),
        (lambda: Ledger("sqlite://").open_account("a", 3, 1e-6), "Ledger.open_account() too many positional arguments."
         " Give the rest by name."),
        # nothing else can be given, by name or otherwise
        (lambda: DPGBClassifier().predict([], []), "DPGBClassifier.predict() too many positional arguments. It"
         " takes X."),
        (lambda: DPGBClassifier().explain_global("age"), "DPGBClassifier.explain_global() too many positional"
         " arguments. It takes nothing."),
        (DPGBRegressor.load, "DPGBRegressor.load() missing a required argument: 'path'."),
        # the README: "DPGBRegressor is the same with target_bounds=(low, high)"
        (lambda: DPGBRegressor(target_bounds=(0, 1)), "DPGBRegressor() got an unexpected keyword argument"
         " 'target_bounds'. Declare it in the schema: Schema(..., target_bounds=...)."),
        (lambda: DPGBClassifier(target="y"), "DPGBClassifier() got an unexpected keyword argument 'target'. Declare it"
         " in the schema: Schema(..., target=...)."),
        (lambda: DPGBClassifier(sample_weight=[1]), "DPGBClassifier() got an unexpected keyword argument"
         " 'sample_weight'. Give it to fit: fit(X, y, sample_weight=...)."),
    ],
)  # fmt: skip
def test_a_wrong_call_names_the_way_out(call, said):
    with pytest.raises(TypeError) as caught:
        call()
    # what is missing is Python's to say: a newer one says whether it is given by name
    assert str(caught.value).replace("required keyword-only", "required") == said
    assert caught.value.__context__ is None
