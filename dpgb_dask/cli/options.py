"""What the commands share: exit codes, options and their help texts."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from dpgb_dask.calls import CLOSE, ELSEWHERE
from dpgb_dask.errors import (
    ClusterError,
    DPGBError,
    LedgerError,
    StructureError,
    did_you_mean,
    kind_of,
)
from dpgb_dask.names import POSITION
from dpgb_dask.remote import path_or_url
from dpgb_dask.whole_files import path_of

if TYPE_CHECKING:
    from dpgb_dask.controller.ledger import Ledger

OK, ERROR, USAGE, BUDGET, FEW_ROWS = 0, 1, 2, 3, 4  # 2 is argparse's own, for wrong usage, too
INTERRUPTED, UNREAD = 130, 141  # as a shell says it of a process that SIGINT or SIGPIPE ended
DATA = "Parquet file or directory, text (.csv, .tsv or .txt, also .gz) or a pattern, *.zarr; a path or a URL such as s3://"
MODEL = "model file; a path or a URL such as s3://"
MODEL_OUT = "model file to write; a path or a URL such as s3://"
TEXT_LINES = """\
Files of text end in .csv, .tsv or .txt, or are such files compressed: .gz, .bz2, .xz, or .zst with zstandard. The
first line names the columns, which commas separate (tabs in .tsv) unless --delimiter says otherwise. Each further line
is read on its own and is one row, blank lines aside: text in quotes may hold commas, and no line breaks."""
TEXT_FIT = f"""{TEXT_LINES}
A line that cannot be read, or has another number of fields, is a row of missing values: it weighs nothing in a fit."""


# parameters of Python whose flags have other names
FLAGS = {
    "interaction_cst": "--interaction",
    "monotonic_cst": "--monotonic",
    "sample_weight": "--weight",
    "unit_id": "--unit",
}


class Parser(argparse.ArgumentParser):
    """A parser that suggests a command or option for a misspelt one."""

    # flags of all commands, because the parser that finds the mistake does not know which command was meant
    flags: ClassVar[set[str]] = set()

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an option, and remember its flag."""
        self.flags.update(name for name in names if name.startswith("--"))
        return super().add_argument(*names, **options)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help, and raise where nobody reads it, of which argparse is silent, or not, by its version."""
        if file is not None and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Exit with a message that suggests the word that may have been meant."""
        word, known = "", sorted(self.flags)
        if found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            word, known = found[1], re.findall(r"[\w.-]+", found[2])
        elif found := re.search(r"unrecognized arguments: .*?(--[\w-]+)", message):
            word = found[1]
            if word in known:
                super().error(
                    f"{message}: {word} is an option of other commands, or stands behind its command."
                )
            ours = flag_of(ELSEWHERE.get(word[2:].replace("-", "_"), ""))
            hint = f" It is {ours} here." if ours in known else did_you_mean(word, known, CLOSE)
            super().error(f"{message}{hint}")
        super().error(f"{message}{did_you_mean(word, known)}")


def flag_of(name: str) -> str:
    """Return the flag of a parameter in Python."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def in_flags(said: str, options: argparse.Namespace) -> str:
    """Return an error that names parameters of Python with the flags that a command has for them."""
    given = vars(options)

    def named(found: re.Match[str]) -> str:
        name, flag = found[1], flag_of(found[1])
        own = flag[2:].replace("-", "_")
        if own not in given or flag not in Parser.flags:
            return name
        # a plain word is one only with its value, and what was not given comes from a file
        is_one = given[own] is not None if found[2] else "_" in name
        return flag if is_one else name

    # names of columns and files stand in quotes
    return re.sub(r"(?<![\w.'/-])([a-z_]+)(?!\w|=True|=False)(?=(=?))", named, said)


def local_file(text: str) -> Path:
    """Read a path of this machine, for what is not written to a store."""
    place = path_or_url(text)
    if isinstance(place, str):
        raise argparse.ArgumentTypeError(f"{text!r} is a URL: write to a file, and copy that there")
    return place


def command(
    parent: Any,
    name: str,
    text: str,
    run: str,
    example: str,
    notes: str = "",
) -> argparse.ArgumentParser:
    """Add a command, with an example and notes below its help.

    ``run`` names the function of this folder, as ``module.function``, that runs the command with its options. It is
    imported then.
    """
    sub: argparse.ArgumentParser = parent.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"example:\n  {example}{notes and chr(10) * 2 + notes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.set_defaults(run=run)
    return sub


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the data and for how they are read."""
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
    add_text(parser)
    add_scheduler(parser)


def add_text(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for how text files are read."""
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
    parser.add_argument(
        "--decimal",
        choices=(".", ","),
        help="what stands before the decimals of a number in a file of text (default: a point)",
    )


def add_scheduler(parser: argparse.ArgumentParser) -> None:
    """Add the address of a scheduler to connect to."""
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="Dask scheduler to join: tcp://HOST:PORT, tls://HOST:PORT, or the file that `dask scheduler"
        " --scheduler-file` wrote (default: this process)",
    )


def _columns(text: str) -> str | list[str]:
    """Return "position", or a list of column names."""
    return text if text == POSITION else [name.strip() for name in text.split(",")]


def positive(text: str) -> int:
    """Read a whole number above zero."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Connect to the scheduler at an address or in a scheduler file, if one is given."""
    if address is None:
        yield
        return
    from distributed import Client, Security  # noqa: PLC0415 - only with an address

    from dpgb_dask.clients import reach  # noqa: PLC0415

    try:
        found = _address(address)
        reach(found, Security())
        client = Client(found, set_as_default=True)
    except Exception as error:  # Dask raises many kinds: without a certificate, a TypeError
        refused = _out_of_reach(address, error)
    else:
        with client:
            yield
        return
    raise refused


def _address(given: str) -> str:
    """Return the address of a scheduler, from the file that it wrote if a file is given."""
    file = path_of(given)
    if "://" in given or not file.is_file():
        return given
    try:
        return str(json.loads(file.read_text())["address"])
    except (ValueError, KeyError, TypeError):
        raise StructureError(
            f"--scheduler {given!r} is no scheduler file. Give the one that `dask scheduler --scheduler-file` wrote."
        ) from None


def _out_of_reach(address: str, error: Exception) -> DPGBError:
    """Return the error for a scheduler that a client cannot connect to."""
    if isinstance(error, DPGBError):
        return error
    import dask  # noqa: PLC0415 - the help does not need it

    seconds = dask.config.get("distributed.comm.timeouts.connect")
    return ClusterError(
        f"--scheduler {address!r} cannot be reached ({kind_of(error)}); it has distributed.comm.timeouts.connect="
        f"{seconds} to answer. Give tcp://HOST:PORT of a running Dask scheduler, or its scheduler file; with TLS,"
        " tls://HOST:PORT, and the certificates in Dask's configuration: DASK_DISTRIBUTED__COMM__TLS__CA_FILE,"
        " …__TLS__CLIENT__CERT and …__TLS__CLIENT__KEY. Nothing was charged."
    )


def open_ledger(url: str) -> "Ledger":
    """Return a ledger that outlives the command: one in memory would be empty, and agree with itself."""
    from dpgb_dask.controller.ledger import Ledger  # noqa: PLC0415 - only for a ledger

    ledger = Ledger(url)
    check_outlasts(ledger, url)
    return ledger


def check_outlasts(ledger: "Ledger", url: str) -> None:
    """Refuse a ledger in memory."""
    if not ledger.durable:
        raise LedgerError(
            f"{url!r} is a ledger in memory, which ends with this command. Give a file, such as"
            " sqlite:///budget.db, or a database server."
        )
