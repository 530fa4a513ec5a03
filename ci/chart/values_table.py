"""Print the table of values of a chart's README, from the comments in its values.yaml.

Usage:  python ci/chart/values_table.py helm/dpgb-dask
"""

import json
import re
import sys
from pathlib import Path

import yaml


def documented(text: str) -> dict[str, str]:
    """Return the comment above each value that has one, by the value's path."""
    found, path, comment = {}, [], ""
    for line in text.splitlines():
        if said := re.match(r" *# (.*)", line):
            comment = f"{comment} {said[1]}".strip()
        elif key := re.match(r"( *)([\w-]+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if comment:
                found[".".join(path)] = comment
            comment = ""
        else:
            comment = ""
    return found


def at(values: dict, path: str):
    """Return the value at a path."""
    for key in path.split("."):
        values = values[key]
    return values


def table(text: str) -> str:
    """Return the table of values."""
    values = yaml.safe_load(text)
    rows = [
        f"| `{path}` | `{json.dumps(at(values, path))}` | {comment} |"
        for path, comment in documented(text).items()
    ]
    return "\n".join(["| value | default | |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    print(table((Path(sys.argv[1]) / "values.yaml").read_text(encoding="utf-8")))
