"""Fits on clusters of a real dask-gateway (`ci/services/gateway`): its proxy, TLS, images, and clusters that go."""

import asyncio
import gc
import os
import time

import dask
import dask.array as da
import numpy as np
import pytest
from small_fits import FIT_ID, same_key_and_id
from waiting import LONGEST, comes_true

from dpgb_dask import DPGBClassifier, Ledger, Schema, recipes
from dpgb_dask.errors import ClusterError

if "DASK_GATEWAY__ADDRESS" not in os.environ:
    pytest.skip("NO DASK-GATEWAY: ci/services/gateway starts it", allow_module_level=True)
dask_gateway = pytest.importorskip("dask_gateway", reason="NO DASK-GATEWAY: its client is missing")

pytestmark = [
    pytest.mark.services,
    # of dask-gateway's sessions and connections, which it leaves to the end of the process
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SCHEMA = Schema({f"f{j}": (0.0, 1.0) for j in range(4)}, classes=[0, 1])


def rows():
    """Rows that each worker makes by itself."""
    x = da.random.default_rng(7).random((4000, 4), chunks=(500, 4))
    return x, (x[:, 0] + x[:, 1] > x[:, 2] + 0.5).astype(np.int64)


def fit(folder, *callbacks, resume=None):
    """Fit on an account of ``folder``, with a key and an id that are always the same: models can be compared."""
    ledger = ledger_in(folder)
    with same_key_and_id():
        model = DPGBClassifier(
            epsilon=2.0,
            delta=1e-6,
            schema=SCHEMA,
            recipe=recipes.get("auto", kind="binary").brief(),
            columns="position",
            random_state=5,
            ledger=ledger,
            account="people",
            callbacks=callbacks,
        ).fit(*rows(), resume=resume)
    model.save(folder / "model.json")
    return model


def ledger_in(folder):
    ledger = Ledger(f"sqlite:///{folder}/budget.db")
    ledger.open_account("people", epsilon=3.0, delta=1e-5)
    return ledger


def charges(folder):
    """The fits that a folder's account was charged for."""
    return [e.fit_id for e in ledger_in(folder).history("people") if e.kind == "RESERVED"]


def model_text(folder):
    return (folder / "model.json").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The model of a fit in this process."""
    folder = tmp_path_factory.mktemp("here")
    with dask.config.set({"dpgb-dask.backend": "local"}):
        fit(folder)
    return model_text(folder)


@pytest.fixture(autouse=True)
def collected():
    """A cluster's own gateway waits for its event loop when it is collected: in that loop's thread, for ever."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def gateway():
    return (
        dask_gateway.Gateway()
    )  # closed when it is collected, which fails if it was closed before


@pytest.fixture(scope="module")
def cluster(gateway):
    """A cluster of one worker."""
    with gateway.new_cluster() as cluster:
        cluster.scale(1)
        yield cluster


@pytest.fixture
def client(cluster):
    with cluster.get_client() as client:
        client.wait_for_workers(1, timeout=LONGEST)
        yield client


def test_workers_are_what_the_options_of_the_cluster_say(gateway, tmp_path, record_property):
    def settings(dask_worker):  # here, so that it is sent to workers, which do not have this file
        return (
            dask_worker.address,
            dask_worker.state.nthreads,
            dask_worker.memory_manager.memory_limit,
            dask_worker.local_directory,
            {name: os.environ.get(name) for name in ("DPGB_IMAGE", "NUMBA_CACHE_DIR")},
        )

    options = {
        "worker_memory": "1.25 G",
        "worker_threads": 2,
        "scratch": str(tmp_path / "scratch"),
        "kernels": str(tmp_path / "kernels"),
    }
    with gateway.new_cluster(image="dpgb-dask:current", **options) as cluster:
        cluster.scale(1)
        with cluster.get_client() as client:
            client.wait_for_workers(1, timeout=LONGEST)
            ((address, n_threads, memory, folder, names),) = client.run(settings).values()
    record_property("saw", f"{address}, {n_threads} threads, {memory} bytes, {names['DPGB_IMAGE']}")
    assert address.startswith("tls://")
    assert n_threads == 2
    assert memory == 1.25 * 2**30
    assert folder.startswith(str(tmp_path / "scratch"))
    assert names == {
        "DPGB_IMAGE": "dpgb-dask:current",
        "NUMBA_CACHE_DIR": str(tmp_path / "kernels"),
    }


def test_a_fit_and_predictions_are_those_of_this_process(
    client, undisturbed, tmp_path, record_property
):
    model = fit(tmp_path)
    assert model_text(tmp_path) == undisturbed
    x, _ = rows()
    here = model.predict_proba(x.compute(scheduler="sync"))
    np.testing.assert_array_equal(model.predict_proba(x).compute(), here)
    assert charges(tmp_path) == [FIT_ID]
    record_property(
        "saw", f"1 fit over {client.scheduler.address.split(':')[0]}, bits equal, 1 charge"
    )


def test_a_fit_in_the_loop_of_an_asynchronous_gateway(
    cluster, undisturbed, tmp_path, record_property
):
    async def cell():
        async with (
            dask_gateway.Gateway(asynchronous=True) as gateway,
            gateway.connect(cluster.name) as connected,
            connected.get_client() as client,
        ):
            await client.wait_for_workers(1, timeout=LONGEST)
            return fit(tmp_path).score(*rows())

    score = asyncio.run(cell())
    assert 0.5 < score <= 1.0
    assert model_text(tmp_path) == undisturbed
    assert charges(tmp_path) == [FIT_ID]
    record_property("saw", "1 fit and a score without await, bits equal, 1 charge")


def test_a_cluster_is_shut_down_in_mid_fit_and_the_fit_resumed_on_a_new_one(
    gateway, undisturbed, tmp_path, record_property
):
    cluster = gateway.new_cluster()
    cluster.scale(1)
    seen = {}

    def shut_down(_label, done, _total):
        if done == 3:
            cluster.shutdown()
            seen["shut down"] = time.monotonic()

    with cluster.get_client(), pytest.raises(ClusterError, match="resumed") as caught:
        fit(tmp_path, shut_down)
    told = time.monotonic() - seen["shut down"]
    assert any(FIT_ID in note for note in caught.value.__notes__)
    with gateway.new_cluster() as another:
        another.scale(1)
        with another.get_client():
            fit(tmp_path, resume=FIT_ID)
    assert model_text(tmp_path) == undisturbed
    assert charges(tmp_path) == [FIT_ID]
    record_property(
        "saw",
        f"cluster shut down after 3 rounds, told {told:.0f} s later, resumed, bits equal, 1 charge",
    )


def test_a_cluster_grows_and_shrinks_in_mid_fit(gateway, undisturbed, tmp_path, record_property):
    seen = []
    with gateway.new_cluster() as cluster:
        cluster.adapt(minimum=1, maximum=1)
        with cluster.get_client() as client:

            def there():
                return len(client.scheduler_info()["workers"])

            def rescale(_label, done, _total):
                if done in (1, 3, 6):
                    wanted = {1: 1, 3: 4, 6: 2}[done]
                    cluster.adapt(minimum=wanted, maximum=wanted)
                    assert comes_true(lambda: there() == wanted)
                    seen.append(wanted)

            fit(tmp_path, rescale)
            assert there() == 2
    assert seen == [1, 4, 2]
    assert model_text(tmp_path) == undisturbed
    assert charges(tmp_path) == [FIT_ID]
    record_property("saw", f"workers {seen} in one fit, bits equal, 1 charge")


def test_workers_of_an_image_with_another_version_are_refused_before_a_charge(
    gateway, tmp_path, record_property
):
    with gateway.new_cluster(image="dpgb-dask:old") as cluster:
        cluster.scale(1)
        with (
            cluster.get_client(),
            pytest.raises(
                ClusterError, match=r"Workers have .*dpgb_dask 0\.0\.1,.*image"
            ) as caught,
        ):
            fit(tmp_path)
    assert charges(tmp_path) == []
    record_property("saw", str(caught.value))


def test_a_cluster_that_is_gone_or_has_no_workers_is_told_before_a_charge(
    gateway, tmp_path, record_property
):
    seen = []
    with gateway.new_cluster() as cluster, cluster.get_client():
        with (
            dask.config.set({"dpgb-dask.worker-wait": 1.0}),
            pytest.raises(ClusterError, match="no worker for worker_wait=1 seconds") as caught,
        ):
            fit(tmp_path)
        seen.append(str(caught.value))
        cluster.shutdown()
        with (
            dask.config.set({"dpgb-dask.worker-wait": 1.0}),
            pytest.raises(ClusterError, match=r"no worker|does not answer") as caught,
        ):
            fit(tmp_path)
        seen.append(str(caught.value))
    assert charges(tmp_path) == []
    record_property("saw", " | ".join(seen))


def test_a_wrong_password_is_told_by_the_gateway(record_property):
    other = dask_gateway.Gateway(auth=dask_gateway.BasicAuth("eve", "wrong"))
    with pytest.raises(Exception, match="401") as caught:
        other.list_clusters()
    record_property("saw", f"{type(caught.value).__name__}: {caught.value.status}")
