"""Zarr that xarray wrote is read as xarray reads it; metadata alone decide, and each value is decoded by itself."""

import pickle
import shutil
import warnings
from types import SimpleNamespace

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from thinned import thinned

from dpgb_dask import Datetime, DPGBClassifier, Schema
from dpgb_dask.cf_decoding import decoding_of, dims_of, whole_numbers_of
from dpgb_dask.diagnose import check
from dpgb_dask.errors import ChunkError, SchemaError, StructureError
from dpgb_dask.io import write_dataset
from dpgb_dask.matching import names_of
from dpgb_dask.testing import SeededNoise
from dpgb_dask.zarr_arrays import arrays_of, from_zarr

N = 600
SCHEMA = Schema(
    {
        "hours": (0, 100),
        "age": (17, 90),
        "pay": (0, 300),
        "level": (0, 255),
        "when": Datetime("2020-01-01", "2021-12-31", ("days", "month", "hour")),
        "since": Datetime("2020-01-01", "2021-12-31", ("days",)),
        "member": bool,
        "job": ["cook", "judge"],
    },
    classes=[0, 1],
    target="y",
    ignore=["kept"],
    max_weight=3,
)
SETTINGS = {"epsilon": 4.0, "random_state": 0, "recipe": "fdp-tr-newton", "n_estimators": 3}


def people():
    """Columns of every kind that xarray encodes, some values missing, beside an index and another coordinate."""
    rng = np.random.default_rng(0)
    hours = np.where(np.arange(N) < 90, np.nan, rng.uniform(0, 100, N))
    start = np.datetime64("2020-01-01T05:00:00", "ns")
    when = start + rng.integers(0, 700, N).astype("m8[D]")
    when[::7] = np.datetime64("NaT", "ns")
    columns = {
        "hours": hours,
        "age": np.where(rng.random(N) < 0.2, np.nan, rng.integers(17, 90, N)),
        "pay": rng.uniform(0, 300, N).astype(np.float32),
        "level": rng.integers(0, 255, N),
        "when": when,
        "since": when + rng.integers(0, 86_400, N).astype("m8[s]"),
        "member": rng.random(N) < 0.5,
        "job": rng.choice(["cook", "judge", "clown"], N).astype(object),
        "kept": rng.integers(0, 90, N).astype("m8[D]").astype("m8[ns]"),
        "times": rng.integers(0, 4, N).astype(np.float64),
        "y": (np.nan_to_num(hours) + rng.normal(0, 10, N) > 50).astype(np.int64),
    }
    beside = {"person": np.arange(N) * 2, "town": ("person", rng.integers(0, 9, N))}
    return xr.Dataset({name: ("person", values) for name, values in columns.items()}, beside)


ENCODING = {
    "hours": {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9999},
    "age": {"dtype": "int8", "_FillValue": -1, "missing_value": -1},
    "pay": {"dtype": "uint16", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": 65535},
    "level": {"dtype": "int8", "_Unsigned": "true", "_FillValue": -1},
    "since": {"dtype": "float64", "units": "hours since 2020-06-01"},
}


@pytest.fixture(scope="module", params=[2, 3])
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("cf") / "people.zarr"
    stored = people().chunk(person=250)
    stored["level"] = stored["level"].astype(np.float64)
    stored["job"] = stored["job"].compute()
    stored.to_zarr(path, encoding=ENCODING, consolidated=False, zarr_format=request.param)
    return path


def opened(path):
    """A store as a Zarr group, and as xarray opens it."""
    return zarr.open_group(path, mode="r"), xr.open_zarr(path, consolidated=False)


def dropped(path, names, place):
    """A copy of a store without some of its arrays."""
    return shutil.copytree(path, place, ignore=lambda _folder, _files: names)


def model_text(tmp_path, X, y, weight):
    clf = DPGBClassifier(schema=SCHEMA, noise=SeededNoise(0), **SETTINGS)
    with dask.config.set(scheduler="sync"):
        clf.fit(X, y, weight).save(tmp_path / "m.json")
    return clf, (tmp_path / "m.json").read_text()


def test_every_array_has_the_bits_that_xarray_gives(path):
    group, table = opened(path)
    assert names_of(group) == sorted(table.data_vars)
    for name in table.data_vars:
        got, want = from_zarr(group[name]), table[name]
        assert got.chunks == want.chunks
        assert got.dtype == got.compute(scheduler="sync").dtype
        # of text some versions of xarray make objects
        assert got.dtype == want.dtype or (got.dtype.kind, want.dtype.kind) == ("T", "O")
        np.testing.assert_array_equal(got.compute(scheduler="sync"), want.to_numpy())
    assert table["hours"].isnull().sum() == 90
    assert group["hours"][:90].tolist() == [-9999] * 90  # as it is stored


def test_fits_and_predictions_are_those_of_open_zarr(path, tmp_path):
    group, table = opened(path)
    weight = group["times"]
    group, table = (
        zarr.open_group(dropped(path, ["times"], tmp_path / "w.zarr"), mode="r"),
        table.drop_vars("times"),
    )
    clf, want = model_text(tmp_path, table, table["y"], weight[:])
    assert model_text(tmp_path, group, group["y"], weight)[1] == want
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(clf.predict_proba(group), clf.predict_proba(table))
        np.testing.assert_array_equal(clf.predict(group), clf.predict(table))
        y = table["y"].to_numpy()
        assert clf.score(group, y) == clf.score(table, y)
        assert str(check(SCHEMA, group)) == str(check(SCHEMA, table))


def test_a_single_array_is_decoded_too(tmp_path):
    """As a matrix, as a target and without names of its axes."""
    rng = np.random.default_rng(1)
    stored = rng.integers(0, 100, (300, 2)).astype(np.int16)
    stored[:40] = -9999
    array = zarr.create_array(
        tmp_path / "x.zarr",
        data=stored,
        attributes={"scale_factor": 0.01, "_FillValue": -9999},
        chunks=(100, 2),
    )
    want = np.where(stored == -9999, np.nan, stored * 0.01)
    np.testing.assert_array_equal(from_zarr(array).compute(scheduler="sync"), want)
    schema = Schema({"a": (0, 1), "b": (0, 1)}, classes=[0, 1])
    y = (rng.random(300) < 0.5).astype(int)
    texts = []
    for X in (array, want):
        clf = DPGBClassifier(schema=schema, columns="position", noise=SeededNoise(0), **SETTINGS)
        with dask.config.set(scheduler="sync"):
            clf.fit(X, y).save(tmp_path / "m.json")
            texts.append(
                ((tmp_path / "m.json").read_text(), np.asarray(clf.predict_proba(X)).tolist())
            )
    assert texts[0] == texts[1]
    group = zarr.open_group(tmp_path / "f.zarr", mode="w")
    marked = group.create_array("f", data=np.array([1.5, -1.0]), attributes={"_FillValue": -1.0})
    np.testing.assert_array_equal(
        from_zarr(marked).compute(), [1.5, np.nan]
    )  # others write numbers


@pytest.mark.parametrize("second", [False, True])
def test_other_arrays_are_as_they_are_stored(tmp_path, second):
    """Zarr's own fill value is a value, and a unit of numbers makes them no durations."""
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=2 if second else 3)
    values = np.array([0, 3, 0, 7])
    plain = group.create_array("a", data=values, fill_value=0, chunks=(2,))
    told = group.create_array(
        "b", data=values, fill_value=0, attributes={"units": "hours", "dtype": "int64", "x": [1]}
    )
    dates = group.create_array("c", data=values.astype("M8[D]"))
    for array in (plain, told, dates):
        assert decoding_of(array) is None
        assert dims_of(array) is None
        assert from_zarr(array).name.startswith("from-zarr-")
        np.testing.assert_array_equal(from_zarr(array).compute(), array[:])
    assert names_of(group) == ["a", "b", "c"]


def test_a_mark_among_whole_numbers_of_hours_is_missing(tmp_path):
    """xarray 2026.9 reads it as the least whole number."""
    told = {"units": "hours", "_FillValue": -9999}
    array = zarr.create_array(tmp_path / "h.zarr", data=np.array([-9999, 5]), attributes=told)
    np.testing.assert_array_equal(from_zarr(array).compute(), [np.nan, 5])


def test_no_array_of_a_data_set_is_decoded(tmp_path):
    schema = Schema({"a": (0, 1), "job": ["x"]}, classes=["n", "y"], unit_id="person", max_weight=1)
    rows = pd.DataFrame({"a": [0.5, 0.0], "job": ["x", "z"], "person": ["p", "q"]})
    write_dataset(tmp_path / "d.zarr", rows, ["n", "y"], schema=schema)
    group = zarr.open_group(tmp_path / "d.zarr", mode="r")
    assert [decoding_of(array) for _, array in group.arrays()] == [None] * len(arrays_of(group))
    assert set(arrays_of(group)) == {"X", "y", "unit"}


def dates(place, values, **attributes):
    """An array of dates, with Zarr's chunks of two."""
    group = zarr.open_group(place, mode="w")
    attributes = {"units": "days since 2020-01-01", **attributes}
    return group.create_array("when", data=np.asarray(values), attributes=attributes, chunks=(2,))


@pytest.mark.parametrize(
    "values",
    [
        [10**8, 1, 2, -(10**17), np.iinfo(np.int64).min, 3],
        [np.inf, 1.5, np.nan, 1e300, -1e17, 2.0],
        np.array([2**63, 1, 2**64 - 1, 3], np.uint64),
    ],
    ids=["whole", "floats", "without sign"],
)
def test_a_date_that_is_too_far_away_is_missing_and_its_neighbours_are_not(tmp_path, values):
    array = dates(tmp_path / "d.zarr", values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = from_zarr(array).compute(scheduler="sync")
    near = np.abs(np.asarray(values, np.float64)) < 1000
    want = xr.decode_cf(
        xr.Dataset({"t": ("row", array[:][near], {"units": "days since 2020-01-01"})})
    )["t"].to_numpy()
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got[near], want)
    assert np.isnat(got[~near]).all()


@pytest.mark.parametrize("since", [1690, 2250])
def test_a_date_too_far_from_the_one_that_numbers_count_from_is_missing(tmp_path, since):
    """However near to 1970 it is: nanoseconds from there overflow."""
    far = 365 * 310 if since < 1970 else -365 * 310
    got = from_zarr(dates(tmp_path / "d.zarr", [far, 1], units=f"days since {since}-01-01"))
    want = np.array(["NaT", f"{since}-01-02"], "M8[ns]")
    np.testing.assert_array_equal(got.compute(scheduler="sync"), want)


def test_dates_beside_a_missing_mark_and_a_scale_are_decoded(tmp_path):
    told = {"_FillValue": -9, "scale_factor": 0.5}
    got = from_zarr(dates(tmp_path / "d.zarr", np.array([-9, 1, 4], np.int32), **told)).compute()
    want = np.array(["NaT", "2020-01-01T12", "2020-01-03"], "M8[ns]")
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "attributes",
    [
        {"units": "days since 2020-01-01", "calendar": "noleap"},
        {"units": "days since the flood"},
        {"units": "days since 0001-01-01"},
        {"scale_factor": "wide"},
        {"_Encoding": "latin-1"},
        {"_FillValue": [1, 2], "_Unsigned": "true"},
        {"units": "days since 2020-01-01", "dtype": "bool"},
        {"units": "days since 2020-01-01", "scale_factor": True},
        {"scale_factor": 0},
        {"scale_factor": [0.5, 0.25]},
        {"scale_factor": None},
        {"add_offset": 10**400},
        {"_FillValue": -1, "missing_value": -2, "dtype": "bool"},
    ],
    ids=str,
)
def test_what_cannot_be_decoded_is_refused_by_attributes_alone(tmp_path, attributes):
    messages = set()
    for k, values in enumerate(([1, 2, 3], [10**9, -(10**9), 0])):
        group = zarr.open_group(tmp_path / f"{k}.zarr", mode="w")
        group.create_array("a", data=np.array(values), attributes=attributes)
        group.create_array("y", data=np.array([0, 1, 1]))
        schema = Schema({"a": (0, 1)}, classes=[0, 1], target="y")
        with pytest.raises(StructureError, match=r"xarray\.open_zarr") as caught:
            DPGBClassifier(schema=schema, **SETTINGS).fit(group, group["y"])
        messages.add(str(caught.value))
        assert repr(attributes) in str(caught.value)
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("values", "attributes"),
    [
        (["1", "2", "3"], {"scale_factor": 0.5}),
        (["1", "2", "3"], {"dtype": "bool"}),
        ([True, False, True], {"add_offset": 1.0}),
        (["1", "2", "x"], {"_Unsigned": "true"}),
        ([1.7, np.nan, 3.0], {"scale_factor": 2}),  # xarray drops the fractions
    ],
    ids=str,
)
def test_what_is_no_number_is_not_scaled(tmp_path, values, attributes):
    text = isinstance(values[0], str)
    data = np.array(values, np.dtypes.StringDType() if text else None)
    array = zarr.create_array(tmp_path / "a.zarr", data=data, attributes=attributes)
    with pytest.raises(StructureError, match=r"xarray\.open_zarr"):
        from_zarr(array)


def test_a_scale_may_stand_in_a_list_and_be_whole(tmp_path):
    """xarray makes objects by a list, and some versions fail on a whole scale beside a mark."""
    for k, scale in enumerate(([0.5], [2], 2)):
        told = {"scale_factor": scale, "_FillValue": -1}
        array = zarr.create_array(
            tmp_path / f"{k}.zarr", data=np.array([4, -1, 5]), attributes=told
        )
        got = from_zarr(array).compute()
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, [8, np.nan, 10] if k else [2, np.nan, 2.5])
    got = from_zarr(dates(tmp_path / "d.zarr", [2, 10**15], scale_factor=[0.5])).compute()
    np.testing.assert_array_equal(got, np.array(["2020-01-02", "NaT"], "M8[ns]"))


def test_dates_in_half_precision_are_decoded(tmp_path):
    """xarray counts their seconds in half precision too, which ends at 65504."""
    values = np.array([np.nan, 5, 1000.5, np.inf], np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = from_zarr(dates(tmp_path / "d.zarr", values)).compute(scheduler="sync")
    want = np.array(["NaT", "2020-01-06", "2022-09-27T12", "NaT"], "M8[ns]")
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("words", [["NaN", np.nan], ["Infinity", np.inf], ["-Infinity", -np.inf]])
def test_the_words_of_zarr_are_marks_of_floats(tmp_path, words):
    word, number = words
    data = np.array([1.0, number, 2.0])
    for k, told in enumerate(({"_FillValue": word}, {"_FillValue": None})):
        array = zarr.create_array(tmp_path / f"{k}.zarr", data=data, attributes=told)
        want = data if k else [1, np.nan, 2]
        np.testing.assert_array_equal(from_zarr(array).compute(), want)
    whole = zarr.create_array(tmp_path / "w.zarr", data=np.arange(3), attributes=told)
    assert decoding_of(whole) is None


@pytest.mark.parametrize(
    ("values", "fill", "other", "want"),
    [
        ([-1, -2, 7, -3], -1, [-2, -3], [None, None, 7, None]),
        (["a", "NA", ""], "", "NA", ["a", None, None]),
    ],
    ids=["numbers", "text"],
)
def test_of_several_marks_each_is_missing(tmp_path, values, fill, other, want):
    """As in xarray, which warns."""
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=2)
    told = {"missing_value": other, "_ARRAY_DIMENSIONS": ["row"]}
    array = group.create_array("a", data=np.array(values), fill_value=fill, attributes=told)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = from_zarr(array).compute(scheduler="sync").tolist()
    assert [None if value != value else value for value in got] == want
    with pytest.warns(xr.SerializationWarning, match="multiple fill values"):
        table = xr.open_zarr(tmp_path / "g.zarr", consolidated=False)
    assert list(map(same, got, table["a"].to_numpy().tolist())) == [True] * len(values)


def test_a_duration_is_decoded_whatever_its_neighbours_are(tmp_path):
    """xarray multiplies all of a block by 1000 until the last of them is whole, which rounds the others."""
    told = {"units": "seconds", "dtype": "timedelta64[ns]"}
    values = np.array([9e9 + 0.001, 5e9 + 0.25, 0.1234567891, np.nan, 1e300])
    array = zarr.create_array(tmp_path / "d.zarr", data=values, attributes=told)
    decoding = decoding_of(array)
    alone = [decoding(values[k : k + 1])[0] for k in range(len(values))]
    np.testing.assert_array_equal(from_zarr(array).compute(), np.array(alone))
    for value, got in zip(values[:3], alone, strict=False):
        want = xr.Dataset({"t": ("row", [value], told)})
        want = xr.decode_cf(want, decode_timedelta=True)["t"].to_numpy()
        assert got == want[0]


class Marked:
    """As much of a Zarr array as is asked for its decoding."""

    def __init__(self, dtype, attributes, second):
        self.dtype = np.dtype(dtype)
        self.metadata = SimpleNamespace(zarr_format=2 if second else 3)
        self.attrs = Attributes(attributes, **({"_ARRAY_DIMENSIONS": ["x"]} if second else {}))
        self.fill_value = attributes.get("_FillValue") if second else 0


class Attributes(dict):
    def asdict(self):
        return dict(self)


CHOICES = {
    "_FillValue": [-1, 0, 255, 1e20, np.nan, "NaN", "AAAAAAAA8D8=", "", [1], True, 2**60, None],
    "missing_value": [-1, -99, "NA", [1, 2], np.nan],
    "scale_factor": [0.1, 0, 1e308, 1, [0.5], np.nan, True, None],
    "add_offset": [10, 1e300, "x"],
    "_Unsigned": ["true", "false"],
    "units": [
        "days since 2000-01-01",
        "hours",
        "seconds",
        "nanoseconds since 1970-01-01",
        "nanoseconds since 2010-01-01",
        "microseconds since 2004-03-01",
        "m",
        5,
    ],
    "dtype": ["bool", "timedelta64[ns]", "timedelta64[s]", "datetime64[ns]", 5],
    "calendar": ["gregorian", "proleptic_gregorian", "360_day"],
}
TYPES = [*"bBhHilLefd?", ">f8", ">i4", "S3", "U3", "O", "c16", np.dtypes.StringDType()]


READERS = (decoding_of, whole_numbers_of)


def values_of(dtype, rng):
    """Values of a type, among them those at its ends, in any order."""
    if dtype.kind in "iu":
        edges = np.iinfo(dtype)
        given = [edges.min, edges.max, edges.min + 1, 0, 1, 2, 100, min(9223372036, edges.max)]
        # counted in microseconds from 2004, the second is no date of nanoseconds, and the first is
        given += [min(x, edges.max) for x in (2**60, 8_123_456_789_012_345, 8_200_000_000_000_000)]
        values = np.array(given, dtype)
    elif dtype.kind == "f":
        with np.errstate(over="ignore"):
            edges = np.finfo(dtype)
            given = [0, 1, 1.5, np.nan, np.inf, -np.inf, edges.max, edges.min, edges.tiny, -9999]
            values = np.array([*given, 1e20, 9.2e9, 106751.99, -106751.9, 9e9 + 0.25], dtype)
    else:
        given = {"b": [True, False], "c": [1 + 2j, np.nan], "O": ["ab", "", None, 1.5, ["NA"]]}
        texts = [b"ab", b"\xff", b""] if dtype.kind == "S" else ["ab", "", "NA"]
        values = np.array(given.get(dtype.kind, texts), dtype)
    return rng.permutation(values)


def same(one, other):
    return one == other or (one != one and other != other)


@pytest.mark.parametrize("seed", thinned(range(4), every=4))
def test_no_value_raises_or_warns_and_each_is_decoded_by_itself(seed):
    """Of whatever attributes and types that are not refused."""
    rng, decoded, whole = np.random.default_rng(seed), 0, 0
    for k in range(1000):
        told = {n: c[rng.integers(len(c))] for n, c in CHOICES.items() if rng.random() < 0.25}
        array = Marked(TYPES[rng.integers(len(TYPES))], told, second=k % 2)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                readers = [read for of in READERS if (read := of(array)) is not None]
        except StructureError:
            continue
        values = values_of(array.dtype, rng)
        for read in readers:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                got = read(values)
                alone = [read(values[k : k + 1]) for k in range(len(values))]
            assert {part.dtype for part in alone} == {got.dtype}
            got, alone = got.tolist(), [part.tolist()[0] for part in alone]
            assert all(map(same, got, alone)), (array.dtype, told)
        decoded, whole = decoded + (len(readers) > 0), whole + (len(readers) > 1)
    assert decoded > 250
    assert whole > 15


def test_whole_numbers_are_those_that_xarray_gives_as_floats():
    rng, n = np.random.default_rng(0), 0
    for dtype in "bBhHil":
        for told in ({"_FillValue": -1}, {"missing_value": [3]}, {"_FillValue": 5}):
            for sign in ({}, {"_Unsigned": "true"}, {"_Unsigned": "false"}):
                array = Marked(dtype, told | sign, second=False)
                values = rng.integers(0, 256, 500).astype(dtype)
                values[:2] = np.array([-1, 5]).astype(dtype)
                read = whole_numbers_of(array)
                if read is None:
                    assert decoding_of(array) is None
                    continue
                got = [np.nan if value is None else value for value in read(values).tolist()]
                np.testing.assert_array_equal(got, decoding_of(array)(values))
                n += 1
    assert n > 30


def test_huge_whole_numbers_stay_exact_beside_a_mark():
    values = 2**62 + np.arange(-3, 4)
    for mark in (2**62, float(2**62)):
        array = Marked("int64", {"missing_value": mark}, second=False)
        read = pickle.loads(pickle.dumps(whole_numbers_of(array)))
        want = [None if value == 2**62 else value for value in values.tolist()]
        assert read(values).tolist() == want
        assert repr(read) == "<whole numbers>"
    assert whole_numbers_of(Marked("int64", {"scale_factor": 2.0}, second=False)) is None
    assert whole_numbers_of(Marked("int64", {}, second=False)) is None


def test_an_array_that_is_not_read_need_not_be_decoded(tmp_path):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    for name in ("a", "y"):
        group.create_array(name, data=np.arange(40) % 2)
    told = {"units": "days since 2020-01-01", "calendar": "noleap"}
    group.create_array("other", data=np.arange(40), attributes=told)
    schema = Schema({"a": (0, 1)}, classes=[0, 1], target="y", ignore=["other"])
    clf = DPGBClassifier(schema=schema, on_few_rows="continue", **SETTINGS)
    clf.fit(group, group["y"])
    assert clf.predict(group).shape == (40,)


def test_decoding_is_lazy_goes_to_workers_and_notices_damage(tmp_path):
    values = np.arange(300, dtype=np.int16)
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    array = group.create_array(
        "a", data=values, chunks=(50,), shards=(100,), attributes={"scale_factor": 0.5}
    )
    (tmp_path / "g.zarr/a/c/1").write_bytes(b"")
    lazy = from_zarr(array)
    assert lazy.chunks == ((100, 100, 100),)
    assert lazy.name == from_zarr(array).name
    np.testing.assert_array_equal(lazy.blocks[0].compute(), values[:100] * 0.5)
    with pytest.raises(ChunkError, match="damaged or gone"):
        lazy.compute()
    decoding = pickle.loads(pickle.dumps(decoding_of(array)))
    np.testing.assert_array_equal(decoding(values), values * 0.5)
    assert repr(decoding) == "<decoding>"


# ---- coordinates -----------------------------------------------------------------------------------------------------


def test_coordinates_are_no_columns(path):
    group, table = opened(path)
    assert set(table.coords) == {"person", "town"}
    assert names_of(group) == sorted(table.data_vars)
    draft = Schema.draft(group, target="y")["features"]
    assert list(draft) == sorted(set(table.data_vars) - {"y"})
    types = {name: feature["type"][:8] for name, feature in draft.items()}
    assert types["when"] == types["since"] == "datetime"
    assert types["member"] == "bool"
    assert types["hours"] == "numeric"
    assert draft["hours"]["integer"] is False


def test_coordinates_that_a_group_names_are_no_columns(tmp_path):
    table = xr.Dataset({"a": ("row", np.arange(3.0))}, {"area": ("cell", np.arange(5))})
    table.to_zarr(tmp_path / "g.zarr", consolidated=False)
    assert names_of(zarr.open_group(tmp_path / "g.zarr", mode="r")) == ["a"]


def test_names_of_coordinates_in_arrays_without_axes_are_a_text(tmp_path):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("lat", data=np.zeros(3), attributes={"coordinates": "lat"})
    assert names_of(group) == ["lat"]


@pytest.mark.parametrize("kind", ["group", "Dataset"])
def test_a_feature_that_is_a_coordinate_is_refused_with_the_way_out(path, kind, tmp_path):
    group, table = opened(path)
    schema = Schema({"town": (0, 9), "pay": (0, 300)}, classes=[0, 1], target="y")
    names = [n for n in table.data_vars if n not in ("pay", "y")]
    y = table["y"]
    short = dropped(path, names, tmp_path / "s.zarr")
    group, table = opened(short)
    X = group if kind == "group" else table
    clf = DPGBClassifier(schema=schema, noise=SeededNoise(0), **SETTINGS)
    with pytest.raises(SchemaError, match=r"features \['town'\] are coordinates.*reset_coords"):
        clf.fit(X, y)
    clf.fit(table.reset_coords(["town"]), y)
    with pytest.raises(SchemaError, match=r"features \['town'\] are coordinates.*reset_coords"):
        clf.predict(X)
    assert clf.predict(table.reset_coords(["town"])).shape == (N,)


def test_a_feature_that_is_an_index_becomes_a_column_as_the_error_says():
    """A grid's cells as rows: their places are levels of an index."""
    grid = xr.Dataset({"rain": (("lat", "lon"), np.ones((2, 3))), "more": ((), 0)})
    rows = grid.assign_coords(lat=[0, 1], lon=[5, 6, 7]).stack(row=("lat", "lon"))
    schema = Schema({"rain": (0, 9), "lat": (0, 1)}, classes=[0, 1])
    for given in (rows, rows.drop_vars("more")):  # beside a column that is not declared, too
        with pytest.raises(SchemaError, match=r"\['lat'\] are coord.*data\.reset_index\(dimension"):
            schema.check(given)
    assert schema.check(rows.drop_vars("more").reset_index("row").reset_coords(["lat"])).n_rows == 6


# ---- axes ------------------------------------------------------------------------------------------------------------

PAIR = Schema({"age": (0, 90), "hours": (0, 100)}, classes=[0, 1], target="y")
A, H, Y = np.arange(60.0), np.arange(60.0)[::-1], np.arange(60) % 2


def crossed():
    return xr.Dataset({"age": ("a", A), "hours": ("b", H)})


def gridded():
    grid = ("lat", "lon")
    return xr.Dataset({"age": (grid, A.reshape(6, 10)), "hours": (grid, H.reshape(6, 10))})


def as_group(data, place):
    data.to_zarr(place, consolidated=False)
    return zarr.open_group(place, mode="r")


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("use", ["fit", "convert", "predict", "check"])
def test_columns_along_several_axes_are_refused_with_the_way_out(tmp_path, use, stored):
    clf = DPGBClassifier(schema=PAIR, on_few_rows="continue", noise=SeededNoise(0), **SETTINGS)
    clf.fit(pd.DataFrame({"age": A, "hours": H}), Y)
    for k, (data, words) in enumerate(
        [
            (crossed(), r"'age' along \('a',\), 'hours' along \('b',\).*stack\(row=\('a', 'b'\)\)"),
            (gridded(), r"the dimensions \('lat', 'lon'\).*data\.stack\(row=\('lat', 'lon'\)\)"),
        ]
    ):
        given = data.assign(y=data["age"] % 2) if use == "convert" else data
        X = as_group(given, tmp_path / f"{k}.zarr") if stored else given
        run = {
            "fit": lambda X=X: clf.fit(X, Y),
            "convert": lambda X=X: write_dataset(tmp_path / "d.zarr", X, schema=PAIR),
            "predict": lambda X=X: clf.predict(X),
            "check": lambda X=X: PAIR.check(X, Y),
        }[use]
        with pytest.raises(StructureError, match=words):
            run()


def test_the_ways_out_of_several_axes_work():
    clf = DPGBClassifier(schema=PAIR, on_few_rows="continue", noise=SeededNoise(0), **SETTINGS)
    data = gridded().stack(row=("lat", "lon"))
    clf.fit(data, Y)
    want = clf.predict(pd.DataFrame({"age": A, "hours": H}))
    np.testing.assert_array_equal(clf.predict(data), want)
    data = crossed()
    same = data.assign({name: ("row", data[name].data) for name in data})
    np.testing.assert_array_equal(clf.predict(same), want)
    pairs = xr.broadcast(data)[0].stack(row=("a", "b"))
    assert clf.predict(pairs).shape == (3600,)
    one = xr.Dataset({"age": 3.0, "hours": 4.0})
    with pytest.raises(StructureError, match=r"expand_dims\('row'\)"):
        clf.predict(one)
    assert clf.predict(one.expand_dims("row")).shape == (1,)


@pytest.mark.parametrize("kind", ["grid", "crossed", "scalar"])
def test_the_ways_out_work_where_a_dimension_is_named_row(kind):
    data = {
        "grid": xr.Dataset({n: (("row", "k"), np.zeros((3, 2))) for n in ("age", "hours")}),
        "crossed": xr.Dataset(
            {"age": ("row", np.zeros(3)), "hours": (("row", "k"), np.zeros((3, 2)))}
        ),
        "scalar": xr.Dataset({"age": 3.0, "hours": ("row", np.zeros(6))}),
    }[kind]
    clf = DPGBClassifier(schema=PAIR, on_few_rows="continue", noise=SeededNoise(0), **SETTINGS)
    clf.fit(pd.DataFrame({"age": A, "hours": H}), Y)
    with pytest.raises(StructureError) as failure:
        clf.predict(data)
    way = str(failure.value).split(": ")[-1].removesuffix(".")
    assert clf.predict(eval(way, {"data": data, "xarray": xr})).shape == (6,)
    assert "data.assign" not in str(failure.value)  # columns of several axes cannot be given one


def test_an_ignored_variable_may_lie_along_other_axes():
    schema = Schema(PAIR.features, classes=[0, 1], target="y", ignore=["area"])
    data = gridded().stack(row=("lat", "lon")).assign(area=("cell", np.zeros(3)))
    clf = DPGBClassifier(schema=schema, on_few_rows="continue", noise=SeededNoise(0), **SETTINGS)
    assert clf.fit(data, Y).predict(data).shape == (60,)


def test_a_gridded_target_is_told_to_be_stacked():
    clf = DPGBClassifier(schema=PAIR, on_few_rows="continue", **SETTINGS)
    data = gridded()
    with pytest.raises(StructureError, match=r"y must be one column.*y\.stack"):
        clf.fit(data.stack(row=("lat", "lon")), data["age"])


def test_a_group_with_a_matrix_is_told_to_give_it_alone(tmp_path):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    for name in ("age", "hours"):
        group.create_array(name, data=np.zeros((60, 2)))
    clf = DPGBClassifier(schema=PAIR, on_few_rows="continue", **SETTINGS)
    with pytest.raises(StructureError, match=r"group\['X'\]"):
        clf.fit(group, Y)
    clf.fit(pd.DataFrame({"age": A, "hours": H}), Y)
    with pytest.raises(StructureError, match=r"group\['X'\]"):
        clf.predict(group)
