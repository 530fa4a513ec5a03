"""The report tells what was charged, and says loudly when nothing is guaranteed."""

import json
from dataclasses import fields, replace

import pytest

from dpgb_dask.errors import StructureError
from dpgb_dask.released.report import PrivacyReport


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


def test_report_survives_json(report):
    back = PrivacyReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert back == report
    with pytest.raises(StructureError, match="malformed"):
        PrivacyReport.from_dict({"epsilon": 1})


def test_report_escapes_html(report):
    text = replace(report, source="<script>")._repr_html_()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


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
    for text in (str(told), told._repr_html_()):
        assert "at delta=1e-06 (a public constant), were these releases a schedule" in text
        assert "epsilon=0.412 by PLD, 0.5 by basic composition, 0.6 by GDP;" in text
        assert "not the guarantee" in text
    assert "at delta=1e-06, were" in str(replace(told, pure=False))
    assert PrivacyReport.from_dict(json.loads(json.dumps(told.to_dict()))) == told


def test_report_of_before_the_comparison_loads(pure_report):
    saved = json.loads(json.dumps(pure_report.to_dict()))
    del saved["compared"], saved["compared_delta"]
    assert PrivacyReport.from_dict(saved) == pure_report
    for wrong in (3, {"pld": None}, {"pld": "much"}):
        with pytest.raises(StructureError, match="malformed"):
            PrivacyReport.from_dict(saved | {"compared": wrong})


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
