"""Numba loops over rows of integer codes, their common decorator, and the checks of arrays that they are given."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.registry import cpu_target
from numpy.typing import DTypeLike, NDArray

from dpgb_dask.kernels.cache import KernelCache

F = TypeVar("F", bound=Callable[..., object])
_njit: Any = numba.njit  # its types leave out the options that say what is not compiled
_config: Any = numba.config
LINE = 64  # bytes of the cache's lines


def _compiles_for(*features: str) -> bool:
    """Return whether kernels are compiled for a processor that has some features, in LLVM's words.

    One that is switched off takes those that build on it along, even if they are switched on beside it: name all.
    """
    _, _, given = cpu_target.target_context.codegen().magic_tuple()
    known = given.split(",")
    have = all(f"+{name}" in known and f"-{name}" not in known for name in features)
    return have and not _config.DISABLE_JIT


AVX512 = _compiles_for("avx", "avx2", "avx512f")
AVX512_VBMI = AVX512 and _compiles_for("avx512bw", "avx512vbmi")


def kernel(function: F) -> F:
    """Compile a row loop that Python calls: no GIL, kept on disk (`cache`); keeps type hints, which ``njit`` drops."""
    compiled = _njit(nogil=True, no_cfunc_wrapper=True)(function)
    if compiled is not function:  # NUMBA_DISABLE_JIT
        compiled._cache = KernelCache(function)  # noqa: SLF001 - numba has no other way
    return cast(F, compiled)


def inner(function: F) -> F:
    """Compile a part of row loops, which only kernels call: without the entry from Python, a fifth of the work."""
    return cast(F, _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


def readable(name: str, array: NDArray[Any], dtype: DTypeLike, ndim: int) -> NDArray[Any]:
    """Return an input array as a read-only view, or as it is if it is read-only.

    Dask sometimes passes read-only memory, for which numba compiles a second version. If every input is
    read-only, there is only one version, and no kernel can write to its inputs.

    Raises
    ------
    ValueError
        If dtype, number of axes or contiguity differ; no length is printed.
    """
    flags = _checked(name, array, dtype, ndim)
    if not flags.writeable:
        return array
    view = array.view()
    view.setflags(write=False)
    return view


def writable(name: str, array: NDArray[Any], dtype: DTypeLike, ndim: int) -> NDArray[Any]:
    """Check an array that a kernel writes to, and return it.

    Raises
    ------
    ValueError
        If it is read-only, or its dtype, number of axes or contiguity differ.
    """
    if not _checked(name, array, dtype, ndim).writeable:
        raise ValueError(f"{name} is read-only, and is written to. Pass a copy.")
    return array


def _checked(name: str, array: NDArray[Any], dtype: DTypeLike, ndim: int) -> Any:
    """Return the flags of an array, of this dtype and number of axes, in C's order."""
    if array.dtype != dtype or array.ndim != ndim:
        raise ValueError(
            f"{name} has dtype={array.dtype} and {array.ndim} axes, not "
            f"dtype={np.dtype(dtype)} and {ndim}. Convert it before the kernel."
        )
    flags = array.flags
    if not flags.c_contiguous:
        raise ValueError(f"{name} is not C-contiguous. Pass np.ascontiguousarray({name}).")
    return flags


def same_rows(**arrays: NDArray[Any] | None) -> None:
    """Check that the last axes have the same length; the message names the arrays and prints no length.

    Raises
    ------
    ValueError
        If two of them differ.
    """
    known = None
    for array in arrays.values():
        if array is None:
            continue
        if known is None:
            known = array.shape[-1]
        elif array.shape[-1] != known:
            raise ValueError(
                f"{', '.join(arrays)} differ in rows. Pass the same row block of each."
            )
