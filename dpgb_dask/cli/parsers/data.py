"""Options of ``dpgb-dask check`` and ``dpgb-dask convert``."""

from typing import Any

from dpgb_dask.cli.options import TEXT_FIT, add_data, command
from dpgb_dask.names import WEIGHT

TEXT_CHECK = f"""{TEXT_FIT}

Exit code 1 where a feature or the target is not there, or no row is usable, such as where no label is declared."""


def add_check(commands: Any) -> None:
    """Add the command ``check``."""
    text = "count what a fit would clip or call missing: for the data owner's eyes, NOT private"
    example = "dpgb-dask check people.parquet --schema people.schema.json"
    check = command(commands, "check", text, "data.run_check", example, TEXT_CHECK)
    add_data(check)
    check.add_argument("--weight", help="column of sample weights, as for fit")
    check.add_argument("--unit", help="column that names the privacy unit, as for fit")


def add_convert(commands: Any) -> None:
    """Add the command ``convert``."""
    text = "write data as one Zarr data set, with its schema in it: quicker to read, also from an object store"
    example = (
        "dpgb-dask convert 'people/*.csv' --schema people.schema.json --out s3://bucket/people.zarr"
    )
    convert = command(commands, "convert", text, "data.run_convert", example, TEXT_FIT)
    add_data(convert)
    convert.add_argument("--out", required=True, help="folder or URL, *.zarr; it will hold rows")
    convert.add_argument("--weight", help=f"column of sample weights, kept as {WEIGHT!r}")
    convert.add_argument("--overwrite", action="store_true", help="replace a data set")
