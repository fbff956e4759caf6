"""A killed process that is not gone in time is collected later, and nobody else's child is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpuedge.probing import folders, forking, leftovers, process

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not hasattr(os, "waitid"), reason="processes are handles on this system"),
]

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
LONG = 20.0


def sleeper(output: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEPS, stdout=output, start_new_session=True)


def is_collected(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def test_what_ends_late_is_collected_and_nothing_else() -> None:
    late, other = sleeper(), subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    leftovers.leave(late.pid)
    assert not leftovers.settle(0.1)
    late.kill()
    assert leftovers.settle(LONG)
    assert is_collected(late.pid)
    assert other.wait() == 7
    late.returncode = -9


def test_the_next_probe_collects_where_no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(leftovers, "behind", none)
    late = sleeper()
    leftovers.leave(late.pid)
    late.kill()
    ends = time.monotonic() + LONG
    while leftovers.collect() and time.monotonic() < ends:
        time.sleep(0.01)
    assert is_collected(late.pid)
    late.returncode = -9


def test_a_zygote_that_is_slow_to_die_becomes_no_zombie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "REAP_S", 0.0)
    monkeypatch.setattr(process, "LATE_S", 0.0)
    ends = time.monotonic() + 5
    zygote = forking.Zygote(SLEEPS, os.environ, tmp_path, ends, threading.Event())
    zygote.close()
    assert leftovers.settle(LONG)
    assert is_collected(zygote._own.pid)


def test_a_child_that_is_slow_to_die_becomes_no_zombie() -> None:
    one = process.Spawned(sleeper(subprocess.PIPE))
    assert one.ending(0.0) is None
    os.kill(one.pid, signal.SIGKILL)
    assert leftovers.settle(LONG)
    assert is_collected(one.pid)
    one.close(is_drained=True)


def test_a_fork_leaves_the_children_of_its_parent_alone() -> None:
    late = sleeper()
    leftovers.leave(late.pid)
    pid = os.fork()
    if pid == 0:
        os._exit(leftovers.collect() + len(leftovers._threads))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    late.kill()
    assert leftovers.settle(LONG)
    late.returncode = -9


def test_a_folder_that_takes_long_to_remove_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, goes_on, real = tmp_path / "one", threading.Event(), shutil.rmtree
    folder.mkdir()

    def slow(path: Path, **how: Any) -> None:
        goes_on.wait(LONG)
        real(path, **how)

    monkeypatch.setattr(shutil, "rmtree", slow)
    folders.remove(folder, 0.01)
    assert folder.exists()
    goes_on.set()
    assert leftovers.settle(LONG)
    assert not folder.exists()


def test_a_kill_by_whoever_saw_first_that_time_is_over_is_no_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here the child is dead when its watcher first looks after the deadline."""
    child = sleeper(subprocess.PIPE)
    deadline = time.monotonic() + 0.2

    def kill_late(*_: object) -> None:
        time.sleep(max(0.0, deadline + 0.01 - time.monotonic()))
        child.kill()
        while not process.Spawned(child).has_ended():
            time.sleep(0.001)

    monkeypatch.setattr(process, "_watched", kill_late)
    ending, _ = process.supervise(child, deadline, threading.Event())
    assert ending.how == "deadline"
