"""Differentially private gradient boosting on Dask."""

from importlib.metadata import version

from dpgb_dask import io
from dpgb_dask.contracts.schema import Categorical, Numeric, Schema
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.errors import (
    BudgetExceededError,
    ChunkError,
    DPGBError,
    LedgerError,
    LedgerUnavailableError,
    PlanError,
    PrivacyLeakWarning,
    ResumeError,
    SchemaError,
    ShardError,
    StructureError,
    UnreleasedError,
    UnsupportedCollectionError,
)
from dpgb_dask.estimators import DPGBClassifier, DPGBRegressor
from dpgb_dask.released.report import PrivacyReport

__version__ = version("dpgb_dask")

__all__ = [
    "BudgetExceededError",
    "Categorical",
    "ChunkError",
    "DPGBClassifier",
    "DPGBError",
    "DPGBRegressor",
    "Ledger",
    "LedgerError",
    "LedgerUnavailableError",
    "Numeric",
    "PlanError",
    "PrivacyLeakWarning",
    "PrivacyReport",
    "ResumeError",
    "Schema",
    "SchemaError",
    "ShardError",
    "StructureError",
    "UnreleasedError",
    "UnsupportedCollectionError",
    "__version__",
    "io",
]
