"""`DPGBClassifier` and `DPGBRegressor`: the scikit-learn and dask-ml face. No algorithm in here."""
# ruff: noqa: N803, N806 - X and N_CHAR_MAX are scikit-learn's names

import html
import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dpgb_dask import inferred, losses, parameters, scoring
from dpgb_dask.calls import spoken
from dpgb_dask.clients import compute
from dpgb_dask.contracts.model import SCORE_ONE, BinShares, Model, NoiseBands
from dpgb_dask.contracts.plan import Budget, Plan, Progress, Shape, weight_bits_for
from dpgb_dask.contracts.schema import MAX_WEIGHT, Schema
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.noise import NoiseSource
from dpgb_dask.display import NO_MATH
from dpgb_dask.errors import (
    DPGBError,
    FewRowsWarning,
    LargeDeltaWarning,
    MaxWeightWarning,
    PlanError,
    StructureError,
    UnreadValuesWarning,
    level_outside,
)
from dpgb_dask.losses import Loss
from dpgb_dask.matching import Columns, check_choice, default_names, in_order
from dpgb_dask.parameters import INFER
from dpgb_dask.private.reading.ingest import column_of, read_source
from dpgb_dask.progress import Bar
from dpgb_dask.released import explain, export, outputs
from dpgb_dask.released.edit import Edit, Editor, directions_of_fit, in_words
from dpgb_dask.released.predict import RowFunction, apply
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.released.runtimes.content import Content
from dpgb_dask.released.runtimes.onnx import to_onnx
from dpgb_dask.released.runtimes.python import to_python
from dpgb_dask.released.runtimes.sql import to_sql
from dpgb_dask.released.runtimes.xgboost import to_xgboost
from dpgb_dask.released.statement import MARK
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training import config, uncounted
from dpgb_dask.training.claims import check_claims
from dpgb_dask.training.cost import PrivacyCost
from dpgb_dask.training.fit import bill_of
from dpgb_dask.training.fit import fit as run_fit
from dpgb_dask.training.report import few_rows, large_beside_rows, large_delta, report_of, unread
from dpgb_dask.zarr_arrays import lazily

CHANGED = "the model was changed after its fit, and bands are of the model of the fit"
GOOD_SCORE_EPSILON = 20.0  # from this ε on, the scores reach what scikit-learn's checks ask for
CONSTRAINTS = ("monotonic_cst", "interaction_cst")
WEIGHTS_TO_ONE = (
    "WEIGHTS COUNT UP TO 1: max_weight=1 of the schema, its default, so that each sample weight of 1 or more counts as"
    " 1: 10 and 500 weigh the same. Declare the largest weight as max_weight in the schema, from public knowledge."
    " Weights of at most 1 are unaffected: where all are, ignore this MaxWeightWarning."
)
SAVED = (
    "epsilon", "delta", "loss", "n_estimators", "learning_rate", "max_depth", "max_bins", "unit_id",
    "max_rows_per_unit", "columns", "on_few_rows", *CONSTRAINTS,
)  # fmt: skip
# what model files call the estimators, and a user's subclass of one, which no command could load
FILED_AS = {"binary": "DPGBClassifier", "multiclass": "DPGBClassifier", "numeric": "DPGBRegressor"}


class _Boosting(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share."""

    _kinds: ClassVar[tuple[str, ...]]

    @spoken
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
        class_weight: Mapping[Any, float] | None = None,
        loss: str | Loss | None = None,
        n_estimators: int | None = None,
        learning_rate: float | None = None,
        max_depth: int | None = None,
        max_bins: int | None = None,
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
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
        self.class_weight = class_weight
        self.loss = loss
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.max_bins = max_bins
        self.monotonic_cst = monotonic_cst
        self.interaction_cst = interaction_cst
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

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = super().__repr__(N_CHAR_MAX)
        if "\n" not in text:  # scikit-learn breaks lines for its own classes alone
            indent = " " * (len(type(self).__name__) + 1)
            text = textwrap.fill(text, 80, subsequent_indent=indent, break_long_words=False)
        return "\n# ".join(part for part in (text, self._remark()) if part)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        shown: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in shown:
            said = html.escape(self._remark())
            page = f"{shown['text/html']}{said and f'<p>{said}</p>'}"
            shown["text/html"] = f'<div class="{NO_MATH}">{page}</div>'
        return shown

    def _remark(self) -> str:
        """Say that the model is not private; or what fits of this process without a ledger add up to, if it is one.

        "" if the estimator is not fitted, or there is nothing to say.
        """
        report: PrivacyReport | None = getattr(self, "privacy_report_", None)
        if report is not None and not report.private:
            return f"{MARK}: nothing is promised to anybody"
        if report is None or report.account is not None:
            return ""
        return uncounted.together(report.delta)

    def _scores_poorly(self) -> bool:
        """Return whether the score on a few hundred rows, as in scikit-learn's checks, has to be poor."""
        number = isinstance(self.epsilon, int | float)
        return not (number and self.epsilon >= GOOD_SCORE_EPSILON)

    @spoken
    def fit(self, X: Any, y: Any, sample_weight: Any = None, resume: str | None = None) -> Self:
        """Fit under (epsilon, delta)-differential privacy.

        Parameters
        ----------
        X : array, DataFrame, dask Array or DataFrame, DataArray, zarr Array, Arrow table, (n_rows, n_features)
            Arrays without names match the schema as ``columns`` says.
        y : collection of (n_rows,)
            Matched to the rows of X by position. An index is ignored, as its labels are values.
        sample_weight : collection of (n_rows,), optional
            Also matched by position; clipped to the schema's ``max_weight``, which multiplies the noise, and rounded to
            a 1,024th, or coarser if it is above 63.
        resume : str, optional
            ``fit_id_`` of an interrupted fit, which is resumed without a new charge.

        Returns
        -------
        self

        Raises
        ------
        SchemaError, StructureError, UnsupportedCollectionError
            If the schema is missing or the structure of the data does not fit it.
        PlanError
            If a parameter has a value that cannot be used.
        BudgetExceededError, LedgerError
            If the account has too little left, or the ledger refuses. Nothing more is charged; if the fit was already
            charged, the error says so, and how to resume it.

        Warns
        -----
        FewRowsWarning, UnreadValuesWarning
            If the fit ended with the start model, or most values of a feature could not be read, judged by released
            numbers alone.
        LargeDeltaWarning
            If delta is at least 1e-3, before anything is charged; or at least one over the released number of rows.
        MaxWeightWarning
            If there are sample weights and the schema's ``max_weight`` is 1, its default, before anything is charged.

        Privacy
        -------
        Everything this object holds afterwards is (epsilon, delta)-differentially private for adding or removing one
        row. The whole fit is charged before the data are read. Under a declared schema no value of a row raises or
        warns.
        """
        budget = self._budget()
        self._check_ledger()
        execution = config.execution(self.cache, self.memory_limit)
        seed = parameters.seed_of(self.random_state)
        X, y, weight, shape, names = self._settled(X, y, sample_weight)
        schema = shape.schema
        if self.ledger is not None and not schema.private:
            raise PlanError(
                "schema has private=False: its facts were read from data by schema='infer', so it cannot charge a"
                " ledger account. Declare the facts from public knowledge."
            )
        plan = self._plan(shape.kind)
        for text in large_delta(budget.delta, plan):
            warnings.warn(text, LargeDeltaWarning, stacklevel=level_outside())
        source = read_source(X, y, weight, schema, schema.unit_id)
        if weight is not None and not self._infers() and schema.max_weight == 1:
            warnings.warn(WEIGHTS_TO_ONE, MaxWeightWarning, stacklevel=level_outside())
        with Bar(self.verbose, self.callbacks) as progress:
            result = run_fit(
                source,
                shape=shape,
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
                    schema, found.model, found.shares, found.bands, report_of(found, plan, shape)
                ),
                adopt=lambda file: self._adopt(file, names),
            )
        assert result.file is not None
        uncounted.count(result.file.report, bill_of(plan, shape, budget))
        if result.stopped:
            warnings.warn(few_rows(result, shape), FewRowsWarning, stacklevel=level_outside())
        for text in unread(result, schema):
            warnings.warn(text, UnreadValuesWarning, stacklevel=level_outside())
        for text in large_beside_rows(result, plan, shape):
            warnings.warn(text, LargeDeltaWarning, stacklevel=level_outside())
        return self

    def _adopt(self, file: export.ModelFile, names: Sequence[str] | None) -> None:
        """Set the fitted attributes from released values, and the names of features, None without."""
        schema = file.schema
        self.schema_ = schema
        self.model_ = file.model if file.edited is None else file.edited
        self.edits_ = file.edits
        self.model_of_fit_ = file.model
        self.bin_shares_ = file.shares
        self.bands_ = file.bands
        self._adopted = file
        self.__dict__.pop("privacy_report_", None)
        self.fit_id_ = file.report.fit_id
        self.n_features_in_ = schema.n_features
        self.__dict__.pop("feature_names_in_", None)  # scikit-learn has none of an array
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)
        if schema.target.classes:
            order = outputs.sorted_places(schema.target.classes)
            self.classes_ = self._declared_labels()[list(order)]

    @cached_property
    def privacy_report_(self) -> PrivacyReport:
        """The report, with the digests of the file as the fit left it: made when it is asked for, as it takes time."""
        check_is_fitted(self)
        file = self._adopted
        digests = {} if file.report.unverified else export.digests_of(file)
        return replace(file.report, digests=digests, edits=in_words(file.edits, self._scale()))

    def _declared_labels(self) -> NDArray[Any]:
        """Return the classes in the schema's order, which is that of the model's scores."""
        labels = list(self.schema_.target.classes)
        uniform = len({type(label) for label in labels}) == 1
        made = np.asarray(labels, dtype=None if uniform else object)
        # whole numbers of which no type of 64 bits holds all would become floats
        wide = made.dtype.kind == "f" and isinstance(labels[0], int)
        return np.asarray(labels, dtype=object) if wide else made

    def _order(self) -> tuple[int, ...]:
        """Return the positions in the schema of ``classes_``, which of an old pickle are in the schema's order."""
        declared = self._declared_labels()
        if np.array_equal(self.classes_, declared):
            return tuple(range(len(declared)))
        return outputs.sorted_places(self.schema_.target.classes)

    def _file(
        self,
        schema: Schema,
        model: Model,
        shares: BinShares,
        bands: NoiseBands,
        report: PrivacyReport,
    ) -> export.ModelFile:
        """Return what is saved of a fit, with the current parameters."""
        saved = {name: getattr(self, name) for name in SAVED}
        saved["recipe"] = report.recipe
        saved["loss"] = losses.to_json(self.loss)
        saved["columns"] = check_choice(self.columns)
        if self.class_weight is not None:  # pairs, as JSON has no other keys than text
            weights = parameters.class_weights(self.class_weight, schema, MAX_WEIGHT)
            saved["class_weight"] = [
                [k, w] for k, w in zip(schema.target.classes, weights or (), strict=True)
            ]
        saved |= {name: parameters.plain_constraint(saved[name]) for name in CONSTRAINTS}
        return export.ModelFile(
            estimator=FILED_AS[schema.target.type],
            parameters=saved,
            schema=schema,
            model=model,
            shares=shares,
            bands=bands,
            report=report,
        )

    def _as_file(self) -> export.ModelFile:
        """Return what is saved of the fitted estimator: the fit, and the changes to its model.

        Parameters are those of the fit, but for ``columns``, which acts in ``predict``.
        """
        if "_adopted" in self.__dict__:
            file = self._adopted
            columns = check_choice(self.columns)
            if columns == file.parameters.get("columns"):
                return file
            return replace(file, parameters=file.parameters | {"columns": columns})
        file = self._file(  # of a pickle of version 0.2
            self.schema_,
            self.model_of_fit_,
            self.bin_shares_,
            self.bands_,
            self.privacy_report_,
        )
        return replace(file, edits=self.edits_, edited=self.model_ if self.edits_ else None)

    def _infers(self) -> bool:
        """Return whether the schema is to be read from the data."""
        return parameters.infers(self.schema)

    def _budget(self) -> Budget:
        return Budget(epsilon=self.epsilon, delta=self.delta)

    def _check_ledger(self) -> None:
        parameters.check_ledger(self.ledger, self.account, self.noise, inferred=self._infers())

    def _loss(self, kind: str) -> Loss:
        return parameters.loss_of(self.loss, kind)

    def _plan(self, kind: str) -> Plan:
        return parameters.plan_of(
            self.recipe,
            kind=kind,
            loss=self._loss(kind),
            on_few_rows=self.on_few_rows,
            inferred=self._infers(),
            max_bins=self.max_bins,
            learning_rate=self.learning_rate,
            n_estimators=self.n_estimators,
            max_depth=self.max_depth,
        )

    def _declared(self) -> Schema:
        return parameters.declared(self.schema, self._kinds, type(self).__name__)

    def _settled(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, Any, Any, Shape, Sequence[str] | None]:
        """Return the rows, targets and weights of a fit, the public facts that it runs on, and names of features."""
        if self._infers():
            return self._inferred(X, y, sample_weight)
        schema = parameters.with_unit(self._declared(), self.unit_id, self.max_rows_per_unit)
        if y is None:
            raise parameters.no_target(type(self).__name__)
        X = in_order(X, schema, self.columns, beside=True)
        y, sample_weight = (
            column_of(part) if isinstance(part, list | tuple) else part
            for part in (y, sample_weight)
        )
        shape = self._shape(schema, weighted=sample_weight is not None)
        return X, y, sample_weight, shape, schema.names

    def _inferred(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, Any, Any, Shape, Sequence[str] | None]:
        """Return the same as `_settled`, with a schema read from the data. Not private."""
        if isinstance(check_choice(self.columns), list):
            raise PlanError(
                f"columns={self.columns!r} needs a declared schema, not schema='infer'."
            )
        if self.unit_id is not None:
            raise PlanError(
                f"unit_id={self.unit_id!r} needs a declared schema, not schema='infer'."
            )
        found = inferred.read(
            self,
            X,
            y,
            sample_weight,
            classification="numeric" not in self._kinds,
            silent=isinstance(self.noise, SeededNoise),
        )
        most = found.max_weight
        if self.class_weight is not None:  # facts of public data: the largest product is known
            times = parameters.class_weights(self.class_weight, found.schema, MAX_WEIGHT)
            most = min(MAX_WEIGHT, math.ceil(max(times or (1.0,)) * (most or 1)))
        return found.X, found.y, found.weight, self._shape_of(found.schema, most), found.names

    def _shape(self, schema: Schema, *, weighted: bool) -> Shape:
        weighted = weighted or self.class_weight is not None
        most = parameters.largest_weight(schema, self.max_rows_per_unit, weighted=weighted)
        return self._shape_of(schema, most)

    def _shape_of(self, schema: Schema, max_weight: int | None) -> Shape:
        """Return the public facts that decide the queries of a plan; weights are fractions of the largest weight."""
        loss = self._loss(schema.target.type)
        found = parameters.constraints_of(self.monotonic_cst, self.interaction_cst, schema)
        if max_weight is None:
            return Shape(schema=schema, loss=loss, constraints=found)
        bits = weight_bits_for(max_weight, of_units=schema.unit_id is not None)
        times = parameters.class_weights(self.class_weight, schema, max_weight)
        return Shape(
            schema=schema,
            weight_bits=bits,
            max_weight=max_weight,
            loss=loss,
            class_weight=times,
            constraints=found,
        )

    def _plans(self) -> list[tuple[Plan, Shape]]:
        """Return the plan and the shape of the fit according to the parameters: without sample weights, and with.

        Raises
        ------
        PlanError
            If the recipe is the user's own plan, of which only the name is known.
        """
        plan = self._plan(self.schema_.target.type)
        return [(plan, self._shape(self.schema_, weighted=weighted)) for weighted in (False, True)]

    def _rows(self, X: Any) -> Any:
        """Check the rows to predict; only for an inferred schema with scikit-learn's own checks."""
        check_is_fitted(self)
        if self._infers():
            return inferred.checked_rows(self, X)
        return in_order(X, self.schema_, self.columns)

    def _apply(
        self, X: Any, prepare: Any, dtype: Any, columns: tuple[Any, ...] | None = None
    ) -> Any:
        X = self._rows(X)
        function = RowFunction(self.model_, self.schema_, prepare)
        return apply(function, X, np.dtype(dtype), columns)

    def _score(self, X: Any, y: Any, sample_weight: Any, metric: Callable[..., float]) -> float:
        """Return the score of rows, as `scoring.score` does.

        Under an inferred schema, nothing is read or left out: scikit-learn's ``metric`` is that of all rows.
        """
        check_is_fitted(self)
        if y is None:
            raise parameters.no_target(type(self).__name__)
        if self._infers():
            given = (lazily(y), self.predict(X), lazily(sample_weight))
            y, predicted, weight = compute(*given)
            return float(metric(np.asarray(y), np.asarray(predicted), sample_weight=weight))
        return scoring.score(self.schema_, self.predict(X), y, sample_weight)

    @spoken
    def privacy_cost(self) -> PrivacyCost:
        """Return what a fit will cost; no data are read.

        Returns
        -------
        PrivacyCost

        Raises
        ------
        PlanError
            If a parameter has a value that cannot be used, as far as this is known without a schema.
        """
        budget = self._budget()
        self._check_ledger()
        known = self.schema is not None and not self._infers()
        kind = self._declared().target.type if known else self._kinds[0]
        plan = self._plan(kind)
        shape = self._shape(self._declared(), weighted=False) if known else None
        bill = () if shape is None else bill_of(plan, shape, budget)
        return PrivacyCost.of(
            budget, pure=plan.pure, ledger=self.ledger, account=self.account, bill=bill
        )

    def _scale(self) -> float:
        """Return natural units of one unit of score."""
        return self.schema_.target.half if self.model_.link == "identity" else 1.0

    def _offset(self) -> float:
        """Return where a score of 0 lies, in natural units: predictions of a regressor are measured from the middle."""
        target = self.schema_.target
        if self.model_.link == "identity":
            return target.middle
        if self.model_.link == "log":
            return math.log(target.high) - losses.RATE_SHIFT
        return -outputs.even_score(self.model_) / SCORE_ONE

    @spoken
    def explain_global(self) -> explain.GlobalExplanation:
        """Return the terms that the model's score is the sum of, with bands of the noise.

        Returns
        -------
        GlobalExplanation
            Main effects, pairs, and what trees add beyond both. Its ``unit`` says what scores are: those of classes
            (of two, of the class declared second), units of the target, or its logarithm (loss="poisson");
            docs/explanations.md §1 says how a score becomes a probability. `interpret.show` accepts it.

        Privacy
        -------
        Post-processing of released values.
        """
        check_is_fitted(self)
        return explain.explain_global(
            self.model_,
            self.bin_shares_,
            self.schema_,
            bands=NoiseBands(why=CHANGED) if self.edits_ else self.bands_,
            scale=self._scale(),
            offset=self._offset(),
            private=self.privacy_report_.private,
        )

    @spoken
    def explain_local(self, X: Any) -> explain.LocalExplanation:
        """Return what each term adds to the prediction of each row.

        Parameters
        ----------
        X : collection of rows; lazy on Dask

        Returns
        -------
        LocalExplanation
            With the intercept, contributions sum to the score: of two classes that of the one declared second, of
            several one per class in the schema's order, and of a regressor the prediction before it is clipped to the
            target's bounds, or its logarithm (loss="poisson"). `interpret.show` accepts it.

        Privacy
        -------
        Post-processing; the rows to explain are the caller's own.
        """
        X = self._rows(X)
        return explain.explain_local(
            self.model_,
            self.bin_shares_,
            self.schema_,
            X,
            scale=self._scale(),
            offset=self._offset(),
            private=self.privacy_report_.private,
        )

    @spoken
    def plot(self, terms: str | Sequence[str] | None = None, *, n_terms: int = 11) -> Any:
        """Draw the importances of the model's terms, and the most important terms with bands of the noise.

        Parameters
        ----------
        terms : str or sequence of str, optional
            Names of the terms to draw, as in ``explain_global().names``, or one; None for the most important ones.
        n_terms : int
            How many these are at most.

        Returns
        -------
        matplotlib.figure.Figure
            See `dpgb_dask.plots.plot_model`.

        Raises
        ------
        ImportError
            If matplotlib is missing; the message names the extra.

        Privacy
        -------
        Post-processing of released values.
        """
        from dpgb_dask.plots import plot_model  # noqa: PLC0415 - few uses of a model draw it

        return plot_model(self.explain_global(), terms=terms, n_terms=n_terms)

    @spoken
    def plot_local(self, row: Any) -> Any:
        """Draw how the terms of the model lead to the prediction of one row.

        Parameters
        ----------
        row : collection of one row, Series or dict
            As for ``predict``; a Series or dict holds values by the names of features.

        Returns
        -------
        matplotlib.figure.Figure
            A waterfall from the intercept to the score; for several classes, that of the predicted class. See
            `dpgb_dask.plots.plot_row`.

        Raises
        ------
        ImportError
            If matplotlib is missing; the message names the extra.
        StructureError
            If there is not exactly one row.

        Privacy
        -------
        Post-processing; the row is the caller's own.
        """
        from dpgb_dask.plots import plot_row  # noqa: PLC0415 - few uses of a model draw it

        check_is_fitted(self)
        if isinstance(row, Mapping) and not isinstance(row, xr.Dataset):
            row = pd.DataFrame([dict(row)])
        elif isinstance(row, pd.Series):
            row = row.to_frame().T
        explanation = self.explain_local(row).compute()
        n_rows = len(explanation.steps[0])
        if n_rows != 1:
            raise StructureError(
                f"plot_local draws one row, and was given {n_rows}. Give one, such as X.iloc[[0]]."
            )
        column, title = self._told(row)
        return plot_row(explanation, column=column, title=title)

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Share of each feature in the mean absolute contributions, (n_features_in_,) float64.

        They sum to 1, or are all 0 if no term says anything, as in a start model. Means are over the released shares of
        bins, not over rows. A pair counts half for each feature. The remainder of trees, which belongs to no single
        feature, is left out. `explain_global` has the sizes of all terms.

        Privacy
        -------
        Post-processing of released values.
        """
        check_is_fitted(self)
        # without bands, which take as long as all else
        terms = explain.explain_global(self.model_, self.bin_shares_, self.schema_)
        return explain.feature_importances(terms, self.schema_)

    @spoken
    def edit(self) -> Editor:
        """Return an editor, to change the model and get a new fitted estimator: post-processing, which costs nothing.

        ``monotone``, ``clamp`` and ``remove`` return the editor again, and ``done`` the new estimator. The report and
        the model file record each change; the file holds the model of the fit beside them.

        Returns
        -------
        Editor

        Examples
        --------
        ``edited = model.edit().monotone("age", 1).clamp("income", low=-1, high=1).remove("age & income").done()``

        Privacy
        -------
        Post-processing of released values: epsilon and delta stay what they are.
        """
        check_is_fitted(self)
        return Editor(
            model=self.model_,
            schema=self.schema_,
            shares=self.bin_shares_,
            scale=self._scale(),
            kept=directions_of_fit(self.privacy_report_.public, self.schema_),
            edits=self.edits_,
            finish=self._edited,
        )

    def _edited(self, edits: tuple[Edit, ...], model: Model) -> Self:
        """Return a copy of this estimator with a changed model."""
        out = copy(self)
        changed = replace(self._as_file(), edits=edits, edited=model if edits else None)
        out._adopt(changed, getattr(self, "feature_names_in_", None))  # noqa: SLF001 - of this class
        return out

    @spoken
    def save(self, path: str | Path) -> None:
        """Write the model as JSON: released values only.

        Parameters
        ----------
        path : str or Path
            Or a URL that fsspec knows, such as ``s3://bucket/model.json``. A file that is there is replaced, once the
            new one is complete.

        Raises
        ------
        SchemaError, StructureError
            If JSON cannot hold a label, or the file cannot be written. The fit stays charged; a note on the exception
            says how to get its model again.
        """
        check_is_fitted(self)
        try:
            export.save(self._as_file(), path)
        except DPGBError as error:
            if self.privacy_report_.account is not None:
                fit_id = self.fit_id_
                error.add_note(
                    f"Fit {fit_id} is charged and not lost: fit(..., resume={fit_id!r}), or the same command and"
                    f" --resume {fit_id}, gives its model again from its journal, without a new charge."
                )
            raise

    def _content(self) -> Content:
        check_is_fitted(self)
        return Content(self.model_, self.schema_, self.privacy_report_, self.bin_shares_)

    @spoken
    def to_python(self, path: str | Path) -> None:
        """Write the model as a Python file that scores rows on its own: it needs no other package.

        Parameters
        ----------
        path : str or Path

        Raises
        ------
        StructureError
            If the file cannot be written.

        Privacy
        -------
        Post-processing of released values. The file begins with the privacy report.
        """
        to_python(self._content(), path)

    @spoken
    def to_xgboost(self, path: str | Path) -> None:
        """Write the model as a file of XGBoost: UBJSON if the path ends in ``.ubj``, else JSON (docs/exports.md).

        It is for ``xgboost.Booster``, whose margin is the score. ``XGBClassifier`` loads it if the loss has XGBoost's
        link (``logit`` or ``softmax``), and refuses it otherwise.

        Parameters
        ----------
        path : str or Path

        Raises
        ------
        StructureError
            If the model cannot be expressed; the message names what. If the file cannot be written.

        Privacy
        -------
        Post-processing of released values. The attribute ``dpgb_dask.statement`` holds the privacy report.
        """
        to_xgboost(self._content(), path)

    @spoken
    def to_onnx(self, path: str | Path) -> None:
        """Write the model as an ONNX file (docs/exports.md).

        Parameters
        ----------
        path : str or Path

        Raises
        ------
        StructureError
            If the package onnx is missing, or the model cannot be expressed; the message names what. If the file
            cannot be written.

        Privacy
        -------
        Post-processing of released values. The metadata ``dpgb_dask.statement`` holds the privacy report.
        """
        to_onnx(self._content(), path)

    @spoken
    def to_sql(
        self,
        path: str | Path,
        *,
        dialect: str = "sqlite",
        table: str | Sequence[str] = "rows",
        keep: str | Sequence[str] = (),
        has_exp: bool | None = None,
    ) -> None:
        """Write the model as a query that predicts for the rows of a table (docs/exports.md).

        Parameters
        ----------
        path : str or Path
        dialect : {"sqlite", "duckdb"}
        table : str or sequence of str
            The table of rows; a sequence for a name with its schema, such as ``("main", "people")``.
        keep : str or sequence of str
            Column, or columns, of the table to return beside the predictions, such as a key.
        has_exp : bool, optional
            Whether the database has ``exp``, which most probabilities need. None: DuckDB has it, SQLite may not.

        Raises
        ------
        StructureError
            If the model cannot be expressed; the message names what. If the file cannot be written.

        Privacy
        -------
        Post-processing of released values. The file begins with the privacy report.
        """
        to_sql(self._content(), path, dialect=dialect, table=table, keep=keep, has_exp=has_exp)

    @classmethod
    @spoken
    def load(cls, path: str | Path) -> Self:
        """Read a model file.

        Parameters
        ----------
        path : str or Path
            Or a URL that fsspec knows, such as ``s3://bucket/model.json``.

        Returns
        -------
        A fitted estimator, without a ledger: no file holds one. Set ``ledger`` and ``account`` before you fit it again.

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
        owner = FILED_AS[file.schema.target.type]
        if file.estimator != owner and file.estimator in FILED_AS.values():
            raise StructureError(
                f"Model file {str(path)!r} is malformed: its target is not for {file.estimator}."
            )
        if file.schema.target.type not in cls._kinds:
            raise StructureError(f"{str(path)!r} holds a {owner}. Load it with {owner}.load.")
        known = {
            name: file.parameters[name] for name in (*SAVED, "recipe") if name in file.parameters
        }
        known["loss"] = export.loss_of_json(known.get("loss"), path)
        weights = file.parameters.get("class_weight")
        try:
            known["class_weight"] = None if weights is None else dict(weights)
            parameters.class_weights(known["class_weight"], file.schema, MAX_WEIGHT)
        except (PlanError, TypeError, ValueError):
            raise StructureError(
                f"Model file {str(path)!r} is malformed: its class_weight."
            ) from None
        try:
            known["columns"] = check_choice(known.get("columns"))
        except PlanError:
            raise StructureError(f"Model file {str(path)!r} is malformed: its columns.") from None
        known["schema"] = file.schema if file.schema.private else INFER
        asked = set(cls._get_param_names())  # of a subclass, whose constructor may take fewer
        out = cls(**{name: value for name, value in known.items() if name in asked})
        for name, value in known.items():
            setattr(out, name, value)
        names = file.schema.names
        unnamed = not file.schema.private and names == default_names(len(names))
        out._adopt(file, None if unnamed else names)
        return out

    def _told(self, row: Any) -> tuple[int, str]:
        """Return the score column that decides the prediction of one row, and the prediction in words."""
        raise NotImplementedError


class DPGBClassifier(ClassifierMixin, _Boosting):  # type: ignore[misc]
    """Differentially private gradient boosting for classification, on arrays, frames and Dask collections.

    Parameters
    ----------
    epsilon : float
        Privacy loss of the whole fit. Smaller is more private.
    delta : float
        A constant chosen in advance, well below 1 / (number of people); never computed from the data. From 1e-3 on a
        fit warns (`LargeDeltaWarning`).
    schema : Schema, dict, path or "infer"
        Public names, bounds and categories, and the classes or the bounds of the target. "infer" reads them from the
        data, which is not private.
    recipe : str or Plan
        The method: "auto" is this project's own, "additive" the same without trees; all others come from papers
        (`dpgb_dask.recipes.RECIPES`).
    ledger, account : Ledger and str, optional
        Where the fit is charged. Without them, an in-memory ledger keeps the same order of effects.
    unit_id : str, optional
        Column of ``X`` that names the privacy unit (a person, a household); never a feature. The guarantee is then for
        adding or removing all rows of a unit. Cannot be combined with sample weights.
    max_rows_per_unit : int
        The rows of a unit with more rows are weighted down to this number in total; with 8,192 times as many and
        more, they count nothing. Multiplies the noise.
    class_weight : dict, optional
        What the weight of a row is multiplied by, for each class; 1 for a class that is not named. Only for
        classification. At most the schema's ``max_weight``, to which the product with ``sample_weight`` is clipped and
        which multiplies the noise. From public knowledge: "balanced" is refused, as it would read the labels.
    loss : str or Loss, optional
        A loss by scikit-learn's name, an object from `dpgb_dask.losses`, such as ``Quantile(0.9)``, or an object of
        your own class that derives from `dpgb_dask.losses.Loss`. None for log-loss or squared error. If the recipe
        cannot serve the loss, the error names recipes that can.
    n_estimators, learning_rate, max_depth, max_bins : optional
        Parameters of the recipe; None for the recipe's own value. A parameter that the recipe does not have raises.
    monotonic_cst : array-like of int or dict, optional
        As in scikit-learn: per feature of the schema, or by name, 1 if the score must not fall where the feature grows,
        -1 if it must not grow, 0 for neither. Of two classes, the score is that of the one declared second. For numeric
        features; not for more than two classes. Missing values are in no order with the others.
    interaction_cst : "pairwise", "no_interactions", sequence of groups, optional
        As in scikit-learn: sets of features (positions or names) that may interact with each other, in pairs and in
        trees; features in no set are one more. A feature outside the groups of another never interacts with it.
    columns : "position", list of str, optional
        How the columns of an array without names match the schema, in ``fit`` and in ``predict``. "position": they are
        the schema's features, in its order. A list: their names, in the array's order; they are reordered as in the
        schema. None also matches by position but warns, because an array cannot show that its columns are in another
        order. Data with column names are always matched by name.
    on_few_rows : {"stop", "continue"}
        What to do if the released number of rows is below three standard deviations of its noise. "stop": end with the
        start model, charge only what was opened, and warn (`FewRowsWarning`). "continue": go on, and say so only in the
        report. Recipes that release no number of rows always go on, and their report says so.
    cache : str or Path
        Where binned data are stored: "memory"; "disk", scratch in each worker's own folder; a folder; or the URL of a
        Zarr store that outlives workers, such as "s3://bucket/fit.zarr". "auto": in memory while they fit, otherwise on
        disk. Scratch is removed when the fit ends, however it ends.
    memory_limit : int or str, optional
        Bytes that each process may use in total: a number, or a text such as "1GiB". None for the memory that Dask
        grants a worker, or that this machine has.
    random_state : int or RandomState, optional
        Seed of public randomness only (partitions, random trees). It never seeds noise.
    noise : NoiseSource, optional
        None for the secret keyed source. `dpgb_dask.testing.SeededNoise` makes tests repeatable and is not private.
    verbose : int
        1 shows a progress bar that counts rounds: in a terminal, in a notebook, and elsewhere as a line per stage.
    callbacks : sequence of callables, optional
        Called with (stage, round, number of rounds) after each round. The number falls when a stage ends early.

    Attributes
    ----------
    classes_ : ndarray
        Declared classes, sorted as scikit-learn expects them; in declared order if they cannot be compared. Columns of
        `predict_proba` and `decision_function` are in this order. Scores of explanations, exports and the model itself
        are in the schema's.
    model_, schema_ : Model and Schema
    edits_ : tuple of dict
        Changes that `edit` made to the model after the fit.
    model_of_fit_ : Model
        The model without these changes.
    bin_shares_ : BinShares
        Shares of the weight of all rows that the bins of each feature hold, by released counts; of the rows
        themselves if all weigh the same.
    bands_ : NoiseBands
        Standard deviations of the noise in the model of the fit, for `explain_global`.
    privacy_report_ : PrivacyReport
    fit_id_ : str
    feature_importances_ : (n_features_in_,) float64
    n_features_in_, feature_names_in_

    Notes
    -----
    Privacy: only released values are fitted attributes; all of them together are (epsilon, delta)-differentially
    private for adding or removing one row; (epsilon, 0) if the recipe is one of pure differential privacy.

    ``partial_fit`` and ``warm_start`` do not exist, as each call would be a new release with its own charge.

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

    @spoken
    def predict(self, X: Any) -> Any:
        """Return the class of the largest score of each row, the most probable one; of equal ones the first declared.

        Parameters
        ----------
        X : collection of rows

        Returns
        -------
        (n_rows,) labels
            An ndarray for NumPy, pandas, Arrow and lists; a lazy Dask Series or Array for Dask and Zarr; a DataArray
            for xarray.
        """
        check_is_fitted(self)
        return self._apply(X, outputs.Labels(self._declared_labels()), self.classes_.dtype)

    @spoken
    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class, in the order of ``classes_``.

        Parameters
        ----------
        X : collection of rows

        Returns
        -------
        (n_rows, n_classes) float64
            Of the kind that `predict` returns, but a Dask DataFrame for a Dask DataFrame: its columns are named by the
            classes as text.
        """
        check_is_fitted(self)
        columns = tuple(self.classes_.tolist())
        return self._apply(X, outputs.Probabilities(self._order()), np.float64, columns)

    @spoken
    def decision_function(self, X: Any) -> Any:
        """Return the score: positive where the second of ``classes_`` is predicted; for several one column per class.

        It is measured as `explain_global` says (docs/explanations.md §1).

        Parameters
        ----------
        X : collection of rows

        Returns
        -------
        (n_rows,) or (n_rows, n_classes) float64
        """
        check_is_fitted(self)
        columns = tuple(self.classes_.tolist()) if self.model_.n_scores > 1 else None
        return self._apply(X, outputs.Decisions(self._order()), np.float64, columns)

    def _told(self, row: Any) -> tuple[int, str]:
        asked = self.predict_proba(row), self.decision_function(row)
        (chances,), (scores,) = map(np.asarray, compute(*asked))
        order, several = self._order(), self.model_.n_scores > 1
        # of two classes, the score is that of the one declared second; of several, the largest is that of the predicted
        best = int(np.argmax(scores[np.argsort(order)])) if several else 1
        place = order.index(best)
        said = f"{self.schema_.target.name} = {self.classes_[place]}: probability {100 * chances[place]:.3g} %"
        return (best, f"{said}, the highest") if several else (0, said)

    @spoken
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on the caller's own rows; Dask collections are computed.

        Parameters
        ----------
        X : collection of rows
        y : collection of (n_rows,), as for ``fit``
            A label is read as in ``fit``. A row with a missing one is left out; one that is no class of the schema is
            wrong, as in scikit-learn.
        sample_weight : collection of (n_rows,), optional
            A row whose weight is missing, no number or not above 0 is left out, as in ``fit``. Others are not clipped
            to ``max_weight``; an infinite one counts as it.

        Returns
        -------
        float

        Raises
        ------
        StructureError
            If no row is left, or X, y and sample_weight have different numbers of rows.

        Privacy
        -------
        An exact number about the rows given: outside the guarantee if they are private.
        """
        return self._score(X, y, sample_weight, accuracy_score)


class DPGBRegressor(RegressorMixin, _Boosting):  # type: ignore[misc]
    """Differentially private gradient boosting for regression, on arrays, frames and Dask collections.

    Parameters
    ----------
    epsilon : float
        Privacy loss of the whole fit. Smaller is more private.
    delta : float
        A constant chosen in advance, well below 1 / (number of people); never computed from the data. From 1e-3 on a
        fit warns (`LargeDeltaWarning`).
    schema : Schema, dict, path or "infer"
        Public names, bounds and categories, and the classes or the bounds of the target. "infer" reads them from the
        data, which is not private.
    recipe : str or Plan
        The method: "auto" is this project's own, "additive" the same without trees; all others come from papers
        (`dpgb_dask.recipes.RECIPES`).
    ledger, account : Ledger and str, optional
        Where the fit is charged. Without them, an in-memory ledger keeps the same order of effects.
    unit_id : str, optional
        Column of ``X`` that names the privacy unit (a person, a household); never a feature. The guarantee is then for
        adding or removing all rows of a unit. Cannot be combined with sample weights.
    max_rows_per_unit : int
        The rows of a unit with more rows are weighted down to this number in total; with 8,192 times as many and
        more, they count nothing. Multiplies the noise.
    class_weight : dict, optional
        What the weight of a row is multiplied by, for each class; 1 for a class that is not named. Only for
        classification. At most the schema's ``max_weight``, to which the product with ``sample_weight`` is clipped and
        which multiplies the noise. From public knowledge: "balanced" is refused, as it would read the labels.
    loss : str or Loss, optional
        A loss by scikit-learn's name, an object from `dpgb_dask.losses`, such as ``Quantile(0.9)``, or an object of
        your own class that derives from `dpgb_dask.losses.Loss`. None for log-loss or squared error. If the recipe
        cannot serve the loss, the error names recipes that can.
    n_estimators, learning_rate, max_depth, max_bins : optional
        Parameters of the recipe; None for the recipe's own value. A parameter that the recipe does not have raises.
    monotonic_cst : array-like of int or dict, optional
        As in scikit-learn: per feature of the schema, or by name, 1 if the score must not fall where the feature grows,
        -1 if it must not grow, 0 for neither. Of two classes, the score is that of the one declared second. For numeric
        features; not for more than two classes. Missing values are in no order with the others.
    interaction_cst : "pairwise", "no_interactions", sequence of groups, optional
        As in scikit-learn: sets of features (positions or names) that may interact with each other, in pairs and in
        trees; features in no set are one more. A feature outside the groups of another never interacts with it.
    columns : "position", list of str, optional
        How the columns of an array without names match the schema, in ``fit`` and in ``predict``. "position": they are
        the schema's features, in its order. A list: their names, in the array's order; they are reordered as in the
        schema. None also matches by position but warns, because an array cannot show that its columns are in another
        order. Data with column names are always matched by name.
    on_few_rows : {"stop", "continue"}
        What to do if the released number of rows is below three standard deviations of its noise. "stop": end with the
        start model, charge only what was opened, and warn (`FewRowsWarning`). "continue": go on, and say so only in the
        report. Recipes that release no number of rows always go on, and their report says so.
    cache : str or Path
        Where binned data are stored: "memory"; "disk", scratch in each worker's own folder; a folder; or the URL of a
        Zarr store that outlives workers, such as "s3://bucket/fit.zarr". "auto": in memory while they fit, otherwise on
        disk. Scratch is removed when the fit ends, however it ends.
    memory_limit : int or str, optional
        Bytes that each process may use in total: a number, or a text such as "1GiB". None for the memory that Dask
        grants a worker, or that this machine has.
    random_state : int or RandomState, optional
        Seed of public randomness only (partitions, random trees). It never seeds noise.
    noise : NoiseSource, optional
        None for the secret keyed source. `dpgb_dask.testing.SeededNoise` makes tests repeatable and is not private.
    verbose : int
        1 shows a progress bar that counts rounds: in a terminal, in a notebook, and elsewhere as a line per stage.
    callbacks : sequence of callables, optional
        Called with (stage, round, number of rounds) after each round. The number falls when a stage ends early.

    Attributes
    ----------
    model_, schema_ : Model and Schema
    edits_ : tuple of dict
        Changes that `edit` made to the model after the fit.
    model_of_fit_ : Model
        The model without these changes.
    bin_shares_ : BinShares
        Shares of the weight of all rows that the bins of each feature hold, by released counts; of the rows
        themselves if all weigh the same.
    bands_ : NoiseBands
        Standard deviations of the noise in the model of the fit, for `explain_global`.
    privacy_report_ : PrivacyReport
    fit_id_ : str
    feature_importances_ : (n_features_in_,) float64
    n_features_in_, feature_names_in_

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

    @spoken
    def predict(self, X: Any) -> Any:
        """Return what the loss predicts of each row's target, such as its mean or median, inside its public bounds.

        Parameters
        ----------
        X : collection of rows

        Returns
        -------
        (n_rows,) float64
            An ndarray for NumPy, pandas, Arrow and lists; a lazy Dask Series or Array for Dask and Zarr; a DataArray
            for xarray.
        """
        check_is_fitted(self)
        target = self.schema_.target
        return self._apply(X, outputs.Values(target), np.float64)

    def _told(self, row: Any) -> tuple[int, str]:
        (value,) = np.asarray(compute(self.predict(row))[0])
        return 0, f"{self.schema_.target.name}: {value:.5g}"

    @spoken
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² on the caller's own rows; Dask collections are computed.

        Parameters
        ----------
        X : collection of rows
        y : collection of (n_rows,), as for ``fit``
            A target is read as in ``fit``: a row without a number is left out, and an infinite one counts as the bound.
            Others are not clipped to the bounds.
        sample_weight : collection of (n_rows,), optional
            A row whose weight is missing, no number or not above 0 is left out, as in ``fit``. Others are not clipped
            to ``max_weight``; an infinite one counts as it.

        Returns
        -------
        float

        Raises
        ------
        StructureError
            If no row is left, or X, y and sample_weight have different numbers of rows.

        Privacy
        -------
        An exact number about the rows given: outside the guarantee if they are private.
        """
        return self._score(X, y, sample_weight, r2_score)


def load(path: str | Path) -> DPGBClassifier | DPGBRegressor:
    """Read a model file of either estimator.

    Parameters
    ----------
    path : str or Path
        Or a URL that fsspec knows, such as ``s3://bucket/model.json``.

    Returns
    -------
    A fitted `DPGBClassifier` or `DPGBRegressor`.

    Raises
    ------
    StructureError
        If the file is malformed, from a newer version, or its digests or its claims do not match its content.

    Notes
    -----
    This check shows only that a file is consistent with itself; `dpgb_dask.verify` compares it with the ledger.
    """
    return of_file(export.load(path), path)


def of_file(file: export.ModelFile, path: str | Path) -> DPGBClassifier | DPGBRegressor:
    """Return the fitted estimator of a file that was read from a path; raises as `load` does."""
    numeric = FILED_AS[file.schema.target.type] == DPGBRegressor.__name__
    return (DPGBRegressor if numeric else DPGBClassifier)._of(file, path)  # noqa: SLF001
