"""The boundary as types: ``Raw[T]`` becomes ``Released[T]`` in ``controller/release.py`` and nowhere else."""

from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from dpgb_dask.errors import UnreleasedError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The largest change of a vector of integer sums when one row (or one unit) is added or removed.

    Set by the code that clipped, never by a mechanism's caller.

    Parameters
    ----------
    l2_squared : int
        Exact square of the L2 norm, in steps²: for Gaussian noise.
    l1 : int
        Exact L1 norm, in steps: for Laplace noise.
    choice_range : int
        For an exponential choice, largest minus smallest change of a candidate's score: of a split's gain ΣS²/(n + λ),
        in gradient steps² (natural weights); of a shared choice's sums, in the units of its query. 0 where the sums
        allow none.
    """

    l2_squared: int
    l1: int
    choice_range: int = 0

    def __post_init__(self) -> None:
        if self.l2_squared <= 0 or self.l1 <= 0:
            raise ValueError(
                f"l2_squared={self.l2_squared} and l1={self.l1} must be positive: every query bounds what one row adds."
            )


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a release was paid for.

    Parameters
    ----------
    fit_id : str
    query_id : str
        Hash of fit, position, full query, sensitivity, sigma, shape and sampler version (hex).
    position : int
        Place of the release in the fit, from 0.
    label : str
        What was asked, for the report.
    price : int
        Charge in units of 2⁻⁶⁴ of the plan's currency (μ² or ε).
    sigma_steps : int
        Standard deviation of the noise (√2·t, rounded, for Laplace exp(-|z|/t)), in steps after scaling by
        ``2**scale_bits``; 0 for a choice.
    scale_bits : int
        The opened sums were multiplied by ``2**scale_bits`` before the noise.
    mechanism : str
        "gaussian", "laplace" or "choice".
    """

    fit_id: str
    query_id: str
    position: int
    label: str
    price: int
    sigma_steps: int
    scale_bits: int
    mechanism: str = "gaussian"


class Raw(Generic[T]):
    """A sealed private value with its sensitivity; only the controller opens it. A seat belt, not a vault."""

    __slots__ = ("__value", "sensitivity")

    def __init__(self, value: T, sensitivity: Sensitivity) -> None:
        self.__value = value
        self.sensitivity = sensitivity

    def _open(self, receipt: Receipt) -> T:
        """Return the value against the receipt of its charge; ``controller/release.py`` alone may call this."""
        if not isinstance(receipt, Receipt):
            raise UnreleasedError(
                "A sealed value opens only against a Receipt. Ask Controller.release for it."
            )
        return self.__value

    def __repr__(self) -> str:
        return "<sealed>"

    __str__ = __repr__

    def __refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise UnreleasedError(
            "This value is private and sealed. Only Controller.release may open it."
        )

    __array__ = __iter__ = __len__ = __getitem__ = __float__ = __int__ = __index__ = __bool__ = (
        __refuse
    )
    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = __refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __format__ = __refuse
    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Released(Generic[T]):
    """A noised value and the receipt of its charge; everything computed from it is post-processing."""

    value: T
    receipt: Receipt
