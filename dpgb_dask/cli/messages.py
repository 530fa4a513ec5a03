"""Output of a running command: the library's log messages and warnings."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from shutil import get_terminal_size
from typing import Any

from tqdm import tqdm

from dpgb_dask import errors
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.released.sections import WIDTH

WARNINGS = tuple(c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Warning))

NARROWEST = 40  # below it a terminal breaks the lines


def report_text(report: PrivacyReport) -> str:
    """Return a report as text, as wide as a terminal that is narrower than a report; files have its own width."""
    there = get_terminal_size((WIDTH, 0)).columns if sys.stdout and sys.stdout.isatty() else WIDTH
    return report.to_text(min(max(there, NARROWEST), WIDTH))


@contextmanager
def aloud() -> Iterator[None]:
    """Print the library's log messages and warnings; a fit's id is thus known even after kill -9."""
    logger = logging.getLogger("dpgb_dask")
    handler, level = _Aloud(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            for kind in WARNINGS:
                warnings.simplefilter("always", kind)
            warnings.showwarning = _say_warning
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Aloud(logging.Handler):
    """Prints log messages to standard error, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        _write(f"dpgb-dask: {record.getMessage()}")


def _say_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning in the form of an error, without the line of code that it came from."""
    _write(f"dpgb-dask: {category.__name__}: {message}")


def _write(text: str) -> None:
    """Write to standard error, above a progress bar; nothing where that cannot be, as to a terminal that was closed."""
    with suppress(OSError):
        tqdm.write(text, file=sys.stderr)
