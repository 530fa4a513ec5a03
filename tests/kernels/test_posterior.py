"""The posterior's kernels beside the matrices that they stand for."""

import numpy as np
import pytest

from dpgb_dask.kernels.posterior import add_errors, mean, observe, tell

SCALES = np.array([0.0, 0.1, 0.4, 1.6])
SIZES = [(1, 1), (2, 1), (2, 2), (5, 3), (36, 36), (64, 17), (256, 32)]


def table(n, n_leaves):
    """Return leaves in no order, weights, a root, certainties and an earlier precision of rank 2."""
    rng = np.random.default_rng(n)
    leaf = np.append(np.arange(n_leaves), rng.integers(0, n_leaves, n - n_leaves))
    weight, certain = rng.uniform(0.5, 2, n), rng.uniform(0.01, 0.1, n_leaves)
    root, before = rng.normal(size=(n, n)) / np.sqrt(n), rng.normal(size=(2, n))
    return rng.permutation(leaf).astype(np.uint8), weight, root, certain, before.T @ before


def dense(leaf, weight):
    design = np.zeros((leaf.max() + 1, len(leaf)))
    design[leaf, np.arange(len(leaf))] = weight
    return design


def naive_certainty(grad_sd, sampling, leaf_weight, omitted):
    if omitted < 0:
        return 1 / (grad_sd**2 + sampling * leaf_weight)
    share = leaf_weight / leaf_weight.sum()
    found = 1 / (grad_sd**2 * (1 + share**2) + sampling * leaf_weight)
    found[omitted] = 0
    return found


def nested(n, n_leaves, rank):
    """Return a table whose sums depend on the first coordinates alone: the root has nothing else for its bins."""
    leaf, weight, root, _, before = table(n, n_leaves)
    root[:, rank:] = before[rank:] = before[:, rank:] = 0
    return np.sort(leaf), weight, root, before


@pytest.mark.parametrize("omitted", [-1, 0])
@pytest.mark.parametrize("given", [False, True], ids=["new memory", "given memory"])
@pytest.mark.parametrize(("n", "n_leaves"), SIZES)
def test_a_round_adds_what_the_matrices_say(n, n_leaves, given, omitted):
    rng, rank = np.random.default_rng(n + 1), max(1, n // 2, n_leaves)
    leaf, mass, root, before = nested(n, n_leaves, rank)
    reach = np.full(n, max(rank - 1, 1))
    reach[np.searchsorted(leaf, n_leaves - 1)] = (
        rank  # of the last leaf's first bin; no leaf begins at the others
    )
    reach[np.flatnonzero(np.diff(leaf) == 0) + 1] = n + 7
    hess, f, shift = (
        rng.uniform(0.02, 0.25, n),
        rng.normal(size=n),
        rng.normal(size=max(rank // 2, 1)),
    )
    grad = rng.normal(size=n_leaves)
    expected = dense(leaf, mass) @ hess
    sums = expected * rng.choice([-1, 0.01, 0.5, 1, 1.5, 40], n_leaves)
    out = np.full((n, n), np.nan) if given else None
    told = observe(
        leaf, mass, hess, f, root, reach, before, shift, (grad, sums),
        grad_total=2.0, sd=(3.0, 0.1), done=5, sampling=0.7, hess_bounds=(0.03, 0.2), omitted=omitted, keep=0.8,
        out=out,
    )  # fmt: skip
    hess_sd = np.full(n_leaves, 0.1)
    hess_sd[omitted : omitted + 1 or None] *= np.sqrt(n_leaves) if omitted >= 0 else 1
    gain = 1 / (4.5 + (hess_sd / (0.5 * expected)) ** 2)
    ratio = np.clip(sums, 0.1 * expected, 10 * expected) / expected
    hess = np.clip(hess * (1 + gain * (ratio - 1))[leaf], 0.03, 0.2)
    design = dense(leaf, mass * hess)
    leaf_weight = design.sum(1)
    certain = naive_certainty(3.0, 0.7, leaf_weight, omitted)
    pull = 2.0 * leaf_weight / leaf_weight.sum() - grad
    rooted = design @ root
    known = 0.8 * np.append(shift, np.zeros(n - len(shift))) + rooted.T @ (
        certain * (design @ f + pull)
    )
    assert out is None or told[2] is out
    np.testing.assert_allclose(told[0], hess, atol=1e-12)
    np.testing.assert_allclose(told[1], mass * hess, atol=1e-12)
    np.testing.assert_allclose(
        told[2], 0.8 * before + rooted.T @ np.diag(certain) @ rooted, atol=1e-12
    )
    np.testing.assert_array_equal(told[2], told[2].T)
    assert len(told[3]) == rank
    np.testing.assert_allclose(told[3], known[:rank], atol=1e-10)


@pytest.mark.parametrize("omitted", [-1, 0])
@pytest.mark.parametrize(("n", "n_leaves"), SIZES)
def test_draws_add_what_the_matrices_say(n, n_leaves, omitted):
    rng, rank = np.random.default_rng(n), max(1, n // 2, n_leaves)
    leaf, weight, root, before = nested(n, n_leaves, rank)
    noise, own, others = (rng.normal(size=(rows, 5)) for rows in (n_leaves, n, n))
    design, total, sums = dense(leaf, weight), rng.normal(size=5), noise.copy()
    add_errors(leaf, weight, own, sums, own=0.3, others=others, other=-1.3)
    np.testing.assert_allclose(sums, noise + design @ (0.3 * own - 1.3 * others), atol=1e-12)
    alone = noise.copy()
    add_errors(leaf, weight, own, alone, own=0.3)
    np.testing.assert_allclose(alone, noise + design @ (0.3 * own), atol=1e-12)

    precision, known = before.copy(), rng.normal(size=(n, 5))
    known[rank:] = 0
    share = design.sum(1) / design.sum()
    rooted, certain = design @ root, naive_certainty(3.0, 0.7, design.sum(1), omitted)
    expected = 0.8 * known + rooted.T @ (certain[:, None] * (sums - share[:, None] * total))
    told = {"grad_sd": 3.0, "sampling": 0.7, "omitted": omitted, "keep": 0.8, "rank": rank}
    tell(leaf, weight, root, sums, total, **told, precision=precision, known=known)
    np.testing.assert_allclose(known, expected, atol=1e-12)
    wanted = 0.8 * before + rooted.T @ np.diag(certain) @ rooted
    np.testing.assert_allclose(precision, wanted, atol=1e-12)


@pytest.mark.parametrize("omitted", [-1, 0])
@pytest.mark.parametrize(("n", "n_leaves"), SIZES)
def test_mean_is_that_of_the_matrices(n, n_leaves, omitted):
    rank = max(1, n - 2)  # what is beyond it is not looked at
    leaf, weight, root, _, precision = table(n, n_leaves)
    precision[rank:] = precision[:, rank:] = np.nan
    shift = 3 * np.random.default_rng(1).normal(size=rank)
    told = {"follows": True, "grad_sd": 3.0, "sampling": 0.7, "omitted": omitted, "largest": 2.0}
    value, evidence, follows = mean(precision, shift, root, SCALES, leaf, weight, **told)
    precision, root = precision[:rank, :rank], root[:, :rank]
    parts = [t**2 * np.linalg.inv(np.eye(rank) + t**2 * precision) for t in SCALES]
    known = [
        0.5 * shift @ part @ shift - 0.5 * np.linalg.slogdet(np.eye(rank) + t**2 * precision)[1]
        for t, part in zip(SCALES, parts, strict=True)
    ]
    odds = np.exp(known - np.max(known))
    spread = np.tensordot(odds / odds.sum(), parts, 1)
    design = dense(leaf, weight)
    moved = design @ root @ spread @ (design @ root).T  # of leaf k's sum by leaf l's noise
    total = design.sum(1)
    certain = naive_certainty(3.0, 0.7, total, omitted)
    against = certain @ (np.diag(moved) / total)
    if omitted >= 0:
        against -= certain @ moved[omitted] / total[omitted]
    np.testing.assert_allclose(value, np.clip(root @ spread @ shift, -2, 2), rtol=1e-8, atol=1e-9)
    assert evidence == pytest.approx(max(known), abs=1e-9)
    assert follows == pytest.approx(against, rel=1e-8, abs=1e-9)


def test_nothing_known_gives_nothing():
    leaf, weight, root, _, _ = table(5, 3)
    zero = np.zeros((5, 5))
    none = {"follows": False, "grad_sd": 0.0, "sampling": 0.0, "omitted": -1, "largest": 5.0}
    value, evidence, follows = mean(zero, zero[0], root, SCALES, leaf, weight, **none)
    np.testing.assert_array_equal(value, 0)
    assert (evidence, follows) == (0, 0)
