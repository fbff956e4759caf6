"""A device that is named gets the time that its driver needs, not the few seconds of a launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import daily
import farm
import pytest

pytestmark = [pytest.mark.driver, pytest.mark.timeout(240)]

KIT = Path(__file__).resolve().parents[1] / "faults"
PROGRAM = """
import json, logging, sys, time
import numpy as np, gpuedge
told = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: told.append(record.getMessage())
logging.getLogger("gpuedge").addHandler(handler)
first = [[row.status, row.code] for row in gpuedge.probe(deadline_s=3).tried]
x = np.arange(-8, 8, dtype=np.float32)
start = time.monotonic()
try:
    with gpuedge.config(fallback="error"):
        right = bool((gpuedge.relu(x, device=sys.argv[1]) == np.maximum(x, 0)).all())
except gpuedge.NoUsableDeviceError as error:
    right = str(error)
took = time.monotonic() - start
try:
    gpuedge.open(sys.argv[1]).close()
except gpuedge.NoUsableDeviceError:
    pass
print(json.dumps([first, right, told, took]))
"""


def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, fault: str) -> list[object]:
    """Probe a faulty driver in 3 s, then use it by name; return what came of both."""
    monkeypatch.syspath_prepend(str(KIT))
    import kit

    env = {
        **os.environ, **kit.build().environment(level, fault),
        "GPUEDGE_CACHE_DIR": str(tmp_path), "GPUFAULT_SECONDS": "5",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, level],
        env=env, capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answer: list[object] = json.loads(done.stdout)
    return answer


@daily.day(2, of=4)
def test_a_slow_driver_that_is_named_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.require("vulkan-lavapipe")
    first, right, told, _ = used(tmp_path, monkeypatch, "vulkan", "slow@create")
    assert first == [["timeout", "deadline"]]
    assert right is True
    assert isinstance(told, list)
    assert sum("it is waited for, at most 60 s" in text for text in told) == 1


@daily.day(1, of=4)
def test_a_driver_that_hangs_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.require("gles30-llvmpipe")
    first, right, told, took = used(tmp_path, monkeypatch, "gles30", "hang@compile")
    assert first == [["timeout", "deadline"]]
    assert isinstance(right, str) and "it hung" in right
    assert isinstance(told, list) and isinstance(took, float)
    assert sum("it is waited for" in text for text in told) == 1
    assert took < 60
