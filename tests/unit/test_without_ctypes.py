"""A Python that was built without libffi has no ctypes: the CPU computes, and a probe says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import sys
sys.modules["_ctypes"] = None
import numpy as np
import gpuedge
x = np.arange(-4.0, 4.0, dtype=np.float32).reshape(1, 1, 2, 4)
for device in ("cpu", "auto"):
    assert np.array_equal(gpuedge.conv2d(x, x[:, :, :1, :1], device=device), -4 * x)
rows = gpuedge.probe(deadline_s=60, backends="null").tried
print([(row.status, row.code, row.reason) for row in rows])
"""


def test_the_cpu_computes_and_the_probe_says_why(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['_ctypes'] = None")
    folders = [str(tmp_path), *filter(None, sys.path)]
    environ = {
        **os.environ, "GPUEDGE_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(folders),
    }  # fmt: skip
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "'broken', 'no-token'" in done.stdout
    assert "last words: ModuleNotFoundError: import of _ctypes halted" in done.stdout
