"""``demo``: its rows, its model, and what it replaces."""

import dask
import numpy as np
import pytest
from cli_parts import BUDGET, run

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.cli.demo import DEMO_SCHEMA, demo_block, demo_data


def test_the_demo_replaces_its_own_model_alone(place, capsys):
    for text in ("a letter", "{}", None):
        if text is None:
            run(
                "fit",
                place / "people.csv",
                "--schema",
                place / "schema.json",
                "--out",
                place / "m.json",
                *BUDGET,
            )
        else:
            (place / "m.json").write_text(text)
        kept = (place / "m.json").read_text()
        capsys.readouterr()
        assert run("demo", "--rows", 2000, "--workers", 1, "--out", place / "m.json") == 1
        assert "no model of the demo" in capsys.readouterr().err
        assert (place / "m.json").read_text() == kept
        (place / "m.json").unlink()


def test_demo_data_are_chunked_and_repeat():
    X, y = demo_data(25_000)
    assert X.shape == (25_000, 10)
    assert X.chunks == ((10_000, 10_000, 5_000), (10,))
    block = demo_block(5_000, 2)
    np.testing.assert_array_equal(X.blocks[2].compute(), block[:, :10])
    np.testing.assert_array_equal(y.blocks[2].compute(), block[:, 10])
    assert 0.2 < float(y.mean().compute()) < 0.45
    schema = Schema.from_dict(DEMO_SCHEMA)
    diagnosis = schema.check(X, y)
    assert diagnosis.bad_targets == 0
    assert all(c.below == c.above == c.unknown == c.fractional == 0 for c in diagnosis.columns)


@pytest.mark.slow
def test_demo_writes_a_private_model(tmp_path, capsys):
    out = tmp_path / "demo.json"
    with dask.config.set(scheduler=None):
        assert run("demo", "--rows", 20_000, "--workers", 1, "--out", out, "--quiet") == 0
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
