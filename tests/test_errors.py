"""Foreign errors: whatever fails on rows, and wherever, our error gives only its type."""

import gc
import logging
import threading
import traceback
import weakref
from contextlib import suppress
from pathlib import Path
from unittest import mock

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from dpgb_dask import DPGBClassifier, Schema, cli
from dpgb_dask.encoding.codes import encode
from dpgb_dask.errors import (
    ChunkError,
    DPGBError,
    PrivacyLeakWarning,
    RowsError,
    SchemaError,
    did_you_mean,
    in_our_words,
    kind_of,
    rows_failed,
)
from dpgb_dask.io import open_dataset, write_dataset
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.testing import SeededNoise

SECRET = "Jane Doe has 4711081514"
SCHEMA = Schema({"a": (0, 1), "c": ["u", "v"]}, classes=[0, 1], max_weight=2)
UNITS = Schema({"a": (0, 1), "c": ["u", "v"]}, classes=[0, 1], unit_id="person")


class BombError(Exception):
    """What a library raises; it quotes a value."""


def explode(*_args, **_options):
    try:
        raise MemoryError(f"Unable to allocate an array with shape (4711081514,): {SECRET}")
    except MemoryError as error:
        error.add_note(SECRET)
        raise BombError(SECRET) from error


def short_of_memory(*_args, **_options):
    raise MemoryError("Unable to allocate an array with shape (4711081514,)")


def rows(n=600):
    rng = np.random.default_rng(0)
    a = rng.random(n)
    frame = pd.DataFrame({"a": a, "c": rng.choice(["u", "v"], n), "person": np.arange(n) // 2})
    frame["target"] = (a > 0.5).astype(int)
    return frame


def model(schema=SCHEMA, **options):
    common = {"noise": SeededNoise(0), "recipe": "fdp-tr-newton", "n_estimators": 2}
    return DPGBClassifier(schema=schema, epsilon=2.0, **(common | options))


def fit_in_memory(_tmp, weight=None, schema=SCHEMA):
    table = rows() if schema is UNITS else rows().drop(columns="person")
    model(schema).fit(table.drop(columns="target"), table["target"], sample_weight=weight)


def fit_weighted(tmp):
    fit_in_memory(tmp, np.ones(600))


def fit_units(tmp):
    fit_in_memory(tmp, schema=UNITS)


def fit_auto(_tmp):
    table = rows().drop(columns="person")
    model(recipe="auto").fit(table.drop(columns="target"), table["target"])


def fit_less_its_mean(_tmp):
    table = dd.from_pandas(rows(), npartitions=3, sort=False)
    table = table.assign(a=table.a - table.a.mean())
    model().fit(table[["a", "c"]], table["target"])


def fit_lazily(_tmp):
    table = dd.from_pandas(rows().drop(columns="person"), npartitions=3, sort=False)
    model().fit(table[["a", "c"]], table["target"])


def write(tmp):
    write_dataset(tmp / "d.zarr", rows().drop(columns="person"), schema=SCHEMA)


def write_lazily(tmp):
    table = dd.from_pandas(rows().drop(columns="person"), npartitions=3, sort=False)
    write_dataset(tmp / "d.zarr", table, schema=SCHEMA)


def predict(_tmp):
    table = rows()[["a", "c"]]
    with mock.patch("dpgb_dask.released.predict.encode", ENCODE):
        fitted = model().fit(table, rows()["target"])
    fitted.predict_proba(table)


ENCODE = encode
LOCAL, CHUNKS = "dpgb_dask.private.rounds.local", "dpgb_dask.private.reading.chunks"
SHARED = "dpgb_dask.private.reading.shared_tasks"
PLACES = [
    (fit_in_memory, "dpgb_dask.private.reading.ingest._select"),
    (fit_in_memory, "dpgb_dask.private.reading.ingest._memory_chunks"),
    (fit_in_memory, f"{SHARED}.tasks_of"),
    (fit_in_memory, f"{SHARED}.Pass.load"),
    (fit_in_memory, f"{SHARED}.line_up"),
    (fit_lazily, f"{LOCAL}.add_surveys"),
    (fit_in_memory, f"{LOCAL}.Surveyed"),
    (fit_in_memory, f"{LOCAL}.join_encoded"),
    (fit_in_memory, "dpgb_dask.private.rounds.sealed.sensitivity"),
    (fit_in_memory, f"{CHUNKS}.read_values"),
    (fit_in_memory, f"{CHUNKS}.encode_target"),
    (fit_in_memory, f"{CHUNKS}.fingerprint_rows"),
    (fit_in_memory, f"{CHUNKS}.cells_of"),
    (fit_in_memory, f"{CHUNKS}.encode_values"),
    (fit_in_memory, "dpgb_dask.private.answering.shards.Shard.answer"),
    (fit_in_memory, "dpgb_dask.private.answering.shards.Scores"),
    (fit_weighted, f"{CHUNKS}.encode_weight"),
    (fit_units, f"{LOCAL}.count_units"),
    (fit_units, f"{LOCAL}.add_unit_counts"),
    (fit_units, f"{CHUNKS}.hash_units"),
    (fit_auto, f"{LOCAL}.LocalRounds._sums"),
    (fit_lazily, "dpgb_dask.private.reading.ingest._frame_chunks"),
    (fit_lazily, "dpgb_dask.private.reading.ingest.rows_of"),
    (fit_lazily, f"{SHARED}.get_sync"),
    (fit_less_its_mean, f"{LOCAL}.get_async"),
    (write, "dpgb_dask.io.writing.store_form"),
    (write, "dpgb_dask.io.writing.line_up"),
    (write, "zarr.Array.__setitem__"),
    (write_lazily, "dpgb_dask.io.writing.store_form"),
    (write_lazily, "dpgb_dask.private.reading.ingest.rows_of"),
    (write_lazily, "zarr.Array.__setitem__"),
    (predict, "dpgb_dask.released.predict.encode"),
    (predict, "dpgb_dask.encoding.codes.split_columns"),
]


def check_says_nothing(error):
    """Check that an error, all that it was raised from, and all that Python would print hold no secret and no count."""
    assert isinstance(error, DPGBError)
    assert error.__cause__ is None
    assert error.__context__ is None
    said = [str(error), repr(error), *getattr(error, "__notes__", [])]
    said += [str(value) for value in error.args]
    said += traceback.format_exception(error)
    for text in said:
        assert "Jane" not in text
        assert "4711081514" not in text
    assert not any(c.isdigit() for c in str(error))


# one of the two at each place; both of them at every place are slow
BOMBS = [
    pytest.param(work, place, bomb, marks=() if (k + j) % 2 == 0 else pytest.mark.slow)
    for k, (work, place) in enumerate(PLACES)
    for j, bomb in enumerate((explode, short_of_memory))
]


@pytest.mark.parametrize(("work", "place", "bomb"), BOMBS)
def test_what_fails_on_rows_says_no_word(work, place, bomb, tmp_path, caplog):
    with (
        dask.config.set(scheduler="sync"),
        caplog.at_level(logging.DEBUG),
        mock.patch(place, bomb),
        pytest.raises(DPGBError) as info,
    ):
        work(tmp_path)
    check_says_nothing(info.value)
    assert ("BombError" if bomb is explode else "MemoryError") in str(info.value)
    assert "Jane" not in caplog.text
    assert "4711081514" not in caplog.text


@pytest.mark.parametrize("kind", ["frame", "array", "target", "OSError"])
@pytest.mark.parametrize("work", ["fit", "write"])
def test_a_source_that_fails_says_neither_chunk_nor_value(kind, work, tmp_path):
    """Not even an error of the system is repeated: a reader may put a value where a file's name belongs."""

    def part(k):
        if k == 2:
            raise OSError(13, SECRET, SECRET) if kind == "OSError" else BombError(SECRET)
        return rows().drop(columns="person").iloc[200 * k : 200 * (k + 1)]

    frame = dd.from_map(part, range(3), meta=rows()[:0].drop(columns="person"))
    x, y = frame[["a", "c"]], frame["target"]
    if kind == "array":
        x, y = x.to_dask_array(), y.to_dask_array()
    elif kind == "target":
        y = y.to_dask_array()
    run = {
        "fit": lambda: model().fit(x, y),
        "write": lambda: write_dataset(tmp_path / "d.zarr", x, y, schema=SCHEMA),
    }
    with dask.config.set(scheduler="sync"), pytest.raises(ChunkError) as info:
        run[work]()
    check_says_nothing(info.value)


@pytest.mark.parametrize("backend", ["tasks", "comms"])
def test_what_fails_on_workers_says_no_word(backend, client, caplog):
    assert client is not None
    frame = dd.from_pandas(rows().drop(columns="person"), npartitions=3, sort=False)
    for place in (
        "dpgb_dask.private.answering.shards.Shard.answer",
        f"{CHUNKS}.read_values",
        "dpgb_dask.private.rounds.worker_tasks.join_encoded",
        "dpgb_dask.private.rounds.tasks.add_surveys",
        "dpgb_dask.private.rounds.sealed.sensitivity",
    ):
        with (
            dask.config.set({"dpgb-dask.backend": backend}),
            caplog.at_level(logging.DEBUG, "dpgb_dask"),
            mock.patch(place, explode),
            pytest.raises(DPGBError) as info,
        ):
            model().fit(frame[["a", "c"]], frame["target"])
        check_says_nothing(info.value)
        assert "Jane" not in caplog.text


def test_interrupting_keeps_no_context():
    @in_our_words()
    def interrupted():
        try:
            explode()
        except BombError:
            raise KeyboardInterrupt  # noqa: B904

    with pytest.raises(KeyboardInterrupt) as info:
        interrupted()
    assert info.value.__context__ is None


def test_rows_of_an_error_do_not_live_on():
    """A traceback holds the frames that it passed, and they what they were called with."""

    class Block:
        pass

    @in_our_words()
    def fail(_block):
        explode()

    block = Block()
    seen = weakref.ref(block)
    gc.disable()
    try:
        with suppress(RowsError):
            fail(block)
        del block
        assert seen() is None
    finally:
        gc.enable()


def test_the_system_is_named_by_its_code():
    assert kind_of(OSError(28, SECRET)) == "OSError (ENOSPC)"
    assert kind_of(OSError(4711, SECRET)) == "OSError"
    assert kind_of(ValueError(SECRET)) == "ValueError"


def test_the_command_line_says_no_word_of_what_it_does_not_know(tmp_path, capsys):
    with mock.patch("dpgb_dask.cli.model.load", explode):
        assert cli.main(["report", str(tmp_path / "m.json")]) == 1
    printed = capsys.readouterr().err
    assert "BombError" in printed
    assert "Jane" not in printed


def test_a_data_set_that_is_damaged_says_no_value(tmp_path):
    write_dataset(tmp_path / "d.zarr", rows().drop(columns="person"), schema=SCHEMA)
    data = open_dataset(tmp_path / "d.zarr")
    with (
        dask.config.set(scheduler="sync"),
        mock.patch("dpgb_dask.io.rows._categorical", explode),
        pytest.raises(DPGBError) as info,
    ):
        model(data.schema).fit(data.X, data.y)
    check_says_nothing(info.value)


def test_callbacks_may_raise_what_they_like():
    """It is the caller's own, and holds what was released."""
    table = rows().drop(columns="person")
    with pytest.raises(BombError, match="Jane"):
        model(callbacks=[explode]).fit(table[["a", "c"]], table["target"])


def test_every_back_end_is_held_to_it():
    for name in ("ask", "fingerprint"):
        assert hasattr(getattr(LocalRounds, name), "__wrapped__")


# ---- names -----------------------------------------------------------------------------------------------------------

NAME = "Jane Doe"


def with_names(kind, tmp):
    """Tables with a column whose name is a value: of a file without a header, of columns that were made of values."""
    table = rows(60)[["a", "c"]].assign(**{NAME: 1.0})
    if kind == "NumPy strings":
        return table.rename(columns=np.str_)
    if kind == "Dask":
        return dd.from_pandas(table, npartitions=2)
    if kind == "DataArray":
        numbers = table.assign(c=0.0).to_numpy(np.float64)
        return xr.DataArray(numbers, dims=("row", "column"), coords={"column": list(table.columns)})
    if kind == "Dataset":
        return xr.Dataset({name: ("row", table[name].to_numpy()) for name in table.columns})
    if kind == "Zarr":
        group = zarr.create_group(tmp / "names.zarr")
        for name in table.columns:
            group.create_array(name, data=np.zeros(60), chunks=(60,))
        return group
    if kind == "twice":
        table.columns = ["a", "a", NAME]
    if kind == "tuples":
        table.columns = [("a", NAME), ("c", NAME), ("d", NAME)]
    if kind == "lacks":
        return table.drop(columns="a")
    return table


KINDS = (
    "pandas",
    "NumPy strings",
    "Dask",
    "DataArray",
    "Dataset",
    "Zarr",
    "twice",
    "tuples",
    "lacks",
)


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("work", ["fit", "predict", "write"])
def test_only_names_of_the_schema_are_said(kind, work, tmp_path):
    bad = with_names(kind, tmp_path)
    schema = Schema({"a": (0, 1), "c": ["u", "v"]}, classes=[0, 1])
    y = rows(60)["target"]
    fitted = model(schema).fit(rows(60)[["a", "c"]], y)
    run = {
        "fit": lambda: model(schema).fit(bad, y),
        "predict": lambda: fitted.predict(bad),
        "write": lambda: write_dataset(tmp_path / "d.zarr", bad, y, schema=schema),
    }
    with pytest.raises(DPGBError) as info:
        run[work]()
    assert "Jane" not in str(info.value)
    assert kind == "tuples" or "do not match the schema" in str(info.value)


def test_a_file_without_a_header_is_told_without_its_first_row(tmp_path, capsys, monkeypatch):
    # an error names the file, and the path of a temporary folder holds numbers of its own
    monkeypatch.chdir(tmp_path)
    SCHEMA.save("s.json")
    Path("d.csv").write_text("39,State-gov,Jane Doe\n50,Private,John Roe\n")
    model().fit(rows()[["a", "c"]], rows()["target"]).save("m.json")
    budget = ("--epsilon", "1", "--delta", "1e-6")
    for command in (
        ["fit", "d.csv", "--schema", "s.json", *budget, "--out", "x.json"],
        ["predict", "m.json", "d.csv", "--out", "o"],
        ["convert", "d.csv", "--schema", "s.json", "--out", "d.zarr"],
    ):
        assert cli.main(command) == 1
        printed = capsys.readouterr().err
        for word in ("Jane", "State-gov", "39"):
            assert word not in printed
        assert "missing=['a', 'c']" in printed or "'target'" in printed


@pytest.mark.parametrize("beside", [[], ["note"]], ids=["all", "some"])
def test_columns_made_of_values_partition_by_partition(beside):
    """One row of another partition makes a column, or does not: neither ends the fit, nor is it named.

    With a column beside the features Dask takes them from each partition.
    """
    schema = Schema(
        {"a": (0, 1), "job_x": (0, 1), "job_y": (0, 1)}, classes=[0, 1], ignore=["note"]
    )

    def part(k, jobs):
        frame = pd.DataFrame({"a": np.linspace(0, 1, 30), "job": (jobs[k] * 30)[:30]})
        return pd.get_dummies(frame, columns=["job"], dtype=float).assign(
            **dict.fromkeys(beside, 1)
        )

    y = dd.from_pandas(pd.Series(np.arange(60) % 2), npartitions=2, sort=False)
    models = []
    for second in (["y", "x"], ["x"], ["x", "y", "Prime Minister"]):
        jobs = (["x", "y"], second)
        table = dd.from_map(part, [0, 1], jobs=jobs, meta=part(0, jobs)[:0])
        with dask.config.set(scheduler="sync"):
            models.append(model(schema).fit(table, y))
    assert len(models) == 3


TWO_PARTS = dd.from_pandas(pd.Series(np.arange(60) % 2, name="y"), npartitions=2, sort=False)


@pytest.mark.parametrize("labels", [["blue", "red"], [0, 1]], ids=["named", "numbered"])
def test_a_partition_may_lack_any_column_that_is_made_of_values(labels):
    """Numbers are labels, too: of columns 0 and 1, a partition that has only 1 lacks 0."""
    schema = Schema({"blue": (0, 1), "red": (0, 1)}, classes=[0, 1])

    def part(cells):
        return pd.get_dummies(pd.Series(cells, dtype=object), dtype=float)

    first, models = labels * 15, []
    for second in (first, labels[1:] * 30, [None] * 30, ([None, *labels, "other"] * 8)[:30]):
        table = dd.from_map(part, [first, second], meta=part(labels)[:0], enforce_metadata=False)
        with dask.config.set(scheduler="sync"):
            models.append(model(schema).fit(table, TWO_PARTS))
    assert len(models) == 4


WAYS = {
    "all": lambda table, _: table,
    "chosen": lambda table, labels: table[labels],
    "dropped": lambda table, _: table.drop(columns="y"),
    "one by one": lambda table, labels: dd.concat([table[[name]] for name in labels], axis=1),
    "assigned": lambda table, labels: table[labels].assign(
        **{f"{labels[0]}": table[labels[0]] * 1}
    ),
}


@pytest.mark.parametrize("enforced", [True, False])
@pytest.mark.parametrize(
    ("labels", "way"),
    [
        *((["blue", "red"], way) for way in WAYS),
        *(([0, 1], way) for way in ("all", "chosen", "one by one")),
    ],
)
def test_columns_that_values_make_count_as_missing_where_dask_compares_or_chooses(
    labels, enforced, way
):
    """One row decides whether a partition has a column; the others are read as they are with it."""
    schema = Schema({"blue": (0, 1), "red": (0, 1)}, classes=[0, 1])

    def part(cells):
        made = pd.get_dummies(cells["color"], dtype=float)
        return made if "y" not in cells or way != "dropped" else made.assign(y=cells["y"])

    first, models = labels * 15, []
    for second in (first, labels[1:] * 30, [*labels[1:] * 29, None], [None] * 30, ["other"] * 30):
        given = pd.DataFrame({"color": pd.Series([*first, *second], dtype=object), "y": 0.0})
        meta = part(pd.DataFrame({"color": pd.Series(labels, dtype=object), "y": 0.0}))[:0]
        how = {"meta": meta, "enforce_metadata": enforced}
        table = dd.from_pandas(given, npartitions=2, sort=False).map_partitions(part, **how)
        with dask.config.set(scheduler="sync"):
            models.append(model(schema, random_state=0).fit(WAYS[way](table, labels), TWO_PARTS))
    chances = [one.predict_proba(np.array([[0.0, 1.0], [1.0, 0.0]])) for one in models[1:3]]
    assert len(models) == 5
    assert np.isfinite(chances).all()


def test_numbered_columns_of_a_partition_are_found_by_their_numbers():
    given = rows(60)[["a", "c"]]
    table = given.set_axis([0, 1], axis=1)
    other = dd.concat([dd.from_pandas(table[:30]), dd.from_pandas(table[30:])])
    turned = dd.from_map(
        lambda k: table[30 * k : 30 * k + 30][[1, 0] if k else [0, 1]],
        [0, 1],
        meta=table[:0],
        enforce_metadata=False,
    )
    with dask.config.set(scheduler="sync"):
        fitted = [
            model(random_state=0).fit(X, TWO_PARTS).predict_proba(given) for X in (other, turned)
        ]
    np.testing.assert_array_equal(*fitted)


@pytest.mark.parametrize("name", ["unit", "target", "weight"])
def test_a_partition_may_lack_the_column_of_units_targets_or_weights(name):
    """As it may lack a feature: its rows then have no unit, no target or no weight, and none ends the fit."""
    more = {"unit_id": "unit"} if name == "unit" else {"max_weight": 2}
    schema = Schema({"a": (0, 1)}, classes=[0, 1], **more)

    both = pd.DataFrame({"a": np.linspace(0, 1, 30), name: np.arange(30) % 2})

    def part(k, columns, lacking):
        return both[[c for c in columns if c == "a" or k not in lacking]]

    def table(columns, lacking):
        how = {"columns": columns, "lacking": lacking, "meta": both[columns][:0]}
        return dd.from_map(part, [0, 1], **how, enforce_metadata=False)

    models = []
    for lacking in ((), (1,), (0, 1)):
        X, other = table(["a"], ()), table([name], lacking)
        with dask.config.set(scheduler="sync"):
            if name == "unit":
                models.append(model(schema).fit(table(["a", name], lacking), TWO_PARTS))
            elif name == "target":
                models.append(model(schema).fit(X, other))
            else:
                models.append(model(schema).fit(X, TWO_PARTS, sample_weight=other))
    assert len(models) == 3


def test_what_is_inferred_keeps_the_words_of_scikit_learn():
    table = rows(60)[["a"]]
    with pytest.warns(PrivacyLeakWarning):
        fitted = DPGBClassifier(schema="infer", recipe="fdp-tr-newton", n_estimators=1).fit(
            table, rows(60)["target"]
        )
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(table.rename(columns={"a": NAME}))


def test_a_unit_column_that_is_there_twice_is_refused():
    table = rows()[["a", "c", "person", "person"]]
    with pytest.raises(SchemaError, match=r"\['person'\] are there twice"):
        model(UNITS).fit(table, rows()["target"])


def test_work_on_rows_that_outlives_the_main_thread_says_so(monkeypatch):
    assert "main thread" not in str(rows_failed("RuntimeError"))
    ended = threading.Thread()
    monkeypatch.setattr(threading, "main_thread", lambda: ended)
    assert "(join)" in str(rows_failed("RuntimeError"))


def test_a_date_is_answered_with_its_parts():
    known = ["pay", "day.days", "day.month", "day.days & pay"]
    assert (
        did_you_mean("day", known) == " Did you mean one of its parts, ['day.days', 'day.month']?"
    )
    assert did_you_mean("pai", known) == " Did you mean 'pay'?"
    assert did_you_mean("x", iter(known)) == ""
