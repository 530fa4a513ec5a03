"""What the benches share: contestants that take turns, in one process or each in its own, and their rows."""

import multiprocessing
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from dpgb_dask.contracts.plan import Execution

BLOCK = Execution().block_rows  # rows per call, as a shard makes them
M = 28  # features
Facts = dict[str, float]


@dataclass(frozen=True)
class Contestant:
    """What is timed, what is made ready before it, and a look at what came out of it; neither of these is timed."""

    run: Callable[[], object]
    look: Callable[[], Facts] = dict
    prepare: Callable[[], object] = lambda: None


@dataclass
class Contest:
    """Contestants that take turns in this process; ``best`` is CPU seconds."""

    entries: dict[str, tuple[Callable[[], object], float]] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)

    def enter(self, name: str, run: Callable[[], object], units: float) -> None:
        """Add a contestant; its figure is time per unit."""
        self.entries[name] = run, units

    def run(self, repeats: int) -> None:
        """Let all run once to warm up, then in turns."""
        for repeat in range(repeats + 1):
            for name, (run, _) in self.entries.items():
                start = time.process_time()
                run()
                took = time.process_time() - start
                if repeat:
                    self.best[name] = min(took, self.best.get(name, np.inf))

    def ns(self, name: str) -> float:
        """Nanoseconds per unit."""
        return self.best[name] / self.entries[name][1] * 1e9


@dataclass(frozen=True)
class Turn:
    """One turn of a contestant: seconds of CPU (its whole process) and of wall time, and what came out."""

    cpu: float
    wall: float
    facts: Facts


class Processes:
    """Contestants that take turns, each in a process of its own: what one leaves behind in memory slows no other.

    A process is started once, makes its own rows and runs once to warm up before the next one is started.

    Examples
    --------
    >>> with Processes() as contest:
    ...     contest.enter("ours", make_ours, 1000, units=1000)
    ...     contest.run(3)
    ...     contest.ns("ours")
    """

    def __init__(self) -> None:
        self.turns: dict[str, list[Turn]] = {}
        self._units: dict[str, float] = {}
        self._members: dict[str, tuple[BaseProcess, Connection]] = {}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in self._members.values():
            pipe.close()  # the process sees the end of its orders
            process.join()

    def enter(
        self, name: str, make: Callable[..., Contestant], *arguments: Any, units: float
    ) -> None:
        """Start a contestant; ``make`` is a function of a module, and runs in the new process."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, make, arguments), daemon=True)
        process.start()
        there.close()
        self._members[name] = process, here
        self._units[name] = units
        self.turns[name] = []
        self._reply(name)

    def run(self, repeats: int) -> None:
        """Let all run in turns, some times."""
        for _ in range(repeats):
            for name, (_, pipe) in self._members.items():
                pipe.send("run")
                self.turns[name].append(self._reply(name))

    def _reply(self, name: str) -> Turn:
        try:
            reply = self._members[name][1].recv()
        except EOFError:
            raise RuntimeError(f"The process of {name!r} ended.") from None
        if isinstance(reply, str):
            raise RuntimeError(f"{name!r} failed in its process:\n{reply}")
        return reply

    @property
    def names(self) -> list[str]:
        """Contestants in the order of their entry."""
        return list(self._members)

    def facts(self, name: str) -> Facts:
        """What came out of the last turn."""
        return self.turns[name][-1].facts

    def ns(self, name: str) -> float:
        """Nanoseconds of CPU per unit in the best turn."""
        return min(turn.cpu for turn in self.turns[name]) / self._units[name] * 1e9


def _serve(orders: Connection, make: Callable[..., Contestant], arguments: tuple[Any, ...]) -> None:
    """Make a contestant, warm it up, and run it as often as it is asked to."""
    try:
        contestant = make(*arguments)
        while True:
            contestant.prepare()
            cpu, wall = time.process_time(), time.perf_counter()
            contestant.run()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            orders.send(Turn(cpu, wall, contestant.look()))
            orders.recv()
    except EOFError:
        return
    except Exception:
        orders.send(traceback.format_exc())


def make_values(kind: str, n: int, rng: np.random.Generator, m: int = M) -> np.ndarray:
    """(n, m) float32 rows."""
    x = rng.standard_normal((n, m), dtype=np.float32)
    if kind == "half binary":
        x[:, ::2] = rng.random((n, (m + 1) // 2), dtype=np.float32) < 0.1
    return x


def edges_of(x: np.ndarray, n_bins: int) -> list[np.ndarray]:
    """Quantile edges of each column."""
    sample = x[:100_000].astype(np.float64)
    edges = np.quantile(sample, np.arange(1, n_bins) / n_bins, axis=0)
    return [
        np.unique(column) if len(np.unique(column)) > 2 else np.array([0.5]) for column in edges.T
    ]


def in_blocks(n: int) -> list[slice]:
    """Row ranges of a shard's blocks."""
    return [slice(lo, lo + BLOCK) for lo in range(0, n, BLOCK)]


def no_masks(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return mask_of and masks of trees that split by threshold alone."""
    return np.full(shape, -1, np.int32), np.empty((0, 256), np.uint8)
