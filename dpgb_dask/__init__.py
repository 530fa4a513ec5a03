"""Differentially private gradient boosting on Dask."""

from importlib.metadata import version

from dpgb_dask import io
from dpgb_dask.contracts.schema import Categorical, Numeric, Schema
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.errors import (
    BudgetExceededError,
    ChunkError,
    DPGBError,
    FewRowsWarning,
    LedgerError,
    LedgerUnavailableError,
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
from dpgb_dask.estimators import DPGBClassifier, DPGBRegressor
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.verification import verify

__version__ = version("dpgb_dask")

__all__ = [
    "BudgetExceededError",
    "Categorical",
    "ChunkError",
    "DPGBClassifier",
    "DPGBError",
    "DPGBRegressor",
    "FewRowsWarning",
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
    "UnreadValuesWarning",
    "UnreleasedError",
    "UnsupportedCollectionError",
    "VerificationError",
    "__version__",
    "io",
    "verify",
]
