"""Differentially private gradient boosting on Dask."""

from importlib.metadata import version

from dpgb_dask import diagnose, io
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

# a schema is below all that reads rows: what its own `check` calls is handed down to it here
Schema.checked_by(diagnose.check)

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
