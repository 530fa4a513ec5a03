"""Reading and writing what people have: data sets of rows as Zarr, and files of text (`read_csv`).

A data set lies on disk or in an object store, aligned to the shards of Zarr, with its schema beside it.

A fit reads its source once or twice; what is slow to read or to line up (many small files, CSV, a pipeline) is better
put into one data set first. It is laid out as

- a group with the attribute ``dpgb_dask``: the format, the schema, the features' names, and whether it is complete;
- ``X`` (rows, features), ``y``, ``sample_weight`` and ``unit`` (rows): one shard per block of rows in each;
- in the attribute, too, the size and digest of every shard, and digests of the arrays' metadata and of the attribute
  itself: sizes are checked as the data set is opened, digests as a shard is read. They tell damage, not a forger.

Features that are declared categories are kept as their place in the schema's list; as the numbers they are, if all of
the list are numbers. A model fitted from the data set is the same, bit for bit, as one fitted from its source.
"""

from dpgb_dask.io.opening import Dataset, open_dataset
from dpgb_dask.io.text import read_csv
from dpgb_dask.io.writing import write_dataset

__all__ = ["Dataset", "open_dataset", "read_csv", "write_dataset"]
