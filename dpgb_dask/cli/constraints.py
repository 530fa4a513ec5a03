"""Options of ``dpgb-dask fit`` for constraints: monotone features, and which features may interact."""

import argparse
from typing import Any

from dpgb_dask.errors import PlanError, listed

WORDS = ("pairwise", "no_interactions")


def add_constraints(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--monotonic",
        metavar="FEATURE=DIRECTION",
        type=direction,
        action="append",
        help="1: the score never falls where a numeric feature grows; -1: it never grows; may be given again",
    )
    parser.add_argument(
        "--interaction",
        metavar="FEATURES",
        action="append",
        help=f"features that may interact, as a,b,c, may be given again; or {' or '.join(WORDS)} (default: all may)",
    )


def direction(text: str) -> tuple[str, int]:
    """Read the name of a feature and a direction."""
    name, _, sign = text.rpartition("=")
    if not name or sign not in ("1", "+1", "-1"):
        raise argparse.ArgumentTypeError(f"{text!r} is not FEATURE=1 or FEATURE=-1")
    return name, int(sign)


def constraints(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as parameters of the estimators.

    Raises
    ------
    PlanError
        If a feature has two directions, or a word stands beside groups.
    """
    directions, groups = options.monotonic or [], options.interaction or []
    names = [name for name, _ in directions]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PlanError(
            f"--monotonic names {listed(twice)} more than once. Give each feature one direction."
        )
    if len(groups) > 1 and (words := [group for group in groups if group in WORDS]):
        raise PlanError(f"--interaction {words[0]} stands alone. Leave it out, or the groups.")
    word = groups[0] if groups and groups[0] in WORDS else None
    return {
        "monotonic_cst": dict(directions) or None,
        "interaction_cst": word
        or [[name.strip() for name in group.split(",")] for group in groups]
        or None,
    }
