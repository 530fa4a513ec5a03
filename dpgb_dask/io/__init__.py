"""Reading and writing rows: data sets in Zarr, and text files (`read_csv`).

A data set is on disk or in an object store; it is aligned to Zarr's shards and contains its schema.

A fit reads its source once, rarely two or three times. A source that is slow to read or to align (many small files,
CSV, a pipeline) is better written to a data set first. A data set consists of

- a group with the attribute ``dpgb_dask``: the format, the schema, the names of the features, and whether it is
  complete;
- ``X`` (rows, features), ``y``, ``sample_weight`` and ``unit`` (rows): each with one shard per block of rows;
- also in the attribute, the size and digest of every shard, and digests of the arrays' metadata and of the attribute
  itself. Sizes are checked when the data set is opened, digests when a shard is read. They reveal damage, not forgery.

A categorical feature is stored as the positions in the schema's list of categories, or as its values if all categories
are numbers. A model fitted from the data set is the same, bit for bit, as a model fitted from its source.
"""

from dpgb_dask.io.opening import Dataset, open_dataset
from dpgb_dask.io.text import read_csv
from dpgb_dask.io.writing import write_dataset

__all__ = ["Dataset", "open_dataset", "read_csv", "write_dataset"]
