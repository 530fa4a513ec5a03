"""Progress: an honest total, no estimate before the second round, and a display for each place."""

import sys
import types

import pytest

from dpgb_dask import DPGBClassifier, PlanError, progress
from dpgb_dask.kernels import cache
from dpgb_dask.testing import SeededNoise


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Recorded:
    """A display that keeps what it is told."""

    def __init__(self):
        self.seen = []

    def begin(self, text):
        self.seen.append(text)

    def say(self, text):
        self.seen.append(text)

    def show(self, *event):
        self.seen.append(event)

    def end(self, position, *, whole):
        self.seen.append((position, whole))


def test_no_time_is_estimated_before_the_second_round(monkeypatch, clock):
    display = Recorded()
    monkeypatch.setattr(progress, "display_here", lambda: display)
    with progress.Bar(1, None) as show:
        for position, passed in (
            (1, 90),
            (2, 3),
            (4, 6),
        ):  # the first round compiles; round 3 was not shown
            clock.now += passed
            show("rows", position, 10)
    assert [event[-1] for event in display.seen[1:-1]] == [None, 8 * 3.0, 6 * 3.0]
    assert display.seen[0] == "reading rows"
    assert display.seen[-1] == (4, True)


def test_that_kernels_are_compiled_is_shown_during_the_fit_only(monkeypatch):
    display = Recorded()
    monkeypatch.setattr(progress, "display_here", lambda: display)
    with progress.Bar(1, None):
        cache._say_once.__wrapped__("kernels")
    cache._say_once.__wrapped__("kernels")
    assert display.seen == ["reading rows", cache.COMPILING, (0, True)]


@pytest.mark.parametrize("epsilon", [0.5, pytest.param(8.0, marks=pytest.mark.slow)])
def test_the_total_has_no_stage_that_will_not_run(epsilon, binary_schema, features, labels):
    seen = []
    DPGBClassifier(
        schema=binary_schema,
        callbacks=[lambda *event: seen.append(event)],
        noise=SeededNoise(0),
        random_state=0,
        epsilon=epsilon,
    ).fit(features, labels)
    assert [position for _, position, _ in seen] == list(range(1, len(seen) + 1))
    totals = [total for _, _, total in seen]
    assert totals == sorted(totals, reverse=True)
    # which stages run is released before the first round of the main effects: from then on the total is exact
    main = [total for label, _, total in seen if label.startswith("main effects")]
    assert set(main) == {len(seen)}
    assert totals[0] > len(seen)  # before that, all stages count
    ran = {label.split()[0] for label, _, _ in seen}
    assert ({"pairs", "forest"} <= ran) == (epsilon > 1)


def test_a_line_per_stage_elsewhere(clock, capsys):
    lines = progress.Lines()
    lines.begin("reading rows")
    for position, (label, passed) in enumerate(
        [
            ("rows", 2.0), ("main effects 1/20", 0.5), ("main effects 2/20", 0.5), ("pairs 1/3", 1),
            ("trees 1/2: splits", 1), ("trees 1/2: leaves", 1), ("trees 2/2: splits", 1),
        ],
        1,
    ):  # fmt: skip
        clock.now += passed
        lines.show(label, position, 30, None)
    lines.end(7, whole=True)
    assert capsys.readouterr().err.splitlines() == [
        "reading rows",
        "rows: 1 round, 2.5 s",
        "main effects: 2 rounds, 1.5 s",
        "pairs: 1 round, 1.0 s",
        "trees: 3 rounds, 2.0 s",  # two lines for each of thousands of trees would bury a log
    ]


def test_a_terminal_shows_one_line(capsys):
    bar = progress.Terminal()
    bar.begin("reading rows")
    bar.show("rows", 1, 10, None)
    assert "left" not in capsys.readouterr().err
    bar._bar.mininterval = 0
    bar.show("main effects 1/9", 2, 10, 119.0)
    bar._bar.refresh()
    shown = capsys.readouterr().err
    assert "main effects 1/9" in shown
    assert "2/10 rounds" in shown
    assert "about 2 min left" in shown
    bar.end(2, whole=True)
    assert "2/2 rounds" in capsys.readouterr().err


def test_a_notebook_shows_html_without_widgets(monkeypatch, clock):
    pictures = []

    class Handle:
        def update(self, picture):
            pictures.append(picture)

    def display(picture, display_id):
        assert display_id
        pictures.append(picture)
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    with progress.Bar(1, None) as show:
        clock.now += 1
        show("<rows>", 1, 10)
        show("main effects 1/9", 2, 10)  # too soon for another picture
    assert [repr(p) for p in pictures] == [
        "reading rows",
        "<rows>: 1/10 rounds, 1 s",
        "fitted: 2/2 rounds",
    ]
    assert "value=" not in pictures[0]._repr_html_()
    assert 'max="10" value="1"></progress> &lt;rows&gt;: 1/10' in pictures[1]._repr_html_()
    shell.kernel = None
    assert isinstance(progress.display_here(), progress.Lines | progress.Terminal)


def test_an_interrupted_bar_counts_no_further_stage(monkeypatch, capsys):
    monkeypatch.setattr(progress, "display_here", progress.Lines)
    bar = progress.Bar(1, None)
    bar.__enter__()("rows", 1, 3)
    bar.__exit__(KeyboardInterrupt)
    assert capsys.readouterr().err == "reading rows\n"


def test_callbacks_are_functions():
    with pytest.raises(PlanError, match="callbacks"):
        progress.Bar(0, [1])


def test_a_process_without_a_standard_error_shows_nothing(monkeypatch):
    """As a daemon, or pythonw."""
    monkeypatch.setattr(sys, "stderr", None)
    with progress.Bar(1, None) as show:
        assert show is None
