"""Outputs of `predict` and its relatives, as functions from a model to a function of codes (see `RowFunction`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import SCORE_ONE, Model
from dpgb_dask.contracts.schema import Target
from dpgb_dask.losses import LINKS
from dpgb_dask.released.predict import Codes, OfCodes, scorer


def sorted_places(labels: Sequence[Any]) -> tuple[int, ...]:
    """Return the positions of labels in the order of ``numpy.unique``; in their own if they cannot be compared."""
    places = range(len(labels))
    try:
        return tuple(sorted(places, key=labels.__getitem__))
    except TypeError:  # a text and a number, say
        return tuple(places)


@dataclass(frozen=True)
class Labels:
    """The class of the largest score of each row; of equal ones the class that was declared first.

    Parameters
    ----------
    classes : (n_classes,) array
        As declared, which is the order of the model's scores.
    """

    classes: NDArray[Any]

    def __call__(self, model: Model) -> OfCodes:
        """Return the function of codes."""
        score = scorer(model)
        even = even_score(model)

        def of_codes(codes: Codes) -> NDArray[Any]:
            values = score(codes)
            if model.n_scores == 1:
                return np.asarray(self.classes[(values[:, 0] > even).astype(np.intp)])
            return np.asarray(self.classes[values.argmax(axis=1)])

        return of_codes


def even_score(model: Model) -> int:
    """Return the score, in steps, at which two classes are equally probable; 0 where there is one score per class."""
    return SCORE_ONE // 2 if model.link == "probability" and model.n_scores == 1 else 0


def scale_of(link: str, target: Target) -> tuple[float, float]:
    """Return middle and half-width of a numeric target: the prediction is ``middle + half * link(score)``."""
    # with the link "log", predictions are shares of the upper bound
    return (0.0, target.high) if link == "log" else (target.middle, target.half)


@dataclass(frozen=True)
class Probabilities:
    """The probabilities of all classes, by the model's link.

    Parameters
    ----------
    order : tuple of int
        Of each column, the position of its class in the schema.
    """

    order: tuple[int, ...]

    def __call__(self, model: Model) -> OfCodes:
        """Return the function of codes."""
        score, link, order = scorer(model), LINKS[model.link], list(self.order)

        def of_codes(codes: Codes) -> NDArray[np.float64]:
            return np.take(link(score(codes) / SCORE_ONE), order, axis=1)

        return of_codes


@dataclass(frozen=True)
class Decisions:
    """Scores in natural units, with one column per class for multiclass.

    Parameters
    ----------
    order : tuple of int
        Of each column, the position of its class in the schema; of two classes, the score is that of the last one.
    """

    order: tuple[int, ...]

    def __call__(self, model: Model) -> OfCodes:
        """Return the function of codes."""
        score, order = scorer(model), list(self.order)
        even = even_score(model)

        def of_codes(codes: Codes) -> NDArray[np.float64]:
            values = score(codes)
            if model.n_scores > 1:
                return np.take(values, order, axis=1) / SCORE_ONE
            of_second = (values[:, 0] - even) / SCORE_ONE
            return of_second if order[-1] == 1 else 0.0 - of_second  # no negative zero

        return of_codes


def values_of(score: NDArray[np.integer[Any]], link: str, target: Target) -> NDArray[np.float64]:
    """Return the predictions of a regressor for scores in steps, within the target's public bounds."""
    middle, half = scale_of(link, target)
    return np.clip(middle + half * LINKS[link](score / SCORE_ONE), target.low, target.high)


@dataclass(frozen=True)
class Values:
    """Prediction of a regressor, scaled back to the target's public bounds and clipped to them."""

    target: Target

    def __call__(self, model: Model) -> OfCodes:
        """Return the function of codes."""
        score, link, target = scorer(model), model.link, self.target
        return lambda codes: values_of(score(codes), link, target)
