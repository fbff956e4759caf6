"""Saved decisions replay to the same bytes: files that were written once, on some machine.

Where the rules change, raise the number of `METHOD` in gpuedge/decide/record.py; constants change
it by themselves. Then write the files anew: ``python tests/decide/test_decide_golden.py``. What
changed shows in the diff.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_decide_decision import CASES, decided

from gpuedge.decide.decision import Decision

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "decisions"
NAMES = (
    "drivers without a device", "software", "probing ruled it out", "too much memory",
    "does not pay yet", "predicted slower", "paid in earlier launches", "opening",
    "opening is late", "on trial", "failed", "faster", "faster at load", "faster before", "slower",
    "too little", "demoted", "two routes to one device", "deadline kept by a GPU",
    "deadline missed by all", "named", "named, and failed since", "answers next", "answers soon",
    "not yet the CPU",
)  # fmt: skip


def file(name: str) -> Path:
    return FOLDER / f"{name.replace(',', '').replace(' ', '-').lower()}.json"


def made(name: str) -> Decision:
    candidates, more, *_ = CASES[name]
    return decided(*candidates, **{"previous_requests": (100, 870), **more})


@pytest.mark.parametrize("name", NAMES)
def test_saved_decision_replays_to_the_same_bytes(name: str) -> None:
    text = file(name).read_text("ascii").rstrip("\n")
    saved = Decision.from_dict(json.loads(text))
    assert saved.to_json() == text
    assert saved.replay().to_json() == text
    assert saved.replay() == saved
    assert str(saved.replay()) == str(saved)


@pytest.mark.parametrize("name", NAMES)
def test_same_evidence_still_decides_the_same(name: str) -> None:
    assert made(name).to_json() == file(name).read_text("ascii").rstrip("\n")


def test_no_file_is_left_over() -> None:
    assert set(FOLDER.glob("*.json")) == set(map(file, NAMES))


def test_cases_cover_the_codes_of_deciding() -> None:
    assert {row.code for name in NAMES for row in made(name).rows} >= {
        "selected", "fallback", "named", "not-named", "not-best", "other-route", "demoted",
        "software", "too-much-memory", "misses-deadline", "not-yet", "slower", "opening",
        "open-late", "on-trial", "measured-slower", "too-little", "quirk", "compile-failed",
        "takes-over",
    }  # fmt: skip


def test_changed_evidence_changes_the_replay() -> None:
    """A replay weighs the evidence; it does not copy the answer."""
    saved = json.loads(file("faster").read_text("ascii"))
    saved["record"]["candidates"][0]["belief"][0] += 2_000_000
    changed = Decision.from_dict(saved)
    assert changed.device == "vulkan:0"
    assert changed.replay().device == "cpu"


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
    for case in NAMES:
        file(case).write_text(made(case).to_json() + "\n", "ascii")
