"""What warns while chunks are read is neither shown, as it may tell of a value, nor made an error by a filter."""

import threading
import warnings

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.private.reading.silence import SILENCE
from dpgb_dask.recipes import AUTO
from dpgb_dask.testing import SeededNoise

N = 60
TABLE = pd.DataFrame({"x": np.linspace(0, 1, N), "y": np.arange(N) % 2})
SCHEMA = Schema({"x": (0, 1)}, classes=[0, 1], target="y")


def aloud(part):
    warnings.warn(f"secret-value-{part['x'].max()}", stacklevel=1)
    return part


def by_functions(_tmp):
    return dd.from_pandas(TABLE, npartitions=3).map_partitions(aloud, meta=TABLE[:0])


def by_functions_of_all_rows(_tmp):
    """Each chunk needs the mean, so that what warns is a task of its own."""
    frame = by_functions(_tmp)
    return frame.assign(x=frame["x"] - frame["x"].mean())


def by_parquet(tmp):
    """With pandas 3 Dask warns where it leaves out an index."""
    for k in range(3):
        TABLE[k * 20 : k * 20 + 20].to_parquet(tmp / f"{k}.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dd.read_parquet(tmp, index=False)


def fit(frame, **settings):
    settings |= {"noise": SeededNoise(0), "on_few_rows": "continue", "recipe": AUTO.brief()}
    DPGBClassifier(schema=SCHEMA, **settings).fit(frame[["x"]], frame["y"])


@pytest.mark.parametrize("limit", [None, "1 GB"])
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("made", [by_functions, by_functions_of_all_rows, by_parquet])
def test_a_warning_is_neither_shown_nor_an_error(made, cluster, limit, tmp_path, request):
    frame = made(tmp_path)
    if cluster:
        request.getfixturevalue("client")
    for action in ("error", "always"):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter(action)
            fit(frame, memory_limit=limit)
        assert [w for w in shown if "secret" in str(w.message) or "inplace" in str(w.message)] == []


@pytest.fixture(scope="module")
def client():
    with Client(
        processes=False, n_workers=1, threads_per_worker=2, dashboard_address=":0"
    ) as client:
        yield client


def test_filters_come_back_when_the_last_thread_leaves():
    before = list(warnings.filters)
    inside, leave = threading.Event(), threading.Event()

    def stay():
        with SILENCE:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    with SILENCE:
        thread.start()
        inside.wait()
    warnings.warn("not shown, as a thread is inside", stacklevel=1)
    leave.set()
    thread.join()
    assert list(warnings.filters) == before
    with pytest.raises(UserWarning, match="shown"), SILENCE, SILENCE:
        raise UserWarning("shown")
    assert list(warnings.filters) == before
