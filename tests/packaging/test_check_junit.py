"""tools/check_junit.py: what continuous integration accepts as the result of a conformance run."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_junit.py"
CASE = '<testcase classname="relu" name="{}" time="0.1">{}</testcase>'


def document(*inner: str, **counts: int) -> str:
    given = {"tests": len(inner), "failures": 0, "errors": 0, "skipped": 0} | counts
    words = " ".join(f'{k}="{v}"' for k, v in given.items())
    cases = "".join(CASE.format(i, text) for i, text in enumerate(inner))
    return f'<?xml version="1.0"?><testsuites><testsuite {words}>{cases}</testsuite></testsuites>'


def check(tmp_path: Path, text: str, least: int) -> tuple[int, str]:
    file = tmp_path / "junit.xml"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, str(TOOL), str(file), str(least)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_enough_passed_cases_are_good(tmp_path: Path) -> None:
    skipped = '<skipped message="no group variant"/>'
    assert check(tmp_path, document("", "", skipped, skipped=1), 2) == (0, "")


def test_skipped_cases_do_not_count(tmp_path: Path) -> None:
    status, said = check(tmp_path, document("", "<skipped/>", skipped=1), 2)
    assert status == 1
    assert "1 cases passed, 2 are wanted" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<testsuites", "not XML"),
        ("<html/>", "no testsuite"),
        ("<testsuites/>", "no testsuite"),
        (document("", tests=2), "tests=2 in a suite that has 1"),
        (document("<failure/>"), "failures=0 in a suite that has 1"),
        (document("<failure/>", failures=1), "relu.0: failure"),
        (document("<error/>", errors=1), "relu.0: error"),
        (document("", "").replace('name="1"', 'name="0"'), "relu.0 occurs twice"),
        (document("").replace(' time="0.1"', ""), "needs time"),
    ],
)
def test_faults_are_named(text: str, words: str) -> None:
    faults = runpy.run_path(str(TOOL))["faults"]
    assert any(words in line for line in faults(text, 0)), faults(text, 0)
