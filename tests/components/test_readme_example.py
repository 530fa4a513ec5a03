"""The worked example of the components' README runs, and passes the checks of every recipe."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from every_component.test_neighbours import check_neighbours
from every_component.test_recipes import run
from neighbours import SCHEMAS

from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.errors import PlanError

FOLDER = (
    Path(__file__).parents[2] / "dpgb_dask" / "components"
)  # an installed package has no README
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example():
    """What the one block of Python defines, after it ran."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    namespace = {"__name__": "example"}
    exec(compile(code, "README.md", "exec"), namespace)
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


def test_example_refuses_bad_options(example):
    with pytest.raises(PlanError, match="least=0"):
        example["SignStep"](least=0)


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (FOLDER / target).exists(), target
    for name in re.findall(r"`(\w+\.py)`", README):
        assert (FOLDER / name).exists() or (FOLDER.parent / name).exists(), name
