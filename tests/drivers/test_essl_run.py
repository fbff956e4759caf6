"""Printed ESSL on Mesa's software driver, held to exactly 2.0, 3.0 and 3.1, without our backend.

The texts run in a bare context (essl_gl.py) with texture codecs of its own, and every result is
compared with the interpreter's: exactly, but for functions such as exp.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from lang_kernels import INT_OPERATIONS
from required import absent

from gpuedge.core.storage import KINDS
from gpuedge.opset.functions import FUNCTIONS
from gpuedge.plan.library import texts

pytestmark = pytest.mark.driver
CHILD = Path(__file__).with_name("essl_child.py")
LEVELS = ("2.0", "3.0", "3.1")
BYTES = [kind for kind in KINDS if kind.startswith("rgba8")]
MUTANTS = ("mutant all", "mutant samplers")


@lru_cache(maxsize=3)
def wrong(level: str) -> dict[str, int]:
    """How many values of each case are wrong on one level."""
    if ctypes.util.find_library("EGL") is None:
        absent("no EGL here: apt-get install -y libegl1 libegl-mesa0 libgl1-mesa-dri")
    mesa = {
        "MESA_GLES_VERSION_OVERRIDE": level,
        "GALLIUM_DRIVER": "llvmpipe",
        "LIBGL_ALWAYS_SOFTWARE": "1",
    }
    done = subprocess.run(
        [sys.executable, str(CHILD), level],
        env={**os.environ, **mesa}, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout)
    assert answer["version"].startswith(f"OpenGL ES {level}")
    found: dict[str, int] = answer["wrong"]
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_wrong(level: str) -> None:
    found = {name: count for name, count in wrong(level).items() if name not in MUTANTS}
    assert {name: count for name, count in found.items() if count} == {}


@pytest.mark.parametrize("level", LEVELS)
def test_everything_ran(level: str) -> None:
    names = wrong(level).keys()
    wanted = {f"expression {name}" for name in FUNCTIONS}
    wanted |= {name for name in texts() if name.startswith("map/")}
    wanted.remove("map/elementwise")  # the expressions
    wanted |= {
        "divide",
        "divide one",
        "divide one signed",
        "gathered 8",
        "table",
        "loops",
        "words",
        "softmax",
        "roundeven",
    }
    if level != "2.0":
        wanted |= {f"ints {expression}" for expression in INT_OPERATIONS}
    if level == "3.1":
        wanted |= {"matmul_tile", "matmul_rows", "conv2d_px4"}
    else:
        wanted |= {f"{a} to {b} by {way}" for a in BYTES for b in BYTES
                   for way in ("texels", "elements")}  # fmt: skip
        wanted |= {"codec rgba8_float texels", "codec rgba8_float elements"}
    if level == "3.0":
        wanted |= {
            "codec rgba32f texels",
            "codec rgba32ui elements",
            "rgba16f to rgba32ui by texels",
        }
    assert wanted - names == set()


@pytest.mark.parametrize("level", LEVELS)
def test_highp_is_needed_everywhere(level: str) -> None:
    assert wrong(level)["mutant all"] > 100


def test_highp_is_needed_on_samplers() -> None:
    # Bytes survive a mediump sampler, numbers do not (Mesa 22.3 computes mediump in float16).
    assert wrong("3.0")["mutant samplers"] > 100
