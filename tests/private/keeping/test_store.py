"""Rows are the same wherever they are kept; damage is noticed; nothing of the rows is left behind."""

import asyncio
import gc
import itertools
import os
import pickle
import resource
import stat
import subprocess
import threading
from abc import ABC
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import zarr.abc.store
from distributed.core import Status
from private.cases import (
    ALL,
    BINS,
    KEY,
    KINDS,
    ROWS_KEY,
    model_of,
    queries_of,
    rows_of,
    shape_of,
    splits_of,
    upper,
)
from thinned import thinned
from waiting import LONGEST
from zarr.core import codec_pipeline
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore

from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.contracts.queries import RowDraw
from dpgb_dask.errors import LostCodesError, PlanError, ScratchError
from dpgb_dask.private.answering import shards
from dpgb_dask.private.answering.passes import open_pass
from dpgb_dask.private.answering.shards import Shard
from dpgb_dask.private.keeping import scratch as scratch_module
from dpgb_dask.private.keeping import store as store_module
from dpgb_dask.private.keeping.durable import Durable
from dpgb_dask.private.keeping.scratch import Scratch
from dpgb_dask.private.keeping.sealed_objects import Sealed
from dpgb_dask.private.keeping.store import (
    Keeping,
    LostPiece,
    Store,
    StoredPiece,
    check_limit,
    codes_version,
    remove_saved,
    room_to_read,
    store_of,
)
from dpgb_dask.private.reading.chunks import Reading, encode_rows
from dpgb_dask.private.reading.rows import Piece, Rows, merge_pieces

WEIGHT = {"max_weight": 3, "weight_bits": 2}
SHARD_QUERIES = [(k, q) for k, q in ALL if q not in ("count", "coarse", "fine", "target")]
# cache, and the shares of the rows' state and of their codes that may be held in memory
PLACES = {
    "memory": ("memory", 0, 0),
    "warm": ("auto", 1, 1),
    "codes": ("disk", 1, 1),
    "mixed": ("auto", 1, 0.5),
    "little": ("auto", 0.5, 0),
    "nothing": ("auto", 0, 0),
}


def pieces_of(kind, cuts=3, block_rows=256, n=3000):
    x, y, weight = rows_of(kind, n)
    shape = shape_of(kind, **WEIGHT)
    starts = np.arange(cuts + 1) * n // cuts
    reading = Reading(shape, KEY, rows_key=ROWS_KEY, starts=starts)
    for k in range(cuts):
        part = slice(starts[k], starts[k + 1])
        rows = Rows(x.iloc[part], y[part], weight[part])
        yield encode_rows(rows, reading, BINS, block_rows, k)


def room_of(place, kind="binary"):
    """Return how many bytes may be held in memory."""
    state = codes = 0
    for piece in itertools.chain(*pieces_of(kind)):
        added = 8 if kind != "multiclass" else 16  # scores and draws
        state += piece.nbytes - piece.codes.nbytes + added * len(piece)
        codes += piece.codes.nbytes
    return int(PLACES[place][1] * state + PLACES[place][2] * codes)


def store_in(folder, place, monkeypatch, kind="binary"):
    """A store with room for some of the rows, and its scratch in the folder."""
    n_scores = 3 if kind == "multiclass" else 1
    store = Store("fit", Keeping(PLACES[place][0], None, str(folder), KEY, n_scores=n_scores))
    monkeypatch.setattr(store, "_measure_room", lambda _: room_of(place, kind))
    return store


def stored_shard(kind, store, block_rows=256):
    kept = [store.keep(pieces, k) for k, pieces in enumerate(pieces_of(kind))]
    pieces = merge_pieces([piece for part in kept for piece in part], block_rows)
    return Shard(pieces, shape_of(kind, **WEIGHT), BINS, ROWS_KEY)


def memory_shard(kind):
    pieces = merge_pieces([p for part in pieces_of(kind) for p in part], 256)
    return Shard(pieces, shape_of(kind, **WEIGHT), BINS, ROWS_KEY)


def wide_piece(n=5000, m=40, label=np.uint8):
    rng = np.random.default_rng(n)
    codes = rng.integers(0, 256, (m, n), dtype=np.uint8)
    return Piece(codes, rng.integers(0, 2, n).astype(label), None)


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    """The number of threads that answer, and their pool."""
    monkeypatch.setattr(shards, "INLINE_VALUES", 0)
    with ThreadPoolExecutor(request.param) as pool:
        yield request.param, pool


# ---- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", thinned(PLACES, every=2))
@pytest.mark.parametrize("kind", thinned(KINDS, every=3))
def test_answers_are_the_same_wherever_rows_are_kept(kind, place, threads, tmp_path, monkeypatch):
    store = store_in(tmp_path, place, monkeypatch, kind)
    shard = stored_shard(kind, store)
    on_scratch = [p for p in shard.pieces if isinstance(p, StoredPiece) and p.in_memory is None]
    assert len(on_scratch) > 0 or place in ("memory", "warm")
    assert len(on_scratch) < len(shard.pieces) or place in ("codes", "little", "nothing")
    assert any(p.state is None for p in on_scratch) == (place in ("little", "nothing"))
    queries, expected = queries_of(kind, 2), memory_shard(kind)
    models = [model_of(kind, 0, 1, 1), model_of(kind, 0, 1, 3), model_of(kind, 1), model_of(kind)]
    for model in models:
        for name in queries:
            lacks = name == "contributions" and model.trees.n_trees < 3
            if (kind, name) in SHARD_QUERIES and not lacks:
                got = shard.answer(model, queries[name], *threads)
                np.testing.assert_array_equal(got, expected.answer(model, queries[name]), name)


@pytest.mark.parametrize("place", ["codes", "nothing"])
def test_levels_of_drawn_rows_are_the_same(place, threads, tmp_path, monkeypatch):
    tree, model = splits_of(1, depth=4, seed=12), model_of("binary")
    shard = stored_shard("binary", store_in(tmp_path, place, monkeypatch))
    expected = memory_shard("binary")
    for group in (4, 5):
        for low, high in ((0, 1 << 32), (0, 1 << 30), (1 << 30, 1 << 31)):
            for depth in range(5):
                rows = RowDraw("part", group, low, high)
                query = replace(
                    queries_of("binary", 2)["nodes"], splits=upper(tree, depth), rows=rows
                )
                got = shard.answer(model, query, *threads)
                np.testing.assert_array_equal(got, expected.answer(model, query))


def test_too_many_drawn_rows_are_not_copied(tmp_path, monkeypatch):
    model, query = model_of("binary"), queries_of("binary", 2)["sample"]
    expected = memory_shard("binary").answer(model, query)
    for place, n_blocks in (("codes", True), ("mixed", False)):
        store = store_in(tmp_path, place, monkeypatch)
        shard = stored_shard("binary", store)
        monkeypatch.setattr(store, "_room", 1 << 30 if n_blocks else 1000)
        np.testing.assert_array_equal(shard.answer(model, query), expected)
        assert (shard._draws.n_gathered > 0) == n_blocks


def test_copies_of_rows_take_half_of_the_room(monkeypatch):
    store = Store("fit", Keeping("auto", None, None, KEY))
    assert store.copies_fit(1 << 40)  # nothing is kept yet
    monkeypatch.setattr(store, "_room", 1000)
    assert [store.copies_fit(size) for size in (500, 501)] == [True, False]


def test_small_chunks_on_scratch_are_joined(tmp_path, monkeypatch):
    store = store_in(tmp_path, "nothing", monkeypatch)
    kept = [store.keep(p, k) for k, p in enumerate(pieces_of("binary", cuts=300))]
    assert len(kept) == 300
    pieces = merge_pieces((piece for part in kept for piece in part), 256)
    assert len(pieces) < 25
    joined = store.scratch()._end
    del kept
    shard = Shard(pieces, shape_of("binary", **WEIGHT), BINS, ROWS_KEY)
    assert store.scratch()._end == joined  # scores use the space again
    query, model = queries_of("binary", 2)["sides"], model_of("binary")
    np.testing.assert_array_equal(
        shard.answer(model, query), memory_shard("binary").answer(model, query)
    )


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", thinned(["mixed", "warm", "codes", "little", "nothing"], every=3))
def test_what_is_held_stays_within_the_room(place, tmp_path, monkeypatch):
    store = store_in(tmp_path, place, monkeypatch)
    kept = []
    for k, pieces in enumerate(pieces_of("binary")):
        kept += store.keep(iter(pieces), k)
        assert store._held == sum(piece.held for piece in kept) <= room_of(place)
    assert sum(piece.nbytes for piece in kept) <= store._held
    del kept, pieces
    gc.collect()
    store.keep([wide_piece(10, 3)], 0)
    assert store._held <= 1000


class Granting:
    """As much of a worker as a store asks."""

    def __init__(self, limit, status):
        self.memory_manager = SimpleNamespace(memory_limit=limit)
        self.state = SimpleNamespace(nthreads=1)
        self.status = status


def test_room_follows_the_limit_and_what_dask_grants(monkeypatch):
    used = psutil.Process().memory_info()._replace(rss=1 << 29)
    monkeypatch.setattr(psutil.Process, "memory_info", lambda _: used)
    # a worker that has closed, as those of other tests, grants nothing and holds back nothing
    workers = [Granting(1 << 30, Status.closed)]
    monkeypatch.setattr(store_module, "_global_workers", workers)
    piece = wide_piece(100)
    rooms = [
        Store("fit", Keeping("auto", limit, None, KEY))._measure_room(piece)
        for limit in (0, 1 << 31, 1 << 32, 1 << 33)
    ]
    assert rooms[0] == 0
    assert rooms[2] - rooms[1] == 1 << 30
    assert rooms[3] - rooms[2] == 1 << 31
    assert Store("fit", Keeping("auto", None, None, KEY))._measure_room(piece) > 0
    workers.append(Granting(1 << 32, Status.running))
    granted = Store("fit", Keeping("auto", 1 << 33, None, KEY))._measure_room(piece)
    assert 0 < granted < rooms[2]


def test_loaded_chunks_take_a_quarter_of_the_limit_beyond_the_library_itself():
    limits = (None, 1, store_module.PROCESS_BYTES + 4000)
    assert [room_to_read(Execution(memory_limit=limit)) for limit in limits] == [None, 0, 1000]


def unbinned_piece(n=1000):
    rng = np.random.default_rng(n)
    cells = rng.integers(0, 256, (2 * 4, n), dtype=np.uint8)  # two bytes for each of four features
    return Piece(cells, np.zeros(n, np.uint8), None)


@pytest.mark.parametrize("times", [2, 2.9])
def test_rows_wait_in_memory_only_if_their_codes_have_room_beside_them(
    times, tmp_path, monkeypatch
):
    store = Store("fit", Keeping("auto", None, str(tmp_path), KEY, n_features=4))
    monkeypatch.setattr(store, "_measure_room", lambda _: int(times * (8 + 4 + 5 + 5) * 1000))
    kept = [store.keep_unbinned(unbinned_piece()) for _ in range(3)]
    assert [isinstance(piece, LostPiece) for piece in kept] == [False, False, True]
    codes = store.keep([wide_piece(1000, m=4) for _ in range(2)], 0)
    assert all(piece.in_memory is not None for piece in codes)
    del kept, codes
    gc.collect()
    again = [store.keep_unbinned(unbinned_piece()) for _ in range(3)]
    assert [isinstance(piece, LostPiece) for piece in again] == [False, False, True]


def test_rows_that_wait_have_a_scratch_file_of_their_own_that_goes_with_them(tmp_path, monkeypatch):
    store = Store("fit", Keeping("disk", None, str(tmp_path), KEY, n_features=4))
    monkeypatch.setattr(store, "_measure_room", lambda _: 0)
    waiting = store.keep_unbinned(unbinned_piece())
    np.testing.assert_array_equal(waiting.load().codes, unbinned_piece().codes)
    codes = store.keep([wide_piece(1000, m=4)], 0)
    assert codes[0].extent.scratch is not waiting.extent.scratch
    del waiting
    gc.collect()
    assert list(store._scratch) == [False]


def test_rows_that_a_full_disk_has_no_room_for_are_read_again(tmp_path, monkeypatch):
    store = Store("fit", Keeping("disk", None, str(tmp_path), KEY, n_features=4))
    monkeypatch.setattr(store, "_measure_room", lambda _: 0)
    with full_at(3000):
        assert isinstance(store.keep_unbinned(unbinned_piece()), LostPiece)


def test_few_features_read_few_bytes(tmp_path, monkeypatch):
    store = store_in(tmp_path, "codes", monkeypatch)
    monkeypatch.setattr(store, "_measure_room", lambda _: 1 << 30)
    kept = store.keep([wide_piece(5000 + k) for k in range(4)], 0)
    rows = sum(map(len, kept))
    bins = tuple(FeatureBins(np.arange(254.0), None, 256) for _ in range(40))
    model = replace(
        model_of("binary", n_pairs=0, n_trees=0),
        bins=bins,
        tables=tuple(np.zeros((256, 1), np.int32) for _ in bins),
    )
    shape = shape_of("binary")
    shard = Shard(kept, shape, bins)
    scratch = store.scratch()
    queries = queries_of("binary")
    cells = tuple(
        replace(
            c,
            map_i=(np.arange(256) * c.n_i // 256).astype(np.uint8),
            map_j=(np.arange(256) * c.n_j // 256).astype(np.uint8),
        )
        for c in queries["pairs"].pairs
    )
    pairs = replace(queries["pairs"], pairs=cells)
    shard.answer(model, pairs)  # features 0, 1 and 2
    assert scratch.bytes_read == 3 * rows
    shard.answer(
        model,
        replace(queries["main"], leaf_of_bin=(np.zeros(256, np.uint8),) * 40, n_leaves=(1,) * 40),
    )
    assert scratch.bytes_read == 43 * rows
    grown = [np.zeros((256, 1), np.int32) for _ in bins]
    grown[17][3] = 5
    shard.answer(replace(model, tables=tuple(grown)), pairs)
    assert scratch.bytes_read == 47 * rows  # one more feature, which the scores use


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["codes", "nothing"])
def test_every_damaged_byte_is_noticed(place, tmp_path, monkeypatch):
    store = store_in(tmp_path, place, monkeypatch)
    shard = stored_shard("binary", store)
    model, query = model_of("binary"), queries_of("binary", 2)["main"]
    shard.answer(model, query)
    scratch = store.scratch()
    file = scratch._file.fileno()
    extents = [p.extent for p in shard.pieces] + list(shard._scores._extents.values())
    for extent in extents[::3]:
        for offset in {
            extent.offset,
            extent.offset + extent.size // 2,
            extent.offset + extent.size - 1,
        }:
            if (
                place == "nothing"
                and extent.offset <= offset < extent.offset + extent.bounds[1]
                and len(extent.checks) > 1
            ):
                continue  # this query does not read the values by which rows are drawn
            byte = os.pread(file, 1, offset)
            os.pwrite(file, bytes([byte[0] ^ 1]), offset)
            with pytest.raises(LostCodesError):
                shard.answer(model, query)
            os.pwrite(file, byte, offset)
            shard.answer(model, query)


def test_a_truncated_file_is_noticed(threads, tmp_path, monkeypatch):
    store = store_in(tmp_path, "codes", monkeypatch)
    shard = stored_shard("binary", store)
    os.ftruncate(store.scratch()._file.fileno(), store.scratch()._end // 2)
    for _ in range(2):
        with pytest.raises(LostCodesError):
            shard.answer(model_of("binary"), queries_of("binary", 2)["main"], *threads)
    assert not [t for t in threading.enumerate() if t.name == "dpgb-read"]


def test_an_interrupted_pass_ends_in_every_thread(tmp_path, monkeypatch):
    store = store_in(tmp_path, "codes", monkeypatch)
    shard = stored_shard("binary", store)
    blocks = open_pass(shard.pieces, shard._scores, None, lambda: [0], 2)
    blocks._spare.clear()  # nothing can be read, so that the other thread waits
    with ThreadPoolExecutor(1) as pool:
        blocks.__enter__()
        waiting = pool.submit(list, iter(blocks))
        blocks.__exit__(KeyboardInterrupt)
        assert len(waiting.result(LONGEST)) < len(shard.pieces)
    assert not store.scratch()._buffers  # a thread may still be using one
    query, model = queries_of("binary", 2)["main"], model_of("binary")
    np.testing.assert_array_equal(
        shard.answer(model, query), memory_shard("binary").answer(model, query)
    )


# ---- moves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_a_moved_piece_carries_its_rows_and_is_kept_again(place, tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "_measure_room", lambda *_: 2 * room_of(place))
    store = store_of("moved", Keeping(PLACES[place][0], None, str(tmp_path), KEY))
    kept = store.keep(next(pieces_of("binary")), 0)
    copies = pickle.loads(pickle.dumps(kept))
    for piece, copy in zip(kept, copies, strict=True):
        a, b = piece.load(), copy.load()
        for name in ("codes", "label", "weight", "identity"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert isinstance(copy, Piece if place == "memory" else StoredPiece)
        assert place == "memory" or copy.store is store


def test_a_moved_shard_leaves_scratch_behind(tmp_path, monkeypatch):
    model, query = model_of("binary"), queries_of("binary", 2)["main"]
    expected = memory_shard("binary").answer(model, query)
    for place in PLACES:
        shard = stored_shard("binary", store_in(tmp_path, place, monkeypatch))
        sent = pickle.dumps(shard)
        copy = pickle.loads(sent)
        if place in ("memory", "warm"):
            np.testing.assert_array_equal(copy.answer(model, query), expected)
        else:
            assert len(sent) < 5000
            for name in ("main", "part", "sample", "nodes"):
                with pytest.raises(LostCodesError):
                    copy.answer(model, queries_of("binary", 2)[name])
            with pytest.raises(LostCodesError):
                pickle.loads(pickle.dumps(copy)).answer(model, query)


def test_a_damaged_piece_arrives_lost(tmp_path, monkeypatch):
    store = store_in(tmp_path, "codes", monkeypatch)
    kept = store.keep(next(pieces_of("binary")), 0)
    os.ftruncate(store.scratch()._file.fileno(), 0)
    copy = pickle.loads(pickle.dumps(kept[0]))
    with pytest.raises(LostCodesError):
        copy.load()
    with pytest.raises(LostCodesError):
        merge_pieces([copy, copy], 10**6)


def test_one_store_per_fit_while_something_holds_it(tmp_path):
    keeping = Keeping("disk", None, str(tmp_path), KEY)
    (kept,) = store_of("one", keeping).keep([wide_piece(10)], 0)
    assert store_of("one", keeping) is kept.store
    assert store_of("other", keeping) is not kept.store
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: store_of("new", keeping), range(64)))
    assert len(set(map(id, stores))) == 1


# ---- the file --------------------------------------------------------------------------------------------------------


def test_scratch_has_no_name_and_is_private(tmp_path, monkeypatch):
    folder = tmp_path / "new"
    store = store_in(folder, "codes", monkeypatch)
    shard = stored_shard("binary", store)
    assert list(folder.iterdir()) == []
    status = os.fstat(store.scratch()._file.fileno())
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_nlink == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for text in (
        repr(shard),
        repr(shard.pieces),
        repr(store),
        repr(store.keeping),
        repr(store.scratch()),
    ):
        assert "array" not in text
        assert KEY.hex() not in text
        assert repr(KEY) not in text


def test_scratch_is_closed_when_the_last_piece_is_collected(tmp_path, monkeypatch):
    store = store_in(tmp_path, "nothing", monkeypatch)
    shard = stored_shard("binary", store)
    shard.answer(model_of("binary"), queries_of("binary", 2)["main"])
    file = store.scratch()._file
    del shard
    gc.collect()
    assert file.closed
    assert not store._scratch


def test_space_is_used_again(tmp_path):
    scratch = Scratch(str(tmp_path))
    rng = np.random.default_rng(0)
    live = {}
    for step in range(400):
        if live and rng.random() < 0.5:
            del live[rng.choice(list(live))]
        part = rng.integers(0, 256, rng.integers(1, 2000), dtype=np.uint8)
        live[step] = scratch.write([part[:100], part[100:]]), part
    spans = sorted((e.offset, e.offset + e.size) for e, _ in live.values())
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    for extent, part in live.values():
        out = np.empty(extent.size, np.uint8)
        extent.read([0, 1], out)
        extent.check([0, 1], out)
        np.testing.assert_array_equal(out, part)
    assert scratch._end < 3 * sum(e.size for e, _ in live.values())
    del extent, out
    live.clear()
    scratch.allocate(1)
    assert scratch._holes == [(1, scratch._end - 1)]  # the holes are one again


def test_a_hole_of_the_very_size_is_taken(tmp_path):
    scratch = Scratch(str(tmp_path))
    gone, kept = (scratch.write([np.zeros(100, np.uint8)]) for _ in range(2))
    offset = gone.offset
    del gone
    assert scratch.write([np.ones(100, np.uint8)]).offset == offset
    assert kept.offset == 100


def test_more_parts_than_a_system_call_takes_are_written(tmp_path):
    scratch = Scratch(str(tmp_path))
    whole = np.random.default_rng(0).integers(0, 256, 3000, dtype=np.uint8)
    extent, out = scratch.write(list(whole.reshape(-1, 2))), np.empty_like(whole)
    extent.read(range(1500), out)
    np.testing.assert_array_equal(out, whole)


def test_a_buffer_is_used_again(tmp_path):
    scratch = Scratch(str(tmp_path))
    buffer = scratch.borrow(100)
    scratch.give_back(buffer)
    assert scratch.borrow(100) is buffer


@contextmanager
def full_at(size):
    """Let no file grow beyond a size; the system refuses it, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 10_000, 30_000])
def test_a_full_disk_says_so_and_leaves_nothing_half_used(size, tmp_path, monkeypatch):
    store = store_in(tmp_path, "nothing", monkeypatch)
    with full_at(size), pytest.raises(ScratchError, match="resume") as caught:
        stored_shard("binary", store)
    assert str(tmp_path) in str(caught.value)
    assert not any(ch.isdigit() for ch in str(caught.value).replace(str(tmp_path), ""))
    model, query = model_of("binary"), queries_of("binary", 2)["main"]
    got = stored_shard("binary", store).answer(model, query)
    np.testing.assert_array_equal(got, memory_shard("binary").answer(model, query))


@pytest.mark.parametrize("system", ["this", "macOS"])
def test_room_for_scores_is_taken_before_the_first_round(system, tmp_path, monkeypatch):
    if system == "macOS":
        monkeypatch.delattr(os, "posix_fallocate")
        monkeypatch.setattr(scratch_module, "ZEROS", np.zeros(5000, np.uint8))
    store = store_in(tmp_path, "nothing", monkeypatch)
    kept = [p for k, part in enumerate(pieces_of("binary")) for p in store.keep(part, k)]
    with full_at(store.scratch()._end), pytest.raises(ScratchError):
        Shard(kept, shape_of("binary", **WEIGHT), BINS, ROWS_KEY)
    model, query = model_of("binary"), queries_of("binary", 2)["main"]
    got = stored_shard("binary", store).answer(model, query)
    np.testing.assert_array_equal(got, memory_shard("binary").answer(model, query))


def test_a_folder_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store("fit", Keeping(str(tmp_path / "file" / "sub"), None, None, KEY))
    store.keeping = replace(store.keeping, memory_limit=0)
    with pytest.raises(ScratchError, match="Not a directory"):
        store.keep([wide_piece(10)], 0)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="SKIPPED LOUDLY: a real full disk needs root, to mount a tmpfs"
)
def test_a_real_full_disk_says_so(tmp_path, monkeypatch):
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("SKIPPED LOUDLY: root may not mount a tmpfs here")
    try:
        store = store_in(tmp_path, "nothing", monkeypatch)
        with pytest.raises(ScratchError, match="No space left on device"):
            stored_shard("binary", store)
        del store
        gc.collect()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_limit_too_small_for_one_block_says_the_least_that_works():
    shape = shape_of("binary")
    with pytest.raises(PlanError, match="at least") as caught:
        check_limit(Execution(memory_limit=1 << 28), shape, 2)
    least = int(str(caught.value).split("at least ")[1].split(" ")[0])
    check_limit(Execution(memory_limit=least), shape, 2)
    with pytest.raises(PlanError):
        check_limit(Execution(memory_limit=least - 1), shape, 2)
    with pytest.raises(PlanError):
        check_limit(Execution(memory_limit=least), shape, 200)
    check_limit(Execution(memory_limit=None), shape, 200)


@pytest.mark.parametrize(
    ("cache", "limit", "message"),
    [("memroy", None, "unknown"), ("", None, "unknown"), ("memory", 1 << 33, "cache='auto'")],
)
def test_a_cache_that_is_no_place_or_contradicts_the_limit_raises(cache, limit, message):
    with pytest.raises(PlanError, match=message):
        check_limit(Execution(cache=cache, memory_limit=limit), shape_of("binary"), 1)


@pytest.mark.parametrize(
    "cache", ["auto", "memory", "disk", "/scratch/me", "./here", "memory://codes"]
)
def test_a_place_is_taken(cache):
    check_limit(Execution(cache=cache), shape_of("binary"), 1)


# ---- a Zarr store ----------------------------------------------------------------------------------------------------

URLS = {"path": "{}/codes.zarr", "file": "file://{}/codes.zarr", "memory": "memory://{}/codes"}


def version(mark=1, bins=BINS, block_rows=256):
    return codes_version(KEY, bins, block_rows, mark)


def zarr_store(folder, place="path", key=KEY):
    return Store("fit", Keeping(URLS[place].format(folder), None, str(folder), key))


@pytest.mark.parametrize("place", thinned(URLS, every=3))
def test_a_zarr_store_gives_back_a_chunk_of_the_same_rows_and_bins_alone(place, tmp_path):
    chunks = [tuple(pieces) for pieces in pieces_of("binary")]
    for number, pieces in enumerate(chunks):
        zarr_store(tmp_path, place).keep(pieces, number, version(100 + number))
    pieces = []
    for number in range(3):
        pieces += zarr_store(tmp_path, place).recall(number, version(100 + number))
    shard = Shard(merge_pieces(pieces, 256), shape_of("binary", **WEIGHT), BINS, ROWS_KEY)
    queries, model = queries_of("binary", 2), model_of("binary")
    for name in ("main", "part", "nodes"):
        got = shard.answer(model, queries[name])
        np.testing.assert_array_equal(got, memory_shard("binary").answer(model, queries[name]))
    recall = zarr_store(tmp_path, place).recall
    assert recall(0, version(101)) is None  # other rows
    assert recall(3, version(103)) is None
    assert recall(0, version(100, bins=BINS[::-1])) is None
    assert recall(0, version(100, block_rows=512)) is None
    assert zarr_store(tmp_path, place, key=bytes(32)).recall(0, version(100)) is None
    zarr_store(tmp_path, place).keep(chunks[0], 0, version(100))  # a task that runs twice
    assert len(recall(0, version(100))) == len(chunks[0])
    remove_saved(URLS[place].format(tmp_path), KEY)
    assert recall(0, version(100)) is None
    remove_saved(URLS[place].format(tmp_path), KEY)
    remove_saved("auto", KEY)


def objects_of(folder):
    return sorted(p for p in (folder / "codes.zarr").rglob("*") if p.is_file())


def test_objects_are_sealed(tmp_path):
    n, m = 4096, 8
    piece = Piece(np.full((m, n), 7, np.uint8), np.full(n, 1, np.uint8), None)
    zarr_store(tmp_path).keep([piece], 0, version())
    found = objects_of(tmp_path)
    assert found
    for path in found:
        data = path.read_bytes()
        assert bytes(16 * [7]) not in data
        assert b"zarr_format" not in data  # the metadata would tell how many rows there are
        assert b"uint8" not in data


def test_a_chunk_that_is_damaged_or_not_whole_is_not_there(tmp_path):
    rows = wide_piece(500, m=3)
    pieces = [
        rows,
        replace(rows, label=np.zeros(500, np.uint8)),
    ]  # Zarr leaves out zeros if it is allowed to
    zarr_store(tmp_path).keep(pieces, 0, version())
    assert len(zarr_store(tmp_path).recall(0, version())) == 2
    arrays = [
        p.parent
        for p in objects_of(tmp_path)
        if p.name == "zarr.json" and (p.parent / "c").exists()
    ]
    assert len(arrays) == 7  # codes, label and parts, twice, and the number of pieces
    for path in [p for array in arrays for p in array.rglob("*") if p.is_file()]:
        data = path.read_bytes()
        for damaged in (data[:-1] + bytes([data[-1] ^ 1]), data[: len(data) // 2], None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            assert zarr_store(tmp_path).recall(0, version()) is None, path
            path.write_bytes(data)
    assert len(zarr_store(tmp_path).recall(0, version())) == 2


def test_an_object_in_the_place_of_another_is_refused(tmp_path):
    zarr_store(tmp_path).keep([wide_piece(500), wide_piece(501)], 0, version())
    (codes,) = [p for p in objects_of(tmp_path) if p.match("0/0/label/c/0")]
    (other,) = [p for p in objects_of(tmp_path) if p.match("0/1/label/c/0")]
    codes.write_bytes(other.read_bytes())
    assert zarr_store(tmp_path).recall(0, version()) is None


def test_a_zarr_store_that_is_full_or_lies_says_so(tmp_path, monkeypatch):
    with full_at(3000), pytest.raises(ScratchError, match=r"codes\.zarr.*resume") as caught:
        zarr_store(tmp_path).keep([wide_piece(500)], 0, version())
    assert not any(ch.isdigit() for ch in str(caught.value).replace(str(tmp_path), ""))
    assert zarr_store(tmp_path).recall(0, version()) is None
    with full_at(0), pytest.raises(ScratchError, match=r"codes\.zarr.*resume"):
        Durable(str(tmp_path / "codes.zarr"), bytes(32), version()).finish(0, 1)
    monkeypatch.setattr(Durable, "_read", lambda *_: wide_piece(501))
    with pytest.raises(ScratchError, match="not what was written"):
        zarr_store(tmp_path).keep([wide_piece(500)], 0, version())


def test_an_unknown_protocol_is_refused():
    with pytest.raises(PlanError, match="nosuch://"):
        check_limit(Execution(cache="nosuch://bucket/codes.zarr"), shape_of("binary"), 1)


def test_a_damaged_block_ends_every_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "INLINE_VALUES", 0)
    store = store_in(tmp_path, "codes", monkeypatch)
    shard = stored_shard("binary", store)
    model, query = model_of("binary"), queries_of("binary", 2)["main"]
    extent = shard.pieces[-1].extent
    file = store.scratch()._file.fileno()
    (byte,) = os.pread(file, 1, extent.offset)
    os.pwrite(file, bytes([byte ^ 1]), extent.offset)
    with ThreadPoolExecutor(3) as pool, ThreadPoolExecutor(1) as caller:
        for _ in range(10):
            asked = caller.submit(shard.answer, model, query, 3, pool)
            with pytest.raises(LostCodesError):
                asked.result(LONGEST)


@pytest.mark.parametrize("url", ["~/x.zarr", "file://~/x.zarr"])
def test_a_tilde_is_the_users_folder_when_codes_are_kept_and_removed(url, tmp_path, monkeypatch):
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    durable = Durable(url, KEY, b"version")
    durable.begin(0)
    assert list((tmp_path / "home" / "x.zarr").iterdir())
    durable.remove()
    assert not list((tmp_path / "home" / "x.zarr").iterdir())
    assert not list((tmp_path / "work").iterdir())


def test_nothing_of_a_zarr_store_can_be_read_without_its_key(tmp_path):
    store = Sealed(LocalStore(str(tmp_path / "sealed")), bytes(32))
    secret = b"a row of a person, as it is"
    buffer = default_buffer_prototype().buffer

    async def write():
        await store.set("one", buffer.from_bytes(secret))
        await store._set_many([("many", buffer.from_bytes(secret))])
        await store.set_if_not_exists("new", buffer.from_bytes(secret))
        return [
            (await store.get(k, default_buffer_prototype())).to_bytes() for k in ("one", "many")
        ]

    assert asyncio.run(write()) == [secret, secret]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert not any(secret in path.read_bytes() for path in files)


def test_a_zarr_store_has_no_way_around_its_seal():
    """Later versions of Zarr add ways to read and write, such as without a loop of events; none may be passed on."""
    own = {name for name in vars(Sealed) if not name.startswith("__")}
    for base in Sealed.__mro__[1:]:
        assert base in (zarr.abc.store.Store, ABC, object)
    passed_on = {"exists", "delete", "delete_dir", "list", "list_prefix", "list_dir", "close"}
    assert own - passed_on - {"_abc_impl"} == {
        *("supports_writes", "supports_deletes", "supports_listing", "with_read_only"),
        *("get", "set", "get_partial_values"),
    }


PIPELINES = ["BatchedCodecPipeline", "FusedCodecPipeline"]  # earlier versions have the first alone


@pytest.mark.parametrize("pipeline", [name for name in PIPELINES if hasattr(codec_pipeline, name)])
def test_codes_are_encrypted_whichever_way_zarr_writes(pipeline, tmp_path):
    durable = Durable(str(tmp_path / "x.zarr"), KEY, b"version")
    secret = np.frombuffer(b"rows of people, as they are: " * 30, np.uint8).reshape(3, -1).copy()
    label = np.zeros(secret.shape[1], np.uint8)
    with zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{pipeline}"}):
        durable.begin(0)
        durable.save(0, 0, Piece(secret, label, None, None))
        durable.finish(0, 1)
        (piece,) = durable.load(0)
    np.testing.assert_array_equal(piece.codes, secret)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(b"as they are" in data or b"zarr_format" in data for data in files)


def test_a_chunk_that_is_written_again_is_not_there_until_it_is_whole(tmp_path):
    durable = Durable(str(tmp_path / "x.zarr"), KEY, b"version")
    piece = next(iter(next(pieces_of("binary"))))
    durable.begin(0)
    durable.save(0, 0, piece)
    durable.finish(0, 1)
    assert durable.load(0) is not None
    durable.begin(0)
    assert durable.load(0) is None
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "x.zarr").iterdir())
