import numba
import numpy as np
import pytest
from helpers import naive_draws, naive_siphash

from dpgb_dask.kernels import draw

KEY = bytes(range(16))
# Aumasson and Bernstein's vectors_sip64: hashes of the bytes 0, 1, …, length - 1 under KEY
VECTORS = {
    0: "310e0edd47db6f72",
    1: "fd67dc93c539f874",
    7: "37d1018bf50002ab",
    8: "6224939a79f5f593",
    15: "e545be4961ca29a1",
    16: "db9bc2577fcc2a3f",
    24: "94af49f6c650adb8",
    63: "724506eb4c328a95",
}


@pytest.fixture(autouse=True)
def _no_scalar_warnings():
    """Uncompiled, numpy's scalars warn of an overflow that compiled code takes in silence."""
    with np.errstate(all="ignore" if numba.config.DISABLE_JIT else None):
        yield


@pytest.mark.parametrize("length", VECTORS)
def test_the_oracle_gives_the_vectors_of_the_paper(length):
    got = naive_siphash(KEY, bytes(range(length)))
    assert got.to_bytes(8, "little").hex() == VECTORS[length]


def test_draws_gives_the_vector_of_24_bytes():
    group, *row = np.frombuffer(bytes(range(24)), "<u8").tolist()
    out = np.empty(1, np.uint32)
    draw.draws(KEY, group, np.array([row], np.uint64), out)
    assert out.astype("<u4").tobytes().hex() == VECTORS[24][:8]


@pytest.mark.parametrize("group", [0, 1, 2**32, 2**64 - 1])
def test_draws_hash_group_and_row(group):
    rng = np.random.default_rng(0)
    index = rng.integers(0, 2**64, (50, 2), np.uint64)
    index[:5] = [[0, 0], [1, 0], [0, 1], [2**64 - 1, 0], [2**64 - 1, 2**64 - 1]]
    key = rng.bytes(16)
    out = np.empty(50, np.uint32)
    draw.draws(key, group, index, out)
    np.testing.assert_array_equal(out, naive_draws(key, group, index))


def test_draws_do_not_depend_on_the_block():
    index = np.zeros((40, 2), np.uint64)
    index[:, 0] = np.arange(40)
    whole, parts = np.empty(40, np.uint32), np.empty(40, np.uint32)
    draw.draws(KEY, 3, index, whole)
    for rows in (slice(0, 7), slice(7, 8), slice(8, 40)):
        draw.draws(KEY, 3, index[rows], parts[rows])
    np.testing.assert_array_equal(whole, parts)
    assert len(np.unique(whole)) == 40


def test_draws_name_what_does_not_fit():
    index, out = np.zeros((3, 2), np.uint64), np.empty(3, np.uint32)
    with pytest.raises(ValueError, match="16 bytes"):
        draw.draws(bytes(8), 0, index, out)
    with pytest.raises(ValueError, match="differ in rows"):
        draw.draws(KEY, 0, index[:2], out)
    with pytest.raises(ValueError, match="two words"):
        draw.draws(KEY, 0, np.zeros((3, 3), np.uint64), out)
    with pytest.raises(ValueError, match="index has dtype=int64"):
        draw.draws(KEY, 0, index.astype(np.int64), out)
