"""``dpgb-dask check``, the data owner's own check of rows, and ``convert``, which writes rows as one data set."""
# ruff: noqa: N806 - X is scikit-learn's name

import argparse
from typing import Any

import dask.dataframe as dd

from dpgb_dask import diagnose
from dpgb_dask.cli.options import TEXT_FIT, add_data, command, joined
from dpgb_dask.cli.places import check_spared
from dpgb_dask.cli.tables import beside, column, is_zarr, open_table, schema_of
from dpgb_dask.errors import StructureError
from dpgb_dask.io import write_dataset
from dpgb_dask.io.place import WEIGHT
from dpgb_dask.remote import path_or_url

TEXT_CHECK = f"""{TEXT_FIT}

Exit code 1 where a feature or the target is not there, or no row is usable, such as where no label is declared."""


def add_check(commands: Any) -> None:
    """Add the command ``check``."""
    text = "count what a fit would clip or call missing: for the data owner's eyes, NOT private"
    example = "dpgb-dask check people.parquet --schema people.schema.json"
    check = command(commands, "check", text, _check, example, TEXT_CHECK)
    add_data(check)
    check.add_argument("--weight", help="column of sample weights, as for fit")
    check.add_argument("--unit", help="column that names the privacy unit, as for fit")


def add_convert(commands: Any) -> None:
    """Add the command ``convert``."""
    text = "write data as one Zarr data set, with its schema in it: quicker to read, also from an object store"
    example = (
        "dpgb-dask convert 'people/*.csv' --schema people.schema.json --out s3://bucket/people.zarr"
    )
    convert = command(commands, "convert", text, _convert, example, TEXT_FIT)
    add_data(convert)
    convert.add_argument("--out", required=True, help="folder or URL, *.zarr; it will hold rows")
    convert.add_argument("--weight", help=f"column of sample weights, kept as {WEIGHT!r}")
    convert.add_argument("--overwrite", action="store_true", help="replace a data set")


def _check(options: argparse.Namespace) -> None:
    schema = schema_of(options)
    X, columns = open_table(options, schema)
    y = columns.get(schema.target.name, None if isinstance(X, dd.DataFrame) else columns.get("y"))
    weight = None if options.weight is None else column("--weight", columns, options.weight)
    with joined(options.scheduler):
        diagnosis = diagnose.check(schema, X, y, weight, options.columns)
    print(diagnosis)
    if y is None:
        print(f"target: column {schema.target.name!r} is not in the data; a fit refuses this file")
        raise StructureError(
            "A fit refuses this file: see the target above. Name another column with --target."
        )
    if diagnosis.usable == 0:
        raise StructureError("No row is usable: see the target above.")


def _convert(options: argparse.Namespace) -> None:
    if not is_zarr(options.out):
        raise StructureError(
            f"--out {options.out!r} must end in .zarr: by that, fit and predict know it."
        )
    check_spared(options, path_or_url(options.out))
    schema = schema_of(options)
    X, columns = open_table(options, schema)
    y, weight = beside(options, schema, X, columns)
    with joined(options.scheduler):
        write_dataset(
            options.out,
            X,
            y,
            schema=schema,
            sample_weight=weight,
            columns=options.columns,
            overwrite=options.overwrite,
        )
    print(f"data set written to {options.out}; it holds rows")
