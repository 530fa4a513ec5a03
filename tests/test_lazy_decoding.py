"""Dates and text that xarray decodes as they are read: no value ends a fit, or changes how another is read."""

import pickle
from functools import partial
from itertools import product
from unittest.mock import PropertyMock, patch

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dask.blockwise import Blockwise
from dask.delayed import delayed
from thinned import one_of_each
from xarray.coding.times import decode_cf_datetime, decode_cf_timedelta

from dpgb_dask import Datetime, DPGBClassifier, Schema, lazy_decoding
from dpgb_dask.cf_decoding import FARTHEST
from dpgb_dask.encoding.frames import as_given
from dpgb_dask.errors import StructureError
from dpgb_dask.lazy_decoding import (
    check_calendar,
    total_array,
    total_collection,
    total_decoder,
    total_values,
    total_whole,
)
from dpgb_dask.testing import SeededNoise
from dpgb_dask.warning_filters import SILENCE

N = 300
SCHEMA = Schema(
    {"when": Datetime("2020-01-01", "2021-12-31", ("days",)), "job": ["cook", "jugé"]},
    classes=[0, 1],
    target="y",
)
UNITS = "days since 2020-01-01"
DAYS = np.arange(N) * 2
JOBS = np.array([b"cook", "jugé".encode()] * (N // 2))
Y = np.arange(N) // 3 % 2
FAR = 10**9  # days, which no date of NumPy's nanoseconds holds
ODD = b"jug\xe9"  # no UTF-8


def opened(path, kind, days, jobs):
    """Columns in a file, as xarray opens it."""
    data = xr.Dataset(
        {
            "job": ("row", jobs.astype("S5"), {"_Encoding": "utf-8"}),
            "when": ("row", days.astype(np.int32), {"units": UNITS, "calendar": "standard"}),
        }
    )
    chunks = {"row": 110} if kind.endswith("in chunks") else None
    if kind.startswith("netcdf"):
        data.to_netcdf(path, engine="scipy")
        return xr.open_dataset(path, engine="scipy", chunks=chunks)
    with dask.config.set(scheduler="sync"):
        data.chunk(row=110).to_zarr(path, zarr_format=2, consolidated=False)
    return xr.open_zarr(path, consolidated=False, chunks=chunks)


def fitted(X, y):
    """A small model."""
    clf = DPGBClassifier(
        schema=SCHEMA,
        epsilon=4.0,
        random_state=0,
        recipe="fdp-tr-newton",
        n_estimators=2,
        noise=SeededNoise(0),
    )
    with dask.config.set(scheduler="sync"):
        return clf.fit(X, y)


def model_text(tmp_path, X):
    clf = fitted(X, Y)
    clf.save(tmp_path / "m.json")
    return clf, (tmp_path / "m.json").read_text()


@pytest.mark.parametrize(
    ("kind", "odd"),
    one_of_each(
        product(
            ["netcdf", "netcdf in chunks", "zarr", "zarr in chunks"], ["date", "text", "neither"]
        )
    ),
)
def test_one_odd_value_changes_itself_alone(kind, odd, tmp_path):
    days, jobs = DAYS.copy(), JOBS.copy()
    when = np.datetime64("2020-01-01", "s") + DAYS.astype("m8[D]")
    want = pd.DataFrame({"when": when, "job": [job.decode() for job in JOBS]}, dtype=object)
    want["when"] = when
    if odd == "date":
        days[N // 2], want.loc[N // 2, "when"] = FAR, pd.NaT
    if odd == "text":
        jobs[N // 2], want.loc[N // 2, "job"] = ODD, "other"
    table = opened(tmp_path / "data", kind, days, jobs)
    clf, text = model_text(tmp_path, table)
    assert text == model_text(tmp_path, want)[1]
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(clf.predict_proba(table), clf.predict_proba(want))


def test_every_date_that_xarray_decodes_has_its_bits():
    days = np.array([0, 1, -700, 36_500, np.iinfo(np.int64).min])
    for unit, numbers in (("ns", days), ("s", days), ("ns", days[:4] / 7), ("s", days[:4] / 7)):
        told = partial(decode_cf_datetime, units=UNITS, calendar="standard", time_unit=unit)
        decoder = total_decoder(told)
        got = pickle.loads(pickle.dumps(decoder))(numbers)
        with SILENCE:  # of seconds, xarray warns where it decodes fractions
            want = told(numbers)
        assert got.dtype == told(np.arange(2)).dtype
        np.testing.assert_array_equal(got, want.astype(got.dtype))


def test_a_far_date_is_missing_in_nanoseconds_and_itself_in_seconds():
    days = np.array([0, FAR, -FAR, 5, 10**30, np.nan], np.float64)
    read = {
        unit: total_decoder(
            partial(decode_cf_datetime, units=UNITS, calendar="proleptic_gregorian", time_unit=unit)
        )(days)
        for unit in ("ns", "s")
    }
    assert np.isnat(read["ns"]).tolist() == [False, True, True, False, True, True]
    assert np.isnat(read["s"]).tolist() == [False] * 5 + [True]
    # which no declared day reaches
    assert read["s"][1] == read["s"][4] > np.datetime64("20000-01-01") > read["s"][0]
    assert read["s"][2] < np.datetime64("-20000-01-01")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_far_date_is_rounded_down_to_its_second(sign):
    options = {"units": "seconds since 1970-01-01", "calendar": "standard", "time_unit": "s"}
    far = 2 * FARTHEST * sign
    (got,) = total_decoder(partial(decode_cf_datetime, **options))(np.array([far + 0.5]))
    assert got == np.datetime64(int(far), "s")


def test_a_function_of_the_callers_own_may_have_the_name_of_one_of_xarray():
    def decode_bytes_array(texts):
        return texts

    assert total_decoder(partial(decode_bytes_array)) is None


def test_a_calendar_may_be_written_in_capitals():
    days = xr.DataArray(np.array([None], object), attrs={"calendar": "Proleptic_Gregorian"})
    check_calendar(days)
    with pytest.raises(StructureError, match="'Noleap', which is not NumPy's"):
        check_calendar(days.assign_attrs(calendar="Noleap"))


def near_the_ends(decoder, dtype):
    """Numbers of a type: those of dates and durations at the ends of nanoseconds, and others."""
    zero, one = decoder.span
    at = [far / one for far in (FARTHEST, -FARTHEST, 9.3e9)]
    at += [(far - zero) / one for far in (FARTHEST, -FARTHEST, 9223372036.8, 1e9)]
    given = [near for x in at for near in (x, np.nextafter(x, 0), x - 1, x + 1)]
    if dtype == np.float64:
        given += [44630.74074074074, 0, 0.1, -1.25, 12345.678, 1e-9]
        return np.array([*given, np.nan, np.inf, -np.inf])
    ends = np.iinfo(dtype)
    given = [int(np.clip(x, -(2.0**62), 2.0**62)) for x in given]
    return np.array([*given, ends.min, ends.max, 0, 1, -1, 1000, 20_000])


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
@pytest.mark.parametrize("unit", ["ns", "us", "s"])
@pytest.mark.parametrize("year", [None, 1600, 1700, 1970, 1971, 2004, 2010, 2200])
def test_every_number_is_decoded_by_itself_and_none_raises(year, unit, dtype):
    """Whatever numbers count, and from when: a step of a nanosecond is none of two floats that are seconds."""
    for step in ("nanoseconds", "microseconds", "milliseconds", "seconds", "minutes", "days"):
        if year is None:
            told = partial(decode_cf_timedelta, units=step, time_unit=unit)
        else:
            since = f"{step} since {year}-01-01"
            told = partial(decode_cf_datetime, units=since, calendar="standard", time_unit=unit)
        if year == 1600 and (unit == "ns" or step == "nanoseconds"):  # which do not reach it
            with pytest.raises(StructureError, match="calendar"):
                total_decoder(told)
            continue
        decoder = total_decoder(told)
        numbers = near_the_ends(decoder, dtype)
        got = decoder(numbers)
        np.testing.assert_array_equal(got, np.concatenate([*map(decoder, numbers[:, None])]))
        assert np.count_nonzero(~np.isnat(got)) > 5


def test_a_duration_that_is_too_long_is_missing():
    decoder = total_decoder(partial(decode_cf_timedelta, units="days", time_unit="ns"))
    read = decoder(np.array([3, FAR]))
    assert read.tolist() == [3 * 86_400 * 10**9, None]


def test_dates_of_another_calendar_are_refused_by_name():
    with pytest.raises(StructureError, match=r"calendar 'noleap'.*convert_calendar"):
        total_decoder(partial(decode_cf_datetime, units=UNITS, calendar="noleap"))


def test_dates_that_were_to_be_objects_are_those_of_numpy():
    told = partial(decode_cf_datetime, units=UNITS, calendar="standard", use_cftime=True)
    assert total_decoder(told)(DAYS).dtype == np.dtype("M8[ns]")


def test_other_functions_and_arrays_are_left_alone(tmp_path):
    assert total_decoder(partial(np.asarray, dtype=np.float64)) is None
    assert total_decoder(len) is None
    data = xr.Dataset({"array": ("row", np.zeros(3))})
    assert total_array(data) is data
    data.to_netcdf(tmp_path / "a.nc", engine="scipy")
    values = xr.open_dataset(tmp_path / "a.nc", engine="scipy")["array"].variable._data
    assert total_array(values) is values


@pytest.mark.parametrize("note", ["encoding", "attrs"])
@pytest.mark.parametrize("form", ["dataset", "matrix"])
def test_dates_in_memory_that_are_said_to_be_of_another_calendar_are_refused(note, form):
    """As they are before they are loaded; by the note alone, and only of columns that are read."""
    days = np.full((N, 1), None)  # no value is looked at

    def noted(calendar):
        dates = (
            xr.DataArray(days, dims=("row", "col"))
            if form == "matrix"
            else xr.DataArray(days[:, 0], dims="row")
        )
        getattr(dates, note).update(units=UNITS, calendar=calendar)
        return dates if form == "matrix" else xr.Dataset({"job": ("row", JOBS), "when": dates})

    schema = Schema({"when": SCHEMA.features["when"]}, classes=[0, 1], ignore=["job"])
    told = {"epsilon": 4.0, "recipe": "fdp-tr-newton", "n_estimators": 2, "noise": SeededNoise(0)}
    clf = DPGBClassifier(schema=schema, columns="position", **told)
    with pytest.raises(StructureError, match=r"calendar 'noleap'.*convert_calendar"):
        clf.fit(noted("noleap"), Y)
    clf.fit(noted("standard"), Y)
    with pytest.raises(StructureError, match=r"calendar 'noleap'.*convert_calendar"):
        clf.predict(noted("noleap"))
    if form == "dataset":
        schema = Schema({"job": SCHEMA.features["job"]}, classes=[0, 1], ignore=["when"])
        DPGBClassifier(schema=schema, **told).fit(noted("noleap"), Y)


MATRIX = Schema(
    {name: Datetime("2020-01-01", "2021-12-31", ("days",)) for name in ("first", "last")},
    classes=["cook", "jugé"],
)


def matrix_of(path, kind, days):
    """A matrix of dates, read from a file or decoded in chunks, as `kind` says."""
    told = {"units": UNITS, "calendar": "standard"}
    data = xr.Dataset({"X": (("row", "col"), days, told)})
    if kind == "decode_cf":
        return xr.decode_cf(data.chunk(row=110))["X"]
    data.to_netcdf(path, engine="scipy")
    chunks = None if kind == "lazy" else {"row": 110}
    X = xr.open_dataset(path, engine="scipy", chunks=chunks, inline_array=kind == "inline")["X"]
    if kind == "array":
        return X.data
    if kind == "fused":
        return dask.optimize(X.data + np.timedelta64(0, "D"))[0]
    if kind == "frame":
        return dd.from_dask_array(X.data, columns=["first", "last"])
    return X


@pytest.mark.parametrize(
    "kind", ["lazy", "in chunks", "inline", "decode_cf", "array", "fused", "frame"]
)
def test_an_odd_date_of_a_matrix_ends_neither_a_fit_nor_what_is_asked_of_a_model(kind, tmp_path):
    days = np.stack([DAYS, DAYS[::-1]], axis=1).astype(np.int32)
    plain = np.datetime64("2020-01-01", "s") + days.astype("m8[D]")
    plain[N // 2, 1] = "NaT"
    days[N // 2, 1] = FAR
    X = matrix_of(tmp_path / "data.nc", kind, days)
    jobs = xr.Dataset({"y": ("row", JOBS.copy(), {"_Encoding": "utf-8"})})
    jobs["y"][N // 3] = ODD
    y = xr.decode_cf(jobs.chunk(row=110))["y"]
    y = dd.from_dask_array(y.data) if kind == "frame" else y
    known = np.array([job.decode() for job in JOBS], object)
    known[N // 3] = ODD
    options = {"columns": "position", "recipe": "fdp-tr-newton", "n_estimators": 2}
    with dask.config.set(scheduler="sync"):
        clf = DPGBClassifier(schema=MATRIX, epsilon=4.0, noise=SeededNoise(0), **options)
        got = clf.fit(X, y).predict_proba(X)
        want = clf.predict_proba(plain)
        np.testing.assert_array_equal(np.asarray(got), want)
        assert clf.score(X, y) == clf.score(plain, known)
        told, alike = (clf.explain_local(rows).compute() for rows in (X, plain))
        np.testing.assert_array_equal(told.scores, alike.scores)


def test_a_text_that_is_no_utf_8_ends_no_explanation_of_a_frame():
    rows = pd.DataFrame({"when": np.datetime64("2020-01-01", "s") + DAYS.astype("m8[D]")})
    rows["job"] = pd.Series([ODD, *JOBS[1:]], dtype=object)
    with dask.config.set(scheduler="sync"):
        clf = DPGBClassifier(
            schema=SCHEMA, epsilon=4.0, noise=SeededNoise(0), recipe="fdp-tr-newton", n_estimators=2
        )
        clf.fit(rows, Y)
        arrays = {name: da.from_array(rows[name].to_numpy(), chunks=110) for name in rows}
        frame = xr.Dataset({name: ("row", a) for name, a in arrays.items()}).to_dask_dataframe()
        told = clf.explain_local(frame[["when", "job"]]).compute()
    np.testing.assert_array_equal(told.scores, clf.explain_local(rows).scores)
    assert told.rows["job"].iloc[0] == ODD


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["lazy", "in chunks", "decode_cf"])
def test_numpy_does_not_warn_of_a_number_that_a_scale_makes_infinite(kind, tmp_path):
    told = {"scale_factor": 1e300, "add_offset": 2.0, "_FillValue": 3.0}
    data = xr.Dataset({"X": (("row", "col"), np.array([[0.0], [1e300], [3.0], [1.0]]), told)})
    data.to_netcdf(tmp_path / "x.nc", engine="scipy")
    chunks = {"row": 2} if kind == "in chunks" else None
    X = xr.open_dataset(tmp_path / "x.nc", engine="scipy", chunks=chunks)["X"]
    X = xr.decode_cf(data.chunk(row=2))["X"] if kind == "decode_cf" else X
    with dask.config.set(scheduler="sync"):
        read = np.asarray(total_values(X))
    np.testing.assert_array_equal(read, [[2.0], [np.inf], [np.nan], [1e300]])


def test_collections_without_decoding_are_left_alone():
    array = da.from_array(np.arange(6.0), chunks=2) + 1
    assert total_collection(array) is array
    frame = as_given(dd.from_dask_array(array))
    total = total_collection(frame)
    assert total.optimize().expr._name == frame.optimize().expr._name  # Dask fuses its tasks
    assert total_collection(total) is total
    assert total_collection("other") == "other"


def test_tasks_of_arrays_are_not_made_before_they_are_computed():
    array = da.zeros((40, 2), chunks=(2, 2)) + 1
    with patch.object(Blockwise, "_dict", PropertyMock(side_effect=AssertionError)):
        assert total_collection(array) is array


@pytest.mark.parametrize("n_partitions", [1, 3])
@pytest.mark.parametrize("chosen", [0, slice(0, 1), slice(None)])
def test_partitions_of_a_frame_are_joined_to_one(n_partitions, chosen):
    given = dd.from_pandas(pd.DataFrame({"x": range(9)}), npartitions=n_partitions)
    part = given.partitions[chosen]
    pd.testing.assert_frame_equal(total_whole(part).compute(), part.compute())


def test_partitions_whose_categories_are_of_unlike_types_are_joined():
    parts = [pd.DataFrame({"c": pd.Series(v, dtype="category")}) for v in ([1, 2], ["a", "b"])]
    frame = dd.from_delayed(list(map(delayed, parts)), meta=parts[0], verify_meta=False)
    assert total_whole(frame).compute()["c"].tolist() == [1, 2, "a", "b"]


def test_a_reader_skips_columns_that_are_not_taken():
    frame = dd.from_pandas(pd.DataFrame({"a": [1.0], "b": [2.0]}), npartitions=1)
    total = total_collection(frame)["a"]
    assert total.optimize().expr._name == frame["a"].optimize().expr._name


SHARED = {
    "loc": lambda frame: frame.loc[5:30],
    "head": lambda frame: frame.head(20, npartitions=-1, compute=False),
    "rolling": lambda frame: frame.assign(hours=frame.hours.rolling(2).mean().fillna(0.0)),
}
HOURS = Schema(
    {"hours": (0, 1), "p": (0, 1)}, classes=[0, 1], target="y", ignore=["name", "wide", "other"]
)


def hours():
    """Rows, and a small model of them."""
    rows = pd.DataFrame({"hours": np.arange(60.0) % 7 / 7, "p": 0.5, "y": np.arange(60) // 3 % 2})
    clf = DPGBClassifier(
        schema=HOURS, epsilon=4.0, recipe="fdp-tr-newton", n_estimators=2, noise=SeededNoise(0)
    )
    return rows, clf.fit(rows[["hours", "p"]], rows["y"])


@pytest.mark.parametrize("made", SHARED)
def test_what_a_frame_and_what_is_asked_of_it_are_made_of_is_computed_together(made):
    """Dask fuses the one's tasks in another way than the other's."""
    rows, clf = hours()
    frame = SHARED[made](dd.from_pandas(rows, npartitions=4))
    X = frame[["hours", "p"]]
    with dask.config.set(scheduler="sync"):
        plain = frame.compute()
        got, given, whole = dask.compute(clf.predict_proba(X), X, frame)
        assert clf.score(X, frame["y"]) == clf.score(plain[["hours", "p"]], plain["y"])
    np.testing.assert_array_equal(got, clf.predict_proba(plain[["hours", "p"]]))
    pd.testing.assert_frame_equal(given, plain[["hours", "p"]])
    pd.testing.assert_frame_equal(whole, plain)


FILES = {
    "fsspec": lambda place: dd.read_parquet(place, filesystem="fsspec"),
    "arrow": lambda place: dd.read_parquet(place, filesystem="arrow"),
    "concat": lambda place: dd.concat([dd.read_parquet(f) for f in sorted(place.glob("*.parquet"))]),
    "text": lambda place: dd.read_csv(str(place / "text" / "*.csv")),
    "from_map": lambda place: dd.from_map(pd.read_parquet, sorted(place.glob("*.parquet"))),
    "in memory": lambda place: dd.read_parquet(place).persist(scheduler="sync"),
    "index anew": lambda place: dd.read_parquet(place).reset_index(drop=True),
    "filtered": lambda place: dd.read_parquet(place).query("hours > 0.1"),
    "one more column": lambda place: dd.read_parquet(place).assign(other=1),
    "again": lambda place: dd.read_parquet(place).repartition(npartitions=2),
}  # fmt: skip


@pytest.fixture(scope="module")
def model_of_hours():
    return hours()


@pytest.mark.parametrize("kept", ["all", "few", "none but what is asked"])
@pytest.mark.parametrize("made", FILES)
def test_predictions_stand_beside_their_own_rows(tmp_path, model_of_hours, made, kept):
    """The index of each file starts at 0, so that Dask may not line them up by it."""
    rows, clf = model_of_hours
    rows = rows.assign(name=[f"{k:02}" for k in range(60)], wide="x" * 100)
    for k in range(6):
        part = rows[10 * k : 10 * k + 10].reset_index(drop=True)
        part.to_parquet(tmp_path / f"{k}.parquet")
        if made == "text":
            (tmp_path / "text").mkdir(exist_ok=True)
            part.to_csv(tmp_path / "text" / f"{k}.csv", index=False)
    frame = FILES[made](tmp_path)
    X = frame[["hours", "p"]]
    few = {"all": frame, "few": frame[["name"]], "none but what is asked": X}[kept]
    with dask.config.set({"scheduler": "sync", "dataframe.parquet.minimum-partition-size": 1}):
        beside = few.assign(label=clf.predict(frame), chance=clf.predict_proba(X)["1"])
        got, plain = beside.compute(), frame.compute()
    X = plain[["hours", "p"]]
    expected = plain[few.columns].assign(label=clf.predict(X), chance=clf.predict_proba(X)[:, 1])
    pd.testing.assert_frame_equal(got.reset_index(drop=True), expected.reset_index(drop=True))


def test_predictions_of_predictions_take_no_twice_as_long_for_each(monkeypatch):
    looks, look = [], lazy_decoding._total_nodes
    monkeypatch.setattr(
        lazy_decoding, "_total_nodes", lambda nodes: (looks.append(len(nodes)), look(nodes))[1]
    )
    rows, clf = hours()
    frame, n = dd.from_pandas(rows[["hours", "p"]], npartitions=2), 8
    frame = frame.repartition(npartitions=1)  # it joins partitions
    plain = frame.compute(scheduler="sync")
    for _ in range(n):
        frame = frame.assign(p=clf.predict_proba(frame)["1"])
        plain = plain.assign(p=clf.predict_proba(plain)[:, 1])
    looks.clear()
    pd.testing.assert_frame_equal(frame.compute(scheduler="sync"), plain)
    assert len(looks) <= 4 * n


def day_of(number):
    """A chunk that xarray decodes, and the caller makes a partition of."""
    data = xr.Dataset({"when": ("row", np.array([1, number, 5]), {"units": UNITS})}).chunk(row=3)
    when = xr.decode_cf(data)["when"].data
    return delayed(lambda days: pd.DataFrame({"when": days, "job": ["cook"] * 3}))(when)


@pytest.mark.parametrize("again", [False, True])
def test_decoding_in_tasks_of_the_caller_ends_nothing_that_is_asked_of_a_model(again):
    """Partitions of `from_delayed`, which may be joined afterwards."""
    meta = pd.DataFrame({"when": np.empty(0, "M8[ns]"), "job": np.empty(0, object)})
    table = dd.from_delayed([day_of(3), day_of(FAR)], meta=meta)
    table = table.repartition(npartitions=1) if again else table
    days = [pd.Timestamp("2020-01-01") + pd.Timedelta(k, "D") for k in (1, 3, 5)]
    plain = pd.DataFrame({"when": [*days, days[0], pd.NaT, days[2]], "job": ["cook"] * 6})
    with dask.config.set(scheduler="sync"):
        clf = fitted(plain, [0, 1, 0, 1, 0, 1])
        np.testing.assert_array_equal(clf.predict_proba(table), clf.predict_proba(plain))
        y = [0, 1, 0, 1, 0, 1]
        assert clf.score(table, da.from_array(y, chunks=3 * (1 + again))) == clf.score(plain, y)
        told = clf.explain_local(table).compute()
        np.testing.assert_array_equal(told.scores, clf.explain_local(plain).scores)
        assert told.rows["when"].isna().tolist() == plain["when"].isna().tolist()
