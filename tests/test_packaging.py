"""What is built of the project: a wheel and an sdist hold the package, all of it."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETUPTOOLS = 77  # by pyproject.toml
BUILD = "from setuptools.build_meta import *; build_sdist('out'); build_wheel('out')"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with an sdist and a wheel, built of a copy."""
    if int(version("setuptools").split(".")[0]) < SETUPTOOLS:
        pytest.skip(f"needs setuptools {SETUPTOOLS}: pip install '.[test]'")
    copy = tmp_path_factory.mktemp("copy")
    for name in ("dpgb_dask", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, copy)
    subprocess.run([sys.executable, "-P", "-c", BUILD], cwd=copy, check=True, capture_output=True)
    return copy / "out"


def package():
    """Files that run, or that tools read."""
    paths = (ROOT / "dpgb_dask").rglob("*")
    return {
        path.relative_to(ROOT).as_posix()
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_wheel_holds_the_package_alone(built):
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        said = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = wheel.read(said).decode()
    assert names == package()
    assert {"dpgb_dask/py.typed", "dpgb_dask/controller/ledger_server.sql"} <= names
    for line in ("License-Expression: Apache-2.0", "Requires-Python: >=3.11"):
        assert f"\n{line}\n" in metadata
    assert "## Fit your own data" in metadata  # the README


def test_an_sdist_holds_what_a_wheel_is_built_of(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        files = [member.name.split("/", 1)[1] for member in sdist if member.isfile()]
    beside = {name for name in files if not name.startswith(("dpgb_dask", "tests/test_"))}
    assert package() <= set(files)
    assert beside == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}


def test_all_files_that_name_the_version_name_the_same():
    text = {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in ("pyproject.toml", "CITATION.cff", "helm/dpgb-dask/Chart.yaml", "CHANGELOG.md")
    }
    declared = tomllib.loads(text["pyproject.toml"])["project"]["version"]
    assert f"\nversion: {declared}\n" in text["CITATION.cff"]
    assert f'\nappVersion: "{declared}"\n' in text["helm/dpgb-dask/Chart.yaml"]
    sections = re.findall(r"^## \[(.+?)\]", text["CHANGELOG.md"], re.MULTILINE)
    assert sections[:2] == ["Unreleased", declared]


def test_messages_and_pages_name_extras_that_there_are():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = []
    for paths, name in ((sorted((ROOT / "dpgb_dask").rglob("*.py")), "dpgb_dask"), (pages, ".")):
        for path in paths:
            text = path.read_text(encoding="utf-8")
            for own, listed in re.findall(r"(dpgb.dask|'\.)\[([a-z0-9,]+)\]", text):
                assert own.strip("'") == name, f"{path}: {own}[{listed}]"
                named += listed.split(",")
    assert {"interpret", "viz", "s3"} <= set(named) <= set(extras["optional-dependencies"])
