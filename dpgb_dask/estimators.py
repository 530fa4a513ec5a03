"""`DPGBClassifier` and `DPGBRegressor`: the scikit-learn and dask-ml face. No algorithm in here."""
# ruff: noqa: N803, N806 - X is scikit-learn's name

import math
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import pandas as pd
from dask.base import compute, is_dask_collection
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from tqdm import tqdm

from dpgb_dask import diagnose, losses, recipes
from dpgb_dask.columns import Columns, check_choice, default_names, in_order, n_columns
from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.model import SCORE_ONE, Model
from dpgb_dask.contracts.plan import Budget, NoisyCount, Plan, Shape, Unread, weight_bits_for
from dpgb_dask.contracts.schema import MAX_WEIGHT, Categorical, Numeric, Schema
from dpgb_dask.controller import accounting, analyses
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.noise import NoiseSource
from dpgb_dask.controller.pld import compared
from dpgb_dask.controller.records import Gaussian, records_of
from dpgb_dask.errors import (
    DPGBError,
    FewRowsWarning,
    PlanError,
    PrivacyLeakWarning,
    SchemaError,
    StructureError,
    UnreadValuesWarning,
)
from dpgb_dask.gradients import GRAD_BITS
from dpgb_dask.losses import LINKS, Loss
from dpgb_dask.private.ingest import column_of, read_source
from dpgb_dask.released import explain, export
from dpgb_dask.released.predict import Codes, OfCodes, RowFunction, apply, scorer
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training import config
from dpgb_dask.training.build import build
from dpgb_dask.training.claims import check_claims, relation
from dpgb_dask.training.fit import Asked, FitResult
from dpgb_dask.training.fit import fit as run_fit

INFER = "infer"
GOOD_SCORE_EPSILON = 20.0  # from here on the scores that scikit-learn's checks ask for are reached
SAVED = (
    "epsilon",
    "delta",
    "loss",
    "n_estimators",
    "learning_rate",
    "max_depth",
    "max_bins",
    "unit_id",
    "max_rows_per_unit",
    "columns",
    "on_few_rows",
)
FEW_ROWS = ("stop", "continue")
SUSPECT_SHARE = 0.5  # of rows unread: above it for sure, the declared type is asked about …
EXPECTED_SHARE = 0.95  # … or above this of missing values, where the schema expects some
SURE_SD = 3.0  # standard deviations of noise
ASSUMPTIONS = (
    "The facts above are known to the reader without looking at the rows.",
    "delta is a constant that was chosen without looking at the rows.",
    "Whoever runs the cluster and reads its memory, disks and dashboard is trusted; the reader of the model is not.",
    "The keyed noise stream (ChaCha20) cannot be told from random bits.",
)
CLEAR_PULL = (
    0.1  # AUC leaves .5 at this on simulated rows, for `auto` and the papers' recipes alike
)
MOST_COMPARED = 100.0  # an ε above which nothing is private, whichever accountant says so
COMPARED_DELTA = 1e-6  # a public constant: where pure recipes, which have no delta, are compared
ONE_ROW = "One person has at most one row."
SAME_ORDER = (
    "Rows are drawn by their place in the source. A source that gives other rows, or another order, when it is read"
    " again is noticed, but for a chance of 2**-32, and the fit stops."
)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class PrivacyCost:
    """What a fit will cost, known before any data are touched.

    Parameters
    ----------
    epsilon, delta : float
        delta is 0 for a recipe of pure differential privacy.
    mu : float
        The same as one Gaussian number (GDP).
    epsilon_zcdp : float
        ε at the same delta by zero-concentrated accounting; of a pure recipe, epsilon itself.
    account : str or None
    share : float or None
        Part of what is left in the account, 1 for all of it; None without an account.
    pure : bool
        Whether the recipe is purely ε-differentially private.
    """

    epsilon: float
    delta: float
    mu: float
    epsilon_zcdp: float
    account: str | None = None
    share: float | None = None
    pure: bool = False

    def __str__(self) -> str:
        text = f"epsilon={self.epsilon:g}, delta={self.delta:g} (μ={self.mu:.6g}; "
        text += "pure)" if self.pure else f"by zCDP epsilon={self.epsilon_zcdp:.4g})"
        if self.share is None:
            return text
        return f"{text}: {100 * self.share:.1f} % of what is left in account {self.account!r}"


# functions from a model to a function of codes: what is computed for each row (see RowFunction)


@dataclass(frozen=True)
class _Labels:
    """Most probable class of each row."""

    classes: NDArray[Any]

    def __call__(self, model: Model) -> OfCodes:
        score = scorer(model)
        even = _even_score(model)

        def labels(codes: Codes) -> NDArray[Any]:
            values = score(codes)
            if model.n_scores == 1:
                return np.asarray(self.classes[(values[:, 0] > even).astype(np.intp)])
            return np.asarray(self.classes[values.argmax(axis=1)])

        return labels


def _even_score(model: Model) -> int:
    """Return the score, in steps, at which two classes are equally probable."""
    return SCORE_ONE // 2 if model.link == "probability" else 0


def _probabilities(model: Model) -> OfCodes:
    """Probabilities of all classes, by the model's link."""
    score, link = scorer(model), LINKS[model.link]

    def probabilities(codes: Codes) -> NDArray[np.float64]:
        return link(score(codes) / SCORE_ONE)

    return probabilities


def _decisions(model: Model) -> OfCodes:
    """Scores in natural units, one column per class for multiclass."""
    score = scorer(model)
    even = _even_score(model)

    def decisions(codes: Codes) -> NDArray[np.float64]:
        values = score(codes)
        return values / SCORE_ONE if model.n_scores > 1 else (values[:, 0] - even) / SCORE_ONE

    return decisions


@dataclass(frozen=True)
class _Values:
    """Prediction of a regressor, scaled back by the public bounds and kept inside them."""

    low: float
    high: float

    def __call__(self, model: Model) -> OfCodes:
        score, link = scorer(model), LINKS[model.link]
        if model.link == "log":  # shares of the upper bound
            middle, half = 0.0, self.high
        else:  # halves first, so that two huge bounds do not overflow
            middle, half = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2

        def values(codes: Codes) -> NDArray[np.float64]:
            return np.clip(middle + half * link(score(codes) / SCORE_ONE), self.low, self.high)

        return values


@dataclass(frozen=True)
class _Facts:
    """What a fit runs on, after the schema is settled."""

    X: Any
    y: Any
    weight: Any
    shape: Shape


class _Boosting(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share."""

    _kinds: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        schema: Any = None,
        recipe: Any = "auto",
        ledger: Ledger | None = None,
        account: str | None = None,
        unit_id: str | None = None,
        max_rows_per_unit: int = 1,
        loss: str | Loss | None = None,
        n_estimators: int | None = None,
        learning_rate: float | None = None,
        max_depth: int | None = None,
        max_bins: int | None = None,
        columns: Columns = None,
        on_few_rows: str = "stop",
        cache: str | Path = "auto",
        memory_limit: int | str | None = None,
        random_state: Any = None,
        noise: NoiseSource | None = None,
        verbose: int = 0,
        callbacks: Sequence[Progress] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.recipe = recipe
        self.ledger = ledger
        self.account = account
        self.unit_id = unit_id
        self.max_rows_per_unit = max_rows_per_unit
        self.loss = loss
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.max_bins = max_bins
        self.columns = columns
        self.on_few_rows = on_few_rows
        self.cache = cache
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.noise = noise
        self.verbose = verbose
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = False
        return tags

    def _scores_poorly(self) -> bool:
        """Return whether the score on a few hundred rows, as in scikit-learn's checks, has to be poor."""
        number = isinstance(self.epsilon, int | float)
        return not (number and self.epsilon >= GOOD_SCORE_EPSILON)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, resume: str | None = None) -> Self:
        """Fit under (epsilon, delta)-differential privacy.

        Parameters
        ----------
        X : array-like, DataFrame, dask Array or DataFrame, DataArray, zarr Array, (n_rows, n_features)
            Arrays without names match the schema as ``columns`` says.
        y : collection of (n_rows,)
            Its rows are those of X by position: an index is not looked at, as its labels are values.
        sample_weight : collection of (n_rows,), optional
            By position too; clipped to the schema's ``max_weight``, which multiplies the noise.
        resume : str, optional
            ``fit_id_`` of a fit that was interrupted: goes on with it, without a new charge.

        Returns
        -------
        self

        Raises
        ------
        SchemaError, StructureError, UnsupportedCollectionError
            If the schema is missing or the structure of the data does not fit it.
        PlanError
            If a parameter cannot be run.
        BudgetExceededError, LedgerError
            If the account has too little left, or the ledger refuses. Nothing more is charged; a fit that was charged
            before says so, and how to go on with it.

        Warns
        -----
        FewRowsWarning, UnreadValuesWarning
            By released numbers alone: the fit ended with the start model, or most values of a feature are unread.

        Privacy
        -------
        Everything this object holds afterwards is (epsilon, delta)-differentially private for adding or removing one
        row. The whole fit is charged before the data are read. Under a declared schema no value of a row raises or
        warns.
        """
        budget = self._budget()
        self._check_ledger()
        execution = config.execution(self.cache, self.memory_limit)
        seed = self._seed()
        facts = self._facts(X, y, sample_weight)
        schema = facts.shape.schema
        if self.ledger is not None and not schema.private:
            raise PlanError(
                "schema has private=False: its facts were read from data by schema='infer', so it cannot charge a"
                " ledger account. Declare the facts from public knowledge."
            )
        plan = self._plan(facts.shape.kind, self._loss(facts.shape.kind))
        source = read_source(facts.X, facts.y, facts.weight, schema, schema.unit_id)
        with _Bar(self.verbose, self.callbacks) as progress:
            result = run_fit(
                source,
                shape=facts.shape,
                plan=plan,
                budget=budget,
                ledger=self.ledger,
                account=self.account,
                noise=self.noise,
                seed=seed,
                execution=execution,
                progress=progress,
                resume=resume,
                describe=lambda found: self._file(
                    schema, found.model, _report(found, plan, facts.shape)
                ),
            )
        assert result.file is not None
        self._adopt(schema, result.model, result.file.report)
        if result.stopped:
            warnings.warn(_few_rows(result), FewRowsWarning, stacklevel=2)
        for text in _unread(result, schema):
            warnings.warn(text, UnreadValuesWarning, stacklevel=2)
        return self

    def _adopt(self, schema: Schema, model: Model, report: PrivacyReport) -> None:
        """Take released values as the fitted attributes."""
        self.schema_ = schema
        self.model_ = model
        self.privacy_report_ = report
        self.fit_id_ = report.fit_id
        if not self._infers():  # else scikit-learn's own checks set them
            self.n_features_in_ = schema.n_features
            self.feature_names_in_ = np.asarray(schema.names, dtype=object)
        if schema.target.classes:
            labels = list(schema.target.classes)
            uniform = len({type(label) for label in labels}) == 1
            self.classes_ = np.asarray(labels, dtype=None if uniform else object)

    def _file(self, schema: Schema, model: Model, report: PrivacyReport) -> export.ModelFile:
        """Return what is saved, with the parameters of now: those that act in ``predict`` are among them."""
        parameters = {name: getattr(self, name) for name in SAVED}
        parameters["recipe"] = report.recipe
        parameters["loss"] = _loss_to_json(self.loss)
        parameters["columns"] = check_choice(self.columns)
        return export.ModelFile(
            estimator=type(self).__name__,
            parameters=parameters,
            schema=schema,
            model=model,
            report=report,
        )

    def _infers(self) -> bool:
        """Return whether the schema is to be read from the data."""
        return isinstance(self.schema, str) and self.schema == INFER

    def _budget(self) -> Budget:
        return Budget(epsilon=self.epsilon, delta=self.delta)

    def _check_ledger(self) -> None:
        """Refuse combinations of ledger, account, noise and schema that cannot be charged."""
        if (self.ledger is None) != (self.account is None):
            given, lacking = ("account", "ledger") if self.ledger is None else ("ledger", "account")
            raise PlanError(f"{given} is given without {lacking}. Give both, or neither.")
        if self.ledger is None:
            return
        if not isinstance(self.ledger, Ledger):
            raise PlanError(f"ledger is a {type(self.ledger).__name__}. Give a dpgb_dask.Ledger.")
        if self.noise is not None:
            raise PlanError(
                f"noise={type(self.noise).__name__} cannot charge a ledger account: a key that is not made by the"
                " library may be known to others. Leave noise=None, or leave ledger and account out."
            )
        if self._infers():
            raise PlanError(
                "schema='infer' reads the data and is not private: it cannot charge a ledger account."
            )

    def _seed(self) -> int:
        """Return the public seed: of feature partitions and random trees, never of noise."""
        state = self.random_state
        if state is None:
            return secrets.randbits(62)
        if isinstance(state, int | np.integer) and not isinstance(state, bool):
            if state < 0:
                raise PlanError(f"random_state={state!r} must not be negative.")
            return int(state)
        try:
            return int(check_random_state(state).randint(2**31 - 1))
        except ValueError as error:
            raise PlanError(
                f"random_state={state!r} must be None, a whole number or a RandomState."
            ) from error

    def _loss(self, kind: str) -> Loss:
        """Return the loss as an object."""
        return losses.default_loss(kind) if self.loss is None else losses.get(self.loss)

    def _recipe(self) -> str | Plan:
        if not isinstance(self.recipe, str | Plan):
            raise PlanError(f"recipe is a {type(self.recipe).__name__}. Give a name or a Plan.")
        return self.recipe

    def _plan(self, kind: str, loss: Loss) -> Plan:
        given = {
            name: getattr(self, name)
            for name in ("max_bins", "learning_rate", "n_estimators", "max_depth")
        }
        # a grid of parameters often is a NumPy array
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        plan = recipes.get(self._recipe(), kind=kind, loss=loss, **plain)
        if self.on_few_rows not in FEW_ROWS:
            raise PlanError(
                f"on_few_rows={self.on_few_rows!r} is unknown. Choose 'stop' or 'continue'."
            )
        if self.on_few_rows == "stop" and not self._infers():  # facts of public data need no proof
            return plan
        return replace(plan, stops_on_few_rows=False)

    def _declared(self) -> Schema:
        """Return the declared schema as an object."""
        given = self.schema
        if given is None:
            raise SchemaError(
                "schema is missing. Give a dpgb_dask.Schema, its JSON form or file with the public names, bounds and"
                " categories of the columns; or schema='infer' for public data (it reads the data and is not private)."
            )
        if isinstance(given, Schema):
            schema = given
        elif isinstance(given, Mapping):
            schema = Schema.from_dict(given)
        elif isinstance(given, str | Path):
            schema = Schema.load(given)
        else:
            raise SchemaError(
                f"schema is a {type(given).__name__}. Give a Schema, a dict or a path."
            )
        if schema.target.type not in self._kinds:
            raise SchemaError(
                f"target type={schema.target.type!r} is not for {type(self).__name__}, which takes"
                f" {' or '.join(self._kinds)}."
            )
        return schema

    def _with_unit(self, schema: Schema) -> Schema:
        """Return the schema with the column that names the privacy unit, if there is one."""
        most: Any = self.max_rows_per_unit
        unit = self.unit_id
        whole = isinstance(most, int | np.integer) and not isinstance(most, bool)
        if not whole or not 1 <= most <= MAX_WEIGHT:
            raise PlanError(
                f"max_rows_per_unit={most!r} must be a whole number in [1, {MAX_WEIGHT}]."
            )
        if unit is None or unit == schema.unit_id:
            if schema.unit_id is None and most != 1:
                raise PlanError(
                    f"max_rows_per_unit={most!r} needs a unit_id: without one, each row is a unit."
                )
            return schema
        if schema.unit_id is not None:
            raise SchemaError(
                f"unit_id={unit!r} is not the schema's unit_id={schema.unit_id!r}. Name one of them."
            )
        facts = schema.to_dict()
        facts["ignore"] = [name for name in facts["ignore"] if name != unit]
        return Schema.from_dict(facts | {"unit_id": unit})

    def _facts(self, X: Any, y: Any, sample_weight: Any) -> _Facts:
        if self._infers():
            if isinstance(check_choice(self.columns), list):
                raise PlanError(
                    f"columns={self.columns!r} needs a declared schema, not schema='infer'."
                )
            if self.unit_id is not None:
                raise PlanError(
                    f"unit_id={self.unit_id!r} needs a declared schema, not schema='infer'."
                )
            return self._inferred(X, y, sample_weight)
        schema = self._with_unit(self._declared())
        if y is None:
            raise StructureError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        columns = check_choice(self.columns)
        X = _table_of(X, n_columns(columns, schema)) if isinstance(X, list | tuple) else X
        X = in_order(X, schema, columns, beside=True)
        y, sample_weight = (
            column_of(part) if isinstance(part, list | tuple) else part
            for part in (y, sample_weight)
        )
        return _Facts(X, y, sample_weight, self._shape(schema, weighted=sample_weight is not None))

    def _shape(self, schema: Schema, *, weighted: bool) -> Shape:
        """Return what decides queries beside the plan; sample weights are fractions of the largest."""
        loss = self._loss(schema.target.type)
        most = schema.max_weight if weighted else None
        if schema.unit_id is not None:
            most = int(self.max_rows_per_unit)
        if most is None:
            return Shape(schema=schema, loss=loss)
        return Shape(schema=schema, weight_bits=weight_bits_for(most), max_weight=most, loss=loss)

    def _plans(self) -> list[tuple[Plan, Shape]]:
        """Return the plan of the fit and what it ran on, as the parameters say: without sample weights, and with.

        Raises
        ------
        PlanError
            If the recipe is a plan of the user's own, of which only the name is known.
        """
        kind = self.schema_.target.type
        plan = self._plan(kind, self._loss(kind))
        return [(plan, self._shape(self.schema_, weighted=weighted)) for weighted in (False, True)]

    def _inferred(self, X: Any, y: Any, sample_weight: Any) -> _Facts:
        """Read the schema from the data, after scikit-learn's own checks. Not private."""
        if not isinstance(self.noise, SeededNoise):
            message = "schema='infer' reads bounds, categories and classes from the data: the model is not private."
            warnings.warn(message, PrivacyLeakWarning, stacklevel=4)
        if is_dask_collection(X) or is_dask_collection(y):
            validate_data(self, X, skip_check_array=True)
            schema = diagnose.infer(X, y, classification="numeric" not in self._kinds)
            if sample_weight is not None:
                raise PlanError(
                    "schema='infer' takes no sample_weight with Dask collections. Declare a schema."
                )
            loss = self._loss(schema.target.type)
            return _Facts(X, y, None, Shape(schema=schema, loss=loss))
        X, y = self._validated(X, y)
        weight, weight_bits, most = None, 0, 1
        if sample_weight is not None:
            weight = _valid_weight(sample_weight, len(X))
            rows, weight = _repetition(weight)
            X = X.iloc[rows] if isinstance(X, pd.DataFrame) else X[rows]
            y = y[rows]
            if weight is not None:
                most = int(np.ceil(weight.max()))
                weight_bits = weight_bits_for(most)
        names = getattr(
            self, "feature_names_in_", None
        )  # set by the checks just now, if X has names
        schema = diagnose.infer(X, y, classification="numeric" not in self._kinds, names=names)
        loss = self._loss(schema.target.type)
        shape = Shape(schema=schema, weight_bits=weight_bits, max_weight=most, loss=loss)
        return _Facts(X, y, weight, shape)

    def _validated(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        """Run scikit-learn's checks on in-memory input."""
        options: dict[str, Any] = {
            "ensure_all_finite": "allow-nan",
            "y_numeric": "numeric" in self._kinds,
        }
        if isinstance(X, pd.DataFrame) and _has_text(X):
            validate_data(self, X, skip_check_array=True)
            if y is None or len(X) != len(y):
                raise StructureError("X and y must have the same number of rows.")
            y = column_or_1d(y, warn=True)
        else:
            X, y = validate_data(self, X, y, **options)
        if "numeric" not in self._kinds:
            check_classification_targets(y)
        return X, y

    def _rows(self, X: Any) -> Any:
        """Check rows to predict; scikit-learn's own checks only for an inferred schema."""
        check_is_fitted(self)
        if not self._infers():
            return in_order(X, self.schema_, self.columns)
        if is_dask_collection(X) or (isinstance(X, pd.DataFrame) and _has_text(X)):
            validate_data(self, X, reset=False, skip_check_array=True)
            return X
        return validate_data(self, X, reset=False, ensure_all_finite="allow-nan")

    def _apply(
        self, X: Any, prepare: Any, dtype: Any, columns: tuple[Any, ...] | None = None
    ) -> Any:
        X = self._rows(X)
        function = RowFunction(self.model_, self.schema_, prepare)
        return apply(function, X, np.dtype(dtype), columns)

    def privacy_cost(self) -> PrivacyCost:
        """Return what a fit will cost, touching no data.

        Returns
        -------
        PrivacyCost

        Raises
        ------
        PlanError
            If a parameter cannot be run, so far as that is known without a schema.
        """
        budget = self._budget()
        self._check_ledger()
        known = self.schema is not None and not self._infers()
        kind = self._declared().target.type if known else self._kinds[0]
        pure = self._plan(kind, self._loss(kind)).pure
        price = accounting.total_price(budget.epsilon, budget.delta, pure=pure)
        share = None
        if self.ledger is not None and self.account is not None:
            account = self.ledger.account(self.account)
            charge = analyses.charge(price, pure=pure, analysis=account.analysis)
            share = charge / account.left if account.left else math.inf
        if pure:
            mu, zcdp = accounting.mu_of_pure(budget.epsilon), budget.epsilon
        else:
            mu = accounting.mu_of_price(price)
            zcdp = accounting.zcdp_epsilon(mu, budget.delta)
        delta = 0.0 if pure else budget.delta
        return PrivacyCost(budget.epsilon, delta, mu, zcdp, self.account, share, pure)

    def _scale(self) -> float:
        """Return natural units of one unit of score."""
        target = self.schema_.target
        return (target.high - target.low) / 2 if self.model_.link == "identity" else 1.0

    def explain_global(self) -> list[dict[str, Any]]:
        """Return the shape functions and pair tables of the additive part.

        Returns
        -------
        list of dict
            See `dpgb_dask.released.explain.explain_global`. Scores are log-odds, units of the target, or logarithms of
            it (loss="poisson").

        Privacy
        -------
        Post-processing of released values.
        """
        check_is_fitted(self)
        return explain.explain_global(self.model_, self.schema_, self._scale())

    def explain_local(self, X: Any) -> dict[str, Any]:
        """Return what each term adds to the prediction of each row.

        Parameters
        ----------
        X : collection of rows; lazy on Dask

        Returns
        -------
        dict
            ``names``, ``intercept`` and ``scores`` (n_rows, n_terms).

        Privacy
        -------
        Post-processing; the rows are the caller's own.
        """
        X = self._rows(X)
        return explain.explain_local(self.model_, self.schema_, X, self._scale())

    def save(self, path: str | Path) -> None:
        """Write the model as JSON: released values only.

        Parameters
        ----------
        path : str or Path

        Raises
        ------
        SchemaError, StructureError
            If a label is nothing that JSON holds, or the file cannot be written. The fit stays charged; a note of the
            exception says how to have its model again.
        """
        check_is_fitted(self)
        file = self._file(self.schema_, self.model_, self.privacy_report_)
        try:
            export.save(file, path)
        except DPGBError as error:
            if self.privacy_report_.account is not None:
                fit_id = self.fit_id_
                error.add_note(
                    f"Fit {fit_id} is charged and not lost: fit(..., resume={fit_id!r}), or the same command and"
                    f" --resume {fit_id}, gives its model again from its journal, without a new charge."
                )
            raise

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model file.

        Parameters
        ----------
        path : str or Path

        Returns
        -------
        A fitted estimator.

        Raises
        ------
        StructureError
            If the file is malformed, from a newer version, or of the other estimator.
        """
        return cls._of(export.load(path), path)

    @classmethod
    def _of(cls, file: export.ModelFile, path: str | Path) -> Self:
        if not file.report.unverified:
            check_claims(file.report, file.schema)
        if file.estimator != cls.__name__:
            raise StructureError(
                f"{str(path)!r} holds a {file.estimator}. Load it with {file.estimator}.load."
            )
        if file.schema.target.type not in cls._kinds:
            raise StructureError(
                f"Model file {str(path)!r} is malformed: its target is not for {cls.__name__}."
            )
        known = {
            name: file.parameters[name] for name in (*SAVED, "recipe") if name in file.parameters
        }
        known["loss"] = _loss_of_json(known.get("loss"), path)
        try:
            known["columns"] = check_choice(known.get("columns"))
        except PlanError:
            raise StructureError(f"Model file {str(path)!r} is malformed: its columns.") from None
        out = cls(**known, schema=file.schema if file.schema.private else INFER)
        out._adopt(file.schema, file.model, file.report)
        if not file.schema.private:
            names = file.schema.names
            out.n_features_in_ = len(names)
            if names != default_names(len(names)):
                out.feature_names_in_ = np.asarray(names, dtype=object)
        return out


class DPGBClassifier(ClassifierMixin, _Boosting):  # type: ignore[misc]
    """Differentially private gradient boosting for classification, on arrays, frames and Dask collections.

    Parameters
    ----------
    epsilon : float
        Privacy of the whole fit. Smaller is more private.
    delta : float
        A constant chosen in advance, well below one over the number of people; never computed from the data.
    schema : Schema, dict, path or "infer"
        Public names, bounds, categories and classes. "infer" reads them from the data, which is not private.
    recipe : str or Plan
        The method; "auto" is this project's own, the others are those of papers (`dpgb_dask.recipes.RECIPES`).
    ledger, account : Ledger and str, optional
        Where the fit is charged; without them an in-memory ledger keeps the order of effects.
    unit_id : str, optional
        Column of ``X`` that names the privacy unit (a person, a household); never a feature. Adding or removing all
        rows of a unit is what is protected. It takes no sample weights.
    max_rows_per_unit : int
        A unit with more rows than this has them weighted down to it; multiplies the noise.
    loss : str or Loss, optional
        By scikit-learn's name, or as a value of `dpgb_dask.losses`, such as ``Quantile(0.9)``; None for log-loss or the
        squared error. One that the recipe cannot serve raises and names recipes that can.
    n_estimators, learning_rate, max_depth, max_bins : optional
        Parameters of the recipe; None for its own value. One that the recipe does not have raises.
    columns : "position", list of str, optional
        What the columns of an array without names are, here and in ``predict``: "position" says that they are the
        schema's features in its order; a list names them in the array's order, and they are put into the schema's.
        None matches by position too, with a warning, as nothing in an array tells that its columns are others. Data
        with names are always matched by them.
    on_few_rows : {"stop", "continue"}
        What to do where the released number of rows is below three standard deviations of its own noise: end with the
        start model, charge only what was opened, and warn (`FewRowsWarning`); or go on, and say so in the report
        alone. Recipes that release no number of rows go on, and their report says that.
    cache : str or Path
        Where binned data are kept: "memory"; "disk", scratch in each worker's own folder; a folder; or the URL of a
        Zarr store that outlives workers, such as "s3://bucket/fit.zarr". "auto": in memory while they fit, else on
        disk. Scratch is gone when the fit ends, however it ends.
    memory_limit : int or str, optional
        Bytes that each process may hold, all it does included: a number, or a text such as "1GiB". None for what Dask
        grants a worker, or this machine has.
    random_state : int or RandomState, optional
        Public randomness only (partitions, random trees). It never seeds noise.
    noise : NoiseSource, optional
        None for the secret keyed source. `dpgb_dask.testing.SeededNoise` makes tests repeat and is not private.
    verbose : int
        1 shows a progress bar that counts rounds.
    callbacks : sequence of callables, optional
        Called with (stage, round, of how many) after each round.

    Attributes
    ----------
    classes_ : ndarray
        Declared classes, in declared order.
    model_, schema_ : Model and Schema
    privacy_report_ : PrivacyReport
    fit_id_ : str
    n_features_in_, feature_names_in_

    Notes
    -----
    Privacy: only released values are fitted attributes; all of them together are (epsilon, delta)-differentially
    private for adding or removing one row; (epsilon, 0) if the recipe is one of pure differential privacy.

    ``partial_fit`` and ``warm_start`` do not exist: each call would be a new release with a charge of its own.

    Examples
    --------
    >>> import numpy as np
    >>> from dpgb_dask import DPGBClassifier, Schema
    >>> X = np.arange(2000.0).reshape(-1, 1) % 100
    >>> y = (X[:, 0] > 50).astype(int)
    >>> schema = Schema({"x": (0, 100)}, classes=[0, 1])
    >>> settings = {"epsilon": 2.0, "delta": 1e-6, "schema": schema, "columns": "position"}
    >>> clf = DPGBClassifier(**settings).fit(X, y)
    >>> clf.predict([[5.0], [95.0]]).tolist()
    [0, 1]
    """

    _kinds = ("binary", "multiclass")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = self._scores_poorly()
        return tags

    def predict(self, X: Any) -> Any:
        """Return the most probable class of each row.

        Parameters
        ----------
        X : collection of rows

        Returns
        -------
        (n_rows,) labels; the type follows the input, lazy on Dask
        """
        check_is_fitted(self)
        return self._apply(X, _Labels(self.classes_), self.classes_.dtype)

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class, in the order of ``classes_``.

        Parameters
        ----------
        X : collection of rows

        Returns
        -------
        (n_rows, n_classes) float64; the type follows the input, lazy on Dask
        """
        check_is_fitted(self)
        return self._apply(X, _probabilities, np.float64, tuple(self.classes_.tolist()))

    def decision_function(self, X: Any) -> Any:
        """Return the score in log-odds units: positive for the second class; one column per class if several.

        Parameters
        ----------
        X : collection of rows

        Returns
        -------
        (n_rows,) or (n_rows, n_classes) float64
        """
        check_is_fitted(self)
        columns = tuple(self.classes_.tolist()) if self.model_.n_scores > 1 else None
        return self._apply(X, _decisions, np.float64, columns)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on rows of the caller's own; Dask collections are computed.

        Parameters
        ----------
        X, y : collections
        sample_weight : collection, optional

        Returns
        -------
        float

        Privacy
        -------
        An exact number about the rows given: outside the guarantee if they are private.
        """
        y, predicted, weight = compute(y, self.predict(X), sample_weight)
        return float(accuracy_score(np.asarray(y), np.asarray(predicted), sample_weight=weight))


class DPGBRegressor(RegressorMixin, _Boosting):  # type: ignore[misc]
    """Differentially private gradient boosting for regression, on arrays, frames and Dask collections.

    Parameters are those of `DPGBClassifier`; the schema declares the public bounds of the target.

    Notes
    -----
    Privacy: only released values are fitted attributes; all of them together are (epsilon, delta)-differentially
    private for adding or removing one row; (epsilon, 0) if the recipe is one of pure differential privacy.

    Examples
    --------
    >>> import numpy as np
    >>> from dpgb_dask import DPGBRegressor, Schema
    >>> X = np.arange(2000.0).reshape(-1, 1) % 100
    >>> schema = Schema({"x": (0, 100)}, target_bounds=(0, 200))
    >>> settings = {"epsilon": 2.0, "delta": 1e-6, "schema": schema, "columns": "position"}
    >>> reg = DPGBRegressor(**settings).fit(X, 2 * X[:, 0])
    >>> bool(reg.predict([[95.0]])[0] > reg.predict([[5.0]])[0])
    True
    """

    _kinds = ("numeric",)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = self._scores_poorly()
        return tags

    def predict(self, X: Any) -> Any:
        """Return the expected target of each row, inside its public bounds.

        Parameters
        ----------
        X : collection of rows

        Returns
        -------
        (n_rows,) float64; the type follows the input, lazy on Dask
        """
        check_is_fitted(self)
        target = self.schema_.target
        return self._apply(X, _Values(target.low, target.high), np.float64)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² on rows of the caller's own; Dask collections are computed.

        Parameters
        ----------
        X, y : collections
        sample_weight : collection, optional

        Returns
        -------
        float

        Privacy
        -------
        An exact number about the rows given: outside the guarantee if they are private.
        """
        y, predicted, weight = compute(y, self.predict(X), sample_weight)
        return float(r2_score(np.asarray(y), np.asarray(predicted), sample_weight=weight))


def load(path: str | Path) -> DPGBClassifier | DPGBRegressor:
    """Read a model file of either estimator.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    A fitted `DPGBClassifier` or `DPGBRegressor`.

    Raises
    ------
    StructureError
        If the file is malformed, from a newer version, or its digests or its claims do not agree.

    Notes
    -----
    A file that agrees with itself is evidence of nothing more: `dpgb_dask.verify` compares it with the ledger.
    """
    return of_file(export.load(path), path)


def of_file(file: export.ModelFile, path: str | Path) -> DPGBClassifier | DPGBRegressor:
    """Return the fitted estimator of a file that was read from a path; raises as `load` does."""
    if file.estimator == DPGBRegressor.__name__:
        return DPGBRegressor._of(file, path)  # noqa: SLF001
    return DPGBClassifier._of(file, path)  # noqa: SLF001


class _Bar:
    """Progress over rounds: a bar if verbose, and the callbacks."""

    def __init__(self, verbose: int, callbacks: Sequence[Progress] | None) -> None:
        given: Any = () if callbacks is None else callbacks
        if not isinstance(given, Sequence) or not all(map(callable, given)):
            raise PlanError(
                f"callbacks={given!r} must be a sequence of functions of (stage, round, of how many)."
            )
        self._callbacks = tuple(given)
        # the first fit after installation compiles the kernels for half a minute, and should not look stuck
        text = "reading rows, compiling kernels once"
        self._bar = tqdm(desc=text, unit="round") if verbose else None

    def __enter__(self) -> Progress:
        return self.show

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            if kind is None:  # stages ask at most what they declare: the end may come earlier
                self._bar.total = self._bar.n
                self._bar.refresh()
            self._bar.close()

    def show(self, stage: str, position: int, total: int) -> None:
        """Show one finished round."""
        if self._bar is not None:
            self._bar.set_description(stage, refresh=False)
            self._bar.total = total
            self._bar.update(position - self._bar.n)
        for callback in self._callbacks:
            callback(stage, position, total)


def _report(result: FitResult, plan: Plan, shape: Shape) -> PrivacyReport:
    """Write down what was asked, charged and assumed."""
    controller = result.controller
    schema, budget = shape.schema, controller.budget
    unit = schema.unit_id
    target = schema.target
    bounds = (
        f"in [{target.low:g}, {target.high:g}]"
        if target.type == "numeric"
        else f"one of {list(target.classes)}"
    )
    public = {
        "features": {name: _public(feature) for name, feature in schema.features.items()},
        "target": f"{target.name}: {bounds}",
        f"largest weight of a {'row' if unit is None else 'unit'}": shape.max_weight,
        "seed of public randomness": controller.public_seed,
    }
    return PrivacyReport(
        private=controller.private and schema.private,
        epsilon=budget.epsilon,
        delta=0.0 if plan.pure else budget.delta,
        mu=controller.mu,
        epsilon_zcdp=budget.epsilon
        if plan.pure
        else accounting.zcdp_epsilon(controller.mu, budget.delta),
        relation=relation(schema)[0],
        unit=relation(schema)[1],
        recipe=plan.name,
        source=plan.source,
        mends=plan.mends,
        fit_id=controller.fit_id,
        account=controller.account,
        receipts=controller.receipts,
        declared=controller.total,
        charged=controller.spent,
        slack=controller.slack,
        public=public,
        assumptions=(
            ONE_ROW if unit is None else f"All rows of one person have the same {unit!r}.",
            *((SAME_ORDER,) if plan.draws_rows and unit is None else ()),
            *ASSUMPTIONS,
        ),
        version=version("dpgb_dask"),
        pure=plan.pure,
        loss=_loss_in_words(result.asked, shape),
        signal=_signal_in_words(controller.receipts, result.asked, result.count),
        stopped=result.stopped,
        warnings=(
            *((_few_rows(result),) if result.count is not None and result.count.is_few else ()),
            *_unread(result, schema),
        ),
        shares=_shares(result, schema),
        draws=_draws(result.asked),
        build=build(),
        compared=_compared(controller.receipts, result.asked, budget, pure=plan.pure),
        compared_delta=COMPARED_DELTA if plan.pure else budget.delta,
    )


def _few_rows(result: FitResult) -> str:
    """Say that the number of rows cannot be told from none, and what was done. A released number, and its noise."""
    if not result.stopped:
        done = "The fit went on all the same."
    elif result.controller.account is None:
        done = "The fit ended with the start model."
    else:
        done = "The fit ended with the start model, and only what it had opened is charged."
    return (
        f"FEW ROWS: their released number is {result.count}, below three standard deviations of its noise, so that it"
        f" cannot be told from none. {done} Either there are few rows for this epsilon, or labels are none of the"
        " declared classes: schema.check(X, y), the owner's own look, counts them. Choose a larger epsilon, mend the"
        " labels, or go on with on_few_rows='continue'."
    )


def _shares(result: FitResult, schema: Schema) -> dict[str, dict[str, list[float]]]:
    """Return the released share of rows whose value is missing or "other", and the noise of each, per feature.

    Privacy
    -------
    Post-processing: released cells over the released number of rows.
    """
    count = result.count
    if count is None or count.is_few:  # a share of noise says nothing
        return {}
    out = {}
    for name, cells in zip(schema.names, result.unread, strict=False):
        found = {"missing": cells.missing, "other": cells.other}
        out[name] = {
            what: _share(rows, cells, count) for what, rows in found.items() if rows is not None
        }
    return out


def _share(rows: float, cells: Unread, count: NoisyCount) -> list[float]:
    """Return a share of the number of rows, and the standard deviation of its noise.

    The number of rows is a mean of sums of cells, weighed by their precision: a cell's noise is in it with the weight
    count.sd² / (n_cells · sd²), so the two are correlated.
    """
    share = rows / count.value
    variance = cells.sd**2 + (share**2 - 2 * share / cells.n_cells) * count.sd**2
    return [round(share, 6), round(math.sqrt(max(variance, 0.0)) / count.value, 6)]


def _unread(result: FitResult, schema: Schema) -> tuple[str, ...]:
    """Say which features are mostly missing or "other", which a wrong type or other categories would look like."""
    if not schema.private:  # their facts were read from the rows
        return ()
    suspects = []
    for name, found in _shares(result, schema).items():
        expected = EXPECTED_SHARE if schema.features[name].missing else SUSPECT_SHARE
        for what, limit in (("missing", expected), ("other", SUSPECT_SHARE)):
            share, sd = found.get(what, (0.0, 0.0))
            if share - SURE_SD * sd > limit:
                suspects.append(f"{name!r} ({what} {100 * share:.3g} %)")
    if not suspects:
        return ()
    return (
        "MOSTLY UNREAD: by released counts, most rows have no value that the schema can read in"
        f" {', '.join(suspects)}. Is it declared as what it is? schema.check(X), the owner's own look, tells.",
    )


def _draws(asked: Sequence[Asked | None]) -> tuple[list[Any] | None, ...]:
    """Return which rows served each release, where some were served by a draw."""
    rows = [None if part is None else part.rows for part in asked]
    if not any(rows):
        return ()
    return tuple(None if r is None else [r.kind, r.group, r.low, r.high] for r in rows)


def _compared(
    receipts: Sequence[Receipt], asked: Sequence[Asked | None], budget: Budget, *, pure: bool
) -> dict[str, float]:
    """Say what the releases would cost as a schedule fixed in advance, by accountant.

    Empty where that says nothing new: Gaussian noise on all rows costs by GDP what was charged, and no accountant finds
    less. Empty also for parts of the rows of which none is the dearest, and above `MOST_COMPARED`.

    Privacy
    -------
    Post-processing: receipts and draws. No charge goes by it.
    """
    if budget.epsilon > MOST_COMPARED:
        return {}
    draws = [None if part is None else part.rows for part in asked]
    records = records_of(receipts, draws, pure=pure)
    if not records or all(isinstance(r, Gaussian) and r.rate == 1 for r in records):
        return {}
    # the distance of discrete Gaussians to theirs takes its share of delta; discrete Laplace noise needs none
    share = 1.0 if pure else float(1 - accounting.SLACK)
    return compared(records, share * (COMPARED_DELTA if pure else budget.delta))


def _loss_in_words(asked: Sequence[Asked | None], shape: Shape) -> str:
    """Say how far a row can move a gradient sum, and whether a clip sees to it."""
    one = 1 << (GRAD_BITS + shape.weight_bits)
    bounds = [part.largest_grad / one for part in asked if part is not None and part.largest_grad]
    if not bounds:
        return shape.loss.name
    low, high = min(bounds), max(bounds)
    text = f"{high:.3g}" if high - low < 1e-3 * high else f"{low:.3g} to {high:.3g}"
    unit = {"identity": " of half the target's range", "log": " of the target's upper bound"}
    text = f"{shape.loss.name}; a row's gradient is at most {text}{unit.get(shape.loss.link(shape.kind), '')}"
    widest = shape.loss.largest_slope
    return f"{text}, by a clip ({widest:g} without)" if high < 0.99 * widest else text


def _signal_in_words(
    receipts: Sequence[Receipt], asked: Sequence[Asked | None], count: NoisyCount | None
) -> tuple[str, ...]:
    """Say how many rows the noise on one leaf weighs as much as, and with how few rows it drowns the leaves.

    A leaf is taken to be clear if its rows' net pull, a tenth of the most it could be, stands out of the noise of all
    releases together, which is √(how many) times smaller than that of one.

    Privacy
    -------
    Post-processing: receipts, queries and the noisy number of rows, which is compared and not printed.
    """
    stages: dict[str, list[tuple[float, float]]] = {}
    for receipt, part in zip(receipts, asked, strict=True):
        if part is not None and part.largest_grad and receipt.mechanism != "choice":
            sigma = receipt.sigma_steps / 2**receipt.scale_bits
            stage = receipt.label.split(" ")[0]
            stages.setdefault(stage, []).append((sigma / part.largest_grad, part.cell_share))
    out = []
    for stage, releases in stages.items():
        rows = min(rows for rows, _ in releases)
        share = max(share for _, share in releases)
        least = rows / math.sqrt(len(releases)) / share / CLEAR_PULL
        times = "" if len(releases) == 1 else f" in each of {len(releases)} releases"
        text = (
            f"{stage}: the noise on the sum of one leaf weighs as much as {rows:.3g} rows that all pull one way{times};"
            f" with fewer than about {least:.2g} rows in all, noise drowns the leaves."
        )
        if count is not None and max(count.value, 1.0) < least:
            text += " THAT IS SO HERE: choose a larger epsilon, or fewer leaves."
        out.append(text)
    if count is None:
        out.append(
            "The recipe releases no number of rows: a fit on none, as where no label is a declared class, looks like"
            " any other. schema.check(X, y), the owner's own look, counts them."
        )
    return tuple(out)


def _loss_to_json(loss: str | Loss | None) -> Any:
    """Return a loss as a name, or as a name and its options."""
    if loss is None or isinstance(loss, str) or type(loss) not in map(type, losses.LOSSES.values()):
        return getattr(loss, "name", loss)
    options = {item.name: getattr(loss, item.name) for item in fields(cast("Any", loss))}
    return {name: value for name, value in options.items() if name != "kinds"}


def _loss_of_json(data: Any, path: str | Path) -> str | Loss | None:
    if not isinstance(data, dict):
        return data if isinstance(data, str) else None
    try:
        known = losses.LOSSES[data["name"]]
        return replace(cast("Any", known), **data)
    except (KeyError, TypeError, ValueError) as error:
        raise StructureError(f"Model file {str(path)!r} is malformed: its loss.") from error


def _public(feature: Numeric | Categorical) -> str:
    """Return the public facts of a feature in words."""
    if isinstance(feature, Categorical):
        return f"{len(feature.categories)} declared categories, all others are 'other'"
    return f"{'whole numbers ' if feature.integer else ''}in [{feature.low:g}, {feature.high:g}]"


# A list has no type and no shape of its own: NumPy would choose them by its values. As objects, each value is read on
# its own, whatever its neighbours are.


def _table_of(rows: Sequence[Any], width: int) -> NDArray[np.object_]:
    """Return a list of rows as objects; only a row of another width raises."""
    for row in rows:
        is_row = isinstance(row, list | tuple | np.ndarray | pd.Series)
        if not is_row or getattr(row, "ndim", 1) != 1 or len(row) != width:
            raise StructureError(
                f"X is a list, and a row in it is not a list of {width} columns, as the schema declares. Give each row"
                " exactly the declared columns."
            )
    cells = (value for row in rows for value in row)
    return np.fromiter(cells, dtype=object, count=len(rows) * width).reshape(len(rows), width)


def _has_text(frame: pd.DataFrame) -> bool:
    """Return whether a frame has columns that scikit-learn would not turn into numbers."""
    return any(
        not (pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype))
        for dtype in frame.dtypes
    )


def _valid_weight(sample_weight: Any, n_rows: int) -> NDArray[np.float64]:
    weight = np.asarray(sample_weight, np.float64)
    if weight.ndim != 1 or len(weight) != n_rows:
        raise StructureError("sample_weight must have one number per row.")
    if not np.all(np.isfinite(weight)) or np.any(weight < 0):
        raise StructureError("sample_weight must be finite and not negative.")
    if np.any(weight > MAX_WEIGHT):
        raise StructureError(
            f"sample_weight must be at most {MAX_WEIGHT}. Divide all weights by a constant."
        )
    if not np.any(weight):
        raise StructureError("Sample weights must contain at least one non-zero number.")
    return weight


def _repetition(weight: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64] | None]:
    """Return the rows that weights stand for: whole weights repeat rows, others keep theirs."""
    rows = np.flatnonzero(weight)
    if np.all(weight == np.floor(weight)):
        return np.repeat(rows, weight[rows].astype(np.intp)), None
    return rows, weight[rows]
