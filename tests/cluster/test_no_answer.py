"""A scheduler that does not answer, or asks for a certificate: one clear error, and nothing is charged."""

import asyncio
import socket
from unittest import mock

import dask
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security
from small_fits import chunked, estimator

from cluster.test_tasks import CLUSTER
from dpgb_dask import clients
from dpgb_dask.cli.options import joined
from dpgb_dask.errors import ClusterError, StructureError
from dpgb_dask.private.rounds import workers


@pytest.fixture
def ledger(ledger):
    """A ledger with an account, of which nothing is spent when the test ends."""
    yield ledger
    assert ledger.account("people").spent == 0


@pytest.fixture(scope="module")
def cluster_with_tls():
    """A scheduler without workers, and what its certificate is."""
    own = Security.temporary()
    with LocalCluster(
        n_workers=0, processes=False, protocol="tls://", security=own, **CLUSTER
    ) as cluster:
        yield cluster


def fit(ledger):
    estimator("dp-ebm", ledger=ledger, account="people").fit(*chunked())


def mute_scheduler(cluster):
    """Let a scheduler's answers to the question for its workers never come."""

    async def never(**_options):
        await asyncio.Event().wait()

    return mock.patch.dict(cluster.scheduler.handlers, ncores=never)


def test_a_scheduler_that_fell_silent(ledger, monkeypatch):
    monkeypatch.setattr(workers, "LEAST_WAIT", 0.3)
    with (
        LocalCluster(n_workers=1, processes=False, **CLUSTER) as cluster,
        Client(cluster),
        mute_scheduler(cluster),
        dask.config.set({"dpgb-dask.worker-wait": 0.3}),
        pytest.raises(ClusterError, match=r"does not answer .*worker_wait=0\.3 seconds") as caught,
    ):
        fit(ledger)
    assert caught.value.__context__ is None


def test_a_scheduler_that_a_second_connection_cannot_reach(ledger, monkeypatch):
    def unreachable(*_):
        raise OSError("Timed out trying to connect to tcp://10.0.0.1:8786 after 30 s")

    async def cell(address):
        async with Client(address, asynchronous=True):
            fit(ledger)

    with LocalCluster(n_workers=0, processes=False, **CLUSTER) as cluster:
        # as if it ran elsewhere
        monkeypatch.setattr(clients, "Scheduler", type("Scheduler", (), {"_instances": ()}))
        monkeypatch.setattr(clients, "reach", unreachable)
        with pytest.raises(ClusterError, match=r"timeouts\.connect=") as caught:
            asyncio.run(cell(cluster.scheduler_address))
    assert "10.0.0.1" not in str(caught.value)
    assert caught.value.__context__ is None


def join(address):
    with joined(str(address)):
        pytest.fail("there is no scheduler")


def test_an_address_that_is_silent():
    with (
        socket.create_server(
            ("127.0.0.1", 0)
        ) as silent,  # connections are made, and nothing is said
        dask.config.set({"distributed.comm.timeouts.connect": "0.3s"}),
        pytest.raises(
            ClusterError, match=r"timeouts\.connect=0\.3s to answer.*Nothing was charged"
        ),
    ):
        join(f"tcp://127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize("certificate", ["none", "another"])
def test_a_scheduler_asks_for_a_certificate(certificate, cluster_with_tls, tmp_path):
    config = {"distributed.comm.timeouts.connect": "0.5s"}
    if certificate == "another":
        other = Security.temporary()
        (tmp_path / "cert.pem").write_text(other.tls_ca_file)
        (tmp_path / "key.pem").write_text(other.tls_client_key)
        config |= {
            "distributed.comm.tls.ca-file": str(tmp_path / "cert.pem"),
            "distributed.comm.tls.client.cert": str(tmp_path / "cert.pem"),
            "distributed.comm.tls.client.key": str(tmp_path / "key.pem"),
        }
    with dask.config.set(config), pytest.raises(ClusterError, match="TLS__CA_FILE"):
        join(cluster_with_tls.scheduler_address)


def test_a_scheduler_file(tmp_path):
    file = tmp_path / "scheduler.json"
    with (
        LocalCluster(n_workers=0, processes=False, protocol="tcp://", **CLUSTER) as cluster,
        Client(cluster) as client,
    ):
        client.write_scheduler_file(str(file))
        with joined(str(file)):
            assert Client.current().scheduler.address == cluster.scheduler_address
    for text in ("", "[]", "{}"):
        file.write_text(text)
        with pytest.raises(StructureError, match="is no scheduler file"):
            join(file)
