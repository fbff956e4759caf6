"""`gpuedge cache`: what is remembered of devices that ended processes, shown and forgotten."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuedge.cli.main import main
from gpuedge.safety import blocklist
from gpuedge.safety.blocklist import Blocklist


def crash(folder: Path, monkeypatch: pytest.MonkeyPatch, *processes: str) -> None:
    """Have processes lose the worker of one device in a run."""
    for process in processes:
        monkeypatch.setattr(blocklist, "PROCESS", process)
        marker = Blocklist(folder).begin("k", "vulkan:0", is_hosted=True)
        marker.crashed("SIGSEGV", "run")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with a verdict file and two crashes against one device."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(folder))
    crash(folder, monkeypatch, "one", "two")
    (folder / "verdicts.json").write_text("{}")
    return folder


def names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_blocks_are_shown(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for word in ("vulkan:0", "(run)", "left alone until 20", "gpuedge cache clear --crashes"):
        assert word in shown
    assert main(["cache", "--json"]) == 0
    (crash,) = json.loads(capsys.readouterr().out)["crashes"]
    assert (crash["device"], crash["level"], len(crash["starts"])) == ("vulkan:0", 1, 2)
    assert crash["blocked_until"] > crash["starts"][0]["when"]


def test_clear_crashes_forgets_them_and_nothing_else(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Blocklist(cache).block("k") is not None
    before = names(cache)
    assert main(["cache", "clear", "--crashes"]) == 0
    assert "removed 2 files (" in capsys.readouterr().out
    assert names(cache) == {n for n in before if not n.startswith("crashes/")}
    assert Blocklist(cache).block("k") is None


def test_clear_leaves_the_marker_of_a_process_that_runs(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = Blocklist(cache).begin("k")
    watch.step("open")
    assert main(["cache", "clear"]) == 0
    (left,) = names(cache)
    assert left.endswith(".mark")
    watch.close()
    assert names(cache) == set()
    assert main(["cache"]) == 0
    assert "holds no files" in capsys.readouterr().out
    assert main(["cache", "--crashes"]) == 0
    assert "holds no crashes" in capsys.readouterr().out


def test_pins_are_shown_with_the_settings(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUEDGE_PIN", "vulkan=never gles31:0=always")
    assert main(["info"]) == 0
    assert "vulkan=never gles31:0=always" in " ".join(capsys.readouterr().out.split())


def test_tables_keep_to_100_columns_and_name_no_file_that_is_gone(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(cache, monkeypatch, "three", "four")
    left = Blocklist(cache).folder
    gone = Path(left) / "gone.mark"  # of a process that ended: counted, and removed, at once
    gone.write_bytes(b"")
    os.utime(gone, (1, 1))
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert "4" in out.split("unfinished starts")[1].split()
    home = [line for line in out.splitlines() if str(cache) not in line]  # a path is not broken
    assert max(map(len, home)) <= 100
    assert not gone.exists()
    assert "gone.mark" not in out
