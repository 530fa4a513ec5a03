"""Every recipe keeps `monotonic_cst` and `interaction_cst`: pairs and trees included, against what the rows say."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from neighbours import SCHEMAS, check_neighbours, some_rows
from plans import OUTSIDE
from rich_parts import places_at
from thinned import thinned

from dpgb_dask import DPGBClassifier, DPGBRegressor, Ledger, Schema, recipes, verify
from dpgb_dask.components.auto.random_splits import draw_splits
from dpgb_dask.components.trees.splits import NOWHERE
from dpgb_dask.contracts.constraints import Interactions
from dpgb_dask.contracts.plan import Plan, Shape
from dpgb_dask.errors import PlanError, ResumeError
from dpgb_dask.estimators import load
from dpgb_dask.parameters import constraints_of
from dpgb_dask.recipes import RECIPES
from dpgb_dask.released.export import model_to_dict
from dpgb_dask.released.predict import scorer
from dpgb_dask.testing import SeededNoise

AGAINST = {"a": -1, "b": -1}  # the rows say the contrary
SERVED = [
    (name, kind)
    for name, plan in sorted(RECIPES.items())
    for kind in ("binary", "numeric")
    if kind in plan.kinds
]


def fitted(name, kind, n=600, **options):
    make = DPGBRegressor if kind == "numeric" else DPGBClassifier
    plan = RECIPES[name].brief() if isinstance(name, str) else name
    settings = {"epsilon": 20.0, "schema": SCHEMAS[kind], "columns": "position"}
    settings |= {"noise": SeededNoise(1), "random_state": 1, "on_few_rows": "continue"}
    return make(recipe=plan, **(settings | options)).fit(*some_rows(kind, n))


MANY = {"n": 6000, "epsilon": 50.0}  # enough for pairs and a forest


@cache
def free_default(kind):
    """The default without constraints; not to be changed."""
    return fitted(RECIPES["auto"], kind, **MANY)


def worst_step(model, j, direction, n_contexts=60):
    """The largest step against a direction, over all codes of a feature beside random codes of all others."""
    rng = np.random.default_rng(0)
    n = model.bins[j].n_bins - 1
    codes = np.stack([rng.integers(0, b.n_bins, n_contexts).repeat(n) for b in model.bins])
    codes[j] = np.tile(np.arange(n), n_contexts)
    scores = scorer(model)(codes.astype(np.uint8))[:, 0].reshape(n_contexts, n)
    return int((-direction * np.diff(scores.astype(np.int64), axis=1)).max(initial=0))


def interaction_of(model, i, j, n_contexts=40):
    """The largest second difference of the score in two features."""
    rng = np.random.default_rng(0)
    base = np.stack([rng.integers(0, b.n_bins, n_contexts) for b in model.bins])
    other = np.stack([rng.integers(0, b.n_bins, n_contexts) for b in model.bins])
    total = np.zeros(n_contexts, np.int64)
    for sign, changed in ((1, ()), (-1, (i,)), (-1, (j,)), (1, (i, j))):
        codes = base.copy()
        codes[list(changed)] = other[list(changed)]
        total += sign * scorer(model)(codes.astype(np.uint8))[:, 0].astype(np.int64)
    return int(np.abs(total).max())


def paths_of(splits):
    """The features on the way from the root to each node that is split."""
    for feature, threshold, mask in zip(
        splits.feature, splits.threshold, splits.mask_of, strict=True
    ):
        is_split = (threshold < 255) | (mask >= 0)
        above = {}
        for node in range(len(feature)):
            own = {int(feature[node])} if is_split[node] else set()
            above[node] = own | (above[(node - 1) // 2] if node else set())
            if is_split[node]:
                yield above[node]


@pytest.mark.parametrize(("name", "kind"), thinned(SERVED, every=10))
def test_every_recipe_is_monotone(name, kind, tmp_path):
    free = fitted(name, kind)
    assert max(worst_step(free.model_, j, -1) for j in (0, 1)) > 0  # the test sees what is not
    model = fitted(name, kind, monotonic_cst=AGAINST)
    model.save(tmp_path / "m.json")
    for again in (model, load(tmp_path / "m.json")):
        assert worst_step(again.model_, 0, -1) == worst_step(again.model_, 1, -1) == 0
        assert again.privacy_report_.public["monotonic_cst"] == AGAINST
        decide = again.predict if kind == "numeric" else again.decision_function
        rows = np.array([[0.5, b, "x"] for b in np.linspace(-4, 4, 50)], dtype=object)
        assert (np.diff(decide(rows)) <= 0).all()


KINDS = thinned(["binary", "numeric"], every=2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_is_monotone_with_pairs_and_forest(kind):
    one = fitted(RECIPES["auto"], kind, monotonic_cst={"b": -1}, **MANY)
    assert {1} <= {k for pair in one.model_.pairs for k in (pair.i, pair.j)}
    assert one.model_.trees.n_trees == 300
    assert worst_step(one.model_, 1, -1) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_is_monotone_in_several_features_and_as_good(kind):
    along = fitted(RECIPES["auto"], kind, monotonic_cst=[1, 1, 0], **MANY)
    assert worst_step(along.model_, 0, 1) == worst_step(along.model_, 1, 1) == 0
    x, y = some_rows(kind, MANY["n"])
    assert along.score(x, y) > 0.85 * free_default(kind).score(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "numeric"])
def test_the_default_is_monotone_against_the_rows(kind):
    both = fitted(RECIPES["auto"], kind, monotonic_cst=AGAINST, **MANY)
    assert worst_step(both.model_, 0, -1) == worst_step(both.model_, 1, -1) == 0


@pytest.mark.parametrize("directions", [[1, 1], [1, 0]])
def test_a_default_without_two_free_features_grows_no_forest(directions):
    """Trees would hold nothing but main effects: their share goes to the other stages."""
    schema = {"a": (0.0, 1.0), "b": (-4.0, 4.0)}
    x, y = some_rows("binary", 6000)
    clf = DPGBClassifier(
        epsilon=50.0, schema=type(SCHEMAS["binary"])(schema, classes=["no", "yes"]), columns="position",
        noise=SeededNoise(1), random_state=1, monotonic_cst=directions,
    ).fit(x[:, :2].astype(float), y)  # fmt: skip
    assert clf.model_.trees.n_trees == 0
    assert all(worst_step(clf.model_, j, 1) == 0 for j in np.flatnonzero(directions))
    report = clf.privacy_report_
    assert report.charged > 0.999 * report.declared


def test_a_default_of_one_feature_grows_no_trees():
    x, y = some_rows("binary", 6000)
    clf = DPGBClassifier(
        epsilon=50.0, schema=type(SCHEMAS["binary"])({"a": (0.0, 1.0)}, classes=["no", "yes"]), columns="position",
        noise=SeededNoise(1), random_state=1,
    ).fit(x[:, :1].astype(float), y)  # fmt: skip
    assert clf.model_.trees.n_trees == 0
    assert clf.privacy_report_.charged > 0.999 * clf.privacy_report_.declared


@pytest.mark.parametrize(("name", "kind"), thinned(SERVED, every=10))
@pytest.mark.parametrize("groups", [[["a", "c"]], "no_interactions", "pairwise"])
def test_every_recipe_keeps_features_apart(name, kind, groups):
    model = fitted(name, kind, interaction_cst=groups).model_
    barred = {"no_interactions": [(0, 1), (0, 2), (1, 2)], "pairwise": []}
    apart = barred[groups] if isinstance(groups, str) else [(0, 1), (1, 2)]
    for i, j in apart:
        assert interaction_of(model, i, j) == 0
    for path in paths_of(model.trees.splits):
        assert len(path) < 3
    if groups == [["a", "c"]] and model.trees.n_trees > 2 and name != "auto":
        assert interaction_of(model, 0, 2) > 0  # what may interact does


def test_the_default_keeps_features_apart():
    free = free_default("binary").model_
    assert all(interaction_of(free, *pair) > 0 for pair in ((0, 1), (0, 2), (1, 2)))
    model = fitted(RECIPES["auto"], "binary", interaction_cst=[{1, 2}], **MANY).model_
    assert model.trees.n_trees == 300
    assert {(p.i, p.j) for p in model.pairs} == {(2, 1)}
    assert interaction_of(model, 1, 2) > 0
    assert interaction_of(model, 0, 1) == interaction_of(model, 0, 2) == 0
    alone = fitted(RECIPES["auto"], "binary", interaction_cst="no_interactions", **MANY)
    assert alone.model_.trees.n_trees == len(alone.model_.pairs) == 0
    report = alone.privacy_report_
    assert report.charged > 0.999 * report.declared


def test_drawn_features_follow_their_chances():
    rule = Interactions.of(
        constraints_of(None, [[0, 1], [0, 2]], SCHEMAS["binary"]), SCHEMAS["binary"]
    )
    chance, rng = np.array([0.5, 0.3, 0.2]), np.random.default_rng(0)
    places = places_at([range(200)] * 3)  # so many that hardly a feature is left without one
    feature = draw_splits(chance, places, 20_000, 2, rng, interactions=rule).feature
    root, below = feature[:, 0], feature[:, 1]
    np.testing.assert_allclose(np.bincount(root) / 20_000, chance, atol=0.02)
    np.testing.assert_allclose(
        np.bincount(below[root == 1], minlength=3)[:2] / (root == 1).sum(),
        [0.625, 0.375],
        atol=0.02,
    )
    assert set(below[root == 2]) == {0, 2}
    chance = np.array([0.0, 0.6, 0.4])
    none = draw_splits(chance, places, 500, 3, rng, interactions=rule)
    assert 0 not in none.feature[none.threshold != NOWHERE]


@pytest.mark.parametrize("name", ["auto", "dp-ebm", "fdp-pr-newton", "feverless", "dp-xgboost"])
def test_one_row_moves_no_constrained_query_beyond_its_sensitivity(name):
    plan = recipes.get(name, kind="binary").brief()
    asked = constraints_of(AGAINST, [["a", "c"]], SCHEMAS["binary"])
    check_neighbours(plan, "binary", Shape(schema=SCHEMAS["binary"], constraints=asked))


@dataclass(frozen=True, slots=True)
class Bold(type(RECIPES["auto"].stages[-1])):
    """A stage that says that it keeps nothing."""

    keeps_monotonic = False
    keeps_interactions = False


def test_a_number_that_is_a_name_and_the_position_of_another_feature_is_refused():
    features = {"2": (0, 1), "0": (0, 1), "1": (0, 1)}
    schema = Schema(features, classes=[0, 1])
    with pytest.raises(PlanError, match=r"0, which is the position of '2', and another feature"):
        constraints_of(None, [{0, 1}], schema)
    groups = constraints_of(None, [{"0", "1"}], schema).interactions
    assert groups == (("0", "1"), ("2",))
    same = Schema({"0": (0, 1), "1": (0, 1), "2": (0, 1)}, classes=[0, 1])
    assert constraints_of(None, [{0, 1}], same).interactions == groups


@pytest.mark.parametrize("option", [{"monotonic_cst": {"a": 1}}, {"interaction_cst": "pairwise"}])
def test_a_stage_that_cannot_keep_a_constraint_is_refused_before_any_charge(option):
    ledger = Ledger("sqlite://")
    ledger.open_account("people", epsilon=40.0, delta=1e-4)
    (name,) = option
    for plan in (
        *OUTSIDE.values(),
        replace(RECIPES["auto"], stages=(*RECIPES["auto"].stages[:-1], Bold())),
    ):
        assert isinstance(plan, Plan)
        with pytest.raises(PlanError, match=rf"{name}: \w+ of recipe .* cannot keep it"):
            fitted(plan, "binary", noise=None, ledger=ledger, account="people", **option)
    assert [entry.kind for entry in ledger.history("people")] == ["OPEN"]


def test_a_fit_is_resumed_and_verified_only_under_its_constraints(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=50.0, delta=1e-4)
    account = {"noise": None, "ledger": ledger, "account": "people", "recipe": "auto"}
    options = {"monotonic_cst": np.array([-1, -1, 0]), "interaction_cst": [{0, 2}]}
    clf = DPGBClassifier(
        epsilon=20.0, schema=SCHEMAS["binary"], columns="position", n_estimators=2, random_state=1
    )
    clf.set_params(**account, **options, on_few_rows="continue").fit(*some_rows("binary"))
    clf.save(tmp_path / "m.json")
    assert "bit for bit" in str(verify(tmp_path / "m.json", ledger))
    again = load(tmp_path / "m.json")
    assert again.monotonic_cst == [-1, -1, 0]
    assert again.interaction_cst == [[0, 2]]
    x, y = some_rows("binary")
    same = clf.__class__(**clf.get_params()).fit(x, y, resume=clf.fit_id_)
    assert model_to_dict(same.model_) == model_to_dict(clf.model_)
    for other in ({"monotonic_cst": None}, {"interaction_cst": "pairwise"}):
        with pytest.raises(ResumeError, match=next(iter(other))):
            clf.__class__(**(clf.get_params() | other)).fit(x, y, resume=clf.fit_id_)
