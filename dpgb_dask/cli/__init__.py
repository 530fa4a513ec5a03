"""The command line: ``dpgb-dask COMMAND``; each command of `COMMANDS` has its file here, its options in `parsers`."""

import argparse
import errno
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import dpgb_dask
from dpgb_dask.cli.options import (
    BUDGET,
    ERROR,
    INTERRUPTED,
    OK,
    UNREAD,
    USAGE,
    Parser,
    in_flags,
)
from dpgb_dask.errors import (
    AccountError,
    BudgetExceededError,
    DPGBError,
    OtherRunError,
    PlanError,
    ResumeError,
    SchemaError,
    StructureError,
    UnwritableError,
    kind_of,
)

DAMAGED = "a compressed file is damaged, or ends too early: copy it, or write it, again"
# such an error may quote a value
UNKNOWN = "an error that is not of dpgb_dask; the rest of it may hold values and is not said"

# what is wrong is what was given; the others speak of ledgers and machines
OF_USE = (PlanError, ResumeError, SchemaError, StructureError)
# of arguments alone: a Job that is tried again would be refused again
OF_ARGUMENTS = (AccountError, OtherRunError, PlanError)

DESCRIPTION = "Differentially private gradient boosting on Dask."
EPILOG = """\
examples:
  dpgb-dask demo
  dpgb-dask schema people.parquet --target high_income --out people.schema.json
  dpgb-dask check people.parquet --schema people.schema.json
  dpgb-dask ledger open sqlite:///budget.db people --epsilon 3 --delta 1e-6
  dpgb-dask fit people.parquet --schema people.schema.json --epsilon 1 --delta 1e-6 \\
      --ledger sqlite:///budget.db --account people --out model.json
  dpgb-dask report model.json
  dpgb-dask verify model.json --ledger sqlite:///budget.db
  dpgb-dask predict model.json new.parquet --proba --out predictions.parquet
  dpgb-dask edit model.json --monotone hours_per_week=1 --out edited.json
  dpgb-dask export model.json --to onnx --out model.onnx

exit codes:
  0 done   1 an error of use or data, said on standard error, and how a fit that it ended goes on
  2 wrong arguments, also an account to open with another cap, or --resume auto where other runs' fits are in the way
  3 the account has too little left
  4 the fit ended with the start model, as its number of rows could not be told from none
  130 interrupted, by Ctrl-C, SIGTERM or a closed terminal (SIGHUP)   141 nobody reads its output, as after | head
"""


class Command(NamedTuple):
    """Where a command's options are added, as ``module.function`` of ``parsers``, and its line in the help."""

    added_by: str
    text: str


# Only the command that is run is imported, and only once its options are read: Dask and scikit-learn take seconds. Each
# line is the text that the command gives itself.
COMMANDS = {
    "demo": Command("demo.add", "fit made-up census data on a local cluster, and write the model"),
    "schema": Command(
        "schema.add",
        "draft a schema: the names and declared types of a file, and blanks to fill in from public knowledge",
    ),
    "warm": Command(
        "warm.add", "compile all kernels in advance, as in the build of a container's image"
    ),
    "fit": Command("fit.add", "fit a model on Parquet, CSV or Zarr"),
    "predict": Command("predict.add", "predict with a model file, to Parquet or CSV"),
    "report": Command(
        "model.add_report",
        "print the privacy report of a model file, or write it as a page for the screen and for paper",
    ),
    "verify": Command(
        "model.add_verify",
        "compare a model file with itself, and with the ledger that its fit charged",
    ),
    "check": Command(
        "data.add_check",
        "count what a fit would clip or call missing: for the data owner's eyes, NOT private",
    ),
    "edit": Command(
        "edit.add", "change a model file: monotone, clamp or remove a term; costs no privacy"
    ),
    "export": Command(
        "export.add",
        "write a model for another runtime: plain Python, XGBoost, ONNX or SQL",
    ),
    "convert": Command(
        "data.add_convert",
        "write data as one Zarr data set, with its schema in it: quicker to read, also from an object store",
    ),
    "ledger": Command(
        "ledger.add",
        "open an account, show what is left, settle a fit, verify or restore the ledger",
    ),
}


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
    given = list(sys.argv[1:] if arguments is None else arguments)
    # in a process of its own, what libraries deprecate among each other is nothing to its user
    if arguments is None:
        warnings.simplefilter("ignore", DeprecationWarning)
    if sys.stderr is None:  # closed before: print would take standard output for it
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        # an encoding may lack μ, and a fit that is charged must end well
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _stopped_as_by_hand():
            code = _run(_parser(given).parse_args(given))
    except KeyboardInterrupt as error:  # also while modules are loaded, which takes seconds
        text = "interrupted; what was charged stands (see: dpgb-dask ledger show)"
        code = _fail(error, INTERRUPTED, text)
    except OSError as error:  # of help that nobody reads
        code = _fail_of_system(error)
    except SystemExit:  # argparse's, after the help or wrong usage
        if _is_written():
            raise
        return UNREAD
    return code if _is_written() or code != OK else UNREAD


def _run(options: argparse.Namespace) -> int:
    """Run the command of parsed arguments; say its error, if it ends with one, and return the exit code."""
    run: Callable[[argparse.Namespace], int | None]
    try:
        run = _named("cli", options.run)
    except (ImportError, MemoryError, OSError) as error:  # no row is read yet: its text is public
        text = (
            f"{kind_of(error)}: a library cannot be loaded: {str(error).partition(chr(10))[0]}. It may not be installed"
            " whole, or this process may use too little memory (ulimit -v)."
        )
        return _fail(error, ERROR, text)
    try:
        code = run(options) or OK
        if sys.stdout is not None:
            sys.stdout.flush()  # here, so that a full disk is said like any other error
        return code
    except DPGBError as error:
        said = in_flags(str(error), options) if isinstance(error, OF_USE) else error
        code = BUDGET if isinstance(error, BudgetExceededError) else ERROR
        if isinstance(error, OF_ARGUMENTS) and not isinstance(error, UnwritableError):
            code = USAGE
        return _fail(error, code, f"{type(error).__name__}: {said}")
    except _unpacking() as error:
        return _fail(error, ERROR, f"{kind_of(error)}: {DAMAGED}")
    except OSError as error:
        return _fail_of_system(error)
    except Exception as error:
        return _fail(error, ERROR, f"{kind_of(error)}: {UNKNOWN}")


def _unpacking() -> tuple[type[Exception], ...]:
    """Return the errors of decompression alone; only after one are their modules needed."""
    import gzip  # noqa: PLC0415
    import lzma  # noqa: PLC0415
    import zlib  # noqa: PLC0415

    return EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error


class _Commands(Parser):
    """The parser of all commands, of which only the one that is run has its options."""

    def error(self, message: str) -> NoReturn:
        """Exit with a message, for which the options of all commands are read first."""
        commands = Parser().add_subparsers()
        for command in COMMANDS.values():
            add_to(commands, command)
        super().error(message)


class _Version(argparse.Action):
    """Prints the version; it is looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"dpgb_dask {dpgb_dask.__version__}")
        parser.exit()


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser that knows all options of the command in the arguments, and of the other commands the names."""
    parser = _Commands(
        "dpgb-dask",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show program's version number and exit"
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, command in COMMANDS.items():
        if name == chosen:
            add_to(commands, command)
        else:
            commands.add_parser(name, help=command.text)
    return parser


def add_to(commands: Any, command: Command) -> None:
    """Add the options of a command."""
    _named("cli.parsers", command.added_by)(commands)


def _named(package: str, name: str) -> Any:
    """Import a module of a package of ours, and return the function that ``module.function`` names."""
    module, function = name.split(".")
    return getattr(import_module(f"dpgb_dask.{package}.{module}"), function)


@contextmanager
def _stopped_as_by_hand() -> Iterator[None]:
    """Treat SIGTERM, which job schedulers send, and SIGHUP like Ctrl-C, so that a fit says how to resume it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, signal.default_int_handler)}
    hangup = getattr(signal, "SIGHUP", None)  # none on Windows
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:  # as nohup has it
        before[hangup] = signal.signal(hangup, _hang_up)
    try:
        yield
    finally:
        for sent, handler in before.items():
            signal.signal(sent, handler)


def _hang_up(sent: int, frame: FrameType | None) -> None:
    """Stop as by hand, once: where a terminal closes, its shell sends one more, which would break off cleaning up."""
    signal.signal(sent, signal.SIG_IGN)
    signal.default_int_handler(sent, frame)


def _is_written() -> bool:
    """Write what is left of standard output; return whether it could be, as it cannot after ``| head``."""
    if sys.stdout is None:  # closed before the command began, as a daemon's is
        return True
    try:
        sys.stdout.flush()
    except OSError:
        # else Python complains of what is left in the buffer, when it exits
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return False
    return True


def _is_pipe_broken() -> bool:
    """Whether standard output is a pipe without a reader: the pipe of an error may be another, as to a database."""
    events: list[tuple[int, int]] = []
    # no file, as in a notebook; no poll, as on Windows
    with suppress(OSError, ValueError, AttributeError):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        events = poll.poll(0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in events)


def _fail_of_system(error: OSError) -> int:
    """Print the error of a file or a connection; nothing for standard output that nobody reads."""
    if isinstance(error, BrokenPipeError) and _is_pipe_broken():
        return UNREAD
    name = f" {error.filename!r}" if error.filename else ""
    said = f"{type(error).__name__}:{name} {error.strerror or 'cannot be used'}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        said += ". Make room where the command writes, or in the folder of temporary files, and run it again."
    return _fail(error, ERROR, said)


def _fail(error: BaseException, code: int, text: str = "") -> int:
    """Print an error with its lines, and then how to resume the fit that it ended."""
    with suppress(OSError):  # of a terminal that was closed
        for said in (text or f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())):
            print(f"dpgb-dask: {said}", file=sys.stderr)
    return code
