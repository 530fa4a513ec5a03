"""A model as an XGBoost file, JSON or UBJSON: margins in units of score, exact in float32.

Every table, pair and tree becomes trees of thresholds. Leaves are whole steps of 2⁻¹⁶, so as long as no partial sum
reaches 2²⁴ steps, float32 holds each of them, and the margin is the model's score whatever the order of adding.
"""

import json
import struct
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.features import TRUTHS, Bool, Categorical, Numeric
from dpgb_dask.contracts.model import SCORE_ONE, FeatureBins, Model
from dpgb_dask.display import exact
from dpgb_dask.errors import StructureError
from dpgb_dask.released.runtimes.content import SINGLE, Content, largest_score, refuse_wrapping
from dpgb_dask.released.runtimes.threshold_trees import Builder, TreeLists, axis_of
from dpgb_dask.remote import put
from dpgb_dask.scalars import python_scalar

LEAST_VALUES = 4096  # of float32 between a feature's bounds: 16 for each of the most bins
FORMAT = [2, 0, 0]  # the version of XGBoost whose file format is written; later ones read it
NO_PARENT = (1 << 31) - 1
LEAF = -1
# objectives whose `predict` is right for a link; that of the others returns the margin
OBJECTIVES = {"logit": "binary:logistic", "softmax": "multi:softprob"}
MARGIN = "reg:squarederror"  # the same in all versions; others that return margins read base_score differently
# the type of a file of margins: XGBClassifier and XGBRegressor refuse one that is not theirs, and would take these for
# probabilities, labels or values
NO_ESTIMATOR = "margins, which xgboost.Booster predicts (docs/exports.md)"


def to_xgboost(content: Content, path: str | Path) -> None:
    """Write a model as a file of XGBoost; a path that ends in ``.ubj`` gets UBJSON, any other JSON (docs/exports.md).

    Parameters
    ----------
    content : Content
    path : str or Path

    Raises
    ------
    StructureError
        If scores may reach 2²⁴ steps, float32 has too few values between a feature's bounds, splits by sets of
        categories need too many thresholds, or the file cannot be written.

    Privacy
    -------
    Released values only; the attribute ``dpgb_dask.statement`` holds the privacy report in words.
    """
    refuse_wrapping(content.model, "XGBoost")
    largest = largest_score(content.folded)
    if largest >= SINGLE:
        raise StructureError(
            f"Partial sums of this model's scores may reach {largest / SCORE_ONE:.0f} units, and float32, in"
            f" which XGBoost adds, holds steps of 2**-16 only below {SINGLE // SCORE_ONE}. Export to 'python',"
            " 'onnx' or 'sql'."
        )
    _refuse_coarse_numbers(content)
    data = booster(content)
    ubj = str(path).lower().endswith(".ubj")  # as XGBoost reads a suffix
    put(path, _ubj(data) if ubj else json.dumps(_lists(data), ensure_ascii=False))


def _refuse_coarse_numbers(content: Content) -> None:
    """Refuse a feature of which float32 tells so few values apart that rows would get the score of another bin."""
    for name, feature in content.schema.encoded.items():
        if not isinstance(feature, Numeric):
            continue
        largest = max(abs(feature.low), abs(feature.high))
        if feature.integer and largest <= SINGLE:
            continue
        with np.errstate(over="ignore"):
            step = float(np.spacing(np.float32(largest)))
        # not finite beyond what float32 holds
        if not step <= (feature.high - feature.low) / LEAST_VALUES and feature.low < feature.high:
            raise StructureError(
                f"Feature {name!r} has bounds [{exact(feature.low)}, {exact(feature.high)}], between which float32,"
                f" in which XGBoost reads numbers, has fewer than {LEAST_VALUES} values. Export to 'python', 'onnx' or"
                " 'sql'; or fit on the feature in another unit, such as its distance from its lower bound."
            )


def booster(content: Content) -> dict[str, Any]:
    """Return the content of an XGBoost file; long arrays are NumPy's."""
    model = content.folded
    names = list(content.schema.encoded_names)
    n = model.n_scores
    trees: list[dict[str, Any]] = []
    classes: list[int] = []
    for shape, values in _terms(model, content):
        for k in range(n):
            trees.append(_tree(shape, values[k], model, len(trees)))
            classes.append(k)
    classified = bool(content.schema.target.classes)
    objective = OBJECTIVES.get(model.link, MARGIN) if classified else MARGIN
    softmax = objective == "multi:softprob"
    return {
        "version": FORMAT,
        "learner": {
            "attributes": {
                "dpgb_dask.statement": content.statement,
                "dpgb_dask.report": content.report_json,
                "dpgb_dask.encoder": json.dumps(encoder(content), ensure_ascii=False),
                "scikit_learn": json.dumps(
                    {"_estimator_type": NO_ESTIMATOR if objective == MARGIN else "classifier"}
                ),
            },
            "feature_names": _names(names),
            "feature_types": ["float"] * len(names),
            "gradient_booster": {
                "model": {
                    "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
                    "iteration_indptr": list(range(0, len(trees) + 1, n)),
                    "tree_info": classes,
                    "trees": trees,
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                # of margin 0: the logistic objective wants it as a probability
                "base_score": "5E-1" if objective == "binary:logistic" else "0E0",
                "boost_from_average": "0",
                "num_class": str(n if softmax else 0),
                "num_feature": str(len(names)),
                "num_target": str(1 if softmax else n),
            },
            "objective": {"name": objective, "softmax_multiclass_param": {"num_class": str(n)}}
            if softmax
            else {"name": objective, "reg_loss_param": {"scale_pos_weight": "1"}},
        },
    }


def _names(names: Sequence[str]) -> list[str]:
    """Return names as XGBoost takes them: without the characters that it refuses, numbered where they would meet."""
    taken, out = set(names), []
    for own in names:
        name = own.replace("[", "(").replace("]", ")").replace("<", "lt ")
        if name != own:
            tries = (f"{name} ({k})" for k in count(2))
            name = next(other for other in chain([name], tries) if other not in taken)
            taken.add(name)
        out.append(name)
    return out


def encoder(content: Content) -> dict[str, Any]:
    """Return how values become XGBoost's float32, and how margins become predictions."""
    schema, columns = content.schema, []
    declared = schema.to_dict()["features"]
    for name, source in zip(schema.encoded, schema.sources, strict=True):
        column: dict[str, Any] = {"name": name}
        match schema.features[source]:
            case Numeric():
                column["type"] = "numeric"
            case Categorical(categories):
                column["type"] = "categorical"
                column["categories"] = [_json_value(label) for label in categories]
            case Bool():
                column |= {"type": "categorical", "categories": list(TRUTHS)}
            case _:  # the type says that its values are not what is listed
                column |= {"feature": source} | declared[source]
        columns.append(column)
    target: dict[str, Any] = {"type": content.schema.target.type, "link": content.model.link}
    if content.schema.target.classes:
        target["classes"] = [_json_value(label) for label in content.schema.target.classes]
    else:
        middle, half = content.scale
        target |= {"middle": middle, "half": half}
        target |= {"low": content.schema.target.low, "high": content.schema.target.high}
    return {"columns": columns, "target": target}


def _json_value(value: Any) -> Any:
    value = python_scalar(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _terms(model: Model, content: Content) -> list[tuple[TreeLists, NDArray[Any]]]:
    """Return each term of a model: the shape of its tree, and its values (n_scores, entries), indexed by its leaves."""
    weights = content.shares.weights
    axes = [axis_of(own, mass) for own, mass in zip(model.bins, weights, strict=True)]
    builder = Builder(axes, "XGBoost")
    terms: list[tuple[TreeLists, NDArray[Any]]] = [(builder.one_leaf(), model.intercept[:, None])]
    terms += [
        (builder.table(j, table), table.T) for j, table in enumerate(model.tables) if table.any()
    ]
    for pair in model.pairs:
        wide = np.zeros((model.n_scores, pair.table.shape[1], 256), np.int64)
        wide[:, :, : pair.table.shape[2]] = pair.table
        shape = builder.pair(pair.i, pair.j, pair.map_i, pair.map_j)
        terms.append((shape, wide.reshape(model.n_scores, -1)))
    forest = builder.forest(model)
    return terms + [(shape, model.trees.value[:, t]) for t, shape in enumerate(forest)]


def _tree(
    shape: TreeLists, values: NDArray[np.integer[Any]], model: Model, number: int
) -> dict[str, Any]:
    """Return one tree of the file."""
    leaf = np.array(shape.leaf)
    n = len(leaf)
    left, right = np.array(shape.left, np.int32), np.array(shape.right, np.int32)
    conditions = (values[leaf] / SCORE_ONE).astype(np.float32)
    parents = np.full(n, NO_PARENT, np.int32)
    for k in np.flatnonzero(leaf == LEAF).tolist():
        conditions[k] = threshold(model.bins[shape.column[k]], shape.cut[k])
        parents[left[k]] = parents[right[k]] = k
    floats = np.zeros(n, np.float32)
    empty, wide = np.empty(0, np.int32), np.empty(0, np.int64)
    return {
        "base_weights": floats,
        "categories": empty,
        "categories_nodes": empty,
        "categories_segments": wide,
        "categories_sizes": wide,
        "default_left": np.array(shape.missing_left, np.uint8),
        "id": number,
        "left_children": left,
        "loss_changes": floats,
        "parents": parents,
        "right_children": right,
        "split_conditions": conditions,
        "split_indices": np.array(shape.column, np.int32),
        "split_type": np.zeros(n, np.uint8),
        "sum_hessian": np.array(shape.cover, np.float32),
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(model.n_features),
            "num_nodes": str(n),
            "size_leaf_vector": "1",
        },
    }


def threshold(bins: FeatureBins, cut: int) -> np.float32:
    """Return the float32 that values of the cells below ``cut``, and no others, lie below.

    A float32 lies above an edge if and only if it lies above the largest float32 that is not above the edge; XGBoost
    sends left what is *below* a threshold, so the threshold is the next float32.
    """
    if bins.edges is None:
        return np.float32(cut - 0.5)
    if cut > len(bins.edges):
        return np.float32(np.inf)  # every finite value lies below it
    edge = bins.edges[cut - 1]
    infinite = np.float32(np.inf)
    with np.errstate(over="ignore"):
        down = np.float32(edge)
        if down > edge:
            down = np.nextafter(down, -infinite)
        return np.nextafter(down, infinite)


def _lists(data: Any) -> Any:
    """Return JSON values: arrays as lists."""
    if isinstance(data, dict):
        return {name: _lists(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_lists(value) for value in data]
    return data.tolist() if isinstance(data, np.ndarray) else data


TYPES = {
    np.dtype(kind): mark for kind, mark in (("f4", b"d"), ("i4", b"l"), ("i8", b"L"), ("u1", b"U"))
}


def _ubj(data: Any) -> bytes:
    """Return UBJSON, as XGBoost writes it: counts are 64 bits wide, arrays of numbers have a type."""
    if isinstance(data, dict):
        pairs = (_text(name) + _ubj(value) for name, value in data.items())
        return b"{" + b"".join(pairs) + b"}"
    if isinstance(data, np.ndarray):
        big = data.astype(data.dtype.newbyteorder(">"))
        return b"[$" + TYPES[data.dtype] + b"#" + _count(len(data)) + big.tobytes()
    if isinstance(data, list):
        return b"[#" + _count(len(data)) + b"".join(map(_ubj, data))
    return b"S" + _text(data) if isinstance(data, str) else _count(data)


def _count(value: int) -> bytes:
    return b"L" + struct.pack(">q", value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _count(len(raw)) + raw
