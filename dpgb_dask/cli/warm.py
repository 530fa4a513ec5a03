"""``dpgb-dask warm``: compile all kernels into a folder in advance."""

import argparse
import warnings

import numpy as np

from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import StructureError
from dpgb_dask.estimators import DPGBClassifier
from dpgb_dask.kernels import cache
from dpgb_dask.kernels.warming import GROUPS, warm
from dpgb_dask.recipes import RECIPES


def run(options: argparse.Namespace) -> None:
    """Compile all kernels, and print which were."""
    if options.cache_dir is not None:
        cache.use(options.cache_dir)
    folder = next((path for path in cache.folders() if cache.is_writable(path)), None)
    if folder is None:
        tried = ", ".join(map(str, cache.folders()))
        raise StructureError(
            f"No folder for compiled kernels can be written to: {tried}. Name one with --cache-dir."
        )
    before = set(folder.glob("*.nbc"))
    for name in GROUPS:
        print(f"{name} …", flush=True)
        warm([name])
    print("fingerprint and noise …", flush=True)
    _fit_made_up_rows()
    compiled = sorted(path.name for path in set(folder.glob("*.nbc")) - before)
    for name in compiled:
        print(f"  {name}")
    n_kept = len(set(folder.glob("*.nbc")))
    print(f"{len(compiled)} versions of kernels compiled, {n_kept} kept in {folder}")


def _fit_made_up_rows() -> None:
    """Fit a few rows in a few rounds: what reads rows and draws noise has kernels of its own."""
    x, y = np.linspace(0.0, 1.0, 40)[:, None], np.arange(40) % 2
    schema = Schema({"x": (0.0, 1.0)}, classes=[0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few rows
        for recipe in ("auto", "dpboost"):
            DPGBClassifier(
                epsilon=1.0,
                delta=1e-6,
                schema=schema,
                recipe=RECIPES[recipe].brief(),
                columns=["x"],
            ).fit(x, y)
