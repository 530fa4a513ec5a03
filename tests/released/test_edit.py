"""Edits: what they change and what not, that they are repeated bit for bit, and that an altered one is noticed."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from plans import WITH_PAIRS

from dpgb_dask import DPGBClassifier, DPGBRegressor, Ledger, Schema, verify
from dpgb_dask.contracts.model import (
    BinShares,
    FeatureBins,
    Model,
    PairTable,
    Splits,
    TreeEnsemble,
)
from dpgb_dask.errors import PlanError, StructureError, VerificationError
from dpgb_dask.estimators import load
from dpgb_dask.plots import plot_model
from dpgb_dask.released import export
from dpgb_dask.released.edit import UNCHANGED, Editor, _with_pair
from dpgb_dask.released.explain import explain_global
from dpgb_dask.released.explain.decomposition import PairEffect
from dpgb_dask.released.export import model_to_dict
from dpgb_dask.released.predict import scorer
from dpgb_dask.testing import SeededNoise

FEATURES = {"age": (0, 90), "hours": (0.0, 60.0), "job": ["field", "none", "office"]}


def people(n=6000):
    rng = np.random.default_rng(5)
    x = pd.DataFrame(
        {"age": rng.integers(0, 91, n), "hours": rng.uniform(0, 60, n), "job": rng.choice(FEATURES["job"], n)}
    )  # fmt: skip
    hump = -((x["age"] - 50) ** 2) / 800
    y = hump + (x["hours"] / 30) * (x["job"] == "office") + rng.normal(0, 0.5, n)
    return x, y


def fitted(make=DPGBClassifier, **options):
    x, y = people()
    if make is DPGBRegressor:
        schema = Schema(FEATURES, target_bounds=(-5.0, 5.0))
    else:
        schema, y = Schema(FEATURES, classes=[0, 1]), (y > 0).astype(int)
    settings = {"epsilon": 30.0, "schema": schema, "random_state": 1, "noise": SeededNoise(1)}
    settings["recipe"] = WITH_PAIRS.brief()
    return make(**(settings | options)).fit(x, y)


@pytest.fixture(
    scope="module", params=[DPGBClassifier, pytest.param(DPGBRegressor, marks=pytest.mark.slow)]
)
def model(request):
    out = fitted(request.param)
    assert out.model_.pairs
    assert out.model_.trees.n_trees
    return out


def every_code(model, j=0, n=300):
    """Random codes of every feature, for each code of one."""
    rng = np.random.default_rng(0)
    k = model.bins[j].n_bins
    codes = np.stack([rng.integers(0, b.n_bins, n).repeat(k) for b in model.bins])
    codes[j] = np.tile(np.arange(k), n)
    return codes.astype(np.uint8)


def scores(model, codes):
    return scorer(model)(codes)[:, 0].astype(np.int64)


def test_monotone_orders_tables_pairs_and_trees(model):
    before = model_to_dict(model.model_)
    edited = model.edit().monotone("age", -1).monotone("hours").done()
    for j, direction in ((0, -1), (1, 1)):
        found = scores(edited.model_, every_code(edited.model_, j))
        found = found.reshape(-1, edited.model_.bins[j].n_bins)[:, :-1]  # all but missing
        assert (direction * np.diff(found, axis=1) >= 0).all()
    assert model_to_dict(model.model_) == before  # the edited estimator stays
    assert model.edits_ == ()
    rows = pd.DataFrame({"age": np.arange(91), "hours": 20.0, "job": "none"})
    decide = edited.predict if isinstance(edited, DPGBRegressor) else edited.decision_function
    assert (np.diff(decide(rows)) <= 0).all()


@pytest.mark.parametrize(
    ("low", "high", "steps"),
    [(-0.1, 0.1, (-6553, 6553)), (-0.5, 0.5, (-32768, 32768)), (0.1, 0.1, (6554, 6554)),
     (-16384.0, 16384.0, (-(1 << 30), 1 << 30)), (6553.3 / 65536, 6554 / 65536, (6554, 6554)), (0.100002, 0.1, None)],
)  # fmt: skip
@pytest.mark.parametrize("model", [DPGBClassifier], indirect=True)
def test_a_clamp_is_of_whole_steps_within_its_bounds(model, low, high, steps):
    """A bound of .1 was one of .100006."""
    if steps is None:
        with pytest.raises(PlanError, match="low must not exceed high"):
            model.edit().clamp("job", low, high)
    else:
        (edit,) = model.edit().clamp("job", low, high).edits
        assert (edit["low"], edit["high"]) == steps


# in units of the score, and in those of the target
@pytest.mark.parametrize("model", [DPGBClassifier, DPGBRegressor], indirect=True)
def test_clamp_moves_only_what_lies_beyond(model):
    term = model.explain_global().term("age")
    low = float(np.quantile(term.scores, 0.3))
    edited = model.edit().clamp("age", low=low).done()
    codes = every_code(model.model_)
    moved = scores(edited.model_, codes) - scores(model.model_, codes)
    step = model._scale() / 65536
    wanted = np.maximum(low - term.scores, 0)[codes[0]]
    np.testing.assert_allclose(moved * step, wanted, atol=2 * step)
    part = model.edit().clamp("age", low=low, where=(0, 20)).done()
    edges = model.model_.bins[0].edges
    here = codes[0] <= np.searchsorted(edges, 20)
    moved_there = scores(part.model_, codes) - scores(model.model_, codes)
    np.testing.assert_array_equal(moved_there, np.where(here, moved, 0))
    raised = model.edit().clamp("age", low=5.0, where=(5, 20)).done()
    changed = scores(raised.model_, codes) != scores(model.model_, codes)
    first, last = np.searchsorted(edges, (5, 20))
    assert set(codes[0][changed]) == set(range(first, last + 1))
    jobs = model.edit().clamp("job", high=0.0, where=["office"]).done()
    office = model.model_.bins[2].cell_to_bin[2]
    changed = scores(jobs.model_, codes) != scores(model.model_, codes)
    assert set(codes[2][changed]) == {office}
    one = model.edit().clamp("job", high=0.0, where="office").done()
    assert one.edits_ == jobs.edits_


@pytest.fixture(scope="module")
def ambiguous():
    """A model whose features are named as terms are: of four columns, with two pairs and trees."""
    rng = np.random.default_rng(0)
    names = ["x", "y", "x & y", "remainder"]
    bins = tuple(FeatureBins(np.array([0.3, 0.6]), None, 4) for _ in names)
    code = np.arange(4, dtype=np.uint8)
    pairs = tuple(
        PairTable(i, j, code, code, rng.integers(-999, 999, (1, 4, 4)).astype(np.int32))
        for i, j in ((0, 1), (1, 2))
    )
    tables = tuple(rng.integers(-999, 999, (4, 1)).astype(np.int32) for _ in names)
    splits = Splits.plain(np.array([[0, 3, 3]], np.uint16), np.ones((1, 3), np.uint8))
    trees = TreeEnsemble(splits, rng.integers(-999, 999, (1, 1, 4)).astype(np.int32))
    made = Model(bins, np.zeros(1, np.int32), tables, pairs=pairs, trees=trees, link="logit")
    schema = Schema(dict.fromkeys(names, (0, 1)), classes=[0, 1])
    return Editor(
        model=made, schema=schema, shares=BinShares.of(bins, ()), scale=1.0, kept=np.zeros(4, np.int8), edits=(),
        finish=lambda edits, _: [edit["term"] for edit in edits],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("x", ["x"]), ("y & x & y", ["y", "x & y"]), (["x", "y"], ["x", "y"]), (["x & y"], ["x & y"]), ([], []),
        (["remainder"], ["remainder"]), (["y", "x"], ["x", "y"]), ("y & x", ["x", "y"]), ("x & y & y", ["y", "x & y"]),
    ],
)  # fmt: skip
def test_a_term_is_found_by_its_name_whatever_features_are_called(ambiguous, named, meant):
    assert ambiguous.remove(named).done() == [meant]


def test_a_name_that_may_mean_several_terms_is_refused_in_words(ambiguous):
    for named, said in (
        ("x & y", r'\["x & y"\] or \["x", "y"\]'),
        ("remainder", r'\["remainder"\] or \[\]'),
    ):
        with pytest.raises(PlanError, match=f"may mean several terms .* as a list: {said}"):
            ambiguous.remove(named)
    alone = ambiguous.remove([])  # then there is no other
    assert alone.remove("remainder").done() == [[], ["remainder"]]


def test_what_names_no_term_is_one_error(ambiguous):
    for named, said in (
        (3, "3 names no term"), (["x", 3], "3 is no feature"), ("x & z", "'z' is no feature"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=said):
            ambiguous.remove(named)


def test_terms_are_found_by_one_rule_in_explanations_and_pictures(ambiguous):
    told = explain_global(ambiguous.model, ambiguous.shares, ambiguous.schema)
    pair = next(term for term in told.terms if term.features == ("x", "y"))
    assert told.term("y & x") is told.term("x", "y") is told.term("y", "x") is pair
    assert told.term("x & y").features == ("x & y",)  # where two have one name, the main effect
    assert told.term("y & x & y").features == told.term("x & y & y").features == ("y", "x & y")
    assert told.term("remainder").kind == "main"
    for terms in ("y & x", ["y & x"], [("x", "y")]):
        (shown,) = [axes.get_title() for axes in plot_model(told, terms=terms).axes[1:2]]
        assert shown == "x & y"


def test_a_pair_with_a_row_that_no_bin_is_in_can_be_removed(ambiguous):
    wide = tuple(
        replace(pair, table=np.pad(pair.table, ((0, 0), (0, 1), (0, 0))))
        for pair in ambiguous.model.pairs
    )
    made = replace(ambiguous, model=replace(ambiguous.model, pairs=wide))
    codes = np.indices((4, 4, 4, 4), dtype=np.uint8).reshape(4, -1)
    removed = [scores(editor.remove(["x", "y"]).model, codes) for editor in (ambiguous, made)]
    np.testing.assert_array_equal(*removed)
    assert not np.array_equal(removed[0], scores(ambiguous.model, codes))


def test_removed_terms_add_nothing(model):
    whole = model.explain_global()
    pair = next(term for term in whole.terms if term.kind == "pair")
    step = model._scale() / 65536
    edited = model.edit().remove("age").remove(pair.features).done()
    told = edited.explain_global()
    assert np.abs(told.term("age").scores).max() < 3 * step
    names = [term.name for term in told.terms if term.kind == "pair" and term.importance > 8 * step]
    assert pair.name not in names
    flat = edited.edit().remove("remainder").done()
    assert flat.model_.trees.n_trees == 0
    again = flat.explain_global()
    for term in told.terms:
        if term.kind == "main":
            np.testing.assert_allclose(
                again.term(*term.features).scores, term.scores, atol=9 * step
            )
    assert len(flat.edits_) == 3


def test_later_changes_keep_what_is_monotone(model):
    edited = (
        model.edit().monotone("hours", 1).clamp("hours", low=0.0, high=0.1).remove("hours").done()
    )
    rows = pd.DataFrame({"age": 50, "hours": np.linspace(0, 60, 200), "job": "office"})
    decide = edited.predict if isinstance(edited, DPGBRegressor) else edited.decision_function
    assert (np.diff(decide(rows)) >= 0).all()
    own = fitted(type(model), monotonic_cst={"hours": 1})
    assert (np.diff(getattr(own.edit().remove("hours").done(), decide.__name__)(rows)) >= 0).all()


def test_changes_that_begin_alike_and_part_are_apart(model):
    begun = model.edit().remove("job")
    begun.monotone("hours", -1)
    other = begun.clamp("age", high=0.0).done()
    own = model.edit().remove("job").clamp("age", high=0.0).done()
    assert model_to_dict(other.model_) == model_to_dict(own.model_)


def test_a_change_of_a_pair_with_other_cells_stands_beside_it(model):
    """Of as many cells, but named in another order."""
    pair = model.model_.pairs[0]
    turned = pair.table.shape[2] - 1 - pair.map_j
    change = PairEffect(pair.i, pair.j, pair.map_i, turned, pair.table[:, :, ::-1].astype(np.int64))
    twice = replace(model.model_, pairs=(*model.model_.pairs, pair))
    codes = every_code(twice, pair.j)
    np.testing.assert_array_equal(
        scores(_with_pair(model.model_, change), codes), scores(twice, codes)
    )


def test_a_model_that_is_monotone_already_stays():
    own = fitted(monotonic_cst={"hours": 1}, recipe="fdp-tr-newton")
    edited = own.edit().monotone("hours", 1).done()
    assert model_to_dict(edited.model_) == model_to_dict(own.model_)


def test_edits_are_repeated_bit_for_bit(model, tmp_path):
    edited = (
        model.edit()
        .remove("remainder")
        .monotone("age", -1)
        .clamp("hours", np.float64(-0.5), 0.75, where=(10, 30.5))
        .clamp(["job", "hours"], high=0.01)
        .remove("job")
        .done()
    )
    path = tmp_path / "m.json"
    edited.save(path)
    assert model_to_dict(export.load(path).model) == model_to_dict(model.model_)  # the fit's own
    again = load(path)
    assert model_to_dict(again.model_) == model_to_dict(edited.model_)
    assert model_to_dict(again.model_) != model_to_dict(model.model_)
    assert again.edits_ == edited.edits_
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    report = again.privacy_report_
    assert report.epsilon == 30.0
    assert len(report.edits) == 6
    assert report.edits[-1] == UNCHANGED
    for text in (
        "monotone: the score never grows",
        # of a number, as many whole steps as lie within the bounds
        r"clamp: hours adds at least -0\.(5|499954) and at most 0\.7(5|49969) to the score, where its value is in",
        "remove: job",
    ):
        assert re.search(text, str(report))
    assert model.privacy_report_.edits == ()
    more = again.edit().remove("age").done()
    assert len(more.edits_) == 6


def test_an_altered_edit_is_noticed(model, tmp_path):
    path = tmp_path / "m.json"
    model.edit().clamp("age", -1.0, 1.0).done().save(path)
    data = json.loads(path.read_text())
    data["edits"][0]["high"] += 1
    path.write_text(json.dumps(data))
    with pytest.raises(StructureError, match="digests do not agree with parameters"):
        load(path)
    for change in (
        {"kind": "shift"},
        {"high": 0.5},
        {"high": -(1 << 17)},
        {"term": ["nobody"]},
        {"term": ["age", "age"]},
        {"where": [3]},
        {"more": 1},
    ):
        data["edits"] = [
            {"kind": "clamp", "term": ["age"], "low": -65536, "high": 65536, "where": None} | change
        ]
        data["digests"] = export._digests(data)
        path.write_text(json.dumps(data))
        with pytest.raises(StructureError, match=r"malformed|edits that this version"):
            load(path)


def test_verify_repeats_the_edits(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=40.0, delta=1e-4)
    # only a recipe that is shipped can be repeated
    settings = {"noise": None, "n_estimators": 5, "recipe": "fdp-tr-newton"}
    model = fitted(ledger=ledger, account="people", **settings)
    charged = ledger.account("people").left
    path = tmp_path / "m.json"
    model.edit().monotone("hours").remove("age").done().save(path)
    found = str(verify(path, ledger))
    assert "bit for bit" in found
    assert "the 2 changes after the fit: repeated" in found
    assert ledger.account("people").left == charged
    data = json.loads(path.read_text())
    data["model"]["intercept"][0] += 1
    data["digests"] = export._digests(data)
    path.write_text(json.dumps(data))
    with pytest.raises(VerificationError):
        verify(path, ledger)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda e: e.monotone("job"), "'job' is no numeric feature"),
        (lambda e: e.monotone("hour"), "'hour' is no feature"),
        (lambda e: e.monotone("age", 2), "must be 1"),
        (lambda e: e.monotone("age", "up"), "direction='up' must be 1"),
        (lambda e: e.monotone(["age"], 1), r"\['age'\] is no feature: give"),
        (lambda e: e.clamp("age"), "needs low, high or both"),
        (lambda e: e.clamp("age", 1, 0), "low must not exceed high"),
        (lambda e: e.clamp("age", float("nan")), "give a number"),
        (lambda e: e.clamp("age", "0"), "give a number"),
        (lambda e: e.clamp("age", 10**400), "give a number"),
        (lambda e: e.clamp("age", 0, where=["x", "y"]), "lowest and highest"),
        (lambda e: e.clamp("age", 0, where=(-math.inf, 20)), "two finite numbers"),
        (lambda e: e.clamp("age", 0, where=(0, 10**400)), "two finite numbers"),
        (lambda e: e.clamp("age", 0, where=20), "lowest and highest"),
        (lambda e: e.clamp("job", 0, where=2), "no declared categories"),
        (lambda e: e.monotone(["age"]), "is no feature"),
        (lambda e: e.clamp("job", 0, where=["pilot"]), "no declared categories"),
        (lambda e: e.clamp("remainder", 0), "no table that could be clamped"),
        (lambda e: e.clamp("job & age", 0, where=(0, 1)), "where is for the main effect"),
        (lambda e: e.remove("nobody"), "'nobody' is no feature"),
        (lambda e: e.remove(["age", "age"]), "no pair of"),
    ],
)
def test_an_edit_that_means_nothing_raises(model, edit, message):
    with pytest.raises(PlanError, match=message):
        edit(model.edit())


def test_categories_are_named_as_rows_are_read_and_others_are_told():
    """A text may spell a category that is a number; groups and buckets are those of the encoded column."""
    features = {
        "code": [1, 2],
        "zip": {"from": {"01067": "east", "20095": "north"}},
        "shop": {"buckets": 2},
    }
    schema = Schema(features, classes=[0, 1])
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"code": rng.integers(1, 3, 500), "zip": "01067", "shop": "A1"})
    settings = {"epsilon": 30.0, "noise": SeededNoise(1), "recipe": "fdp-tr-newton"}
    made = DPGBClassifier(schema=schema, n_estimators=5, **settings).fit(x, x["code"] > 1)
    one, other = (
        made.edit().clamp("code", low=3, where=where).done().decision_function(x)
        for where in (1, "01")
    )
    np.testing.assert_array_equal(one, other)
    for name, where, told in (
        ("zip", "01067", "east"),
        ("shop", "A1", "bucket 1"),
        ("code", "3", "2"),
    ):
        with pytest.raises(
            PlanError, match=rf"no declared categories of '{name}'. Choose among .*{told}"
        ):
            made.edit().clamp(name, low=0, where=where)


def test_one_category_is_named_whatever_its_type():
    """A category may be a number or a truth value, of Python or NumPy, and needs no list."""
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"level": rng.integers(1, 4, 500), "member": rng.random(500) < 0.5})
    schema = Schema({"level": [1, 2, 3], "member": bool}, classes=[0, 1])
    settings = {"epsilon": 30.0, "noise": SeededNoise(1), "recipe": "fdp-tr-newton"}
    made = DPGBClassifier(schema=schema, n_estimators=5, **settings).fit(x, x["level"] > 1)
    for term, where, listed in (
        ("level", 2, [2]),
        ("level", np.int64(2), [2]),
        ("member", True, [True]),
        ("member", np.False_, [False]),
    ):
        one = made.edit().clamp(term, high=-0.5, where=where).done()
        assert one.edits_ == made.edit().clamp(term, high=-0.5, where=listed).done().edits_
        inside = x[term] == where
        moved = one.decision_function(x) != made.decision_function(x)
        assert moved[inside].all()
        assert not moved[~inside].any()


def test_several_classes_cannot_be_monotone():
    x, y = people(2000)
    schema = Schema(FEATURES, classes=[0, 1, 2])
    clf = DPGBClassifier(
        epsilon=30.0, schema=schema, noise=SeededNoise(1), recipe="fdp-tr-newton", n_estimators=5
    )
    clf.fit(x, np.digitize(y, [-0.5, 0.5]))
    with pytest.raises(PlanError, match="3, one per class"):
        clf.edit().monotone("age")
    edited = clf.edit().remove("age").clamp("hours", -0.01, 0.01).done()
    assert np.abs(edited.explain_global().term("age").scores).max() < 1e-4
    with pytest.raises(PlanError, match="remainder: it has no trees"):
        edited.edit().remove("remainder").remove("remainder")
