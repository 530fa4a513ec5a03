"""Features of every kind, in every collection: the same model, and the same scores from it."""

import argparse

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from thinned import thinned

from dpgb_dask import Datetime, DPGBClassifier, Hashed, Schema, io
from dpgb_dask.cli.tables import open_table
from dpgb_dask.encoding.codes import read_values
from dpgb_dask.recipes import RECIPES
from dpgb_dask.released.export import model_to_dict
from dpgb_dask.testing import SeededNoise

# Dask's own, where it reads Parquet
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")

CITIES = {"10115": "Berlin", "01067": "Dresden", "01069": "Dresden", "80331": "München"}
SCHEMA = Schema(
    {
        "when": Datetime(
            "2019-06-01", "2021-05-31", ("days", "year", "month", "weekday", "hour"), missing=True
        ),
        "born": Datetime("1930-01-01", "2005-12-31", ("year",)),
        "zip": {"from": CITIES},
        "shop": Hashed(8),
        "member": bool,
        "age": (0, 100),
    },
    classes=[0, 1],
    target="y",
)
NAMES = list(SCHEMA.names)


def some_rows(n=900):
    """Rows as pandas has them; some dates are missing or out of bounds, some zip codes unknown."""
    rng = np.random.default_rng(3)
    when = np.datetime64("2019-01-01T00:00:00", "us") + rng.integers(0, 3 * 365 * 86400, n) * 10**6
    when[::41] = np.datetime64("NaT", "us")
    born = np.datetime64("1925-01-01", "s") + rng.integers(0, 90 * 365, n) * np.timedelta64(1, "D")
    frame = pd.DataFrame(
        {
            "when": when,
            "born": born,
            "zip": rng.choice([*CITIES, "99999"], n),
            "shop": rng.choice([f"shop {k}" for k in range(40)], n),
            "member": rng.random(n) < 0.4,
            "age": rng.integers(0, 100, n).astype(float),
        }
    )
    month = frame["when"].dt.month.fillna(0).to_numpy()
    y = (rng.random(n) < np.where(month > 6, 0.8, 0.2)).astype(int)
    return frame, pd.Series(y, name="y")


def as_objects(frame):
    out = np.empty(frame.shape, object)
    for j, name in enumerate(frame.columns):
        out[:, j] = frame[name].tolist()
    return out


def variables(frame):
    return {
        name: ("row", column.to_numpy(object if name in ("zip", "shop") else None))
        for name, column in frame.items()
    }


def as_arrow(frame):
    types = {
        "when": pa.timestamp("us", "Asia/Tokyo"), "born": pa.date32(), "zip": pa.string(),
        "shop": pa.dictionary(pa.int32(), pa.string()), "member": pa.bool_(), "age": pa.float32(),
    }  # fmt: skip
    when = frame["when"].dt.tz_localize("UTC")
    table = pa.Table.from_pandas(
        frame.assign(when=when, born=frame["born"].dt.date), pa.schema(types.items())
    )
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def as_zarr(frame, tmp):
    group = zarr.open_group(tmp / "x.zarr", mode="w")
    for name, column in frame.items():
        values = column.to_numpy()
        text = values.dtype.kind not in "bfM"
        group.create_array(name, data=values.astype(np.dtypes.StringDType()) if text else values)
    return group


def as_csv(frame, tmp):
    frame.astype({"member": str}).to_csv(tmp / "x.csv", index=False)
    return io.read_csv(tmp / "x.csv", blocksize=20_000)


def as_parquet(frame, tmp):
    frame.to_parquet(tmp / "x.parquet")
    options = argparse.Namespace(
        data=str(tmp / "x.parquet"), delimiter=None, encoding=None, decimal=None, weight=None
    )
    return open_table(options, SCHEMA)[0]


def as_lazy_frame(frame):
    return dd.from_pandas(frame, npartitions=3)


def in_any_time_zone(frame):
    """Each date as one of the things that say it."""
    told = [
        lambda t: t, lambda t: t.to_pydatetime(), lambda t: t.to_datetime64(), str, lambda t: t.isoformat("T"),
        lambda t: t.tz_localize("UTC").tz_convert("America/New_York"),
        lambda t: t.tz_localize("UTC").tz_convert("Asia/Kolkata").isoformat(),
    ]  # fmt: skip
    when = [told[k % len(told)](t) if t == t else None for k, t in enumerate(frame["when"])]
    born = [t.date() if k % 2 else str(t.date()) for k, t in enumerate(frame["born"])]
    objects = {"when": pd.Series(when, dtype=object), "born": pd.Series(born, dtype=object)}
    words = frame["member"].map({True: "true", False: 0}).astype(object)
    return frame.assign(**objects, member=words)


FORMS = {
    "pandas": lambda frame, _: frame,
    "objects": lambda frame, _: as_objects(frame),
    "lists": lambda frame, _: as_objects(frame).tolist(),
    "in any zone": lambda frame, _: in_any_time_zone(frame),
    "categorical": lambda frame, _: frame.astype("category"),
    "arrow": lambda frame, _: as_arrow(frame),
    "arrow table": lambda frame, _: pa.Table.from_pandas(frame, preserve_index=False),
    "frame": lambda frame, _: as_lazy_frame(frame),
    "frame in any zone": lambda frame, _: as_lazy_frame(in_any_time_zone(frame)),
    "array": lambda frame, _: da.from_array(as_objects(frame), chunks=(250, -1)),
    "dataset": lambda frame, _: xr.Dataset(variables(frame)),
    "lazy dataset": lambda frame, _: xr.Dataset(variables(frame)).chunk({"row": 300}),
    "dataarray": lambda frame, _: xr.DataArray(
        as_objects(frame), dims=("row", "column"), coords={"column": NAMES}
    ),
    "zarr": as_zarr,
    "csv": as_csv,
    "parquet": as_parquet,
}


def target_for(X, y):
    if isinstance(X, dd.DataFrame):
        lengths = [len(part) for part in dask.compute(*X.to_delayed())]
        return dd.from_dask_array(da.from_array(y.to_numpy(), chunks=(tuple(lengths),)))
    return y.to_numpy()


def fitted(X, y, schema=SCHEMA):
    estimator = DPGBClassifier(
        epsilon=4.0, delta=1e-6, schema=schema, recipe=RECIPES["auto"].brief(), columns="position",
        noise=SeededNoise(1), random_state=2,
    )  # fmt: skip
    return estimator.fit(X, target_for(X, y) if y is not None else None)


@pytest.fixture(scope="module")
def reference():
    frame, y = some_rows()
    return fitted(frame, y)


@pytest.mark.parametrize("form", thinned(FORMS, every=2))
def test_features_of_every_kind_are_read_alike_in_every_collection(form, reference, tmp_path):
    frame, y = some_rows()
    X = FORMS[form](frame, tmp_path)
    model = fitted(X, y)
    assert model_to_dict(model.model_) == model_to_dict(reference.model_)
    scores = np.asarray(model.decision_function(X))
    assert np.array_equal(scores, reference.decision_function(frame))
    assert model.n_features_in_ == len(NAMES)
    assert len(model.model_.tables) == len(SCHEMA.encoded) == 10


def test_a_data_set_keeps_every_kind_of_feature(reference, tmp_path):
    frame, y = some_rows()
    io.write_dataset(tmp_path / "s.zarr", frame, y, schema=SCHEMA, shard_rows=400)
    data = io.open_dataset(tmp_path / "s.zarr")
    assert data.schema == SCHEMA
    model = fitted(data.X, y)
    assert model_to_dict(model.model_) == model_to_dict(reference.model_)
    scores = np.asarray(reference.decision_function(data.X))
    assert np.array_equal(scores, reference.decision_function(frame))


def test_a_data_set_keeps_what_is_no_value_of_a_group_or_bucket(tmp_path):
    odd = np.empty((4, 6), object)
    odd[:] = [["x"] * 6, [None] * 6, [[1]] * 6, ["2020-02-30", "", "<other>", "<other>", 2, np.inf]]
    io.write_dataset(
        tmp_path / "s.zarr", odd, np.zeros(4), schema=SCHEMA, columns="position", shard_rows=3
    )
    kept = io.open_dataset(tmp_path / "s.zarr").X.compute()
    for own, again in zip(
        read_values(odd, SCHEMA).columns, read_values(kept, SCHEMA).columns, strict=True
    ):
        assert np.array_equal(own, again, equal_nan=own.dtype.kind == "f")


def test_a_file_keeps_the_kinds_and_predicts_alike(reference, tmp_path):
    frame, _ = some_rows()
    reference.save(tmp_path / "model.json")
    again = DPGBClassifier.load(tmp_path / "model.json")
    assert again.schema_ == SCHEMA
    assert np.array_equal(again.decision_function(frame), reference.decision_function(frame))


def test_the_report_tells_every_kind_in_words(reference):
    told = str(reference.privacy_report_)
    for words in (
        "dates from 2019-06-01 to 2021-05-31", "4 declared values in 3 groups", "in 8 buckets", "true or false"
    ):  # fmt: skip
        assert words in told
    for group in set(CITIES.values()):  # of 900 zip codes too, group by group
        own = [str(zip_code) for zip_code, city in CITIES.items() if city == group]
        assert f"{group}  " in told
        assert own[0] in told.partition("groups of zip")[2]
    assert reference.privacy_report_.to_dict()["public"]["mappings"] == {"zip": CITIES}


def test_the_report_has_no_share_of_other_values_of_a_hash(reference):
    shares = reference.privacy_report_.shares
    assert set(shares["shop"]) == {"missing"}
    assert set(shares["zip"]) == {"missing", "other"}


def test_the_owner_s_check_counts_every_kind():
    frame, _ = some_rows()
    early = frame["when"][2:] < "2019-06-01"
    frame = frame.astype({"when": object, "member": object, "shop": object})
    frame.loc[0, ["when", "member", "shop"]] = ["soon", "maybe", None]
    frame.loc[1, ["when"]] = pd.Timestamp("1600-01-01")
    when, born, zips, shop, member, _ = SCHEMA.check(frame).columns
    lost = int(frame["when"].isna().sum())
    assert (when.missing, when.values) == (lost + 1, (("'soon'", 1),))
    assert when.below == int(early.sum()) + 1
    assert when.above > 0 < born.above
    assert zips.unknown == int((frame["zip"] == "99999").sum())
    assert (shop.missing, shop.unknown) == (1, 0)
    assert (member.unknown, member.values) == (1, (("'maybe'", 1),))
