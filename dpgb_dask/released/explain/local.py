"""The explanation of rows: `explain_local` and its result."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from dask.base import is_dask_collection
from numpy.typing import NDArray

from dpgb_dask.clients import compute
from dpgb_dask.contracts.model import SCORE_ONE, BinShares, Model
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.display import MOST, brief, html_table
from dpgb_dask.errors import StructureError
from dpgb_dask.lazy_decoding import total_whole
from dpgb_dask.losses import LINKS
from dpgb_dask.released.explain import figures
from dpgb_dask.released.explain.decomposition import Decomposition, decompose
from dpgb_dask.released.explain.overall import unit_of
from dpgb_dask.released.explain.terms import REMAINDER, marked, name_of, value_within
from dpgb_dask.released.outputs import values_of
from dpgb_dask.released.predict import Codes, RowFunction, apply, as_read
from dpgb_dask.zarr_arrays import lazily

SHOWN_ROWS = 8  # rows that a repr lists …
SHOWN_TERMS = 4  # … and their largest contributions; the others are added up
VALUE = 17  # most characters of a row's value: a moment to the minute, "2015-01-31 07:45…"


@dataclass(frozen=True)
class Contributions:
    """Contribution of each term to one score column, per row, in score steps."""

    found: Decomposition
    score: int

    def __call__(self, model: Model) -> Callable[[Codes], NDArray[np.int64]]:
        """Return the function of codes."""
        return self.found.contributions(model, self.score)


@dataclass(frozen=True, eq=False, repr=False)
class LocalExplanation:
    """What each term adds to the score of each row; with the intercept it is the whole score.

    `interpret.show` accepts it as it is, if it is in memory (see `compute`).

    Parameters
    ----------
    names : tuple of str
        Names of the terms.
    steps : tuple of collections of (n_rows, n_terms) int64
        One per score column, of the same kind as X; lazy on Dask. In score steps of 2⁻¹⁶: with ``intercept_steps`` they
        sum to the model's score, bit for bit.
    intercept_steps : (n_scores,) int64
    rows : collection
        The rows that were explained; of a Dask DataFrame, their features alone.
    model, schema
    scale, offset : float
        Natural units of one unit of score; where a score of 0 lies.
    private : bool
        Whether the model is private; if not, whatever shows the explanation says so.
    name : str
        The title under which `interpret.show` lists it.

    Attributes
    ----------
    scores : collection of (n_rows, n_terms) float64, natural units; a list with one per class for several classes
    unit : str
        What the scores are measured in; of two classes, also whose score it is.
    intercept : (n_scores,) float64, natural units

    Privacy
    -------
    Post-processing: the rows to explain are the caller's own. What it prints holds values of them.
    """

    names: tuple[str, ...]
    steps: tuple[Any, ...]
    intercept_steps: NDArray[np.int64]
    rows: Any
    model: Model
    schema: Schema
    scale: float
    offset: float
    private: bool = True
    name: str = "Contributions to predictions"
    explanation_type: str = field(default="local", init=False)

    @property
    def scores(self) -> Any:
        """Contributions in natural units."""
        parts = [part * (self.scale / SCORE_ONE) for part in self.steps]
        return parts[0] if len(parts) == 1 else parts

    @property
    def unit(self) -> str:
        """What the scores are measured in; of two classes, also whose score it is."""
        return unit_of(self.model, self.schema)

    @property
    def intercept(self) -> NDArray[np.float64]:
        """The score of a row that no term changes, in natural units."""
        return np.asarray(self.intercept_steps * (self.scale / SCORE_ONE) + self.offset)

    @property
    def lazy(self) -> bool:
        """Whether the contributions are still to be computed by Dask."""
        return any(is_dask_collection(part) for part in self.steps)

    def compute(self) -> "LocalExplanation":
        """Return the same explanation in memory, with the rows; unchanged if it is not lazy."""
        # else Dask would look for parts of its own in a Zarr group
        if not is_dask_collection(self.rows):
            return replace(self, steps=compute(*self.steps))
        *steps, rows = compute(*map(total_whole, (*self.steps, self.rows)))
        return replace(self, steps=tuple(steps), rows=rows)

    def _in_memory(self) -> list[NDArray[np.int64]]:
        if self.lazy:
            raise StructureError(
                "This explanation is lazy: call compute(), on few rows, before you look at its rows."
            )
        return [np.asarray(part) for part in self.steps]

    # ---- what interpret.show asks for

    @property
    def feature_names(self) -> list[str]:
        """Names of the terms."""
        return list(self.names)

    @property
    def feature_types(self) -> list[str]:
        """Type of each term: "continuous", "nominal", "interaction" or "remainder"."""
        mains = ["nominal" if bins.categorical else "continuous" for bins in self.model.bins]
        rest = [
            REMAINDER if name == REMAINDER else "interaction" for name in self.names[len(mains) :]
        ]
        return mains + rest

    def _scores_of_rows(self) -> NDArray[np.int64]:
        """Return the scores of all rows, (n_rows, n_scores), in steps."""
        return np.stack([part.sum(1) for part in self._in_memory()], axis=1) + self.intercept_steps

    def _outlook(self, score: NDArray[np.int64]) -> tuple[int, Any, float]:
        """Return the column or class that a row is predicted as, its label, and its probability or value."""
        classes = self.schema.target.classes
        if not classes:
            value = float(values_of(score[None, :], self.model.link, self.schema.target)[0])
            return 0, f"{value:.4g}", value
        chances = LINKS[self.model.link](score[None, :] / SCORE_ONE)[0]
        # as `predict` does: probabilities may be equal where scores are not
        best = int(np.argmax(score)) if len(score) > 1 else int(np.argmax(chances))
        return best, str(classes[best]), float(chances[best])

    @property
    def selector(self) -> pd.DataFrame:
        """A table with a row for each explained row."""
        return figures.selector([self._outlook(score)[1] for score in self._scores_of_rows()])

    def data(self, key: int | None = None) -> dict[str, Any] | None:
        """Return the data of one row's figure, as `interpret` lays it out.

        Parameters
        ----------
        key : int or None
            Position of the row; None gives None, as rows have no common figure; -1 for everything.

        Raises
        ------
        StructureError
            If the explanation is lazy.
        """
        if key is None:
            return None
        parts = self._in_memory()
        figures.check_key(key, len(parts[0]), least=-1)
        if key == -1:
            return {"overall": None, "specific": [self.data(k) for k in range(len(parts[0]))]}
        steps = np.stack([part[key] for part in parts], axis=1)
        best, _, size = self._outlook(steps.sum(0) + self.intercept_steps)
        scores = steps * (self.scale / SCORE_ONE)
        perf = {
            "is_classification": bool(self.schema.target.classes),
            "actual": np.nan,
            "actual_score": np.nan,
            "predicted": best if self.schema.target.classes else size,
            "predicted_score": size,
        }
        return figures.row_data(
            self.names,
            scores if len(parts) > 1 else scores[:, 0],
            self._values(key),
            self.intercept,
            perf,
            self.schema.target.classes,
        )

    def _values(self, key: int) -> list[Any]:
        """Return the row's value of each feature, of a part of a date the date, and nothing for other terms."""
        rows = self.rows
        if isinstance(rows, xr.DataArray):  # by position, or named as the schema has them
            features = rows.indexes.get(rows.dims[1], self.schema.names)
            named = {*map(str, features)} >= {*self.schema.names}
            rows = rows.to_numpy()
            rows = pd.DataFrame(rows, columns=features) if named else rows
        if isinstance(rows, pd.DataFrame):
            row = rows.iloc[key]
            known = dict(zip(map(str, rows.columns), row, strict=True))
        elif isinstance(rows, np.ndarray):
            known = dict(zip(self.schema.names, rows[key], strict=True))
        elif isinstance(rows, xr.Dataset):
            known = {name: rows[name].to_numpy()[key] for name in self.schema.names}
        else:  # a Zarr group, whose values are not read twice
            known = {}
        own = [known.get(source, "") for source in self.schema.sources]
        return [*own, *[""] * (len(self.names) - len(own))]

    def visualize(self, key: int | None = None) -> Any:
        """Return a figure of one row, drawn by `interpret` with plotly.

        Parameters
        ----------
        key : int or None
            Position of the row; None gives None, as rows have no common figure.

        Raises
        ------
        ImportError
            If these are not installed; the message names the extra.
        StructureError
            If the explanation is lazy.
        """
        if key is not None:
            figures.check_key(key, len(self._in_memory()[0]))
        data = self.data(key)
        unit = marked(self.unit, self.private)
        return None if data is None else figures.of_row(data, unit)

    # ---- how it prints

    def _title(self) -> str:
        name, terms = brief(self.schema.target.name), f"{len(self.names)} terms"
        if self.lazy:
            lazy = f"LocalExplanation of {name!r} (lazy; compute() reads the rows): {terms}"
            return marked(lazy, self.private)
        n_rows = len(self.steps[0])
        first = f", the first {SHOWN_ROWS}" if n_rows > SHOWN_ROWS else ""
        unit = self.unit
        unit += " of the predicted class" if len(self.steps) > 1 else ""
        title = f"LocalExplanation of {name!r}: {n_rows} rows{first}; {terms}, in {unit}"
        return marked(title, self.private)

    def _shown(self) -> list[list[str]]:
        """Return the cells of the first rows: position, prediction, score, intercept, and contributions, largest first.

        For several classes, score and contributions are those of the predicted class. They add up to the score.
        """
        if self.lazy:
            return []
        parts = [part[:SHOWN_ROWS] for part in self._in_memory()]
        rows = zip(*parts, strict=True)
        return [self._cells(key, np.stack(row, axis=1)) for key, row in enumerate(rows)]

    def _cells(self, key: int, steps: NDArray[np.int64]) -> list[str]:
        """Return the cells of one row, whose contributions are (n_terms, n_scores) steps."""
        best, label, chance = self._outlook(steps.sum(0) + self.intercept_steps)
        column = best if steps.shape[1] > 1 else 0
        sizes = steps[:, column] * (self.scale / SCORE_ONE)
        start = self.intercept[column]
        order = np.argsort(-np.abs(sizes), kind="stable")
        largest, others = order[:SHOWN_TERMS], order[SHOWN_TERMS:]
        values = self._values(key)
        told = [f"{_said(self.names[k], values[k])} {sizes[k]:+.3g}" for k in largest]
        if len(others):
            told.append(f"{len(others)} others {sizes[others].sum():+.3g}")
        predicted = brief(label, 20)
        if self.schema.target.classes:
            predicted += f" ({100 * chance:.3g} %)"
        return [str(key), predicted, f"{start + sizes.sum():.4g}", f"{start:.4g}", *told]

    def __repr__(self) -> str:
        lines = [self._title()]
        for key, predicted, score, start, *told in self._shown():
            terms = ", ".join([f"intercept {start}", *told])
            lines.append(f"  row {key}: score {score}, predicted {predicted}: {terms}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = ((*row[:4], row[4:]) for row in self._shown())
        rows = [[*first, ", ".join(told)] for *first, told in cells]
        head = ("row", "predicted", "score", "intercept", "contributions") if rows else ()
        return html_table(self._title(), rows, head, widest=MOST)


def _said(name: str, value: Any) -> str:
    """Return a term with the row's value of its feature, in few characters."""
    if isinstance(value, str) and not value:
        return brief(name, 20)
    return f"{brief(name, 16)}={value_within(value, VALUE)}"


def explain_local(
    model: Model,
    shares: BinShares,
    schema: Schema,
    rows: Any,
    *,
    scale: float = 1.0,
    offset: float = 0.0,
    private: bool = True,
) -> LocalExplanation:
    """Return what each term adds to the score of each row.

    Parameters
    ----------
    model : Model
    shares : BinShares
    schema : Schema
    rows : collection of rows; lazy on Dask
    scale, offset, private : float, float, bool
        As in `explain_global`.

    Returns
    -------
    LocalExplanation

    Privacy
    -------
    Post-processing: the rows to explain are the caller's own.
    """
    rows = as_read(lazily(rows), schema)
    found = _parts_of(model, shares)
    names = term_names(found, schema)
    dtype = np.dtype(np.int64)
    steps = tuple(
        apply(
            RowFunction(
                model,
                schema,
                Contributions(found, k),
                task="dpgb-explain",
                told=("contribution", "term"),
            ),
            rows,
            dtype,
            names,
        )
        for k in range(model.n_scores)
    )
    return LocalExplanation(
        names, steps, found.intercept.copy(), rows, model, schema, scale, offset, private
    )


@lru_cache(maxsize=1)  # rows are often explained one by one, each in a fiftieth of this time
def _parts_of(model: Model, shares: BinShares) -> Decomposition:
    return decompose(model, shares)


def term_names(found: Decomposition, schema: Schema) -> tuple[str, ...]:
    """Return the names of the terms, as those of `explain_global`."""
    columns = schema.encoded_names
    pairs = (name_of((columns[pair.i], columns[pair.j])) for pair in found.pairs)
    return (*columns, *pairs, *((REMAINDER,) if found.remains else ()))
