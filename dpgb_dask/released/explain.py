"""Explanations of a model: shape functions, pair tables, contributions per row. Post-processing of released values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.features import Categorical, Numeric
from dpgb_dask.contracts.model import SCORE_ONE, FeatureBins, Model, PairTable
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.kernels import predict as kernels
from dpgb_dask.released.predict import Codes, RowFunction, apply


def explain_global(model: Model, schema: Schema, scale: float = 1.0) -> list[dict[str, Any]]:
    """Return the additive part of a model, one record per feature and per pair, as `interpret` lays it out.

    Parameters
    ----------
    model : Model
    schema : Schema
    scale : float
        Natural units of one unit of score (half the target's range in regression).

    Returns
    -------
    list of dict
        ``type`` "univariate": ``feature``, ``feature_type`` ("continuous" or "nominal"), ``names`` (bin edges with the
        public bounds at both ends, or categories and "other"), ``scores`` per bin, ``missing_score``. If the model has
        trees, features without a shape function are left out. ``type`` "interaction": ``features``, ``left_names``,
        ``right_names``, ``scores`` (2-D). ``type`` "forest": ``n_trees``, for the part that is not additive; only if
        the model has such a part.

    Privacy
    -------
    Post-processing. No densities are returned, as the model does not hold the bin counts.
    """
    names, features = schema.encoded_names, list(schema.encoded.values())
    unit = scale / SCORE_ONE
    out: list[dict[str, Any]] = []
    for name, feature, bins, table in zip(names, features, model.bins, model.tables, strict=True):
        if model.trees.n_trees and not table.any():
            continue  # a recipe of trees has no shape functions; a table of zeros would look like no effect
        scores = table * unit if model.n_scores > 1 else table[:, 0] * unit
        record = {"type": "univariate", "feature": name, "missing_score": scores[bins.missing_bin]}
        if isinstance(feature, Categorical):
            assert bins.cell_to_bin is not None
            record |= {
                "feature_type": "nominal",
                "names": [*feature.categories, "other"],
                "scores": scores[bins.cell_to_bin[:-1]],
            }
        else:
            record |= {
                "feature_type": "continuous",
                "names": _ends(feature, bins),
                "scores": scores[:-1],
            }
        out.append(record)
    out += [
        {
            "type": "interaction",
            "features": (names[pair.i], names[pair.j]),
            "left_names": _group_names(features[pair.i], model.bins[pair.i], pair.map_i),
            "right_names": _group_names(features[pair.j], model.bins[pair.j], pair.map_j),
            "scores": (pair.table[0] if model.n_scores == 1 else np.moveaxis(pair.table, 0, -1))
            * unit,
        }
        for pair in model.pairs
    ]
    if model.trees.n_trees:
        out.append({"type": "forest", "n_trees": model.trees.n_trees})
    return out


def _ends(feature: Numeric, bins: FeatureBins) -> list[float]:
    assert bins.edges is not None
    return [feature.low, *bins.edges.tolist(), feature.high]


def _group_names(feature: Any, bins: FeatureBins, group: NDArray[np.uint8]) -> list[str]:
    """Return a name for each row or column of a pair table: an interval, or the categories in it."""
    members: list[list[str]] = [[] for _ in range(int(group.max()) + 1)]
    if isinstance(feature, Categorical):
        assert bins.cell_to_bin is not None
        for label, code in zip(
            [*feature.categories, "other", "missing"], bins.cell_to_bin, strict=True
        ):
            members[group[code]].append(str(label))
        return [", ".join(labels) for labels in members]
    ends = _ends(feature, bins)
    for k in np.unique(group):
        codes = np.flatnonzero(group[:-1] == k)  # the last bin holds missing values
        if len(codes):
            members[k].append(f"({ends[codes[0]]:g}, {ends[codes[-1] + 1]:g}]")
    members[group[-1]].append("missing")
    return [", ".join(labels) for labels in members]


def term_names(model: Model, schema: Schema) -> tuple[str, ...]:
    """Return the names of the columns of `explain_local`."""
    names = schema.encoded_names
    pairs = tuple(f"{names[p.i]} & {names[p.j]}" for p in model.pairs)
    return (*names, *pairs, *(("forest",) if model.trees.n_trees else ()))


@dataclass(frozen=True)
class Contributions:
    """Contribution of each term to one score column, per row; their sum plus the intercept is the score."""

    score: int
    scale: float

    def __call__(self, model: Model) -> Callable[[Codes], NDArray[np.float64]]:
        """Return a function from codes to (n_rows, n_terms) float64 contributions."""
        trees, splits = model.trees, model.trees.splits
        unit = self.scale / SCORE_ONE

        def contributions(codes: Codes) -> NDArray[np.float64]:
            columns = [t[code, self.score] for t, code in zip(model.tables, codes, strict=True)]
            columns += [_pair_score(pair, codes, self.score) for pair in model.pairs]
            if trees.n_trees:
                forest = np.zeros(codes.shape[1], np.int32)
                value = trees.value[self.score]
                kernels.add_trees(codes, *splits.arrays, value, forest)
                columns.append(forest)
            return np.stack(columns, axis=1) * unit

        return contributions


def _pair_score(pair: PairTable, codes: Codes, score: int) -> NDArray[np.int32]:
    return pair.table[score, pair.map_i[codes[pair.i]], pair.map_j[codes[pair.j]]]


def explain_local(model: Model, schema: Schema, rows: Any, scale: float = 1.0) -> dict[str, Any]:
    """Return what each term adds to the score of each row.

    Parameters
    ----------
    model : Model
    schema : Schema
    rows : collection of rows; lazy on Dask
    scale : float
        Natural units of one unit of score.

    Returns
    -------
    dict
        ``names`` (terms), ``intercept`` (n_scores,), ``scores`` (n_rows, n_terms), or a list of these, one per class,
        for multiclass. Intercept and contributions add up to the decision function.

    Privacy
    -------
    Post-processing: the rows to explain are the caller's own.
    """
    names = term_names(model, schema)
    dtype = np.dtype(np.float64)
    scores = [
        apply(RowFunction(model, schema, Contributions(k, scale)), rows, dtype, names)
        for k in range(model.n_scores)
    ]
    return {
        "names": names,
        "intercept": model.intercept * (scale / SCORE_ONE),
        "scores": scores[0] if model.n_scores == 1 else scores,
    }
