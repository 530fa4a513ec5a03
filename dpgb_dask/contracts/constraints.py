"""Constraints on a model, from public knowledge: monotone features, and which features may interact."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError, listed, short

PAIRWISE = "pairwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What every model of a fit must keep, whatever the data say; all of it is public.

    Parameters
    ----------
    monotonic : tuple of (str, int)
        Features with their direction: 1 if the score must not fall where the feature grows, -1 if it must not grow.
    interactions : "pairwise", tuple of tuple of str, or None
        Groups of features: a tree, or a pair table, has only features of one group. Every feature is in a group.
        "pairwise" stands for all groups of two. None: any features may interact.
    """

    monotonic: tuple[tuple[str, int], ...] = ()
    interactions: str | tuple[tuple[str, ...], ...] | None = None

    def __bool__(self) -> bool:
        return bool(self.monotonic) or self.interactions is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without what is not constrained."""
        out: dict[str, Any] = {}
        if self.monotonic:
            out["monotonic_cst"] = dict(self.monotonic)
        if self.interactions is not None:
            groups = self.interactions
            out["interaction_cst"] = groups if groups == PAIRWISE else [list(g) for g in groups]
        return out

    def check(self, schema: Schema) -> None:
        """Refuse constraints that do not fit a schema.

        Raises
        ------
        PlanError
            If a feature is not in the schema, or a monotonic one is not numeric; for several classes, whose scores have
            no common direction; or unless every feature is in a group.
        """
        for name, direction in self.monotonic:
            columns = [schema.encoded[c] for c in columns_of(name, schema)]
            if direction not in (-1, 1):
                raise PlanError(f"monotonic_cst of {name!r} is {direction!r}: give -1, 0 or 1.")
            if len(columns) != 1 or not isinstance(columns[0], Numeric):
                raise PlanError(
                    f"monotonic_cst names {name!r}, which is no numeric feature: categories, and the parts of a date,"
                    " have no common order. Leave it out."
                )
        if self.monotonic and schema.target.type == "multiclass":
            raise PlanError(
                "monotonic_cst is not supported for more than two classes: their scores cannot all follow one"
                " direction. Leave it out."
            )
        if self.interactions is None or self.interactions == PAIRWISE:
            return
        known = {name for group in self.interactions for name in group}
        if known != set(schema.features) or not all(self.interactions):
            raise PlanError(
                "interaction_cst must hold every feature of the schema in some group, and nothing else."
            )

    def directions(self, schema: Schema) -> NDArray[np.int8]:
        """Return the direction of every encoded column, (n_columns,) int8: -1, 0 or 1."""
        out = np.zeros(len(schema.encoded), np.int8)
        at = {name: k for k, name in enumerate(schema.encoded)}
        for name, direction in self.monotonic:
            out[at[columns_of(name, schema)[0]]] = direction
        return out


UNCONSTRAINED = Constraints()


def columns_of(name: str, schema: Schema) -> list[str]:
    """Return the encoded columns of a feature; raises PlanError if the schema has no such feature."""
    if name not in schema.features:
        raise PlanError(
            f"{short(name)} is no feature of the schema. It has {listed(schema.names)}."
        )
    return [c for c, source in zip(schema.encoded, schema.sources, strict=True) if source == name]


@dataclass(frozen=True, eq=False, slots=True)
class Interactions:
    """Which encoded columns may follow each other on a path of a tree, or share a pair table.

    Parameters
    ----------
    feature_of : (n_columns,) int64
        Feature of each encoded column: columns of one feature may always interact.
    member : (n_groups, n_features) bool, or None
        Features of each group; None for all groups of two.
    """

    feature_of: NDArray[np.int64]
    member: NDArray[np.bool_] | None

    @classmethod
    def of(cls, constraints: Constraints, schema: Schema) -> "Interactions | None":
        """Return the rule of some constraints; None if any columns may interact."""
        if constraints.interactions is None:
            return None
        at = {name: k for k, name in enumerate(schema.features)}
        feature_of = np.array([at[name] for name in schema.sources], np.int64)
        if constraints.interactions == PAIRWISE:
            return cls(feature_of, None)
        member = np.zeros((len(constraints.interactions), len(at)), bool)
        for row, group in zip(member, constraints.interactions, strict=True):
            row[[at[name] for name in group]] = True
        return cls(feature_of, member)

    def allowed(self, used: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the columns that a node may split on.

        Parameters
        ----------
        used : (n_nodes, n_columns) bool
            Columns that the nodes above split on.

        Returns
        -------
        (n_nodes, n_columns) bool
            The columns of all groups that hold everything used. What was used is always among them.
        """
        n_features = int(self.feature_of.max()) + 1
        features = np.zeros((len(used), n_features), bool)
        nodes, columns = np.nonzero(used)
        features[nodes, self.feature_of[columns]] = True
        if self.member is None:
            free = features.sum(1) < 2
            return np.asarray((features | free[:, None])[:, self.feature_of])
        lacking = features.astype(np.float32) @ (~self.member).T.astype(np.float32)
        fits = (lacking == 0).astype(np.float32)
        return np.asarray((fits @ self.member.astype(np.float32) > 0)[:, self.feature_of])

    def may_pair(self) -> NDArray[np.bool_]:
        """Return which two columns may share a pair table, (n_columns, n_columns) bool."""
        return self.allowed(np.eye(len(self.feature_of), dtype=bool))
