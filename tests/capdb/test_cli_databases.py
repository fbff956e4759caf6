"""Databases and mirrors on the command line where files and names are not as they should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from capdb_rows import six
from update_fakes import World, cache, in_use, world

from gpuedge.capdb.updates import installed
from gpuedge.cli import output as speaking
from gpuedge.cli.main import main

__all__ = ["cache", "world"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of a test's own, in use."""
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    place = six(tmp_path / "db")
    monkeypatch.setenv("GPUEDGE_DB", str(place))
    return place


HOSTILE = "ok\x1b[2Jgone\x07\x9b31m\u202etxt\rback"


def test_status_line_of_a_mirror_steers_no_terminal(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuedge.capdb.updates.client.Fetcher._pieces", lambda *_: _refusing())
    assert main(["db", "update", str(world.repository), "--root", str(world.root)]) == 1
    said = capsys.readouterr().out
    assert "\\x1b[2J" in said
    assert "\x1b" not in said


def _refusing() -> Any:
    raise OSError(HOSTILE)


def test_listing_in_a_terminal_without_unicode(folder: Path) -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "gpuedge", "db", "show"], env=environ, capture_output=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"----" in done.stdout


@pytest.mark.parametrize("arguments", [["db", "why", "--device"], ["db", "replay"]])
@pytest.mark.parametrize("kind", ["pipe", "device", "long"])
def test_only_files_of_a_bounded_size_are_read(
    folder: Path, arguments: list[str], kind: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    place = folder.parent / "record.json"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "long":
        monkeypatch.setattr(speaking, "MAX_JSON", 10)
        place.write_text(json.dumps({"api": "vulkan"}))
    named = "/dev/zero" if kind == "device" else str(place)
    assert main([*arguments, named]) == 2
    said = capsys.readouterr().err
    assert ("larger than" if kind == "long" else "not a file") in said


@pytest.mark.parametrize("arguments", [[""], [" "], ["", "--rollback"], ["--rollback", "x"]])
def test_mirror_that_is_not_named(arguments: list[str]) -> None:
    assert main(["db", "update", *arguments]) == 2


def test_info_shows_the_database_in_use(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["database"]
    assert (told["version"], told["entries"], told["folder"]) == (2, 6, str(folder))
    assert main(["info"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "capability database version 2, 6 entries" in shown
    assert f"database in use {folder}" in shown
    (folder / "database.json").unlink()
    assert main(["info"]) == 0
    assert "none can be used" in " ".join(capsys.readouterr().out.split())


def test_cache_shows_and_removes_the_installed_update(
    world: World, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = installed.current()[0]
    assert now is not None and in_use() == 2
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert "capability_db/versions/**" in shown
    assert "database.json" not in shown
    assert main(["cache", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    there = {p.relative_to(cache).as_posix(): p.stat().st_size for p in files_of(cache)}
    assert {row["name"]: row["nbytes"] for row in files} == there
    outside = cache.parent / "outside.json"
    outside.write_text("")
    (now.path / "link").symlink_to(outside)
    (now.path / "folder").symlink_to(cache.parent)
    assert main(["cache", "clear"]) == 0
    assert outside.exists() and world.root.exists()
    assert not now.path.parent.exists()
    assert in_use() == 1


def files_of(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]
