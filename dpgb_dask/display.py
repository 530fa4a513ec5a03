"""How objects show themselves in a terminal and in a notebook: on one screen, however large they are.

The text of a `repr`, and of an HTML repr, has at most `MOST` characters. What is left out is counted.
"""

import decimal
import html
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

MOST = 2000
NAME = 40  # most characters of one name, label or cell
WORDS = 80  # … and of a cell of words
ROWS = 20  # most rows of a table
# classes of HTML in which a notebook takes no "$" of a name for the beginning of a formula, as pandas marks its tables
NO_MATH = "tex2jax_ignore mathjax_ignore"

# what ends a line, commands a terminal, turns the direction of what follows, or cannot be written as UTF-8
_UNSEEN = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ud800-\\udfff"
    "\\U000e0000-\\U000e007f]"
)

T = TypeVar("T")


def seen(text: str) -> str:
    """Return text with a mark in place of each character that would not be seen: others may have written it."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


def brief(value: object, most: int = NAME) -> str:
    """Return text of at most ``most`` characters, all of them seen; the end of a longer one is replaced by "…"."""
    text = str(value)
    return seen(text if len(text) <= most else f"{text[: most - 1]}…")


def exact(value: float) -> str:
    """Return a number in as many digits as tell it from all others: in six, if these do."""
    text = f"{value:g}"
    return text if float(text) == value else repr(float(value)).removesuffix(".0")


def apart(values: Sequence[float], least: int = 6) -> list[str]:
    """Return numbers in ``least`` digits, or in as many more as place each well among those beside it."""
    known = sorted(set(values))
    gaps = [math.inf, *(high - low for low, high in itertools.pairwise(known)), math.inf]
    near = {value: min(gaps[k : k + 2]) for k, value in enumerate(known)}
    return [_within(value, near[value] / 20, least) for value in values]


def _within(value: float, error: float, least: int) -> str:
    """Return a number in as many digits as give it within an error; of more than ``least``, no exponent below 10¹⁵."""
    texts = (f"{value:.{digits}g}" for digits in range(least, 18))
    text = next(text for text in texts if abs(float(text) - value) <= error)
    long = sum(map(str.isdigit, text.partition("e")[0])) > least
    return f"{float(text):.0f}" if long and "e+" in text and abs(value) < 1e15 else text


def one_line(text: str) -> str:
    """Return a few words on one line."""
    return brief(text, WORDS)


def floored(value: float, digits: int) -> str:
    """Return a number in at most ``digits`` digits, rounded towards 0: what still fits must fit as it is told."""
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_DOWN)
    # from its shortest text: 0.6 is a little less as a float, and fits as 0.6
    return f"{float(context.create_decimal(repr(float(value)))):.{digits}g}"


def _fitting(rows: Iterable[Sequence[object]], spent: int, widest: int = NAME) -> list[list[str]]:
    """Return the first rows of a table as text, as many as fit on a screen beside what is ``spent`` already."""
    shown: list[list[str]] = []
    for row in rows:
        cells = [brief(cell, widest) for cell in row]
        spent += sum(len(cell) + 2 for cell in cells)
        if len(shown) == ROWS or spent > MOST:
            break
        shown.append(cells)
    return shown


def html_table(
    title: str,
    rows: Sequence[Sequence[object]],
    head: Sequence[str] = (),
    *,
    widest: int = NAME,
    notes: Sequence[str] = (),
) -> str:
    """Return a small HTML table; everything is escaped.

    Parameters
    ----------
    title : str
    rows : sequence of sequences
        Of one length. The table is cut to `ROWS` rows, or fewer if these are long.
    head : sequence of str, optional
    widest : int
        Most characters of a cell.
    notes : sequence of str
        Paragraphs below the table, short ones.
    """
    title = brief(title, 3 * NAME)
    shown = _fitting(rows, sum(map(len, (title, *head, *notes))) + NAME, widest)
    more = len(rows) - len(shown)
    left = ' style="text-align: left"'
    body = "".join(
        f"<tr>{''.join(f'<td{left}>{html.escape(cell)}</td>' for cell in row)}</tr>"
        for row in shown
    )
    top = "".join(f'<th scope="col"{left}>{html.escape(cell)}</th>' for cell in head)
    below = [*([f"… and {more} more"] if more else []), *notes]
    return (
        f'<div class="{NO_MATH}"><p><strong>{html.escape(title)}</strong></p><table>'
        f"{top and f'<thead><tr>{top}</tr></thead>'}<tbody>{body}</tbody></table>"
        f"{''.join(f'<p>{html.escape(note)}</p>' for note in below)}</div>"
    )


class Listing(tuple[T, ...]):
    """A tuple of records that prints as a table of the last of them.

    Each record has a method ``shown``, which returns the cells of its row by the heads of their columns.
    """

    __slots__ = ()

    def _table(self) -> tuple[list[str], list[Sequence[object]]]:
        """Return heads and rows, the last row first."""
        told: list[Mapping[str, object]] = [one.shown() for one in self[: -ROWS - 1 : -1]]  # type: ignore[attr-defined]
        return list(told[0]) if told else [], [list(row.values()) for row in told]

    def __repr__(self) -> str:
        head, rows = self._table()
        if not rows:
            return "()"
        for n_rows in range(len(rows), 0, -1):
            lines = _lined_up(
                [head, *([brief(cell) for cell in row] for row in rows[n_rows - 1 :: -1])]
            )
            more = len(self) - n_rows
            text = "\n".join([*([f"… {more} earlier"] if more else []), *lines])
            if len(text) <= MOST:
                break
        return text

    def _repr_html_(self) -> str:
        head, rows = self._table()
        n_rows = len(_fitting(rows, sum(map(len, head)) + 2 * NAME))
        title = f"{len(self)} in all" + (f", the last {n_rows}" if n_rows < len(self) else "")
        return html_table(title, rows[:n_rows][::-1], head)


def _lined_up(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
