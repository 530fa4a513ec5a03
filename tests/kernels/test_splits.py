"""The best split of every node, beside plain loops."""

import numpy as np
import pytest

from dpgb_dask.kernels.splits import MAX_CELLS, NOWHERE, best_splits


def plain_gain(left, right, cells, grad_sd, hess_sd, ridge, ordered):
    """One split's gain, sums and noise of its two sides added up score by score."""
    gain = 0.0
    lowest = [max(ridge, 4 * hess_sd * n**0.5) for n in cells]
    variances = [max(n, (0.8 * n) ** 2) if ordered else n for n in cells]
    for (g_l, h_l), (g_r, h_r) in zip(left, right, strict=True):
        held = max(h_l, 0), max(h_r, 0)
        whole = max(sum(held), 1e-9)
        w_l, w_r = (h / whole for h in held)
        mean = (g_l + g_r) / max(whole, hess_sd)
        of_cell = grad_sd**2 + (mean * hess_sd) ** 2
        variance = (w_r**2 * variances[0] + w_l**2 * variances[1]) * of_cell
        weight = 1 / (held[0] + lowest[0]) + 1 / (held[1] + lowest[1])
        gain += ((w_r * g_l - w_l * g_r) ** 2 - variance) * weight
    return gain


def plain_best(grad, hess, cuts, ordered, missing, allowed, noise):
    """The best (gain, feature, cells that go right) of a node, from lists of (n_cells, n_scores)."""
    ridge, grad_sd, hess_sd = noise
    best = -np.inf, -1, None
    for j in np.flatnonzero(allowed):
        sums = np.stack([grad[j], hess[j]], axis=2)
        n = len(sums)
        order = np.arange(n)
        if ordered[j]:
            (g, h), held = sums[:, 0].sum(0), np.maximum(hess[j][:, 0], 0)
            mean = g / max(h, hess_sd * n**0.5, 1e-9)
            order = np.argsort((grad[j][:, 0] - held * mean) / (held + ridge), kind="stable")
        for last_left in (False, True)[: 1 + missing[j]]:
            for cut in cuts[j]:
                left = np.isin(np.arange(n), order[: cut + 1])
                left[-1] |= last_left
                cells = int(left.sum()), int((~left).sum())
                sides = sums[left].sum(0), sums[~left].sum(0)
                gain = plain_gain(*sides, cells, grad_sd, hess_sd, ridge, ordered[j])
                if gain > best[0] + 1e-9:
                    best = gain, j, ~left
    return best


@pytest.mark.parametrize("n_scores", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_best_splits_are_those_of_plain_loops(seed, n_scores):
    rng = np.random.default_rng(seed)
    sizes, n_nodes = (9, 7, 2, 5, MAX_CELLS), 6
    ends = np.cumsum(sizes)
    cuts = [np.array(some) for some in ([0, 3, 6, 7], range(6), [0], [], [40, 200])]
    ordered = np.array([False, True, False, False, False])
    missing = np.array([True, False, False, True, True])
    grad = rng.normal(size=(n_nodes, ends[-1], n_scores))
    hess = rng.normal(1, 1, grad.shape)  # noise may have made it negative
    allowed = rng.random((n_nodes, len(sizes))) < 0.7
    allowed[0] = False, False, False, True, False  # its only feature has no candidate
    noise = 0.5, 0.4, 0.05
    got = best_splits(
        grad, hess, ends, [c.astype(np.int64) for c in cuts], ordered, missing, allowed, *noise
    )
    for k in range(n_nodes):
        parts = (np.split(values[k], ends[:-1]) for values in (grad, hess))
        gain, feature, right = plain_best(*parts, cuts, ordered, missing, allowed[k], noise)
        assert got.feature[k] == feature
        assert got.gain[k] == pytest.approx(gain)
        if feature >= 0:
            cell = np.arange(len(right))
            found = got.mask[k, cell] == 1 if got.masked[k] else cell > got.threshold[k]
            np.testing.assert_array_equal(found, right)
            assert got.masked[k] == right[: (~right).sum()].any()
    assert got.feature[0] == -1
    assert got.threshold[0] == NOWHERE
    assert not got.masked[0]
    assert set(got.masked) == {False, True}
    assert len(set(got.feature)) > 2


def best_of(grad, cuts, missing, noise):
    """The best split of one node, of features with the same cells, all of which weigh alike."""
    n = len(cuts)
    grad = np.tile(np.array(grad, float), n)[None, :, None]
    ends, yes = np.arange(1, n + 1) * grad.shape[1] // n, np.ones(n, bool)
    cuts = [np.array(own) for own in cuts]
    return best_splits(grad, 5 + 0 * grad, ends, cuts, ~yes, missing & yes, None, *noise)


def test_of_equal_splits_the_first_feature_and_cut_are_taken():
    got = best_of([1, -1, 1, -1], [[1], [0, 2], [0, 2]], False, (0.5, 0.0, 0.0))
    assert (got.feature.tolist(), got.threshold.tolist()) == ([1], [0])


def test_a_split_that_parts_nothing_sends_missing_values_left_too():
    """It is the best one where all others have less than no gain."""
    got = best_of([0, 0, 0], [[0, 1]], True, (0.5, 0.4, 0.05))
    assert not got.masked[0]
    assert got.threshold.tolist() == [2]
