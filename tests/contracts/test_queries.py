"""Fields of queries and gradients: what is checked is what is kept, and it is of a plain type."""

import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
from private.cases import KINDS, draw, gradient_of, pair_cells, queries_of, shape_of

from dpgb_dask.contracts.model import Splits
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import (
    SHRINK_BITS,
    ReferenceSumsQuery,
    ResidualQuery,
    checked_splits,
)
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.bin import MAX_EDGES
from dpgb_dask.kernels.directions import MOST
from dpgb_dask.losses import (
    LabelGradient,
    LogLoss,
    SlopeGradient,
    SquaredError,
    TableGradient,
    poisson_gradient,
)

PLAIN = (int, float, str)


def always(_self, _other):
    return True


def never(_self, _other):
    return False


def liar(plain):
    """A subclass of a plain type whose comparisons all hold: a check before the conversion accepts any value."""
    names = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__")
    lies = {**dict.fromkeys(names, always), "__ne__": never, "__hash__": plain.__hash__}
    own = {"__str__": lambda self: self} if plain is str else {}
    return type(f"Lying{plain.__name__}", (plain,), lies | own)


LIARS = {plain: liar(plain) for plain in PLAIN}
TOLD = {
    int: (-5, 0, 1, 1 << 70),
    float: (-5.0, 0.0, float("nan"), float("inf"), 1.0),
    str: ("x", "part", "numeric"),
}
HONEST = {plain: type(f"Own{plain.__name__}", (plain,), {}) for plain in PLAIN}


def owners():
    """Every query, what queries hold, every gradient, and the facts that all bounds are multiplied by."""
    out = [draw(), pair_cells()[0]]
    for kind in KINDS:
        out += [*queries_of(kind).values(), gradient_of(kind), shape_of(kind)]
    out += [SlopeGradient(1, 2, 3), LabelGradient("numeric", 1, 5), poisson_gradient(0.1)]
    out.append(TableGradient("numeric", np.ones(4096, np.int64)))
    return list({type(owner): owner for owner in out}.values())


@pytest.mark.parametrize("owner", owners(), ids=lambda owner: type(owner).__name__)
def test_a_number_or_text_that_lies_is_checked_as_it_is_kept(owner):
    for field in fields(owner):
        value = getattr(owner, field.name)
        plain = type(value)
        if not field.init or plain not in PLAIN:
            continue
        own = replace(owner, **{field.name: HONEST[plain](value)})
        assert type(getattr(own, field.name)) is plain, field.name
        for told in TOLD[plain]:
            try:
                kept = getattr(replace(owner, **{field.name: LIARS[plain](told)}), field.name)
            except PlanError:
                continue
            assert type(kept) is plain, field.name
            replace(owner, **{field.name: kept})  # a value that is refused by itself was not kept


@pytest.mark.parametrize("name", ["max_weight", "weight_bits"])
@pytest.mark.parametrize("value", [-1, 1.0, True, "1"])
def test_weights_that_state_no_bound_are_refused(name, value):
    with pytest.raises(PlanError, match=f"{name}="):
        Shape(schema=shape_of("numeric").schema, **{name: value})


def test_residuals_have_no_more_cells_than_are_numbered():
    query = ResidualQuery(label="r", price=1, edges=np.arange(MAX_EDGES))
    assert query.n_values == MAX_EDGES + 1
    with pytest.raises(PlanError, match=f"at most {MAX_EDGES}"):
        replace(query, edges=np.arange(MAX_EDGES + 1))


@pytest.mark.parametrize("name", ["products", "directions"])
def test_no_row_is_divided_by_a_norm_that_could_not_be_squared(name):
    query = queries_of("binary")[name]
    assert replace(query, norm=MOST - 1).norm == MOST - 1
    for norm in (0, MOST, 1 << 62):
        with pytest.raises(PlanError, match=f"norm={norm}"):
            replace(query, norm=norm)


@pytest.mark.parametrize("n_features", [1, 2, 40, 700])
def test_shrunk_rows_have_the_norm_of_the_bound(n_features):
    """In whole numbers: k blocks of a row's weight are at most the bound's, and more than that of the next weight."""
    one = 1 << SHRINK_BITS
    for most in {1, 2, n_features // 3 + 1, n_features + 1}:
        query = ReferenceSumsQuery(
            label="",
            price=1,
            gradient=gradient_of("binary"),
            n_scores=1,
            leaf_of_bin=(np.zeros(1, np.uint8),) * n_features,
            n_leaves=(1,) * n_features,
            omitted=(0,) * n_features,
            most_blocks=most,
        )
        assert len(query.shrink) == n_features + 2  # from no block to all of them
        for k, weight in enumerate(query.shrink):
            if k <= most:
                assert weight == one
            else:
                assert k * weight**2 <= most * one**2 < k * (weight + 1) ** 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_hash_tells_gradients_apart_and_not_their_copies(kind):
    """It is remembered for each gradient; of a copy, which is another object, it has to be the same."""
    query = queries_of(kind)["trees"]
    first = query.digest()
    assert pickle.loads(pickle.dumps(query)).digest() == query.digest() == first
    loss = SquaredError() if kind == "numeric" else LogLoss()
    told = {
        replace(query, gradient=loss.gradient(kind, query.n_scores, second=second)).digest()
        for second in ("hessian", "count", "none")
    }
    assert len(told) == 3
    for field in fields(query.gradient):
        if isinstance(table := getattr(query.gradient, field.name), np.ndarray):
            table = table.copy()
            table.flat[7] -= 1
            changed = replace(query.gradient, **{field.name: table})
            assert replace(query, gradient=changed).digest() != first


def masked_trees():
    """Five trees of depth 2, some nodes of which have masks, in an order of their own."""
    rng = np.random.default_rng(4)
    feature = rng.integers(0, 3, (5, 3)).astype(np.uint16)
    mask_of = np.array([[-1, 0, -1], [2, 1, -1], [-1, -1, -1], [4, 4, 1], [3, -1, 0]], np.int32)
    masks = rng.integers(0, 2, (5, 256)).astype(np.uint8)
    return Splits(feature, rng.integers(0, 9, (5, 3)).astype(np.uint8), mask_of, masks)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_runs_of_trees_are_the_trees(size):
    trees = masked_trees()
    runs = trees.runs(size)
    assert [run.n_trees for run in runs] == [len(range(5)[k : k + size]) for k in range(0, 5, size)]
    for k, run in enumerate(runs):
        own = np.arange(5)[k * size : (k + 1) * size]
        assert run.same(trees.only(own))
        assert checked_splits(run).same(run)
    no_masks = Splits.plain(trees.feature, trees.threshold)
    assert all(len(run.masks) == 0 for run in no_masks.runs(size))


def test_trees_that_were_checked_are_not_looked_at_again():
    """Only the check itself may say so: a copy, and parts of trees from outside, are checked anew."""
    own = checked_splits(masked_trees())
    assert checked_splits(own) is own
    for run in own.runs(2):
        assert checked_splits(run) is run
        assert not any(part.flags.writeable for part in run.arrays)
    for copied in (pickle.loads(pickle.dumps(own)), replace(own), *masked_trees().runs(2)):
        assert checked_splits(copied) is not copied
    bad = masked_trees()
    bad.mask_of[3, 0] = 5
    with pytest.raises(PlanError, match="mask"):
        checked_splits(bad)
