"""Changes to a fitted model: monotone, clamp, remove. Each is recorded, so that it can be repeated from the model.

Terms are those of an explanation: main effects, pairs and the remainder of the forest (`released.explain`). What is
changed of a main effect or a pair is added to a table of the model, also where the effect is one of the forest.

Privacy
-------
Post-processing of released values (docs/privacy.md P4): ε and δ of the fit stay what they are.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.calls import spoken
from dpgb_dask.contracts.constraints import Constraints
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.model import SCORE_ONE, BinShares, Model, PairTable, no_trees
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.display import MOST, brief, exact
from dpgb_dask.errors import PlanError, did_you_mean, listed, short
from dpgb_dask.released.explain.decomposition import Decomposition, PairEffect, decompose
from dpgb_dask.released.explain.terms import AND, meant, name_of
from dpgb_dask.released.monotone import monotone_model
from dpgb_dask.scalars import finite_float, is_listing, is_number, plain_text, python_scalar
from dpgb_dask.values import cells

KINDS = {
    "monotone": {"kind", "feature", "direction"},
    "clamp": {"kind", "term", "low", "high", "where"},
    "remove": {"kind", "term"},
}
LARGEST = 1 << 30  # bounds in score steps: scores are int32
UNCHANGED = (
    "These changes were computed from released values alone: epsilon and delta stay what they are."
)

Edit = dict[str, Any]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True, repr=False)
class Editor:
    """Changes of one fitted model, in order; the model itself stays as it is.

    Parameters
    ----------
    model : Model
        With the changes so far.
    schema : Schema
    shares : BinShares
    scale : float
        Natural units of one unit of score.
    kept : (n_columns,) int8
        Directions that the fit keeps (`monotonic_cst`); so does every change.
    edits : tuple of dict
        The changes so far.
    finish : callable
        Makes the result of (edits, model).

    Privacy
    -------
    Post-processing of released values.
    """

    model: Model
    schema: Schema
    shares: BinShares
    scale: float
    kept: NDArray[np.int8]
    edits: tuple[Edit, ...]
    finish: Callable[[tuple[Edit, ...], Model], Any]

    def __repr__(self) -> str:
        told = "; ".join(_sentence(edit, self.scale) for edit in self.edits) or "no changes yet"
        target = brief(self.schema.target.name)
        return f"Editor of {target!r}: {brief(told, MOST // 2)}; done() gives the estimator"

    @spoken
    def monotone(self, feature: str, direction: int = 1) -> "Editor":
        """Let the score never fall where a numeric feature grows, or never grow; tables, pairs and trees included.

        Parameters
        ----------
        feature : str
        direction : int
            1: never fall. -1: never grow.

        Raises
        ------
        PlanError
            If the feature is not numeric, or the model has a score for each of several classes.
        """
        if plain_text(feature) is None:
            raise PlanError(f"monotone: {short(feature)} is no feature: give the name of one.")
        if not is_number(direction):
            raise PlanError(
                f"direction={short(direction)} must be 1 (never falls) or -1 (never grows)."
            )
        return self._with({"kind": "monotone", "feature": feature, "direction": direction})

    @spoken
    def clamp(
        self,
        term: str | Sequence[str],
        low: float | None = None,
        high: float | None = None,
        *,
        where: Any = None,
    ) -> "Editor":
        """Keep what a term adds to the score within bounds.

        Parameters
        ----------
        term : str or sequence of str
            A feature, two features, or the name of a term of `explain_global`. A list holds the names of the features.
        low, high : float or None
            Bounds in natural units, as `explain_global` shows them: its ``unit`` says which.
        where : category or sequence, optional
            Of a main effect, the part that is clamped: (low, high) of a numeric feature, whose bins that hold any such
            value are clamped whole, or a category, or a list of them. Missing values are clamped only without it.

        Raises
        ------
        PlanError
            If there is no such term, or the bounds are none.
        """
        least, most = (None if bound is None else self._steps(bound) for bound in (low, high))
        lowest = None if least is None else math.ceil(least)
        highest = None if most is None else math.floor(most)
        if least is not None and most is not None and least <= most < math.ceil(least):
            lowest = highest = round(least)  # no whole step lies within the bounds
        several = is_listing(where) and not isinstance(where, str)
        listed = where if where is None or several else [where]  # one category
        part = None if listed is None else list(map(python_scalar, listed))
        return self._with(
            {
                "kind": "clamp",
                "term": list(self._features(term)),
                "low": lowest,
                "high": highest,
                "where": part,
            }
        )

    @spoken
    def remove(self, term: str | Sequence[str]) -> "Editor":
        """Let a term add nothing.

        Parameters
        ----------
        term : str or sequence of str
            A feature, two features, or the name of a term of `explain_global`. "remainder" leaves of the forest its
            main effects and its shown pairs.

        Raises
        ------
        PlanError
            If there is no such term.
        """
        return self._with({"kind": "remove", "term": list(self._features(term))})

    @spoken
    def done(self) -> Any:
        """Return a new fitted estimator with the changes; the edited one stays as it is."""
        return self.finish(self.edits, self.model)

    def _with(self, edit: Edit) -> "Editor":
        edits = (*self.edits, edit)
        # the directions of all edits so far are kept
        model = _applied(self.model, self.schema, self.shares, edits, self.kept)
        return replace(self, model=model, edits=edits)

    def _features(self, term: str | Sequence[str]) -> tuple[str, ...]:
        """Return the encoded columns of a term; none for the remainder."""
        names = list(self.schema.encoded)
        found = meant(term, names)
        # which of these terms are there is asked only now, as the answer takes long
        if len(found) > 1:
            parts = decompose(self.model, self.shares)
            pairs = [{names[pair.i], names[pair.j]} for pair in parts.pairs]
            found = [
                own
                for own in found
                if len(own) == 1 or (set(own) in pairs if own else parts.remains)
            ]
        if len(found) > 1:
            lists = [json.dumps(own, ensure_ascii=False) for own in found]
            meant_by = " or ".join(text if text != "[]" else "[] (the remainder)" for text in lists)
            raise PlanError(
                f"{term!r} may mean several terms of the model. Name the features of one as a list: {meant_by}."
            )
        return found[0] if found else tuple(term.split(AND) if isinstance(term, str) else term)

    def _steps(self, bound: Any) -> float:
        number = finite_float(bound)
        if number is None or abs(number / self.scale) * SCORE_ONE > LARGEST:
            raise PlanError(
                f"A bound of clamp is {short(bound)}: give a number within"
                f" ±{LARGEST / SCORE_ONE * self.scale:g}, or None for no bound."
            )
        return number / self.scale * SCORE_ONE


def replayed(
    model: Model,
    schema: Schema,
    shares: BinShares,
    edits: Sequence[Edit],
    kept: NDArray[np.int8],
) -> Model:
    """Return the model of a fit with its edits repeated.

    Raises
    ------
    PlanError
        If an edit is malformed or does not fit the model.
    """
    for n in range(1, len(edits) + 1):
        model = _applied(model, schema, shares, edits[:n], kept)
    return model


def directions_of_fit(public: Mapping[str, Any], schema: Schema) -> NDArray[np.int8]:
    """Return the directions that a fit keeps, from the public facts of its report: (n_columns,) int8.

    Raises
    ------
    PlanError
        If they do not fit the schema.
    """
    constraints = Constraints(monotonic=tuple(public.get("monotonic_cst", {}).items()))
    constraints.check(schema)
    return constraints.directions(schema)


def known_edits(edits: Any) -> bool:
    """Return whether all edits are of kinds that this version can repeat."""
    return isinstance(edits, list) and all(
        isinstance(edit, dict) and edit.get("kind") in KINDS for edit in edits
    )


def in_words(edits: Sequence[Edit], scale: float) -> tuple[str, ...]:
    """Return the edits as sentences for the report."""
    return (*(_sentence(edit, scale) for edit in edits), *((UNCHANGED,) if edits else ()))


def _sentence(edit: Edit, scale: float) -> str:
    if edit["kind"] == "monotone":
        never = "falls" if edit["direction"] > 0 else "grows"
        return f"monotone: the score never {never} where {edit['feature']} grows"
    name = name_of(edit["term"])
    if edit["kind"] == "remove":
        return f"remove: {name} adds nothing to the score"
    bounds = [
        f"at {word} {edit[key] * scale / SCORE_ONE:g}"
        for key, word in (("low", "least"), ("high", "most"))
        if edit[key] is not None
    ]
    where = "" if edit["where"] is None else f", where its value is in {edit['where']}"
    return f"clamp: {name} adds {' and '.join(bounds)} to the score{where}"


def _applied(
    model: Model,
    schema: Schema,
    shares: BinShares,
    edits: Sequence[Edit],
    kept: NDArray[np.int8],
) -> Model:
    """Apply the last of some edits to a model that has the others."""
    edit = edits[-1]
    if set(edit) != KINDS[edit["kind"]]:
        raise PlanError(f"An edit of kind {edit['kind']!r} has other parts: {sorted(edit)}.")
    if edit["kind"] != "monotone":
        model = _changed(model, schema, shares, edit)
    directions, names = kept.copy(), list(schema.encoded)
    for known in edits:
        if known["kind"] == "monotone":
            _check_direction(known, model, schema)
            directions[names.index(known["feature"])] = known["direction"]
    return monotone_model(model, shares, directions) if directions.any() else model


def _check_direction(edit: Edit, model: Model, schema: Schema) -> None:
    name, direction = edit["feature"], edit["direction"]
    if name not in list(schema.encoded):  # what a list holds need not be hashable
        _unknown(name, schema.encoded)
    if not isinstance(schema.encoded[name], Numeric):
        raise PlanError(f"{name!r} is no numeric feature: its values have no order to follow.")
    if isinstance(direction, bool) or direction not in (-1, 1):
        raise PlanError(f"direction={direction!r} must be 1 (never falls) or -1 (never grows).")
    if model.n_scores > 1:
        raise PlanError(
            f"monotone is for one score, and this model has {model.n_scores}, one per class: they cannot all follow one"
            " direction."
        )


def _changed(model: Model, schema: Schema, shares: BinShares, edit: Edit) -> Model:
    """Clamp or remove a term."""
    parts = decompose(model, shares)
    names = list(schema.encoded)
    term = edit["term"]
    if edit["kind"] == "clamp":
        _check_bounds(edit)
    if not term:
        if not parts.remains:
            raise PlanError("The model has no remainder: it has no trees.")
        if edit["kind"] == "clamp":
            raise PlanError(
                "The remainder is no table that could be clamped: remove it, or keep it."
            )
        return _without_remainder(model, parts)
    for name in term:
        if name not in names:
            _unknown(name, names)
    if len(term) == 1:
        j = names.index(term[0])
        inside = _inside(model, schema, j, edit.get("where"))
        change = np.where(inside[:, None], _change(parts.mains[j], edit), 0)
        tables = list(model.tables)
        tables[j] = _int32(tables[j] + change)
        return model.with_tables(tables)
    wanted = sorted(names.index(name) for name in term)
    for pair in parts.pairs:
        if [pair.i, pair.j] == wanted:
            if edit.get("where") is not None:
                raise PlanError("where is for the main effect of one feature, not for a pair.")
            return _with_pair(model, replace(pair, table=_change(pair.table, edit)))
    shown = [name_of((names[p.i], names[p.j])) for p in parts.pairs]
    raise PlanError(f"The model has no pair of {term}. Its pairs are {shown}.")


def _check_bounds(edit: Edit) -> None:
    low, high = edit["low"], edit["high"]
    for bound in (low, high):
        if bound is not None and (type(bound) is not int or abs(bound) > LARGEST):
            raise PlanError(f"A bound of clamp is {bound!r}, and must be in whole score steps.")
    if (low is None and high is None) or (low is not None and high is not None and low > high):
        raise PlanError("clamp needs low, high or both, and low must not exceed high.")


def _change(effect: NDArray[np.int64], edit: Edit) -> NDArray[np.int64]:
    """Return what to add to an effect, in score steps."""
    if edit["kind"] == "remove":
        return -effect
    low, high = (
        LARGEST * sign if b is None else b for b, sign in ((edit["low"], -2), (edit["high"], 2))
    )
    return np.asarray(np.clip(effect, low, high) - effect)


def _inside(model: Model, schema: Schema, j: int, where: Any) -> NDArray[np.bool_]:
    """Return which bins of a feature an edit is for."""
    name, feature = list(schema.encoded.items())[j]
    bins = model.bins[j]
    if where is None:
        return np.ones(bins.n_bins, bool)
    inside = np.zeros(bins.n_bins, bool)
    if isinstance(feature, Numeric):
        assert bins.edges is not None
        ends = [end for end in map(finite_float, where) if end is not None]
        if len(where) != 2 or len(ends) != 2 or ends[0] > ends[1]:
            raise PlanError(
                f"where={short(where)} of {name!r} must be its lowest and highest value, two finite numbers. All values"
                f" lie within {exact(feature.low)} and {exact(feature.high)}."
            )
        first, last = np.searchsorted(bins.edges, np.array(ends, np.float64))
        inside[first : last + 1] = True
        return inside
    assert bins.cell_to_bin is not None
    known = list(feature.categories)
    forms = cells(known)
    # as rows are read: "1" is the category 1
    read = zip(where, cells(where), strict=True)
    named = [
        known[forms.index(form)] if value not in known and form in forms else value
        for value, form in read
    ]
    if unknown := [value for value in named if value not in known]:
        raise PlanError(
            f"where names {listed(unknown)}, which are no declared categories of {name!r}. Choose among"
            f" {listed(known)}; what is other or missing is changed only without where."
        )
    inside[bins.cell_to_bin[[known.index(value) for value in named]]] = True
    return inside


def _with_pair(model: Model, change: PairEffect) -> Model:
    """Add a table over two features: to the model's own where the cells are the same, else beside it."""
    pairs = list(model.pairs)
    for k, pair in enumerate(pairs):
        same = (pair.i, pair.j, pair.table.shape) == (change.i, change.j, change.table.shape)
        if (
            same
            and np.array_equal(pair.map_i, change.map_i)
            and np.array_equal(pair.map_j, change.map_j)
        ):
            pairs[k] = replace(pair, table=_int32(pair.table + change.table))
            return replace(model, pairs=tuple(pairs))
    pairs.append(_pair_table(change))
    return replace(model, pairs=tuple(pairs))


def _pair_table(effect: PairEffect) -> PairTable:
    return PairTable(effect.i, effect.j, effect.map_i, effect.map_j, _int32(effect.table))


def _without_remainder(model: Model, parts: Decomposition) -> Model:
    return replace(
        model,
        intercept=_int32(parts.intercept),
        tables=tuple(_int32(main) for main in parts.mains),
        pairs=tuple(_pair_table(pair) for pair in parts.pairs),
        trees=no_trees(max(model.trees.depth, 1), model.n_scores),
    )


def _int32(steps: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
    limits = np.iinfo(np.int32)
    if steps.size and not (limits.min <= steps.min() and steps.max() <= limits.max):
        raise PlanError(
            "The change makes a score too large: scores are below 2**15. Choose closer bounds."
        )
    return np.asarray(steps.astype(np.int32, order="C"))


def _unknown(name: Any, names: Any) -> NoReturn:
    raise PlanError(
        f"{name!r} is no feature of the model. It has {listed(names)}.{did_you_mean(name, names)}"
    )
