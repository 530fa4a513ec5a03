"""Made-up data: the same rows for all chunk sizes, that fit the schema they come with."""

import pandas as pd
import pytest

from dpgb_dask.datasets import make_census
from dpgb_dask.errors import PlanError


def test_census_has_the_same_rows_for_every_chunk_size():
    whole = make_census(12_000, chunks=12_000)[0].compute(scheduler="sync")
    people, _ = make_census(11_456, chunks=3_000)
    assert people.npartitions == 4
    assert people.known_divisions
    pd.testing.assert_frame_equal(people.compute(scheduler="sync"), whole[:11_456])
    others = make_census(1_000, random_state=1)[0].compute(scheduler="sync")
    assert not others.equals(whole[:1_000])


def test_census_fits_its_schema():
    people, schema = make_census(3_000, chunks=2_000)
    diagnosis = schema.check(people.drop(columns="high_income"), people["high_income"])
    assert diagnosis.bad_targets == 0
    assert all(c.below == c.above == c.unknown == c.fractional == 0 for c in diagnosis.columns)
    assert 0.2 < people["high_income"].mean().compute(scheduler="sync") < 0.45
    assert people.dtypes.equals(people.compute(scheduler="sync").dtypes)


def test_schemas_are_not_shared():
    schema = make_census(10)[1]
    del schema.features["age"]
    assert "age" in make_census(10)[1].features


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"n": 1.5}, {"chunks": 0}, {"chunks": True}, {"random_state": -1}]
)
def test_wrong_sizes_are_told(wrong):
    with pytest.raises(PlanError, match=next(iter(wrong))):
        make_census(**wrong)
