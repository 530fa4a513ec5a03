"""The Python scorer of real sets and of every recipe: the same integers, from numbers and from text."""

import runpy

import numpy as np
from runtimes.cases import kinds_fit, natural, never_falls, scores

from dpgb_dask import io


def check(model, rows, folder):
    model.to_python(folder / "scorer.py")
    own = runpy.run_path(str(folder / "scorer.py"))
    records = rows.astype(object).to_dict("records")
    want = scores(model, rows).tolist()
    assert [own["scores"](row) for row in records] == want
    if model.schema_.target.type != "numeric":
        proba = [own["predict_proba"](row) for row in records]
        np.testing.assert_allclose(proba, natural(model, rows), atol=1e-14)
        predicted = [own["predict"](row) for row in records]
        assert predicted == np.asarray(model.predict(rows)).tolist()
    else:
        predicted = [[own["predict"](row)] for row in records]
        np.testing.assert_allclose(predicted, natural(model, rows), rtol=1e-14)
    rows.to_csv(folder / "rows.csv", index=False)
    with (folder / "rows.csv").open("rb") as lines:
        texts = list(own["read_rows"](lines, ","))
    read = io.read_csv(folder / "rows.csv")
    assert [own["scores"](row) for row in texts] == scores(model, read).tolist()
    return want


def test_scores_of_real_sets_are_the_same(real, tmp_path):
    check(*real, tmp_path)


def test_scores_of_every_recipe_are_the_same(small, tmp_path):
    check(*small, tmp_path)


def test_scores_of_changed_models_are_the_same(changed, tmp_path):
    assert never_falls(check(*changed, tmp_path))


def test_scores_of_features_of_every_kind_are_the_same(tmp_path):
    check(*kinds_fit(), tmp_path)
