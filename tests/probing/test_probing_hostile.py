"""`probe()` where something else than a driver is at fault: settings, the cache folder, leftovers.

What a user set wrongly is raised at once and never held against a driver; what lies in the cache
folder in place of our files is as good as nothing; what a killed probe left behind goes away.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from probing_fakes import started

from gpuedge import backends, capdb
from gpuedge.backends.base import Candidate
from gpuedge.backends.null import NullBackend
from gpuedge.core.errors import ConfigError, DatabaseError
from gpuedge.probing import child, judge, run, verdicts
from gpuedge.probing.api import probe
from gpuedge.probing.protocol import EVENTS
from gpuedge.safety import child as safe_child
from gpuedge.safety import machine, paths
from gpuedge.safety.channel import EventChannel, EventReader

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("fakes")]
PACKAGED = Path(paths.data_folder("capability_db"))


def store_file(folder: Path) -> Path:
    return folder / "cache" / verdicts.FILE


def own_database(folder: Path) -> Path:
    return Path(shutil.copytree(PACKAGED, folder / "db"))


def break_rows(database: Path) -> None:
    (database / "classes.json").write_text("{")


def put_folder(database: Path) -> None:
    (database / "classes.json").unlink()
    (database / "classes.json").mkdir()


def put_pipe(database: Path) -> None:
    (database / "classes.json").unlink()
    os.mkfifo(database / "classes.json")


@pytest.mark.parametrize(
    ("fault", "refresh"),
    [(shutil.rmtree, False), (break_rows, True), (put_folder, True), (put_pipe, False)],
)
def test_a_database_that_cannot_be_used_is_the_settings_fault(
    fakes: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, refresh: bool
) -> None:
    probe()
    before = store_file(fakes).read_bytes()
    database = own_database(fakes)
    fault(database)
    monkeypatch.setenv("GPUEDGE_DB", str(database))
    for _ in range(2):
        with pytest.raises(DatabaseError, match="GPUEDGE_DB"):
            probe(refresh=refresh)
    assert started(fakes) == 1
    assert store_file(fakes).read_bytes() == before
    monkeypatch.delenv("GPUEDGE_DB")
    assert [(r.status, r.is_cached) for r in probe().tried] == [("ok", True)]


def test_a_missing_database_is_said_even_where_there_is_no_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROBE_FAKES", "")
    monkeypatch.setenv("GPUEDGE_DB", "/nonexistent")
    with pytest.raises(DatabaseError, match=r"/nonexistent/classes\.json"):
        probe()


def test_an_installation_without_its_database_is_refused(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = paths.data_folder

    def without(name: str) -> str:
        if name != "capability_db":
            return real(name)
        raise ConfigError("The data folder 'capability_db' of gpuedge is missing.")

    monkeypatch.setattr(paths, "data_folder", without)
    with pytest.raises(ConfigError, match="capability_db"):
        probe()
    assert started(fakes) == 0


def test_another_state_of_the_database_is_another_verdict(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = own_database(fakes)
    counts = []

    def count() -> None:
        assert probe().tried[0].status == "ok"
        counts.append(started(fakes))

    count()
    monkeypatch.setenv("GPUEDGE_DB", str(database))
    count()
    count()
    os.utime(database / "classes.json", ns=(1, 1))
    count()
    (database / "vendor").mkdir()
    (database / "vendor" / "new.json").write_text("{}")
    count()
    (database / "vendor" / "lock").symlink_to("/nonexistent")
    count()
    count()
    monkeypatch.delenv("GPUEDGE_DB")
    count()
    assert counts == [1, 2, 2, 3, 4, 5, 5, 5]


def test_a_link_to_nowhere_beside_our_files_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Editors lock a file by such a link."""
    monkeypatch.setattr("gpuedge.safety.paths.data_folder", lambda name: str(tmp_path))
    before = machine.library_state()
    (tmp_path / "#a.kern").symlink_to("user@host.123")
    assert machine.library_state() != before


def test_the_child_is_told_whole_paths(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works in a folder of its own, where relative ones would lead elsewhere."""
    own_database(fakes)
    (fakes / "settings.toml").write_text('fallback = "cpu"\n')
    monkeypatch.chdir(fakes)
    monkeypatch.setenv("GPUEDGE_DB", "db")
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", "cache")
    monkeypatch.setenv("GPUEDGE_CONFIG", "settings.toml")
    seen: list[dict[str, str]] = []
    real = safe_child.environment

    def environment(extra: Any = None) -> dict[str, str]:
        seen.append(real(extra))
        return seen[0]

    monkeypatch.setattr(safe_child, "environment", environment)
    assert probe().tried[0].status == "ok"
    (environ,) = seen
    assert environ["GPUEDGE_DB"] == str(fakes / "db")
    assert environ["GPUEDGE_CACHE_DIR"] == str(fakes / "cache")
    assert environ["GPUEDGE_CONFIG"] == str(fakes / "settings.toml")


def test_a_fault_of_the_database_in_the_child_is_no_verdict_on_the_driver(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the database is edited between the parent's look at it and the child's."""
    monkeypatch.setattr(backends, "load", lambda name: NullBackend())
    monkeypatch.setenv("GPUEDGE_DB", "/nonexistent")
    channel = EventChannel(fakes / "result", "t")
    candidate = Candidate("scripted", "null", "f")
    with pytest.raises(DatabaseError):
        child.LevelProbe(channel, time.monotonic() + 60.0).run(candidate)
    events = EventReader(fakes / "result", "t", EVENTS).take(is_over=True)
    ending = safe_child.Ending("exit", 1)
    (row,) = judge.judge(candidate, judge.Transcript(events, 0, ending, "DatabaseError", 1.0))[0]
    assert (row.status, row.code, row.evidence["step"]) == ("broken", "no-token", "prepare")
    assert "DatabaseError" in row.reason


@pytest.mark.parametrize("name", ["verdicts.json", "kernels.bin"])
def test_a_pipe_in_the_cache_folder_is_not_awaited(fakes: Path, name: str) -> None:
    (fakes / "cache").mkdir()
    os.mkfifo(fakes / "cache" / name)
    assert [r.is_cached for r in probe().tried] == [False]
    assert [r.is_cached for r in probe().tried] == [True]
    assert (fakes / "cache" / name).is_fifo()  # left there, so nothing is remembered in it


def test_a_result_file_that_becomes_a_pipe_is_not_awaited(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_FAKES", "pipe")
    (row,) = probe().tried
    assert (row.status, row.code) == ("broken", "no-token")


def leftover(folder: Path, name: str, age_s: float) -> Path:
    made = folder / name
    (made / "0").mkdir(parents=True)
    (made / "0" / "result").write_text("{}")
    os.utime(made, (time.time() - age_s,) * 2)
    return made


def test_leftovers_of_killed_probes_are_removed(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = fakes / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    old = 2 * run.STALE_S
    gone = [leftover(temporary, f"gpuedge-probe-abc_{i:04}", old) for i in range(3)]
    target = leftover(temporary, "precious", old)
    link, file = temporary / "gpuedge-probe-link0000", temporary / "gpuedge-probe-file0000"
    link.symlink_to(target)
    file.write_text("not a folder")
    for path in (link, file):
        os.utime(path, (time.time() - old,) * 2, follow_symlinks=False)
    (gone[0] / "inner").symlink_to(target)
    os.utime(gone[0], (time.time() - old,) * 2)
    kept = [
        leftover(temporary, "gpuedge-probe-fresh000", run.STALE_S / 2),
        leftover(temporary, "gpuedge-probe-of-somebody-else", old),
        leftover(temporary, "my-gpuedge-probe-abc_0000", old),
        link, file, target / "0" / "result",
    ]  # fmt: skip
    assert probe().tried[0].status == "ok"
    assert [path.exists() for path in gone] == [False] * 3
    assert [path.exists() for path in kept] == [True] * len(kept)


def test_a_cached_probe_reads_no_database(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_DB", str(own_database(fakes)))
    probe()
    monkeypatch.setattr(capdb, "load", lambda *_: pytest.fail("the database was read"))
    assert [r.is_cached for r in probe().tried] == [True]
