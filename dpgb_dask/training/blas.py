"""The BLAS libraries that this process has loaded: which they are, and one thread in each of them."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

_LOCK = threading.RLock()
# a child would be left with one thread, and a lock that none of its threads holds
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run linear algebra on one thread meanwhile: several would add in another order and give other bits.

    The number of threads is the process's. So fits in several threads take turns, lest one puts it back while another
    computes: what is inside should wait for nothing.
    """
    with _LOCK:
        found = _found(len(sys.modules)).lib_controllers
        libraries = [one for one in found if one.user_api == "blas" and one.num_threads]
        before = [library.num_threads for library in libraries]
        try:
            for library in libraries:
                _set_threads(library, 1)
            yield
        finally:
            _put_back(libraries, before)


def _put_back(libraries: list[Any], before: list[int]) -> None:
    """Set each library's number of threads, and raise an interrupt once all are set."""
    interrupt, done = None, False
    while not done:
        try:
            for library, n_threads in zip(libraries, before, strict=True):
                _set_threads(library, n_threads)
            done = True
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _set_threads(library: Any, n_threads: int) -> None:
    """Set a library's number of threads, whoever else has set it, and leave it for others to set."""
    # from threadpoolctl 3.8 on, a number that a thread has set keeps other threads from setting one, without a word
    release = getattr(library, "clear_controlling_thread", lambda **_: None)
    release(force=True)
    library.set_num_threads(n_threads)
    release(force=True)


def names() -> list[str]:
    """Return name, version and kernels of each library, in order."""
    told = [info for info in _found(len(sys.modules)).info() if info["user_api"] == "blas"]
    return sorted(
        {f"{i['internal_api']} {i['version']} {i.get('architecture', '')}".strip() for i in told}
    )


@lru_cache(maxsize=1)
def _found(_n_modules: int) -> ThreadpoolController:
    """Look for libraries, which takes milliseconds: again only if a module was imported that may have brought one."""
    return ThreadpoolController()
