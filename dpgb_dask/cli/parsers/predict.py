"""Options of ``dpgb-dask predict``."""

from typing import Any

from dpgb_dask.cli.options import (
    DATA,
    MODEL,
    TEXT_LINES,
    add_scheduler,
    add_text,
    command,
    local_file,
)

TEXT_PREDICT = f"""{TEXT_LINES}
Columns that the model does not use are left out; --keep copies some to the output.
A line that cannot be read, or has another number of fields, is an error."""


def add(commands: Any) -> None:
    """Add the command."""
    example = "dpgb-dask predict model.json new.parquet --proba --out predictions.csv"
    text = "predict with a model file, to Parquet or CSV"
    predict = command(commands, "predict", text, "predict.run", example, TEXT_PREDICT)
    predict.add_argument("model", help=MODEL)
    predict.add_argument("data", help=DATA)
    predict.add_argument(
        "--out",
        type=local_file,
        required=True,
        help="where to write on this machine: *.csv or *.tsv, also with .gz; *.parquet or a name without a suffix is a"
        " Parquet folder",
    )
    predict.add_argument("--overwrite", action="store_true", help="replace what is at --out")
    predict.add_argument("--proba", action="store_true", help="class probabilities too")
    predict.add_argument(
        "--keep",
        metavar="COLUMN",
        action="append",
        default=[],
        help="column of the data to copy beside the predictions, such as an id, as it stands there (of a file of text,"
        " as text, numbers of --decimal , with a point); may be given again, and may name several with commas between",
    )
    add_text(predict)
    add_scheduler(predict)
