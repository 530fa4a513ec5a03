"""``dpgb-dask schema``: the draft of a schema, from the names and the declared types of a file."""

import argparse
import sys
from typing import Any

import zarr

from dpgb_dask import drafts
from dpgb_dask.cli.options import DATA, add_text, command
from dpgb_dask.cli.parquet import read_parquet
from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.cli.tables import KNOWN_FILES, check_there, is_zarr, open_names
from dpgb_dask.errors import SchemaError
from dpgb_dask.io.opening import is_dataset
from dpgb_dask.io.text import reading
from dpgb_dask.stored import arrays_of
from dpgb_dask.whole_files import path_of

NOTES = """\
Only names are read, and the types that a Parquet or Zarr file declares. Names in a file of text are its first line:
check that it is a header and not a person. Text that begins with FILL IN is open: fill it in from public knowledge,
never by looking at the data. fit, check and convert refuse the file before that."""


def add(commands: Any) -> None:
    """Add the command."""
    text = "draft a schema: the names and declared types of a file, and blanks to fill in from public knowledge"
    example = "dpgb-dask schema people.parquet --target high_income --out people.schema.json"
    schema = command(commands, "schema", text, _schema, example, NOTES)
    schema.add_argument("data", help=DATA)
    schema.add_argument("--target", help="column to predict; it is then no feature")
    schema.add_argument("--out", type=path_of, help="file to write (default: standard output)")
    schema.add_argument("--overwrite", action="store_true", help="replace a file at --out")
    schema.add_argument(
        "--header",
        action="store_true",
        help="the first line of a file of text holds public names, though some look like values",
    )
    add_text(schema)


def _schema(options: argparse.Namespace) -> None:
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
    if options.out is None:
        print(draft)
        return
    draft.save(options.out)
    print(f"draft written to {options.out}; open, to be filled in from public knowledge:")
    for line in draft.open:
        print(f"  {line}")


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
            return drafts.draft(columns.get("X", store), target=options.target)
        frame = open_names(options)
        if frame is not None:
            return drafts.draft(frame, target=options.target, header=options.header)
        table = read_parquet(path, "pyarrow")
        types = {
            n: None if n in table.folders else t
            for n, t in table.frame.dtypes.items()
            if n not in table.stored
        }
        return drafts.of_types(types, options.target)
