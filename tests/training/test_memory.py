"""The whole process of a fit stays below ``memory_limit``: rows, rounds, and the decisions between rounds."""

import json
import subprocess
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
from small_fits import estimator, rows

from dpgb_dask.components.auto import posterior
from dpgb_dask.contracts.plan import NO_NEEDS, Needs, Shape
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError
from dpgb_dask.recipes import RECIPES, get
from dpgb_dask.testing import SeededNoise

PEAK = Path(__file__).parents[1] / "peak.py"
WIDE, NARROW = 100, 10
OWN = [recipe for recipe in RECIPES if recipe != "additive"]  # all of its stages are in auto
# every fourth recipe at 4 threads; what differs most at 1 and at 16; a process that controls a cluster
CASES = [
    *((recipe, WIDE, 4) for recipe in OWN[::4]),
    *((recipe, WIDE, 16) for recipe in ("auto", "dp-ebm", "fdp-hist-newton", "dpboost")),
    ("auto", WIDE, 1),
    ("auto", NARROW, 4, 5),
    ("auto", WIDE, 4, 2, "tasks"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_peak_at_the_least_limit(case, record_property):
    command = [sys.executable, str(PEAK), *map(str, case)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    record_property("saw", f"{case}: {found['peak'] / found['least']:.0%} of the least limit")
    assert found["peak"] <= found["least"]


@pytest.mark.parametrize("n_threads", [1, 3])
def test_decisions_take_the_threads_that_are_configured_and_no_others(n_threads, monkeypatch):
    asked = []
    real = posterior.ThreadPoolExecutor

    def spy(n):
        asked.append(n)
        return real(n)

    monkeypatch.setattr(posterior, "ThreadPoolExecutor", spy)
    with dask.config.set({"dpgb-dask.n-threads": n_threads}):
        model = estimator("auto", noise=SeededNoise(0)).fit(*rows())
    assert set(asked) == {n_threads} - {1}  # one thread hands nothing over
    with dask.config.set({"dpgb-dask.n-threads": 2}):
        other = estimator("auto", noise=SeededNoise(0)).fit(*rows())
    x = rows()[0]
    np.testing.assert_array_equal(model.predict_proba(x), other.predict_proba(x))


def needs_of(recipe, n_features=100, **parameters):
    schema = Schema({f"f{j}": (0, 1) for j in range(n_features)}, classes=[0, 1])
    return get(recipe, kind="binary", **parameters).needs(Shape(schema=schema))


def test_needs_grow_with_what_they_are_for():
    auto = needs_of("auto")
    assert auto.held > 5 * needs_of("additive", 10).held  # a posterior per feature
    boxes = needs_of("auto", 10).held - needs_of("additive", 10).held
    assert boxes > 60 * 15 * 64 * 1000  # one for each leaf of the forest
    assert auto.to_decide(16) - auto.to_decide(1) == 15 * auto.per_thread > 0
    assert needs_of("auto", max_bins=32).held <= auto.held
    many = needs_of("auto", n_estimators=1000)
    assert many.held - auto.held > 980 * 100 * 9 * 200  # the filters of rounds stay for the bands
    assert many.kept - auto.kept == many.held - auto.held
    deep = needs_of("fdp-hist-newton", max_depth=8)
    assert deep.n_sums == 16 * needs_of("fdp-hist-newton", max_depth=4).n_sums
    assert NO_NEEDS.to_sum(16) == NO_NEEDS.to_decide(16) == 0


@pytest.mark.parametrize("n_threads", [1, 4])
def test_an_answer_takes_twelve_bytes_a_sum_for_each_thread_and_two_more(n_threads):
    assert Needs(n_sums=1000).to_sum(n_threads) == 12 * 1000 * (n_threads + 2)


def test_a_limit_too_small_for_what_is_decided_is_refused():
    def least(**config):
        with (
            dask.config.set({f"dpgb-dask.{key}": value for key, value in config.items()}),
            pytest.raises(PlanError, match="for what is decided between two rounds") as caught,
        ):
            estimator("auto", noise=SeededNoise(0), memory_limit="1MiB").fit(*rows())
        return int(str(caught.value).split("at least ")[1].split(" ")[0])

    few, many = least(**{"n-threads": 1}), least(**{"n-threads": 9})
    needs = get("auto", kind="binary").needs(Shape(schema=estimator("auto").schema))
    assert isinstance(needs, Needs)
    assert many - few > 8 * needs.per_thread > 0
