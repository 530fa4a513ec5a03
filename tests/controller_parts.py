"""A fit at the controller alone: its parts, and what stands in for the sides around it."""

from dataclasses import dataclass, field

import numpy as np

from dpgb_dask.contracts.boundary import Raw, Sensitivity
from dpgb_dask.contracts.model import Splits
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE, ChoiceQuery, ResidualQuery
from dpgb_dask.controller.release import Controller
from dpgb_dask.losses import GRAD_ONE, SquaredGradient

BUDGET = Budget(epsilon=1.0, delta=1e-6)


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


def raw(*values, l2_squared=1):
    return Raw(np.array(values or (10, 20, 30), np.int64), Sensitivity(l2_squared, l2_squared))


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
