"""Progress of a fit over its rounds, shown to the caller."""

from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from dpgb_dask.contracts.plan import Progress
from dpgb_dask.errors import PlanError


class Bar:
    """Progress over rounds: a progress bar if verbose, and the callbacks."""

    def __init__(self, verbose: int, callbacks: Sequence[Progress] | None) -> None:
        given: Any = () if callbacks is None else callbacks
        if not isinstance(given, Sequence) or not all(map(callable, given)):
            raise PlanError(
                f"callbacks={given!r} must be a sequence of functions of (stage, round, of how many)."
            )
        self._callbacks = tuple(given)
        # the first fit after installation compiles the kernels for half a minute; the bar shows that it is not stuck
        text = "reading rows, compiling kernels once"
        self._bar = tqdm(desc=text, unit="round") if verbose else None

    def __enter__(self) -> Progress:
        return self.show

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            # a stage may ask fewer queries than it declares, so the fit may end earlier
            if kind is None:
                self._bar.total = self._bar.n
                self._bar.refresh()
            self._bar.close()

    def show(self, stage: str, position: int, total: int) -> None:
        """Show one finished round."""
        if self._bar is not None:
            self._bar.set_description(stage, refresh=False)
            self._bar.total = total
            self._bar.update(position - self._bar.n)
        for callback in self._callbacks:
            callback(stage, position, total)
