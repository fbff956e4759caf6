"""The lock between processes: it excludes, it is released by death, and it never holds work up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuedge.backends.base import Candidate
from gpuedge.probing import verdicts
from gpuedge.probing.report import ProbeRow
from gpuedge.safety import lock
from gpuedge.safety.lock import Lock

HOLDER = """
import sys
from gpuedge.safety.lock import Lock
with Lock(sys.argv[1]) as is_held:
    print(is_held, flush=True)
    sys.stdin.readline()
"""

WRITER = """
import sys
from gpuedge.backends.base import Candidate
from gpuedge.probing.report import ProbeRow
from gpuedge.probing.verdicts import Store
from gpuedge.safety import lock
lock.WAIT_S = 60.0  # the machine may be busy, and who gives up waiting may lose what it wrote
folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    row = ProbeRow("fake", "fake", "ok", "ok", "because", fingerprint=name)
    key = f"{name}-{i}"
    Store(folder).save({key: (Candidate("fake", key, name), [row])}, 4.0, 1e9)
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() in {"True\n", "ready\n"}
    return process


def waited(folder: Path) -> tuple[bool, float]:
    begin = time.monotonic()
    with Lock(folder) as is_held:
        return is_held, time.monotonic() - begin


def test_one_holder_at_a_time_and_none_after_its_death(tmp_path: Path) -> None:
    assert waited(tmp_path)[0]
    holder = start(HOLDER, str(tmp_path))
    assert not waited(tmp_path)[0]
    holder.kill()
    holder.communicate(timeout=280)
    assert waited(tmp_path)[0]


def test_threads_exclude_each_other_too(tmp_path: Path) -> None:
    with Lock(tmp_path) as first, Lock(tmp_path) as second:
        assert (first, second) == (True, False)
    assert waited(tmp_path)[0]


def test_stopped_holder_holds_nobody_up(tmp_path: Path) -> None:
    holder = start(HOLDER, str(tmp_path))
    holder.send_signal(signal.SIGSTOP)
    row = ProbeRow("fake", "fake", "ok", "ok", "because")
    begin = time.monotonic()
    saved = verdicts.Store(tmp_path).save({"k": (Candidate("fake", "k", "f"), [row])}, 4, 1e9)
    took = time.monotonic() - begin
    holder.kill()
    holder.communicate(timeout=280)
    assert saved, "it goes on without the lock"
    assert took >= lock.WAIT_S
    assert verdicts.Store(tmp_path).find("k", 4, 1e9) is not None


def test_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    with Lock(tmp_path) as is_held:
        assert is_held
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        assert waited(tmp_path)[0], "the child lives on"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("what", ["file", "pipe", "link", "folder in the way", "no locks"])
def test_without_a_lock_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = tmp_path / "cache"
    if what == "file":
        folder.write_text("")
    else:
        folder.mkdir()
    if what == "pipe":
        os.mkfifo(folder / "lock")
    elif what == "link":
        (folder / "lock").symlink_to(tmp_path / "elsewhere")
    elif what == "folder in the way":
        (folder / "lock").mkdir()
    elif what == "no locks":

        def refuse(_: int) -> bool:
            raise OSError(37, "No locks available")

        monkeypatch.setattr(lock, "take", refuse)
    is_held, took = waited(folder)
    assert not is_held
    assert took < lock.WAIT_S
    assert not (tmp_path / "elsewhere").exists()


def test_sixteen_processes_lose_no_verdict(tmp_path: Path) -> None:
    count = 4
    writers = [start(WRITER, str(tmp_path), f"w{n}", str(count)) for n in range(16)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=280)
        assert writer.returncode == 0
    store = verdicts.Store(tmp_path)
    names = {f"w{n}-{i}" for n in range(16) for i in range(count)}
    assert len(names) == verdicts.MAX_ENTRIES
    assert {n for n in names if store.find(n, 4.0, 1e9) is None} == set()
    assert {p.name for p in tmp_path.iterdir()} == {"verdicts.json", "lock"}
