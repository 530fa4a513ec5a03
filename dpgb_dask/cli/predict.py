"""``dpgb-dask predict``."""
# ruff: noqa: N806 - X is scikit-learn's name

import argparse
import os
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import xarray as xr

from dpgb_dask.cli.kept_columns import TEXT, kept_columns
from dpgb_dask.cli.options import joined
from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.cli.tables import check_there, names_in, open_table
from dpgb_dask.encoding.frames import in_partitions
from dpgb_dask.encoding.structure import match_names
from dpgb_dask.errors import StructureError
from dpgb_dask.estimators import DPGBClassifier, load
from dpgb_dask.whole_files import parts_beside, put_back, remove_left, replaced_by, replacing

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
        match_names(used, model.schema_, aside=table.columns)
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
    parts = [*kept_columns(keep, table, columns, made, in_text=delimiter is not None), *parts]
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


def _as_frame(values: Any, columns: list[str]) -> dd.DataFrame:
    """Return predictions as a Dask DataFrame whose column names are text."""
    if isinstance(values, xr.DataArray):
        values = values.data
    if isinstance(values, da.Array):
        values = in_partitions(values, columns if values.ndim == 2 else columns[0])
    if isinstance(values, dd.Series):
        return values.to_frame(columns[0])
    return values.rename(columns=dict(zip(values.columns, columns, strict=True)))
