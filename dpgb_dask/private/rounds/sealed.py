"""What every back end does with a query, wherever the rows are: it answers from the survey or the rows, and seals."""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.boundary import Raw
from dpgb_dask.contracts.model import Model, check_model
from dpgb_dask.contracts.queries import Query
from dpgb_dask.errors import PlanError
from dpgb_dask.private.reading.survey import Reading, Surveyed
from dpgb_dask.private.sensitivity import sensitivity


class SealedRounds(ABC):
    """Base of the back ends.

    Parameters
    ----------
    reading : Reading

    Privacy
    -------
    Private side. The sums leave sealed, with the sensitivity that their query states.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
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

    @abstractmethod
    def _survey(self) -> Surveyed:
        """Return what is known of all rows after the first look at them; the first call reads them."""

    @abstractmethod
    def _sums(self, model: Model, query: Query) -> NDArray[np.int64]:
        """Return the sums of a query over all rows, at the scores of ``model``."""
