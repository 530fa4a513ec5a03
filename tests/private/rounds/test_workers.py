"""What a fit asks of a cluster, and how often it looks, without one."""

from types import SimpleNamespace

import pytest

from dpgb_dask.private.rounds import waiting, workers


@pytest.mark.parametrize(
    ("running", "executing", "paused"), [({}, 0, True), ({}, 1, False), ({"tcp://a": 2}, 0, False)]
)
def test_workers_are_paused_if_none_runs_and_none_is_at_work(running, executing, paused):
    told = {"task_counts": {"executing": executing}} if executing else {}
    answers = {
        "ncores_running": running,
        "identity": {"workers": {"tcp://a": {"metrics": told}, "tcp://b": {}}},
    }
    assert workers.all_paused(answers.get) is paused


def test_the_worker_of_most_threads_counts(monkeypatch):
    client = SimpleNamespace(
        get_versions={"workers": {"tcp://a": {"packages": {}}}},
        nthreads={"tcp://a": 1, "tcp://b": 4, "tcp://c": 2},
        scheduler=SimpleNamespace(ncores_running=1),
    )
    monkeypatch.setattr(workers, "_asked", lambda _client, _seconds, answer, **_: answer)
    monkeypatch.setattr(workers, "in_words", lambda *_: workers.OWN)
    assert workers._check(client, 1.0) == 4


@pytest.mark.parametrize(("worker_wait", "seconds"), [(1.0, 0.5), (600.0, waiting.LOOK)])
def test_a_wait_is_looked_into_at_least_twice(worker_wait, seconds):
    client = SimpleNamespace(scheduler=None, _scheduler_identity={})
    assert waiting.Waiting(client, worker_wait)._pulse == seconds
