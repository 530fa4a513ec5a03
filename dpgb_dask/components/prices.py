"""Shares of a price, in whole numbers: together they are never more than the whole."""

_ONE = 10**9  # a share is a whole number of billionths, so no float enters a price


def share_of(price: int, share: float) -> int:
    """Return a share of a price, rounded down; a share of 1 is the whole price."""
    return price * round(share * _ONE) // _ONE
