"""How rows are stored in a data set, chosen from the schema and the types of the columns alone."""

import hashlib
import json
import math
import operator
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np

from dpgb_dask.contracts.schema import Categorical, Schema
from dpgb_dask.errors import SchemaError, StructureError
from dpgb_dask.io.place import AGAIN, WEIGHT, damaged_facts, is_said, no_data_set
from dpgb_dask.private.reading.ingest import Inputs
from dpgb_dask.values import cells

FORMAT = 2  # 1 recorded no shards
CHECKED = {"arrays", "shards", "check"}
MOST_ROWS = 1 << 18  # of a shard …
SHARD_BYTES = 1 << 25  # … which a task holds a few times over while it writes
LEAST_ROWS = 1 << 10
# exact as float32
SINGLE = frozenset({"bool", "int8", "uint8", "int16", "uint16", "float16", "float32"})
# whole numbers in Dask whose partitions may be floats: where a value is missing, readers make them so
INFERRED = frozenset({"bool", "int64", "uint64"})


def lists_of(schema: Schema) -> dict[str, tuple[Any, ...]]:
    """Return the categories of each feature and of the target; none for numbers."""
    lists = {
        name: feature.categories if isinstance(feature, Categorical) else ()
        for name, feature in schema.features.items()
    }
    return lists | {schema.target.name: schema.target.classes}


def are_numbers(categories: Sequence[Any]) -> bool:
    """Whether each of the declared categories or classes, if there are any, is a finite number."""
    return all(isinstance(form, float) and math.isfinite(form) for form in cells(categories))


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows are stored.

    Parameters
    ----------
    schema : Schema
    dtype : str
        Of X.
    coded : tuple of int
        Features that are stored as their place among the categories: K stands for any other value, K + 1 for none.
    raw : bool
        Whether X is stored as the matrix that was given; else feature by feature, as floats.
    target : str
        Type of y.
    target_coded : bool
    weight : str
        Type of the weights; "" for none.
    unit : {"", "text", "number"}
        Older data sets hold numbers.
    id : str
        Another for each data set that is written, so that Dask takes no two of them for the same.
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
        """Choose the layout from the schema, and types from those of columns that no reader infers from values."""
        lists = lists_of(schema)
        coded = tuple(j for j, name in enumerate(schema.names) if not are_numbers(lists[name]))
        raw = _is_plain(inputs.x) and not coded
        lazy = isinstance(inputs.x, dd.DataFrame)
        single = not raw and all(
            # of a Dask column, a partition may have another type
            j in coded or (not lazy and is_single(dtype))
            for j, dtype in enumerate(inputs.dtypes)
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
            If it is none of ours, of a newer format, or not complete.
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
        if facts.get("complete") is False:
            raise StructureError(f"path={path!r} was not written to its end. {AGAIN}")
        # format 1 had none of what is checked
        as_written = (
            facts.get("check") == check_of(facts) if version > 1 else not CHECKED & set(facts)
        )
        if not as_written:
            raise damaged_facts(path)
        try:
            fields = {name: facts[name] for name in cls.__slots__}
            fields["coded"] = tuple(map(operator.index, facts["coded"]))
            fields["schema"] = Schema.from_dict(facts["schema"])
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
            **stored,
            "coded": list(self.coded),
        }

    @property
    def named(self) -> bool:
        """Whether the data set is opened as a DataFrame."""
        return bool(self.coded or self.unit)

    def arrays(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """Return the type of each array, and its shape beside the rows."""
        types: dict[str, Any] = {"X": (self.dtype, (self.schema.n_features,))}
        types["y"] = self.target, ()
        if self.weight:
            types[WEIGHT] = self.weight, ()
        if self.unit:
            types["unit"] = str, ()
        return types


def _is_plain(data: Any) -> bool:
    """Whether data are numbers of one NumPy type that Zarr has."""
    array = data._meta if isinstance(data, da.Array) else data  # noqa: SLF001
    plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    return plain and array.dtype.kind in "biuf" and array.dtype.itemsize <= 8


def _column_type(column: Any) -> str:
    """Return what numbers are stored as."""
    if not _is_plain(column):
        return "float64"  # a frame's whole numbers are floats where a value is missing
    if isinstance(column, da.Array) and column.dtype.name in INFERRED:
        return "float64"
    return str(column.dtype.newbyteorder("="))


def is_single(dtype: Any) -> bool:
    """Whether every value of a type is a float32."""
    return isinstance(dtype, np.dtype) and dtype.name in SINGLE


def rows_per_shard(layout: Layout, asked: int | None) -> int:
    """Return how many rows a shard holds: what is asked for, else what a task can hold a few times over."""
    if asked is not None:
        if asked < 1:
            raise StructureError(f"shard_rows={asked} must be at least 1.")
        return asked
    width = layout.schema.n_features * np.dtype(layout.dtype).itemsize
    fit = max(SHARD_BYTES // width, LEAST_ROWS)
    return min(MOST_ROWS, 1 << (fit.bit_length() - 1))


def check_of(facts: Mapping[str, Any]) -> str:
    """Return a digest of all that a data set says of itself, but the digest."""
    said = {name: value for name, value in facts.items() if name != "check"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def metadata_of(array: Any) -> str:
    """Return a digest of how an array is stored."""
    said = json.dumps(array.metadata.to_dict(), sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()
