"""The deadline of a probe holds with a driver that hangs, on every API, wherever it hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import daily
import farm
import pytest

pytestmark = [pytest.mark.driver, pytest.mark.timeout(240), daily.day(2, of=4)]

KIT = Path(__file__).resolve().parents[1] / "faults"
LATE_S = 1.0
"""The faults last for ever; where nothing else runs a probe is 0.02 late."""

TRIES = 3
"""A busy machine makes one measurement late; a fault would make all of them late."""

PROGRAM = """
import json, sys, time
import gpuedge, gpuedge.probing.api, gpuedge.probing.run, logging
level, deadline_s = sys.argv[1], float(sys.argv[2])
logging.getLogger("gpuedge").addHandler(logging.NullHandler())
for _ in range(int(sys.argv[3])):
    start = time.monotonic()
    report = gpuedge.probe(refresh=True, backends=[level], deadline_s=deadline_s)
    late = time.monotonic() - start - deadline_s
    print(json.dumps([late, [[row.status, row.code] for row in report.tried]]))
    if late < float(sys.argv[4]):
        break
"""


@pytest.mark.parametrize(
    ("level", "fault", "deadline_s"),
    [
        ("vulkan", "hang@load", 0.3), ("vulkan", "spin@create", 1.5), ("wgpu", "hang@submit", 2),
        ("vulkan", "hang@finish", 6), ("gles30", "hang@submit", 2), ("gles20", "hang@load", 0.3),
    ],
)  # fmt: skip
def test_a_driver_that_hangs_does_not_move_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, fault: str, deadline_s: float
) -> None:
    farm.require(f"{level}-lavapipe" if level in ("vulkan", "wgpu") else f"{level}-llvmpipe")
    monkeypatch.syspath_prepend(str(KIT))
    import kit

    env = {
        **os.environ,
        **kit.build().environment(level, fault),
        "GPUEDGE_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, level, str(deadline_s), str(TRIES), str(LATE_S)],
        env=env, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    tries = [json.loads(line) for line in done.stdout.splitlines()]
    for late, rows in tries:
        assert late > -0.05
        assert ["timeout", "deadline"] in rows
    assert min(late for late, _ in tries) < LATE_S
