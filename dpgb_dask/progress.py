"""Progress of a fit over its rounds, shown to the caller: in a terminal, in a notebook, or as a line per stage."""

import re
import sys
import time
from collections.abc import Sequence
from html import escape
from importlib import import_module
from inspect import signature
from typing import Any, Protocol

from tqdm import tqdm

from dpgb_dask.contracts.plan import Progress
from dpgb_dask.errors import PlanError, short
from dpgb_dask.kernels.cache import LISTENERS
from dpgb_dask.scalars import whole_number

FIRST = "reading rows"  # what is done before the first round
REDRAWN = 0.1  # seconds between two pictures of a bar, so that drawing takes no time


class Display(Protocol):
    """A place where progress is shown."""

    def begin(self, text: str) -> None:
        """Show what is done before the first round."""

    def say(self, text: str) -> None:
        """Show what takes long before the next round ends."""

    def show(self, stage: str, position: int, total: int, left: float | None) -> None:
        """Show one finished round, and the seconds that are left, if they can be told."""

    def end(self, position: int, *, whole: bool) -> None:
        """Close the display; ``whole`` says whether the fit has ended by itself."""


def _takes_three(function: Any) -> bool:
    """Return whether a callback can be called with a stage, a round and a number of rounds, as far as it tells."""
    try:
        signature(function).bind("", 0, 0)
    except TypeError:  # or it is no function
        return False
    except ValueError:  # a function of C, which does not tell
        return True
    return True


class Bar:
    """Progress over rounds: a display if verbose, and the callbacks.

    Parameters
    ----------
    verbose : int
    callbacks : sequence of callables, or None

    Raises
    ------
    PlanError
        If the callbacks are no functions.

    Notes
    -----
    Rounds before the second one tell nothing of how long the others take: rows are read, and kernels compiled. So no
    time is estimated before. The number of rounds falls when a stage ends with fewer queries than it declares.
    """

    def __init__(self, verbose: int, callbacks: Sequence[Progress] | None) -> None:
        given: Any = () if callbacks is None else callbacks
        if not isinstance(given, Sequence) or not all(map(_takes_three, given)):
            raise PlanError(
                f"callbacks={short(given)} must be a sequence of functions of (stage, round, of how many)."
            )
        shown = whole_number(int(verbose) if isinstance(verbose, bool) else verbose)
        if shown is None or shown < 0:
            raise PlanError(
                f"verbose={short(verbose)} must be 0 or False for no display of progress, 1 or True for one."
            )
        self._callbacks = tuple(given)
        self._display = display_here() if shown else None
        self._first: tuple[int, float] | None = None  # the first round, and when it was done
        self._done = 0

    def __enter__(self) -> Progress | None:
        if self._display is not None:
            self._display.begin(FIRST)
            LISTENERS.append(self._display.say)
        return self.show if self._display is not None or self._callbacks else None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._display is not None:
            LISTENERS.remove(self._display.say)
            self._display.end(self._done, whole=kind is None)

    def show(self, stage: str, position: int, total: int) -> None:
        """Show one finished round."""
        self._done = position
        if self._display is not None:
            self._display.show(stage, position, total, self._left(position, total))
        for callback in self._callbacks:
            callback(stage, position, total)

    def _left(self, position: int, total: int) -> float | None:
        """Return the seconds that are left, from the rounds after the first one; None before the second."""
        now = time.monotonic()
        if self._first is None:
            self._first = position, now
            return None
        first, then = self._first
        return (now - then) / (position - first) * (total - position)


def display_here() -> Display | None:
    """Return the display for where this process writes to; None for one without a standard error, as of a daemon."""
    if _in_notebook():
        return Notebook()
    if sys.stderr is None:
        return None
    return Terminal() if sys.stderr.isatty() else Lines()


def _in_notebook() -> bool:
    """Whether this is the kernel of a notebook; IPython is asked only if it is loaded."""
    found = sys.modules.get("IPython")
    shell = None if found is None else found.get_ipython()
    return getattr(shell, "kernel", None) is not None


def stage_of(label: str) -> str:
    """Return the stage that a round's label names: "trees" of "trees 3/20: leaves"."""
    return re.sub(r"\s+\d+(/\d+)?(: .*)?$", "", label)


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


class Terminal:
    """A bar on one line of a terminal."""

    def begin(self, text: str) -> None:
        """Show what is done before the first round."""
        self._bar = tqdm(desc=text, bar_format="{desc}: {elapsed}")

    def say(self, text: str) -> None:
        """Show what takes long, in the place of the stage."""
        self._bar.set_description(text)

    def show(self, stage: str, position: int, total: int, left: float | None) -> None:
        """Show one finished round."""
        bar = self._bar
        later = "" if left is None else f", about {_in_words(left)} left"
        bar.bar_format = f"{{desc}}: {{bar}} {{n_fmt}}/{{total_fmt}} rounds, {{elapsed}}{later}"
        bar.set_description(stage, refresh=False)
        bar.total = total
        bar.update(position - bar.n)

    def end(self, position: int, *, whole: bool) -> None:
        """Close the display."""
        if whole:
            # the last stage may ask fewer queries than it declares
            self._bar.total = position
            self._bar.bar_format = "{desc}: {bar} {n_fmt}/{total_fmt} rounds, {elapsed}"
            self._bar.refresh()
        self._bar.close()


class Lines:
    """One line per stage, for a log file or a batch job."""

    def begin(self, text: str) -> None:
        """Say what is done before the first round."""
        self._stage, self._since, self._began = "", 0, time.monotonic()
        self.say(text)

    def say(self, text: str) -> None:
        """Write a line."""
        tqdm.write(text, file=sys.stderr)

    def show(self, stage: str, position: int, total: int, left: float | None) -> None:  # noqa: ARG002
        """Say that a stage has ended, with the first round of the next one."""
        if stage_of(stage) != self._stage:
            self._close(position - 1)
            self._stage = stage_of(stage)

    def end(self, position: int, *, whole: bool) -> None:
        """Say that the last stage has ended."""
        if whole:
            self._close(position)

    def _close(self, position: int) -> None:
        now = time.monotonic()
        if self._stage:
            n = position - self._since
            self.say(f"{self._stage}: {n} round{'s' * (n != 1)}, {now - self._began:.1f} s")
            self._began = now
        self._since = position


class Notebook:
    """A bar of HTML in a notebook's output; no widgets, so that it stays in the saved notebook."""

    def begin(self, text: str) -> None:
        """Show what is done before the first round."""
        self._began, self._drawn = time.monotonic(), 0.0
        self._picture = Picture(text, 0, None, "")
        display = import_module("IPython.display").display  # loaded only in a notebook
        self._handle = display(self._picture, display_id=True)

    def say(self, text: str) -> None:
        """Show what takes long, in the place of the stage."""
        last = self._picture
        self._handle.update(Picture(text, last.position, last.total, self._elapsed()))

    def show(self, stage: str, position: int, total: int, left: float | None) -> None:
        """Show one finished round."""
        later = "" if left is None else f", about {_in_words(left)} left"
        self._picture = Picture(stage, position, total, self._elapsed() + later)
        now = time.monotonic()
        if now - self._drawn >= REDRAWN:
            self._drawn = now
            self._handle.update(self._picture)

    def end(self, position: int, *, whole: bool) -> None:
        """Show the last state, without how long it took: it stays in the notebook, and run times are no release."""
        last = self._picture
        total = position if whole else last.total
        text = "fitted" if whole else f"stopped at {last.text}"
        self._handle.update(Picture(text, position, total, ""))

    def _elapsed(self) -> str:
        return _in_words(time.monotonic() - self._began)


class Picture:
    """One state of a notebook's bar."""

    def __init__(self, text: str, position: int, total: int | None, time_in_words: str) -> None:
        self.text, self.position, self.total, self.time = text, position, total, time_in_words

    def __repr__(self) -> str:
        if self.total is None:
            return self.text
        time_in_words = f", {self.time}" if self.time else ""
        return f"{self.text}: {self.position}/{self.total} rounds{time_in_words}"

    def _repr_html_(self) -> str:
        """Return a bar, and beside it the text."""
        value = "" if self.total is None else f' max="{self.total}" value="{self.position}"'
        return f'<div><progress style="width: 20em"{value}></progress> {escape(repr(self))}</div>'
