"""tools/arm64.py with stand-ins for apt, dpkg and the tree; `make test-arm64` runs real ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arm64
import install_table
import pytest

LEVELS = ("vulkan", "wgpu", "gles31", "gles30", "gles20")
RIGHT = ["cpu", *(f"{level}:0" for level in LEVELS), "wgpu:1", "model"]


def probe(usable: tuple[str, ...] = LEVELS) -> dict[str, Any]:
    rows = [
        {"backend": level, "status": "ok", "reason": "right numbers"}
        if level in usable
        else {"backend": level, "status": "absent", "reason": "no driver is installed"}
        for level in LEVELS
    ]
    return {"tried": rows}


def doctor(result: str = "PASS") -> dict[str, Any]:
    return {"checks": [{"name": "package onnx", "result": result, "detail": "not here"}]}


def conformance(**counts: int) -> dict[str, Any]:
    numbers = {"cases": 5, "passed": 4, "failed": 0, "skipped": 1, "not_run": 0, **counts}
    wrong = [{"id": "conv2d/one", "reason": "45 is 44"}] * numbers["failed"]
    return {"counts": numbers, "problems": wrong}


class Tree:
    """A tree in which commands give what they are told to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.probe, self.doctor = probe(), doctor()
        self.smoke, self.wrong_products = RIGHT, list[str]()
        self.results = {level: conformance() for level in LEVELS}
        self.calls: list[tuple[str, ...]] = []
        for name, place in (("PLACE", ""), ("TREE", "tree"), ("WHEELS", "wheels")):
            monkeypatch.setattr(arm64, name, folder / place)
        for name in ("usr/bin", "root/venv"):
            (folder / "tree" / name).mkdir(parents=True)
        (folder / "tree" / ".packages").write_text("key 3 packages, 4 MiB\n")
        (folder / "tree" / "root" / "venv" / ".installed").write_text("other 3 packages, 4 MiB\n")
        monkeypatch.setattr(arm64, "emulator", lambda: "qemu")
        monkeypatch.setattr(arm64, "make_tree", lambda: None)
        monkeypatch.setattr(arm64, "make_wheels", lambda extras: (Path("gpuedge-1.whl"), "key"))
        monkeypatch.setattr(arm64, "emulated", self.run)

    def run(self, *command: str, statuses: object = None) -> str:
        self.calls.append(command)
        if command[1:3] == ("-m", "venv"):
            (arm64.TREE / "root" / "venv").mkdir()
        if command[0] != "gpuedge":
            return json.dumps(self.smoke if install_table.SMOKE in command else self.wrong_products)
        found = {"probe": self.probe, "doctor": self.doctor}
        return json.dumps(found.get(command[1]) or self.results[command[4]])


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


def test_where_all_is_right_it_succeeds(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert arm64.main(["--shard", "2/7"]) == 0
    assert "all is right" in capsys.readouterr().err
    runs = [call for call in tree.calls if call[:2] == ("gpuedge", "conformance")]
    assert [call[4] for call in runs] == list(LEVELS)
    assert all(call[call.index("--shard") + 1] == "2/7" for call in runs)
    pip = next(call for call in tree.calls if "pip" in call)
    assert pip[-1] == "/wheels/gpuedge-1.whl[models,wgpu]" and ":all:" in pip


def no_vulkan(tree: Tree) -> None:
    tree.probe = probe(LEVELS[1:])


def nothing_found(tree: Tree) -> None:
    tree.probe = {"tried": []}


def doctor_fails(tree: Tree) -> None:
    tree.doctor = doctor("FAIL")


def no_textures(tree: Tree) -> None:
    tree.smoke = [name for name in RIGHT if name != "gles20:0"]


def no_model(tree: Tree) -> None:
    tree.smoke = RIGHT[:-1]


def bytes_overflow(tree: Tree) -> None:
    tree.wrong_products = ["MatMulInteger of int8 by constant int8"]


def case_fails(tree: Tree) -> None:
    tree.results["gles30"] = conformance(passed=3, failed=1)


def nothing_ran(tree: Tree) -> None:
    tree.results["wgpu"] = conformance(passed=0, skipped=5)


def cut_short(tree: Tree) -> None:
    tree.results["wgpu"] = conformance(passed=2, not_run=2)


def compiler(tree: Tree) -> None:
    (arm64.TREE / "usr" / "bin" / "gcc").touch()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (no_vulkan, "no usable device for vulkan (lavapipe): no driver is installed"),
        (nothing_found, "no usable device for gles20 (llvmpipe): none"),
        (doctor_fails, "doctor: package onnx: not here"),
        (no_textures, "did not compute right: gles20:0"),
        (no_model, "did not compute right: model"),
        (bytes_overflow, "wrong on the CPU: MatMulInteger of int8 by constant int8"),
        (case_fails, "gles30: conv2d/one: 45 is 44"),
        (nothing_ran, "wgpu: of 5 cases 0 passed"),
        (cut_short, "wgpu: of 5 cases 2 passed"),
        (compiler, "the tree has compilers: gcc"),
    ],
)
def test_what_is_wrong_is_named_and_is_the_exit_status(
    tree: Tree, capsys: pytest.CaptureFixture[str], broken: Callable[[Tree], None], said: str
) -> None:
    broken(tree)
    assert arm64.main([]) == 1
    assert f"WRONG: {said}" in capsys.readouterr().err


def test_a_command_that_fails_in_the_tree_ends_it(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*command: str, statuses: object = None) -> str:
        raise arm64.StepError(f"{command[1]} gave 139")

    monkeypatch.setattr(arm64, "emulated", fails)
    assert arm64.main([]) == 1
    assert "gave 139" in capsys.readouterr().err


def test_cases_that_ran_with_this_wheel_are_not_run_again(tree: Tree) -> None:
    assert arm64.main([]) == 0
    (arm64.TREE / "root" / "results-key" / "vulkan-1-of-1.jsonl").touch()
    tree.calls.clear()
    assert arm64.main([]) == 0
    resumed = {call[4] for call in tree.calls if "--resume" in call}
    assert resumed == {"vulkan"}
    assert not [call for call in tree.calls if "pip" in call]  # the environment is of this wheel


def test_commands_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    names = "qemu-aarch64, unshare, apt-get, dpkg-deb"
    with pytest.raises(arm64.StepError, match=rf"{names} .*apt-get install .*qemu-user-static"):
        arm64.emulator()


class Debian:
    """An apt-get that fetches one package, and a dpkg-deb that unpacks it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        package = folder / "package"
        (package / "lib").mkdir(parents=True)
        (package / "lib" / "libvulkan.so").write_bytes(b"x" * 100)
        monkeypatch.setattr(arm64, "PLACE", folder / "place")
        monkeypatch.setattr(arm64, "TREE", folder / "place" / "tree")
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        self.command("apt-get", f'exec {sys.executable} {folder}/apt.py "$@"')
        self.command("dpkg-deb", f"exec tar -c -C {package} .")
        (folder / "apt.py").write_text(
            "import pathlib, sys\n"
            "options = dict(w.split('=', 1) for w in sys.argv if '=' in w)\n"
            "assert options['APT::Architecture'] == 'arm64'\n"
            "if 'install' in sys.argv:\n"
            "    assert '--download-only' in sys.argv and 'libvulkan1' in sys.argv\n"
            "    (pathlib.Path(options['Dir::Cache::archives']) / 'libvulkan1.deb').touch()\n"
        )

    def command(self, name: str, body: str) -> None:
        file = self.folder / name
        file.write_text(f'#!/bin/sh\necho "{name}" >>"{self.folder}/log"\n{body}\n')
        file.chmod(0o755)

    def calls(self) -> int:
        return len((self.folder / "log").read_text().splitlines())


def test_tree_is_made_of_packages_and_left_alone_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debian = Debian(tmp_path, monkeypatch)
    arm64.make_tree()
    assert (arm64.TREE / "usr" / "lib" / "libvulkan.so").read_bytes() == b"x" * 100  # merged /usr
    assert (arm64.TREE / ".packages").read_text().split()[1:3] == ["1", "packages,"]
    before = debian.calls()
    arm64.make_tree()
    assert debian.calls() == before
    monkeypatch.setattr(arm64, "PACKAGES", (*arm64.PACKAGES, "libvulkan2"))
    arm64.make_tree()
    assert debian.calls() > before


def test_tree_that_was_not_finished_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debian = Debian(tmp_path, monkeypatch)
    debian.command("dpkg-deb", "exit 1")
    with pytest.raises(arm64.StepError):
        arm64.make_tree()
    assert not arm64.TREE.exists()


def test_what_apt_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debian = Debian(tmp_path, monkeypatch)
    debian.command("apt-get", "echo 'E: no network' >&2; exit 100")
    with pytest.raises(arm64.StepError, match="gave 100: E: no network"):
        arm64.make_tree()
