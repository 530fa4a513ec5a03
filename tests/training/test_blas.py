"""BLAS libraries: one thread while a fit computes, and those that came with a later import are seen."""

import os
import sys
import threading
import types

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dpgb_dask import DPGBClassifier
from dpgb_dask.components.auto.start import Start
from dpgb_dask.recipes import RECIPES
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


def test_fits_that_overlap_compute_on_one_thread_and_leave_as_many_as_before(
    features, labels, binary_schema, monkeypatch
):
    """The first to begin ends while the second runs; the stages of the second see one thread all the same."""
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    seen, update = [], Start.update

    def watched(*args):
        seen.append(set(threads()))
        return update(*args)

    monkeypatch.setattr(Start, "update", watched)

    def fit(told, waited):
        def on_progress(*_):
            told.set()
            assert waited.wait(60)

        plan = RECIPES["auto"].brief()
        DPGBClassifier(schema=binary_schema, recipe=plan, callbacks=[on_progress]).fit(
            features, labels
        )

    def run_first():
        fit(first_is_in, second_is_in)
        first_is_out.set()

    with threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        first = threading.Thread(target=run_first)
        first.start()
        assert first_is_in.wait(60)
        second = threading.Thread(target=fit, args=(second_is_in, first_is_out))
        second.start()
        first.join()
        second.join()
        assert threads() == before
    assert seen
    assert all(counts == {1} for counts in seen)


def test_an_interrupt_while_threads_are_put_back_comes_afterwards():
    class Library:
        def __init__(self, interrupts):
            self.interrupts, self.num_threads = interrupts, 1

        def set_num_threads(self, n_threads):
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            self.num_threads = n_threads

    libraries = [Library(0), Library(2), Library(1)]
    with pytest.raises(KeyboardInterrupt):
        blas._put_back(libraries, [4, 3, 2])
    assert [library.num_threads for library in libraries] == [4, 3, 2]


def test_a_child_has_as_many_threads_as_before_and_a_free_lock():
    with threadpool_limits(limits=2, user_api="blas"):
        before, inside, done = threads(), threading.Event(), threading.Event()

        def compute():
            with blas.one_thread():
                inside.set()
                done.wait(0.3)

        other = threading.Thread(target=compute)
        other.start()
        assert inside.wait(60)
        child = os.fork()
        if child == 0:
            with blas.one_thread():
                inner = threads()
            os._exit(0 if threads() == before and set(inner) == {1} else 1)
        assert os.waitpid(child, 0)[1] == 0
        other.join()


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
