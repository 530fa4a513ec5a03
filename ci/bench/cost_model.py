"""What a fit of many rows on many workers costs, from constants that are measured in the same run.

A term is what one part of a fit takes in wall time if nothing overlaps: what workers share falls with their number,
what one process does for all of them does not. The term that first takes longer than the workers' own work is what
breaks first.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time
from typing import Any
from unittest import mock

import numpy as np
from contest import BLOCK
from fit import generated, generated_schema

from dpgb_dask.contracts.grid import FINE, Grid
from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.plan import Execution, Shape
from dpgb_dask.encoding.codes import bins_of_cells
from dpgb_dask.private.answering.shards import Shard
from dpgb_dask.private.reading.chunks import Reading, Surveyor, encode_piece, unbinned_pieces
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.rows import Rows
from dpgb_dask.private.rounds import open_rounds
from dpgb_dask.private.rounds.comms import FAN_OUT
from dpgb_dask.private.rounds.messages import Sender

MOST_WORKERS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What was measured: CPU seconds unless another unit is named.

    Parameters
    ----------
    row, read : float
        A row's part of all rounds of a fit; reading it once: survey, cells, codes.
    controller : float
        The fit's own process, all rounds.
    rounds, bytes_down, bytes_up : int
        Of a fit: rounds, and the bytes of all messages and all replies.
    task_round, task_worker : float
        A round by tasks, and what each worker adds to it.
    hop : float
        Wall seconds of a level of the tree of a round by comms.
    chunk : float
        Client, scheduler and worker for one more chunk, of one value: mostly the two that all chunks share.
    """

    row: float
    read: float
    controller: float
    rounds: int
    bytes_down: int
    bytes_up: int
    task_round: float
    task_worker: float
    hop: float
    chunk: float


def reading_row(m: int, n: int = BLOCK) -> float:
    """CPU seconds of reading a row: survey and cells first, codes once bins are known."""
    x, y = (part.compute(scheduler="sync") for part in generated(n, n, m))
    schema = generated_schema(m)
    grid = Grid.of(schema, FINE)
    bins = [FeatureBins(edges[::35], None, len(edges[::35]) + 2) for edges in grid.edges]
    best = math.inf
    for _ in range(3):
        start = process_time()
        surveyor = Surveyor(Rows(x, y, None), Reading(Shape(schema=schema), bytes(32)), 0)
        pieces = list(unbinned_pieces(surveyor, BLOCK))
        table = bins_of_cells(grid, bins)
        for piece in pieces:
            encode_piece(piece, bins, table)
        best = min(best, process_time() - start)
    return best / n


@contextmanager
def watched() -> Iterator[list[tuple[float, int, int]]]:
    """Note each answer of a shard: CPU seconds, bytes of its message and of its sums."""
    told: list[tuple[float, int, int]] = []
    answer, sender = Shard.answer, Sender()

    def noted(shard: Shard, model: Any, query: Any, *threads: Any) -> Any:
        start = process_time()
        sums = answer(shard, model, query, *threads)
        took = process_time() - start
        message = sender.message(model, query)  # as on a cluster: a part of the controller's time
        told.append((took, len(sender.packed(message)), sums.nbytes))
        sender.answered(message)
        return sums

    with mock.patch.object(Shard, "answer", noted):
        yield told


def whole_fit(
    fit: Callable[[np.ndarray, np.ndarray], object], m: int, n: int
) -> tuple[float, float, int, int, int]:
    """CPU seconds of the rows' work and of all, rounds, bytes of all messages and of all replies of a fit."""
    x, y = (part.compute(scheduler="sync") for part in generated(n, n, m))
    with watched() as told:
        start = process_time()
        fit(x, y)
        total = process_time() - start
    work, down, up = (sum(column) for column in zip(*told, strict=True))
    return work, total, len(told), int(down), int(up)


def chunk_cost(m: int, few: int, many: int) -> float:
    """CPU seconds that one more chunk of a lazy source costs, with one row in it."""
    took = []
    schema = generated_schema(m)
    for n in (few, few, many):  # the first one warms up
        x, y = generated(n, 1, m)
        rounds = open_rounds(
            read_source(x, y, None, schema),
            Shape(schema=schema),
            Execution(backend="tasks"),
            bytes(32),
        )
        start = process_time()
        rounds.fingerprint()
        took.append(process_time() - start)
        rounds.close()
    return (took[2] - took[1]) / (many - few)


def levels(workers: int) -> int:
    """Levels of a tree of workers, each with `FAN_OUT` below it."""
    reached, depth, width = 1, 1, 1
    while reached < workers:
        width *= FAN_OUT
        reached += width
        depth += 1
    return depth


def terms(
    c: Constants, n: int, chunk_rows: int, bytes_a_second: float, workers: int
) -> dict[str, float]:
    """Wall seconds of each part of a fit."""
    depth = levels(workers)
    sent = c.bytes_down + c.bytes_up
    return {
        "row work": n * c.row / workers,
        "reading": n * c.read / workers,
        "controller": c.controller,
        "rounds by tasks": c.rounds * (c.task_round + c.task_worker * workers),
        "rounds by comms": c.rounds * c.hop * depth,
        "ingest scheduling": math.ceil(n / chunk_rows) * c.chunk,
        "bytes by tasks": sent * workers / bytes_a_second,
        "bytes by comms": sent * FAN_OUT * (depth - 1) / bytes_a_second,
    }


def breaks_at(name: str, at: Callable[[int], dict[str, float]]) -> int | None:
    """Fewest workers with which a term takes as long as what the workers share; None if not below `MOST_WORKERS`."""
    workers = 1
    while workers < MOST_WORKERS:
        found = at(workers)
        if found[name] >= found["row work"] + found["reading"]:
            return workers
        workers = max(workers + 1, workers * 21 // 20)
    return None
