"""The same sums, bit for bit, for every kind of input, chunking and number of threads."""

import logging
from dataclasses import replace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from private.cases import (
    ALL,
    KEY,
    KINDS,
    ROWS_KEY,
    model_of,
    opened,
    queries_of,
    rows_of,
    shape_of,
)
from thinned import thinned

from dpgb_dask import DPGBClassifier, Ledger
from dpgb_dask.contracts.grid import Grid
from dpgb_dask.contracts.model import FeatureBins, Splits, TreeEnsemble
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.codes import cells_of, encode_target, encode_weight, read_values
from dpgb_dask.errors import ChunkError, PlanError, StructureError
from dpgb_dask.private.reading import ingest
from dpgb_dask.private.reading.chunks import Reading
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.rows import failed_to_load
from dpgb_dask.private.rounds import check_backend, open_rounds
from dpgb_dask.private.rounds.local import LocalRounds

WEIGHT = {"max_weight": 3, "weight_bits": 2}
N = 3000


def answers(source, kind, execution=None, key=KEY):
    """Return the sums of every query, and the fingerprint."""
    execution = execution or Execution(n_threads=2, block_rows=512)
    rounds = open_rounds(source, shape_of(kind, **WEIGHT), execution, key, ROWS_KEY)
    try:
        model = model_of(kind)
        sums = {name: opened(rounds.ask(model, q)) for name, q in queries_of(kind, 2).items()}
        sums["fingerprint"] = np.array(
            [rounds.fingerprint() >> 64 * k & 2**64 - 1 for k in range(4)]
        )
        return sums
    finally:
        rounds.close()


def check_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.fixture(scope="module")
def expected():
    schema = shape_of("binary").schema
    return answers(read_source(*rows_of("binary"), schema), "binary", Execution(n_threads=1))


def uneven(n_chunks):
    """Row chunks of different sizes, one of them of a single row."""
    cuts = np.linspace(0, N, n_chunks + 1).astype(int)
    if n_chunks > 2:
        cuts[1] = 1
    return tuple(np.diff(cuts).tolist())


def unknown(array):
    """The same array with unknown chunk sizes."""
    chunks = (tuple(np.nan for _ in array.chunks[0]), *array.chunks[1:])
    return da.Array(array.dask, array.name, chunks, dtype=array.dtype)


def as_kind(name, tmp_path):
    """X, y and weight of the binary case, as the named kind of input."""
    x, y, w = rows_of("binary")
    matrix = x.to_numpy()
    kind, _, n = name.partition("-")
    n = int(n or 1)
    rows = uneven(n)
    if kind == "numpy":
        return matrix, y, w
    if kind == "lists":
        return matrix, y.tolist(), w.tolist()
    if kind == "column":
        return matrix, y[:, None], pd.DataFrame(w)
    if kind == "pandas":
        return x.assign(target=y), pd.Series(y), pd.Series(w)
    if kind == "nullable":
        return x.convert_dtypes(), pd.Series(y).astype("Float64"), pd.Series(w)
    if kind == "dask":
        return (
            da.from_array(matrix, chunks=(rows, 2)),
            da.from_array(y, chunks=rows),
            da.from_array(w, chunks=rows),
        )
    if kind == "mixed":
        return da.from_array(matrix, chunks=(rows, 3)), y, da.from_array(w, chunks=700)
    if kind == "unknown":
        arrays = [da.from_array(matrix, chunks=(rows, 2))]
        arrays += [da.from_array(part, chunks=rows) for part in (y, w)]
        return tuple(unknown(array) for array in arrays)
    if kind == "frame":
        table = dd.from_pandas(x.assign(target=y, w=w), npartitions=n)
        table = table[["a", "b", "c", "target", "w"]]
        return table.drop(columns="w"), table["target"], table["w"]
    if kind == "empty":
        whole = x.assign(target=y, w=w)
        parts = [whole.iloc[:0], whole.iloc[:1700], whole.iloc[:0], whole.iloc[1700:]]
        table = dd.from_map(lambda k: parts[k], range(4), meta=whole.iloc[:0])
        return table[["a", "b", "c"]], table["target"], table["w"].to_dask_array()
    if kind == "parquet":
        x.assign(target=y, w=w).to_parquet(tmp_path / "t.parquet", row_group_size=700)
        table = dd.read_parquet(tmp_path / "t.parquet", split_row_groups=True)
        return table.drop(columns="w"), table["target"], table["w"]
    if kind == "values":
        table = dd.from_pandas(x.assign(target=y, w=w), npartitions=4)
        return table[["a", "b", "c"]].to_dask_array(), table["target"], table["w"]
    coords = {"column": ["a", "b", "c"]}
    if kind == "xarray":
        data = xr.DataArray(matrix, dims=("row", "column"), coords=coords)
        return data, xr.DataArray(y, dims="row"), xr.DataArray(w, dims="row")
    if kind == "xdask":
        data = xr.DataArray(matrix, dims=("row", "column"), coords=coords).chunk(row=800)
        return data, xr.DataArray(y, dims="row").chunk(row=800), w
    if kind == "dataset":
        columns = {name: ("row", x[name].to_numpy()) for name in ("c", "b", "a")}
        data = xr.Dataset({**columns, "target": ("row", y)})
        data = data if n == 1 else data.chunk(row=900)
        return data, data["target"], w
    if kind == "zarr":
        array = zarr.create_array(
            tmp_path / "x.zarr", data=matrix, chunks=(500, 2), shards=(1000, 4)
        )
        return array, zarr.create_array(tmp_path / "y.zarr", data=y, chunks=(400,)), w
    group = zarr.create_group(tmp_path / "g.zarr")
    for k, column in enumerate(x):
        group.create_array(column, data=x[column].to_numpy(), chunks=(300 + 100 * k,))
    group.create_array("target", data=y, chunks=(1000,))
    return group, group["target"], w


INPUTS = [
    "numpy",
    "lists",
    "column",
    "pandas",
    "nullable",
    "dask-1",
    "dask-7",
    "dask-50",
    "mixed-7",
    "unknown-7",
    "frame-1",
    "frame-6",
    "empty",
    "parquet",
    "values",
    "xarray",
    "xdask",
    "dataset-1",
    "dataset-4",
    "zarr",
    "group",
]


@pytest.mark.parametrize("name", thinned(INPUTS, every=2))
def test_sums_are_the_same_for_every_kind_of_input(name, expected, tmp_path):
    schema = shape_of("binary").schema
    source = read_source(*as_kind(name, tmp_path), schema)
    check_same(answers(source, "binary"), expected)


def test_threads_are_those_that_a_container_is_granted(monkeypatch, tmp_path):
    """Kubernetes grants CPU by a quota; a process there sees all cores of its node."""
    monkeypatch.setattr(dask.system, "_try_extract_cgroup_cpu_quota", lambda: (90_000, 100_000))
    source = read_source(*as_kind("numpy", tmp_path), shape_of("binary").schema)
    assert check_backend(source, Execution()).n_threads == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_threads", "block_rows"), [(1, 100), (3, 4096)])
def test_sums_are_the_same_for_any_execution(kind, n_threads, block_rows, monkeypatch):
    rows, schema = rows_of(kind), shape_of(kind).schema
    one = answers(read_source(*rows, schema), kind, Execution(n_threads=1))
    monkeypatch.setattr(ingest, "CHUNK_ROWS", 700)
    many = Execution(n_threads=n_threads, block_rows=block_rows)
    check_same(answers(read_source(*rows, schema), kind, many), one)


def test_rows_in_another_order_give_the_same_sums(expected):
    x, y, w = rows_of("binary")
    order = np.random.default_rng(0).permutation(N)
    moved = read_source(x.iloc[order], y[order], w[order], shape_of("binary").schema)
    sums = answers(moved, "binary")
    for name in ("part", "sample", "fingerprint"):  # rows are drawn by their position
        assert (sums.pop(name) != expected[name]).any()
    check_same(sums, {name: expected[name] for name in sums})
    shape = shape_of("binary", **WEIGHT)
    rounds = [
        open_rounds(source, shape, Execution(n_threads=1), KEY)
        for source in (moved, read_source(x, y, w, shape.schema))
    ]
    assert rounds[0].fingerprint() == rounds[1].fingerprint()
    for one in rounds:
        one.close()


@pytest.mark.parametrize("change", ["swap", "insert"])
def test_a_fingerprint_of_drawn_rows_sees_their_positions(change, expected):
    x, y, w = rows_of("binary")
    order = np.arange(N)
    order[[10, 2900]] = order[[2900, 10]]
    if change == "insert":  # a row of weight 0 shifts the others
        order = np.insert(np.arange(N), 100, 0)
        assert not w[0] > 0
    schema = shape_of("binary").schema
    sums = answers(read_source(x.iloc[order], y[order], w[order], schema), "binary")
    assert (sums["fingerprint"] != expected["fingerprint"]).any()
    np.testing.assert_array_equal(sums["main"], expected["main"])


def test_a_row_without_label_or_weight_changes_nothing(expected):
    x, y, w = rows_of("binary")
    more = pd.concat([x, x.iloc[:4]])
    y, w = np.append(y, [5.0, np.nan, 1.0, 0.0]), np.append(w, [1.0, 1.0, -2.0, np.nan])
    source = read_source(more, y, w, shape_of("binary").schema)
    check_same(answers(source, "binary"), expected)


def test_the_fingerprint_sees_every_value_and_the_key():
    x, y, _ = rows_of("binary")
    schema = shape_of("binary").schema

    def fingerprint(x, y, w=None, key=KEY):
        rounds = open_rounds(read_source(x, y, w, schema), shape_of("binary", 3), Execution(), key)
        try:
            return rounds.fingerprint()
        finally:
            rounds.close()

    row = np.flatnonzero(y == 1)[5]
    one = np.arange(N) == row
    first = fingerprint(x, y)
    seen = {first, fingerprint(x, y, key=bytes(32))}
    for j, value in enumerate([1.9, 19.0, 2.0]):
        changed = x.copy()
        changed.iloc[row, j] = value
        seen.add(fingerprint(changed, y))
    seen.add(fingerprint(x, np.where(one, 0.0, y)))
    seen.add(fingerprint(x, y, np.where(one, 2, 1)))
    seen.add(fingerprint(x[~one], y[~one]))
    assert len(seen) == 8
    assert fingerprint(x, y, np.ones(N)) == first


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_no_rows_give_zeros(kind, name):
    x, y, _ = rows_of(kind, 1)
    source = read_source(x[:0], y[:0], None, shape_of(kind).schema)
    rounds = open_rounds(source, shape_of(kind), Execution(), KEY, ROWS_KEY)
    assert not opened(rounds.ask(model_of(kind), queries_of(kind)[name])).any()
    rounds.close()


def test_a_query_for_scores_needs_a_model():
    rounds = open_rounds(
        read_source(*rows_of("binary")[:2], None, shape_of("binary").schema),
        shape_of("binary"),
        Execution(),
        KEY,
    )
    with pytest.raises(PlanError, match="release bins first"):
        rounds.ask(None, queries_of("binary")["main"])
    rounds.close()


def test_other_models_of_the_same_bins_encode_once():
    shape = shape_of("binary", **WEIGHT)
    rounds = LocalRounds(*local_parts(shape))
    query = queries_of("binary", 2)["main"]
    rounds.ask(model_of("binary"), query)
    first = rounds._shard
    rounds.ask(model_of("binary", 3), query)
    assert rounds._shard is first
    rounds.close()


def other_bins(model):
    """The model on bins half as fine, with the thresholds of its trees adapted."""
    first = model.bins[0]
    edges = first.edges[1::2]
    bins = (FeatureBins(edges, None, len(edges) + 2), *model.bins[1:])
    new = np.minimum(np.arange(first.n_bins) // 2, len(edges)).astype(np.uint8)
    new[-1] = bins[0].missing_bin
    s = model.trees.splits
    threshold = np.where(s.feature == 0, new[s.threshold], s.threshold)
    trees = TreeEnsemble(Splits(s.feature, threshold, s.mask_of, s.masks), model.trees.value)
    tables = (model.tables[0][: bins[0].n_bins], *model.tables[1:])
    return replace(model, bins=bins, tables=tables, pairs=(), trees=trees)


def test_other_bins_encode_anew_and_score_from_nothing():
    shape = shape_of("binary", **WEIGHT)
    first = model_of("binary")
    models = [first, other_bins(first), first]
    names = ("trees", "part")
    kept = open_rounds(local_parts(shape)[0], shape, Execution(n_threads=2), KEY, ROWS_KEY)
    for model in models:
        fresh = open_rounds(local_parts(shape)[0], shape, Execution(n_threads=2), KEY, ROWS_KEY)
        for name in names:
            query = queries_of("binary", 2)[name]
            got, expected = (opened(r.ask(model, query)) for r in (kept, fresh))
            np.testing.assert_array_equal(got, expected)
        fresh.close()
    kept.close()


def local_parts(shape):
    return (
        read_source(*rows_of("binary"), shape.schema),
        Reading(shape, KEY),
        Execution(n_threads=2),
    )


class PoisonError(Exception):
    """An error whose message holds a row's value."""


def poisoned(block, block_info=None):
    if block_info and block_info[0]["chunk-location"][0] == 2:
        raise PoisonError("secret-value-4711")
    return block


def poisoned_source():
    x, y, _ = rows_of("binary")
    bad = da.from_array(x.to_numpy(), chunks=(1000, 3)).map_blocks(
        poisoned, dtype=float, meta=np.empty((0, 0))
    )
    return read_source(bad, da.from_array(y, chunks=1000), None, shape_of("binary").schema)


def test_a_chunk_that_fails_to_load_is_named_without_its_values():
    rounds = open_rounds(poisoned_source(), shape_of("binary"), Execution(backend="local"), KEY)
    with pytest.raises(ChunkError) as caught:
        rounds.fingerprint()
    assert str(caught.value) == str(failed_to_load("PoisonError"))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    rounds.close()


def test_chunks_of_unequal_length_raise_without_lengths():
    x, y, _ = rows_of("binary")
    left = unknown(da.from_array(x.to_numpy(), chunks=((1000, 2000), 3)))
    right = unknown(da.from_array(y, chunks=((1001, 1999),)))
    source = read_source(left, right, None, shape_of("binary").schema)
    rounds = open_rounds(source, shape_of("binary"), Execution(), KEY)
    with pytest.raises(StructureError) as caught:
        rounds.fingerprint()
    assert not any(c.isdigit() for c in str(caught.value))
    rounds.close()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_target_and_cells_are_added_as_they_are(kind):
    shape = shape_of(kind, **WEIGHT)
    x, y, weight = rows_of(kind)
    label, valid = encode_target(y, shape.schema)
    steps = np.where(valid, encode_weight(weight, 3, 2), 0).astype(np.int64)
    if kind == "numeric":
        expected = [steps @ label.astype(np.int64)]
    else:
        expected = [steps[label == k].sum() for k in ((1,) if kind == "binary" else range(3))]
    source = read_source(x, y, weight, shape.schema)
    rounds = open_rounds(source, shape, Execution(backend="local", n_threads=2), KEY)
    asked = ("count", "target", "coarse", "fine")
    got = {name: opened(rounds.ask(None, queries_of(kind, 2)[name])) for name in asked}
    rounds.close()
    assert got["count"].tolist() == [steps.sum()]
    assert got["target"].tolist() == expected
    for name in ("coarse", "fine"):
        grid = Grid.of(shape.schema, queries_of(kind)[name].n_uniform)
        cells = cells_of(read_values(x, shape.schema), grid)
        counts = [np.bincount(c, steps, n) for c, n in zip(cells, grid.sizes, strict=True)]
        assert got[name].tolist() == np.concatenate(counts).tolist()


def test_counts_of_another_grid_or_target_are_refused():
    shape = shape_of("binary")
    source = read_source(*rows_of("binary"), shape.schema)
    rounds = open_rounds(source, shape, Execution(backend="local"), KEY)
    coarse, fine = queries_of("binary")["coarse"], queries_of("binary")["fine"]
    for sizes in (fine.sizes, coarse.sizes[::-1]):  # the latter are as many sums
        query = replace(coarse, sizes=sizes)
        with pytest.raises(PlanError, match="is not a grid of the schema"):
            rounds.ask(None, query)
    for kind in ("multiclass", "numeric"):
        with pytest.raises(PlanError, match="of another kind than the schema's target"):
            rounds.ask(None, queries_of(kind)["target"])
    rounds.close()


def test_nothing_is_computed_before_the_first_question():
    def explode(_block):
        raise AssertionError("computed")

    x = da.zeros((10, 3), chunks=5).map_blocks(explode, dtype=float, meta=np.empty((0, 0)))
    source = read_source(x, da.zeros(10, chunks=5), None, shape_of("binary").schema)
    open_rounds(source, shape_of("binary"), Execution(), KEY).close()


def test_reprs_and_logs_hold_no_count(caplog):
    with caplog.at_level(logging.DEBUG, logger="dpgb_dask"):
        source = read_source(*rows_of("binary"), shape_of("binary").schema)
        answers(source, "binary")
    assert str(N) not in repr(source) + caplog.text


def test_an_unknown_back_end_raises():
    source = read_source(*rows_of("binary"), shape_of("binary").schema)
    with pytest.raises(PlanError, match="backend='spark'"):
        open_rounds(source, shape_of("binary"), Execution(backend="spark"), KEY)
    for backend in ("tasks", "comms"):
        with pytest.raises(PlanError, match=f"'{backend}' needs a Dask client"):
            check_backend(source, Execution(backend=backend))
    with pytest.raises(PlanError, match="unknown"):
        check_backend(source, Execution(backend="threads"))
    with pytest.raises(PlanError, match="needs a Dask client"):
        open_rounds(source, shape_of("binary"), Execution(backend="tasks"), KEY)


def test_a_configured_scheduler_does_not_matter(expected):
    with dask.config.set(scheduler="processes"):
        source = read_source(*as_kind("dask-7", None), shape_of("binary").schema)
        check_same(answers(source, "binary"), expected)


def test_a_back_end_that_cannot_run_is_refused_before_any_charge(tmp_path):
    schema = Schema({"a": (0, 1)}, classes=[0, 1])
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("a", epsilon=3, delta=1e-6)
    model = DPGBClassifier(schema=schema, ledger=ledger, account="a", epsilon=1, delta=1e-6)
    with dask.config.set({"dpgb-dask.backend": "tasks"}), pytest.raises(PlanError, match="client"):
        model.fit(np.zeros((4, 1)), np.array([0, 1, 0, 1]))
    assert ledger.remaining("a") == 3


def test_labels_in_memory_may_be_objects_beside_a_dask_array():
    x, y, _ = rows_of("binary")
    lazy = da.from_array(x.to_numpy(), chunks=(1000, 3))
    source = read_source(lazy, y.astype(object), None, shape_of("binary").schema)
    plain = read_source(x.to_numpy(), y, None, shape_of("binary").schema)
    check_same(answers(source, "binary"), answers(plain, "binary"))
