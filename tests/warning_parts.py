"""Rows, and an estimator that fits them in no time, for tests of what a fit warns of."""

import numpy as np
import pandas as pd

from dpgb_dask import DPGBClassifier
from dpgb_dask.testing import SeededNoise


def rows(n=2000):
    x = np.random.default_rng(0).random(n)
    return pd.DataFrame({"x": x}), (x > 0.5).astype(int)


def quick(schema, **options):
    settings = {"schema": schema, "epsilon": 4.0, "n_estimators": 2, "noise": SeededNoise(0)}
    return DPGBClassifier(**settings | {"random_state": 0} | options)
