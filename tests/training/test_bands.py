"""The bands of a fit: how wide they are beside what noise does, and where none are given."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_fits import estimator, rows

from dpgb_dask.components.auto.chosen import ChosenTrees
from dpgb_dask.components.auto.mean import Mean
from dpgb_dask.components.auto.noise import DRAWS, ForestNoise
from dpgb_dask.components.auto.pairs import Pairs
from dpgb_dask.components.auto.smoothing import Seen
from dpgb_dask.components.trees.stage import Trees
from dpgb_dask.contracts.model import SHARE_ONE, BinShares, Splits
from dpgb_dask.recipes import RECIPES
from dpgb_dask.released.explain.boxes import Boxes
from dpgb_dask.released.explain.decomposition import decompose
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training import bands

BENCH = Path(__file__).parents[2] / "ci" / "bench" / "bands.py"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, ""),
        ({"interaction_cst": "pairwise"}, ""),
        ({"monotonic_cst": {"a": 1}}, "monotonic_cst makes the tables monotone"),
        (
            {"recipe": "fdp-tr-newton", "max_depth": 2},
            "for the recipes 'auto' and 'additive' alone",
        ),
    ],
    ids=["plain", "interactions", "monotonic", "another recipe"],
)
def test_none_are_given_where_the_noise_is_not_known(options, why):
    options = {"recipe": "auto", "noise": SeededNoise(0), "on_few_rows": "continue"} | options
    model = estimator(**options, epsilon=20.0).fit(*rows())
    told = model.explain_global()
    if why:
        assert why in model.bands_.why
        assert told.terms[0].lower is None
        assert f"none: {model.bands_.why}" in repr(told)
    else:
        assert model.bands_.why == ""
        assert (told.terms[0].lower < told.terms[0].upper).any()


@pytest.mark.parametrize("forest", [False, True])
def test_none_are_given_where_trees_of_another_stage_are_among_them(forest):
    (trees,) = (own for own in RECIPES["fdp-tr-newton"].stages if isinstance(own, Trees))
    own = RECIPES["auto"]
    *first, last = (s for s in own.stages if not isinstance(s, Pairs | ChosenTrees | Mean))
    few = replace(trees, n_trees=3, depth=3, share=0.2)
    stages = (*first, few, last) if forest else (*first, few)
    plan = replace(own, name="own", stages=stages)
    model = estimator(plan, epsilon=20.0, noise=SeededNoise(0), on_few_rows="continue")
    fitted = model.fit(*rows())
    assert (fitted.model_.trees.n_trees > 3) == forest
    assert fitted.bands_.why == bands.UNKNOWN


@pytest.mark.parametrize("error", [np.inf, np.nan])
def test_rounds_that_do_not_settle_give_no_bands_and_no_error(error, monkeypatch):
    real = bands.through_rounds
    monkeypatch.setattr(
        bands, "through_rounds", lambda *given, **kw: [t + error for t in real(*given, **kw)]
    )
    model = estimator("auto", epsilon=20.0, noise=SeededNoise(0), on_few_rows="continue").fit(
        *rows()
    )
    assert model.bands_.why == bands.DIVERGED


def test_noise_of_the_released_total_is_in_every_leaf_by_its_share(monkeypatch):
    """Within 5 standard deviations of 4,000 draws; without the released total's part, 1.19 would be 1.75."""
    monkeypatch.setattr(bands, "DRAWS", 4000)
    weight = np.array([500.0, 300.0, 200.0])
    full = Seen(
        leaf=np.arange(3, dtype=np.uint8), weight=weight, grad_sd=10.0, sampling=0.0, keep=0.5, n_leaves=3,
        curvature=1.0, scales=np.array([0.4]), shift=np.zeros(3),
    )  # fmt: skip
    seen = [full, replace(full, omitted=2)]
    (_, sums), total = bands.sums_of(
        [np.zeros((3, 4000))] * 2, seen, np.random.default_rng(0), None
    )
    pull = sums - weight[:, None] / 1000 * total
    of_total = 1 / (1 + 1 / 3)  # the released total, and that of the other table, of three leaves
    expected = 1 + of_total * (weight / 1000) ** 2
    ratio = pull.var(1) / 100 / expected
    np.testing.assert_allclose(ratio[:2], 1, atol=5 * np.sqrt(2 / 4000))


@pytest.mark.slow
def test_they_are_as_wide_as_noise_moves_a_curve(record_property):
    """Against the spread of fits that differ in the noise of their rounds alone: a factor of two either way."""
    bench = runpy.run_path(str(BENCH))
    fits = bench["Fits"](*bench["made_up"](), 1.0)
    curves, told = [], []
    for seed in range(1, 31):
        state = fits.fit(seed)
        curves.append([table[:, 0] for table in decompose(state.model, fits.shares).mains])
        told.append([sd[:, 0] for sd in bench["bands_of"](state, state.model, fits.shares).mains])
    for name, share, curve, sd in zip(
        "ab", fits.shares.weights, zip(*curves, strict=True), zip(*told, strict=True), strict=True
    ):
        weight = share / SHARE_ONE
        spread = np.sqrt(weight @ np.var(curve, axis=0, ddof=1))
        ratio = np.sqrt(weight @ np.mean(np.square(sd), axis=0)) / spread
        record_property("saw", f"{name}: sd of the bands {ratio:.2f} of the spread")
        assert spread > 0
        assert 0.5 < ratio < 2


def test_a_batch_of_trees_adds_its_noise_and_takes_back_errors_as_boxes_say():
    """The variance of what a batch does to a main effect, leaf by leaf, beside many draws of it."""
    rng, n_trees, bins = np.random.default_rng(0), 40, [4, 3]
    feature = rng.integers(0, 2, (n_trees, 3)).astype(np.uint16)
    threshold = rng.integers(0, 2, (n_trees, 3)).astype(np.uint8)
    eighths = [[1, 1, 2, 4], [4, 3, 1]]
    shares = BinShares(tuple(np.array(part) * SHARE_ONE // 8 for part in eighths), (True, True))
    boxes = Boxes.of(Splits.plain(feature, threshold), shares)
    sides = boxes.sides()
    gain = rng.uniform(0.5, 1.5, (1, n_trees, 4)) / 1000
    sd = tuple(rng.uniform(5, 15, n_trees))
    forest = ForestNoise(gain=gain, grad_sd=sd, hess=(50.0,), batches=(n_trees,), scales=(1.0,))
    mass = [part / part.sum() for part in shares.weights]
    error = [rng.normal(size=n) for n in bins]
    error = [part - own @ part for part, own in zip(error, mass, strict=True)]
    tables = [np.repeat(part[:, None], DRAWS, axis=1) for part in error]
    draws = [bands.through_forest(tables, boxes, forest, shares, 0, rng) for _ in range(40)]
    every = [np.concatenate(part, axis=1) for part in zip(*draws, strict=True)]

    of_leaf = (gain[0] * np.array(sd)[:, None]).ravel()
    inside = np.zeros((2, n_trees * 4, max(bins)), bool)
    for j, side in enumerate(sides):
        inside[j] = True
        inside[j, side.leaf, : bins[j]] = side.inside[:, boxes.groups[j]]
    held = [inside[j, :, :n] for j, n in enumerate(bins)]
    share = [own @ part for own, part in zip(held, mass, strict=True)]
    found = sum(
        own @ (part * delta) / np.where(reached > 0, reached, 1)
        for own, part, delta, reached in zip(held, mass, error, share, strict=True)
    )
    step = -gain[0].ravel() * 50 * share[0] * share[1] * found
    for j, part in enumerate(every):
        effect = (held[j] - share[j][:, None]) * share[1 - j][:, None]
        np.testing.assert_allclose(part.std(1), np.sqrt((effect**2).T @ of_leaf**2), rtol=0.08)
        moved = part.mean(1) - error[j]
        noise = part.std(1) / np.sqrt(part.shape[1])
        assert (np.abs(moved - effect.T @ step) < 5 * noise + 1e-6).all()


def test_noise_of_a_forest_is_multiplied_once_all_rounds_were_asked():
    """Later rounds answered to the trees as they were: what is multiplied is the whole of it."""
    rng, n_trees = np.random.default_rng(0), 40
    feature = rng.integers(0, 2, (n_trees, 3)).astype(np.uint16)
    threshold = rng.integers(0, 2, (n_trees, 3)).astype(np.uint8)
    eighths = [[1, 1, 2, 4], [4, 3, 1]]
    shares = BinShares(tuple(np.array(part) * SHARE_ONE // 8 for part in eighths), (True, True))
    boxes = Boxes.of(Splits.plain(feature, threshold), shares)
    gain = rng.uniform(0.5, 1.5, (1, n_trees, 4)) / 1000
    tables = [np.zeros((n, DRAWS)) for n in (4, 3)]

    def moved(*scales):
        forest = ForestNoise(
            gain=gain, grad_sd=(10.0,) * n_trees, hess=(50.0,), batches=(20, 20), scales=scales
        )
        draws = np.random.default_rng(1)
        return bands.through_forest(tables, boxes, forest, shares, 0, draws), forest.sd

    whole, sd = moved(1.0, 1.0)
    half, sd_of_half = moved(0.5, 0.5)
    first, sd_of_first = moved(1.0, 0.0)
    for own, part, one in zip(whole, half, first, strict=True):
        np.testing.assert_allclose(part, own / 2, rtol=1e-5, atol=1e-9)
        assert np.abs(one - own).max() > 1e-3
    np.testing.assert_allclose(sd_of_half, sd / 2)
    assert (sd_of_first[:, 20:] == 0).all()
    np.testing.assert_allclose(sd_of_first[:, :20], sd[:, :20])
