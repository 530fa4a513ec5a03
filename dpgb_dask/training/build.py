"""The build: everything by name that the floats of a fit's post-processing depend on.

On the same build they can be computed again.
"""

import platform

import numpy as np

from dpgb_dask.installed import VERSIONS
from dpgb_dask.training import blas


def build() -> dict[str, str]:
    """Return machine, libraries, BLAS and features of the processor, as text.

    Sums over rows are integers and the same everywhere. The controlling process turns released sums into a model by
    float linear algebra, rounded to 2⁻¹⁶: the same bits are promised on the same build alone (docs/design.md §3).
    """
    simd = np.show_config(mode="dicts").get("SIMD Extensions", {})
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        **VERSIONS,
        "blas": ", ".join(blas.names()),
        "simd": " ".join([*simd.get("baseline", []), *simd.get("found", [])]),
    }
