"""Small fits that charge a ledger in a folder, as functions, for tests that kill the process that runs them."""

import contextlib
import json
import resource
import secrets
import signal
import time
from pathlib import Path
from unittest import mock

import dask
import dask.array as da
import numpy as np
from distributed import Client
from faults import Steps, kill

from dpgb_dask import DPGBClassifier, Ledger, Schema
from dpgb_dask.controller.noise import SecretNoise
from dpgb_dask.errors import LedgerUnavailableError
from dpgb_dask.testing import SeededNoise

FIT_ID = "f" * 24
SCHEMA = Schema({"a": (0.0, 1.0), "b": (-4.0, 4.0), "c": [0.0, 1.0]}, classes=[0, 1])
SETTINGS = {
    "auto": {"n_estimators": 2},
    "fdp-tr-newton": {"n_estimators": 2, "max_depth": 2},
    "dp-ebm": {"n_estimators": 1},
}


def rows():
    """600 rows of three features, and their labels."""
    rng = np.random.default_rng(3)
    x = np.column_stack([rng.random(600), rng.normal(0, 1, 600), rng.integers(0, 2, 600)])
    return x, (x[:, 0] + x[:, 1] > 0.5).astype(int)


def chunked():
    """`rows` as Dask arrays."""
    x, y = rows()
    return da.from_array(x, chunks=(150, 3)), da.from_array(y, chunks=150)


def ledger_in(folder):
    return Ledger(f"sqlite:///{folder}/budget.db")


def estimator(recipe, **changes):
    options = {"epsilon": 2.0, "delta": 1e-6, "schema": SCHEMA, "random_state": 0}
    return DPGBClassifier(**(options | {"recipe": recipe} | SETTINGS.get(recipe, {}) | changes))


def warm(*recipes):
    """Load the kernels of some recipes."""
    for recipe in recipes:
        estimator(recipe, noise=SeededNoise(0)).fit(*rows())


@contextlib.contextmanager
def same_key_and_id():
    """Give fits a key and an id that are always the same, so that their models can be compared."""
    token = secrets.token_hex
    with (
        mock.patch.object(SecretNoise, "fit_key", return_value=bytes(range(32))),
        mock.patch.object(secrets, "token_hex", lambda n: FIT_ID if n == 12 else token(n)),
    ):
        yield


def fit(folder, recipe, at=-1, resume=None, *, fault=kill, lazy=False, data=None, **options):
    """Fit on an account of ``folder``, with a key and a fit id that are always the same; have a fault at step ``at``.

    Everything else is as in any fit, so that two fits of one recipe end with the same model, and what a fault changes
    shows. ``data`` are other rows than `rows`. Writes ``model.json``, and ``steps.json`` with the names of the steps.
    """
    folder = Path(folder)
    ledger = ledger_in(folder)
    ledger.open_account("people", epsilon=3.0, delta=1e-5)
    clf = estimator(recipe, ledger=ledger, account="people", **options)
    with same_key_and_id(), Steps(folder, fault, at) as steps:
        clf.fit(*(data or (chunked() if lazy else rows())), resume=resume)
    (folder / "steps.json").write_text(json.dumps(steps.names))
    clf.save(folder / "model.json")


def fit_interrupted(folder, recipe, seconds, resume=None):
    """Fit as `fit` does; after some seconds, if it has not ended, comes a Ctrl-C, wherever the fit is then."""
    # as in a terminal: a process that was started in the background ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # a timer of this process: on a busy machine another one would be too late
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    fit(folder, recipe, resume=resume)


def fit_on_full_disk(folder, recipe, limit):
    """Fit where no file can grow beyond ``limit`` bytes; raises unless the fit ends, or the ledger refuses."""
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, allowed))  # as a full disk, for this process
    try:
        fit(folder, recipe)
    except LedgerUnavailableError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, allowed))
        told = [str(error), *getattr(error, "__notes__", ())]
        (Path(folder) / "refused.txt").write_text("\n".join(told))


def fit_on_cluster(folder, recipe, address, backend, at=-1, resume=None):
    """Fit as `fit` does, on a cluster, with codes in scratch files; stand still at a step."""

    def stand_still(_step):
        (Path(folder) / "still").touch()
        time.sleep(600)

    with dask.config.set({"dpgb-dask.backend": backend}), Client(address):
        fit(folder, recipe, at, resume, fault=stand_still, lazy=True, cache="disk")
