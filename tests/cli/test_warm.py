"""`dpgb-dask warm`: a folder that one call fills, and in which the next one finds everything."""

import numba
import numpy as np
import pytest

from dpgb_dask.cli import main, warm
from dpgb_dask.kernels import cache, kernel

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="looks at compiled versions")


def made():
    """A group of one kernel, as if the process had just started."""

    @kernel
    def add(a):
        return a.sum()

    return {"sums": lambda: add(np.ones(2))}


@pytest.fixture
def one_group(monkeypatch):
    """One small kernel instead of all."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)  # `warm` sets it
    monkeypatch.setattr(warm, "warm", lambda names: [made()[name]() for name in names])
    monkeypatch.setattr(warm, "GROUPS", made())
    monkeypatch.setattr(warm, "_fit_made_up_rows", lambda: None)


@pytest.mark.usefixtures("one_group")
def test_the_second_call_compiles_nothing(tmp_path, capsys):
    assert not main(["warm", "--cache-dir", str(tmp_path)])
    assert "1 versions of kernels compiled, 1 kept in" in capsys.readouterr().out
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert len(kept) == 1
    assert not main(["warm", "--cache-dir", str(tmp_path)])
    assert "0 versions of kernels compiled, 1 kept in" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")} == kept


@pytest.mark.usefixtures("one_group")
def test_a_folder_that_cannot_be_written_to_is_one_clear_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cache, "is_writable", lambda _folder: False)
    assert main(["warm", "--cache-dir", str(tmp_path)])
    assert "--cache-dir" in capsys.readouterr().err
