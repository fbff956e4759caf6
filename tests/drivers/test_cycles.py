"""A device of each level is opened, used and closed 1,000 times: nothing is left over.

What a driver keeps by itself is measured by the same cycles with nothing but the API; only what
comes on top of that is ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import daily
import pytest
from farm import FARM, environment_of, require

pytestmark = [pytest.mark.driver, pytest.mark.timeout(900), daily.day(2, of=4)]

CYCLES = 1000
CONTROL_CYCLES = 400
FEW_CYCLES = 50
"""Enough for what is counted exactly; memory needs a thousand."""
LEVELS = (
    "vulkan-lavapipe",
    "gles31-llvmpipe",
    "gles30-llvmpipe",
    "gles20-llvmpipe",
    "wgpu-lavapipe",
)
LEAK_KIB = 4
"""Memory that a cycle may keep, on top of what the driver keeps: a page.

The smallest thing that could be left over, a texture or a kernel, comes with more than that; the
interpreter's own noise over 1,000 cycles stays below it.
"""


def cycles(who: str, name: str, count: int) -> dict[str, Any]:
    """Run cycles in a child with a configuration's environment; return what it counted."""
    require(name)
    level = FARM[name].device.partition(":")[0]
    child = Path(__file__).with_name("cycles_child.py")
    done = subprocess.run(
        [sys.executable, str(child), who, level, str(count)],
        env=environment_of(name),
        capture_output=True,
        text=True,
        check=False,
        timeout=420,
    )
    assert done.returncode == 0, done.stderr
    body: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return body


def kept(body: dict[str, Any], what: str) -> float:
    """Return what each cycle after the warm-up kept."""
    return float(body["after"][what] - body["before"][what]) / int(body["cycles"])


def check_objects(name: str, body: dict[str, Any]) -> None:
    """Assert that the API itself counts nothing left over, and that its context is as it was."""
    assert body["seen"].get("gl_errors", []) == []
    assert body["seen"].get("changed", []) == []
    if name.startswith("gles"):
        assert body["seen"]["before close"] == body["seen"]["after open"]
    objects = body.get("objects", {})
    assert {kind: n for kind, n in objects.items() if n["count"]} == {}


@pytest.mark.parametrize("name", daily.of_today(LEVELS))
def test_cycles_leave_no_file_thread_or_object(name: str) -> None:
    body = cycles("ours", name, FEW_CYCLES)
    for what in ("files", "threads"):
        assert kept(body, what) <= 0, body
    check_objects(name, body)


@pytest.mark.long
@pytest.mark.parametrize("name", LEVELS)
def test_a_thousand_cycles_leave_nothing(name: str) -> None:
    body = cycles("ours", name, CYCLES)
    control = cycles("bare", name, CONTROL_CYCLES)
    for what in ("files", "threads"):
        assert kept(body, what) <= max(kept(control, what), 0.0), (body, control)
    extra = kept(body, "kib") - max(kept(control, "kib"), 0.0)
    assert extra <= LEAK_KIB, (body, control)
    check_objects(name, body)
