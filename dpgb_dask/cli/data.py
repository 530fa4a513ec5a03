"""``dpgb-dask check``, the data owner's own check of rows, and ``convert``, which writes rows as one data set."""
# ruff: noqa: N806 - X is scikit-learn's name

import argparse

import dask.dataframe as dd

from dpgb_dask import diagnose
from dpgb_dask.cli.options import joined
from dpgb_dask.cli.places import check_spared
from dpgb_dask.cli.tables import beside, column, is_zarr, open_table, schema_of
from dpgb_dask.errors import StructureError
from dpgb_dask.io import write_dataset
from dpgb_dask.remote import path_or_url


def run_check(options: argparse.Namespace) -> None:
    """Print what a fit would clip or call missing."""
    schema = schema_of(options)
    X, columns = open_table(options, schema, as_text=True)
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


def run_convert(options: argparse.Namespace) -> None:
    """Write the data set."""
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
