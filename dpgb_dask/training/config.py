"""Defaults of `Execution`, from ``dask.config`` under ``dpgb-dask``: speed and memory, never a Plan or a Budget."""

import dask.config

from dpgb_dask.contracts.plan import Execution
from dpgb_dask.errors import PlanError

KEYS = {
    "backend": "backend",
    "n-threads": "n_threads",
    "fan-in": "fan_in",
    "block-rows": "block_rows",
}
BACKENDS = ("auto", "local", "tasks")


def execution() -> Execution:
    """Return the Execution that ``dask.config`` asks for, e.g. ``dask.config.set({"dpgb-dask.backend": "local"})``."""
    values = dask.config.get("dpgb-dask", {})
    if unknown := sorted(set(values) - set(KEYS)):
        raise PlanError(f"dask.config dpgb-dask has unknown keys {unknown}. Known: {sorted(KEYS)}.")
    out = Execution(**{KEYS[key]: value for key, value in values.items()})
    if out.backend not in BACKENDS:
        raise PlanError(f"dpgb-dask.backend={out.backend!r} is unknown. Choose one of {BACKENDS}.")
    return out
