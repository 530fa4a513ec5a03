"""The base of stages and of their parts: options that an estimator may set, and a short form for tests."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Self, cast

from dpgb_dask.errors import PlanError


class Part:
    """Options of a method, as a frozen dataclass that inherits from this; holds no state.

    Attributes
    ----------
    estimator_options : mapping of str to str
        Which option each parameter of an estimator sets; lists those of "n_estimators", "learning_rate", "max_depth"
        and "max_bins" that apply here. Options that are parts themselves have a mapping of their own.
    """

    __slots__ = ()

    estimator_options: ClassVar[Mapping[str, str]] = {}

    def parameters(self) -> frozenset[str]:
        """Return the estimator's parameters that this part and its own parts take."""
        inner = (part.parameters() for part in self._parts().values())
        return frozenset(self.estimator_options).union(*inner)

    def with_parameter(self, name: str, value: Any) -> Self:
        """Return the part with one of `parameters` set, in its own parts too.

        Parameters
        ----------
        name : str
            One of `parameters`.
        value : Any

        Raises
        ------
        PlanError
            If the value is not in the option's range; the message has the parameter's name, not the option's.
        """
        changes: dict[str, Any] = {
            option: part.with_parameter(name, value)
            for option, part in self._parts().items()
            if name in part.parameters()
        }
        option = self.estimator_options.get(name)
        if option is None:
            return self._with(changes)
        try:
            return self._with({**changes, option: value})
        except PlanError as error:
            raise PlanError(str(error).replace(f"{option}=", f"{name}=", 1)) from None

    def brief(self) -> Self:
        """Return a short form for tests: the same queries, a stage in two rounds; by default unchanged."""
        return self

    def _parts(self) -> dict[str, "Part"]:
        """Return the options that are parts themselves, by name."""
        part: Any = self  # the fields are those of the subclass
        if not is_dataclass(part):
            return {}
        options = {option.name: getattr(part, option.name) for option in fields(part)}
        return {name: value for name, value in options.items() if isinstance(value, Part)}

    def _with(self, changes: Mapping[str, Any]) -> Self:
        return cast("Self", replace(cast("Any", self), **changes)) if changes else self
