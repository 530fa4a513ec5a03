"""The pages of `docs/`: links lead somewhere, and what a theorem names as its code and its test is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PRIVACY = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
THEOREMS = re.findall(r"^## (P\d+\..*?)(?=^## |\Z)", PRIVACY, re.MULTILINE | re.DOTALL)
NAMED = sorted(set(re.findall(r"`((?:tests/|test_)[\w/]*(?:\.py)?(?:::\w+)?)`", PRIVACY)))


def anchors(page):
    """What a link into a page may name: ids that it sets, and its headings as web pages spell them."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return {*re.findall(r'<a id="([^"]+)">', text), *words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), f"{page.name} links to {path}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def test_every_theorem_names_its_code_and_its_test():
    assert len(THEOREMS) >= 11
    for theorem in THEOREMS:
        title = theorem.splitlines()[0]
        code = re.search(r"\*Code\*:\s(.*?)\*Tests?\*:\s(.*)", theorem, re.DOTALL)
        assert code is not None, title
        for path in re.findall(r"`([a-z_]+/[\w/]+\.py)", code[1]):
            assert (ROOT / "dpgb_dask" / path).is_file(), f"{title}: {path}"
        assert "`test" in code[2], title


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
