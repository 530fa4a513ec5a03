"""Scores against a row-by-row oracle, and outputs that follow their inputs."""

import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from dask._task_spec import Task
from dask.utils import key_split
from helpers import raw_scores
from pyarrow import parquet as pq

from dpgb_dask.errors import SchemaError, StructureError
from dpgb_dask.released import predict
from dpgb_dask.released.predict import RowFunction, apply, scorer


def code_of(value, feature_bins, categories=None):
    """Bin of one value, in the dullest Python."""
    if categories is not None:
        if value is None or value != value:
            return feature_bins.cell_to_bin[-1]
        cell = categories.index(value) if value in categories else len(categories)
        return feature_bins.cell_to_bin[cell]
    return (
        feature_bins.missing_bin
        if value != value
        else sum(edge < value for edge in feature_bins.edges)
    )


def score_of(model, schema, row):
    """Score columns of one row, in the dullest Python."""
    codes = [
        code_of(value, b, list(getattr(f, "categories", ())) or None)
        for value, b, f in zip(row, model.bins, schema.features.values(), strict=True)
    ]
    out = [int(s) for s in model.intercept]
    for k in range(len(out)):
        out[k] += sum(int(t[c, k]) for t, c in zip(model.tables, codes, strict=True))
    for p in model.pairs:
        for k in range(len(out)):
            out[k] += int(p.table[k, p.map_i[codes[p.i]], p.map_j[codes[p.j]]])
    splits = model.trees.splits
    for t, (feature, threshold, mask_of) in enumerate(
        zip(splits.feature, splits.threshold, splits.mask_of, strict=True)
    ):
        node = 0
        for _ in range(splits.depth):
            code = codes[feature[node]]
            right = code > threshold[node]
            if mask_of[node] >= 0:
                right = splits.masks[mask_of[node], code] == 1
            node = 2 * node + 1 + int(right)
        for k in range(len(out)):
            out[k] += int(model.trees.value[k, t, node - len(feature)])
    return out


@pytest.fixture
def expected(model, binary_schema, rows):
    return np.array([score_of(model, binary_schema, row) for row in rows.itertuples(index=False)])


def test_scores_agree_with_the_oracle(model, binary_schema, rows, expected):
    np.testing.assert_array_equal(raw_scores(model, binary_schema, rows), expected)


def test_scores_have_one_column_per_class(three_score_model, binary_schema, rows):
    got = raw_scores(three_score_model, binary_schema, rows[:50])
    want = [
        score_of(three_score_model, binary_schema, row) for row in rows[:50].itertuples(index=False)
    ]
    np.testing.assert_array_equal(got, want)


def test_blocks_do_not_change_scores(model, binary_schema, rows, expected, monkeypatch):
    monkeypatch.setattr("dpgb_dask.released.predict.BLOCK_ROWS", 97)
    np.testing.assert_array_equal(raw_scores(model, binary_schema, rows), expected)


def first_column(model):
    score = scorer(model)
    return lambda codes: score(codes)[:, 0]


def test_dask_frame_keeps_index_and_divisions(model, binary_schema, rows, expected):
    frame = dd.from_pandas(rows.set_index(np.arange(len(rows)) * 2), npartitions=4)
    function = RowFunction(model, binary_schema, first_column)
    one = apply(function, frame, np.dtype(np.int32))
    assert isinstance(one, dd.Series)
    assert one.name == "prediction"
    assert one.divisions == frame.divisions
    np.testing.assert_array_equal(one.compute(), expected[:, 0])
    assert list(one.compute().index) == list(frame.index.compute())
    many = raw_scores(model, binary_schema, frame)
    assert isinstance(many, dd.DataFrame)
    assert many.divisions == frame.divisions
    np.testing.assert_array_equal(many.compute().to_numpy(), expected)


@pytest.fixture
def numeric(rows):
    """Rows as numbers; the categories become 0, 1, 2."""
    table = rows.assign(color=rows["color"].map({"blue": 0, "green": 1, "red": 2}))
    return table.to_numpy(np.float64)


@pytest.fixture
def numeric_schema(binary_schema):
    data = binary_schema.to_dict()
    data["features"]["color"]["categories"] = [0, 1, 2]
    return type(binary_schema).from_dict(data)


def test_dask_array_keeps_chunks_and_is_lazy(model, numeric_schema, numeric):
    lazy = da.from_array(numeric, chunks=(400, 3))
    want = raw_scores(model, numeric_schema, numeric)
    got = raw_scores(model, numeric_schema, lazy)
    assert got.chunks == ((400, 400, 400, 300), (1,))
    np.testing.assert_array_equal(got.compute(scheduler="sync"), want)
    function = RowFunction(model, numeric_schema, first_column)
    one = apply(function, lazy, np.dtype(np.int32))
    assert one.chunks == ((400, 400, 400, 300),)
    np.testing.assert_array_equal(one.compute(scheduler="sync"), want[:, 0])


def test_unknown_chunks_stay_unknown(model, numeric_schema, numeric):
    lazy = da.from_array(numeric, chunks=(400, 4))
    lazy = lazy[lazy[:, 2] > 45]
    want = raw_scores(model, numeric_schema, numeric[numeric[:, 2] > 45])
    got = raw_scores(model, numeric_schema, lazy)
    assert np.isnan(got.chunks[0][0])
    np.testing.assert_array_equal(got.compute(scheduler="sync"), want)


def test_empty_partitions_and_no_rows_work(model, binary_schema, numeric_schema, rows, numeric):
    assert raw_scores(model, binary_schema, rows[:0]).shape == (0, 1)
    assert raw_scores(model, numeric_schema, numeric[:0]).shape == (0, 1)
    frame = dd.concat(
        [dd.from_pandas(rows[:0], npartitions=1), dd.from_pandas(rows, npartitions=2)]
    )
    assert len(raw_scores(model, binary_schema, frame).compute()) == len(rows)


@pytest.mark.parametrize("chunks", [None, 500])
def test_dataarray_gives_a_dataarray(model, numeric_schema, numeric, chunks):
    array = xr.DataArray(
        numeric,
        dims=("person", "column"),
        coords={"person": np.arange(len(numeric)) * 3, "column": list(numeric_schema.names)},
    )
    array = array if chunks is None else array.chunk(person=chunks)
    function = RowFunction(model, numeric_schema, first_column)
    got = apply(function, array, np.dtype(np.int32))
    assert isinstance(got, xr.DataArray)
    assert got.dims == ("person",)
    assert (got.chunks is not None) == (chunks is not None)
    np.testing.assert_array_equal(got.coords["person"], array.coords["person"])
    np.testing.assert_array_equal(got, raw_scores(model, numeric_schema, numeric)[:, 0])
    with pytest.raises(SchemaError, match="order"):
        apply(function, array[:, ::-1], np.dtype(np.int32))


@pytest.mark.parametrize("chunks", [None, 500])
def test_dataset_gives_a_dataarray(model, binary_schema, rows, expected, chunks):
    data = xr.Dataset(
        {name: ("person", rows[name].to_numpy(object)) for name in ("color", "age", "z", "x")}
    )
    data = data.assign({n: data[n].astype(float) for n in ("age", "z", "x")})
    data = data if chunks is None else data.chunk(person=chunks)
    got = apply(RowFunction(model, binary_schema, first_column), data, np.dtype(np.int32))
    assert got.dims == ("person",)
    np.testing.assert_array_equal(got.compute(scheduler="sync"), expected[:, 0])


@pytest.mark.parametrize("lazy", [False, True])
def test_types_of_pandas_are_read_in_a_dataset(model, binary_schema, rows, expected, lazy):
    own = rows.astype({"color": "category", "age": "Int64", "z": "double[pyarrow]"})
    data = own.rename_axis("person").to_xarray()
    data = data.assign(x=data.x.chunk(person=100)) if lazy else data
    got = apply(RowFunction(model, binary_schema, first_column), data, np.dtype(np.int32))
    np.testing.assert_array_equal(got.compute(scheduler="sync"), expected[:, 0])


@pytest.mark.parametrize("lazy", [(), ("x",), ("color",)])
def test_objects_in_a_dataset_are_read_each_by_itself(model, binary_schema, rows, lazy):
    """Pandas would make text of a column of texts, and raise on one that is no UTF-8."""
    columns = {name: rows[name].to_numpy(object) for name in rows}
    odd = np.arange(len(rows)) % 3 == 0
    columns["color"] = np.where(odd, "\ud800", "red")
    data = xr.Dataset({name: ("row", column) for name, column in columns.items()})
    data = data.assign({name: data[name].chunk(row=100) for name in lazy})
    got = apply(RowFunction(model, binary_schema, first_column), data, np.dtype(np.int32))
    other = rows.assign(color=np.where(odd, "other", "red"))
    want = raw_scores(model, binary_schema, other)[:, 0]
    np.testing.assert_array_equal(got.compute(scheduler="sync"), want)


def test_rows_along_the_dimension_of_the_output_are_refused(model, numeric_schema, numeric):
    names = list(numeric_schema.names)
    array = xr.DataArray(numeric, dims=("class", "column"), coords={"column": names})
    for data in (array, array.to_dataset("column"), array.chunk({"class": 50})):
        function = RowFunction(model, numeric_schema, two_columns)
        with pytest.raises(StructureError, match=r"data\.rename\({'class': 'row'}\)"):
            apply(function, data, np.dtype(np.float64), (0, 1))
        one = apply(RowFunction(model, numeric_schema, first_column), data, np.dtype(np.int32))
        assert one.dims == ("class",)
        renamed = data.rename({"class": "row"})
        assert apply(function, renamed, np.dtype(np.float64), (0, 1)).dims == ("row", "class")


def test_arrays_of_a_group_with_other_numbers_of_rows_are_refused(model, numeric_schema, numeric):
    group = zarr.create_group(zarr.storage.MemoryStore())
    for k, name in enumerate(numeric_schema.names):
        group.create_array(name, data=numeric[: len(numeric) - (k == 2), k].copy(), chunks=(100,))
    with pytest.raises(StructureError, match="different numbers of rows") as caught:
        raw_scores(model, numeric_schema, group)
    assert not any(letter.isdecimal() for letter in str(caught.value))


def test_zarr_is_read_lazily(model, numeric_schema, numeric, tmp_path):
    store = zarr.create_array(tmp_path / "a.zarr", shape=numeric.shape, chunks=(300, 4), dtype="f8")
    store[:] = numeric
    got = raw_scores(model, numeric_schema, store)
    assert isinstance(got, da.Array)
    np.testing.assert_array_equal(
        got.compute(scheduler="sync"), raw_scores(model, numeric_schema, numeric)
    )


def test_zarr_group_of_columns_is_read_lazily(model, numeric_schema, numeric, tmp_path):
    group = zarr.create_group(tmp_path / "g.zarr")
    for k in (3, 1, 0, 2):
        group.create_array(numeric_schema.names[k], data=numeric[:, k].copy(), chunks=(300 + k,))
    want = raw_scores(model, numeric_schema, numeric)
    got = raw_scores(model, numeric_schema, group)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.compute(scheduler="sync"), want)
    one = apply(RowFunction(model, numeric_schema, first_column), group, np.dtype(np.int32))
    np.testing.assert_array_equal(one.compute(scheduler="sync"), want[:, 0])


def test_structure_is_checked_before_rows(model, binary_schema, rows):
    with pytest.raises(SchemaError, match="order"):
        raw_scores(model, binary_schema, rows[rows.columns[::-1]])
    with pytest.raises(SchemaError, match="missing"):
        raw_scores(model, binary_schema, dd.from_pandas(rows.drop(columns="age"), npartitions=2))
    with pytest.raises(StructureError):
        raw_scores(model, binary_schema, np.zeros((3, 5)))
    with pytest.raises(StructureError, match=r"two dimensions.*one row, X\.reshape\(1, -1\)"):
        raw_scores(model, binary_schema, np.zeros(4))
    with pytest.raises(StructureError, match=r"two dimensions.*one row, X\.reshape\(1, -1\)"):
        raw_scores(model, binary_schema, da.zeros(4))


def test_other_columns_may_be_present(model, rows, expected, binary_schema):
    data = binary_schema.to_dict() | {"ignore": ["id"]}
    schema = type(binary_schema).from_dict(data)
    wide = pd.concat(
        [pd.Series(0, rows.index, name="id"), rows, pd.Series(1, rows.index, name="target")], axis=1
    )
    np.testing.assert_array_equal(raw_scores(model, schema, wide), expected)


def with_other_columns(schema, rows):
    """A schema that ignores two columns, and rows that have these and the target."""
    schema = type(schema).from_dict(schema.to_dict() | {"ignore": ["id", "note"]})
    wide = rows.assign(note="long and private", target=1)
    wide.insert(0, "id", 0)
    return schema, wide


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("lazily", ["from_pandas", "from_map", "assign"])
def test_partitions_hold_the_features_alone(
    model, binary_schema, rows, expected, monkeypatch, twice, lazily
):
    schema, wide = with_other_columns(binary_schema, rows)
    wide = pd.concat([wide, wide["note"]], axis=1) if twice else wide
    if lazily == "from_map":
        parts = [wide[:700], wide[700:]]
        frame = dd.from_map(lambda k: parts[k], [0, 1], meta=wide[:0])
    else:
        frame = dd.from_pandas(wide, npartitions=2)
    if lazily == "assign":
        frame = frame.map_partitions(lambda part: part, meta=wide[:0])
    seen = []

    def spy(part, *given):
        seen.append(list(part.columns))
        return on_partition(part, *given)

    on_partition = predict._on_partition
    monkeypatch.setattr(predict, "_on_partition", spy)
    got = raw_scores(model, schema, frame).compute(scheduler="sync")
    np.testing.assert_array_equal(got, expected)
    assert seen == [list(schema.names)] * 2


def test_ignored_columns_of_files_are_not_read(model, binary_schema, rows, expected, tmp_path):
    schema, wide = with_other_columns(binary_schema, rows)
    path = tmp_path / "rows.parquet"
    wide.to_parquet(path, index=False)
    group = pq.read_metadata(path).row_group(0)
    with path.open("r+b") as file:
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema not in schema.names:
                file.seek(column.dictionary_page_offset or column.data_page_offset)
                file.write(b"\xff" * column.total_compressed_size)
    frame = dd.read_parquet(path)
    with pytest.raises(OSError, match="Deserializing page header failed"):
        frame.compute(scheduler="sync")
    got = raw_scores(model, schema, frame).compute(scheduler="sync")
    np.testing.assert_array_equal(got, expected)


def test_row_functions_travel_to_workers(model, binary_schema, rows, expected):
    function = pickle.loads(pickle.dumps(RowFunction(model, binary_schema, scorer)))
    np.testing.assert_array_equal(function(rows), expected)


def test_lists_are_read_value_by_value(model, binary_schema, rows, expected):
    table = rows[:9].astype(object).to_numpy().tolist()
    np.testing.assert_array_equal(raw_scores(model, binary_schema, table), expected[:9])


@pytest.mark.parametrize("lazy", [False, True])
def test_masked_values_are_missing(model, numeric_schema, numeric, lazy):
    mask = np.random.default_rng(0).random(numeric.shape) < 0.3
    want = raw_scores(model, numeric_schema, np.where(mask, np.nan, numeric))
    masked = np.ma.masked_array(numeric, mask)
    got = raw_scores(model, numeric_schema, da.from_array(masked, chunks=97) if lazy else masked)
    assert (want != raw_scores(model, numeric_schema, numeric)).any()
    np.testing.assert_array_equal(np.asarray(got), want)


def task_names(collection):
    """Names of a collection's tasks, as the dashboard groups them, once Dask has optimised it."""
    (optimised,) = dask.optimize(collection)
    return {key_split(key) for key in optimised.__dask_graph__()}


@pytest.fixture
def predictions(model, numeric_schema, numeric, rows, binary_schema, tmp_path):
    """A function that makes lazy predictions of every kind of rows, anew with each call."""

    def score(X, schema, columns=None):
        prepare = two_columns if columns else scorer_of_one
        return apply(RowFunction(model, schema, prepare), X, np.dtype(np.float64), columns)

    array = da.from_array(numeric, chunks=(50, -1))
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    for j, name in enumerate(numeric_schema.names):
        group[name] = numeric[:, j]
    people = xr.Dataset({name: ("row", rows[name].to_numpy()) for name in rows}).chunk(row=50)
    frame = dd.from_pandas(rows, npartitions=2)
    return lambda: [
        score(array, numeric_schema),
        score(array, numeric_schema, (0, 1)),
        score(group, numeric_schema),
        score(frame, binary_schema),
        score(frame, binary_schema, (0, 1)),
        score(people, binary_schema).data,
    ]


def name_of(lazy):
    return lazy.name if isinstance(lazy, da.Array) else lazy._name


def test_tasks_and_arrays_have_short_names(predictions):
    for lazy in predictions():
        assert name_of(lazy).startswith("dpgb-predict-")
        assert len(name_of(lazy)) < 60
        assert any("dpgb-predict" in task for task in task_names(lazy)), task_names(lazy)


def test_the_model_is_one_key_and_in_no_other_task(predictions):
    """On a cluster each task travels by itself: one that held the model would bring a copy of it."""
    for lazy in predictions():
        graph = dask.optimize(lazy)[0].__dask_graph__()
        holders = [key for key, node in graph.items() if b"RowFunction" in pickle.dumps(node)]
        assert [key_split(key) for key in holders] == ["dpgb-model"]


def test_predictions_made_twice_or_pickled_have_the_same_tasks(predictions):
    for one, other in zip(predictions(), predictions(), strict=True):
        assert name_of(one) == name_of(other) == name_of(pickle.loads(pickle.dumps(one)))
        got, want = dask.compute(pickle.loads(pickle.dumps(one)), other, scheduler="sync")
        np.testing.assert_array_equal(got, want)


def test_predictions_of_an_array_are_one_task_for_each_chunk(model, numeric_schema):
    rows = da.ones((400, 4), chunks=(50, 4))
    of_one = apply(RowFunction(model, numeric_schema, scorer_of_one), rows, np.dtype(np.float64))
    for lazy in (of_one, raw_scores(model, numeric_schema, rows)):
        tasks = dask.optimize(lazy)[0].__dask_graph__().values()
        assert sum(isinstance(node, Task) for node in tasks) == 8


def test_columns_of_a_frame_are_text_and_go_to_parquet(model, binary_schema, rows, tmp_path):
    function = RowFunction(model, binary_schema, two_columns)
    frame = dd.from_pandas(rows, npartitions=2)
    out = apply(function, frame, np.dtype(np.float64), (0, True))
    assert list(out.columns) == ["0", "True"]
    out.to_parquet(tmp_path / "p.parquet", write_index=False)
    read = pd.read_parquet(tmp_path / "p.parquet")
    np.testing.assert_array_equal(
        read.to_numpy(), apply(function, rows, np.dtype(np.float64), (0, True))
    )


def scorer_of_one(model):
    score = scorer(model)
    return lambda codes: score(codes)[:, 0].astype(np.float64)


def two_columns(model):
    score = scorer(model)
    return lambda codes: np.repeat(score(codes).astype(np.float64), 2, axis=1)
