"""Oracles of the kernels, in the plainest numpy: one per kernel, row by row where that is clearer."""

import itertools
import math
from bisect import bisect_left
from fractions import Fraction

import numpy as np
import pandas as pd

from dpgb_dask.losses import RESIDUAL_SHIFT, TABLE_SHIFT, TABLE_SIZE
from dpgb_dask.released.predict import RowFunction, apply, scorer

# whether pandas rounds numbers of more than 15 digits correctly where it reads them in text, as from 3.1 on
ROUNDED = float(pd.to_numeric("0.12573022345123456")) == 0.12573022345123456


def pack(g, h):
    """``(g << 32) + h`` as int64."""
    return (np.asarray(g, np.int64) << 32) + np.asarray(h, np.int64)


def some_scores(sums, g, h, n_scores=2):
    """Packed gradients of some scores, and the sums of each by an oracle ``sums(g, h)``: (…, n_scores, 2)."""
    signs = [1, -1, 1, -1, -1][:n_scores]
    packed = np.stack([pack(sign * g, h) for sign in signs])
    return packed, np.stack([sums(sign * g, h) for sign in signs], axis=-2)


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
            out.append(bisect_left(exact, Fraction(v)))
    return np.array(out, np.int64)


def naive_cells(cells, weight, n_cells):
    """Weighted rows per cell."""
    out = np.zeros(n_cells, np.int64)
    np.add.at(out, cells, 1 if weight is None else weight.astype(np.int64))
    return out


def naive_unit(vector, norm):
    """A vector over its norm, rounded up, or a larger one; in plain integers, steps of 2⁻¹⁵, towards 0."""
    square = sum(int(v) ** 2 for v in vector)
    by = norm if square <= norm**2 else math.isqrt(square - 1) + 1
    factor = (1 << 47) // by
    return [(abs(int(v)) * factor >> 32) * (1 if v > 0 else -1) for v in vector]


def naive_products(numbers, norm, weight):
    """Sums of the products of every two of a row's numbers, (n, n_rows), and of squares times √½."""
    n = len(numbers)
    sums = [0] * (n * (n + 1) // 2)
    for row, w in zip(numbers.T, weight, strict=True):
        unit = naive_unit(row, norm)
        both = itertools.combinations_with_replacement(range(n), 2)
        for k, (i, j) in enumerate(both):
            product = int(w) * unit[i] * unit[j]
            if i == j:
                product = product * math.isqrt(1 << 31) >> 16
            sums[k] += (abs(product) >> 14) * (1 if product > 0 else -1)
    return np.array(sums, np.int64)


def naive_directions(numbers, norm, packed):
    """Sums of (g, h) times a row's numbers in directions, (n, n_rows): (n, n_scores, 2)."""
    sums = np.zeros((len(numbers), len(packed), 2), object)
    for i, row in enumerate(numbers.T):
        for k, u in enumerate(naive_unit(row, norm)):
            for s, pair in enumerate(packed[:, i]):
                for part, v in enumerate((int(pair) >> 32, int(pair) & 0xFFFFFFFF)):
                    sums[k, s, part] += (abs(v * u) >> 15) * (1 if v * u > 0 else -1)
    return sums.astype(np.int64)


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


def naive_leaves(codes, feature, threshold, mask_of, masks):
    """Leaf of each row in one tree, walking down."""
    n_nodes = len(feature)
    out = []
    for row in codes.T:
        node = 0
        while node < n_nodes:
            code = row[feature[node]]
            masked = mask_of[node] >= 0
            right = masks[mask_of[node]][code] == 1 if masked else code > threshold[node]
            node = 2 * node + 1 + bool(right)
        out.append(node - n_nodes)
    return np.array(out, np.int64)


def naive_tree_sums(codes, feature, threshold, mask_of, masks, g, h):
    """(n_trees, leaves, 2) sums."""
    leaves = feature.shape[1] + 1
    return np.stack(
        [
            naive_sums(naive_leaves(codes, *tree, masks), g, h, leaves)
            for tree in zip(feature, threshold, mask_of, strict=True)
        ]
    )


def naive_node_sums(codes, features, sizes, node, n_nodes, g, h, only=None):
    """(n_nodes, sum of sizes, 2) sums; 0 for nodes that are not wanted."""
    out = []
    for k in range(n_nodes):
        rows = np.flatnonzero(node == k) if only is None or only[k] else np.empty(0, np.int64)
        out.append(naive_joint_sums(codes[features][:, rows], g[rows], h[rows], sizes))
    return np.stack(out)


def naive_posterior(precision, q, scales):
    """Posterior means and log evidence of every scale, by an eigen-decomposition: (n_scales, n, n_columns) and sums."""
    values, vectors = np.linalg.eigh(precision)
    turned, values = vectors.T @ q, np.maximum(values, 0)[:, None]
    means, evidence = [], []
    for t2 in np.asarray(scales) ** 2:
        part = t2 / (1 + t2 * values)
        means.append(vectors @ (part * turned))
        evidence.append(0.5 * ((part * turned**2).sum(0) - np.log1p(t2 * values).sum()))
    return np.array(means), np.array(evidence)


def naive_siphash(key, message):
    """SipHash-2-4 of any bytes, as its authors write it, in Python integers (Aumasson and Bernstein 2012, §2)."""

    def rotate(x, b):
        return ((x << b) | (x >> (64 - b))) & (2**64 - 1)

    def rounds(v, n):
        for _ in range(n):
            v[0] = (v[0] + v[1]) % 2**64
            v[2] = (v[2] + v[3]) % 2**64
            v[1] = rotate(v[1], 13) ^ v[0]
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[1]) % 2**64
            v[0] = (v[0] + v[3]) % 2**64
            v[1] = rotate(v[1], 17) ^ v[2]
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = rotate(v[2], 32)

    k = [int.from_bytes(key[i : i + 8], "little") for i in (0, 8)]
    start = b"somepseudorandomlygeneratedbytes"
    v = [int.from_bytes(start[8 * i : 8 * i + 8], "big") ^ k[i % 2] for i in range(4)]
    full = len(message) // 8 * 8
    closed = message[full:].ljust(7, b"\0") + bytes([len(message) % 256])
    for i in range(0, full + 8, 8):
        word = int.from_bytes((message[:full] + closed)[i : i + 8], "little")
        v[3] ^= word
        rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def naive_draws(key, group, index):
    """Low 32 bits of the hash of (group, row identity), row by row."""
    head = group.to_bytes(8, "little")
    rows = [head + int(a).to_bytes(8, "little") + int(b).to_bytes(8, "little") for a, b in index]
    return np.array([naive_siphash(key, row) % 2**32 for row in rows], np.uint32)


def naive_logistic(score, label, weight, table):
    """Table entry of each row, times its weight."""
    index = np.clip((score.astype(np.int64) >> TABLE_SHIFT) + TABLE_SIZE // 2, 0, TABLE_SIZE - 1)
    return table[label, index] * (1 if weight is None else weight.astype(np.int64))


def naive_residuals(score, target, weight, table):
    """Table entry of each row's residual, in Python integers, times its weight."""
    out = np.empty(len(score), np.int64)
    for i in range(len(score)):
        index = (int(score[i]) - int(target[i])) // 2**RESIDUAL_SHIFT + len(table) // 2
        entry = int(table[min(max(index, 0), len(table) - 1)])
        out[i] = entry * (1 if weight is None else int(weight[i]))
    return out


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
    """Scores, (n_scores, n), after adding one row of each table, (n_bins, n_scores)."""
    out = score.copy()
    for c, table in zip(codes, tables, strict=True):
        if table is not None:
            out += table[c].T
    return out


def naive_add_pair_table(codes_i, codes_j, map_i, map_j, table, score):
    """Scores, (n_scores, n), after adding one pair table, (n_scores, n_i, n_j)."""
    return score + table[:, map_i[codes_i], map_j[codes_j]]


def naive_add_trees(codes, feature, threshold, mask_of, masks, value, score):
    """Scores, (n_scores, n), after adding each tree's leaf values, (n_scores, n_trees, leaves)."""
    out = score.copy()
    for t, tree in enumerate(zip(feature, threshold, mask_of, strict=True)):
        out += value[:, t, naive_leaves(codes, *tree, masks)]
    return out


def raw_scores(model, schema, rows):
    """(n_rows, n_scores) int32 scores of rows, in steps of 2**-16; lazy on Dask, with the chunks of the rows."""
    columns = tuple(f"score_{k}" for k in range(model.n_scores))
    return apply(RowFunction(model, schema, scorer), rows, np.dtype(np.int32), columns)
