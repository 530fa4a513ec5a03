"""Oracles of the kernels, in the dullest numpy: one per kernel, row by row where that is clearer."""

from fractions import Fraction

import numpy as np

from dpgb_dask.losses import TABLE_SHIFT, TABLE_SIZE


def pack(g, h):
    """``(g << 32) + h`` as int64."""
    return (np.asarray(g, np.int64) << 32) + np.asarray(h, np.int64)


def naive_codes(x, edges):
    """Edges below each value, counted in exact fractions; missing is ``n_edges + 1``."""
    out = []
    exact = [Fraction(float(e)) for e in edges]
    for v in np.asarray(x, np.float64).tolist():
        if v != v:
            out.append(len(edges) + 1)
        elif v in (np.inf, -np.inf):
            out.append(len(edges) if v > 0 else 0)
        else:
            out.append(sum(e < Fraction(v) for e in exact))
    return np.array(out, np.int64)


def naive_cells(cells, weight, n_cells):
    """Weighted rows per cell."""
    out = np.zeros(n_cells, np.int64)
    np.add.at(out, cells, 1 if weight is None else weight.astype(np.int64))
    return out


def naive_sums(key, g, h, n_cells):
    """(n_cells, 2) sums of g and h per key."""
    out = np.zeros((n_cells, 2), np.int64)
    np.add.at(out[:, 0], key, g)
    np.add.at(out[:, 1], key, h)
    return out


def naive_joint_sums(codes, g, h, sizes):
    """Sums per bin, features one after the other."""
    return np.concatenate([naive_sums(c, g, h, n) for c, n in zip(codes, sizes, strict=True)])


def naive_pair_sums(codes, pairs, g, h):
    """Sums per cell, tables one after the other."""
    parts = []
    for p in pairs:
        key = p.map_i[codes[p.i]].astype(np.int64) * p.n_j + p.map_j[codes[p.j]]
        parts.append(naive_sums(key, g, h, p.n_i * p.n_j))
    return np.concatenate(parts)


def naive_leaves(codes, feature, threshold):
    """Leaf of each row in one tree, walking down."""
    n_nodes = len(feature)
    out = []
    for row in codes.T:
        node = 0
        while node < n_nodes:
            node = 2 * node + 1 + bool(row[feature[node]] > threshold[node])
        out.append(node - n_nodes)
    return np.array(out, np.int64)


def naive_tree_sums(codes, feature, threshold, g, h):
    """(n_trees, leaves, 2) sums."""
    leaves = feature.shape[1] + 1
    return np.stack(
        [
            naive_sums(naive_leaves(codes, f, t), g, h, leaves)
            for f, t in zip(feature, threshold, strict=True)
        ]
    )


def naive_logistic(score, label, weight, table):
    """Table entry of each row, times its weight."""
    index = np.clip((score.astype(np.int64) >> TABLE_SHIFT) + TABLE_SIZE // 2, 0, TABLE_SIZE - 1)
    return table[label, index] * (1 if weight is None else weight.astype(np.int64))


def naive_squared(score, target, weight, clip_steps, hess_steps):
    """Clipped residual and Hessian of each row, times its weight."""
    r = score.astype(np.int64) - target
    w = 1 if weight is None else weight.astype(np.int64)
    return pack(
        (np.clip(r, -clip_steps, clip_steps) >> 1) * w,
        np.where(abs(r) <= clip_steps, hess_steps, 0) * w,
    )


def naive_softmax(score, label, weight, exp_table):
    """Integer softmax gradients of each row and class, in Python integers."""
    n_classes, n = score.shape
    out = np.empty((n_classes, n), np.int64)
    for i in range(n):
        column = [int(s) for s in score[:, i]]
        e = [
            int(exp_table[min((max(column) - s) >> TABLE_SHIFT, len(exp_table) - 1)])
            for s in column
        ]
        p = [(v << 15) // sum(e) for v in e]
        y = int(label[i])
        p[y] = (1 << 15) - (sum(p) - p[y])
        w = 1 if weight is None else int(weight[i])
        for k in range(n_classes):
            g = p[k] - (1 << 15) * (k == y)
            h = (2 * p[k] * ((1 << 15) - p[k])) >> 15
            out[k, i] = ((w * g) << 32) + w * h
    return out


def naive_add_tables(codes, tables, score):
    """Scores after adding one entry per feature that has a table."""
    out = score.copy()
    for c, table in zip(codes, tables, strict=True):
        if table is not None:
            out += table[c]
    return out


def naive_add_pair_table(codes_i, codes_j, map_i, map_j, table, score):
    """Scores after adding one pair table."""
    return score + table[map_i[codes_i], map_j[codes_j]]


def naive_add_trees(codes, feature, threshold, value, score):
    """Scores after adding each tree's leaf value."""
    out = score.copy()
    for f, t, v in zip(feature, threshold, value, strict=True):
        out += v[naive_leaves(codes, f, t)]
    return out
