"""Print what tests of junit files saw (their property "saw"), and every skipped test with its reason; count them."""

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

reasons: Counter[str] = Counter()
n_tests = 0
for path in map(Path, sys.argv[1:]):
    if not path.is_file():
        print(f"no results: {path.name}")
        continue
    for case in ET.parse(path).getroot().iter("testcase"):
        n_tests += 1
        for seen in case.findall("properties/property[@name='saw']"):
            print(f"SAW {case.get('name')}: {seen.get('value')}")
        for skipped in case.findall("skipped"):
            reason = skipped.get("message", "no reason given")
            reasons[reason] += 1
            print(f"SKIPPED {case.get('classname')}::{case.get('name')}: {reason}")
print(f"{n_tests} tests ran or were skipped; {sum(reasons.values())} skipped")
for reason, count in reasons.most_common():
    print(f"  {count:4d} x {reason}")
