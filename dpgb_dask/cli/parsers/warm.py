"""Options of ``dpgb-dask warm``."""

from typing import Any

from dpgb_dask.cli.options import command, local_file

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
        commands, "warm", text, "warm.run", "dpgb-dask warm --cache-dir /opt/kernels", NOTES
    )
    warmed.add_argument(
        "--cache-dir",
        type=local_file,
        metavar="DIR",
        help="folder to fill (default: NUMBA_CACHE_DIR, else beside the package, else the user's cache folder)",
    )
