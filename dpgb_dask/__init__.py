"""Differentially private gradient boosting on Dask.

Names are loaded when they are first used: the package itself imports none of NumPy, Dask and scikit-learn, and a worker
that encodes rows needs neither scikit-learn nor a ledger.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpgb_dask.errors import (
    BudgetExceededError,
    ChunkError,
    DPGBError,
    DPGBWarning,
    FewRowsWarning,
    LargeDeltaWarning,
    LedgerError,
    LedgerLostError,
    LedgerMissingError,
    LedgerUnavailableError,
    MaxWeightWarning,
    PlanError,
    PrivacyLeakWarning,
    ResumeError,
    SchemaError,
    ShardError,
    StructureError,
    UnreadValuesWarning,
    UnreleasedError,
    UnsupportedCollectionError,
    VerificationError,
)

if TYPE_CHECKING:
    from dpgb_dask import datasets, io, losses, plots, recipes, testing
    from dpgb_dask.contracts.features import Bool, Categorical, Datetime, Grouped, Hashed, Numeric
    from dpgb_dask.contracts.schema import Schema
    from dpgb_dask.controller.ledger import Ledger
    from dpgb_dask.estimators import DPGBClassifier, DPGBRegressor
    from dpgb_dask.plots import plot_budget
    from dpgb_dask.released.report import PrivacyReport
    from dpgb_dask.verification import verify

__version__: str

__all__ = [
    "Bool",
    "BudgetExceededError",
    "Categorical",
    "ChunkError",
    "DPGBClassifier",
    "DPGBError",
    "DPGBRegressor",
    "DPGBWarning",
    "Datetime",
    "FewRowsWarning",
    "Grouped",
    "Hashed",
    "LargeDeltaWarning",
    "Ledger",
    "LedgerError",
    "LedgerLostError",
    "LedgerMissingError",
    "LedgerUnavailableError",
    "MaxWeightWarning",
    "Numeric",
    "PlanError",
    "PrivacyLeakWarning",
    "PrivacyReport",
    "ResumeError",
    "Schema",
    "SchemaError",
    "ShardError",
    "StructureError",
    "UnreadValuesWarning",
    "UnreleasedError",
    "UnsupportedCollectionError",
    "VerificationError",
    "__version__",
    "datasets",
    "io",
    "losses",
    "plot_budget",
    "plots",
    "recipes",
    "testing",
    "verify",
]

# what is loaded when it is first used: modules, and where other names are
_MODULES = ("datasets", "io", "losses", "plots", "recipes", "testing")
_LATER = {
    **dict.fromkeys(
        ("Bool", "Categorical", "Datetime", "Grouped", "Hashed", "Numeric"),
        "dpgb_dask.contracts.features",
    ),
    "Schema": "dpgb_dask.contracts.schema",
    "DPGBClassifier": "dpgb_dask.estimators",
    "DPGBRegressor": "dpgb_dask.estimators",
    "Ledger": "dpgb_dask.controller.ledger",
    "PrivacyReport": "dpgb_dask.released.report",
    "plot_budget": "dpgb_dask.plots",
    "verify": "dpgb_dask.verification",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - it takes longer than all of this module

        return version("dpgb_dask")
    if name in _MODULES:
        return import_module(f"dpgb_dask.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
