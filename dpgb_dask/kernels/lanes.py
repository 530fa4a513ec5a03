"""Four numbers next to each other, added by one instruction: of cells that hold an entry for each of four scores."""

from typing import Any, TypeAlias, cast

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

LANES = 4
_config: Any = numba.config

Row: TypeAlias = int | np.integer[Any]


def _in_python(to: NDArray[Any], i: Row, by: NDArray[Any], j: Row) -> None:
    to[i] += by[j]


def _in_one_instruction(_: Any, to: Any, i: Any, by: Any, j: Any) -> Any:
    """Return how Numba types and compiles `add_row`; its own code adds the four one by one."""
    if not all(a.ndim == 2 and a.layout == "C" and a.dtype == to.dtype for a in (to, by)):
        return None

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def row(array: int) -> Any:
            kind, index_kind = signature.args[array : array + 2]
            data = context.make_array(kind)(context, builder, arguments[array]).data
            index = context.cast(builder, arguments[array + 1], index_kind, types.intp)
            first = builder.mul(index, ir.Constant(index.type, LANES))
            vector = ir.VectorType(context.get_value_type(kind.dtype), LANES)
            return builder.bitcast(builder.gep(data, [first]), vector.as_pointer())

        size = context.get_abi_sizeof(context.get_value_type(to.dtype))
        place = row(0)
        sums = builder.add(builder.load(place, align=size), builder.load(row(2), align=size))
        builder.store(sums, place, align=size)
        return context.get_dummy_value()

    return types.void(to, i, by, j), build


# ``to[i] += by[j]`` of C-contiguous (n, 4) integers; neither index is checked
add_row = _in_python if _config.DISABLE_JIT else cast(Any, intrinsic(_in_one_instruction))
