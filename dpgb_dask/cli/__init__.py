"""The command line: ``dpgb-dask demo | fit | predict | report | verify | check | convert | ledger``."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dpgb_dask import __version__
from dpgb_dask.cli import data, demo, fit, ledger, model, predict
from dpgb_dask.cli.options import BUDGET, ERROR, INTERRUPTED, OK, Parser
from dpgb_dask.errors import BudgetExceededError, DPGBError, kind_of

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        None for the arguments of the process.

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
    except Exception as error:  # an error of a library may quote a value
        text = f"{kind_of(error)}: an error that is not of dpgb_dask; the rest of it may hold values and is not said"
        return _fail(error, ERROR, text)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "dpgb-dask",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dpgb_dask {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo.add(commands)
    fit.add(commands)
    predict.add(commands)
    model.add_report(commands)
    model.add_verify(commands)
    data.add_check(commands)
    data.add_convert(commands)
    ledger.add(commands)
    return parser


@contextmanager
def _stopped_as_by_hand() -> Iterator[None]:
    """Treat SIGTERM, which job schedulers send, like Ctrl-C, so that a fit says how to resume it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _fail(error: BaseException, code: int, text: str = "") -> int:
    """Print an error with its lines, and then how to resume the fit that it ended."""
    for said in (text or f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())):
        print(f"dpgb-dask: {said}", file=sys.stderr)
    return code
