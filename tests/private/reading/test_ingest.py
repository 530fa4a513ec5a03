"""Structure of the inputs: each mistake gives one clear error, before anything is computed."""

import os
import subprocess
import sys

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from private.cases import rows_of, schema_of

from dpgb_dask.encoding.codes import read_values
from dpgb_dask.errors import SchemaError, StructureError, UnsupportedCollectionError
from dpgb_dask.private.reading import ingest
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.shared_tasks import ChunkTasks, Pass

SCHEMA = schema_of("binary")
X, Y, W = rows_of("binary", 100)
MATRIX = X.to_numpy()


def frame_cases():
    return {
        "missing": (X[["a", "b"]], r"missing=\['c'\]"),
        "renamed": (
            X.rename(columns={"b": "B"}),
            r"missing=\['b'\], and the data have columns that",
        ),
        "reordered": (X[["b", "a", "c"]], "another order"),
        "extra": (X.assign(d=1), "the data have columns that the schema does not declare"),
    }


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", frame_cases())
def test_columns_that_do_not_match_raise(name, lazy):
    frame, match = frame_cases()[name]
    y = pd.Series(Y)
    if lazy:
        frame, y = dd.from_pandas(frame, npartitions=2), dd.from_pandas(y, npartitions=2)
    with pytest.raises(SchemaError, match=match):
        read_source(frame, y, None, SCHEMA)


def named(names, data=MATRIX):
    return xr.DataArray(data, dims=("row", "column"), coords={"column": names})


@pytest.mark.parametrize("names", [["a", "b", "d"], ["b", "a", "c"]])
def test_names_of_an_xarray_are_checked(names):
    with pytest.raises(SchemaError):
        read_source(named(names), Y, None, SCHEMA)


def test_declared_columns_that_are_no_features_are_dropped():
    data = named(["target", "a", "b", "c"], np.column_stack([Y, MATRIX]))
    (chunk,) = read_source(data, Y, None, SCHEMA).chunks
    np.testing.assert_array_equal(chunk.x, MATRIX)


def test_columns_of_a_dataset_or_group_are_checked(tmp_path):
    data = xr.Dataset({name: ("row", MATRIX[:, k]) for k, name in enumerate("abd")})
    with pytest.raises(SchemaError, match=r"missing=\['c'\]"):
        read_source(data, Y, None, SCHEMA)
    group = zarr.create_group(tmp_path / "g.zarr")
    group.create_array("a", data=MATRIX[:, 0])
    with pytest.raises(SchemaError, match=r"missing=\['b', 'c'\]"):
        read_source(group, Y, None, SCHEMA)


@pytest.mark.parametrize("lazy", [False, True])
def test_types_of_pandas_are_read_in_xarray(lazy):
    frame = X.astype({"a": "double[pyarrow]", "b": "Float64", "c": "category"})
    data = frame.to_xarray()
    data = data.assign(a=("index", da.from_array(X.a.to_numpy(), chunks=30))) if lazy else data
    y = xr.DataArray(pd.array(Y, "Int64"), dims="index")
    source = read_source(data, y, y, SCHEMA)
    assert source.lazy == lazy
    loaded = [Pass(ChunkTasks(source.chunks)).load(k) for k in range(len(source.chunks))]
    codes = np.concatenate(
        [read_values(rows.x, SCHEMA).column(j) for j in range(3) for rows in loaded]
    )
    want = [read_values(X, SCHEMA).column(j) for j in range(3)]
    np.testing.assert_array_equal(codes, np.concatenate(want))
    np.testing.assert_array_equal(np.concatenate([rows.y for rows in loaded]).astype(float), Y)


def test_loaded_columns_of_a_dataset_with_an_index_are_in_memory():
    source = read_source(X.to_xarray(), Y, None, SCHEMA)
    assert not source.lazy


@pytest.mark.parametrize(
    ("x", "y", "weight"),
    [
        (MATRIX, Y[:99], None),
        (MATRIX, Y, W[:99]),
        (X, pd.Series(Y[:99]), None),
        (da.from_array(MATRIX, chunks=(30, 3)), da.from_array(Y[:99], chunks=30), None),
        (da.from_array(MATRIX, chunks=(30, 3)), Y[:99], None),
        (dd.from_pandas(X, npartitions=2), dd.from_pandas(pd.Series(Y), npartitions=3), None),
        (dd.from_pandas(X, npartitions=2), da.from_array(Y, chunks=30), None),
        (dd.from_pandas(X, npartitions=2), Y, None),
        (dd.from_pandas(X, npartitions=2).to_dask_array(), da.from_array(Y, chunks=30), None),
        (dd.from_pandas(X, npartitions=2).to_dask_array(), Y, None),
        (X, da.from_array(Y, chunks=30), None),
    ],
)
def test_parts_that_do_not_line_up_raise_without_lengths(x, y, weight):
    with pytest.raises(StructureError) as caught:
        read_source(x, y, weight, SCHEMA)
    assert not any(c.isdigit() for c in str(caught.value))


@pytest.mark.parametrize(
    ("x", "y"), [(MATRIX[:, :2], Y), (Y, Y), (MATRIX, MATRIX), (MATRIX, X), (MATRIX[None], Y)]
)
def test_wrong_numbers_of_dimensions_or_columns_raise(x, y):
    with pytest.raises(StructureError):
        read_source(x, y, None, SCHEMA)


class ByPosition(pd.DataFrame):
    """Some versions of pandas cut `frame[slice]` by label, if the index is of floats."""

    @property
    def _constructor(self):
        return ByPosition

    def __getitem__(self, key):
        assert not isinstance(key, slice)
        return super().__getitem__(key)


@pytest.mark.parametrize(
    "index",
    [
        np.arange(100.0),
        np.arange(100.0) - 1000,
        np.full(100, 30.0),
        np.r_[np.arange(99.0), 1e6],
        np.r_[np.arange(99.0), np.nan],
        np.arange(100)[::-1],
        pd.date_range("2020", periods=100),
        [f"row {k % 7}" for k in range(100)],
    ],
    ids=lambda index: f"{index[0]} {index[-1]}",
)
def test_rows_are_cut_by_position_whatever_their_index(index, monkeypatch):
    """Cut by label, a row of two chunks counts twice, more than its sensitivity; others not at all."""
    monkeypatch.setattr(ingest, "CHUNK_ROWS", 30)
    frame = ByPosition(X.to_numpy(), index=index, columns=X.columns)
    y, weight = pd.Series(Y, index), pd.Series(W, index)
    source = read_source(frame, y, weight, SCHEMA)
    assert source.lengths == (30, 30, 30, 10)
    for k, wanted in enumerate((X, Y, W)):
        parts = [np.asarray((chunk.x, chunk.y, chunk.weight)[k]) for chunk in source.chunks]
        assert [len(part) for part in parts] == [30, 30, 30, 10]
        np.testing.assert_array_equal(np.concatenate(parts), wanted)


class Sparse:
    """Like scipy's sparse matrices: not an array, but can become one."""

    shape = (100, 3)

    def toarray(self):
        raise AssertionError("computed")


def test_sparse_and_unknown_inputs_raise():
    sparse = pytest.importorskip("scipy.sparse")
    for data in (Sparse(), sparse.csr_array(np.eye(3)), sparse.coo_matrix(np.eye(3))):
        with pytest.raises(UnsupportedCollectionError, match="toarray"):
            read_source(data, Y, None, SCHEMA)
    lazy = da.zeros((100, 3), chunks=50).map_blocks(sparse.csr_array, meta=sparse.csr_array((0, 0)))
    with pytest.raises(UnsupportedCollectionError, match="toarray"):
        read_source(lazy, Y, None, SCHEMA)
    with pytest.raises(UnsupportedCollectionError, match="X is a dict"):
        read_source({"a": 1}, Y, None, SCHEMA)


def test_array_query_planning_raises():
    with (
        dask.config.set({"array.query-planning": True}),
        pytest.raises(UnsupportedCollectionError, match="query planning"),
    ):
        read_source(MATRIX, Y, None, SCHEMA)


@pytest.mark.slow
def test_array_query_planning_of_a_whole_process_raises():
    """If it is on before the import, it makes collections of another kind, and cannot be switched off later."""
    program = """if True:
        import dask.array as da
        from dpgb_dask import DPGBClassifier, Schema, UnsupportedCollectionError
        assert da.ARRAY_EXPR_ENABLED
        model = DPGBClassifier(schema=Schema({"a": (0, 1), "b": (0, 1)}, classes=[0, 1]))
        try:
            model.fit(da.zeros((4, 2), chunks=2), da.zeros(4, chunks=2))
        except UnsupportedCollectionError as error:
            print(error)
    """
    environment = {**os.environ, "DASK_ARRAY__QUERY_PLANNING": "True"}
    run = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "DASK_ARRAY__QUERY_PLANNING=False" in run.stdout


@pytest.mark.parametrize("dtype", ["str", "category", "datetime64[s]", "complex", "S4"])
def test_no_type_raises(dtype):
    """One value may decide the type of a whole column, so each value is read by itself."""
    column = pd.Series(np.arange(100)).astype(dtype)
    for source in (
        read_source(X.assign(a=column), column, column, SCHEMA),
        read_source(np.stack([column] * 3, axis=1), np.asarray(column), np.asarray(column), SCHEMA),
    ):
        assert source.weighted


def test_object_values_are_not_looked_at():
    x = X.astype(object)
    x.iloc[3, 0] = "not a number"
    assert not read_source(x, Y, None, SCHEMA).lazy


def test_names_of_tasks_tell_nothing_of_the_rows():
    """Dask names an array in memory by a digest of its values, by which two fits to the same rows would be known."""
    lazy = da.from_array(MATRIX, chunks=50, name="rows")

    def names():
        parts = (part for chunk in read_source(lazy, Y, W, SCHEMA).chunks for part in chunk.parts())
        keys = {str(key) for part in parts if part is not None for key in part.__dask_graph__()}
        return {key for key in keys if "rows" not in key}

    assert names()
    assert not names() & names()


def test_lazy_and_weighted_are_known():
    assert read_source(da.from_array(MATRIX), Y, None, SCHEMA).lazy
    assert not read_source(MATRIX, Y, None, SCHEMA).weighted
    assert read_source(MATRIX, Y, W, SCHEMA).weighted
