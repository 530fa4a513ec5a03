"""Packed tables and partitions: they come back to the bit, and take the bytes that what is new in them needs."""

import pickle

import numpy as np
import pytest

from dpgb_dask.private.rounds.packing import (
    pack_lines,
    pack_partitions,
    pack_tables,
    shortest,
    unpack_lines,
    unpack_partitions,
    unpack_tables,
)

ENDS = np.iinfo(np.int32)
VALUES = {
    "ends": [ENDS.min, ENDS.max],
    "bytes": [0, 127, -128, 254, 255, -127, 128],
    "small": [-1, 0, 1],
    "zeros": [0],
    "any": np.arange(ENDS.min, ENDS.max, 1 << 24),
}


def passed_on(value):
    """What another process reads."""
    return pickle.loads(pickle.dumps(value))


def drawn(rng, name, n):
    return rng.choice(VALUES[name], n).astype(np.int32)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("before", [None, *VALUES])
def test_lines_come_back(name, before):
    rng = np.random.default_rng(0)
    for sizes in ([1], [1, 1, 2], [256, 3, 1, 187], [4096, 4096]):
        n = np.array(sizes)
        values = drawn(rng, name, n.sum())
        known = None if before is None else drawn(rng, before, n.sum())
        packed = passed_on(pack_lines(values, n, known))
        found = unpack_lines(packed, n, known)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("seed", range(20))
def test_lines_of_any_kind_beside_each_other_come_back(seed):
    """Smooth and rough ones, some that follow those before, some constant: each has its own way of being packed."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 257, 30)
    n = sizes.sum()
    known = (np.repeat(2.0 ** rng.integers(0, 10, 30), sizes) * rng.normal(size=n)).astype(np.int32)
    moved = np.repeat(rng.choice([-1, 0, 0.5, 1, 1.1, 6], 30), sizes) * known
    noise = rng.normal(size=n + 1)
    walk = np.cumsum(noise[1:])
    kinds = noise[1:], walk, np.cumsum(noise[1:] + 0.7 * noise[:-1]), np.cumsum(walk)
    new = np.choose(np.repeat(rng.integers(0, 4, 30), sizes), kinds)
    new -= np.repeat(new[np.cumsum(sizes) - sizes], sizes)
    new *= np.repeat(2.0 ** rng.integers(6, 16, 30), sizes)
    values = np.clip(moved + new, ENDS.min, ENDS.max).astype(np.int32)
    packed = passed_on(pack_lines(values, sizes, known))
    assert set(packed.halves) == {0, 1, 2}
    np.testing.assert_array_equal(unpack_lines(packed, sizes, known), values)


@pytest.mark.parametrize("n_scores", [1, 3])
def test_tables_come_back(n_scores):
    rng = np.random.default_rng(0)
    shapes = [(size, n_scores) for size in (256, 1, 2, 187)]
    tables, before = (
        tuple(rng.integers(-1000, 1000, shape, np.int32) for shape in shapes) for _ in range(2)
    )
    for known in (None, before):
        found = unpack_tables(passed_on(pack_tables(tables, known)), known)
        for table, want in zip(found, tables, strict=True):
            assert table.flags.c_contiguous
            assert table.dtype == np.int32
            np.testing.assert_array_equal(table, want)


@pytest.mark.parametrize("n_scores", [1, 3])
@pytest.mark.parametrize("changed", [(), (2,), (0, 3), (0, 1, 2, 3)])
def test_tables_that_did_not_change_are_those_before(changed, n_scores):
    rng = np.random.default_rng(0)
    before = [rng.integers(-1000, 1000, (size, n_scores), np.int32) for size in (256, 1, 32, 187)]
    tables = [table + 5 if j in changed else table for j, table in enumerate(before)]
    packed = passed_on(pack_tables(tables, before))
    for j, (table, want) in enumerate(zip(unpack_tables(packed, before), tables, strict=True)):
        assert (table is before[j]) == (j not in changed)
        np.testing.assert_array_equal(table, want)


def bytes_of(tables, before=None):
    return len(shortest(pickle.dumps(pack_tables(tables, before))))


def test_tables_take_the_bytes_of_what_is_new_in_them():
    """Noise of one bit more takes one bit more; a multiple of the tables before, hardly anything."""
    rng = np.random.default_rng(0)
    n = 100 * 180
    walk = np.cumsum(rng.laplace(0, 500, (100, 180)), axis=1)
    tables, twice = (tuple((k * walk[:, :, None]).astype(np.int32)) for k in (1, 2))
    entropy = n * (np.log2(2 * np.e * 500)) / 8
    assert 0.97 * entropy < bytes_of(tables) < 1.05 * entropy
    assert bytes_of(twice) - bytes_of(tables) == pytest.approx(n / 8, rel=0.05)
    steady = tuple((1.5 * walk[:, :, None] + rng.integers(-2, 3, (100, 180, 1))).astype(np.int32))
    assert bytes_of(steady, tables) < 0.35 * bytes_of(steady)
    same = bytes_of(tuple(map(np.copy, tables)), tables)
    assert same < 600


def partition(rng, n_bins, n_leaves):
    cuts = rng.choice(np.arange(1, n_bins), n_leaves - 1, replace=False)
    return np.searchsorted(np.sort(cuts), np.arange(n_bins), side="right").astype(np.uint8)


def test_partitions_come_back():
    rng = np.random.default_rng(0)
    maps = [partition(rng, n, k) for n, k in ((256, 256), (256, 1), (1, 1), (187, 32), (2, 2))]
    maps += [
        rng.integers(0, 7, 90, np.uint8),  # of categories: in no order
        np.array([1, 1, 2], np.uint8),  # ordered, but from 1 on
        np.array([0, 2], np.uint8),
        np.array([3], np.uint8),
    ]
    for own in (maps, maps[:5], maps[5:], []):
        found = unpack_partitions(passed_on(pack_partitions(own)))
        assert len(found) == len(own)
        for map_, want in zip(found, own, strict=True):
            assert map_.dtype == np.uint8
            np.testing.assert_array_equal(map_, want)


def test_partitions_take_hardly_more_than_the_choice_of_their_cuts():
    rng = np.random.default_rng(0)
    maps = [partition(rng, 182, 32) for _ in range(100)]
    packed = len(pickle.dumps(pack_partitions(maps)))
    choices = 100 * np.log2(np.arange(151, 182) / np.arange(1, 32)).sum() / 8
    assert choices < packed < 1.3 * choices
