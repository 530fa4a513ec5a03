"""scikit-learn's checks with every array and frame as a Dask collection; those that fail are named, with the reason."""

import dask
import pytest

from dpgb_dask import DPGBClassifier, DPGBRegressor
from dpgb_dask.recipes import RECIPES
from dpgb_dask.testing import SeededNoise, parametrize_with_dask_checks

EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "whole weights of Dask collections are clipped weights, not rows",
    "check_dtype_object": "a column of dicts is a StructureError that names it, not a TypeError",
}
BRIEF = RECIPES["auto"].brief()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Array API dispatch:UserWarning")
@parametrize_with_dask_checks(
    [
        kind(schema="infer", noise=SeededNoise(1), recipe=BRIEF)
        for kind in (DPGBClassifier, DPGBRegressor)
    ],
    expected_failed_checks=lambda _: EXPECTED,
)
def test_sklearn_check_passes_on_dask(estimator, check):
    with dask.config.set(scheduler="sync"):
        check(estimator)
