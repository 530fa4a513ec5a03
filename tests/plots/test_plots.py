"""Pictures hold the numbers of what they draw, whatever its size; no state of pyplot is left."""

import io
import itertools
import math
import pickle
import sys
from dataclasses import replace

import matplotlib as mpl
import matplotlib.style as styles
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.patches import Rectangle, StepPatch
from PIL import Image

from dpgb_dask import DPGBClassifier, DPGBRegressor, Ledger, Schema, plot_budget
from dpgb_dask.display import floored
from dpgb_dask.errors import LedgerError, PlanError, StructureError
from dpgb_dask.plots import plot_model
from dpgb_dask.plots.model import CATEGORIES, CLASSES
from dpgb_dask.plots.style import LABEL, plain, plain_term, power_of, thinned
from dpgb_dask.released.explain import Axis, GlobalExplanation, Term
from dpgb_dask.testing import SeededNoise

LONG = "a $very$ long name of something that no axis has room for"


def numeric(name="age", n=6):
    edges = np.linspace(0, 60, n + 1)
    labels = (*(f"({a:g}, {b:g}]" for a, b in itertools.pairwise(edges)), "missing")
    return Axis(name, "continuous", labels, edges, n, np.full(n + 1, 1 / (n + 1)), True)


def nominal(name="job", n=3):
    labels = (*(f"{LONG} {k}" for k in range(n)), "other", "missing")
    weights = np.arange(n + 2, 0, -1.0)
    return Axis(name, "nominal", labels, None, n + 1, weights / weights.sum(), True)


def term(*axes, n_classes=0, importance=1.0):
    rng = np.random.default_rng(len(axes) + n_classes)
    shape = tuple(len(axis.labels) for axis in axes) + ((n_classes,) if n_classes else ())
    scores = rng.normal(size=shape)
    names = tuple(axis.feature for axis in axes)
    return Term(
        "main" if len(axes) == 1 else "pair", names, axes, scores, scores - 0.5, scores + 0.25,
        importance, 0.9 * importance, 1.1 * importance,
    )  # fmt: skip


def explanation(*terms, classes=()):
    rest = Term("remainder", (), (), None, None, None, 0.1)
    intercept = np.zeros(max(len(classes), 1))
    return GlobalExplanation((*terms, rest), intercept, classes, "income", "log-odds", "none")


def panel(figure, title):
    (found,) = [axes for axes in figure.axes if axes.get_title() == title]
    return found


def offsets(axes):
    """The points of a panel, by height."""
    points = np.concatenate([line.get_xydata() for line in axes.lines if line.get_marker() == "o"])
    return points[np.argsort(points[:, 1])]


def test_a_numeric_effect_is_steps_with_its_band_and_missing_values_apart():
    shown = term(numeric())
    axes = panel(plot_model(explanation(shown)), "age")
    band, steps = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    np.testing.assert_array_equal(steps.get_data().values, shown.scores[:6])
    np.testing.assert_array_equal(steps.get_data().edges, shown.bins[0].edges)
    np.testing.assert_array_equal(band.get_data().values, shown.upper[:6])
    np.testing.assert_array_equal(band.get_data().baseline, shown.lower[:6])
    (apart,) = axes.child_axes
    bar, point = [line.get_ydata() for line in apart.lines if line.get_color() != "#8C8C8C"]
    np.testing.assert_array_equal(bar, [shown.lower[6], shown.upper[6]])
    np.testing.assert_array_equal(point, [shown.scores[6]])
    assert [label.get_text() for label in apart.get_xticklabels()] == ["missing"]
    assert axes.get_ylabel() == "log-odds"


def test_a_categorical_effect_is_points_in_order_and_other_and_missing_below():
    shown = term(nominal(n=3))
    axes = panel(plot_model(explanation(shown)), "job")
    order = np.argsort(shown.scores[:3])
    wanted = [shown.scores[4], shown.scores[3], *shown.scores[order]]
    np.testing.assert_array_equal(offsets(axes)[:, 0], wanted)
    ends = axes.collections[0].get_segments()
    by_height = sorted((s[0][1], s[0][0], s[1][0]) for s in ends)
    np.testing.assert_allclose([low for _, low, _ in by_height], np.array(wanted) - 0.5)
    np.testing.assert_allclose([high for *_, high in by_height], np.array(wanted) + 0.25)
    named = dict(zip(axes.get_yticks(), axes.get_yticklabels(), strict=True))
    assert [named[y].get_text() for y in sorted(named)][:2] == ["missing", "other"]


def test_of_many_categories_those_with_the_most_rows_are_drawn():
    shown = term(nominal(n=250))
    figure = plot_model(explanation(shown))
    axes = panel(figure, f"job\n({CATEGORIES} of 250 by share of rows)")
    np.testing.assert_array_equal(
        offsets(axes)[2:, 0], np.sort(shown.scores[:CATEGORIES])
    )  # the first have the most rows
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert max(map(len, labels)) <= 28
    assert r"\$" in labels[0]  # no formula
    figure.draw_without_rendering()


def test_a_pair_is_a_heat_map_whose_missing_values_lie_behind_a_gap():
    shown = term(numeric(n=4), nominal(n=3))
    axes = panel(plot_model(explanation(shown)), "age & job")
    (mesh,) = axes.collections
    cells = mesh.get_array()
    assert cells.shape == (6, 6)  # 5 rows and a gap; 5 columns and a gap
    drawn = np.ma.filled(cells, np.nan)[[0, 1, 2, 3, 5]][:, [0, 1, 2, 3, 5]]
    np.testing.assert_array_equal(drawn, shown.scores.T)
    assert np.isnan(np.ma.filled(cells, np.nan)[4]).all()
    assert mesh.norm.vmax == -mesh.norm.vmin == np.abs(shown.scores).max()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["0", "15", "30", "45", "60", "missing"]


@pytest.mark.parametrize(
    "n", [12, 60, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 6, 24))]
)
def test_labels_of_a_heat_map_do_not_meet(n):
    shown = [term(numeric("a", n), numeric("b", n)), term(numeric("c", n), nominal(n=n))]
    figure = plot_model(explanation(*shown))
    figure.draw_without_rendering()
    for name in ("a & b", "c & job"):
        axes = panel(figure, name)
        labels = axes.get_yticklabels()
        assert labels[-1].get_text() == "missing"
        boxes = [label.get_window_extent() for label in labels]
        for below, above in itertools.pairwise(boxes):
            assert above.y0 >= below.y1 - 0.1 * below.height  # boxes have room for descenders


def test_importances_are_bars_with_their_bands():
    terms = [term(numeric(f"f{k}"), importance=k + 1.0) for k in range(20)]
    figure = plot_model(explanation(*terms), n_terms=1)
    axes = figure.axes[0]
    assert axes.get_title() == f"importance ({21 - CATEGORIES} smaller terms left out)"
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == [k + 1.0 for k in range(20 - CATEGORIES, 20)]
    bands = [line.get_xdata().tolist() for line in axes.lines]
    assert bands == [[0.9 * width, 1.1 * width] for width in widths]


def test_classes_are_told_apart_by_colour_and_a_pair_is_of_one_class():
    # matplotlib leaves labels that are empty or begin with "_" out of a legend
    classes = (*(f"class {k}" for k in range(7)), "", "_u")
    main, pair = term(numeric(), n_classes=9), term(numeric(), numeric("b"), n_classes=9)
    main.scores[:, 2] = 0.0  # the smallest: not among those that are drawn
    figure = plot_model(explanation(main, pair, classes=classes))
    steps = [p for p in panel(figure, "age").patches if p.get_linewidth() == 1.6]
    assert len(steps) == len({p.get_edgecolor() for p in steps}) == CLASSES
    for patch in steps:
        k = classes.index(patch.get_label().strip())
        assert k != 2
        np.testing.assert_array_equal(patch.get_data().values, main.scores[:6, k])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [p.get_label() for p in steps]
    k = int(np.argmax(np.abs(pair.scores).mean((0, 1))))
    (mesh,) = panel(figure, f"age & b\nclass {classes[k]}").collections
    assert np.nanmax(np.ma.filled(mesh.get_array(), np.nan)) == pair.scores[..., k].max()


def test_terms_are_chosen_by_name_and_a_wrong_one_is_told():
    shown = explanation(term(numeric()), term(nominal()))
    figure = plot_model(shown, terms=["job"])
    assert [axes.get_title() for axes in figure.axes] == ["importance", "job"]
    for wrong in ("jop", "remainder"):
        with pytest.raises(PlanError, match=f"'{wrong}' is no term that has a picture"):
            plot_model(shown, terms=[wrong])
    assert len(plot_model(shown, n_terms=0).axes) == 1
    for options, said in (
        ({"terms": 3}, "terms=3 must be the name of a term"),
        ({"terms": [3]}, "3 is no term that has a picture"),
        ({"n_terms": 2.5}, "n_terms=2.5 must be a whole number"),
        ({"n_terms": "2"}, "n_terms='2' must be a whole number"),
    ):
        with pytest.raises(PlanError, match=said):
            plot_model(shown, **options)


def test_a_term_without_a_band_is_drawn_without_one():
    shown = replace(term(numeric()), lower=None, upper=None)
    axes = panel(plot_model(explanation(shown)), "age")
    assert len(axes.patches) == 1


def test_a_long_name_keeps_its_end_and_each_feature_of_a_pair():
    """Names of a kind often differ at their end alone: cut there, they would be one."""
    names = [f"feature_number_of_the_table_{k:03d}" for k in range(3)]
    assert len({plain(name) for name in names}) == 3
    pairs = list(itertools.combinations(names, 2))
    assert len({plain_term(pair, " & ".join(pair)) for pair in pairs}) == 3
    for pair in pairs:
        assert len(plain_term(pair, " & ".join(pair))) <= LABEL
    assert plain_term(("x", names[0]), f"x & {names[0]}").startswith("x & feature_num")
    assert plain("a\x1b[31m\nb\u202ec") == "a�[31m�b�c"  # commands nothing, on one line


def test_long_titles_and_labels_stay_in_their_panel():
    one, other = numeric(60 * "a"), numeric(60 * "b")
    figure = plot_model(explanation(term(one, other), term(one), term(nominal(80 * "c", n=20))))
    figure.draw_without_rendering()
    boxes = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
    for left, right in itertools.pairwise(boxes[1:3]):
        assert left.x1 < right.x0
    for axes in figure.axes:
        assert axes.yaxis.label.get_window_extent().height < 1.15 * axes.bbox.height


@pytest.mark.parametrize("most", [6, 12])
def test_thinned_marks_are_never_nearer_than_others(most):
    for n in range(1, 300):
        marks = thinned(n, most)
        assert (marks[0], marks[-1]) == (0, n - 1)
        assert len(marks) <= most
        steps = np.diff(marks)
        assert n <= most or steps.min() == steps[0]


@pytest.mark.slow
def test_labels_of_scores_and_of_large_numbers_do_not_meet():
    """Those of an axis to 100,000 were printed one over the other; those of scores of a few hundredths met."""
    gain = term(replace(numeric("gain"), edges=np.linspace(0, 1e5, 7)))
    small = np.linspace(-0.03, 0.03, 5)
    short = replace(nominal(), labels=("a", "b", "c", "other", "missing"))
    job = replace(term(short), scores=small, lower=small - 0.06, upper=small + 0.06)
    pair = term(numeric("a"), numeric("b"))  # its colour bar makes the panels above it narrow
    for terms, name in (
        ((gain, term(nominal()), *3 * [pair]), "gain"),
        ((term(numeric()), job), "job"),
    ):
        figure = plot_model(explanation(*terms))
        figure.draw_without_rendering()
        axes = panel(figure, name)
        low, high = axes.get_xlim()
        marks = [mark for mark in axes.get_xticklabels() if low <= mark.get_position()[0] <= high]
        boxes = [mark.get_window_extent() for mark in marks]
        assert all(right.x0 > left.x1 + 4 for left, right in itertools.pairwise(boxes)), name


def test_a_symmetric_axis_names_no_mark_beside_0():
    """A linear part that ended at .5 had marks at 0 and .1, one over the other."""
    edges = np.array([0.0, 0.5, 1000.0, 1500.0, 2000.0, 3000.0, 4400.0])
    crowded = replace(
        numeric("loss"), edges=edges, weights=np.array([95.0, 1, 1, 1, 1, 1, 0]) / 100
    )
    axes = panel(plot_model(explanation(term(crowded))), "loss")
    assert axes.get_xscale() == "symlog"
    marks = [mark for mark in axes.get_xticks() if mark > 0]
    places = axes.transData.transform([(mark, 0) for mark in (0, *marks)])[:, 0]
    assert np.diff(places).min() > 0.1 * axes.bbox.width


def test_a_model_that_says_nothing_is_drawn():
    """No term acts, a feature has one value, another has no category but "other"."""
    one = replace(numeric(n=1), edges=np.array([3.0, 3.0]))
    terms = [term(one, importance=0.0), term(nominal(n=0)), term(one, nominal(n=0))]
    terms = [replace(t, scores=0 * t.scores, lower=0 * t.scores, upper=0 * t.scores) for t in terms]
    plot_model(explanation(*terms)).draw_without_rendering()
    plot_model(explanation()).draw_without_rendering()


def test_a_long_name_takes_the_room_that_a_short_one_beside_it_leaves():
    assert len(plain_term(("a" * 30, "b"), f"{'a' * 30} & b")) == LABEL


def test_fewer_terms_than_none_are_none():
    figure = plot_model(explanation(term(numeric()), term(nominal())), n_terms=-1)
    assert [axes.get_title() for axes in figure.axes] == ["importance"]


def test_a_pair_without_any_effect_has_the_colour_of_none():
    flat = replace(term(numeric(n=4), nominal()), scores=np.zeros((5, 5)))
    axes = plot_model(explanation(flat), n_terms=1).axes[1]
    assert axes.collections[0].get_clim() == (-1, 1)


def test_the_power_of_ten_of_importances_holds_their_bands():
    wide = replace(term(numeric()), importance_upper=1e300)
    assert plot_model(explanation(wide)).axes[0].get_xlabel().endswith("in 1e+300")


def test_no_power_of_ten_holds_an_infinite_value():
    assert power_of([1.0, math.inf]) == 1.0


def test_a_crowded_axis_is_logarithmic():
    edges = np.array([0, 1, 10, 100, 1000, 100_000.0])
    weights = np.array([0.5, 0.3, 0.1, 0.05, 0.04, 0.01])
    crowded = replace(numeric(n=5), edges=edges, weights=weights)
    assert panel(plot_model(explanation(term(crowded))), "age").get_xscale() == "symlog"
    for other in ({"released": False}, {"weights": weights[::-1]}, {"edges": edges - 1}):
        plain = replace(crowded, **other)
        assert panel(plot_model(explanation(term(plain))), "age").get_xscale() == "linear"


def test_pictures_follow_the_style_and_leave_no_state():
    shown = explanation(term(numeric()), term(nominal()), term(numeric(), nominal()))
    with styles.context("dark_background"):
        figure = plot_model(shown)
        text = mpl.colors.to_rgba(mpl.rcParams["text.color"])
    figure.draw_without_rendering()  # outside the style's context, as in the next cell of a notebook
    for axes in figure.axes[:3]:
        for tick in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            assert mpl.colors.to_rgba(tick.get_color()) == text
    small = plot_model(shown, n_terms=0)
    assert small._repr_png_()[1:4] == b"PNG"
    assert pickle.loads(pickle.dumps(small))._repr_png_() == small._repr_png_()


def test_notebooks_get_pictures_of_few_colours_that_look_the_same():
    figure = plot_model(explanation(term(numeric()), term(numeric(), nominal())))
    shown, drawn = io.BytesIO(figure._repr_png_()), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    assert shown.getbuffer().nbytes < 0.5 * drawn.getbuffer().nbytes
    few, all_ = (np.asarray(Image.open(each).convert("RGB"), int) for each in (shown, drawn))
    assert np.abs(few - all_).mean() < 0.5
    figure.patch.set_alpha(0)
    assert Image.open(io.BytesIO(figure._repr_png_())).getpixel((0, 0))[3] == 0
    assert pyplot.get_fignums() == []


# ---- one row ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classifier", "regressor"])
def test_a_waterfall_ends_at_the_score_and_says_the_prediction(name, request, features):
    fitted = request.getfixturevalue(name)
    row = features.iloc[[3]]
    axes = fitted.plot_local(row).axes[0]
    told = fitted.explain_local(row)
    sizes = told.scores[0]
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches if isinstance(bar, Rectangle)]
    named = [label.get_text() for label in axes.get_yticklabels()]
    largest = np.argsort(-np.abs(sizes))[: len(bars)]
    np.testing.assert_allclose([w for _, w in bars[:4]], sizes[largest[:4]])
    for text in axes.texts[1:-1]:  # beside the end of their bar
        assert (text.get_ha() == "right") == text.get_text().startswith("-")
    assert named[0] == "intercept"
    assert named[-1] == "score"
    assert named[1].startswith(told.names[largest[0]])
    (ends,) = [line.get_xdata() for line in axes.lines if line.get_marker() == "D"]
    np.testing.assert_allclose(ends[0], told.intercept[0])
    np.testing.assert_allclose(ends[1], told.intercept[0] + sizes.sum())
    np.testing.assert_allclose(ends[1], sum(bars[-1]))
    if name == "classifier":
        np.testing.assert_allclose(ends[1], fitted.decision_function(row)[0])
        chance = 100 * fitted.predict_proba(row)[0, 1]
        assert axes.get_title() == f"target = 1: probability {chance:.3g} %, private=False"
    else:
        assert axes.get_title() == f"target: {fitted.predict(row)[0]:.5g}, private=False"
    by_series = fitted.plot_local(features.iloc[3])
    by_dict = fitted.plot_local(features.iloc[3].to_dict())
    assert by_series.axes[0].get_title() == by_dict.axes[0].get_title() == axes.get_title()
    data = row.to_xarray()
    for rows in (data, data[[*features]].to_array("feature").T):
        drawn = fitted.plot_local(rows).axes[0]
        assert drawn.get_title() == axes.get_title()
        assert [label.get_text() for label in drawn.get_yticklabels()] == named
    with pytest.raises(StructureError, match="one row, and was given 2"):
        fitted.plot_local(features.iloc[:2].to_xarray())
    with pytest.raises(StructureError, match="one row, and was given 2"):
        fitted.plot_local(features.iloc[:2])


def test_of_equal_scores_the_picture_shows_the_class_that_is_predicted(features):
    """The one declared first, whatever the order of ``classes_``."""
    schema = Schema({"x": (-3, 3)}, classes=["c", "b", "a"])
    labels = np.array(["a", "b", "c", "a"] * (len(features) // 4))
    rows = features[["x"]].iloc[: len(labels)]
    options = {"epsilon": 5.0, "recipe": "additive", "noise": SeededNoise(0), "random_state": 0}
    fitted = DPGBClassifier(schema=schema, **options).fit(rows, labels)
    model = fitted.model_
    fitted.model_ = fitted.model_of_fit_ = replace(
        model,
        intercept=np.zeros_like(model.intercept),
        tables=tuple(np.zeros_like(table) for table in model.tables),
        pairs=(),
    )
    row = rows.iloc[[0]]
    assert fitted.predict(row)[0] == "c"
    assert fitted.plot_local(row).axes[0].get_title().startswith("target = c: probability 33.3 %")


def test_of_equal_probabilities_the_picture_shows_the_class_that_is_predicted(features):
    """Probabilities that are scores are 0 for all scores below, of which the largest is predicted."""
    schema = Schema({"x": (-3, 3)}, classes=["c", "b", "a"])
    options = {
        "epsilon": 5.0,
        "recipe": "fdp-hist-averaging",
        "noise": SeededNoise(0),
        "random_state": 0,
    }
    labels = np.array(["a", "b", "c", "a"] * (len(features) // 4))
    rows = features[["x"]].iloc[: len(labels)]
    fitted = DPGBClassifier(schema=schema, **options).fit(rows, labels)
    model = fitted.model_
    fitted.model_ = replace(
        model,
        intercept=np.array([-30_000, -10_000, -20_000], np.int32),
        tables=tuple(np.zeros_like(table) for table in model.tables),
        trees=model.trees.only(np.empty(0, np.int64)),
    )
    row = rows.iloc[[0]]
    assert len({*fitted.predict_proba(row)[0]}) == 1
    assert fitted.predict(row)[0] == "b"
    assert fitted.plot_local(row).axes[0].get_title().startswith("target = b: probability 33.3 %")
    assert fitted.explain_local(row).selector["Predicted"].tolist() == ["b"]
    assert fitted.explain_local(row).data(0)["perf"]["predicted"] == 1


def test_plot_draws_the_models_own_explanation(classifier):
    figure = classifier.plot(n_terms=2)
    told = classifier.explain_global()
    ranked = sorted((t for t in told.terms if t.kind != "remainder"), key=lambda t: -t.importance)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[1:3] == [shown.name for shown in ranked[:2]]


def test_plot_takes_one_term_by_its_name(classifier):
    for figure in (classifier.plot("age"), classifier.plot(["age"]), classifier.plot(terms="age")):
        titles = [axes.get_title() for axes in figure.axes]
        assert titles[1:] == ["age"]
    with pytest.raises(PlanError, match=r"'agee' is no term .* Did you mean 'age'\?"):
        classifier.plot("agee")


LARGE = 8.9e307  # bounds that are any further apart are refused


@pytest.mark.parametrize("low", [-LARGE, pytest.param(0.0, marks=pytest.mark.slow)])
def test_the_largest_bounds_give_axes_in_a_power_of_ten(low):
    """Matplotlib adds up what it draws, and overflows; warnings are errors here."""
    edges = np.linspace(low, LARGE, 7)
    shown = [
        replace(one, scores=part * one.scores, lower=part * one.lower, upper=part * one.upper)
        for one in (
            term(replace(numeric(), edges=edges), importance=LARGE),
            term(nominal()),
            term(replace(numeric("b"), edges=edges), nominal()),
            term(numeric("c")),
        )
        if (part := LARGE / np.abs(one.upper).max() / 2)
    ]
    figure = plot_model(explanation(*shown))
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert max(map(abs, (*axes.get_xlim(), *axes.get_ylim()))) < 100
    axes = panel(figure, "age")
    assert axes.get_xlabel() == "in 1e+307"
    assert axes.get_ylabel() == "log-odds, in 1e+307"
    _, steps = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    np.testing.assert_allclose(steps.get_data().edges, edges / 1e307)
    np.testing.assert_allclose(steps.get_data().values, shown[0].scores[:6] / 1e307)
    assert figure.axes[0].get_xlabel() == "mean |score|, log-odds, in 1e+307"
    assert panel(figure, "job").get_xlabel() == "log-odds, in 1e+307"
    assert panel(figure, "c").get_xlabel() == ""


def test_a_waterfall_of_the_largest_bounds_is_in_a_power_of_ten():
    x = np.linspace(-1, 1, 400).reshape(-1, 1)
    schema = Schema({"x": (-LARGE, LARGE)}, target_bounds=(-LARGE, LARGE))
    settings = {"recipe": "fdp-tr-newton", "n_estimators": 2, "columns": "position", "epsilon": 9.0}
    model = DPGBRegressor(schema=schema, noise=SeededNoise(0), **settings)
    model.fit(LARGE * x, LARGE * x[:, 0])
    figure = model.plot_local([[LARGE]])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (ends,) = [line.get_xdata() for line in axes.lines if line.get_marker() == "D"]
    label = axes.get_xlabel()
    assert label.startswith("units of the target, in 1e+30")
    told = model.explain_local([[LARGE]])
    score = told.intercept[0] + told.scores[0].sum()
    np.testing.assert_allclose(ends[1], score / float(label.split()[-1]))
    model.plot().draw_without_rendering()


# ---- budgets ---------------------------------------------------------------------------------------------------------


def ledger_with_fits(tmp_path, n_fits, epsilon):
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=3.0, delta=1e-6)
    X = np.arange(200.0).reshape(-1, 1) % 100
    for _ in range(n_fits):
        DPGBClassifier(
            schema=Schema({"x": (0, 100)}, classes=[0, 1]), epsilon=epsilon, recipe="fdp-tr-newton",
            n_estimators=1, columns="position", ledger=ledger, account="people",
        ).fit(X, X[:, 0] > 50)  # fmt: skip
    return ledger


def test_a_budget_is_a_bar_of_what_each_fit_spent_and_what_is_left(tmp_path, monkeypatch):
    ledger = ledger_with_fits(tmp_path, 3, 0.5)
    ledger.open_account("others", epsilon=1.0, delta=1e-6, unit_id="person")
    axes = plot_budget(ledger).axes[0]
    account = ledger.account("people")
    charges = [100 * fit.charge / account.cap for fit in ledger.fits("people")]
    widths = [bar.get_width() for bar in axes.patches]
    left = 100 * account.left / account.cap
    np.testing.assert_allclose(widths, [100.0, *charges, left])
    said = [text.get_text() for text in axes.texts]
    most = floored(ledger.remaining("people"), 3)
    # the number is of the account's delta: at a smaller one a fit may ask less
    assert any(text.endswith(f"one more fit may ask\nε = {most} at δ = 1e-06") for text in said)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert "for one person" in names[0]
    assert "cap ε = 3" in names[1]
    monkeypatch.setattr("dpgb_dask.plots.budget.MOST", 1)
    axes = plot_budget(ledger, "people").axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(widths, [sum(charges[:2]), charges[2], left])
    with pytest.raises(LedgerError, match="nobody"):
        plot_budget(ledger, "nobody")
    with pytest.raises(LedgerError, match="no account yet"):
        plot_budget(Ledger("sqlite://"))


def test_without_matplotlib_one_error_names_the_extra(monkeypatch, classifier, features):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in (classifier.plot, lambda: classifier.plot_local(features.iloc[[0]])):
        with pytest.raises(ImportError, match=r"dpgb_dask\[viz\]"):
            draw()


def test_values_of_a_row_are_readable(classifier):
    row = pd.DataFrame([{"x": 0.123456789, "z": None, "age": 30, "color": LONG}])
    labels = [label.get_text() for label in classifier.plot_local(row).axes[0].get_yticklabels()]
    assert any(label == "x = 0.123457" for label in labels)
    assert max(map(len, labels)) < 60
