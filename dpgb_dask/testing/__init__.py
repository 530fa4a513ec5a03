"""For tests: repeatable noise, and scikit-learn's checks over Dask collections. Nothing here is private."""

from dpgb_dask.testing.dask_checks import parametrize_with_dask_checks
from dpgb_dask.testing.noise import SeededNoise

__all__ = ["SeededNoise", "parametrize_with_dask_checks"]
