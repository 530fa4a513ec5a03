"""The pages of `docs/`: links lead somewhere, citations and theorems name each other, and what they name exists."""

import ast
import inspect
import re
import sys
import threading
from functools import cache
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

import dpgb_dask
from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.components.auto.posterior import gradient_of
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.grid import FINE, Grid
from dpgb_dask.encoding.codes import cells_of, encode_target, read_values
from dpgb_dask.kernels import warming
from dpgb_dask.losses import TABLE_SIZE
from dpgb_dask.private.rounds import tasks, worker_tasks
from dpgb_dask.recipes import AUTO
from dpgb_dask.testing import SeededNoise
from dpgb_dask.values import MISSING_WORDS

ROOT = Path(__file__).parents[1]
PACKAGE = Path(dpgb_dask.__file__).parent  # the installed one
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
SOURCES = [
    path
    for folder in ("dpgb_dask", "ci", "tests", ".ci")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix in (".py", ".md", ".sh", ".txt", "") and path.name != "run"
] + [ROOT / ".ci" / "run"]
LINK = re.compile(r"\]\(([^)\s]+)\)")
# the one form of a citation, as `docs/privacy.md P4` or `docs/design.md §3`, also over the end of a line
CITATION = re.compile(r"docs/([\w-]+\.md),?[\s#]+(P\d+|§\d+)")
FOREIGN = re.compile(r"\bnotes/[a-z]|\bDESIGN\b|\bSTYLE\b(?!\.md)|docs/[\w-]+\.md,? section")
PRIVACY = (DOCS / "privacy.md").read_text(encoding="utf-8")
THEOREMS = {
    theorem.split(".")[0]: theorem
    for theorem in re.findall(
        r"^## (P\d+\..*?)(?=^## |^<a id|\Z)", PRIVACY, re.MULTILINE | re.DOTALL
    )
}
NAMED = sorted(set(re.findall(r"`((?:tests/|test_)[\w/]*(?:\.py)?(?:::\w+)?)`", PRIVACY)))


def anchors(page):
    """What a link into a page may name: ids that it sets, and its headings as web pages spell them."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return {*re.findall(r'<a id="([^"]+)">', text), *words}


def citations():
    """All (source, page, section) that stand in code, tests and scripts."""
    for source in SOURCES:
        for page, section in CITATION.findall(source.read_text(encoding="utf-8")):
            yield source.relative_to(ROOT), page, section


def sections(page):
    """The numbers of a page's sections, as citations write them."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^## (P?\d+)\.", text, re.MULTILINE)
    return {number if number.startswith("P") else f"§{number}" for number in found}


def code_of(theorem):
    """What a theorem names as its code: (path, name or None)."""
    code = re.search(r"\*Code\*:\s(.*?)\*Tests?\*:\s", theorem, re.DOTALL)
    assert code is not None, theorem.splitlines()[0]
    return re.findall(r"`([a-z_]+(?:/\w+)*\.py)(?:::(\w+))?`", code[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), f"{page.name} links to {path}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def test_every_citation_leads_to_a_section():
    found = list(citations())
    assert len(found) > 40
    for source, page, section in found:
        assert (DOCS / page).is_file(), f"{source} cites docs/{page}"
        assert section in sections(page), f"{source} cites docs/{page} {section}"


def test_nothing_is_cited_that_a_reader_does_not_have():
    for source in SOURCES:
        found = FOREIGN.search(source.read_text(encoding="utf-8"))
        assert found is None or source == Path(__file__), f"{source.relative_to(ROOT)}: {found[0]}"


def cited_theorems():
    """All (theorem, path, name) of the package: what cites a theorem; no name for a module's own text."""
    for file in sorted((ROOT / "dpgb_dask").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        citations = [*CITATION.finditer(text)]
        parts = ast.parse(text).body if citations else []
        for found in citations:
            line = text.count("\n", 0, found.start()) + 1
            around = (part for part in parts if part.lineno <= line <= part.end_lineno)
            names = [name for part in around for name in names_of(part)]
            if found[1] == "privacy.md":
                path = file.relative_to(ROOT / "dpgb_dask").as_posix()
                yield found[2], path, names[0] if names else ""


def names_of(part):
    """Return what a statement of a module defines."""
    targets = getattr(part, "targets", [getattr(part, "target", part)])
    return [name for t in targets if (name := getattr(t, "name", getattr(t, "id", "")))]


def test_theorems_and_the_code_that_cites_them_name_each_other():
    named = {
        (number, path, name)
        for number, theorem in THEOREMS.items()
        for path, name in code_of(theorem)
    }
    cited = set(cited_theorems())
    assert named - cited == set(), (
        "is named in docs/privacy.md as a theorem's code, and does not cite it"
    )
    assert cited - named == set(), "cites a theorem of docs/privacy.md that does not name it"


@cache
def all_names_in(file):
    """Return what a module defines or names anywhere."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {getattr(node, "name", getattr(node, "id", None)) for node in ast.walk(tree)}


def test_every_theorem_names_its_code_and_its_test():
    assert len(THEOREMS) >= 13
    for theorem in THEOREMS.values():
        title = theorem.splitlines()[0]
        for path, name in code_of(theorem):
            file = ROOT / "dpgb_dask" / path
            assert file.is_file(), f"{title}: {path}"
            assert not name or name in all_names_in(file), f"{title}: {path}::{name}"
        assert "`test" in theorem.partition("*Tests*")[2], title


@pytest.mark.parametrize("named", NAMED)
def test_tests_that_theorems_name_exist(named):
    path, _, function = named.rpartition("::") if "::" in named else (named, "", "")
    if named.startswith("test_"):  # another one of a file that is named before it
        path, function = "", named
    files = [ROOT / path] if path else (ROOT / "tests").rglob("test_*.py")
    assert not path or (ROOT / path).exists(), path
    found = [
        f
        for f in files
        if f.is_file() and re.search(rf"^def {function}\b", f.read_text(), re.MULTILINE)
    ]
    assert not function or found, named


def test_every_parameter_of_the_estimators_stands_beside_those_of_others():
    table = (DOCS / "parameters.md").read_text(encoding="utf-8").split("\n\n")[2]
    told = [
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert sorted(told) == sorted(
        [*inspect.signature(DPGBClassifier).parameters, "sample_weight", "fit"]
    )


def test_the_table_of_the_code_names_every_folder_and_module():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| looking for … |")[1].split("\n\n")[0]
    named = {ROOT / "dpgb_dask" / path for path in re.findall(r"`([\w/]+\.py)`", table)}
    there = set((ROOT / "dpgb_dask").rglob("*.py"))
    assert named - there == set(), "is named, and not there"
    told = named | {folder for path in named for folder in path.parents}
    folders = {path.parent for path in there}
    top = {path for path in there if path.parent.name == "dpgb_dask"}
    assert (folders | top) - told == set(), "is not in the table"


# of the private side, called by such a fit, and given no row's values: structure, tasks, messages, limits of memory
WITHOUT_ROWS = {
    "encoding/frames.py",
    "encoding/kinds.py",
    "graph_parts.py",
    "kernels/__init__.py",
    "kernels/byte_tables.py",
    "kernels/cache.py",
    "kernels/nested.py",
    "kernels/posterior.py",
    "kernels/tridiagonal.py",
    "private/reading/graph_fusion.py",
    "private/reading/load_lock.py",
    "private/reading/parquet_files.py",
    "private/reading/parsers.py",
    "private/rounds/__init__.py",
    "private/rounds/messages.py",
    "private/rounds/packing.py",
    "private/rounds/waiting.py",
    "private/rounds/workers.py",
    "warning_filters.py",
}


def test_one_rows_way_passes_the_files_it_names(tmp_path, monkeypatch):
    """A fit on a cluster in this process calls a function of each file of the table, and of no other with the row."""
    section = (DOCS / "design.md").read_text(encoding="utf-8").split("## 9. ")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \|", section, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert 18 <= len(rows) <= 23
    features = {"age": Numeric(17, 90, integer=True), "job": ["office", "field", "none"]}
    schema = Schema(features, classes=[0, 1], target="high_income")
    people = pd.DataFrame({"age": np.arange(17, 77), "job": ["field", "none", "office"] * 20})
    people["high_income"] = (people["age"] > 40).astype(int)
    row = people[people["age"] == 41]
    age, job = cells_of(read_values(row[["age", "job"]], schema), Grid.of(schema, FINE))[:, 0]
    label = encode_target(row["high_income"], schema)[0][0]
    assert (row["job"].item(), label) == ("field", 1)
    assert f"cell {age} of the age, one for each year; cell {job} of the job" in section
    looked_up = int(gradient_of("binary", 0.5, 2).table[label, TABLE_SIZE // 2])
    g, h = looked_up >> 32, looked_up & 0xFFFFFFFF
    assert f"at score 0 and label {label}, −{-g:,} and {h:,} steps" in section
    called = set()

    def note(frame, event, _):
        if event == "call":
            called.add(frame.f_code.co_filename)

    frame = dd.from_pandas(people, npartitions=2)
    settings = {"noise": SeededNoise(0), "on_few_rows": "continue", "recipe": AUTO.brief()}
    model = DPGBClassifier(schema=schema, epsilon=1, delta=1e-6, **settings)
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster),
    ):
        # workers call every kernel once: here before the profiler, which records the rows' way alone
        warming.warm()
        monkeypatch.setattr(worker_tasks, "warm", lambda _names: None)
        monkeypatch.setattr(tasks, "warm", lambda _names: None)
        threading.setprofile(note)  # of threads that start from here on
        sys.setprofile(note)
        try:
            model.fit(frame[["age", "job"]], frame["high_income"])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    for _, path in rows:
        assert str(PACKAGE / path) in called, path
    sides = [PACKAGE / side for side in ("encoding", "kernels", "private")]
    passed = {
        Path(name).relative_to(PACKAGE).as_posix()
        for name in called
        if any(side in Path(name).parents for side in sides)
    }
    named = set(re.findall(r"`([\w/]+\.py)`", section))
    assert passed - named - WITHOUT_ROWS == set(), "is passed, and not named"
    assert all((PACKAGE / path).is_file() for path in named | WITHOUT_ROWS)


def test_the_format_of_model_files_names_every_word_for_a_missing_value():
    text = (DOCS / "model-format.md").read_text(encoding="utf-8").replace("\n", " ")
    told = re.search(r"null, NaN and these texts are missing: (.*?)\. A text", text)[1]
    assert set(re.findall(r'"([^"]*)"', told)) == MISSING_WORDS
