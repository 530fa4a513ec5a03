"""Fixtures for all tests: tiny data sets, their schemas, a client in this process, the real data."""

import gc
import os

# One BLAS thread, before numpy loads: post-processing is float linear algebra and promises the same bits
# (docs/design.md §3).
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from forks import Forks

from dpgb_dask import DPGBClassifier, DPGBRegressor, Ledger
from dpgb_dask.contracts.features import Categorical, Numeric
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.kernels import warming
from dpgb_dask.testing import SeededNoise

# folders of files that take long, a few tests or many: on several processes they begin first, and short ones fill up
LONG = ("cluster", "training", "every_component", "controller", "cli")
# when Python looks for garbage; a test that waits for it collects it (waiting.py)
GARBAGE = (20_000, 10, 10)


def pytest_configure(config: pytest.Config) -> None:
    """Look for garbage less often; keep the order of `pytest_collection_modifyitems`.

    pytest-xdist would begin with the files of most tests.
    """
    gc.set_threshold(*GARBAGE)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:  # noqa: ARG001
    """Look for no garbage meanwhile, and later for none among what is there then: modules and tests stay to the end.

    Looking through these 700,000 objects again and again took a tenth of a run.
    """
    gc.set_threshold(0)  # not gc.disable(): Dask enables it again where a module makes an array
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GARBAGE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files that take long first; tests of a file stay together, in their order."""
    items.sort(key=lambda item: item.path.parent.name not in LONG)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Share the compiling of kernels among the processes of a run, before any of them needs them all."""
    run = getattr(
        session.config, "workerinput", None
    )  # what pytest-xdist tells each of its processes
    if run is not None:
        number, n_processes = int(run["workerid"].removeprefix("gw")), run["workercount"]
        warming.warm(list(warming.GROUPS)[number::n_processes])


@pytest.fixture(scope="session", autouse=True)
def _clusters() -> Iterator[None]:
    """Leave a worker that is killed to its nanny; have no worker look every 10 ms at what it does, for a dashboard.

    15 seconds after a worker is lost, a cluster looks whether its name is back; if it is not, as the worker has just
    been killed once more, the cluster starts another nanny beside the first, and the scheduler turns one of the two
    away: "name taken".
    """
    settings = {
        "distributed.deploy.lost-worker-timeout": "1 day",
        "distributed.worker.profile.enabled": False,
    }
    with dask.config.set(settings):
        yield


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A server of forked processes; what they run is imported, and warmed up by the files that need it."""
    with Forks() as server:
        server.warm("controller_parts:warm")
        yield server


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real data sets: ``DPGB_DATA``, else ``../shared/data`` beside the repository."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DPGB_DATA", default))
    if not (folder / "adult.parquet").is_file():
        pytest.skip("NO REAL DATA: set DPGB_DATA to the folder that holds adult.parquet")
    return folder


@pytest.fixture(scope="session")
def binary_schema() -> Schema:
    """Two numeric features, an integer and a categorical one; classes 0 and 1."""
    features = {
        "x": Numeric(-3.0, 3.0),
        "z": Numeric(-3.0, 3.0, missing=True),
        "age": Numeric(0, 90, integer=True),
        "color": Categorical(("blue", "green", "red"), missing=True),
    }
    return Schema(features, classes=[0, 1])


@pytest.fixture(scope="session")
def features() -> pd.DataFrame:
    """1,500 rows that fit `binary_schema`, `regression_schema` and `multiclass_schema`; some values are missing."""
    rng = np.random.default_rng(0)
    n = 1500
    table = pd.DataFrame(
        {
            "x": np.clip(rng.normal(size=n), -3, 3),
            "z": np.clip(rng.normal(size=n), -3, 3),
            "age": rng.integers(0, 91, n),
            "color": rng.choice(["blue", "green", "red"], n),
        }
    )
    table.loc[::17, "z"] = np.nan
    table.loc[::19, "color"] = None
    return table


@pytest.fixture(scope="session")
def signal(features: pd.DataFrame) -> np.ndarray:
    """The true score of each row of `features`: additive, and one product."""
    x, z = features["x"].to_numpy(), features["z"].fillna(0).to_numpy()
    red = (features["color"] == "red").to_numpy()
    return 1.5 * x + 0.8 * x * z + red + (features["age"].to_numpy() - 45) / 30


@pytest.fixture(scope="session")
def labels(signal: np.ndarray) -> np.ndarray:
    """Labels 0 and 1, drawn from `signal`."""
    return (np.random.default_rng(1).random(len(signal)) < 1 / (1 + np.exp(-signal))).astype(
        np.int8
    )


@pytest.fixture(scope="session")
def regression_schema(binary_schema: Schema) -> Schema:
    """The features of `binary_schema` with a numeric target."""
    return Schema(binary_schema.features, target_bounds=(-15.0, 15.0))


@pytest.fixture(scope="session")
def numbers(signal: np.ndarray) -> np.ndarray:
    """A numeric target within the bounds of `regression_schema`."""
    return np.clip(signal + 0.5 * np.random.default_rng(2).normal(size=len(signal)), -15, 15)


@pytest.fixture(scope="session")
def multiclass_schema(binary_schema: Schema) -> Schema:
    """The features of `binary_schema` with three text classes."""
    return Schema(binary_schema.features, classes=["high", "low", "middle"])


@pytest.fixture(scope="session")
def names_of_class(signal: np.ndarray) -> np.ndarray:
    """Text labels of `multiclass_schema`, by the size of `signal`."""
    return np.select([signal < -1, signal < 1], ["low", "middle"], "high")


@pytest.fixture(scope="session")
def classifier(binary_schema, features, labels) -> DPGBClassifier:
    """An estimator fitted on `labels` with noise that repeats; not to be changed."""
    return DPGBClassifier(
        epsilon=4.0, schema=binary_schema, noise=SeededNoise(0), random_state=0
    ).fit(features, labels)


@pytest.fixture(scope="session")
def regressor(regression_schema, features, numbers) -> DPGBRegressor:
    """An estimator fitted on `numbers` with noise that repeats; not to be changed."""
    return DPGBRegressor(
        epsilon=4.0, schema=regression_schema, noise=SeededNoise(0), random_state=0
    ).fit(features, numbers)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger file with an account, "people", which has room for several small fits."""
    made = Ledger(f"sqlite:///{tmp_path}/budget.db")
    made.open_account("people", epsilon=3.0, delta=1e-5)
    return made


@pytest.fixture
def few_rows_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether rows are few is no matter of chance: with a ledger the noise is secret, and one fit of 700 on no rows
    releases more than three standard deviations of them.
    """
    monkeypatch.setattr("dpgb_dask.contracts.plan.FEW_SD", 9)


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of two single-threaded workers in this process."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as connected,
    ):
        yield connected
