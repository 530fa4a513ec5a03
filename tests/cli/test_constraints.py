"""``fit --monotonic`` and ``--interaction`` are the parameters of the estimators, and stand in the file."""

import json

import pytest
from cli_parts import model_of, run

from dpgb_dask import DPGBClassifier

KEPT = ("--monotonic", "age=-1", "--monotonic", "x=1", "--interaction", "x, z")


def test_constraints_are_those_of_python(place, people, capsys):
    assert run("fit", place / "people.parquet", *model_of(place), *KEPT) == 0
    fitted = DPGBClassifier.load(place / "m.json")
    assert fitted.monotonic_cst == {"age": -1, "x": 1}
    assert fitted.interaction_cst == [["x", "z"]]
    public = fitted.privacy_report_.public
    assert public["monotonic_cst"] == {"x": 1, "age": -1}
    assert public["interaction_cst"] == [["x", "z"], ["age", "color"]]
    ages = people[:200].drop(columns="target").assign(x=0.0, z=0.0, color="red")
    scores = fitted.decision_function(ages.sort_values("age"))
    assert (scores[1:] <= scores[:-1]).all()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--monotonic", "agee=1"), "unexpected feature names: ['agee']"),
        (("--monotonic", "age=1", "--monotonic", "age=-1"), "names ['age'] more than once"),
        (("--interaction", "pairwise", "--interaction", "x,z"), "pairwise stands alone"),
        (("--interaction", "x,zz"), "--interaction holds 'zz'"),
    ],
)
def test_wrong_constraints_are_one_line_and_no_charge(place, capsys, options, words):
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "people", "--epsilon", 9, "--delta", 1e-6)
    paid = ("--ledger", url, "--account", "people")
    assert run("fit", place / "people.parquet", *model_of(place), *paid, *options) == 2
    assert words in capsys.readouterr().err
    assert run("ledger", "show", url, "--json") == 0
    (account,) = json.loads(capsys.readouterr().out)
    assert account["fits"] == []
