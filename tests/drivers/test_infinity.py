"""Infinity inside of models: what a device cannot keep is the CPU's, and nothing is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import daily
import pytest
from farm import answer

pytestmark = [pytest.mark.driver, pytest.mark.timeout(120), daily.day(0, of=4)]

FOLDER = Path(__file__).parent
MASKS = ("add", "where", "between")
ATTENTION = ("causal", "masked")
CLIPS = ("clip low", "clip high", "clip none")


def found_on(name: str, *how: str) -> dict[str, dict[str, Any]]:
    path = f"{FOLDER}:{FOLDER.parent}"
    said = answer(FOLDER / "infinity_child.py", name, *how, timeout=110, PYTHONPATH=path)
    made: dict[str, dict[str, Any]] = json.loads(said)
    return made


@pytest.mark.parametrize(
    ("name", "how"), [("gles20-bare", ""), ("gles20-bare", "finite"), ("vulkan-lavapipe", "")]
)
def test_infinity_inside_is_answered_as_by_onnx_runtime(name: str, how: str) -> None:
    found = found_on(name, how)
    is_kept = how != "finite"
    for case in (*ATTENTION, *MASKS, *CLIPS, "clip all"):
        on_cpu = ["first"] if case == "clip all" or (case in MASKS and not is_kept) else []
        made, strict = found[case]["cpu"], found[case]["error"]
        assert isinstance(made, dict), (case, made)
        assert made["off"] <= 1e-6, case
        assert made["cpu"] == on_cpu, case
        assert made["health"] == ["ok", 2, 0, []], case  # `profile` runs once more
        if on_cpu:
            assert strict.startswith("GE-501 ") and "'first' (" in strict, case
        else:
            assert strict == made, case
    for case in ("between, own", "clip low, own"):  # what the caller hands over is refused
        made = found[case]["cpu"]
        if is_kept:
            assert made["off"] <= 1e-6, case
        else:
            assert made.startswith("GE-205 ") and "'x' holds NaN or infinity" in made, case
