"""scikit-learn's checks with every array and frame as a Dask collection; those that fail are named, with the reason."""

import dask
import pytest

from dpgb_dask import DPGBClassifier, DPGBRegressor
from dpgb_dask.recipes import RECIPES
from dpgb_dask.testing import SeededNoise, parametrize_with_dask_checks

WEIGHTS = "schema='infer' takes no sample_weight with Dask collections; a declared schema does"
VALUES = (
    "schema='infer' checks no values of Dask collections, as each such check would read all rows"
)
EXPECTED = {
    "check_sample_weights_pandas_series": WEIGHTS,
    "check_sample_weights_list": WEIGHTS,
    "check_all_zero_sample_weights_error": WEIGHTS,
    "check_sample_weights_shape": WEIGHTS,
    "check_sample_weights_not_overwritten": WEIGHTS,
    "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
    "check_complex_data": VALUES,
    "check_dtype_object": VALUES,
    "check_supervised_y_2d": VALUES,
}
OF_CLASSIFIERS = {
    "check_classifiers_one_label_sample_weights": WEIGHTS,
    "check_classifiers_regression_target": VALUES,
}
BRIEF = RECIPES["auto"].brief()


def expected(estimator):
    own = OF_CLASSIFIERS if isinstance(estimator, DPGBClassifier) else {}
    return EXPECTED | own


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Array API dispatch:UserWarning")
@parametrize_with_dask_checks(
    [
        kind(schema="infer", noise=SeededNoise(1), recipe=BRIEF)
        for kind in (DPGBClassifier, DPGBRegressor)
    ],
    expected_failed_checks=expected,
)
def test_sklearn_check_passes_on_dask(estimator, check):
    with dask.config.set(scheduler="sync"):
        check(estimator)
