"""An update, a rollback or a publication that is killed at any step leaves something usable."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from update_fakes import World, cache, database

from gpuedge.capdb.updates import bundle

__all__ = ["cache"]

WORKER = Path(__file__).with_name("update_worker.py")


STEPS = pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.long)])
"""Every eleventh change on disk; every single one in the long form."""


def kills(world: World, action: str, how: str, step: int) -> list[dict[str, Any]]:
    """Kill an action at every step; return what was seen after each kill, and the kills' places."""
    for name in ("mirror", "cache"):
        shutil.copytree(world.folder / name, world.folder / f"{name}.before", symlinks=True)
    command = [sys.executable, str(WORKER), action, how, str(step), str(world.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    assert "Traceback" not in done.stderr, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["status"] for line in lines[:-1]] == [-9] * (len(lines) - 1)
    assert lines[-1]["status"] == 0  # so there was no step that was not killed at
    return lines


def digest(world: World, name: str) -> str:
    return bundle.digest((world.folder / name / "database.json").read_bytes())


@pytest.fixture
def prepared(tmp_path: Path, cache: Path) -> World:
    """A client that uses version 2, and a mirror that offers 3 to it."""
    made = World(tmp_path)
    made.publish(2)
    database(tmp_path / "second", 2)
    assert made.update().code == "updated"
    made.publish(3)
    database(tmp_path / "next", 3)
    return made


def check_used(world: World, lines: list[dict[str, Any]], allowed: set[int]) -> None:
    """Every database that was in use is a whole one, and one that may be in use."""
    wanted = {1: "packaged", 2: "second", 3: "next"}
    for line in lines:
        for seen in (line["seen"], line["then"]):
            assert seen["version"] in allowed
            assert seen["digest"] == digest(world, wanted[seen["version"]])


@pytest.mark.parametrize(
    ("how", "step"), [("kill", 11), ("half", 5), pytest.param("kill", 1, marks=pytest.mark.long)]
)
def test_update_killed_at_each_step(prepared: World, how: str, step: int) -> None:
    lines = kills(prepared, "update", how, step)
    check_used(prepared, lines, {2, 3})
    assert {line["seen"]["version"] for line in lines} == {2, 3}
    versions = [line["seen"]["version"] for line in lines]
    assert versions == sorted(versions)  # from one moment on it is the new one
    for line in lines:
        assert line["again"] in {"updated", "current"}
        assert line["then"]["version"] == 3
    assert len(lines) * step > (20 if how == "kill" else 5)


@STEPS
def test_first_update_killed_at_each_step(tmp_path: Path, cache: Path, step: int) -> None:
    world = World(tmp_path)
    world.publish(2)
    database(tmp_path / "second", 2)
    cache.mkdir()
    lines = kills(world, "update", "kill", step)
    check_used(world, lines, {1, 2})
    assert {line["then"]["version"] for line in lines} == {2}


@STEPS
def test_rollback_killed_at_each_step(prepared: World, step: int) -> None:
    assert prepared.update().code == "updated"
    lines = kills(prepared, "rollback", "kill", step)
    check_used(prepared, lines, {1, 2, 3})
    assert {line["seen"]["version"] for line in lines} == {2, 3}


@STEPS
def test_publication_killed_at_each_step(prepared: World, step: int) -> None:
    shutil.move(prepared.folder / "next", prepared.folder / "third")
    database(prepared.folder / "next", 4)
    lines = kills(prepared, "publish", "kill", step)
    wanted = {3: digest(prepared, "third"), 4: digest(prepared, "next")}
    for line in lines:
        seen, then = line["seen"], line["then"]
        assert seen["code"] == then["code"] == "updated"  # clients are never given half of it
        assert seen["digest"] == wanted[seen["version"]]
        # again: 4 if it was not published before the kill; it is refused the second time
        assert line["again"] == (4 if seen["version"] == 3 else None)
        assert then["version"] == 4
    assert {line["seen"]["version"] for line in lines} == {3, 4}
