"""The report says what was charged and shouts when nothing is guaranteed."""

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
