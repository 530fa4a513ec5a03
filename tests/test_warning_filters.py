"""What warns while rows are read is neither shown, as it may tell of a value, nor made an error by a filter."""

import threading
import warnings
from itertools import product

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from thinned import one_of_each

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.errors import PrivacyLeakWarning
from dpgb_dask.private.reading.ingest import check_inputs, source_of
from dpgb_dask.private.rounds.worker_tasks import Encoding
from dpgb_dask.recipes import AUTO
from dpgb_dask.testing import SeededNoise
from dpgb_dask.warning_filters import ERRORS, OURS, SILENCE

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


@pytest.mark.parametrize(
    ("cluster", "made", "limit"),
    one_of_each(
        product(
            product([False, True], [by_functions, by_functions_of_all_rows, by_parquet]),
            [None, "1 GB"],
        )
    ),
)
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


@pytest.mark.parametrize(
    "work",
    [lambda f: f.set_index("x", drop=False), lambda f: f.repartition(partition_size="1kB")],
    ids=["set_index", "partition_size"],
)
def test_what_warns_while_dask_lines_up_partitions_is_not_shown(work):
    """Such as for a check: a fit refuses what it would have to see rows of before the charge."""
    seen = []

    def looked_at(part):
        seen.append(len(part))
        return aloud(part)

    frame = work(dd.from_pandas(TABLE, npartitions=3).map_partitions(looked_at, meta=TABLE[:0]))
    X, y = frame[["x"]], frame["y"]
    for action in ("error", "always"):
        # not on the tests' own cluster: in its process Python 3.11 locks what Dask caches
        with (
            dask.config.set(scheduler="sync"),
            warnings.catch_warnings(record=True) as shown,
        ):
            warnings.simplefilter(action)
            source_of(check_inputs(X, y, None, SCHEMA), SCHEMA)
        assert [w for w in shown if "secret" in str(w.message)] == []
    assert sum(seen)


@pytest.mark.parametrize("cluster", [False, True])
def test_what_warns_while_rows_are_encoded_is_not_shown(cluster, request, monkeypatch):
    encode = Encoding.encode

    def aloud_too(self, rows, number):
        warnings.warn(f"secret-value-{number}", stacklevel=1)
        return encode(self, rows, number)

    monkeypatch.setattr(Encoding, "encode", aloud_too)
    if cluster:
        request.getfixturevalue("client")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        fit(dd.from_pandas(TABLE, npartitions=3))
    assert [w for w in shown if "secret" in str(w.message)] == []


class Other(threading.Thread):
    """A thread that does one thing after another, each when it is told to."""

    def __init__(self, *things):
        super().__init__()
        self._things = things
        self._go = [threading.Event() for _ in things]
        self._done = [threading.Event() for _ in things]
        self.start()

    def run(self):
        for go, thing, done in zip(self._go, self._things, self._done, strict=True):
            go.wait()
            thing()
            done.set()

    def do_next(self):
        go, done = next(
            pair for pair in zip(self._go, self._done, strict=True) if not pair[0].is_set()
        )
        go.set()
        done.wait()


def shown_of(message):
    """Whether a warning is shown, by the filters in force, however often it came before."""
    try:
        with pytest.warns(UserWarning, match=message):
            warnings.warn(message, stacklevel=1)
    except pytest.fail.Exception:
        return False
    return True


@pytest.fixture
def as_before():
    """The filters of the tests, also after one whose threads leave `catch_warnings` crosswise."""
    with SILENCE:
        pass  # a list of before the library's import, as pytest puts back, has the filters from here on
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        filters = warnings.filters
        yield
        warnings.filters = filters
        warnings.simplefilter("always")


@pytest.mark.usefixtures("as_before")
def test_another_thread_that_enters_inside_and_leaves_after_leaves_no_silence():
    caught = warnings.catch_warnings()
    other = Other(caught.__enter__, lambda: caught.__exit__(None, None, None))
    with SILENCE:
        other.do_next()
        assert not shown_of("inside")
    assert shown_of("between")
    other.do_next()
    assert shown_of("after")


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("action", ["error", "always"])
def test_another_thread_that_leaves_inside_or_adds_a_filter_makes_nothing_loud(action):
    caught = warnings.catch_warnings()
    other = Other(
        caught.__enter__,
        lambda: warnings.simplefilter(action),
        lambda: caught.__exit__(None, None, None),
        lambda: warnings.filterwarnings(action, "a value"),
    )
    other.do_next()
    with SILENCE:
        for _ in range(3):
            assert not shown_of("a value")
            warnings.warn("a value", stacklevel=1)  # no error either
            other.do_next()
        assert not shown_of("a value")


@pytest.mark.usefixtures("as_before")
def test_filters_that_were_taken_away_are_back_with_the_next_chunk():
    for clear in (warnings.resetwarnings, lambda: setattr(warnings, "filters", [])):
        clear()
        warnings.simplefilter("error")
        with SILENCE:
            warnings.warn("a value", stacklevel=1)
        assert warnings.filters[: len(OURS)] == OURS
        with pytest.raises(UserWarning, match="a value"):
            warnings.warn("a value", stacklevel=1)


def test_all_threads_are_silent_until_the_last_one_leaves():
    inside, leave = threading.Event(), threading.Event()

    def stay():
        with SILENCE:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    with SILENCE:
        thread.start()
        inside.wait()
    assert not shown_of("as a thread is inside")
    leave.set()
    thread.join()
    assert shown_of("by none")
    with pytest.raises(UserWarning, match="left by an error"), SILENCE, SILENCE:
        raise UserWarning("left by an error")
    assert shown_of("by none")


def test_warnings_of_this_library_are_shown_while_another_thread_reads():
    with SILENCE, pytest.warns(PrivacyLeakWarning):
        warnings.warn("told", PrivacyLeakWarning, stacklevel=1)


def test_errors_are_those_of_one_thread():
    found = []

    def warn():
        warnings.warn("of another thread", stacklevel=1)
        found.append("no error")

    other = Other(warn)
    with SILENCE, ERRORS:
        other.do_next()
        warnings.warn("of versions", DeprecationWarning, stacklevel=1)
        with pytest.raises(RuntimeWarning):
            warnings.warn("of a value", RuntimeWarning, stacklevel=1)
    assert found == ["no error"]
    assert shown_of("no error any more")
