"""What every runtime's file holds: labels of one type, scores that do not wrap around, and a statement as a comment."""

from dataclasses import replace

import numpy as np
import pytest

from dpgb_dask import Schema
from dpgb_dask.contracts.model import TreeEnsemble
from dpgb_dask.errors import StructureError
from dpgb_dask.released.runtimes.content import Content, commented, refuse_wrapping

PARTS = ("table", "pair", "tree")


def steps(model, *ones):
    """A model whose intercept is the largest score, and that has a step in some parts."""
    of = {part: np.int32(part in ones) for part in PARTS}
    tables = (*(0 * table for table in model.tables[:-1]), 0 * model.tables[-1] - of["table"])
    pairs = tuple(replace(pair, table=0 * pair.table - of["pair"]) for pair in model.pairs)
    trees = TreeEnsemble(model.trees.splits, 0 * model.trees.value)
    trees.value[0, 0, 0] = of["tree"]
    largest = np.array([(1 << 31) - 1], np.int32)
    return replace(model, intercept=largest, tables=tables, pairs=pairs, trees=trees)


@pytest.mark.parametrize("part", PARTS)
def test_scores_that_one_step_of_any_part_may_wrap_around_are_refused(model, part):
    refuse_wrapping(steps(model), "ONNX")
    with pytest.raises(StructureError, match=r"may wrap around .* a file for ONNX"):
        refuse_wrapping(steps(model, part), "ONNX")


@pytest.mark.parametrize(
    ("label", "written"),
    [(2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (2**63, str(2**63))],
)
def test_whole_labels_are_texts_where_64_bits_do_not_hold_one(
    label, written, model, shares, report
):
    schema = Schema({"x": (0, 1)}, classes=[5, label])
    assert Content(model, schema, report, shares).labels[1] == written


def test_a_comment_ends_where_its_text_does():
    assert commented("ε = 1\x00\u202eDROP\r\nδ\x0b= 0", "--") == "-- ε = 1??DROP\n-- δ\n-- = 0\n"
