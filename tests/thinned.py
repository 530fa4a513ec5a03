"""Many near-equal cases: some run by default, all of them with the slow tests beside them."""

import pytest


def thinned(cases, every):
    """Return all cases; only the first of each ``every`` ones runs by default, the others are marked slow."""
    return [
        case if k % every == 0 else pytest.param(case, marks=pytest.mark.slow)
        for k, case in enumerate(cases)
    ]
