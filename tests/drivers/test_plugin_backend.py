"""A backend from another package, found by its entry point, works as a built-in one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import farm
import pytest

pytestmark = pytest.mark.driver

MODULE = '''
import os
from gpuedge.backends import FolderBackend

class Mine(FolderBackend):
    """Vulkan under another name, as a backend of somebody else would be."""

    def __init__(self, name="myapi"):
        super().__init__(name, "vulkan")

    def candidates(self, environ):
        return [one.replace(backend=self.name) for one in super().candidates(environ)]

class Lists(Mine):
    def candidates(self, environ):
        raise RuntimeError("no list today")

class Nonsense(Mine):
    'Lists drivers of another backend.'

class Opens(Mine):
    def __init__(self):
        super().__init__("badopen")

    def open(self, info, **options):
        raise RuntimeError("will not open")

class Later(Mine):
    def __init__(self):
        super().__init__("badlater")

    def open(self, info, **options):
        if os.getpid() == int(os.environ["APPLICATION"]):
            raise RuntimeError("not in the application")
        return super().open(info, **options)
'''
POINTS = """[gpuedge.backends]
myapi = mine:Mine
badimport = missing_module:Backend
badname = mine:Nothing
badlist = mine:Lists
nonsense = mine:Nonsense
badopen = mine:Opens
badlater = mine:Later
"""
START = """
import os
os.environ["APPLICATION"] = str(os.getpid())
import numpy as np, gpuedge
x = np.float32([-1, 2, -3, 4])
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Install plug-ins, of which one works."""
    (tmp_path / "mine.py").write_text(MODULE)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    return tmp_path


def done(package: Path, program: str, **variables: str) -> str:
    """Run a program on lavapipe, with the plug-ins installed; return what it prints."""
    farm.require("vulkan-lavapipe")
    environ = {
        **farm.environment_of("vulkan-lavapipe"),
        "GPUEDGE_BACKENDS": "", "GPUEDGE_CACHE_DIR": str(package / "cache"),
        "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]),
        **variables,
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-c", START + program],
        capture_output=True, text=True, timeout=280, check=False, env=environ, cwd=farm.ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_plug_in_is_probed_opened_and_named(package: Path) -> None:
    program = """
report = gpuedge.probe(deadline_s=60)
(row,) = [r for r in report.devices if r.backend == "myapi"]
with gpuedge.open("myapi") as device:
    assert device.name == "myapi:0"
    assert gpuedge.relu(x, device=device).tolist() == [0, 2, 0, 4]
assert gpuedge.elementwise("x * 2.0")(x, device="myapi").tolist() == [-2, 4, -6, 8]
try:
    gpuedge.relu(x, device="myapj")
except gpuedge.UnknownDeviceError as error:
    assert "myapi" in str(error)
print(row.device, row.status)
"""
    assert done(package, program, GPUEDGE_BACKENDS="myapi") == "myapi:0 ok"


def test_plug_in_that_is_named_needs_no_setting(package: Path) -> None:
    program = """
with gpuedge.config(fallback="error"):
    print(gpuedge.relu(x, device="myapi").tolist())
print(gpuedge.array(x, device="myapi:0").device)
print({row.backend for row in gpuedge.probe(backends=["vulkan", "gles31"]).tried})
"""
    first, second, third = done(package, program).splitlines()
    assert (first, second) == ("[0.0, 2.0, 0.0, 4.0]", "myapi:0")
    assert "myapi" not in third


BAD = {
    "badimport": "ModuleNotFoundError: No module named 'missing_module'",
    "badname": "AttributeError: module 'mine' has no attribute 'Nothing'",
    "badlist": "RuntimeError: no list today",
    "nonsense": "no candidate of 'nonsense'",
    "badopen": "will not open",
}
"""Plug-ins that raise, and what is said of each."""


def test_plug_in_that_raises_costs_its_own_row_only(package: Path) -> None:
    program = f"""
bad = {BAD!r}
report = gpuedge.probe(backends=[*bad, "badlater", "myapi"], deadline_s=60)
assert {{row.backend for row in report.devices}} == {{"badlater", "myapi"}}, report
for name, text in bad.items():
    (row,) = [row for row in report.tried if row.backend == name]
    assert (row.status, row.code) == ("broken", "open-failed") and text in row.reason, row.reason
    try:
        gpuedge.relu(x, device=name)
    except gpuedge.NoUsableDeviceError as error:
        assert text in str(error), error
    else:
        raise AssertionError(name)
try:
    gpuedge.open("badlater")
except gpuedge.DriverError as error:
    assert "RuntimeError: not in the application" in str(error), error
policy = gpuedge.Policy(allow_software=True)
with gpuedge.config(backends=["badlater", "badlist", "myapi"]), gpuedge.open(policy=policy) as best:
    print(best.name)
"""
    assert done(package, program) == "myapi:0"


def test_backends_of_a_block_hold_in_it_and_nowhere_else(package: Path) -> None:
    program = """
policy = gpuedge.Policy(allow_software=True)

def routes():
    with gpuedge.Session(MODEL, policy=policy) as session:
        session.run({"x": x})
        return sorted({row.device for row in session.explain().rows} - {"cpu"})

def named(device):
    try:
        with gpuedge.config(fallback="error"):
            return gpuedge.relu(x, device=device).tolist()
    except gpuedge.NoUsableDeviceError as error:
        return error.known

import onnx
from onnx import helper
sides = [helper.make_tensor_value_info(name, 1, [4]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", sides[:1], sides[1:])
opset = [helper.make_opsetid("", 17)]
MODEL = helper.make_model(graph, opset_imports=opset, ir_version=8)
with gpuedge.config(backends="myapi"):
    print(routes(), gpuedge.open(policy=policy).name, named("myapi"))
    print(named("vulkan"))
    kept = gpuedge.Session(MODEL, policy=policy)
    strict = gpuedge.Session(MODEL, device="myapi", fallback="error")
print(gpuedge.open(policy=policy).name, named("vulkan"), named("myapi"))
with gpuedge.config(backends="vulkan"):
    print(routes(), gpuedge.open(policy=policy).name, named("vulkan"))
    print(named("myapi"))
    kept.run({"x": x})
    print(sorted({row.device for row in kept.explain().rows} - {"cpu"}))
    print(strict.run({"x": x})["y"].tolist(), {row.device for row in strict.placement})
"""
    right = "[0.0, 2.0, 0.0, 4.0]"
    only = "the setting 'backends' leaves these in use: "
    assert done(package, program).splitlines() == [
        f"['myapi:0'] myapi:0 {right}",
        f"{only}myapi",
        f"vulkan:0 {right} {right}",
        f"['vulkan:0'] vulkan:0 {right}",
        f"{only}vulkan",
        "['myapi:0']",
        f"{right} {{'myapi:0'}}",
    ]
