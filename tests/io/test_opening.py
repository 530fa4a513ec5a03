"""Opening data sets: what is gone, damaged or newer is noticed, and what another schema may ask of one."""

import json
from dataclasses import replace

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from forms import SCHEMA, some_rows

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.contracts.features import Grouped, Hashed
from dpgb_dask.errors import ChunkError, StructureError
from dpgb_dask.io import open_dataset, write_dataset
from dpgb_dask.io.layout import CHECKED
from dpgb_dask.io.opening import is_dataset, not_kept
from dpgb_dask.io.rows import _categorical
from dpgb_dask.testing import SeededNoise

SEEDED = {"noise": SeededNoise(0), "random_state": 0, "epsilon": 4.0, "on_few_rows": "continue"}
ROWS = 1000  # of a shard: the last one is not full


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def test_a_lost_or_damaged_shard_is_noticed(tmp_path):
    path = tmp_path / "d.zarr"
    write_dataset(path, *some_rows(), schema=SCHEMA, shard_rows=ROWS)
    shard = path / "X" / "c" / "2" / "0"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    data = open_dataset(path)
    with pytest.raises(ChunkError, match="damaged or gone"):
        DPGBClassifier(schema=data.schema, **SEEDED).fit(data.X, data.y)
    shard.unlink()
    with pytest.raises(StructureError, match="lacks parts"):
        open_dataset(path)


def test_an_array_that_says_other_things_of_itself_is_noticed(tmp_path):
    write_dataset(tmp_path / "d.zarr", *some_rows(), schema=SCHEMA)
    place = tmp_path / "d.zarr" / "y" / "zarr.json"
    said = json.loads(place.read_text())
    place.write_text(json.dumps(said | {"attributes": {"scale_factor": 2}}))
    with pytest.raises(StructureError, match="is damaged"):
        open_dataset(tmp_path / "d.zarr")


def test_what_is_not_there_or_no_data_set_cannot_be_opened(tmp_path):
    with pytest.raises(StructureError, match=r"nothing.zarr' does not exist\. Give") as info:
        open_dataset(tmp_path / "nothing.zarr")
    assert (
        info.value.__suppress_context__ or info.value.__context__ is None
    )  # nothing of Zarr in the traceback
    (tmp_path / "file").write_text("one")
    (tmp_path / "folder").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "zarr.json").write_text("{")
    zarr.create_array(tmp_path / "array", data=np.zeros(3))
    zarr.create_group(tmp_path / "group")
    zarr.create_group(tmp_path / "foreign", attributes={"dpgb_dask": {"version": 2}})
    for name in ("file", "folder", "damaged", "array", "group", "foreign"):
        with pytest.raises(StructureError, match=f"{name}' is no data set: .*dpgb-dask convert"):
            open_dataset(tmp_path / name)
        assert not is_dataset(tmp_path / name)


def test_columns_keep_their_order_where_a_store_sorts_the_keys_of_attributes(tmp_path):
    path, groups = tmp_path / "d.zarr", {"from": {"2": "y", "1": "x"}}
    table = pd.DataFrame({"c": [0.25, 0.5], "b": [2, 1], "a": [1, 2]})
    schema = Schema({"c": (0, 1), "b": groups, "a": groups}, classes=[0, 1])
    write_dataset(path, table, [0, 1], schema=schema)

    def turned(*where):
        facts = json.loads((path / "zarr.json").read_text())
        part = facts["attributes"]["dpgb_dask"]["schema"]
        for name in where:
            part = part[name]
        kept = dict(part)
        part.clear()
        part.update(sorted(kept.items()))
        (path / "zarr.json").write_text(json.dumps(facts))
        return open_dataset(path)

    before = open_dataset(path).X.compute()
    after = turned("features")
    assert after.schema.names == ("c", "b", "a")
    pd.testing.assert_frame_equal(after.X.compute(), before)
    with pytest.raises(StructureError, match="damaged"):
        turned("features", "b", "from")


LISTS = {
    "the same": (["blue", "green", "red"], True),
    "another order": (["red", "blue", "green"], True),
    "fewer": (["red"], True),
    "more": (["blue", "green", "red", "teal"], False),
    "other": (["teal"], False),
    "the name of the others": (["red", "<other>"], False),
    "bounds": ((0, 1), False),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_schema_may_ask_what_was_kept(name, tmp_path, binary_schema, features, labels):
    categories, kept = LISTS[name]
    write_dataset(tmp_path / "d.zarr", features, labels, schema=binary_schema)
    facts = {**binary_schema.features, "color": categories, "age": (10, 40)}
    got = not_kept(open_dataset(tmp_path / "d.zarr"), Schema(facts, classes=[1, 0, 7]))
    assert got == (() if kept else ("color",))


def test_a_hash_or_a_mapping_is_kept_as_it_is_whether_values_may_be_missing_or_not(tmp_path):
    declared = {"h": Hashed(8), "g": Grouped({"a": 1, "b": 2})}
    frame = pd.DataFrame({"h": ["x", "y"], "g": ["a", "b"]})
    write_dataset(tmp_path / "d.zarr", frame, [0, 1], schema=Schema(declared, classes=[0, 1]))
    data = open_dataset(tmp_path / "d.zarr")
    expected = {name: replace(feature, missing=True) for name, feature in declared.items()}
    assert not_kept(data, Schema(expected, classes=[0, 1])) == ()
    other = {"h": Hashed(9), "g": Grouped({"a": 1, "b": 1})}
    assert not_kept(data, Schema(other, classes=[0, 1])) == ("h", "g")


@pytest.mark.parametrize("frame", [False, True])
def test_a_schema_may_ask_what_was_kept_of_labels(frame, tmp_path, features):
    rows = features[["x", "age", "color"][: 2 + frame]]
    facts = {"x": (-3, 3), "age": (0, 90), "color": ["red"]}
    declared = {name: facts[name] for name in rows.columns}
    labels = np.where(features["age"] > 40, "old", "young")
    X = rows if frame else rows.to_numpy()
    write_dataset(tmp_path / "d.zarr", X, labels, schema=Schema(declared, classes=["old", "young"]))
    data = open_dataset(tmp_path / "d.zarr")
    for classes, kept in ((["young", "old"], True), (["old", "new"], False), ([0, 1], False)):
        assert not_kept(data, Schema(declared, classes=classes)) == (() if kept else ("target",))
    assert not_kept(data, Schema(declared, target_bounds=(0, 1))) == ("target",)


def test_numbers_are_kept_as_they_are(tmp_path, features, labels):
    rows = features[["x", "age"]]
    write_dataset(
        tmp_path / "d.zarr",
        rows,
        labels,
        schema=Schema({"x": (0, 1), "age": [1, 2]}, classes=[0, 1]),
    )
    data = open_dataset(tmp_path / "d.zarr")
    other = Schema({"x": (-9, 6), "age": [5, "06", True]}, target_bounds=(0, 1))
    assert not_kept(data, other) == ()
    other = Schema({"x": [5, 6], "age": (0, 9)}, classes=[5, "6"])
    assert not_kept(data, other) == ("x", "age")
    other = Schema({"x": (0, 1), "age": [1, "a"]}, classes=[0, "b"])
    assert not_kept(data, other) == ("age", "target")


@pytest.fixture
def of_format_1(tmp_path):
    """A data set as the first format had it: it records nothing of its shards."""
    write_dataset(tmp_path / "d.zarr", *some_rows(), schema=SCHEMA, shard_rows=ROWS)
    group = zarr.open_group(tmp_path / "d.zarr")
    facts = {name: fact for name, fact in group.attrs["dpgb_dask"].items() if name not in CHECKED}
    group.attrs["dpgb_dask"] = facts | {"format": 1}
    return group


@pytest.mark.usefixtures("of_format_1")
def test_a_data_set_of_format_1_is_read(tmp_path):
    data = open_dataset(tmp_path / "d.zarr")
    np.testing.assert_array_equal(data.X.compute(), some_rows()[0])


@pytest.mark.usefixtures("of_format_1")
def test_a_lost_shard_of_format_1_is_noticed(tmp_path):
    (tmp_path / "d.zarr" / "X" / "c" / "2" / "0").unlink()
    with pytest.raises(StructureError, match="lacks parts"):
        open_dataset(tmp_path / "d.zarr")


@pytest.mark.parametrize("shards", [ROWS // 2, None])
def test_other_shards_of_format_1_are_noticed(shards, of_format_1, tmp_path):
    y = np.ones_like(of_format_1["y"])
    del of_format_1["y"]
    chunks = (shards or ROWS,)
    of_format_1.create_array("y", data=y, chunks=chunks, shards=shards and chunks)
    with pytest.raises(StructureError, match="is damaged"):
        open_dataset(tmp_path / "d.zarr")


@pytest.mark.parametrize("version", [0, True, "1", 1.0])
def test_a_format_that_never_was_is_damage(version, of_format_1, tmp_path):
    of_format_1.attrs["dpgb_dask"] = of_format_1.attrs["dpgb_dask"] | {"format": version}
    with pytest.raises(StructureError, match="is damaged"):
        open_dataset(tmp_path / "d.zarr")


def test_a_category_that_is_missing_shifts_no_other():
    """Schemas of version 0.2 may have one."""
    read = _categorical(np.arange(4), (None, "a"))
    assert read.codes.tolist() == [-1, 0, 1, -1]
    assert read.categories.tolist() == ["a", "<other>"]


def test_a_newer_format_is_refused(tmp_path):
    write_dataset(tmp_path / "d.zarr", *some_rows(), schema=SCHEMA)
    group = zarr.open_group(tmp_path / "d.zarr")
    group.attrs["dpgb_dask"] = group.attrs["dpgb_dask"] | {"format": 3}
    with pytest.raises(StructureError, match="newer"):
        open_dataset(tmp_path / "d.zarr")


def test_data_sets_of_one_path_are_two_to_dask(tmp_path):
    x, y = some_rows()
    write_dataset(tmp_path / "d.zarr", x, y, schema=SCHEMA)
    first = open_dataset(tmp_path / "d.zarr").X.name
    assert open_dataset(tmp_path / "d.zarr").X.name == first
    write_dataset(tmp_path / "d.zarr", x, y, schema=SCHEMA, overwrite=True)
    assert open_dataset(tmp_path / "d.zarr").X.name != first
