"""SipHash-1-3 against the paper, word by word, and the sum of rows."""

import numpy as np
import pytest

from dpgb_dask.private.reading.fingerprint import (
    MODULUS,
    column_keys,
    fingerprint_rows,
    lane_keys,
    mark_key,
    pack_rows,
    shorten_rows,
)

MASK = (1 << 64) - 1


def siphash(words, k0, k1):
    """SipHash-1-3 of whole words, without the length word."""
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D]
    v += [k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotate(x, bits):
        return (x << bits | x >> (64 - bits)) & MASK

    def sip_round():
        v[0] = (v[0] + v[1]) & MASK
        v[1] = rotate(v[1], 13) ^ v[0]
        v[0] = rotate(v[0], 32)
        v[2] = (v[2] + v[3]) & MASK
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & MASK
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & MASK
        v[1] = rotate(v[1], 17) ^ v[2]
        v[2] = rotate(v[2], 32)

    for word in words:
        v[3] ^= word
        sip_round()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        sip_round()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


@pytest.mark.parametrize("n", [0, 1, 511, 512, 1300])
def test_fingerprint_is_the_sum_of_siphashes(n):
    words = np.random.default_rng(n).integers(0, 2**64, (3, n), dtype=np.uint64)
    keys = lane_keys(bytes(range(32)))
    expected = 0
    for i in range(n):
        row = [int(word) for word in words[:, i]]
        for lane, (k0, k1) in enumerate(keys.tolist()):
            expected += siphash(row, k0, k1) << (64 * lane)
    assert fingerprint_rows(words, keys) == expected % MODULUS


def test_packing_keeps_every_bit():
    cells = np.array([[1], [2], [3], [65535], [5]], np.uint16)
    words = pack_rows(cells, np.array([-65536]), np.array([7]))
    assert words[:, 0].tolist() == [0xFFFF000300020001, 5, 0xFFFF000000000007]
    for m in (1, 2, 3, 4):
        words = pack_rows(cells[:m], np.array([1]), np.array([1]))
        assert words[:, 0].tolist() == [0xFFFF000300020001 % (1 << 16 * m), (1 << 32) + 1]


def test_keys_differ_by_lane_and_need_32_bytes():
    keys = lane_keys(bytes(32))
    assert len(np.unique(keys)) == 8
    with pytest.raises(ValueError, match="32 bytes"):
        lane_keys(b"short")


def nh(words, keys):
    """NH of whole 64-bit words, as in the paper."""
    total = 0
    for word, key in zip(words, keys, strict=True):
        low = ((word & 0xFFFFFFFF) + (key & 0xFFFFFFFF)) & 0xFFFFFFFF
        high = ((word >> 32) + (key >> 32)) & 0xFFFFFFFF
        total += low * high
    return total & MASK


@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_short_rows_are_nh_whatever_the_layout(order, dtype):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(77, 5)).astype(dtype)
    label, keep = rng.integers(-9, 9, 77), rng.random(77) < 0.5
    keys = column_keys(bytes(range(32)), 7)
    given = (
        np.repeat(table, 2, axis=0)[::2] if order == "strided" else np.asarray(table, order=order)
    )
    bits = table.view(np.uint64 if dtype is np.float64 else np.uint32)
    words = np.column_stack([label.view(np.uint64), keep.astype(np.uint64), bits.astype(np.uint64)])
    expected = [nh(row, keys.tolist()) for row in words.tolist()]
    assert shorten_rows([label, keep, given], keys).tolist() == expected
    assert shorten_rows([label, keep, *given.T], keys).tolist() == expected


def test_keys_of_marks_are_their_own():
    key = bytes(range(32))
    keys = np.concatenate([lane_keys(key).ravel(), mark_key(key).ravel(), column_keys(key, 40)])
    assert len(np.unique(keys)) == 8 + 2 + 40
    np.testing.assert_array_equal(column_keys(key, 40)[:9], column_keys(key, 9))
