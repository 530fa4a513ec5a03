"""The picture of a model: importances, shape functions with their bands, pairs as heat maps."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.calls import spoken
from dpgb_dask.display import apart
from dpgb_dask.errors import PlanError, did_you_mean, short
from dpgb_dask.plots.style import (
    GREY,
    TITLE,
    dress,
    in_legend,
    in_power,
    is_dark,
    limits,
    new_figure,
    palette,
    plain,
    plain_term,
    power_of,
    thinned,
)
from dpgb_dask.released.explain import Axis, GlobalExplanation, Term
from dpgb_dask.released.explain.terms import marked
from dpgb_dask.scalars import is_listing

COLUMNS = 3
WIDTH, HEIGHT = 4.3, 3.3  # of one panel, inches
CATEGORIES = 14  # most categories that one panel names
PARTS = 4  # most parts into which ticks divide a linear axis, whose labels must not meet
TICKS = 6  # most ticks of an axis of a heat map
CLASSES = 6  # most classes that one panel tells apart: one colour each
CROWDED = 0.1  # a numeric axis is drawn on a symmetric log scale if 90 % of rows lie in less than this part of it


@spoken
def plot_model(
    explanation: GlobalExplanation,
    *,
    terms: str | Sequence[str] | None = None,
    n_terms: int = 11,
) -> Any:
    """Draw the importances of a model's terms and the most important terms themselves.

    Parameters
    ----------
    explanation : GlobalExplanation
    terms : str or sequence of str, optional
        Names of the terms to draw, as in ``explanation.names``, in this order, or one name; a pair's features may stand
        in any order, also as a tuple. None for the most important ones.
    n_terms : int
        How many these are at most.

    Returns
    -------
    matplotlib.figure.Figure
        A panel of importances, then one per term. Main effects of numeric features are steps over their bins, those of
        categorical ones points; bands are pointwise 90 % intervals of the noise. Missing values stand apart. Pairs are
        heat maps; of several classes, that of the class on which the pair acts most.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    PlanError
        If there is no term of a name, or no picture of it, or ``n_terms`` is no whole number.

    Privacy
    -------
    Post-processing of released values.
    """
    if not isinstance(explanation, GlobalExplanation):
        raise PlanError(
            f"explanation is a {type(explanation).__name__}. Give model.explain_global(); or draw with model.plot()."
        )
    shown = _chosen(explanation, terms, n_terms)
    n_columns = min(COLUMNS, len(shown) + 1)
    n_rows = -(-(len(shown) + 1) // n_columns)
    figure = new_figure(WIDTH * n_columns, HEIGHT * n_rows + 0.4)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for unused in panels[len(shown) + 1 :]:
        unused.set_axis_off()
    _importances(panels[0], explanation)
    classes = _shown_classes(explanation, shown)
    for axes, term in zip(panels[1:], shown, strict=False):
        if term.kind == "pair":
            _pair(figure, axes, term, explanation)
        elif term.bins[0].edges is not None:
            _numeric(axes, term, explanation.unit, classes)
        else:
            _categorical(axes, term, explanation.unit, classes)
    if classes is not None:
        handles, labels = next(
            (axes.get_legend_handles_labels() for axes in panels[1:] if axes.lines or axes.patches),
            ([], []),
        )
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    banded = any(term.lower is not None for term in shown)
    title = (
        f"{plain(explanation.target)}: {len(shown)} of {len(explanation.terms)} terms"
        + ("" if classes is None else f", {len(classes)} of {len(explanation.classes)} classes")
        + (", with 90 % bands of the noise" if banded else "")
    )
    figure.suptitle(marked(title, explanation.private))
    return figure


def _chosen(explanation: GlobalExplanation, names: Any, n_terms: Any) -> list[Term]:
    """Return the terms to draw; the remainder has no picture."""
    if names is None:
        if isinstance(n_terms, bool) or not isinstance(n_terms, int | np.integer):
            raise PlanError(f"n_terms={short(n_terms)} must be a whole number.")
        drawn = [term for term in explanation.terms if term.scores is not None]
        return sorted(drawn, key=lambda term: -term.importance)[: max(int(n_terms), 0)]
    if not is_listing(names):
        raise PlanError(
            f"terms={short(names)} must be the name of a term, or a list of names. explain_global().names lists them."
        )
    return [_drawn(explanation, name) for name in ([names] if isinstance(names, str) else names)]


def _drawn(explanation: GlobalExplanation, name: Any) -> Term:
    found = explanation.find(name) if isinstance(name, str | Sequence) else None
    if found is None or found.scores is None:
        drawn = [term.name for term in explanation.terms if term.scores is not None]
        raise PlanError(
            f"terms: {short(name)} is no term that has a picture.{did_you_mean(name, drawn)}"
            " explain_global().names lists the terms."
        )
    return found


def _shown_classes(
    explanation: GlobalExplanation, shown: list[Term]
) -> list[tuple[int, str]] | None:
    """Return number and label of the classes that are drawn: those with the largest scores; None for one score."""
    if not explanation.classes:
        return None
    mains = [term.scores for term in shown if term.kind == "main" and term.scores is not None]
    size = sum((np.abs(s).mean(0) for s in mains), np.zeros(len(explanation.classes)))
    order = np.sort(np.argsort(-np.asarray(size), kind="stable")[:CLASSES])
    return [(int(k), in_legend(plain(explanation.classes[k]))) for k in order]


def _importances(axes: Any, explanation: GlobalExplanation) -> None:
    ranked = sorted(explanation.terms, key=lambda term: -term.importance)[:CATEGORIES][::-1]
    colors = [GREY if term.kind == "remainder" else palette(axes)[0] for term in ranked]
    ends = (term.importance_upper or 0.0 for term in ranked)
    power = power_of([*(term.importance for term in ranked), *ends])
    sizes = [term.importance / power for term in ranked]
    axes.barh(range(len(ranked)), sizes, color=colors)
    for k, term in enumerate(ranked):
        low, high = term.importance_lower, term.importance_upper
        if low is not None and high is not None:
            axes.plot(
                [low / power, high / power],
                [k, k],
                color=axes.xaxis.label.get_color(),
                linewidth=1.2,
            )
    axes.set_yticks(range(len(ranked)), [plain_term(term.features, term.name) for term in ranked])
    unit = in_power(plain(explanation.unit, 30), power)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"mean |score|, {unit}", fontsize="small")
    n_more = len(explanation.terms) - len(ranked)
    dress(axes, "importance" + (f" ({n_more} smaller terms left out)" if n_more else ""))


Column = tuple[str | None, NDArray[np.float64], Any, Any]


def _columns(term: Term, classes: list[tuple[int, str]] | None) -> tuple[list[Column], float]:
    """Return label, scores, and lower and upper ends of the band of each score column that is drawn.

    And the power of ten that all of these were divided by.
    """
    given = (term.scores, term.lower, term.upper)
    power = power_of(float(np.abs(part).max()) for part in given if part is not None)
    scores, lower, upper = (None if part is None else part / power for part in given)
    assert scores is not None
    if classes is None:
        return [(None, scores, lower, upper)], power
    columns: list[Column] = [
        (
            label,
            scores[..., k],
            None if lower is None else lower[..., k],
            None if upper is None else upper[..., k],
        )
        for k, label in classes
    ]
    return columns, power


def _numeric(axes: Any, term: Term, unit: str, classes: list[tuple[int, str]] | None) -> None:
    """Draw steps over the bins, and missing values at the right, apart."""
    (axis,) = term.bins
    assert axis.edges is not None
    n = len(axis.edges) - 1
    across = power_of(axis.edges.tolist())
    edges = axis.edges / across
    columns, power = _columns(term, classes)
    apart = None
    if axis.missing is not None:
        apart = axes.inset_axes([1.05, 0, 0.08, 1], sharey=axes)
        apart.set_xlim(-1, len(columns))
        slanted = {"rotation": -35, "ha": "left", "rotation_mode": "anchor"}  # clear of the axis
        apart.set_xticks([(len(columns) - 1) / 2], ["missing"], **slanted)
        apart.tick_params(axis="y", left=False, labelleft=False)
        dress(apart)
        apart.spines["left"].set_visible(False)
    seen: list[float] = []
    for k, (label, scores, lower, upper) in enumerate(columns):
        color = palette(axes)[k]
        if lower is not None and upper is not None:
            axes.stairs(upper[:n], edges, baseline=lower[:n], fill=True, color=color, alpha=0.25)
            seen += [float(lower.min()), float(upper.max())]
        axes.stairs(scores[:n], edges, baseline=None, color=color, label=label, linewidth=1.6)
        seen += scores.tolist()
        if apart is not None:
            here = axis.missing
            if lower is not None and upper is not None:
                apart.plot([k, k], [lower[here], upper[here]], color=color, alpha=0.5)
            apart.plot([k], [scores[here]], "o", color=color, markersize=4)
    for part in (axes, apart):
        if part is not None:
            part.axhline(0, color=GREY, linewidth=0.8, zorder=0)
    _scale(axes, axis, edges)
    if edges[0] < edges[-1]:  # a schema may declare a feature of one value
        axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(*limits(seen))
    axes.set_xlabel(in_power("", across), fontsize="small")
    axes.set_ylabel(in_power(plain(unit, 30), power), fontsize="small")
    dress(axes, plain(term.name, TITLE))


def _scale(axes: Any, axis: Axis, edges: NDArray[np.float64]) -> None:
    """Draw a crowded axis on a symmetric log scale: by the released shares, most rows lie in a small part of it."""
    mass = axis.weights[: len(edges) - 1]
    inner = edges[(edges > 0) & (edges < edges[-1])]
    high = edges[-1]
    if axis.released and edges[0] >= 0 and mass.sum() > 0 and len(inner):
        high = edges[1:][np.searchsorted(np.cumsum(mass), 0.9 * mass.sum())]
    if high - edges[0] < CROWDED * (edges[-1] - edges[0]):
        least = float(max(inner[0], edges[-1] * 1e-4))
        # a power of ten: a smaller one would be named beside 0
        axes.set_xscale("symlog", linthresh=10.0 ** math.ceil(math.log10(least)))
    else:
        wide = np.abs(edges).max() >= 1e4  # five digits
        axes.locator_params(axis="x", nbins=PARTS - wide)


def _categorical(axes: Any, term: Term, unit: str, classes: list[tuple[int, str]] | None) -> None:
    """Draw a point per category, ordered by score; "other" and "missing" below the others, apart."""
    (axis,) = term.bins
    assert term.scores is not None
    n = len(axis.labels) - 2  # the last two are "other" and "missing"
    sizes = term.scores if term.scores.ndim == 1 else term.scores.mean(1)
    kept = np.argsort(-axis.weights[:n], kind="stable")[:CATEGORIES]
    kept = kept[np.argsort(sizes[kept], kind="stable")]
    places = [*np.arange(len(kept)) + 2.6, 1.0, 0.0]
    rows = [*kept, n, n + 1]
    columns, power = _columns(term, classes)
    seen: list[float] = []
    for k, (label, scores, lower, upper) in enumerate(columns):
        color = palette(axes)[k]
        offset = 0.0 if len(columns) == 1 else 0.6 * (k / (len(columns) - 1) - 0.5)
        y = np.asarray(places) + offset
        if lower is not None and upper is not None:
            axes.hlines(y, lower[rows], upper[rows], color=color, alpha=0.45, linewidth=2.5)
            seen += [*lower[rows].tolist(), *upper[rows].tolist()]
        axes.plot(scores[rows], y, "o", color=color, markersize=4, label=label)
        seen += scores[rows].tolist()
    axes.axvline(0, color=GREY, linewidth=0.8, zorder=0)
    axes.axhline(1.8, color=GREY, linewidth=0.6, linestyle=":")
    axes.set_yticks(places, [plain(axis.labels[row]) for row in rows])
    axes.set_ylim(-0.7, max(places) + 0.7)
    axes.set_xlim(*limits(seen))
    axes.locator_params(axis="x", nbins=PARTS)
    axes.set_xlabel(in_power(plain(unit, 30), power), fontsize="small")
    left_out = f"\n({len(kept)} of {n} by share of rows)" if len(kept) < n else ""
    dress(axes, f"{plain(term.name, TITLE)}{left_out}")


def _pair(figure: Any, axes: Any, term: Term, explanation: GlobalExplanation) -> None:
    """Draw a heat map; cells are of one size, and missing values lie behind a gap."""
    import matplotlib as mpl  # noqa: PLC0415 - optional

    assert term.scores is not None
    table, title = term.scores, plain_term(term.features, term.name, TITLE)
    if table.ndim == 3:
        k = int(np.argmax(np.abs(table).mean((0, 1))))
        table, title = table[:, :, k], f"{title}\nclass {plain(explanation.classes[k])}"
    power = power_of([float(np.abs(table).max())])
    table = table / power
    (rows, left), (columns, right) = _cells(term.bins[0]), _cells(term.bins[1])
    cells = np.full((len(left) - 1, len(right) - 1), np.nan)
    cells[np.ix_(*(np.arange(len(ends) - 1)[_filled(ends)] for ends in (left, right)))] = table[
        np.ix_(rows, columns)
    ]
    most = float(np.abs(table).max()) or 1.0
    dark = is_dark(axes) and "berlin" in mpl.colormaps
    mesh = axes.pcolormesh(
        left, right, cells.T, cmap="berlin" if dark else "RdBu_r", vmin=-most, vmax=most
    )
    bar = figure.colorbar(mesh, ax=axes, shrink=0.9)
    bar.ax.tick_params(labelsize="small", labelcolor=axes.xaxis.label.get_color())
    bar.set_label(in_power(plain(explanation.unit, 30), power), fontsize="small")
    _ticks(axes.xaxis, term.bins[0], rows, left)
    _ticks(axes.yaxis, term.bins[1], columns, right)
    axes.set_xlabel(plain(term.features[0]), fontsize="small")
    axes.set_ylabel(plain(term.features[1]), fontsize="small")
    dress(axes, title)
    axes.tick_params(axis="x", rotation=35)


def _cells(axis: Axis) -> tuple[list[int], NDArray[np.float64]]:
    """Return the positions of an axis in the order in which they are drawn, and the ends of their cells."""
    n = len(axis.labels)
    if axis.missing is None:
        return list(range(n)), np.arange(n + 1.0)
    order = [k for k in range(n) if k != axis.missing] + [axis.missing]
    return order, np.array([*range(n), n - 0.6, n + 0.4])


def _filled(ends: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which cells are no gap."""
    return np.diff(ends) > 0.9


def _ticks(drawn: Any, axis: Axis, order: list[int], ends: NDArray[np.float64]) -> None:
    """Name the cells of an axis: the edges between intervals, or categories; missing values by their name."""
    centres = ((ends[:-1] + ends[1:]) / 2)[_filled(ends)]
    n_values = len(order) - (axis.missing is not None)
    if axis.edges is not None:
        marks = thinned(n_values + 1, TICKS)
        places = [float(ends[k]) for k in marks]
        labels = apart([float(axis.edges[k]) for k in marks], least=4)
    else:
        marks = thinned(n_values, 2 * TICKS)
        places = [float(centres[k]) for k in marks]
        labels = [plain(axis.labels[order[k]], 14) for k in marks]
    if axis.missing is not None:
        # a neighbour that is nearer than labels are apart would be printed over
        clear = [place < centres[-1] - ends[-1] / (2 * TICKS) for place in places]
        places = [*itertools.compress(places, clear), float(centres[-1])]
        labels = [*itertools.compress(labels, clear), "missing"]
    drawn.set_ticks(places, labels)
