"""Saved decisions replay to the same bytes: files that were written once, on some machine.

Where the rules or constants change, `METHOD` in gpuedge/decide/record.py does, and the files are
written anew: ``python tests/decide/test_decide_golden.py``; what changed shows in the diff.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuedge.decide.attempts import in_service, next_attempt, with_trial
from gpuedge.decide.belief import Belief
from gpuedge.decide.conditions import Conditions
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.model import Prediction
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "decisions"
MS = 10**6
VERSION = "0.1.0"


def known(at_us: int, startup_ms: int = 60) -> Prediction:
    ns = at_us * 1000
    return Prediction(
        ns * 3 // 4, ns, ns, ns // 4, ns * 9 // 4, startup_ms * MS,
        "predicted from calibration", p99_ns=ns * 5 // 4, sigma_micro=1_098_612,
    )  # fmt: skip


def gpu(device: str, at_us: int, **more: Any) -> Evidence:
    name = "Adreno (TM) 640" if device.startswith("wgpu") else "Mali-G52"
    return Evidence(
        device, name=name, is_software=False, prediction=known(at_us),
        source="measured", probe="9f86d081884c7d65", **more,
    )  # fmt: skip


CPU = Evidence("cpu", is_software=False, prediction=known(14_000, 3), source="cached")


def base(*gpus: Evidence, **policy: Any) -> Decision:
    now = Conditions(load_milli=240, battery_percent=71, is_on_battery=True, thermal="nominal")
    return decide(
        Record("auto", Policy(**policy), (*gpus, CPU), VERSION, "measured cpu, vulkan:0 in 1.20 s",
               "12 (embedded)", now)
    )  # fmt: skip


def tried(decision: Decision, cpu_ms: float, gpu_ms: float, seed: int) -> Decision:
    """Return the decision after a trial on a noisy machine."""
    attempt = next_attempt(decision)
    assert attempt is not None
    attempt.trial.started(83 * MS)
    rng, now = random.Random(seed), 0
    while (alternative := attempt.trial.next(now)) is not None:
        ns = round(
            (cpu_ms if alternative == "cpu" else gpu_ms) * MS * rng.lognormvariate(0.0, 0.25)
        )
        now += ns
        attempt.trial.add(alternative, ns)
    return with_trial(decision, attempt.device, attempt.trial)


QUIRK = {"is_demoted": True, "entries": ["mali-slow-compute"], "features": ["fp16"], "limits": {}}

CASES: dict[str, Callable[[], Decision]] = {
    "prior-only": lambda: base(gpu("vulkan:0", 3_000), gpu("gles31:0", 5_000)),
    "screened": lambda: base(gpu("vulkan:0", 900_000, draw=700_000)),
    "measured-faster": lambda: tried(base(gpu("vulkan:0", 11_000)), 14, 6, 1),
    "measured-slower": lambda: tried(base(gpu("vulkan:0", 2_000)), 14, 30, 2),
    "slow-model": lambda: tried(base(gpu("vulkan:0", 9_000)), 180, 120, 3),
    "later-window": lambda: tried(
        base(gpu("vulkan:0", 9_000, belief=Belief(-200_000, 31_000, 2), base_ns=15 * MS)), 14, 12, 4
    ),
    "kept": lambda: decide(
        replace(
            base(gpu("vulkan:0", 9_000, belief=Belief(-226_000, 10_000, 4))).record, previous="cpu"
        )
    ),
    "in-service": lambda: in_service(
        base(gpu("vulkan:0", 9_000)), "vulkan:0", Belief(-320_123, 4_321, 40), 13_777_001, 20_480
    ),
    "deadline": lambda: base(
        gpu("vulkan:0", 11_500), gpu("wgpu:0", 13_500), deadline_s=0.0125, caution=0.1
    ),
    "energy": lambda: decide(
        replace(
            base(prefer="energy").record,
            candidates=(gpu("vulkan:0", 20_000, energy_uj=4_000), replace(CPU, energy_uj=31_000)),
        )
    ),
    "demoted": lambda: base(
        gpu("vulkan:0", 1_000, restrictions=QUIRK, entries=("mali-slow-compute",)),
        gpu("wgpu:0", 2_000, memory_bytes=5 << 20), max_memory_bytes=64 << 20,
    ),
    "ruled-out": lambda: base(
        Evidence("vulkan:0", "quirk", "adreno-1234 forbids it", "Adreno (TM) 308", False,
                 entries=("adreno-1234",)),
        Evidence("vulkan:1", name="llvmpipe", is_software=True),
        Evidence("gles31", "no-loader", "libEGL.so.1 was not found"),
    ),
    "named": lambda: decide(
        Record("vulkan:0", Policy(), (gpu("vulkan:0", 1), CPU), VERSION, "not needed")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_saved_decision_replays_to_the_same_bytes(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text("ascii").rstrip("\n")
    saved = Decision.from_dict(json.loads(text))
    assert saved.to_json() == text
    assert saved.replay().to_json() == text
    assert saved.replay() == saved
    assert str(saved.replay()) == str(saved)


@pytest.mark.parametrize("name", CASES)
def test_same_evidence_still_decides_the_same(name: str) -> None:
    assert CASES[name]().to_json() == (FOLDER / f"{name}.json").read_text("ascii").rstrip("\n")


def test_no_file_is_left_over() -> None:
    assert {p.stem for p in FOLDER.glob("*.json")} == set(CASES)


def test_cases_cover_the_codes_of_deciding() -> None:
    found = {r.code for make in CASES.values() for r in make().rows}
    assert found >= {
        "selected", "fallback", "slower", "measured-slower", "not-best", "kept", "demoted",
        "misses-deadline", "quirk", "software", "named", "not-named", "no-loader",
    }  # fmt: skip
    labels = {r.confidence for make in CASES.values() for r in make().rows}
    assert labels >= {"screened", "prior only", "1 window", "3 windows", "4 windows", "in service"}


def test_changed_evidence_changes_the_replay() -> None:
    """A replay judges the runs; it does not copy the answer."""
    saved = json.loads((FOLDER / "measured-faster.json").read_text("ascii"))
    for run in saved["record"]["candidates"][0]["runs"]:
        if run[0] == "gpu":
            run[2] *= 4
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
        [sys.executable, "-c", code, str(FOLDER / "later-window.json")],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for case, make_case in CASES.items():
        (FOLDER / f"{case}.json").write_text(make_case().to_json() + "\n", "ascii")
