"""Every driver of the test farm is really there, is the one it should be, and computes.

gpuedge is not used: a child opens each driver through its API alone, copies 16 values and prints
what the driver says of itself. So a configuration that silently fell back to another driver fails
here, and not as a puzzle in the tests that use it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from farm import FARM, environment_of, require

pytestmark = pytest.mark.driver
ROOT = Path(__file__).resolve().parents[2]
BARE = ROOT / "benchmarks" / "bare"
FLOAT_EXTENSIONS = ("GL_OES_texture_float", "GL_OES_texture_half_float")

LLVMPIPE, SWIFTSHADER = "llvmpipe (LLVM", "SwiftShader Device (Subzero)"
ANGLE = "ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero)"
SAYS: dict[str, dict[str, str]] = {
    "vulkan-lavapipe": {"renderer": LLVMPIPE},
    "vulkan-swiftshader": {"renderer": SWIFTSHADER},
    "gles20-llvmpipe": {"renderer": LLVMPIPE, "version": "OpenGL ES 2.0 Mesa"},
    "gles30-llvmpipe": {"renderer": LLVMPIPE, "version": "OpenGL ES 3.0 Mesa"},
    "gles31-llvmpipe": {"renderer": LLVMPIPE, "version": "OpenGL ES 3.1 Mesa"},
    "gles20-softpipe": {"renderer": "softpipe", "version": "OpenGL ES 2.0 Mesa"},
    "gles30-softpipe": {"renderer": "softpipe", "version": "OpenGL ES 3.0 Mesa"},
    "gles31-softpipe": {"renderer": "softpipe", "version": "OpenGL ES 3.1 Mesa"},
    "gles20-zink": {"renderer": f"zink ({LLVMPIPE}", "version": "OpenGL ES 2.0 Mesa"},
    "gles30-zink": {"renderer": f"zink ({LLVMPIPE}", "version": "OpenGL ES 3.0 Mesa"},
    "gles31-zink": {"renderer": f"zink ({LLVMPIPE}", "version": "OpenGL ES 3.1 Mesa"},
    "gles20-angle": {"renderer": ANGLE, "version": "OpenGL ES 2.0 (ANGLE"},
    "gles30-angle": {"renderer": ANGLE, "version": "OpenGL ES 3.0 (ANGLE"},
    "gles31-angle": {"renderer": ANGLE, "version": "OpenGL ES 3.1 (ANGLE"},
    "gles20-bare": {"renderer": LLVMPIPE, "version": "OpenGL ES 2.0 Mesa"},
    "gles30-swiftshader-legacy": {
        "renderer": "Google SwiftShader",
        "version": "OpenGL ES 3.0 SwiftShader 4.1",
    },
    "wgpu-lavapipe": {"device": LLVMPIPE, "backend_type": "Vulkan"},
    "wgpu-swiftshader": {"device": SWIFTSHADER, "backend_type": "Vulkan"},
    "wgpu-gl": {"device": LLVMPIPE, "backend_type": "OpenGL"},
}
"""How a driver introduces itself: beginnings of its strings."""

DAWN = """
const {create, globals} = await import(process.argv[1]);
Object.assign(globalThis, globals);
const adapter = await create(['backend=vulkan']).requestAdapter();
console.log(JSON.stringify({device: adapter.info.device, about: adapter.info.description}));
process.exit(0);
"""


def said(command: list[str], name: str) -> dict[str, Any]:
    """Run a command that prints one JSON document, in a configuration's environment."""
    require(name)
    done = subprocess.run(
        command,
        env=environment_of(name),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, f"{command} gave {done.returncode}\n{done.stderr[-2000:]}"
    body: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return body


def command(device: str, wanted: dict[str, str]) -> list[str]:
    """Return what opens the driver of a device string without gpuedge."""
    if device.startswith("gles"):
        return [sys.executable, str(BARE / "gl.py"), f"{device[4]}.{device[5]}"]
    if device.startswith("wgpu"):
        return [sys.executable, str(BARE / "webgpu.py"), wanted["backend_type"]]
    return [sys.executable, str(BARE / "vk.py")]


def test_every_configuration_is_checked() -> None:
    assert set(FARM) == set(SAYS)


DAILY = ("vulkan-swiftshader", "gles30-llvmpipe", "gles31-angle", "wgpu-gl")
"""The contract of devices looks at the names of all of them."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in DAILY else pytest.mark.long) for n in SAYS]
)
def test_driver_is_the_one_it_should_be(name: str) -> None:
    wanted = SAYS[name]
    body = said(command(FARM[name].device, wanted), name)
    assert {k: body[k][: len(v)] for k, v in wanted.items()} == wanted
    assert body["works"] is True
    assert body.get("error", 0) == 0


@pytest.mark.parametrize("name", ["gles20-bare", "gles20-llvmpipe"])
def test_float_textures_are_hidden_where_they_should_be(name: str) -> None:
    body = said(command(FARM[name].device, SAYS[name]), name)
    offered = set(FLOAT_EXTENSIONS) & set(body["extensions"].split())
    assert offered == (set() if name == "gles20-bare" else set(FLOAT_EXTENSIONS))


def test_dawn_opens_swiftshader() -> None:
    index = ROOT / ".drivers" / "dawn" / "package" / "index.js"
    command = ["node", "--input-type=module", "-e", DAWN, str(index)]
    body = said(command, "vulkan-swiftshader")
    assert "SwiftShader" in f"{body}"
