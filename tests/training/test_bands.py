"""The bands of a fit: how wide they are beside what noise does, and where none are given."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_fits import estimator, rows

from dpgb_dask.components.auto.smoothing import Seen
from dpgb_dask.contracts.model import SHARE_ONE
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
        leaf=np.arange(3, dtype=np.uint8), weight=weight, grad_sd=10.0, sampling=0.0, keep=0.5, curvature=1.0,
        scales=np.array([0.4]), shift=np.zeros(3),
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
