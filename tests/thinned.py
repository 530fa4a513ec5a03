"""Many near-equal cases: some run by default, all of them with the slow tests beside them."""

import pytest


def thinned(cases, every):
    """Return all cases; only the first of each ``every`` ones runs by default, the others are marked slow.

    A case of several arguments is a tuple.
    """
    marks = [() if k % every == 0 else pytest.mark.slow for k in range(len(cases))]
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for case, mark in zip(cases, marks, strict=True)
    ]
