"""A closer look at a few cells that hold nearly all rows: where there is one, what it joins, and what it changes."""

import dask
import dask.array as da
import numpy as np
import pytest
from neighbours import drive, open_local
from sklearn.metrics import roc_auc_score

from dpgb_dask import DPGBClassifier, Schema, recipes
from dpgb_dask.components import constants
from dpgb_dask.components.bin_merging import Cells
from dpgb_dask.components.bins import Bins, n_finer_cells
from dpgb_dask.components.closer_look import Window, joined, window_of
from dpgb_dask.components.counts import BaseScore
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.grid import numeric_edges
from dpgb_dask.contracts.plan import Plan, Shape
from dpgb_dask.contracts.queries import BinCountsQuery
from dpgb_dask.errors import PlanError
from dpgb_dask.released.export import model_to_dict
from dpgb_dask.testing import SeededNoise

UNIFORM = 64
WIDE = Numeric(-2000.0, 2000.0)


def cells_of(feature, values, n_uniform=UNIFORM):
    """Exact counts of values in the public grid, and 10 missing ones."""
    return counted(numeric_edges(feature, n_uniform), values)


def counted(edges, values, missing=10.0):
    counts = np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1)
    counts = np.append(counts, missing).astype(float)
    return Cells(edges, counts, np.ones(len(counts)))


def near(centre, spread=1.0, n=1000):
    return centre + spread * np.random.default_rng(0).normal(size=n)


@pytest.mark.parametrize("centre", [1000.0, 1013.0, -700.0, 1999.0, -1999.9])
def test_rows_in_few_cells_are_looked_at_more_closely(centre):
    values = near(centre).clip(-2000, 2000)
    window = window_of(WIDE, cells_of(WIDE, values), len(values) + 10)
    assert window is not None
    inside = (window.low <= values) & (values <= window.high)
    assert inside.mean() >= constants.CLOSER_ROWS
    assert window.last - window.first < constants.CLOSER_WINDOW


SPREAD = np.random.default_rng(1).uniform(-2000, 2000, 1000)
ZEROS = np.append(np.zeros(900), SPREAD[:100])


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        pytest.param(WIDE, SPREAD, id="spread over the bounds"),
        pytest.param(WIDE, near(1000, 200), id="spread over a quarter of them"),
        pytest.param(WIDE, ZEROS, id="zeros within the bounds"),
        pytest.param(Numeric(0.0, 2000.0), np.abs(ZEROS), id="zeros at the bound"),
        pytest.param(Numeric(0, 100, integer=True), np.full(1000, 40.0), id="a whole number"),
        pytest.param(Numeric(-20.0, 20.0), near(0), id="near zero, where the grid is fine"),
        pytest.param(WIDE, np.append(near(1000, n=900), SPREAD[:100]), id="a tenth elsewhere"),
        pytest.param(WIDE, np.empty(0), id="no rows"),
        pytest.param(Numeric(5.0, 5.0), np.full(100, 5.0), id="one value"),
    ],
)
def test_there_is_no_closer_look_where_it_would_tell_nothing(feature, values):
    cells = cells_of(feature, values, n_uniform=256)
    assert window_of(feature, cells, len(values) + 10) is None


def test_missing_values_are_not_among_the_rows_to_hold():
    cells = counted(numeric_edges(WIDE, UNIFORM), near(1000, n=500), missing=400.0)
    assert window_of(WIDE, cells, 900) is not None
    assert window_of(WIDE, counted(cells.edges, near(1000, n=40), missing=900.0), 940) is None


@pytest.mark.parametrize(
    "feature", [WIDE, Numeric(0.0, 3e9), Numeric(-300, 5000, integer=True), Numeric(1e-300, 1e300)]
)
@pytest.mark.parametrize("n", [32, 128])
def test_joined_cells_hold_the_rows_between_their_edges(feature, n):
    """For windows anywhere, at either end of the bounds too: counts are those of the joined edges."""
    width = feature.high - feature.low
    rng = np.random.default_rng(2)
    values = feature.low + width * rng.uniform(-0.1, 1.1, 2000)
    values = np.floor(values) if feature.integer else values
    cells = cells_of(feature, values)
    for first in {0, 1, 17, 40, len(cells.edges) - 2, len(cells.edges)}:
        for last in range(first, min(first + 3, len(cells.edges) + 1)):
            window = Window.of(feature, cells.edges, first, last)
            edges = window.edges(n)
            assert (np.diff(edges) > 0).all()
            finer = counted(edges, values)._replace(noise=np.full(len(edges) + 2, 2.5))
            both = joined(cells, window, finer)
            wanted = counted(both.edges, values)
            assert (np.diff(both.edges) > 0).all()
            assert set(cells.edges[:first]) <= set(both.edges)
            assert set(cells.edges[last:]) <= set(both.edges)
            np.testing.assert_array_equal(both.counts, wanted.counts)
            assert len(both.noise) == len(both.counts)
            assert (both.noise == 2.5).sum() == len(both.counts) - len(
                cells.counts
            ) + last - first + 1


def test_a_window_has_as_many_cells_as_the_signal_allows():
    assert [n_finer_cells(s) for s in (0, 13.9, 14, 28, 57, 1e6)] == [0, 0, 32, 64, 128, 128]
    edges = numeric_edges(WIDE, UNIFORM)
    assert len(Window.of(WIDE, edges, 40, 41).edges(32)) == 33
    whole = Numeric(0, 1000, integer=True)
    edges = numeric_edges(whole, UNIFORM)
    window = Window.of(whole, edges, 30, 30)
    inside = window.edges(128)
    np.testing.assert_array_equal(np.diff(inside), 1)  # a cell for each whole number


FEATURES = {"far": (-2000.0, 2000.0), "near": (-4.0, 4.0), "group": ["x", "y"]}


def far_rows(n=3000):
    """A feature near 1,000 that decides the class, in bounds far too wide."""
    rng = np.random.default_rng(4)
    x = np.empty((n, 3), object)
    far, close = rng.normal(size=n), rng.normal(size=n)
    x[:, 0], x[:, 1], x[:, 2] = far + 1000, close, rng.choice(["x", "y"], n)
    return x, np.where(rng.random(n) < 1 / (1 + np.exp(-3 * np.sin(2 * far))), "yes", "no")


def fitted(recipe="auto", **options):
    schema = Schema(FEATURES, classes=["no", "yes"])
    asked = {"epsilon": 2.0, "delta": 1e-6, "noise": SeededNoise(0), "random_state": 0, **options}
    return DPGBClassifier(schema=schema, recipe=recipe, **asked).fit(*far_rows())


@pytest.mark.parametrize("settings", [{}, {"cache": "disk"}, {"block_rows": 300, "n_threads": 2}])
def test_a_closer_look_finds_the_same_however_rows_are_cut_and_kept(settings):
    x, y = far_rows(1000)
    schema = Schema(FEATURES, classes=["no", "yes"])

    def model_of(x, y, **settings):
        plan = recipes.get("auto", kind="binary").brief()
        noise = {"noise": SeededNoise(0), "random_state": 0}
        with dask.config.set({f"dpgb-dask.{key}": value for key, value in settings.items()}):
            fit = DPGBClassifier(schema=schema, recipe=plan, epsilon=4.0, delta=1e-6, **noise)
            return fit.fit(x, y)

    whole = model_of(x, y)
    assert "closer bins" in labels_of(whole)
    cut = model_of(da.from_array(x, chunks=(170, 3)), da.from_array(y, chunks=170), **settings)
    assert model_to_dict(whole.model_) == model_to_dict(cut.model_)


def labels_of(model):
    return [item.label for item in model.privacy_report_.receipts]


@pytest.mark.slow
def test_a_feature_far_from_zero_is_learnt():
    x, y = far_rows(6000)
    auc = []
    for seed in range(5):
        model = fitted(noise=SeededNoise(seed), random_state=seed)
        assert labels_of(model).count("closer bins") == 1
        auc.append(roc_auc_score(y == "yes", np.asarray(model.predict_proba(x))[:, 1]))
    assert np.mean(auc) > 0.85  # of one fit .84 to .89 by its noise; .5 to .7 in one or two bins


def test_no_closer_look_is_paid_for_where_none_is_taken():
    x, y = far_rows()
    schema = Schema(FEATURES | {"far": (996.0, 1004.0)}, classes=["no", "yes"])
    model = DPGBClassifier(
        schema=schema, epsilon=2.0, delta=1e-6, noise=SeededNoise(0), random_state=0
    ).fit(x, y)
    assert "closer bins" not in labels_of(model)


def test_one_row_moves_a_closer_look_by_no_more_than_its_sensitivity():
    x, y = far_rows(600)
    shape = Shape(schema=Schema(FEATURES, classes=["no", "yes"]))
    added = [1000.0, 1e9, -1e9, np.nan, None, "text", -np.inf]
    alone, *others = [
        open_local(np.vstack([*more, x]), np.append(["yes"] * len(more), y), shape)
        for more in ([], *([np.array([[v, 0.0, "x"]], object)] for v in added))
    ]
    seen = []

    def check(query, bound, sums, theirs):
        seen.append(type(query))
        if isinstance(query, BinCountsQuery):
            assert bound.l2_squared == bound.l1 == 1
            assert [int(np.abs(own - sums).sum()) for own in theirs] == [1] * len(added)

    drive(recipes.get("auto", kind="binary").brief(), shape, alone, others, check)
    assert seen.count(BinCountsQuery) == 1
    for rounds in (alone, *others):
        rounds.close()


@pytest.mark.parametrize("closer", [-0.1, 1.0, 1.5, True, float("nan"), float("inf"), None, "0.05"])
def test_a_share_that_is_none_is_refused(closer):
    with pytest.raises(PlanError, match="closer="):
        Bins(closer=closer)


def test_a_plan_whose_later_stages_do_not_leave_a_closer_look_is_refused_before_its_charge():
    shape = Shape(schema=Schema(FEATURES, target_bounds=(0, 1)))
    fits = Plan(name="fits", source="a test", stages=(Bins(share=0.5), BaseScore(share=0.49)))
    assert fits.demand(shape).at_least == pytest.approx(0.992)
    stages = (Bins(share=0.5, closer=0.05), BaseScore(share=0.49))
    with pytest.raises(PlanError, match="of the budget: at most 1 is there"):
        Plan(name="does not", source="a test", stages=stages).demand(shape)


def test_there_is_no_closer_look_on_the_coarsest_grid():
    """A feature alone has a signal of 14 for it long before 40 features have one for 32 cells."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-4, 4, (400, 40))
    x[:, 0] += 1000
    bounds = {"far": (-2000.0, 2000.0)} | {f"x{j}": (-4.0, 4.0) for j in range(39)}
    model = DPGBClassifier(
        schema=Schema(bounds, classes=[0, 1]),
        epsilon=2.0,
        delta=1e-6,
        noise=SeededNoise(0),
        random_state=0,
    ).fit(x, (x[:, 1] > 0).astype(int))
    assert "closer bins" not in labels_of(model)


def test_several_features_are_looked_at_together_with_weights():
    rng = np.random.default_rng(0)
    near_by = rng.normal(size=(2000, 2))
    x, y = near_by + np.array([1000.0, -700.0]), (near_by.sum(1) > 0).astype(int)
    schema = Schema({"a": (-2000.0, 2000.0), "b": (-2000.0, 2000.0)}, classes=[0, 1], max_weight=3)
    plan = recipes.get("auto", kind="binary").brief()
    fit = DPGBClassifier(
        schema=schema, recipe=plan, epsilon=8.0, delta=1e-6, noise=SeededNoise(0), random_state=0
    ).fit(x, y, sample_weight=rng.uniform(0.5, 3, 2000))
    assert labels_of(fit).count("closer bins") == 1
    for bins, centre in zip(fit.model_.bins, (1000.0, -700.0), strict=True):
        assert np.sum(np.abs(bins.edges - centre) < 2) > 5


def test_the_most_rounds_only_fall():
    seen = []
    fitted(callbacks=[lambda _label, _done, most: seen.append(most)])
    assert seen == sorted(seen, reverse=True)


def test_an_open_window_of_two_whole_numbers_in_a_cell_is_coarse():
    assert Window(0, 0, 0.0, 1.5, 5, True).is_coarse(100.0)
    assert not Window(0, 0, 0.0, 0.5, 5, True).is_coarse(100.0)
