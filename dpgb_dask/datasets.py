"""Made-up data about people that do not exist, for examples, the demo and the notebooks: public, from a public seed."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.calls import spoken
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.plan import PublicRng
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError
from dpgb_dask.scalars import whole_number

if TYPE_CHECKING:
    import dask.dataframe as dd

# rows are made up in blocks of this many, so that they are the same for all chunk sizes
BLOCK_ROWS = 10_000
OCCUPATIONS = (
    "office", "law", "teaching", "cleaning", "engineering", "management",
    "care", "retail", "medicine", "research", "farming", "transport",
)  # fmt: skip
REGIONS = ("capital", "coast", "north", "east", "valley", "hills", "south", "west")
MARRIED = ("no", "yes")
TARGET = "high_income"


@spoken
def make_census(
    n: int = 100_000, *, chunks: int = 10_000, random_state: int = 0
) -> "tuple[dd.DataFrame, Schema]":
    """Make up census data: ten features of people, and whether their income is high.

    Parameters
    ----------
    n : int
        Number of rows.
    chunks : int
        Rows of a partition. Row i is the same for every n and every chunk size.
    random_state : int
        Another one makes up other people, for instance to test a model on.

    Returns
    -------
    people : dask DataFrame
        Lazy: a partition's rows are made up when they are read. Its last column is the target "high_income".
        "commute_km" has missing values; "occupation", "region" and "married" are categorical.
    schema : Schema
        What is public about it, declared as one would for real people.

    Raises
    ------
    PlanError
        If n or chunks is not a whole number above 0, or random_state is not a whole number from 0 on.

    Privacy
    -------
    None is needed: nobody is in these data.

    Examples
    --------
    >>> from dpgb_dask.datasets import make_census
    >>> people, schema = make_census(20_000, chunks=5_000)
    >>> people.npartitions, schema.n_features
    (4, 10)
    >>> people.head(3)[["age", "occupation", "high_income"]]
       age occupation  high_income
    0   44   research            1
    1   22   medicine            0
    2   56    farming            1
    """
    # not above: workers, which make up the rows, have no need of it
    import dask.dataframe as dd  # noqa: PLC0415

    n, chunks = _whole("n", n, 1), _whole("chunks", chunks, 1)
    seed = _whole("random_state", random_state, 0)
    starts = list(range(0, n, chunks))
    stops = [*starts[1:], n]
    people = dd.from_map(
        _people,
        starts,
        stops,
        seed=seed,
        meta=_people(0, 0, seed=0),
        divisions=[*starts, n - 1],
        label="census",
    )
    return people, census_schema()


def _whole(name: str, value: Any, least: int) -> int:
    own = whole_number(value)
    if own is None or own < least:
        raise PlanError(f"{name}={value!r} must be a whole number, at least {least}.")
    return own


def census_schema() -> Schema:
    """Return what is public about the people of `make_census`."""
    return Schema(
        {
            "age": Numeric(17, 90, integer=True),
            "education_years": Numeric(0, 20, integer=True),
            "hours_per_week": Numeric(0, 100, integer=True),
            "capital_gain": (0, 100_000),
            "commute_km": (0, 200),
            "tenure_years": (0, 50),
            "household_size": Numeric(1, 10, integer=True),
            "occupation": list(OCCUPATIONS),
            "region": list(REGIONS),
            "married": list(MARRIED),
        },
        classes=[0, 1],
        target=TARGET,
    )


def _people(start: int, stop: int, *, seed: int) -> pd.DataFrame:
    """Return the people of rows start to stop."""
    first, last = start // BLOCK_ROWS, -(-stop // BLOCK_ROWS)
    blocks = [census_block(k, seed) for k in range(first, max(last, first + 1))]
    own = slice(start - first * BLOCK_ROWS, stop - first * BLOCK_ROWS)
    columns = {name: np.concatenate([block[name] for block in blocks])[own] for name in blocks[0]}
    index = pd.RangeIndex(start, stop)
    frame = pd.DataFrame(columns, index=index)
    for name, labels in (("occupation", OCCUPATIONS), ("region", REGIONS), ("married", MARRIED)):
        frame[name] = pd.Categorical.from_codes(columns[name], categories=list(labels))
    return frame


def census_block(block: int, seed: int) -> dict[str, NDArray[Any]]:
    """Make up one block of people, the same on every machine.

    Parameters
    ----------
    block : int
        Number of the block.
    seed : int

    Returns
    -------
    dict
        Columns of ``BLOCK_ROWS`` values; categories as positions in their lists.
    """
    n = BLOCK_ROWS
    rng = PublicRng(seed).stream("census", block)
    age = np.clip(rng.gamma(6.0, 6.5, n) + 15, 17, 90).round()
    education = np.clip(rng.normal(12, 2.8, n), 0, 20).round()
    hours = np.clip(rng.normal(40, 11, n), 0, 100).round()
    gain = np.where(rng.random(n) < 0.09, np.minimum(rng.lognormal(8.3, 1.2, n), 1e5), 0.0).round()
    commute = np.minimum(rng.lognormal(2.3, 0.9, n), 200).round(1)
    commute[rng.random(n) < 0.1] = np.nan
    tenure = np.minimum(rng.exponential(6.0, n), np.minimum(age - 16, 50)).round(1)
    household = np.clip(1 + rng.poisson(1.6, n), 1, 10)
    occupation, region = rng.integers(0, 12, n), rng.integers(0, 8, n)
    married = rng.random(n) < 1 / (1 + np.exp(-(age - 32) / 9))
    job = np.sin(1.7 * np.arange(12))[occupation]
    prime = np.exp(-(((age - 48) / 16) ** 2))
    score = (
        -4.3
        + 2.2 * prime
        + 0.28 * (education - 12)
        + 0.035 * (hours - 40)
        + 0.9 * np.log1p(gain / 3000)
        + 0.8 * job
        + 0.25 * np.cos(2.1 * np.arange(8))[region]
        + 1.3 * married
        + 0.05 * np.sqrt(tenure)
        + 0.9 * married * (household <= 2)  # two incomes, no children
        + 0.12 * (education - 12) * prime * (job > 0)  # a degree pays in some jobs, in mid-career
        - 0.02 * (hours - 40) * (age > 62)
    )
    label = rng.random(n) < 1 / (1 + np.exp(-score))
    return {
        "age": age.astype(np.int64),
        "education_years": education.astype(np.int64),
        "hours_per_week": hours.astype(np.int64),
        "capital_gain": gain,
        "commute_km": commute,
        "tenure_years": tenure,
        "household_size": household,
        "occupation": occupation,
        "region": region,
        "married": married.astype(np.int64),
        TARGET: label.astype(np.int64),
    }
