"""Losses by name and value: the targets they serve, their options, and what they refuse."""

import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpgb_dask import losses
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import (
    GRAD_ONE,
    LINKS_OF,
    LOSSES,
    Huber,
    LogLoss,
    Loss,
    OutsideLoss,
    Poisson,
    Quantile,
    SquaredError,
)

KINDS = ("binary", "multiclass", "numeric")


def n_scores(kind):
    return 3 if kind == "multiclass" else 1


@pytest.mark.parametrize("name", LOSSES)
def test_losses_have_scikit_learns_names_and_serve_what_they_say(name):
    loss = losses.get(name)
    assert loss.name == name
    assert losses.get(loss) is loss
    assert hash(loss) == hash(losses.get(name))
    for kind in KINDS:
        if kind in loss.kinds:
            bounded = loss.bounded(0.0, 9.0)
            gradient = bounded.gradient(kind, n_scores(kind))
            assert kind in gradient.kinds
            assert bounded.link(kind) in LINKS_OF[kind]
            assert gradient.max_abs <= GRAD_ONE  # contracts/plan.py: packed sums rest on it
        else:
            with pytest.raises(PlanError, match=f"does not serve a {kind} target"):
                loss.gradient(kind, n_scores(kind))


@pytest.mark.parametrize("name", LOSSES)
def test_pages_name_each_loss(name):
    made, docs = type(losses.get(name)).__name__, Path(__file__).parents[2] / "docs"
    rows = [
        row for row in (docs / "recipes.md").read_text("utf-8").splitlines() if row[:3] == "| `"
    ]
    assert any(f"`{name}`" in row or f"`{made}(" in row for row in rows), (
        f"docs/recipes.md, table of losses: add a row | `{name}` | target | a row's gradient |"
    )
    line = f"::: dpgb_dask.losses.{made}"
    assert line in (docs / "api" / "losses.md").read_text("utf-8").splitlines(), (
        f"docs/api/losses.md: add the line {line}"
    )


def test_every_loss_of_the_folder_is_in_the_table():
    """A file of a loss that is not imported, or whose name is taken, fails here."""
    for module in pkgutil.iter_modules(losses.__path__, "dpgb_dask.losses."):
        for made in vars(importlib.import_module(module.name)).values():
            if isinstance(made, type) and issubclass(made, Loss) and made.__module__ == module.name:
                if made in (Loss, OutsideLoss):
                    continue
                assert made in map(type, LOSSES.values()), (
                    f"losses/__init__.py: add the line from {module.name} import {made.__name__} as {made.__name__};"
                    f" its name must be its own"
                )
                assert getattr(losses, made.__name__) is made
    assert list(LOSSES) == sorted(LOSSES)


def test_a_loss_by_name_and_option():
    assert losses.parse("huber:0.2") == Huber(0.2)
    assert losses.parse("quantile:0.9") == Quantile(0.9)
    assert losses.parse("poisson") == Poisson()
    for text in ("poisson:1", "nothing:1", "huber:much", "huber:", "huber:2", "nothing"):
        with pytest.raises(PlanError, match=r"loss=|delta="):
            losses.parse(text)


def test_default_losses():
    assert losses.default_loss("binary") == losses.default_loss("multiclass") == LogLoss()
    assert losses.default_loss("numeric") == SquaredError()


@pytest.mark.parametrize("bad", ["log-loss", "", 5, None, object()])
def test_what_is_no_loss_is_refused(bad):
    with pytest.raises(PlanError, match="Choose one of"):
        losses.get(bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Huber(0.0), lambda: Huber(1.1), lambda: Huber(True), lambda: Huber(float("nan")), lambda: Quantile(0.0),
        lambda: Quantile(1.0), lambda: Quantile("half"),
    ],
)  # fmt: skip
def test_options_of_losses_are_checked_where_they_are_made(make):
    with pytest.raises(PlanError, match="must be in"):
        make()


def test_poisson_needs_a_target_that_is_never_negative():
    with pytest.raises(PlanError, match="never negative"):
        Poisson().bounded(-1.0, 4.0)
    with pytest.raises(PlanError, match="bounds"):
        Poisson().gradient("numeric", 1)
    assert Poisson().bounded(0.0, 4.0).gradient("numeric", 1).base == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Huber, r"loss=Huber is a class: give a value of it, as in Huber\(\)"),
        ("huber:0.2", r"the command line's. In Python, give a value: Huber\(0.2\)"),
        ("log_cosh:0.1", "that form is the command line's"),
        ("reg:squarederror", r"is unknown\. Choose one of .* Did you mean 'squared_error'"),
        ("count:poisson", r"is unknown\. Choose one of .* Did you mean 'poisson'"),
    ],
)
def test_another_form_of_a_loss_is_refused_with_the_way_out(given, told):
    with pytest.raises(PlanError, match=told):
        losses.get(given)


def test_the_command_line_names_every_option():
    assert losses.options_in_words() == "huber:0.1 and quantile:0.5"
    for text in losses.options_in_words().split(" and "):
        assert losses.parse(text) == LOSSES[text.split(":")[0]]


@pytest.mark.parametrize("missing", ["name", "kinds"])
def test_a_loss_without_name_or_kinds_is_told(missing):
    given = {"name": "mine", "kinds": ("numeric",)}
    del given[missing]
    body = given | {"__annotations__": dict.fromkeys(given, object)}
    made = dataclass(frozen=True)(type("Unfinished", (Loss,), body))
    with pytest.raises(PlanError, match=f"{missing}=None"):
        losses.get(made())
