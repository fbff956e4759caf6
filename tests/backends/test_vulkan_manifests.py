"""Finding drivers by their manifests: the loader's rules, in made-up folders, nothing loaded."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from gpuedge.backends import manifests
from gpuedge.backends.manifests import LOADER_DEFAULT, read_manifest
from gpuedge.core.reasons import Reason

Env = dict[str, str]


def manifest(path: Path, library: str = "libdriver.so", **extra: str) -> str:
    """Write a driver manifest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"library_path": library, "api_version": "1.3.230", **extra}
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": table}))
    return str(path)


@pytest.fixture
def home(tmp_path: Path) -> Env:
    """An environment whose search path lies in a temporary folder."""
    return {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_DIRS": str(tmp_path / "xdg"),
        "XDG_DATA_DIRS": f"{tmp_path / 'local'}{os.pathsep}{tmp_path / 'share'}",
    }


def inspect_manifest(path: str) -> tuple[str | None, Reason | None]:
    found = read_manifest(path)
    return found.library, found.problem


def keys(environ: Env, platform: str = "linux") -> list[str]:
    found = [c.key for c in manifests.candidates(environ, "vulkan", platform)]
    return [k for k in found if not k.startswith("/etc/")]


def test_search_path_in_the_loaders_order(home: Env, tmp_path: Path) -> None:
    folders = ["home/.config", "xdg", "home/.local/share", "local", "share"]
    paths = [manifest(tmp_path / f / "vulkan/icd.d" / f"{i}.json") for i, f in enumerate(folders)]
    assert keys(home) == paths
    (tmp_path / "share/vulkan/icd.d/readme.txt").write_text("not a manifest")
    named = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "XDG_DATA_HOME": str(tmp_path / "share")}
    assert keys({**home, **named}) == [paths[1], paths[4], paths[3]]


def test_nothing_installed_gives_nothing(home: Env) -> None:
    assert keys(home) == []


def test_driver_files_override_everything(home: Env, tmp_path: Path) -> None:
    manifest(tmp_path / "share/vulkan/icd.d/system.json")
    one, two = manifest(tmp_path / "one.json"), manifest(tmp_path / "many/two.json")
    older = manifest(tmp_path / "older.json")
    listed = os.pathsep.join([one, str(tmp_path / "many"), "", str(tmp_path / "gone.json")])
    env = {**home, "VK_ICD_FILENAMES": older, "VK_ADD_DRIVER_FILES": older}
    assert keys({**env, "VK_DRIVER_FILES": listed}) == [one, two, str(tmp_path / "gone.json")]
    assert keys(env) == [older]


def test_added_drivers_come_before_the_systems(home: Env, tmp_path: Path) -> None:
    system = manifest(tmp_path / "share/vulkan/icd.d/system.json")
    added = manifest(tmp_path / "added.json")
    assert keys({**home, "VK_ADD_DRIVER_FILES": added}) == [added, system]


def test_each_file_is_listed_once(home: Env, tmp_path: Path) -> None:
    real = manifest(tmp_path / "local/vulkan/icd.d/real.json")
    link = tmp_path / "share/vulkan/icd.d/link.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert keys({**home, "VK_ADD_DRIVER_FILES": real}) == [real]


def test_candidate_names_only_its_driver(tmp_path: Path) -> None:
    path = manifest(tmp_path / "one.json")
    (candidate,) = manifests.candidates({"VK_DRIVER_FILES": path})
    assert candidate.backend == "vulkan"
    assert candidate.env == {"VK_DRIVER_FILES": path, "VK_ICD_FILENAMES": path}


def test_other_pointer_width_is_skipped_only_if_the_manifest_says_so(tmp_path: Path) -> None:
    paths = [
        manifest(tmp_path / "a.json", library_arch="32"),
        manifest(tmp_path / "b.json", library_arch="64"),
        manifest(tmp_path / "c.json", library_arch="something"),
        manifest(tmp_path / "d.json"),
    ]
    ours = 0 if manifests._POINTER_BITS == "32" else 1
    assert keys({"VK_DRIVER_FILES": str(tmp_path)}) == [paths[ours], paths[2], paths[3]]


@pytest.mark.parametrize("platform", ["win32", "android"])
def test_platforms_without_manifests_leave_it_to_the_loader(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "_folders", lambda *_: [])
    (candidate,) = manifests.candidates({}, "vulkan", platform)
    assert (candidate.key, dict(candidate.env)) == (LOADER_DEFAULT, {})
    assert inspect_manifest(candidate.key) == (None, None)
    assert manifests.candidates({}, "vulkan", "linux") == []
    named = manifest(tmp_path / "a.json")
    assert keys({"VK_DRIVER_FILES": named}, platform) == [named]
    assert keys({"VK_DRIVER_FILES": str(tmp_path / "empty")}, platform) != [LOADER_DEFAULT]


def test_macos_looks_where_its_package_managers_install(home: Env) -> None:
    folders = manifests._folders(home, "darwin")
    assert {"/opt/homebrew/share", "/usr/local/share"} < set(folders)
    assert "/opt/homebrew/share" not in manifests._folders(home, "linux")


def test_inspect_resolves_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib" / "libdriver.so"
    library.parent.mkdir()
    library.write_bytes(b"x")
    found = (str(library), None)
    assert inspect_manifest(manifest(tmp_path / "a.json", str(library))) == found
    assert inspect_manifest(manifest(tmp_path / "b.json", "./lib/libdriver.so")) == found
    assert inspect_manifest(manifest(tmp_path / "sub/c.json", "../lib/libdriver.so")) == found
    bare = manifest(tmp_path / "d.json", "libdriver.so")
    assert inspect_manifest(bare) == ("libdriver.so", None)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    assert inspect_manifest(bare) == found


def test_inspect_reports_a_missing_library(tmp_path: Path) -> None:
    path, problem = inspect_manifest(manifest(tmp_path / "a.json", "./gone.so"))
    assert path == str(tmp_path / "gone.so")
    assert problem is not None
    assert (problem.code, problem.detail) == ("missing-library", str(tmp_path / "gone.so"))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"ICD": 3}', '{"ICD": {}}', '{"ICD": {"library_path": 1}}', "\xff"],
)
def test_bad_manifests_are_candidates_with_a_problem(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode("latin-1"))
    (candidate,) = manifests.candidates({"VK_DRIVER_FILES": str(path)})
    library, problem = inspect_manifest(candidate.key)
    assert library is None
    assert problem is not None and problem.code == "bad-manifest"
    assert str(path) in problem.detail


def test_absent_and_unreadable_manifests_are_candidates_too(tmp_path: Path) -> None:
    folder = tmp_path / "folder.json"
    gone = tmp_path / "gone.json"
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    for path in (gone, loop, folder):
        (candidate,) = manifests.candidates({"VK_DRIVER_FILES": str(path)})
        problem = inspect_manifest(candidate.key)[1]
        assert problem is not None and problem.code == "bad-manifest"


HOSTILE = {
    "deep": b"[" * 100000,
    "deep objects": b'{"a":' * 100000,
    "long number": b'{"ICD": ' + b"9" * 100000 + b"}",
    "empty path": b'{"ICD": {"library_path": ""}}',
    "long path": b'{"ICD": {"library_path": "/' + b"x/" * 50000 + b'y"}}',
    "long name": b'{"ICD": {"library_path": "' + b"x" * 100000 + b'"}}',
    "nul": b'{"ICD": {"library_path": "./a\\u0000b"}}',
    "half a pair": b'{"ICD": {"library_path": "./a\\ud800"}}',
    "cut by the limit": b'{"ICD": {"library_path": "/a.so"}}'.rjust(2 << 20),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifest_is_a_bad_candidate_and_spares_its_neighbours(
    home: Env, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "share/vulkan/icd.d"
    good = [manifest(folder / "a.json"), manifest(folder / "z.json")]
    bad = folder / "m.json"
    bad.write_bytes(HOSTILE[name])
    assert keys(home) == [good[0], str(bad), good[1]]
    library, problem = inspect_manifest(str(bad))
    assert library is None
    assert problem is not None and problem.code == "bad-manifest"
    assert len(problem.detail) < len(str(bad)) + 100
    assert [inspect_manifest(path)[1] for path in good] == [None, None]


@pytest.mark.timeout(120)
def test_pipe_or_device_in_place_of_a_manifest_is_not_awaited(home: Env, tmp_path: Path) -> None:
    folder = tmp_path / "share/vulkan/icd.d"
    good = manifest(folder / "a.json")
    os.mkfifo(folder / "pipe.json")
    (folder / "zero.json").symlink_to("/dev/zero")
    (folder / "folder.json").mkdir()
    found = keys(home)
    assert sorted(found) == [good, *(str(folder / f"{n}.json") for n in ("folder", "pipe", "zero"))]
    for path in found[1:]:
        problem = inspect_manifest(path)[1]
        assert problem is not None
        assert (problem.code, problem.detail) == ("bad-manifest", f"{path}: it is not a file")


def test_library_name_in_another_encoding_is_looked_for(tmp_path: Path) -> None:
    library = os.fsdecode(os.fsencode(tmp_path) + b"/lib\xff.so")
    Path(library).write_bytes(b"x")
    path = manifest(tmp_path / "a.json", library)
    assert inspect_manifest(path) == (library, None)
    assert len(manifests.candidates({"VK_DRIVER_FILES": path})) == 1


@pytest.mark.parametrize("name", ["/nul\0inside.json", "/half\ud800.json", f"/{'x' * 5000}.json"])
def test_manifest_names_that_no_file_has(name: str) -> None:
    (candidate,) = manifests.candidates({"VK_DRIVER_FILES": name})
    problem = inspect_manifest(candidate.key)[1]
    assert problem is not None and problem.code == "bad-manifest"


def test_a_path_that_is_no_manifest_hides_all_and_a_mistyped_one_is_told(tmp_path: Path) -> None:
    assert manifests.candidates({"VK_DRIVER_FILES": str(tmp_path / "nonexistent")}) == []
    mistyped = str(tmp_path / "lpv.json")
    (candidate,) = manifests.candidates({"VK_DRIVER_FILES": mistyped})
    assert candidate.key == mistyped


class Registry:
    """The part of `winreg` that is asked about one display adapter."""

    def __init__(self, value: object) -> None:
        self.value = value

    def OpenKey(self, *_: object) -> Registry:  # noqa: N802
        return self

    def QueryValueEx(self, *_: object) -> tuple[object, int]:  # noqa: N802
        return self.value, 7

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("value", "names"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), (5, []), (None, []), (b"raw", []), (["a", 3], ["a"])],
)
def test_registry_values_of_any_type(value: object, names: list[str]) -> None:
    registry = Registry(value)
    assert manifests._adapter(registry, registry, "0000") == names


def test_fingerprint_follows_manifest_and_library(tmp_path: Path) -> None:
    library = tmp_path / "libdriver.so"
    path = manifest(tmp_path / "a.json", str(library))

    def fingerprint() -> str:
        return manifests.candidates({"VK_DRIVER_FILES": path})[0].fingerprint

    seen = [fingerprint()]
    library.write_bytes(b"one")
    seen.append(fingerprint())
    library.write_bytes(b"longer")
    seen.append(fingerprint())
    os.utime(library, ns=(1, 1))
    seen.append(fingerprint())
    manifest(Path(path), str(library), note="changed")
    seen.append(fingerprint())
    Path(path).unlink()
    seen.append(fingerprint())
    assert len(set(seen)) == len(seen)
    assert fingerprint() == seen[-1]


def test_fingerprint_sees_a_driver_of_the_same_size_and_time(tmp_path: Path) -> None:
    """Systems installed from an image give all files one time; an update may keep the size."""
    library, update = tmp_path / "libdriver.so", tmp_path / "update"
    path = manifest(tmp_path / "a.json", str(library))

    def fingerprint() -> str:
        os.utime(library, ns=(1, 1))
        assert (library.stat().st_size, library.stat().st_mtime_ns) == (3, 1)
        return manifests.candidates({"VK_DRIVER_FILES": path})[0].fingerprint

    library.write_bytes(b"old")
    seen = [fingerprint()]
    time.sleep(0.05)  # the clock of file systems ticks every few milliseconds
    library.write_bytes(b"new")  # in place
    seen.append(fingerprint())
    update.write_bytes(b"red")
    update.replace(library)
    seen.append(fingerprint())
    assert len(set(seen)) == 3
    assert manifests.candidates({"VK_DRIVER_FILES": path})[0].fingerprint == seen[-1]


def test_fingerprint_does_not_read_the_library(tmp_path: Path) -> None:
    library = tmp_path / "libdriver.so"
    with open(library, "wb") as file:
        file.truncate(1 << 36)
    path = manifest(tmp_path / "a.json", str(library))
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        manifests.candidates({"VK_DRIVER_FILES": path})
        best = min(best, time.perf_counter() - start)
    assert best < 0.001


def test_listing_is_fast(home: Env, tmp_path: Path) -> None:
    for i in range(5):
        manifest(tmp_path / "share/vulkan/icd.d" / f"{i}.json")
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        assert len(keys(home)) == 5
        best = min(best, time.perf_counter() - start)
    assert best < 0.003


def test_termux_has_the_folders_of_linux_below_its_prefix(home: Env) -> None:
    inside = {**home, "PREFIX": "/data/data/com.termux/files/usr/"}
    for name in ("XDG_CONFIG_DIRS", "XDG_DATA_DIRS"):
        inside.pop(name, None)
    folders = manifests._folders(inside, "android")
    below = [f for f in folders if f.startswith("/data/data/com.termux/files/usr/")]
    prefix = "/data/data/com.termux/files/usr"
    assert below == [f"{prefix}/etc/xdg", f"{prefix}/etc", f"{prefix}/share"]
    assert not {"/etc", "/usr/share"} & set(folders)
    assert manifests._folders(home, "android") == []


def test_libraries_are_named_without_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libvulkan.so").write_bytes(b"")
    monkeypatch.setattr(manifests, "_library_folders", lambda: [str(tmp_path)])
    assert manifests.libraries() == ["libvulkan.so"]
