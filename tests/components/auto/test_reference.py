"""Leaves that are kept back: which, what is made of the others, and how certain they are."""

from dataclasses import fields, replace

import numpy as np
import pytest

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.components import constants
from dpgb_dask.components.answers import Sums
from dpgb_dask.components.auto import smoothing
from dpgb_dask.components.auto.reference import sums_of_leaves, with_reference
from dpgb_dask.components.auto.smoothing import Observation
from dpgb_dask.contracts.queries import MainSumsQuery, ReferenceSumsQuery
from dpgb_dask.kernels.posterior import tell
from dpgb_dask.losses import softmax_gradient
from dpgb_dask.testing import SeededNoise

# features of 4, 3, 2 and 1 bins; one leaf of each but the third holds half of the rows
LEAVES = tuple(np.array(leaf, np.uint8) for leaf in ([0, 0, 1, 2], [0, 1, 1], [0, 1], [0]))
MASSES = tuple(map(np.array, ([30.0, 25.0, 25.0, 20.0], [10.0, 45.0, 45.0], [49.0, 51.0], [100.0])))


def whole():
    return MainSumsQuery(
        label="",
        price=1,
        gradient=softmax_gradient(2),
        n_scores=2,
        leaf_of_bin=LEAVES,
        n_leaves=(3, 2, 2, 1),
    )


def keeping_back(*omitted, most_blocks=2):
    query = whole()
    asked = {field.name: getattr(query, field.name) for field in fields(query)}
    return ReferenceSumsQuery(**asked, omitted=omitted, most_blocks=most_blocks)


def test_heavy_leaves_are_kept_back_where_rows_then_fall_into_few_blocks():
    query = with_reference(whole(), MASSES)
    assert isinstance(query, ReferenceSumsQuery)
    assert query.omitted == (0, 1, 1, 0)
    assert query.most_blocks == 2  # 1 + .45 + .1 + .49 + 0 is 2.04
    assert query.n_cells == 1 + 2 + 1 + 1
    light = np.array([24.0, 24.0, 26.0, 26.0])  # no leaf of the first holds half of the rows
    assert with_reference(whole(), (light, *MASSES[1:])).omitted == (-1, 1, 1, 0)
    # 1 + 1 + .5 + .5 + 0 blocks are three of four,
    half = light, np.array([50.0, 25.0, 25.0]), np.array([50.0, 50.0]), MASSES[3]
    assert with_reference(whole(), half).most_blocks == 3
    few = replace(whole(), leaf_of_bin=LEAVES[:2], n_leaves=(3, 2))
    assert with_reference(few, MASSES[:2]) is few  # 1.55 blocks of two features


def test_all_leaves_are_as_if_they_had_been_released():
    rng = np.random.default_rng(0)
    every = rng.normal(size=(2, 8, 2))
    starts = np.array([0, 3, 5, 7])
    every[:, [2, 4, 6, 7]] += every[:, :3].sum(1, keepdims=True) - np.add.reduceat(
        every, starts, axis=1
    )
    total = every[:, :3].sum(1, keepdims=True)
    query = keeping_back(0, -1, 1, 0)
    released = np.concatenate([total, every[:, query.released]], axis=1)
    told = sums_of_leaves(query, Sums(*released, 1.0, 2.0))
    np.testing.assert_allclose(np.concatenate(told.grad), every[0])
    np.testing.assert_allclose(np.concatenate(told.hess), every[1])
    assert told.omitted == (0, -1, 1, 0)
    # the released total, and that of the second feature, of two cells
    np.testing.assert_allclose(told.grad_totals, np.repeat(total[0], 2, axis=0))
    np.testing.assert_allclose(told.hess_totals, np.repeat(total[1], 2, axis=0))
    assert told.n_summed.tolist() == [1, 2]
    plain = sums_of_leaves(whole(), Sums(*every, 1.0, 2.0))
    assert plain.omitted == (-1,) * 4
    assert plain.n_summed.tolist() == [3, 2, 2, 1]
    np.testing.assert_allclose(plain.grad_totals, np.repeat(total[0], 4, axis=0))


@pytest.mark.parametrize("omitted", [-1, 1])
def test_the_certainty_of_a_leaf_is_what_noise_leaves_of_it(omitted):
    """Within 5 standard deviations of the spread of 4,000 draws; one cell's noise off, and it fails."""
    weight = np.array([30.0, 90.0, 60.0])
    rng = np.random.default_rng(1)
    n = 4000
    leaves = rng.normal(0, 8.0, (n, 3))
    # the totals of many features are averaged where none is kept back
    total = rng.normal(0, 8.0, n) if omitted >= 0 else np.zeros(n)
    pull = leaves - total[:, None] * weight / weight.sum()
    precision = np.zeros((3, 3))  # of what the sums tell, if the table is v
    tell(
        np.arange(3, dtype=np.uint8), weight, np.eye(3), np.zeros((3, 1)), np.zeros(1), grad_sd=8.0, sampling=0.0,
        omitted=omitted, keep=1.0, rank=3, precision=precision, known=np.zeros((3, 1)),
    )  # fmt: skip
    certain = np.diag(precision) / weight**2
    for k in range(3):
        if k == omitted:
            assert certain[k] == 0
        else:
            assert pull[:, k].var() * certain[k] == pytest.approx(1, abs=5 * np.sqrt(2 / n))


def test_a_leaf_that_is_kept_back_tells_the_filter_nothing_of_its_own():
    mass = np.array([50.0, 300.0, 100.0])
    root = smoothing.square_root(smoothing.prior(mass, ordered=False, missing_last=False))
    block = smoothing.new_block(mass, root, 0.2)
    seen = Observation(
        grad_sd=8.0, hess_sd=16.0, round=0, sampling=3.0, hess_low=0.01, hess_high=0.25
    )
    told, leaf = [], np.arange(3, dtype=np.uint8)
    for grad_of_heavy in (0.0, 1e6):
        grad, hess = np.array([9.0, grad_of_heavy, -4.0]), mass * 0.2
        after = smoothing.observe(
            block, leaf, grad, hess, 1.5, seen, hess_total=90.0, scales=None, omitted=1
        )
        told.append(after.shift)
        assert after.seen[-1].omitted == 1
    np.testing.assert_array_equal(*told)
    assert np.abs(told[0]).max() > 0


def flags(n=4000):
    """Twelve rare flags, one of which speaks for the class and one against it."""
    rng = np.random.default_rng(5)
    x = rng.random((n, 12)) < 0.08
    y = (rng.normal(0, 1, n) + 2 * x[:, 0] - 2 * x[:, 1] > 0).astype(int)
    return x.astype(object) == 1, y


def fit_flags(epsilon):
    schema = Schema({f"f{j}": bool for j in range(12)}, classes=[0, 1])
    x, y = flags()
    return DPGBClassifier(
        schema=schema, epsilon=epsilon, delta=1e-6, interaction_cst="no_interactions",
        random_state=0, noise=SeededNoise(1),
    ).fit(x, y)  # fmt: skip


def effects(model):
    return np.array([np.ptp(table[:2]) / 65536 for table in model.model_.tables])


def test_effects_are_those_of_all_leaves_with_less_noise(monkeypatch):
    referred = fit_flags(30.0)
    monkeypatch.setattr(constants, "FEWER_BLOCKS", 0.0)
    plain = fit_flags(30.0)
    np.testing.assert_allclose(effects(referred)[:2], effects(plain)[:2], rtol=0.15)
    assert (effects(plain)[:2] > 1).all()
    noise = [
        next(
            r.sigma_steps * 2.0**-r.scale_bits
            for r in m.privacy_report_.receipts
            if "main" in r.label
        )
        for m in (referred, plain)
    ]
    assert noise[0] == pytest.approx(noise[1] * np.sqrt(2 / 12), rel=0.01)  # K = 2 of 12
