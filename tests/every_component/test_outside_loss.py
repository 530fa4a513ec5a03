"""A loss in a file outside the package: every recipe that can serve it trains it; workers get no more than a table."""

import importlib.util
import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from neighbours import SCHEMAS, some_rows
from outside.expectile import Expectile, Exponential
from sklearn.base import clone
from thinned import thinned

import dpgb_dask
from dpgb_dask import DPGBClassifier, DPGBRegressor, Ledger, losses, recipes
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import GradientQuery
from dpgb_dask.errors import PlanError, ResumeError, StructureError
from dpgb_dask.estimators import load
from dpgb_dask.losses import (
    GRAD_ONE,
    LOSSES,
    AbsentLoss,
    Huber,
    LabelGradient,
    Loss,
    OutsideLoss,
    SquaredError,
    table_gradient,
    table_points,
)
from dpgb_dask.private.reading.chunks import Reading
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.released import export
from dpgb_dask.released.export import model_to_dict
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training.fit import digest, facts

OURS = {"numeric": Expectile(0.9), "binary": Exponential()}
ABLE = [
    (name, kind)
    for kind in OURS
    for name, plan in sorted(recipes.RECIPES.items())
    if kind in plan.kinds and set(LOSSES) <= set(plan.losses)
]
UNABLE = [
    (name, kind)
    for kind in OURS
    for name, plan in sorted(recipes.RECIPES.items())
    if kind in plan.kinds and (name, kind) not in ABLE
]


def estimator(kind, **options):
    asked = {
        "epsilon": 8.0, "delta": 1e-6, "schema": SCHEMAS[kind], "noise": SeededNoise(1), "random_state": 2,
        "loss": OURS[kind],
    }  # fmt: skip
    return (DPGBRegressor if kind == "numeric" else DPGBClassifier)(**(asked | options))


def brief(name, kind):
    return recipes.get(name, kind=kind).brief()


def chunked(kind, n):
    x, y = some_rows(kind)
    codes = np.unique(x[:, 2].astype(str), return_inverse=True)[1]
    x = np.column_stack([x[:, :2].astype(float), codes])
    y = y if kind == "numeric" else np.unique(y.astype(str), return_inverse=True)[1]
    return da.from_array(x, chunks=(n, 3)), da.from_array(y, chunks=n)


def plain_schema(kind):
    features = {"a": (0.0, 1.0), "b": (-4.0, 4.0), "c": [0.0, 1.0, 2.0]}
    if kind == "numeric":
        return dpgb_dask.Schema(features, target_bounds=(-2.0, 2.0))
    return dpgb_dask.Schema(features, classes=[0, 1])


# ---- it trains


def test_most_recipes_serve_a_loss_from_outside():
    assert {"dp-ebm", "fdp-tr-newton", "dpboost", "dp-xgboost"} <= {name for name, _ in ABLE}
    assert len(ABLE) > len(UNABLE)
    # a model of log-odds and forests of means ask no loss for its gradient
    assert {(name, "binary") for name in ("auto", "dp-rf", "fdp-hist-averaging")} <= set(UNABLE)


@pytest.mark.parametrize(("name", "kind"), thinned(ABLE, every=6))
def test_every_able_recipe_trains_and_reports_it(name, kind, monkeypatch):
    made, asked = [], []
    own, ask = OutsideLoss.integer_gradient, LocalRounds.ask
    monkeypatch.setattr(
        OutsideLoss, "integer_gradient", lambda *args: made.append(own(*args)) or made[-1]
    )
    monkeypatch.setattr(LocalRounds, "ask", lambda *args: asked.append(args[2]) or ask(*args))
    fitted = estimator(kind, recipe=brief(name, kind)).fit(*some_rows(kind))
    gradients = [query.gradient for query in asked if isinstance(query, GradientQuery)]
    # clamped to the scores that the model can reach, a table has no other entries
    its_own = [
        any(np.isin(getattr(g, "table", g), getattr(one, "table", one)).all() for one in made)
        for g in gradients
    ]
    counted = [type(g) is LabelGradient and not g.average for g in gradients]  # of rows alone
    assert any(its_own)
    assert all(np.logical_or(its_own, counted))
    report = fitted.privacy_report_
    assert report.loss.startswith(f"{OURS[kind].name}; a row's gradient is at most")
    # where it is clipped, what it would be without is the author's word, and the report says whose
    own_word = report.loss.endswith(" without, as the loss itself says)")
    assert own_word == ("by a clip" in report.loss)
    assert np.isfinite(fitted.predict_proba(some_rows(kind)[0]) if kind == "binary" else 0).all()
    other = estimator(kind, recipe=brief(name, kind), loss=None).fit(*some_rows(kind))
    assert model_to_dict(fitted.model_) != model_to_dict(other.model_)


def test_a_plan_that_names_it_serves_it():
    plan = replace(recipes.RECIPES["auto"], name="mine", losses=("exponential",))
    assert recipes.get(plan, kind="binary", loss=losses.get(Exponential())) == plan
    with pytest.raises(PlanError, match=r"expectile.*'fdp-tr-newton'"):
        recipes.get(plan, kind="numeric", loss=losses.get(Expectile()))


@pytest.mark.parametrize(("name", "kind"), UNABLE)
def test_other_recipes_refuse_it_and_name_able_ones(name, kind):
    with pytest.raises(PlanError, match=rf"{OURS[kind].name}.*'fdp-tr-newton'"):
        estimator(kind, recipe=name).fit(*some_rows(kind))


def test_an_expectile_lies_where_it_should():
    """With little noise, predictions part the distances as the expectile says, where no gradient is clipped."""
    rng = np.random.default_rng(0)
    x, y = rng.random((20000, 1)), 2 + rng.exponential(0.2, 20000).clip(0, 0.5)
    schema = dpgb_dask.Schema({"a": (0.0, 1.0)}, target_bounds=(0.0, 4.0))
    for expectile in (0.2, 0.5, 0.9):
        reg = estimator(
            "numeric", schema=schema, loss=Expectile(expectile), recipe="fdp-tr-newton", epsilon=50.0,
            n_estimators=40, max_depth=1, columns="position",
        ).fit(x, y)  # fmt: skip
        off = y - reg.predict(x)
        above, below = off[off > 0].sum(), -off[off < 0].sum()
        assert expectile * above / ((1 - expectile) * below) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("kind", OURS)
def test_chunks_change_nothing(kind):
    models = [
        model_to_dict(
            estimator(kind, schema=plain_schema(kind), recipe=brief("fdp-tr-newton", kind), columns="position")
            .fit(*chunked(kind, n)).model_
        )
        for n in (600, 170, 41)
    ]  # fmt: skip
    assert models[0] == models[1] == models[2]


def elsewhere():
    """The expectile of a module that no worker process can import."""
    path = Path(__file__).parents[1] / "outside" / "expectile.py"
    spec = importlib.util.spec_from_file_location("only_in_this_process", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Expectile(0.9)


def test_workers_train_it_without_its_class():
    options = {
        "schema": plain_schema("numeric"),
        "recipe": brief("fdp-tr-newton", "numeric"),
        "loss": elsewhere(),
        "columns": "position",
    }
    x, y = chunked("numeric", 100)
    alone = estimator("numeric", **options).fit(x.compute(), y.compute())
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        with pytest.raises(ModuleNotFoundError):
            client.submit(__import__, "only_in_this_process").result()
        there = estimator("numeric", **options).fit(x, y)
        predicted = there.predict(x).compute()
    assert model_to_dict(there.model_) == model_to_dict(alone.model_)
    np.testing.assert_array_equal(predicted, alone.predict(x.compute()))


def test_rows_are_read_without_the_loss():
    shape = Shape(schema=SCHEMAS["numeric"], loss=Expectile(0.9))
    reading = Reading(shape, bytes(32))
    assert reading.shape == Shape(schema=SCHEMAS["numeric"])
    assert b"expectile" not in pickle.dumps(reading)


# ---- it is saved

LOADED = """
import sys
import numpy as np
from dpgb_dask.errors import PlanError
from dpgb_dask.estimators import load
model = load(sys.argv[1])
x = np.array([[0.1, 2.0, "x"], [0.9, -1.0, "z"], [0.5, 0.0, "y"]], dtype=object)
print([float(v) for v in model.predict(x)])
print(model.loss.name, dict(model.loss.options), model.privacy_report_.loss)
model.save(sys.argv[2])
assert not any("expectile" in name or "outside." in name for name in sys.modules if "dpgb" not in name)
try:
    model.fit(x, [0.0, 1.0, 0.5])
except PlanError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_saved_model_predicts_where_the_class_is_not(tmp_path):
    x = np.array([[0.1, 2.0, "x"], [0.9, -1.0, "z"], [0.5, 0.0, "y"]], dtype=object)
    reg = estimator("numeric", recipe=brief("fdp-tr-newton", "numeric"), columns="position")
    reg.fit(*some_rows("numeric"))
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    reg.save(first)
    there = subprocess.run(
        [sys.executable, "-P", "-c", LOADED, str(first), str(second)],
        capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PYTHONPATH": str(Path(dpgb_dask.__file__).parents[1]), "PATH": ""},
    ).stdout.splitlines()  # fmt: skip
    assert json.loads(there[0]) == reg.predict(x).tolist()
    assert there[1] == f"expectile {{'expectile': 0.9}} {reg.privacy_report_.loss}"
    assert there[2].startswith("loss='expectile' is of a class outside this library")
    assert load(second).loss == load(first).loss == AbsentLoss("expectile", (("expectile", 0.9),))


def test_options_of_a_loss_survive_a_file():
    for loss in (
        OutsideLoss(Expectile(0.3)),
        Expectile(0.3),
        AbsentLoss("mine", (("at", (1, 2)),)),
    ):
        again = losses.from_json(json.loads(json.dumps(losses.to_json(loss))))
        named = (
            loss if isinstance(loss, AbsentLoss) else AbsentLoss(loss.name, (("expectile", 0.3),))
        )
        assert again == named
        assert hash(again) == hash(named)
    for bad in (
        {"outside": 3, "options": {}},
        {"outside": "a"},
        {"outside": "a", "options": 3},
        {},
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            losses.from_json(bad)


def test_a_malformed_loss_of_a_file_is_refused():
    assert export.loss_of_json({"outside": "a", "options": {}}, "f") == AbsentLoss("a")
    for bad in (
        {"outside": "a", "options": 3},
        {"outside": "huber"},
        {"outside": 3, "options": {}},
    ):
        with pytest.raises(StructureError, match="its loss"):
            export.loss_of_json(bad, "f")


# ---- it is checked


def test_a_fit_is_another_one_with_another_option():
    plan = recipes.get("fdp-tr-newton", kind="numeric")
    shapes = [Shape(schema=SCHEMAS["numeric"], loss=Expectile(q)) for q in (0.8, 0.8, 0.9)]
    first, again, other = (digest(plan, shape) for shape in shapes)
    assert first == again
    assert first != other
    assert digest(plan, Shape(schema=SCHEMAS["numeric"], loss=Expectile(0.8))) == first
    assert "0.8" in repr(shapes[0].loss)
    assert "0x" not in repr(shapes[0].loss)  # no address: a resumed fit says the same


class Steeper(Expectile):
    """Another class under the same name and options."""

    def integer_gradient(self, asked):
        """Return twice the slope of absolute residuals."""
        residual = table_points("numeric")
        return table_gradient(asked, np.sign(residual), np.ones_like(residual))


def test_a_fit_is_another_one_with_another_class():
    plan = recipes.get("fdp-tr-newton", kind="numeric")
    first, other = (
        Shape(schema=SCHEMAS["numeric"], loss=loss) for loss in (Expectile(0.8), Steeper(0.8))
    )
    assert repr(first.loss) == repr(other.loss)
    assert digest(plan, first) != digest(plan, other)
    told = [facts(plan, shape) for shape in (first, other)]
    assert {name for name in told[0] if told[0][name] != told[1][name]} == {"gradients of the loss"}


def test_a_fit_is_resumed_with_the_same_options_alone(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=9.0, delta=1e-5)
    asked = {
        "recipe": brief("fdp-tr-newton", "numeric"),
        "noise": None,
        "ledger": ledger,
        "account": "people",
    }
    rows = some_rows("numeric")

    def stop(_label, done, _total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        estimator("numeric", **asked, callbacks=[stop]).fit(*rows)
    (fit_id,) = {entry.fit_id for entry in ledger.history("people") if entry.fit_id}
    with pytest.raises(ResumeError, match="loss"):
        estimator("numeric", **(asked | {"loss": Expectile(0.8)})).fit(*rows, resume=fit_id)
    fitted = estimator("numeric", **asked).fit(*rows, resume=fit_id)
    assert fitted.fit_id_ == fit_id


def test_scikit_learn_copies_it():
    reg = clone(estimator("numeric"))
    assert reg.loss == Expectile(0.9)
    assert pickle.loads(pickle.dumps(reg)).get_params()["loss"] == Expectile(0.9)


@dataclass(frozen=True, slots=True)
class Mine(Loss):
    """A loss of which everything can be said otherwise."""

    told: tuple = ()
    name: str = "mine"
    kinds: tuple[str, ...] = ("numeric",)

    @property
    def largest_slope(self):
        """As it is told."""
        return dict(self.told).get("slope", 1.0)

    def link(self, kind):  # noqa: ARG002
        """As it is told."""
        return dict(self.told).get("link", "identity")

    def bounded(self, _low, _high):
        """Under the name that it is told."""
        return replace(self, name=dict(self.told).get("bounded", self.name))


DEEP = ()
for _ in range(3000):
    DEEP = (DEEP,)


class Gives(Mine):
    """A loss whose gradient a test decides."""

    made = SquaredError().gradient("numeric", 1)

    def integer_gradient(self, _asked):
        """Return what the class holds."""
        return self.made


@dataclass
class Changing(Loss):
    """Not frozen: what was checked may not be what is asked."""

    name: str = "changing"
    kinds: tuple[str, ...] = ("numeric",)


class OtherHuber(Huber):
    """A known loss that overrides its gradient, under the known name."""

    def integer_gradient(self, asked):
        """Return that of a wider loss."""
        return SquaredError().integer_gradient(asked)


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (Mine(name="two words"), "must be a word"),
        (Mine(name=None), "must be a word"),
        (Mine(name="huber"), "is one of the library's: give yours another"),
        (OtherHuber(), "is one of the library's: give yours another"),
        (Mine(kinds=("numeric", "vector")), "must be of"),
        (Mine(kinds=()), "must be of"),
        (Mine(told=(("link", "logit"),)), "no link of a numeric target"),
        (Mine(told=(("link", object()),)), "no link of a numeric target"),
        (Mine(told=(("bounded", "huber"),)), "another name"),
        (Mine(told=(("bounded", "yours"),)), "another name"),
        (Mine(told=(("slope", float("nan")),)), "finite number"),
        (Mine(told=(("slope", "much"),)), "must be a finite number"),
        (Mine(told=(("option", float("nan")),)), "told of a loss must hold finite numbers"),
        (Mine(told=(("option", 10**5000),)), "told of a loss must hold finite numbers"),
        (Mine(told=(("option", "\ud800"),)), "told of a loss holds a text"),
        (Mine(told=(("option", DEEP),)), "told of a loss is a tuple"),
        (Mine(told=(("option", np.zeros(3)),)), "told of a loss is a ndarray"),
        (Changing(), "make it a frozen dataclass"),
        (Exponential(), "does not (serve|fit) a numeric target"),
    ],
)
def test_what_no_report_could_hold_is_refused_before_the_charge(loss, match, tmp_path):
    check_refused(loss, match, tmp_path)


class Text(str):
    """A text of the user's own class, which prints as it is."""

    __slots__ = ()

    def __str__(self):
        return self


class Link(str, Enum):  # noqa: UP042 - a StrEnum prints its value
    """Members are equal to a link, and print otherwise."""

    IDENTITY = "identity"


class Share(float):
    """A number of the user's own class."""


class Odd(Mine):
    """A loss that gives what a test decides as link, slope and start."""

    given = None
    started = 0.0
    largest_slope = Share(2)

    def link(self, _kind):
        """As given."""
        return self.given

    def start(self, _mean):
        """As given."""
        return self.started


class Nan(float):
    """A number that compares as one and converts to none."""

    def __float__(self):
        return float("nan")


@pytest.mark.parametrize("link", [Text("identity"), Link.IDENTITY])
def test_no_object_of_the_users_classes_is_kept(link):
    odd = type("Odd", (Odd,), {"given": link})
    loss = OutsideLoss(odd(name=Text("mine"), kinds=(Text("numeric"),)))
    assert loss.links == ("identity",)
    assert {type(text) for text in (loss.name, *loss.kinds, *loss.links)} == {str}
    assert type(loss.slope) is float


@pytest.mark.parametrize(
    "start", [np.complex128(1), 10**400, Nan(1.0), np.longdouble("1e4000"), True, None]
)
def test_a_start_score_is_a_finite_number(start):
    loss = OutsideLoss(type("Odd", (Odd,), {"given": "identity", "started": start})())
    with pytest.raises(PlanError, match="start of a loss must be a finite number"):
        loss.start(0.0)


def test_other_names_make_other_losses():
    """A class that derives from a known loss under a name of its own is an outside one, never the known one."""
    loss = losses.get(OtherHuber(name="wide"))
    assert type(loss) is OutsideLoss
    assert loss.gradient("numeric", 1) == SquaredError().gradient("numeric", 1)


class Wide(type(SquaredError().gradient("numeric", 1))):
    """A gradient of a class that no kernel knows, which says that its bound is small."""

    l2_squared = 1


GIVEN = SquaredError().gradient("numeric", 1)
BAD_GRADIENTS = {
    "a class that derives from a known one": (
        Wide(GIVEN.clip_steps, GIVEN.hess_steps),
        "no gradient that the kernels know",
    ),
    "an object": (object(), "no gradient that the kernels know"),
    "nothing": (None, "no gradient that the kernels know"),
    "another number of classes": (
        LOSSES["log_loss"].gradient("multiclass", 3),
        "n_scores=3, where n_scores=1",
    ),
    "another target's": (LOSSES["log_loss"].gradient("binary", 1), "does not fit a numeric target"),
    "more steps than a packed sum takes": (replace(GIVEN, clip_steps=1 << 30), "above"),
}


@pytest.mark.parametrize("what", BAD_GRADIENTS)
def test_a_gradient_that_kernels_do_not_take_is_refused_before_the_charge(what, tmp_path):
    made, match = BAD_GRADIENTS[what]
    loss = type("Gives", (Gives,), {"made": made})()
    check_refused(loss, match, tmp_path)


def test_a_stage_that_needs_a_count_gets_one():
    loss = OutsideLoss(
        type("Gives", (Gives,), {"made": replace(GIVEN, hess_steps=GRAD_ONE // 2)})()
    )
    assert loss.gradient("numeric", 1, second="count") == replace(GIVEN, hess_steps=GRAD_ONE // 2)
    with pytest.raises(PlanError, match="gives no count"):
        loss.gradient("numeric", 1, second="count", hess_scale=1.0)


def check_refused(loss, match, folder):
    ledger = Ledger(f"sqlite:///{folder}/budget.db")
    ledger.open_account("people", epsilon=3.0, delta=1e-5)
    asked = {"noise": None, "ledger": ledger, "account": "people", "epsilon": 1.0}
    with pytest.raises(PlanError, match=match):
        estimator("numeric", loss=loss, recipe="fdp-tr-newton", **asked).fit(*some_rows("numeric"))
    assert [entry.kind for entry in ledger.history("people")] == ["OPEN"]


@pytest.mark.parametrize(
    "table",
    [
        {"g": np.full(4096, np.nan), "h": np.ones(4096)},
        {"g": np.full(4096, np.inf), "h": np.ones(4096)},
        {"g": np.zeros(4096), "h": np.full(4096, -0.1)},
        {"g": np.zeros(4096), "h": np.full(4096, np.inf)},
        {"g": np.zeros(4096), "h": np.ones(7)},
        {"g": np.zeros(7), "h": np.ones(7)},
        {"g": np.zeros((2, 4096)), "h": np.ones((2, 4096))},
    ],
    ids=str,
)
def test_a_table_of_no_numbers_is_refused(table):
    asked = losses.GradientOptions(kind="numeric", n_scores=1)
    with pytest.raises(PlanError, match="table"):
        losses.table_gradient(asked, table["g"], table["h"])


def test_a_table_serves_no_several_scores():
    asked = losses.GradientOptions(kind="multiclass", n_scores=3)
    with pytest.raises(PlanError, match="a table has one score"):
        losses.table_gradient(asked, np.zeros((2, 4096)), np.ones((2, 4096)))
