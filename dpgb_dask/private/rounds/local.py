"""Rounds in this process: one shard and a pool of threads, without a cluster."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from dask.local import get_async, get_sync
from dask.system import cpu_count
from numpy.typing import NDArray

from dpgb_dask.contracts.boundary import Raw
from dpgb_dask.contracts.model import FeatureBins, Model, same_bins
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.contracts.queries import Query
from dpgb_dask.errors import LostCodesError, in_our_words
from dpgb_dask.kernels.cache import quietly
from dpgb_dask.private.answering.shards import Shard
from dpgb_dask.private.keeping.store import room_to_read
from dpgb_dask.private.reading.chunks import Reading, Survey, add_surveys
from dpgb_dask.private.reading.load_lock import bytes_of, end_turn, in_turn
from dpgb_dask.private.reading.rows import (
    Rows,
    Source,
    count_rows,
    failed_to_load,
    starts_of,
)
from dpgb_dask.private.reading.shared_tasks import ChunkTasks, Pass
from dpgb_dask.private.reading.units import add_unit_counts, count_units
from dpgb_dask.private.rounds.sealed import SealedRounds, Surveyed
from dpgb_dask.private.rounds.worker_tasks import MOST_REMAKES, Encoded, Encoding, join_encoded
from dpgb_dask.warning_filters import SILENCE

T = TypeVar("T")


class LocalRounds(SealedRounds):
    """All rows in one shard of this process.

    Parameters
    ----------
    source : Source
    reading : Reading
    execution : Execution
        ``n_threads`` source chunks are in memory at once, and as many threads answer queries.
    bins : tuple of FeatureBins or None
        Bins that are known before the rows are read: the survey's pass then encodes too.
    refines : bool
        Whether other bins will follow.

    Privacy
    -------
    Private side. Answers leave sealed, with the sensitivity of their query.
    """

    def __init__(
        self,
        source: Source,
        reading: Reading,
        execution: Execution,
        bins: tuple[FeatureBins, ...] | None = None,
        *,
        refines: bool = False,
    ) -> None:
        self._source = source
        super().__init__(reading, execution, bins, refines=refines)
        self._n_threads = execution.n_threads or cpu_count()
        self._pool = ThreadPoolExecutor(self._n_threads, thread_name_prefix="dpgb")
        # unbinned chunks, kept as long as they may be needed
        self._unbinned: dict[int, Encoded] = {}
        self._shard: Shard | None = None
        self._tasks = ChunkTasks(source.chunks)
        # of its own: a thread of the other one may wait for it
        self._for_several = ThreadPoolExecutor(self._n_threads, thread_name_prefix="dpgb-shared")

    @in_our_words()
    @quietly()
    def ask(self, model: Model | None, query: Query) -> Raw[NDArray[np.int64]]:
        """Return the sealed sums of a query at the scores of ``model``."""
        return self._sealed(model, query)

    @in_our_words()
    @quietly()
    def fingerprint(self) -> int:
        """Return the keyed fingerprint of the rows. Private."""
        return self._survey().fingerprint

    def close(self) -> None:
        """Release the shard and the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._for_several.shutdown()
        self._shard = None
        self._unbinned = {}
        self._surveyed = None
        self._tasks = ChunkTasks(())

    def _sums(self, model: Model, query: Query) -> NDArray[np.int64]:
        """Ask the shard; if it has lost its codes, make it again.

        Raises
        ------
        LostCodesError
            If it loses them again and again.
        """
        for _ in range(MOST_REMAKES):
            try:
                return self._encoded(model.bins).answer(model, query, self._n_threads, self._pool)
            except LostCodesError:
                self._shard = None
        return self._encoded(model.bins).answer(model, query, self._n_threads, self._pool)

    def _survey(self) -> Surveyed:
        if self._surveyed is None:
            if self._source.units:
                counts = self._each_chunk(lambda rows, _: count_units(rows.unit, self._reading.key))
                self._reading = replace(self._reading, units=add_unit_counts(list(counts)))
            elif self._reading.rows_key is not None:
                if self._source.lengths is None:
                    lengths = list(self._each_chunk(lambda rows, _: count_rows(rows)))
                else:
                    lengths = [np.array(self._source.lengths, np.int64)]
                self._reading = replace(self._reading, starts=starts_of(lengths))
            if self._known_bins is None:
                survey = self._read_unbinned()
            else:
                survey = self._encode(self._known_bins, with_survey=True)
            assert survey is not None
            units = self._reading.units
            self._surveyed = Surveyed(
                survey, self._reading.shape, 0 if units is None else units.mark
            )
            self._reading = replace(self._reading, marks=self._surveyed.marks)
        return self._surveyed

    def _encoded(self, bins: Sequence[FeatureBins]) -> Shard:
        if self._shard is None or not same_bins(self._shard.bins, bins):
            self._encode(bins)
        assert self._shard is not None
        return self._shard

    def _read_unbinned(self) -> Survey | None:
        """Survey all rows, keep them unbinned as far as there is room, and return the survey."""
        parts, survey = self._read(self._encoding(None, with_survey=True))
        self._unbinned = {part.chunks[0]: part for part in parts}
        return survey

    def _encode(self, bins: Sequence[FeatureBins], *, with_survey: bool = False) -> Survey | None:
        """Make the shard; return the survey of its rows if ``with_survey``."""
        self._shard = None  # free the old codes before the new ones are made
        job = self._encoding(bins, with_survey=with_survey)

        def known(number: int) -> Encoded | None:
            unbinned = self._unbinned.get(number)
            if not self._refines:
                self._unbinned.pop(number, None)  # so that it is freed once it is encoded
            if unbinned is not None:
                with suppress(LostCodesError):
                    return job.encode_unbinned(unbinned)
            return job.recall(number)

        parts, survey = self._read(job, known)
        self._shard = job.shard(join_encoded(parts))
        return survey

    def _read(
        self, job: Encoding, known: Callable[[int], Encoded | None] | None = None
    ) -> tuple[list[Encoded], Survey | None]:
        """Return all chunks, and the sum of their surveys, which are added one by one so that they do not pile up."""
        parts: list[Encoded] = []
        survey: Survey | None = None
        for part in self._each_chunk(job.encode, known):
            parts.append(part._replace(survey=None))
            if part.survey is not None:
                survey = part.survey if survey is None else add_surveys([survey, part.survey])
        return parts, survey

    def _each_chunk(
        self, function: Callable[[Rows, int], T], known: Callable[[int], T | None] | None = None
    ) -> Iterator[T]:
        """Apply a function to every chunk and its number, one chunk per thread at a time; yield the results in order.

        Parameters
        ----------
        function : function of (rows, number)
        known : function of number, or None
            Returns the result if it is known without reading the chunk, else None.
        """
        room = room_to_read(self._execution)
        here = Pass(self._tasks, get_sync if room is not None else self._by_threads)

        def use(number: int) -> T:
            rows = here.load(number)
            end_turn(bytes_of(rows))
            return function(rows, number)

        @in_our_words(failed_to_load)
        def work(number: int) -> T:
            with SILENCE:
                found = None if known is None else known(number)
                if found is not None:
                    here.skip(number)
                    return found
                if room is None:
                    return use(number)
                done: T = in_turn(room, use, number)
                return done

        return self._pool.map(work, range(len(self._source.chunks)))

    def _by_threads(self, graph: dict[Any, Any], keys: list[Any]) -> Sequence[Any]:
        """Compute what several chunks need."""
        values: Sequence[Any] = get_async(self._for_several.submit, self._n_threads, graph, keys)
        return values
