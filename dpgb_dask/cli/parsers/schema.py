"""Options of ``dpgb-dask schema``."""

from typing import Any

from dpgb_dask.cli.options import DATA, add_text, command, local_file

NOTES = """\
Only names are read, and the types that a Parquet or Zarr file declares. Names in a file of text are its first line:
check that it is a header and not a person. Text that begins with FILL IN is open: fill it in from public knowledge,
never by looking at the data. fit, check and convert refuse the file before that."""


def add(commands: Any) -> None:
    """Add the command."""
    text = "draft a schema: the names and declared types of a file, and blanks to fill in from public knowledge"
    example = "dpgb-dask schema people.parquet --target high_income --out people.schema.json"
    schema = command(commands, "schema", text, "schema.run", example, NOTES)
    schema.add_argument("data", help=DATA)
    schema.add_argument("--target", help="column to predict; it is then no feature")
    schema.add_argument(
        "--unit",
        help="column whose values tell people apart, where somebody may have several rows; it is then no feature",
    )
    schema.add_argument("--out", type=local_file, help="file to write (default: standard output)")
    schema.add_argument("--overwrite", action="store_true", help="replace a file at --out")
    schema.add_argument(
        "--header",
        action="store_true",
        help="the first line of a file of text holds public names, though some look like values",
    )
    add_text(schema)
