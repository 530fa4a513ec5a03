"""Examples in docstrings run."""

import doctest
import importlib
from pathlib import Path

import dask
import pytest

import dpgb_dask

PACKAGE = Path(dpgb_dask.__file__).parent
LONG = {"dpgb_dask.estimators"}  # fits
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
        for name in WITH_EXAMPLES
    ],
)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with dask.config.set(scheduler="sync"):
        result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed
