"""Any damage to stored rows gives one of our errors; Zarr by itself reads a shard of zero bytes as zeros."""

import json
import shutil
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from cli_parts import run
from private.cases import BINS

import dpgb_dask
from dpgb_dask import DPGBClassifier, Schema, zarr_arrays
from dpgb_dask.errors import ChunkError, DPGBError, LostCodesError, StructureError
from dpgb_dask.io import open_dataset, write_dataset
from dpgb_dask.io.opening import is_dataset
from dpgb_dask.io.place import ATTRIBUTE
from dpgb_dask.matching import names_of
from dpgb_dask.private.keeping.durable import Durable
from dpgb_dask.private.reading.rows import Piece
from dpgb_dask.testing import SeededNoise
from dpgb_dask.zarr_arrays import arrays_of, from_zarr

NAMES = ["a", "b", "c"]
SCHEMA = Schema(dict.fromkeys(NAMES, (0, 1)), classes=[0, 1])
ROWS = 128
SETTINGS = {"epsilon": 1.0, "recipe": "fdp-tr-newton", "n_estimators": 2, "noise": SeededNoise(1)}


def rows(n=500):
    x = np.random.default_rng(0).random((n, 3))
    return x, (x[:, 0] > 0.5).astype(int)


def texts(n=500):
    """Rows with text, units and an own form for each."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"job": rng.choice(["x", "y"], n), "a": rng.random(n)})
    return frame.assign(person=[f"p{k % 90}" for k in range(n)]), rng.choice(["no", "yes"], n)


TEXTS = Schema({"job": ["x", "y"], "a": (0, 1)}, classes=["no", "yes"], unit_id="person")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    x, y = rows()
    write_dataset(
        folder / "numbers.zarr", pd.DataFrame(x, columns=NAMES), y, schema=SCHEMA,
        sample_weight=np.ones(len(y)), shard_rows=ROWS,
    )  # fmt: skip
    write_dataset(folder / "texts.zarr", *texts(), schema=TEXTS, shard_rows=ROWS)
    return folder


@pytest.fixture
def path(whole, tmp_path, request):
    shutil.copytree(whole / request.param, tmp_path / request.param)
    return tmp_path / request.param


def read_all(path):
    data = open_dataset(path)
    for part in data[:3]:
        if part is not None:
            part.compute()
    return data


HARM = {
    "empty": lambda data: data[:0],
    "zeros": lambda data: bytes(len(data)),
    "short": lambda data: data[:-1],
    "long": lambda data: data + b"x",
    "one bit": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :],
    "16 bytes": lambda data: data[:16],
}  # fmt: skip
COMMON = ["X/c/1/0", "X/c/3/0", "y/c/0", "y/c/3"]
OBJECTS = {
    "numbers.zarr": [*COMMON, "sample_weight/c/2"],
    "texts.zarr": [*COMMON, "unit/c/1"],
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize(
    ("path", "name"),
    [(path, name) for path, names in OBJECTS.items() for name in names],
    indirect=["path"],
)
def test_a_harmed_shard_is_noticed_as_it_is_opened_or_read(path, name, harm):
    (path / name).write_bytes(HARM[harm]((path / name).read_bytes()))
    with pytest.raises((ChunkError, StructureError), match=r"lacks parts|damaged or gone"):
        read_all(path)


@pytest.mark.parametrize("path", ["numbers.zarr", "texts.zarr"], indirect=True)
def test_a_shard_in_the_place_of_another_is_noticed(path):
    one, other = path / "X/c/0/0", path / "X/c/1/0"
    other.write_bytes(one.read_bytes())
    with pytest.raises((ChunkError, StructureError), match=r"lacks parts|damaged or gone"):
        read_all(path)


@pytest.mark.parametrize("path", ["numbers.zarr"], indirect=True)
def test_a_shard_that_is_harmed_after_the_set_was_opened_ends_the_fit(path):
    data = open_dataset(path)
    (path / "y/c/1").write_bytes(b"")
    with pytest.raises(ChunkError, match="damaged or gone"):
        DPGBClassifier(schema=data.schema, **SETTINGS).fit(data.X, data.y)
    (path / "X/c/1/0").unlink()
    clf = DPGBClassifier(schema=SCHEMA, **SETTINGS).fit(
        pd.DataFrame(rows()[0], columns=NAMES), rows()[1]
    )
    with pytest.raises(ChunkError, match="damaged or gone"):
        clf.predict(data.X).compute()


def edit(path, change):
    text = path.read_text()
    facts = json.loads(text)
    change(facts)
    path.write_text(json.dumps(facts))


def ours(facts):
    return facts["attributes"][ATTRIBUTE]


METADATA = {
    "the group's gone": ("zarr.json", None),
    "the group's empty": ("zarr.json", ""),
    "the group's cut off": ("zarr.json", 100),
    "the group's attributes gone": ("zarr.json", lambda f: f.pop("attributes")),
    "ours gone": ("zarr.json", lambda f: f["attributes"].clear()),
    "ours a list": ("zarr.json", lambda f: f["attributes"].update({ATTRIBUTE: [1]})),
    "format of text": ("zarr.json", lambda f: ours(f).update(format="2")),
    "format true": ("zarr.json", lambda f: ours(f).update(format=True)),
    "format 0": ("zarr.json", lambda f: ours(f).update(format=0)),
    "no schema": ("zarr.json", lambda f: ours(f).pop("schema")),
    "no shards": ("zarr.json", lambda f: ours(f).pop("shards")),
    "fewer shards": ("zarr.json", lambda f: ours(f)["shards"]["X"].pop()),
    "another size": ("zarr.json", lambda f: ours(f)["shards"]["X"][0].__setitem__(0, 1)),
    "other bounds": ("zarr.json", lambda f: ours(f)["schema"]["features"].popitem()),
    "other coded columns": ("zarr.json", lambda f: ours(f).update(coded=[0])),
    "no check": ("zarr.json", lambda f: ours(f).pop("check")),
    "an array's gone": ("X/zarr.json", None),
    "an array's empty": ("y/zarr.json", ""),
    "an array's cut off": ("X/zarr.json", 100),
    "fewer rows": ("X/zarr.json", lambda f: f.update(shape=[400, 3])),
    "more columns": ("X/zarr.json", lambda f: f.update(shape=[500, 4])),
    "one axis": ("X/zarr.json", lambda f: f.update(shape=[500])),
    "another type": ("y/zarr.json", lambda f: f.update(data_type="int32")),
    "no type": ("y/zarr.json", lambda f: f.pop("data_type")),
    "other chunks": ("X/zarr.json", lambda f: f["chunk_grid"]["configuration"].update(chunk_shape=[64, 3])),
    "another fill value": ("X/zarr.json", lambda f: f.update(fill_value=0.5)),
}  # fmt: skip


@pytest.mark.parametrize("what", METADATA)
@pytest.mark.parametrize("path", ["numbers.zarr"], indirect=True)
def test_harmed_metadata_is_an_error_of_ours(path, what):
    name, change = METADATA[what]
    file = path / name
    if change is None:
        file.unlink()
    elif callable(change):
        edit(file, change)
    else:
        file.write_text(file.read_text()[: change or 0])
    with pytest.raises((StructureError, ChunkError)):
        read_all(path)


@pytest.mark.parametrize("path", ["numbers.zarr", "texts.zarr"], indirect=True)
def test_format_1_opens_still_and_notices_empty_shards(path):
    want = read_all(path)

    def older(facts):
        for name in ("shards", "arrays", "check"):
            ours(facts).pop(name)
        ours(facts)["format"] = 1

    edit(path / "zarr.json", older)
    got = read_all(path)
    np.testing.assert_array_equal(np.asarray(got.X.compute()), np.asarray(want.X.compute()))
    opened = open_dataset(path)
    (path / "X/c/1/0").write_bytes(b"")
    with pytest.raises(ChunkError, match="damaged or gone"):
        opened.X.compute()
    with pytest.raises(StructureError, match="lacks parts"):
        open_dataset(path)
    edit(path / "zarr.json", lambda facts: ours(facts).pop("schema"))
    with pytest.raises(StructureError, match="damaged"):
        open_dataset(path)


@pytest.mark.parametrize("path", ["numbers.zarr"], indirect=True)
def test_any_part_of_a_data_set_can_be_taken(path):
    data, (x, _) = open_dataset(path), rows()
    for index in (
        np.s_[:], np.s_[:5], np.s_[100:300], np.s_[::7], np.s_[300:100:-3], np.s_[499],
        np.s_[[3, 400, 130]], np.s_[200:200],
    ):  # fmt: skip
        lazy = data.X.data[index]
        np.testing.assert_array_equal(lazy.compute(), x[index])
        np.testing.assert_array_equal(lazy[..., 1].compute(), x[index][..., 1])


def test_a_data_set_without_rows_is_whole(tmp_path):
    write_dataset(
        tmp_path / "d.zarr", pd.DataFrame(np.ones((0, 3)), columns=NAMES), [], schema=SCHEMA
    )
    assert len(read_all(tmp_path / "d.zarr").X) == 0


# ---- arrays that others wrote ----------------------------------------------------------------------------------------


def foreign(folder, x):
    return zarr.create_array(folder, name="X", data=x, chunks=(32, 3), shards=(128, 3))


def test_a_foreign_shard_of_no_bytes_is_refused(tmp_path):
    x, y = rows()
    array = foreign(tmp_path / "z.zarr", x)
    np.testing.assert_array_equal(from_zarr(array).compute(), x)
    np.testing.assert_array_equal(from_zarr(array)[130:140, 1].compute(), x[130:140, 1])
    clf = DPGBClassifier(schema=SCHEMA, columns="position", **SETTINGS).fit(array, y)
    (tmp_path / "z.zarr/X/c/1/0").write_bytes(b"")
    with pytest.raises(ChunkError, match="damaged or gone"):
        DPGBClassifier(schema=SCHEMA, columns="position", **SETTINGS).fit(array, y)
    with pytest.raises(ChunkError, match="damaged or gone"):
        clf.predict(array).compute()
    with pytest.raises(ChunkError, match="damaged or gone"):
        SCHEMA.check(array, y)


def test_a_foreign_shard_that_is_not_there_holds_its_fill_value(tmp_path):
    x, _ = rows()
    array = foreign(tmp_path / "z.zarr", x)
    (tmp_path / "z.zarr/X/c/1/0").unlink()
    want = x.copy()
    want[128:256] = 0
    np.testing.assert_array_equal(from_zarr(array).compute(), want)


def test_an_empty_chunk_without_shards_raises(tmp_path):
    x, y = rows()
    array = zarr.create_array(tmp_path / "z.zarr", name="X", data=x, chunks=(128, 3))
    (tmp_path / "z.zarr/X/c/1/0").write_bytes(b"")
    with pytest.raises(DPGBError):
        DPGBClassifier(schema=SCHEMA, columns="position", **SETTINGS).fit(
            array, da.from_array(y, chunks=128)
        )


def in_place(path, harm):
    """Put what is no object in the place of one."""
    path.unlink()
    if harm == "folder":
        path.mkdir()
    elif harm == "link":
        path.symlink_to(path.parent / "nowhere")
    else:  # a file in the place of the folder around it
        path.parent.rmdir()
        path.parent.write_bytes(b"x")


@pytest.mark.parametrize("shards", [None, (128, 3)], ids=["chunks", "shards"])
@pytest.mark.parametrize("store", ["path", "file://"])
@pytest.mark.parametrize("harm", ["folder", "link", "file above"])
def test_what_is_no_object_is_refused_and_not_read_as_the_fill_value(tmp_path, shards, store, harm):
    x, y = rows()
    array = zarr.create_array(
        tmp_path / "z.zarr", name="X", data=x, chunks=shards or (128, 3), shards=shards
    )
    if store == "file://":
        array = zarr.open_array(f"file://{tmp_path}/z.zarr/X", mode="r")
    np.testing.assert_array_equal(from_zarr(array).compute(), x)
    clf = DPGBClassifier(schema=SCHEMA, columns="position", **SETTINGS).fit(array, y)
    in_place(tmp_path / "z.zarr/X/c/1/0", harm)
    with pytest.raises(ChunkError):
        DPGBClassifier(schema=SCHEMA, columns="position", **SETTINGS).fit(array, y)
    with pytest.raises(ChunkError, match="damaged or gone"):
        clf.predict(array).compute()


def test_chunks_that_are_not_there_hold_the_fill_value_and_other_axes_are_cut(tmp_path):
    x, _ = rows()
    array = zarr.create_array(tmp_path / "z.zarr", name="X", data=x, chunks=(128, 2))
    (tmp_path / "z.zarr/X/c/1/0").unlink()
    want = x.copy()
    want[128:256, :2] = 0
    np.testing.assert_array_equal(from_zarr(array).compute(), want)
    np.testing.assert_array_equal(from_zarr(array)[100:300:7, 1].compute(), want[100:300:7, 1])


def test_reading_a_chunk_takes_no_memory_for_the_rest_of_its_axis(tmp_path):
    """The places of all rows of this axis would fill 800 GB."""
    shape, chunks = (10**11,), (10**9,)
    array = zarr.create_array(tmp_path / "z.zarr", shape=shape, chunks=chunks, dtype="i1")
    whole = zarr_arrays._Whole(array, chunks)
    assert whole[slice(10**10, 10**10 + 3),].tolist() == [0, 0, 0]
    ours = zarr.create_array(tmp_path / "ours.zarr", shape=shape, chunks=(1000,), dtype="i1")
    ours[10**10 : 10**10 + 1000] = 7
    shards = zarr_arrays.Shards(ours)
    assert shards[slice(10**10, 10**10 + 3),].tolist() == [7, 7, 7]
    assert shards[slice(0, 0),].shape == (0,)


# ---- the store of a fit's codes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("what", ["codes", "label", "weight", "parts"])
def test_a_harmed_object_of_the_cache_is_lost(tmp_path, what, harm):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 5, (len(BINS), 50), dtype=np.uint8)
    piece = Piece(codes, np.zeros(50, np.uint8), np.ones(50, np.int32))
    store = Durable(str(tmp_path / "cache.zarr"), bytes(32), b"one")
    store.begin(0)
    store.save(0, 0, piece)
    store.finish(0, 1)
    (found,) = store.load(0)
    np.testing.assert_array_equal(found.codes, codes)
    for part in ("zarr.json", "c/0"):
        for file in tmp_path.glob(f"cache.zarr/*/*/0/0/{what}/{part}*"):
            target = file if file.is_file() else next(f for f in file.rglob("*") if f.is_file())
            saved = target.read_bytes()
            target.write_bytes(HARM[harm](saved))
            with pytest.raises(LostCodesError):
                list(store.load(0))
            target.write_bytes(saved)
    done = next(tmp_path.glob("cache.zarr/*/*/0/done/c/0"))
    done.write_bytes(HARM[harm](done.read_bytes()))
    assert store.load(0) is None


@pytest.mark.parametrize("path", ["numbers.zarr"], indirect=True)
@pytest.mark.parametrize("left", ["shards", "arrays", "check"])
def test_a_data_set_that_says_an_older_format_than_it_has_is_refused(path, left):
    """Else a shard in the place of another would not be noticed."""

    def relabelled(facts):
        for name in {"shards", "arrays", "check"} - {left}:
            ours(facts).pop(name)
        ours(facts)["format"] = 1

    edit(path / "zarr.json", relabelled)
    with pytest.raises(StructureError, match="is damaged"):
        open_dataset(path)


@pytest.mark.parametrize("path", ["numbers.zarr"], indirect=True)
@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_data_set_whose_metadata_are_damaged_can_be_replaced(path, text):
    (path / "zarr.json").write_text(text)
    with pytest.raises(StructureError, match="is damaged"):
        open_dataset(path)
    assert is_dataset(path)
    (path / "letter.txt").write_text("dear")  # then it is more than a data set
    assert not is_dataset(path)
    (path / "letter.txt").unlink()
    schema = Schema({"a": (0.0, 1.0)}, classes=[0, 1])
    rows, labels = np.zeros((10, 1)), np.zeros(10, np.int64)
    write_dataset(path, rows, labels, schema=schema, columns="position", overwrite=True)
    assert open_dataset(path).schema == schema


@pytest.mark.parametrize("turned", [False, True])
def test_a_groups_arrays_have_one_order_however_a_store_lists_them(tmp_path, monkeypatch, turned):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    for name in ("b", "c", "a"):
        group.create_array(name, data=np.zeros(3))
    listed = sorted(group.arrays(), reverse=turned)
    monkeypatch.setattr(zarr.Group, "arrays", lambda _: iter(listed))
    assert list(arrays_of(group)) == names_of(group) == ["a", "b", "c"]
    assert list(Schema.draft(group)["features"]) == ["a", "b", "c"]


def test_a_group_that_zarr_cannot_list_is_one_clear_error(tmp_path, capsys):
    """As one with an array of pickled objects, of which an ignored column may be one."""
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=2)
    for name in ("a", "notes"):
        group.create_array(name, data=np.arange(40.0))
    place = tmp_path / "g.zarr" / "notes" / ".zarray"
    facts = json.loads(place.read_text()) | {"dtype": "|O", "filters": [{"id": "pickle"}]}
    place.write_text(json.dumps(facts))
    schema = Schema({"a": (0, 40)}, classes=[0, 1], target="y", ignore=["notes"])
    schema.save(tmp_path / "s.json")
    clf = DPGBClassifier(schema=schema, epsilon=1.0, delta=1e-6)
    with pytest.raises(StructureError, match=r"cannot be listed \(ValueError\)"):
        clf.fit(zarr.open_group(tmp_path / "g.zarr", mode="r"), np.zeros(40))
    with pytest.raises(StructureError, match="cannot be listed"):
        schema.check(zarr.open_group(tmp_path / "g.zarr", mode="r"), np.zeros(40))
    assert run("check", tmp_path / "g.zarr", "--schema", tmp_path / "s.json") == 1
    assert "cannot be listed" in capsys.readouterr().err


def test_a_group_is_listed_in_one_place():
    package = Path(dpgb_dask.__file__).parent
    files = [path for path in package.rglob("*.py") if ".arrays()" in path.read_text()]
    assert [path.name for path in files if "layout.arrays()" not in path.read_text()] == [
        "zarr_arrays.py"
    ]
