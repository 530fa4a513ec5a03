"""``dpgb-dask predict``."""
# ruff: noqa: N806 - X is scikit-learn's name

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import pandas as pd
import xarray as xr
from pandas.api.types import pandas_dtype

from dpgb_dask.cli.options import joined
from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.cli.tables import check_there, names_in, open_table
from dpgb_dask.encoding.columns import objects
from dpgb_dask.encoding.frames import in_partitions, to_text
from dpgb_dask.encoding.structure import match_names
from dpgb_dask.errors import StructureError
from dpgb_dask.estimators import DPGBClassifier, load
from dpgb_dask.values import as_text
from dpgb_dask.whole_files import parts_beside, put_back, remove_left, replaced_by, replacing

TEXT = "string[pyarrow]"
FLOATS = {"halffloat[pyarrow]": "f2", "float[pyarrow]": "f4", "double[pyarrow]": "f8"}
BYTES = ("binary", "large_binary", "fixed_size_binary")  # of Arrow
OUTPUTS = {".csv": ",", ".tsv": "\t"}  # suffixes of text files of predictions


def run(options: argparse.Namespace) -> None:
    """Write the predictions."""
    delimiter, compression = _form_of(options.out)
    place = Path(os.path.realpath(options.out))  # a link to it stays
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise StructureError(
            f"--out {str(options.out)!r} is a device or a pipe, whose place a file would take. Give the name of a file."
        )
    if delimiter is None and "*" in str(place):
        raise StructureError(
            f"--out {str(options.out)!r}: in the name of a Parquet folder, and of those around it, Dask takes a * for"
            " any name. Choose another, or write *.csv."
        )
    put_back(place)  # if a command was killed
    check_out(options.out, overwrite=options.overwrite, folder=delimiter is None)
    check_spared(options, options.out, replaced_by(place), *parts_beside(place))
    check_there(options.data)
    model = load(options.model)
    table, columns = open_table(options, model.schema_, strict=True)
    X = table
    if isinstance(table, dd.DataFrame):  # columns that the model does not use are not read
        used = [name for name in table.columns if name in model.schema_.features]
        match_names(used, model.schema_)
        X = table[used]
    parts = [_as_frame(model.predict(X), ["prediction"])]
    if options.proba:
        if not isinstance(model, DPGBClassifier):
            raise StructureError("--proba needs a classifier: this model predicts a number.")
        parts.append(
            _as_frame(
                model.predict_proba(X), [f"proba_{label}" for label in model.classes_.tolist()]
            )
        )
    made = {name for part in parts for name in part.columns}
    keep = [name for given in options.keep for name in names_in(given, columns)]
    parts = [*_kept(keep, table, columns, made, in_text=delimiter is not None), *parts]
    out = parts[0] if len(parts) == 1 else dd.concat(parts, axis=1, ignore_unknown_divisions=True)
    with joined(options.scheduler), replacing(place, overwrite=options.overwrite) as part:
        if delimiter is None:
            texts = {name: TEXT for name, dtype in out.dtypes.items() if dtype == "object"}
            # the type of an object column in a file is otherwise unknown
            out.astype(texts).to_parquet(str(part), write_index=False)
        else:
            form = {"sep": delimiter, "compression": compression, "index": False}
            out.to_csv(str(part), single_file=True, **form)
    remove_left(place)
    print(f"predictions written to {options.out}")


def _form_of(path: Path) -> tuple[str | None, str | None]:
    """Return the delimiter of the predictions (None for a Parquet folder) and their compression.

    Raises
    ------
    StructureError
        If the suffix is unknown: the file would be taken for a format that it does not have.
    """
    suffixes = [one.lower() for one in path.suffixes]
    compression = "gzip" if suffixes[-1:] == [".gz"] else None
    suffix = "".join(suffixes[:-1][-1:] if compression else suffixes[-1:])
    if suffix in OUTPUTS:
        return OUTPUTS[suffix], compression
    if compression is None and suffix in ("", ".parquet"):
        return None, None
    raise StructureError(
        f"--out {str(path)!r}: the suffix {path.suffix!r} is not known. Give *.csv or *.tsv, also with .gz; or"
        " *.parquet or a name without a suffix, for a Parquet folder."
    )


def _kept(
    names: Sequence[str], table: Any, columns: Mapping[str, Any], made: set[str], *, in_text: bool
) -> list[dd.DataFrame]:
    """Return columns of the data as frames with the same partitions as the predictions, for Parquet or for text."""
    parts = []
    change = _for_text if in_text else _for_parquet
    known = dict.fromkeys(table.columns) if isinstance(table, dd.DataFrame) else {}
    for name in dict.fromkeys(names):
        if name in made:
            raise StructureError(f"--keep {name!r} is the name of a prediction. Rename the column.")
        if isinstance(columns.get(name), dd.Series):  # as it stands in the file
            column = columns[name]
        elif name in known:
            column = table[name]
        elif name in columns and isinstance(columns[name], da.Array):
            column = columns[name]
            if isinstance(table, da.Array):
                column = column.rechunk({0: table.chunks[0]})
            column = in_partitions(column, name)
        else:
            raise StructureError(f"--keep {name!r} is no column of the data. Name one that is.")
        bare = _without_list(column._meta)  # noqa: SLF001 - dask has no public name for it
        # by which Dask knows the type in the file
        meta = bare if _is_decimal(bare) else change(bare)
        written = column.map_partitions(change, meta=meta, enforce_metadata=False)
        parts.append(written.to_frame(name))
    return parts


def _for_text(column: pd.Series) -> pd.Series:
    """Return a column as a file of text shows it: of bytes their text, and dates of any year."""
    column = _without_list(column)
    told = str(column.dtype)
    # pandas makes Python's of them, of which the year 9999 is the last
    if told.startswith(("date32", "date64")):
        days = pd.arrays.ArrowExtensionArray(column.array.__arrow_array__().cast("string"))
        return pd.Series(days, index=column.index, name=column.name)
    if told in FLOATS:  # which pandas writes with the digits of a float64, and NaN as text
        return column.astype(FLOATS[told])
    return _as_text(column) if column.dtype == "object" or told.startswith(BYTES) else column


def _for_parquet(column: pd.Series) -> pd.Series:
    """Return a column of a type that pandas knows again in Parquet; of lists, structs and others the text."""
    column = _without_list(column)
    # their type pandas notes by a name that it cannot read, but not that of objects
    if _is_decimal(column):
        return column.astype(object).where(column.notna(), None)
    if str(column.dtype).startswith("fixed_size_binary"):
        return column.astype("binary[pyarrow]")
    try:
        plain = column.dtype.kind != "c" and pandas_dtype(str(column.dtype)) != "object"
    except (TypeError, ValueError, NotImplementedError):  # by pandas' version
        plain = False
    return column if plain else _as_text(column)


def _without_list(column: pd.Series) -> pd.Series:
    """Return the values of a column of Arrow's dictionaries, any other column as it is."""
    arrow: Any = getattr(column.dtype, "pyarrow_dtype", None)
    listed = str(arrow).startswith("dictionary")
    return column.astype(pd.ArrowDtype(arrow.value_type)) if listed else column


def _is_decimal(column: pd.Series) -> bool:
    return str(column.dtype).startswith("decimal")


def _as_text(column: pd.Series) -> pd.Series:
    given = [_text_of(v) if isinstance(v, bytes) else v for v in objects(column)]
    bare = pd.Series(given, index=column.index, dtype=object, name=column.name)
    return to_text(bare).astype(TEXT)


def _text_of(value: bytes) -> str | None:
    """Return the text of bytes; if they are none, such as a hash, how Python writes them, which tells them apart."""
    try:
        return as_text(value.decode())
    except UnicodeDecodeError:
        return str(value)


def _as_frame(values: Any, columns: list[str]) -> dd.DataFrame:
    """Return predictions as a Dask DataFrame whose column names are text."""
    if isinstance(values, xr.DataArray):
        values = values.data
    if isinstance(values, da.Array):
        values = in_partitions(values, columns if values.ndim == 2 else columns[0])
    if isinstance(values, dd.Series):
        return values.to_frame(columns[0])
    return values.rename(columns=dict(zip(values.columns, columns, strict=True)))
