"""The ledger on PostgreSQL; needs ``DPGB_POSTGRES=postgresql+psycopg://user@host/database``."""

import os
import pickle
import threading
import uuid

import pytest
from controller_parts import ListJournal, query, raw, reserve

from dpgb_dask.controller.accounting import total_price
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.errors import BudgetExceededError, LedgerUnavailableError

pytestmark = pytest.mark.services


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if "DPGB_POSTGRES" not in os.environ:
        pytest.skip("NO POSTGRESQL: set DPGB_POSTGRES to an address")
    return os.environ["DPGB_POSTGRES"]


def test_racing_threads_are_granted_the_cap_exactly(url):
    name, granted, failed = uuid.uuid4().hex, [], []

    def race():
        try:
            ledger = Ledger(url)
            ledger.open_account(name, epsilon=3.0, delta=1e-6)
            granted.append(reserve(ledger, account=name).fit_id)
        except BudgetExceededError:
            pass
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=race) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(granted) == total_price(3.0, 1e-6) // total_price(1.0, 1e-6) == 7
    Ledger(url).verify()


def test_fit_breaks_off_resumes_and_ends(url):
    ledger, name, journal = Ledger(url), uuid.uuid4().hex, ListJournal()
    ledger.open_account(name, epsilon=3.0, delta=1e-6)
    old = reserve(ledger, account=name, journal=journal)
    old.bind(5)
    answer = old.release(query(), raw()).value
    sent = pickle.loads(pickle.dumps(ledger))
    controller = reserve(sent, account=name, resume=old.fit_id, journal=journal)
    assert (controller.replayed(query(), raw().sensitivity).value == answer).all()
    controller.bind(5)
    controller.release(query("q 2"), raw())
    controller.finish()
    assert not list(ledger.directory.glob("*.key"))
    assert ledger.account(name).spent == controller.total
    ledger.verify()


def test_unreachable_server_is_clear():
    with pytest.raises(
        LedgerUnavailableError, match=r"(?s)cannot be used: .*Nothing was released"
    ) as info:
        Ledger("postgresql+psycopg://me:geheim@localhost:1/none").accounts()
    assert "geheim" not in str(info.value)
