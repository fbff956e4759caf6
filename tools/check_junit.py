"""Checks a JUnit file: that it is well formed, says what it holds, and holds enough that passed.

Usage: python tools/check_junit.py FILE LEAST
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

OUTCOMES = {"failure": "failures", "error": "errors", "skipped": "skipped"}
"""Element of a case that did not pass, and the attribute of its suite that counts them."""


def faults(text: str, least: int) -> list[str]:
    """Return what is wrong with a JUnit document that must have `least` passed cases."""
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        return [f"not XML: {error}"]
    suites = root.findall("testsuite") if root.tag == "testsuites" else [root]
    if not suites or any(s.tag != "testsuite" for s in suites):
        return [f"no testsuite: the root is <{root.tag}>"]
    found, passed, names = [], 0, set()
    for suite in suites:
        cases = suite.findall("testcase")
        counts = {"tests": len(cases)} | {
            word: sum(case.find(tag) is not None for case in cases)
            for tag, word in OUTCOMES.items()
        }
        for word, count in counts.items():
            if suite.get(word, "0") != str(count):
                found.append(f"{word}={suite.get(word)} in a suite that has {count}")
        for case in cases:
            name = f"{case.get('classname')}.{case.get('name')}"
            found += [f"{name}: a case needs {w}" for w in ("name", "time") if not case.get(w)]
            found += [f"{name} occurs twice"] if name in names else []
            names.add(name)
            bad = [tag for tag in ("failure", "error") if case.find(tag) is not None]
            found += [f"{name}: {tag}" for tag in bad]
            passed += not bad and case.find("skipped") is None
    if passed < least:
        found.append(f"{passed} cases passed, {least} are wanted")
    return found


def main(file: str, least: str) -> int:
    """Print the faults; return the exit status."""
    wrong = faults(Path(file).read_text(encoding="utf-8"), int(least))
    for line in wrong:
        print(f"{file}: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
