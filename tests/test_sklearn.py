"""Every scikit-learn check, on facts read from the data and seeded noise; none is expected to fail."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpgb_dask import DPGBClassifier, DPGBRegressor
from dpgb_dask.testing import SeededNoise

# The checks ask a few hundred rows for a good score, hence the large epsilon.
ESTIMATORS = [
    DPGBClassifier(schema="infer", noise=SeededNoise(0), epsilon=20.0),
    DPGBRegressor(schema="infer", noise=SeededNoise(0), epsilon=20.0),
]


@pytest.mark.filterwarnings("ignore:Array API dispatch:UserWarning")
@parametrize_with_checks(ESTIMATORS)
def test_sklearn_check_passes(estimator, check):
    check(estimator)
