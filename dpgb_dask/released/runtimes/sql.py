"""A model as one SQL query, for SQLite and DuckDB: look-ups by CASE, added up in balanced pairs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpgb_dask.contracts.features import Datetime, Numeric
from dpgb_dask.contracts.model import SCORE_ONE, FeatureBins, Model, PairTable
from dpgb_dask.errors import StructureError, check_flag, short
from dpgb_dask.losses import CLASS_CLIP, RATE_SHIFT
from dpgb_dask.released.runtimes.content import (
    Content,
    Listed,
    commented,
    listed,
    refuse_wrapping,
)
from dpgb_dask.released.runtimes.sql_dates import (
    Steps,
    column_of,
    duckdb_fields,
    part_steps,
    sqlite_fields,
)
from dpgb_dask.remote import put
from dpgb_dask.scalars import is_listing, plain_text, python_scalar

MOST_COLUMNS = 1900  # SQLite takes 2000 in a table
OF_A_DATE = 28  # columns at most
OWN = (
    "dpgb_values",
    "dpgb_dates",
    "dpgb_codes",
    "dpgb_leaves",
    "dpgb_steps",
    "dpgb_natural",
    "dpgb_powers",
)
NUMBER = r"[ \t\n\v\f\r]*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\n\v\f\r]*"
INFINITIES = ("inf", "infinity", "+inf", "+infinity")


class _SQLite:
    """What is said otherwise in SQLite, whose columns have no fixed types."""

    greatest = "max"
    over = "/"
    has_exp = False  # only if it was compiled with its mathematical functions

    def number(self, x: str) -> str:
        """Return the number of a value; a text that is a number as a whole is one (it equals a conversion).

        Whole numbers are compared exactly, and from 2⁵³ on few of them equal their floating-point number.
        """
        text = f"CAST({x} AS TEXT)"  # of bytes too, which equal no number
        low = f"lower({text})"
        infinite = ", ".join(map(_literal, INFINITIES))
        return (
            f"CASE WHEN typeof({x}) IN ('integer', 'real') OR {text} = CAST({x} AS REAL)"
            f" OR {text} = CAST({x} AS INTEGER) THEN CAST({x} AS REAL)"
            f" WHEN {low} = 'true' THEN 1.0 WHEN {low} = 'false' THEN 0.0"
            f" WHEN {low} IN ({infinite}) THEN 9e999 WHEN {low} IN ('-inf', '-infinity') THEN -9e999 END"
        )

    def date(self, x: str, n: str) -> Steps:
        """Return the fields of a date."""
        return sqlite_fields(x, n)

    def entry(self, index: str, values: Sequence[int]) -> str:
        """Return the entry of a list at an index."""
        *cases, last = values
        return f"CASE {index} {_whens(enumerate(cases))} ELSE {last} END"

    def columns(self, values: Sequence[str]) -> list[str]:
        """Return a column for each."""
        return [f"{value} AS l{k}" for k, value in enumerate(values)]

    def column(self, k: int) -> str:
        """Return the k-th column."""
        return f"l{k}"

    def text(self, x: str) -> str:
        """Return the text of a value; its column may compare texts in another way than byte for byte."""
        exact = f"printf('%!.17g', {x})"  # as text, SQLite rounds a number to 15 digits
        return (
            f"CASE typeof({x}) WHEN 'real' THEN {exact} ELSE CAST({x} AS TEXT) END COLLATE BINARY"
        )


class _DuckDB:
    """What is said otherwise in DuckDB."""

    greatest = "greatest"
    over = "//"
    has_exp = True

    def number(self, x: str) -> str:
        """Return the number of a value; a text that is none, and NaN, give NULL. The values of an ENUM are texts."""
        text = f"CAST({x} AS VARCHAR)"
        low, infinite = f"lower({text})", ", ".join(map(_literal, INFINITIES))
        read = f"TRY_CAST({x} AS DOUBLE)"
        is_text = f"(typeof({x}) IN ('VARCHAR', 'BLOB') OR starts_with(typeof({x}), 'ENUM('))"
        trimmed = f"TRY_CAST(regexp_replace({text}, '[ \\t\\n\\v\\f\\r]', '', 'g') AS DOUBLE)"
        return (
            f"CASE WHEN NOT {is_text} THEN CASE WHEN isnan({read}) THEN NULL ELSE {read} END"
            f" WHEN regexp_full_match({text}, {_literal(NUMBER)}) THEN {trimmed}"
            f" WHEN {low} = 'true' THEN 1e0 WHEN {low} = 'false' THEN 0e0"
            f" WHEN {low} IN ({infinite}) THEN CAST('inf' AS DOUBLE)"
            f" WHEN {low} IN ('-inf', '-infinity') THEN CAST('-inf' AS DOUBLE) END"
        )

    def text(self, x: str) -> str:
        """Return the text of a value; a FLOAT is told apart from the DOUBLE that is written the same."""
        exact = f"CAST(CAST({x} AS DOUBLE) AS VARCHAR)"
        return f"CASE typeof({x}) WHEN 'FLOAT' THEN {exact} ELSE CAST({x} AS VARCHAR) END"

    def date(self, x: str, n: str) -> Steps:
        """Return the fields of a date."""
        return duckdb_fields(x, n)

    def entry(self, index: str, values: Sequence[int]) -> str:
        """Return the entry of a list at an index: planned ten times as fast as CASE."""
        return f"CAST('[{', '.join(map(str, values))}]' AS INTEGER[])[{index} + 1]"

    def columns(self, values: Sequence[str]) -> list[str]:
        """Return one column of a list, which is planned faster than many columns."""
        return [f"[{', '.join(values)}] AS leaves"]

    def column(self, k: int) -> str:
        """Return the k-th entry of the list."""
        return f"leaves[{k + 1}]"


class Dialect(Protocol):
    """How a database says what is not the same everywhere."""

    @property
    def greatest(self) -> str:
        """The function of two numbers that returns the greater."""

    @property
    def over(self) -> str:
        """The sign of the division of whole numbers."""

    @property
    def has_exp(self) -> bool:
        """Whether every build has ``exp``."""

    def number(self, x: str) -> str:
        """Return the number of a value, or NULL."""

    def text(self, x: str) -> str:
        """Return the text of a value."""

    def date(self, x: str, n: str) -> Steps:
        """Return the fields of a date, step by step, in columns whose names begin with ``n``."""

    def entry(self, index: str, values: Sequence[int]) -> str:
        """Return the entry of a list at an index, which is 0 or more."""

    def columns(self, values: Sequence[str]) -> list[str]:
        """Return columns that hold some whole numbers."""

    def column(self, k: int) -> str:
        """Return the k-th of these numbers."""


DIALECTS: dict[str, Dialect] = {"sqlite": _SQLite(), "duckdb": _DuckDB()}


def to_sql(
    content: Content,
    path: str | Path,
    *,
    dialect: str = "sqlite",
    table: str | Sequence[str] = "rows",
    keep: str | Sequence[str] = (),
    has_exp: bool | None = None,
) -> None:
    """Write a model as a query (docs/exports.md).

    Parameters
    ----------
    content : Content
    path : str or Path
    dialect : {"sqlite", "duckdb"}
    table : str or sequence of str
        The table of rows; a sequence for a name with its schema, such as ``("main", "people")``.
    keep : str or sequence of str
        Column, or columns, of the table to return beside the predictions, such as a key.
    has_exp : bool, optional
        Whether the database has ``exp``. Without it, links that need it give the label and the score, and no
        probability. None for what the dialect is sure to have: DuckDB has it, SQLite may not.

    Raises
    ------
    StructureError
        If an option is none of these, a feature or a name cannot be expressed, or the file cannot be written.

    Privacy
    -------
    Released values only; the file begins with the privacy report in words.
    """
    if plain_text(dialect) not in DIALECTS:
        raise StructureError(
            f"dialect={short(dialect)} is unknown. Choose one of {sorted(DIALECTS)}."
        )
    if has_exp is not None:
        check_flag("has_exp", has_exp, StructureError)
    refuse_wrapping(content.model, "SQL")
    query = _Query(content, dialect, table, keep, has_exp)
    put(path, commented(content.statement, "--") + query.text())


def _names(option: str, value: Any) -> list[str]:
    """Return a name, or a sequence of names, as a list.

    Raises
    ------
    StructureError
        If it is neither.
    """
    several = is_listing(value) and not isinstance(value, str)
    names = []
    for one in value if several else [value]:
        name = plain_text(one)
        if name is None:
            raise StructureError(f"{option}={short(value)} must be a name, or a sequence of names.")
        names.append(name)
    return names


def _quoted(name: str) -> str:
    """Return a name as an identifier.

    Raises
    ------
    StructureError
        If it holds a NUL, which no SQL text can.
    """
    if "\x00" in name:
        raise StructureError(f"The name {name!r} holds a NUL, which SQL cannot. Rename the column.")
    return '"' + name.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    """Return a label or text as a literal."""
    value = python_scalar(value)
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _real(value)
    text = str(value)
    if "\x00" in text:
        raise StructureError(
            f"The label {text!r} holds a NUL, which SQL cannot. Declare another one."
        )
    return "'" + text.replace("'", "''") + "'"


def _real(value: float) -> str:
    """Return a float as a literal of a floating-point type; with an exponent, as DuckDB else makes it a decimal.

    An infinite one, such as that of the category "inf", is written as a number beyond the range of floats.
    """
    if math.isinf(value):
        return "9e999" if value > 0 else "-9e999"
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def _total(terms: Sequence[str]) -> str:
    """Return the sum of terms, in pairs: nested as deep as the logarithm of their number."""
    if len(terms) <= 1:
        return terms[0] if terms else "0"
    middle = len(terms) // 2
    return f"({_total(terms[:middle])}\n + {_total(terms[middle:])})"


def _whens(cases: Any) -> str:
    return " ".join(f"WHEN {_literal(value)} THEN {result}" for value, result in cases)


class _Query:
    """The query of one model, common table by common table."""

    def __init__(
        self,
        content: Content,
        dialect: str,
        table: str | Sequence[str],
        keep: str | Sequence[str],
        has_exp: bool | None,
    ) -> None:
        self._content = content
        self._words = DIALECTS[dialect]
        self._exp = self._words.has_exp if has_exp is None else has_exp
        parts = _names("table", table)
        if not parts or not all(parts):
            raise StructureError(
                f"table={short(table)} names no table. Give its name, such as table='rows'."
            )
        if parts[-1].lower().startswith(OWN):
            raise StructureError(
                f"table={parts[-1]!r} is the name of a part of the query. Rename it."
            )
        self._table = ".".join(map(_quoted, parts))
        self._keep = _names("keep", keep)
        self._model: Model = content.folded
        self._parts: list[str] = []
        self._refuse_meeting(dialect)

    def _refuse_meeting(self, dialect: str) -> None:
        """Refuse features that a database takes for one column, names that it does not take, and too many columns."""
        seen: dict[str, str] = {}
        for name in self._content.schema.names:
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise StructureError(
                    f"features {other!r} and {name!r} differ in case alone: SQL takes them for one column. Rename one."
                )
        if dialect == "duckdb" and "" in (*self._content.schema.names, *self._keep):
            raise StructureError("A column without a name is none that DuckDB takes. Name it.")
        leaves = self._model.trees.n_trees if self._model.n_scores > 1 else 0
        dates = sum(isinstance(one, Datetime) for one in self._content.schema.features.values())
        read = 2 * len(seen) + OF_A_DATE * dates
        if (
            dialect == "sqlite"
            and max(read, len(self._content.schema.encoded), leaves) + len(self._keep)
            > MOST_COLUMNS
        ):
            raise StructureError(
                f"The query needs more than {MOST_COLUMNS} columns, for the features or for the trees of several"
                " classes, which SQLite does not take. Export to 'python' or 'onnx'."
            )

    def text(self) -> str:
        """Return the query."""
        self._values_and_codes()
        codes = [f"c{j}" for j in range(self._model.n_features)]
        self._steps(codes)
        outputs = self._outputs()
        taken = {name.lower() for name, _ in outputs}
        if met := [name for name in self._keep if name.lower() in taken]:
            raise StructureError(
                f"keep={met[0]!r} is the name of a prediction. Leave it out, or rename the column."
            )
        kept = [f"k{n} AS {_quoted(name)}" for n, name in enumerate(self._keep)]
        columns = [*kept, *(f"{value} AS {_quoted(name)}" for name, value in outputs)]
        last = self._parts[-1].split(" ", 1)[0]
        # materialized: else databases may repeat the text of a code wherever it is used
        parts = ",\n".join(self._parts)
        return f"WITH {parts}\nSELECT {', '.join(columns)}\nFROM {last};\n"

    def _part(self, name: str, columns: Sequence[str], source: str) -> None:
        """Add a common table."""
        kept = [f"k{n}" for n in range(len(self._keep))] if self._parts else self._kept()
        inner = ",\n ".join([*kept, *columns])
        self._parts.append(f"{name} AS MATERIALIZED (\nSELECT {inner}\nFROM {source})")

    def _kept(self) -> list[str]:
        return [f"r.{_quoted(name)} AS k{n}" for n, name in enumerate(self._keep)]

    # ---- values to codes

    def _values_and_codes(self) -> None:
        """Read every value as number and text as far as it is needed, then as code."""
        schema, words = self._content.schema, self._words
        values, codes = [], []
        bins = iter(self._model.bins)
        dates: list[Steps] = []
        j = 0  # the encoded column
        for name, feature in schema.features.items():
            # with the table's name: SQLite takes a quoted name that is no column for a text
            x = f"r.{_quoted(name)}"
            if isinstance(feature, Datetime):
                n = f"d{j}_"
                fields, *steps = [*words.date(x, n), *part_steps(feature, n, words.over)]
                values += fields
                dates.append(steps)
                for part in feature.parts:
                    codes.append(f"{self._edge_code(column_of(part, n), next(bins))} AS c{j}")
                    j += 1
                continue
            if isinstance(feature, Numeric):
                values.append(f"{words.number(x)} AS v{j}")
                codes.append(f"{self._edge_code(f'v{j}', next(bins))} AS c{j}")
            else:
                known = listed(name, feature, "SQL")
                values.append(f"{words.text(x)} AS t{j}")
                if known.numbers:
                    values.append(f"{words.number(x)} AS v{j}")
                codes.append(f"{self._category_code(j, known, next(bins))} AS c{j}")
            j += 1
        self._part("dpgb_values", values, f"{self._table} AS r")
        source = "dpgb_values"
        for k, together in enumerate(zip(*dates, strict=True)):
            added = [column for step in together for column in step]
            self._parts.append(
                f"dpgb_dates{k} AS MATERIALIZED (\nSELECT *, {', '.join(added)}\nFROM {source})"
            )
            source = f"dpgb_dates{k}"
        self._part("dpgb_codes", codes, source)

    def _edge_code(self, v: str, bins: FeatureBins) -> str:
        """Count the edges below a number, by halves."""
        assert bins.edges is not None
        edges = bins.edges.tolist()

        def search(low: int, high: int) -> str:
            if low == high:
                return str(low)
            middle = (low + high) // 2
            return (
                f"CASE WHEN {v} <= {_real(edges[middle])} THEN {search(low, middle)}"
                f" ELSE {search(middle + 1, high)} END"
            )

        return f"CASE WHEN {v} IS NULL THEN {bins.missing_bin} ELSE {search(0, len(edges))} END"

    def _category_code(self, j: int, known: Listed, bins: FeatureBins) -> str:
        """Look a value up among texts, then among numbers."""
        assert bins.cell_to_bin is not None
        of_cell = bins.cell_to_bin.tolist()
        other = str(of_cell[known.other])
        if known.numbers:
            cases = _whens((number, of_cell[cell]) for number, cell in known.numbers.items())
            other = f"CASE v{j} {cases} ELSE {other} END"
        code = other
        if known.texts:
            cases = _whens((text, of_cell[cell]) for text, cell in known.texts.items())
            code = f"CASE t{j} {cases} ELSE {other} END"
        words = ", ".join(map(_literal, sorted(known.missing)))
        none = of_cell[known.none]
        return f"CASE WHEN t{j} IS NULL OR t{j} IN ({words}) THEN {none} ELSE {code} END"

    # ---- codes to scores

    def _steps(self, codes: list[str]) -> None:
        """Add up the terms of each score, in steps."""
        model = self._model
        several = model.n_scores > 1 and model.trees.n_trees > 0
        if several:  # the leaves once, for all scores
            leaves = [self._tree(t, None) for t in range(model.trees.n_trees)]
            self._part("dpgb_leaves", [*codes, *self._words.columns(leaves)], "dpgb_codes")
        totals = []
        for k in range(model.n_scores):
            terms = [str(model.intercept[k])]
            tables = zip(codes, model.tables, strict=True)
            terms += [self._look_up(c, table[:, k].tolist()) for c, table in tables if table.any()]
            terms += [self._pair(pair, k, codes) for pair in model.pairs]
            for t in range(model.trees.n_trees):
                values = model.trees.value[k, t].tolist()
                leaf = self._words.column(t)
                terms.append(self._look_up(leaf, values) if several else self._tree(t, values))
            totals.append(f"{_total(terms)} AS s{k}")
        self._part("dpgb_steps", totals, "dpgb_leaves" if several else "dpgb_codes")

    def _look_up(self, index: str, values: list[int]) -> str:
        """Return the entry of a list at an index."""
        return str(values[0]) if len(set(values)) == 1 else self._words.entry(index, values)

    def _pair(self, pair: PairTable, k: int, codes: list[str]) -> str:
        table = pair.table[k]
        row = self._look_up(codes[pair.i], (pair.map_i.astype(int) * table.shape[1]).tolist())
        column = self._look_up(codes[pair.j], pair.map_j.tolist())
        return self._look_up(f"({row} + {column})", table.reshape(-1).tolist())

    def _tree(self, t: int, values: list[int] | None) -> str:
        """Return the value of a tree's leaf, or the leaf's number."""
        splits, model = self._model.trees.splits, self._model
        n_nodes = splits.feature.shape[1]

        def down(node: int) -> str:
            if node >= n_nodes:
                leaf = node - n_nodes
                return str(leaf if values is None else values[leaf])
            left, right = down(2 * node + 1), down(2 * node + 2)
            j, q = int(splits.feature[t, node]), int(splits.mask_of[t, node])
            n_bins = model.bins[j].n_bins
            if q >= 0:
                codes = np.flatnonzero(splits.masks[q, :n_bins]).tolist()
                test = f"c{j} IN ({', '.join(map(str, codes))})"
                if len(codes) in (0, n_bins):
                    return right if codes else left
            else:
                cut = int(splits.threshold[t, node])
                if cut >= n_bins - 1:  # no code lies above it
                    return left
                test = f"c{j} > {cut}"
            return left if left == right else f"CASE WHEN {test} THEN {right} ELSE {left} END"

        return down(0)

    # ---- scores to predictions

    def _outputs(self) -> list[tuple[str, str]]:
        """Add common tables for the link; return the name and expression of each output."""
        content, n = self._content, self._model.n_scores
        kept = [f"s{k}" for k in range(n)]
        largest = self._largest([f"s{k}" for k in range(n)])
        natural = [f"(s{k} - {content.even}) / {SCORE_ONE}.0e0 AS x{k}" for k in range(n)]
        self._part("dpgb_natural", [*kept, *natural, f"{largest} AS top"], "dpgb_steps")
        classes = content.schema.target.classes
        if not classes:
            value = self._value()
            return [*([("prediction", value)] if value else []), ("score", "x0")]
        labels = [_literal(label) for label in content.labels]
        if n == 1:
            label = f"CASE WHEN x0 > 0 THEN {labels[1]} ELSE {labels[0]} END"
        else:
            cases = " ".join(f"WHEN s{k} = top THEN {own}" for k, own in enumerate(labels[:-1]))
            label = f"CASE {cases} ELSE {labels[-1]} END"
        names = [f"proba_{label}" for label in classes]
        probabilities = list(zip(names, self._probabilities(), strict=False))
        scores = (
            [("score", "x0")]
            if n == 1
            else [(f"score_{c}", f"x{k}") for k, c in enumerate(classes)]
        )
        outputs = [("prediction", label), *probabilities, *scores]
        lower = [name.lower() for name, _ in outputs]
        if len(set(lower)) < len(lower):
            raise StructureError(
                "Two classes differ in case alone: SQL takes their columns for one. Rename one."
            )
        return outputs

    def _largest(self, scores: list[str]) -> str:
        if len(scores) == 1:
            return scores[0]
        middle = len(scores) // 2
        halves = self._largest(scores[:middle]), self._largest(scores[middle:])
        return f"{self._words.greatest}({', '.join(halves)})"

    def _value(self) -> str | None:
        """Return a number within the bounds of the target; None if it needs an exp that is not there."""
        content = self._content
        middle, half = map(_real, content.scale)
        natural = "x0"
        if content.model.link == "log":
            if not self._exp:
                return None
            shift = _real(RATE_SHIFT)
            natural = f"CASE WHEN x0 > {shift} THEN 1e0 ELSE exp(x0 - {shift}) END"
        low, high = _real(content.schema.target.low), _real(content.schema.target.high)
        value = f"({middle} + {half} * {natural})"
        return f"CASE WHEN {value} < {low} THEN {low} WHEN {value} > {high} THEN {high} ELSE {value} END"

    def _probabilities(self) -> list[str]:
        """Return the probability of each class; none if they need an exp that is not there."""
        link, n = self._content.model.link, self._model.n_scores
        if link == "probability":
            shift = _real(self._content.even / SCORE_ONE)
            p = [
                f"CASE WHEN s{k} < 0 THEN 0e0 WHEN s{k} > {SCORE_ONE} THEN 1e0 ELSE (x{k} + {shift}) END"
                for k in range(n)
            ]
            return [f"1e0 - ({p[0]})", p[0]] if n == 1 else self._shares(p)
        if not self._exp:
            return []
        if link == "softmax":
            return self._shares([f"exp((s{k} - top) / {SCORE_ONE}.0e0)" for k in range(n)])
        if link == "clipped_softmax":
            return self._unclipped()
        p0 = "CASE WHEN x0 >= 0 THEN 1e0 / (1e0 + exp(-x0)) ELSE exp(x0) / (1e0 + exp(x0)) END"
        self._part("dpgb_powers", ["s0", "x0", f"{p0} AS p0"], "dpgb_natural")
        if link == "clipped_logit":
            one = "CASE WHEN p0 <= 0.5e0 THEN p0 / (p0 + 0.5e0) ELSE 0.5e0 / (1.5e0 - p0) END"
            return [f"1e0 - {one}", one]
        return ["1e0 - p0", "p0"]

    def _unclipped(self) -> list[str]:
        """Return shares of p_k times what the norm of p - e_k exceeds its clip by, if it does; p a softmax."""
        n = len(self._model.intercept)
        kept = [part for k in range(n) for part in (f"s{k}", f"x{k}")]
        made = [f"exp((s{k} - top) / {SCORE_ONE}.0e0) AS e{k}" for k in range(n)]
        self._part("dpgb_exps", [*kept, "top", *made], "dpgb_natural")
        total = _total([f"e{k}" for k in range(n)])
        made = [f"e{k} / {total} AS u{k}" for k in range(n)]
        self._part("dpgb_softmax", [*kept, "top", *made], "dpgb_exps")
        squares = _total([f"u{k} * u{k}" for k in range(n)])
        unit = [f"u{k}" for k in range(n)]
        self._part("dpgb_squares", [*kept, "top", *unit, f"{squares} AS squares"], "dpgb_softmax")
        clip = CLASS_CLIP**2
        powers = [
            f"u{k} * sqrt(CASE WHEN 1e0 + squares - 2e0 * u{k} > {_real(clip)} "
            f"THEN (1e0 + squares - 2e0 * u{k}) / {_real(clip)} ELSE 1e0 END)"
            for k in range(n)
        ]
        return self._shares(powers, "dpgb_squares")

    def _shares(self, powers: list[str], before: str = "dpgb_natural") -> list[str]:
        """Return shares of a sum; equal ones if all are 0."""
        n = len(powers)
        columns = [part for k in range(n) for part in (f"s{k}", f"x{k}")]
        made = [f"{power} AS p{k}" for k, power in enumerate(powers)]
        self._part("dpgb_powers", [*columns, "top", *made], before)
        total = _total([f"p{k}" for k in range(n)])
        return [
            f"CASE WHEN {total} > 0 THEN p{k} / {total} ELSE {_real(1 / n)} END" for k in range(n)
        ]
