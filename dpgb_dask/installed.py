"""Versions of this package and of the libraries that its floats depend on, as installed.

They are looked up once, when this module is imported and before anything is charged. Python's search goes through a
list of finders that an import in another thread may be changing, and then does not find what is there.
"""

from importlib.metadata import version

VERSIONS = {name: version(name) for name in ("dpgb_dask", "numpy", "scipy", "numba")}
