"""Dask's conversion of objects to text: removed where it may be, and where it stays no value makes it fail."""

import datetime
import decimal
from collections import UserList, deque
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from types import MappingProxyType, SimpleNamespace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe._pyarrow import to_pyarrow_string
from dask.dataframe.dispatch import concat
from dask.delayed import delayed
from thinned import one_of_each, thinned

from dpgb_dask import Datetime, DPGBClassifier, Schema
from dpgb_dask.encoding.codes import encode_target, read_values
from dpgb_dask.encoding.columns import category_cells, numbers
from dpgb_dask.encoding.columns import objects as objects_of
from dpgb_dask.encoding.frames import JOINS, as_given, in_partitions, joining, to_text
from dpgb_dask.encoding.times import seconds
from dpgb_dask.errors import StructureError
from dpgb_dask.lazy_decoding import total_collection
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.shared_tasks import ChunkTasks, Pass
from dpgb_dask.testing import SeededNoise
from dpgb_dask.values import cells, unit_names


class Silent:
    """A value that fails whatever is done with it."""

    def fail(self, *_):
        raise RuntimeError("secret-value-4711")

    __str__ = __repr__ = __len__ = __iter__ = __array__ = __eq__ = __hash__ = fail


class Classless:
    """A value that does not say of what class it is."""

    @property
    def __class__(self):
        raise RuntimeError("secret-value-4711")

    def __str__(self):
        raise RuntimeError("secret-value-4711")


def in_space(pairs):
    return SimpleNamespace(**{str(k): value for k, value in pairs})


def in_array(pairs):
    return np.fromiter(chain.from_iterable(pairs), object)


def shared(kind):
    """A value of few parts, whose text no memory holds."""
    value = kind([(0, 1)])
    for k in range(100):
        value = kind([(k, value), (-1 - k, value)])
    return value


@dataclass
class Own:
    """Of the caller's making, with the text that Python makes of what it holds."""

    pairs: list


KINDS = (tuple, list, dict, deque, in_space, in_array, Own, UserList, MappingProxyType, ValueError)
VAST = [
    shared(lambda pairs, kind=kind: kind(dict(pairs) if kind is MappingProxyType else pairs))
    for kind in KINDS
]
ODD = [
    *VAST,
    b"\xff",
    "\ud800",
    10**5000,
    -(10**5000),
    decimal.Decimal("sNaN"),
    Silent(),
    (Silent(),),
]
PLAIN = [
    "x",
    "y",
    None,
    5,
    5.0,
    True,
    np.nan,
    pd.NA,
    b"x",
    decimal.Decimal("1.50"),
    (1, "a"),
    [2],
    1e300,
    "5",
    "",
]
N, AT = 30, 7


def objects(values):
    return pd.Series(np.fromiter(values, object, len(values)), dtype=object)


def people(odd="x"):
    job = [PLAIN[k % len(PLAIN)] for k in range(N)]
    job[AT] = odd
    return pd.DataFrame(
        {"a": np.arange(N) / N, "job": objects(job), "y": np.arange(N) % 2, "d": datetime.date(2020, 1, 1)}
    )  # fmt: skip


def in_parts(frame):
    return dd.from_map(lambda k: frame[k * 10 : k * 10 + 10], range(3), meta=frame[:0])


SOURCES = {
    "from_pandas": partial(dd.from_pandas, npartitions=3),
    "from_map": in_parts,
    "from_delayed": lambda frame: dd.from_delayed(
        [dask.delayed(frame[k * 10 : k * 10 + 10]) for k in range(3)], meta=frame[:0]
    ),
}
WORK = {
    "nothing": lambda f: f,
    "a filter": lambda f: f[f.a >= 0],
    "assign": lambda f: f.assign(q=1),
    "fillna": lambda f: f.fillna({"a": 0}),
    "astype": lambda f: f.astype({"y": "f8"}),
    "map_partitions": lambda f: f.map_partitions(lambda part: part),
    "a new index": lambda f: f.set_index("a", drop=False, divisions=[0, 0.5, 1]),
    "a mean": lambda f: f.assign(a=f.a - f.a.mean()),
    "two frames": lambda f: dd.concat([f[f.a < 0.5], f[f.a >= 0.5]]),
}
SCHEMA = Schema(
    {"a": (0, 1), "job": ["x", "y", "5"]}, classes=[0, 1], target="y", ignore=["d", "q"]
)


def cells_of(frame, form="frame"):
    """The category of each job, as a fit reads it."""
    X, y = frame[["a", "job"]], frame["y"]
    if form == "array":
        X, y = X.to_dask_array(), y.to_dask_array()
    elif form == "partitions":
        X = dd.from_delayed(X.to_delayed(), meta=X._meta, verify_meta=False)
        y = dd.from_delayed(y.to_delayed(), meta=y._meta, verify_meta=False)
    source = read_source(X, y, None, SCHEMA)
    here = Pass(ChunkTasks(source.chunks))
    rows = [here.load(k).x for k in range(len(source.chunks))]
    columns = [objects(x[:, 1]) if form == "array" else x["job"] for x in rows]
    return [cell for column in columns for cell in category_cells(column, ("x", "y", "5"))]


@pytest.mark.parametrize(("work", "source"), thinned([*product(WORK, SOURCES)], every=9))
def test_one_row_makes_no_work_fail_and_changes_no_other(source, work):
    want = cells_of(WORK[work](SOURCES[source](people())))
    for odd in ODD:
        got = cells_of(WORK[work](SOURCES[source](people(odd))))
        assert len(got) == N
        assert got[:AT] + got[AT + 1 :] == want[:AT] + want[AT + 1 :]
        assert got[AT] in (3, 4)  # another category, or missing


@pytest.mark.parametrize(
    ("work", "source", "form"),
    thinned(
        [
            *product(
                ("nothing", "a filter", "assign", "map_partitions"),
                ("from_map", "from_delayed"),
                ("array", "partitions"),
            )
        ],
        every=7,
    ),
)
def test_one_row_makes_nothing_fail_that_was_made_of_a_frame(source, work, form):
    """Dask has then put its conversion into the tasks; of what is in memory it converts at once."""
    want = cells_of(WORK[work](SOURCES[source](people())), form)
    for odd in ODD:
        got = cells_of(WORK[work](SOURCES[source](people(odd))), form)
        assert got[:AT] + got[AT + 1 :] == want[:AT] + want[AT + 1 :]
        assert got[AT] in (3, 4)


@pytest.mark.parametrize("work", WORK)
def test_the_types_of_a_frame_stay(work):
    for source in SOURCES.values():
        frame = WORK[work](source(people()))
        if work != "nothing":
            pd.testing.assert_frame_equal(as_given(frame)._meta, frame._meta)
            pd.testing.assert_frame_equal(as_given(frame).compute(), frame.compute())
        assert as_given(as_given(frame))._name == as_given(frame)._name


@pytest.mark.parametrize("source", SOURCES)
def test_a_choice_by_text_keeps_its_meaning(source):
    frame = SOURCES[source](people())
    chosen = frame[frame.job == "5"]
    assert len(as_given(chosen).compute()) == 4  # numbers and texts, by their text
    both = dd.concat([frame, chosen])
    assert len(both.compute()) == len(as_given(both).compute()) == N + 4
    if source == "from_pandas":
        assert len(chosen.compute()) == 4


def every_form(values):
    column = objects(values).rename("c")
    index = pd.Index(column, name="i", tupleize_cols=False)
    yield column
    yield index
    yield column.set_axis(index)
    yield pd.DataFrame({"c": column, "n": 1.5, "k": column.to_numpy()}).set_axis(index)
    yield pd.DataFrame({"c": column, "n": 1}).set_axis(["same", "same"], axis=1)


def check_equal(one, other):
    check = {pd.Series: "series", pd.DataFrame: "frame"}.get(type(one), "index")
    getattr(pd.testing, f"assert_{check}_equal")(one, other)


def test_values_that_dask_converts_are_converted_as_by_dask():
    for part in every_form(PLAIN):
        check_equal(to_text(part.copy()), to_pyarrow_string(part.copy()))


@pytest.mark.parametrize("place", thinned([6, 0, len(PLAIN)], every=3))
def test_a_value_that_dask_cannot_convert_changes_itself_alone(place):
    for odd in ODD:
        clean, values = [*PLAIN], [*PLAIN]
        values.insert(place, odd)
        replaced = {b"\xff": "\ufffd", "\ud800": "?"} if type(odd) in (bytes, str) else {}
        clean.insert(place, replaced[odd] if replaced else None)
        for part, want in zip(every_form(values), every_form(clean), strict=True):
            check_equal(to_text(part), to_pyarrow_string(want))


def test_a_value_without_a_class_is_missing_alone():
    """pandas itself fails on it as a column's first value."""
    values, clean = (objects(["x", odd, 5, ("a", 1)]) for odd in (Classless(), None))
    check_equal(to_text(values), to_pyarrow_string(clean))


def test_levels_of_an_index_are_converted():
    levels = pd.MultiIndex(levels=[["a"], [b"\xff", "b"]], codes=[[0, 0], [0, 1]], names=["l", "r"])
    column = pd.Series([1, 2], index=levels)
    assert to_text(column).index.get_level_values("r").tolist() == ["\ufffd", "b"]


ARRAYS = {
    "objects": objects([*ODD, *PLAIN]).to_numpy(),
    "texts": objects(["x", "\ud800", "5"]).to_numpy(),
    "texts of one width": np.array(["x", "\ud800", "5"]),
    "bytes": np.array([b"x", b"\xff", b"5"]),
    "numbers": np.array([1.0, np.nan, 5]),
    "whole numbers": np.array([1, 2**63, 5], np.uint64),
    "masked": np.ma.MaskedArray([1, 2, 5], [False, True, False]),
    "truths": np.array([True, False, True]),
    **{
        f"dates of {unit}": np.array([5, 1 << 40, -(1 << 40), -(1 << 63)]).view(f"M8[{unit}]")
        for unit in ("Y", "M", "W", "D", "h", "s", "ms", "us", "ns", "ps", "10D")
    },
    **{f"spans of {unit}": np.array([5, 1 << 50], f"m8[{unit}]") for unit in ("Y", "D", "s", "ns")},
}


@pytest.mark.parametrize(("name", "convert"), one_of_each(product(ARRAYS, [True, False])))
def test_an_array_has_the_same_values_in_partitions(name, convert):
    """A target beside a Dask DataFrame, and a column of Zarr on the command line: as one of objects is."""
    array = ARRAYS[name]
    given = [None if value is np.ma.masked else value for value in array]
    alone = np.fromiter(given, object, len(given))
    with dask.config.set({"dataframe.convert-string": convert, "scheduler": "sync"}):
        chunks = (len(array) - 1, 1)  # `dd.concat` joins a last row by divisions
        lazy = da.from_array(array, chunks=(chunks,))
        column = in_partitions(lazy, "c")
        table = dd.concat([column, column], axis=1, ignore_unknown_divisions=True)
        assert column.name == "c"
        assert column.npartitions == table.npartitions == 2
        for read in (numbers, seconds, partial(category_cells, categories=["x", "5", True])):
            got = np.concatenate([read(part.compute()) for part in column.partitions])
            np.testing.assert_array_equal(got, read(alone))
        frame = dd.from_map(lambda n: pd.DataFrame({"a": np.arange(n)}), list(chunks))
        schema = Schema({"a": (0, 9)}, classes=["x", 5], max_weight=5)
        chunks = read_source(frame, lazy, lazy, schema).chunks
        rows = dask.compute(*(chunk.x for chunk in chunks))
        got = [
            np.concatenate(part)
            for part in zip(*(encode_target(r.y, schema) for r in rows), strict=True)
        ]
        np.testing.assert_array_equal(got, encode_target(alone, schema))


def of_categories(odd):
    """Two partitions, of whose values Dask cannot join the types if there is an odd one."""
    first = pd.DataFrame({"a": [1.0, 2.0, 3.0], "c": pd.Categorical([1, 2, 2]), "y": [0, 1, 0]})
    last = first.assign(c=pd.Categorical(["x", "2", "1"] if odd == "text" else [5, 2, 1]))
    first["d"], last["d"] = (pd.Series(["2020-01-01"] * 3, dtype=f"M8[{u}]") for u in ("ns", "s"))
    if odd == "date":
        last["d"] = last["d"].where(last.index > 0, np.datetime64("29999-01-01", "s"))
    if odd == "order":
        last["c"] = last["c"].cat.as_ordered()
    if odd == "index":
        first.index, last.index = pd.CategoricalIndex([1, 2, 3]), pd.CategoricalIndex(["x", 2, 3])
    return first, last


JOINED = {
    "fewer": lambda table: table.repartition(npartitions=1),
    "shuffle": lambda table: table.shuffle("y", npartitions=2),
    "divisions": lambda table: (
        table.clear_divisions()
        .set_index("a", divisions=[1, 2, 3], drop=False)
        .repartition(divisions=[1, 3])
    ),
    "interleaved": lambda table: dd.concat(
        [
            table.set_index("a", divisions=[1, 2, 3], drop=False).partitions[0:1],
            table.set_index("a", divisions=[1, 2, 3], drop=False),
        ],
        interleave_partitions=True,
    ),
}


@pytest.mark.parametrize(
    ("odd", "joined"), one_of_each(product(["text", "date", "order", "index"], JOINED))
)
def test_partitions_whose_values_make_types_that_do_not_join_are_joined(joined, odd):
    schema = Schema(
        {"a": (0, 9), "c": ["1", "2", "x"], "d": Datetime("2020-01-01", "2020-12-31")},
        classes=[0, 1],
    )

    def read(parts):
        table = dd.from_map(parts.__getitem__, [0, 1], meta=parts[0][:0])
        with dask.config.set({"dataframe.shuffle.method": "tasks"}):
            table = JOINED[joined](table)
        chunks = read_source(table[["a", "c", "d"]], table["y"], None, schema).chunks
        here = Pass(ChunkTasks(chunks))
        values = [read_values(here.load(k).x, schema) for k in range(len(chunks))]
        return [np.concatenate([part.column(j) for part in values]) for j in range(4)]

    parts = of_categories(odd)
    plain = tuple(part.astype({"c": object, "d": str}).reset_index(drop=True) for part in parts)
    np.testing.assert_array_equal(read(parts), read(plain))


@pytest.mark.parametrize(
    ("odd", "joined"), one_of_each(product(["text", "date", "order", "index"], JOINED))
)
def test_partitions_that_do_not_join_are_joined_for_what_is_asked_of_a_model(joined, odd):
    """Also once they are an array."""
    names = ["a", "c", "d"]

    def asked(parts):
        table = dd.from_map(parts.__getitem__, [0, 1], meta=parts[0][:0])
        with dask.config.set({"dataframe.shuffle.method": "tasks"}):
            table = JOINED[joined](table)
        rows = table[names]
        chances, array = clf.predict_proba(rows), clf.predict_proba(rows.to_dask_array())
        told = clf.explain_local(rows).compute()
        assert chances.npartitions == table.npartitions
        return (*map(np.asarray, (chances, array, told.scores)), clf.score(rows, table["y"]))

    parts = of_categories(odd)
    plain = tuple(part.astype({"c": object, "d": str}).reset_index(drop=True) for part in parts)
    schema = Schema(
        {"a": (0, 9), "c": ["1", "2", "x"], "d": Datetime("2020-01-01", "2020-12-31")},
        classes=[0, 1],
    )
    clf = DPGBClassifier(
        schema=schema,
        epsilon=4.0,
        noise=SeededNoise(0),
        recipe="fdp-tr-newton",
        n_estimators=2,
        columns="position",
    )
    with dask.config.set(scheduler="sync"):
        clf.fit(plain[0][names], plain[0]["y"])
        for got, want in zip(asked(parts), asked(plain), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("odd", ["text", "date", "order", "index", "type"])
def test_rows_and_scores_are_joined_where_dask_cannot_join_their_partitions(odd):
    first, last = of_categories("none" if odd == "type" else odd)
    if odd == "type":
        last["c"] = last["c"].astype(str).astype("string")
    parts = (first.assign(y=[0, 1, 0]), last.assign(y=["1", "0", "1"]))
    table = dd.from_map(parts.__getitem__, [0, 1], meta=parts[0][:0])
    names = ["a", "c", "d"]
    clf = DPGBClassifier(
        schema=Schema(
            {"a": (0, 9), "c": ["1", "2", "x"], "d": Datetime("2020-01-01", "2020-12-31")},
            classes=[0, 1],
        ),
        epsilon=4.0,
        noise=SeededNoise(0),
        recipe="fdp-tr-newton",
        n_estimators=2,
        random_state=0,
    )
    with dask.config.set(scheduler="sync"):
        clf.fit(table[names], table["y"])
        told = clf.explain_local(table[names]).compute()
        alone = [clf.explain_local(part[names]).scores for part in parts]
        scores = [clf.score(part[names], part["y"]) for part in parts]
        assert clf.score(table[names], table["y"]) == np.mean(scores)
    np.testing.assert_array_equal(told.scores, np.concatenate(alone))
    assert told.rows["c"].astype(str).tolist() == [*first["c"].astype(str), *last["c"].astype(str)]


def test_a_partition_that_is_no_frame_is_refused_in_words():
    first, _ = of_categories("none")
    parts = (first[["a"]], first[["a"]].to_numpy())
    table = dd.from_map(parts.__getitem__, [0, 1], meta=first[["a"]][:0])
    clf = DPGBClassifier(
        schema=Schema({"a": (0, 9)}, classes=[0, 1]),
        epsilon=4.0,
        noise=SeededNoise(0),
        recipe="fdp-tr-newton",
        n_estimators=2,
    )
    clf.fit(first[["a"]], first["y"])
    with pytest.raises(StructureError, match="partition of X is no DataFrame of pandas"):
        clf.predict(table).compute(scheduler="sync")


def test_what_dask_cannot_join_at_all_ends_as_before():
    assert joining(len) is None
    with pytest.raises(TypeError):
        joining(concat)([1, 2])


def test_a_value_that_fails_is_joined_as_it_is():
    odd = Silent()
    objects = [np.fromiter([odd], object, 1), np.array([1], object)]
    parts = [
        pd.DataFrame({"c": pd.Categorical(c), "o": pd.Series(o, dtype=object)})
        for c, o in zip(([1], ["x"]), objects, strict=True)
    ]
    for join in JOINS.values():
        joined = join(parts)
        assert joined["o"].iloc[0] is odd
        assert joined["c"].tolist() == [1, "x"]


NEW_YORK = "America/New_York"
ALONE = {
    "durations": [datetime.timedelta(1), datetime.timedelta(2, 5)],
    "NumPy's durations": [np.timedelta64(5, "s"), np.timedelta64(86_400, "s")],
    "months": [np.datetime64("2020-01"), np.datetime64("2021-02")],
    "years": [np.datetime64("2020"), np.datetime64("1921")],
    "nanoseconds": [np.datetime64(10**18 + 1, "ns"), pd.NaT],
    "times": [datetime.datetime(2020, 1, 1, 5, 6, 7, 8), datetime.datetime(2020, 1, 1)],
    "times of a zone": [pd.Timestamp("1880-01-01", tz=NEW_YORK), pd.Timestamp("2020", tz=NEW_YORK)],
    "single": [np.float32(123456.7890625), np.float32("nan")],
    "periods": [pd.Period("2020-01", "M"), pd.Period("2021-05", "M")],
    "intervals": [pd.Interval(0.0, 10.0), pd.Interval(0.5, 1.0)],
}


@pytest.mark.parametrize(
    "other", ["zz", b"\xff", 10**5000, None], ids=["text", "bytes", "vast", "none"]
)
@pytest.mark.parametrize("name", ALONE)
def test_what_stands_beside_an_object_does_not_tell_how_it_is_read(name, other):
    """Where Dask's conversion stays: pandas makes a type of its own of values that are alone, and objects of others."""
    values = ALONE[name]
    alone = pd.Series(values)
    beside = to_text(pd.Series([*values, other], dtype=object))
    whole = to_text(pd.DataFrame({"a": pd.Series([*values, other], dtype=object), "n": 1.0}))
    assert alone.dtype != object
    assert whole["n"].dtype == np.float64
    names = unit_names(alone.tolist())
    for column in (beside, whole["a"]):
        assert unit_names(column.tolist())[: len(values)] == names
        np.testing.assert_array_equal(numbers(column)[: len(values)], numbers(alone))
        np.testing.assert_array_equal(seconds(column)[: len(values)], seconds(alone))
    index = to_text(pd.Index([*values, other], dtype=object))
    assert unit_names(index.tolist())[: len(values)] == names


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_bytes_as_databases_give_them_are_bytes_below_an_operation(kind):
    """Their own text is another, of a view its place in memory."""
    plain = [b"x", b"5", b"007", b"NA", b"12:30", b"2020-01-02", b"\xff", b""]
    column = pd.Series([*map(kind, plain), kind(b"x"), None], dtype=object)
    names = unit_names(to_text(column).tolist())
    assert names == unit_names(to_text(pd.Series([*plain, b"x", None], dtype=object)).tolist())
    assert names[0] == names[-2] == "x"


BLOCKS = {
    "whole": np.array([[1, 0], [0, 1]]),
    "fractions": np.array([[0.5, np.nan], [1e300, 0.25]]),
    "single": np.array([[0.5, 0.1], [0.25, 1]], np.float32),
    "unsigned": np.array([[2**63, 1], [0, 7]], np.uint64),
    "truth": np.array([[True, False], [False, True]]),
    "short": np.array([["a", "b"], ["a", ""]], "U1"),
    "long": np.array([["abc", "1.5"], ["a", "unknown"]], "U7"),
    "bytes": np.array([[b"abc", b"1.5"], [b"\xff", b""]]),
    "objects": np.array([["abc", None], [0.5, 7]], object),
    "days": np.array([["2020-01-01", "1500-02-03"], ["NaT", "2021-01-01"]], "M8[D]"),
    "nanoseconds": np.array([["2020-01-01T00:00:00.000000001", "NaT"]] * 2, "M8[ns]"),
    "durations": np.array([[1, 5], [3, 4]], "m8[us]"),
    "complex": np.array([[1 + 0j, 2j], [3, 4]]),
    "nothing": np.empty((2, 0)),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("first", "second"), thinned([*product(BLOCKS, BLOCKS)], every=4))
def test_blocks_of_unlike_types_are_joined_as_they_are(first, second, axis):
    """Whatever type Dask was told; and so are those that a fit joins, of X by rows and by columns, and of y."""
    blocks = [BLOCKS[name].T if axis == 0 else BLOCKS[name] for name in (first, second)]
    lazy = [da.from_delayed(delayed(block), block.shape, float) for block in blocks]
    whole = da.concatenate(lazy, axis).rechunk(-1)
    got = np.asarray(total_collection(whole).compute(scheduler="sync"))
    parts = np.split(got, [blocks[0].shape[axis]], axis)
    for part, block in zip(parts, blocks, strict=True):
        assert part.shape == block.shape
        read, want = (objects_of(values.ravel()) for values in (part, block))
        assert unit_names(read) == unit_names(want)
        assert cells(read) == cells(want)


def test_a_fit_joins_blocks_as_they_are():
    """Of one row without a value, pandas makes fractions of all in its partition; of text, objects."""
    schema = Schema({"a": (0, 9), "b": (0, 1)}, target_bounds=(0, 1), target="t")
    columns = np.array([1, 2, 3, 4]), np.array([0.25, 0.5, 0.75, 1.0])
    targets = np.array([0, 1]), np.array([0.5, 0.25])
    read = []
    for odd in (None, "missing", "text"):
        a, t = columns[0].astype(object), targets[1].astype(object)
        if odd == "missing":
            a[0] = np.nan
        if odd == "text":
            t[1] = "unknown"
        blocks = a.astype(float) if odd == "missing" else columns[0], columns[1]
        X = da.stack([da.from_delayed(delayed(one), (4,), float) for one in blocks], axis=1)
        parts = targets[0], t if odd == "text" else targets[1]
        y = da.concatenate([da.from_delayed(delayed(one), (2,), float) for one in parts])
        (rows,) = [
            Pass(tasks).load(0) for tasks in [ChunkTasks(read_source(X, y, None, schema).chunks)]
        ]
        x = read_values(rows.x, schema)
        read.append((np.array([x.column(j) for j in range(2)]), encode_target(rows.y, schema)[0]))
    for x, y in read[1:]:
        np.testing.assert_array_equal(x[:, 1:], read[0][0][:, 1:])
        np.testing.assert_array_equal(y[:3], read[0][1][:3])
