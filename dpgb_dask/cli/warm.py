"""``dpgb-dask warm``: compile all kernels into a folder in advance."""

import argparse
import warnings
from typing import Any

import numpy as np

from dpgb_dask.cli.options import command
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import StructureError
from dpgb_dask.estimators import DPGBClassifier
from dpgb_dask.kernels import cache
from dpgb_dask.kernels.warming import GROUPS, warm
from dpgb_dask.recipes import RECIPES
from dpgb_dask.whole_files import path_of

NOTES = """\
Kernels are compiled for this machine's processor, this Python, numba and dpgb_dask; with others, what is in the folder
is passed over, and compiled again. NUMBA_CPU_NAME=x86-64-v3 and an empty NUMBA_CPU_FEATURES name a kind of processor
instead, if both are set here and where the kernels run. The folder may be read-only later: set NUMBA_CACHE_DIR to it.
In an image's build:
  RUN dpgb-dask warm --cache-dir /opt/kernels
  ENV NUMBA_CACHE_DIR=/opt/kernels"""


def add(commands: Any) -> None:
    """Add the command."""
    text = "compile all kernels in advance, as in the build of a container's image"
    warmed = command(
        commands, "warm", text, _warm, "dpgb-dask warm --cache-dir /opt/kernels", NOTES
    )
    warmed.add_argument(
        "--cache-dir",
        type=path_of,
        metavar="DIR",
        help="folder to fill (default: NUMBA_CACHE_DIR, else beside the package, else the user's cache folder)",
    )


def _warm(options: argparse.Namespace) -> None:
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
