"""Golden answers: what every recipe asks, opens, releases and builds from fixed rows under fixed noise.


They survive changes of names and structure: the noise of a round is keyed by (seed, position in the fit) alone, not by
the query, and the values that are compared are read at two stable places: `Controller.release`, and the saved model.

``python tests/golden.py --new`` adds the answers of plans that have none, and leaves all others as they are.
``python tests/golden.py PLAN ...`` writes those of some plans anew, and without a name all of them. Do so only for a
change that means to change models, and says so.
"""

import hashlib
import json
import platform
import sys
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import scipy
from plans import PLANS
from threadpoolctl import threadpool_info

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.controller.noise import FitKey, KeyStream
from dpgb_dask.controller.release import Controller
from dpgb_dask.testing import SeededNoise

FILE = Path(__file__).with_name("golden.json")
SEED = 7
N_ROWS = 700
FEATURES = {
    "x": {"type": "numeric", "low": -2.0, "high": 2.0},
    "age": {"type": "numeric", "low": 0, "high": 90, "integer": True},
    "gain": {"type": "numeric", "low": 0, "high": 1000, "missing": True},
    "job": {"type": "categorical", "categories": ["field", "none", "office"]},
    "area": {"type": "categorical", "categories": [1, 2, 3, 4]},
}
TARGETS = {
    "binary": {"name": "y", "type": "binary", "classes": [0, 1]},
    "multiclass": {"name": "y", "type": "multiclass", "classes": ["high", "low", "middle"]},
    "numeric": {"name": "y", "type": "numeric", "low": -5, "high": 5},
}
FEW = {"n_estimators": 3, "max_depth": 3}  # of trees; 300 per feature say no more
# what else than plain rows: sample weights, units of several rows, a feature that fills a few cells of the grid, and so
# little budget that cells are evened and looks at the target cost more
VARIANTS = [
    ("auto", "binary", "weights"),
    ("auto", "binary", "units"),
    ("auto", "binary", "far"),
    ("auto", "numeric", "noise"),
    ("dpboost", "binary", "units"),
]
CASES = [
    *((name, kind, "rows") for name, plan in sorted(PLANS.items()) for kind in sorted(plan.kinds)),
    *VARIANTS,
]  # fmt: skip


def rows(kind):
    """A frame with missing, clipped and unknown values, and its target, some of it unusable."""
    rng = np.random.default_rng(2026)
    frame = pd.DataFrame(
        {
            "x": rng.normal(0, 1, N_ROWS),
            "age": rng.integers(0, 91, N_ROWS),
            "gain": np.where(rng.random(N_ROWS) < 0.8, 0.0, rng.lognormal(4, 2, N_ROWS)),
            "job": pd.Series(rng.choice(["field", "none", "office", "pilot"], N_ROWS), dtype=object),
            "area": rng.integers(1, 6, N_ROWS),
        }
    )  # fmt: skip
    score = frame["x"] + (frame["job"] == "office") * (frame["age"] - 45) / 20
    frame.loc[::23, "gain"] = np.nan
    frame.loc[::29, "job"] = None
    frame["person"] = rng.integers(0, 300, N_ROWS)
    noisy = score + 0.3 * rng.normal(size=N_ROWS)
    if kind == "numeric":
        return frame, noisy.where(rng.random(N_ROWS) < 0.99)
    if kind == "binary":
        return frame, pd.Series(np.where(rng.random(N_ROWS) < 0.99, noisy > 0, 2).astype(np.int64))
    names = np.select([noisy < -0.5, noisy < 0.7], ["low", "middle"], "high").astype(object)
    names[::50] = "unheard of"
    return frame, pd.Series(names, dtype=object)


def fit(name, kind, variant):
    """Fit one case; return its rounds and its saved model, in short."""
    frame, y = rows(kind)
    schema = {"features": FEATURES, "target": TARGETS[kind], "ignore": ["person"]}
    weight = None
    if variant == "units":
        schema |= {"ignore": [], "unit_id": "person"}
    elif variant == "far":
        frame["x"] += 1000
        schema["features"] = FEATURES | {"x": {"type": "numeric", "low": -2000.0, "high": 2000.0}}
    elif variant == "weights":
        schema["max_weight"] = 3
        weight = pd.Series(np.arange(N_ROWS) % 9 / 2)
    few = {key: value for key, value in FEW.items() if key in PLANS[name].parameters()}
    estimator = (DPGBRegressor if kind == "numeric" else DPGBClassifier)(
        epsilon=0.3 if variant == "noise" else 6.0, delta=1e-6, schema=Schema.from_dict(schema), recipe=PLANS[name],
        noise=SeededNoise(SEED), random_state=SEED, **few,
    )  # fmt: skip
    if variant == "units":
        estimator.set_params(unit_id="person", max_rows_per_unit=2)
    told, release = [], Controller.release
    sums = {}

    def stream(_key, _query_id, opened):
        sums["opened"] = opened.copy()
        return KeyStream(hashlib.sha256(b"golden %d %d" % (SEED, len(told))).digest())

    def noted(controller, query, raw):
        released = release(controller, query, raw)
        bound, receipt = raw.sensitivity, released.receipt
        told.append([
            query.price, bound.l2_squared, bound.l1, bound.choice_range, receipt.mechanism, receipt.sigma_steps,
            receipt.scale_bits, digest(sums["opened"]), digest(released.value),
        ])  # fmt: skip
        return released

    with (
        mock.patch.object(FitKey, "stream", stream),
        mock.patch.object(Controller, "release", noted),
        tempfile.TemporaryDirectory() as folder,
    ):
        # what NumPy would do in the caller's own code is not what it does in a fit
        with np.errstate(all="raise"):
            estimator.fit(frame, y, sample_weight=weight)
        path = Path(folder) / "model.json"
        estimator.save(path)
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
    return {"rounds": told, "model": digest(json.dumps(model, sort_keys=True))}


def digest(content):
    """Sixteen hexadecimal digits of a vector or a text."""
    data = (
        content.encode()
        if isinstance(content, str)
        else np.ascontiguousarray(content, "<i8").tobytes()
    )
    return hashlib.sha256(data).hexdigest()[:16]  # fmt: skip


def build():
    """What float linear algebra depends on: sums are the same everywhere, what is solved from them need not be."""
    found = [info for info in threadpool_info() if info["user_api"] == "blas"]
    blas = sorted(f"{i['internal_api']} {i.get('version')} {i.get('architecture')}" for i in found)
    return [
        platform.machine(),
        f"numpy {np.__version__}",
        f"scipy {scipy.__version__}",
        *dict.fromkeys(blas),
    ]


def write(known, cases, made_on):
    """Write golden answers: the known ones as they are, by name, and those of further cases.

    Parameters
    ----------
    known : dict of str to dict
    cases : list of tuple
        In the order of the file.
    made_on : list of str
        The build of the known answers; a new one of another build names its own.
    """
    warnings.simplefilter("error")
    lines = []
    for case in cases:
        name = " ".join(case)
        told = known.get(name)
        if told is None:
            told = fit(*case) | ({} if build() == made_on else {"build": build()})
        lines.append(f' "{name}": {json.dumps(told)}')
    text = ",\n".join(lines)
    FILE.write_text(
        f'{{"build": {json.dumps(made_on)},\n "cases": {{\n{text}\n}}}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    renewed = [name for name in sys.argv[1:] if name != "--new"]
    if unknown := set(renewed) - set(PLANS):
        sys.exit(f"unknown plans {sorted(unknown)}; known: {sorted(PLANS)}")
    if sys.argv[1:]:
        stored = json.loads(FILE.read_text(encoding="utf-8"))
        kept = {k: told for k, told in stored["cases"].items() if k.split()[0] not in renewed}
        write(kept, CASES, stored["build"])
    else:
        write({}, CASES, build())
