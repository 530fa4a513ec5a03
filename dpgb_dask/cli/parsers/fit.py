"""Options of ``dpgb-dask fit``."""

from typing import Any

from dpgb_dask import losses, names
from dpgb_dask.cli.constraints import add_constraints
from dpgb_dask.cli.options import MODEL_OUT, TEXT_FIT, add_data, command, positive
from dpgb_dask.remote import path_or_url


def add(commands: Any) -> None:
    """Add the command."""
    example = "dpgb-dask fit people.parquet --schema people.schema.json --epsilon 1 --delta 1e-6 --out model.json"
    text = "fit a model on Parquet, CSV or Zarr"
    fit = command(commands, "fit", text, "fit.run", example, TEXT_FIT)
    add_data(fit)
    fit.add_argument("--epsilon", type=float, required=True, help="privacy of the whole fit")
    fit.add_argument(
        "--delta", type=float, required=True, help="a constant chosen in advance, such as 1e-6"
    )
    fit.add_argument("--out", type=path_or_url, required=True, help=MODEL_OUT)
    fit.add_argument("--overwrite", action="store_true", help="replace a file at --out")
    fit.add_argument("--weight", help="column of sample weights, up to the schema's max_weight")
    fit.add_argument(
        "--unit", help="column that names the privacy unit, such as a person with several rows"
    )
    fit.add_argument(
        "--max-rows-per-unit", type=positive, default=1, help="rows that count in full (default 1)"
    )
    fit.add_argument(
        "--recipe",
        default="auto",
        metavar="NAME",
        help=f"method (default auto): {', '.join(names.RECIPES)}",
    )
    fit.add_argument(
        "--loss",
        metavar="NAME",
        help=f"{', '.join(sorted(losses.LOSSES))}; an option is set as in {losses.options_in_words()} (default: "
        "log_loss, or squared_error for a number)",
    )
    fit.add_argument("--n-estimators", type=int, help="trees or rounds (default: the recipe's)")
    fit.add_argument("--learning-rate", type=float, help="step of one (default: the recipe's)")
    fit.add_argument("--max-depth", type=int, help="depth of a tree (default: the recipe's)")
    fit.add_argument("--max-bins", type=int, help="bins of a feature (default: the recipe's)")
    add_constraints(fit)
    fit.add_argument(
        "--on-few-rows",
        choices=names.FEW_ROWS,
        default="stop",
        help="where the released number of rows cannot be told from none: stop with the start model, charge what was"
        " opened, exit code 4 (default), or continue; recipes that release no number of rows go on",
    )
    fit.add_argument(
        "--ledger", metavar="URL", help="ledger to charge, such as sqlite:///budget.db"
    )
    fit.add_argument("--account", metavar="NAME", help="account in the ledger")
    fit.add_argument(
        "--resume",
        metavar="FIT_ID",
        help="go on with an interrupted fit, without a new charge; auto: with the fit that the same command (data,"
        " schema, --out) began on this machine, and begin one if there is none",
    )
    fit.add_argument(
        "--memory-limit", metavar="BYTES", help="most that each process may hold, such as 4GiB"
    )
    fit.add_argument(
        "--cache",
        default="auto",
        metavar="PLACE",
        help="where binned rows are kept: auto (default), memory, disk, a folder, or the URL of a Zarr store",
    )
    fit.add_argument(
        "--random-state", type=int, help="seed of public randomness; it never seeds noise"
    )
    fit.add_argument("--quiet", action="store_true", help="no progress bar")
