"""Versions of this package and of the libraries that its floats depend on, as installed.

They are looked up once, when this module is imported and before anything is charged. Python's search goes through a
list of finders that an import in another thread may be changing, and then does not find what is there.
"""

import sys
from collections.abc import Mapping
from importlib.metadata import version

VERSIONS = {name: version(name) for name in ("dpgb_dask", "numpy", "scipy", "numba")}
COMPARED = ("dpgb_dask", "numba")  # and Python: what all processes of a fit have to share


def in_words(python: str, versions: Mapping[str, str | None]) -> str:
    """Return in words what has to be the same in all processes of a fit."""
    packages = [f"{name} {versions.get(name) or 'not at all'}" for name in COMPARED]
    return ", ".join([f"Python {'.'.join(python.split('.')[:2])}", *packages])


OWN = in_words(f"{sys.version_info.major}.{sys.version_info.minor}", VERSIONS)
