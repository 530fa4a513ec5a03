"""The code in the README and in the pages of `docs/` runs, one block after the other, as a reader would run it."""

import re
import shlex
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest

from dpgb_dask import Schema
from dpgb_dask.cli import main

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/schema.md",
    "docs/recipes.md",
    "docs/larger-than-memory.md",
    "docs/ledger.md",
)


def blocks(language, *pages):
    found = []
    for page in pages or PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        found += re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return found


@pytest.fixture
def people(tmp_path, monkeypatch):
    """The files that the pages speak of, in the current directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 3000
    table = pd.DataFrame(
        {
            "age": rng.integers(17, 91, n),
            "hours": rng.integers(0, 101, n),
            "job": rng.choice(["office", "field", "none"], n),
        }
    )
    table["high_income"] = (table["age"] + table["hours"] + 20 * rng.normal(size=n) > 110).astype(
        int
    )
    table.to_parquet("people.parquet")
    table.drop(columns="high_income").to_parquet("new.parquet")
    Schema(
        {"age": (17, 90), "hours": (0, 100), "job": ["office", "field", "none"]},
        classes=[0, 1],
        target="high_income",
    ).save("people.schema.json")
    return tmp_path


def test_two_commands_come_first_and_alone():
    first, second = blocks("sh", "README.md")[:2]
    assert first.strip() == "pip install . && dpgb-dask demo"
    assert second.strip() == "pip install '.[test]' && pytest -n 2 --dist loadfile"


def test_what_the_pages_show_runs(people, capsys):
    namespace = {}
    with dask.config.set(scheduler="sync"):
        for block in blocks("python"):
            exec(block, namespace)
        printed = capsys.readouterr().out
        assert "(1, 1e-06)-differential privacy" in printed
        for line in "".join(blocks("sh")[2:]).splitlines():
            words = shlex.split(line, comments=True)
            assert words[0] in ("dpgb-dask", "python")  # the latter are benches
            assert words[0] == "python" or main(words[1:]) == 0, line
    assert len(pd.read_csv(people / "predictions.csv")) == 3000
    capsys.readouterr()
