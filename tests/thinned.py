"""Many near-equal cases: some run by default, all of them with the slow tests beside them."""

from itertools import groupby

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


def one_of_each(pairs):
    """Return all pairs; of those with the same first member, one runs by default, the others are marked slow.

    The second members take turns. Pairs with the same first member stand together. A member that is a tuple is several
    arguments.
    """
    cases = []
    for turn, (_, group) in enumerate(groupby(pairs, lambda pair: pair[0])):
        own = list(group)
        cases += [
            pytest.param(*_flat(pair), marks=() if k == turn % len(own) else pytest.mark.slow)
            for k, pair in enumerate(own)
        ]
    return cases


def _flat(pair):
    return [
        part for member in pair for part in (member if isinstance(member, tuple) else (member,))
    ]
