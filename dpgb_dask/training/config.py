"""Defaults of `Execution` from ``dask.config``, under ``dpgb-dask``: speed and memory, never a Plan or a Budget."""

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dask.config
from dask.utils import parse_bytes

from dpgb_dask.contracts.plan import Execution
from dpgb_dask.errors import PlanError, UnwritableError, did_you_mean
from dpgb_dask.private.keeping.durable import is_durable
from dpgb_dask.private.keeping.store import configured_folder
from dpgb_dask.scalars import is_number, whole_number
from dpgb_dask.whole_files import path_of

KEYS = {
    "backend": "backend",
    "n-threads": "n_threads",
    "fan-in": "fan_in",
    "block-rows": "block_rows",
    "cache": "cache",
    "memory-limit": "memory_limit",
    "worker-wait": "worker_wait",
}
WHOLE = {  # lowest and highest value of the integer settings
    "n-threads": (1, 1 << 12),
    "fan-in": (2, 1 << 16),
    "block-rows": (1, 1 << 24),
}
PLACES = ("auto", "memory", "disk")
# parse_bytes reads "1.5" as a byte, "GiB" as a GiB and "" as a byte
BYTES = re.compile(r"\s*[0-9]+(\s*|(\.[0-9]+)?\s*[A-Za-z]+\s*)")


def execution(cache: str | Path | None = None, memory_limit: int | str | None = None) -> Execution:
    """Return the Execution that ``dask.config`` asks for, e.g. ``dask.config.set({"dpgb-dask.backend": "local"})``.

    Keys may be written with - or _, so that Dask's environment variables work: ``DASK_DPGB_DASK__N_THREADS=2``.

    Parameters
    ----------
    cache : str, Path or None
        "memory", "disk", a folder or the URL of a Zarr store; None or "auto" for the configured value.
    memory_limit : int, str or None
        Bytes, or a text such as "1GiB"; None for the configured value.

    Raises
    ------
    PlanError
        If a key or a value is unknown, or there is no section of keys.
    """
    # a section whose lines are all comments is None
    given = dask.config.get("dpgb-dask", None) or {}
    if not isinstance(given, Mapping):
        raise PlanError(
            f"dask.config dpgb-dask={given!r} is no section of settings. Give it some of: {sorted(KEYS)}."
        )
    values: dict[str, Any] = {key.replace("_", "-"): value for key, value in given.items()}
    if unknown := sorted(set(values) - set(KEYS)):
        meant = did_you_mean(unknown[0], KEYS)
        raise PlanError(
            f"dask.config dpgb-dask has unknown keys {unknown}. Known: {sorted(KEYS)}.{meant}"
        )
    if cache is not None and not (isinstance(cache, str) and cache == "auto"):
        values["cache"] = cache
    if memory_limit is not None:
        values["memory-limit"] = memory_limit
    values["cache"] = _place(values.get("cache", "auto"))
    values["memory-limit"] = _bytes(values.get("memory-limit"))
    for key, (least, most) in WHOLE.items():
        if values.get(key) is None:
            values.pop(key, None)
        elif type(values[key]) is not int or not least <= values[key] <= most:
            raise PlanError(
                f"dpgb-dask.{key}={values[key]!r} must be a whole number from {least} to {most}."
            )
    out = Execution(**{KEYS[key]: value for key, value in values.items()})
    if out.cache == "memory" and out.memory_limit is not None:
        raise PlanError(
            f"memory_limit={out.memory_limit} (of the fit, or dpgb-dask.memory-limit) cannot be kept with"
            " cache='memory'. Choose cache='auto' or 'disk'."
        )
    wait: Any = out.worker_wait
    if not is_number(wait) or not 0 < wait < float("inf"):
        raise PlanError(f"dpgb-dask.worker-wait={wait!r} must be a number of seconds above 0.")
    return out


def _place(cache: Any) -> str:
    """Return where codes are stored: a known word, or a text that can only be a folder or a URL."""
    place = str(cache) if isinstance(cache, str | Path) else ""
    # "~" stays: on a cluster it is the folder of the workers' user
    if isinstance(cache, Path) and not place.startswith("~"):
        return str(cache.absolute())
    if place in PLACES:
        return place
    if any(mark in place for mark in "/.~\\"):
        return place
    raise PlanError(
        f"cache={cache!r} is unknown. Choose one of {PLACES}, a folder such as './scratch', or a Zarr store's URL."
    )


def _bytes(limit: Any) -> int | None:
    """Return a number of bytes, or None."""
    if limit is None:
        return None
    n_bytes = whole_number(limit) or 0
    if isinstance(limit, str) and BYTES.fullmatch(limit):
        with contextlib.suppress(ValueError):  # an unknown unit
            n_bytes = parse_bytes(limit)
    if n_bytes <= 0:
        raise PlanError(
            f"memory_limit={limit!r} must be a whole number of bytes above 0, or a text with a unit, such as '1.5GiB'."
        )
    return n_bytes


def check_folder(cache: str) -> None:
    """Write a byte where scratch will be, if that is a folder of this machine which the caller named.

    Parameters
    ----------
    cache : str
        The ``cache`` of an `Execution` from `execution`. If it names no folder, scratch goes to Dask's
        ``temporary-directory``, which is made as Dask makes it. A Zarr store is not checked, as it is created if it
        does not exist.

    Raises
    ------
    UnwritableError
        If the folder cannot be written, or is ``cache`` and does not exist.
    """
    if cache not in PLACES and not is_durable(cache):
        if (reason := _refused(str(path_of(cache)))) is not None:
            raise UnwritableError(
                f"cache={cache!r} cannot be written ({reason}). It must be a folder that exists and that this"
                " process may write: make it, or choose another, or 'auto'."
            )
        return
    folder = configured_folder()
    if cache == "memory" or folder is None:
        return
    if (reason := _refused(folder, make=True)) is not None:
        raise UnwritableError(
            f"temporary-directory={folder!r} of dask.config cannot be written ({reason}): scratch goes there. Name a"
            " folder that this process may write, there or by DASK_TEMPORARY_DIRECTORY, or another one with cache=."
        )


def _refused(folder: str, *, make: bool = False) -> str | None:
    """Return why a folder cannot be written; None if it can."""
    try:
        if make:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        return error.strerror
    return None
