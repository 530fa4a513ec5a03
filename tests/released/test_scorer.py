"""The scorer in pure Python reads values and scores rows as the library does."""

import datetime
import decimal
import enum
import json
import math
import os
import runpy
import subprocess
import sys
import uuid
from dataclasses import replace
from io import StringIO

import numpy as np
import odd_dates
import pandas as pd
import pytest
from helpers import ROUNDED, raw_scores

from dpgb_dask import io, values
from dpgb_dask.contracts.features import Categorical, Datetime
from dpgb_dask.contracts.model import BinShares, FeatureBins, Model
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding import times
from dpgb_dask.encoding.codes import encode
from dpgb_dask.losses import RATE_SHIFT
from dpgb_dask.losses.links import LINKS
from dpgb_dask.released.export import model_to_dict
from dpgb_dask.released.runtimes import scorer
from dpgb_dask.released.runtimes.content import Content
from dpgb_dask.released.runtimes.python import to_python
from dpgb_dask.released.runtimes.xgboost import _names, encoder

PIECES = [
    "0", "1", "7", "12", ".", "-", "+", "e", "E", " ", "\t", "\x00", ":", "T", "Z", "2020", "01", "-02", "10:30", "nan",
    "NA", "inf", "true", "x", "ß", "_", "٣", "\xa0", "+02:00", ".5", "123456789", "None",
    "(", "[", "]", ", ",
]  # fmt: skip


class Job(str, enum.Enum):  # noqa: UP042 - the text of a StrEnum is its value
    """A text that says another of itself."""

    BLUE = "blue"
    SEVEN = "7"


ODD = [
    bytearray(b"7"), bytearray(b"blue"), memoryview(b"blue"), memoryview(b"\xff"), Job.BLUE, Job.SEVEN,
    np.timedelta64(3, "Y"), np.timedelta64(3, "M"), memoryview(np.arange(2.0)),
    pd.Interval(0, 10), pd.Interval(0.0, 10.0), "(0, 10]", "(0.0, 10.0]", "[-0.0, 1e+16)", "(-inf, 2.50]", "(0, x]",
    pd.Interval(-math.inf, math.inf, closed="both"), "(0,10]", "(nan, 1]", "(9007199254740993, 9007199254740994]",
    None, pd.NA, True, False, np.True_, np.False_, 0, -3, 7, 10**400, -(10**400), 0.5, -0.0, math.nan, math.inf,
    -math.inf, b"7", b"\xff", "7",
    "07", " 7.0 ", "7e400", "1_000", "0x10", "", "NA", "nan", "None", "TRUE", "false", "Infinity", "+inf", " inf",
    "2010-07-08T23:59:59.999-03", "1999-12-31", datetime.datetime(2015, 1, 1, 23, tzinfo=datetime.UTC), pd.NaT,
    pd.Timestamp("2015-01-02 03:04:05.000000006"), "2015-01-02 03:04:05.0000006", "0000-02-29T10", b"2011-11-11",
    "2020-02-30", "2020-02-29", "2020-02-29 00:00:00", "2020-02-29T01:00:00+01:00", "1500-01-01",
    "1500-01-01 00:00:00.1234567", "0000-01-01", "24:00", "10:30", "10:30:00", datetime.date(2020, 2, 29),
    datetime.datetime(2020, 2, 29), datetime.datetime(2020, 2, 29, 0, 0, 0, 5), datetime.time(10, 30),
    uuid.UUID(int=5), str(uuid.UUID(int=5)), [], {}, decimal.Decimal(7), decimal.Decimal("NaN"),
    decimal.Decimal("1e999"), 7 + 0j, 7 + 1j, np.float32(7), np.int8(7), "9" * 5000, "blue\x00", "other",
]  # fmt: skip


@pytest.fixture
def content(report):
    """Return a function from a model and schema to what is written."""
    return lambda model, schema: Content(model, schema, report, BinShares.of(model.bins, ()))


@pytest.fixture
def module(content, model, binary_schema, tmp_path):
    """The scorer of the small model, as a module's names."""
    to_python(content(model, binary_schema), tmp_path / "scorer.py")
    return runpy.run_path(str(tmp_path / "scorer.py"))


def test_constants_are_those_of_the_library():
    assert scorer.MISSING_WORDS == values.MISSING_WORDS
    assert scorer.TRUTH == values.TRUTH
    assert scorer.COMMA_NUMBER == io.text.COMMA_NUMBER
    assert scorer.POINT_NUMBER == io.text.POINT_NUMBER
    assert scorer.SWAPPED == io.text.SWAPPED
    assert scorer.RATE_SHIFT == RATE_SHIFT


def test_values_are_told_apart_as_in_the_library():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(PIECES, rng.integers(1, 6))) for _ in range(3000)]
    given = ODD + texts
    for value, a, b in zip(given, values.cells(given), map(scorer.form_of, given), strict=True):
        if a is values.NO_FORM:
            assert b is scorer.NO_FORM, value
        elif isinstance(a, float) and ("+" in str(value) or (not ROUNDED and len(str(value)) > 15)):
            # a sign with blanks beside it, or older versions of pandas: the last bit may differ
            assert a == pytest.approx(b, rel=1e-15), value
        else:
            assert (type(a), a) == (type(b), b), value


def test_dates_are_read_as_in_the_library(of_every_kind):
    """As points in time, as categories and as what is hashed; none raises, and none warns."""
    schema, bins, mine = of_every_kind
    forms = values.cells(odd_dates.ALL)
    block = np.empty((len(odd_dates.ALL), len(FEATURES)), object)
    for j in range(len(FEATURES)):
        block[:, j] = odd_dates.ALL
    codes = encode(block, schema, bins).T.tolist()
    for k, value in enumerate(odd_dates.ALL):
        form = scorer.form_of(value)
        assert (values.NO_FORM if form is scorer.NO_FORM else form) == forms[k], odd_dates.told(k)
        assert mine.codes(dict.fromkeys(FEATURES, value)) == codes[k], odd_dates.told(k)


def test_points_in_time_are_those_of_the_library_to_the_second():
    column = np.empty(len(odd_dates.ALL), object)
    column[:] = odd_dates.ALL
    far = 3e13  # beyond, both are farther than any declared day
    for k, want in enumerate(times.seconds(column).tolist()):
        found = scorer.seconds_of(odd_dates.ALL[k])
        found = math.nan if found is None else found
        same = want == found or (abs(want) > far and want * found > far**2)
        assert same or want != want != found != found, odd_dates.told(k)


def test_scores_are_the_librarys_to_the_bit(module, model, binary_schema, rows):
    want = raw_scores(model, binary_schema, rows)
    records = rows.astype(object).to_dict("records")
    assert [module["scores"](row) for row in records] == want.tolist()


FEATURES = {
    "number": (-3.0, 3.0),
    "category": ["blue", 7, True, "None", "2020-02-29", "10:30"],
    "truth": bool,
    "group": {"from": {"blue": "a", "7": "b", "10:30": "a", "NA": "c"}},
    "bucket": {"buckets": 5},
    "date": Datetime(
        "2001-03-01", "2020-06-30", parts=("days", "year", "month", "weekday", "hour")
    ),
}


@pytest.fixture(scope="module")
def of_every_kind():
    """A schema with every kind of feature, bins that tell all values apart, and their scorer."""
    schema = Schema(FEATURES, classes=[0, 1])
    bins = []
    for own in schema.encoded.values():
        if isinstance(own, Categorical):
            n = len(own.categories) + 2
            bins.append(FeatureBins(None, np.arange(n, dtype=np.uint8), n))
        else:
            edges = np.linspace(own.low, own.high, 200)
            bins.append(FeatureBins(edges, None, len(edges) + 2))
    tables = tuple(np.zeros((own.n_bins, 1), np.int32) for own in bins)
    made = Model(tuple(bins), np.zeros(1, np.int32), tables, link="logit")
    document = {"schema": schema.to_dict(), "model": model_to_dict(made)}
    return schema, bins, scorer.Scorer(json.loads(json.dumps(document)))


def test_any_value_is_read_as_in_the_library(of_every_kind):
    schema, bins, mine = of_every_kind
    block = np.empty((len(ODD), len(FEATURES)), object)
    for k, value in enumerate(ODD):
        for j in range(len(FEATURES)):
            block[k, j] = value
    want = encode(block, schema, bins).T.tolist()
    for value, codes in zip(ODD, want, strict=True):
        assert mine.codes(dict.fromkeys(FEATURES, value)) == codes, value


def test_encoded_rows_have_the_codes_of_the_library(of_every_kind):
    """What XGBoost takes: a number, or which category, from which the library's bins give the library's code."""
    _, bins, mine = of_every_kind
    for value in ODD:
        row = dict.fromkeys(FEATURES, value)
        numbers = mine.encode(row)
        assert np.isfinite([x for x in numbers if x == x]).all()
        for x, own, code in zip(numbers, bins, mine.codes(row), strict=True):
            if x != x:
                assert code == own.n_bins - 1
            else:
                assert code == (x if own.edges is None else np.searchsorted(own.edges, x))


def test_names_that_xgboost_takes_stay_apart():
    names = ["x[", "x(", "x( (2)", "x<", "x]", "x)"]
    assert _names(names) == ["x( (3)", "x(", "x( (2)", "xlt ", "x) (2)", "x)"]


def test_encoder_of_xgboost_names_the_kind_of_every_column(of_every_kind, report):
    schema, bins, _ = of_every_kind
    tables = tuple(np.zeros((own.n_bins, 1), np.int32) for own in bins)
    made = Model(tuple(bins), np.zeros(1, np.int32), tables, link="logit")
    columns = encoder(Content(made, schema, report, BinShares.of(bins, ())))["columns"]
    kinds = ["numeric", "categorical", "categorical", "grouped", "hashed", *["datetime"] * 5]
    assert [column["type"] for column in columns] == kinds
    assert columns[2]["categories"] == [False, True]
    assert columns[3]["from"] == FEATURES["group"]["from"]


@pytest.mark.parametrize("link", ["clipped_logit", "logit", "probability"])
def test_outputs_follow_the_link(model, binary_schema, rows, link):
    made = replace(model, link=link)
    mine = scorer.Scorer({"schema": binary_schema.to_dict(), "model": model_to_dict(made)})
    records = rows[:40].astype(object).to_dict("records")
    scores = raw_scores(made, binary_schema, rows[:40])
    np.testing.assert_allclose(
        [mine.predict_proba(row) for row in records], LINKS[link](scores / 65536), atol=1e-15
    )


def test_several_classes_and_numbers_have_their_outputs(
    three_score_model, model, multiclass_schema, regression_schema, rows
):
    records = rows[:40].astype(object).to_dict("records")
    for link in ("clipped_softmax", "softmax", "probability"):
        made = replace(three_score_model, link=link)
        mine = scorer.Scorer({"schema": multiclass_schema.to_dict(), "model": model_to_dict(made)})
        scores = raw_scores(made, multiclass_schema, rows[:40])
        want = LINKS[link](scores / 65536)
        np.testing.assert_allclose([mine.predict_proba(row) for row in records], want, atol=1e-15)
        labels = np.array(multiclass_schema.target.classes)[scores.argmax(axis=1)]
        assert [mine.predict(row) for row in records] == labels.tolist()
    for link, high in (("identity", 15.0), ("log", 15.0)):
        made = replace(model, link=link)
        mine = scorer.Scorer({"schema": regression_schema.to_dict(), "model": model_to_dict(made)})
        natural = LINKS[link](raw_scores(made, regression_schema, rows[:40]) / 65536)
        want = np.clip(high * natural, -15, 15)
        np.testing.assert_allclose([mine.predict(row) for row in records], want, atol=1e-12)


@pytest.mark.usefixtures("module")
def test_file_scores_text_as_the_library_does(model, binary_schema, rows, tmp_path):
    table = rows[:60].astype(object).where(rows[:60].notna(), None)
    table.loc[table.index[0], "x"] = " 007"
    table.loc[table.index[1], "color"] = 'gr"een,'
    table.loc[table.index[2], "age"] = "n/a"
    table.to_csv(tmp_path / "rows.csv", index=False)
    ran = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "scorer.py"), "--proba"],
        input=(tmp_path / "rows.csv").read_text(),
        capture_output=True,
        text=True,
        check=True,
    )
    got = pd.read_csv(StringIO(ran.stdout), converters={"proba_0": float, "proba_1": float})
    scores = raw_scores(model, binary_schema, io.read_csv(tmp_path / "rows.csv")).compute()
    want = LINKS[model.link](scores.to_numpy() / 65536)
    np.testing.assert_allclose(got[["proba_0", "proba_1"]].to_numpy(), want, rtol=1e-15)
    table.to_csv(tmp_path / "comma.csv", index=False, sep=";", decimal=",")
    comma = [sys.executable, "-I", "-S", str(tmp_path / "scorer.py"), "--proba", "--decimal", ","]
    text = (tmp_path / "comma.csv").read_text()
    one = "--delimiter must be one character, tab or space"
    again = [(";", 0, ran.stdout, ""), (",", 2, "", "--decimal , needs another --delimiter")]
    again += [(";;", 2, "", one), ('"', 2, "", one), ("", 2, "", one)]
    again += [("tab", 0, ran.stdout, "")]
    for delimiter, code, out, said in again:
        found = subprocess.run(
            [*comma, "--delimiter", delimiter],
            input=text.replace(";", "\t") if delimiter == "tab" else text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (found.returncode, found.stdout) == (code, out)
        assert said in found.stderr
    names = list(binary_schema.features)
    mean = [
        [";".join(names), ";".join([value] + [""] * (len(names) - 1))] for value in ("1.234", "")
    ]
    point, missing = (
        subprocess.run(
            [*comma, "--delimiter", ";"], input="\n".join(lines), capture_output=True, text=True, check=True
        ).stdout
        for lines in mean
    )  # fmt: skip
    assert point == missing  # where a comma marks decimals, a point may mark thousands
    assert got["prediction"].tolist() == (scores.to_numpy()[:, 0] > 0).astype(int).tolist()


def test_file_refuses_structure_in_one_line(module, tmp_path):
    def run(text):
        command = [sys.executable, "-I", str(tmp_path / "scorer.py")]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    for text, said in (
        ("x,z\n1,2\n", "lacks the features ['age', 'color']. Is it the --delimiter?"),
        ("x;z;age;color\n", "lacks the features"),
        ("", "no first line that names the columns"),
        ("x,z,age,color\n\n1,2,30,red\n1,2\n", "Line 4 has another number of fields"),
        ('x,z,age,color\n1,2,30,"red\n', "Line 2 has another number of fields"),
        ("x,z,age,color,age\n1,2,30,red,60\n", "each by another name"),
    ):
        ran = run(text)
        assert ran.returncode == 1
        assert said in ran.stderr
        assert ran.stderr.count("\n") == 1
    with pytest.raises(ValueError, match="lacks the features"):
        module["scores"]({"x": 1})


def test_file_refuses_probabilities_of_a_number(model, regression_schema, monkeypatch, capsys):
    document = {"schema": regression_schema.to_dict(), "model": model_to_dict(model)}
    monkeypatch.setattr(scorer, "scorer", lambda: scorer.Scorer(document))
    with pytest.raises(SystemExit):
        scorer.main(["--proba"])
    assert "--proba needs classes" in capsys.readouterr().err


def test_file_writes_utf_8_whatever_the_system_encodes(content, model, binary_schema, tmp_path):
    """A statement has μ, and labels are any text: a code page may lack them."""
    schema = Schema(binary_schema.features, classes=["ή", "✓"])
    to_python(content(model, schema), tmp_path / "s.py")
    for option, rows, held in (
        ("--proba", "x,z,age,color\n1,2,3,red\n", "proba_✓"),
        ("--statement", "", "μ"),
    ):
        ran = subprocess.run(
            [sys.executable, str(tmp_path / "s.py"), option],
            input=rows.encode(),
            capture_output=True,
            check=False,
            env=os.environ | {"PYTHONIOENCODING": "cp1252"},
        )
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert held in ran.stdout.decode("utf-8")


@pytest.mark.usefixtures("module")
def test_file_ends_in_silence_when_nobody_reads_on(tmp_path):
    (tmp_path / "rows.csv").write_text("x,z,age,color\n" + 20_000 * "1,2,30,red\n")
    command = [sys.executable, "-I", "-S", str(tmp_path / "scorer.py")]
    pipe = subprocess.PIPE
    with (tmp_path / "rows.csv").open() as rows:
        ran = subprocess.Popen(command, stdin=rows, stdout=pipe, stderr=pipe, text=True)
    ran.stdout.close()
    assert ran.stderr.read() == ""
    assert ran.wait() == 0
    ran.stderr.close()


def test_file_begins_with_the_statement(module, tmp_path):
    text = (tmp_path / "scorer.py").read_text()
    assert text.startswith("# ")
    assert "add or remove one row" in text.split('"""', maxsplit=1)[0]
    assert module["scorer"]().predict({"x": 0, "z": 0, "age": 5, "color": "red"}) in (0, 1)
