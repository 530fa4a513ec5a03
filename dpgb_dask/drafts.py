"""Drafts of schemas: names and declared types of public structure, and blanks for what only a person knows.

No value, no statistic of values and no list of categories in a file is read. Names are copied as they are: where they
may be values, as the first line of a file without a header is, those that look like values are refused, and the draft
asks its reader to check the others.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
import zarr

from dpgb_dask.contracts.blanks import FILL_IN, NOTICE, open_facts
from dpgb_dask.contracts.features import USUAL_PARTS
from dpgb_dask.contracts.schema import (
    VERSION,
    Schema,
    check_unit_id,
    column_name,
    names_ignored,
    target_of,
)
from dpgb_dask.display import WORDS, brief, html_table
from dpgb_dask.encoding.structure import no_table
from dpgb_dask.encoding.times import ISO
from dpgb_dask.errors import SchemaError, StructureError, check_flag, did_you_mean, short
from dpgb_dask.matching import default_names, names_of
from dpgb_dask.values import cell
from dpgb_dask.whole_files import file_of, write_given
from dpgb_dask.zarr_arrays import arrays_of, from_zarr

BLANKS = {
    "type": "numeric (low, high, integer), categorical (categories), bool, datetime (first, last, parts), grouped"
    " (from) or hashed (buckets)",
    "low": "the least value that public knowledge allows",
    "high": "the largest value that public knowledge allows",
    "categories": "the list of categories, at most 250; of more, the type is grouped or hashed",
    "first": "the first day, such as 2015-01-01",
    "last": "the last day, such as 2024-12-31",
}
TARGET_BLANKS = {
    "name": "the column to predict, which is then no feature",
    "type": "binary, multiclass or numeric",
    "classes": "for binary and multiclass: the list of labels",
    "low": "for numeric: the least value that public knowledge allows",
    "high": "for numeric: the largest value that public knowledge allows",
}
TRUTH_BLANK = "the labels; of a column of true and false: [false, true], the second is the one whose probability counts"
# types of Arrow, by the beginning of their names
NUMBERS = ("float", "double", "half")
WHOLE = ("int", "uint")
TEXTS = ("string", "large_string", "binary", "large_binary", "fixed_size_binary", "dictionary")
DATES = ("timestamp", "date")
SHOWN = 20  # most lines of what is open that a repr shows
# Arrow's names of the kinds of NumPy's types
KINDS = {
    "b": "bool", "i": "int", "u": "uint", "f": "float", "U": "string", "S": "binary", "T": "string",
    "M": "date",
}  # fmt: skip

PARTS = {"features": Mapping, "target": Mapping, "ignore": list}
ONE_COLUMN = "It has one column: is it the delimiter of a text, or a title above the names?"
MAKE = "Make one with Schema.draft(source), or dpgb-dask schema."


class SchemaDraft(Mapping[str, Any]):
    """A schema with blanks: a mapping, the JSON form of a schema, in which texts that begin with FILL IN are open.

    No fit takes it before every fact is given, by `fill` or by an editor in its file.

    Parameters
    ----------
    data : mapping
        The JSON form.

    Raises
    ------
    SchemaError
        If it is none of a draft, or of a schema.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        if not isinstance(data, Mapping):
            raise SchemaError(f"A draft is a {type(data).__name__}, not an object of names. {MAKE}")
        self._data = {"draft": NOTICE, "ignore": [], **data}
        for key, kind in PARTS.items():
            if not isinstance(self._data.get(key), kind):
                form = "a list" if kind is list else "an object"
                raise SchemaError(f"{key!r} of a draft must be {form}. {MAKE}")

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    @property
    def open(self) -> tuple[str, ...]:
        """What is open, in words: a line for each feature, and one for the target."""
        return tuple(open_facts(self._data))

    def fill(
        self,
        features: Mapping[str, Any],
        *,
        classes: Sequence[Any] | None = None,
        target_bounds: tuple[Any, Any] | None = None,
        target: str | None = None,
        ignore: Sequence[str] = (),
        max_weight: int | None = None,
        unit_id: str | None = None,
    ) -> Schema:
        """Return the schema with what is open filled in from public knowledge.

        Parameters
        ----------
        features : mapping of str to feature
            As for `Schema`; features of the draft that are not named here stay as they are.
        classes, target_bounds, target, ignore, max_weight, unit_id
            As for `Schema`. The target, ignored columns and the unit are then no features. Without ``max_weight`` or
            ``unit_id`` they are the draft's, if it names them; columns that it ignores are ignored besides.

        Raises
        ------
        SchemaError
            If something is still open, which it lists, or a name is no column of the draft.
        """
        if not isinstance(features, Mapping):
            raise SchemaError(
                f"features is a {type(features).__name__}. Give a mapping of names to features, as for Schema."
            )
        given = self._data["features"]
        for name in features:
            if name not in given:
                raise SchemaError(
                    f"feature {short(name)} is no column of the draft.{did_you_mean(name, given)}"
                )
        facts = dict(self._data["target"])
        if target is not None:
            facts["name"] = column_name(target)
        if classes is not None or target_bounds is not None:
            made = target_of(facts.get("name"), classes, target_bounds)
            numeric = made.type == "numeric"
            own = {"low": made.low, "high": made.high} if numeric else {"classes": made.classes}
            facts |= {"type": made.type, **own}
        if max_weight is None:
            max_weight = self._data.get("max_weight", 1)
        if unit_id is None:
            unit_id = self._data.get("unit_id")
        check_unit_id(unit_id)
        ignored = dict.fromkeys([*names_ignored(self._data["ignore"]), *names_ignored(ignore)])
        others = {facts.get("name"), unit_id, *ignored}
        kept = {
            name: features.get(name, spec) for name, spec in given.items() if name not in others
        }
        return Schema.from_dict(
            {
                **self._data,
                "features": kept,
                "target": facts,
                "ignore": list(ignored),
                "max_weight": max_weight,
                "unit_id": unit_id,
            }
        )

    def save(self, path: str | Path) -> None:
        """Write the JSON form, with its blanks, to be filled in with an editor.

        Parameters
        ----------
        path : str or path
            A file that is there is replaced.

        Raises
        ------
        StructureError
            If the file cannot be written.
        """
        # a lone surrogate, which UTF-8 does not have, as JSON's own escape
        text = f"{self}\n".encode(errors="backslashreplace")
        write_given(path, file_of(path), text)

    @classmethod
    def load(cls, path: str | Path) -> "SchemaDraft":
        """Read the file of a draft, or of a schema, with its blanks.

        Parameters
        ----------
        path : str or path

        Raises
        ------
        SchemaError
            If the file cannot be read, or is no JSON of a draft or a schema.
        """
        return cls(Schema.read_json(path))

    def __str__(self) -> str:
        return json.dumps(self._data, indent=1, ensure_ascii=False)

    def _title(self) -> str:
        state = "open, to be filled in from public knowledge:" if self.open else "nothing is open."
        return f"SchemaDraft({len(self['features'])} features): {state}"

    def __repr__(self) -> str:
        lines = [f"  {brief(line, WORDS)}" for line in self.open[:SHOWN]]
        if len(self.open) > SHOWN:
            lines.append("  …")
        return "\n".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        rows = [line.rpartition(": ")[::2] for line in self.open]
        return html_table(self._title(), rows, ("of", "open") if rows else ())


def draft(
    source: Any, *, target: str | None = None, unit_id: str | None = None, header: bool = False
) -> SchemaDraft:
    """Return the draft of a schema; see `Schema.draft`."""
    check_flag("header", header, StructureError)
    names: Sequence[Any] | None
    if hasattr(source, "names") and hasattr(source, "types"):  # an Arrow schema
        return of_types(dict(zip(source.names, source.types, strict=True)), target, unit_id)
    if isinstance(source, zarr.Array):
        names = default_names(_width(source))
        return of_types(dict.fromkeys(names, from_zarr(source).dtype), target, unit_id)
    if isinstance(source, zarr.Group):
        types = {name: from_zarr(array).dtype for name, array in arrays_of(source).items()}
        return of_types(types, target, unit_id)
    # the types of an Arrow table in memory, too, may have been inferred from values
    names = getattr(source, "column_names", None) or names_of(source)
    if names is None:
        tabular = isinstance(source, pd.DataFrame | dd.DataFrame | xr.DataArray)
        if not tabular and not hasattr(source, "shape"):
            raise StructureError(
                f"source is a {type(source).__name__}. Give NumPy, pandas, Dask, xarray, Zarr or an Arrow schema; of a"
                " file: dpgb-dask schema FILE."
            )
        names = default_names(_width(source))
    texts = [str(name) for name in names]
    _refuse_values(texts, header=header)
    return of_types(dict.fromkeys(texts), target, unit_id)


def _refuse_values(names: Sequence[str], *, header: bool) -> None:
    """Refuse names that look like a row's values, or that are there twice; no message prints a name.

    Raises
    ------
    StructureError
    """
    if len(set(names)) != len(names):
        raise StructureError(
            "two columns have one name: is the first line a row, or do the names come from values? Give each column a"
            " name of its own."
        )
    if not header and any(map(_is_like_a_value, names)):
        raise StructureError(
            "a column's name is blank, a number, a date or a word for a missing value, so the names may be values: a"
            " file without a header has a row in its first line, one that Excel wrote may have a title or sep=; there,"
            " and a pivoted table has values for names. Give it a header; if the names are public as they are, say so:"
            " --header, or header=True."
        )


def _is_like_a_value(name: str) -> bool:
    """Whether a name reads as a number, as missing or as a date, or has no letter, as dates of any form."""
    text = name.strip()
    no_text = not isinstance(cell(text), str)
    return no_text or ISO.fullmatch(text) is not None or not any(map(str.isalpha, text))


def _width(source: Any) -> int:
    if len(source.shape) != 2:
        raise no_table(source, "source")
    return int(source.shape[1])


def of_types(
    types: Mapping[str, Any], target: str | None, unit_id: str | None = None
) -> SchemaDraft:
    """Return a draft of columns with declared types; None for a type that nobody declared."""
    check_unit_id(unit_id)
    for word, name in (("target", target), ("unit_id", unit_id)):
        if name is not None and column_name(name) not in types:
            hint = (
                f" {ONE_COLUMN}"
                if len(types) == 1
                else did_you_mean(name, types) or " Name one that is."
            )
            raise SchemaError(f"{word}={name!r} is no column of the data.{hint}")
    if target is not None and target == unit_id:
        raise SchemaError(f"target={target!r} is the unit_id too. Name another column as one.")
    features = {
        name: of_type(dtype) for name, dtype in types.items() if name not in (target, unit_id)
    }
    blanks = {key: _blank(text) for key, text in TARGET_BLANKS.items()}
    if target is not None:
        blanks["name"] = target
        if _name_of(types[target]).startswith("bool"):
            blanks = {"name": target, "type": "binary", "classes": _blank(TRUTH_BLANK)}
    named = {} if unit_id is None else {"unit_id": unit_id}
    return SchemaDraft(
        {"version": VERSION, "features": features, "target": blanks, "ignore": [], "max_weight": 1}
        | named
    )


def of_type(dtype: Any) -> dict[str, Any]:
    """Return what a declared type says of a feature, and blanks for the rest.

    Parameters
    ----------
    dtype : NumPy, pandas or Arrow type, or None
        Of an Arrow dictionary only that it is one; its values are not looked at.
    """
    name = _name_of(dtype)
    if name.startswith("bool"):
        return {"type": "bool", "missing": False}
    if name.startswith((*NUMBERS, *WHOLE, "decimal")):
        whole = name.startswith(WHOLE) or (name.startswith("decimal") and name.endswith(", 0)"))
        return {"type": "numeric", **_blanks("low", "high"), "integer": whole, "missing": False}
    if name.startswith(DATES):
        days = _blanks("first", "last")
        return {"type": "datetime", **days, "parts": list(USUAL_PARTS), "missing": False}
    if name.startswith(TEXTS):
        return {"type": "categorical", **_blanks("categories"), "missing": False}
    return {**_blanks("type"), "missing": False}


def _name_of(dtype: Any) -> str:
    """Return the name of a type as Arrow has it; "" for one that is not declared, or is none of a feature's."""
    if isinstance(dtype, pd.ArrowDtype):
        dtype = dtype.pyarrow_dtype
    if isinstance(dtype, pd.StringDtype):
        return "string"
    if isinstance(dtype, np.dtype):
        return KINDS.get(dtype.kind, "")
    return "" if dtype is None else str(dtype)


def _blanks(*keys: str) -> dict[str, str]:
    return {key: _blank(BLANKS[key]) for key in keys}


def _blank(text: str) -> str:
    return f"{FILL_IN}: {text}"
