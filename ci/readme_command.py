"""Print the test command of the README: the one fenced sh block that contains ``pytest``."""

import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8")
blocks = re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
tests = [block.strip() for block in blocks if "pytest" in block]
if len(tests) != 1:
    sys.exit(
        f"{sys.argv[1]}: {len(tests)} sh blocks contain 'pytest'; exactly one must, the test command."
    )
print(tests[0])
