"""The BLAS libraries that this process has loaded: which they are, and one thread in each of them."""

import sys
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[Any]:
    """Run linear algebra on one thread meanwhile: several would add in another order and give other bits."""
    return _found(len(sys.modules)).limit(limits=1, user_api="blas")


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
