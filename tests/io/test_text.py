"""Files of delimited text: each line is one row, each value is its own text, whatever stands around it."""

import bz2
import codecs
import csv
import gzip
import warnings

import dask
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pytest
from odd_lines import BAD_LINES, ODD_LINES
from thinned import thinned

from dpgb_dask import Schema
from dpgb_dask.errors import StructureError
from dpgb_dask.io import read_csv
from dpgb_dask.io.text import Form
from dpgb_dask.values import ExactId

HEADER = b"x,z,age,color,target"
LINES = [b"%d.5,,%d,red,%d" % (k, k % 90, k % 2) for k in range(3000)]


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def write(folder, *lines, name="rows.csv", end=b"\n"):
    path = folder / name
    path.write_bytes(end.join(lines) + end)
    return path


def rows_of(table):
    return table.compute().to_numpy().tolist()


@pytest.mark.parametrize("name", ["people [1].csv", "[a-c].csv", "b[", "]["])
def test_a_file_whose_name_looks_like_a_pattern_is_read(name, tmp_path):
    path = write(tmp_path, HEADER, LINES[0], name=name)
    write(tmp_path, HEADER, LINES[1], LINES[2], name="b.csv")
    assert rows_of(read_csv(path)) == [LINES[0].decode().split(",")]
    assert len(rows_of(read_csv([path, tmp_path / "b.csv"]))) == 3


def test_every_value_is_its_text(tmp_path):
    path = write(
        tmp_path, b"a,b", b"1,yes", b"x,", b'01,"a, ""b"""', b" 1 ,NA", b"broken", b"2,True"
    )
    table = read_csv(path)
    assert isinstance(table, dd.DataFrame)
    assert [str(dtype) for dtype in table.dtypes] == ["object"] * 2
    assert [str(dtype) for dtype in table.compute().dtypes] == ["object"] * 2
    want = [["1", "yes"], ["x", ""], ["01", 'a, "b"'], [" 1 ", "NA"], [None, None], ["2", "True"]]
    assert rows_of(table) == want


def test_types_stay_objects_whatever_dask_would_convert(tmp_path):
    path = write(tmp_path, b"a,b", b"1,2")
    with dask.config.set({"dataframe.convert-string": True}):
        table = read_csv(path)
        assert set(map(str, table.dtypes)) == {"object"}
        assert set(map(str, table[["b"]].compute().dtypes)) == {"object"}


@pytest.mark.parametrize("name", thinned([*BAD_LINES, *ODD_LINES], every=2))
def test_a_line_changes_no_other_row(tmp_path, name):
    """A reader of blocks would shift, join or skip other people's rows, or raise."""
    want = rows_of(read_csv(write(tmp_path, HEADER, *LINES), blocksize=9_000))
    for place in (0, 1400, 3000):
        lines = [*LINES[:place], (BAD_LINES | ODD_LINES)[name], *LINES[place:]]
        table = read_csv(write(tmp_path, HEADER, *lines, name="odd.csv"), blocksize=9_000)
        assert table.npartitions > 3
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = rows_of(table)
        one = got.pop(place)
        assert (one == [None] * 5) == (name in BAD_LINES)
        assert got == want


def test_lines_are_split_as_csv_reads_them():
    """What is quick for plain lines is what the module csv says of each."""
    rng = np.random.default_rng(0)
    letters = np.array(list('ab01,;" \t\r\x00\u00e9'))
    for _ in range(4000):
        text = "".join(rng.choice(letters, rng.integers(0, 9)))
        form = Form(str(rng.choice([",", ";", "\t"])))
        try:
            rows = csv.reader([text.removesuffix("\r")], delimiter=form.delimiter, strict=True)
            want = next(rows, [])
        except csv.Error:
            want = None
        got = form.fields(text.encode())
        blank = not text.strip() and form.delimiter not in text
        assert (None if got is None else list(got)) == ([] if blank else want)


def test_strict_reading_raises(tmp_path):
    for name, line in BAD_LINES.items():
        table = read_csv(write(tmp_path, HEADER, line, name="bad.csv"), strict=True)
        with pytest.raises(StructureError, match="5 fields"):
            table.compute()
        assert name
    table = read_csv(write(tmp_path, HEADER, *ODD_LINES.values(), name="odd.csv"), strict=True)
    assert len(table) == len(ODD_LINES)


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("name", thinned(BAD_LINES, every=2))
def test_a_line_that_cannot_be_read_is_named_by_its_number(name, ending, tmp_path):
    """As an editor counts, blank lines too, whichever block it is in; never for a fit, which reads on."""
    write(tmp_path, HEADER, *LINES[:20], name="p0.csv")
    for number in (2, 30, 2003):
        lines = [HEADER, b"", *LINES]
        lines.insert(number - 1, BAD_LINES[name])
        text = b"\r\n".join([*lines, BAD_LINES[name]])
        bad = tmp_path / f"p1.csv{ending}"
        bad.write_bytes(gzip.compress(text) if ending else text)
        both = [tmp_path / "p0.csv", bad]
        with pytest.raises(StructureError) as told:
            read_csv(both, strict=True, blocksize=9_000).compute()
        assert f"p1.csv{ending}', line {number}: " in str(told.value)
        assert len(read_csv(both, blocksize=9_000)) == 20 + 3000 + 2


def test_a_first_line_behind_a_byte_order_mark_is_not_the_line_that_cannot_be_read(tmp_path):
    path = write(tmp_path, codecs.BOM_UTF8 + b'"a,b",c', b"1,2", b"3")
    with pytest.raises(StructureError, match=", line 3: "):
        read_csv(path, strict=True).compute()


def test_delimiters_quotes_and_encodings(tmp_path):
    path = write(tmp_path, b"a;b", b"1;'x;y'", "é;2".encode("latin-1"))
    table = read_csv(path, delimiter=";", quotechar="'", encoding="latin-1")
    assert rows_of(table) == [["1", "x;y"], ["é", "2"]]
    tabs = write(tmp_path, b"a\tb", b'"1\t2', b"\t", b"")
    assert rows_of(read_csv(tabs, delimiter="\t", quotechar=None)) == [['"1', "2"], ["", ""]]
    japanese = write(tmp_path, b"a,b", "表,1".encode("shift_jis"), b"\x81", b"x,2")
    table = read_csv(japanese, encoding="shift_jis")
    assert rows_of(table) == [["表", "1"], [None, None], ["x", "2"]]


def test_numbers_with_a_decimal_comma(tmp_path):
    lines = {
        b"1,5;-0,25;+7,;,5": ["1.5", "-0.25", "+7.", ".5"],
        b"1,5e3; 2,0 ;-,5E-2;3": ["1.5e3", " 2.0 ", "-.5E-2", "3"],
        '"1,5";45;\xa01,5;,'.encode("latin-1"): ["1.5", "45", "\xa01.5", ","],
        # a point that may mark thousands: no number
        b"1.234;-45.678; +999.000;1": ["1,234", "-45,678", " +999,000", "1"],
        b"1.23;-4.5;1.;+.5e3": None,
        b"0.125;1234.567;1.2345;250.01": None,
        # no numbers: marks of thousands, lists, text
        b"1.234,5;1,234,5;a,5;1,5e": ["1.234,5", "1,234,5", "a,5", "1,5e"],
        b"1.234.567;31.12.2024;a.5;2024-12-31 10:00:00.5": None,
        "1,5€;1,5e1,5;--1,5;1,5 2".encode("cp1256"): None,
    }
    path = write(tmp_path, b"a,5;1,5;c;d", *lines)
    got = read_csv(path, delimiter=";", decimal=",", encoding="latin-1")
    assert list(got.columns) == ["a,5", "1,5", "c", "d"]  # names are no numbers
    plain = rows_of(read_csv(path, delimiter=";", encoding="latin-1"))
    for row, as_it_stands, want in zip(rows_of(got), plain, lines.values(), strict=True):
        assert row == (want or as_it_stands)
    other_digits = ["١,٥", "１,５"]
    assert Form(";", decimal=",").fields(";".join(other_digits).encode()) == other_digits
    for delimiter, decimal in ((",", ","), (";", ";"), (";", ""), (";", None), (";", "٫")):
        with pytest.raises(StructureError, match="decimal="):
            read_csv(path, delimiter=delimiter, decimal=decimal)


def test_under_a_decimal_comma_a_number_that_may_be_of_thousands_is_missing(tmp_path):
    path = write(tmp_path, b"pay;y", b"1.234;0", b"1234,5;1", b"1.5;1")
    schema = Schema({"pay": (0, 5000)}, classes=[0, 1], target="y")
    (pay,) = schema.check(read_csv(path, delimiter=";", decimal=",")).columns
    assert (pay.missing, pay.values) == (1, (("'1,234'", 1),))


def test_byte_order_marks_line_ends_and_blank_lines(tmp_path):
    mark = b"\xef\xbb\xbf"
    path = write(tmp_path, mark + b'"a",b', b"", b"1,2", b"  ", b"3,4", b"", end=b"\r\n")
    for encoding in ("utf-8", "utf-8-sig"):
        table = read_csv(path, encoding=encoding)
        assert list(table.columns) == ["a", "b"]
        assert rows_of(table) == [["1", "2"], ["3", "4"]]


def test_patterns_and_compression(tmp_path):
    for k in range(3):
        text = b"a,b\n" + b"".join(b"%d,%d\n" % (k, j) for j in range(3))
        (tmp_path / f"p{k}.csv").write_bytes(text)
        (tmp_path / f"p{k}.csv.gz").write_bytes(gzip.compress(text))
        (tmp_path / f"p{k}.csv.bz2").write_bytes(bz2.compress(text))
    (tmp_path / "p3.csv").write_bytes(b"")  # no first line, and no rows
    (tmp_path / "p3.csv.gz").write_bytes(gzip.compress(b""))
    want = [[str(k), str(j)] for k in range(3) for j in range(3)]
    for pattern in ("p*.csv", "p*.csv.gz", "p?.csv.bz2"):
        assert rows_of(read_csv(tmp_path / pattern)) == want
        assert rows_of(read_csv(f"file://{tmp_path}/{pattern}")) == want
    both = [tmp_path / "p0.csv", tmp_path / "p1.csv.gz", str(tmp_path / "p2.csv")]
    assert rows_of(read_csv(both)) == want
    opened = read_csv(tmp_path / "p*.csv")
    (tmp_path / "p1.csv").write_bytes(b"b,a\n1,2\n")
    with pytest.raises(StructureError, match=r"p1\.csv': its first line has changed"):
        opened.compute()
    (tmp_path / "p1.csv").write_bytes(b"a,c\n1,2\n")
    for again in (lambda: read_csv(tmp_path / "p*.csv"), opened.compute):
        with pytest.raises(StructureError, match=r"p1\.csv': .*same columns.*write it again"):
            again()


@pytest.mark.parametrize("blocksize", [1 << 20, 9])
def test_columns_of_each_file_are_found_by_name(blocksize, tmp_path):
    write(tmp_path, b"a,b,c", b"1,2,3", b"4,5", b"6,7,8", name="p0.csv")
    write(tmp_path, b"c,a,b", b"30,10,20", b"50,40", b'"80",60,70', b"", b"9,7,8", name="p1.csv")
    write(tmp_path, b'\xef\xbb\xbf"b",a,c', b"200,100,300", name="p2.csv", end=b"\r\n")
    table = read_csv(tmp_path / "p*.csv", blocksize=blocksize, unit_id="c")
    assert list(table.columns) == list(table.compute().columns) == ["a", "b", "c"]
    lost = [None] * 3
    first = [["1", "2", "3"], lost, ["6", "7", "8"]]
    second = [["10", "20", "30"], lost, ["60", "70", "80"], ["7", "8", "9"]]
    assert rows_of(table) == [*first, *second, ["100", "200", "300"]]
    assert {type(value) for value in table["c"].compute()} == {ExactId, type(None)}


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("nothing", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_rows_wherever_it_stands(nothing, ending, tmp_path):
    pack = gzip.compress if ending else bytes
    for k, text in enumerate([nothing, b"a,b\n1,2\n", nothing, b"b,a\n4,3\n", nothing]):
        (tmp_path / f"p{k}.csv{ending}").write_bytes(pack(text))
    table = read_csv(tmp_path / f"p*.csv{ending}")
    assert list(table.columns) == ["a", "b"]
    assert rows_of(table) == [["1", "2"], ["3", "4"]]
    with pytest.raises(StructureError, match="must name the columns"):
        read_csv(tmp_path / f"p0.csv{ending}")


def test_a_file_that_is_named_twice_is_refused(tmp_path):
    path = write(tmp_path, b"a,b", b"1,2", name="p0.csv")
    (tmp_path / "latest.csv").symlink_to("p0.csv")
    (tmp_path / "again").symlink_to(".")
    for both in (
        [path, path],
        [tmp_path / "p*.csv", f"file://{path}"],
        [path, f"{tmp_path}/../{tmp_path.name}/p0.csv"],
        [path, f"{tmp_path}//p0.csv"],
        [path, tmp_path / "again" / "p0.csv"],
        tmp_path / "*.csv",
        f"file://{tmp_path}/*.csv",
    ):
        with pytest.raises(StructureError, match=r"names a file twice.*Name it once"):
            read_csv(both)
    assert rows_of(read_csv(tmp_path / "latest.csv")) == [["1", "2"]]


def test_patterns_mean_no_hidden_files_unless_they_say_so(tmp_path):
    write(tmp_path, b"a,b", b"1,2", name="p0.csv")
    write(tmp_path, b"a,b", b"3,4", name=".p0.csv")  # of an editor, say
    (tmp_path / "._p0.csv").write_bytes(b"\x00\x05\x16\x07\xff")
    for path in ("*.csv", "p?.csv"):
        assert rows_of(read_csv(tmp_path / path)) == [["1", "2"]]
        assert rows_of(read_csv(f"file://{tmp_path}/{path}")) == [["1", "2"]]
    for path in (".p0.csv", ".p*.csv"):
        assert rows_of(read_csv(tmp_path / path)) == [["3", "4"]]
    both = [tmp_path / ".p*.csv", tmp_path / "p*.csv"]
    assert rows_of(read_csv(both)) == [["3", "4"], ["1", "2"]]
    for place in (".ipynb_checkpoints", "sub"):  # copies that Jupyter keeps beside a file
        (tmp_path / place).mkdir()
        write(tmp_path, b"a,b", b"5,6", name=f"{place}/p0.csv")
    assert rows_of(read_csv(tmp_path / "*" / "p0.csv")) == [["5", "6"]]
    assert rows_of(read_csv(tmp_path / "**" / "p?.csv")) == [["1", "2"], ["5", "6"]]
    assert rows_of(read_csv(tmp_path / ".*" / "p0.csv")) == [["5", "6"]]
    assert rows_of(read_csv(tmp_path / ".ipynb_checkpoints" / "*.csv")) == [["5", "6"]]
    (tmp_path / "p0.csv").unlink()
    with pytest.raises(StructureError, match="does not exist"):
        read_csv(tmp_path / "*.csv")


def test_options_and_files_that_are_none_are_refused(tmp_path):
    path = write(tmp_path, b"a,b", b"secret,2")
    for options, words in (
        ({"delimiter": ""}, "delimiter='' must be one character"),
        ({"delimiter": "ab"}, "must be one character"),
        ({"delimiter": "\n"}, "must be one character"),
        ({"delimiter": '"'}, "is the quotechar too"),
        ({"quotechar": 3}, "quotechar=3 must be one character"),
        ({"blocksize": 0}, "blocksize=0"),
        ({"blocksize": "1 MB"}, "blocksize='1 MB'"),
        *(
            ({"encoding": name}, f"encoding={name!r} is unknown, or one in which")
            for name in (
                "utf-16",
                "utf_16_le",
                "utf-32",
                "cp500",
                "utf-7",
                "idna",
                "rot13",
                "klingon",
                None,
                "unicode_escape",
            )
        ),
    ):
        with pytest.raises(StructureError) as info:
            read_csv(path, **options)
        assert words in str(info.value)
    for name in ("no.csv", "no-*.csv", "no.csv.gz", "no/rows.csv"):
        with pytest.raises(StructureError, match="does not exist") as info:
            read_csv(tmp_path / name)
        assert info.value.__context__ is None
    with pytest.raises(StructureError, match=r"no\.csv' does not exist"):
        read_csv([path, tmp_path / "no.csv"])
    with pytest.raises(StructureError, match="names no file"):
        read_csv([])
    with pytest.raises(StructureError, match="does not know this protocol"):
        read_csv("klingon://rows.csv")
    for header in (b"", b"a,a", b'a,"b'):
        with pytest.raises(StructureError, match="must name the columns") as info:
            read_csv(write(tmp_path, header, b"1,2", name="none.csv"))
        assert "such as a title" in str(info.value)
    with pytest.raises(StructureError, match=r"must name the columns.*tr '\\r' '\\n'"):
        read_csv(write(tmp_path, b"a,b", b"1,2", end=b"\r", name="mac.csv"))
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(StructureError, match="cannot be read"):
        read_csv(broken)


def test_a_compression_that_nothing_here_reads_is_not_taken_for_text(tmp_path, monkeypatch):
    monkeypatch.delitem(fsspec.utils.compressions, "zst", raising=False)
    plain = write(tmp_path, b"a,b", b"1,2", name="p0.csv")
    (tmp_path / "p1.csv.zst").write_bytes(b"(\xb5/\xfd\x00\n\n")
    for place in (tmp_path / "p1.csv.zst", [plain, tmp_path / "p1.csv.zst"], tmp_path / "p*"):
        with pytest.raises(StructureError, match="needs zstandard, which is not installed"):
            read_csv(place)


def test_pandas_reads_the_same_of_plain_files(tmp_path):
    path = write(tmp_path, HEADER, *LINES)
    want = pd.read_csv(path, dtype=str, keep_default_na=False)
    got = read_csv(path, blocksize=5_000).compute().reset_index(drop=True)
    assert got.to_numpy().tolist() == want.to_numpy().tolist()


def test_a_file_in_utf_16_says_so(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n", encoding="utf-16")
    with pytest.raises(StructureError, match="iconv -f UTF-16"):
        read_csv(tmp_path / "a.csv")


def test_names_in_another_encoding_are_not_read_as_others(tmp_path):
    path = write(tmp_path, "Größe".encode("cp1252"), "groß".encode("cp1252"))
    with pytest.raises(StructureError, match=r"is not in encoding='utf-8'.*--encoding") as told:
        read_csv(path)
    assert told.value.__cause__ is None
    assert list(read_csv(path, encoding="cp1252")) == ["Größe"]
    assert rows_of(read_csv(write(tmp_path, b"size", "groß".encode("cp1252")))) == [["gro\ufffd"]]
