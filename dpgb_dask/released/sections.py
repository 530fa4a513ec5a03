"""Sections of facts and words, as text for a terminal and as HTML for a notebook, a screen and paper."""

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from dpgb_dask.display import NO_MATH, seen

WIDTH = 100
_LABEL = 12  # least width of the first column of facts


@dataclass(frozen=True, slots=True)
class FactRows:
    """Names and values."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a head."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Points:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """A paragraph.

    Parameters
    ----------
    text : str
    mark : {"", "promise", "loud"}
        What it is marked as: with a bar beside it in HTML; a loud one also with "!!!" in text.
    """

    text: str
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it.

    Parameters
    ----------
    title : str
    parts : tuple of FactRows, Table, Points or Words
    first : bool
        Whether a notebook shows it at once; it shows the others when their heading is clicked.
    """

    title: str
    parts: tuple[FactRows | Table | Points | Words, ...]
    first: bool = False


# ---- text ------------------------------------------------------------------------------------------------------------


def as_text(title: str, sections: Sequence[Section], width: int = WIDTH) -> str:
    """Return text in lines of at most ``width`` characters, but for tables and for words that are longer."""
    lines = [title, "=" * width]
    for section in sections:
        lines += ["", section.title, "-" * len(section.title)]
        for number, part in enumerate(section.parts):
            if number and not isinstance(part, FactRows):
                lines.append("")
            lines += _lines(part, width)
    return "\n".join(lines)


def _lines(part: FactRows | Table | Points | Words, width: int) -> list[str]:
    if isinstance(part, Words):
        marks = ("!!! ", "    ") if part.mark == "loud" else ("", "")
        return _wrapped(part.text, *marks, width)
    if isinstance(part, Points):
        return [line for item in part.items for line in _wrapped(item, "  - ", "    ", width)]
    if isinstance(part, FactRows):
        first = min(max([_LABEL, *(len(name) for name, _ in part.rows)]), width // 3)
        indent = " " * (first + 1)
        return [
            line
            for name, value in part.rows
            for line in _wrapped(value, f"{seen(name):<{first}} ", indent, width)
        ]
    widths = [max(map(len, column)) for column in zip(part.head, *part.rows, strict=True)]
    rows = [
        "  ".join(
            seen(cell).ljust(width) if k < 2 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (part.head, *part.rows)
    ]
    return [rows[0], "-" * len(rows[0]), *rows[1:], ""]


def _wrapped(text: str, first: str, other: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(
        seen(text),
        width,
        initial_indent=first,
        subsequent_indent=other,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped or [first.rstrip()]


# ---- HTML ------------------------------------------------------------------------------------------------------------

# Colours are those of what the report stands in, so that it is readable on light and on dark pages.
_STYLE = """
.dpgb-report { max-width: 62em; font-size: 1em; line-height: 1.45; text-align: left; overflow-wrap: anywhere; }
.dpgb-report h1 { font-size: 1.6em; margin: 0 0 .6em; }
.dpgb-report h2, .dpgb-report summary { font-size: 1.1em; font-weight: 600; margin: 1.1em 0 .35em; }
.dpgb-report summary { cursor: pointer; margin: .5em 0; }
.dpgb-report p { margin: .45em 0; }
.dpgb-report ul { margin: .3em 0; padding-left: 1.4em; }
.dpgb-report table { border-collapse: collapse; margin: .4em 0 .6em; }
.dpgb-report td, .dpgb-report th { padding: .2em 1em .2em 0; text-align: left !important; vertical-align: top;
  border: 0; border-bottom: 1px solid rgba(128, 128, 128, .3); font-weight: normal; white-space: normal; }
.dpgb-report tr { background: none !important; }
.dpgb-report thead th { font-weight: 600; }
.dpgb-report tbody th { min-width: 9em; max-width: 22em; white-space: pre-wrap; opacity: .8; }
.dpgb-report .word, .dpgb-report .number { overflow-wrap: normal; }
.dpgb-report .number { text-align: right !important; font-variant-numeric: tabular-nums; }
.dpgb-report .promise { border-left: .3em solid rgba(0, 121, 107, .8); padding: .1em 0 .1em .9em; }
.dpgb-report .loud { border-left: .3em solid rgba(211, 47, 47, .9); padding: .1em 0 .1em .9em; font-weight: 600; }
"""
_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { font-family: system-ui, "Liberation Sans", Arial, sans-serif; margin: 2em auto; max-width: 62em;
  padding: 0 1.2em; background: Canvas; color: CanvasText; }
@page { size: A4; margin: 18mm 16mm; }
@media print {
  :root { color-scheme: light; }
  body { margin: 0; padding: 0; max-width: none; font-size: 9.5pt; }
  .dpgb-report { max-width: none; }
  .dpgb-report h2 { break-after: avoid; }
  .dpgb-report tr, .dpgb-report li { break-inside: avoid; }
  .dpgb-report thead { display: table-header-group; }
}
"""


def as_html(sections: Sequence[Section]) -> str:
    """Return a part of a notebook, which shows the first sections, and the others when their heading is clicked."""
    body = "".join(_section(section, folded=not section.first) for section in sections)
    return f'<style>{_STYLE}</style><div class="dpgb-report {NO_MATH}">{body}</div>'


def as_page(title: str, sections: Sequence[Section]) -> str:
    """Return a whole page with every section open; it fetches nothing and runs no script."""
    title, body = _escape(title), "".join(_section(part, folded=False) for part in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_PAGE_STYLE}{_STYLE}</style></head>"
        f'<body><main class="dpgb-report"><h1>{title}</h1>{body}</main></body></html>\n'
    )


def _section(section: Section, *, folded: bool) -> str:
    title, body = _escape(section.title), "".join(map(_part, section.parts))
    if folded:
        return f"<details><summary>{title}</summary>{body}</details>"
    return f"<section><h2>{title}</h2>{body}</section>"


def _part(part: FactRows | Table | Points | Words) -> str:
    if isinstance(part, Words):
        return f"<p{part.mark and f' class={part.mark}'}>{_escape(part.text)}</p>"
    if isinstance(part, Points):
        return "<ul>" + "".join(f"<li>{_escape(item)}</li>" for item in part.items) + "</ul>"
    if isinstance(part, FactRows):
        rows = (
            f'<tr><th scope="row">{_escape(name)}</th><td>{_escape(value)}</td></tr>'
            for name, value in part.rows
        )
        return f"<table><tbody>{''.join(rows)}</tbody></table>"
    kinds = ["", ' class="word"', ' class="number"', ' class="number"']
    head = "".join(
        f'<th scope="col"{n}>{_escape(c)}</th>' for n, c in zip(kinds, part.head, strict=True)
    )
    rows = (
        "<tr>"
        + "".join(f"<td{n}>{_escape(c)}</td>" for n, c in zip(kinds, row, strict=True))
        + "</tr>"
        for row in part.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _escape(text: str) -> str:
    return html.escape(seen(text))
