"""Finding, opening and closing drivers: nothing leaks, nothing is left changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from validation import validated
from vulkan_kernels import add_on

from gpuedge.backends import load
from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.core.errors import BackendUnavailableError

pytestmark = pytest.mark.driver
ONES = np.ones(64, np.float32)


def resources() -> int:
    """Open files and threads of this process."""
    return sum(1 for name in ("fd", "task") for _ in Path("/proc/self", name).iterdir())


def test_opening_again_and_again_leaks_nothing(vulkan_info: DeviceInfo) -> None:
    def once() -> None:
        device = load("vulkan").open(vulkan_info)
        np.testing.assert_array_equal(add_on(device, ONES, ONES), 2 * ONES)
        device.close()

    once()
    once()
    before = resources()
    for _ in range(15):
        once()
    deadline = time.monotonic() + 30.0
    while resources() > before and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread that was joined may be listed a moment longer
    assert resources() <= before


def test_environment_is_restored(
    vulkan_candidate: Candidate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VK_DRIVER_FILES", "/nowhere.json")
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", "/elsewhere.json")
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)
    before = dict(os.environ)
    info = load("vulkan").enumerate(vulkan_candidate)[0]
    load("vulkan").open(info).close()
    assert dict(os.environ) == before
    manifest = tmp_path / "bad.json"
    library = tmp_path / "libbad.so"
    library.write_text("not a library")
    manifest.write_text(json.dumps({"ICD": {"library_path": str(library)}}))
    with pytest.raises(BackendUnavailableError):
        load("vulkan").enumerate(Candidate("vulkan", str(manifest), "", {"VK_X": str(manifest)}))
    assert dict(os.environ) == before


def test_two_drivers_are_open_at_once(lavapipe: Candidate, swiftshader: Candidate) -> None:
    backend = load("vulkan")
    infos = [backend.enumerate(c)[0] for c in (lavapipe, swiftshader)]
    devices = [validated(info) for info in infos]
    assert infos[0].identity.driverID != infos[1].identity.driverID
    for device in devices:
        np.testing.assert_array_equal(add_on(device, ONES, ONES), 2 * ONES)
    for device in devices:
        device.close()


def test_device_that_changed_places_is_refused(lavapipe: Candidate, swiftshader: Candidate) -> None:
    backend = load("vulkan")
    info = backend.enumerate(lavapipe)[0]
    for wrong in (
        DeviceInfo(swiftshader, 0, info.identity, True),
        DeviceInfo(lavapipe, 7, info.identity, True),
    ):
        with pytest.raises(Exception, match="GE-405"):
            backend.open(wrong)


def reason(manifest: Path, library: str) -> str:
    manifest.write_text(json.dumps({"ICD": {"library_path": library, "api_version": "1.3.0"}}))
    candidate = load("vulkan").candidates({"VK_DRIVER_FILES": str(manifest)})[0]
    with pytest.raises(BackendUnavailableError) as caught:
        load("vulkan").enumerate(candidate)
    code: str = caught.value.reason.code  # type: ignore[attr-defined]
    return code


def test_reasons_tell_what_is_missing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "icd.json"
    assert reason(manifest, str(tmp_path / "gone.so")) == "missing-library"
    assert reason(manifest, "libgpuedge_has_no_such_driver.so") == "missing-library"
    fake = tmp_path / "libfake.so"
    fake.write_bytes(b"\x7fELF" + bytes(60))
    assert reason(manifest, str(fake)) == "missing-library"
    manifest.write_text("{")
    candidate = load("vulkan").candidates({"VK_DRIVER_FILES": str(manifest)})[0]
    with pytest.raises(BackendUnavailableError) as caught:
        load("vulkan").enumerate(candidate)
    assert caught.value.reason.code == "bad-manifest"  # type: ignore[attr-defined]
    assert capfd.readouterr() == ("", "")


def test_drivers_without_hardware_have_no_device(tmp_path: Path) -> None:
    # The other drivers of Debian's package are for GPUs; where such a GPU exists they have devices.
    for manifest in sorted(Path("/usr/share/vulkan/icd.d").glob("*.json")):
        if manifest.name.startswith("lvp"):
            continue
        candidate = load("vulkan").candidates({"VK_DRIVER_FILES": str(manifest)})[0]
        try:
            devices = load("vulkan").enumerate(candidate)
        except BackendUnavailableError as error:
            assert error.reason.code == "no-device"  # type: ignore[attr-defined]
        else:
            assert devices


def test_drivers_write_nothing_on_the_terminal(vulkan_candidate: Candidate) -> None:
    code = f"""
from gpuedge.backends import load
backend = load("vulkan")
candidate = backend.candidates({{"VK_DRIVER_FILES": {vulkan_candidate.key!r}}})[0]
backend.open(backend.enumerate(candidate)[0]).close()
"""
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "VK_", "WAYLAND"))}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=280,
        env=bare,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_missing_loader_and_package_are_told_apart() -> None:
    code = """
import sys
from gpuedge.backends.base import Candidate
from gpuedge.backends import load

def reason():
    try:
        load("vulkan").enumerate(Candidate("vulkan", "loader-default", ""))
    except Exception as error:
        return f"{error.code} {error.reason.code} {error.what}"

class NoLoader:
    def find_spec(self, name, path=None, target=None):
        if name == "vulkan._vulkan":
            raise OSError("Cannot find Vulkan SDK version. Please ensure that it is installed")

sys.modules["vulkan"] = None
print(reason())
del sys.modules["vulkan"]
sys.meta_path.insert(0, NoLoader())
print(reason())
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.stdout.splitlines() == [
        "GE-404 no-loader The Python package 'vulkan' cannot be imported.",
        "GE-404 no-loader The Vulkan loader library is not installed.",
    ], ran.stderr


def test_importing_the_backend_loads_no_library() -> None:
    code = (
        "import sys, os; from gpuedge.backends import load;"
        "load('vulkan').candidates(os.environ);"
        "print(sorted({'vulkan', 'numpy', 'cffi', 'ctypes'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True
    )
    assert ran.stdout == "[]\n"
