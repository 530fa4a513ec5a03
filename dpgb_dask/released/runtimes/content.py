"""What every runtime's file holds: the model, how its outputs are scaled, and the privacy statement."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpgb_dask.contracts.features import TRUTHS, Bool, Categorical, Grouped
from dpgb_dask.contracts.model import BinShares, Model
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import StructureError
from dpgb_dask.kernels.route import leaves_of_codes
from dpgb_dask.released.outputs import even_score, scale_of
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.scalars import python_scalar
from dpgb_dask.values import EXACT, MISSING_WORDS, as_text, cells

SINGLE = 1 << 24  # whole numbers up to this are exact in float32
WIDE = 1 << 63  # from here on a whole number has no place in 64 bits
WRAPS = 1 << 31  # scores are int32, and wrap around at this number of steps


@dataclass(frozen=True, eq=False)
class Content:
    """A released model and what belongs to it, as the writers of runtimes take them.

    Parameters
    ----------
    model : Model
    schema : Schema
    report : PrivacyReport
    shares : BinShares
        Shares of the weight of rows per bin.
    """

    model: Model
    schema: Schema
    report: PrivacyReport
    shares: BinShares

    @property
    def statement(self) -> str:
        """The privacy report in words, which travels with every file."""
        return str(self.report)

    @property
    def report_json(self) -> str:
        """The privacy report as JSON."""
        return json.dumps(self.report.to_dict(), ensure_ascii=False, default=str)

    @property
    def even(self) -> int:
        """Score, in steps, at which two classes are equally probable."""
        return even_score(self.model)

    @cached_property
    def labels(self) -> tuple[Any, ...]:
        """The classes in their order, as a column of one type holds them.

        Texts where they are of several types, or where a whole number needs more than 64 bits.
        """
        plain = tuple(map(python_scalar, self.schema.target.classes))
        wide = any(isinstance(label, int) and not -WIDE <= label < WIDE for label in plain)
        return tuple(map(str, plain)) if wide or len(set(map(type, plain))) > 1 else plain

    @property
    def scale(self) -> tuple[float, float]:
        """Middle and half-width of a numeric target: the prediction is ``middle + half * link(score)``."""
        return scale_of(self.model.link, self.schema.target)

    @cached_property
    def folded(self) -> Model:
        """The same scores from fewer trees: see `fold`."""
        return fold(self.model)


@dataclass(frozen=True)
class Listed:
    """The values of a categorical column that have a cell of their own, in the words of runtimes.

    Parameters
    ----------
    texts : dict of str to int
        Cell of each text, spelled as declared, and as numbers and booleans are most often spelled.
    numbers : dict of float to int
        Cell of each number. A text that spells one is read as it.
    missing : frozenset of str
        Texts that stand for a missing value.
    other, none : int
        Cell of all other values, and of missing ones.
    """

    texts: dict[str, int]
    numbers: dict[float, int]
    missing: frozenset[str]
    other: int
    none: int


def listed(name: str, feature: Any, runtime: str) -> Listed:
    """Return the values of a feature with categories, booleans or groups.

    Raises
    ------
    StructureError
        If a runtime cannot express how the feature is read.
    """
    match feature:
        case Categorical(categories):
            values, place, n = list(categories), list(range(len(categories))), len(categories)
        case Bool():
            values, place, n = list(TRUTHS), [0, 1], 2
        case Grouped():
            at = {group: k for k, group in enumerate(feature.groups)}
            values = [value for value, _ in feature.mapping]
            place, n = [at[group] for _, group in feature.mapping], len(at)
        case _:
            raise StructureError(
                f"feature {name!r} is of kind {type(feature).__name__}, which a file for {runtime} cannot read. Export"
                " to 'python', or to 'xgboost', whose rows the Python file encodes, or leave the feature out of the"
                " schema."
            )
    texts: dict[str, int] = {}
    numbers: dict[float, int] = {}
    for value, form, cell in zip(values, cells(values), place, strict=True):
        text = as_text(value)
        if isinstance(form, float):
            numbers[form] = cell
            texts |= dict.fromkeys(_spelled(form), cell)
        if form is not None or text not in (None, "nan"):  # None is there in files of version 0.2
            # as declared: of a number of 2⁵³ and above, these digits are not how it is spelled most often
            texts[str(python_scalar(value)) if text is None else text] = cell
    return Listed(texts, numbers, MISSING_WORDS - texts.keys(), n, n + 1)


def _spelled(number: float) -> list[str]:
    """Return how a number is most often spelled; 1 and 0 are booleans too."""
    words = {1.0: ["true", "True", "TRUE"], 0.0: ["false", "False", "FALSE"]}.get(number, [])
    whole = [str(int(number))] if number.is_integer() and abs(number) < EXACT else []
    return [*whole, repr(number), *words]


def fold(model: Model) -> Model:
    """Return a model with the same scores, in which trees of one feature are part of the feature's table.

    Recipes of additive models train thousands of trees with one feature each; most runtimes take a table far better.
    """
    trees, splits = model.trees, model.trees.splits
    splitting = splits.splitting
    tables = [table.copy() for table in model.tables]
    intercept = model.intercept.copy()
    kept = []
    for t in range(splits.n_trees):
        used = np.unique(splits.feature[t][splitting[t]])
        if len(used) > 1:
            kept.append(t)
        elif len(used) == 0:
            intercept += trees.value[:, t, 0]
        else:
            alone = splits.part(t, t + 1)
            n_codes = model.bins[used[0]].n_bins
            (leaf,) = leaves_of_codes(alone.threshold, alone.mask_of, alone.masks, n_codes)
            tables[used[0]] += trees.value[:, t, leaf].T
    return replace(
        model,
        intercept=intercept,
        tables=tuple(tables),
        trees=trees.only(np.array(kept, np.int64)),
    )


def largest_score(model: Model) -> int:
    """Return a bound, in steps, on every partial sum of a score's terms, in whatever order they are added."""
    total = np.abs(model.intercept.astype(np.int64))
    for table in model.tables:
        total += np.abs(table.astype(np.int64)).max(axis=0, initial=0)
    for pair in model.pairs:
        total += np.abs(pair.table.astype(np.int64)).max(axis=(1, 2), initial=0)
    leaves = np.abs(model.trees.value.astype(np.int64))
    total += leaves.max(axis=2, initial=0).sum(axis=1)
    return int(total.max())


def refuse_wrapping(model: Model, runtime: str) -> None:
    """Refuse a model whose scores may wrap around, as int32 does and the numbers of a runtime do not.

    Raises
    ------
    StructureError
    """
    if largest_score(model) >= WRAPS:
        raise StructureError(
            f"The scores of this model may wrap around at 2**31 steps, which a file for {runtime} cannot express."
            " Export to 'python'."
        )


def commented(text: str, mark: str) -> str:
    """Return a text as comment lines, each of which begins with the mark."""
    lines: Sequence[str] = text.splitlines()
    return "".join(f"{mark} {_printable(line)}".rstrip() + "\n" for line in lines)


def _printable(line: str) -> str:
    """Return a line without characters that might end a comment."""
    return "".join(c if c.isprintable() else "?" for c in line)
