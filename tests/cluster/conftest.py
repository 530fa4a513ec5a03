"""Worker processes that the tests of this folder share: each takes seconds to start."""

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster
from waiting import LONGEST


@pytest.fixture(scope="package")
def two_processes() -> Iterator[LocalCluster]:
    """A cluster of two worker processes. A worker that a test kills is started again by its nanny."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture
def processes(two_processes: LocalCluster) -> Iterator[Client]:
    """A client of `two_processes`, once both are there."""
    with Client(two_processes) as client:
        client.wait_for_workers(2, timeout=LONGEST)
        yield client
