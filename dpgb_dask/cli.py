"""The command line: ``dpgb-dask demo | fit | predict | report | verify | check | convert | ledger``."""
# ruff: noqa: N803, N806 - X is scikit-learn's name

import argparse
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import dask.array as da
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from dask.base import compute
from dask.delayed import delayed
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from pandas.api.types import is_object_dtype
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from dpgb_dask import __version__, diagnose, encode, errors, losses
from dpgb_dask.columns import POSITION
from dpgb_dask.contracts.plan import PublicRng
from dpgb_dask.contracts.schema import Categorical, Schema
from dpgb_dask.controller import analyses
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import Account
from dpgb_dask.controller.ledger_files import is_of_ledger
from dpgb_dask.errors import (
    BudgetExceededError,
    DPGBError,
    LedgerError,
    PlanError,
    SchemaError,
    StructureError,
    did_you_mean,
    kind_of,
)
from dpgb_dask.estimators import DPGBClassifier, DPGBRegressor, load
from dpgb_dask.io import WEIGHT, is_dataset, not_kept, open_dataset, write_dataset
from dpgb_dask.parameters import FEW_ROWS as FEW_ROWS_WAYS
from dpgb_dask.recipes import RECIPES
from dpgb_dask.released.export import part_of
from dpgb_dask.stored import from_zarr
from dpgb_dask.text import read_csv, reading
from dpgb_dask.values import exact_ids
from dpgb_dask.verification import verify

OK, ERROR, BUDGET, FEW_ROWS = 0, 1, 3, 4  # 2 is argparse's own, for wrong usage
WARNINGS = tuple(c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Warning))
INTERRUPTED = 130
ENDED = ("RELEASED", "SETTLED")  # states of a fit in the ledger
LOSSES_WITH_OPTION: dict[str, Callable[[float], losses.Loss]] = {
    "huber": losses.Huber,
    "quantile": losses.Quantile,
}
DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": ","}  # of files of text, by their suffix
TEXT = "string[pyarrow]"
OUTPUTS = {".csv": ",", ".tsv": "\t"}  # of predictions
WORDS_OF_DELIMITERS = {"tab": "\t", "\\t": "\t", "space": " "}  # what is hard to type
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")

DESCRIPTION = "Differentially private gradient boosting on Dask."
EPILOG = """\
examples:
  dpgb-dask demo
  dpgb-dask check people.parquet --schema people.schema.json
  dpgb-dask ledger open sqlite:///budget.db people --epsilon 3 --delta 1e-6
  dpgb-dask fit people.parquet --schema people.schema.json --epsilon 1 --delta 1e-6 \\
      --ledger sqlite:///budget.db --account people --out model.json
  dpgb-dask report model.json
  dpgb-dask verify model.json --ledger sqlite:///budget.db
  dpgb-dask predict model.json new.parquet --proba --out predictions.parquet

exit codes:
  0 done   1 an error of use or data, said on standard error, and how a fit that it ended goes on   2 wrong arguments
  3 the account has too little left
  4 the fit ended with the start model, as its number of rows could not be told from none
"""
KNOWN_FILES = "Give a Parquet file or directory, text (.csv, .tsv or .txt), or a .zarr."
DATA = "Parquet file or directory, text (.csv, .tsv or .txt, also .gz) or a pattern, *.zarr; a path or a URL such as s3://"
TEXT_LINES = """\
Files of text end in .csv, .tsv or .txt, or are such files compressed: .gz, .bz2, .xz, .zst. The first line names the
columns, which commas separate (tabs in .tsv) unless --delimiter says otherwise. Each further line is read on its own
and is one row, blank lines aside: text in quotes may hold commas, and no line breaks."""
TEXT_FIT = f"""{TEXT_LINES}
A line that cannot be read, or has another number of fields, is a row of missing values: it weighs nothing in a fit."""
TEXT_CHECK = f"""{TEXT_FIT}

Exit code 1 where no row is usable, such as where no label is one of the declared classes."""
TEXT_PREDICT = f"""{TEXT_LINES}
Columns that the model does not use are left out; --keep copies some to the output.
A line that cannot be read, or has another number of fields, is an error."""

VERIFY = """\
Without a ledger: the digests of the file's parts, and that ε, δ and μ follow from its receipts. With it, also: the
whole chain of the ledger; account, terms and charge of the fit; the digest that its entry names, of schema, model,
the whole report and the parameters, the build aside; and, where the fit's journal is there and this is the build that
the file names, the model, computed again from the journal and compared bit for bit. The output says what was compared.
Exit code 0 if all of it agrees, else 1.
It shows tampering beside the ledger. It is no signature: who can write a model file can write another that agrees with
itself, and who can write the ledger can write both."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        None for those of the process.

    Returns
    -------
    int
        Exit code.
    """
    options = _parser().parse_args(arguments)
    try:
        with _stopped_as_by_hand():
            return options.run(options) or OK
    except BudgetExceededError as error:
        return _fail(error, BUDGET)
    except DPGBError as error:
        return _fail(error, ERROR)
    except OSError as error:
        name = f" {error.filename!r}" if error.filename else ""
        text = f"{type(error).__name__}:{name} {error.strerror or 'cannot be used'}"
        return _fail(error, ERROR, text)
    except KeyboardInterrupt as error:
        text = "interrupted; what was charged stands (see: dpgb-dask ledger show)"
        return _fail(error, INTERRUPTED, text)
    except Exception as error:  # of a library, which may quote a value
        text = f"{kind_of(error)}: an error that is not of dpgb_dask; the rest of it may hold values and is not said"
        return _fail(error, ERROR, text)


@contextmanager
def _stopped_as_by_hand() -> Iterator[None]:
    """Take what schedulers of jobs send (SIGTERM) for Ctrl-C, so that a fit says how to go on with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Aloud(logging.Handler):
    """Prints what the library logs to standard error, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(f"dpgb-dask: {record.getMessage()}", file=sys.stderr)


def _say_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning as an error is printed, without the line of code that it came from."""
    tqdm.write(f"dpgb-dask: {category.__name__}: {message}", file=sys.stderr)


@contextmanager
def _aloud() -> Iterator[None]:
    """Print what the library logs and warns of: the id of a fit, so that it is known even after kill -9."""
    logger = logging.getLogger("dpgb_dask")
    handler, level = _Aloud(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            for kind in WARNINGS:
                warnings.simplefilter("always", kind)
            warnings.showwarning = _say_warning
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _fail(error: BaseException, code: int, text: str = "") -> int:
    """Print an error, with the lines it has, and then how to go on with a fit that it ended."""
    for said in (text or f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())):
        print(f"dpgb-dask: {said}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    """A parser that asks whether a misspelt command or option means another."""

    flags: ClassVar[set[str]] = (
        set()
    )  # of all commands: which one was meant is not known to who finds the fault

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        self.flags.update(name for name in names if name.startswith("--"))
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        word, known = "", sorted(self.flags)
        if found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            word, known = found[1], re.findall(r"[\w.-]+", found[2])
        elif found := re.search(r"unrecognized arguments: .*?(--[\w-]+)", message):
            word = found[1]
        super().error(f"{message}{did_you_mean(word, known)}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "dpgb-dask",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dpgb_dask {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_fit(commands)
    _add_predict(commands)
    _add_report(commands)
    _add_verify(commands)
    _add_check(commands)
    _add_convert(commands)
    _add_ledger(commands)
    return parser


def _command(
    parent: Any,
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int | None],
    example: str,
    notes: str = "",
) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = parent.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"example:\n  {example}{notes and chr(10) * 2 + notes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.set_defaults(run=run)
    return sub


def _add_demo(commands: Any) -> None:
    text = "fit made-up census data on a local cluster, and write the model"
    demo = _command(commands, "demo", text, _demo, "dpgb-dask demo --epsilon 0.5")
    demo.add_argument("--epsilon", type=float, default=1.0, help="privacy of the fit (default 1)")
    demo.add_argument("--delta", type=float, default=1e-6, help="(default 1e-6)")
    demo.add_argument(
        "--rows", type=_positive, default=120_000, help="rows to make up (default 120000)"
    )
    demo.add_argument("--workers", type=_positive, default=2, help="worker processes (default 2)")
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("demo-model.json"),
        help="model file (default ./demo-model.json)",
    )
    demo.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_fit(commands: Any) -> None:
    example = "dpgb-dask fit people.parquet --schema people.schema.json --epsilon 1 --delta 1e-6 --out model.json"
    text = "fit a model on Parquet, CSV or Zarr"
    fit = _command(commands, "fit", text, _fit, example, TEXT_FIT)
    _add_data(fit)
    fit.add_argument("--epsilon", type=float, required=True, help="privacy of the whole fit")
    fit.add_argument(
        "--delta", type=float, required=True, help="a constant chosen in advance, such as 1e-6"
    )
    fit.add_argument("--out", type=Path, required=True, help="model file to write")
    fit.add_argument("--overwrite", action="store_true", help="replace a file at --out")
    fit.add_argument("--weight", help="column of sample weights, up to the schema's max_weight")
    fit.add_argument(
        "--unit", help="column that names the privacy unit, such as a person with several rows"
    )
    fit.add_argument(
        "--max-rows-per-unit", type=_positive, default=1, help="rows that count in full (default 1)"
    )
    fit.add_argument(
        "--recipe",
        default="auto",
        metavar="NAME",
        help=f"method (default auto): {', '.join(sorted(RECIPES))}",
    )
    fit.add_argument(
        "--loss",
        metavar="NAME",
        help=f"{', '.join(sorted(losses.LOSSES))}; huber:0.2 and quantile:0.9 set their option (default: log_loss, or "
        "squared_error for a number)",
    )
    fit.add_argument("--n-estimators", type=int, help="trees or rounds (default: the recipe's)")
    fit.add_argument("--learning-rate", type=float, help="step of one (default: the recipe's)")
    fit.add_argument("--max-depth", type=int, help="depth of a tree (default: the recipe's)")
    fit.add_argument("--max-bins", type=int, help="bins of a feature (default: the recipe's)")
    fit.add_argument(
        "--on-few-rows",
        choices=FEW_ROWS_WAYS,
        default="stop",
        help="where the released number of rows cannot be told from none: stop with the start model, charge what was"
        " opened, exit code 4 (default), or continue",
    )
    fit.add_argument(
        "--ledger", metavar="URL", help="ledger to charge, such as sqlite:///budget.db"
    )
    fit.add_argument("--account", metavar="NAME", help="account in the ledger")
    fit.add_argument(
        "--resume", metavar="FIT_ID", help="go on with an interrupted fit, without a new charge"
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


def _add_predict(commands: Any) -> None:
    example = "dpgb-dask predict model.json new.parquet --proba --out predictions.csv"
    text = "predict with a model file, to Parquet or CSV"
    predict = _command(commands, "predict", text, _predict, example, TEXT_PREDICT)
    predict.add_argument("model", help="model file")
    predict.add_argument("data", help=DATA)
    predict.add_argument(
        "--out",
        type=Path,
        required=True,
        help="where to write: *.csv or *.tsv, also with .gz; *.parquet or a name without a suffix is a Parquet folder",
    )
    predict.add_argument("--overwrite", action="store_true", help="replace what is at --out")
    predict.add_argument("--proba", action="store_true", help="class probabilities too")
    predict.add_argument(
        "--keep",
        metavar="COLUMN",
        action="append",
        default=[],
        help="column of the data to copy beside the predictions, such as an id; may be given again, and may name"
        " several with commas between",
    )
    _add_text(predict)
    _add_scheduler(predict)


def _add_report(commands: Any) -> None:
    text = "print the privacy report of a model file"
    report = _command(commands, "report", text, _report, "dpgb-dask report model.json")
    report.add_argument("model", help="model file")
    report.add_argument("--json", action="store_true", help="as JSON")


def _add_verify(commands: Any) -> None:
    text = "compare a model file with itself, and with the ledger that its fit charged"
    example = "dpgb-dask verify model.json --ledger sqlite:///budget.db"
    verified = _command(commands, "verify", text, _verify, example, VERIFY)
    verified.add_argument("model", help="model file")
    verified.add_argument("--ledger", metavar="URL", help="ledger that the fit charged")


def _add_check(commands: Any) -> None:
    text = "count what a fit would clip or call missing: for the data owner's eyes, NOT private"
    example = "dpgb-dask check people.parquet --schema people.schema.json"
    check = _command(commands, "check", text, _check, example, TEXT_CHECK)
    _add_data(check)
    check.add_argument("--weight", help="column of sample weights, as for fit")
    check.add_argument("--unit", help="column that names the privacy unit, as for fit")


def _add_convert(commands: Any) -> None:
    text = "write data as one Zarr data set, with its schema in it: quicker to read, also from an object store"
    example = (
        "dpgb-dask convert 'people/*.csv' --schema people.schema.json --out s3://bucket/people.zarr"
    )
    convert = _command(commands, "convert", text, _convert, example, TEXT_FIT)
    _add_data(convert)
    convert.add_argument("--out", required=True, help="folder or URL, *.zarr; it will hold rows")
    convert.add_argument("--weight", help=f"column of sample weights, kept as {WEIGHT!r}")
    convert.add_argument("--overwrite", action="store_true", help="replace a data set")


def _add_ledger(commands: Any) -> None:
    text = "open an account, show what is left, settle a fit, verify or restore the ledger"
    ledger = commands.add_parser("ledger", help=text, description=text)
    actions = ledger.add_subparsers(dest="action", required=True, metavar="ACTION")
    url = "such as sqlite:///budget.db"

    text = "open an account with a cap on all of its fits together"
    example = "dpgb-dask ledger open sqlite:///budget.db people --epsilon 3 --delta 1e-6"
    opened = _command(actions, "open", text, _ledger_open, example)
    opened.add_argument("url", help=url)
    opened.add_argument("account", help="name; one account per data set")
    opened.add_argument("--epsilon", type=float, required=True, help="cap of the account")
    opened.add_argument(
        "--delta", type=float, required=True, help="delta of the cap; may be 0 with --analysis pure"
    )
    opened.add_argument(
        "--analysis",
        choices=sorted(analyses.UNITS),
        default="gdp",
        help="how charges add up: gdp (default; tight for Gaussian noise), zcdp, or pure, for recipes of pure"
        " differential privacy alone",
    )
    opened.add_argument(
        "--unit",
        metavar="COLUMN",
        help="the cap holds for all rows of one such unit together, and fits with this --unit alone can charge the"
        " account (default: for one row, and fits with and without --unit can)",
    )

    example = "dpgb-dask ledger show sqlite:///budget.db"
    shown = _command(actions, "show", "print accounts and their fits", _ledger_show, example)
    shown.add_argument("url", help=url)
    shown.add_argument("account", nargs="?", help="one account (default: all)")

    text = "close an interrupted fit for good; what it opened stays charged"
    example = "dpgb-dask ledger settle sqlite:///budget.db FIT_ID"
    settled = _command(actions, "settle", text, _ledger_settle, example)
    settled.add_argument("url", help=url)
    settled.add_argument("fit_id", help="from: dpgb-dask ledger show")

    text = "go through every entry: nothing changed by hand, nothing missing; exit code 1 if it is not so"
    example = "dpgb-dask ledger verify sqlite:///budget.db"
    verified = _command(actions, "verify", text, _ledger_verify, example)
    verified.add_argument("url", help=url)

    text = "go on with a ledger that was restored from a copy; charges that are not in the copy are forgotten"
    example = "dpgb-dask ledger restore sqlite:///budget.db"
    restored = _command(actions, "restore", text, _ledger_restore, example)
    restored.add_argument("url", help=url)


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", help=DATA)
    parser.add_argument(
        "--schema",
        help="JSON file with the public facts of the columns (default: what a data set of convert holds; a schema given"
        " here wins over that one, and is refused if it asks for categories that the data set did not keep)",
    )
    parser.add_argument("--target", help="column to predict (default: the schema's target)")
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        type=_columns,
        help="of a matrix without names: 'position' says that its columns are the schema's features in its order; a,b,c"
        " gives their names in order (default: by position, with a warning)",
    )
    _add_text(parser)
    _add_scheduler(parser)


def _add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--delimiter",
        metavar="CHARACTER",
        help="what separates the columns of a file of text: one character, tab or space (default: a comma; a tab in"
        " .tsv)",
    )
    parser.add_argument(
        "--encoding",
        help="of a file of text, such as latin-1 or cp1252 (default utf-8)",
    )


def _columns(text: str) -> str | list[str]:
    """Return "position", or the names in a list of them."""
    return text if text == POSITION else [name.strip() for name in text.split(",")]


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _add_scheduler(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="Dask scheduler to join (default: this process)"
    )


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    if address is None:
        yield
        return
    try:
        client = Client(address, set_as_default=True)
    except (OSError, ValueError) as error:
        raise StructureError(
            f"--scheduler {address!r} cannot be reached. Give tcp://HOST:PORT of a running Dask scheduler."
        ) from error
    with client:
        yield


def _ledger(url: str) -> Ledger:
    """Open a ledger that is there: a misspelt address must not make a new one."""
    ledger = Ledger(url)
    if not ledger.exists:
        raise LedgerError(
            f"There is no ledger at {url!r}. Open its first account with: dpgb-dask ledger open"
        )
    return ledger


def _check_out(path: Path, *, overwrite: bool, folder: bool = False) -> None:
    """Refuse an output that would be lost or would replace something, before anything is charged.

    Parameters
    ----------
    path : Path
    overwrite : bool
        Replace a file; or a folder, if ``folder``, and nothing but Parquet is in it.
    folder : bool
        Whether the output is a folder.
    """
    if not path.absolute().parent.is_dir():
        raise StructureError(f"--out {str(path)!r}: its directory does not exist. Make it first.")
    if not path.exists():
        return
    if not overwrite:
        raise StructureError(
            f"--out {str(path)!r} exists already. Choose another name, or give --overwrite."
        )
    if path.is_dir() != folder or (folder and not all(map(_is_parquet, path.iterdir()))):
        kind = "a folder of Parquet files alone" if folder else "a file"
        raise StructureError(
            f"--out {str(path)!r} is not {kind}, and is not replaced. Choose another name."
        )


def _check_spared(options: argparse.Namespace, *written: Path) -> None:
    """Refuse to write over anything that the command reads, inside or around it, or over anything of a ledger.

    Parameters
    ----------
    options : Namespace
        Of which ``data``, ``schema`` and ``model`` are read, where the command has them.
    *written : Path
        The output, and what is written before it is whole.

    Raises
    ------
    StructureError
        Whether or not --overwrite is given.
    """
    given = [getattr(options, name, None) for name in ("data", "schema", "model")]
    read = [path for name in given if name is not None for path in _local_paths(str(name))]
    for path in written:
        for one in read:
            if _meet(path, one):
                raise StructureError(
                    f"--out {str(options.out)!r} would be written where {str(one)!r} is, which is read. Choose another"
                    " place."
                )
        if is_of_ledger(path):
            raise StructureError(
                f"--out {str(options.out)!r} would be written where a ledger is, and what it holds is never replaced."
                " Choose another place."
            )


def _is_local(path: str) -> bool:
    return "://" not in path or path.startswith(("file://", "local://"))


def _local_paths(path: str) -> list[Path]:
    """Return what a path, URL or pattern names on this machine."""
    if not _is_local(path):
        return []
    with reading(path, KNOWN_FILES):
        files, root = fsspec.core.url_to_fs(path)
        return [Path(root), *map(Path, files.glob(root))]


def _meet(one: Path, other: Path) -> bool:
    """Whether two paths are one place by any of its names, or one lies inside the other."""
    with suppress(OSError):
        if one.samefile(other):
            return True
    real, known = (Path(os.path.realpath(path)) for path in (one, other))
    return real.is_relative_to(known) or known.is_relative_to(real)


def _is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet" or path.name in ("_metadata", "_common_metadata")


def _check_demo_out(path: Path) -> None:
    """Refuse to replace what the demo did not write."""
    if path.exists():
        try:
            mine = load(path).schema_ == Schema.from_dict(DEMO_SCHEMA)
        except (DPGBError, OSError):
            mine = False
        if not mine:
            raise StructureError(
                f"--out {str(path)!r} exists already, and is no model of the demo. Choose another name."
            )
    _check_out(path, overwrite=True)


def _form_of(path: Path) -> tuple[str | None, str | None]:
    """Return the delimiter of predictions (None for a Parquet folder), and their compression.

    Raises
    ------
    StructureError
        If the suffix is none of those known: it would be taken for something that it is not.
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


# ---- data ------------------------------------------------------------------------------------------------------------


def _schema(options: argparse.Namespace) -> Schema:
    """Load the schema; another target or a weight column changes which columns are left out."""
    _check_there(options.data)
    weight = getattr(options, "weight", None)
    if options.schema is not None:
        facts = Schema.load(options.schema).to_dict()
    elif _is_zarr(options.data) and is_dataset(options.data):
        facts = open_dataset(options.data).schema.to_dict()
        weight = None  # no column of its features
    else:
        raise SchemaError(
            f"{options.data!r} holds no schema. Give --schema FILE, the public facts of its columns."
        )
    ignore = {*facts["ignore"], *(() if weight is None else (weight,))}
    if options.target is not None and options.target != facts["target"]["name"]:
        ignore.add(facts["target"]["name"])
        facts["target"]["name"] = options.target
    facts["ignore"] = sorted(ignore - {facts["target"]["name"]})
    return Schema.from_dict(facts)


def _check_there(path: str) -> None:
    """Refuse data that are not there, before a reader says so in its own way.

    Raises
    ------
    StructureError
        If nothing is at a path, or fits a pattern.
    """
    with reading(path, KNOWN_FILES):
        files, root = fsspec.core.url_to_fs(path)
        if files.exists(root) or files.glob(root):
            return
    raise StructureError(
        f"{path!r} does not exist. Give a Parquet file or directory, a .csv or a .zarr that does."
    )


def _kind_of_text(path: str) -> str | None:
    """Return the suffix of a file of text, that of its compression aside; None if it is none."""
    suffixes = [one.lower() for one in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in DELIMITERS else None


def _open_table(
    options: argparse.Namespace, schema: Schema, *, strict: bool = False
) -> tuple[Any, Mapping[str, Any]]:
    """Return X and the columns beside it; nothing is computed.

    Parameters
    ----------
    options : Namespace
        With the path of the data, and how text in it is written.
    schema : Schema
    strict : bool
        Whether a malformed line of a text file raises when it is read; else it is a row of missing values.

    Raises
    ------
    StructureError
        If the data cannot be opened; the message names the path and never what is in it.
    """
    path, kind = options.data, _kind_of_text(options.data)
    for flag in ("delimiter", "encoding"):
        if kind is None and getattr(options, flag) is not None:
            raise StructureError(
                f"--{flag} is for files of text, which end in {' or '.join(DELIMITERS)}; {path!r} is none."
            )
    with reading(path, KNOWN_FILES):
        if _is_zarr(path):
            return _open_set(path, schema) if is_dataset(path) else _open_zarr(path, schema)
        if kind is not None:
            frame = _open_text(options, kind, schema, strict=strict)
        else:
            # a missing unit makes floats of NumPy's whole numbers: Arrow reads them as they stand in the file
            backend = None if schema.unit_id is None else "pyarrow"
            frame = dd.read_parquet(path, dtype_backend=backend)
            beside = {schema.target.name} if strict else set()
            types = zip(frame.columns, frame.dtypes, strict=True)
            encode.check_file_types({n: t for n, t in types if n not in beside}, schema)
        frame = _keep_units(frame, schema)
    return frame, {str(column): frame[column] for column in frame.columns}


def _keep_units(frame: dd.DataFrame, schema: Schema) -> dd.DataFrame:
    """Return rows whose units are as they stand in their file."""
    if schema.unit_id not in frame.columns:
        return frame
    return frame.assign(**{str(schema.unit_id): _exact(frame[schema.unit_id])})


def _exact(ids: Any) -> dd.Series:
    """Return a column of ids as it stands in its file."""
    return ids.map_partitions(exact_ids, meta=pd.Series([], name=ids.name, dtype=object))


def _is_zarr(path: str) -> bool:
    return path.rstrip("/").endswith(".zarr")


def _open_set(path: str, schema: Schema) -> tuple[Any, Mapping[str, Any]]:
    """Open what convert wrote."""
    data = open_dataset(path)
    if data.schema.names != schema.names:
        lacks = [name for name in schema.names if name not in data.schema.features]
        how = f"it lacks {lacks}" if lacks else "it has others too, or has them in another order"
        raise SchemaError(
            f"{path!r} holds other features than the schema: {how}. Convert the source again."
        )
    if lost := not_kept(data, schema):
        raise SchemaError(
            f"{path!r} was written under a schema with other categories, and keeps what that one lacks as one category:"
            f" {', '.join(map(repr, lost))} would be misread under this schema. Convert the source again with this"
            " schema, or fit with the one in the data set."
        )
    columns = {data.schema.target.name: data.y}
    if data.sample_weight is not None:
        columns[WEIGHT] = data.sample_weight
    return data.X, columns


def _open_zarr(path: str, schema: Schema) -> tuple[Any, Mapping[str, Any]]:
    """Open a matrix, a group of columns, or a group of a matrix "X" beside its target "y"."""
    store = zarr.open(path, mode="r")
    if isinstance(store, zarr.Array):
        encode.check_file_types(dict.fromkeys(schema.names, store.dtype), schema)
        return from_zarr(store), {}
    place = {name: k for k, name in enumerate(schema.names)}  # a group has no order of its own
    arrays = sorted(store.arrays(), key=lambda item: place.get(item[0], len(place)))
    columns = {key: from_zarr(array) for key, array in arrays}
    types = {key: array.dtype for key, array in columns.items()}
    if "X" in types:
        types = dict.fromkeys(schema.names, types["X"])
    encode.check_file_types(types, schema)
    if not columns:
        raise StructureError(
            f"{path!r} holds no arrays. Give a Zarr array, a group of columns, or a data set that convert wrote."
        )
    if "X" in columns:
        return columns.pop("X"), columns
    rows = next(iter(columns.values())).chunks[0]
    series = [dd.from_dask_array(c.rechunk({0: rows}), columns=key) for key, c in columns.items()]
    kept = [_exact(part) if part.name == schema.unit_id else part for part in series]
    return dd.concat(kept, axis=1), columns


def _open_text(
    options: argparse.Namespace, kind: str, schema: Schema, *, strict: bool
) -> dd.DataFrame:
    """Open delimited text; what is declared a number is parsed where it is read, as it takes less room."""
    given = options.delimiter
    delimiter = DELIMITERS[kind] if given is None else WORDS_OF_DELIMITERS.get(given, given)
    frame = read_csv(
        options.data, delimiter=delimiter, encoding=options.encoding or "utf-8", strict=strict
    )
    numeric = {name for name, f in schema.features.items() if not isinstance(f, Categorical)}
    if not schema.target.classes:
        numeric.add(schema.target.name)
    read = partial(_parsed, numeric=numeric)
    return frame.map_partitions(read, meta=read(frame._meta), enforce_metadata=False)  # noqa: SLF001


def _parsed(frame: pd.DataFrame, *, numeric: Set[str]) -> pd.DataFrame:
    """Return some columns of text as the numbers they spell."""
    parsed = {name: encode.numbers(frame[name]) for name in frame.columns if name in numeric}
    return frame.assign(**parsed)


def _beside(
    options: argparse.Namespace, schema: Schema, X: Any, columns: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the target and the weights: what is beside the features."""
    target = schema.target.name
    y = _column("--target", columns, target, *(() if isinstance(X, dd.DataFrame) else ("y",)))
    weight = None if options.weight is None else _column("--weight", columns, options.weight)
    return y, weight


def _column(flag: str, columns: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if name in columns:
            return columns[name]
    raise StructureError(
        f"column {names[0]!r} is not in the data. Name another with {flag}; of a file of text, is it the --delimiter?"
    )


# ---- commands --------------------------------------------------------------------------------------------------------


def _fit(options: argparse.Namespace) -> int:
    if (options.ledger is None) != (options.account is None):
        raise SchemaError("--ledger and --account belong together. Give both, or neither.")
    _check_out(options.out, overwrite=options.overwrite)
    _check_spared(options, options.out, part_of(options.out))
    schema = _schema(options)
    X, columns = _open_table(options, schema)
    y, weight = _beside(options, schema, X, columns)
    kind = DPGBRegressor if schema.target.type == "numeric" else DPGBClassifier
    estimator = kind(
        epsilon=options.epsilon,
        delta=options.delta,
        schema=schema,
        recipe=options.recipe,
        loss=None if options.loss is None else _loss(options.loss),
        n_estimators=options.n_estimators,
        learning_rate=options.learning_rate,
        max_depth=options.max_depth,
        max_bins=options.max_bins,
        columns=options.columns,
        on_few_rows=options.on_few_rows,
        ledger=None if options.ledger is None else _ledger(options.ledger),
        account=options.account,
        unit_id=options.unit,
        max_rows_per_unit=options.max_rows_per_unit,
        cache=options.cache,
        memory_limit=options.memory_limit,
        random_state=options.random_state,
        verbose=0 if options.quiet else 1,
    )
    with _cluster(options.scheduler), _aloud():
        estimator.fit(X, y, sample_weight=weight, resume=options.resume)
    estimator.save(options.out)
    print(estimator.privacy_report_)
    print(f"\nmodel written to {options.out}")
    return FEW_ROWS if estimator.privacy_report_.stopped else OK


def _loss(text: str) -> losses.Loss:
    """Return a loss by its name, or by name and option, as in "quantile:0.9"."""
    name, colon, option = text.partition(":")
    if not colon:
        return losses.get(name)
    if name not in LOSSES_WITH_OPTION:
        raise PlanError(
            f"loss={text!r} is unknown: only {sorted(LOSSES_WITH_OPTION)} have an option."
        )
    try:
        value = float(option)
    except ValueError:
        raise PlanError(
            f"loss={text!r}: the option after the colon must be a number, as in {name}:0.2."
        ) from None
    return LOSSES_WITH_OPTION[name](value)


def _predict(options: argparse.Namespace) -> None:
    delimiter, compression = _form_of(options.out)
    _check_out(options.out, overwrite=options.overwrite, folder=delimiter is None)
    # beside the output, and with its suffix, by which readers and writers of text know a compression
    scratch = options.out.with_name(f".part-{options.out.name}")
    _check_spared(options, options.out, scratch)
    _check_there(options.data)
    model = load(options.model)
    table, columns = _open_table(options, model.schema_, strict=True)
    X = table
    if isinstance(table, dd.DataFrame):  # what the model does not use is not looked at
        used = [name for name in table.columns if name in model.schema_.features]
        encode.match_names(used, model.schema_)
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
    keep = [name for given in options.keep for name in _names_in(given, columns)]
    parts = [*_kept(keep, table, columns, made), *parts]
    out = parts[0] if len(parts) == 1 else dd.concat(parts, axis=1, ignore_unknown_divisions=True)
    try:
        with _cluster(options.scheduler):
            if delimiter is None:
                texts = {name: TEXT for name, dtype in out.dtypes.items() if is_object_dtype(dtype)}
                out = out.astype(texts)  # of objects alone, nobody knows the type in a file
                out.to_parquet(str(scratch), write_index=False, overwrite=True)
            else:
                form = {"sep": delimiter, "compression": compression, "index": False}
                out.to_csv(str(scratch), single_file=True, **form)
        if options.out.is_dir():
            shutil.rmtree(options.out)
        scratch.replace(options.out)
    except BaseException:
        _remove(scratch)
        raise
    print(f"predictions written to {options.out}")


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _names_in(given: str, columns: Mapping[str, Any]) -> list[str]:
    """Return the columns that one --keep names: one whose own name has commas, or several between commas."""
    return [given] if given in columns else [name.strip() for name in given.split(",")]


def _kept(
    names: Sequence[str], table: Any, columns: Mapping[str, Any], made: set[str]
) -> list[dd.DataFrame]:
    """Return columns of the data as frames with the partitions of the predictions."""
    parts = []
    known = dict.fromkeys(table.columns) if isinstance(table, dd.DataFrame) else {}
    for name in dict.fromkeys(names):
        if name in made:
            raise StructureError(f"--keep {name!r} is the name of a prediction. Rename the column.")
        if name in known:
            parts.append(table[[name]])
        elif name in columns and isinstance(columns[name], da.Array):
            column = columns[name]
            if isinstance(table, da.Array):
                column = column.rechunk({0: table.chunks[0]})
            parts.append(dd.from_dask_array(column, columns=name).to_frame(name))
        elif name in columns:
            parts.append(columns[name].to_frame(name))
        else:
            raise StructureError(f"--keep {name!r} is no column of the data. Name one that is.")
    return parts


def _as_frame(values: Any, columns: list[str]) -> dd.DataFrame:
    """Return predictions as a Dask DataFrame whose columns have text for names."""
    if isinstance(values, xr.DataArray):
        values = values.data
    if isinstance(values, da.Array):
        values = dd.from_dask_array(values, columns=columns if values.ndim == 2 else columns[0])
    if isinstance(values, dd.Series):
        return values.to_frame(columns[0])
    return values.rename(columns=dict(zip(values.columns, columns, strict=True)))


def _report(options: argparse.Namespace) -> None:
    report = load(options.model).privacy_report_
    print(json.dumps(report.to_dict(), indent=1, ensure_ascii=False) if options.json else report)


def _verify(options: argparse.Namespace) -> None:
    ledger = None if options.ledger is None else _ledger(options.ledger)
    print(verify(options.model, ledger))


def _convert(options: argparse.Namespace) -> None:
    if not _is_zarr(options.out):
        raise StructureError(
            f"--out {options.out!r} must end in .zarr: by that, fit and predict know it."
        )
    if _is_local(options.out):
        _check_spared(options, Path(options.out.split("://", 1)[-1]))
    schema = _schema(options)
    X, columns = _open_table(options, schema)
    y, weight = _beside(options, schema, X, columns)
    with _cluster(options.scheduler):
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


def _check(options: argparse.Namespace) -> None:
    schema = _schema(options)
    if options.unit is not None:
        facts = schema.to_dict()
        ignored = [name for name in facts["ignore"] if name != options.unit]
        schema = Schema.from_dict(facts | {"ignore": ignored, "unit_id": options.unit})
    X, columns = _open_table(options, schema)
    y = columns.get(schema.target.name, None if isinstance(X, dd.DataFrame) else columns.get("y"))
    weight = None if options.weight is None else _column("--weight", columns, options.weight)
    with _cluster(options.scheduler):
        diagnosis = diagnose.check(schema, X, y, weight, options.columns)
    print(diagnosis)
    if diagnosis.usable == 0:
        raise StructureError("No row is usable: see the target above.")


def _ledger_open(options: argparse.Namespace) -> None:
    Ledger(options.url).open_account(
        options.account,
        epsilon=options.epsilon,
        delta=options.delta,
        analysis=options.analysis,
        unit_id=options.unit,
    )
    print(
        f"account {options.account!r} opened: epsilon={options.epsilon:g}, delta={options.delta:g}, analysis"
        f" {options.analysis}, for {_relation(options.unit)}"
    )


def _relation(unit_id: str | None) -> str:
    """Say what an account protects."""
    return "one row" if unit_id is None else f"all rows of one {unit_id!r}"


def _ledger_show(options: argparse.Namespace) -> None:
    ledger = _ledger(options.url)
    accounts = ledger.accounts() if options.account is None else (ledger.account(options.account),)
    if not accounts:
        print("no accounts yet; open one with: dpgb-dask ledger open")
    for account in accounts:
        cap = (
            f"cap epsilon={account.epsilon:g}, delta={account.delta:g}, analysis {account.analysis}, for"
            f" {_relation(account.unit_id)}"
        )
        left = f"{100 * account.left / account.cap:.2f} % left"
        epsilon = ledger.remaining(account.name)
        print(
            f"{account.name}: {cap}; one more fit at this delta may ask epsilon={epsilon:.4g} ({left})"
        )
        _print_fits(ledger, account)


def _print_fits(ledger: Ledger, account: Account) -> None:
    """Print a table of an account's fits, the oldest first."""
    table = [
        (
            fit.fit_id,
            fit.at[:16].replace("T", " "),
            fit.terms.facts.get("recipe", "?"),  # old ledgers have none
            fit.state if fit.state in ENDED else "UNFINISHED",
            f"{100 * fit.charge / account.cap:.2f} % of the cap",
        )
        for fit in ledger.fits(account.name)
    ]
    if not table:
        return
    table.insert(0, ("fit", "opened (UTC)", "recipe", "state", "charge"))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"  {'  '.join(cells).rstrip()}")
    if any("UNFINISHED" in row for row in table):
        print(
            "  An UNFINISHED fit is running, or broke off: dpgb-dask fit … --resume FIT goes on with it, and dpgb-dask"
            " ledger settle closes it."
        )


def _ledger_settle(options: argparse.Namespace) -> None:
    ledger = _ledger(options.url)
    ended = ledger.record(options.fit_id).state in ENDED
    key = ledger.key_path(options.fit_id)
    here = key is not None and key.exists()
    ledger.settle(options.fit_id)
    print(
        f"fit {options.fit_id} is settled: what it opened stays charged, and it cannot be resumed"
        if not ended
        else f"fit {options.fit_id} had ended before: its charge stands"
    )
    if here:
        print("its key is erased")
    elif not ended:
        print(
            "its key is not on this machine: it is erased when the machine that has it opens the ledger the next time"
        )


def _ledger_verify(options: argparse.Namespace) -> None:
    checked = _ledger(options.url).verify()
    print(
        f"the ledger agrees with itself: hash chain of {checked.entries} entries; {checked.accounts} accounts and"
        f" {checked.fits} fits follow from them"
    )
    print(
        "the newest head that is kept outside the database is in the chain: it is no older copy"
        if checked.head
        else "no newest head is known on this machine, so an older copy would not be noticed"
    )
    print("this finds damage, old copies and edits by hand; it is no signature")


def _ledger_restore(options: argparse.Namespace) -> None:
    if not _ledger(options.url).restore():
        print("nothing to restore: the ledger holds its newest known head")
        return
    print(
        "the ledger goes on from this copy. Charges that are not in it are forgotten: what such fits gave is counted no"
        " more. Fits that are UNFINISHED here cannot be resumed, and keep their whole charge when settled"
    )


# ---- demo ------------------------------------------------------------------------------------------------------------

DEMO_SEED = 2026
DEMO_CHUNK = 10_000
HELD_OUT = 1 << 20  # first block of the held-out rows: no fit reaches it
DEMO_SCHEMA = {
    "version": 1,
    "features": {
        "age": {"type": "numeric", "low": 17, "high": 90, "integer": True},
        "education_years": {"type": "numeric", "low": 0, "high": 20, "integer": True},
        "hours_per_week": {"type": "numeric", "low": 0, "high": 100, "integer": True},
        "capital_gain": {"type": "numeric", "low": 0, "high": 100000},
        "commute_km": {"type": "numeric", "low": 0, "high": 200, "missing": True},
        "tenure_years": {"type": "numeric", "low": 0, "high": 50},
        "household_size": {"type": "numeric", "low": 1, "high": 10, "integer": True},
        "occupation": {"type": "categorical", "categories": list(range(12))},
        "region": {"type": "categorical", "categories": list(range(8))},
        "married": {"type": "categorical", "categories": [0, 1]},
    },
    "target": {"name": "high_income", "type": "binary", "classes": [0, 1]},
}


def demo_block(n_rows: int, block: int) -> NDArray[np.float64]:
    """Make up census-like rows: the columns of `DEMO_SCHEMA`, then the label. Public data from a public seed.

    Parameters
    ----------
    n_rows : int
    block : int
        Number of the block; the same block is the same rows everywhere.

    Returns
    -------
    (n_rows, 11) float64
    """
    rng = PublicRng(DEMO_SEED).stream("demo", block)
    age = np.clip(rng.gamma(6.0, 6.5, n_rows) + 15, 17, 90).round()
    education = np.clip(rng.normal(12, 2.8, n_rows), 0, 20).round()
    hours = np.clip(rng.normal(40, 11, n_rows), 0, 100).round()
    gain = np.where(
        rng.random(n_rows) < 0.09, np.minimum(rng.lognormal(8.3, 1.2, n_rows), 1e5), 0.0
    )
    commute = np.minimum(rng.lognormal(2.3, 0.9, n_rows), 200)
    commute[rng.random(n_rows) < 0.1] = np.nan
    tenure = np.minimum(rng.exponential(6.0, n_rows), np.minimum(age - 16, 50))
    household = np.clip(1 + rng.poisson(1.6, n_rows), 1, 10)
    occupation, region = rng.integers(0, 12, n_rows), rng.integers(0, 8, n_rows)
    married = (rng.random(n_rows) < 1 / (1 + np.exp(-(age - 32) / 9))).astype(float)
    job = np.sin(1.7 * np.arange(12))[occupation]
    prime = np.exp(-(((age - 48) / 16) ** 2))
    score = (
        -4.3
        + 2.2 * prime
        + 0.28 * (education - 12)
        + 0.035 * (hours - 40)
        + 0.9 * np.log1p(gain / 3000)
        + 0.8 * job
        + 0.25 * np.cos(2.1 * np.arange(8))[region]
        + 1.3 * married
        + 0.05 * np.sqrt(tenure)
        + 0.9 * married * (household <= 2)  # two incomes, no children
        + 0.12 * (education - 12) * prime * (job > 0)  # a degree pays in some jobs, in mid-career
        - 0.02 * (hours - 40) * (age > 62)
    )
    label = rng.random(n_rows) < 1 / (1 + np.exp(-score))
    columns = [
        age,
        education,
        hours,
        gain,
        commute,
        tenure,
        household,
        occupation,
        region,
        married,
        label,
    ]
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


def demo_data(n_rows: int, first: int = 0) -> tuple[da.Array, da.Array]:
    """Return (X, y) of the demo as chunked Dask Arrays, from block ``first`` on; nothing is computed."""
    sizes = [DEMO_CHUNK] * (n_rows // DEMO_CHUNK) + (
        [n_rows % DEMO_CHUNK] if n_rows % DEMO_CHUNK else []
    )
    blocks = [
        da.from_delayed(delayed(demo_block)(size, first + k), (size, 11), np.float64)
        for k, size in enumerate(sizes)
    ]
    table = da.concatenate(blocks)
    return table[:, :10], table[:, 10]


def _demo(options: argparse.Namespace) -> None:
    started = time.perf_counter()
    _check_demo_out(options.out)
    _check_spared(options, options.out, part_of(options.out))
    schema = Schema.from_dict(DEMO_SCHEMA)
    X, y = demo_data(options.rows)
    X_test, y_test = compute(*demo_data(options.rows // 5 + 1, HELD_OUT))
    print(
        f"made-up census data: {X.shape[0]} rows x {X.shape[1]} features in {X.numblocks[0]} Dask chunks"
    )
    workers = {"n_workers": options.workers, "threads_per_worker": 1}
    with LocalCluster(**workers, dashboard_address=":0") as local, Client(local):
        print(f"local cluster: {options.workers} workers, dashboard {local.dashboard_link}")
        model = DPGBClassifier(
            epsilon=options.epsilon,
            delta=options.delta,
            schema=schema,
            columns=POSITION,
            verbose=0 if options.quiet else 1,
        )
        print(f"price of the fit, before touching data: {model.privacy_cost()}")
        began = time.perf_counter()
        model.fit(X, y)
        took = time.perf_counter() - began
        rows = compute(X, y)
    with threadpool_limits(1):  # its threads would wait for each other beside other work
        rival = HistGradientBoostingClassifier().fit(*rows)
    ours = roc_auc_score(y_test, model.predict_proba(X_test)[:, 1])
    theirs = roc_auc_score(y_test, rival.predict_proba(X_test)[:, 1])
    model.save(options.out)
    print(f"\n{model.privacy_report_}\n")
    print("AUC on held-out rows")
    print(
        f"  dpgb_dask, epsilon={options.epsilon:g}, delta={options.delta:g}: {ours:.4f}   (fit {took:.1f} s)"
    )
    print(f"  scikit-learn HistGradientBoosting, no privacy: {theirs:.4f}")
    print(f"\nmodel written to {options.out}; whole demo {time.perf_counter() - started:.0f} s")
