"""Data sets: the same model as from the source, whole shards, and no half-written data set passes for a whole one."""

import errno
import os
import re
import shutil
import signal
import stat
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from unittest.mock import Mock

import dask
import dask.array as da
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from dask.delayed import delayed
from forms import FORMS, SCHEMA, labelled, some_rows
from thinned import thinned

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema, recipes
from dpgb_dask.contracts.features import Hashed
from dpgb_dask.encoding.columns import exact_ids
from dpgb_dask.errors import ChunkError, SchemaError, StructureError
from dpgb_dask.io import open_dataset, place, write_dataset, writing
from dpgb_dask.io.opening import is_dataset
from dpgb_dask.names import WEIGHT
from dpgb_dask.testing import SeededNoise

SEEDED = {"noise": SeededNoise(0), "random_state": 0, "epsilon": 4.0, "on_few_rows": "continue"}
ROWS = 1000  # of a shard: the last one is not full


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


BRIEF = recipes.RECIPES["auto"].brief()  # which rows are read is the subject


def model_text(tmp_path, schema, X, y, weight=None, **options):
    kind = DPGBRegressor if schema.target.type == "numeric" else DPGBClassifier
    settings = {"schema": schema, "on_few_rows": "continue", "recipe": BRIEF} | SEEDED | options
    model = kind(**settings).fit(X, y, sample_weight=weight)
    model.save(tmp_path / "model.json")
    return (tmp_path / "model.json").read_text()


def check_same_model(tmp_path, schema, X, y, weight=None, **options):
    """Write a data set, and fit from it and from its source."""
    write_dataset(tmp_path / "d.zarr", X, y, schema=schema, sample_weight=weight, shard_rows=ROWS)
    data = open_dataset(tmp_path / "d.zarr")
    assert data.schema == schema
    got = model_text(tmp_path, data.schema, data.X, data.y, data.sample_weight, **options)
    assert got == model_text(tmp_path, schema, X, y, weight, **options)
    return data


@pytest.mark.parametrize("form", thinned(FORMS, every=3))
def test_numbers_give_the_same_model(form, tmp_path):
    data = check_same_model(tmp_path, SCHEMA, *FORMS[form](*some_rows(), tmp_path))
    assert isinstance(data.X.data, da.Array)
    assert data.X.data.numblocks == (5, 1)


@pytest.mark.parametrize("dtype", thinned(["f4", ">f8", "f2", "i8", "u1"], every=2))
def test_every_type_of_matrix_gives_the_same_model(dtype, tmp_path):
    x, y = some_rows()
    x = np.nan_to_num(np.clip(x, 0, 80)).astype(dtype)
    data = check_same_model(tmp_path, SCHEMA, x, y)
    assert data.X.dtype == np.dtype(dtype).newbyteorder("=")


def test_numbers_longer_than_zarr_has_are_stored_as_floats(tmp_path):
    X, y = (part.astype(np.longdouble) for part in some_rows())
    write_dataset(tmp_path / "d.zarr", X, y, schema=SCHEMA)
    data = open_dataset(tmp_path / "d.zarr")
    np.testing.assert_array_equal(data.X.compute(), X.astype(np.float64))
    assert data.X.dtype == data.y.dtype == np.float64


def tables(features, labels):
    """A frame with text, in every kind of table."""
    text = features.astype({"color": "str"})
    dask_frame = dd.from_pandas(features.assign(target=labels), npartitions=4)
    empty = dask_frame.partitions[0].query("age < -1")
    return {
        "pandas": (features, labels),
        "arrow": (features.convert_dtypes(dtype_backend="pyarrow"), pd.Series(labels)),
        "category": (text.astype({"color": "category"}), pd.Series(labels)),
        "objects": (features.astype(object).to_numpy(), labels),
        "dataset": (xr.Dataset({n: ("row", features[n].to_numpy()) for n in features}), labels),
        "frame": (dask_frame, None),
        "empty first": (dd.concat([empty, dask_frame, empty]), None),
        "small types": (features.astype({"x": "f4", "z": "f4", "age": "i1"}), labels),
        "unknown labels": (features, np.where(labels == 1, 7, labels)),
    }


NAMES = list(tables(pd.DataFrame({"x": [1.0], "z": 1.0, "age": 1, "color": "r"}), np.array([1])))


@pytest.mark.parametrize("name", thinned(NAMES, every=3))
def test_text_gives_the_same_model(name, tmp_path, binary_schema, features, labels):
    X, y = tables(features, labels)[name]
    write_dataset(tmp_path / "d.zarr", X, y, schema=binary_schema, shard_rows=ROWS)
    data = open_dataset(tmp_path / "d.zarr")
    assert isinstance(data.X, dd.DataFrame)
    assert data.X.npartitions == 2
    if y is None:
        X, y = X[list(features.columns)], X["target"]
    got = model_text(tmp_path, data.schema, data.X, data.y)
    assert got == model_text(tmp_path, binary_schema, X, y)


def test_text_labels_other_values_and_missing_ones_are_kept_apart(tmp_path):
    rng = np.random.default_rng(0)
    schema = Schema({"x": (-3, 3), "c": ["a", 1, "<other>", 2.5]}, classes=["no", "yes"])
    frame = pd.DataFrame({"x": rng.normal(size=2500)})
    frame["c"] = rng.choice(np.array(["a", "1", 1, 2.5, None, "<other>", "new"], object), 2500)
    y = rng.choice(np.array(["no", "yes", "perhaps", None], object), 2500)
    check_same_model(tmp_path, schema, frame, y)
    numbers = Schema({"x": (-3, 3)}, classes=["no", "yes"])
    data = check_same_model_again(tmp_path, numbers, frame[["x"]].to_numpy(), y)
    assert isinstance(data.y, da.Array)


def test_text_beside_numbers_stays_another_value_than_a_missing_one(tmp_path):
    """Categories that are numbers are stored as such, and have no place for it."""
    schema = Schema({"c": [1, 2], "b": bool}, classes=[0, 1])
    frame = pd.DataFrame({"c": [2, "?", None], "b": [True, "?", None]}, dtype=object)
    write_dataset(tmp_path / "d.zarr", frame, np.array([0, 1, 1]), schema=schema)
    found = schema.check(*open_dataset(tmp_path / "d.zarr")[:2])
    assert [(one.unknown, one.missing) for one in found.columns] == [(1, 1), (1, 1)]


def check_same_model_again(tmp_path, *inputs):
    (tmp_path / "again").mkdir()
    return check_same_model(tmp_path / "again", *inputs)


def test_a_numeric_target_gives_the_same_model(tmp_path, regression_schema, features, numbers):
    numbers = np.where(np.arange(len(numbers)) % 50 == 0, np.nan, numbers)
    check_same_model(tmp_path, regression_schema, features, numbers)
    check_same_model_again(tmp_path, regression_schema, features, pd.Series(numbers, dtype=object))


@pytest.mark.parametrize("lazy", [False, True])
def test_weights_give_the_same_model(lazy, tmp_path, binary_schema, features, labels):
    schema = Schema.from_dict(binary_schema.to_dict() | {"max_weight": 3})
    weight = np.random.default_rng(0).uniform(-0.2, 3.5, len(features))
    weight[::40] = np.nan
    X, y, w = features, pd.Series(labels), pd.Series(weight)
    if lazy:
        X, y, w = (dd.from_pandas(part, npartitions=3) for part in (X, y, w))
    check_same_model(tmp_path, schema, X, y, w)


def test_weights_stand_beside_a_target_of_their_name(tmp_path):
    schema = Schema({"c": ["a", "b"]}, classes=[0, 1], target=WEIGHT, max_weight=3)
    frame = pd.DataFrame({"c": ["a", "b"]})
    write_dataset(tmp_path / "d.zarr", frame, [0, 1], schema=schema, sample_weight=[3.0, 2.0])
    data = open_dataset(tmp_path / "d.zarr")
    assert data.y.compute().tolist() == [0, 1]
    assert data.sample_weight.compute().tolist() == [3.0, 2.0]


ODD_UNITS = [(3, "a"), "\ud800", b"\xff", [], 0.5, -1]


UNITS = {
    "int": lambda n: np.arange(n) // 2,
    "text": lambda n: pd.Series([f"é{k // 3}" if k % 7 else None for k in range(n)], dtype=object),
    "nullable": lambda n: pd.Series([2**50 + k // 3 if k % 7 else None for k in range(n)], dtype="Int64"),
    "mixed": lambda n: pd.Series([k // 2 if k % 2 else str(k // 2) for k in range(n)], dtype=object),
    "dates": lambda n: pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(n) // 2, unit="h"),
    "objects": lambda n: pd.Series([ODD_UNITS[k % 6] for k in range(n)], dtype=object),
    "exact": lambda n: exact_ids(pd.Series([2**60 + k // 3 for k in range(n)])),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "recipe"),
    thinned([(kind, recipe) for kind in UNITS for recipe in ("auto", "dpboost")], every=5),
)
def test_units_give_the_same_model(kind, recipe, tmp_path, binary_schema, features, labels):
    schema = Schema.from_dict(binary_schema.to_dict() | {"unit_id": "person"})
    table = features.assign(person=UNITS[kind](len(features)))
    options = {"recipe": recipes.RECIPES[recipe].brief(), "max_rows_per_unit": 2}
    check_same_model(tmp_path, schema, table, labels, **options)


def test_no_rows_make_a_data_set(tmp_path, binary_schema, features, labels):
    table = features.assign(target=labels)
    none = dd.from_pandas(table, npartitions=2).query("age < -1")
    for X, y in ((features[:0], labels[:0]), (none[list(features.columns)], none["target"])):
        write_dataset(tmp_path / "d.zarr", X, y, schema=binary_schema, overwrite=True)
        data = open_dataset(tmp_path / "d.zarr")
        assert len(data.X) == 0
        got = model_text(tmp_path, data.schema, data.X, data.y)
        assert got == model_text(tmp_path, binary_schema, X, y)


def test_a_cluster_writes_the_same_bytes(tmp_path, client, features, labels, binary_schema):
    frame = dd.from_pandas(features.assign(target=labels), npartitions=7)
    with dask.config.set(scheduler=None):
        write_dataset(tmp_path / "a.zarr", frame, schema=binary_schema, shard_rows=ROWS)
    write_dataset(tmp_path / "b.zarr", frame, schema=binary_schema, shard_rows=ROWS)
    assert client is not None
    for name in ("X", "y"):
        a, b = (zarr.open_group(tmp_path / f"{k}.zarr", mode="r")[name][:] for k in "ab")
        np.testing.assert_array_equal(a, b)


def test_the_schema_and_names_are_attributes(tmp_path):
    x, y = some_rows()
    write_dataset(tmp_path / "d.zarr", x, y, schema=SCHEMA.to_dict(), shard_rows=ROWS)
    group = zarr.open_group(tmp_path / "d.zarr", mode="r")
    facts = group.attrs["dpgb_dask"]
    assert Schema.from_dict(facts["schema"]) == SCHEMA
    assert facts["feature_names"] == list(SCHEMA.names)
    assert group["X"].shards == (ROWS, 4)
    np.testing.assert_array_equal(group["X"][:], x)
    table = xr.open_zarr(tmp_path / "d.zarr", consolidated=False)
    assert table["X"].dims == ("row", "feature")


def test_files_are_closed_to_others(tmp_path):
    old = os.umask(0)
    try:
        write_dataset(tmp_path / "d.zarr", *some_rows(), schema=SCHEMA, shard_rows=ROWS)
    finally:
        os.umask(old)
    paths = [tmp_path / "d.zarr", *(tmp_path / "d.zarr").rglob("*")]
    assert {stat.S_IMODE(p.stat().st_mode) for p in paths if p.is_dir()} == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in paths if p.is_file()} == {0o600}


@pytest.mark.parametrize("chunks", [(1,), (999, 1, 1000), (1001, 999), (3, 0, 2500, 0), (700,) * 6])
def test_tasks_write_whole_shards_in_any_chunking(chunks, tmp_path, monkeypatch):
    n = sum(chunks)
    x = np.random.default_rng(0).normal(size=(n, 4))
    y = np.arange(n) % 2
    written = []
    write = writing._Writer.write

    def watched(self, start, parts):
        written.append((start, sum(len(part["y"]) for part in parts)))
        return write(self, start, parts)

    monkeypatch.setattr(writing._Writer, "write", watched)
    lazy = da.from_array(x, chunks=(chunks, -1)), da.from_array(y, chunks=(chunks,))
    write_dataset(tmp_path / "d.zarr", *lazy, schema=SCHEMA, shard_rows=ROWS)
    want = [(start, min(ROWS, n - start)) for start in range(0, n, ROWS)]
    assert sorted(written) == want
    data = open_dataset(tmp_path / "d.zarr")
    np.testing.assert_array_equal(data.X.compute(), x)
    np.testing.assert_array_equal(data.y.compute(), y)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    """And not the part that would have been beside it. Too long a name: root may write in any folder."""
    place = tmp_path / f"{'x' * 240}.zarr"
    X = pd.DataFrame({"x": [1.0, 2.0]})
    with pytest.raises(StructureError, match=r"^'.*/x*\.zarr' cannot be written \(File name"):
        write_dataset(place, X, [0, 1], schema=Schema({"x": (0, 4)}, classes=[0, 1]))
    assert not list(tmp_path.iterdir())


def test_few_chunks_are_in_memory_at_once(tmp_path):
    alive, most = set(), []

    class Block(np.ndarray):
        def __array_finalize__(self, _other):
            alive.add(id(self))
            most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    def block(k):
        return np.full((500, 4), k % 80, np.float64).view(Block)

    blocks = [da.from_delayed(delayed(block)(k), (500, 4), np.float64) for k in range(40)]
    x = da.concatenate(blocks)
    write_dataset(
        tmp_path / "d.zarr", x, da.zeros(20_000, chunks=500), schema=SCHEMA, shard_rows=ROWS
    )
    assert max(most) <= 8


@pytest.mark.usefixtures("store")
def test_an_interrupted_write_is_not_a_data_set(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(place.Place, "remove", lambda _: None)  # as after kill -9
        patch.setattr(writing._Writer, "write", fail_at(2))
        with pytest.raises(KeyboardInterrupt):
            write_dataset("memory://d.zarr", *some_rows(), schema=SCHEMA, shard_rows=ROWS)
    with pytest.raises(StructureError, match="not written to its end"):
        open_dataset("memory://d.zarr")
    with pytest.raises(StructureError, match="exists already"):
        write_dataset("memory://d.zarr", *some_rows(), schema=SCHEMA)
    write_dataset("memory://d.zarr", *some_rows(), schema=SCHEMA, overwrite=True)
    open_dataset("memory://d.zarr")


def fail_at(k):
    write = writing._Writer.write

    def failing(self, start, parts):
        if start == k * ROWS:
            raise KeyboardInterrupt
        return write(self, start, parts)

    return failing


def test_a_failed_write_leaves_no_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(writing._Writer, "write", fail_at(1))
    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path / "d.zarr", *some_rows(), schema=SCHEMA, shard_rows=ROWS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("linked", [False, True])
def test_a_data_set_stays_until_another_takes_its_place(linked, tmp_path, monkeypatch):
    path = tmp_path / "d.zarr"
    write_dataset(path, *some_rows(), schema=SCHEMA, shard_rows=ROWS)
    given = tmp_path / "link.zarr" if linked else path
    if linked:
        given.symlink_to(path)
    old = sorted(tmp_path.iterdir())
    X, y = some_rows()
    with monkeypatch.context() as patch:
        patch.setattr(writing._Writer, "write", fail_at(1))
        with pytest.raises(KeyboardInterrupt):
            write_dataset(given, 1 - X, y, schema=SCHEMA, shard_rows=ROWS, overwrite=True)
    assert sorted(tmp_path.iterdir()) == old
    np.testing.assert_array_equal(open_dataset(path).X.to_numpy(), X)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", Mock(side_effect=OSError(28, "no room")))
        with pytest.raises(OSError, match="no room"):
            write_dataset(given, 1 - X, y, schema=SCHEMA, shard_rows=ROWS, overwrite=True)
    assert sorted(tmp_path.iterdir()) == old
    np.testing.assert_array_equal(open_dataset(path).X.to_numpy(), X)
    write_dataset(given, 1 - X, y, schema=SCHEMA, shard_rows=ROWS, overwrite=True)
    assert sorted(tmp_path.iterdir()) == old
    np.testing.assert_array_equal(open_dataset(path).X.to_numpy(), 1 - X)


def test_what_a_killed_process_took_away_is_put_back(tmp_path):
    path, old = tmp_path / "d.zarr", tmp_path / ".dpgb-old-d.zarr"
    write_dataset(path, *some_rows(), schema=SCHEMA)
    path.rename(old)
    with pytest.raises(StructureError, match=r"What was there is now .*dpgb-old-d.zarr'"):
        open_dataset(path)
    with pytest.raises(StructureError, match="exists already"):
        write_dataset(path, *some_rows(), schema=SCHEMA)
    assert not old.exists()
    shutil.copytree(path, old)
    write_dataset(path, *some_rows(), schema=SCHEMA, overwrite=True)
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_process_leaves_the_old_data_set_and_the_next_one_nothing_else(tmp_path, forks):
    path, (X, y) = tmp_path / "d.zarr", some_rows()
    write_dataset(path, X, y, schema=SCHEMA, shard_rows=ROWS)
    assert forks.run("killed_writes:write", str(path), ROWS) == -signal.SIGKILL
    assert len(list(tmp_path.glob(".dpgb-part-*-d.zarr/d.zarr/X/c/0/0"))) == 1
    np.testing.assert_array_equal(open_dataset(path).X.to_numpy(), X)
    write_dataset(path, 1 - X, y, schema=SCHEMA, overwrite=True)
    assert list(tmp_path.iterdir()) == [path]


PART = ".dpgb-part-00112233aabbccdd-d.zarr"


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_a_killed_process_was_writing_is_removed(overwrite, tmp_path):
    """But nothing that is of another place, or has a name of its own."""
    path = tmp_path / "d.zarr"
    if overwrite:
        write_dataset(path, *some_rows(), schema=SCHEMA)
    others = [f"{PART}.gz", PART[:-7] + "e.zarr", f"x{PART}", ".dpgb-part-1-d.zarr"]
    for name in (PART, *others):
        (tmp_path / name / "d.zarr").mkdir(parents=True)
    write_dataset(path, *some_rows(), schema=SCHEMA, overwrite=overwrite)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([*others, "d.zarr"])


def test_what_a_living_process_is_writing_stays(tmp_path, monkeypatch):
    """Two write to one place: each one's rows are whole, and the last one's are there."""
    path, (X, y) = tmp_path / "d.zarr", some_rows()
    write_dataset(path, X, y, schema=SCHEMA)
    again = {"schema": SCHEMA, "shard_rows": ROWS, "overwrite": True}
    write = writing._Writer.write

    def other_writes(self, start, parts):
        monkeypatch.setattr(writing._Writer, "write", write)
        write_dataset(path, 1 - X, y, **again)
        np.testing.assert_array_equal(open_dataset(path).X.to_numpy(), 1 - X)
        return write(self, start, parts)

    monkeypatch.setattr(writing._Writer, "write", other_writes)
    write_dataset(path, 2 - X, y, **again)
    np.testing.assert_array_equal(open_dataset(path).X.to_numpy(), 2 - X)
    assert list(tmp_path.iterdir()) == [path]


def test_what_others_put_beside_a_place_ends_no_write_and_what_a_link_names_stays(tmp_path):
    path, other = tmp_path / "d.zarr", tmp_path / "other"
    write_dataset(path, *some_rows(), schema=SCHEMA)
    other.mkdir()
    os.mkfifo(tmp_path / PART)
    (tmp_path / PART.replace("00", "ff")).symlink_to(other)
    (tmp_path / ".dpgb-old-d.zarr").symlink_to(other)
    (other / "file").touch()
    with pytest.warns(UserWarning, match=r"dpgb-part-ff112233aabbccdd-d.zarr\. It may hold rows"):
        write_dataset(path, *some_rows(), schema=SCHEMA, overwrite=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        ".dpgb-part-ff112233aabbccdd-d.zarr",
        "d.zarr",
        "other",
    ]
    assert (other / "file").exists()


def test_what_another_user_left_is_named_and_not_looked_into(tmp_path, monkeypatch):
    """It is closed to this process, for which a test that root runs answers instead of the system."""
    (tmp_path / PART).mkdir()
    real, looked = place.Place.open, []
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != PART)
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=PermissionError(13, "not yours")))
    monkeypatch.setattr(
        place.Place, "open", lambda self, mode: looked.append(self.path) or real(self, mode)
    )
    with pytest.warns(UserWarning, match=f"{PART}. It may hold rows. Remove it"):
        write_dataset(tmp_path / "d.zarr", *some_rows(), schema=SCHEMA)
    assert not any(PART in path for path in looked)


def test_where_locks_do_not_work_what_was_left_is_named(tmp_path, monkeypatch):
    path = tmp_path / "d.zarr"
    (tmp_path / PART).mkdir()
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(37, "no locks available")))
    with pytest.warns(UserWarning, match=f"{PART}. It may hold rows. Remove it") as told:
        write_dataset(path, *some_rows(), schema=SCHEMA)
    assert {warning.filename for warning in told} == {__file__}
    assert (tmp_path / PART).is_dir()


def test_what_is_read_is_not_removed(tmp_path):
    """A process was killed as its data set was complete, and before that took its place."""
    path, part = tmp_path / "d.zarr", tmp_path / PART / "d.zarr"
    (tmp_path / PART).mkdir()
    write_dataset(part, *some_rows(), schema=SCHEMA)
    data = open_dataset(part)
    with pytest.raises(StructureError, match="is what X or y read"):
        write_dataset(path, data.X, data.y, schema=SCHEMA)
    assert len(open_dataset(part).y) == len(data.y)


@contextmanager
def another_writes(k, path, X, y, **options):
    """Before shard ``k`` is written, another process writes a data set to its end."""
    write = writing._Writer.write

    def after_the_other(self, start, parts):
        if start == k * ROWS:
            patch.setattr(writing._Writer, "write", write)
            write_dataset(path, X, y, schema=SCHEMA, **options)
        return write(self, start, parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing._Writer, "write", after_the_other)
        yield


@pytest.mark.parametrize("k", [0, 2])
def test_of_two_that_write_to_a_new_place_the_second_is_refused(k, tmp_path):
    path, (X, y) = tmp_path / "d.zarr", some_rows()
    said = rf"{path}' was written by another process.*stays.*another place or, once"
    with another_writes(k, path, 1 - X, y), pytest.raises(StructureError, match=said):
        write_dataset(path, X, y, schema=SCHEMA, shard_rows=ROWS)
    np.testing.assert_array_equal(open_dataset(path).X.to_numpy(), 1 - X)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.ENOTEMPTY, errno.ENOENT])
def test_where_two_meet_at_a_rename_one_is_told(code, tmp_path, monkeypatch):
    path, (X, y) = tmp_path / "d.zarr", some_rows()
    write_dataset(path, X, y, schema=SCHEMA)
    replace = Path.replace

    def met(self, target):
        if target == path:
            raise OSError(code, os.strerror(code))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", met)
    with pytest.raises(StructureError, match="was written by another process meanwhile"):
        write_dataset(path, 1 - X, y, schema=SCHEMA, overwrite=True)
    np.testing.assert_array_equal(open_dataset(path).X.to_numpy(), X)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("k", [0, 2])
def test_at_a_url_what_another_writes_meanwhile_stays(k, store):
    """The first writes where nothing is, and has no right to what it meets there."""
    path, (X, y) = "memory://d.zarr", some_rows()
    with (
        another_writes(k, path, 1 - X, y, overwrite=True),
        pytest.raises(StructureError, match=f"path='{path}' is written by another process.*stays"),
    ):
        write_dataset(path, X, y, schema=SCHEMA, shard_rows=ROWS)
    np.testing.assert_array_equal(open_dataset(path).X.to_numpy(), 1 - X)
    assert store.ls("/", detail=False) == ["/d.zarr"]


@pytest.mark.usefixtures("store")
def test_of_two_that_replace_a_data_set_at_a_url_at_once_one_is_told_where_its_rows_are(
    monkeypatch,
):
    copy = place._copy

    def after_the_other(*args):
        monkeypatch.setattr(place, "_copy", copy)
        with pytest.warns(UserWarning, match="or is writing"):
            write_dataset("memory://d.zarr", *marked(3), **URL)
        copy(*args)

    write_dataset("memory://d.zarr", *marked(1), **URL)
    monkeypatch.setattr(place, "_copy", after_the_other)
    said = r"complete at '(memory://\.dpgb-part.*?)'.*is written by another process"
    with pytest.raises(StructureError, match=said) as told:
        write_dataset("memory://d.zarr", *marked(2), **URL)
    (beside,) = re.findall(said, str(told.value))
    assert open_dataset(beside).X.to_numpy()[0, 3] == 2


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_in_the_place_of_what_was_taken_away_is_not_followed(overwrite, tmp_path):
    """Others may plant it in a shared folder: what it names is neither read nor put in place."""
    path, secret = tmp_path / "shared" / "d.zarr", tmp_path / "secret.zarr"
    path.parent.mkdir()
    write_dataset(secret, *marked(5), schema=SCHEMA)
    (path.parent / ".dpgb-old-d.zarr").symlink_to(secret)
    with pytest.raises(StructureError, match="does not exist"):
        open_dataset(path)
    write_dataset(path, *marked(7), schema=SCHEMA, overwrite=overwrite)
    assert not path.is_symlink()
    assert open_dataset(path).X.to_numpy()[0, 3] == 7
    assert open_dataset(secret).X.to_numpy()[0, 3] == 5
    assert list(path.parent.iterdir()) == [path]


@pytest.fixture
def store():
    """An empty store in memory, at memory://."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()


class Broken(Exception):
    """What a store raises."""


class Requests:
    """Counts the requests that change a store in memory; from one on they fail.

    If none is to fail, some place has to hold a whole data set before each.
    """

    def __init__(self, patch, store, fail_at, end=Broken):
        self.n, self._fail_at, self._end = 0, fail_at, end
        for name in ("pipe_file", "cp_file", "_rm"):
            patch.setattr(type(store), name, self._counted(getattr(type(store), name)))

    def _counted(self, real):
        def request(store, *args, **options):
            assert self._fail_at is not None or whole_sets(store)
            self.n += 1
            fails = self._fail_at is not None and self.n > self._fail_at
            # Ctrl-C meets the main thread; Zarr's requests are in others
            if fails and (self._end is Broken or current_thread() is main_thread()):
                raise self._end("SECRET")
            return real(store, *args, **options)

        return request


def whole_sets(store):
    """The whole data sets in a store, and what stands in their first row."""
    found = {}
    for name in store.ls("/", detail=False):
        try:
            found[name.strip("/")] = open_dataset(f"memory:/{name}").X.to_numpy()[0, 3]
        except StructureError:
            continue
    return found


def marked(value):
    """Some rows that are told by a value in their first row."""
    X, y = some_rows()
    X[0, 3] = value
    return X[:60], y[:60]


URL = {"schema": SCHEMA, "overwrite": True}


def test_a_data_set_at_a_url_is_replaced(store):
    for value in (1, 2):
        write_dataset("memory://d.zarr", *marked(value), **URL)
        assert whole_sets(store) == {"d.zarr": value}
        assert store.ls("/", detail=False) == ["/d.zarr"]


@pytest.mark.parametrize("there", [False, True])
def test_a_failed_write_leaves_no_rows_at_a_url(there, store, monkeypatch):
    if there:
        write_dataset("memory://d.zarr", *marked(1), **URL)
    monkeypatch.setattr(writing._Writer, "write", fail_at(0))
    with pytest.raises(KeyboardInterrupt):
        write_dataset("memory://d.zarr", *marked(2), **URL)
    assert whole_sets(store) == ({"d.zarr": 1} if there else {})
    assert store.ls("/", detail=False) == (["/d.zarr"] if there else [])


def n_requests(store):
    """The number of requests that change the store while a data set is replaced."""
    write_dataset("memory://d.zarr", *marked(1), **URL)
    with pytest.MonkeyPatch.context() as patch:
        counted = Requests(patch, store, None)
        write_dataset("memory://d.zarr", *marked(2), **URL)
    return counted.n


@pytest.mark.parametrize("end", thinned([Broken, KeyboardInterrupt], every=2))
def test_at_a_url_a_whole_data_set_is_left_wherever_a_write_breaks_off(end, store):
    """And what is raised, or what is at the place, names it."""
    seen = set()
    for k in range(n_requests(store)):
        store.store.clear()
        write_dataset("memory://d.zarr", *marked(1), **URL)
        with pytest.MonkeyPatch.context() as patch:
            Requests(patch, store, k, end)
            try:
                write_dataset("memory://d.zarr", *marked(2), **URL)
                said = ""
            except (StructureError, ChunkError, Broken, KeyboardInterrupt, UserWarning) as error:
                said = str(error)
        left = whole_sets(store)
        if "d.zarr" in left:
            seen.add("old" if left["d.zarr"] == 1 else "new")
            if seen == {"old", "beside", "new"}:  # what was written beside the place is still there
                assert "Remove it" in said or end is KeyboardInterrupt
            continue
        assert list(left.values()) == [2]
        (beside,) = left
        assert "SECRET" not in said or end is KeyboardInterrupt
        if end is Broken:
            assert f"The new data set is complete at 'memory://{beside}'" in said
        with pytest.raises(StructureError, match=f"The new data set is complete in '{beside}'"):
            open_dataset("memory://d.zarr")
        seen.add("beside")
    assert seen == {"old", "beside", "new"}


def test_a_broken_replacement_at_a_url_is_written_again(store):
    n = n_requests(store)
    with pytest.MonkeyPatch.context() as patch:
        Requests(patch, store, n // 2)
        with pytest.raises(StructureError, match=r"\(Broken\)"):
            write_dataset("memory://d.zarr", *marked(3), **URL)
    (beside,) = whole_sets(store)
    data = open_dataset(f"memory://{beside}")
    with pytest.warns(UserWarning, match=f"memory://{beside}. It may hold rows"):
        write_dataset("memory://d.zarr", data.X, data.y, **URL)
    assert whole_sets(store) == {"d.zarr": 3, beside: 3}


def test_a_store_that_cannot_copy_has_its_objects_written_again(store, monkeypatch):
    write_dataset("memory://d.zarr", *marked(1), **URL)
    monkeypatch.setattr(type(store), "cp_file", Mock(side_effect=NotImplementedError))
    write_dataset("memory://d.zarr", *marked(2), **URL)
    assert whole_sets(store) == {"d.zarr": 2}


def test_names_that_a_store_takes_for_others_too_are_refused(store):
    """A failed write removes what it wrote: at d*.zarr, all other data sets."""
    write_dataset("memory://d1.zarr", *marked(1), **URL)
    for name in ("d*.zarr", "d?.zarr", "d[1].zarr"):
        with pytest.raises(StructureError, match="would name other data sets"):
            write_dataset(f"memory://{name}", *marked(2), **URL)
    assert whole_sets(store) == {"d1.zarr": 1}


@pytest.mark.parametrize("url", ["memory://", "memory:///", "memory:///.zarr"])
def test_a_whole_store_is_no_place_of_a_data_set(url, store):
    store.pipe_file("/.zarr/zarr.json", b"{}")
    with pytest.raises(StructureError, match=re.escape(f"path={url!r} is no data set")):
        open_dataset(url)
    with pytest.raises(StructureError, match=re.escape(f"path={url!r} ")):
        write_dataset(url, *marked(1), **URL)


def test_the_root_of_this_machine_is_no_place_of_a_data_set():
    with pytest.raises(StructureError, match="path='/' is no data set of this library"):
        write_dataset("/", *marked(1), **URL)


def test_a_chain_of_addresses_is_read_and_not_written(tmp_path, store, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset("d.zarr", *marked(1), **URL)
    write_dataset("memory://d.zarr", *marked(1), **URL)
    with zipfile.ZipFile("d.zip", "w") as archive:
        for path in Path("d.zarr").rglob("*"):
            archive.write(path)
    before = sorted(tmp_path.rglob("*")), sorted(store.store)
    cached = f"simplecache::file://{tmp_path}/d.zarr"
    zipped = ["zip://d.zarr::d.zip", f"zip://d.zarr::file://{tmp_path}/d.zip"]
    opened = [cached, "simplecache::memory://d.zarr"]
    with suppress(FileNotFoundError):  # by older versions of fsspec, Zarr opens no archive
        zarr.open_group(zipped[0], mode="r")
        opened += zipped
    for url in opened:
        assert open_dataset(url).X.to_numpy()[0, 3] == 1
        assert is_dataset(url)
        for target in (url, url.replace("d.zarr", "new.zarr")):
            with pytest.raises(StructureError, match="are read and not written"):
                write_dataset(target, *marked(2), **URL)
    assert (sorted(tmp_path.rglob("*")), sorted(store.store)) == before


@pytest.mark.usefixtures("store")
def test_an_address_that_zarr_does_not_open_is_refused_as_such():
    write_dataset("memory://d.zarr", *marked(1), **URL)
    with pytest.raises(StructureError, match="Zarr opens no address of dir://"):
        open_dataset("dir://d.zarr::memory://")


def test_rows_that_zarr_reads_from_the_data_set_are_written_before_it_goes(tmp_path):
    """They are known by no name, and missing chunks would read as zeros."""
    path = tmp_path / "d.zarr"
    X, y = some_rows()
    write_dataset(path, X, y, schema=SCHEMA, shard_rows=ROWS)
    array = zarr.open_group(path, mode="r")["X"]
    write_dataset(path, array, y, schema=SCHEMA, columns="position", overwrite=True)
    np.testing.assert_array_equal(open_dataset(path).X.to_numpy(), X)


def test_a_link_to_nowhere_gets_its_folder(tmp_path):
    link, path = tmp_path / "link.zarr", tmp_path / "d.zarr"
    link.symlink_to(path)
    write_dataset(link, *some_rows(), schema=SCHEMA)
    assert link.is_symlink()
    assert len(open_dataset(path).y) == len(some_rows()[1])


def test_what_reads_back_otherwise_raises(tmp_path, monkeypatch):
    setitem = zarr.Array.__setitem__

    def damaged(self, rows, values):
        wrong = values.copy()
        wrong[17] = 1 - wrong[17]
        setitem(self, rows, wrong)

    x, y = some_rows()
    monkeypatch.setattr(zarr.Array, "__setitem__", damaged)
    with pytest.raises(ChunkError, match="A shard"):
        write_dataset(tmp_path / "d.zarr", x, y, schema=SCHEMA, shard_rows=ROWS)
    assert not (tmp_path / "d.zarr").exists()


def test_other_folders_are_not_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("one")
    for overwrite in (False, True):
        with pytest.raises(StructureError, match=r"exists already|not replaced"):
            write_dataset(tmp_path / "thesis", *some_rows(), schema=SCHEMA, overwrite=overwrite)
    zarr.create_group(tmp_path / "other.zarr")
    with pytest.raises(StructureError, match="not replaced"):
        write_dataset(tmp_path / "other.zarr", *some_rows(), schema=SCHEMA, overwrite=True)
    with pytest.raises(StructureError, match="no data set"):
        open_dataset(tmp_path / "other.zarr")
    with pytest.raises(StructureError, match="protocol"):
        open_dataset("nowhere://d.zarr")


def test_errors_name_the_option_and_the_flag(tmp_path):
    write_dataset(tmp_path / "d.zarr", *some_rows(), schema=SCHEMA)
    with pytest.raises(StructureError, match=r"overwrite=True \(on the command line: --overwrite"):
        write_dataset(tmp_path / "d.zarr", *some_rows(), schema=SCHEMA)
    (tmp_path / "d.zarr" / "X" / "c" / "0" / "0").unlink()
    with pytest.raises(StructureError, match=r"overwrite=True \(on the command line: --overwrite"):
        open_dataset(tmp_path / "d.zarr")


@pytest.mark.parametrize("text", [False, True])
def test_what_is_read_is_not_replaced(text, tmp_path, binary_schema, features, labels):
    path = tmp_path / "d.zarr"
    X, y, schema = (features, labels, binary_schema) if text else (*some_rows(), SCHEMA)
    write_dataset(path, X, y, schema=schema, shard_rows=ROWS)
    data = open_dataset(path)
    other = data.X if text else data.X * 2 + 1
    for again, target in ((data.X, data.y), (other, data.y), (X, data.y)):
        if isinstance(again, pd.DataFrame):
            again = dd.from_pandas(again, npartitions=2)  # noqa: PLW2901
        with pytest.raises(StructureError, match="is what X or y read"):
            write_dataset(path, again, target, schema=schema, overwrite=True)
    assert len(open_dataset(path).y) == len(y)


def test_a_chunk_that_fails_says_no_value(tmp_path):
    def block(k):
        if k:
            raise ValueError("salary 123456")
        return np.zeros((500, 4))

    x = da.concatenate([da.from_delayed(delayed(block)(k), (500, 4), np.float64) for k in range(2)])
    with pytest.raises(ChunkError, match="ValueError") as caught:
        write_dataset(tmp_path / "d.zarr", x, da.zeros(1000, chunks=500), schema=SCHEMA)
    assert "123456" not in repr(caught.value.__context__) + str(caught.value)
    assert not (tmp_path / "d.zarr").exists()


@pytest.mark.parametrize(
    "partition",
    [
        pd.DataFrame({"age": ["old"], "income": [1.0], "kind": [1], "score": [0.5], "target": [1]}),
        pd.DataFrame({"age": [1.0], "income": [1.0], "kind": ["1"], "score": [0.5], "target": [1]}),
    ],
)
def test_a_partition_of_other_types_gives_the_same_model(partition, tmp_path):
    meta = pd.DataFrame({n: np.empty(0) for n in (*SCHEMA.names, "target")})
    frame = dd.from_delayed([delayed(partition)], meta=meta, verify_meta=False)
    check_same_model(tmp_path, SCHEMA, frame[list(SCHEMA.names)], frame["target"])


@pytest.mark.parametrize("what", ["matrix", "columns", "target", "masked target"])
def test_a_chunk_of_other_types_than_its_collection_says_is_refused(what, tmp_path):
    """Where the data set's type would not hold its values."""
    schema, x, y = SCHEMA, da.full((9, 4), 0.1), da.zeros(9, np.int64)
    if what in ("matrix", "columns"):
        x = x.map_blocks(lambda block: block, dtype=np.float32)
    if what == "columns":  # stored one by one
        schema = Schema(SCHEMA.features | {"kind": Hashed(8)}, classes=[0, 1])
    if what == "target":
        y = y.map_blocks(lambda block: block, dtype=np.int8)
    if what == "masked target":
        small = y.astype(np.int8)
        y = small.map_blocks(lambda block: np.ma.masked_equal(block, 0), meta=np.empty(0, np.int8))
    with pytest.raises(StructureError, match=r"of other types than its collection says\. Convert"):
        write_dataset(tmp_path / "d.zarr", x, y, schema=schema)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("labels", ["y", "weight"])
def test_an_index_of_floats_is_no_place(labels, tmp_path):
    (x, y), weight = some_rows(), np.arange(4001) % 3
    schema = Schema(SCHEMA.features, classes=[0, 1], max_weight=2)
    given = {"y": y, "weight": weight} | {labels: labelled({"y": y, "weight": weight}[labels])}
    write_dataset(
        tmp_path / "d.zarr", x, given["y"], schema=schema, sample_weight=given["weight"],
        shard_rows=ROWS,
    )  # fmt: skip
    data = open_dataset(tmp_path / "d.zarr")
    np.testing.assert_array_equal(np.asarray(data.y), y)
    np.testing.assert_array_equal(np.asarray(data.sample_weight), weight)


def masked_parts(dtype):
    """Rows in chunks that are masked where Dask knows of no mask: X, y and weights."""
    x, y = some_rows()
    whole = [np.nan_to_num(np.clip(x, 0, 80)), (y == 1).astype(float), np.arange(4001) % 3]
    for k, values in enumerate(whole):
        mask = np.random.default_rng(k).random(values.shape) < 0.1
        part = np.ma.masked_array(values.astype(dtype), mask)
        yield da.from_delayed(delayed(part), part.shape, dtype), part.astype(float).filled(np.nan)


@pytest.mark.parametrize("dtype", ["f8", "f4", ">f8", "i8"])
def test_masked_values_of_chunks_are_written_as_missing(dtype, tmp_path):
    (x, bare), (y, target), (w, weight) = masked_parts(dtype)
    if dtype == "i8":  # a matrix of whole numbers is stored as such: it holds no missing value
        x = da.from_array(bare)
    schema = Schema(SCHEMA.features, classes=[0, 1], max_weight=2)
    write_dataset(tmp_path / "d.zarr", x, y, schema=schema, sample_weight=w, shard_rows=ROWS)
    data = open_dataset(tmp_path / "d.zarr")
    for got, want in zip(data, (bare, target, weight), strict=False):
        np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.parametrize("masked", ["X", "y", "sample_weight"])
def test_masked_values_that_whole_numbers_cannot_hold_are_refused(masked, tmp_path):
    given = dict(zip(("X", "y", "sample_weight"), masked_parts("i4"), strict=True))
    given = {k: lazy if k == masked else np.nan_to_num(bare) for k, (lazy, bare) in given.items()}
    schema = Schema(SCHEMA.features, classes=[0, 1], max_weight=2)
    with pytest.raises(StructureError, match="other types"):
        write_dataset(tmp_path / "d.zarr", **given, schema=schema)


def test_masked_units_are_none(tmp_path, binary_schema, features, labels):
    schema = type(binary_schema)(binary_schema.features, classes=[0, 1], unit_id="u", max_weight=1)
    names = np.ma.masked_array([f"p{k}" for k in range(len(labels))], np.arange(len(labels)) < 9)
    table = xr.Dataset({n: ("row", features[n].to_numpy()) for n in features}).chunk(row=500)
    units = da.from_delayed(delayed(names), names.shape, names.dtype)
    table = table.assign(u=("row", units))
    write_dataset(tmp_path / "d.zarr", table, labels, schema=schema)
    got = zarr.open_group(tmp_path / "d.zarr")["unit"][:]
    assert (got[:9] == "").all()
    assert got[9] == "sp9"


@pytest.mark.parametrize("n", [400, 600])
def test_wrong_chunk_sizes_stop(n, tmp_path):
    x = da.from_delayed(delayed(np.zeros)((n, 4)), (500, 4), np.float64)
    y = da.from_delayed(delayed(np.zeros)(n), (500,), np.float64)
    with pytest.raises(StructureError, match="another number of rows") as caught:
        write_dataset(tmp_path / "d.zarr", x, y, schema=SCHEMA)
    assert "00" not in str(caught.value)


def test_structure_is_checked_before_anything_is_made(tmp_path):
    x, y = some_rows()
    for arguments, error in [
        ({"X": x[:, :3], "y": y}, StructureError),
        ({"X": x, "y": None}, SchemaError),
        ({"X": x, "y": y, "shard_rows": 0}, StructureError),
    ]:
        with pytest.raises(error):
            write_dataset(tmp_path / "d.zarr", **{"schema": SCHEMA, **arguments})
    assert not Path(tmp_path / "d.zarr").exists()
