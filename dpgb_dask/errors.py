"""Every exception and warning class of the library.

Only *structure* raises (names, types, shapes, parameters): with a declared schema a *value* never does, because an
error is a release (DESIGN §1). No message here may carry a row's value, a count or a length.
"""


class DPGBError(Exception):
    """Base of every error raised by this library."""


class SchemaError(DPGBError, ValueError):
    """The schema is missing, malformed, or does not match the structure of the data."""


class UnsupportedCollectionError(DPGBError, TypeError):
    """The input is a collection that cannot be read (sparse, array query planning, …)."""


class StructureError(DPGBError, ValueError):
    """Inputs do not fit together (columns, number of rows or chunks); lengths are never printed."""


class PlanError(DPGBError, ValueError):
    """A recipe, a parameter or a budget that cannot be run; raised before anything is charged."""


class BudgetExceededError(DPGBError, ValueError):
    """An account or a plan has too little left for what is asked; nothing was charged."""


class LedgerError(DPGBError, RuntimeError):
    """The ledger refuses: unknown account, broken chain, rollback, wrong state of a fit."""


class LedgerUnavailableError(LedgerError):
    """The ledger cannot be reached or written, so nothing is charged and nothing released."""


class ResumeError(LedgerError):
    """A fit cannot be resumed: other plan, version, data or an unknown fit."""


class UnreleasedError(DPGBError, TypeError):
    """A sealed private value was used outside ``Controller.release``."""


class ShardError(DPGBError, RuntimeError):
    """A sum in which each shard does not appear exactly once."""


class ChunkError(DPGBError, RuntimeError):
    """A chunk of the source failed to load; names the chunk, never its content."""


class LostCodesError(DPGBError, RuntimeError):
    """Encoded rows are not here any more, or are damaged: whoever holds the source makes them again."""


class ScratchError(DPGBError, RuntimeError):
    """Scratch cannot be written (a full disk, no permission); the fit can be resumed once it can."""


class ClusterError(DPGBError, RuntimeError):
    """The cluster has no workers, or its scheduler went away; the fit can be resumed on another."""


class PrivacyLeakWarning(UserWarning):
    """An opted-in leak, such as ``schema="infer"``."""
