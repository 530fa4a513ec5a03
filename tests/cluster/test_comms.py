"""Rounds over Dask's own comms: the same sums as in this process; if the tree has no answer, tasks give it."""

import asyncio
import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security
from private.cases import KINDS, model_of, opened, queries_of
from thinned import thinned
from waiting import LONGEST, comes_true

from cluster.moments import Moments
from cluster.test_tasks import CLUSTER, check_same, kill_one, local_sums, rounds_of
from dpgb_dask.errors import LostCodesError, PlanError
from dpgb_dask.private.answering.shards import Shard
from dpgb_dask.private.rounds import comms, worker_tasks
from dpgb_dask.private.rounds.comms import AnswerRounds, CommTree, is_slower, pays
from dpgb_dask.private.rounds.messages import lacks_parts

PASSED = ("count", "coarse", "fine", "target")  # answered by the survey, without a round


@pytest.fixture
def seen(monkeypatch):
    """For each round so far, whether it was answered over comms."""
    answers = []
    ask = CommTree.ask

    def spy(tree, shards, message):
        reply = ask(tree, shards, message)
        answers.append(reply is not None)
        return reply

    monkeypatch.setattr(CommTree, "ask", spy)
    return answers


def n_rounds(kind):
    return len([name for name in queries_of(kind, 2) if name not in PASSED])


def main_sums(rounds):
    return opened(rounds.ask(model_of("binary"), queries_of("binary", 2)["main"]))


@pytest.fixture(scope="module")
def expected():
    return local_sums("binary")[0]["main"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n_workers", "fan_out"),
    [(5, 2)] + [pytest.param(n, f, marks=pytest.mark.slow) for n, f in ((1, 8), (5, 1), (5, 8))],
)
def test_sums_are_the_same_as_in_this_process(kind, n_workers, fan_out, seen, monkeypatch):
    monkeypatch.setattr(comms, "FAN_OUT", fan_out)
    with LocalCluster(n_workers=n_workers, processes=False, **CLUSTER) as cluster, Client(cluster):
        rounds = rounds_of(kind, 100, backend="comms")
        check_same(rounds, kind)
        rounds.close()
    assert seen == [True] * n_rounds(kind)


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sums_are_the_same_with_threads_and_tls(processes, seen):
    with (
        LocalCluster(
            n_workers=3,
            threads_per_worker=2,
            processes=processes,
            protocol="tls://",
            security=Security.temporary(),
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        assert client.scheduler_info()["address"].startswith("tls://")
        rounds = rounds_of("binary", 100, backend="comms")
        check_same(rounds, "binary")
        rounds.close()
    assert seen == [True] * n_rounds("binary")


@pytest.mark.usefixtures("client")
def test_auto_goes_over_to_comms_where_many_rounds_are_left(seen, expected):
    few, many = rounds_of("binary", 500), rounds_of("binary", 500)
    many._n_left = 10**9
    for _ in range(5):
        for rounds in (few, many):
            np.testing.assert_array_equal(main_sums(rounds), expected)
    assert seen == [True] * (5 - comms.ROUNDS_SEEN)
    for rounds in (few, many):
        rounds.close()


@pytest.mark.usefixtures("client")
def test_auto_goes_back_to_tasks_where_comms_are_slower(seen, expected):
    rounds = rounds_of("binary", 500)
    rounds._n_left = 10**9
    rounds._overheads = [1e-6] * comms.ROUNDS_SEEN  # of tasks: no round over comms is as quick
    for _ in range(comms.ROUNDS_SEEN + 2):
        np.testing.assert_array_equal(main_sums(rounds), expected)
    assert seen == [True] * comms.ROUNDS_SEEN
    rounds.close()


def test_the_rule_of_auto():
    assert not pays(None, [0.02] * 10)
    assert not pays(10**6, [0.02] * (comms.ROUNDS_SEEN - 1))
    assert not pays(49, [0.02, 0.5, 0.03])
    assert pays(50, [0.02, 0.5, 0.03])
    assert is_slower([0.05, 0.06, 0.04], [0.03, 0.5, 0.5])
    assert not is_slower([0.05, 0.06, 0.02], [0.03, 0.5, 0.5])
    assert not is_slower([0.05, 0.06], [0.03, 0.5, 0.5])
    assert not is_slower([0.05, 0.06, 0.04], [])


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_worker_is_a_round_of_tasks_and_a_new_tree(processes, seen, expected):
    rounds = rounds_of("binary", 300, backend="comms")
    np.testing.assert_array_equal(main_sums(rounds), expected)
    kill_one(processes)
    for _ in range(10):
        np.testing.assert_array_equal(main_sums(rounds), expected)
        if seen[-1]:
            break
    rounds.close()
    assert seen[0]
    assert not seen[1]
    assert seen[-1]


@pytest.mark.slow
def test_several_shards_on_one_worker(client, seen, expected):
    rounds = rounds_of("binary", 300, backend="comms")
    main_sums(rounds)
    (worker, *_) = client.scheduler_info(n_workers=-1)["workers"]
    client.retire_workers([worker])
    for _ in range(3):
        np.testing.assert_array_equal(main_sums(rounds), expected)
    assert [len(keys) for _, keys in rounds._tree._shares] == [2]
    assert seen[-1]
    rounds.close()


@pytest.mark.usefixtures("client")
def test_a_shard_that_lost_its_codes_is_made_again(seen, expected, monkeypatch):
    rounds = rounds_of("binary", 300, backend="comms")
    main_sums(rounds)
    lose_codes(monkeypatch, rounds, 2)  # once for the tree, and once for the task asked next
    for _ in range(2):
        np.testing.assert_array_equal(main_sums(rounds), expected)
    assert seen == [True, False, True]
    rounds.close()


def lose_codes(monkeypatch, rounds, times):
    """Make one shard report lost codes the first few times that it is asked."""
    answer = Shard.answer
    left, lock = [times], threading.Lock()

    def lossy(shard, *args):
        with lock:
            if left[0] > 0 and shard.pieces[0] is rounds_first_piece(rounds):
                left[0] -= 1
                raise LostCodesError("gone")
        return answer(shard, *args)

    monkeypatch.setattr(Shard, "answer", lossy)


def rounds_first_piece(rounds):
    """The first piece of shard 0, on whichever worker holds it."""
    for worker in rounds.client.cluster.workers.values():
        for value in worker.data.values():
            if isinstance(value, worker_tasks.ResidentShard) and value.number == 0:
                return value.shard.pieces[0]
    raise AssertionError("no shard")


@pytest.mark.usefixtures("client")
def test_comms_that_never_answer_are_left_alone(seen, expected, monkeypatch):
    monkeypatch.setattr(AnswerRounds, "setup", lambda _plugin, **_: None)
    asked = []
    send = CommTree._send
    monkeypatch.setattr(CommTree, "_send", lambda tree, m: (asked.append(1), send(tree, m))[1])
    rounds = rounds_of("binary", 300, backend="comms")
    for _ in range(comms.MOST_FAILURES + 2):
        np.testing.assert_array_equal(main_sums(rounds), expected)
    assert not any(seen)
    assert len(asked) == comms.MOST_FAILURES
    rounds.close()


@pytest.mark.parametrize(("error", "answer"), [(lacks_parts(), []), (ValueError("SECRET"), None)])
def test_a_shard_that_lacks_parts_gives_another_answer_than_one_that_fails(
    error, answer, monkeypatch
):
    monkeypatch.setattr(comms, "_answer_all", Mock(side_effect=error))
    plugin, threads = AnswerRounds(), SimpleNamespace(nthreads=1)
    plugin._worker = SimpleNamespace(data={"shard": None}, state=threads)
    assert asyncio.run(plugin.answer_round([("tcp://worker", ("shard",))], b"")) == answer


@pytest.mark.usefixtures("client")
def test_an_error_of_ours_reaches_the_caller():
    rounds = rounds_of("binary", backend="comms")
    with pytest.raises(PlanError, match="n_scores=3"):
        rounds.ask(model_of("binary"), queries_of("multiclass", 2)["main"])
    rounds.close()


class Hold:
    """Makes an answer wait until it may go on."""

    def __init__(self, monkeypatch):
        self.begun, self.go_on = threading.Event(), threading.Event()
        answer = comms.answer

        def held(*args):
            self.begun.set()
            assert self.go_on.wait(LONGEST)
            return answer(*args)

        monkeypatch.setattr(comms, "answer", held)


def test_a_long_answer_does_not_stop_a_workers_heart(client, expected, monkeypatch):
    rounds = rounds_of("binary", backend="comms")
    main_sums(rounds)
    hold = Hold(monkeypatch)

    def tick():
        assert hold.begun.wait(LONGEST)
        (worker, *_) = client.cluster.workers.values()
        worker.loop.add_callback(hold.go_on.set)

    thread = threading.Thread(target=tick)
    thread.start()
    np.testing.assert_array_equal(main_sums(rounds), expected)
    thread.join()
    rounds.close()


def test_a_worker_that_hangs_holds_a_round_until_dask_gives_it_up(
    client, seen, expected, monkeypatch
):
    monkeypatch.setattr(comms, "LOOK", 0.1)
    rounds = rounds_of("binary", backend="comms")
    main_sums(rounds)
    (address, _), *_ = rounds._tree._shares
    hold = Hold(monkeypatch)
    scheduler = client.cluster.scheduler

    def give_up():
        assert hold.begun.wait(LONGEST)
        time.sleep(0.5)
        scheduler.loop.add_callback(
            scheduler.remove_worker, address=address, stimulus_id="test", close=False
        )

    thread = threading.Thread(target=give_up)
    thread.start()
    np.testing.assert_array_equal(main_sums(rounds), expected)
    thread.join()
    assert seen == [True, False]
    hold.go_on.set()
    rounds.close()


@pytest.mark.parametrize("long", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_cluster_is_not_idle_while_rounds_go_over_comms(long, seen, expected, monkeypatch):
    """An idle limit ends a scheduler that has had no task for so long: a task comes now and then."""
    monkeypatch.setattr(comms, "LOOK", 0.1)
    monkeypatch.setattr(comms, "AWAKE", 0.1)
    with (
        LocalCluster(n_workers=1, processes=False, **CLUSTER) as cluster,
        Client(cluster),
        Moments(cluster) as moments,
    ):
        rounds = rounds_of("binary", backend="comms")
        main_sums(rounds)

        def is_awake():
            return moments.seen.get(("dpgb-awake", "processing", "memory"), 0) >= 3

        moments.seen.clear()
        if long:
            hold = Hold(monkeypatch)

            def watch():
                assert hold.begun.wait(LONGEST)
                told = comes_true(is_awake)
                hold.go_on.set()
                return told

            with ThreadPoolExecutor(1) as pool:
                told = pool.submit(watch)
                np.testing.assert_array_equal(main_sums(rounds), expected)
            assert told.result()
        else:
            cluster.scheduler.idle_timeout = 3.0  # of Dask itself
            end = time.monotonic() + 7
            while time.monotonic() < end:
                np.testing.assert_array_equal(main_sums(rounds), expected)
                time.sleep(0.01)
            assert is_awake()
        rounds.close()
    assert all(seen)


# ---- what stays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", thinned(["tasks", "comms"], every=2))
def test_the_scheduler_holds_no_more_tasks_after_many_rounds(client, backend):
    rounds = rounds_of("binary", 300, backend=backend)
    main_sums(rounds)
    held = n_tasks(client)
    assert held >= 2
    for _ in range(40):
        main_sums(rounds)
    assert comes_true(lambda: n_tasks(client) <= held)  # what was released goes sooner or later
    rounds.close()


def n_tasks(client):
    return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


@pytest.mark.usefixtures("client")
def test_no_log_holds_sums(caplog, expected):
    rounds = rounds_of("binary", backend="comms")
    with caplog.at_level(logging.DEBUG, logger="distributed"):
        main_sums(rounds)
    held = caplog.text
    assert comms.OP in held  # the messages of rounds are logged
    for part in (expected.tobytes(), *(value.tobytes() for value in expected if value > 255)):
        assert repr(part)[2:-1] not in held
    # no times, some of whose digits may be a sum's
    told = set(re.findall(r"(?<![\d.])\d+(?![\d.])", held))
    assert told.isdisjoint(str(value) for value in expected if value > 10**6)
    rounds.close()
