"""How objects show themselves in a terminal and in a notebook: on one screen, however large they are.

A `repr` has at most `MOST` characters, and so has the text of an HTML repr. What is left out is counted.
"""

import html
from collections.abc import Iterable, Sequence

MOST = 2000
NAME = 40  # most characters of one name or label
ROWS = 20  # most rows of a table


def brief(value: object, most: int = NAME) -> str:
    """Return text of at most ``most`` characters; the end of a longer one is replaced by "…"."""
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def listed(values: Sequence[object], most: int = NAME) -> str:
    """Return values separated by commas, as many as fit into ``most`` characters, and how many more there are."""
    shown: list[str] = []
    for value in values:
        text = brief(value, most)
        if shown and sum(len(one) + 2 for one in shown) + len(text) > most:
            return f"{', '.join(shown)}, … ({len(values) - len(shown)} more)"
        shown.append(text)
    return ", ".join(shown)


def html_table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Return a small HTML table whose text is at most `MOST` characters; everything is escaped.

    Parameters
    ----------
    title : str
    rows : iterable of sequences
        Of one length; each cell is cut to `NAME` characters, and the table to `ROWS` rows and to `MOST` characters.
    head : sequence of str, optional
    """
    cells = [[brief(cell) for cell in row] for row in rows]
    left = MOST - len(brief(title, 3 * NAME)) - sum(map(len, head)) - NAME
    shown = []
    for row in cells[:ROWS]:
        left -= sum(map(len, row)) + len(row)
        if left < 0:
            break
        shown.append(row)
    more = len(cells) - len(shown)
    style = ' style="text-align: left"'
    body = "".join(
        f"<tr>{''.join(f'<td{style}>{html.escape(cell)}</td>' for cell in row)}</tr>"
        for row in shown
    )
    top = "".join(f"<th{style}>{html.escape(cell)}</th>" for cell in head)
    return (
        f"<div><p><strong>{html.escape(brief(title, 3 * NAME))}</strong></p><table>"
        f"{top and f'<thead><tr>{top}</tr></thead>'}<tbody>{body}</tbody></table>"
        f"{f'<p>… and {more} more</p>' if more else ''}</div>"
    )
