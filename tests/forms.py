"""The same rows in every form that an estimator takes."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import zarr

from dpgb_dask import Schema

SCHEMA = Schema(
    {"age": (0, 80), "income": (0.0, 1e5), "kind": [0, 1, 2, 3], "score": (-5.0, 5.0)},
    classes=[0, 1],
)


def some_rows():
    rng = np.random.default_rng(7)
    n = 4001
    x = np.column_stack(
        [
            rng.integers(0, 80, n),
            np.where(rng.random(n) < 0.3, 0, rng.exponential(2e4, n)),
            rng.integers(0, 5, n),  # 4 is not declared
            rng.normal(0, 2, n),
        ]
    ).astype(np.float64)
    x[rng.random(x.shape) < 0.02] = np.nan
    x[:3, 3] = [np.inf, -np.inf, 99.0]
    logit = 0.05 * (np.nan_to_num(x[:, 0]) - 40) + np.nan_to_num(np.clip(x[:, 3], -5, 5))
    y = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    y[5] = 7  # an unknown label
    return x, y


class Labelled(pd.Series):
    """A column in whose slices numbers are labels, as those of pandas 2 are where the index is of floats."""

    @property
    def _constructor(self):
        return Labelled

    def __getitem__(self, key):
        return self.loc[key] if isinstance(key, slice) else super().__getitem__(key)


def labelled(values):
    """Return values under labels from which no row's place can be told."""
    return Labelled(values, index=np.random.default_rng(3).permutation(len(values)) + 0.5)


def in_chunks(n_chunks):
    def make(x, y, _tmp):
        rows = -(-len(x) // n_chunks)
        return da.from_array(x, chunks=(rows, 2)), da.from_array(y, chunks=max(rows // 2, 1))

    return make


def as_frame(x, y, _tmp):
    frame = pd.DataFrame(x, columns=list(SCHEMA.names)).assign(target=y)
    frame = dd.from_pandas(frame, npartitions=5)
    frame = dd.concat([frame, frame.partitions[0].query("age < -1")])  # an empty partition
    return frame[list(SCHEMA.names)], frame["target"]


def as_pandas(x, y, _tmp):
    return pd.DataFrame(x, columns=list(SCHEMA.names)), pd.Series(y)


def as_zarr(x, y, tmp):
    stored = zarr.create_array(tmp / "x.zarr", data=x, chunks=(1500, 4))
    return stored, zarr.create_array(tmp / "y.zarr", data=y, chunks=(1500,))


FORMS = {
    "numpy": lambda x, y, _tmp: (x, y),
    "pandas": as_pandas,
    "dask1": in_chunks(1),
    "dask7": in_chunks(7),
    "dask50": in_chunks(50),
    "frame": as_frame,
    "zarr": as_zarr,
}
