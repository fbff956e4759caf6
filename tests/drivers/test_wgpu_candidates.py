"""Finding WebGPU's drivers without loading any, on every system."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuedge.backends import load
from gpuedge.backends.wgpu import candidates as finding
from gpuedge.backends.wgpu.candidates import candidates

EMPTY = {"VK_DRIVER_FILES": "/nonexistent.json", "HOME": "/nonexistent"}


def manifest(folder: Path, name: str) -> str:
    library = folder / f"lib{name}.so"
    library.write_bytes(b"one")
    path = folder / f"{name}.json"
    icd = {"library_path": str(library), "api_version": "1.3.0"}
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return str(path)


def test_one_candidate_per_vulkan_driver_and_one_for_opengl(tmp_path: Path) -> None:
    paths = [manifest(tmp_path, name) for name in ("a", "b")]
    found = candidates({"VK_DRIVER_FILES": ":".join(paths)}, "wgpu", "linux")
    assert [c.key for c in found] == [*paths, "gl"]
    assert {c.backend for c in found} == {"wgpu"}
    assert found[0].env == {"VK_DRIVER_FILES": paths[0], "VK_ICD_FILENAMES": paths[0]}
    assert found[-1].env == {}
    assert [finding.api_of(c) for c in found] == ["vulkan", "vulkan", "gl"]
    assert len({c.fingerprint for c in found}) == 3


@pytest.mark.parametrize(
    ("backend", "platform", "keys"),
    [
        ("wgpu", "darwin", ["metal"]),
        ("metal", "darwin", ["metal"]),
        ("dx12", "darwin", []),
        ("metal", "linux", []),
        ("dx12", "linux", []),
        ("metal", "win32", []),
        ("dx12", "win32", ["dx12"]),
    ],
)
def test_apis_of_one_system(backend: str, platform: str, keys: list[str]) -> None:
    found = candidates(EMPTY, backend, platform)
    assert [c.key for c in found] == keys
    assert all(c.backend == backend for c in found)


def test_windows_has_every_api() -> None:
    keys = [c.key for c in candidates(EMPTY, "wgpu", "win32")]
    assert keys[0] == "dx12" and keys[-1] == "gl"


def test_fingerprints_follow_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = manifest(tmp_path, "a")
    environ = {"VK_DRIVER_FILES": path}

    def prints() -> list[str]:
        return [c.fingerprint for c in candidates(environ, "wgpu", "linux")]

    first = prints()
    assert prints() == first
    (tmp_path / "liba.so").write_bytes(b"other driver")
    driver_changed = prints()
    assert driver_changed[0] != first[0] and driver_changed[1:] == first[1:]
    egl = tmp_path / "egl"
    egl.mkdir()
    monkeypatch.setattr(finding, "_EGL_FOLDERS", (str(egl),))
    before = prints()
    (egl / "50_x.json").write_text("{}")
    assert prints()[0] == before[0] and prints()[1] != before[1]
    native = tmp_path / "native.so"
    native.write_bytes(b"1")
    monkeypatch.setenv("WGPU_LIB_PATH", str(native))
    one = prints()
    native.write_bytes(b"22")
    assert all(a != b for a, b in zip(one, prints(), strict=True))


def test_listing_loads_neither_the_package_nor_numpy_nor_a_driver() -> None:
    code = (
        "import sys\n"
        "from gpuedge.backends import load\n"
        "found = [load(n).candidates({}) for n in ('wgpu', 'metal', 'dx12')]\n"
        "print(sorted({'wgpu', 'numpy', 'cffi', 'pathlib'} & set(sys.modules)))\n"
        "print(any('vulkan' in line or 'wgpu_native' in line for line in open('/proc/self/maps')))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=280, check=True,
    )  # fmt: skip
    assert ran.stdout.splitlines() == ["[]", "False"]


def test_names_of_the_backends() -> None:
    assert [load(name).name for name in ("wgpu", "metal", "dx12")] == ["wgpu", "metal", "dx12"]


def test_missing_package_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuedge.backends.wgpu import api, physical
    from gpuedge.core.errors import BackendUnavailableError

    monkeypatch.setattr(physical, "load", api.load.__wrapped__)
    monkeypatch.setattr(api, "native_files", list)
    monkeypatch.setitem(sys.modules, "wgpu", None)
    for name in ("wgpu.backends", "wgpu.backends.wgpu_native"):
        monkeypatch.setitem(sys.modules, name, None)
    backend = load("wgpu")
    gl = next(c for c in backend.candidates({}) if c.key == "gl")
    with pytest.raises(BackendUnavailableError, match="cannot be imported") as caught:
        backend.enumerate(gl)
    assert caught.value.reason.code == "no-loader"  # type: ignore[attr-defined]


def test_unknown_c_interface_is_reported_not_crashed_into(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuedge.backends.wgpu import api
    from gpuedge.core.errors import BackendUnavailableError

    monkeypatch.setattr(api, "TYPES", ("WGPULimits", "WGPUSomethingNew"))
    with pytest.raises(BackendUnavailableError, match="does not know"):
        api.load.__wrapped__()


def test_known_version_is_opened_without_the_package() -> None:
    code = (
        "import sys; from gpuedge.backends.wgpu import api; a = api.load();"
        "print('wgpu' in sys.modules, 'pycparser' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True
    )
    assert ran.stdout.split() == ["False", "False"], ran.stderr


def test_other_version_is_read_by_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuedge.backends.wgpu import api, types

    ours = api.load()
    monkeypatch.setattr(types, "VERSION", 0)
    theirs = api.load.__wrapped__()
    assert theirs.ffi is not ours.ffi
    for name in set(api.TYPES) - {"void"}:
        mine, other = ours.types[name].item, theirs.types[name].item
        if mine.kind == "struct" and mine.fields is not None:
            assert [(n, f.offset) for n, f in mine.fields] == [
                (n, f.offset) for n, f in other.fields
            ], name
            assert ours.ffi.sizeof(mine) == theirs.ffi.sizeof(other)
