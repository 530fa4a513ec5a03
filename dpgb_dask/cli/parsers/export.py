"""Options of ``dpgb-dask export``."""

from typing import Any

from dpgb_dask.cli.options import MODEL, command
from dpgb_dask.remote import path_or_url

RUNTIMES = ("python", "xgboost", "onnx", "sql")


NOTES = """\
python    a file that needs no other package: python FILE < rows.csv
xgboost   JSON, or UBJSON if FILE ends in .ubj; margins are the model's scores, to the bit
onnx      for onnxruntime and others; needs: pip install 'dpgb_dask[export]'
sql       a query for SQLite or DuckDB
Each file holds the privacy report. What a runtime cannot express is an error that names it (docs/exports.md)."""


def add(commands: Any) -> None:
    """Add the command."""
    text = "write a model for another runtime: plain Python, XGBoost, ONNX or SQL"
    example = "dpgb-dask export model.json --to sql --dialect duckdb --table people --keep id --out model.sql"
    export = command(commands, "export", text, "export.run", example, NOTES)
    export.add_argument("model", help=MODEL)
    export.add_argument("--to", required=True, choices=RUNTIMES, help="the runtime")
    export.add_argument(
        "--out",
        required=True,
        type=path_or_url,
        metavar="FILE",
        help="where to write; a path or a URL",
    )
    export.add_argument("--overwrite", action="store_true", help="replace a file at --out")
    export.add_argument("--dialect", choices=("sqlite", "duckdb"), help="of sql (default: sqlite)")
    export.add_argument("--table", help="of sql: the table of rows (default: rows)")
    export.add_argument(
        "--keep",
        metavar="COLUMN",
        action="append",
        help="of sql: a column to return beside the predictions, such as a key; may be given again",
    )
    export.add_argument(
        "--has-exp",
        action="store_true",
        default=None,
        help="of sql: the database has exp, which probabilities need (default: DuckDB has it, SQLite not)",
    )
