"""Options of ``dpgb-dask edit``."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpgb_dask.cli.constraints import direction
from dpgb_dask.cli.options import MODEL, MODEL_OUT, command
from dpgb_dask.remote import path_or_url

NOTES = """\
Changes are made in the order given, after those that the file has. A TERM is a feature, two as 'age & hours_per_week',
or (to remove) 'remainder'; or the list of its features, '["age", "hours_per_week"]', where a name may mean several
terms. LOW and HIGH are in natural units, as explain_global shows them, and either may be left out.
Nothing is charged: the new file holds the model of the fit and the list of changes, which verify repeats. A clamp of
a part of a feature is model.edit() in Python (docs/constraints-and-edits.md)."""


def add(commands: Any) -> None:
    """Add the command."""
    text = "change a model file: monotone, clamp or remove a term; costs no privacy"
    example = (
        "dpgb-dask edit model.json --monotone hours_per_week=1 --clamp age=-1:1 \\\n"
        "      --remove 'age & hours_per_week' --out edited.json"
    )
    edit = command(commands, "edit", text, "edit.run", example, NOTES)
    edit.add_argument("model", help=MODEL)
    for name, read, form, said in (
        (
            "monotone",
            direction,
            "FEATURE=DIRECTION",
            "1: the score never falls; -1: it never grows",
        ),
        ("clamp", _bounds, "TERM=LOW:HIGH", "keep what a term adds to the score within bounds"),
        ("remove", _term, "TERM", "let a term add nothing"),
    ):
        edit.add_argument(
            f"--{name}",
            metavar=form,
            type=_Change(name, read),
            action="append",
            dest="edits",
            help=f"{said}; may be given again",
        )
    edit.add_argument("--out", required=True, type=path_or_url, metavar="FILE", help=MODEL_OUT)
    edit.add_argument("--overwrite", action="store_true", help="replace a file at --out")


@dataclass(frozen=True)
class _Change:
    """Reads an option as the name of a method of the editor and its arguments; all options are one list, in order."""

    method: str
    read: Callable[[str], tuple[Any, ...]]

    def __call__(self, text: str) -> tuple[str, tuple[Any, ...]]:
        return self.method, self.read(text)


def _term(text: str) -> tuple[str | list[str]]:
    """Read the name of a term, or the JSON list of its features."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    return (listed if isinstance(listed, list) else text,)


def _bounds(text: str) -> tuple[str | list[str], float | None, float | None]:
    """Read the name of a term, and one or two bounds."""
    term, _, bounds = text.rpartition("=")
    try:
        low, high = (float(bound) if bound else None for bound in bounds.split(":"))
    except ValueError:
        term = ""
    if not term:
        raise argparse.ArgumentTypeError(f"{text!r} is not TERM=LOW:HIGH, TERM=LOW: or TERM=:HIGH")
    return *_term(term), low, high
