"""Finding EGL drivers by their files: nothing is loaded, and what changes is noticed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuedge.backends import load
from gpuedge.backends.gles import candidates as find
from gpuedge.backends.manifests import LOADER_DEFAULT

NOTHING = {find.VENDOR_FOLDERS: "/nonexistent"}


def manifest(folder: Path, name: str, library: str = "libEGL_mesa.so.0") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": library}}))
    return path


def keys(environ: dict[str, str], platform: str = "linux") -> list[str]:
    return [c.key for c in find.candidates(environ, "gles30", platform)]


def test_manifests_of_folders_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    wanted = [
        manifest(first, "10_x.json"),
        manifest(first, "50_y.json"),
        manifest(second, "1.json"),
    ]
    (first / "readme.txt").write_text("no manifest")
    folders = os.pathsep.join(map(str, (first, second, tmp_path / "absent")))
    assert keys({find.VENDOR_FOLDERS: folders}) == [str(p) for p in wanted]


def test_named_manifests_hide_the_folders(tmp_path: Path) -> None:
    manifest(tmp_path / "a", "10_x.json")
    named = manifest(tmp_path / "b", "named.json")
    environ = {find.VENDOR_FOLDERS: str(tmp_path / "a"), find.VENDOR_FILES: str(named)}
    (found,) = find.candidates(environ, "gles20", "linux")
    assert (found.backend, found.key) == ("gles20", str(named))
    assert dict(found.env) == {find.VENDOR_FILES: str(named)}


def test_named_libraries_come_first(tmp_path: Path) -> None:
    library = tmp_path / "libEGL.so"
    vendor = manifest(tmp_path / "a", "10_x.json")
    environ = {find.LIBRARIES: str(library), find.VENDOR_FILES: str(vendor)}
    found = find.candidates(environ, "gles31", "linux")
    assert [c.key for c in found] == [str(library), str(vendor)]
    assert dict(found[0].env) == {}
    assert find.library_of(found[0]) == str(library)
    assert find.library_of(found[1]) == "libEGL.so.1"


def test_same_driver_twice_is_one(tmp_path: Path) -> None:
    real = manifest(tmp_path / "a", "10_x.json")
    link = tmp_path / "link.json"
    link.symlink_to(real)
    environ = {find.VENDOR_FILES: os.pathsep.join([str(link), str(real), str(real)])}
    assert keys(environ) == [str(link)]


def test_fingerprint_changes_with_the_files(tmp_path: Path) -> None:
    driver, library, beside = (tmp_path / n for n in ("d.so", "libEGL.so", "libGLESv2.so"))
    path = manifest(tmp_path / "a", "x.json", str(driver))

    def prints() -> list[str]:
        environ = {find.VENDOR_FILES: str(path), find.LIBRARIES: str(library)}
        return [c.fingerprint for c in find.candidates(environ, "gles30", "linux")]

    seen = [prints()]
    driver.write_text("1")
    seen.append(prints())
    assert seen[1][0] == seen[0][0] and seen[1][1] != seen[0][1]
    for changed in (library, beside):
        changed.write_text("1")
        seen.append(prints())
        assert seen[-1][0] != seen[-2][0] and seen[-1][1] == seen[-2][1]
    assert prints() == seen[-1]


@pytest.mark.parametrize(
    ("platform", "wanted"),
    [
        ("win32", ["libEGL.dll"]),
        ("android", ["libEGL.so"]),
        ("darwin", []),
        ("freebsd14", ["libEGL.so.1"]),
    ],
)
def test_systems_without_manifests(
    platform: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "FOLDERS", ())
    found = find.candidates({}, "gles30", platform)
    assert [c.key for c in found] == [LOADER_DEFAULT] * len(wanted)
    monkeypatch.setattr(find.sys, "platform", platform)
    assert [find.library_of(c) for c in found] == wanted


def test_naming_none_means_none() -> None:
    assert keys(NOTHING) == []
    assert keys({find.VENDOR_FILES: "\0"}) == []


def test_a_path_that_is_no_manifest_hides_all_and_a_mistyped_one_is_told(tmp_path: Path) -> None:
    assert keys({find.VENDOR_FILES: str(tmp_path / "nonexistent")}) == []
    assert keys({find.VENDOR_FILES: str(tmp_path)}) == []
    mistyped = str(tmp_path / "messa.json")
    assert keys({find.VENDOR_FILES: mistyped}) == [mistyped]


def test_what_is_wrong_is_seen_without_loading(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    gone = manifest(tmp_path / "a", "gone.json", str(tmp_path / "gone.so"))
    environ = {
        find.VENDOR_FILES: os.pathsep.join([str(bad), str(gone)]),
        find.LIBRARIES: str(tmp_path / "libEGL.so"),
    }
    codes = ["missing-library", "bad-manifest", "missing-library"]
    for backend in (load("gles20"), load("gles30"), load("gles31")):
        for candidate, code in zip(backend.candidates(environ), codes, strict=True):
            assert candidate.backend == backend.name
            with pytest.raises(Exception, match="GE-404") as caught:
                backend.enumerate(candidate)
            assert caught.value.reason.code == code  # type: ignore[attr-defined]
