"""scikit-learn's checks over Dask inputs: what each check passes as arrays or frames, the estimator gets as Dask's."""
# ruff: noqa: N803, N806 - X is scikit-learn's name

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

PARTS = 2  # chunks of each collection
METHODS = ("predict", "predict_proba", "decision_function", "score")
_made: dict[type, type] = {}


def parametrize_with_dask_checks(
    estimators: Sequence[Any],
    *,
    expected_failed_checks: Callable[[Any], dict[str, str]] | None = None,
) -> Any:
    """Return a pytest mark for all of scikit-learn's checks over Dask inputs, as `parametrize_with_checks` does.

    Parameters
    ----------
    estimators : sequence of estimators
        Instances, not classes.
    expected_failed_checks : callable, optional
        From an estimator to a dict of the name of a check to the reason why it fails. One that passes all the same is a
        failure under pytest's ``xfail_strict``.

    Returns
    -------
    decorator : `pytest.mark.parametrize`
        Of the arguments ``estimator`` and ``check``. The estimator's class is derived from the given one: arrays become
        Dask Arrays and frames Dask DataFrames, in two chunks each, before ``fit``, ``predict`` and the like are called,
        and what these return is computed. Lists and objects of other kinds are passed as they are.

    Examples
    --------
    >>> from dpgb_dask import DPGBClassifier
    >>> from dpgb_dask.testing import SeededNoise, parametrize_with_dask_checks
    >>> model = DPGBClassifier(schema="infer", noise=SeededNoise(0))
    >>> @parametrize_with_dask_checks([model])
    ... def test_sklearn_check_passes_on_dask(estimator, check):
    ...     check(estimator)
    """
    from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: PLC0415

    return parametrize_with_checks(
        [on_dask(estimator) for estimator in estimators],
        expected_failed_checks=expected_failed_checks,
    )


def on_dask(estimator: Any) -> Any:
    """Return an estimator with the same parameters, which is given Dask collections."""
    return _class_on_dask(type(estimator))(**estimator.get_params(deep=False))


def _class_on_dask(kind: Any) -> Any:
    """Return a class derived from an estimator's, made once and named, so that it can be pickled."""
    if kind not in _made:
        name = f"{kind.__name__}OnDask"
        methods = {method: _computed(kind, method) for method in METHODS if hasattr(kind, method)}
        body = {"fit": _fit(kind), **methods, "__module__": __name__, "__doc__": kind.__doc__}
        _made[kind] = globals()[name] = type(name, (kind,), body)
    return _made[kind]


def _fit(kind: Any) -> Any:
    @wraps(kind.fit)
    def fit(self: Any, X: Any, y: Any = None, *args: Any, **named: Any) -> Any:
        X, (y, *args), named = _all_lazy(X, (y, *args), named)
        return kind.fit(self, X, y, *args, **named)

    return fit


def _computed(kind: Any, method: str) -> Any:
    inner = getattr(kind, method)

    @wraps(inner)
    def call(self: Any, X: Any, *args: Any, **named: Any) -> Any:
        X, args, named = _all_lazy(X, args, named)
        out = inner(self, X, *args, **named)
        return np.asarray(out.compute()) if hasattr(out, "compute") else out

    return call


def _all_lazy(X: Any, args: Any, named: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return X as Dask's, and with it what lies beside it; if X stays as it is, so does all."""
    lazy = _lazy(X)
    if lazy is X:
        return X, args, named
    return lazy, tuple(map(_beside, args)), {name: _beside(part) for name, part in named.items()}


def _beside(column: Any) -> Any:
    return _lazy(np.asarray(column) if isinstance(column, list | tuple) else column)


def _lazy(data: Any) -> Any:
    """Return an array or a frame in memory as Dask's; anything else as it is."""
    import dask.array as da  # noqa: PLC0415 - `SeededNoise` needs none of it
    import dask.dataframe as dd  # noqa: PLC0415
    import pandas as pd  # noqa: PLC0415

    if isinstance(data, pd.DataFrame | pd.Series) and len(data):
        return dd.from_pandas(data, npartitions=PARTS, sort=False)
    if isinstance(data, np.ndarray) and data.ndim and data.size:
        rows = -(-len(data) // PARTS)
        return da.from_array(data, chunks=(rows, *data.shape[1:]))
    return data
