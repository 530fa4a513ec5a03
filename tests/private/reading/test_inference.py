"""Neighbouring data sets are built before a reader infers types: a frame of Python rows, or a file of text, Parquet or
Zarr, gets one more row, of any value at any place, and every other row is read as before.


The tests compare the raw sums that a controller gets: the count, the cells of all features, and the target's sums.
Errors of the readers themselves are out of scope: ``dd.read_csv`` stops at a value of no type that it sampled.
"""

import datetime
import decimal
import io
import warnings
from functools import partial
from typing import NamedTuple

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from dask.base import compute
from numpy.testing import assert_array_equal
from thinned import thinned

from dpgb_dask import Datetime, Schema
from dpgb_dask import io as own
from dpgb_dask.contracts.plan import Execution, Shape, weight_bits_for
from dpgb_dask.contracts.queries import CountQuery
from dpgb_dask.encoding.columns import category_cells, exact_ids
from dpgb_dask.private.reading.chunks import Reading
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.units import hash_units
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.private.sensitivity import sensitivity
from dpgb_dask.values import cell

NAN = float("nan")
SIGNALLING = np.array([0x7FF4000000000001], np.uint64).view(np.float64)[0]
COLUMNS = ("a", "k", "y", "w", "person")
FEATURES = {"a": (0, 100), "k": [0, 1, 2]}
SCHEMAS = {
    "labels": Schema(FEATURES, classes=[0, 1], target="y", max_weight=3, ignore=["w", "person"]),
    "words": Schema(
        {"a": (0, 100), "k": ["0", "1", "2"]},
        classes=["0", "1"],
        target="y",
        max_weight=3,
        ignore=["w", "person"],
    ),
    "numbers": Schema(FEATURES, target_bounds=(0, 4), target="y", max_weight=3, ignore=["w", "person"]),
}  # fmt: skip
UNIT_SCHEMA = Schema(FEATURES, classes=[0, 1], target="y", ignore=["w"], unit_id="person")

DATED = Schema(
    {
        "a": Datetime("2020-01-01", "2020-12-31", ("days", "month", "hour")),
        "k": {"from": {"0": "x", "1": "y", "2": "x"}},
    },
    classes=[0, 1],
    target="y",
    ignore=["w", "person"],
)  # fmt: skip
DATES = [
    "2020-02-30", "2020-06-01", "2020-06-01T10:00:00+05:00", "2020-06-01 10:00:00Z", "1850-01-01",
    "9999-12-31 23:59:59", "29999-01-01", "2020-06", "06/01/2020", "20200601", "2020-06-01 10:00:00.123456789",
]  # fmt: skip
ZONED = [
    datetime.datetime(2020, 6, 1, tzinfo=datetime.UTC), pd.Timestamp("2020-06-01", tz="Asia/Kolkata"),
    datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=14))), datetime.date(9999, 12, 31),
    np.datetime64("2020-06-01T01:00", "ns"), np.datetime64("12020-06-01"), pd.Period("2020-06-01"),
    pd.Period("2020-06"),
]  # fmt: skip

WORDS = [
    *("unknown", "", " ", "NA", "None", "nan", "NAN", "007", "1.0", " 1", "+1", "1e0", "true", "TRUE", "False"),
    *("inf", "-Infinity", "1e300", "1e400", "9" * 40, str(2**53), str(2**53 + 1), str(10**18), str(2**64)),
    *("1_000", "0x10", "1,5", "2020-01-01", "2020-01-01 10:00:00", "12:30:00", "é", "yes", "1j", "(1+0j)"),
]  # fmt: skip
OBJECTS = [
    *(None, NAN, SIGNALLING, pd.NA, pd.NaT, True, False, 1, 1.0, 2.5, -1, 1e300, np.inf, -np.inf, 1j, 1 + 0j),
    *(2**53, 2**53 + 1, 10**18, 2**64, -(2**63), 10**400, decimal.Decimal(1), decimal.Decimal("1e9"), b"1", b"x"),
    *(datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1), pd.Timestamp(1), np.datetime64("2020-01-01")),
    *(datetime.time(12, 30), pd.Timedelta(1, "D"), np.float32(0.1), np.int8(1), np.bool_(True), (1, 2), [1]),
]  # fmt: skip


def some_rows(n=12):
    """Rows of Python numbers; persons 0 to 4 have two or three rows each."""
    return [(k % 7 * 10 + 0.5, k % 3, k % 2, 1.0, 1000 + k % 5) for k in range(n)]


def odd_rows(values, columns=COLUMNS):
    """Yield a row for each odd value in each of some columns, and some rows with odd values in all columns."""
    row = dict(zip(COLUMNS, (50.5, 1, 1, 1.0, 1001), strict=True))
    for name in columns:
        for value in values:
            yield tuple((row | {name: value}).values())
    for value in values[::6]:
        yield tuple((row | dict.fromkeys(COLUMNS, value)).values())


class Given(NamedTuple):
    """The arguments of a fit: rows, target and weights."""

    x: object
    y: object
    weight: object


def of_frame(frame):
    return Given(frame, frame["y"], frame["w"])


def raw_sums(given, schema, unit=None):
    shape = Shape(schema=schema, max_weight=schema.max_weight)
    if unit is not None:
        shape = Shape(schema=schema, weight_bits=weight_bits_for(1), max_weight=1)
    weight = None if unit is not None or schema.max_weight == 1 else given.weight
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        # Dask's reader of Parquet always calls something that pandas will drop
        warnings.simplefilter("ignore", DeprecationWarning)
        x = given.x
        if isinstance(x, pd.DataFrame | dd.DataFrame) and unit is None:
            x = x[["a", "k"]]
        elif isinstance(x, pd.DataFrame | dd.DataFrame):
            x = x[["a", "k", "person"]]
        source = read_source(x, given.y, weight, schema, unit)
        rounds = LocalRounds(source, Reading(shape, bytes(32)), Execution(n_threads=1))
        sums = rounds._survey()._sums.copy()
        rounds.close()
    return sums, shape


# ---- readers ---------------------------------------------------------------------------------------------------------


def frame_of(rows):
    return pd.DataFrame([dict(zip(COLUMNS, row, strict=True)) for row in rows])


def csv_text(rows):
    """Rows as a file of text: the CSV that holds exactly these words."""
    quoted = (",".join('"' + str(value).replace('"', '""') + '"' for value in row) for row in rows)
    return "\n".join([",".join(COLUMNS), *quoted, ""])


def typed_table(rows):
    """Columns as in a Parquet file, all of them text."""
    return pa.table(
        {
            name: pa.array([None if value is None else str(value) for value in values], pa.string())
            for name, values in zip(COLUMNS, zip(*rows, strict=True), strict=True)
        }
    )


def halves(rows):
    """Rows as two partitions, whose types are inferred separately."""
    return [rows[: len(rows) // 2], rows[len(rows) // 2 :]]


def dask_parts(make, rows, tmp_path):
    del tmp_path
    with dask.config.set({"dataframe.convert-string": False}):
        return of_frame(dd.from_map(make, halves(rows), enforce_metadata=False))


def own_csv(rows, tmp_path):
    for k, part in enumerate(halves(rows)):
        (tmp_path / f"{k}.csv").write_text(csv_text(part))
    return of_frame(own.read_csv(tmp_path / "*.csv", unit_id="person"))


def parquet(rows, tmp_path):
    for k, part in enumerate(halves(rows)):
        pq.write_table(typed_table(part), tmp_path / f"{k}.parquet")
    return of_frame(dd.read_parquet([tmp_path / "0.parquet", tmp_path / "1.parquet"]))


def in_memory_parquet(rows, _):
    file = io.BytesIO()
    pq.write_table(typed_table(rows), file)
    return of_frame(pd.read_parquet(file))


def own_zarr(rows, tmp_path, *, make):
    """A data set of `write_dataset`, made from what another reader reads."""
    given = make(rows, tmp_path)
    schema = UNIT_SCHEMA
    own.write_dataset(tmp_path / "d.zarr", given.x, given.y, schema=schema, overwrite=True)
    data = own.open_dataset(tmp_path / "d.zarr")
    return Given(data.X, data.y, None)


def zarr_columns(rows, tmp_path):
    group = zarr.create_group(tmp_path / "g.zarr", overwrite=True)
    for name, values in zip(COLUMNS, zip(*rows, strict=True), strict=True):
        texts = np.array([str(value) for value in values], np.dtypes.StringDType())
        group.create_array(name, data=texts, chunks=(5,))
    return Given(
        xr.Dataset({n: ("row", da.from_zarr(group[n])) for n in ("a", "k", "person")}),
        da.from_zarr(group["y"]),
        da.from_zarr(group["w"]),
    )


def numpy_objects(rows, _):
    columns = []
    for values in zip(*rows, strict=True):
        column = np.empty(len(values), object)
        column[:] = values
        columns.append(column)
    x = xr.Dataset(
        {n: ("row", c) for n, c in zip(COLUMNS, columns, strict=True) if n in ("a", "k", "person")}
    )
    return Given(x, columns[2], columns[3])


def in_memory(make, rows, _):
    return of_frame(make(rows))


def from_pandas(rows, _, *, convert):
    with dask.config.set({"dataframe.convert-string": convert}):
        return of_frame(dd.from_pandas(frame_of(rows), npartitions=2))


def pandas_csv(rows, **options):
    with warnings.catch_warnings():  # pandas may warn of a column of mixed types
        warnings.simplefilter("ignore")
        return pd.read_csv(io.StringIO(csv_text(rows)), **options)


TEXT_MAKERS = {
    "pandas": pandas_csv,
    "text": partial(pandas_csv, dtype=str),
    "no missing": partial(pandas_csv, dtype=object, keep_default_na=False),
    "nullable": partial(pandas_csv, dtype_backend="numpy_nullable"),
    "arrow": partial(pandas_csv, dtype_backend="pyarrow"),
    "arrow's parser": partial(pandas_csv, engine="pyarrow"),
    "python's parser": partial(pandas_csv, engine="python"),
    "categories": partial(pandas_csv, dtype="category"),
}
OBJECT_MAKERS = {
    "pandas": frame_of,
    "objects": lambda rows: frame_of(rows).astype(object),
    "better types": lambda rows: frame_of(rows).convert_dtypes(),
    "objects inferred": lambda rows: frame_of(rows).astype(object).infer_objects(),
}
TEXT_READERS = {
    **{f"memory {name}": partial(in_memory, make) for name, make in TEXT_MAKERS.items()},
    **{f"parts {name}": partial(dask_parts, make) for name, make in TEXT_MAKERS.items()},
    "own csv": own_csv,
    "parquet": parquet,
    "parquet in memory": in_memory_parquet,
    "zarr columns": zarr_columns,
}
OBJECT_READERS = {
    **{f"memory {name}": partial(in_memory, make) for name, make in OBJECT_MAKERS.items()},
    **{f"parts {name}": partial(dask_parts, make) for name, make in OBJECT_MAKERS.items()},
    "from_pandas": partial(from_pandas, convert=False),
    "numpy objects": numpy_objects,
}
# pandas itself fails to make Arrow's integers of these
TOO_LONG = {"9" * 40, str(2**64)}
# Arrow's own CSV parser makes a number of it if all values of a file are numbers (docs/design.md §1)
HEX = {"0x10"}


def left_out(name):
    return (TOO_LONG if "arrow" in name else set()) | (
        HEX if name.endswith("arrow's parser") else set()
    )


READERS = {
    **{
        f"text, {name}": (reader, [w for w in WORDS if w not in left_out(name)])
        for name, reader in TEXT_READERS.items()
    },
    **{f"rows, {name}": (reader, OBJECTS + WORDS) for name, reader in OBJECT_READERS.items()},
}


# ---- the test of the class -------------------------------------------------------------------------------------------


def check_one_row(reader, row, place, schema, tmp_path, before, rows=None):
    """Compare the sums with a row with those without it, ``before``, which are the same for every row tried."""
    rows = rows or some_rows()
    more = [*rows[:place], row, *rows[place:]]
    before, shape = before
    after, _ = raw_sums(reader(more, tmp_path), schema)
    difference = np.abs((after - before).astype(object))
    top = shape.max_weight << shape.weight_bits
    bound = sensitivity(CountQuery(label="c", price=1, weight_bits=shape.weight_bits), shape)
    assert difference[0] <= bound.l1
    # the count, one cell of each encoded column, and the target's sum of at most its largest step
    target = (1 << 16) * top if schema.target.type == "numeric" else top
    assert difference.sum() <= (1 + len(schema.encoded)) * top + target


def check_one_unit(reader, value, tmp_path, before):
    """Compare the sums with and without all rows of a unit, which has rows in each half."""
    rows = some_rows()
    mine = [(60.5, 1, 1, 1.0, value)] * 3
    more = [*mine[:1], *rows, *mine[1:]]
    before, shape = before
    after, _ = raw_sums(reader(more, tmp_path), UNIT_SCHEMA, "person")
    one = 1 << shape.weight_bits
    difference = np.abs((after - before).astype(object))
    assert difference[0] <= one
    assert difference.sum() <= 4 * one


def check_one_unit_among_others(reader, value, guest, tmp_path):
    """Another unit's id gives the ids of one part another type; the rows of my unit must still be one unit."""
    rows = [*some_rows(), (5.5, 0, 0, 1.0, guest)]
    mine = [(60.5, 1, 1, 1.0, value)] * 3
    more = [*mine, *rows[:6], *rows[6:], *mine]
    before, shape = raw_sums(reader(rows, tmp_path), UNIT_SCHEMA, "person")
    after, _ = raw_sums(reader(more, tmp_path), UNIT_SCHEMA, "person")
    assert np.abs(after - before)[0] <= 1 << shape.weight_bits


def some(values, step, offset):
    return list(values)[offset % step :: step]


def run(name, schema, tmp_path, step):
    """Check every step-th odd row, from a different offset for each reader and schema."""
    reader, values = READERS[name]
    offset = sorted(READERS).index(name) + 5 * sorted(SCHEMAS).index(schema)
    before = raw_sums(reader(some_rows(), tmp_path), SCHEMAS[schema])
    for k, row in enumerate(some(odd_rows(values), step, offset)):
        check_one_row(reader, row, (0, 5, 12)[k % 3], SCHEMAS[schema], tmp_path, before)


def dated_rows(name):
    """Rows whose first column holds dates: as text; or of several types, where a reader keeps them."""
    days = [datetime.datetime(2020, 1 + k % 12, 5, 2 * k, 30) for k in range(12)]
    if name.startswith("text"):
        told = [str(day) for day in days]
    else:
        kinds = [
            lambda d: d,
            pd.Timestamp,
            lambda d: pd.Timestamp(d, tz="UTC"),
            str,
            lambda d: np.datetime64(d, "us"),
        ]
        told = [kinds[k % len(kinds) if k > 5 else 0](day) for k, day in enumerate(days)]
    return [(day, k % 3, k % 2, 1.0, 1000) for k, day in enumerate(told)]


def check_dates(name, tmp_path, step):
    """Check odd rows among rows of dates, which a reader may read as dates or as text."""
    reader, values = READERS[name]
    values = [*DATES, *values] if name.startswith("text") else [*DATES, *ZONED, *values]
    rows = dated_rows(name)
    before = raw_sums(reader(rows, tmp_path), DATED)
    assert np.count_nonzero(before[0]) > 20
    offset = sorted(READERS).index(name)
    # of the other columns, `run` shows it
    for k, row in enumerate(some(odd_rows(values, ("a", "k")), step, offset)):
        check_one_row(reader, row, (0, 5, 12)[k % 3], DATED, tmp_path, before, rows)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.mark.parametrize("name", thinned(READERS, every=6))
def test_one_row_changes_no_other(name, tmp_path):
    run(name, "labels", tmp_path, 37)


@pytest.mark.parametrize("name", thinned(READERS, every=2))
def test_one_row_changes_no_date_of_another(name, tmp_path):
    check_dates(name, tmp_path, 53)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_no_row_changes_a_date_of_another(name, tmp_path):
    check_dates(name, tmp_path, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name"), list(enumerate(READERS)))
def test_no_row_changes_another(number, name, tmp_path):
    """Every value in each column, by the readers in turn, under one of the schemas each."""
    run(name, list(SCHEMAS)[number % len(SCHEMAS)], tmp_path, 5)


@pytest.mark.parametrize("name", thinned(READERS, every=8))
def test_one_unit_changes_no_other(name, tmp_path):
    reader, values = READERS[name]
    offset = sorted(READERS).index(name)
    before = raw_sums(reader(some_rows(), tmp_path), UNIT_SCHEMA, "person")
    for value in some(values, 11, offset):
        check_one_unit(reader, value, tmp_path, before)
    for guest in ("guest", *some(values, 47, offset)):
        check_one_unit_among_others(reader, 1001, guest, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_no_unit_changes_another(name, tmp_path):
    reader, values = READERS[name]
    before = raw_sums(reader(some_rows(), tmp_path), UNIT_SCHEMA, "person")
    for value in some(values, 6, sorted(READERS).index(name)):
        check_one_unit(reader, value, tmp_path, before)
        check_one_unit_among_others(reader, 1001, value, tmp_path)
        check_one_unit_among_others(reader, value, "guest", tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "name", thinned(["own csv", "parquet", "memory pandas", "parts arrow"], every=4)
)
def test_a_data_set_keeps_what_its_source_says(name, tmp_path):
    reader = TEXT_READERS[name]
    for word in ("unknown", "007", str(10**18)):
        rows = [*some_rows(), (word, word, word, 1.0, word)]
        source, _ = raw_sums(reader(rows, tmp_path), UNIT_SCHEMA, "person")
        kept, _ = raw_sums(own_zarr(rows, tmp_path, make=reader), UNIT_SCHEMA, "person")
        np.testing.assert_array_equal(source, kept)


HUGE = [(k + 0.5, k % 3, k % 2, 1.0, 10**18 + k // 2) for k in range(10)]


@pytest.mark.parametrize("name", thinned([*READERS, "rows, exact"], every=4))
def test_huge_ids_count_where_this_library_read_them(name, tmp_path):
    """In every other collection their rows have weight 0, whatever values stand beside them."""
    readers = {**READERS, "rows, exact": (exact_reader, ())}
    reader, _ = readers[name]
    for guest in (1001, "guest", None):
        rows = [*HUGE, (5.5, 0, 0, 1.0, guest)]
        sums, shape = raw_sums(reader(rows, tmp_path), UNIT_SCHEMA, "person")
        # csv and typed tables hold the words "None" and ""
        expected = (5 if name in ("text, own csv", "rows, exact") else 0) + (guest is not None)
        assert sums[0] == expected << shape.weight_bits


def exact_reader(rows, _):
    """Rows as the command line reads a Parquet file of whole numbers or text."""
    frame = frame_of(rows)
    ids = pd.Series([row[-1] for row in rows], dtype=object)
    return of_frame(frame.assign(person=exact_ids(ids)))


def test_forms_are_those_of_what_readers_write():
    """If one odd value makes a column text, Dask and NumPy write the `str` of its other values."""
    odd = [
        pd.Timedelta("1D2h"), np.timedelta64(90, "s"), pd.Period("2024"), pd.Period("2024-05"),
        pd.Period("2024-05-01", "D"), pd.Interval(0.0, 1.5), pd.Interval(1, 2), 7, 7.5, True, "007", "2024-01-01 05",
    ]  # fmt: skip
    for value in odd:
        text = str(pd.Timedelta(value)) if isinstance(value, np.timedelta64) else str(value)
        assert cell(value) == cell(text), value
    assert cell(pd.NaT) is None
    assert cell("0" * 5000 + "7") == 7.0
    assert cell("1" + "0" * 5000) == np.inf


CUTS = pd.cut(pd.Series(np.arange(60) / 10), [0, 2, 4, 6]).astype(object)
SPANS = pd.Series([pd.Timedelta(days=k % 3) for k in range(60)], dtype=object)


def one_and_its_neighbour(values, form):
    """Yield a Dask frame with a column of objects, and the same with one more odd value, as `form` makes them."""
    for odd in ([], ["unknown"], ["\ud800"], [b"\xff"]):
        column = pd.Series([*values, *odd], dtype=object)
        frame = pd.DataFrame({"c": column, "y": np.arange(len(column)) % 2, "u": column})
        if form == "from_pandas":
            yield dd.from_pandas(frame, npartitions=2, sort=False)
        else:
            half = len(frame) // 2
            yield dd.from_map(lambda part: part, [frame[:half], frame[half:]])


@pytest.mark.parametrize("form", ["from_pandas", "from_map"])
@pytest.mark.parametrize("values", [CUTS, SPANS], ids=["cuts", "spans"])
def test_what_dask_makes_of_objects_decides_nothing(values, form):
    """Dask's conversion to text is removed: it depends on all values of a partition, and fails if one is not UTF-8."""
    listed = [str(value) for value in values.drop_duplicates()]
    schema = Schema({"c": listed}, classes=[0, 1], target="y", unit_id="u")
    known = None
    for X in one_and_its_neighbour(values, form):
        source = read_source(X, X["y"], None, schema, "u")
        rows = [compute(chunk.x)[0] for chunk in source.chunks]
        cells = np.concatenate([category_cells(part.x["c"], listed) for part in rows])
        units = np.concatenate([hash_units(part.unit, bytes(32)) for part in rows])
        known = (cells, units) if known is None else known
        assert_array_equal(cells[:60], known[0])
        assert_array_equal(units[:60], known[1])
