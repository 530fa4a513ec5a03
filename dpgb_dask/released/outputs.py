"""Outputs of `predict` and its relatives, as functions from a model to a function of codes (see `RowFunction`)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import SCORE_ONE, Model
from dpgb_dask.losses import LINKS
from dpgb_dask.released.predict import Codes, OfCodes, scorer


@dataclass(frozen=True)
class Labels:
    """The most probable class of each row."""

    classes: NDArray[Any]

    def __call__(self, model: Model) -> OfCodes:
        """Return the function of codes."""
        score = scorer(model)
        even = _even_score(model)

        def of_codes(codes: Codes) -> NDArray[Any]:
            values = score(codes)
            if model.n_scores == 1:
                return np.asarray(self.classes[(values[:, 0] > even).astype(np.intp)])
            return np.asarray(self.classes[values.argmax(axis=1)])

        return of_codes


def _even_score(model: Model) -> int:
    """Return the score, in steps, at which two classes are equally probable."""
    return SCORE_ONE // 2 if model.link == "probability" else 0


def probabilities(model: Model) -> OfCodes:
    """Return the function of codes for the probabilities of all classes, by the model's link."""
    score, link = scorer(model), LINKS[model.link]

    def of_codes(codes: Codes) -> NDArray[np.float64]:
        return link(score(codes) / SCORE_ONE)

    return of_codes


def decisions(model: Model) -> OfCodes:
    """Return the function of codes for scores in natural units, with one column per class for multiclass."""
    score = scorer(model)
    even = _even_score(model)

    def of_codes(codes: Codes) -> NDArray[np.float64]:
        values = score(codes)
        return values / SCORE_ONE if model.n_scores > 1 else (values[:, 0] - even) / SCORE_ONE

    return of_codes


@dataclass(frozen=True)
class Values:
    """Prediction of a regressor, scaled back to the target's public bounds and clipped to them."""

    low: float
    high: float

    def __call__(self, model: Model) -> OfCodes:
        """Return the function of codes."""
        score, link = scorer(model), LINKS[model.link]
        if model.link == "log":  # predictions are shares of the upper bound
            middle, half = 0.0, self.high
        else:  # halved first, so that two huge bounds do not overflow
            middle, half = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2

        def of_codes(codes: Codes) -> NDArray[np.float64]:
            return np.clip(middle + half * link(score(codes) / SCORE_ONE), self.low, self.high)

        return of_codes
