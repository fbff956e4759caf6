"""The crash blocklist: which ends of a process count, and what becomes of them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import crash_worker
import pytest

from gpuedge.backends.base import Candidate
from gpuedge.safety import blocklist, lock
from gpuedge.safety.blocklist import Blocklist

DAY = 86400.0
UP = ("open", "quiet", "compile", "quiet", "first")
SERVES = (*UP, "quiet")


def start(folder: Path, *words: str, key: str = "k") -> subprocess.Popen[str]:
    command = [sys.executable, crash_worker.__file__, str(folder), key, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=280)
    return process.returncode


def end(folder: Path, *words: str, key: str = "k") -> int:
    return finish(start(folder, *words, key=key))


def crashes_of(folder: Path, key: str = "k") -> list[str]:
    """Return the step of each crash remembered."""
    crashes = Blocklist(folder).entries().get(key, [])
    return [c.step for c in crashes]


def marks(folder: Path) -> list[Path]:
    """Return the markers, and what killed writers of them left."""
    files = (folder / "crashes").glob("*")
    return sorted(f for f in files if f.suffix != blocklist.RECORD)


@pytest.mark.parametrize("words", [UP[:1], UP[:3], UP, (*SERVES, "compile")])
def test_two_unfinished_starts_block_for_a_day(tmp_path: Path, words: tuple[str, ...]) -> None:
    at = words[-1]
    assert end(tmp_path, *words, "segv") == -signal.SIGSEGV
    assert Blocklist(tmp_path).block("k") is None
    assert crashes_of(tmp_path) == [at]
    assert end(tmp_path, *words, "exit") == 0, "a driver that calls exit() is no better"
    block = Blocklist(tmp_path).block("k")
    assert block is not None
    assert (block.crashes, block.level, block.step) == (2, 1, at)
    assert 0.99 * DAY < block.until - time.time() <= DAY
    assert Blocklist(tmp_path).block("k", time.time() + 1.01 * DAY) is None
    assert Blocklist(tmp_path).block("another") is None
    assert marks(tmp_path) == [], "what was counted is removed"


@pytest.mark.parametrize("last", ["kill", "exit", "segv"])
def test_end_while_nothing_is_under_way_is_no_crash(tmp_path: Path, last: str) -> None:
    for _ in range(2):
        end(tmp_path, *SERVES, last.replace("segv", "strange-segv"))
    end(tmp_path, *SERVES, "shut", last)
    end(tmp_path, "quiet", last)
    assert crashes_of(tmp_path) == []
    assert marks(tmp_path) == []


def ended_by(process: subprocess.Popen[str]) -> str:
    status = finish(process)
    return signal.Signals(-status).name if status < 0 else ""


@pytest.mark.parametrize(
    ("last", "signal_name"),
    [("segv", "SIGSEGV"), ("abrt", "SIGABRT"), ("driver-segv", "SIGSEGV")],
)
def test_fatal_signal_in_service_is_a_crash(tmp_path: Path, last: str, signal_name: str) -> None:
    for _ in range(2):
        assert Blocklist(tmp_path).block("k") is None
        assert ended_by(start(tmp_path, *SERVES, last)) == signal_name
    block = Blocklist(tmp_path).block("k")
    assert block is not None
    assert (block.crashes, block.level, block.step) == (2, 1, "run")
    assert f"the last in service ({signal_name})" in block.reason.sentence
    assert marks(tmp_path) == []


@pytest.mark.parametrize("last", ["kill", "term", "exit"])
def test_kill_in_service_is_no_crash_and_is_a_good_start(tmp_path: Path, last: str) -> None:
    end(tmp_path, "open", "segv")
    for _ in range(blocklist.GOOD_STARTS - 1):
        end(tmp_path, *SERVES, last)
    assert crashes_of(tmp_path) == ["open"]
    for _ in range(2):
        end(tmp_path, *SERVES, last)
    assert crashes_of(tmp_path) == []
    assert marks(tmp_path) == []


def test_signal_that_struck_somebody_else_is_no_crash(tmp_path: Path) -> None:
    assert ended_by(start(tmp_path, *SERVES, "strange-segv")) == "SIGSEGV"
    assert end(tmp_path, *SERVES, "forked-segv", "kill") == -signal.SIGKILL
    assert crashes_of(tmp_path) == []


def test_fault_handler_of_the_application_stays_its_own(tmp_path: Path) -> None:
    """Then a crash in service cannot be told from a kill; one in a first run counts as ever."""
    for words, crashes in ((SERVES, []), (UP, ["first"])):
        command = [sys.executable, crash_worker.__file__, str(tmp_path), "k", "own", *words, "segv"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == -signal.SIGSEGV
        assert "Fatal Python error: Segmentation fault" in ended.stderr
        assert crashes_of(tmp_path) == crashes


def test_machine_that_goes_down_counts_until_the_first_run(tmp_path: Path) -> None:
    for words in (SERVES, (*SERVES, "compile"), (*SERVES, "first")):
        end(tmp_path, "reboot", *words, "kill")
    assert crashes_of(tmp_path) == []
    end(tmp_path, "reboot", *SERVES, "segv")
    assert crashes_of(tmp_path) == ["run"], "the signal came before that"
    for words in (UP[:1], UP[:3], UP):
        end(tmp_path, "reboot", *words, "kill")
    assert crashes_of(tmp_path) == ["run", "open", "compile", "first"]


def test_device_that_is_opened_anew_is_watched_again(tmp_path: Path) -> None:
    end(tmp_path, *SERVES, "shut", "anew", *SERVES, "segv")
    assert crashes_of(tmp_path) == ["run"]


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system cannot stop a process")
def test_process_that_lives_is_no_crash_until_it_ends(tmp_path: Path) -> None:
    process = start(tmp_path, *UP, "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert crashes_of(tmp_path) == []
    process.send_signal(signal.SIGSTOP)
    assert crashes_of(tmp_path) == []
    process.kill()
    process.communicate(timeout=280)
    assert crashes_of(tmp_path) == ["first"]


def test_forked_child_neither_touches_the_marker_nor_keeps_it_alive(tmp_path: Path) -> None:
    process = start(tmp_path, *UP, "fork", "wait")
    assert process.stdout is not None
    said = {process.stdout.readline(), process.stdout.readline()}
    assert said == {"child\n", "ready\n"}
    mark = marks(tmp_path)[0]
    assert mark.read_bytes()[blocklist.STATE] == blocklist.STEPS["first"]
    process.kill()  # the child, which shares its pipes, still waits for a line
    process.wait(60)
    assert crashes_of(tmp_path) == ["first"]
    process.communicate(timeout=280)


@pytest.mark.parametrize("at", ["open", "compile", "first"])
def test_host_that_died_is_one_crash_of_a_living_process(tmp_path: Path, at: str) -> None:
    for _ in range(2):
        assert Blocklist(tmp_path).block("k") is None
        watch = Blocklist(tmp_path).begin("k", "vulkan:0", is_hosted=True)
        watch.step(at)
        watch.crashed("its host was killed by SIGSEGV", at)
        watch.close()
    assert crashes_of(tmp_path) == [at]
    words = ("host", *UP[: UP.index(at) + 1], "crash", "quiet", *UP, "crash")
    assert end(tmp_path, *words) == 0
    block = Blocklist(tmp_path).block("k")
    assert block is not None
    assert (block.crashes, block.level, block.step) == (2, 1, at)
    assert "SIGSEGV" in block.reason.sentence
    assert marks(tmp_path) == []


def test_device_in_a_host_leaves_no_marker_and_no_crash_while_idle(tmp_path: Path) -> None:
    watch = Blocklist(tmp_path).begin("k", "vulkan:0", is_hosted=True)
    watch.step("open")
    assert marks(tmp_path) == []
    watch.quiet()
    for step in ("compile", "first"):
        assert not watch.is_clean
        watch.step(step)
        watch.quiet()
    assert watch.is_clean
    watch.step("first")
    watch.crashed("SIGSEGV", "run")
    assert not watch.is_clean, "it cost a host"
    for record in (tmp_path / "crashes").glob("*.crash"):
        record.unlink()
    for last in ("kill", "segv", "exit"):
        end(tmp_path, "host", *UP, last)
    assert crashes_of(tmp_path) == []


@pytest.mark.parametrize("where", ["host", "open"])
def test_good_starts_are_counted(tmp_path: Path, where: str) -> None:
    end(tmp_path, *UP, "kill")
    for _ in range(6):
        end(tmp_path, where, *UP[:3], "quiet", "shut")  # nothing ran
    for _ in range(4):
        end(tmp_path, where, *UP, "quiet", "shut")
    assert crashes_of(tmp_path) == ["first"]
    end(tmp_path, where, *UP, "quiet", "shut")
    assert crashes_of(tmp_path) == []


def test_many_processes_at_once_lose_no_crash(tmp_path: Path) -> None:
    processes = [start(tmp_path, *UP, "wait", "kill") for _ in range(12)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate(timeout=280)
    # All at once, as applications that start again after a crash do.
    collectors = [start(tmp_path, key="other") for _ in range(4)]
    assert [finish(c) for c in collectors] == [0] * 4
    assert len(crashes_of(tmp_path)) == 12
    block = Blocklist(tmp_path).block("k")
    assert block is not None
    assert block.level == 1, "they were one try"
    assert marks(tmp_path) == []


def test_marker_is_on_disk_before_the_driver_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    watch = Blocklist(tmp_path).begin("k")
    assert marks(tmp_path) == []
    watch.step("open")
    (mark,) = marks(tmp_path)
    assert len(synced) == 2
    assert synced[1] == str(mark.parent), "the folder, so that the name is there too"
    watch.quiet()
    watch.step("compile")
    assert synced[2:] == [str(mark)]
    for step in ("first", "compile", "open", "first"):
        watch.quiet()
        watch.step(step)
        assert mark.read_bytes()[blocklist.STATE] == blocklist.STEPS[step]
    assert synced[3:] == [str(mark)], "that it has run; from then on memory is enough"
    watch.close()
    assert marks(tmp_path) == []


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("what", ["file in the way", "full disk", "no locks", "no folder"])
def test_where_nothing_can_be_kept_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = tmp_path / "cache"
    if what == "file in the way":
        folder.write_text("")
    elif what == "full disk":
        monkeypatch.setattr(os, "fsync", refuse)
    elif what == "no locks":
        monkeypatch.setattr(lock, "take", refuse)
    else:
        folder = Path("/proc/nowhere")
    watch = Blocklist(folder).begin("k")
    for step in ("open", "compile", "first"):
        watch.step(step)
        watch.quiet()
    watch.step("first")
    watch.crashed("why", "run")
    watch.close()
    assert Blocklist(folder).block("k") is None
    monkeypatch.undo()
    assert crashes_of(folder) == []
    assert not folder.is_dir() or not list((folder / "crashes").glob("*"))


def test_damaged_files_are_no_crashes(tmp_path: Path) -> None:
    end(tmp_path, *UP, "kill")
    assert crashes_of(tmp_path) == ["first"]
    (record,) = (tmp_path / "crashes").glob("*")
    good = record.read_bytes()
    record.unlink()
    bad = [b"", good[:-1], good + b"\0", bytes(len(good)), good[:60] + b"!" + good[61:]]
    bad += [good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :] for i in range(8)]
    facts = json.loads(good[44:])
    for forged in (
        {"began": 10**400}, {"began": "now"}, {"key": 5}, {"name": None}, {"why": []}
    ):  # fmt: skip
        text = json.dumps(facts | forged).encode().ljust(4052)
        bad.append(good[:12] + hashlib.sha256(text).digest() + text)
    for suffix in (".mark", ".crash"):
        for i, data in enumerate(bad):
            path = record.with_name(f"{i:024x}-1{suffix}")
            path.write_bytes(data)
            os.utime(path, (1, 1))
    os.mkfifo(record.with_name("pipe.mark"))
    assert crashes_of(tmp_path) == []
    assert list((tmp_path / "crashes").glob("*.crash")) == []
    assert [p.name for p in marks(tmp_path)] in ([], ["pipe.mark"])
    record.write_bytes(good)
    assert crashes_of(tmp_path) == ["first"], "the good one is"


def test_files_of_earlier_versions_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "crashes").mkdir()
    (tmp_path / "crashes.json").write_bytes(b"gpuedge-sealed/2 gpuedge.crashes/2 x 2 y\n{}")
    old = tmp_path / "crashes" / "0123.mark"
    old.write_bytes(b"GEMARK01r\1\0\0".ljust(4096, b"\0"))
    os.utime(old, (1, 1))
    assert Blocklist(tmp_path).entries() == {}
    assert not old.exists()


def test_counting_that_was_cut_off_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(tmp_path, *UP, "kill")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)  # whoever counted it was killed before that
        assert crashes_of(tmp_path) == []
        assert [m.suffix for m in marks(tmp_path)] == [".mark", ".fatal"]
    for _ in range(3):
        assert crashes_of(tmp_path) == ["first"]
    assert marks(tmp_path) == []
    assert Blocklist(tmp_path).block("k") is None


def test_key_changes_with_the_driver_and_the_device() -> None:
    one = Candidate("fake", "/a", "f1", {})
    keys = {
        blocklist.key_of(one, 0),
        blocklist.key_of(one, 1),
        blocklist.key_of(one.replace(fingerprint="f2"), 0),
        blocklist.key_of(one.replace(key="/b"), 0),
        blocklist.key_of(one.replace(backend="other"), 0),
    }
    assert len(keys) == 5
    assert blocklist.key_of(one.replace(env={"A": "1"}), 0) in keys


def test_file_is_left_alone_while_it_is_written_and_a_damaged_one_removed(tmp_path: Path) -> None:
    folder = tmp_path / "crashes"
    folder.mkdir()
    names = [f"{kind}-1{suffix}" for kind in ("new", "old") for suffix in (".mark", ".crash")]
    for name in names:
        (folder / name).write_bytes(b"half")
    for name in names[2:]:
        os.utime(folder / name, (1, 1))
    assert Blocklist(tmp_path).entries() == {}
    assert sorted(p.name for p in folder.iterdir()) == sorted(names[:2])
