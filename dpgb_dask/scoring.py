"""Which rows a score is about, and what it compares: rows count as in a fit, but unknown labels are wrong.

Rows of Dask are added up chunk by chunk, where they are: sums alone come to the process that asks.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._task_spec import Alias, Task, TaskRef, convert_legacy_graph
from dask.base import is_dask_collection, tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, r2_score

from dpgb_dask.clients import compute
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.codes import read_target
from dpgb_dask.encoding.columns import category_cells, numbers, one_column
from dpgb_dask.errors import StructureError, short
from dpgb_dask.graph_parts import sent_once
from dpgb_dask.lazy_decoding import total_collection, total_whole
from dpgb_dask.private.reading.ingest import BY_TASKS, as_one_kind, lengths_differ, native_column
from dpgb_dask.private.reading.rows import line_up

Column = NDArray[np.float64]  # (n_rows,)


def score(schema: Schema, predicted: Any, y: Any, sample_weight: Any) -> float:
    """Return the accuracy, or R², over the rows that have a target and weigh something, as in a fit.

    Parameters
    ----------
    schema : Schema
    predicted, y, sample_weight : collections of (n_rows,)
        Dask collections are computed. Without weights, None.

    Returns
    -------
    float
        What scikit-learn returns, but for rounding where all are Dask collections.

    Raises
    ------
    StructureError
        If no row is left, or there are different numbers of rows.

    Notes
    -----
    Of Dask collections, a few numbers per chunk come to this process. Where chunks have other lengths than those of the
    predictions, and Dask does not know them, they are computed twice. Beside a column in memory, 8 bytes per row come.
    """
    given = {"X": predicted, "y": y, "sample_weight": sample_weight}
    columns = (native_column(data, name) for name, data in given.items() if data is not None)
    reads = (_read_prediction, _read_target, _read_weight)
    read = [
        _mapped(function, column, schema)
        for function, column in zip(reads, as_one_kind(*columns), strict=False)
    ]
    if all(map(is_dask_collection, read)):
        return _score_of(_sums_of_chunks(read, schema), schema)
    found, target, *rest = compute(*map(total_whole, read))
    rows = line_up(found, target, *(rest or [None]))
    found, target = np.asarray(rows.x), np.asarray(rows.y)
    weight = None if rows.weight is None else np.asarray(rows.weight)
    usable, counts = _kept(target, weight, schema)
    _check_kept(schema, usable=bool(usable.any()), scored=bool((usable & counts).any()))
    metric = accuracy_score if schema.target.classes else r2_score
    own = None if weight is None else weight[counts]
    with np.errstate(all="ignore"):  # of huge numbers scikit-learn's sums overflow
        return float(metric(target[counts], found[counts], sample_weight=own))


# ---- columns as numbers ----------------------------------------------------------------------------------------------


def _mapped(read: Callable[..., Any], column: Any, schema: Schema) -> Any:
    """Return a column as numbers; of Dask, lazily, in the same chunks."""
    if isinstance(column, dd.Series):
        meta = pd.Series(dtype=np.float64)
        return column.map_partitions(
            _as_series, read, sent_once(schema, "schema"), meta=meta, enforce_metadata=False
        )
    if isinstance(column, da.Array):
        return da.map_blocks(
            read, column, sent_once(schema, "schema"), dtype=np.float64, meta=np.empty(0)
        )
    return read(column, schema)


def _as_series(
    part: pd.Series, read: Callable[[Any, Schema], Column], schema: Schema
) -> "pd.Series[float]":
    return pd.Series(read(part, schema))


def _read_prediction(predicted: Any, schema: Schema) -> Column:
    """Return predictions: numbers, or positions of classes."""
    return read_target(predicted, schema)[0].astype(np.float64)


def _read_target(y: Any, schema: Schema) -> Column:
    """Return the target of each row; NaN if it has none, and the number of classes for a label that is no class.

    A label that is no class counts, as scikit-learn counts it: left out of the score of a model whose classes are
    spelt otherwise, such as -1 for 0, only hits would be left. An infinite number counts as the bound, as in a fit.
    """
    classes = schema.target.classes
    if classes:
        cell = category_cells(one_column(y), classes)
        return np.where(cell > len(classes), np.nan, cell.astype(np.float64))
    value = read_target(y, schema)[0]
    bound = np.clip(value, schema.target.low, schema.target.high)
    return np.where(np.isinf(value), bound, value)


def _read_weight(weight: Any, schema: Schema) -> Column:
    """Return weights as a fit reads them, NaN if no number, but not clipped: a score is about the rows given.

    Only an infinite one, with which there is no mean, counts as ``max_weight``.
    """
    value = numbers(one_column(weight)).astype(np.float64)
    return np.where(np.isposinf(value), float(schema.max_weight), value)


def _kept(
    target: Column, weight: Column | None, schema: Schema
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether each row has a number, or a label of the schema, for its target; and whether it counts."""
    known = ~np.isnan(target)
    classes = schema.target.classes
    usable = target < len(classes) if classes else known
    return usable, known if weight is None else known & (weight > 0)


def _check_kept(schema: Schema, *, usable: bool, scored: bool) -> None:
    """Refuse rows of which none has a target, or none of those that have one weighs something."""
    if not usable:
        raise _no_target(schema)
    if not scored:
        raise _no_weight()


# ---- sums of chunks --------------------------------------------------------------------------------------------------


class _Sums(NamedTuple):
    """What a score takes of a chunk, or, in columns, of all chunks.

    Parameters
    ----------
    lined_up : whether its parts have equal numbers of rows; if not, all else is 0
    usable, scored : whether a row has a target; whether one of these weighs something
    n : number of rows that count
    weight, hits : their weight, and that of those whose label is predicted
    errors : of numbers, the weighted sum of (y - prediction)²
    mean, rest, spread : of numbers, the mean of y in two parts, as one has rounding errors; weighted sum of (y - mean)²
    """

    lined_up: Any = 0.0
    usable: Any = 0.0
    scored: Any = 0.0
    n: Any = 0.0
    weight: Any = 0.0
    hits: Any = 0.0
    errors: Any = 0.0
    mean: Any = 0.0
    rest: Any = 0.0
    spread: Any = 0.0


@np.errstate(all="ignore")
def _sums(schema: Schema, found: Column, target: Column, weight: Column | None = None) -> _Sums:
    if any(len(part) != len(found) for part in (target, weight) if part is not None):
        return _Sums()
    usable, counts = _kept(target, weight, schema)
    found, target = found[counts], target[counts]
    own = np.ones(len(target)) if weight is None else weight[counts]
    sums = _Sums(1.0, usable.any(), (usable & counts).any(), len(target), own.sum())
    if schema.target.classes:
        return sums._replace(hits=own[found == target].sum())
    if not len(target):
        return sums
    mean = _mean(target, own)
    apart = target - mean
    rest = np.average(apart, weights=own)
    spread = (own * apart**2).sum() - sums.weight * rest**2
    errors = (own * (target - found) ** 2).sum()
    return sums._replace(errors=errors, mean=mean, rest=rest, spread=spread)


def _mean(values: Column, weight: Column) -> Any:
    """Return a mean that is no rounding error away from values that are all equal."""
    return np.clip(np.average(values, weights=weight), values.min(), values.max())


@np.errstate(all="ignore")
def _score_of(sums: _Sums, schema: Schema) -> float:
    """Return the score of all chunks."""
    _check_kept(schema, usable=sums.usable.any(), scored=sums.scored.any())
    if schema.target.classes:
        return float(sums.hits.sum() / sums.weight.sum())
    if sums.n.sum() < 2:
        return float(r2_score([0.0], [0.0]))  # which warns, and is NaN
    sums = _Sums(*(column[sums.n > 0] for column in sums))
    apart = sums.mean - _mean(sums.mean, sums.weight) + sums.rest
    apart -= np.average(apart, weights=sums.weight)
    spread = sums.spread.sum() + (sums.weight * apart**2).sum()
    errors = sums.errors.sum()
    if spread == 0:
        return float(errors == 0)  # as in scikit-learn
    return float(1 - errors / spread)


def _sums_of_chunks(columns: Sequence[Any], schema: Schema) -> _Sums:
    """Return the sums of all chunks of columns of Dask, each of which reads as numbers."""
    if all(isinstance(c, da.Array) and not np.isnan(c.shape[0]) for c in columns):
        columns = _in_equal_chunks(columns)
    if len({c.npartitions for c in columns}) == 1:
        sums = _computed(columns, schema)
        if sums.lined_up.all():
            return sums
    return _computed(_in_equal_chunks(_measured(columns)), schema)


def _computed(columns: Sequence[Any], schema: Schema) -> _Sums:
    """Return the sums of chunks, of which each column has as many."""
    shared = sent_once(schema, "schema")
    if isinstance(columns[0], dd.Series):
        # in one expression: if Dask optimised columns apart, it might split their files differently
        made = dd.map_partitions(
            _sums_of_part,
            *columns,
            shared,
            meta=pd.DataFrame(columns=_Sums._fields, dtype=np.float64),
            enforce_metadata=False,
            align_dataframes=False,
        )
    else:
        made = da.map_blocks(
            _sums_of_block,
            shared,
            *columns,
            new_axis=1,
            chunks=((1,) * columns[0].npartitions, (len(_Sums._fields),)),
            dtype=np.float64,
            meta=np.empty((0, 0)),
        )
    (table,) = compute(total_whole(made))
    return _Sums(*np.asarray(table).T)


def _sums_of_block(schema: Schema, *columns: Column) -> NDArray[np.float64]:
    return np.array([_sums(schema, *columns)], np.float64)


def _sums_of_part(*given: Any) -> pd.DataFrame:
    *columns, schema = given
    sums = _sums(schema, *(column.to_numpy() for column in columns))
    return pd.DataFrame([sums], columns=_Sums._fields, dtype=np.float64)


def _measured(columns: Sequence[Any]) -> list[da.Array]:
    """Return columns as arrays whose chunks have known lengths; Dask computes all rows for that."""
    arrays = [total_collection(_as_array(c) if isinstance(c, dd.Series) else c) for c in columns]
    one = {"dtype": np.int64, "meta": np.empty(0, np.int64)}
    counted = [a.map_blocks(_length, chunks=((1,) * a.npartitions,), **one) for a in arrays]
    return [
        da.Array(a.dask, a.name, (tuple(n.tolist()),), meta=np.empty(0))
        for a, n in zip(arrays, compute(*counted), strict=True)
    ]


def _as_array(column: dd.Series) -> da.Array:
    """Return a column as an array of unknown length, with a chunk for each partition."""
    with dask.config.set(BY_TASKS):
        parts = total_collection(column).to_delayed()
    nodes = convert_legacy_graph(dict(parts[0].dask))
    # Dask gives an alias of `from_delayed` its target's key, and fails as it fuses arrays with it
    nodes = {k: Alias(k, n.target) if isinstance(n, Alias) else n for k, n in nodes.items()}
    name = f"dpgb-score-{tokenize(column)}"
    for k, part in enumerate(parts):
        nodes[name, k] = Task((name, k), np.asarray, TaskRef(part.key))
    graph = HighLevelGraph.from_collections(name, nodes, dependencies=())
    return da.Array(graph, name, ((np.nan,) * len(parts),), meta=np.empty(0))


def _length(block: Column) -> NDArray[np.int64]:
    return np.array([len(block)])


def _in_equal_chunks(arrays: Sequence[da.Array]) -> list[da.Array]:
    if len({a.shape for a in arrays}) > 1:
        raise lengths_differ()
    return [a.rechunk(arrays[0].chunks, method="tasks") for a in arrays]


# ---- errors ----------------------------------------------------------------------------------------------------------


def _no_weight() -> StructureError:
    return StructureError(
        "No row can be scored: sample_weight has no number above 0 for a row whose y can be read, and other rows are"
        " left out, as in fit. Give weights above 0, or leave sample_weight out."
    )


def _no_target(schema: Schema) -> StructureError:
    classes = schema.target.classes
    what = f"label in y is one of the schema's classes {short(list(classes))}"
    return StructureError(
        f"No row can be scored: no {what if classes else 'value in y is a number'}. Give the targets as fit takes"
        " them; model.schema_.check(X, y) shows what y holds."
    )
