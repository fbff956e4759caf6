"""Saved decisions replay to the same bytes: files that were written once, on some machine.

Where the rules change, raise the number of `METHOD` in gpuedge/decide/decision_record.py; constants
change it by themselves. Then write the files anew: ``python tests/decide/test_decide_golden.py``.
What changed shows in the diff.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from decide_states import CASES

from gpuedge.decide.decision import Decision

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "decisions"


def file(name: str) -> Path:
    return FOLDER / f"{name.replace(',', '').replace(' ', '-').lower()}.json"


@pytest.mark.parametrize("name", CASES)
def test_saved_decision_replays_to_the_same_bytes(name: str) -> None:
    text = file(name).read_text("ascii").rstrip("\n")
    saved = Decision.from_dict(json.loads(text))
    assert saved.to_json() == text
    assert saved.replay().to_json() == text
    assert saved.replay() == saved
    assert str(saved.replay()) == str(saved)


@pytest.mark.parametrize("name", CASES)
def test_same_evidence_still_decides_the_same(name: str) -> None:
    assert CASES[name].to_json() == file(name).read_text("ascii").rstrip("\n")


def test_no_file_is_left_over() -> None:
    assert set(FOLDER.glob("*.json")) == set(map(file, CASES))


def test_cases_cover_the_codes_of_deciding() -> None:
    assert {row.code for found in CASES.values() for row in found.rows} >= {
        "selected", "fallback", "named", "not-named", "not-best", "other-route", "demoted",
        "software", "too-much-memory", "misses-deadline", "not-yet", "slower", "opening",
        "open-late", "on-trial", "measured-slower", "too-little", "quirk", "compile-failed",
        "takes-over",
    }  # fmt: skip


def test_replay_needs_no_gpu_library_and_no_numpy() -> None:
    code = (
        "import json, sys\n"
        "from gpuedge.decide.decision import Decision\n"
        "text = open(sys.argv[1]).read().rstrip()\n"
        "assert Decision.from_dict(json.loads(text)).replay().to_json() == text\n"
        "print([m for m in ('numpy', 'onnx', 'vulkan', 'wgpu') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file("demoted"))],
        capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for case, found in CASES.items():
        file(case).write_text(found.to_json() + "\n", "ascii")
