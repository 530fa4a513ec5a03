"""The data of figures as `interpret` lays them out, and its own plotly figures of them."""

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dpgb_dask.display import seen
from dpgb_dask.errors import PlanError, short
from dpgb_dask.released.explain.terms import Term
from dpgb_dask.scalars import whole_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

DENSITY_BARS = 20
NO_INTERPRET = (
    "Figures of interpret need interpret and plotly: pip install 'dpgb_dask[interpret]', or draw the explanation with"
    " plot() ('dpgb_dask[viz]')."
)


def check_key(key: Any, n_figures: int, least: int = 0) -> None:
    """Refuse what is no position of a figure; ``least`` is -1 where that means all of them.

    Raises
    ------
    PlanError
    """
    position = whole_number(key)
    if position is None or not least <= position < n_figures:
        allowed = "None, -1 or" if least else "None or"
        raise PlanError(
            f"key={short(key)} must be {allowed} a position: of a term in feature_names, or of an explained row."
        )


def term_data(
    term: Term, classes: tuple[Any, ...], scores_range: tuple[float, float]
) -> dict[str, Any]:
    """Return the data of a main effect or pair.

    The scale of a numeric axis has no place for missing values: their score is in ``missing_score`` and in the figure's
    title. So is the unit: `interpret` writes "Score" on the other scale.
    """
    assert term.scores is not None
    if term.kind == "pair":
        return {
            "type": "interaction",
            "features": term.features,
            "left_names": list(term.bins[0].labels),
            "right_names": list(term.bins[1].labels),
            "scores": term.scores,
            "scores_range": scores_range,
        }
    (axis,) = term.bins
    shown: Any = slice(None)
    names: list[Any] = list(axis.labels)
    density = {"names": names, "scores": axis.weights.tolist()}
    if axis.edges is not None:
        shown = slice(0, len(axis.edges) - 1)
        names = axis.edges.tolist()
        density = _density(axis.edges, axis.weights[shown])
    out = {
        "type": "univariate",
        "feature": axis.feature,
        "names": names,
        "scores": term.scores[shown],
        "scores_range": scores_range,
        "lower_bounds": None if term.lower is None else term.lower[shown],
        "upper_bounds": None if term.upper is None else term.upper[shown],
        "density": density,
        "missing_score": term.scores[axis.missing] if axis.missing is not None else None,
    }
    if classes:
        out["meta"] = {"label_names": [str(label) for label in classes]}
    return out


def _density(
    edges: "NDArray[np.float64]", weights: "NDArray[np.float64]"
) -> dict[str, list[float]]:
    """Return the shares of rows in few intervals of equal length: a label stands under each of them."""
    ends = np.linspace(edges[0], edges[-1], DENSITY_BARS + 1)
    below = np.concatenate([[0.0], np.cumsum(weights)])
    return {"names": ends.tolist(), "scores": np.diff(np.interp(ends, edges, below)).tolist()}


def _plots() -> Any:
    """Return interpret's module of figures.

    Raises
    ------
    ImportError
        If interpret or plotly is missing.
    """
    try:
        from interpret.visual import plot  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ImportError(NO_INTERPRET) from error
    return plot


def _as_names(data: Any) -> Any:
    """Return texts, in whatever holds them, of which plotly takes nothing for HTML or for a formula."""
    if isinstance(data, str):
        return escape(seen(data), quote=False).replace("$", "&#36;")
    if isinstance(data, dict):
        return {key: _as_names(part) for key, part in data.items()}
    return type(data)(map(_as_names, data)) if isinstance(data, list | tuple) else data


def importances(data: dict[str, Any], title: str) -> Any:
    """Return the figure of the importances of terms."""
    plot, data = _plots(), _as_names(data)
    ranked = plot.sort_take(data, sort_fn=lambda size: -abs(size), top_n=15, reverse_results=True)
    return plot.plot_horizontal_bar(
        ranked,
        title=title,
        start_zero=True,
        xtitle="mean |score|, weighted by the released shares of bins",
    )


def of_term(data: dict[str, Any], name: str, kind: str, unit: str) -> Any:
    """Return the figure of a main effect or pair."""
    plot = _plots()
    data, name, unit = _as_names([data, name, unit])
    if kind == "interaction":
        left, right = data["features"]
        return plot.plot_pairwise_heatmap(data, title=f"{name}, {unit}", xtitle=left, ytitle=right)
    if kind == "nominal":
        if data["upper_bounds"] is None:  # bars of several classes need a length of error
            data = data | {"upper_bounds": data["scores"]}
        return plot.plot_bar(data, title=f"{name}, {unit}", xtitle=name)
    missing = np.atleast_1d(data["missing_score"])
    title = f"{name}, {unit} (missing: {', '.join(f'{score:.3g}' for score in missing)})"
    return plot.plot_continuous_bar(
        data,
        multiclass="meta" in data,
        show_error=data["upper_bounds"] is not None,
        title=title,
        xtitle=name,
    )


def row_data(
    names: tuple[str, ...],
    scores: "NDArray[np.float64]",
    values: list[Any],
    intercept: "NDArray[np.float64]",
    perf: dict[str, Any],
    classes: tuple[Any, ...],
) -> dict[str, Any]:
    """Return the data of one row's figure; ``scores`` are (n_terms,) or (n_terms, n_classes)."""
    out: dict[str, Any] = {
        "type": "univariate",
        "names": list(names),
        "scores": list(scores),
        "values": values,
        "extra": {
            "names": ["Intercept"],
            "scores": [intercept if scores.ndim > 1 else float(intercept[0])],
            "values": [""],
        },
        "perf": perf,
    }
    if classes:
        out["meta"] = {"label_names": [str(label) for label in classes]}
    return out


def of_row(data: dict[str, Any], unit: str) -> Any:
    """Return the figure of one row: its strongest contributions."""
    plot = _plots()
    data, unit = _as_names([data, unit])
    several = plot.is_multiclass_local_data_dict(data)
    best = data["perf"]["predicted"]

    def size(score: Any) -> float:
        return -abs(score[best] if several else score)

    ranked = plot.sort_take(data, sort_fn=size, top_n=15, reverse_results=True)
    return plot.plot_horizontal_bar(ranked, multiclass=several, xtitle=f"contribution, {unit}")


def selector(predictions: list[Any]) -> pd.DataFrame:
    """Return a table with a row for each explained row."""
    return pd.DataFrame({"Row": range(len(predictions)), "Predicted": predictions})
