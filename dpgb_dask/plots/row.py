"""The picture of one prediction: a waterfall from the intercept to the score."""

from typing import Any

import numpy as np

from dpgb_dask.calls import spoken
from dpgb_dask.errors import PlanError, short
from dpgb_dask.plots.style import GREY, dress, in_power, new_figure, plain, power_of, up_and_down
from dpgb_dask.released.explain import LocalExplanation
from dpgb_dask.released.explain.overall import unit_of
from dpgb_dask.released.explain.terms import marked, value_within
from dpgb_dask.scalars import whole_number

MOST = 12  # most terms that are drawn on their own


@spoken
def plot_row(
    explanation: LocalExplanation, row: int = 0, *, column: int = 0, title: str = ""
) -> Any:
    """Draw how the terms of a model lead from the intercept to the score of one row.

    Parameters
    ----------
    explanation : LocalExplanation
        In memory.
    row : int
        Position of the row in it.
    column : int
        Score column: the class, for several classes.
    title : str
        The prediction in words.

    Returns
    -------
    matplotlib.figure.Figure
        From top to bottom: the intercept, bars for the largest contributions and for the sum of all others, the score.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    PlanError
        If ``explanation`` is none, or ``row`` or ``column`` is no position in it.
    StructureError
        If the explanation is lazy.

    Privacy
    -------
    Post-processing; the row is the caller's own.
    """
    if not isinstance(explanation, LocalExplanation):
        raise PlanError(
            f"explanation is a {type(explanation).__name__}. Give model.explain_local(rows); or draw with"
            " model.plot_local(row)."
        )
    if (whole_number(row) or 0) < 0 or row is None:
        raise PlanError(f"row={short(row)} must be the position of an explained row.")
    told = explanation.data(row)
    assert told is not None
    scores = np.asarray(told["scores"], np.float64)
    start = np.atleast_1d(told["extra"]["scores"][0])
    if scores.ndim > 1:
        if whole_number(column) is None or not 0 <= column < scores.shape[1]:
            raise PlanError(f"column={short(column)} must be the position of a class.")
        scores, start = scores[:, column], start[column : column + 1]
    power = power_of([*scores.tolist(), float(start[0])])
    scores, start = scores / power, start / power
    order = np.argsort(-np.abs(scores), kind="stable")
    largest, others = order[:MOST], order[MOST:]
    labels = ["intercept", *(_label(told["names"][k], told["values"][k]) for k in largest)]
    sizes = [float(start[0]), *scores[largest].tolist()]
    if len(others):
        labels.append(f"{len(others)} other terms")
        sizes.append(float(scores[others].sum()))
    figure = new_figure(8.0, 0.34 * len(labels) + 1.9)
    axes = figure.subplots()
    up, down = up_and_down(axes)
    ends = np.cumsum(sizes)
    begins = np.concatenate([[0.0], ends[:-1]])
    y = np.arange(len(labels))
    colors = [up if size > 0 else down for size in sizes[1:]]
    text = axes.xaxis.label.get_color()
    places = np.arange(len(labels) + 1)  # the last one is the score
    diamonds = [0, len(labels)]
    reached = np.append(ends, ends[-1])
    axes.barh(y[1:], sizes[1:], left=begins[1:], color=colors, height=0.62)
    axes.plot(reached[diamonds], diamonds, "D", color=text, markersize=6)
    for k in y:
        axes.plot([ends[k], ends[k]], [k, k + 1], color=GREY, linewidth=0.8, zorder=0)
    for k in places:
        whole = k in diamonds
        right = whole or sizes[k] >= 0
        axes.annotate(
            f"{reached[k]:.4g}" if whole else f"{sizes[k]:+.3g}",
            (reached[k], k),
            xytext=(7 if whole else 4 if right else -4, 0),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            fontsize="small",
            color=text,
        )
    low, high = float(reached.min()), float(reached.max())
    room = 0.16 * (high - low) or 0.5
    axes.set_xlim(low - room, high + room)
    if low - room < 0 < high + room:
        axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_yticks(places, [*labels, "score"])
    axes.invert_yaxis()
    unit = plain(unit_of(explanation.model, explanation.schema, column), 40)
    axes.set_xlabel(in_power(unit, power), fontsize="small")
    dress(axes)
    axes.set_title(marked(plain(title, 80), explanation.private), fontsize="medium")
    return figure


def _label(name: str, value: Any) -> str:
    if isinstance(value, str) and not value:
        return plain(name, 34)
    return f"{plain(name, 24)} = {plain(value_within(value, 20), 20)}"
