"""Every type of Arrow that the installed version has, with a few values of each."""

import datetime
import decimal

import numpy as np
import pyarrow as pa

NOON = datetime.datetime(2020, 1, 2, 12, 0, 5)


def every_type():
    """Return all types: one of each name, and of units, zones, and types inside others those that are read apart."""
    whole, text = pa.int64(), pa.string()
    fields = [pa.field("a", whole), pa.field("b", text)]
    out = [
        pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), whole, pa.uint8(), pa.uint16(), pa.uint32(),
        pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"),
        pa.time64("ns"), *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")), pa.timestamp("us", "UTC"),
        pa.timestamp("s", "+05:30"), pa.date32(), pa.date64(), *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
        pa.month_day_nano_interval(), text, pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(2),
        pa.decimal128(20, 2), pa.decimal256(50, 2), pa.list_(whole), pa.large_list(whole), pa.list_(whole, 2),
        pa.map_(text, whole), pa.struct(fields), pa.dense_union(fields), pa.sparse_union(fields),
    ]  # fmt: skip
    # types that older versions lack
    for name, options in {
        "string_view": [()], "binary_view": [()], "decimal32": [(5, 2)], "decimal64": [(8, 2)], "uuid": [()],
        "bool8": [()], "list_view": [(whole,)], "large_list_view": [(whole,)], "json_": [(text,)],
        "opaque": [(whole, "a", "b")], "fixed_shape_tensor": [(whole, [2])],
    }.items():  # fmt: skip
        out += [getattr(pa, name)(*given) for given in options if hasattr(pa, name)]
    inner = [whole, text, pa.timestamp("us"), pa.date32(), pa.decimal128(20, 2), pa.bool_()]
    inner += [pa.string_view(), pa.binary_view()] if hasattr(pa, "string_view") else []
    out += [pa.dictionary(pa.int16(), kind) for kind in [*inner, pa.list_(whole)]]
    return out + [
        pa.run_end_encoded(pa.int16(), k) for k in [*inner, pa.dictionary(pa.int8(), text)]
    ]


def three_of(kind):
    """Return three values of a type, of which the second is missing, if it can be."""
    if pa.types.is_null(kind):
        return pa.nulls(3)
    if pa.types.is_union(kind):
        which = pa.array([0, 1, 0], pa.int8())
        if kind.mode == "dense":
            parts = [pa.array([1, 2]), pa.array(["aa"])]
            return pa.UnionArray.from_dense(which, pa.array([0, 0, 1], pa.int32()), parts)
        return pa.UnionArray.from_sparse(which, [pa.array([1, 0, 2]), pa.array(["x", "aa", "x"])])
    if pa.types.is_run_end_encoded(kind):
        ends = pa.array([1, 3], kind.run_end_type)
        return pa.RunEndEncodedArray.from_arrays(ends, three_of(kind.value_type)[:2])
    if pa.types.is_dictionary(kind):
        listed = three_of(kind.value_type)[:1]
        return pa.DictionaryArray.from_arrays(pa.array([0, None, 0], kind.index_type), listed)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, three_of(kind.storage_type))
    value = _value(kind)
    return pa.array([value, None, value], kind)


def _value(kind):
    is_, name = pa.types, str(kind)
    for check, value in (
        (is_.is_boolean, True), (is_.is_integer, 1), (is_.is_floating, np.float16(1)), (is_.is_time, NOON.time()),
        (is_.is_decimal, decimal.Decimal(1)), (is_.is_timestamp, NOON), (is_.is_date, NOON.date()),
        (is_.is_duration, datetime.timedelta(1)), (is_.is_map, [("a", 1)]), (is_.is_struct, {"a": 1, "b": "x"}),
        (is_.is_nested, [1, 2]),
    ):  # fmt: skip
        if check(kind):
            return value
    if name == "month_day_nano_interval":
        return pa.MonthDayNano([1, 2, 3])
    return "aa" if "string" in name else b"a" * (16 if "16" in name else 2)
