"""Mutants of JSON data: values of other types, dropped and unknown keys, huge and deep values. Seeded."""

import copy

import numpy as np


def deep(levels):
    """Lists in lists."""
    out = []
    for _ in range(levels):
        out = [out]
    return out


ODD = [
    None, True, False, 0, -1, 1, 2, 3, 1.5, 10**400, -(10**400), 2**63, 2**31, 255, 256, 65_536, 1e308, -1e308,
    float("nan"), float("inf"), "", "x", "private", "numeric", "categorical", "\ud800", "a" * 1000, [], [[]],
    [[1], [2]], {}, {"a": 1}, {"type": []}, [{}], [None], [True, 1], ["\udfff", "b"], deep(50), deep(900), deep(5000),
]  # fmt: skip


def places(data, path=()):
    """The paths of everything inside some JSON data."""
    if not isinstance(data, dict | list):
        return
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield (*path, key)
        yield from places(value, (*path, key))


def mutants(data, n, seed=0):
    """``n`` copies of ``data``, each with one to three changes, near the root as often as deep inside."""
    rng = np.random.default_rng(seed)
    by_depth = {}
    for path in places(data):
        by_depth.setdefault(len(path), []).append(path)
    for _ in range(n):
        mutant = copy.deepcopy(data)
        for _ in range(rng.integers(1, 4)):
            paths = by_depth[1 + rng.integers(len(by_depth))]
            change(mutant, paths[rng.integers(len(paths))], rng)
        yield mutant


def change(mutant, path, rng):
    """Change one place, if an earlier change has not taken it away."""
    *above, key = path
    for step in above:
        try:
            mutant = mutant[step]
        except (LookupError, TypeError):
            return
    if not (isinstance(mutant, dict) and key in mutant) and not (
        isinstance(mutant, list) and isinstance(key, int) and key < len(mutant)
    ):
        return
    odd = ODD[rng.integers(len(ODD))]
    act = rng.integers(5)
    value = mutant[key]
    if act == 0:
        del mutant[key]
    elif act == 1 and isinstance(mutant, dict):
        mutant["unheard of"] = odd
    elif act == 1:
        mutant.append(odd)
    elif act == 2 and isinstance(value, int | float):
        mutant[key] = -value
    else:
        mutant[key] = odd
