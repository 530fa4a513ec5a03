"""Tables by planes of bytes: the sums of entries, as NumPy finds them, for any entries, codes and numbers of both."""

import os
import platform
import subprocess
import sys

import numba
import numpy as np
import pytest

from dpgb_dask.kernels import byte_tables
from dpgb_dask.kernels.byte_tables import BYTES, MOST_TABLES, REGISTERS, add_planes, planes_of

ENDS = np.iinfo(np.int32)


@numba.njit
def compiled(codes, lo, column, planes, least, score):
    add_planes(codes, lo, column, planes, least, score)


def add(*arguments):
    with np.errstate(over="ignore" if numba.config.DISABLE_JIT else None):
        compiled(*arguments)


def sums(codes, column, tables):
    """What each row's score gets; NumPy's integers wrap around as those of kernels do."""
    last = tables.shape[1] - 1
    entries = [table[np.minimum(codes[j], last)] for j, table in zip(column, tables, strict=True)]
    return np.sum(entries, axis=0, dtype=np.int64).astype(np.int32)


@pytest.mark.parametrize("entries", [(-9, 9), (-(1 << 15), (1 << 15) - 1), (ENDS.min, ENDS.max)])
@pytest.mark.parametrize("size", byte_tables.PLANE_SIZES)
@pytest.mark.parametrize("n", [0, 1, BYTES - 1, BYTES, REGISTERS * BYTES, 5 * BYTES + 9])
def test_every_row_gets_the_entries_of_its_codes(n, size, entries):
    rng = np.random.default_rng(n)
    codes = rng.integers(0, 256, (7, n + 5), np.uint8)  # some beyond their tables
    column = np.array([6, 0, 0, 3, 4])
    tables = rng.integers(*entries, (2, 5, size), np.int32, endpoint=True)
    planes, least = planes_of(tables.reshape(2, -1), np.full(5, size))
    assert planes.shape == (2, 5, 4 if entries[1] == ENDS.max else 2, size)
    for k in range(2):
        score = rng.integers(*entries, n, np.int32)
        want = score + sums(codes[:, 5:], column, tables[k])
        add(codes, 5, column, planes[k], least[k], score)
        np.testing.assert_array_equal(score, want)


@pytest.mark.parametrize("n_tables", [1, MOST_TABLES, MOST_TABLES + 1, 2 * MOST_TABLES + 3])
def test_sums_of_the_largest_bytes_do_not_wrap_around(n_tables):
    n = REGISTERS * BYTES + BYTES + 1
    tables = np.tile(np.array([0, (1 << 16) - 1] * 32, np.int32), (1, n_tables, 1))
    planes, least = planes_of(tables.reshape(1, -1), np.full(n_tables, 64))
    assert planes.shape[2] == 2
    score = np.zeros(n, np.int32)
    codes = np.resize(np.array([1, 1, 0], np.uint8), (1, n))
    add(codes, 0, np.zeros(n_tables, np.int64), planes[0], least[0], score)
    np.testing.assert_array_equal(score, codes[0] * np.int32(n_tables * ((1 << 16) - 1)))


def test_no_table_adds_nothing():
    planes, least = planes_of(np.zeros((1, 0), np.int32), np.zeros(0, np.int64))
    score = np.arange(70, dtype=np.int32)
    add(np.zeros((1, 70), np.uint8), 0, np.zeros(0, np.int64), planes[0], least[0], score)
    np.testing.assert_array_equal(score, np.arange(70))


COMPILED = """
import numba
from dpgb_dask import kernels
from dpgb_dask.kernels.byte_tables import look_up

@numba.njit("void(uint8[::1], uint8[::1], uint8[::1])")
def compiled(codes, map_, out):
    look_up(codes, map_, out)

print(kernels.AVX512_VBMI, "zmm" in compiled.inspect_asm(compiled.signatures[0]))
"""
ALL = "+avx,+avx2,+avx512f,+avx512bw,+avx512vbmi"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names features of x86-64")
@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="looks at compiled code")
@pytest.mark.parametrize(
    ("features", "found"),
    [
        (ALL, "True True"),
        (ALL.replace("+avx512bw", "-avx512bw"), "False False"),
        (f"{ALL},-avx512f", "False False"),
        (f"{ALL},-avx2", "False False"),
    ],
)
def test_registers_are_used_where_all_that_they_build_on_is_switched_on(features, found):
    """Else LLVM ends the process, as it cannot compile the instructions."""
    own = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", COMPILED], env=own, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-500:]
    assert ended.stdout.strip() == found
