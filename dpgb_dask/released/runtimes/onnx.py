"""A model as an ONNX file: tables are looked up, trees are a TreeEnsembleRegressor, and all of it is in float64."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.features import Categorical, Datetime
from dpgb_dask.contracts.model import SCORE_ONE, FeatureBins, Model, TreeEnsemble
from dpgb_dask.errors import StructureError
from dpgb_dask.losses import CLASS_CLIP, RATE_SHIFT
from dpgb_dask.released.runtimes.content import (
    SINGLE,
    WIDE,
    Content,
    Listed,
    listed,
    refuse_wrapping,
)
from dpgb_dask.released.runtimes.threshold_trees import (
    Builder,
    TreeLists,
    axis_of_codes,
    ordered_codes,
)
from dpgb_dask.remote import put
from dpgb_dask.values import cells

OPSET, ML_OPSET, IR = 17, 3, 8  # old ones, which many versions of runtimes read
LABEL, PROBABILITY, SCORE, PREDICTION = (
    "output_label", "output_probability", "output_score", "output_prediction",
)  # fmt: skip
OWN = "dpgb_dask:"  # what the names of all other values of the graph begin with
ML = "ai.onnx.ml"
ROWS = "rows"


def to_onnx(content: Content, path: str | Path) -> None:
    """Write a model as an ONNX file (docs/exports.md).

    Parameters
    ----------
    content : Content
    path : str or Path

    Raises
    ------
    StructureError
        If the package onnx is missing, a feature or the size of the trees cannot be expressed, or the file cannot be
        written.

    Privacy
    -------
    Released values only; the entry ``dpgb_dask.statement`` of the metadata holds the privacy report in words.
    """
    try:
        import onnx  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise StructureError(
            "Writing ONNX needs the package onnx, which is not installed: pip install 'dpgb_dask[export]'."
        ) from None
    refuse_wrapping(content.model, "ONNX")
    put(path, _Graph(content).model().SerializeToString())


class _Graph:
    """The graph of one model, node by node."""

    def __init__(self, content: Content) -> None:
        import onnx  # noqa: PLC0415 - an extra

        self._onnx: Any = onnx
        self._content = content
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []

    def model(self) -> Any:
        """Return the ONNX model."""
        helper = self._onnx.helper
        self._check_names()
        codes = self._codes()
        outputs = self._outputs(self._score(codes))
        taken = {name for name, _, _ in outputs} & set(self._content.schema.encoded_names)
        if taken:
            raise StructureError(
                f"feature {min(taken)!r} has the name of an output of a file for ONNX. Rename the column."
            )
        graph = helper.make_graph(
            self._nodes,
            "dpgb_dask",
            self._inputs,
            [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
            self._constants,
            doc_string=self._content.statement,
        )
        versions = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
        made = helper.make_model(
            graph,
            opset_imports=versions,
            ir_version=IR,
            producer_name="dpgb_dask",
            producer_version=self._content.report.version,
        )
        helper.set_model_props(
            made,
            {
                "dpgb_dask.statement": self._content.statement,
                "dpgb_dask.report": self._content.report_json,
            },
        )
        self._onnx.checker.check_model(made)
        return made

    def _check_names(self) -> None:
        """Refuse features whose names no input can have, as a graph has each name once."""
        for name in self._content.schema.encoded_names:
            if not name:
                raise StructureError(
                    "A feature without a name is no input of a file for ONNX. Name it."
                )
            if name.startswith(OWN):
                raise StructureError(
                    f"feature {name!r} may have the name of a part of a file for ONNX. Rename the column."
                )

    def _name(self) -> str:
        return f"{OWN}{len(self._nodes) + len(self._constants)}"

    def _op(self, kind: str, *inputs: str, output: str = "", domain: str = "", **given: Any) -> str:
        """Add a node, and return its output."""
        output = output or self._name()
        node = self._onnx.helper.make_node(kind, list(inputs), [output], domain=domain, **given)
        self._nodes.append(node)
        return output

    def _constant(self, values: Any, dtype: Any = None) -> str:
        """Add a constant, and return its name."""
        name = self._name()
        array = np.asarray(values, dtype)
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    # ---- values to codes

    def _codes(self) -> list[str]:
        """Add an input for each column, and return the codes of each, (n,) int64."""
        schema, types = self._content.schema, self._onnx.TensorProto
        out = []
        columns = zip(schema.encoded.items(), schema.sources, self._content.model.bins, strict=True)
        for (name, column), source, bins in columns:
            feature = schema.features[source]
            kind = types.DOUBLE
            if isinstance(column, Categorical):
                values = listed(name, feature, "ONNX")
                if not all(isinstance(form, float) for form in cells(list(values.texts))):
                    kind = types.STRING
                    code = self._text_code(name, values, bins)
                else:
                    code = self._number_code(name, values, bins)
            elif bins.edges is not None and (name == source or isinstance(feature, Datetime)):
                code = self._edge_code(name, bins)
            self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, [ROWS, 1]))
            out.append(self._op("Reshape", code, self._constant([-1], np.int64)))
        return out

    def _edge_code(self, value: str, bins: FeatureBins) -> str:
        """Count the edges below a number."""
        assert bins.edges is not None
        edges = bins.edges if len(bins.edges) else np.array([np.inf])  # no number lies above it
        above = self._op("Greater", value, self._constant(edges[None]))
        return self._unless_missing(value, above, np.ones(len(edges)), 0, bins.missing_bin)

    def _number_code(self, value: str, values: Listed, bins: FeatureBins) -> str:
        """Look a number up among the categories."""
        assert bins.cell_to_bin is not None
        other = int(bins.cell_to_bin[values.other])
        known = list(values.numbers)
        steps = [int(bins.cell_to_bin[cell]) - other for cell in values.numbers.values()]
        equal = self._op("Equal", value, self._constant([known or [np.inf]], np.float64))
        return self._unless_missing(value, equal, steps or [0], other, bins.missing_bin)

    def _unless_missing(self, value: str, hits: str, steps: Any, start: int, missing: int) -> str:
        """Return the start plus the steps that are hit; the code of a missing value for NaN."""
        weighed = self._op(
            "Mul",
            self._op("Cast", hits, to=self._onnx.TensorProto.INT64),
            self._constant([steps], np.int64),
        )
        total = self._op("ReduceSum", weighed, self._constant([1], np.int64), keepdims=1)
        code = self._op("Add", total, self._constant(start, np.int64))
        return self._op("Where", self._op("IsNaN", value), self._constant(missing, np.int64), code)

    def _text_code(self, value: str, values: Listed, bins: FeatureBins) -> str:
        """Look a text up among the categories and the words for a missing value."""
        assert bins.cell_to_bin is not None
        code = {text: int(bins.cell_to_bin[cell]) for text, cell in values.texts.items()}
        code |= dict.fromkeys(values.missing, bins.missing_bin)
        return self._op(
            "LabelEncoder",
            value,
            domain=ML,
            keys_strings=list(code),
            values_int64s=list(code.values()),
            default_int64=int(bins.cell_to_bin[values.other]),
        )

    # ---- codes to scores

    def _score(self, codes: list[str]) -> str:
        """Return the score in natural units, (n, n_scores) float64."""
        model = self._content.folded
        terms = [
            self._op("Gather", self._constant(table, np.float64), code)
            for table, code in zip(model.tables, codes, strict=True)
        ]
        for pair in model.pairs:
            n_j = pair.table.shape[2]
            row = self._op(
                "Gather", self._constant(pair.map_i.astype(np.int64) * n_j), codes[pair.i]
            )
            column = self._op("Gather", self._constant(pair.map_j, np.int64), codes[pair.j])
            table = np.moveaxis(pair.table, 0, -1).reshape(-1, model.n_scores)
            cell = self._op("Add", row, column)
            terms.append(self._op("Gather", self._constant(table, np.float64), cell))
        if model.trees.n_trees:
            terms += self._forest(model, codes)
        terms.append(self._constant(model.intercept[None], np.float64))
        steps = self._op("Sum", *terms)
        return self._op("Div", steps, self._constant(SCORE_ONE, np.float64))

    def _forest(self, model: Model, codes: list[str]) -> list[str]:
        """Add the trees, in parts whose sums float32 holds exactly."""
        used = sorted(set(np.unique(model.trees.splits.feature).tolist()))
        orders = [
            ordered_codes(model.trees.splits, j, own.n_bins) for j, own in enumerate(model.bins)
        ]
        columns = [self._place(codes[j], orders[j]) for j in used]
        table = self._op("Concat", *columns, axis=1)
        shapes = Builder([axis_of_codes(order) for order in orders], "ONNX").forest(model)
        place = {j: k for k, j in enumerate(used)}
        out = []
        for start, stop in _parts(model.trees):
            given = _ensemble(shapes[start:stop], model.trees.value[:, start:stop], place)
            tensors = {
                name: self._onnx.numpy_helper.from_array(values, name)
                for name, values in given.items()
                if isinstance(values, np.ndarray)
            }
            trees = self._op(
                "TreeEnsembleRegressor",
                table,
                domain=ML,
                n_targets=model.n_scores,
                aggregate_function="SUM",
                post_transform="NONE",
                **(given | tensors),
            )
            out.append(self._op("Cast", trees, to=self._onnx.TensorProto.DOUBLE))
        return out

    def _place(self, code: str, order: NDArray[np.intp]) -> str:
        """Return the places of codes in an order, (n, 1) float64."""
        if (np.diff(order) < 0).any():
            code = self._op("Gather", self._constant(np.argsort(order), np.int64), code)
        double = self._op("Cast", code, to=self._onnx.TensorProto.DOUBLE)
        return self._op("Reshape", double, self._constant([-1, 1], np.int64))

    # ---- scores to predictions

    def _outputs(self, score: str) -> list[tuple[str, int, list[Any]]]:
        """Add the outputs; return name, type and shape of each."""
        content, types = self._content, self._onnx.TensorProto
        n = content.model.n_scores
        half = self._constant(content.even / SCORE_ONE, np.float64)
        natural = self._op("Sub", score, half, output=SCORE)
        scores = (SCORE, types.DOUBLE, [ROWS, n])
        classes = content.schema.target.classes
        if not classes:
            self._op("Identity", self._value(score), output=PREDICTION)
            return [(PREDICTION, types.DOUBLE, [ROWS, 1]), scores]
        if n == 1:
            hit = self._op("Greater", natural, self._constant(0, np.float64))
            first = self._op("Cast", hit, to=types.INT64)
            index = self._op("Reshape", first, self._constant([-1], np.int64))
        else:
            index = self._op("ArgMax", natural, axis=1, keepdims=0)
        labels, kind = self._labels(content.labels)
        self._op("Gather", labels, index, output=LABEL)
        self._op("Identity", self._probability(score), output=PROBABILITY)
        probability = (PROBABILITY, types.DOUBLE, [ROWS, len(classes)])
        return [(LABEL, kind, [ROWS]), probability, scores]

    def _labels(self, labels: tuple[Any, ...]) -> tuple[str, int]:
        """Return the labels as a constant of whole numbers, if all are, or of texts."""
        types = self._onnx.TensorProto
        if all(map(_is_whole, labels)):
            return self._constant(list(map(int, labels)), np.int64), types.INT64
        name = self._name()
        texts = [str(label).encode() for label in labels]
        made = self._onnx.helper.make_tensor(name, types.STRING, [len(texts)], texts)
        self._constants.append(made)
        return name, types.STRING

    def _value(self, score: str) -> str:
        """Return a prediction within the bounds of the target."""
        content, number = self._content, np.float64
        middle, half = content.scale
        if content.model.link == "log":
            shifted = self._op("Sub", score, self._constant(RATE_SHIFT, number))
            score = self._op("Exp", self._op("Min", shifted, self._constant(0, number)))
        scaled = self._op("Mul", score, self._constant(half, number))
        value = self._op("Add", scaled, self._constant(middle, number))
        target = content.schema.target
        low, high = self._constant(target.low, number), self._constant(target.high, number)
        return self._op("Clip", value, low, high)

    def _probability(self, score: str) -> str:
        """Return the probabilities of all classes, (n, n_classes), by the model's link."""
        link, number = self._content.model.link, np.float64
        if link in ("softmax", "clipped_softmax"):
            p = self._op("Softmax", score, axis=1)
            return p if link == "softmax" else self._normalised(self._unclipped(p))
        one = self._constant(1, number)
        if link == "probability":
            p = self._op("Clip", score, self._constant(0, number), one)
            if self._content.model.n_scores > 1:
                return self._normalised(p)
        else:
            p = self._op("Sigmoid", score)
        if link == "clipped_logit":
            half = self._constant(0.5, number)
            up = self._op("Min", self._op("Sub", one, p), half)
            down = self._op("Min", p, half)
            p = self._op("Div", down, self._op("Add", up, down))
        return self._op("Concat", self._op("Sub", one, p), p, axis=1)

    def _unclipped(self, p: str) -> str:
        """Return p_k times what the norm of p - e_k exceeds its clip by, if it does."""
        number = np.float64
        one = self._constant(1, number)
        squares = self._op(
            "ReduceSum", self._op("Mul", p, p), self._constant([1], np.int64), keepdims=1
        )
        twice = self._op("Mul", p, self._constant(2, number))
        squared = self._op("Sub", self._op("Add", one, squares), twice)
        ratio = self._op("Div", squared, self._constant(CLASS_CLIP**2, number))
        return self._op("Mul", p, self._op("Sqrt", self._op("Max", ratio, one)))

    def _normalised(self, p: str) -> str:
        """Return shares of their sum; equal ones if all are 0."""
        zero, one = self._constant(0, np.float64), self._constant(1, np.float64)
        total = self._op("ReduceSum", p, self._constant([1], np.int64), keepdims=1)
        some = self._op("Greater", total, zero)
        equal = self._constant(1 / self._content.model.n_scores, np.float64)
        return self._op(
            "Where", some, self._op("Div", p, self._op("Where", some, total, one)), equal
        )


def _parts(trees: TreeEnsemble) -> list[tuple[int, int]]:
    """Return the first and last trees of parts whose partial sums stay below `SINGLE` steps."""
    largest = np.abs(trees.value.astype(np.int64)).max(axis=(0, 2))
    parts, start, total = [], 0, 0
    for t, own in enumerate(largest.tolist()):
        if total + own >= SINGLE and t > start:
            parts.append((start, t))
            start, total = t, 0
        total += own
    return [*parts, (start, len(largest))]


def _ensemble(
    shapes: list[TreeLists], value: NDArray[np.int32], place: dict[int, int]
) -> dict[str, Any]:
    """Return the attributes of a TreeEnsembleRegressor."""
    out: dict[str, list[Any]] = {
        name: []
        for name in (
            "nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_modes", "nodes_truenodeids",
            "nodes_falsenodeids", "target_treeids", "target_nodeids", "target_ids",
        )
    }  # fmt: skip
    thresholds: list[float] = []
    weights: list[float] = []
    for t, shape in enumerate(shapes):
        for node, leaf in enumerate(shape.leaf):
            inner = leaf < 0
            out["nodes_treeids"].append(t)
            out["nodes_nodeids"].append(node)
            out["nodes_featureids"].append(place[shape.column[node]] if inner else 0)
            out["nodes_modes"].append("BRANCH_LEQ" if inner else "LEAF")
            out["nodes_truenodeids"].append(max(shape.left[node], 0))
            out["nodes_falsenodeids"].append(max(shape.right[node], 0))
            thresholds.append(shape.cut[node] - 0.5 if inner else 0.0)
            if inner:
                continue
            for k in range(len(value)):
                out["target_treeids"].append(t)
                out["target_nodeids"].append(node)
                out["target_ids"].append(k)
                weights.append(float(value[k, t, leaf]))
    tensors = {
        "nodes_values_as_tensor": np.array(thresholds, np.float64),
        "target_weights_as_tensor": np.array(weights, np.float64),
    }
    return {**out, **tensors}


def _is_whole(label: Any) -> bool:
    """Return whether a label, one of `Content.labels`, is a whole number of 64 bits."""
    if isinstance(label, float):
        return label.is_integer() and abs(label) < WIDE
    return isinstance(label, int)
