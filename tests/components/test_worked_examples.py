"""The worked examples of docs/components.md and of docs/design.md run, and pass the checks of every recipe."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from every_component.test_neighbours import check_neighbours
from every_component.test_recipes import run
from neighbours import SCHEMAS

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import PRICE_ONE, QUERIES
from dpgb_dask.errors import PlanError
from dpgb_dask.testing import SeededNoise

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dpgb_dask"
COMPONENTS_PAGE = (ROOT / "docs" / "components.md").read_text(encoding="utf-8")
DESIGN_PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example():
    """What the one block of Python defines, after it ran."""
    return run_code(COMPONENTS_PAGE)


@pytest.fixture(scope="module")
def stage_example():
    """What the design's one block of Python defines: a stage, and a plan of it."""
    return run_code(DESIGN_PAGE)


def run_code(page):
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    namespace = {"__name__": "example"}
    exec(compile(code, "example", "exec"), namespace)
    return namespace


def test_example_learns_and_charges_what_it_declares(example):
    report = example["model"].privacy_report_
    assert report.recipe == "sign-trees"
    assert not report.private  # its noise is seeded
    assert report.charged > 0.999 * report.declared


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_example_passes_the_checks_of_every_recipe(example, kind):
    plan = example["SIGN_TREES"]
    state, spent, digests = run(plan, kind, PRICE_ONE, 1e4)
    assert 0 <= state.left < 100
    assert [n for _, n in spent] == [0, 60]
    assert digests == run(plan, kind, PRICE_ONE, 1e4)[2]
    trees = replace(plan.stages[-1], n_trees=3)
    check_neighbours(
        replace(plan, stages=(plan.stages[0], trees)), kind, Shape(schema=SCHEMAS[kind])
    )


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_example_of_a_stage_passes_the_checks_of_every_recipe(stage_example, kind):
    plan, shape = stage_example["IN_TURN"], Shape(schema=SCHEMAS[kind])
    state, spent, digests = run(plan, kind, PRICE_ONE, 1e4)
    assert 0 <= state.left < 100
    assert [n for _, n in spent] == [0, 2 if kind == "numeric" else 0, 40]
    assert digests == run(plan, kind, PRICE_ONE, 1e4, seed=1)[2]  # it says that it draws nothing
    brief = plan.brief()
    assert brief.demand(shape).n_queries <= 4
    check_neighbours(brief, kind, shape)


def test_example_of_a_stage_learns(stage_example):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2000, 2))
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    model = DPGBClassifier(
        recipe=stage_example["IN_TURN"], schema=Schema({"a": (-1, 1), "b": (-1, 1)}, classes=[0, 1]),
        epsilon=3.0, delta=1e-6, noise=SeededNoise(0), columns="position", n_estimators=30,
    ).fit(x, y)  # fmt: skip
    assert model.score(x, y) > 0.8
    report = model.privacy_report_
    assert len(report.receipts) == 30
    assert 0.999 * report.declared < report.charged <= report.declared
    with pytest.raises(PlanError, match="rounds=0"):
        stage_example["InTurn"](rounds=0)


def test_table_of_queries_in_the_design_is_complete():
    section = DESIGN_PAGE.split("## 10. ")[1].split("\n## ")[0]
    named = re.findall(r"\| `(\w+Query)` \|$", section, re.MULTILINE)
    assert sorted(named) == sorted(query.__name__ for query in QUERIES)


def test_example_refuses_bad_options(example):
    with pytest.raises(PlanError, match="least=0"):
        example["SignStep"](least=0)


def test_files_that_the_page_names_are_there():
    named = re.findall(r"`([\w/]+\.py)`", COMPONENTS_PAGE)
    assert len(named) > 6
    for name in named:
        places = (ROOT, PACKAGE, PACKAGE / "components")
        assert any((place / name).is_file() for place in places), name
