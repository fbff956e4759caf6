"""The program that children are started with: never the application, never an unknown one."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuedge
from gpuedge.backends.base import Candidate
from gpuedge.probing.run import probe_all
from gpuedge.safety import interpreter

ROOT = Path(__file__).resolve().parents[2]
MODULE = "gpuedge.probing.child"


def test_ordinarily_it_is_this_interpreter() -> None:
    command = interpreter.command(MODULE)
    assert command is not None
    assert command[0] == sys.executable
    assert command[-1] == MODULE


def test_the_command_runs_a_module_with_this_gpuedge(tmp_path: Path) -> None:
    """Whatever lies in the folder it is started in."""
    (tmp_path / "gpuedge.py").write_text("raise SystemExit('another gpuedge')")
    (tmp_path / "json.py").write_text("raise SystemExit('another json')")
    command = interpreter.command("gpuedge.probing.nothing")
    assert command is not None
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert "No module named 'gpuedge.probing.nothing'" in done.stderr


def is_taken(program: Path) -> bool:
    """Say whether a process that was started as this program starts its children with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        return interpreter.interpreter() == str(program)


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("python", True), ("python3", True), ("python3.11", True), ("Python", True),
        ("python.exe", True), ("pythonw.exe", True), ("python3.13t", True), ("pypy3.10", True),
        ("python_d.exe", True), ("graalpy", True), ("python3.11-32.exe", True),
        ("uwsgi", False), ("myapp", False), ("python-config", False), ("pythonista", False),
        ("mypython", False), ("python3.11-config", False), ("blender", False), ("false", False),
    ],
)  # fmt: skip
def test_a_program_is_known_by_its_name(tmp_path: Path, name: str, is_known: bool) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert is_taken(program) is is_known


def test_a_name_is_not_enough(tmp_path: Path) -> None:
    assert not is_taken(tmp_path / "python3")
    (tmp_path / "python3").mkdir()
    assert not is_taken(tmp_path / "python3")
    (tmp_path / "python").write_text("")
    (tmp_path / "python").chmod(0o644)
    assert is_taken(tmp_path / "python") is os.access(tmp_path / "python", os.X_OK)


@pytest.mark.parametrize("given", ["", None, "/usr/bin/uwsgi", "/bin/false"])
def test_another_program_gives_way_to_the_interpreter_of_this_installation(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", given)
    monkeypatch.setattr(sys, "_base_executable", given, raising=False)
    found = interpreter.interpreter()
    assert found is not None
    assert Path(found).is_relative_to(sys.prefix) or Path(found).is_relative_to(sys.base_prefix)
    done = subprocess.run(
        [found, "-c", "import sys; print(sys.version_info[:2])"],
        capture_output=True, text=True, timeout=280, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(sys.version_info[:2])


def test_without_any_interpreter_every_row_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("executable", "_base_executable", "prefix", "exec_prefix", "base_prefix"):
        monkeypatch.setattr(sys, name, str(tmp_path / "app"), raising=False)
    assert interpreter.command(MODULE) is None
    ((row,),) = probe_all([Candidate("null", "k", "f")], 5.0)
    assert (row.status, row.code) == ("blocked", "no-child")
    assert "sys.executable" in row.reason


def test_freeze_support_does_nothing_in_an_ordinary_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["app", interpreter.CHILD, MODULE])
    monkeypatch.setattr(interpreter, "_is_ready", False)
    assert gpuedge.freeze_support() is None


@pytest.mark.parametrize(
    "argv",
    [["app"], ["app", interpreter.CHILD], ["app", "x", MODULE],
     ["app", interpreter.CHILD, MODULE, "x"]],
)  # fmt: skip
def test_other_arguments_are_the_applications(
    monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(interpreter, "_is_ready", False)
    gpuedge.freeze_support()
    assert interpreter.command(MODULE) == (sys.executable, interpreter.CHILD, MODULE)


def test_only_modules_of_gpuedge_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "argv", ["app", interpreter.CHILD, "antigravity"])
    monkeypatch.setattr(interpreter, "_is_ready", False)
    with pytest.raises(SystemExit, match="not a module of gpuedge"):
        gpuedge.freeze_support()


APP = """
import sys
sys.frozen, sys.executable = True, {launcher!r}
sys.path.insert(0, {root!r})
with open({count!r}, "a") as log:
    log.write("s")
import gpuedge
{support}
from gpuedge.backends.base import Candidate
from gpuedge.probing.run import probe_all
import json
rows = probe_all([Candidate("null", k, "f") for k in {keys!r}], 40.0)
print(json.dumps([[r.status, r.code, r.reason] for (r,) in rows]))
"""


def run_frozen(folder: Path, support: str, keys: str) -> tuple[list[list[str]], int]:
    """Run an application that looks frozen: started by a program of its own, with its own name."""
    launcher, script, count = folder / "my-app", folder / "app.py", folder / "count"
    script.write_text(
        APP.format(
            launcher=str(launcher), root=str(ROOT), count=str(count), support=support, keys=keys
        )
    )
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    env = {**os.environ, "GPUEDGE_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [launcher], env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows: Any = json.loads(done.stdout)
    return rows, len(count.read_text())


@pytest.mark.skipif(os.name != "posix", reason="the launcher is a shell script")
@pytest.mark.timeout(120)
class TestFrozen:
    """An application that is its own interpreter."""

    def test_without_support_it_is_never_started_again(self, tmp_path: Path) -> None:
        rows, started = run_frozen(tmp_path, "", "ab")
        assert [row[:2] for row in rows] == [["blocked", "no-child"]] * 2
        assert "gpuedge.freeze_support()" in rows[0][2]
        assert started == 1

    @pytest.mark.parametrize("keys", ["a", "abc"])
    def test_with_support_it_is_its_own_launcher(self, tmp_path: Path, keys: str) -> None:
        rows, started = run_frozen(tmp_path, "gpuedge.freeze_support()", keys)
        assert [row[:2] for row in rows] == [["wrong", "untouched-output"]] * len(keys)
        assert started == (2 if sys.platform == "linux" else 2 + len(keys))


def test_paths_that_mean_nothing_elsewhere_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert interpreter.absolute(["", "a", "/b", 5]) == [str(tmp_path / "a"), "/b"]  # type: ignore[list-item]  # what applications put there
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert interpreter.absolute(["", "a", "/b"]) == ["/b"]


def test_the_command_is_plain_text_whatever_the_folders_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", ["/caf\u00e9", "/bad\udcff'\"\\"])
    command = interpreter.command(MODULE)
    assert command is not None
    assert all(re.fullmatch(r"[\n -~]*", part) for part in command)
    code = command[-2].replace(
        "sys.exit(import_module(sys.argv[1]).main())", "print(ascii(sys.path))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True
    )
    assert ascii("/bad\udcff'\"\\") in done.stdout
