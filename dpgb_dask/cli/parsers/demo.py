"""Options of ``dpgb-dask demo``."""

from pathlib import Path
from typing import Any

from dpgb_dask.cli.options import command, local_file, positive


def add(commands: Any) -> None:
    """Add the command."""
    text = "fit made-up census data on a local cluster, and write the model"
    demo = command(commands, "demo", text, "demo.run", "dpgb-dask demo --epsilon 0.5")
    demo.add_argument("--epsilon", type=float, default=1.0, help="privacy of the fit (default 1)")
    demo.add_argument("--delta", type=float, default=1e-6, help="(default 1e-6)")
    demo.add_argument(
        "--rows", type=positive, default=120_000, help="rows to make up (default 120000)"
    )
    demo.add_argument("--workers", type=positive, default=2, help="workers (default 2)")
    demo.add_argument(
        "--processes",
        action="store_true",
        help="start each worker in a process of its own, as a cluster does; by default they are threads of this one",
    )
    demo.add_argument(
        "--out",
        type=local_file,
        default=Path("demo-model.json"),
        help="model file (default ./demo-model.json)",
    )
    demo.add_argument("--quiet", action="store_true", help="no progress bar")
