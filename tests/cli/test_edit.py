"""``edit`` makes what `model.edit()` makes, in the order given, and replaces nothing; errors are one line."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from cli_parts import run

from dpgb_dask import DPGBClassifier, Schema, verify
from dpgb_dask.testing import SeededNoise

CHANGES = (
    "--clamp",
    "age=-0.5:0.25",
    "--monotone",
    "x=1",
    "--remove",
    "z",
    "--clamp",
    "color=:0.1",
)


@pytest.fixture
def saved(classifier, tmp_path):
    classifier.save(tmp_path / "model.json")
    return tmp_path / "model.json"


@pytest.mark.slow
def test_edit_is_that_of_python(saved, classifier, capsys):
    out = saved.with_name("edited.json")
    assert run("edit", saved, *CHANGES, "--out", out) == 0
    told = capsys.readouterr().out
    assert told.index("clamp: age") < told.index("monotone:") < told.index("remove: z")
    assert "epsilon and delta stay what they are" in told
    want = classifier.edit().clamp("age", -0.5, 0.25).monotone("x", 1).remove("z")
    want = want.clamp("color", high=0.1).done()
    found = DPGBClassifier.load(out)
    assert found.edits_ == want.edits_
    assert json.loads(out.read_text())["digests"] == want.privacy_report_.digests
    assert "changes after the fit" in str(verify(out))
    again = saved.with_name("again.json")
    assert run("edit", out, "--remove", "color", "--out", again) == 0
    assert DPGBClassifier.load(again).edits_ == want.edit().remove("color").done().edits_


def test_edit_replaces_nothing_unless_told(saved, capsys):
    before, out = saved.read_bytes(), saved.with_name("edited.json")
    out.write_text("something")
    assert run("edit", saved, *CHANGES, "--out", out) == 1
    assert "exists already" in capsys.readouterr().err
    assert run("edit", saved, *CHANGES, "--out", out, "--overwrite") == 0
    assert run("edit", saved, *CHANGES, "--out", saved, "--overwrite") == 1  # what it reads
    assert saved.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "give --monotone, --clamp or --remove"),
        (("--remove", "agee"), "Did you mean 'age'?"),
        (("--clamp", "age=:"), "clamp needs low, high or both"),
        (("--clamp", "age=nan:1"), "is nan: give a number"),
        (("--monotone", "color=1"), "'color' is no numeric feature"),
    ],
)
def test_what_cannot_be_changed_is_one_line(saved, capsys, options, words):
    out = saved.with_name("edited.json")
    assert run("edit", saved, *options, "--out", out) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    "options",
    [("--monotone", "age"), ("--monotone", "age=2"), ("--clamp", "age=1"), ("--clamp", "=1:2")],
)
def test_malformed_options_are_refused_with_their_form(saved, capsys, options):
    with pytest.raises(SystemExit):
        run("edit", saved, *options, "--out", saved.with_name("edited.json"))
    assert "is not " in capsys.readouterr().err


def test_edit_takes_the_list_of_features_that_its_error_tells(tmp_path, capsys):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"remainder": rng.random(500), "b": rng.random(500)})
    schema = Schema({"remainder": (0, 1), "b": (0, 1)}, classes=[0, 1])
    few = {"recipe": "fdp-tr-newton", "n_estimators": 2, "noise": SeededNoise(0)}
    fitted = DPGBClassifier(epsilon=40.0, schema=schema, **few).fit(X, X["b"] > 0.5)
    fitted.save(tmp_path / "m.json")
    remove = ("edit", tmp_path / "m.json", "--out", tmp_path / "e.json", "--remove")
    assert run(*remove, "remainder") == 2
    listed = re.search(r'as a list: (\["remainder"\]) or \[\]', capsys.readouterr().err)[1]
    assert run(*remove, listed) == 0
    assert "remove: remainder adds nothing to the score" in capsys.readouterr().out
    clamp = ("edit", tmp_path / "m.json", "--out", tmp_path / "c.json", "--clamp")
    assert run(*clamp, f"{listed}=0:") == 0
    assert DPGBClassifier.load(tmp_path / "c.json").edits_[0]["term"] == ["remainder"]
