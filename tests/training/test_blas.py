"""BLAS libraries: one thread while a fit computes, and those that came with a later import are seen."""

import sys
import types

from threadpoolctl import threadpool_info, threadpool_limits

from dpgb_dask.training import blas


def threads():
    return [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]


def test_one_thread_meanwhile_and_as_many_as_before_afterwards():
    with threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        with blas.one_thread():
            assert set(threads()) == {1}
        assert threads() == before
    assert blas.names()


def test_libraries_are_looked_for_again_once_another_module_is_there(monkeypatch):
    blas.names()  # imports what it needs itself
    looked = []
    monkeypatch.setattr(
        blas, "ThreadpoolController", lambda: looked.append(1) or types.SimpleNamespace(info=list)
    )
    blas.names()
    assert not looked
    monkeypatch.setitem(sys.modules, "a_module_that_came_later", types.ModuleType("later"))
    blas.names()
    blas.names()
    assert looked == [1]
    blas._found.cache_clear()
