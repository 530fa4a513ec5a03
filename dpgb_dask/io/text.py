"""Files of delimited text as Dask DataFrames: each line is read by itself, and each value stays text.

A reader of whole blocks does not suit private rows: an extra field or an open quote in one line changes how it reads
the lines below, and the types that it infers depend on all values. Here a row is a function of its own line. What a
text means (missing, a number, a category) is decided later, by the text and the schema alone.
"""

import codecs
import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import fsspec
import pandas as pd
from dask.bytes.core import read_bytes
from dask.delayed import delayed
from fsspec.compression import compr
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import infer_compression

from dpgb_dask.calls import spoken
from dpgb_dask.encoding.columns import exact_ids, with_read
from dpgb_dask.errors import DPGBError, StructureError, check_flag, short
from dpgb_dask.remote import check_no_password, is_there, is_url, local_path, options_of
from dpgb_dask.scalars import is_listing, plain_text, same_text, whole_number
from dpgb_dask.whole_files import name_of

AT_ONCE = 16  # first lines that are read at once: each waits for its store
FIRST = 1 << 16  # bytes that are fetched for a first line
BLOCK = 8 << 20  # bytes; as text in memory they take about ten times as much
# most characters of a line that is split without csv; csv has the same limit for a field
LONGEST = 1 << 17
COMMA_NUMBER = re.compile(r"\s*[+-]?([0-9]+,[0-9]*|,[0-9]+)([eE][+-]?[0-9]+)?\s*")
# under a decimal comma this point may mark thousands
POINT_NUMBER = re.compile(r"\s*[+-]?[1-9][0-9]{0,2}\.[0-9]{3}\s*")
SWAPPED = str.maketrans(",.", ".,")
MAGIC = re.compile(r"[*?\[]")  # what makes a pattern of a name
HINT = "Give a file of delimited text, or a pattern of such files."
# every ASCII byte, and sequences that start an escape in encodings with escapes
ASCII = bytes(range(128)) + b"\\u0041+AGE-~{"


@spoken
def read_csv(
    path: str | Path | Sequence[str | Path],
    *,
    delimiter: str = ",",
    encoding: str = "utf-8",
    quotechar: str | None = '"',
    decimal: str = ".",
    blocksize: int = BLOCK,
    unit_id: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> dd.DataFrame:
    r"""Open delimited text files as a Dask DataFrame of text, for ``fit`` and ``predict``. Only first lines are read.

    The first line of each file names the columns: those of the first file, in any order. Each further line that is not
    blank is read by itself and gives one row: text in quotes may contain delimiters, but no line breaks. A line that
    cannot be read, or has another number of fields, becomes a row of missing values. No type is inferred: ``fit`` and
    ``predict`` interpret each text by the schema.

    Parameters
    ----------
    path : str, Path, or a sequence of them
        A file, a pattern such as ``people-*.csv``, or a URL that fsspec knows, such as ``s3://bucket/people.csv``. As
        for a shell, a pattern means hidden files and folders, whose names begin with a point, only if a part of
        it does.
        Files that end in ``.gz``, ``.bz2``, ``.xz`` or ``.zst`` (if ``zstandard`` is installed) are decompressed.
    delimiter : str
        One character, such as ``";"`` or ``"\t"``.
    encoding : str
        An encoding in which each ASCII character is one byte, such as UTF-8, Latin-1 or a Windows code page; in others,
        such as UTF-16, a damaged byte would change the lines below it. A byte order mark is skipped; invalid bytes
        become U+FFFD, and are refused in the first line, which names the columns.
    quotechar : str or None
        None: quotes have no special meaning.
    decimal : {".", ","}
        What stands before a number's decimals. A comma, which the delimiter must not be then: each field that spells a
        number with one, such as ``1,5``, is read as that number, ``1.5``, in every column, and each whose point may
        mark thousands, such as ``1.234``, as the text ``1,234``, which is no number. Others stay as they are: ``1.5``,
        and ``1.234,5``, which is no number either.
    blocksize : int
        Bytes of a partition, which needs about ten times as much memory. A compressed file is one partition.
    unit_id : str, optional
        Column that names the privacy unit. Its whole numbers are kept exactly as in the file, also from 2⁵³ on, where
        numbers from any other source cannot be units.
    storage_options : mapping, optional
        For fsspec; by default it takes them from the environment.
    strict : bool
        Whether a line that cannot be read raises an error when it is read, which says its number. For predictions,
        where no row may be left out; never for a fit.

    Returns
    -------
    dask.dataframe.DataFrame
        Object columns of text, in the order of the first file; None in rows that could not be read.

    Raises
    ------
    StructureError
        If nothing is found, a file is named twice (by a link to it, too), an option is not one of those above, a file
        does not name its columns, or names others than the first, or one ends in ``.zst`` and ``zstandard`` is not
        installed. A file that is empty names none, and has no rows.

    Privacy
    -------
    Private side. Each row is a function of its own line, and unless ``strict`` no line raises or warns. The columns'
    names are public: a file without a first line of names must get one.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dpgb_dask.io import read_csv
    >>> for year in (2025, 2026):
    ...     _ = Path(f"people-{year}.csv").write_text("age;high_income\n31;0\nunknown;1\n")
    >>> X = read_csv("people-*.csv", delimiter=";")
    >>> list(X.columns), X.npartitions
    (['age', 'high_income'], 2)
    """
    form = Form(delimiter, encoding, quotechar, decimal)
    check_flag("strict", strict, StructureError)
    block = whole_number(blocksize)
    if block is None or block < 1:
        raise StructureError(
            f"blocksize={short(blocksize)} must be a whole number of bytes, at least 1."
        )
    # not an open file's lines
    one_name = isinstance(path, str | bytes | Path) or hasattr(path, "read")
    places: list[Any] = list(path) if is_listing(path) and not one_name else [path]
    if not places:
        raise StructureError("path=[] names no file. Give at least one.")
    given = list(map(name_of, places))
    said = given[0] if len(given) == 1 else given
    given = list(map(_as_pattern, given))
    options = options_of(storage_options)
    for one in given:
        check_no_password(one)
    if is_url(given[0]):
        is_there(given[0], options)  # raises if its store does not answer
    with reading(said, HINT):
        files, paths = _files_of(given, said, options)
        # a compressed file can only be read as a whole
        whole = any(infer_compression(one) is not None for one in paths)
        size = None if whole else block
        _, blocks_found, found = read_bytes(
            given,
            delimiter=b"\n",
            sample=False,
            blocksize=size,
            compression="infer",
            include_path=True,
            **options,
        )
        blocks_of = dict(zip(found, blocks_found, strict=True))
        paths = shown(found, given, options)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            firsts = list(pool.map(partial(_first_line, files), paths))
    first = next((line for line in firsts if not _is_empty(line)), b"")
    names = _named_columns(first, said, form)
    orders = [form.order(line, names, place) for line, place in zip(firsts, paths, strict=True)]
    if unit_id is not None and plain_text(unit_id) not in names:
        raise StructureError(
            f"unit_id={short(unit_id)} is not a column that the first line of {said!r} names. Name one of them."
        )
    parts = []
    for place, order in zip(paths, orders, strict=True):
        source = _Source(files, place, names, order)
        read = delayed(
            partial(_read_lines, source=source, form=form, unit_id=unit_id, strict=strict)
        )
        parts += [read(block, begins=not k) for k, block in enumerate(blocks_of[place])]
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_delayed(parts, meta=_frame((), names), verify_meta=False)


def _files_of(given: Sequence[str], said: Any, options: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return the file system and the files that names, URLs and patterns mean, each there, once and readable."""
    files, _, found = fsspec.get_fs_token_paths(given, mode="rb", storage_options=options)
    paths = shown(found, given, options)
    if not paths:
        raise StructureError(f"{said!r} does not exist. {HINT}")
    # what a pattern found is there, so of one name or pattern the first path tells
    for path in paths if len(given) > 1 else paths[:1]:
        if not files.exists(path):
            named = said if len(given) == 1 else path
            raise StructureError(f"{named!r} does not exist. {HINT}")
    check_once(files, paths, said)
    if any(one.lower().endswith(".zst") and infer_compression(one) is None for one in paths):
        # fsspec would take it for plain text
        raise StructureError(
            f"{said!r} needs zstandard, which is not installed: pip install zstandard."
        )
    return files, paths


def _named_columns(first: bytes, said: Any, form: "Form") -> tuple[str, ...]:
    """Return the columns that a first line names, each by another name."""
    names = form.header(first)
    if names and len(set(names)) == len(names):
        return names
    way = "Delete what stands above it, such as a title, and tell columns apart that have one name, or none."
    if b"\r" in first.rstrip(b"\r\n"):
        way = "Lines that end in a carriage return alone are not split: convert them, as with: tr '\\r' '\\n'"
    raise StructureError(
        f"{said!r}: the first line of a file of delimited text must name the columns, each by another name. {way}"
    )


@contextmanager
def _opened(files: Any, path: str) -> Iterator[Any]:
    """Open a file for its bytes, decompressed; a store is asked for one block after the other."""
    with files.open(path, "rb", block_size=FIRST) as opened:
        unpack = compr[infer_compression(path)]
        yield opened if unpack is None else unpack(opened, mode="rb")


def _first_line(files: Any, path: str) -> bytes:
    """Return the first line of a file; of a store no more than its first block is fetched for it, if that holds it."""
    with _opened(files, path) as opened:
        return bytes(opened.readline())


def _is_empty(block: bytes) -> bool:
    """Whether there is nothing in a file that begins with this block, but for a byte order mark."""
    return not block.removeprefix(codecs.BOM_UTF8)


def shown(paths: Sequence[str], given: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Return the files that patterns mean, given by name, URL or pattern.

    As for a shell, hidden files and folders, such as copies that Jupyter or macOS keeps beside a file, are meant only
    by a pattern of which a part begins with a point.
    """
    if not any("/." in f"/{path}" for path in paths):
        return list(paths)
    patterns = [_parts(fsspec.core.url_to_fs(one, **options)[1]) for one in given]
    return [path for path in paths if any(_means(one, _parts(path)) for one in patterns)]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _means(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a pattern may match a path, both in parts, and if a hidden one, is meant to."""
    fixed = next((k for k, part in enumerate(pattern) if MAGIC.search(part)), len(pattern))
    if path[:fixed] != pattern[:fixed]:
        return False
    return any(part.startswith(".") for part in pattern[fixed:]) or not any(
        part.startswith(".") for part in path[fixed:]
    )


def check_once(files: Any, paths: Sequence[str], said: Any) -> None:
    """Refuse a file that is read twice, by a link to it or in another spelling too: a person would count twice.

    Raises
    ------
    StructureError
    """
    real = map(os.path.realpath, paths) if isinstance(files, LocalFileSystem) else paths
    if len(set(real)) < len(paths):
        raise StructureError(
            f"{said!r} names a file twice, by a link to it perhaps: each of its rows would count twice. Name it once."
        )


def _as_pattern(name: str) -> str:
    """Return the name of a file that is there, such as ``people[1].csv``, as a pattern that matches it."""
    place = local_path(name)
    return name.replace("[", "[[]") if place is not None and place.exists() else name


@contextmanager
def reading(path: Any, hint: str) -> Iterator[None]:
    """Replace a reader's errors, which may quote the content of files, by errors of ours without it.

    Raises
    ------
    StructureError
        If any other error than ours is raised; it names the path, the type of the error, and ``hint``.
    """
    try:
        yield
    except DPGBError:
        raise
    except Exception as error:
        kind = type(error).__name__
        missing = error.name if isinstance(error, ImportError) else None
        text = f"{path!r} cannot be read ({kind}). {hint}"
        if isinstance(error, ImportError):
            text = (
                f"{path!r} needs {missing or 'a package'}, which is not installed; for s3://: pip install"
                " 'dpgb_dask[s3]'."
            )
    else:
        return
    failure = StructureError(text)
    try:
        raise failure
    except StructureError:
        failure.__context__ = None  # the with statement still handles the reader's error
        raise


@dataclass(frozen=True, slots=True)
class Form:
    """How a line of text is cut into fields.

    Parameters
    ----------
    delimiter, encoding, quotechar, decimal
        As for `read_csv`.

    Raises
    ------
    StructureError
        If they are not as `read_csv` requires.
    """

    delimiter: str = ","
    encoding: str = "utf-8"
    quotechar: str | None = '"'
    decimal: str = "."

    def __post_init__(self) -> None:
        for name in ("delimiter", "quotechar"):
            value = getattr(self, name)
            if value is None and name == "quotechar":
                continue
            if not isinstance(value, str) or len(value) != 1 or value in "\r\n":
                raise StructureError(
                    f"{name}={value!r} must be one character, and no line break. For tabs, give '\\t'."
                )
        if self.delimiter == self.quotechar:
            raise StructureError(
                f"delimiter={self.delimiter!r} is the quotechar too. Choose another."
            )
        if same_text(self.decimal, (".", ",")) in (None, self.delimiter):
            raise StructureError(
                f"decimal={self.decimal!r} must be '.' or ',', and not the delimiter. Numbers with a decimal comma are"
                " separated by another character, such as ';'."
            )
        if not _is_ascii_like(self.encoding):
            raise StructureError(
                f"encoding={self.encoding!r} is unknown, or one in which an ASCII character is not its one byte: a"
                " damaged byte would change the lines below it. Convert the file, as with: iconv -t UTF-8"
            )

    def fields(self, line: bytes) -> Sequence[str] | None:
        """Return the fields of one line: an empty sequence for a blank line; None if it cannot be read."""
        fields = self._cut(line)
        if fields is None or self.decimal == ".":
            return fields
        # 1.234 becomes 1,234, which is no number, as different texts have to stay different
        return [
            x.translate(SWAPPED) if COMMA_NUMBER.fullmatch(x) or POINT_NUMBER.fullmatch(x) else x
            for x in fields
        ]

    def _cut(self, line: bytes) -> Sequence[str] | None:
        """Return the fields as they stand in the line."""
        text = line.decode(self.encoding, "replace")
        text = text.removesuffix("\r")
        if self.delimiter not in text and not text.strip():
            return ()
        quoted = self.quotechar is not None and self.quotechar in text
        if not (quoted or "\r" in text or len(text) > LONGEST):
            return text.split(self.delimiter)
        try:
            rows = csv.reader(
                [text],
                delimiter=self.delimiter,
                quotechar=self.quotechar,
                quoting=csv.QUOTE_NONE if self.quotechar is None else csv.QUOTE_MINIMAL,
                strict=True,
            )
            return next(rows, ())
        except csv.Error:  # an open quote, a carriage return, a field beyond csv.field_size_limit
            return None

    def header(self, block: bytes) -> tuple[str, ...] | None:
        """Return the column names in the first line of a block; None if it cannot be read."""
        line, _, _ = block.partition(b"\n")
        if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise StructureError(
                "A file of text begins with the mark of UTF-16, whose ASCII characters are not their bytes. Convert it:"
                " iconv -f UTF-16 -t UTF-8."
            )
        line = line.removeprefix(codecs.BOM_UTF8)
        try:
            line.decode(self.encoding)
        except UnicodeDecodeError:  # not as its cause, which quotes the line
            raise StructureError(
                f"The first line of a file of text, which names the columns, is not in encoding={self.encoding!r}. Give"
                " the file's own, such as 'cp1252' (on the command line: --encoding)."
            ) from None
        fields = self._cut(line)
        return None if fields is None else tuple(fields)

    def order(self, block: bytes, names: tuple[str, ...], path: str) -> tuple[str, ...]:
        """Return the columns in the order in which a file that begins with this block names them.

        Raises
        ------
        StructureError
            If they are other columns than ``names``; an empty file has those, and no rows.
        """
        if _is_empty(block):
            return names
        own = self.header(block) or ()
        if sorted(own) != sorted(names):
            raise StructureError(
                f"{path!r}: files that are read together must name the same columns, each in its first line, in any"
                " order. This one names others than the first file: write it again with that one's."
            )
        return own


def _is_ascii_like(encoding: Any) -> bool:
    """Whether an encoding is known, encodes each ASCII character as its byte, and can decode any bytes."""
    try:
        if b"\\x41".decode(encoding) != "\\x41":  # an encoding with escapes, which may warn
            return False
        bytes(range(256)).decode(encoding, "replace")
        return ASCII.decode(encoding) == ASCII.decode("ascii")
    except (LookupError, TypeError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class _Source:
    """A file of text.

    Parameters
    ----------
    files : fsspec file system
    path : str
    names : tuple of str
        The columns, in the order of the rows to make.
    order : tuple of str
        The columns, in the order of the file.
    """

    files: Any
    path: str
    names: tuple[str, ...]
    order: tuple[str, ...]


def _read_lines(
    block: bytes, *, begins: bool, source: _Source, form: Form, unit_id: str | None, strict: bool
) -> pd.DataFrame:
    """Return one row for each line that is not blank; a line of another width is a row of missing values.

    ``begins`` says whether the block is the first of its file.

    Raises
    ------
    StructureError
        If the header has changed since the file was opened, or if ``strict`` and a line has another width.

    Privacy
    -------
    Private side. Each row is a function of its own line, and unless ``strict`` no line raises or warns.
    """
    if begins and form.order(block, source.names, source.path) != source.order:
        raise StructureError(
            f"{source.path!r}: its first line has changed since the file was opened. Open it again."
        )
    width = len(source.order)
    rows = [row for row in map(form.fields, block.split(b"\n")[begins:]) if row is None or row]
    good = [row is not None and len(row) == width for row in rows]
    if strict and not all(good):
        raise _unread_line(source, form)
    lost = (None,) * width
    frame = _frame(
        [row if fits and row else lost for row, fits in zip(rows, good, strict=True)], source.order
    )
    if source.order != source.names:
        frame = frame[list(source.names)]
    return frame if unit_id is None else with_read(frame, [unit_id], exact_ids)


def _unread_line(source: _Source, form: Form) -> StructureError:
    """Return the error for the first line of a file that cannot be read; a block does not know how many precede it."""
    width, place = len(source.order), ""
    with _opened(source.files, source.path) as lines:
        for number, line in enumerate(lines, start=1):
            row = form.fields(line.removesuffix(b"\n"))
            if number > 1 and (row is None or len(row) not in (0, width)):
                place = f", line {number}"
                break
    return StructureError(
        f"{source.path!r}{place}: a line of a file of text has not the {width} fields that its first line names, or has"
        " an open quote. Each line is one row: correct it, so that no prediction is left out."
    )


def _frame(rows: Sequence[Sequence[str | None]], names: Sequence[str]) -> pd.DataFrame:
    """Return rows as columns of objects."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return pd.DataFrame(
        {
            name: pd.Series(list(values), dtype=object)
            for name, values in zip(names, columns, strict=True)
        },
        columns=pd.Index(names, dtype=object),
    )
