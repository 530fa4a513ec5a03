"""`interpret.show` draws every explanation: the overview, and each term or row."""

import html
import json
import socket
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd
import pytest
from plans import WITH_PAIRS
from runtimes.cases import fit

from dpgb_dask import Schema

interpret = pytest.importorskip("interpret")
provider = pytest.importorskip("interpret.provider")
pytest.importorskip("plotly")
pytest.importorskip("dash")
display = pytest.importorskip("IPython.display")

# interpret calls what plotly will drop; Dash and its server warn of each other
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

KINDS = ("binary", "numeric", "multiclass")


@pytest.fixture(scope="module", params=KINDS)
def explained(
    request,
    features,
    labels,
    numbers,
    names_of_class,
    binary_schema,
    regression_schema,
    multiclass_schema,
):
    """The explanations of a model with pairs and a forest, and of three rows."""
    schema, y = {
        "binary": (binary_schema, labels),
        "numeric": (regression_schema, numbers),
        "multiclass": (multiclass_schema, names_of_class),
    }[request.param]
    # so much that no stage is left out
    model = fit(schema, features, y, epsilon=50.0, recipe=WITH_PAIRS)
    assert model.model_.pairs
    assert model.model_.trees.n_trees > 0
    return model.explain_global(), model.explain_local(features[:3])


def drawn(figure):
    """Return the numbers that a figure draws, of all its traces."""
    found = []
    for trace in figure.data:
        values = trace.z if trace.type == "heatmap" else trace.x if trace.orientation else trace.y
        found += np.ravel(np.asarray(values, float)).tolist()
    return np.array(found)


def holds(figure, numbers):
    """Return whether all of some numbers are in a figure."""
    there = drawn(figure)
    return all(np.isclose(there, number).any() for number in np.ravel(numbers))


def test_every_term_has_a_figure_of_its_scores(explained):
    found, _ = explained
    overview = found.visualize()
    largest = sorted((term.importance for term in found.terms), reverse=True)[:15]
    assert holds(overview, largest)
    assert "remainder" in overview.data[0].y  # it has a size, and no shape
    assert set(found.feature_types) >= {"continuous", "nominal"}
    assert ("interaction" in found.feature_types) == (not found.classes)
    for key, name in enumerate(found.feature_names):
        figure, term = found.visualize(key), found.term(*name.split(" & "))
        assert type(figure).__name__ == "Figure"
        shown = len(term.bins[0].edges) - 1 if found.feature_types[key] == "continuous" else None
        assert holds(figure, term.scores[:shown])
        assert name in html.unescape(figure.layout.title.text)
        if found.feature_types[key] == "continuous" and not found.classes:
            assert holds(figure, term.upper[:shown])  # the band
            missing = term.scores[term.bins[0].missing]
            assert f"missing: {missing:.3g}" in figure.layout.title.text


def test_every_row_has_a_figure_of_its_contributions(explained):
    _, rows = explained
    assert rows.visualize() is None
    parts = rows.scores if isinstance(rows.scores, list) else [rows.scores]
    for key in range(3):
        figure = rows.visualize(key)
        assert type(figure).__name__ == "Figure"
        assert holds(figure, [np.asarray(part)[key] for part in parts])
        assert holds(figure, rows.intercept)


def test_names_are_no_html_and_no_formula():
    """Plotly draws tags, and between two "$" a formula."""
    odd = "<b>a</b> $x$ &lt;"
    schema = Schema({odd: (0, 1), "c": [odd, "d"]}, classes=["n", odd], target="y")
    X = pd.DataFrame({odd: np.arange(600) / 600, "c": 300 * [odd, "d"]})
    model = fit(schema, X, np.where(X[odd] > 0.5, odd, "n"), epsilon=9.0, recipe="additive")
    terms = model.explain_global()
    for figure in (*map(terms.visualize, (None, 0, 1)), model.explain_local(X[:1]).visualize(0)):
        drawn = json.dumps(figure.to_plotly_json(), default=list)
        assert "a&lt;/b&gt; &#36;x&#36; &amp;lt;" in drawn
        assert "<b>" not in drawn
        assert "$x" not in drawn


@pytest.mark.parametrize("which", [0, 1], ids=["global", "local"])
def test_show_writes_all_figures_into_a_notebook(explained, which, monkeypatch):
    pages = []
    monkeypatch.setattr(display, "display", pages.append)
    monkeypatch.setattr(
        "interpret.visual._interactive.visualize_provider", provider.InlineProvider()
    )
    interpret.show(explained[which])
    (page,) = pages
    given = page.data.rpartition("RenderApp(")[2].partition(", ")[2]
    told, _ = json.JSONDecoder().raw_decode(given)
    kinds = [part["type"] for part in (told["overall"], *told["specific"])]
    n = len(explained[which].selector)
    assert kinds == ["none" if which else "plotly", *n * ["plotly"]]


@pytest.mark.parametrize("which", [0, 1], ids=["global", "local"])
def test_show_serves_all_figures_on_a_dashboard(explained, which, monkeypatch):
    """Outside of hosted notebooks `interpret` serves a page on this machine."""
    explanation, pages = explained[which], []
    monkeypatch.setattr(display, "display_html", lambda page, **_: pages.append(page))
    monkeypatch.setattr("interpret.visual._interactive.visualize_provider", None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = free.getsockname()
    interpret.set_visualize_provider(provider.DashProvider.from_address(place))
    try:
        interpret.show(explanation)
        address = interpret.show_link(explanation)
        assert address in pages[0]
        with urlopen(f"{address}_dash-layout") as page:
            choices = page.read().decode()
        for key in (-1, *range(len(explanation.selector))):
            assert f'"value":{key}' in choices.replace(" ", "")
            asked = {
                "output": "viz-container.children",
                "outputs": {"id": "viz-container", "property": "children"},
                "inputs": [{"id": "component-drop", "property": "value", "value": key}],
                "changedPropIds": ["component-drop.value"],
            }
            body = json.dumps(asked).encode()
            request = Request(
                f"{address}_dash-update-component", body, {"Content-Type": "application/json"}
            )
            with urlopen(request) as page:
                answer = page.read().decode()
            assert ('"Graph"' in answer) == (key >= 0 or not which)
    finally:
        interpret.shutdown_show_server()
