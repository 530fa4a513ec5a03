"""Released answers in natural units."""

import numpy as np
import pytest

from dpgb_dask.components.answers import sums
from dpgb_dask.components.trees.leaves import Averaging, GradientStep, NewtonStep
from dpgb_dask.components.trees.splits import root
from dpgb_dask.contracts.boundary import Receipt, Released
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import TreeSumsQuery
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.kernels.gradient import write
from dpgb_dask.losses import LOSSES, unpack

CASES = [  # schema, loss, a label, the true second component of a row at score 0
    ("binary", None, 1, 0.25),
    ("multiclass", None, 1, 2 / 9),
    ("numeric", None, 0, 1.0),
    ("numeric", "absolute_error", 0, None),  # its own business; here only that it is positive
    ("numeric", "quantile", 0, None),
    ("numeric", "huber", 0, 1.0),
    ("numeric", "poisson", 0, None),
]
SCHEMAS = {
    "binary": Schema({"x": (0, 1)}, classes=[0, 1]),
    "multiclass": Schema({"x": (0, 1)}, classes=[0, 1, 2]),
    "numeric": Schema({"x": (0, 1)}, target_bounds=(0, 10)),
}


def read(leaf, kind, loss, label):
    """One row at score 0, asked and read without noise."""
    shape = Shape(schema=SCHEMAS[kind], loss=None if loss is None else LOSSES[loss])
    k = shape.n_scores
    gradient = leaf.gradient(shape)
    out = np.empty((k, 1), np.int64)
    labels = np.array([label], np.int32 if kind == "numeric" else np.uint8)
    write(gradient, np.zeros((k, 1), np.int32), labels, None, out)
    query = TreeSumsQuery(label="", price=1, gradient=gradient, n_scores=k, splits=root())
    value = np.stack(unpack(out[:, 0]), axis=1).ravel()
    return sums(query, Released(value, Receipt("f", "q", 0, "", 1, 100, 0)))


@pytest.mark.parametrize(("kind", "loss", "label", "hess"), CASES)
def test_second_component_of_a_newton_step_is_the_hessian(kind, loss, label, hess):
    answer = read(NewtonStep(), kind, loss, label)
    if hess is None:
        assert np.all(answer.hess > 0)
    else:
        np.testing.assert_allclose(answer.hess, hess, atol=1e-3)


@pytest.mark.parametrize("leaf", [GradientStep(), GradientStep(count_scale=1.0), Averaging()])
@pytest.mark.parametrize(("kind", "loss", "label"), [case[:3] for case in CASES])
def test_second_component_of_a_count_is_one_row(leaf, kind, loss, label):
    answer = read(leaf, kind, loss, label)
    np.testing.assert_allclose(answer.hess, 1.0, atol=1e-3)
    assert answer.hess_sd == pytest.approx(answer.grad_sd / leaf.count_scale, rel=1e-3)
