"""Errors about a thousand columns name a few of them."""

import numpy as np
import pandas as pd
import pytest

from dpgb_dask import DPGBClassifier, DPGBError, Schema, io
from dpgb_dask.errors import MOST_NAMES, first_few, listed

NAMES = [f"feature_{k}" for k in range(1000)]
ROWS = pd.DataFrame(np.linspace(0, 1, 4000).reshape(4, 1000), columns=NAMES)
OTHERS = ROWS.rename(columns="other_{}".format)
TARGET = pd.Series([0, 1, 0, 1])
SCHEMA = Schema(dict.fromkeys(NAMES, (0.0, 1.0)), classes=[0, 1])
CLASSES = Schema(dict.fromkeys(NAMES, (0.0, 1.0)), classes=list(range(200)))


def fit(X=ROWS, schema=SCHEMA, **given):
    DPGBClassifier(epsilon=1.0, delta=1e-6, schema=schema, **given).fit(X, TARGET)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: fit(OTHERS),
        lambda: fit(ROWS[NAMES[:500]]),
        lambda: fit(ROWS[NAMES[::-1]].to_numpy(), columns=NAMES[:900]),
        lambda: fit(ROWS.to_numpy(), columns=[*NAMES[:500], *NAMES[:500]]),
        lambda: fit(ROWS.to_numpy(), columns=[3] * 1000),
        lambda: fit(pd.concat([ROWS, ROWS], axis=1)),
        lambda: fit(monotonic_cst=dict.fromkeys(OTHERS.columns, 1)),
        lambda: fit(monotonic_cst={"x": 2, **dict.fromkeys(NAMES, 1)}),
        lambda: fit(interaction_cst=[list(OTHERS.columns)]),
        lambda: fit(interaction_cst={"groups": NAMES}),
        lambda: fit(schema=CLASSES, class_weight={999: 1}),
        lambda: fit(schema={**SCHEMA.to_dict(), **dict.fromkeys(NAMES)}),
        lambda: Schema.draft(ROWS).fill({}),
        lambda: SCHEMA.check(OTHERS),
        lambda: io.write_dataset("nowhere.zarr", OTHERS, TARGET, schema=SCHEMA),
    ],
)
def test_an_error_about_many_names_is_short(wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DPGBError) as caught:
        wrong()
    assert len(str(caught.value)) < 700


def test_a_list_of_many_names_says_how_many_more_there_are():
    assert listed(NAMES[:2]) == "['feature_0', 'feature_1']"
    assert listed(NAMES[:MOST_NAMES]) == str(NAMES[:MOST_NAMES])
    assert listed(NAMES).endswith("'feature_9', and 990 more]")
    assert first_few(map(str, range(12)), "; ").endswith("; 9; and 2 more")
