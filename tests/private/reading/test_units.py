"""Privacy units: all rows of a unit together have weight at most K, however they are spread over chunks."""

import datetime
import decimal
import fractions
import uuid
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from odd_dates import UNITLESS
from private.cases import (
    ALL,
    KEY,
    ROWS_KEY,
    choice_of,
    model_of,
    opened,
    queries_of,
    rows_of,
    schema_of,
    shape_of,
    splits_of,
    unit_shape,
)
from thinned import thinned

from dpgb_dask.contracts.plan import Execution, weight_bits_for
from dpgb_dask.contracts.queries import RowDraw
from dpgb_dask.encoding.columns import exact_ids
from dpgb_dask.errors import PlanError, SchemaError
from dpgb_dask.private.reading import ingest
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.units import (
    HASH,
    NO_UNIT,
    UnitCounts,
    add_unit_counts,
    count_units,
    distinct_names,
    hash_units,
)
from dpgb_dask.private.rounds import open_rounds
from dpgb_dask.private.sensitivity import sensitivity
from dpgb_dask.values import ExactId

K = 2
BITS = weight_bits_for(K, of_units=True)
NAN = np.nan


def answers(kind, table, y, name, model=None):
    return ask(kind, table, y, queries_of(kind, BITS)[name], model)


def ask(kind, table, y, query, model=None):
    shape = unit_shape(schema_of(kind), K, BITS)
    source = read_source(table, y, None, shape.schema, "person")
    rounds = open_rounds(source, shape, Execution(n_threads=1), KEY, ROWS_KEY)
    try:
        return opened(rounds.ask(model or model_of(kind), query))
    finally:
        rounds.close()


def table_of(kind, n=300):
    x, y, _ = rows_of(kind, n)
    return x.assign(person=np.arange(n) % 77), y


def test_weights_divide_the_bound_of_a_unit():
    column = np.repeat([1, 2, 3, 5], [1, 2, 3, 5])
    shape = unit_shape(schema_of("binary"), 2, 4)
    counts = count_units(column, KEY)
    weights = counts.weights(hash_units(column, KEY), shape)
    assert weights.tolist() == [16] + [16] * 2 + [10] * 3 + [6] * 5


@pytest.mark.parametrize("rows_per_chunk", thinned([7, 1, 300], every=3))
def test_rows_of_a_unit_are_counted_over_all_chunks(rows_per_chunk, monkeypatch):
    table, y = table_of("binary")
    names = "main", "part", "sample"
    expected = [answers("binary", table, y, name) for name in names]
    monkeypatch.setattr(ingest, "CHUNK_ROWS", rows_per_chunk)
    for name, sums in zip(names, expected, strict=True):
        np.testing.assert_array_equal(answers("binary", table, y, name), sums)


@pytest.mark.parametrize("most", [1, 2, 3, 40])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 40, 100, 255, 257, 300, 1000])
def test_rows_of_any_unit_weigh_together_what_they_may(most, n_rows):
    """To a tenth at most, whatever the number of rows: else people with many rows would count less than others."""
    shape = unit_shape(schema_of("binary"), most, weight_bits_for(most, of_units=True))
    units = np.zeros(n_rows, HASH)
    units["low"] = 7
    counts = UnitCounts(units[:1], np.array([n_rows]))
    weights = counts.weights(units, shape).astype(np.int64)
    whole = min(n_rows, most) << shape.weight_bits
    assert 0.9 * whole <= weights.sum() <= whole


@pytest.mark.parametrize("n_rows", thinned([3, 1, 40, 2], every=4))
@pytest.mark.parametrize(
    ("kind", "name"), thinned([(k, q) for k, q in ALL if k != "multiclass"], every=2)
)
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
        assert sum(abs(int(d)) for d in after - before) <= bound.l1
    assert worst <= bound.l2_squared
    if name in ("count", "fine") and n_rows == 2:
        assert worst == bound.l2_squared


@pytest.mark.parametrize("n_rows", thinned([1, 2, 31], every=3))
@pytest.mark.parametrize(
    ("kind", "name"),
    thinned([(k, q) for k, q in ALL if k != "multiclass" and q not in ("part", "sample")], every=2),
)
def test_a_row_that_joins_a_unit_stays_within_the_sensitivity(kind, name, n_rows):
    """As an account for rows counts a fit that protects units: the unit's other rows weigh less then."""
    bound = sensitivity(queries_of(kind, BITS)[name], unit_shape(schema_of(kind), K, BITS))
    table, y = table_of(kind)
    more = pd.concat([table.iloc[[4]].assign(person="new")] * (n_rows + 1))
    model = model_of(kind)
    for target, other in ((0.0, 0.0), (1.0, 0.0), (-1.0, 3.0)):
        targets = np.append(y, [target] * n_rows)
        before = answers(kind, pd.concat([table, more[:-1]]), targets, name, model)
        after = answers(kind, pd.concat([table, more]), np.append(targets, other), name, model)
        moved = [int(d) for d in after - before]
        assert sum(map(abs, moved)) <= bound.l1
        assert sum(d * d for d in moved) <= bound.l2_squared


@pytest.mark.parametrize(
    ("name", "n_values"),
    [
        ("reference", 2 * 3 * (1 + 3)),  # (g, h) of three classes, in the totals and three features
        ("products", 3 * 4 // 2),  # of every two of three features, squares too
        ("directions", 2 * 3 * 4),  # (g, h) of three classes, in four directions
    ],
)
def test_rounding_after_the_weight_is_in_the_sensitivity_of_units(name, n_values):
    query = queries_of("multiclass", BITS)[name]
    rows = sensitivity(query, shape_of("multiclass", K, BITS))
    units = sensitivity(query, unit_shape(schema_of("multiclass"), K, BITS))
    weight = K << BITS
    assert units.l1 == rows.l1 + n_values * weight
    least = (np.sqrt(rows.l2_squared) + np.sqrt(n_values) * weight) ** 2
    assert least <= units.l2_squared <= least * 1.001


@pytest.mark.parametrize("group", range(6))
def test_a_unit_is_drawn_as_a_whole(group):
    """Either all rows of a unit are in the part or none, whatever their order."""
    x, y, _ = rows_of("binary", 40)
    table, y = x.assign(person=np.arange(40) % 10), np.ones(40)
    gradient = choice_of("binary", splits_of(1)).gradient
    query = replace(queries_of("binary", BITS)["root"], gradient=gradient)
    query = replace(query, rows=RowDraw("part", group, 0, 1 << 31))
    person = np.arange(40) % 10
    weights = []
    for one in range(10):
        rows = person == one
        sums = ask("binary", table[rows], y[rows], query).reshape(-1, 2)[: query.sizes[0], 1].sum()
        weights.append(int(sums) >> 15)
    assert set(weights) == {0, K << BITS}
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_array_equal(
        ask("binary", table.iloc[order], y[order], query), ask("binary", table, y, query)
    )


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


NAMES = [
    *("a", 1, 0.5, np.float32(0.1), 0.1, 2**53 - 1, 1 - 2**53, 1e-300),
    *(fractions.Fraction(1, 3), (1,), (1, 2), (12,), ("x",), ((1,),), datetime.time(12, 30)),
    *(datetime.date(2020, 1, 1), np.datetime64("2020-01-02"), pd.Timestamp(1), uuid.UUID(int=1)),
    *map(
        ExactId,
        (2**53, 2**53 + 1, -(2**53), 10**4000, "7" * 5000, "1e18", "1e400", "1e+400", "inf"),
    ),
]
NO_NAMES = [
    *(None, NAN, pd.NA, pd.NaT, UNITLESS, decimal.Decimal("NaN"), (None, 1), [1], {}),
    *(np.arange(5000), np.where(np.arange(5000) == 2500, -1, np.arange(5000)), object(), 1j),
    *(decimal.Decimal("sNaN"), decimal.Decimal("1e999999999"), np.datetime64(1, "as"), len),
    *(2**53, 2**53 + 1, 10**5000, np.inf, -np.inf, 1e300, str(2**53), str(10**18), "9" * 500, "1e300"),
    *("inf", b"1e18", decimal.Decimal(2**53), ("1e18", 1), "", "NA", "None", b"nan", ExactId("null")),
]  # fmt: skip


def objects(values):
    out = np.empty(len(values), object)
    for k, value in enumerate(values):
        out[k] = value
    return out


def test_every_name_is_another_unit_and_what_has_none_is_no_unit():
    hashes = hash_units(objects(NAMES + NO_NAMES), KEY)
    named = hashes[: len(NAMES)]
    assert len(np.unique(named)) == len(NAMES)
    assert (named != NO_UNIT).all()
    assert (hashes[len(NAMES) :] == NO_UNIT).all()


@pytest.mark.parametrize(
    "equal",
    [
        ["a", b"a", np.str_("a")],
        [5, 5.0, np.int8(5), decimal.Decimal(5), fractions.Fraction(5)],
        [1, True, np.bool_(True)],
        [0.0, -0.0, 0, "0", "-0", "-0.0", b"0", ExactId("00"), False, "false"],
        [
            7,
            "7",
            "007",
            "7.0",
            " 7",
            "7e0",
            "+7",
            b"7",
            np.str_("7"),
            ExactId("7"),
            decimal.Decimal("7.00"),
            7 + 0j,
        ],
        [0.1, "0.1", ".1", decimal.Decimal("0.1"), "1e-1"],
        [True, "True", "TRUE", "true", "tRUE", 1, "1"],
        [ExactId(2**53), ExactId(f"0{2**53}"), ExactId(f" +{2**53}.0 ")],
        ["a", "a\x00", b"a\x00"],
        [(1, "a"), (1.0, b"a"), (True, "a"), ("1", "a")],
        [uuid.UUID(int=1), str(uuid.UUID(int=1))],
        [datetime.time(12, 30), "12:30", "12:30:00"],
        [
            datetime.date(2020, 1, 1),
            pd.Timestamp("2020"),
            np.datetime64("2020", "D"),
            "2020-01-01 00:00",
        ],
        [pd.Timestamp("2020", tz="UTC"), pd.Timestamp("2020-01-01 01:00", tz="Europe/Paris")],
    ],
    ids=lambda equal: str(equal[0]),
)
def test_equal_values_are_one_unit(equal):
    assert len(np.unique(hash_units(objects(equal), KEY))) == 1


def test_an_exact_id_is_not_taken_for_a_text_beside_it():
    exact, rounded = ExactId(2**53), str(2**53)
    for column in ([exact, rounded], [rounded, exact]):
        named = hash_units(objects(column), KEY) != NO_UNIT
        assert named.tolist() == [value is exact for value in column]


def test_times_name_the_same_unit_in_any_type():
    columns = [np.array(["2020-01-01", "NaT"], f"datetime64[{u}]") for u in ("D", "s", "us", "ns")]
    columns += [pd.Series(columns[1]), pd.Series(columns[3]), pd.Series(columns[3]).astype(object)]
    hashes = [hash_units(column, KEY).tolist() for column in columns]
    assert all(h == hashes[0] for h in hashes)
    assert hashes[0][1] == NO_UNIT.tolist() != hashes[0][0]


def test_masked_rows_have_no_unit():
    hashes = hash_units(np.ma.masked_array([1, 2], [False, True]), KEY)
    assert hashes.tolist() == [hash_units(np.array([1]), KEY).tolist()[0], NO_UNIT.tolist()]


@pytest.mark.parametrize("bad", [None, NAN, [1], np.arange(5000), decimal.Decimal("sNaN")], ids=str)
@pytest.mark.parametrize("name", ["count", "fine", "main"])
def test_rows_without_a_unit_weigh_nothing(bad, name):
    """The rows may belong to many people; were they one unit, each would get more weight when others left."""
    table, y = table_of("binary")
    table = table.astype({"person": object})
    unnamed = pd.concat([table.iloc[[4]]] * 20)
    # not by `pd.concat`, which fails on some values in older versions
    person = np.concatenate([table["person"].to_numpy(), objects([bad] * 20)])
    more = pd.concat([table.drop(columns="person"), unnamed.drop(columns="person")]).assign(
        person=person
    )
    model = model_of("binary")
    np.testing.assert_array_equal(
        answers("binary", more, np.append(y, [1.0] * 20), name, model),
        answers("binary", table, y, name, model),
    )


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


def test_a_missing_unit_elsewhere_changes_no_unit():
    large = np.array([2**53 + 1, 2**53 + 3, 2**62, 7, -(2**53)])
    beside = np.append(
        large.astype(np.float64), NAN
    )  # what NumPy and Parquet readers make of a missing value
    np.testing.assert_array_equal(hash_units(large, KEY), hash_units(beside, KEY)[:-1])
    assert (hash_units(large, KEY) == NO_UNIT).tolist() == [True, True, True, False, True]
    for column in (
        pd.Series(large, dtype="Int64"),
        pd.Series(large, dtype="int64[pyarrow]"),
        pd.Series(large.astype(str)),
        pd.Series([*large.tolist(), "guest"], dtype=object)[:-1],
        pd.Series(large).astype("category"),
    ):
        np.testing.assert_array_equal(hash_units(column, KEY), hash_units(large, KEY))
    exact = hash_units(exact_ids(pd.Series(large)), KEY)
    assert len(np.unique(exact)) == len(large)
    assert not (exact == NO_UNIT).any()
    assert exact[3] == hash_units(large, KEY)[3]


def test_exact_ids_never_raise():
    column = pd.Series(objects(NAMES + NO_NAMES), dtype=object)
    hashes = hash_units(exact_ids(column), KEY)
    assert len(hashes) == len(column)
    assert (hashes[: len(NAMES)] != NO_UNIT).all()
    # of types of files whose values Python cannot always hold: such a value is no unit, as in a frame
    for kind in (
        pa.date32(),
        pa.timestamp("s"),
        pa.timestamp("ms", "Asia/Tokyo"),
        pa.duration("s"),
    ):
        most, whole = (1 << 30, pa.int32()) if pa.types.is_date(kind) else (1 << 62, pa.int64())
        ticks = pa.array([0, None, most, -most], whole)
        far = pd.Series(pd.arrays.ArrowExtensionArray(ticks.cast(kind)))
        np.testing.assert_array_equal(hash_units(exact_ids(far), KEY), hash_units(far, KEY))


def test_names_of_units_are_names_of_themselves():
    given = [*NAMES]
    if pd.__version__ < "3.1":  # its parser rounds numbers of more than 15 digits otherwise
        given.remove(np.float32(0.1))
    names, place = distinct_names(objects(given))
    again, _ = distinct_names(objects([ExactId(names[k]) for k in place]))
    assert again == [names[k] for k in place]
