"""Explanations of a model, exact and complete: terms that add up to its score. Post-processing of released values.

`boxes` are the leaves of a forest, `decomposition` takes a model apart, `terms` puts the parts in the schema's words,
`overall` and `local` are what a user gets, `figures` is what `interpret.show` draws.
"""

from dpgb_dask.released.explain.local import LocalExplanation, explain_local
from dpgb_dask.released.explain.overall import (
    GlobalExplanation,
    explain_global,
    feature_importances,
)
from dpgb_dask.released.explain.terms import Axis, Term

__all__ = [
    "Axis",
    "GlobalExplanation",
    "LocalExplanation",
    "Term",
    "explain_global",
    "explain_local",
    "feature_importances",
]
