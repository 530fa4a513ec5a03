"""Data, models and queries of the private side's tests."""

import numpy as np
import pandas as pd
from outside.expectile import Expectile, Exponential

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.features import Categorical, Numeric
from dpgb_dask.contracts.grid import FINE, Grid, numeric_edges
from dpgb_dask.contracts.model import (
    MAX_BINS,
    FeatureBins,
    Model,
    PairTable,
    Splits,
    TreeEnsemble,
    no_trees,
)
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import (
    BinCountsQuery,
    CellCountsQuery,
    ChoiceQuery,
    ContributionSumsQuery,
    CountQuery,
    DirectionSumsQuery,
    MainSumsQuery,
    NodeSumsQuery,
    PairCells,
    PairSumsQuery,
    ProductSumsQuery,
    ReferenceSumsQuery,
    ResidualQuery,
    RowDraw,
    SharedChoiceQuery,
    TargetSumQuery,
    TreeSumsQuery,
)
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.losses import (
    GRAD_ONE,
    FreeSquaredGradient,
    SquaredGradient,
    logistic_gradient,
    softmax_gradient,
)

KEY = bytes(range(32))
ROWS_KEY = bytes(range(16, 32))
KINDS = ("binary", "multiclass", "numeric")
N_BINS = (12, 8, 5)
FEATURES = {"a": Numeric(-2, 2), "b": Numeric(0, 20, integer=True), "c": Categorical((0, 1, 2))}
BINS = (
    FeatureBins(np.linspace(-2, 2, 10), None, 12),
    FeatureBins(np.arange(6) * 3 + 0.5, None, 8),
    FeatureBins(None, np.array([3, 1, 0, 2, 4], np.uint8), 5),
)
GRID_BINS = (FeatureBins(numeric_edges(FEATURES["a"], FINE)[50:1050:100], None, 12), *BINS[1:])


def opened(raw):
    """Return the sums inside, which only the controller may see."""
    return raw._open(
        Receipt("fit", "query", position=0, label="", price=0, sigma_steps=1, scale_bits=0)
    )


def schema_of(kind, max_weight=1):
    """A schema of three features and a target of the given kind."""
    if kind == "numeric":
        return Schema(FEATURES, target_bounds=(-1, 3), max_weight=max_weight)
    return Schema(
        FEATURES, classes=[0, 1] if kind == "binary" else [0, 1, 2], max_weight=max_weight
    )


def shape_of(kind, max_weight=1, weight_bits=0):
    """The shape of the schema with a target of the given kind."""
    return Shape(schema=schema_of(kind, max_weight), max_weight=max_weight, weight_bits=weight_bits)


def unit_shape(schema, max_rows, weight_bits):
    """The shape of a fit whose privacy unit is named by the column ``person``."""
    schema = Schema(
        schema.features,
        schema.target.classes or None,
        None if schema.target.classes else (schema.target.low, schema.target.high),
        unit_id="person",
    )
    return Shape(schema=schema, max_weight=max_rows, weight_bits=weight_bits)


def rows_of(kind, n=3000, seed=0):
    """A table with missing and unknown values, its target and weights; some rows have weight 0."""
    rng = np.random.default_rng(seed)
    x = pd.DataFrame(
        {
            "a": rng.normal(size=n),
            "b": rng.integers(-2, 23, n).astype(np.float64),
            "c": rng.integers(0, 5, n).astype(np.float64),
        }
    )
    x = x.mask(rng.random(x.shape) < 0.05)
    if kind == "numeric":
        y = rng.normal(1, 1, n)
        y[::31] = np.nan
    else:
        y = rng.integers(0, 3 if kind == "binary" else 4, n).astype(np.float64)
    weight = rng.uniform(-0.1, 3.5, n)
    weight[::29] = np.nan
    return x, y, weight


def model_of(kind, seed=0, n_pairs=2, n_trees=3):
    """A model with random tables, pairs and trees."""
    rng = np.random.default_rng(seed)
    n_scores = 3 if kind == "multiclass" else 1

    def steps(*size):
        return rng.integers(-60000, 60000, size, dtype=np.int32)

    tables = tuple(steps(n, n_scores) for n in N_BINS)
    pairs = tuple(
        PairTable(p.i, p.j, p.map_i, p.map_j, steps(n_scores, p.n_i, p.n_j))
        for p in pair_cells()[:n_pairs]
    )
    value = steps(n_scores, n_trees, 8)
    trees = TreeEnsemble(splits_of(n_trees), value) if n_trees else no_trees(n_scores=n_scores)
    return Model(BINS, steps(n_scores), tables, pairs, trees)


def splits_of(n_trees, depth=3, seed=7):
    """Random splits, some with a mask; the first trees and their masks do not depend on how many trees there are."""
    rng = np.random.default_rng(seed)
    nodes = (1 << depth) - 1
    draws = rng.integers(0, 2**31, (n_trees, nodes, 3))
    feature = (draws[..., 0] % 3).astype(np.uint16)
    threshold = (draws[..., 1] % np.array(N_BINS)[feature]).astype(np.uint8)
    masked = draws[..., 2] % 3 == 0
    mask_of = np.full(feature.shape, -1, np.int32)
    mask_of[masked] = np.arange(masked.sum())
    masks = np.random.default_rng(seed + 1).integers(0, 2, (masked.sum(), 256), dtype=np.uint8)
    return Splits(feature, threshold, mask_of, masks)


def of_one_feature(splits):
    """The same trees, all of whose splits are by the second feature; a node without a split names the first."""
    nowhere = (splits.threshold % 5 == 0) & (splits.mask_of < 0)
    feature = np.where(nowhere, 0, 1).astype(np.uint16)
    threshold = np.where(nowhere, MAX_BINS - 1, splits.threshold).astype(np.uint8)
    return Splits(feature, threshold, splits.mask_of, splits.masks)


def upper(splits, depth):
    """The first levels of some trees."""
    n = (1 << depth) - 1
    return Splits(
        *(part[:, :n] for part in (splits.feature, splits.threshold, splits.mask_of)), splits.masks
    )


def draw(kind="part", group=3, low=0, high=3 << 30):
    """A draw of three quarters of the rows; row 50 is among them."""
    return RowDraw(kind, group, low, high)


def pair_cells():
    """Two coarse tables."""
    maps = [(np.arange(n) * 3 // n).astype(np.uint8) for n in N_BINS]
    return (PairCells(0, 1, maps[0], maps[1], 3, 3), PairCells(1, 2, maps[1], maps[2], 3, 3))


def numbers_of_bins():
    """Numbers that bins stand for, all of about the same size; of some rows the norm is above this one."""
    rng = np.random.default_rng(6)
    numbers = [rng.integers(150, 250, n) * rng.choice([-1, 1], n) for n in N_BINS]
    values = tuple(own.astype(np.int32) for own in numbers)
    return {"features": np.arange(3, dtype=np.uint16), "values": values, "norm": 340}


def gradient_of(kind):
    """The gradient of a kind of target."""
    if kind == "binary":
        return logistic_gradient(0.5, 0.5)
    return softmax_gradient(3) if kind == "multiclass" else FreeSquaredGradient(40001, 7000)


def table_of(kind):
    """A gradient that a user's own loss gives: a table."""
    if kind == "numeric":
        return Expectile(0.8).gradient(kind, 1, second="count")
    return Exponential().gradient(kind, 1, second="count")


def counting_gradient(kind):
    """A gradient whose second component is a count of 1."""
    if kind == "binary":
        return logistic_gradient(0.5, 1.0, second="count")
    return SquaredGradient(40001, GRAD_ONE, always=True)


def choice_of(kind, splits, weight_bits=0, **options):
    """A choice among five candidates of two features."""
    asked = {
        "gradient": counting_gradient(kind),
        "n_scores": 1,
        "features": np.array([0, 2], np.uint16),
        "sizes": (N_BINS[0], N_BINS[2]),
        "candidate_feature": np.array([0, 0, 0, 1, 1], np.uint16),
        "candidate_bin": np.array([2, 5, 8, 0, 3], np.uint8),
        "candidate_only": np.array([False, False, False, False, True]),
        "ridge": 1.0,
        **options,
    }
    return ChoiceQuery(label="", price=1, weight_bits=weight_bits, splits=splits, **asked)


def shared_choice_of(kind, splits, weight_bits=0, **options):
    """A choice that two runs of nodes share, among the levels of two features."""
    n_scores = 3 if kind == "multiclass" else 1
    asked = {
        "gradient": gradient_of(kind),
        "n_scores": n_scores,
        "features": np.array([0, 2], np.uint16),
        "sizes": (N_BINS[0], N_BINS[2]),
        "level_of_bin": ((np.arange(N_BINS[0]) // 3).astype(np.uint8), np.array([1, 0, 0, 1, 2], np.uint8)),
        "n_levels": (4, 3),
        "slope": (np.arange(splits.n_leaves) * 9 - 30)[:, None] * np.array([1, -1, 2])[:n_scores],
        "n_groups": min(2, splits.n_leaves),
        "odds": np.array([1, 5, 1 << 20, 3, 9]),
        **options,
    }  # fmt: skip
    return SharedChoiceQuery(label="", price=1, weight_bits=weight_bits, splits=splits, **asked)


def queries_of(kind, weight_bits=0):
    """One query of every kind that fits the target, by name."""
    schema = schema_of(kind)
    n_scores = 3 if kind == "multiclass" else 1
    price = {"label": "", "price": 1, "weight_bits": weight_bits}
    grad = {**price, "gradient": gradient_of(kind), "n_scores": n_scores}
    splits, one = splits_of(4, seed=8), splits_of(1, seed=9)
    level = {**grad, "features": np.array([2, 0], np.uint16), "sizes": (N_BINS[2], N_BINS[0])}
    sides = np.random.default_rng(5).integers(0, 2, (8, N_BINS[2] + N_BINS[0]), dtype=np.uint8)
    halves = {
        "leaf_of_bin": tuple((np.arange(n) // 2).astype(np.uint8) for n in N_BINS),
        "n_leaves": tuple(-(-n // 2) for n in N_BINS),
    }
    queries = {
        "count": CountQuery(**price),
        "coarse": CellCountsQuery(**price, n_uniform=16, sizes=Grid.of(schema, 16).sizes),
        "fine": CellCountsQuery(**price, n_uniform=FINE, sizes=Grid.of(schema, FINE).sizes),
        "bins": BinCountsQuery(
            **price, features=np.array([2, 0], np.uint16), sizes=(N_BINS[2], N_BINS[0])
        ),
        "target": TargetSumQuery(**price, kind=kind, n_classes=max(2, n_scores)),
        "main": MainSumsQuery(**grad, **halves),
        # rows fall into two to four blocks
        "reference": ReferenceSumsQuery(**grad, **halves, omitted=(2, -1, 0), most_blocks=2),
        "pairs": PairSumsQuery(**grad, pairs=pair_cells()),
        "trees": TreeSumsQuery(**grad, splits=splits),
        "part": TreeSumsQuery(**grad, splits=splits, rows=draw()),
        "one feature": TreeSumsQuery(**grad, splits=of_one_feature(splits)),
        "contributions": ContributionSumsQuery(
            **grad,
            trees=np.array([0, 2]),
            edges=np.tile(np.array([-50000, 0, 0, 30000], np.int32), (n_scores, 1)),
        ),
        "products": ProductSumsQuery(**price, **numbers_of_bins()),
        "directions": DirectionSumsQuery(
            **grad,
            **numbers_of_bins() | {"norm": 1800},
            matrix=np.array([[3, 1, 0], [0, 2, 3], [-5, 0, 2], [1, -2, 4]], np.int32),
        ),
        "root": NodeSumsQuery(**level, splits=upper(one, 0)),
        "nodes": NodeSumsQuery(**level, splits=one),
        "sample": NodeSumsQuery(**level, splits=one, rows=draw("sample", 11, high=1 << 30)),
        "sides": NodeSumsQuery(**level, splits=one, sides=sides),
        "shared choice": shared_choice_of(kind, one, weight_bits),
    }
    if kind != "multiclass":
        queries["choice"] = choice_of(kind, one, weight_bits)
        queries["table"] = TreeSumsQuery(**(grad | {"gradient": table_of(kind)}), splits=splits)
    if kind == "numeric":
        queries["residual"] = ResidualQuery(**price, edges=np.array([-60000, -1000, 1000, 50000]))
    return queries


ALL = [(kind, name) for kind in KINDS for name in queries_of(kind)]
