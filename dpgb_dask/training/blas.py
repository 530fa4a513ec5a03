"""The BLAS libraries that this process has loaded: which they are, and one thread in each of them."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

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
        found = _found(len(sys.modules))
        for library in found.lib_controllers:
            # from threadpoolctl 3.8 on, a limit of another thread's keeps ours from any effect, without a word
            if hasattr(library, "clear_controlling_thread"):
                library.clear_controlling_thread(force=True)
        with found.limit(limits=1, user_api="blas"):
            yield


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
