"""The number that a text spells is the same float, wherever the text stands and whatever stands beside it."""

import subprocess
import sys
from io import StringIO

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpgb_dask import io
from dpgb_dask.encoding.columns import numbers
from dpgb_dask.released.runtimes.scorer import form_of
from dpgb_dask.values import cell, cells, is_real, read_numbers, spelled_numbers

BLANKS = ["", "", "", " ", "\t", "  "]


def spelled(rng, blanks=True):
    """One text that is, or might be taken for, a decimal number."""
    digits = "".join(rng.choice(list("0123456789"), rng.choice([1, 3, 9, 15, 16, 17, 18, 20, 30])))
    digits = rng.choice(["", "", "0", "000"]) + digits
    point = rng.integers(0, len(digits) + 1)
    text = f"{digits[:point]}.{digits[point:]}" if rng.random() < 0.7 else digits
    if rng.random() < 0.5:
        exponent = rng.choice(["0", "7", "022", "30", "290", "308", "330"])
        text += rng.choice(["e", "E"]) + rng.choice(["", "+", "-"]) + exponent
    if rng.random() < 0.1:
        at = rng.integers(0, len(text))
        text = text[:at] + rng.choice(["_", " ", "+", "e", "x"]) + text[at:]
    text = rng.choice(["", "+", "-"]) + text
    return rng.choice(BLANKS) + text + rng.choice(BLANKS) if blanks else text


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    repeated = [f"{x:+}" for x in rng.normal(size=200)]
    odd = ["+5e 9", "+5E\t9", "5e 9", "+ 5", "++5", "+-5", "+_5", "+", "+inf", "+nan", "+true"]
    return [*(str(spelled(rng)) for _ in range(2000)), *repeated, *odd, "+" + "9" * 5000]


def test_every_collection_reads_a_text_as_the_same_number(texts, tmp_path):
    want = spelled_numbers(texts)
    assert 0.5 < np.isfinite(want).mean() < 1
    columns = {
        "objects": np.array(texts, object),
        "a mixed column": np.array([*texts, 7, 0.5, None, b"x", 1j], object),
        "text of NumPy": np.array(texts),
        "bytes": np.array([text.encode() for text in texts]),
        "text of pandas": pd.Series(texts, dtype="str"),
        "text of Arrow": pd.Series(texts, dtype=pd.ArrowDtype(pa.string())),
        "categories": pd.Series(texts, dtype="category"),
        "Dask": da.from_array(np.array(texts, object), chunks=700).compute(),
    }
    for name, column in columns.items():
        np.testing.assert_array_equal(numbers(column)[: len(texts)], want, err_msg=name)
    forms = cells(texts)
    assert [form if isinstance(form, float) else np.nan for form in forms] == pytest.approx(
        want.tolist(), rel=0, abs=0, nan_ok=True
    )
    assert list(map(cell, texts[:300])) == forms[:300]
    table = pd.DataFrame({"x": texts[:-1], "y": 0})
    table.to_csv(tmp_path / "rows.csv", index=False)
    own = io.read_csv(tmp_path / "rows.csv").compute()["x"]
    np.testing.assert_array_equal(numbers(own), want[:-1])


def test_texts_are_read_as_pandas_reads_columns_of_numbers(texts):
    want = spelled_numbers(texts)
    # earlier parsers of pandas take numbers beyond the range of floats for texts, and all of their column with them
    held = ~np.isnan(want) if pd.__version__ >= "3.1" else np.isfinite(want)
    lines = [f'"{text}",0' for text, x in zip(texts, held, strict=True) if x]
    lines = [line for line in lines if len(line) < 400]
    read = pd.read_csv(StringIO("\n".join(["x,y", *lines, "0.5,0"])))["x"]
    assert read.dtype == np.float64
    again = [line.split('"')[1] for line in lines]
    np.testing.assert_array_equal(spelled_numbers(again), read[:-1])


@pytest.mark.skipif(pd.__version__ < "3.1", reason="earlier parsers of pandas round otherwise")
def test_numbers_are_rounded_correctly():
    rng = np.random.default_rng(1)
    texts = [str(spelled(rng, blanks=False)) for _ in range(2000)]
    texts = [text for text in texts if "_" not in text]
    for text, found in zip(texts, spelled_numbers(texts).tolist(), strict=True):
        try:
            want = float(text)
        except ValueError:
            want = np.nan
        assert found == want or np.isnan([found, want]).all() or " " in text, text
        assert form_of(text) == cell(text)


@pytest.mark.parametrize("text", ["9" * 500, "-1e400", "1" + "0" * 400 + ".5", " 1e999 ", "+1e400"])
def test_numbers_beyond_the_range_of_floats_are_infinite(text):
    assert cell(text) == (-np.inf if "-" in text else np.inf)
    assert cell(f"{text}x") == f"{text}x"


def test_a_number_of_thousands_of_digits_is_one():
    assert cell("0" * 5000 + "7") == 7.0


def test_a_row_does_not_change_how_others_are_read():
    text = "+0.10490011715303971"
    found = set()
    for beside in ("0.5", "unknown", "+1", ""):
        found |= {numbers(pd.read_csv(StringIO(f"x,y\n{text},0\n{beside},0\n"))["x"])[0]}
    assert len(found) == 1


LONG = """
import numpy as np

from dpgb_dask.encoding.times import seconds
from dpgb_dask.released.runtimes import scorer
from dpgb_dask.values import ExactId, cells, unit_names

n = 300_000
ends = ("", "x", "e9x", ".x", ".0", "e", " x", "-1")
texts = [first + mark * n + end for first in ("", "+", "0.", " ") for mark in "10 ." for end in ends]
texts += ["2020-01-01T00:00:00." + "1" * n, "1e" + "9" * n, "1" * n + "." + "1" * n + "x", "0" * n + "9e99"]
forms = cells(texts)
assert forms[texts.index("1" * n)] == float("inf") and forms[texts.index("1" * n + "x")] == "1" * n + "x"
assert unit_names([ExactId("0" * n + "7" * 20)]) == ["7" * 20]
unit_names([ExactId(text) for text in texts])
seconds(np.array(texts, object))
for text in texts:
    scorer.PLUS.fullmatch("+" + text)
    scorer.NUMBER.fullmatch(text)
"""


@pytest.mark.slow
def test_a_long_text_is_read_in_the_time_that_its_length_takes():
    """In the square of it a cell would stall a worker until the scheduler gives it up: hours, instead of a second."""
    subprocess.run([sys.executable, "-P", "-c", LONG], check=True, timeout=300)


def test_a_whole_number_beyond_floats_keeps_its_sign():
    assert read_numbers([10**400, -(10**400), 1]).tolist() == [np.inf, -np.inf, 1]
    assert cell(-(10**400)) == -np.inf


def test_a_span_of_numpy_is_no_number():
    assert not is_real(np.timedelta64(1, "s"))
    assert isinstance(cell(np.timedelta64(1, "s")), str)
