"""Finding and opening Vulkan's drivers: what is missing is named, an old version is enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from seam_kernels import downloaded
from validation import validated
from vulkan_kernels import HEAD, INDEX, add_on, dispatch, kernel, run, upload

from gpuedge.backends import load
from gpuedge.backends.base import Candidate, DeviceInfo, Usage
from gpuedge.backends.vulkan import physical
from gpuedge.core.errors import BackendUnavailableError

pytestmark = pytest.mark.driver
ONES = np.ones(64, np.float32)


def test_environment_is_restored_where_no_driver_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VK_DRIVER_FILES", "/nowhere.json")
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)
    before = dict(os.environ)
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

sys.modules["vulkan"] = None
print(reason())
del sys.modules["vulkan"]
sys.platform = "win32"  # whose loader has another name
print(reason())
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.stdout.splitlines() == [
        "GE-404 no-loader The Python package 'vulkan' cannot be imported.",
        "GE-404 no-loader The Vulkan loader library cannot be loaded.",
    ], ran.stderr


def test_vulkan_1_0_with_storage_buffer_class(
    vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(physical, "MAX_VERSION", (1, 0))
    device = validated(vulkan_info)
    assert device.caps.has_fp16_storage is None
    assert device.caps.subgroup_lanes == 0
    head = HEAD.replace("layout", "#pragma use_storage_buffer\nlayout", 1)
    modern = kernel("modern", f"{INDEX} t1[i] = t0[i] * 2.0 + k;", 2, head=head)
    assert b"SPV_KHR_storage_buffer_storage_class" in modern.code
    x = np.arange(100, dtype=np.float32)
    source, result = upload(device, x), device.alloc(x.nbytes, Usage.OUTPUT)
    run(device, [dispatch(device, modern, [source, result], 100, k=1.5)], [source], [result])
    np.testing.assert_array_equal(downloaded(device, result), x * 2 + np.float32(1.5))
    device.close()
