"""Repeatable noise for tests. An estimator fitted with it is not private, and says so where it shows."""

import hashlib

from dpgb_dask.calls import spoken
from dpgb_dask.controller.noise import KEY_BYTES
from dpgb_dask.errors import PlanError, short
from dpgb_dask.scalars import whole_number


class SeededNoise:
    """A noise source whose key comes from a seed, so that the same fit draws the same noise.

    Parameters
    ----------
    seed : int

    Raises
    ------
    PlanError
        If the seed is no whole number.

    Privacy
    -------
    None: anyone who knows the seed can subtract the noise. Models are marked ``private=False``, and a ledger account is
    refused.
    """

    @spoken
    def __init__(self, seed: int) -> None:
        whole = whole_number(seed)
        if whole is None:
            raise PlanError(f"seed={short(seed)} must be a whole number.")
        self.seed = whole

    def fit_key(self) -> bytes:
        """Return the 32-byte key derived from the seed."""
        return hashlib.sha256(b"dpgb_dask seeded noise %d" % self.seed).digest()[:KEY_BYTES]

    def __repr__(self) -> str:
        return f"SeededNoise({self.seed})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeededNoise) and other.seed == self.seed

    def __hash__(self) -> int:
        return hash(("SeededNoise", self.seed))
