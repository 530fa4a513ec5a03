"""Sums per node, feature and bin: the level pass of trees that grow greedily.

As in `histogram`, sums are packed, and features with few bins share one accumulator; here there is one per summed node
(its "slot"). The flush differs: a packed sum of a node holds only rows of that node, so each slot has its own row
counter and is unpacked by itself. However many nodes there are, a cell is unpacked once per (2³¹ - 1) // max_abs rows
of its node. The rows of a block are processed slot by slot, so that the sums a loop adds to stay in L1.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, same_rows, writable
from dpgb_dask.kernels.histogram import (
    GROUP_CELLS,
    MAX_CELLS,
    flush_group,
    groups_of,
    make_key,
    padded,
    runs,
    sides,
    total,
)

# rows per inner loop, numbered by 16 bits; many, since each feature's sums of all nodes are loaded once per block
BLOCK = 1 << 16
MAX_NODES = 1 << 10
JOINED_CELLS = MAX_CELLS  # joint cells that are kept are bytes, as codes are
JOIN_BLOCK = 4096  # rows per inner loop of joining: the cells of a group stay in L1
COPIES = 4  # of the sums if there are few slots: rows that hit the same cell do not wait for each other's store
SCAN_SLOTS = 8  # with so many slots, the rows of one lie far apart: reading all codes first brings them into the cache
PASS_CELLS = 1 << 15  # cells of a group over all slots: 256 KB, which stays in L2


@inner
def _join_one(a: NDArray[np.uint8], map_a: NDArray[np.uint8], cell: NDArray[np.uint8]) -> None:
    for i in range(cell.shape[0]):
        cell[i] += map_a[a[i]]


@inner
def _join_two(
    a: NDArray[np.uint8],
    map_a: NDArray[np.uint8],
    b: NDArray[np.uint8],
    map_b: NDArray[np.uint8],
    cell: NDArray[np.uint8],
) -> None:
    for i in range(cell.shape[0]):
        cell[i] = map_a[a[i]] + map_b[b[i]]


@kernel
def _join_cells(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    column: NDArray[np.int64],  # IN (k,), features group after group
    start: NDArray[np.int64],  # IN (n_groups + 1,)
    step: NDArray[np.uint8],  # IN (k, 256), what each bin adds to the group's cell
    out: NDArray[np.uint8],  # OUT (n_groups, n_rows)
) -> None:
    n_groups, n = out.shape
    for lo in range(0, n, JOIN_BLOCK):
        hi = min(n, lo + JOIN_BLOCK)
        for g in range(n_groups):
            s, t = start[g], start[g + 1]
            cell = out[g, lo:hi]
            if t - s == 1:
                cell[:] = 0
            else:
                _join_two(
                    codes[column[s], lo:hi], step[s], codes[column[s + 1], lo:hi], step[s + 1], cell
                )
            for f in range(s if t - s == 1 else s + 2, t):
                _join_one(codes[column[f], lo:hi], step[f], cell)


@inner
def _scatter_four(
    key_a: NDArray[np.uint8],  # IN (rows of the block,)
    key_b: NDArray[np.uint8],
    key_c: NDArray[np.uint8],
    key_d: NDArray[np.uint8],
    pick: NDArray[np.uint16],  # IN (n,), rows of one slot
    values: NDArray[np.int64],  # IN (n,)
    a: NDArray[np.int64],  # OUT (cells,), of that slot, added to
    b: NDArray[np.int64],
    c: NDArray[np.int64],
    d: NDArray[np.int64],
) -> None:
    for i in range(values.shape[0]):
        row, v = pick[i], values[i]
        a[key_a[row]] += v
        b[key_b[row]] += v
        c[key_c[row]] += v
        d[key_d[row]] += v


@inner
def _scatter_picked_one(
    key: NDArray[Any],  # IN (rows of the block,)
    n_cells: np.uint64,
    pick: NDArray[np.uint16],  # IN (n,)
    slot: NDArray[np.uint16],  # IN (n,)
    values: NDArray[np.int64],  # IN (n,)
    a: NDArray[np.int64],  # OUT (n_slots * n_cells,), added to
) -> None:
    for i in range(values.shape[0]):
        a[slot[i] * n_cells + key[pick[i]]] += values[i]


@inner
def _scatter_picked_two(
    key_a: NDArray[Any],
    key_b: NDArray[Any],
    n_a: np.uint64,
    n_b: np.uint64,
    pick: NDArray[np.uint16],
    slot: NDArray[np.uint16],
    values: NDArray[np.int64],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
) -> None:
    for i in range(values.shape[0]):
        row, s, v = pick[i], slot[i], values[i]
        ka, kb = s * n_a + key_a[row], s * n_b + key_b[row]
        a[ka] += v
        b[kb] += v


@inner
def _pick(
    node: NDArray[np.uint16],  # IN (rows of the block,)
    slot_of: NDArray[np.uint16],  # IN (n_nodes,); n_slots: skip the node
    n_slots: int,
    pick: NDArray[np.uint16],  # OUT (>= rows,)
    slot: NDArray[np.uint16],  # OUT (>= rows,)
) -> np.int64:
    """Move the rows of wanted nodes to the front, without a branch; return their number."""
    top = np.uint16(slot_of.shape[0] - 1)
    k = np.uint64(0)  # unsigned: no test for a negative index
    for i in range(node.shape[0]):
        s = slot_of[min(node[i], top)]
        pick[k] = i
        slot[k] = s
        k += np.uint64(s < n_slots)
    return np.int64(k)


@inner
def _sort(
    picked: NDArray[np.uint16],  # IN (n,), rows of the block
    slot_of: NDArray[np.uint16],  # IN (n,), their slots
    values: NDArray[np.int64],  # IN (rows of the block,)
    copies: int,
    pick: NDArray[np.uint16],  # OUT (n,), rows by slot
    slot: NDArray[np.uint16],  # OUT (n,), their slots and copies: rows are dealt to these in turn
    value: NDArray[np.int64],  # OUT (n,)
    first: NDArray[np.int64],  # OUT (n_slots + 2,), where each slot starts
) -> None:
    """Sort rows by slot, so that a loop over the rows of a slot adds to the sums of that slot only."""
    for s in range(first.shape[0]):
        first[s] = 0
    for s in slot_of:
        first[s + 2] += 1
    for s in range(2, first.shape[0]):
        first[s] += first[s - 1]
    # the loop moves first[s + 1] from the start of slot s to its end
    for i in range(picked.shape[0]):
        row, s = picked[i], slot_of[i]
        k = first[s + 1]
        first[s + 1] = k + 1
        pick[k] = row
        slot[k] = s * copies + (k & (copies - 1))
        value[k] = values[row]


@inner
def _most(c: NDArray[np.uint8]) -> int:
    most = np.uint8(0)
    for i in range(c.shape[0]):
        most = max(most, c[i])
    return int(most)


@inner
def _add(a: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    for k in range(out.shape[0]):
        out[k] += a[k]
        a[k] = 0


@inner
def _flush_slot(
    s: int,
    side: int,
    copies: int,
    groups: Any,
    sums: NDArray[np.int64],  # IN OUT (n_slots * copies * all cells,)
    n_slots: int,
    margin: NDArray[np.int64],
    out: NDArray[np.int64],  # OUT (sum of sizes, 2), added to
) -> None:
    """Unpack the sums of one slot, after adding up its copies; all are of rows of the slot, so the bound holds."""
    size, offset, start, cells = groups
    first = 0
    for g in range(cells.shape[0]):
        n = cells[g]
        part = sums[first + s * copies * n : first + (s + 1) * copies * n]
        for c in range(1, copies):
            _add(part[c * n : (c + 1) * n], part[:n])
        f, t = start[g], start[g + 1]
        flush_group(part[:n], side, size[f:t], offset[f:t], margin, out)
        first += n_slots * copies * n


@inner
def _bounded(
    codes: NDArray[np.uint8],  # IN (rows of the block,)
    size: int,
    spare: NDArray[np.uint8],  # scratch (>= rows,)
    scan: bool,  # read all codes in any case
) -> NDArray[np.uint8]:
    """Return the codes; if one is too large for its feature, return a copy in which it counts in the last bin."""
    if (size == 256 and not scan) or _most(codes) < size:
        return codes
    top = np.uint8(size - 1)
    safe = spare[: codes.shape[0]]
    for i in range(safe.shape[0]):
        safe[i] = min(codes[i], top)
    return safe


@inner
def _add_joint(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    column: NDArray[np.int64],  # IN (k,), features group after group
    pick: NDArray[np.uint16],  # IN (n,), rows of the block that count
    slot: NDArray[np.uint16],  # IN (n,)
    values: NDArray[np.int64],  # IN (n,)
    width: int,  # slots, copies included
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    cells: NDArray[np.int64],  # IN (groups of several features,)
    key_a: NDArray[np.uint16],  # scratch (rows of the block,)
    key_b: NDArray[np.uint16],
    sums: NDArray[np.int64],  # OUT (width * cells of these groups,), added to
) -> None:
    """Add the rows of a block to the groups of several features, two per loop."""
    n_groups = cells.shape[0]
    first = 0
    for g in range(0, n_groups, 2):
        s, t, n_a = start[g], start[g + 1], cells[g]
        make_key(codes, lo, column[s:t], size[s:t], key_a)
        a = sums[first : first + width * n_a]
        first += width * n_a
        if g + 1 == n_groups:
            _scatter_picked_one(key_a, np.uint64(n_a), pick, slot, values, a)
            return
        u, n_b = start[g + 2], cells[g + 1]
        make_key(codes, lo, column[t:u], size[t:u], key_b)
        b = sums[first : first + width * n_b]
        first += width * n_b
        _scatter_picked_two(key_a, key_b, np.uint64(n_a), np.uint64(n_b), pick, slot, values, a, b)


@inner
def _add_single(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    hi: int,
    column: NDArray[np.int64],  # IN (k,)
    pick: NDArray[np.uint16],  # IN (n,), rows of the block that count
    slot: NDArray[np.uint16],  # IN (n,)
    values: NDArray[np.int64],  # IN (n,)
    first_row: NDArray[np.int64],  # IN (> n_slots,), where the rows of each slot start
    width: int,  # slots, copies included
    copies: int,
    size: NDArray[np.int64],  # IN (k,)
    spare: NDArray[np.uint8],  # scratch (4, rows of the block)
    sums: NDArray[np.int64],  # OUT (width * sum of sizes,), added to
) -> None:
    """Add the rows of a block to groups of a single feature, whose codes are the cells.

    Four features go in one loop, slot by slot. They add to the first copy only, as hits on the same cell are far enough
    apart. The features that are left over use all copies.
    """
    k = column.shape[0]
    scan = width // copies >= SCAN_SLOTS
    first = 0
    f = 0
    while f + 4 <= k:
        n_a, n_b, n_c, n_d = size[f], size[f + 1], size[f + 2], size[f + 3]
        code_a = _bounded(codes[column[f], lo:hi], n_a, spare[0], scan)
        code_b = _bounded(codes[column[f + 1], lo:hi], n_b, spare[1], scan)
        code_c = _bounded(codes[column[f + 2], lo:hi], n_c, spare[2], scan)
        code_d = _bounded(codes[column[f + 3], lo:hi], n_d, spare[3], scan)
        b = first + width * n_a
        c = b + width * n_b
        d = c + width * n_c
        for s in range(0, width, copies):
            rows = slice(first_row[s // copies], first_row[s // copies + 1])
            _scatter_four(
                code_a,
                code_b,
                code_c,
                code_d,
                pick[rows],
                values[rows],
                sums[first + s * n_a : first + (s + 1) * n_a],
                sums[b + s * n_b : b + (s + 1) * n_b],
                sums[c + s * n_c : c + (s + 1) * n_c],
                sums[d + s * n_d : d + (s + 1) * n_d],
            )
        first = d + width * n_d
        f += 4
    while f < k:
        n_a = size[f]
        code_a = _bounded(codes[column[f], lo:hi], n_a, spare[0], scan)
        a = sums[first : first + width * n_a]
        first += width * n_a
        if f + 1 == k:
            _scatter_picked_one(code_a, np.uint64(n_a), pick, slot, values, a)
            return
        n_b = size[f + 1]
        code_b = _bounded(codes[column[f + 1], lo:hi], n_b, spare[1], scan)
        b = sums[first : first + width * n_b]
        first += width * n_b
        _scatter_picked_two(
            code_a, code_b, np.uint64(n_a), np.uint64(n_b), pick, slot, values, a, b
        )
        f += 2


@kernel
def _add_rows(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    column: NDArray[np.int64],  # IN (k,), features group after group
    node: NDArray[np.uint16],  # IN (n_rows,)
    slot_of: NDArray[np.uint16],  # IN (n_nodes,), n_slots where the node is not wanted
    node_of: NDArray[np.int64],  # IN (n_slots,)
    copies: int,
    values: NDArray[np.int64],  # IN (n_rows,)
    limit: int,  # rows that a packed sum holds
    side: int,
    groups: Any,  # size, offset, start, cells; those of several features first
    n_joint: int,
    sums: NDArray[np.int64],  # IN OUT (n_slots * copies * all cells,)
    held: NDArray[np.int64],  # IN OUT (n_slots,), rows in the sums
    out: NDArray[np.int64],  # OUT (n_nodes, sum of sizes, 2), added to
) -> None:
    """Add rows to the packed sums, and unpack a slot before it would hold more rows than ``limit``."""
    n, n_slots = values.shape[0], node_of.shape[0]
    size, _, start, cells = groups
    every = slot_of.shape[0] == 1
    width = n_slots * copies
    joined, single = start[n_joint], width * total(cells[:n_joint])
    step = min(n, BLOCK, limit)
    pick, slot = np.empty(step, np.uint16), np.empty(step, np.uint16)
    for i in range(step):  # the choice if every row is picked
        pick[i] = i
        slot[i] = i & (copies - 1)
    picked, slot_of_row = np.empty(step, np.uint16), np.empty(step, np.uint16)
    value = np.empty(step, np.int64)
    first = np.zeros(n_slots + 2, np.int64)
    keys, spare = np.empty((2, step), np.uint16), np.empty((4, step), np.uint8)
    margin = np.zeros(256, np.int64)
    for lo in range(0, n, max(step, 1)):
        hi = min(n, lo + step)
        k = first[1] = hi - lo
        block = values[lo:hi]
        if not every:
            k = _pick(node[lo:hi], slot_of, n_slots, picked, slot_of_row)
            _sort(picked[:k], slot_of_row[:k], block, copies, pick, slot, value, first)
            block = value[:k]
        for s in range(n_slots):
            count = first[s + 1] - first[s]
            if held[s] + count > limit:
                _flush_slot(s, side, copies, groups, sums, n_slots, margin, out[node_of[s]])
                held[s] = 0
            held[s] += count
        key_a, key_b = keys[0, : hi - lo], keys[1, : hi - lo]
        _add_joint(
            codes,
            lo,
            column,
            pick[:k],
            slot[:k],
            block,
            width,
            size,
            start,
            cells[:n_joint],
            key_a,
            key_b,
            sums[:single],
        )
        _add_single(
            codes,
            lo,
            hi,
            column[joined:],
            pick[:k],
            slot[:k],
            block,
            first,
            width,
            copies,
            cells[n_joint:],
            spare,
            sums[single:],
        )


@kernel
def _flush_all(
    node_of: NDArray[np.int64],  # IN (n_slots,)
    copies: int,
    side: int,
    groups: Any,
    sums: NDArray[np.int64],  # IN OUT (n_slots * copies * all cells,)
    held: NDArray[np.int64],  # IN OUT (n_slots,)
    out: NDArray[np.int64],  # OUT (n_nodes, sum of sizes, 2), added to
) -> None:
    margin = np.zeros(256, np.int64)
    n_slots = node_of.shape[0]
    for s in range(n_slots):
        _flush_slot(s, side, copies, groups, sums, n_slots, margin, out[node_of[s]])
        held[s] = 0


class JoinedCells:
    """Cells of features, and the joint cells of groups of them, so that a row is added once per group.

    Parameters
    ----------
    features : (k,) uint16
    cell_of_bin : sequence of ((n_bins,) uint8)
        Of each feature.
    sizes : sequence of int
        Cells of each, at most 256.
    """

    def __init__(
        self,
        features: NDArray[np.uint16],
        cell_of_bin: Sequence[NDArray[np.uint8]],
        sizes: Sequence[int],
    ) -> None:
        g = groups_of(tuple(sizes), JOINED_CELLS)
        step = np.empty((len(features), MAX_CELLS), np.uint8)
        for first, last in itertools.pairwise(g.start):
            stride = 1
            for position in range(last - 1, first - 1, -1):  # the last feature varies fastest
                size = int(g.size[position])
                cells = np.minimum(cell_of_bin[g.order[position]].astype(np.int64), size - 1)
                step[position] = padded(cells * stride)
                stride *= size
        self.n_groups = len(g.cells)
        self._top = int(features.max(initial=0))
        self._column = readable("features", features[g.order].astype(np.int64), np.int64, 1)
        self._start = g.start
        self._step = readable("cell_of_bin", step, np.uint8, 2)

    def join(self, codes: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Write each row's cell of every group.

        Parameters
        ----------
        codes : (n_features, n_rows) uint8
            A code beyond its feature's bins counts as the last.
        out : (n_groups, n_rows) uint8

        Raises
        ------
        ValueError
            If a dtype, layout or shape is wrong or a feature does not exist; never because of a row.

        Privacy
        -------
        Private side: nothing leaves.
        """
        same_rows(codes=codes, out=out)
        codes = readable("codes", codes, np.uint8, 2)
        writable("out", out, np.uint8, 2)
        if self._top >= len(codes) or len(out) != self.n_groups:
            raise ValueError("features names a feature that codes does not have, or out no group.")
        _join_cells(codes, self._column, self._start, self._step, out)


class NodeSums:
    """Sums of g and h per node, feature and bin, over row blocks added one after the other.

    Packed sums are kept from block to block: with many nodes, unpacking them after each block would cost more than
    adding its rows. Use one object per thread, and add their totals.

    Parameters
    ----------
    features : (k,) uint16
        Rows of ``codes`` that are summed; a feature may appear more than once.
    sizes : sequence of int
        Bins of each, at most 256.
    n_nodes : int
        At most 1024.
    max_abs : int
        Bound on |g| and h of one row, weights included: decides how often sums are unpacked.
    only : (n_nodes,) bool, or None
        Nodes that are summed; the sums of others stay 0.
    joined : bool
        Whether the codes that are added are cells of groups, as `JoinedCells` of these sizes writes them.

    Raises
    ------
    ValueError
        If a size, n_nodes or max_abs is out of range, or a shape or dtype is wrong.

    Privacy
    -------
    Private side. One row changes one node, and in it one bin of each feature, by its own (g, h). Exact for any number
    of rows: no packed sum holds more than (2³¹ - 1) // max_abs rows.
    """

    def __init__(
        self,
        features: NDArray[np.uint16],
        sizes: Sequence[int],
        n_nodes: int,
        max_abs: int,
        only: NDArray[np.bool_] | None = None,
        *,
        joined: bool = False,
    ) -> None:
        if not 1 <= n_nodes <= MAX_NODES:
            raise ValueError(f"n_nodes={n_nodes} is outside [1, {MAX_NODES}].")
        if len(features) != len(sizes):
            raise ValueError(
                "features and sizes differ in length. Give the number of bins of each."
            )
        wanted = np.ones(n_nodes, np.bool_) if only is None else readable("only", only, np.bool_, 1)
        if len(wanted) != n_nodes:
            raise ValueError("only must be (n_nodes,): one entry per node.")
        self._max_abs = max_abs
        self._node_of = np.flatnonzero(wanted).astype(np.int64)
        n_slots = len(self._node_of)
        self._slot_of = np.full(n_nodes, n_slots, np.uint16)
        self._slot_of[self._node_of] = np.arange(n_slots)
        # with many nodes there is less room for joint cells
        most_cells = max(JOINED_CELLS, min(GROUP_CELLS, PASS_CELLS // max(n_slots, 1)))
        g = self._groups = groups_of(tuple(sizes), JOINED_CELLS if joined else most_cells)
        self._layout = g.size, g.offset, g.start, g.cells
        self._n_joint = 0 if joined else g.n_joint
        self._copies = max(1, COPIES // max(n_slots, 1))
        column = readable("features", features, np.uint16, 1)[g.order]
        if joined:  # a group's cell is the code of one feature of so many bins
            column = np.arange(len(g.cells))
        self._top = int(column.max(initial=0))
        self._column = readable("features", column.astype(np.int64), np.int64, 1)
        n_sums = n_slots * self._copies * int(self._groups.cells.sum())
        # for each column of the answer (or both, packed): the sums, and the number of rows in them
        self._held = {
            side: (np.zeros(n_sums, np.int64), np.zeros(n_slots, np.int64))
            for side in sides(max_abs)
        }
        self._out = np.zeros((n_nodes, int(self._groups.size.sum()), 2), np.int64)

    def __repr__(self) -> str:
        return "<node sums>"

    def add(
        self, codes: NDArray[np.uint8], node: NDArray[np.uint16], packed: NDArray[np.int64]
    ) -> None:
        """Add a block of rows.

        Parameters
        ----------
        codes : (n_features, n_rows) uint8
            Below the feature's size; a larger code would count in the last bin.
        node : (n_rows,) uint16
            Below n_nodes; a larger one would count in the last node.
        packed : (n_rows,) int64
            ``(g << 32) + h`` in steps, weights included, h >= 0.

        Raises
        ------
        ValueError
            If a dtype, layout or shape is wrong or a feature does not exist; never because of a row.
        """
        same_rows(codes=codes, node=node, packed=packed)
        codes = readable("codes", codes, np.uint8, 2)
        node = readable("node", node, np.uint16, 1)
        if self._top >= len(codes):
            raise ValueError("features names a feature that codes does not have.")
        if not len(self._node_of) or not len(self._column):
            return
        for values, limit, side in runs(packed, self._max_abs, 1):
            sums, held = self._held[side]
            _add_rows(
                codes, self._column, node, self._slot_of, self._node_of, self._copies, values, limit,
                side, self._layout, self._n_joint, sums, held, self._out,
            )  # fmt: skip

    def total(self) -> NDArray[np.int64]:
        """Return the sums of all rows added so far.

        Returns
        -------
        (n_nodes, sum(sizes), 2) int64
            Sums of (g, h), features one after the other. Later calls of `add` and `total` change this array.
        """
        for side, (sums, held) in self._held.items():
            _flush_all(self._node_of, self._copies, side, self._layout, sums, held, self._out)
        return self._out


def node_sums(
    codes: NDArray[np.uint8],
    features: NDArray[np.uint16],
    sizes: Sequence[int],
    node: NDArray[np.uint16],
    n_nodes: int,
    packed: NDArray[np.int64],
    max_abs: int,
    only: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """Sum g and h per node, feature and bin of one block of rows; see `NodeSums`.

    Returns
    -------
    (n_nodes, sum(sizes), 2) int64

    Privacy
    -------
    As `NodeSums`.
    """
    sums = NodeSums(features, sizes, n_nodes, max_abs, only)
    sums.add(codes, node, packed)
    return sums.total()
