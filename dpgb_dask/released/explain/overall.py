"""The explanation of a model: `explain_global` and its result."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.contracts.model import SCORE_ONE, SHARE_ONE, BinShares, Model, NoiseBands
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.display import brief, html_table
from dpgb_dask.errors import did_you_mean, listed
from dpgb_dask.released.explain import figures
from dpgb_dask.released.explain.decomposition import Decomposition, decompose, pair_noise
from dpgb_dask.released.explain.terms import (
    REMAINDER,
    Term,
    group_axis,
    main_axis,
    marked,
    meant,
)

SHOWN = 12  # terms that a repr lists
WIDTH = 1.6448536269514722  # of a 90 % band, in standard deviations
COVERED = (
    "pointwise, 90 %: where the same procedure, with the same bins, gates and public draws, would have come without"
    " noise"
)
UNITS = {  # by link; the score of a clipped link has no name of its own (docs/explanations.md §1)
    "identity": "units of the target",
    "log": "logarithm of the target",
    "probability": "probability",
    "logit": "log-odds",
    "softmax": "log-odds",
}
DRAWS = 4096  # rows that are drawn by the released shares for the size of a remainder


@dataclass(frozen=True, eq=False, repr=False)
class GlobalExplanation:
    """A model as terms that add up to its score: intercept, main effects, pairs, and the remainder of a forest.

    `interpret.show` accepts it as it is.

    Parameters
    ----------
    terms : tuple of Term
        Main effects in the order of the schema's encoded columns, then pairs, then the remainder, if any.
    intercept : (n_scores,) float64, natural units
    classes : tuple
        Class labels of the score columns; empty unless there are several columns.
    target : str
        Name of the target.
    unit : str
        What scores are measured in.
    bands : str
        What the bands of the terms cover, or why there are none.
    private : bool
        Whether the model is private; if not, whatever shows the explanation says so.
    name : str
        The title under which `interpret.show` lists it.

    Privacy
    -------
    Post-processing of released values.
    """

    terms: tuple[Term, ...]
    intercept: NDArray[np.float64]
    classes: tuple[Any, ...]
    target: str
    unit: str
    bands: str
    private: bool = True
    name: str = "Terms of the model"
    explanation_type: str = field(default="global", init=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all terms: the columns of `explain_local`."""
        return tuple(term.name for term in self.terms)

    def term(self, *features: str) -> Term:
        """Return a term by its name, or by its features in any order; where two have one name, the main effect.

        Parameters
        ----------
        *features : str
            A name, as in ``names``; or one name per feature of the term.

        Raises
        ------
        KeyError
            If there is no such term.
        PlanError
            If what is given is neither a name nor names.
        """
        found = self.find(features[0] if len(features) == 1 else features)
        if found is None:
            meant_by = did_you_mean(features[0], self.feature_names) if len(features) == 1 else ""
            raise KeyError(f"No term of {features}; the terms are {listed(self.names)}.{meant_by}")
        return found

    def find(self, given: str | Sequence[str]) -> Term | None:
        """Return the term of a name or of a list of features, as `term` does; None if there is none.

        Parameters
        ----------
        given : str or sequence of str

        Raises
        ------
        PlanError
            If it is neither a name nor a list of names.
        """
        names = list(dict.fromkeys(name for term in self.terms for name in term.features))
        known = {tuple(sorted(term.features)): term for term in self.terms}
        wanted = (tuple(sorted(own)) for own in meant(given, names))
        return next((known[own] for own in wanted if own in known), None)

    # ---- what interpret.show asks for

    @property
    def _plotted(self) -> list[Term]:
        """The terms that have a picture: all but the remainder, and pairs of several classes."""
        return [
            t for t in self.terms if t.scores is not None and (len(t.bins) < 2 or not self.classes)
        ]

    @property
    def feature_names(self) -> list[str]:
        """Names of the terms that `visualize` draws."""
        return [term.name for term in self._plotted]

    @property
    def feature_types(self) -> list[str]:
        """Type of each of them: "continuous", "nominal" or "interaction"."""
        return [
            term.bins[0].kind if term.kind == "main" else "interaction" for term in self._plotted
        ]

    @property
    def selector(self) -> pd.DataFrame:
        """A table with a row for each of them."""
        return pd.DataFrame({"Name": self.feature_names, "Type": self.feature_types})

    def data(self, key: int | None = None) -> dict[str, Any]:
        """Return the data of a figure, as `interpret` lays it out.

        Parameters
        ----------
        key : int or None
            Position in ``feature_names``; None for the importances of all terms, -1 for everything.
        """
        if key is not None:
            figures.check_key(key, len(self._plotted), least=-1)
        if key == -1:
            return {
                "overall": self.data(),
                "specific": [self.data(k) for k in range(len(self._plotted))],
            }
        if key is None:
            return {
                "type": "univariate",
                "names": list(self.names),
                "scores": [term.importance for term in self.terms],
            }
        return figures.term_data(self._plotted[key], self.classes, self._range())

    def _range(self) -> tuple[float, float]:
        shown = [
            part for t in self._plotted for part in (t.scores, t.lower, t.upper) if part is not None
        ]
        if not shown:
            return (0.0, 0.0)
        return min(float(part.min()) for part in shown), max(float(part.max()) for part in shown)

    def visualize(self, key: int | None = None) -> Any:
        """Return a figure of one term, or of the importances, drawn by `interpret` with plotly.

        Parameters
        ----------
        key : int or None
            Position in ``feature_names``; None for the importances of all terms.

        Raises
        ------
        ImportError
            If these are not installed; the message names the extra.
        """
        if key is None:
            return figures.importances(self.data(), marked("Importance of terms", self.private))
        figures.check_key(key, len(self._plotted))
        unit = marked(self.unit, self.private)
        return figures.of_term(
            self.data(key), self.feature_names[key], self.feature_types[key], unit
        )

    # ---- how it prints

    def _rows(self) -> list[tuple[str, str, str]]:
        """Name, kind and importance of the terms, the most important first."""
        ranked = sorted(self.terms, key=lambda term: -term.importance)
        return [(brief(t.name, 60), t.kind, _importance(t)) for t in ranked]

    def _title(self) -> str:
        target, unit = repr(brief(self.target)), marked(self.unit, self.private)
        return f"GlobalExplanation of {target}: {len(self.terms)} terms, in {unit}"

    def _intercept(self) -> str:
        """Return the intercept; of several classes, that of each of the first."""
        told = [f"{value:.4g}" for value in self.intercept]
        named = [f"{brief(c, 20)}: {text}" for c, text in zip(self.classes, told, strict=False)]
        more = [f"… and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
        return ", ".join([*(named or told)[:SHOWN], *more])

    def _sizes(self) -> str:
        """Say what the number of a term is, and what stands in brackets beside it."""
        said = "mean |score| of a term, by the shares of its bins"
        banded = any(term.importance_lower is not None for term in self.terms)
        return (
            f"{said}; in brackets, the least and the largest of all curves within its band"
            if banded
            else said
        )

    def __repr__(self) -> str:
        rows = self._rows()[:SHOWN]
        width = max((len(size) for *_, size in rows), default=0)
        lines = [self._title(), f"  intercept {self._intercept()}"]
        lines += [f"  {size:>{width}}  {name} ({kind})" for name, kind, size in rows]
        if len(self.terms) > SHOWN:
            lines.append(f"  … and {len(self.terms) - SHOWN} less important ones")
        lines += [f"  numbers: {self._sizes()}", f"  bands: {self.bands}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        notes = (
            f"intercept {self._intercept()}",
            f"numbers: {self._sizes()}",
            f"bands: {self.bands}",
        )
        head = ("term", "kind", "mean |score|")
        return html_table(self._title(), self._rows(), head, widest=60, notes=notes)


def _importance(term: Term) -> str:
    if term.importance_lower is None or term.importance_upper is None:
        return f"{term.importance:.4g}"
    size, low, high = (
        f"{value:.3g}" for value in (term.importance, term.importance_lower, term.importance_upper)
    )
    return f"{size} [{low}, {high}]"


def explain_global(
    model: Model,
    shares: BinShares,
    schema: Schema,
    *,
    bands: NoiseBands | None = None,
    scale: float = 1.0,
    offset: float = 0.0,
    private: bool = True,
) -> GlobalExplanation:
    """Return the terms of a model.

    Parameters
    ----------
    model : Model
    shares : BinShares
    schema : Schema
    bands : NoiseBands or None
        Of this model; None for none.
    scale : float
        Natural units of one unit of score (half the target's range in regression).
    offset : float
        Added to the intercept, in natural units: where a score of 0 lies.
    private : bool
        Whether the model is private.

    Returns
    -------
    GlobalExplanation

    Privacy
    -------
    Post-processing of released values.
    """
    bands = NoiseBands(why="not given") if bands is None else bands
    found = decompose(model, shares)
    unit = scale / SCORE_ONE
    classes = schema.target.classes if model.n_scores > 1 else ()
    told: dict[str, Any] = {"unit": unit_of(model, schema), "classes": classes, "private": private}
    terms = []
    for j, (bins, main) in enumerate(zip(model.bins, found.mains, strict=True)):
        axis, code = main_axis(schema, j, bins, shares)
        size = float((shares.weights[j] @ np.abs(main) / SHARE_ONE).mean()) * unit
        sd = None if bands.why else bands.mains[j]
        low, high = importance_band(main, sd, shares.weights[j] / SHARE_ONE)
        terms.append(
            Term(
                "main",
                (axis.feature,),
                (axis,),
                *_with_band(main[code] * unit, None if sd is None else sd[code] * unit),
                size,
                None if low is None else low * unit,
                None if high is None else high * unit,
                **told,
            )
        )
    for pair, spread in zip(found.pairs, pair_noise(model, found, shares, bands), strict=True):
        row, above = group_axis(schema, pair.i, model.bins[pair.i], shares, pair.map_i)
        column, across = group_axis(schema, pair.j, model.bins[pair.j], shares, pair.map_j)
        own = (slice(None), above[:, None], across)
        table = pair.table[own]
        size = float(((np.abs(table) @ column.weights) @ row.weights).mean()) * unit
        pair_sd = None if spread is None else np.moveaxis(spread[own], 0, -1) * unit
        features = (row.feature, column.feature)
        parts = _with_band(np.moveaxis(table, 0, -1) * unit, pair_sd)
        terms.append(Term("pair", features, (row, column), *parts, size, **told))
    if found.remains:
        size = mean_remainder(model, found, shares) * unit
        terms.append(Term(REMAINDER, (), (), None, None, None, size, **told))
    return GlobalExplanation(
        terms=tuple(terms),
        intercept=np.asarray(found.intercept * unit + offset, np.float64),
        classes=classes,
        target=schema.target.name,
        unit=unit_of(model, schema),
        bands=f"none: {bands.why}" if bands.why else COVERED,
        private=private,
    )


def unit_of(model: Model, schema: Schema, column: int | None = None) -> str:
    """Return what the scores of a model are measured in; of two classes, or of one of several, also whose score it is.

    Parameters
    ----------
    model : Model
    schema : Schema
    column : int or None
        Score column of one of several classes; None for all of them.
    """
    classes = schema.target.classes
    unit = UNITS.get(model.link, "score")
    whose = 1 if classes and model.n_scores == 1 else column if classes else None
    return unit if whose is None else f"{unit} of class {brief(classes[whose], 20)}"


def _with_band(
    scores: NDArray[Any], sd: NDArray[Any] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Return scores, and their pointwise 90 % band if the noise is known."""
    if sd is None:
        return _columns(scores), None, None
    return _columns(scores), _columns(scores - WIDTH * sd), _columns(scores + WIDTH * sd)


def importance_band(
    main: NDArray[np.int64], sd: NDArray[np.int64] | None, share: NDArray[np.float64]
) -> tuple[float | None, float | None]:
    """Return a 90 % band of the mean absolute score: its extremes over all tables inside the pointwise band.

    It is wide, as it holds for noise that moves all bins together.
    """
    if sd is None:
        return None, None
    size = np.abs(main)
    low = share @ np.maximum(size - WIDTH * sd, 0)
    return float(low.mean()), float((share @ (size + WIDTH * sd)).mean())


def _columns(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Drop the last axis if there is one score column."""
    return scores[..., 0] if scores.shape[-1] == 1 else scores


def mean_remainder(model: Model, found: Decomposition, shares: BinShares) -> float:
    """Return the mean absolute remainder, in score steps, over rows drawn by the released shares, always the same."""
    rng = np.random.Generator(np.random.PCG64(0))
    codes = np.stack(
        [
            rng.choice(len(part), DRAWS, p=part / SHARE_ONE).astype(np.uint8)
            for part in shares.weights
        ]
    )
    parts = [found.contributions(model, k)(codes)[:, -1] for k in range(model.n_scores)]
    return float(np.abs(parts).mean())


def feature_importances(explanation: GlobalExplanation, schema: Schema) -> NDArray[np.float64]:
    """Return the share of each feature of the schema in the importances of main effects and pairs.

    Returns
    -------
    (n_features,) float64
        They sum to 1, or are all 0 for a model without effects. A pair counts half for each of its features; a feature
        that is encoded as several columns counts with all of them. The remainder belongs to no feature and is left out.
    """
    features = list(schema.features)
    source = dict(zip(schema.encoded, schema.sources, strict=True))
    sizes = np.zeros(len(features))
    for term in explanation.terms:
        for column in term.features:
            sizes[features.index(source[column])] += term.importance / len(term.features)
    total = sizes.sum()
    return sizes / total if total > 0 else sizes
