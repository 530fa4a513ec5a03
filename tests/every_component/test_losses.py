"""Every loss through a small fit: it trains, predicts finite values, and the report names it."""

import numpy as np
import pytest
from neighbours import FEATURES, SCHEMAS, some_rows
from outside.expectile import OUTSIDE_LOSSES

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema, recipes
from dpgb_dask.losses import LOSSES
from dpgb_dask.testing import SeededNoise

CASES = [
    pytest.param(loss, kind, id=f"{loss.name}-{kind}")
    for loss in (*LOSSES.values(), *OUTSIDE_LOSSES)
    for kind in loss.kinds
]


@pytest.mark.parametrize(("loss", "kind"), CASES)
def test_a_loss_trains_predicts_and_is_named(loss, kind):
    x, y = some_rows(kind, 300)
    schema = SCHEMAS[kind]
    if kind == "numeric":  # counts, too, are never negative
        schema, y = Schema(FEATURES, target_bounds=(0.0, 4.0)), y + 2
    made = DPGBRegressor if kind == "numeric" else DPGBClassifier
    model = made(
        epsilon=8.0, delta=1e-6, schema=schema, noise=SeededNoise(1), random_state=2, loss=loss, columns="position",
        recipe=recipes.get("fdp-tr-newton", kind=kind).brief(),
    ).fit(x, y)  # fmt: skip
    assert model.privacy_report_.loss.startswith(f"{loss.name}; a row's gradient is at most")
    told = model.predict(x) if kind == "numeric" else model.predict_proba(x)
    assert np.isfinite(told).all()
    assert len(np.unique(told)) > 1
