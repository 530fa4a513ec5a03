"""`auto` as on rich data, whatever the data: few rows of a test would never show its chosen trees."""

from dataclasses import replace

from dpgb_dask.components.auto.start import Start
from dpgb_dask.recipes import AUTO

RICH = replace(
    AUTO,
    name="rich",
    stages=tuple(
        Start(rich_from=0.0) if isinstance(stage, Start) else stage for stage in AUTO.stages
    ),
)
