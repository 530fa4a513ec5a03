"""``dpgb-dask export``, which writes a model for another runtime."""

import argparse

from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.errors import PlanError
from dpgb_dask.estimators import load


def run(options: argparse.Namespace) -> None:
    """Write the model for the runtime."""
    given = {name: getattr(options, name) for name in ("dialect", "table", "keep", "has_exp")}
    given = {name: value for name, value in given.items() if value is not None}
    if given and options.to != "sql":
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise PlanError(f"{flags}: for --to sql alone. Leave it out.")
    check_spared(options, options.out)
    check_out(options.out, overwrite=options.overwrite)
    model = load(options.model)
    getattr(model, f"to_{options.to}")(options.out, **given)
    print(f"the model is in {options.out}, for {options.to}")
