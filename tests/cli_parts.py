"""Commands that tests of the command line run again and again."""

from unittest.mock import Mock

from dpgb_dask.cli import main

BUDGET = ("--epsilon", 4, "--delta", 1e-6, "--quiet")


def run(*arguments):
    return main([str(argument) for argument in arguments])


def model_of(place):
    return ("--schema", place / "schema.json", "--out", place / "m.json", *BUDGET)


def fit_people(place):
    return ("fit", place / "people.parquet", "--schema", place / "schema.json", "--delta", 1e-6)


def interrupt_rounds(patch):
    """Interrupt fits after their first round."""
    stop = Mock(side_effect=KeyboardInterrupt)
    patch.setattr("dpgb_dask.progress.Bar.__enter__", lambda _bar: stop)


def break_off(place, monkeypatch):
    """Interrupt a fit of a new account after its first round; return the ledger's URL."""
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6)
    options = ("--quiet", "--ledger", url, "--account", "people", "--epsilon", 0.5)
    with monkeypatch.context() as patched:
        interrupt_rounds(patched)
        assert run(*fit_people(place), "--out", place / "broken.json", *options) == 130
    return url


def fitted(place, data, *options, name="fitted.json"):
    """The model file of a fit with seeded noise: the command line has no such option."""
    (place / name).unlink(missing_ok=True)
    assert run("fit", data, "--out", place / name, *BUDGET, "--random-state", 0, *options) == 0
    return (place / name).read_text()
