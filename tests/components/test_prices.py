"""Shares of a price."""

import numpy as np
import pytest

from dpgb_dask.components.prices import share_of


@pytest.mark.parametrize("price", [2**64 - 1, 2**53 + 1, 368_934_881_474_191_032, 1, 0])
def test_shares_are_never_more_than_the_whole(price):
    """A float holds no whole numbers beyond 2⁵³, and may be above them."""
    assert share_of(price, 1.0) == price
    for n_parts in range(2, 200):
        assert n_parts * share_of(price, 1 / n_parts) <= price
        assert share_of(price, 1 / n_parts) >= price // n_parts * (1 - n_parts * 1e-9) - 1
    for share in np.random.default_rng(0).random(100).round(9):
        assert share_of(price, share) * 10**9 <= price * round(share * 10**9)
        assert (share_of(price, share) + 1) * 10**9 > price * round(share * 10**9)
