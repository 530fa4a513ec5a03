"""Calls with other arguments than they take: the error names the public class, and what may be meant."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import ParamSpec, TypeVar

from dpgb_dask.errors import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

# what other libraries, or a guess, call a parameter of ours: of the estimators as in docs/parameters.md
ELSEWHERE = {
    name: ours
    for ours, names in {
        "epsilon": "eps",
        "schema": "privacy_bounds privacy_target_min privacy_target_max",
        "recipe": "booster tree_method boosting",
        "loss": "objective",
        "n_estimators": "max_iter max_rounds num_boost_round num_iterations n_rounds",
        "learning_rate": "eta",
        "max_depth": "max_leaves",
        "max_bins": "max_bin",
        "class_weight": "scale_pos_weight is_unbalance",
        "monotonic_cst": "monotone_constraints",
        "interaction_cst": "interaction_constraints interactions exclude",
        "columns": "feature_names",
        "random_state": "seed random_seed",
        "verbose": "verbosity",
        "callbacks": "callback",
        "classes": "labels",
        "target_bounds": "bounds",
        "target": "y label",
        "unit_id": "unit",
        "low": "min lower",
        "high": "max upper",
        "categories": "values levels",
        "first": "start",
        "last": "end",
        "buckets": "n_buckets",
        "delimiter": "sep",
        "n": "n_samples n_rows",
        "quantile": "alpha q",
    }.items()
    for name in names.split()
}
# what belongs not to an estimator, but to its schema or its fit
OF_SCHEMA = ("features", "classes", "target_bounds", "target", "ignore", "max_weight")
OF_FIT = ("sample_weight", "resume")
CLOSE = 0.7  # a keyword this like one of ours is a misspelt one


def spoken(function: Callable[P, T]) -> Callable[P, T]:
    """Let a call with other arguments than a function takes name what is called, and what may be meant.

    Python would name the class that a method is written in, which may be no public one. The signature stays what it is:
    scikit-learn reads the parameters of an estimator from it.

    Raises
    ------
    TypeError
        If the arguments are others than the function takes; it names keywords and no values.
    """
    takes = signature(function)
    owned = next(iter(takes.parameters), None) in ("self", "cls")

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            takes.bind(*args, **kwargs)
        except TypeError as error:
            lacks_object = owned and not args  # as DPGBClassifier.fit(): of which class is not told
            way_out = (
                " Call it on an object." if lacks_object else _way_out(kwargs, takes, str(error))
            )
            named = function.__name__
            if owned and args:
                kind = args[0] if isinstance(args[0], type) else type(args[0])
                named = kind.__name__ + ("" if named == "__init__" else f".{named}")
            wrong = f"{named}() {error}.{way_out}"
        else:
            return function(*args, **kwargs)
        raise TypeError(wrong)

    return call


def spoken_init(kind: C) -> C:
    """Do the same for the constructor of a dataclass, which is written nowhere."""
    kind.__init__ = spoken(kind.__init__)  # type: ignore[misc]
    return kind


def _way_out(given: Mapping[str, object], takes: Signature, wrong: str) -> str:
    """Return what to give instead of an unknown keyword, or of arguments that are not to be given by position."""
    known = [name for name in takes.parameters if name not in ("self", "cls")]
    all_known = f" It takes {', '.join(known) or 'nothing'}."
    for name in given:
        if name not in known:
            if ELSEWHERE.get(name) in known:
                said = "It" if repr(name) in wrong else repr(name)
                return f" {said} is {ELSEWHERE[name]!r} here."
            if "schema" in known and name in OF_SCHEMA:
                return f" Declare it in the schema: Schema(..., {name}=...)."
            if "schema" in known and name in OF_FIT:
                return f" Give it to fit: fit(X, y, {name}=...)."
            return did_you_mean(name, known, CLOSE) or all_known
    if "positional" not in wrong:
        return ""
    by_name = any(own.kind is Parameter.KEYWORD_ONLY for own in takes.parameters.values())
    return " Give the rest by name." if by_name else all_known
