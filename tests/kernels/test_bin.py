import numba
import numpy as np
import pytest
from helpers import naive_codes
from thinned import one_of_each

from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.grid import FINE, numeric_edges
from dpgb_dask.kernels import bin as bins


@pytest.fixture(autouse=True)
def _no_scalar_warnings():
    """Uncompiled, numpy's scalars warn of an overflow that compiled code takes in silence."""
    with np.errstate(all="ignore" if numba.config.DISABLE_JIT else None):
        yield


UNIFORM_31 = np.linspace(-3, 3, 31)
GRIDS = {
    "none": np.empty(0),
    "binary": np.array([0.5]),
    "four": np.array([-1.0, 0.0, 1e-9, 2.0]),
    "five": np.array([-1.0, 0.0, 1e-9, 1.0, 2.0]),
    "uniform": UNIFORM_31,
    "tenths": np.arange(1, 60) / 10,
    "quantiles": np.sort(np.random.default_rng(7).standard_normal(249)),
    "fine": numeric_edges(Numeric(0, 100), FINE),
    "fine around zero": numeric_edges(Numeric(-3, 1e6), FINE),
    "coarse integers": numeric_edges(Numeric(0, 10**6, integer=True), 256)[:254],
    "one ulp apart": np.nextafter(1.0, 2) + np.arange(9) * 2.0**-52,
    "lognormal": np.exp(np.random.default_rng(8).standard_normal(249).cumsum() / 9).cumsum(),
    "below zero": numeric_edges(Numeric(-100, -1), FINE)[:254],
    "one float32": 1 + np.arange(60) * 1e-12,
    "far from zero": 1e6 + np.arange(60) / 8,
    "half of them infinite": np.concatenate((-(10.0 ** np.arange(70, 10, -1)), [-1.0])),
    "beyond float32": np.array([-1e300, -1e39, -1.0, 0.0, 1.0, 1e39, 1e300]),
    "widest": np.array([-1.7e308, -1.0, 0.0, 1.0, 2.0, 1.7e308]),
    "denormal": np.array([-5e-324, 0.0, 5e-324, 1e-323, 1e-310, 1e-40]),
    "negative zero": np.concatenate(
        (np.arange(-20, 0) * 5e-324, [-0.0], 1e-300 * np.arange(1, 20))
    ),
}


def values_near(edges, dtype, seed=0):
    """Values on, just below and just above every edge, random ones, and every odd one."""
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        near = edges.astype(dtype)
        odd = np.array(
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -3e38, 1e308, -1e308]
        ).astype(dtype)
        span = np.abs(edges).max(initial=1.0).astype(dtype)
    below, above = np.nextafter(near, dtype(-np.inf)), np.nextafter(near, dtype(np.inf))
    wide = rng.standard_normal(200).astype(dtype) * min(span, np.finfo(dtype).max / 8)
    x = np.concatenate((near, below, above, odd, wide, rng.standard_normal(200).astype(dtype)))
    return rng.permutation(x)[:1500]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", GRIDS)
def test_cell_column_counts_the_edges_below(name, dtype):
    x = values_near(GRIDS[name], dtype)
    out = np.empty(len(x), np.uint16)
    bins.cell_column(x, GRIDS[name], out)
    np.testing.assert_array_equal(out, naive_codes(x, GRIDS[name]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [name for name in GRIDS if len(GRIDS[name]) <= 254])
def test_bin_column_agrees_with_cells_at_any_stride(name, dtype):
    x = values_near(GRIDS[name], dtype)
    want = naive_codes(x, GRIDS[name])
    wide = np.repeat(x, 3).reshape(-1, 3)
    for column in (x, wide[:, 1], x[::-1][::-1]):
        out = np.empty(len(x), np.uint8)
        bins.bin_column(column, GRIDS[name], out)
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("name", GRIDS)
def test_float32_gets_the_code_of_the_same_float64(name):
    x = values_near(GRIDS[name], np.float32)
    narrow, wide = np.empty((2, len(x)), np.uint16)
    bins.cell_column(x, GRIDS[name], narrow)
    bins.cell_column(x.astype(np.float64), GRIDS[name], wide)
    np.testing.assert_array_equal(narrow, wide)


def test_float32_edges_rounded_to_nearest_would_be_wrong():
    edge = np.array([0.1])  # float32(0.1) > 0.1, so it lies above the edge
    x = np.array([0.1], np.float32)
    out = np.empty(1, np.uint8)
    bins.bin_column(x, edge, out)
    assert out[0] == 1
    assert not x[0] > edge.astype(np.float32)[0]


def test_infinities_go_to_the_first_and_last_bin_and_nan_to_its_own():
    for dtype in (np.float32, np.float64):
        x = np.array([-np.inf, np.inf, np.nan], dtype)
        out = np.empty(3, np.uint8)
        bins.bin_column(x, UNIFORM_31, out)
        assert out.tolist() == [0, 31, 32]


@pytest.mark.parametrize(
    ("order", "dtype"),
    one_of_each([(o, t) for o in ("C", "F", "strided") for t in (np.float32, np.float64)]),
)
def test_bin_matrix_is_bin_column_by_column(order, dtype):
    names = [name for name in GRIDS if len(GRIDS[name]) <= 254]
    edges = [None, *(GRIDS[name] for name in names)]
    rng = np.random.default_rng(1)
    n = bins.ROWS + bins.TILE + 3 if order == "C" else 40
    x = rng.choice([*rng.standard_normal(20), np.nan, np.inf, -np.inf], (n, len(edges))).astype(
        dtype
    )
    x = np.repeat(x, 2, axis=0)[::2] if order == "strided" else np.asarray(x, order=order)
    for given in (edges, bins.edge_table(edges, dtype)):
        out = np.full((len(edges), n), 77, np.uint8)
        bins.bin_matrix(x, given, out)
        assert (out[0] == 77).all()
        for j, edge in enumerate(edges[1:], 1):
            np.testing.assert_array_equal(out[j], naive_codes(x[:, j], edge))


@pytest.mark.parametrize("order", ["C", "F"])
def test_cell_matrix_is_cell_column_by_column(order):
    edges = [None, *GRIDS.values()]
    n = bins.ROWS + bins.TILE + 3
    rng = np.random.default_rng(2)
    near = np.concatenate(list(GRIDS.values()))
    x = np.asarray(rng.choice([*near, np.nan, np.inf], (n, len(edges))), order=order)
    out = np.full((len(edges), n), 7777, np.uint16)
    bins.cell_matrix(x, edges, out)
    assert (out[0] == 7777).all()
    for j, edge in enumerate(edges[1:], 1):
        np.testing.assert_array_equal(out[j], naive_codes(x[:, j], edge))


@pytest.mark.parametrize("name", ["fine", "uniform", "quantiles", "below zero"])
def test_any_nan_is_missing(name):
    edges = GRIDS[name]
    for dtype, bits in (
        (np.float32, [0x7F800001, 0x7FC00000, 0x7FFFFFFF, -0x7FFFFF, -1]),
        (np.float64, [0x7FF0000000000001, 0x7FF8000000000000, -0xFFFFFFFFFFFFF, -1]),
    ):
        x = np.array(bits, f"i{np.dtype(dtype).itemsize}").view(dtype)
        assert np.isnan(x).all()
        out = np.empty(len(x), np.uint16)
        with np.errstate(invalid="ignore"):  # of signalling ones
            bins.cell_column(x, edges, out)
        assert (out == len(edges) + 1).all()


@pytest.mark.parametrize(
    ("dtype", "bounds"),
    [
        (
            np.float32,
            [(0, 8), (-4, 4), (-1, 7)],
        ),  # further from 0 some of them round to one float32
        (np.float64, [(0, 8), (-4, 4), (-1, 7), (18, 90), (-9, 0)]),
    ],
)
def test_edges_of_public_grids_are_looked_up_without_a_search(dtype, bounds):
    for low, high in bounds:
        table = bins.edge_table([numeric_edges(Numeric(low, high), FINE)], dtype)
        assert table.size[0, 2] <= bins.MAX_STEPS


def test_cells_hold_one_edge_unless_that_takes_many():
    even = np.linspace(-5, 5, 180)
    table = bins.edge_table([even], np.float32)
    assert table.size[0, 2] == 1
    assert table.size[0, 1] <= bins.FEW_CELLS * len(even)
    # far from the pivot: thousands of cells tell them apart, and would be made
    close = np.sort(np.append(even, even[170] + 1e-3))
    table = bins.edge_table([close], np.float32)
    assert table.size[0, 2] == 2
    assert table.size[0, 1] <= bins.FEW_CELLS * len(close)
    x = np.append(np.random.default_rng(0).uniform(-6, 6, 5000), close).astype(np.float32)
    for edges in (even, close):
        out = np.empty(len(x), np.uint8)
        bins.bin_column(x, edges, out)
        np.testing.assert_array_equal(out, np.searchsorted(edges, x.astype(np.float64)))


def test_map_cells_looks_up_each_feature_in_its_own_row():
    rng = np.random.default_rng(3)
    table = rng.integers(0, 256, (3, 50), dtype=np.uint8)
    cells = rng.integers(0, 50, (3, 100), dtype=np.uint16)
    out = np.empty(cells.shape, np.uint8)
    bins.map_cells(cells, table, out)
    np.testing.assert_array_equal(out, np.take_along_axis(table, cells.astype(np.intp), axis=1))
    for wrong in ((cells[:2], table, out[:2]), (cells, table, out[:, :99].copy())):
        with pytest.raises(ValueError, match="differ in features or rows"):
            bins.map_cells(*wrong)


def test_bin_takes_no_rows_and_read_only_memory():
    out = np.empty((1, 0), np.uint8)
    bins.bin_matrix(np.empty((0, 1)), [UNIFORM_31], out)
    x = np.zeros((5, 1))
    x.flags.writeable = False
    out = np.empty((1, 5), np.uint8)
    bins.bin_matrix(x, [UNIFORM_31], out)
    assert (out == 15).all()


@pytest.mark.parametrize(
    ("x", "edges", "out", "match"),
    [
        (np.zeros(3, np.int64), UNIFORM_31, np.empty(3, np.uint8), "dtype=int64"),
        (np.zeros(3), UNIFORM_31, np.empty(4, np.uint8), "differ in rows"),
        (np.zeros(3), UNIFORM_31, np.empty(3, np.uint16), "out has dtype=uint16"),
        (np.zeros(3), np.arange(255.0), np.empty(3, np.uint8), "More edges"),
        (
            np.zeros(3),
            bins.edge_table([UNIFORM_31], np.float32),
            np.empty(3, np.uint8),
            "table is for float32",
        ),
        (
            np.zeros(3),
            bins.edge_table([UNIFORM_31] * 2, np.float64),
            np.empty(3, np.uint8),
            "columns",
        ),
    ],
)
def test_bin_column_names_what_does_not_fit(x, edges, out, match):
    with pytest.raises(ValueError, match=match):
        bins.bin_column(x, edges, out)
