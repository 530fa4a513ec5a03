"""The report tells what was charged, and says loudly when nothing is guaranteed."""

import html
import json
import math
import re
from dataclasses import fields, replace

import pytest

from dpgb_dask.controller import accounting
from dpgb_dask.errors import StructureError
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.released.sections import WIDTH


def test_report_prints_the_whole_guarantee(report):
    text = str(report)
    for part in (
        "(1, 1e-06)-differential privacy", "add or remove one row", "by zCDP", "auto", "bins", "main 1/2 … 2/2",
        "100.00 %", "GridSearchCV", "age", "the cluster is trusted", "candidates come from public bounds",
    ):  # fmt: skip
        assert part in text
    assert "NOT PRIVATE" not in text
    assert "private=False" not in repr(report)


def test_report_shouts_when_nothing_is_guaranteed(report):
    loud = replace(report, private=False)
    for text in (str(loud), loud._repr_html_()):
        assert "NOT PRIVATE" in text
        assert "private=False" in text
        assert "differential privacy" not in text
    assert "private=False" in repr(loud)


def test_report_lists_every_charge(report):
    charges = report.charges()
    assert [c["label"] for c in charges] == ["bins", "main 1/2", "main 2/2"]
    assert sum(c["share_percent"] for c in charges) == pytest.approx(100)
    assert charges[0]["noise"] == pytest.approx(30**0.5)


def test_a_line_of_several_releases_says_that_its_share_is_theirs_together(report):
    """ "(each of 2)" beside the sum of both was read as the share of each."""
    (line,) = [line for line in str(report).splitlines() if line.startswith("main 1/2 … 2/2")]
    charges = [c for c in report.charges() if c["label"].startswith("main")]
    together = sum(c["share_percent"] for c in charges)
    assert line.startswith("main 1/2 … 2/2 (2 releases)")
    assert line.split()[-2:] == [f"{together:.2f}", f"{charges[0]['noise']:.4g}"]
    assert "all releases of a line together" in " ".join(str(report).split())
    drawn = replace(report, declared=min(r.price for r in report.receipts))
    assert "one release of the line" in " ".join(str(drawn).split())
    for page in (report.to_html(), report._repr_html_()):
        assert "all releases of a line together" in page


def test_a_narrow_report_says_the_same(report):
    narrow = report.to_text(40)
    assert narrow.split("=")[0] == "Privacy report\n"
    words = [text.replace("=", "").replace("-", "").split() for text in (narrow, str(report))]
    assert words[0] == words[1]
    wide = [line for line in narrow.splitlines() if len(line) > 40]
    assert all(
        "gaussian" in line or "σ" in line or set(line) == {"-"} for line in wide
    )  # the table


def test_report_survives_json(report):
    assert "digests" not in report.to_dict()  # they cover the report, and lie beside it in the file
    with pytest.raises(StructureError, match="malformed"):
        PrivacyReport.from_dict(report.to_dict() | {"digests": {}})
    back = PrivacyReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert back == report
    with pytest.raises(StructureError, match="malformed"):
        PrivacyReport.from_dict({"epsilon": 1})
    for forged in (5, None, [1, 2], "zyx", {"zip": 5}):
        with pytest.raises(StructureError, match="malformed"):
            PrivacyReport.from_dict(report.to_dict() | {"public": {"mappings": forged}})


@pytest.mark.parametrize(
    "foreign",
    [
        {"source": "<script>"},
        {"recipe": "<script>"},
        {"account": "<script>"},
        {"fit_id": "<script>"},
        {"unit": "<script>", "relation": "<script>"},
        {"public": {"features": {"<script>": "in <script>"}}},
        {"shares": {"<script>": {"missing": [0.5, 0.1]}}},
        {"edits": ("<script>",), "digests": {"<script>": "<script>"}},
        {"warnings": ("<script>",), "build": {"<script>": "<script>"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_report_escapes_html(foreign, report):
    told = replace(report, **foreign)
    for text in (told._repr_html_(), told.to_html()):
        assert "<script>" not in text
        assert "&lt;script&gt;" in text


def test_report_shows_characters_that_would_not_be_seen(report):
    """A label may not move the cursor of a terminal, make a line of its own, or turn the words after it around."""
    told = replace(report, public={"a\n!!! b": "c\x1b[2Jd\u202ee"}, account="f\rg")
    for text in (str(told), told.to_html()):
        assert not {"\x1b", "\u202e", "\r"} & set(text)
        assert "\n!!!" not in text
        assert "c�[2Jd�e" in text


def words_of(text):
    """A text without its line breaks, its rules and marks of HTML."""
    return " ".join(html.unescape(re.sub("<[^>]*>|--+", " ", text)).split())


def test_report_says_first_what_is_promised_to_whom(report):
    for text in (str(report), report._repr_html_(), report.to_html()):
        said = words_of(text[text.index("What is promised") :])
        assert said.startswith("What is promised Whoever sees this model, its file or this report")
        assert "about any one row (any one person, if each has at most one row)" in said
        assert "more than 2.72 times as likely" in said  # e^1
        assert "except with a probability of 1e-06" in said
        assert "charged no ledger" in said
    unit = replace(report, unit="row", relation="add or remove all rows of one 'row'", account="a")
    said = words_of(str(unit))
    assert "any one 'row' (all rows that have one value in this column)" in said
    assert "charged to account 'a'" in said
    assert "except with" not in words_of(str(replace(report, pure=True, delta=0.0)))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_report_bounds_a_guess(epsilon, report):
    """The best guess between two equally likely neighbours is right with half of one plus their total variation."""
    mu = accounting.mu_of(epsilon, 1e-6)
    total_variation = accounting.delta_of(mu, 0.0)  # δ at ε = 0
    gaussian = replace(report, epsilon=epsilon, mu=mu)
    pure = replace(gaussian, pure=True, mu=accounting.mu_of_pure(epsilon), delta=0.0, slack=0.0)
    for told, best in ((gaussian, 0.5 + total_variation / 2), (pure, 1 / (1 + math.exp(-epsilon)))):
        (stated,) = re.findall("right at most ([0-9.]+) %", words_of(str(told)))
        assert 100 * best <= float(stated) <= 100 * best + 0.11
    assert "times as likely" in str(replace(report, epsilon=1e4, mu=1e3))  # nothing overflows


def test_report_lists_mappings_last_and_counts_long_ones(report):
    codes = {f"code {k}": f"group {k % 3}" for k in range(201)}
    public = report.public | {"mappings": {"zip": {"10115": "east"}, "icd": codes}}
    told = replace(report, public=public, digests={"schema": "0123"})
    for whole in (str(told), html.unescape(told.to_html())):
        text = " ".join(whole.partition("What this report is not")[2].split())
        assert "east" in text
        assert "10115" in text
        assert "201 values in 3 groups, which the schema lists (SHA-256 0123)" in text
        assert "code 7" not in text
    assert "code 200" in told.to_json()


def test_report_leaves_nothing_out(report):
    """Every fact is in the text, the notebook's part, the page and the JSON, however many and however long they are."""
    labels = [f"label number {k} of a long list" for k in range(250)]
    told = replace(
        report,
        public={"features": {f"feature {k}": f"one of {labels}" for k in range(3)}},
        digests={"fit": "ab" * 32, "model": "cd" * 32},
        edits=("income: clamped to [-1, 1]",),
        build={"numpy": "2.4.6"},
        account="people-2026",
        loss="log_loss",
    )
    for text in (str(told), told._repr_html_(), told.to_html(), told.to_json()):
        said = words_of(text)
        for fact in (
            *labels, "feature 2", "ab" * 32, "cd" * 32, "income: clamped to [-1, 1]", "2.4.6", "people-2026",
            "log_loss", "the cluster is trusted", "candidates come from public bounds", "add or remove one row",
            "Whoever sees this model",
        ):  # fmt: skip
            assert fact in said
    assert {"promise", "epsilon", "receipts", "digests", "edits"} <= set(json.loads(told.to_json()))
    assert "<details" not in told.to_html()  # a page on paper has nothing to click on
    assert "none" in words_of(str(report)).partition("Changes after the fit")[2][:40]


def test_report_is_told_as_text_within_its_width(report):
    assert max(map(len, str(report).splitlines())) <= WIDTH


def test_report_has_no_field_for_rows():
    assert not {"n", "rows", "n_rows", "count", "counts"} & {f.name for f in fields(PrivacyReport)}


@pytest.fixture
def pure_report(report):
    """A report of ε-differential privacy: counts by Laplace noise, a choice, leaves by Laplace noise."""
    labels, by = ["bins", "splits 1/1", "leaves 1/1"], ["laplace", "choice", "laplace"]
    receipts = tuple(
        replace(r, label=label, mechanism=mechanism)
        for r, label, mechanism in zip(report.receipts, labels, by, strict=True)
    )
    return replace(
        report,
        receipts=receipts,
        delta=0.0,
        pure=True,
        loss="log_loss; a row's gradient is at most 0.5, by a clip (1 without)",
        signal=("leaves: the noise on the sum of one leaf weighs as much as 7 rows.",),
    )


def test_pure_report_promises_no_delta(pure_report):
    text = str(pure_report)
    assert "(1, 0)-differential privacy, pure" in text
    assert "share of ε %" in text
    assert "by a clip" in text
    assert "weighs as much as 7 rows" in text
    assert "zCDP" not in text
    assert "μ² %" not in text
    assert "weighs as much as 7 rows" in pure_report._repr_html_()
    assert PrivacyReport.from_dict(json.loads(json.dumps(pure_report.to_dict()))) == pure_report


def test_report_compares_with_a_schedule_fixed_in_advance(pure_report):
    assert "compare " not in str(pure_report)
    found = {"gdp": 0.6, "pld": 0.4123, "basic": 0.5}
    told = replace(pure_report, compared=found, compared_delta=1e-6)
    for text in map(words_of, (str(told), told._repr_html_())):
        assert "at delta=1e-06 (a public constant), were these releases a schedule" in text
        assert "epsilon=0.412 by PLD, 0.5 by basic composition, 0.6 by GDP;" in text
        assert "not the guarantee" in text
    assert "at delta=1e-06, were" in words_of(str(replace(told, pure=False)))
    assert PrivacyReport.from_dict(json.loads(json.dumps(told.to_dict()))) == told


def test_report_of_before_the_comparison_loads(pure_report):
    saved = json.loads(json.dumps(pure_report.to_dict()))
    del saved["compared"], saved["compared_delta"]
    assert PrivacyReport.from_dict(saved) == pure_report
    for wrong in (3, {"pld": None}, {"pld": "much"}):
        with pytest.raises(StructureError, match="malformed"):
            PrivacyReport.from_dict(saved | {"compared": wrong})


def test_no_guarantee_is_stated_as_a_stronger_one(report):
    """Nor are public bounds, as they were declared, those of another schema."""
    public = {"bounds": [1e9, 1e9 + 100]}
    text = str(replace(report, epsilon=1.0000004, delta=1.0000004e-6, public=public))
    assert "(1.0000004, 1.0000004e-06)-differential privacy" in text
    assert "except with a probability of 1.0000004e-06" in " ".join(text.split())
    assert "[1e+09, 1000000100]" in text


def test_noise_is_stated_by_mechanism(pure_report):
    """Laplace noise of scale Δ/ε has standard deviation √2·Δ/ε; a choice adds none."""
    first, choice, last = pure_report.charges()
    assert [c["mechanism"] for c in (first, choice, last)] == ["laplace", "choice", "laplace"]
    assert first["noise"] == pytest.approx(2**0.5 * 30)
    assert choice["noise"] is None
    assert last["noise"] == first["noise"]
    rows = {line.split()[0]: line.split() for line in str(pure_report).splitlines() if line}
    assert rows["splits"][-3:] == ["choice", "33.33", "–"]


def test_the_old_name_of_deviations_is_read(report):
    data = report.to_dict()
    old = {("mends" if name == "deviations" else name): value for name, value in data.items()}
    assert len(report.deviations) > 0
    assert PrivacyReport.from_dict(old).to_dict() == data
