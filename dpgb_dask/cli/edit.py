"""``dpgb-dask edit``, which changes a model file by released values alone."""

import argparse

from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.display import seen
from dpgb_dask.errors import PlanError
from dpgb_dask.estimators import load


def run(options: argparse.Namespace) -> None:
    """Save the changed model, and print its changes."""
    if not options.edits:
        raise PlanError("There is nothing to change: give --monotone, --clamp or --remove.")
    check_spared(options, options.out)
    check_out(options.out, overwrite=options.overwrite)
    editor = load(options.model).edit()
    for method, given in options.edits:
        editor = getattr(editor, method)(*given)
    edited = editor.done()
    edited.save(options.out)
    for line in edited.privacy_report_.edits:
        print(seen(line))
    print(f"edited model written to {options.out}")
