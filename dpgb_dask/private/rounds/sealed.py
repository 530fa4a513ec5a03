"""What every back end does with a query, wherever the rows are: it answers from the survey or the rows, and seals."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.boundary import Raw
from dpgb_dask.contracts.grid import FINE, Grid, coarsening
from dpgb_dask.contracts.model import FeatureBins, Model, check_model
from dpgb_dask.contracts.plan import Execution, Shape
from dpgb_dask.contracts.queries import CellCountsQuery, CountQuery, Query, TargetSumQuery
from dpgb_dask.errors import PlanError
from dpgb_dask.private.reading.chunks import Reading, Survey
from dpgb_dask.private.reading.rows import changed
from dpgb_dask.private.rounds.worker_tasks import Encoding
from dpgb_dask.private.sensitivity import sensitivity


class Surveyed:
    """Answers queries that need no scores, from the survey of all rows.

    Parameters
    ----------
    survey : Survey
        Of all rows.
    shape : Shape
    units : int
        `UnitCounts.mark` from the pass that counted the rows of units; 0 if rows have no units.

    Raises
    ------
    ChunkError
        If the units that were counted are not those that the survey read: a unit could weigh more than its bound.
    """

    def __init__(self, survey: Survey, shape: Shape, units: int) -> None:
        if survey.units != units:
            raise changed()
        self.fingerprint = survey.fingerprint
        self.marks = np.array([survey.marks[k] for k in range(len(survey.marks))], np.uint64)
        self._sums = survey.sums
        self._shape = shape
        self._fine = Grid.of(shape.schema, FINE)

    def answer(self, query: Query) -> NDArray[np.int64] | None:
        """Return the sums of a count, cell or target query; None for a query that needs scores.

        Raises
        ------
        PlanError
            If the query's grid is not the schema's.
        """
        match query:
            case CountQuery():
                return self._sums[:1].copy()
            case TargetSumQuery():
                last = self._end_of_cells
                if query.n_values != len(self._sums) - last or query.kind != self._shape.kind:
                    raise PlanError("A target query of another kind than the schema's target.")
                return self._sums[last:].copy()
            case CellCountsQuery():
                return self._cells(query, self._sums[1 : self._end_of_cells])
            case _:
                return None

    @property
    def _end_of_cells(self) -> int:
        return int(self._fine.offsets[-1]) + 1

    def _cells(self, query: CellCountsQuery, fine: NDArray[np.int64]) -> NDArray[np.int64]:
        grid = Grid.of(self._shape.schema, query.n_uniform)
        if grid.sizes != tuple(query.sizes):
            raise PlanError(
                f"n_uniform={query.n_uniform} with these sizes is not a grid of the schema."
            )
        if query.n_uniform == FINE:
            return fine.copy()
        out = np.zeros(query.n_values, np.int64)
        np.add.at(out, coarsening(self._fine, grid), fine)
        return out


class SealedRounds(ABC):
    """Base of the back ends.

    Parameters
    ----------
    reading : Reading
    execution : Execution
    bins : sequence of FeatureBins or None
        Bins that are known before the rows are read: the survey's pass then encodes too.
    refines : bool
        Whether other bins will follow.

    Privacy
    -------
    Private side. The sums leave sealed, with the sensitivity that their query states.
    """

    def __init__(
        self,
        reading: Reading,
        execution: Execution,
        bins: Sequence[FeatureBins] | None,
        *,
        refines: bool,
    ) -> None:
        self._id = uuid.uuid4().hex[:12]
        self._reading = reading
        self._execution = execution
        self._known_bins = None if refines else bins
        self._refines = refines
        self._surveyed: Surveyed | None = None
        self._fitting: Model | None = None  # the last model, which fits the schema

    def _sealed(self, model: Model | None, query: Query) -> Raw[NDArray[np.int64]]:
        """Return the sealed sums of a query at the scores of ``model``.

        Raises
        ------
        PlanError
            If the query has no stated sensitivity, or needs a model and there is none, or the model does not fit the
            schema.
        """
        bound = sensitivity(query, self._reading.shape)
        sums = self._survey().answer(query)
        if sums is None:
            if model is None:
                raise PlanError(f"{type(query).__name__} needs a model: release bins first.")
            if model is not self._fitting:
                check_model(model, self._reading.shape.schema, self._fitting)
                self._fitting = model
            sums = self._sums(model, query)
        return Raw(sums, bound)

    def _encoding(self, bins: Sequence[FeatureBins] | None, *, with_survey: bool) -> Encoding:
        return Encoding.of(
            self._id, self._reading, bins, self._execution, with_survey, refines=self._refines
        )

    @abstractmethod
    def _survey(self) -> Surveyed:
        """Return what is known of all rows after the first look at them; the first call reads them."""

    @abstractmethod
    def _sums(self, model: Model, query: Query) -> NDArray[np.int64]:
        """Return the sums of a query over all rows, at the scores of ``model``."""
