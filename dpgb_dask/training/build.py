"""The build: everything by name that the floats of a fit's post-processing depend on.

On the same build they can be computed again.
"""

import platform

import numpy as np
from threadpoolctl import threadpool_info

from dpgb_dask.installed import VERSIONS


def build() -> dict[str, str]:
    """Return machine, libraries, BLAS and features of the processor, as text.

    Sums over rows are integers and the same everywhere. The controlling process turns released sums into a model by
    float linear algebra, rounded to 2⁻¹⁶: the same bits are promised on the same build alone (docs/design.md §3).
    """
    found = [info for info in threadpool_info() if info["user_api"] == "blas"]
    blas = {
        f"{i['internal_api']} {i['version']} {i.get('architecture', '')}".strip() for i in found
    }
    simd = np.show_config(mode="dicts").get("SIMD Extensions", {})
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        **VERSIONS,
        "blas": ", ".join(sorted(blas)),
        "simd": " ".join([*simd.get("baseline", []), *simd.get("found", [])]),
    }
