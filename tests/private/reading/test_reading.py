"""Every pass reads the same rows, or the fit stops; there are no more passes than needed."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.delayed import delayed
from private.cases import (
    BINS,
    KEY,
    ROWS_KEY,
    model_of,
    opened,
    queries_of,
    rows_of,
    schema_of,
    shape_of,
    unit_shape,
)
from thinned import thinned

from dpgb_dask.contracts.plan import Execution
from dpgb_dask.encoding.codes import read_values
from dpgb_dask.encoding.columns import n_rows
from dpgb_dask.errors import ChunkError
from dpgb_dask.private.reading.chunks import Marker, Reading, encode_rows, read_labels, survey_rows
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.rows import Rows
from dpgb_dask.private.reading.units import count_units, hash_units
from dpgb_dask.private.rounds import open_rounds

N, CHUNK = 3000, 1000
READS = Counter()  # how often each chunk was read; kept outside the source, which Dask may copy
SCHEMA = schema_of("binary")
QUERY = queries_of("binary")["main"]


class Changing:
    """A chunked source that counts how often each chunk is read, and changes rows from some read on.

    Parameters
    ----------
    change : callable or None
        Rows of the second chunk → rows.
    since : int
        How often the second chunk is read before it changes.
    """

    def __init__(self, change=None, since=1):
        x, y, _ = rows_of("binary", N)
        self.table = np.column_stack([x.to_numpy(), y])
        READS.clear()
        self.change, self.since = change, since

    def block(self, k):
        rows = self.table[k * CHUNK : (k + 1) * CHUNK]
        if k == 1 and self.change is not None and READS[k] >= self.since:
            rows = self.change(rows)
        READS[k] += 1
        return rows

    def arrays(self, chunk=CHUNK):
        blocks = [
            da.from_delayed(delayed(self.block, pure=False)(k), (chunk, 4), np.float64)
            for k in range(N // CHUNK)
        ]
        table = da.concatenate(blocks)
        return table[:, :3], table[:, 3]

    def frames(self):
        def part(k):
            return pd.DataFrame(self.block(k), columns=["a", "b", "c", "target"])

        table = dd.from_delayed(
            [delayed(part)(k) for k in range(N // CHUNK)],
            meta=pd.DataFrame({n: np.empty(0) for n in ("a", "b", "c", "target")}),
        )
        return table[["a", "b", "c"]], table["target"]


def turned(rows):
    return rows[::-1]


def swapped(rows):
    """Return the rows with two of them swapped."""
    order = np.arange(len(rows))
    order[[10, 900]] = order[[900, 10]]
    return rows[order]


def altered(rows):
    rows = rows.copy()
    rows[70, 0] = np.nextafter(rows[70, 0], 9.0)
    return rows


def relabelled(rows):
    rows = rows.copy()
    rows[70:75, 3] = 1 - rows[70:75, 3]
    return rows


def shortened(rows):
    return rows[:-1]


def rounds_of(x, y, rows_key=None, bins=None, **execution):
    source = read_source(x, y, None, SCHEMA)
    return open_rounds(source, shape_of("binary"), Execution(**execution), KEY, rows_key, bins=bins)


def ask(rounds):
    try:
        return opened(rounds.ask(model_of("binary"), QUERY))
    finally:
        rounds.close()


@pytest.mark.parametrize("change", [swapped, turned, altered, shortened])
def test_drawn_rows_that_move_or_change_stop_the_fit(change):
    with pytest.raises(ChunkError, match=r"A chunk of the source changed") as caught:
        ask(rounds_of(*Changing(change).arrays(), ROWS_KEY, n_threads=1))
    assert "000" not in str(caught.value)


def test_a_frame_whose_rows_move_stops_the_fit():
    with pytest.raises(ChunkError, match="A chunk"):
        ask(rounds_of(*Changing(swapped, since=2).frames(), ROWS_KEY, n_threads=1))


@pytest.mark.parametrize("change", [swapped, turned])
def test_order_is_nothing_where_no_row_is_drawn(change):
    still = ask(rounds_of(*Changing().arrays(), n_threads=1))
    np.testing.assert_array_equal(ask(rounds_of(*Changing(change).arrays(), n_threads=1)), still)


@pytest.mark.parametrize("change", [relabelled, shortened])
def test_labels_and_numbers_of_rows_stop_every_fit(change):
    with pytest.raises(ChunkError, match="A chunk"):
        ask(rounds_of(*Changing(change).arrays(), n_threads=1))


def test_a_chunk_longer_than_its_collection_says_stops_drawn_rows():
    x, y = Changing().arrays(chunk=CHUNK - 1)
    ask(rounds_of(x, y, n_threads=1))
    with pytest.raises(ChunkError, match=r"than Dask is told, .*compute_chunk_sizes\(\)"):
        ask(rounds_of(x, y, ROWS_KEY, n_threads=1))
    given = (part.compute_chunk_sizes() for part in Changing().arrays(chunk=CHUNK - 1))
    ask(rounds_of(*given, ROWS_KEY, n_threads=1))


@pytest.mark.parametrize("bins", [None, BINS], ids=["private", "public"])
def test_a_cluster_notices_what_moves(client, bins):
    rounds = rounds_of(*Changing(swapped, since=1 if bins else 2).arrays(), ROWS_KEY, bins)
    rounds.ask(model_of("binary"), QUERY)
    (address,) = client.who_has(rounds._shards[1])[rounds._shards[1].key]
    (lost,) = [w for w in client.cluster.workers.values() if w.address == address]
    client.sync(lost.close)  # then Dask makes the shard again
    with pytest.raises(ChunkError, match="changed"):
        rounds.ask(model_of("binary"), QUERY)
    rounds.close()


EXPECTED = {
    # kind of source, public bins, rows drawn by position → how often each chunk is read
    ("arrays", False, False): 2,
    ("arrays", True, False): 1,
    ("arrays", False, True): 2,
    ("arrays", True, True): 1,
    ("frames", False, False): 2,
    ("frames", True, False): 1,
    ("frames", False, True): 3,  # lengths are not known before the first pass
    ("frames", True, True): 2,
}


@pytest.mark.parametrize(("kind", "public", "drawn"), EXPECTED)
@pytest.mark.parametrize("backend", thinned(["tasks", "local"], every=2))
def test_every_chunk_is_read_once_or_twice(kind, public, drawn, backend, request):
    if backend == "tasks":
        request.getfixturevalue("client")
    data = Changing()
    x, y = getattr(data, kind)()
    rounds = rounds_of(
        x, y, ROWS_KEY if drawn else None, BINS if public else None, n_threads=1, backend=backend
    )
    for query in ("count", "fine", "main", "trees"):
        rounds.ask(model_of("binary"), queries_of("binary")[query])
    rounds.fingerprint()
    rounds.close()
    assert set(READS.values()) == {EXPECTED[kind, public, drawn]}


# ---- marks -----------------------------------------------------------------------------------------------------------


def mark_of(rows, reading, cuts=(0, None)):
    labels = read_labels(rows, reading)
    marker = Marker(reading, labels)
    n = n_rows(rows.x)
    edges = [0, *sorted(cut for cut in cuts if cut), n]
    for start, stop in pairwise(edges):
        part = slice(start, stop)
        marker.add(read_values(rows.x.iloc[part], reading.shape.schema), part)
    return marker.mark


@pytest.mark.parametrize("ordered", [False, True])
def test_marks_are_the_same_however_a_chunk_is_cut(ordered):
    x, y, w = rows_of("binary", 500)
    reading = Reading(
        shape_of("binary", 3, 2), KEY, None, ROWS_KEY, np.array([0, 500]) if ordered else None
    )
    rows = Rows(x, y, w)
    whole = mark_of(rows, reading)
    assert mark_of(rows, reading, (1, 77, 400)) == whole
    assert survey_rows(rows, reading, 0).marks == {0: whole}
    checked = replace(reading, marks=np.array([whole], np.uint64))
    list(encode_rows(rows, checked, BINS, 128))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_marks_do_not_depend_on_the_layout(order, dtype):
    x, y, _ = rows_of("binary", 300)
    reading = Reading(shape_of("binary"), KEY, rows_key=ROWS_KEY)
    matrix = np.asarray(x.to_numpy(dtype), order=order)
    marks = {
        survey_rows(Rows(part, y, None), reading, 0).marks[0]
        for part in (matrix, np.ascontiguousarray(matrix), matrix[::-1][::-1])
    }
    assert len(marks) == 1


@pytest.mark.parametrize("drawn", [False, True])
def test_marks_see_every_part_of_a_row(drawn):
    x, y, w = rows_of("binary", 200)
    w = np.where(w > 0, w, 1.0)
    y = np.where(y == 2, 0.0, y)
    reading = Reading(shape_of("binary", 3, 2), KEY)
    if drawn:
        reading = replace(reading, rows_key=ROWS_KEY, starts=np.array([0, 200]))
    marks = [survey_rows(Rows(x, y, w), reading, 0).marks[0]]
    for column, value in {"a": 1.23456, "b": 3.5, "c": 7.0}.items():
        marks.append(survey_rows(Rows(x.assign(**{column: value}), y, w), reading, 0).marks[0])
        one = x.copy()
        one.loc[17, column] = value
        marks.append(survey_rows(Rows(one, y, w), reading, 0).marks[0])
    marks.append(
        survey_rows(Rows(x, np.where(np.arange(200) == 3, 1 - y, y), w), reading, 0).marks[0]
    )
    unknown = np.where(np.arange(200) == np.flatnonzero(y == 0)[0], np.nan, y)
    marks.append(survey_rows(Rows(x, unknown, w), reading, 0).marks[0])
    marks.append(
        survey_rows(Rows(x, y, np.where(np.arange(200) == 3, 0.25, w)), reading, 0).marks[0]
    )
    turned = survey_rows(Rows(x[::-1], y[::-1], w[::-1]), reading, 0).marks[0]
    assert (turned != marks[0]) is drawn  # the order of rows decides draws, and nothing else
    if drawn:
        marks.append(turned)
    other = replace(reading, key=bytes(32))
    marks.append(survey_rows(Rows(x, y, w), other, 0).marks[0])
    assert len(set(marks)) == len(marks)


def test_rows_drawn_by_position_have_positions_of_their_own_or_stop_the_fit():
    """Rows of a longer chunk would share the positions of the next one's, and so their draws."""
    starts = np.array([0, 5, 12, 12, 13])
    reading = Reading(shape_of("binary"), KEY, rows_key=ROWS_KEY, starts=starts)
    of_chunks = [reading.positions(k, n) for k, n in enumerate([5, 7, 0, 1])]
    assert np.concatenate(of_chunks).tolist() == list(range(13))
    for n in (6, 8):
        with pytest.raises(ChunkError, match="changed while it was being read"):
            reading.positions(1, n)


def test_a_unit_that_changes_stops_the_fit():
    x, y, _ = rows_of("binary", 400)
    people = np.arange(400) % 50
    shape = unit_shape(SCHEMA, 2, 3)
    reads = []

    def part(k):
        reads.append(k)
        person = people if len(reads) < 3 else np.roll(people, 1)  # counted, surveyed, then encoded
        return x.assign(person=person, target=y)

    table = dd.from_delayed([delayed(part)(0)], meta=x.assign(person=people, target=y)[:0])
    source = read_source(table, table["target"], None, shape.schema, "person")
    rounds = open_rounds(source, shape, Execution(n_threads=1), KEY, ROWS_KEY)
    with pytest.raises(ChunkError, match="A chunk of the source changed"):
        ask_units(rounds)


def ask_units(rounds):
    try:
        rounds.ask(model_of("binary"), queries_of("binary", 3)["main"])
    finally:
        rounds.close()


@pytest.mark.parametrize("known", [None, BINS])
def test_units_that_change_after_they_were_counted_stop_the_fit(known):
    x, y, _ = rows_of("binary", 400)
    shape = unit_shape(SCHEMA, 2, 3)
    reads = []

    def rows(k):
        reads.append(k)
        people = np.arange(400) if len(reads) <= 2 else np.zeros(400, int)
        return x.assign(person=people, target=y).iloc[200 * k : 200 * (k + 1)]

    table = dd.from_map(rows, [0, 1], meta=rows(0).iloc[:0])
    reads.clear()
    source = read_source(table, table["target"], None, shape.schema, "person")
    rounds = open_rounds(source, shape, Execution(backend="local"), KEY, bins=known)
    with pytest.raises(ChunkError, match="changed while it was being read"):
        rounds.fingerprint()
    rounds.close()


def test_a_unit_that_was_not_counted_weighs_nothing():
    shape = unit_shape(SCHEMA, 2, 3)
    counted = count_units(np.array(["a", "a", "b"], object), KEY)
    others = [
        f"another {k}" for k in range(20)
    ]  # some are before all that were counted, some after
    units = hash_units(np.array(["a", "b", None, *others], object), KEY)
    assert {0, 2} <= set(np.searchsorted(counted.units, units[3:]))
    weights = counted.weights(units, shape)
    assert (weights > 0).tolist() == [True, True] + 21 * [False]
    assert not count_units(np.array([], object), KEY).weights(units, shape).any()
