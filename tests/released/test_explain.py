"""Explanations add up to the score bit for bit, are those of the definition, and speak the schema's words."""

import html
import itertools
import re
from dataclasses import replace
from decimal import Decimal

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers import raw_scores
from odd_dates import UNITLESS

from dpgb_dask.contracts.model import (
    MAX_BINS,
    SCORE_ONE,
    SHARE_ONE,
    BinShares,
    FeatureBins,
    Model,
    NoiseBands,
    PairTable,
    Splits,
    TreeEnsemble,
)
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import StructureError
from dpgb_dask.released.explain import decomposition as module
from dpgb_dask.released.explain import explain_global, explain_local, feature_importances
from dpgb_dask.released.explain.decomposition import decompose
from dpgb_dask.released.explain.terms import meant, name_of, value_of, value_within
from dpgb_dask.released.outputs import Values
from dpgb_dask.released.predict import RowFunction, apply, scorer


def made_up(seed, n_scores=1, depth=3, n_trees=6):
    """A model of four features with tables, pair tables in any order and twice, and trees with masks and repeats."""
    rng = np.random.default_rng(seed)
    n_bins = [5, 3, 4, 2]
    bins = (
        FeatureBins(np.arange(3.0), None, 5),
        FeatureBins(np.array([0.5]), None, 3),
        FeatureBins(None, np.array([2, 0, 3, 1, 0], np.uint8), 4),
        FeatureBins(np.empty(0), None, 2),
    )

    def steps(*shape):
        return rng.integers(-90_000, 90_000, shape).astype(np.int32)

    def pair(i, j):
        maps = [rng.integers(0, 2, n_bins[k]).astype(np.uint8) for k in (i, j)]
        for part in maps:
            part[0], part[-1] = 0, 1
        return PairTable(i, j, *maps, steps(n_scores, 3, 2))  # no bin is in the last row

    nodes = (1 << depth) - 1
    feature = rng.integers(0, 4, (n_trees, nodes)).astype(np.uint16)
    if n_trees == len(n_bins):  # each of one feature
        feature[:] = np.arange(n_trees)[:, None]
    threshold = rng.integers(0, 5, (n_trees, nodes)).astype(np.uint8)
    threshold[rng.random((n_trees, nodes)) < 0.1] = 255
    masks = np.zeros((3, MAX_BINS), np.uint8)
    masks[:, :5] = rng.integers(0, 2, (3, 5))
    mask_of = np.where(rng.random((n_trees, nodes)) < 0.3, rng.integers(0, 3, (n_trees, nodes)), -1)
    splits = Splits(feature, threshold, mask_of.astype(np.int32), masks)
    trees = TreeEnsemble(splits, steps(n_scores, n_trees, nodes + 1))
    model = Model(
        bins,
        steps(n_scores),
        tuple(steps(n, n_scores) for n in n_bins),
        (pair(0, 2), pair(2, 1), pair(2, 0), pair(1, 1)),
        trees,
        link="softmax" if n_scores > 1 else "identity",
    )
    counts = [rng.uniform(0, 50, n) for n in n_bins]
    counts[0][1] = 0  # a bin without rows
    return model, BinShares.of(bins, counts)


def every_row(shares):
    """Return the codes of all possible rows, and the share of each."""
    n_bins = [len(part) for part in shares.weights]
    codes = np.array(list(itertools.product(*map(range, n_bins))), np.uint8).T
    share = np.prod([w[c] / SHARE_ONE for w, c in zip(shares.weights, codes, strict=True)], axis=0)
    return codes, share


SHAPES = [(1, 3, 6), (3, 2, 5), (1, 1, 3), (1, 6, 3), (1, 3, 0), (2, 4, 1), (1, 2, 4)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_terms_sum_to_the_score_bit_for_bit(shape, seed):
    model, shares = made_up(seed, *shape)
    found = decompose(model, shares)
    codes, _ = every_row(shares)
    codes = np.ascontiguousarray(codes)
    score = scorer(model)(codes)
    for k in range(model.n_scores):
        parts = found.contributions(model, k)(codes)
        np.testing.assert_array_equal(parts.sum(1) + found.intercept[k], score[:, k])
    assert found.remains == (shape[2] > 0)


@pytest.mark.parametrize("seed", range(3))
def test_terms_are_conditional_means(seed):
    """Main effects and pairs are those of the definition, by sums over all possible rows, within rounding."""
    model, shares = made_up(seed)
    found = decompose(model, shares)
    codes, share = every_row(shares)
    codes = np.ascontiguousarray(codes)
    score = scorer(model)(codes)[:, 0].astype(float)
    mean = share @ score
    n_bins = [len(part) for part in shares.weights]

    def given(*features):
        """Mean score given some features, per row; 0 where their bins hold no rows."""
        cell = np.ravel_multi_index([codes[j] for j in features], [n_bins[j] for j in features])
        mass = np.bincount(cell, share)
        return (np.bincount(cell, share * score) / np.where(mass > 0, mass, 1))[cell], mass[
            cell
        ] > 0

    assert abs(found.intercept[0] - mean) < 10
    alone = {}
    for j, main in enumerate(found.mains):
        alone[j], held = given(j)
        np.testing.assert_allclose(main[codes[j], 0][held], (alone[j] - mean)[held], atol=10)
    assert {(pair.i, pair.j) for pair in found.pairs} >= {(0, 2), (1, 2)}
    for pair in found.pairs:
        both, held = given(pair.i, pair.j)
        got = pair.table[0, pair.map_i[codes[pair.i]], pair.map_j[codes[pair.j]]]
        want = both - alone[pair.i] - alone[pair.j] + mean
        np.testing.assert_allclose(got[held], want[held], atol=10)


def test_what_is_left_after_the_strongest_pairs_is_in_the_remainder(monkeypatch):
    model, shares = made_up(1)
    every = decompose(model, shares)
    monkeypatch.setattr(module, "MOST_PAIRS", 1)
    few = decompose(model, shares)
    kept = [(pair.i, pair.j) for pair in few.pairs]
    assert kept[:2] == [(0, 2), (1, 2)]  # those of pair tables stay
    assert len(kept) == 3 < len(every.pairs)
    weights = [part / SHARE_ONE for part in shares.weights]

    def strength(pair):
        w_i, w_j = (
            np.bincount(pair.map_i, weights[pair.i]),
            np.bincount(pair.map_j, weights[pair.j]),
        )
        return float(w_i @ pair.table[0].astype(float) ** 2 @ w_j)

    others = {(p.i, p.j): strength(p) for p in every.pairs if (p.i, p.j) not in kept[:2]}
    assert max(others, key=others.get) == kept[2]
    codes = np.ascontiguousarray(every_row(shares)[0])
    totals = [part.contributions(model, 0)(codes).sum(1) for part in (every, few)]
    np.testing.assert_array_equal(*totals)


def test_contributions_add_up_to_the_score(model, shares, binary_schema, rows):
    local = explain_local(model, shares, binary_schema, rows, scale=2.0, offset=1.0)
    assert local.names[:5] == ("x", "z", "age", "color", "x & color")
    assert local.names[-1] == "remainder"
    total = local.steps[0].sum(axis=1) + local.intercept_steps[0]
    raw = raw_scores(model, binary_schema, rows)[:, 0]
    np.testing.assert_array_equal(total, raw)
    np.testing.assert_array_equal(
        local.scores.sum(axis=1) + local.intercept, 2 * raw / SCORE_ONE + 1
    )


def test_rows_one_by_one_take_the_model_apart_once(model, shares, binary_schema, rows, monkeypatch):
    whole = explain_local(model, shares, binary_schema, rows)
    start, made = whole.intercept_steps.tolist(), []
    name = "dpgb_dask.released.explain.local.decompose"
    monkeypatch.setattr(name, lambda *of: made.append(of) or decompose(*of))
    other = replace(model, intercept=model.intercept + 5)
    for k in range(20):
        one = explain_local(other, shares, binary_schema, rows.iloc[k : k + 1])
        np.testing.assert_array_equal(one.steps[0], whole.steps[0][k : k + 1])
        assert one.intercept_steps.tolist() == [number + 5 for number in start]
        one.intercept_steps[:] = 0  # the caller's own
    assert len(made) == 1


def test_contributions_are_lazy_on_dask(model, shares, binary_schema, rows):
    given = dd.from_pandas(rows, npartitions=3)
    local = explain_local(model, shares, binary_schema, given, scale=2.0)
    assert isinstance(local.scores, dd.DataFrame)
    assert tuple(local.scores.columns) == local.names
    assert "lazy" in repr(local)
    want = explain_local(model, shares, binary_schema, rows, scale=2.0)
    np.testing.assert_array_equal(local.scores.compute(), want.scores)
    with pytest.raises(StructureError, match=r"call compute\(\)"):
        local.data(0)
    here = local.compute()
    assert here.data(3)["scores"] == want.data(3)["scores"]
    assert str(here.data(3)["values"]) == str(want.data(3)["values"])


def test_contributions_have_one_table_per_class(three_score_model, shares, multiclass_schema, rows):
    local = explain_local(three_score_model, shares, multiclass_schema, rows)
    total = np.stack([part.sum(axis=1) for part in local.scores], axis=1) + local.intercept
    raw = raw_scores(three_score_model, multiclass_schema, rows) / SCORE_ONE
    np.testing.assert_array_equal(total, raw)
    assert local.data(0)["meta"]["label_names"] == [
        str(c) for c in multiclass_schema.target.classes
    ]


def test_terms_speak_the_words_of_the_schema(model, shares, binary_schema):
    found = explain_global(model, shares, binary_schema, bands=NoiseBands(why="not known"))
    x, z, age, color, pair, *_, rest = found.terms
    np.testing.assert_array_equal(x.bins[0].edges, [-3.0, -1.0, 0.0, 0.5, 2.0, 3.0])
    assert x.bins[0].labels == ("[-3, -1]", "(-1, 0]", "(0, 0.5]", "(0.5, 2]", "(2, 3]", "missing")
    assert x.missing == (5,)
    assert (x.kind, x.features, x.bins[0].kind) == ("main", ("x",), "continuous")
    assert x.scores.shape == (6,)
    assert (x.bins[0].released, z.bins[0].released) == (True, False)
    assert age.scores.shape == (9,)
    assert color.bins[0].labels == ("blue", "green", "red", "other", "missing")
    assert color.scores[1] == color.scores[3]  # of one bin
    for term in (x, z, age, color):
        assert abs(term.bins[0].weights.sum() - 1) < 1e-12
        assert abs(term.bins[0].weights @ term.scores) < 3 / SCORE_ONE
    assert pair.features == ("x", "color")
    assert pair.name == "x & color"
    assert pair.scores.shape == tuple(len(axis.labels) for axis in pair.bins)
    assert found.term("color", "x") is pair
    with pytest.raises(KeyError, match="No term of"):
        found.term("x", "nothing")
    with pytest.raises(KeyError, match=r"Did you mean 'color'\?"):
        found.term("colour")
    assert (rest.kind, rest.name, rest.scores) == ("remainder", "remainder", None)
    assert rest.importance > 0


def test_a_feature_without_a_name_is_not_the_remainder():
    assert (name_of(("",)), name_of(())) == ("", "remainder")
    assert meant("", ["", "x"]) == [("",)]
    assert meant("remainder", ["", "x"]) == [()]


def test_groups_of_pairs_are_named(model, shares, binary_schema):
    additive = Model(model.bins, model.intercept, model.tables, model.pairs)
    *_, pair = explain_global(
        additive, shares, binary_schema, bands=NoiseBands(why="not known")
    ).terms
    assert pair.bins[0].labels == ("[-3, 0]", "(0, 2]", "(2, 3], missing")
    np.testing.assert_array_equal(pair.bins[0].edges, [-3, 0, 2, 3])
    assert pair.bins[1].labels == ("blue, missing", "green, red, other")
    assert pair.missing == (None, None)


def test_categories_of_a_pair_are_in_the_order_of_the_schema(model, shares, binary_schema):
    """Whatever the order of their groups in the model: the same positions, shares, scores and bands."""
    given = model.pairs[0]

    def told(order):
        own = PairTable(0, 3, given.map_i, order[given.map_j], given.table[:, :, np.argsort(order)])
        noise = np.abs(own.table).astype(np.int64)
        none = tuple(np.zeros(one.shape, np.int64) for one in model.tables)
        additive = Model(model.bins, model.intercept, model.tables, (own,))
        bands = NoiseBands(mains=none, pairs=(noise,))
        return explain_global(additive, shares, binary_schema, bands=bands).terms[-1]

    one, other = told(np.array([0, 1], np.uint8)), told(np.array([1, 0], np.uint8))
    assert other.bins[1].labels == one.bins[1].labels == ("blue, missing", "green, red, other")
    np.testing.assert_array_equal(other.bins[1].weights, one.bins[1].weights)
    for name in ("scores", "lower", "upper", "importance"):
        np.testing.assert_array_equal(getattr(other, name), getattr(one, name))


def test_intervals_of_close_bounds_are_told_apart():
    low = 1e9
    schema = Schema({"a": (low, low + 100), "b": (low, low + 100)}, classes=[0, 1])
    bins = (FeatureBins(low + np.array([20.0, 60.0]), None, 4),) * 2
    pair = PairTable(0, 1, *[np.arange(4, dtype=np.uint8)] * 2, np.eye(5, 4, dtype=np.int32)[None])
    model = Model(bins, np.zeros(1, np.int32), (np.zeros((4, 1), np.int32),) * 2, (pair,))
    told = explain_global(model, BinShares.of(bins, ()), schema, bands=NoiseBands(why="-"))
    two, six = "1000000020", "1000000060"
    labels = (f"[1e+09, {two}]", f"({two}, {six}]", f"({six}, 1000000100]")
    for term in (told.term("a"), told.term("a", "b")):
        assert term.bins[0].labels == (*labels, "missing")


@pytest.mark.parametrize("unused", range(4))
@pytest.mark.parametrize("swapped", [False, True])
def test_rows_of_a_pair_table_that_no_bin_is_in_are_left_out(
    unused, swapped, binary_schema, model, shares
):
    """A stage of one's own, or a file, may hold such; with bands, which have as many."""
    rng = np.random.default_rng(unused)
    maps = np.array([0, 0, 1, 2, 2, 2], np.uint8), np.array([0, 1, 1], np.uint8)
    steps = rng.integers(-9999, 9999, (1, 4, 3)).astype(np.int32)
    noise = rng.integers(1, 9999, steps.shape)
    rows, columns = np.delete(np.arange(4), unused), np.delete(np.arange(3), unused % 3)

    def told(map_i, map_j, table, sd):
        if swapped:
            table, sd = np.swapaxes(table, 1, 2).copy(), np.swapaxes(sd, 1, 2).copy()
        both = (1, 0, map_j, map_i) if swapped else (0, 1, map_i, map_j)
        given = Model(model.bins, model.intercept, model.tables, (PairTable(*both, table),))
        none = tuple(np.zeros(one.shape, np.int64) for one in model.tables)
        bands = NoiseBands(mains=none, pairs=(sd,))
        return explain_global(given, shares, binary_schema, bands=bands).terms[-1]

    whole = np.ix_([0], rows, columns)
    term = told(*maps, steps[whole], noise[whole])
    other = told(rows.astype(np.uint8)[maps[0]], columns.astype(np.uint8)[maps[1]], steps, noise)
    for name in ("scores", "lower", "upper", "importance"):
        np.testing.assert_array_equal(getattr(other, name), getattr(term, name))
    assert [axis.labels for axis in other.bins] == [axis.labels for axis in term.bins]


def test_groups_that_are_no_intervals_have_no_edges(model, shares, binary_schema):
    apart = PairTable(
        0,
        1,
        np.array([0, 1, 0, 1, 1, 2], np.uint8),
        np.array([0, 0, 1], np.uint8),
        np.ones((1, 3, 2), np.int32),
    )
    given = Model(model.bins, model.intercept, model.tables, (apart,))
    *_, pair = explain_global(given, shares, binary_schema, bands=NoiseBands(why="not known")).terms
    assert pair.bins[0].edges is None
    assert pair.bins[0].labels == ("[-3, -1], (0, 0.5]", "(-1, 0], (0.5, 3]", "missing")
    assert pair.missing == (2, 1)


def test_several_classes_have_a_last_axis(three_score_model, shares, multiclass_schema):
    found = explain_global(
        three_score_model, shares, multiclass_schema, bands=NoiseBands(why="not known")
    )
    assert [term.scores.shape for term in found.terms[:5]][:4] == [(6, 3), (3, 3), (9, 3), (5, 3)]
    assert found.terms[4].scores.shape[-1] == 3
    assert found.feature_types == ["continuous"] * 3 + [
        "nominal"
    ]  # pairs of several classes have no picture
    assert found.intercept.shape == (3,)


def test_numbers_of_several_classes_are_named_and_none_is_cut(
    three_score_model, shares, multiclass_schema
):
    known = NoiseBands(why="not known")
    found = explain_global(three_score_model, shares, multiclass_schema, bands=known)
    sizes = zip(found.classes, found.intercept, strict=True)
    told = ", ".join(f"{label}: {size:.4g}" for label, size in sizes)
    assert f"  intercept {told}\n" in repr(found)
    assert f"<p>intercept {told}</p>" in found._repr_html_()
    assert f">scores of {', '.join(found.classes)}</th>" in found.terms[0]._repr_html_()
    term = replace(found.terms[0], scores=np.full_like(found.terms[0].scores, -1234.5))
    page = term._repr_html_()
    assert page.count(">-1.23e+03, -1.23e+03, -1.23e+03<") == len(term.scores)


def test_importance_is_the_mean_size_over_the_shares():
    model, shares = made_up(2)
    schema = Schema(
        {"a": (0, 3), "b": (0, 1), "c": ["u", "v", "w"], "d": (0, 1)}, target_bounds=(0, 1)
    )
    found = explain_global(model, shares, schema, bands=NoiseBands(why="not known"), scale=0.5)
    for term in found.terms[:-1]:
        weights = [axis.weights for axis in term.bins]
        size = (
            weights[0] @ np.abs(term.scores)
            if len(weights) == 1
            else weights[0] @ np.abs(term.scores) @ weights[1]
        )
        assert term.importance == pytest.approx(size)
    codes, share = every_row(shares)
    rest = decompose(model, shares).contributions(model, 0)(np.ascontiguousarray(codes))[:, -1]
    assert found.terms[-1].importance == pytest.approx(
        share @ np.abs(rest) / SCORE_ONE / 2, rel=0.1
    )
    sizes = feature_importances(found, schema)
    assert sizes.sum() == pytest.approx(1)
    a = sum(t.importance / len(t.features) for t in found.terms if "a" in t.features)
    assert sizes[0] == pytest.approx(a / sum(t.importance for t in found.terms[:-1]))
    flat = Model(model.bins, model.intercept, tuple(np.zeros_like(t) for t in model.tables))
    assert feature_importances(
        explain_global(flat, shares, schema, bands=NoiseBands(why="not known")), schema
    ).tolist() == [
        0,
        0,
        0,
        0,
    ]


def test_reprs_are_short_and_data_has_the_layout_of_interpret(model, shares, binary_schema, rows):
    found = explain_global(model, shares, binary_schema, bands=NoiseBands(why="not known"))
    for text in (
        repr(found),
        found._repr_html_(),
        repr(explain_local(model, shares, binary_schema, rows)),
    ):
        assert len(text) < 2000
        assert "x" in text
    assert found.data()["names"] == list(found.names)
    assert len(found.selector) == len(found.feature_names) == len(found.names) - 1
    x = found.data(0)
    assert len(x["scores"]) == len(x["names"]) - 1
    density, weights = x["density"], found.terms[0].bins[0].weights
    ends = density["names"]
    assert len(ends) - 1 == len(density["scores"])
    assert (ends[0], ends[-1]) == (x["names"][0], x["names"][-1])
    assert sum(density["scores"]) == pytest.approx(1 - weights[-1])  # but the missing values
    assert x["missing_score"] == found.terms[0].scores[-1]
    assert len(found.data(-1)["specific"]) == len(found.feature_names)
    local = explain_local(model, shares, binary_schema, rows[:2])
    assert local.unit == found.unit
    row = local.data(1)
    assert row["names"] == list(local.names)
    assert row["values"][2] == rows["age"].iloc[1]
    assert list(local.selector.columns) == ["Row", "Predicted"]
    assert isinstance(found.selector, pd.DataFrame)


def test_rows_of_xarray_tell_their_values_and_terms_along_a_dimension_of_that_name(
    model, shares, binary_schema, rows
):
    few = rows[:3].reset_index(drop=True)
    want = explain_local(model, shares, binary_schema, few)
    data = few.to_xarray().rename(index="class")
    numbers = xr.DataArray(few.to_numpy(object), dims=("class", "feature"))
    named = numbers.assign_coords(feature=[*few])
    for given in (data, numbers, named, data.chunk({"class": 2})):
        told = explain_local(model, shares, binary_schema, given).compute()
        for k in range(3):
            assert [*map(str, told.data(k)["values"])] == [*map(str, want.data(k)["values"])]
        assert (told.steps[0].dims, told.steps[0].name) == (("class", "term"), "contribution")
        assert told.steps[0]["term"].to_numpy().tolist() == [*told.names]


def test_a_pair_has_no_value_of_a_feature_of_its_name(model, shares):
    schema = Schema(
        {
            "x": (-3, 3),
            "x & color": (-1, 1),
            "remainder": (18, 90),
            "color": ["red", "green", "blue"],
        },
        classes=[0, 1],
    )
    row = pd.DataFrame({"x": [0.5], "x & color": [0.25], "remainder": [30], "color": ["red"]})
    told = explain_local(model, shares, schema, row)
    assert [*told.names].count("x & color") == [*told.names].count("remainder") == 2
    assert told.data(0)["values"] == [0.5, 0.25, 30, "red", *[""] * (len(told.names) - 4)]


@pytest.mark.parametrize("link", ["identity", "log"])
def test_the_prediction_beside_a_score_is_that_of_predict(model, shares, rows, link):
    """A score beyond the target's bounds was told as the prediction, which is the bound."""
    schema = Schema(
        {"x": (-3, 3), "z": (-1, 1), "age": (18, 90), "color": ["red", "green", "blue"]},
        target="y", target_bounds=(0, 2),
    )  # fmt: skip
    few, linked = rows[:40], replace(model, link=link, trees=model.trees)
    target = schema.target
    local = explain_local(linked, shares, schema, few, scale=target.half, offset=target.middle)
    want = apply(RowFunction(linked, schema, Values(target), task="t"), few, np.float64)
    lines = repr(local).splitlines()[1:]
    assert len(set(want[: len(lines)]) & {0.0, 2.0})  # some are at a bound
    for k, value in enumerate(want):
        assert local.data(k)["perf"]["predicted_score"] == value
        assert k >= len(lines) or f", predicted {value:.4g}: " in lines[k]


def test_explained_rows_show_their_largest_terms(model, shares, binary_schema, rows):
    local = explain_local(model, shares, binary_schema, rows, scale=2.0, offset=1.0)
    first, *lines = repr(local).splitlines()
    assert first.startswith(f"LocalExplanation of 'target': {len(rows)} rows, the first 8; ")
    assert len(lines) == 8
    page = html.unescape(re.sub("<[^>]*>", " ", local._repr_html_()))
    for k, line in enumerate(lines):
        sizes = local.scores[k]
        order = np.argsort(-np.abs(sizes), kind="stable")
        *told, others = re.findall(r" ([-+][\d.e-]+)(?=,|$)", line)[-5:]
        assert told == [f"{size:+.3g}" for size in sizes[order[:4]]]
        assert float(others) == pytest.approx(sizes[order[4:]].sum(), abs=0.01)
        score, start = local.intercept[0] + sizes.sum(), local.intercept[0]
        assert line.startswith(f"  row {k}: score {score:.4g}, predicted ")
        assert f": intercept {start:.4g}, {local.names[order[0]][:16]}" in line
        assert f" {told[0]}, " in page
    assert re.search(rf"\bage={rows['age'].iloc[0]:g} [-+]", "".join(lines))
    assert "LocalExplanation of 'target': " in page
    few = explain_local(model, shares, binary_schema, rows[:2])
    assert len(repr(few).splitlines()) == 3
    assert "the first" not in repr(few)
    none = explain_local(model, shares, binary_schema, rows[:0])
    assert "0 rows" in repr(none)
    assert "0 rows" in none._repr_html_()


def test_a_row_of_several_classes_shows_the_predicted_one(
    three_score_model, shares, multiclass_schema, rows
):
    local = explain_local(three_score_model, shares, multiclass_schema, rows)
    scores = np.stack([part.sum(1) for part in local.scores], axis=1) + local.intercept
    lines = repr(local).splitlines()[1:]
    assert len(lines) == 8
    for k, line in enumerate(lines):
        best = int(scores[k].argmax())
        label = multiclass_schema.target.classes[best]
        assert f"score {scores[k, best]:.4g}, predicted {label} (" in line
        assert f"intercept {local.intercept[best]:.4g}," in line
    assert ", in log-odds of the predicted class" in repr(local)
    assert ", in log-odds of the predicted class<" in local._repr_html_()


def test_rows_that_are_lazy_are_not_read_to_be_shown(model, shares, binary_schema, rows):
    def refuse(_part):
        raise AssertionError

    frame = dd.from_pandas(rows, npartitions=2)
    frame = frame.map_partitions(refuse, meta=frame._meta)
    local = explain_local(model, shares, binary_schema, frame)
    assert "lazy; compute() reads the rows" in repr(local)
    assert "lazy; compute() reads the rows" in local._repr_html_()


def test_bands_are_of_the_noise_in_all_parts(model, shares, bands, binary_schema):
    found = explain_global(model, shares, binary_schema, bands=bands, scale=2.0)
    assert "same bins, gates and public draws" in found.bands
    x = found.terms[0]
    width = 1.6448536 * 2 / SCORE_ONE
    np.testing.assert_allclose(x.upper - x.lower, 2 * width * bands.mains[0][:, 0])
    np.testing.assert_allclose(x.upper + x.lower, 2 * x.scores)
    assert x.importance_lower < x.importance < x.importance_upper
    color = found.term("color")
    np.testing.assert_allclose(
        color.upper - color.scores, width * bands.mains[3][model.bins[3].cell_to_bin, 0]
    )
    data = found.data(0)
    assert len(data["upper_bounds"]) == len(data["scores"])
    without = explain_global(model, shares, binary_schema, bands=NoiseBands(why="not known"))
    assert (without.terms[0].lower, without.terms[0].importance_lower) == (None, None)
    assert "none: not known" in repr(without)


@pytest.mark.parametrize("seed", range(2))
def test_noise_of_pairs_is_that_of_their_tables_and_leaves(seed):
    """Against the spread of the pairs of models whose parts are moved at random."""
    model, shares = made_up(seed)
    found = decompose(model, shares)
    rng = np.random.default_rng(seed)
    sd = NoiseBands(
        mains=tuple(np.zeros(table.shape, np.int64) for table in model.tables),
        pairs=tuple(np.full(pair.table.shape, 300) for pair in model.pairs),
        leaves=rng.integers(0, 800, model.trees.value.shape),
    )
    drawn = []
    for _ in range(200):
        value = model.trees.value + np.rint(rng.normal(0, 1, sd.leaves.shape) * sd.leaves)
        trees = replace(model.trees, value=value.astype(np.int32))
        moved = decompose(replace(model, trees=trees), shares)
        drawn.append({(p.i, p.j): p.table for p in moved.pairs})
    only_leaves = replace(sd, pairs=tuple(np.zeros_like(part) for part in sd.pairs))
    for pair, told in zip(
        found.pairs, module.pair_noise(model, found, shares, only_leaves), strict=True
    ):
        i, j = pair.i, pair.j
        spread = np.std([draw[i, j] for draw in drawn], axis=0)
        np.testing.assert_allclose(spread, told, rtol=0.3, atol=3)
    both = module.pair_noise(model, found, shares, sd)
    alone = module.pair_noise(model, found, shares, only_leaves)
    pair_02 = [(p.i, p.j) for p in found.pairs].index((0, 2))  # two tables are of it
    np.testing.assert_allclose(both[pair_02] ** 2 - alone[pair_02] ** 2, 2 * 300**2)


FEATURES = {"a": (0, 3), "b": (0, 1), "c": ["p", "q", "r"], "d": (0, 1)}  # of `made_up`


@pytest.mark.parametrize(
    ("link", "unit"),
    [
        ("clipped_logit", "score of class yes"),
        ("logit", "log-odds of class yes"),
        ("probability", "probability of class yes"),
    ],
)
def test_unit_says_what_a_score_is_and_whose(link, unit):
    model, shares = made_up(0)
    model, schema = replace(model, link=link), Schema(FEATURES, classes=["no", "yes"])
    told = explain_global(model, shares, schema)
    assert told.unit == unit
    assert f"in {unit}\n" in repr(told)
    rows = explain_local(model, shares, schema, [[1.0, 0.0, "p", 1.0]])
    assert repr(rows).splitlines()[0].endswith(f"in {unit}")


def test_unit_of_several_classes_is_log_odds_only_where_it_is_true():
    model, shares = made_up(0, n_scores=3)
    schema = Schema(FEATURES, classes=["no", "yes", "perhaps"])
    units = {
        link: explain_global(replace(model, link=link), shares, schema).unit
        for link in ("softmax", "clipped_softmax")
    }
    assert units == {"softmax": "log-odds", "clipped_softmax": "score"}


class Mute:
    def __str__(self):
        raise RuntimeError("no text")


def test_value_of_never_raises():
    assert value_of(10**5000) == "<int>"
    assert value_of(Mute()) == "<Mute>"
    values = [np.float32(0.1), 0.1, 7, True, None, "a", np.int64(3), 1000000269.0, np.nan, -np.inf]
    told = ["0.1", "0.1", "7", "True", "missing", "a", "3", "1000000269", "missing", "-inf"]
    assert list(map(value_of, values)) == told
    none = [pd.NA, pd.NaT, UNITLESS, np.datetime64("NaT", "s"), np.float32("nan"), Decimal("nan")]
    assert {*map(value_of, none)} == {"missing"}
    assert [value_of("nan"), value_of("None")] == ["nan", "None"]  # texts, and perhaps categories


def test_a_number_is_rounded_to_fit_and_never_cut():
    """A cut "-6.2327…" of -6.2327e+249 is another number."""
    told = [
        -6.23274e249,
        1234567.8,
        -1.2345e-6,
        12345678901,
        np.int64(-(10**15)),
        10**400,
        0.25,
        True,
    ]
    assert [value_within(value, 10) for value in told] == [
        "-6.23e+249", "1.23e+6", "-1.23e-6", "1.23e+10", "-1.00e+15", "1.00e+400", "0.25", "True",
    ]  # fmt: skip
    assert value_within("12345678901", 10) == "123456789…"  # a category
    assert value_within(Mute(), 10) == "<Mute>"


@pytest.mark.parametrize("value", [10**5000, Mute()], ids=["int", "Mute"])
def test_a_row_is_shown_whatever_its_values_are(value):
    model, shares = made_up(0)
    rows = pd.DataFrame({"a": [value], "b": [0.5], "c": [value], "d": [1]}, dtype=object)
    told = explain_local(model, shares, Schema(FEATURES, target_bounds=(0, 1)), rows)
    assert f"=<{type(value).__name__}>" in str(told)
    assert f"&lt;{type(value).__name__}&gt;" in told._repr_html_()


def test_parts_of_a_date_show_the_date():
    model, shares = made_up(0)
    on = {
        "type": "datetime",
        "first": "2020-01-01",
        "last": "2024-12-31",
        "parts": ["days", "month"],
    }
    schema = Schema({"on": on, "c": ["p", "q", "r"], "d": (0, 1)}, target_bounds=(0, 1))
    days = pd.to_datetime(["2020-10-07", None, "2020-10-07 07:45:01"], format="ISO8601")
    rows = pd.DataFrame({"on": days, "c": "p", "d": 1})
    first, second, third = str(explain_local(model, shares, schema, rows)).splitlines()[1:]
    for part in ("on.days", "on.month"):
        assert f"{part}=2020-10-07 " in first
        assert f"{part}=missing " in second
        assert f"{part}=2020-10-07 07:45… " in third
