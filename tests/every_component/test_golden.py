"""Every recipe asks, opens, releases and builds the same as before: the golden answers are unchanged."""

import json

import golden
import pytest

KNOWN = json.loads(golden.FILE.read_text(encoding="utf-8"))
COLUMNS = (
    "price", "squared L2 sensitivity", "L1 sensitivity", "range of gains", "mechanism", "noise", "scale",
    "raw sums", "released integers",
)  # fmt: skip


def test_golden_answers_hold_every_case():
    assert list(KNOWN["cases"]) == [" ".join(case) for case in golden.CASES]


@pytest.mark.parametrize("case", golden.CASES, ids=" ".join)
def test_recipe_gives_its_golden_answers(case):
    known, told = KNOWN["cases"][" ".join(case)], golden.fit(*case)
    if told != known and golden.build() != KNOWN["build"]:
        # sums of later rounds depend on the floats of the controller; those of the first on nothing but the rows
        assert told["rounds"][0][:5] == known["rounds"][0][:5]
        assert told["rounds"][0][-2] == known["rounds"][0][-2]
        pytest.skip(f"ANOTHER BUILD than that of the golden answers: {golden.build()}")
    for number, (was, now) in enumerate(zip(known["rounds"], told["rounds"], strict=False)):
        for name, before, after in zip(COLUMNS, was, now, strict=True):
            assert after == before, f"{name} of round {number}"
    assert len(told["rounds"]) == len(known["rounds"])
    assert told["model"] == known["model"]
