"""Fields of queries and gradients: what is checked is what is kept, and it is of a plain type."""

from dataclasses import fields, replace

import numpy as np
import pytest
from private.cases import KINDS, draw, gradient_of, pair_cells, queries_of, shape_of

from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import SHRINK_BITS, ReferenceSumsQuery
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import LabelGradient, SlopeGradient, TableGradient, poisson_gradient

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
