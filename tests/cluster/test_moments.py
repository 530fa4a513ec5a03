"""Faults of a cluster at every moment of a fit that its scheduler sees, and while it predicts.


Moments lie in the registration of plugins, the counting of units, survey, codes, shards, rounds and close. If a worker
is lost, retires or joins at any of them, the model is the same bit for bit, and there is one charge.
"""

import asyncio
import contextlib
import os
import signal
import threading

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import CancelledError, Client, LocalCluster, Status, get_worker
from small_fits import SCHEMA, chunked, estimator, fit, ledger_in, rows
from waiting import LONGEST, comes_true

from cluster.moments import Moments, join, kill, lose, retire, strike
from cluster.test_tasks import CLUSTER
from dpgb_dask import Schema
from dpgb_dask.errors import ClusterError
from dpgb_dask.private.rounds import waiting, worker_tasks, workers
from dpgb_dask.testing import SeededNoise

# Dask leaves the socket of a worker that is gone to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def frame():
    x, y = rows()
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    return dd.from_pandas(table, npartitions=4), dd.from_pandas(pd.Series(y), npartitions=4)


def people():
    table, y = frame()
    return table.assign(person=(600 * table["a"]).astype(int)), y


def moved():
    x, y = chunked()
    return x + np.array([0, 1000, 0]), y


# the second feature fills a few cells of the grid, which are then counted in finer ones
FAR = Schema(dict(SCHEMA.features) | {"b": (-4000.0, 4000.0)}, classes=[0, 1])
UNITS = Schema(SCHEMA.features, classes=[0, 1], unit_id="person")


# The scenarios differ in what a fit does: bins from the schema or from the rows, lazy rows or rows of this process,
# units, draws of rows by position, codes made again for other bins, and how rounds are asked.
SCENARIOS = {
    "private bins": ("auto", "tasks", {"lazy": True}),
    "a closer look": ("auto", "comms", {"data": moved, "schema": FAR, "lazy": True}),
    "over comms": ("dp-ebm", "comms", {"lazy": True}),
    "rows of this process": ("fdp-tr-newton", "tasks", {}),
    "units": ("fdp-tr-newton", "tasks", {"data": people, "schema": UNITS, "unit_id": "person"}),
    "drawn rows": ("dpboost", "tasks", {"data": frame, "epsilon": 0.2, "n_estimators": 2}),
    "bins again": ("fdp-tr-newton-ih", "comms", {"lazy": True, "n_estimators": 3}),
    "codes on scratch": ("fdp-tr-newton", "auto", {"lazy": True, "cache": "disk"}),
}
FAULTS = {lose: 8, retire: 10, join: 10}  # each at one moment of so many
MATRIX = [
    pytest.param(
        *(scenario, fault, every),
        marks=() if (scenario, fault) == ("over comms", lose) else pytest.mark.slow,
    )
    for scenario in SCENARIOS
    for fault, every in FAULTS.items()
]


def small_cluster(n=3, **options):
    return LocalCluster(n_workers=n, **{"processes": False, **CLUSTER, **options})


def run(folder, scenario, cluster, fault=None, **when):
    """Run a fit of a scenario; it ends whatever happens."""
    folder.mkdir(exist_ok=True)
    recipe, backend, options = SCENARIOS[scenario]
    options = {key: value() if callable(value) else value for key, value in options.items()}
    with (
        Client(cluster),
        Moments(cluster, fault, **when) as moments,
        dask.config.set({"dpgb-dask.backend": backend}),
    ):
        in_time(lambda: fit(folder, recipe, **options))
    return moments


def in_time(work):
    """Call a function in a thread, and give up if it takes far too long."""
    ended = []

    def go():
        try:
            ended.append((work(), None))
        except BaseException as error:
            ended.append((None, error))

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    thread.join(LONGEST)
    assert ended, "it hangs"
    result, error = ended[0]
    if error is not None:
        raise error
    return result


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A function that returns the model file, the charge and the moments of a scenario without a fault."""
    known = {}

    def of(scenario):
        if scenario not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            with small_cluster() as cluster:
                moments = run(folder, scenario, cluster)
            known[scenario] = (*left(folder), moments.seen)
        return known[scenario]

    return of


def left(folder):
    """Return the model file and the charge that a fit left."""
    ledger = ledger_in(folder)
    ledger.verify()
    kinds = [entry.kind for entry in ledger.history("people")]
    assert kinds.count("RESERVED") == kinds.count("RELEASED") == 1
    return (folder / "model.json").read_bytes(), ledger.account("people").spent


def hit(folder, scenario, cluster_of, fault, moment, k, expected, seed=0):
    """Run fits with a fault at a moment until it strikes, three at most; return whether it did.

    The order in which a scheduler sees tasks end decides how often some moments come, if at all (tasks that are
    forgotten while the client leaves): after the first fit the fault strikes at the first such moment. Each fit has to
    leave what is ``expected``. A broadcast, or a task that ends, comes in every fit, but for the tasks that tell the
    scheduler of a long round: they come if the machine is slow.
    """
    for number, passed in enumerate((k, 0, 0)):
        place = folder / str(number)
        with cluster_of() as cluster:
            moments = run(place, scenario, cluster, fault, at=moment, k=passed, seed=seed)
        assert left(place) == expected, moment
        if moments.victim is not None:
            return True
    kind, *change = moment
    assert kind == "dpgb-awake" or not (kind == "broadcast" or change == ["processing", "memory"])
    return False


@pytest.mark.parametrize(("scenario", "fault", "every"), MATRIX)
def test_a_fault_at_a_moment(
    scenario, fault, every, undisturbed, tmp_path, monkeypatch, record_property
):
    monkeypatch.setattr(waiting, "LOOK", 0.2)
    *expected, seen = undisturbed(scenario)
    met = 0
    for number, (moment, count) in enumerate(list(seen.items())[::every]):
        k = int(np.random.default_rng(number).integers(count))
        folder = tmp_path / str(number)
        folder.mkdir()
        met += hit(folder, scenario, small_cluster, fault, moment, k, tuple(expected), number)
    assert met
    saw = f"{scenario}: {fault.__name__} at {met} moments; same model file; 1 charge each"
    record_property("saw", saw)


# ---- processes that die ----------------------------------------------------------------------------------------------


DEATHS = [
    ("broadcast", "plugin-add"),
    ("dpgb-encode-chunk", "waiting", "processing"),
    ("dpgb-add", "processing", "memory"),
    ("dpgb-forget-survey", "waiting", "processing"),
    ("dpgb-encode-unbinned", "processing", "memory"),
    ("dpgb-shard", "waiting", "processing"),
    ("dpgb-shard", "processing", "memory"),
    ("broadcast", "dpgb_round"),
    ("dpgb-shard", "memory", "forgotten"),
]


@pytest.mark.parametrize(
    ("moment", "k"),
    [
        *(
            pytest.param(moment, (j + 1) % 2, marks=pytest.mark.slow)
            for j, moment in enumerate(DEATHS)
        ),
    ],
)
def test_a_process_dies(moment, k, two_processes, undisturbed, tmp_path):
    @contextlib.contextmanager
    def both_there():
        two_processes.wait_for_workers(2, timeout=LONGEST)
        yield two_processes

    expected = undisturbed("over comms")[:2]
    hit(tmp_path, "over comms", both_there, kill, moment, k, expected)


def broken(_place):
    raise ZeroDivisionError("row 17")


def test_a_plugin_or_a_look_that_fails_on_a_worker_is_told_by_its_type():
    class Broken(worker_tasks.FreeRows):
        def setup(self, **_):
            raise ZeroDivisionError("row 17")

    with small_cluster(1) as cluster, Client(cluster) as client:
        with pytest.raises(ClusterError, match="Broken failed on a worker: ZeroDivisionError") as e:
            workers.register(client, Broken())
        assert e.value.__context__ is None
        assert "17" not in str(e.value)
        with pytest.raises(ClusterError, match="look at 'a folder': ZeroDivisionError") as e:
            workers.on_a_worker(client, broken, "a folder")
        assert e.value.__context__ is None
        assert "17" not in str(e.value)


# ---- predict ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return estimator("auto", noise=SeededNoise(0)).fit(*rows())


HAPPEN = {}  # what happens; kept in this process, because a task cannot carry it


def happen():
    HAPPEN["once"]()


def after(what, flag):
    """Rows as a lazy array; ``what`` is called when the second block is made for the first time."""

    def make(block, block_info=None):
        if block_info and block_info[0]["chunk-location"][0] == 1 and not flag.exists():
            flag.touch()
            what()
        return block

    return chunked()[0].map_blocks(make, dtype=float, meta=np.empty((0, 0)))


def test_a_worker_is_lost_while_it_predicts(model, tmp_path, monkeypatch):
    with small_cluster() as cluster, Client(cluster):

        def leave():
            strike(lose, cluster, get_worker().address).result(LONGEST)

        monkeypatch.setitem(HAPPEN, "once", leave)
        found = in_time(model.predict_proba(after(happen, tmp_path / "left")).compute)
    assert (tmp_path / "left").exists()
    np.testing.assert_array_equal(found, model.predict_proba(rows()[0]))


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_process_dies_while_it_predicts(model, tmp_path):
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    found = in_time(model.predict(after(die, tmp_path / "dead")).compute)
    np.testing.assert_array_equal(found, model.predict(rows()[0]))


def test_a_scheduler_that_goes_away_while_it_predicts_is_an_error(model, tmp_path, monkeypatch):
    cluster = small_cluster(2, protocol="tcp")

    def go_away():
        # of the client, from here on
        dask.config.set({"distributed.comm.timeouts.connect": "100ms"})
        strike(lambda own, _: own.scheduler.close(), cluster, None)
        # before the block is made
        assert comes_true(lambda: cluster.scheduler.status == Status.closed)

    monkeypatch.setitem(HAPPEN, "once", go_away)
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
        cluster,
        Client(cluster.scheduler_address),
        pytest.raises((CancelledError, asyncio.CancelledError, OSError)),
    ):
        in_time(model.predict(after(happen, tmp_path / "gone")).compute)
