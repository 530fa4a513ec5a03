"""A fit at the controller alone: its parts, and stand-ins for the two sides around the controller."""

import contextlib
import ctypes
import itertools
import json
import os
import signal
import subprocess
import threading
import time
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from waiting import LONGEST

from dpgb_dask import cli
from dpgb_dask.contracts.boundary import Raw, Sensitivity
from dpgb_dask.contracts.model import Splits
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import (
    PRICE_ONE,
    BinCountsQuery,
    ChoiceQuery,
    ResidualQuery,
    SharedChoiceQuery,
    TreeSumsQuery,
)
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.release import Controller
from dpgb_dask.errors import BudgetExceededError, LedgerError
from dpgb_dask.losses import GRAD_ONE, SquaredGradient, logistic_gradient
from dpgb_dask.training.fit import open_journal

BUDGET = Budget(epsilon=1.0, delta=1e-6)
SMALL = Budget(epsilon=0.5, delta=1e-6)


@dataclass
class ListJournal:
    """A journal that outlives the controller, as a file would; appends nothing while ``broken``."""

    kept: list = field(default_factory=list)
    lost: list = field(default_factory=list)
    broken: bool = False

    def __call__(self, _fit_id):
        return self

    def append(self, answer):
        if self.broken:
            self.lost.append(answer)
            raise OSError("disk full")
        self.kept.append(answer)

    def entries(self):
        return list(self.kept)


@dataclass
class FixedNoise:
    seed: int = 0
    private: bool = False

    def fit_key(self):
        return self.seed.to_bytes(32, "little")


def reserve(ledger=None, **changes):
    options = {
        "budget": BUDGET, "ledger": ledger, "account": None if ledger is None else "a", "plan_digest": b"plan",
        "public_seed": 5,
    }  # fmt: skip
    return Controller.reserve(**(options | changes))


def query(label="q 1", n_values=3, price=PRICE_ONE // 1000):
    return ResidualQuery(label=label, price=price, edges=np.arange(n_values - 1))


def wide_query(n_values, price):
    """Return a query of more values than one of residuals may have, a multiple of 250."""
    features = np.arange(n_values // 250, dtype=np.uint16)
    return BinCountsQuery(
        label="wide", price=price, features=features, sizes=(250,) * len(features)
    )


def raw(*values, l2_squared=1):
    return Raw(np.array(values or (10, 20, 30), np.int64), Sensitivity(l2_squared, l2_squared))


def tree_query(price, rows):
    """Return a query of a tree that sends all rows to one leaf, on the rows of a draw."""
    tree = Splits.plain(np.zeros((1, 0), np.uint16), np.zeros((1, 0), np.uint8))
    return TreeSumsQuery(
        label="t",
        price=price,
        gradient=logistic_gradient(0.5, 0.5),
        n_scores=1,
        splits=tree,
        rows=rows,
    )


def choice_query(depth=0, sizes=(5,), only_last=False, price=PRICE_ONE // 1000, **changes):
    """Return a choice over the tree that sends all rows left; one threshold candidate per inner edge."""
    feature = np.concatenate([np.full(size - 1, f) for f, size in enumerate(sizes)])
    options = {
        "label": "choice", "price": price, "gradient": SquaredGradient(1 << 16, GRAD_ONE), "n_scores": 1, "ridge": 0.5,
        "splits": Splits.plain(np.zeros((1, (1 << depth) - 1), np.uint16), np.zeros((1, (1 << depth) - 1), np.uint8)),
        "features": np.arange(len(sizes), dtype=np.uint16), "sizes": tuple(sizes),
        "candidate_feature": feature.astype(np.uint16),
        "candidate_bin": np.concatenate([np.arange(size - 1) for size in sizes]).astype(np.uint8),
        "candidate_only": (feature == len(sizes) - 1) & only_last,
    }  # fmt: skip
    return ChoiceQuery(**(options | changes))


def shared_choice_query(depth=0, sizes=(5,), price=PRICE_ONE // 1000, **changes):
    """Return a shared choice over the tree that sends all rows left; every bin is a level of its own."""
    nodes = (1 << depth) - 1
    options = {
        "label": "choice", "price": price, "gradient": SquaredGradient(1 << 16, GRAD_ONE), "n_scores": 1,
        "splits": Splits.plain(np.zeros((1, nodes), np.uint16), np.zeros((1, nodes), np.uint8)),
        "features": np.arange(len(sizes), dtype=np.uint16), "sizes": tuple(sizes),
        "level_of_bin": tuple(np.arange(size, dtype=np.uint8) for size in sizes), "n_levels": tuple(sizes),
        "slope": np.zeros((1 << depth, 1), np.int64), "n_groups": 1,
    }  # fmt: skip
    return SharedChoiceQuery(**(options | changes))


def random_rows(rng, query, n, weight=1, *, sums):
    """Return n rows of a choice: node, bins of all features, what ``sums`` draws, a weight of at most ``weight``."""
    return [
        (
            int(rng.integers(query.splits.n_leaves)),
            [int(rng.integers(size)) for size in query.sizes],
            *sums(rng),
            int(rng.integers(1, weight + 1)),
        )
        for _ in range(n)
    ]


def warm():
    """Load the sampler."""
    reserve().release(query(), raw())


def ledger_at(url, home):
    """Return a ledger with account "a"; ``home`` holds keys and journals that are not beside the database."""
    os.environ["XDG_DATA_HOME"] = home
    ledger = Ledger(url)
    ledger.open_account("a", epsilon=3.0, delta=1e-6)
    return ledger


def spend_all(url, home, out, most=None):
    """Start fits until the account has too little left, each with one answer, and write down what was let out.

    Each fit adds a line to the file ``out``, with the cost of its answer, once this process has the answer. After
    ``most`` fits it waits until it is killed.
    """
    while not Path(home, "go").exists():
        time.sleep(0.001)
    ledger = ledger_at(url, home)
    with Path(out).open("a") as told, contextlib.suppress(BudgetExceededError):
        for n in itertools.count():
            if n == most:
                time.sleep(600)
            fit = reserve(ledger, budget=SMALL, journal=partial(open_journal, ledger))
            fit.bind(1)
            price = fit.release(query(), raw()).receipt.price
            told.write(json.dumps([fit.fit_id, price]) + "\n")
            told.flush()


def hold_lock(url, home):
    """Stop inside a transaction until killed."""
    with ledger_at(url, home)._transaction() as book:
        book.append("OPEN", "never", "", {})
        Path(home, "holding").touch()
        time.sleep(600)


def fork_while_held(url, home):
    """Fork while another thread is inside a transaction; the child starts a fit too."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
    ledger, held = ledger_at(url, home), threading.Event()
    reserve(ledger, budget=SMALL)

    def hold():
        with ledger._transaction():
            held.set()
            time.sleep(0.3)  # a fork waits for the transaction to end

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(LONGEST)
        reserve(ledger, budget=SMALL)
        os._exit(0)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert len(ledger.fits("a")) == 2
    ledger.verify()
    reserve(ledger, budget=SMALL)


def in_own_mounts(mounts, name, *args):
    """Call a function of this module in a namespace where other things are mounted; arguments as of ``mount``."""
    if ctypes.CDLL(None).unshare(0x20000):  # CLONE_NEWNS
        raise PermissionError("no namespace")
    for options in (["--make-rprivate", "/"], *mounts):
        subprocess.run(["mount", *options], check=True)
    globals()[name](*args)


def spent(url, out):
    """Open a ledger and write down what account "a" has spent, or the error if that is refused."""
    try:
        told = Ledger(url).account("a").spent
    except LedgerError as error:
        told = error
    Path(out).write_text(str(told))


def show(url, out):
    """Write down what the command line prints of a ledger."""
    with Path(out).open("w") as told, contextlib.redirect_stdout(told):
        assert cli.main(["ledger", "show", url]) == cli.main(["ledger", "verify", url]) == 0
