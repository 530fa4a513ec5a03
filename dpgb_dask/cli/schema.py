"""``dpgb-dask schema``: the draft of a schema, from the names and the declared types of a file."""

import argparse
import sys
from typing import Any

import zarr

from dpgb_dask import drafts
from dpgb_dask.cli.parquet import read_parquet
from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.cli.tables import KNOWN_FILES, check_there, is_zarr, open_names
from dpgb_dask.display import seen
from dpgb_dask.errors import SchemaError
from dpgb_dask.io.opening import is_dataset
from dpgb_dask.io.text import reading
from dpgb_dask.zarr_arrays import arrays_of


def run(options: argparse.Namespace) -> None:
    """Write or print the draft."""
    if options.out is not None:
        check_out(options.out, overwrite=options.overwrite)
        check_spared(options, options.out)
    check_there(options.data)
    draft = _draft(options)
    if options.target is None:
        print(
            "no target is named: --target COLUMN leaves it out of the features, and says what its type tells",
            file=sys.stderr,
        )
        if len(draft["features"]) == 1:
            print(f"{options.data}: {drafts.ONE_COLUMN}", file=sys.stderr)
    if options.out is None:
        print(draft)
        return
    draft.save(options.out)
    print(f"draft written to {options.out}; open, to be filled in from public knowledge:")
    for line in draft.open:
        print(f"  {seen(line)}")


def _draft(options: argparse.Namespace) -> drafts.SchemaDraft:
    path = options.data
    if is_zarr(path) and is_dataset(path):
        raise SchemaError(
            f"{path!r} holds its schema, which every command reads from it; no draft is needed."
        )
    with reading(path, KNOWN_FILES):
        if is_zarr(path):
            store: Any = zarr.open(path, mode="r")
            columns = arrays_of(store) if isinstance(store, zarr.Group) else {}
            return drafts.draft(
                columns.get("X", store), target=options.target, unit_id=options.unit
            )
        frame = open_names(options)
        if frame is not None:
            return drafts.draft(
                frame, target=options.target, unit_id=options.unit, header=options.header
            )
        table = read_parquet(path, "pyarrow")
        types = {
            n: None if n in table.folders else t
            for n, t in table.frame.dtypes.items()
            if n not in table.stored or n == options.unit
        }
        return drafts.of_types(types, options.target, options.unit)
