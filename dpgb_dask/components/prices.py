"""Shares of a price, in whole numbers: n shares of 1/n are never more than the whole."""

_ONE = 10**9  # a share is a whole number of billionths, so no float enters a price
_FLOAT = 1e-3  # of a billionth, by which the float of a whole number of them may be too small


def share_of(price: int, share: float) -> int:
    """Return a share of a price, rounded down to billionths and to a whole number; a share of 1 is the whole price."""
    return price * int(share * _ONE + _FLOAT) // _ONE
