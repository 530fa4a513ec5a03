"""How a data set stores rows; chosen from the schema and the types of the columns alone."""

import hashlib
import itertools
import json
import math
import operator
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np

from dpgb_dask.contracts.features import (
    TRUTHS,
    Bool,
    Categorical,
    Datetime,
    Feature,
    Grouped,
    Hashed,
)
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.columns import bucket_of
from dpgb_dask.errors import SchemaError, StructureError, short
from dpgb_dask.io.place import AGAIN, WHOLE_IN, damaged_facts, is_said, no_data_set
from dpgb_dask.names import WEIGHT
from dpgb_dask.private.reading.ingest import Inputs
from dpgb_dask.scalars import whole_number
from dpgb_dask.values import cells

FORMAT = 2  # format 1 did not record its shards
CHECKED = {"arrays", "shards", "check"}
MOST_ROWS = 1 << 18  # most rows of a shard …
SHARD_BYTES = 1 << 25  # … and its most bytes; a task holds them a few times over while it writes
LEAST_ROWS = 1 << 10
# types that float32 holds exactly
SINGLE = frozenset({"bool", "int8", "uint8", "int16", "uint16", "float16", "float32"})
# integer types in Dask whose partitions may be floats, as readers make them where a value is missing
INFERRED = frozenset({"bool", "int64", "uint64"})


def lists_of(schema: Schema) -> dict[str, tuple[Any, ...]]:
    """Return the categories of each feature and of the target; an empty tuple for numbers and dates."""
    lists = {name: list_of(feature) for name, feature in schema.features.items()}
    return lists | {schema.target.name: schema.target.classes}


def list_of(feature: Feature) -> tuple[Any, ...]:
    """Return the categories of a feature; of groups or buckets, one value that is in each."""
    match feature:
        case Categorical(categories):
            return categories
        case Bool():
            return TRUTHS
        case Grouped(mapping):
            return tuple(
                {group: value for value, group in reversed(mapping)}[g] for g in feature.groups
            )
        case Hashed(buckets):
            return hashed_values(buckets)
    return ()


@lru_cache
def hashed_values(buckets: int) -> tuple[str, ...]:
    """Return a text that is in each bucket."""
    found: dict[int, str] = {}
    for k in itertools.count():
        if len(found) == buckets:
            return tuple(found[bucket] for bucket in range(buckets))
        found.setdefault(bucket_of(f"v{k}", buckets), f"v{k}")
    raise AssertionError


def are_numbers(categories: Sequence[Any]) -> bool:
    """Whether all declared categories or classes, if there are any, are finite numbers."""
    return all(isinstance(form, float) and math.isfinite(form) for form in cells(categories))


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows are stored.

    Parameters
    ----------
    schema : Schema
    dtype : str
        Type of X.
    coded : tuple of int
        Features that are stored as positions in their K categories, groups or buckets: K is any other value, K + 1 a
        missing one.
    raw : bool
        Whether X is stored as the matrix that was given; otherwise feature by feature, as floats.
    target : str
        Type of y.
    target_coded : bool
    weight : str
        Type of the weights; "" for none.
    unit : {"", "text", "number"}
        Type of the units, "" for none; older data sets have "number".
    id : str
        A new id for every data set that is written, so that Dask never takes two data sets for the same.
    """

    schema: Schema
    dtype: str
    coded: tuple[int, ...]
    raw: bool
    target: str
    target_coded: bool
    weight: str
    unit: str
    id: str

    @classmethod
    def of(cls, inputs: Inputs, schema: Schema) -> "Layout":
        """Choose the layout from the schema, and from column types that no reader infers from values."""
        lists = lists_of(schema)
        coded = tuple(
            j
            for j, (name, feature) in enumerate(schema.features.items())
            if isinstance(feature, Grouped | Hashed) or not are_numbers(lists[name])
        )
        dated = any(isinstance(feature, Datetime) for feature in schema.features.values())
        raw = _is_plain(inputs.x) and not coded and not dated
        lazy = isinstance(inputs.x, dd.DataFrame)
        single = (
            not raw
            and not dated
            and all(
                # a partition of a Dask column may have another type
                j in coded or (not lazy and is_single(dtype))
                for j, dtype in enumerate(inputs.dtypes)
            )
        )
        target_coded = not are_numbers(schema.target.classes)
        return cls(
            schema=schema,
            dtype=_column_type(inputs.x) if raw else ("float32" if single else "float64"),
            coded=coded,
            raw=raw,
            target="uint8" if target_coded else _column_type(inputs.y),
            target_coded=target_coded,
            weight="" if inputs.weight is None else _column_type(inputs.weight),
            unit="" if inputs.unit is None else "text",
            id=uuid.uuid4().hex,
        )

    @classmethod
    def read(cls, path: str, facts: Any) -> "Layout":
        """Return the layout of a data set from its attribute.

        Raises
        ------
        StructureError
            If it is no attribute of ours, has a newer format, or is not complete.
        """
        if not is_said(facts):
            raise no_data_set(path)
        version = facts["format"]
        if type(version) is not int or version < 1:
            raise damaged_facts(path)
        if version > FORMAT:
            raise StructureError(
                f"path={path!r} has format={version}, newer than {FORMAT}. Update dpgb_dask."
            )
        if facts.get("complete") is False and WHOLE_IN in facts:
            raise StructureError(
                f"path={path!r} is being replaced, or was as the process was killed. The new data set is complete in"
                f" {str(facts[WHOLE_IN])!r}, beside it. Open that; or {AGAIN[0].lower()}{AGAIN[1:]}"
            )
        if facts.get("complete") is False:
            raise StructureError(f"path={path!r} was not written to its end. {AGAIN}")
        # format 1 has nothing that could be checked
        as_written = (
            facts.get("check") == check_of(facts) if version > 1 else not CHECKED & set(facts)
        )
        if not as_written:
            raise damaged_facts(path)
        try:
            fields = {name: facts[name] for name in cls.__slots__}
            fields["coded"] = tuple(map(operator.index, facts["coded"]))
            fields["schema"] = _in_order(facts)
            return cls(**fields)
        except (SchemaError, KeyError, TypeError, ValueError):
            pass
        raise damaged_facts(path)

    def facts(self, *, complete: bool) -> dict[str, Any]:
        """Return the attribute of a data set."""
        schema = self.schema.to_dict()
        stored = {name: value for name, value in asdict(self).items() if name != "schema"}
        return {
            "format": FORMAT,
            "complete": complete,
            "schema": schema,
            "feature_names": list(self.schema.names),
            "groups": _groups(self.schema),
            **stored,
            "coded": list(self.coded),
        }

    @property
    def named(self) -> bool:
        """Whether the data set is opened as a DataFrame."""
        dated = any(isinstance(feature, Datetime) for feature in self.schema.features.values())
        return bool(self.coded or self.unit or dated)

    def arrays(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """Return the type of each array, and its shape without the rows."""
        types: dict[str, Any] = {"X": (self.dtype, (self.schema.n_features,))}
        types["y"] = self.target, ()
        if self.weight:
            types[WEIGHT] = self.weight, ()
        if self.unit:
            types["unit"] = str, ()
        return types


def _in_order(facts: Mapping[str, Any]) -> Schema:
    """Return the schema of a data set, whose features are in the order of the stored columns.

    A store, or a tool that copies one, may sort the keys of its attributes: lists alone keep their order.

    Raises
    ------
    SchemaError, KeyError, TypeError, ValueError
        If it is malformed, or groups are in another order than their stored positions.
    """
    features, names = facts["schema"]["features"], facts["feature_names"]
    if sorted(features) != sorted(names):
        raise ValueError("features")
    schema = Schema.of_file(
        facts["schema"] | {"features": {name: features[name] for name in names}}
    )
    groups = _groups(schema)
    if facts.get("groups", groups) != groups:  # which older data sets do not list
        raise ValueError("groups")
    return schema


def _groups(schema: Schema) -> dict[str, list[Any]]:
    """Return the groups of each mapping, in the order of their positions."""
    mapped = {name: f for name, f in schema.features.items() if isinstance(f, Grouped)}
    return {name: list(feature.groups) for name, feature in mapped.items()}


def _is_plain(data: Any) -> bool:
    """Whether data have a single numeric NumPy type, which Zarr supports."""
    array = data._meta if isinstance(data, da.Array) else data  # noqa: SLF001
    plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    return plain and array.dtype.kind in "biuf" and array.dtype.itemsize <= 8


def _column_type(column: Any) -> str:
    """Return the type that a column's numbers are stored in."""
    if not _is_plain(column):
        return "float64"  # integers of a frame become floats where a value is missing
    if isinstance(column, da.Array) and column.dtype.name in INFERRED:
        return "float64"
    return str(column.dtype.newbyteorder("="))


def is_single(dtype: Any) -> bool:
    """Whether float32 holds every value of a type exactly."""
    return isinstance(dtype, np.dtype) and dtype.name in SINGLE


def rows_per_shard(layout: Layout, asked: int | None) -> int:
    """Return the rows of a shard: as asked for, otherwise as many as a task can hold a few times over."""
    if asked is not None:
        rows = whole_number(asked)
        if rows is None or rows < 1:
            raise StructureError(
                f"shard_rows={short(asked)} must be a whole number, at least 1; or None."
            )
        return rows
    width = layout.schema.n_features * np.dtype(layout.dtype).itemsize
    fit = max(SHARD_BYTES // width, LEAST_ROWS)
    return min(MOST_ROWS, 1 << (fit.bit_length() - 1))


def check_of(facts: Mapping[str, Any]) -> str:
    """Return a digest of a data set's whole attribute, without the digest itself."""
    said = {name: value for name, value in facts.items() if name != "check"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def metadata_of(array: Any) -> str:
    """Return a digest of how an array is stored."""
    said = json.dumps(array.metadata.to_dict(), sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()
