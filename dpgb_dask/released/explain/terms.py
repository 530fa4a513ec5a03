"""The terms of an explanation in the schema's words: axes with edges or categories, scores in natural units."""

import contextlib
import decimal
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Number, Rational, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.features import Categorical, Numeric
from dpgb_dask.contracts.model import SHARE_ONE, BinShares, FeatureBins
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.display import MOST, NAME, apart, brief, html_table, one_line
from dpgb_dask.errors import PlanError, short
from dpgb_dask.released.statement import MARK
from dpgb_dask.scalars import is_listing
from dpgb_dask.values import is_missing

MISSING, OTHER = "missing", "other"
REMAINDER = "remainder"
AND = " & "  # between the features of a pair


def marked(title: str, private: bool) -> str:
    """Return a title that says of a model that is not private that it is none."""
    return title if private else f"{title}, {MARK}"


def name_of(features: Sequence[str]) -> str:
    """Return the name of a term: its features, joined by " & "; "remainder" without any."""
    return AND.join(features) if len(features) else REMAINDER


def value_of(value: object) -> str:
    """Return a row's value as text, or "missing"; its type, if it has no text."""
    if is_missing(value):
        return MISSING
    try:
        # of NumPy's floats not all are Python's
        if isinstance(value, Rational) or not isinstance(value, Real):
            return str(value)
        number = float(value)
        return f"{number:.0f}" if abs(number) < 1e15 and number.is_integer() else f"{value:g}"
    except Exception:  # a number of more digits than Python prints, or an object of any class
        return f"<{type(value).__name__}>"


def value_within(value: object, most: int) -> str:
    """Return a value of a row in at most ``most`` characters; a number is rounded, as one that is cut is another."""
    text = value_of(value)
    if not isinstance(value, str):
        text = text.removesuffix(" 00:00:00")  # of a date
    if len(text) > most and isinstance(value, Number):
        with contextlib.suppress(decimal.InvalidOperation):  # a fraction has no such text
            text = f"{decimal.Decimal(text):.2e}"
    return brief(text, most)


def meant(given: Any, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every term that may be meant: its features, in the order of ``names``; of the remainder none.

    A text is a term's name, else a pair in the other order. A name of a feature may hold the mark between two, so that
    several terms may be meant. A list holds the features of one term, in any order.

    Parameters
    ----------
    given : str or sequence of str
    names : sequence of str
        The encoded columns, all of which may be features of terms.

    Raises
    ------
    PlanError
        If it is neither a text nor a list.
    """
    known = set(names)
    if not isinstance(given, str):
        if not is_listing(given):
            raise PlanError(
                f"{short(given)} names no term: give its name, or a list of its features."
            )
        own = tuple(given)
        there = all(isinstance(name, str) and name in known for name in own)
        return [tuple(sorted(own, key=names.index))] if there else []
    words = given.split(AND)
    halves = [(AND.join(words[:k]), AND.join(words[k:])) for k in range(1, len(words))]
    pairs = {tuple(sorted(pair, key=names.index)) for pair in halves if known.issuperset(pair)}
    found = [*([(given,)] if given in known else []), *sorted(pairs)]
    found += [()] if given == REMAINDER else []
    return [own for own in found if name_of(own) == given] or found


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Axis:
    """One axis of a term: what its positions stand for.

    Parameters
    ----------
    feature : str
        Name of the encoded column.
    kind : {"continuous", "nominal"}
    labels : tuple of str
        A name for every position: an interval, a category, "other" or "missing".
    edges : (n_intervals + 1,) float64 or None
        Ends of the intervals of a numeric feature, from its lower to its upper public bound. The positions after the
        intervals, if any, hold missing values.
    missing : int or None
        Position of missing values; None if they share a position with other values, whose label says so.
    weights : (n_positions,) float64
        Share of rows at each position, by released counts.
    released : bool
        Whether counts were released; if not, all bins have equal shares.
    """

    feature: str
    kind: str
    labels: tuple[str, ...]
    edges: NDArray[np.float64] | None
    missing: int | None
    weights: NDArray[np.float64]
    released: bool

    def __repr__(self) -> str:
        labels = one_line("; ".join(self.labels))
        return f"Axis({brief(self.feature)!r}, {self.kind}, {len(self.labels)} positions: {labels})"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Term:
    """One term of a model: a main effect, a pair, or the remainder of a forest.

    Parameters
    ----------
    kind : {"main", "pair", "remainder"}
    features : tuple of str
        Names of the encoded columns: one, two, or none.
    bins : tuple of Axis
        One per feature.
    scores : ndarray of float64 or None
        (n_positions,) or (n_positions, n_positions), with the scores of several classes on a last axis; natural units.
        None for the remainder.
    lower, upper : ndarray of float64 or None
        Pointwise 90 % bands of the noise, in the shape of ``scores``; None where none is known.
    importance : float
        Mean absolute score over the released shares of bins; for several classes, their mean. That of a remainder is
        estimated from draws of rows by these shares.
    importance_lower, importance_upper : float or None
        90 % band of ``importance``.
    unit : str
        What scores are measured in, and of two classes, whose they are.
    classes : tuple
        Class labels of the last axis of ``scores``; empty unless there is one.
    private : bool
        Whether the model is private; if not, whatever shows the term says so.
    """

    kind: str
    features: tuple[str, ...]
    bins: tuple[Axis, ...]
    scores: NDArray[np.float64] | None
    lower: NDArray[np.float64] | None
    upper: NDArray[np.float64] | None
    importance: float
    importance_lower: float | None = None
    importance_upper: float | None = None
    unit: str = "score"
    classes: tuple[Any, ...] = ()
    private: bool = True

    @property
    def name(self) -> str:
        """The features, joined by " & "; "remainder" without any."""
        return name_of(self.features)

    @property
    def missing(self) -> tuple[int | None, ...]:
        """Position of missing values on each axis, or None."""
        return tuple(axis.missing for axis in self.bins)

    # ---- how it prints

    def __repr__(self) -> str:
        size = " by ".join(str(len(axis.labels)) for axis in self.bins)
        positions = f", {size} positions" if size else ""
        size = f"mean |score| {self.importance:.4g}, in {marked(self.unit, self.private)}"
        return f"Term({brief(self.name)!r}, {self.kind}{positions}; {size})"

    def _repr_html_(self) -> str:
        if self.kind != "main" or self.scores is None:
            return html_table(repr(self), ())
        (axis,) = self.bins
        parts = [part for part in (self.scores, self.lower, self.upper) if part is not None]
        # several classes: their numbers in one cell, which is not cut
        labels = brief(", ".join(brief(label, 20) for label in self.classes), 3 * NAME)
        score = f"scores of {labels}" if self.classes else "score"
        head = [axis.feature, "share of rows" if axis.released else "share, all equal", score]
        head += ["90 % band, from", "to"] if len(parts) > 1 else []
        rows = [
            [brief(label), f"{100 * share:.3g} %", *(_numbers(part[k]) for part in parts)]
            for k, (label, share) in enumerate(zip(axis.labels, axis.weights, strict=True))
        ]
        return html_table(repr(self), rows, [brief(head[0]), *head[1:]], widest=MOST)


def _numbers(score: Any) -> str:
    """Return a score, or those of several classes, with a sign."""
    return ", ".join(f"{value:+.3g}" for value in np.atleast_1d(score))


def main_axis(
    schema: Schema, j: int, bins: FeatureBins, shares: BinShares
) -> tuple[Axis, NDArray[np.intp]]:
    """Return the axis of a main effect, and the bin of each position.

    A numeric feature has its intervals in order, then missing values. A categorical one has its declared categories in
    order, then "other", then missing values; the share of a bin of several categories is divided evenly among them.
    """
    name, feature = list(schema.encoded.items())[j]
    share, released = shares.weights[j] / SHARE_ONE, shares.released[j]
    if isinstance(feature, Categorical):
        assert bins.cell_to_bin is not None
        labels = (*map(str, feature.categories), OTHER, MISSING)
        code = bins.cell_to_bin.astype(np.intp)
        weights = share[code] / np.bincount(code, minlength=len(share))[code]
        return Axis(name, "nominal", labels, None, len(labels) - 1, weights, released), code
    edges = ends(feature, bins)
    labels = (*intervals(edges), MISSING)
    code = np.arange(bins.n_bins)
    return Axis(name, "continuous", labels, edges, len(labels) - 1, share, released), code


def group_axis(
    schema: Schema, j: int, bins: FeatureBins, shares: BinShares, group: NDArray[np.uint8]
) -> tuple[Axis, NDArray[np.intp]]:
    """Return the axis of a pair, whose positions are groups of bins, and the group of each position.

    Groups of categories are in the order of the first that each holds, as those of `main_axis` are.
    """
    name, feature = list(schema.encoded.items())[j]
    released = shares.released[j]
    n = int(group.max()) + 1
    weights = np.bincount(group, shares.weights[j], n) / SHARE_ONE
    missing = int(group[bins.missing_bin])
    alone = np.count_nonzero(group == missing) == 1
    if isinstance(feature, Categorical):
        assert bins.cell_to_bin is not None
        members: dict[int, list[str]] = {}
        names = [*map(str, feature.categories), OTHER, MISSING]
        for label, own in zip(names, group[bins.cell_to_bin].tolist(), strict=True):
            members.setdefault(own, []).append(label)
        order = np.array([*members])
        labels = tuple(map(", ".join, members.values()))
        position = labels.index(MISSING) if members[missing] == [MISSING] else None
        return Axis(name, "nominal", labels, None, position, weights[order], released), order
    all_ends = ends(feature, bins)
    texts = apart(all_ends.tolist())
    values = group[:-1]  # the last bin holds missing values
    starts = np.flatnonzero(np.diff(values, prepend=-1)) if len(values) else np.empty(0, int)
    # thresholds cut an axis into runs; a mask may send distant intervals to one side, and these have no edges
    runs = len(starts) == len(np.unique(values)) and (np.diff(values[starts]) == 1).all()
    edges = np.append(all_ends[starts], all_ends[-1]) if runs else None
    parts: list[list[str]] = [[] for _ in range(n)]
    last = np.append(starts[1:], len(values))
    for start, stop in zip(starts, last, strict=True):
        parts[values[start]].append(interval(texts[start], texts[stop], first=start == 0))
    parts[missing].append(MISSING)
    labels = tuple(", ".join(part) for part in parts)
    position = missing if alone else None
    axis = Axis(name, "continuous", labels, edges, position, weights, released)
    return axis, np.arange(n)


def ends(feature: Numeric, bins: FeatureBins) -> NDArray[np.float64]:
    """Return the ends of a numeric feature's bins: the public bounds, and the edges between."""
    assert bins.edges is not None
    return np.concatenate([[feature.low], bins.edges, [feature.high]])


def intervals(edges: NDArray[np.float64]) -> tuple[str, ...]:
    """Return a name for each interval."""
    pairs = enumerate(itertools.pairwise(apart(edges.tolist())))
    return tuple(interval(low, high, first=k == 0) for k, (low, high) in pairs)


def interval(low: str, high: str, *, first: bool) -> str:
    """Return the name of an interval: open below, except the first one."""
    return f"{'[' if first else '('}{low}, {high}]"
