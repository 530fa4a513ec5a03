"""NaNs of every bit pattern and type, under every recipe: no value warns (warnings are errors here)."""

from itertools import product

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from plans import DISTINCT, PLANS
from thinned import one_of_each, thinned

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.io import open_dataset, write_dataset
from dpgb_dask.recipes import get as recipe
from dpgb_dask.testing import SeededNoise

# few of these values are a category: released numbers tell, and may warn
pytestmark = pytest.mark.filterwarnings("ignore::dpgb_dask.errors.UnreadValuesWarning")
FEATURES = {"a": (0, 1), "b": (0, 1), "c": [0, 1]}
SCHEMAS = {
    "binary": Schema(FEATURES, classes=[0, 1], max_weight=2),
    "multiclass": Schema(FEATURES, classes=[0, 1, 2], max_weight=2),
    "numeric": Schema(FEATURES, target_bounds=(0, 1), max_weight=2),
}
N = 240


def signalling(dtype):
    """A column with NaNs that a processor reports when it converts them, quiet ones, and huge numbers."""
    values = (np.arange(N) % 97 / 97).astype(dtype)
    size = values.dtype.itemsize
    bits = {2: 0x7D01, 4: 0x7FA00001, 8: 0x7FF4000000000001}[size]
    values.view(values.dtype.str.replace("f", "u"))[::7] = bits
    values[3::7] = np.nan
    values[4::7] = np.finfo(values.dtype).max
    values[5::7] = -np.inf
    return values


def frame(*dtypes):
    columns = {name: signalling(dtype) for name, dtype in zip("abc", dtypes, strict=True)}
    return pd.DataFrame(columns)


def of_chunks(*frames):
    """A Dask DataFrame whose partitions have types of their own."""
    return dd.from_map(lambda k: frames[k], range(len(frames)), meta=frames[0][:0])


def as_arrays(dtype):
    return da.from_array(frame(dtype, dtype, dtype).to_numpy(dtype), chunks=(100, 3))


SOURCES = {
    "float32 beside float64": lambda: frame("f4", "f8", "f4"),
    "float64 beside float32": lambda: frame("f8", "f4", "f8"),
    "other byte order": lambda: frame(">f4", "f8", ">f8"),
    "float16": lambda: frame("f2", "f4", "f2"),
    "matrix of float32": lambda: np.stack([signalling("f4")] * 3, axis=1),
    "matrix of float64": lambda: np.stack([signalling("f8")] * 3, axis=1),
    "matrix of float16": lambda: np.stack([signalling("f2")] * 3, axis=1),
    "objects": lambda: frame("f4", "f8", "f4").astype(object),
    "NumPy objects": lambda: frame("f4", "f8", "f2").astype(object).to_numpy(),
    "partitions of two types": lambda: of_chunks(frame("f4", "f8", "f8"), frame("f8", "f4", "f4")),
    "chunks": lambda: as_arrays("f4"),
}
QUICK = ("float32 beside float64", "partitions of two types", "matrix of float32")


def target(kind, source, dtype="f8"):
    y = {"binary": np.arange(N) % 2, "multiclass": np.arange(N) % 3, "numeric": signalling(dtype)}
    labels = y[kind].astype(dtype) if kind != "numeric" else y[kind]
    if isinstance(source, dd.DataFrame):
        return of_chunks(pd.Series(labels), pd.Series(labels))
    if isinstance(source, da.Array):
        return da.from_array(labels, chunks=100)
    return labels


def fit(name, kind, source, **options):
    estimator = DPGBRegressor if kind == "numeric" else DPGBClassifier
    plan = recipe(PLANS[name], kind=kind).brief()
    model = estimator(recipe=plan, epsilon=4.0, schema=SCHEMAS[kind], noise=SeededNoise(0))
    model.set_params(on_few_rows="continue")
    y = target(kind, source)
    with dask.config.set(scheduler="sync"):
        model.fit(source, y, **options)
        getattr(model.predict(source), "compute", lambda: None)()


@pytest.mark.parametrize("name", thinned(DISTINCT, every=6))
def test_no_bits_warn(name):
    kind = sorted(PLANS[name].kinds)[0]
    for source in QUICK:
        fit(name, kind, SOURCES[source]())


@pytest.mark.parametrize(
    ("source", "name", "kind"),
    one_of_each(
        product(
            SOURCES, [("auto", "numeric"), ("fdp-tr-newton-ih", "binary"), ("dp-ebm", "binary")]
        )
    ),
)
def test_no_type_of_bits_warns(source, name, kind):
    fit(name, kind, SOURCES[source]())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name"), list(enumerate(DISTINCT)))
def test_no_bits_of_any_type_warn_in_any_recipe(number, name):
    """Every recipe with every third source, other ones each."""
    for source in list(SOURCES)[number % 3 :: 3]:
        for kind in sorted(PLANS[name].kinds):
            fit(name, kind, SOURCES[source]())


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
def test_no_weight_and_no_target_warns(dtype):
    table = frame("f4", "f8", "f4")
    model = DPGBRegressor(schema=SCHEMAS["numeric"], noise=SeededNoise(0), recipe="fdp-tr-newton")
    model.set_params(n_estimators=2, on_few_rows="continue")
    model.fit(table, signalling(dtype), sample_weight=signalling(dtype))


@pytest.mark.parametrize("source", SOURCES)
def test_no_bits_warn_as_they_are_written(source, tmp_path):
    rows = SOURCES[source]()
    with dask.config.set(scheduler="sync"):
        write_dataset(
            tmp_path / "d.zarr", rows, target("numeric", rows, "f4"), schema=SCHEMAS["numeric"]
        )
        data = open_dataset(tmp_path / "d.zarr")
        fit_again = DPGBRegressor(schema=data.schema, noise=SeededNoise(0), recipe="fdp-tr-newton")
        fit_again.set_params(n_estimators=2, on_few_rows="continue").fit(data.X, data.y)
