"""Meaning and checks of the estimators' parameters, before any data are read."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from dpgb_dask import losses, recipes
from dpgb_dask.contracts.constraints import PAIRWISE, Constraints
from dpgb_dask.contracts.plan import Plan
from dpgb_dask.contracts.schema import MAX_WEIGHT, Schema, Target, check_unit_id
from dpgb_dask.controller.ledger import Ledger, no_ledger
from dpgb_dask.controller.noise import NoiseSource
from dpgb_dask.errors import PlanError, SchemaError, StructureError, listed, short
from dpgb_dask.losses import Loss
from dpgb_dask.names import FEW_ROWS
from dpgb_dask.scalars import is_listing, is_number, plain_text, python_scalar, whole_number

INFER = "infer"


def infers(schema: Any) -> bool:
    """Return whether the schema is to be read from the data."""
    return isinstance(schema, str) and schema == INFER


def check_ledger(
    ledger: Any, account: str | None, noise: NoiseSource | None, *, inferred: bool
) -> None:
    """Refuse combinations of ledger, account, noise and schema for which no charge is possible."""
    own_key = callable(getattr(noise, "fit_key", None)) and not isinstance(noise, type)
    if noise is not None and not own_key:
        raise PlanError(
            f"noise is a {type(noise).__name__}. Leave it None; for a test, give dpgb_dask.testing.SeededNoise(seed)."
        )
    if (ledger is None) != (account is None):
        given, lacking = ("account", "ledger") if ledger is None else ("ledger", "account")
        raise PlanError(f"{given} is given without {lacking}. Give both, or neither.")
    if ledger is None:
        return
    if not isinstance(ledger, Ledger):
        raise PlanError(no_ledger(ledger))
    if noise is not None:
        raise PlanError(
            f"noise={type(noise).__name__} cannot charge a ledger account: a key that is not made by the"
            " library may be known to others. Leave noise=None, or leave ledger and account out."
        )
    if inferred:
        raise PlanError(
            "schema='infer' reads the data and is not private: it cannot charge a ledger account."
        )


def no_target(estimator: str) -> StructureError:
    """Return the error for a target that is None; scikit-learn's checks look for these words."""
    return StructureError(f"{estimator} requires y to be passed, but the target y is None.")


def seed_of(random_state: Any) -> int:
    """Return the seed of public randomness: for feature partitions and random trees, never for noise."""
    if random_state is None:
        return secrets.randbits(62)
    seed = whole_number(random_state)
    if seed is not None:
        if seed < 0:
            raise PlanError(f"random_state={random_state!r} must not be negative.")
        return seed
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise PlanError(
            f"random_state={random_state!r} must be None, a whole number or a RandomState."
        ) from error


def loss_of(loss: str | Loss | None, kind: str) -> Loss:
    """Return the loss as an object; None means the default loss of this kind of target."""
    return losses.default_loss(kind) if loss is None else losses.get(loss)


def plan_of(
    recipe: Any,
    *,
    kind: str,
    loss: Loss,
    on_few_rows: str,
    inferred: bool,
    **given: Any,
) -> Plan:
    """Return the plan of a recipe for a kind of target, with all parameters set that are not None."""
    # not a subclass: it could say one thing to the report and another to the accountant
    if not isinstance(recipe, str) and type(recipe) is not Plan:
        raise PlanError(f"recipe is a {type(recipe).__name__}. Give a name or a Plan.")
    # parameter grids are often NumPy arrays
    own = {name: python_scalar(value) for name, value in given.items()}
    plan = recipes.get(recipe, kind=kind, loss=loss, **own)
    if plain_text(on_few_rows) not in FEW_ROWS:
        raise PlanError(
            f"on_few_rows={short(on_few_rows)} is unknown. Choose 'stop' or 'continue'."
        )
    if on_few_rows == "stop" and not inferred:  # facts of public data need no such guard
        return plan
    return replace(plan, stops_on_few_rows=False)


def declared(given: Any, kinds: tuple[str, ...], estimator: str) -> Schema:
    """Return the declared schema as an object.

    Parameters
    ----------
    given : Schema, its JSON form, or the path of its file
    kinds : tuple of str
        Kinds of target that the estimator takes.
    estimator : str
        Name of the estimator.
    """
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
        raise SchemaError(f"schema is a {type(given).__name__}. Give a Schema, a dict or a path.")
    if schema.target.type not in kinds:
        raise SchemaError(_other_target(schema.target, estimator))
    return schema


def _other_target(target: Target, estimator: str) -> str:
    """Say that a schema declares numbers where classes are needed, or classes where numbers are."""
    if not target.classes:
        return (
            f"The schema declares numbers from {target.low:g} to {target.high:g} as its target, which DPGBRegressor"
            f" predicts. {estimator} predicts classes: declare them, Schema(..., classes=[...])."
        )
    return (
        f"The schema declares the classes {short(list(target.classes))} as its target, which DPGBClassifier predicts."
        f" {estimator} predicts numbers: declare their bounds, Schema(..., target_bounds=(low, high))."
    )


def with_unit(schema: Schema, unit_id: str | None, max_rows_per_unit: Any) -> Schema:
    """Return the schema with the name of the privacy unit's column, if there is one."""
    most = whole_number(max_rows_per_unit)
    if most is None or not 1 <= most <= MAX_WEIGHT:
        raise PlanError(
            f"max_rows_per_unit={max_rows_per_unit!r} must be a whole number in [1, {MAX_WEIGHT}]."
        )
    check_unit_id(unit_id)
    if unit_id is None or unit_id == schema.unit_id:
        if schema.unit_id is None and most != 1:
            raise PlanError(
                f"max_rows_per_unit={most!r} needs a unit_id: without one, each row is a unit."
            )
        return schema
    if schema.unit_id is not None:
        raise SchemaError(
            f"unit_id={unit_id!r} is not the schema's unit_id={schema.unit_id!r}. Name one of them."
        )
    facts = schema.to_dict()
    facts["ignore"] = [name for name in facts["ignore"] if name != unit_id]
    return Schema.from_dict(facts | {"unit_id": unit_id})


def class_weights(given: Any, schema: Schema, most: int) -> tuple[float, ...] | None:
    """Return one weight per declared class, in their order; a class that is not named has weight 1.

    Parameters
    ----------
    given : dict of class to weight, or None
    schema : Schema
    most : int
        The largest weight of a row.

    Raises
    ------
    PlanError
        If it is no such dict, names no declared class, or a weight is outside [0, most].
    """
    if given is None:
        return None
    classes = schema.target.classes
    if isinstance(given, str):
        raise PlanError(
            f"class_weight={given!r} would be read from the labels, which are private. Give a dict of weights from"
            " public knowledge, such as {0: 1, 1: 3}."
        )
    if not classes:
        raise PlanError("class_weight is for classes, and the target is numeric. Leave it None.")
    if not isinstance(given, Mapping):
        raise PlanError(
            f"class_weight is a {type(given).__name__}. Give a dict of class to weight."
        )
    if schema.unit_id is not None:
        raise PlanError(
            "class_weight together with unit_id is not available: a unit's rows share one weight."
        )
    unknown = [label for label in given if label not in classes]
    if unknown:
        raise PlanError(
            f"class_weight names {unknown[0]!r}, which is no declared class. Declared: {listed(classes)}."
        )
    for label, weight in given.items():
        if not is_number(weight) or not 0 <= weight <= most:  # NaN compares false
            raise PlanError(
                f"class_weight={{{label!r}: {weight!r}}} must be a number in [0, {most}]: the schema declares"
                f" max_weight={most}, which multiplies the noise. Declare a larger one, or divide all weights by a"
                " constant."
            )
    weights = tuple(float(given.get(label, 1.0)) for label in classes)
    if not any(weights):
        raise PlanError(f"class_weight={short(given)} leaves no row a weight. Give one above 0.")
    return weights


def largest_weight(schema: Schema, max_rows_per_unit: int, *, weighted: bool) -> int | None:
    """Return the largest weight, of which weights are fractions; None if every row has weight 1."""
    if schema.unit_id is not None:
        return int(max_rows_per_unit)
    return schema.max_weight if weighted else None


def plain_constraint(given: Any) -> Any:
    """Return ``monotonic_cst`` or ``interaction_cst`` as JSON can hold it: lists, objects, texts and numbers."""
    if isinstance(given, np.generic):
        return given.item()
    if isinstance(given, Mapping):
        return {plain_constraint(key): plain_constraint(value) for key, value in given.items()}
    if isinstance(given, set | frozenset):
        return sorted((plain_constraint(item) for item in given), key=str)
    if is_listing(given) and not isinstance(given, str | bytes):
        return [plain_constraint(item) for item in given]
    return given


def constraints_of(monotonic_cst: Any, interaction_cst: Any, schema: Schema) -> Constraints:
    """Return the constraints of an estimator's parameters, by the names of the schema's features.

    Raises
    ------
    PlanError
        If one has no form that scikit-learn's parameters of these names have, or names what the schema does not have.
    """
    return Constraints(
        monotonic=_directions(plain_constraint(monotonic_cst), schema),
        interactions=_groups(plain_constraint(interaction_cst), schema),
    )


def _directions(given: Any, schema: Schema) -> tuple[tuple[str, int], ...]:
    """Return the constrained features and their directions, in the schema's order."""
    if given is None:
        return ()
    names = schema.names
    if isinstance(given, list):
        if len(given) != len(names):
            raise PlanError(
                f"monotonic_cst has {len(given)} entries for {len(names)} features of the schema. Give one for each, or"
                " a dict of feature names."
            )
        given = dict(zip(names, given, strict=True))
    if not isinstance(given, dict):
        raise PlanError(
            f"monotonic_cst={short(given)} must be None, an array of -1, 0 or 1, or a dict of feature names to these."
        )
    if unknown := [name for name in given if name not in names]:
        raise PlanError(
            f"monotonic_cst contains unexpected feature names: {listed(unknown)}. The schema has {listed(names)}."
        )
    for name, value in given.items():
        if not is_number(value) or value not in (-1, 0, 1):
            raise PlanError(f"monotonic_cst of {name!r} is {value!r}: give -1, 0 or 1.")
    return tuple((name, int(given[name])) for name in names if given.get(name, 0))


def _groups(given: Any, schema: Schema) -> str | tuple[tuple[str, ...], ...] | None:
    """Return the groups of features that may interact; the features in no group are one more."""
    names = schema.names
    if given is None or given == PAIRWISE:
        return given
    if given == "no_interactions":
        return tuple((name,) for name in names)
    if not isinstance(given, list) or not all(isinstance(group, list) for group in given):
        raise PlanError(
            f"interaction_cst={short(given)} must be None, 'pairwise', 'no_interactions', or a sequence of groups:"
            " tuples, lists or sets of features."
        )
    groups = [sorted({_place(item, names) for item in group}) for group in given if group]
    rest = sorted(set(range(len(names))) - {k for group in groups for k in group})
    return tuple(tuple(names[k] for k in group) for group in [*groups, rest] if group)


def _place(item: Any, names: tuple[str, ...]) -> int:
    """Return the position of a feature that a group names, or gives the position of."""
    if isinstance(item, str) and item in names:
        return names.index(item)
    if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < len(names):
        if str(item) in names and names[item] != str(item):
            raise PlanError(
                f"interaction_cst holds {item}, which is the position of {names[item]!r}, and another feature is named"
                f" so. Give names, as texts: {str(item)!r} or {names[item]!r}."
            )
        return item
    raise PlanError(
        f"interaction_cst holds {short(item)}: give names of features, {listed(names)}, or their positions, 0 to"
        f" {len(names) - 1}."
    )
