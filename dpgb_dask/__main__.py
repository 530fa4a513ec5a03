"""``python -m dpgb_dask`` is the command line."""

import sys

from dpgb_dask.cli import main

if __name__ == "__main__":
    sys.exit(main())
