"""Compiled kernels: one process compiles and others read; folders that cannot be written to; other sources."""

import logging
import os
import pwd
import subprocess
import sys
import textwrap
from pathlib import Path

import numba
import numpy as np
import pytest

from dpgb_dask.kernels import cache, kernel
from dpgb_dask.kernels.warming import GROUPS

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="looks at compiled versions")

COUNT = """
import sys, time
import numba.core.event as event
from dpgb_dask.kernels import gradient
import numpy as np

class Compiled(event.Listener):
    n = 0
    def on_start(self, event):
        Compiled.n += 1
    def on_end(self, event):
        pass

event.register("numba:compile", Compiled())
out = np.ones(3, np.int64)
gradient.weigh(np.full(3, 2, np.int32), out)
assert out.tolist() == [2, 2, 2]
print(Compiled.n)
"""


def start(folder, code=COUNT, **environment):
    """Start a process that compiles one kernel, unless it is kept in the folder, and prints how many it compiled."""
    own = {**os.environ, "NUMBA_CACHE_DIR": str(folder), **environment}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(code)],
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return out.strip()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A folder for kernels, given as `NUMBA_CACHE_DIR` gives it."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def made():
    """A new kernel, as if the process had just started."""

    @kernel
    def double(a, out):
        for i in range(out.shape[0]):
            out[i] = 2 * a[i]

    return double


def call(function):
    out = np.zeros(3, np.int64)
    function(np.arange(3), out)
    assert out.tolist() == [0, 2, 4]
    return sum(function.stats.cache_misses.values())


@pytest.mark.slow
def test_of_processes_that_start_together_one_compiles_and_the_others_read(tmp_path):
    processes = [start(tmp_path) for _ in range(3)]
    assert sorted(map(end, processes)) == ["0", "0", "1"]


@pytest.mark.slow
def test_a_process_that_dies_while_it_compiles_lets_the_next_one_go_on(tmp_path):
    code = """
    import os
    from dpgb_dask.kernels import cache, gradient
    import numpy as np

    cache.KernelCache.save_overload = lambda *_: os.kill(os.getpid(), 9)
    gradient.weigh(np.full(3, 2, np.int32), np.ones(3, np.int64))
    """
    killed = start(tmp_path, code)
    killed.communicate(timeout=300)
    assert killed.returncode == -9
    assert list(tmp_path.rglob("*.lock"))
    assert end(start(tmp_path)) == "1"


@pytest.mark.parametrize(
    "names",
    [("hashes", "values"), pytest.param(tuple(GROUPS), marks=pytest.mark.slow)],
    ids=["two", "all"],
)
def test_kept_kernels_are_loaded_and_run_without_what_numba_needs_to_compile(names):
    place = numba.config.CACHE_DIR
    # all are kept then; in this process some may have been compiled for another folder
    warm = f"from dpgb_dask.kernels import warming; warming.warm({names})"
    end(start("", warm, NUMBA_CACHE_DIR=place))
    code = """
    from numba.core.base import BaseContext
    from dpgb_dask.kernels import warming

    def refuse(_):
        raise AssertionError

    BaseContext.refresh = refuse
    """
    assert not end(start("", textwrap.dedent(code) + warm, NUMBA_CACHE_DIR=place))


@pytest.mark.usefixtures("own_cache")
def test_a_folder_that_can_only_be_read_is_read(monkeypatch, caplog):
    assert call(made()) == 1
    cache._say_once.cache_clear()
    monkeypatch.setattr(cache, "is_writable", lambda _folder: False)
    with caplog.at_level(logging.INFO, "dpgb_dask"):
        assert call(made()) == 0
    assert not caplog.records


@pytest.mark.usefixtures("own_cache")
def test_what_rows_need_is_compiled_without_a_word(monkeypatch, caplog):
    cache._say_once.cache_clear()
    told = []
    monkeypatch.setattr(cache, "LISTENERS", [told.append])
    with caplog.at_level(logging.INFO, "dpgb_dask"):
        with cache.quietly(), cache.quietly():
            assert call(made()) == 1
        assert not caplog.records + told
        made()(np.arange(3, dtype=np.int32), np.zeros(3, np.int64))
    assert len(caplog.records) == len(told) == 1


def test_without_a_folder_kernels_are_compiled_in_memory_and_that_is_said_once(
    own_cache, monkeypatch, caplog
):
    cache._say_once.cache_clear()
    cache._where.cache_clear()
    monkeypatch.setattr(cache, "is_writable", lambda _folder: False)
    with caplog.at_level(logging.INFO, "dpgb_dask"):
        assert call(made()) == call(made()) == 1
    (warned,) = (r for r in caplog.records if r.levelno == logging.WARNING)
    assert "NUMBA_CACHE_DIR" in warned.message
    assert "dpgb-dask warm" in warned.message
    assert not list(own_cache.rglob("*.nb?"))


@pytest.mark.parametrize("home", [{"XDG_CACHE_HOME": "caches"}, {"HOME": None}])
def test_without_a_home_no_folder_depends_on_where_a_process_stands(home, monkeypatch):
    """A user of a container may have neither HOME nor a name."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    for name, value in home.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    assert all(folder.is_absolute() for folder in cache._own_folders.__wrapped__())


def test_what_is_kept_from_other_sources_or_damaged_is_compiled_again(own_cache, monkeypatch):
    assert call(made()) == 1
    assert call(made()) == 0
    for path in own_cache.rglob("*.nbc"):
        path.write_bytes(b"cut off")
    assert call(made()) == 1
    assert call(made()) == 0
    # a constant or an inner kernel of another file is part of the machine code
    sources = cache._sources_of
    here = str(Path(__file__))
    monkeypatch.setattr(cache, "_sources_of", lambda function: (*sources(function), here))
    assert call(made()) == 1


def test_a_kernel_is_compared_with_every_file_that_it_may_hold_parts_of():
    from dpgb_dask.controller import choices  # noqa: PLC0415

    names = {Path(name).name for name in cache._sources_of(choices._fill_choices.py_func)}
    assert {"choices.py", "laplace.py", "histogram.py", "gradients.py"} <= names


@pytest.mark.usefixtures("own_cache")
def test_a_kernel_keeps_its_turn_while_a_kernel_that_it_calls_is_compiled(monkeypatch):
    held = []  # after each kernel that was kept: whether another process still waits

    def save(self, signature, compiled):
        keep(self, signature, compiled)
        held.append((self._function.__name__, cache._TURN._file is not None))

    keep = cache.KernelCache.save_overload
    monkeypatch.setattr(cache.KernelCache, "save_overload", save)

    @kernel
    def twice(x):
        return 2 * x

    @kernel
    def outer(a, out):
        for i in range(out.shape[0]):
            out[i] = twice(a[i])

    assert call(outer) == 1
    assert held == [("twice", True), ("outer", False)]


@pytest.mark.usefixtures("own_cache")
def test_a_file_system_without_locks_is_no_error(monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(cache.fcntl, "lockf", refuse)
    assert call(made()) == 1
    assert call(made()) == 0


@pytest.mark.usefixtures("own_cache")
def test_a_full_disk_is_no_error(monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache._Store, "save_overload", full)
    assert call(made()) == 1
    assert "No space left" in caplog.text
