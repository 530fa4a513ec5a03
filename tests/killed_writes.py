"""Writes of data sets that `kill -9` ends, each in a process of its own."""

import os
import signal

import dask
from forms import SCHEMA, some_rows

from dpgb_dask.io import write_dataset, writing


def write(path, shard_rows):
    """Replace a data set, and be killed at the second shard."""
    real = writing._Writer.write

    def killed(self, start, parts):
        if start:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, start, parts)

    writing._Writer.write = killed
    X, y = some_rows()
    with dask.config.set(scheduler="sync"):
        write_dataset(path, X, y, schema=SCHEMA, shard_rows=shard_rows, overwrite=True)
