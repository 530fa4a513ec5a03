"""Arrow: every type is read as its values are, or is refused by name before anything is charged."""

import argparse

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
from arrow_types import every_type, three_of
from pyarrow import parquet

from dpgb_dask import DPGBClassifier, Ledger, Schema
from dpgb_dask.cli.tables import open_table
from dpgb_dask.encoding.codes import encode_target, encode_weight, read_values
from dpgb_dask.encoding.columns import as_array, category_cells
from dpgb_dask.encoding.kinds import from_arrow
from dpgb_dask.errors import SchemaError, UnsupportedCollectionError
from dpgb_dask.lazy_decoding import total_values
from dpgb_dask.private.reading.units import distinct_names
from dpgb_dask.testing import SeededNoise

# Dask's own, where it reads Parquet
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")

KINDS = {
    "number": (0, 10),
    "category": ["aa", 1],
    "date": {"type": "datetime", "first": "2019-01-01", "last": "2021-01-01"},
    "bucket": {"buckets": 250},
    "group": {"from": {"aa": "g"}},
    "truth": bool,
}
SCHEMA = Schema(KINDS, classes=["aa", 1])
VIEWS = hasattr(pa, "string_view")


def as_pandas(values):
    """A column with its Arrow type, as a partition of a Dask DataFrame may have it."""
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([values, values])))


def as_everything(column):
    """A column read as each kind of feature, as target, weight and unit."""
    values = read_values(pd.DataFrame(dict.fromkeys(KINDS, column)), SCHEMA)
    label, valid = encode_target(column, SCHEMA)
    names, place = distinct_names(column)
    read = [values.column(j) for j in range(len(SCHEMA.encoded))]
    read += [label, valid, encode_weight(column, 2, 3)]
    return [*(one.tolist() for one in read), [names[k] for k in place]]


@pytest.mark.parametrize("kind", every_type(), ids=str)
def test_a_column_of_any_type_is_read_as_its_values_are(kind):
    values = three_of(kind)
    objects = pd.Series(values.to_pylist() * 2, dtype=object)
    told = repr(as_everything(objects))  # of lists with NaN
    assert repr(as_everything(as_pandas(values))) == told
    assert repr(as_everything(from_arrow(pa.chunked_array([values, values])))) == told
    part = as_everything(as_pandas(values)[1:5])
    assert repr(part) == repr([one[1:5] for one in as_everything(objects)])


@pytest.mark.parametrize("kind", every_type(), ids=str)
def test_a_variable_of_xarray_of_any_type_is_read_as_a_column_is(kind):
    """In memory, to predict too, and beside variables of Dask: of some types pandas makes no values of NumPy's."""
    column = as_pandas(three_of(kind))
    told = repr(as_everything(column))
    assert repr(as_everything(total_values(xr.DataArray(column.array, dims="row")))) == told
    assert repr(as_everything(as_array(column))) == told


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kolkata"])
@pytest.mark.parametrize("unit", ["s", "us"])
def test_listed_dates_beyond_pythons_are_read_as_others_are(unit, zone):
    far = np.array(
        ["29999-01-01", "9999-12-31T23:59", "2020-01-02", "NaT", "-0001-01-01"], f"M8[{unit}]"
    )
    plain = pa.array(far).cast(pa.timestamp(unit, zone))
    names = as_everything(as_pandas(plain))
    assert None not in names[-1][:3]
    assert repr(as_everything(as_pandas(plain.dictionary_encode()))) == repr(names)


def test_a_data_set_of_variables_in_memory_and_of_dask_is_read():
    days = pa.array(np.array(["2020-01-02", "NaT", "2020-03-04"], "M8[us]")).dictionary_encode()
    schema = Schema({"day": {"buckets": 250}, "x": (0, 1)}, classes=[0, 1])
    table = pd.DataFrame({"day": as_pandas(days), "x": np.linspace(0, 1, 6)})
    data = xr.Dataset({"day": ("row", table["day"].array), "x": ("row", table["x"])})
    models = []
    with dask.config.set(scheduler="sync"):
        for rows in (table, data, data.assign(x=data["x"].chunk(row=4))):
            options = {"on_few_rows": "continue", "noise": SeededNoise(0), "random_state": 0}
            model = DPGBClassifier(
                schema=schema, epsilon=50.0, recipe="dp-rf", n_estimators=3, **options
            )
            models.append(model.fit(rows, [0, 1, 1, 0, 0, 1]).predict_proba(rows))
            np.testing.assert_array_equal(models[-1], models[0])


def of_pandas():
    """Columns of pandas' own types, which Arrow holds as what they are made of; one has a value that is none."""
    spans = pd.arrays.IntervalArray.from_tuples([(0, 1), None, (0.5, 2)])
    kind = pa.array(spans).type
    ends = pa.array([{"left": 0.0, "right": 1.0}, None, {"left": 2, "right": 1}], kind.storage_type)
    days = ["2020-01-02 11:00", None, "2020-12-31 23:00"]
    times = {f: pd.PeriodIndex(days, freq=f).array for f in "YMDhs"}
    return {
        **{f"periods {frequency}": (pa.array(one), list(one)) for frequency, one in times.items()},
        "intervals": (pa.array(spans), list(spans)),
        "no interval": (
            pa.ExtensionArray.from_storage(kind, ends),
            [pd.Interval(0.0, 1.0), None, object()],
        ),
    }


@pytest.mark.parametrize("name", of_pandas())
def test_a_column_of_a_type_of_pandas_is_read_as_its_values_are(name, tmp_path):
    values, objects = of_pandas()[name]
    assert isinstance(values.type, pa.BaseExtensionType)
    told = as_everything(pd.Series(objects * 2, dtype=object))
    assert repr(as_everything(as_pandas(values))) == repr(told)
    assert repr(as_everything(from_arrow(pa.chunked_array([values, values])))) == repr(told)
    # of a file, by every reader
    kinds = {feature: kind for feature, kind in KINDS.items() if feature != "number"}
    schema, told = Schema(kinds, classes=[0, 1]), told[1:]
    table = pa.table(dict.fromkeys(kinds, values))
    parquet.write_table(table, tmp_path / "x.parquet")
    options = argparse.Namespace(
        data=str(tmp_path / "x.parquet"), delimiter=None, encoding=None, decimal=None
    )
    frames = [dd.read_parquet(tmp_path / "x.parquet", dtype_backend="pyarrow")]
    for keep in ([], ["date"]):
        options.keep = keep
        frames.append(open_table(options, schema)[0])
    for frame in frames:
        read = read_values(frame.compute(), schema)
        got = [read.column(j).tolist() for j in range(len(schema.encoded))]
        assert repr(got) == repr([one[:3] for one in told[: len(got)]])


@pytest.mark.parametrize(
    "subtype", ["int64", "uint64", "int8", "float64", "datetime64[us]", "timedelta64[s]"]
)
def test_an_interval_of_pandas_is_read_by_its_own_ends_alone(subtype):
    """Beside one that lacks an end, pandas makes floats of all whole numbers, and rounds those of 2⁵³ and above."""
    kind = pa.array(pd.arrays.IntervalArray.from_breaks(np.arange(3).astype(subtype))).type
    large = {"int8": 100, "float64": 0.1}.get(subtype, (1 << 53) + 1)
    lacking = [None, {"left": None, "right": 3}, {"left": 3, "right": None}, {"left": None}]
    given = [{"left": large, "right": large + 2}, *lacking, {"left": 3, "right": 1}]
    values = pa.ExtensionArray.from_storage(kind, pa.array(given, kind.storage_type))
    n, together = len(given), as_everything(as_pandas(values))
    alone = [repr(as_everything(as_pandas(values[k : k + 1]))) for k in range(n)]
    assert [repr([one[k::n] for one in together]) for k in range(n)] == alone
    whole = [kind.to_pandas_dtype().__from_arrow__(values[:1])[0]] * 2
    assert alone[0] == repr(as_everything(pd.Series(whole, dtype=object)))
    assert len({alone[0], alone[1], alone[2]}) == 3  # a value, missing, other


def test_views_and_run_ends_of_a_slice_are_written_out():
    text = pa.array(["a", None, "b", "c"], pa.string_view() if VIEWS else pa.string())
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 6, 9], pa.int16()), text)
    column = pa.chunked_array([runs, runs.slice(2, 5), runs.slice(8)])
    taken = from_arrow(pa.table({"x": column}))["x"].take([0, 2, 9, 14])
    assert taken.fillna("-").tolist() == ["a", "-", "-", "c"]
    assert from_arrow(pa.table({"x": column[:0]})).shape == (0, 1)
    assert SCHEMA.check(pa.table(dict.fromkeys(KINDS, column))).columns[1].values


def estimator(schema, ledger, **options):
    return DPGBClassifier(
        epsilon=1.0, delta=1e-6, schema=schema, recipe="dp-ebm", n_estimators=1, ledger=ledger, account="a",
        on_few_rows="continue", **options,
    )  # fmt: skip


@pytest.fixture
def ledger(tmp_path):
    """A ledger with one account."""
    out = Ledger(f"sqlite:///{tmp_path}/budget.db")
    out.open_account("a", epsilon=8.0, delta=1e-4)
    return out


@pytest.mark.skipif(not VIEWS, reason="this version of Arrow has no views")
@pytest.mark.filterwarnings("ignore::dpgb_dask.errors.UnreadValuesWarning")
@pytest.mark.parametrize("lazy", [False, True])
def test_columns_of_odd_types_are_fitted(lazy, ledger):
    """As features, target, weight and unit; none fails once the fit is charged."""
    odd = ("run_end", "dictionary<values=string_view", "month_day_nano", "dense_union", "list_view")
    kinds = [kind for kind in every_type() if str(kind).startswith(odd)]
    columns = {f"x{j}": pa.chunked_array([three_of(kind)] * 4) for j, kind in enumerate(kinds)}
    text = pa.array(["aa", "bb"] * 6, pa.string_view())
    runs = pa.RunEndEncodedArray.from_arrays([12], pa.array([1.5]))
    features = {name: ["aa", 1] for name in columns}
    table = pa.table({**columns, "who": text.cast(pa.binary_view())})
    for weight, unit in ((runs, None), (None, "who")):
        schema = Schema(
            features,
            classes=["aa", "bb"],
            unit_id=unit,
            max_weight=2,
            ignore=[] if unit else ["who"],
        )
        given = [table, text, weight]
        if lazy:
            given = [None if one is None else partition(one) for one in given]
        estimator(schema, ledger, unit_id=unit).fit(*given)
        assert ledger.remaining("a") < 8.0


def partition(data):
    """A Dask collection whose partition has types that its own meta cannot have."""
    named = isinstance(data, pa.Table)
    frame = (data if named else pa.table({"y": data})).to_pandas(types_mapper=pd.ArrowDtype)
    meta = pd.DataFrame({name: pd.Series(dtype=object) for name in frame.columns})
    part = dask.delayed(frame if named else frame["y"])
    return dd.from_delayed([part], meta=meta if named else meta["y"], verify_meta=False)


@pytest.mark.slow  # one fit of each type in each role; what each reads is tested above
@pytest.mark.filterwarnings("ignore::dpgb_dask.errors.UnreadValuesWarning")
@pytest.mark.parametrize("kind", every_type(), ids=str)
def test_no_type_is_charged_and_then_refused(kind, ledger):
    odd = pa.chunked_array([three_of(kind)] * 4)
    plain = {"x": pa.array(np.linspace(0, 1, 12)), "y": pa.array([0, 1] * 6)}
    for role in ("x", "y", "weight", "who"):
        columns = {**plain, role: odd}
        schema = Schema(
            {"x": ["aa", 1] if role == "x" else (0, 1)}, classes=["aa", 1] if role == "y" else [0, 1], target="y",
            unit_id="who" if role == "who" else None, max_weight=2,
        )  # fmt: skip
        given = [
            pa.table({n: columns[n] for n in columns if n in ("x", "who")}),
            columns["y"],
            columns.get("weight"),
        ]
        before = ledger.remaining("a")
        estimator(schema, ledger, unit_id=schema.unit_id).fit(*given)
        assert ledger.remaining("a") < before


NESTED = ("list", "large_list", "fixed_size_list", "struct", "map")


@pytest.mark.parametrize("beside", ["features", "units", "kept columns"])
def test_every_type_that_a_parquet_file_holds_is_read_as_its_values_are(beside, tmp_path):
    """Of each there is a reader of its own: units and kept columns are exact."""
    columns = {}
    for kind in every_type():
        one = pa.table({"x": three_of(kind)})
        try:
            parquet.write_table(one, tmp_path / "one.parquet")
        except pa.ArrowNotImplementedError:  # such as unions: no file holds them
            continue
        columns[str(kind)] = one["x"]
    # lists and records are refused as features, and may stand beside them
    nested = [name for name in columns if name.startswith(NESTED)]
    names = [name for name in columns if name not in nested]
    who = pa.array(["p", "q", None])
    parquet.write_table(pa.table(columns | {"who": who}), tmp_path / "all.parquet")
    schema = Schema(
        {name: ["aa", 1] for name in names}, classes=[0, 1], unit_id="who" if beside == "units" else None,
        ignore=nested if beside == "units" else [*nested, "who"],
    )  # fmt: skip
    options = argparse.Namespace(
        data=str(tmp_path / "all.parquet"), delimiter=None, encoding=None, decimal=None
    )
    if beside == "kept columns":
        options.keep = [*names, *nested]
    frame = open_table(options, schema)[0].compute()
    read = read_values(frame[names], schema)
    for j, name in enumerate(names):
        objects = pd.Series(columns[name].to_pylist(), dtype=object)
        assert np.array_equal(read.column(j), category_cells(objects, ["aa", 1]))
    assert len(names) > 30
    for name in nested:
        declared = Schema({name: ["aa", 1]}, classes=[0, 1])
        with pytest.raises(SchemaError, match="a column of lists or records"):
            open_table(options, declared)
    assert len(nested) >= 5


class Unknown:
    """A table with a type that pandas cannot hold."""

    __module__ = "pyarrow.lib"
    column_names = ("x",)
    schema = pa.schema({"x": pa.struct({"Alice": pa.int64()}), "y": pa.int8()})

    def to_pandas(self, **_options):
        raise NotImplementedError("Alice")


@pytest.mark.parametrize("role", ["X", "y", "sample_weight"])
def test_what_pandas_cannot_hold_is_refused_by_the_name_of_its_type_before_the_charge(role, ledger):
    schema = Schema({"x": (0, 1)}, classes=[0, 1])
    inputs = {"X": pa.table({"x": [0.0, 1.0]}), "y": [0, 1], "sample_weight": None, role: Unknown()}
    with pytest.raises(UnsupportedCollectionError, match="whose types are int8, struct") as caught:
        estimator(schema, ledger).fit(**inputs)
    assert "Alice" not in str(caught.value)
    assert [entry.kind for entry in ledger.history("a")] == ["OPEN"]
    assert ledger.remaining("a") == 8.0
