from pathlib import Path

import pytest

from dpgb_dask.controller.ledger import Ledger


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/budget.db"


@pytest.fixture
def path(url):
    """The file of the ledger."""
    return Path(url.removeprefix("sqlite:///"))


@pytest.fixture
def ledger(url):
    """A ledger file with account 'a' of ε = 3, which has room for seven fits of ε = 1, and 'pure' without delta."""
    made = Ledger(url)
    made.open_account("pure", epsilon=3.0, delta=0.0, analysis="pure")
    made.open_account("a", epsilon=3.0, delta=1e-6)
    return made
