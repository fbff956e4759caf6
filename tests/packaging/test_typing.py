"""A strictly checked program sees the types of gpuedge: of results, and of fixed words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import daily

import gpuedge

CONSUMER = Path(__file__).with_name("typed_consumer.py")


@daily.day(0, of=3)
def test_a_strict_type_checker_accepts_a_program_that_uses_gpuedge(tmp_path: Path) -> None:
    shutil.copy(CONSUMER, tmp_path)  # away from the project's own settings
    installed = Path(gpuedge.__file__).parents[1]
    command = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", CONSUMER.name)
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "MYPYPATH": str(installed)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["Success: no issues found in 1 source file"]
    assert (Path(gpuedge.__file__).parent / "py.typed").is_file()
