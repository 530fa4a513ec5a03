"""Faults of a cluster in the middle of a fit: the same model, bit for bit, and one charge; or an error and a resume.

Each cell of the matrix records what it saw, as the property ``saw`` of its test result.
"""

import errno
import os
import pickle
import signal
import threading
import time
from itertools import product
from pathlib import Path
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import CancelledError, Client, LocalCluster, Status, futures_of, wait
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError
from private.cases import KEY, model_of, opened, queries_of, rows_of, shape_of
from small_fits import FIT_ID, SETTINGS, chunked, estimator, fit, ledger_in
from thinned import one_of_each, thinned
from waiting import LONGEST, comes_true, pause

from cluster.test_tasks import CLUSTER, ask_all, local_sums, rounds_of
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.controller.accounting import total_price
from dpgb_dask.errors import ChunkError, ClusterError, LostCodesError, ScratchError, ShardError
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.rows import failed_to_load
from dpgb_dask.private.rounds import open_rounds, tasks, waiting, worker_tasks
from dpgb_dask.private.rounds.messages import Message, Sender
from dpgb_dask.private.rounds.worker_tasks import Encoding, ResidentShard, make_shard
from dpgb_dask.private.rounds.workers import check_workers

# Dask leaves the socket of a scheduler that is gone to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

RECIPES = tuple(SETTINGS)
BACKENDS = ("tasks", "comms")
NEWTON, EBM = ("fdp-tr-newton", "comms"), ("dp-ebm", "tasks")  # of auto each cell takes seconds
IN_PROCESS = {"processes": False, **CLUSTER}
PRICE = total_price(2.0, 1e-6)
AT = {
    "auto": 4,
    "fdp-tr-newton": 1,
    "dp-ebm": 3,
}  # rounds before a fault: by then shards exist, and are asked again


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The model file of each recipe without a cluster or a fault."""
    models = {}

    def of(recipe):
        if recipe not in models:
            folder = tmp_path_factory.mktemp("undisturbed")
            fit(folder, recipe, lazy=True)
            models[recipe] = (folder / "model.json").read_bytes()
        return models[recipe]

    return of


def all_cells(quick):
    marks = {quick: ()}
    return [
        pytest.param(*cell, marks=marks.get(cell, pytest.mark.slow))
        for cell in product(RECIPES, BACKENDS)
    ]


class Fault:
    """Calls ``happen`` once, after some rounds of a fit."""

    def __init__(self, recipe, happen):
        self.at, self.happen, self.rounds, self.seen = AT[recipe], happen, 0, None

    def __call__(self, _label, done, _total):
        self.rounds = done
        if done == self.at:
            self.seen = self.happen()


def disturbed(folder, recipe, backend, *faults, **settings):
    config = {"backend": backend, **settings}
    with dask.config.set({f"dpgb-dask.{key}": value for key, value in config.items()}):
        fit(folder, recipe, lazy=True, callbacks=faults)


def check(folder, model, fault, record_property):
    """Check that the model has the same bits and there is one charge; record what was seen."""
    assert fault.seen is not None
    assert fault.rounds > fault.at
    assert (folder / "model.json").read_bytes() == model
    tell_charge(folder, f"{fault.seen} after round {fault.at} of {fault.rounds}", record_property)


def tell_charge(folder, saw, record_property):
    ledger = ledger_in(folder)
    ledger.verify()
    kinds = [entry.kind for entry in ledger.history("people") if entry.fit_id]
    assert kinds.count("RESERVED") == 1
    assert ledger.account("people").spent == PRICE
    saw = f"{saw}; same model file; 1 charge"
    record_property("saw", saw)


def check_resumable(folder, error, kind):
    """Check that the error came after one charge, and says how to go on."""
    assert isinstance(error, kind)
    assert any(f"resume='{FIT_ID}'" in note for note in error.__notes__)
    assert ledger_in(folder).account("people").spent == PRICE


# ---- the matrix ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("recipe", "backend"), all_cells(NEWTON))
def test_kill_a_worker(recipe, backend, processes, undisturbed, tmp_path, record_property):
    def kill():
        victim = sorted(processes.run(os.getpid).items())[0]
        os.kill(victim[1], signal.SIGKILL)
        return f"worker {victim[0]} killed"

    fault = Fault(recipe, kill)
    disturbed(tmp_path, recipe, backend, fault)
    check(tmp_path, undisturbed(recipe), fault, record_property)


@pytest.mark.parametrize(("recipe", "backend"), all_cells(EBM))
def test_late_worker(recipe, backend, undisturbed, tmp_path, record_property):
    with LocalCluster(n_workers=1, **IN_PROCESS) as cluster, Client(cluster) as client:

        def come():
            cluster.scale(2)
            client.wait_for_workers(2, timeout=LONGEST)
            return "a second worker came"

        fault = Fault(recipe, come)
        disturbed(tmp_path, recipe, backend, fault)
    check(tmp_path, undisturbed(recipe), fault, record_property)


@pytest.mark.parametrize(("recipe", "backend"), all_cells(NEWTON))
def test_damaged_scratch(recipe, backend, undisturbed, tmp_path, record_property, monkeypatch):
    encoded = counted(monkeypatch)
    scratch = tmp_path / "scratch"
    with on_disk(scratch) as cluster, Client(cluster):

        def damage():
            files = open_files(scratch)
            assert files
            for file in files:
                size = os.fstat(file).st_size
                os.pwrite(file, b"\x55" * size, 0)
            encoded.clear()
            return f"{len(files)} scratch file(s) overwritten"

        fault = Fault(recipe, damage)
        disturbed(tmp_path, recipe, backend, fault, cache="disk")
        assert encoded  # chunks were read again from the source
        fault.seen += f", {len(encoded)} chunks encoded again"
    check(tmp_path, undisturbed(recipe), fault, record_property)


def on_disk(folder):
    """A cluster whose workers have their scratch in the folder."""
    return LocalCluster(n_workers=2, local_directory=str(folder), **IN_PROCESS)


def counted(monkeypatch):
    """Return a list that collects the numbers of encoded chunks."""
    numbers = []
    encode = Encoding.encode

    def spy(job, rows, number):
        numbers.append(number)
        return encode(job, rows, number)

    monkeypatch.setattr(Encoding, "encode", spy)
    return numbers


def open_files(folder):
    """This process's descriptors of files in a folder that have no name, as scratch files do."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            name = os.readlink(entry)
            if name.startswith(f"{folder}/") and name.endswith("(deleted)"):
                found.append(int(entry.name))
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize(("recipe", "backend"), all_cells(EBM))
def test_full_disk(recipe, backend, undisturbed, tmp_path, record_property):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with on_disk(tmp_path / "scratch") as cluster, Client(cluster):
        with (
            mock.patch.object(os, "pwritev", side_effect=full),
            pytest.raises(ScratchError) as caught,
        ):
            disturbed(tmp_path, recipe, backend, cache="disk")
        check_resumable(tmp_path, caught.value, ScratchError)
        assert not (tmp_path / "model.json").exists()
        with dask.config.set({"dpgb-dask.cache": "disk", "dpgb-dask.backend": backend}):
            fit(tmp_path, recipe, lazy=True, resume=FIT_ID)
    assert (tmp_path / "model.json").read_bytes() == undisturbed(recipe)
    tell_charge(tmp_path, f"full disk: {caught.value} Resumed", record_property)


@pytest.mark.parametrize(("recipe", "backend"), all_cells(EBM))
def test_scheduler_restart(recipe, backend, undisturbed, tmp_path, record_property):
    # below the ports that systems give to whoever asks for any, so that nobody takes it while it is free
    options = {"protocol": "tcp", "scheduler_port": 20_000 + os.getpid() % 10_000, **IN_PROCESS}
    clusters = [LocalCluster(n_workers=2, **options)]

    def restart():
        clusters.pop().close()
        clusters.append(LocalCluster(n_workers=2, **options))
        return "the scheduler restarted"

    fault = Fault(recipe, restart)
    with Client(clusters[0].scheduler_address), pytest.raises(ClusterError) as caught:
        disturbed(tmp_path, recipe, backend, fault)
    check_resumable(tmp_path, caught.value, ClusterError)
    assert "went away, or was restarted" in str(caught.value)
    assert fault.rounds == fault.at
    with clusters[0], Client(clusters[0]), dask.config.set({"dpgb-dask.backend": backend}):
        fit(tmp_path, recipe, lazy=True, resume=FIT_ID)
    assert (tmp_path / "model.json").read_bytes() == undisturbed(recipe)
    tell_charge(tmp_path, f"{fault.seen} after round {fault.at}; resumed", record_property)


LOST = (CancelledError, CommClosedError, ClosedClientError)


@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("status", ["running", "connecting", "closed"])
def test_what_is_lost_with_a_scheduler_is_no_failure_of_the_rows(status, error, monkeypatch):
    monkeypatch.setattr(waiting, "SECONDS", 0.1)
    client = mock.Mock(status="running", _scheduler_identity={"id": "Scheduler-1"})
    client.scheduler.address = "inproc://127.0.0.1/0/0"  # where none is
    waits = waiting.Waiting(client, 1.0)
    client.status, client._scheduler_identity = status, {"id": "Scheduler-2"}
    client.security.get_connection_args = lambda _: {}
    told = waits._in_our_words(error("row 17"), "")
    assert isinstance(told, ClusterError)
    assert f"restarted ({error.__name__})" in str(told)
    assert "17" not in str(told)


def test_a_connection_that_was_lost_and_found_is_told_from_a_scheduler_that_is_gone():
    client = mock.Mock(status="running", _scheduler_identity={"id": "Scheduler-1"})
    waits = waiting.Waiting(client, 1.0)
    client.status = "connecting"
    back = threading.Timer(0.1, setattr, (client, "status", "running"))
    back.start()
    assert "were cancelled (ClosedClientError)" in str(waits.lost(ClosedClientError()))
    back.join()
    assert "restarted (OSError)" in str(waits.lost(OSError()))


@pytest.mark.parametrize("fault", ["rows", "client"])
def test_what_was_cancelled_is_not_blamed_on_the_scheduler(fault, undisturbed, tmp_path, caplog):
    with LocalCluster(n_workers=2, **IN_PROCESS) as cluster, Client(cluster):
        with Client(cluster) as client:
            data = client.persist(chunked())
            wait(data)
            keys = {future.key for future in futures_of(data)}

            def cancel():
                client.cancel(data)
                return comes_true(lambda: keys.isdisjoint(cluster.scheduler.tasks))

            faults = [Fault("dp-ebm", {"rows": cancel, "client": client.close}[fault])]
            with caplog.at_level("CRITICAL"), pytest.raises(ClusterError) as caught:
                fit(tmp_path, "dp-ebm", data=data, callbacks=faults)
        check_resumable(tmp_path, caught.value, ClusterError)
        said = {"rows": "the rows that it reads, were cancelled", "client": "client was closed"}
        assert said[fault] in str(caught.value)
        fit(tmp_path, "dp-ebm", lazy=True, resume=FIT_ID)
    assert (tmp_path / "model.json").read_bytes() == undisturbed("dp-ebm")


# ---- clusters without workers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_worker_is_an_error_before_any_charge(backend, tmp_path):
    with (
        LocalCluster(n_workers=0, **IN_PROCESS) as cluster,
        Client(cluster),
        pytest.raises(ClusterError, match=r"no worker for worker_wait=0\.2 seconds") as caught,
    ):
        disturbed(tmp_path, "auto", backend, **{"worker-wait": 0.2})
    assert caught.value.__context__ is None
    assert ledger_in(tmp_path).account("people").spent == 0


@pytest.mark.parametrize("backend", thinned(BACKENDS, every=2))
def test_all_workers_leave_and_none_comes(backend):
    with LocalCluster(n_workers=2, **IN_PROCESS) as cluster, Client(cluster) as client:
        rounds = rounds_of("binary", backend=backend, worker_wait=0.2)
        ask_all(rounds, "binary")
        leave(cluster, client)
        with pytest.raises(ClusterError, match=r"worker_wait=0\.2 seconds") as caught:
            ask_all(rounds, "binary")
        assert caught.value.__context__ is None
        rounds.close()


def test_all_workers_are_paused_for_good():
    """As Dask does where their memory is nearly used up: no task begins, and none fails."""
    # without a limit Dask does not look at the memory, and lets none run again
    with (
        LocalCluster(n_workers=2, memory_limit=0, **IN_PROCESS) as cluster,
        Client(cluster) as client,
    ):
        rounds = rounds_of("binary", backend="tasks", worker_wait=0.2)
        ask_all(rounds, "binary")
        pause(client, Status.paused)
        with pytest.raises(ClusterError, match=r"paused for worker_wait=0\.2 seconds") as caught:
            ask_all(rounds, "binary")
        assert caught.value.__context__ is None
        pause(client, Status.running)
        rounds.close()


def leave(cluster, client):
    cluster.scale(0)
    while client.nthreads():
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("with_bins", "backend"),
    [
        (False, "comms"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((True, "tasks"), (False, "tasks"), (True, "comms"))
        ),
    ],
)
def test_all_workers_leave_and_others_come(backend, with_bins, monkeypatch):
    monkeypatch.setattr(waiting, "LOOK", 0.2)
    expected = local_sums("binary")[0]
    with LocalCluster(n_workers=2, **IN_PROCESS) as cluster, Client(cluster) as client:
        rounds = rounds_of("binary", backend=backend)
        if with_bins:
            rounds._known_bins = model_of("binary").bins
        ask_all(rounds, "binary")
        leave(cluster, client)
        timer = threading.Timer(0.5, cluster.scale, (1,))
        timer.start()
        for name, sums in ask_all(rounds, "binary").items():
            np.testing.assert_array_equal(sums, expected[name])
        timer.join()
        rounds.close()


def test_an_adaptive_cluster_without_workers_starts_some_before_a_fit():
    """Such a cluster starts workers for waiting tasks alone: whoever waits for one must be a task."""
    with LocalCluster(n_workers=0, **IN_PROCESS) as cluster, Client(cluster) as client:
        cluster.adapt(minimum=0, maximum=2, interval="100ms")
        assert check_workers(client, LONGEST) == 1


@pytest.mark.parametrize("backend", thinned(["tasks", "comms"], every=2))
def test_an_adaptive_cluster_without_workers_starts_some_in_a_fit(backend):
    expected = local_sums("binary")[0]
    with LocalCluster(n_workers=2, **IN_PROCESS) as cluster, Client(cluster) as client:
        rounds = rounds_of("binary", backend=backend)
        ask_all(rounds, "binary")
        leave(cluster, client)
        cluster.adapt(minimum=0, maximum=2, interval="100ms", wait_count=1000)
        for name, sums in ask_all(rounds, "binary").items():
            np.testing.assert_array_equal(sums, expected[name])
        rounds.close()


def replace_workers(cluster, client):
    leave(cluster, client)
    cluster.scale(2)
    client.wait_for_workers(2, timeout=LONGEST)


@pytest.mark.slow
@pytest.mark.parametrize("refines", [False, True])
def test_all_workers_are_replaced_between_survey_and_first_round(refines, monkeypatch):
    monkeypatch.setattr(waiting, "LOOK", 0.2)
    expected = local_sums("binary")[0]
    with LocalCluster(n_workers=2, **IN_PROCESS) as cluster, Client(cluster) as client:
        rounds = rounds_of("binary", chunks=50, refines=refines)
        rounds.fingerprint()
        replace_workers(cluster, client)
        for name, sums in ask_all(rounds, "binary").items():
            np.testing.assert_array_equal(sums, expected[name])
        rounds.close()


@pytest.mark.parametrize(
    "when", thinned(["while a shard is made again", "after the survey"], every=2)
)
def test_all_workers_leave_and_others_come_while_tasks_are_placed(when, monkeypatch):
    monkeypatch.setattr(waiting, "LOOK", 0.2)
    expected = local_sums("binary")[0]
    with LocalCluster(n_workers=2, **IN_PROCESS) as cluster, Client(cluster) as client:
        rounds = rounds_of("binary", chunks=50)
        rounds.fingerprint()
        late = threading.Timer(0.5, cluster.scale, (1,))
        looking = "_by_worker" if when == "after the survey" else "_read"
        if looking == "_read":
            ask_all(rounds, "binary")
        place = getattr(rounds, looking)

        def leave_before(*arguments):
            if late.ident is None:
                leave(cluster, client)
                late.start()
            return place(*arguments)

        monkeypatch.setattr(rounds, looking, leave_before)
        if looking == "_read":
            number = min(rounds._shards)
            del rounds._shards[number]
            rounds._make_shards(rounds._members.pop(number))
        for name, sums in ask_all(rounds, "binary").items():
            np.testing.assert_array_equal(sums, expected[name])
        late.join()
        rounds.close()


@pytest.mark.slow
def test_all_workers_are_replaced_while_surveys_are_added(monkeypatch):
    # looks before Dask can have run the lost tasks anew, which it does if no look finds other workers
    monkeypatch.setattr(waiting, "LOOK", 0.001)
    expected = local_sums("binary")[1]
    with LocalCluster(n_workers=2, **IN_PROCESS) as cluster, Client(cluster) as client:
        rounds = rounds_of("binary", chunks=50)
        add, added = rounds._sum, []

        def add_late(how, parts):
            if not added:
                replace_workers(cluster, client)
            added.append(how)
            return add(how, parts)

        monkeypatch.setattr(rounds, "_sum", add_late)
        assert rounds.fingerprint() == expected
        assert len(added) == 2
        rounds.close()


@pytest.mark.parametrize("backend", ["local", "tasks"])
def test_memory_that_is_short_while_rows_are_encoded_tells_no_count(backend, caplog, monkeypatch):
    def short(*_):
        raise MemoryError("Unable to allocate an array with shape (3, 29970114515)")

    monkeypatch.setattr(worker_tasks, "encode_piece", short)
    with LocalCluster(n_workers=2, **IN_PROCESS) as cluster, Client(cluster):
        rounds = rounds_of("binary", backend=backend)
        with pytest.raises(ChunkError) as caught:
            ask_all(rounds, "binary")
        assert str(caught.value) == str(failed_to_load("MemoryError"))
        rounds.close()
    assert caught.value.__context__ is None
    assert "29970114515" not in caplog.text


def deadly(block, block_info=None):
    if block_info and block_info[0]["chunk-location"][0] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.slow
def test_a_chunk_that_kills_every_worker_is_an_error(monkeypatch):
    monkeypatch.setattr(waiting, "LOOK", 0.2)
    x, y, _ = rows_of("binary")
    x = da.from_array(x.to_numpy(), chunks=(1000, 3))
    x = x.map_blocks(deadly, dtype=float, meta=np.empty((0, 0)))
    shape = shape_of("binary")
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=1, processes=True, **CLUSTER) as cluster,
        Client(cluster),
    ):
        source = read_source(x, da.from_array(y, chunks=1000), None, shape.schema)
        rounds = open_rounds(source, shape, Execution(), KEY)
        with pytest.raises(ClusterError, match="Workers died again and again"):
            rounds.fingerprint()
        rounds.close()


# ---- codes that are lost again and again -----------------------------------------------------------------------------


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("backend", thinned(["tasks", "local", "comms"], every=2))
def test_a_disk_that_damages_all_it_holds_is_an_error(backend, monkeypatch):
    rounds = rounds_of("binary", 1000, backend=backend)
    main = queries_of("binary", 2)["main"]
    rounds.ask(model_of("binary"), main)
    encoded = counted(monkeypatch)
    monkeypatch.setattr(worker_tasks.Shard, "answer", lose)
    with pytest.raises(LostCodesError):
        rounds.ask(model_of("binary"), main)
    assert len(encoded) == worker_tasks.MOST_REMAKES * 3  # chunks
    rounds.close()


def lose(*_args):
    raise LostCodesError("gone")


LEFT = []  # one item for each time that codes are to be lost


def lossy(number, parts, job):
    if LEFT:
        LEFT.pop()
        return worker_tasks.Failure(LostCodesError("gone"), number)
    return make_shard(number, parts, job)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("bins", thinned([(None,), (model_of("binary").bins,)], every=2))
def test_codes_lost_between_chunk_and_shard_are_made_again(bins, monkeypatch):
    monkeypatch.setattr(tasks, "make_shard", lossy)
    monkeypatch.setattr("cluster.test_faults.LEFT", [1, 2])
    expected = local_sums("binary")[0]
    rounds = rounds_of("binary")
    rounds._known_bins = bins
    for name, sums in ask_all(rounds, "binary").items():
        np.testing.assert_array_equal(sums, expected[name])
    assert not LEFT
    rounds.close()


# ---- nothing stays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("end", thinned(["shutdown", "close", "error"], every=3))
def test_nothing_stays(backend, end, tmp_path):
    with on_disk(tmp_path) as cluster, Client(cluster) as client:
        rounds = rounds_of("binary", backend=backend, cache="disk")
        ask_all(rounds, "binary")
        assert open_files(tmp_path)
        workers = list(cluster.workers.values())
        if end == "error":
            with (
                mock.patch.object(worker_tasks.Shard, "answer", side_effect=ScratchError("full")),
                pytest.raises(ScratchError),
            ):
                ask_all(rounds, "binary")
        if end == "shutdown":
            workers.clear()
            leave(cluster, client)
        else:
            rounds.close()
        assert comes_true(lambda: not open_files(tmp_path))
        assert comes_true(lambda: not any(worker.data for worker in workers))


def test_a_fit_leaves_nothing(tmp_path):
    scratch = tmp_path / "scratch"
    with on_disk(scratch) as cluster, Client(cluster):
        with dask.config.set({"dpgb-dask.cache": "disk"}):
            estimator("fdp-tr-newton").fit(*chunked())
        assert comes_true(lambda: not open_files(scratch))
        assert comes_true(lambda: not any(worker.data for worker in cluster.workers.values()))


@pytest.mark.usefixtures("client")
def test_an_answer_given_twice_changes_nothing():
    rounds = rounds_of("binary")
    expected = ask_all(rounds, "binary")
    main = queries_of("binary", 2)["main"]
    message, other = (Sender().message(model_of("binary", seed), main) for seed in (1, 2))
    shards, packed = list(rounds._shards.values()), message.packed()
    again = [rounds.client.map(tasks.answer_round, shards, pure=False, m=packed) for _ in range(2)]
    once, twice = (rounds._checked(rounds.client.gather(replies), message) for replies in again)
    np.testing.assert_array_equal(once, twice)
    np.testing.assert_array_equal(once, opened(rounds.ask(model_of("binary", 1), main)))
    with pytest.raises(ShardError, match="another question"):
        rounds._checked(rounds.client.gather(again[0]), other)
    for name, sums in ask_all(rounds, "binary").items():
        np.testing.assert_array_equal(sums, expected[name])
    rounds.close()


# ---- parts of messages -----------------------------------------------------------------------------------------------


def residents(client):
    """The shards on the workers of this process."""
    held = [value for w in client.cluster.workers.values() for value in w.data.values()]
    return sorted((v for v in held if isinstance(v, ResidentShard)), key=lambda v: v.number)


def moved(client, _packed):
    """A shard goes to another process and comes back: what it had read stays behind."""
    first = residents(client)[0]
    for worker in client.cluster.workers.values():
        for key, value in list(worker.data.items()):
            if value is first:
                worker.data[key] = pickle.loads(pickle.dumps(first))


def missed(client, packed):
    """A shard has read the first message, and none of those since."""
    first = residents(client)[0]
    first.parts._held = {}
    first.parts.read(packed[0])


def late(client, packed):
    """The first message comes once more, to one shard."""
    residents(client)[0].parts.read(packed[0])


def twice(client, packed):
    """The last message comes once more, to one shard."""
    residents(client)[0].parts.read(packed[-1])


@pytest.mark.parametrize(
    ("fault", "backend"), one_of_each(product([moved, missed, late, twice], BACKENDS))
)
def test_a_shard_that_lacks_parts_is_asked_again_with_all(fault, backend, client, monkeypatch):
    rounds, alone = rounds_of("binary", backend=backend), rounds_of("binary", None)
    main, packed, pack = queries_of("binary", 2)["main"], [], Message.packed
    monkeypatch.setattr(Message, "packed", lambda *of: packed.append(pack(*of)) or packed[-1])

    def check_round(k):
        """Ask, compare, and return how often it was asked."""
        before, model = len(packed), model_of("binary", n_trees=2 + 2 * k)  # trees grow
        got, expected = (opened(r.ask(model, main)) for r in (rounds, alone))
        np.testing.assert_array_equal(got, expected)
        return len(packed) - before

    assert [check_round(k) for k in range(3)] == [1, 1, 1]
    assert len(residents(client)) == 2
    fault(client, packed)
    assert check_round(3) == (1 if fault is twice else 2)
    assert check_round(4) == 1
    assert len(packed[-1]) < len(packed[0]) / 2
    alone.close()
    rounds.close()
