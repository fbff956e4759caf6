"""The least limits of each OpenGL ES level: planned for, and enough for every operation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import daily
import farm
import pytest

pytestmark = [pytest.mark.driver, daily.day(3, of=4)]
SCRIPT = Path(__file__).with_name("gles_smallest.py")


LEVELS = ("gles20", "gles30", "gles31")


def test_every_operation_fits() -> None:
    """On one level each day."""
    check(LEVELS[daily.turn(len(LEVELS))])


@pytest.mark.long
@pytest.mark.parametrize("level", LEVELS)
def test_every_operation_fits_everywhere(level: str) -> None:
    check(level)


def check(level: str) -> None:
    configuration = f"{level}-llvmpipe"
    farm.require(configuration)
    done = subprocess.run(
        [sys.executable, SCRIPT, level], env=farm.environment_of(configuration),
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[-1]) > 90  # each case ran on the device
