"""Privacy units: all rows of one weigh at most K together, however they are spread over chunks."""

import numpy as np
import pandas as pd
import pytest
from private.cases import ALL, KEY, model_of, opened, queries_of, rows_of, schema_of, unit_shape

from dpgb_dask.contracts.plan import Execution
from dpgb_dask.errors import PlanError, SchemaError
from dpgb_dask.private import ingest
from dpgb_dask.private.ingest import read_source
from dpgb_dask.private.quantize import sensitivity
from dpgb_dask.private.rounds import open_rounds
from dpgb_dask.private.units import add_unit_counts, count_units, hash_units

K, BITS = 2, 4


def answers(kind, table, y, name, model=None):
    shape = unit_shape(schema_of(kind), K, BITS)
    source = read_source(table, y, None, shape.schema, "person")
    rounds = open_rounds(source, shape, Execution(n_threads=1), KEY)
    try:
        return opened(rounds.ask(model or model_of(kind), queries_of(kind, BITS)[name]))
    finally:
        rounds.close()


def table_of(kind, n=300):
    x, y, _ = rows_of(kind, n)
    return x.assign(person=np.arange(n) % 77), y


def test_weights_divide_the_bound_of_a_unit():
    column = np.repeat([1, 2, 3, 5], [1, 2, 3, 5])
    shape = unit_shape(schema_of("binary"), K, BITS)
    counts = count_units(column, KEY)
    weights = counts.weights(hash_units(column, KEY), shape)
    assert weights.tolist() == [16] + [16] * 2 + [10] * 3 + [6] * 5


@pytest.mark.parametrize("rows_per_chunk", [1, 7, 300])
def test_rows_of_a_unit_are_counted_over_all_chunks(rows_per_chunk, monkeypatch):
    table, y = table_of("binary")
    expected = answers("binary", table, y, "main")
    monkeypatch.setattr(ingest, "CHUNK_ROWS", rows_per_chunk)
    np.testing.assert_array_equal(answers("binary", table, y, "main"), expected)


@pytest.mark.parametrize("n_rows", [1, 2, 3, 40])
@pytest.mark.parametrize(("kind", "name"), [(k, q) for k, q in ALL if k != "multiclass"])
def test_a_whole_unit_stays_within_the_sensitivity(kind, name, n_rows):
    bound = sensitivity(queries_of(kind, BITS)[name], unit_shape(schema_of(kind), K, BITS))
    table, y = table_of(kind)
    more = pd.concat([table.iloc[[4]].assign(person="new")] * n_rows)
    model = model_of(kind)
    before = answers(kind, table, y, name, model)
    worst = 0
    for target in (-1.0, 0.0, 1.0, 3.0):
        after = answers(
            kind, pd.concat([table, more]), np.append(y, [target] * n_rows), name, model
        )
        worst = max(worst, sum(int(d) ** 2 for d in after - before))
    assert worst <= bound.l2_squared
    if name in ("count", "fine") and n_rows == 2:
        assert worst == bound.l2_squared


def test_values_name_the_same_unit_in_any_type():
    columns = [
        np.array([5, 6]),
        np.array([5.0, 6.0]),
        pd.Series([5, 6], dtype="Int64"),
        pd.Series([5, 6.0], dtype=object),
        pd.Categorical([5, 6]).astype("category"),
    ]
    hashes = [hash_units(pd.Series(column), KEY).tolist() for column in columns]
    assert all(h == hashes[0] for h in hashes)
    assert len(set(hashes[0])) == 2
    assert hash_units(np.array([5]), bytes(32)).tolist() != hashes[0][:1]


def test_every_value_names_a_unit():
    values = np.array([None, np.nan, pd.NA, "a", b"a", 1, 0.5, [1], np.inf, pd.NaT], object)
    first = hash_units(values, KEY)
    assert first[0] == first[1] == first[2] == first[9]
    assert first[3] == first[4]
    assert len(np.unique(first)) == 6
    np.testing.assert_array_equal(first[3:7], hash_units(values[3:7], KEY))


def test_counts_add_up():
    column = np.arange(100) % 7
    parts = [count_units(column[k : k + 9], KEY) for k in range(0, 100, 9)]
    total, whole = add_unit_counts(parts), count_units(column, KEY)
    np.testing.assert_array_equal(total.units, whole.units)
    np.testing.assert_array_equal(total.rows, whole.rows)


def test_structure_of_units_is_checked():
    table, y = table_of("binary")
    schema = unit_shape(schema_of("binary"), K, BITS).schema
    with pytest.raises(SchemaError, match="is not the schema's"):
        read_source(table, y, None, schema, "a")
    with pytest.raises(SchemaError, match="not a column of X"):
        read_source(table.drop(columns="person"), y, None, schema, "person")
    with pytest.raises(SchemaError, match="not a column of X"):
        read_source(table.to_numpy(), y, None, schema, "person")
    with pytest.raises(PlanError, match="sample_weight together"):
        read_source(table, y, y, schema, "person")
