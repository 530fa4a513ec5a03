"""What a cluster loads: collections that Dask shuffles or rechunks, readers that fail, values that hold others."""

import logging

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from distributed import Client
from thinned import thinned

from dpgb_dask import ChunkError, DPGBClassifier, Ledger, Schema, StructureError
from dpgb_dask.recipes import AUTO
from dpgb_dask.testing import SeededNoise

N = 300
PEOPLE = pd.DataFrame(
    {
        "a": np.linspace(0, 10, N),
        "c": np.resize(["x", "y", "z"], N).astype(object),
        "k": np.arange(N) % 7,
        "y": np.arange(N) // 20 % 2,
    }
)
SCHEMA = Schema({"a": (0, 10), "c": ["x", "y", "z"]}, classes=[0, 1], target="y")
SETTINGS = {
    "on_few_rows": "continue",
    "recipe": AUTO.brief(),
    "noise": SeededNoise(0),
    "random_state": 0,
}


@pytest.fixture(scope="module", autouse=True)
def client():
    with Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0"
    ) as client:
        yield client


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/b.db")
    ledger.open_account("a", epsilon=3, delta=1e-6)
    return ledger


def fitted(X, y, schema=SCHEMA, sample_weight=None, **settings):
    model = DPGBClassifier(schema=schema, columns="position", **SETTINGS | settings)
    return model.fit(X, y, sample_weight)


def charged(ledger, X, y, sample_weight=None):
    paid = {"epsilon": 1, "delta": 1e-7, "noise": None, "ledger": ledger, "account": "a"}
    return fitted(X, y, sample_weight=sample_weight, **paid)


def scores(table):
    return fitted(table[["a", "c"]], table["y"]).decision_function(PEOPLE[["a", "c"]])


def in_parts():
    return dd.from_pandas(PEOPLE, npartitions=4)


def without_k(part):
    return part[["a", "c", "y"]]


SHUFFLED = {
    "shuffle": lambda: in_parts().shuffle("k"),
    "set_index": lambda: in_parts().set_index("a", drop=False, divisions=[0, 2, 5, 10]),
    "to one partition": lambda: in_parts().set_index("a", drop=False, npartitions=1),
    "merge": lambda: in_parts()[["a", "k"]].merge(in_parts()[["a", "c", "y"]], on="a"),
    "groupby": lambda: in_parts().groupby("k").apply(without_k, meta=without_k(PEOPLE[:0])),
}


@pytest.mark.parametrize("name", thinned([*SHUFFLED], every=2))
def test_a_frame_that_dask_shuffles_is_read(name):
    """By default Dask does so by its P2P method, whose tasks know each other by their keys."""
    np.testing.assert_array_equal(scores(SHUFFLED[name]()), scores(PEOPLE))


NUMBERS = np.random.default_rng(0).random((N, 12))
OF_NUMBERS = Schema({f"x{k}": (0, 1) for k in range(12)}, classes=[0, 1], target="y")


def test_an_array_that_dask_rechunks_is_read():
    x, y = da.from_array(NUMBERS, chunks=(N, 1)), PEOPLE["y"].to_numpy()
    want = fitted(NUMBERS, y, OF_NUMBERS).decision_function(NUMBERS)
    for method in ("p2p", "tasks", None):
        both = x.rechunk((40, 5), method=method), da.from_array(y, 100).rechunk(40, method=method)
        got = fitted(*both, OF_NUMBERS).decision_function(NUMBERS)
        np.testing.assert_array_equal(got, want)


def of_delayed():
    parts = in_parts().shuffle("k").to_delayed()
    table = dd.from_delayed(parts, meta=PEOPLE[:0])
    return table[["a", "c"]], table["y"]


def of_array():
    values = in_parts()[["a", "k", "y"]].shuffle("k").to_dask_array()
    return values[:, :2], values[:, 2]


@pytest.mark.parametrize("made", [of_delayed, of_array])
def test_tasks_that_know_each_other_are_refused_before_the_charge(made, ledger):
    with pytest.raises(StructureError, match=r"P2P .*dask\.config\.set\(\{.*persist") as caught:
        charged(ledger, *made())
    assert caught.value.__cause__ is None
    assert list(ledger.fits("a")) == []
    with dask.config.set({"dataframe.shuffle.method": "tasks", "array.rechunk.method": "tasks"}):
        X, y = made()
    if made is of_delayed:
        np.testing.assert_array_equal(
            fitted(X, y).decision_function(PEOPLE[["a", "c"]]), scores(PEOPLE)
        )


DIVIDED_BY_ROWS = {
    "set_index": lambda f: f.set_index("a", drop=False),
    "parts of it": lambda f: f.set_index("a", drop=False, npartitions=3).partitions[:2],
    "sort_values": lambda f: f.sort_values("a"),
    "partition_size": lambda f: f.repartition(partition_size="1kB"),
    "twice": lambda f: f.repartition(partition_size="1kB").set_index("a", drop=False),
    "of one": lambda f: f.repartition(npartitions=1).set_index("a", drop=False, npartitions=3),
    "beside itself": lambda f: dd.concat(
        [(c := f.repartition(partition_size="1kB")).set_index("a", drop=False), c]
    ),
    "after itself": lambda f: dd.concat([c := f.sort_values("a"), c.set_index("a", drop=False)]),
}


READ = []  # in a module, which workers of this process share


def seen(part):
    READ.append(len(part))
    return part


@pytest.mark.parametrize("of", ["X", "y", "sample_weight"])
@pytest.mark.parametrize("name", DIVIDED_BY_ROWS)
def test_what_dask_would_read_to_tell_partitions_is_refused_before_the_charge(name, of, ledger):
    plain = in_parts()
    table = DIVIDED_BY_ROWS[name](plain.map_partitions(seen, meta=PEOPLE[:0]))
    READ.clear()
    given = {"X": plain[["a", "c"]], "y": plain["y"], "sample_weight": plain["a"]}
    given[of] = {"X": table[["a", "c"]], "y": table["y"], "sample_weight": table["a"]}[of]
    with pytest.raises(StructureError, match=rf"partitions of {of}, .*divisions=.*persist\(\)"):
        charged(ledger, **given)
    assert list(ledger.fits("a")) == []
    assert READ == []


LEDGERS, CHARGED = [], []  # as above


def part_of(k):
    CHARGED.append(bool(list(LEDGERS[-1].fits("a"))))
    return PEOPLE[k * 100 : k * 100 + 100].assign(more=1)


def columns_of(k, columns=None):
    return part_of(k) if columns is None else part_of(k)[columns]


FROM_MAP = {
    "columns": lambda f: f,
    "a part": lambda f: f.partitions[:2],
    "an operation": lambda f: f[f["a"] > 1],
}


@pytest.mark.parametrize("function", [part_of, columns_of])
@pytest.mark.parametrize("change", FROM_MAP)
def test_the_columns_of_from_map_are_known_before_the_charge(function, change, ledger):
    """Dask makes the first partition to know them, and once more where it asks a function for some of them."""
    LEDGERS.append(ledger)
    made = dd.from_map(function, range(3))
    table = FROM_MAP[change](made)
    CHARGED.clear()
    given = table[["a", "c"]], table["y"]
    charged(ledger, *given)
    assert CHARGED
    assert all(CHARGED)
    (source,) = (node for node in made.expr.walk() if type(node).__name__.startswith("FromMap"))
    known = {
        name: vars(source).pop(name) for name in ("_meta", "frame_meta") if name in vars(source)
    }
    with pytest.raises(StructureError, match=r"columns of X, .*from_map\(…, meta=…\)"):
        charged(ledger, *given)  # as after pickling
    vars(source).update(known)
    assert len(list(ledger.fits("a"))) == 1


def failing(k):
    if k == 1:
        raise ValueError("secret-value-4711")
    return PEOPLE[k * 100 : k * 100 + 100]


@pytest.mark.parametrize("of_several", [False, True])
@pytest.mark.parametrize("limit", [None, "1 GB"])
def test_what_a_reader_says_is_in_no_log(of_several, limit, caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("distributed", "distributed.worker", "distributed.scheduler"):
        logging.getLogger(name).addHandler(caplog.handler)
    try:
        table = dd.from_map(failing, range(3), meta=PEOPLE[:0])
        if of_several:
            table = table.assign(a=table["a"] - table["a"].mean())
        with pytest.raises(
            ChunkError, match=r"failed to load: ValueError\..* load the rows without a fit"
        ) as caught:
            fitted(table[["a", "c"]], table["y"], memory_limit=limit)
        assert "secret" not in f"{caught.value!r} {caught.value.__context__!r}"
    finally:
        for name in ("distributed", "distributed.worker", "distributed.scheduler"):
            logging.getLogger(name).removeHandler(caplog.handler)
    assert "dpgb-" in caplog.text
    assert "secret" not in caplog.text


def nested(depth):
    value = ("x",)
    for _ in range(depth):
        value = (value, value)
    return value


def test_a_value_that_holds_others_again_and_again_takes_no_time():
    """Dask adds up the sizes of what tuples hold: of one that holds another twice, and so on, for ever."""
    table = PEOPLE[:20].copy()
    table["c"] = pd.Series([nested(60), *table["c"][1:]], dtype=object)
    want = table.assign(c=["other", *table["c"][1:]])
    np.testing.assert_array_equal(scores(table), scores(want))


NEIGHBOURS = {
    "partitions": lambda table: table.repartition(npartitions=3),
    "shuffle": lambda table: table.shuffle("k", npartitions=3),
}


@pytest.mark.parametrize("made", NEIGHBOURS)
def test_such_a_value_in_what_several_chunks_need_takes_no_time(made):
    table = PEOPLE[:20].copy()
    table["c"] = pd.Series([nested(60), *table["c"][1:19], nested(60)], dtype=object)

    def read(table):
        with dask.config.set(
            {"dataframe.shuffle.method": "tasks", "dataframe.convert-string": False}
        ):
            parts = dd.from_delayed([delayed(table[:10]), delayed(table[10:])], meta=table[:0])
            return scores(NEIGHBOURS[made](parts))

    want = read(table.assign(c=["other", *table["c"][1:19], "other"]))
    np.testing.assert_array_equal(read(table), want)


@pytest.mark.parametrize("form", ["frame", "array", "partitions"])
def test_types_of_partitions_are_not_compared(form):
    """One value makes a column of a partition one of objects, which is not what `meta` says."""
    odd = PEOPLE[:100].astype({"a": object})
    odd.loc[7, "a"] = "secret-value-4711"
    parts = [delayed(odd), *(delayed(PEOPLE[k : k + 100]) for k in (100, 200))]
    table = dd.from_delayed(parts, meta=PEOPLE[:0])[["a", "y"]]
    X, y = table[["a"]], table["y"]
    if form == "array":
        X, y = X.to_dask_array(), y.to_dask_array()
    if form == "partitions":
        X, y = (dd.from_delayed(part.to_delayed(), meta=part._meta) for part in (X, y))
    schema = Schema({"a": (0, 10)}, classes=[0, 1], target="y")
    got = fitted(X, y, schema).decision_function(PEOPLE[["a"]])
    want = fitted(PEOPLE[["a"]].assign(a=PEOPLE["a"].where(PEOPLE.index != 7)), PEOPLE["y"], schema)
    np.testing.assert_array_equal(got, want.decision_function(PEOPLE[["a"]]))
