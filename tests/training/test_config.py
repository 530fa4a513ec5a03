"""Defaults of an Execution: a value that is no limit or no folder is refused before any charge."""

import math
import tempfile
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.errors import PlanError
from dpgb_dask.private.keeping.scratch import Scratch
from dpgb_dask.training.config import check_folder, execution

SCHEMA = Schema({"a": (0.0, 1.0)}, classes=[0, 1])
LIMITS = {
    1 << 30: 1 << 30,
    "1GiB": 1 << 30,
    "1.5 GiB": 3 << 29,
    "2000000000": 2 * 10**9,
    " 4 GB ": 4 * 10**9,
}
NO_LIMITS = (
    1.5, 2.0**31, math.nan, math.inf, 0, -1, True, False, "1.5", "1e9", "-1GiB", "nan", "GiB", "", "1GX", "0GiB",
    b"1GiB", [1 << 30], np.float64(2**31),
)  # fmt: skip


@pytest.fixture
def rows():
    x = np.random.default_rng(3).random((200, 1))
    return x, (x[:, 0] > 0.5).astype(int)


@pytest.mark.parametrize("limit", [*LIMITS, np.int64(1 << 30)])
def test_memory_limits(limit):
    assert execution(memory_limit=limit).memory_limit == LIMITS[limit]
    with dask.config.set({"dpgb-dask.memory-limit": limit}):
        assert execution().memory_limit == LIMITS[limit]


@pytest.mark.parametrize("limit", NO_LIMITS, ids=repr)
def test_what_is_no_memory_limit_is_refused(limit):
    with pytest.raises(PlanError, match=r"memory_limit=.* must be a whole number of bytes above 0"):
        execution(memory_limit=limit)
    with (
        dask.config.set({"dpgb-dask.memory-limit": limit}),
        pytest.raises(PlanError, match=r"memory_limit=.* must be a whole number of bytes above 0"),
    ):
        execution()


def test_a_fraction_in_the_environment_is_refused():
    with (
        dask.config.set(dask.config.collect_env({"DASK_DPGB_DASK__MEMORY_LIMIT": "1.5"})),
        pytest.raises(PlanError, match=r"memory_limit=1\.5"),
    ):
        execution()


def test_a_section_without_settings_is_none_and_a_value_is_refused():
    with dask.config.set({"dpgb-dask": None}):  # a section whose lines are all comments
        assert execution() == Execution()
    with (
        dask.config.set({"dpgb-dask": "4GiB"}),
        pytest.raises(PlanError, match="'4GiB' is no section of settings"),
    ):
        execution()


def test_folders_are_tried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "scratch").mkdir()
    for cache in (
        "auto",
        "memory",
        "disk",
        "./scratch",
        "~/scratch",
        str(tmp_path),
        "s3://bucket/codes.zarr",
        Path("scratch"),
        Path("~/scratch"),
    ):
        check_folder(execution(cache=cache).cache)
    (tmp_path / "file").write_text("")
    for cache in ("./nothing", "./file", "./file/scratch", "~nobody_of_that_name/scratch"):
        with pytest.raises(PlanError, match=f"cache='{cache}' cannot be written.*exists.*make it"):
            check_folder(cache)
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize("by_key", [False, True])
def test_a_folder_that_is_not_there_is_refused_before_any_charge(by_key, tmp_path, ledger, rows):
    place = str(tmp_path / "nothing")
    with dask.config.set({"dpgb-dask.cache": place} if by_key else {}):
        options = {} if by_key else {"cache": place}
        estimator = DPGBClassifier(schema=SCHEMA, ledger=ledger, account="people", **options)
        with pytest.raises(PlanError, match="cannot be written"):
            estimator.fit(*rows)
    assert ledger.account("people").spent == 0
    (tmp_path / "nothing").mkdir()
    DPGBClassifier(schema=SCHEMA, cache=place, n_estimators=1, on_few_rows="continue").fit(*rows)


def test_scratch_goes_to_the_temporary_directory_of_dask(tmp_path, ledger, rows, monkeypatch):
    folders = []
    made = Scratch.__init__
    monkeypatch.setattr(
        Scratch,
        "__init__",
        lambda self, folder: (made(self, folder), folders.append(self.folder))[0],
    )
    (tmp_path / "file").write_text("")
    private = {"schema": SCHEMA, "ledger": ledger, "account": "people"}
    with dask.config.set({"temporary-directory": str(tmp_path / "file" / "below")}):
        for cache in ("auto", "disk", str(tmp_path / "codes.zarr")):
            with pytest.raises(PlanError, match=r"temporary-directory='.*below' of dask\.config"):
                DPGBClassifier(**private, cache=cache).fit(*rows)
        check_folder("memory")
        check_folder(str(tmp_path))
    assert ledger.account("people").spent == 0
    quick = {"schema": SCHEMA, "n_estimators": 1, "on_few_rows": "continue", "cache": "disk"}
    for folder in (tmp_path / "scratch", None):
        with dask.config.set({"temporary-directory": folder}):
            DPGBClassifier(**quick).fit(*rows)
    assert {*folders} == {str(tmp_path / "scratch"), tempfile.gettempdir()}
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.usefixtures("client")
def test_a_folder_of_workers_is_not_looked_for_here(tmp_path, rows):
    x, y = rows
    lazy = da.from_array(x, chunks=(100, 1)), da.from_array(y, chunks=100)
    place = tmp_path / "of workers"
    options = {"cache": str(place), "n_estimators": 1, "on_few_rows": "continue"}
    DPGBClassifier(schema=SCHEMA, **options).fit(*lazy)
    (tmp_path / "file").write_text("")
    with dask.config.set({"temporary-directory": str(tmp_path / "file")}):
        DPGBClassifier(schema=SCHEMA, **{**options, "cache": "disk"}).fit(*lazy)
