"""The models that every runtime has to express: default models of real sets, and small ones of every recipe."""

from pathlib import Path

import pytest
from runtimes.cases import CHANGES, REAL, SERVED, changed_fit, real_fit, small_fit


def pytest_collection_modifyitems(items):
    """Mark the tests of this folder: a plain run leaves them out."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.runtimes)


@pytest.fixture(params=REAL)
def real(request, data_dir):
    """A default model of a real set, and rows; of the large ones with pairs and a forest."""
    return real_fit(data_dir, request.param)


@pytest.fixture(params=SERVED, ids=" ".join)
def small(
    request,
    binary_schema,
    regression_schema,
    multiclass_schema,
    features,
    labels,
    numbers,
    names_of_class,
):
    """A small model of a recipe for a kind of target, and rows."""
    schemas = {
        "binary": binary_schema,
        "numeric": regression_schema,
        "multiclass": multiclass_schema,
    }
    targets = {"binary": labels, "numeric": numbers, "multiclass": names_of_class}
    return small_fit(*request.param, schemas, features, targets)


@pytest.fixture(params=CHANGES)
def changed(request, binary_schema, features, labels):
    """An edited or a constrained model, and rows, the last of which differ in one monotone feature."""
    return changed_fit(request.param, binary_schema, features, labels)
