"""The code in the README and in the pages of `docs/` runs, one block after the other, as a reader would run it."""

import importlib.util
import inspect
import re
import shlex
import sys
from itertools import takewhile
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest

from dpgb_dask.cli import main
from dpgb_dask.datasets import make_census

ROOT = Path(__file__).parents[1]
PAGES = (
    "docs/explanations.md",
    "docs/pictures.md",
    "docs/constraints-and-edits.md",
    "docs/report.md",
    "docs/schema.md",
    "docs/recipes.md",
    "docs/larger-than-memory.md",
    "docs/deploy.md",
    "docs/ledger.md",
    "docs/parameters.md",
)

# what the pages take for granted: the README's snippet, on its made-up people
OWN = """
import dask.dataframe as dd
from dpgb_dask import DPGBClassifier, Ledger, Schema

people = dd.read_parquet("people.parquet")
schema = Schema.load("people.schema.json")
ledger = Ledger("sqlite:///budget.db")
ledger.open_account("people-2026", epsilon=3.0, delta=1e-6)
model = DPGBClassifier(schema=schema, epsilon=1.0, delta=1e-6, ledger=ledger, account="people-2026")
model.fit(people.drop(columns="high_income"), people["high_income"])
model.save("model.json")
"""


def blocks(language, *pages):
    found = []
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        found += re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return found


def run_commands(blocks):
    """Run the lines of shell blocks that call the command line, up to a pipe; ``python`` runs benches: see below."""
    for line in "".join(blocks).splitlines():
        words = list(takewhile(lambda word: word != "|", shlex.split(line, comments=True)))
        assert words[0] in ("dpgb-dask", "python")
        assert words[0] == "python" or main(words[1:]) == 0, line


@pytest.fixture
def people(tmp_path, monkeypatch):
    """The files that the pages speak of, in the current directory."""
    monkeypatch.chdir(tmp_path)
    table, schema = make_census(20_000)
    table = table.compute()
    table.to_parquet("people.parquet")
    table.drop(columns="high_income").to_parquet("new.parquet")
    schema.save("people.schema.json")
    return tmp_path


def test_two_commands_come_first_and_alone():
    first, second = blocks("sh", "README.md")[:2]
    assert first.strip() == "pip install . && dpgb-dask demo"
    assert second.strip() == "pip install '.[test]' && pytest -n 2 --dist loadfile"


# Dask's own call, which pandas 3.1 deprecates
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame:DeprecationWarning")
def test_the_readme_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    """In an empty folder, as a reader would paste it."""
    monkeypatch.chdir(tmp_path)
    namespace = {}
    with dask.config.set(scheduler="sync"):
        for block in blocks("python", "README.md"):
            exec(block, namespace)
        printed = capsys.readouterr().out
        assert "(1, 1e-06)-differential privacy" in printed
        run_commands(blocks("sh", "README.md")[2:])
    assert len(pd.read_csv("predictions.csv")) == 20_000
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.usefixtures("people")
def test_what_the_pages_show_runs(capsys):
    namespace = {}
    with dask.config.set(scheduler="sync"):
        exec(OWN, namespace)
        for block in blocks("python", *PAGES):
            exec(block, namespace)
        run_commands(blocks("sh", *PAGES))
    capsys.readouterr()


@pytest.mark.runtimes
@pytest.mark.usefixtures("people")
def test_what_the_page_of_exports_shows_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)  # as where Python is started
    namespace = {}
    with dask.config.set(scheduler="sync"):
        exec(OWN, namespace)
        for block in blocks("python", "docs/exports.md"):
            exec(block, namespace)
    model, people = namespace["model"], namespace["people"]
    np.testing.assert_array_equal(namespace["margin"], model.decision_function(people).compute())
    assert namespace["X"].shape == (20_000, 10)
    capsys.readouterr()


def bench_calls():
    """Return, by bench, the options with which a page names it: in a block, or between backticks."""
    calls = {}
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ):
        text = page.read_text(encoding="utf-8")
        for name, options in re.findall(r"\bci/bench/(\w+)\.py((?: [^`\n]+)?)[`\n]", text):
            calls.setdefault(name, set()).add(options.strip())
    return calls


def test_benches_take_the_options_that_pages_name(tmp_path, monkeypatch):
    """Those that read their options in a function ``parse``; none is run."""
    monkeypatch.syspath_prepend(ROOT / "ci" / "bench")
    monkeypatch.setenv("DPGB_DATA", str(tmp_path))
    read = []
    for name, calls in bench_calls().items():
        if not has_parse(name):
            continue
        # by its path: tests have a module of that name, too
        spec = importlib.util.spec_from_file_location(
            f"bench_{name}", ROOT / "ci" / "bench" / f"{name}.py"
        )
        bench = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, bench)
        spec.loader.exec_module(bench)
        parse = bench.parse
        for options in calls:
            words = shlex.split(options.replace("DIR", str(tmp_path)).replace("JSON", "run.json"))
            monkeypatch.setattr(sys, "argv", [name, *words])
            parse(*(words,) * len(inspect.signature(parse).parameters))
            read.append(name)
    assert {"scale", "utility", "papers", "before"} <= set(read)


def has_parse(name):
    text = (ROOT / "ci" / "bench" / f"{name}.py").read_text(encoding="utf-8")
    return "\ndef parse(" in text
