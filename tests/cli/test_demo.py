"""``demo``: its rows, its model, and what it replaces."""

from functools import partial

import dask
import pytest
from cli_parts import model_of, run

from dpgb_dask import DPGBClassifier
from dpgb_dask.cli import demo
from dpgb_dask.testing import SeededNoise


def test_the_demo_replaces_its_own_model_alone(place, capsys):
    for text in ("a letter", "{}", None):
        if text is None:
            run("fit", place / "people.csv", *model_of(place))
        else:
            (place / "m.json").write_text(text)
        kept = (place / "m.json").read_text()
        capsys.readouterr()
        assert run("demo", "--rows", 2000, "--workers", 1, "--out", place / "m.json") == 1
        assert "no model of the demo" in capsys.readouterr().err
        assert (place / "m.json").read_text() == kept
        (place / "m.json").unlink()


def test_a_demo_of_too_few_rows_ends_as_a_fit_of_them(tmp_path, capsys, monkeypatch):
    seeded = partial(DPGBClassifier, noise=SeededNoise(0))
    monkeypatch.setattr(demo, "DPGBClassifier", seeded)
    with dask.config.set(scheduler=None):
        options = ("--rows", 10, "--workers", 1, "--out", tmp_path / "demo.json", "--quiet")
        assert run("demo", *options) == 4
    assert capsys.readouterr().err.startswith("dpgb-dask: FewRowsWarning: ")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("--processes",)])
def test_demo_writes_a_private_model(processes, tmp_path, capsys):
    out = tmp_path / "demo.json"
    with dask.config.set(scheduler=None):
        options = ("--rows", 20_000, "--workers", 1, "--out", out, "--quiet")
        assert run("demo", *options, *processes) == 0
    printed = capsys.readouterr().out
    for words in (
        "AUC on held-out rows",
        "no privacy",
        "Privacy report",
        "price of the fit",
        str(out),
    ):
        assert words in printed
    assert DPGBClassifier.load(out).privacy_report_.private
