"""Children forked off a zygote are as contained as ones that are started, and no probe needs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import alone_fakes
import pytest
import zygote_fakes

from gpuedge import backends
from gpuedge.backends.base import Candidate
from gpuedge.probing import forking, leftovers, process
from gpuedge.probing.report import ProbeRow
from gpuedge.probing.run import probe_all

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not forking.is_possible(), reason="there is no zygote on this system"),
]

PROGRAMS = {"gpuedge.probing.zygote": zygote_fakes.COMMAND,
            "gpuedge.probing.child": alone_fakes.COMMAND}  # fmt: skip
GOOD = ("wrong", "untouched-output")
"""What the null device is found to be: it went all the way."""


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "command", PROGRAMS.get)
    monkeypatch.setitem(backends.BUILTIN, "forked", zygote_fakes.BACKEND)
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PROBE_COUNT", str(tmp_path / "count"))
    monkeypatch.setenv("PROBE_PIDFILE", str(tmp_path / "pid"))
    monkeypatch.setenv("PROBE_TOLD", str(tmp_path / "told"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def rows_of(*keys: str, deadline_s: float = 30.0, **env: str) -> list[ProbeRow]:
    made = [Candidate("forked", key, "f", env) for key in keys]
    return [rows[0] for rows in probe_all(made, deadline_s)]


def verdicts(*keys: str, **more: Any) -> list[tuple[str, str]]:
    return [(r.status, r.code) for r in rows_of(*keys, **more)]


def programs_started(folder: Path) -> str:
    return "".join(sorted((folder / "count").read_text()))


def test_one_program_is_started_for_all(tmp_path: Path) -> None:
    keys = ["good#1", "segv", "exit", "good#2"]
    rows = rows_of(*keys)
    assert [(r.status, r.code) for r in rows] == [
        GOOD, ("crashed", "crashed"), ("crashed", "exited"), GOOD
    ]  # fmt: skip
    assert "SIGSEGV while loading the driver" in rows[1].reason
    assert "exit status 3" in rows[2].reason
    assert programs_started(tmp_path) == "z"


def test_a_single_driver_is_not_worth_one(tmp_path: Path) -> None:
    assert verdicts("good") == [GOOD]
    assert programs_started(tmp_path) == "cc"


@pytest.mark.parametrize("fault", ["dies", "hangs", "threads"])
def test_without_a_zygote_children_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("PROBE_ZYGOTE", fault)
    monkeypatch.setattr(forking, "PATIENCE", 0.05)
    assert verdicts("good#1", "good#2") == [GOOD] * 2
    assert programs_started(tmp_path) == "ccccz"


def test_a_driver_that_kills_it_harms_nobody(tmp_path: Path) -> None:
    assert verdicts("patricide", "good#1", "good#2") == [GOOD] * 3
    assert programs_started(tmp_path) == "ccccccz"


def test_a_driver_that_stops_it_does_not_move_the_deadline() -> None:
    late = 1.0
    for _ in range(3):
        start = time.monotonic()
        verdicts("stop_parent", "good", deadline_s=2.5)
        late = min(late, time.monotonic() - start - 2.5)
        if late < 0.2:
            break
    assert late < 0.2


@pytest.mark.parametrize("fault", ["hangs", "spins"])
def test_a_zygote_that_is_never_ready_does_not_move_the_deadline(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("PROBE_ZYGOTE", fault)
    late = 1.0
    for _ in range(3):
        start = time.monotonic()
        assert {r.code for r in rows_of("hang#1", "hang#2", deadline_s=1.0)} == {"deadline"}
        late = min(late, time.monotonic() - start - 1.0)
        if late < 0.2:
            break
    assert late < 0.2


def test_variables_that_only_a_start_reads_need_one(tmp_path: Path) -> None:
    assert verdicts("good#1", "good#2", LD_BIND_NOW="1") == [GOOD] * 2
    assert programs_started(tmp_path) == "ccccz"


@pytest.mark.parametrize("keys", [("tell", "good"), ("tell",)], ids=["forked", "started"])
def test_a_fork_is_as_clean_as_a_start(tmp_path: Path, keys: tuple[str, ...]) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR1})
    try:
        rows = rows_of(*keys, OWN_VARIABLE="mine")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    told = json.loads((tmp_path / "told").read_text())
    assert told["fds"][:3] == [0, 1, 2]
    assert len(told["fds"]) <= 5  # besides, the result and the one that lists them
    assert told["group"]
    assert told["blocked"] == []
    assert told["chld"]
    assert told["alarm"] == 0
    assert told["cwd"] == ["result"]
    assert told["own"] == "mine"
    assert told["stdin"] == ""
    assert rows[0].status == "absent"
    assert "OWN_VARIABLE" not in os.environ


@pytest.mark.parametrize("how", ["ignored", "collected"])
def test_endings_are_known_whatever_becomes_of_the_signal(how: str) -> None:
    def collect(*_: object) -> None:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return

    handler: Any = signal.SIG_IGN if how == "ignored" else collect
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        assert verdicts("good", "segv") == [GOOD, ("crashed", "crashed")]
        assert verdicts("good") == [GOOD]  # started alone first, in vain
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    def state() -> tuple[list[str], int, set[str]]:
        assert leftovers.settle(20)
        fds = sorted(f.name for f in Path("/proc/self/fd").iterdir())
        lists = [t.read_text() for t in Path("/proc/self/task").glob("*/children")]
        return fds, threading.active_count(), {pid for text in lists for pid in text.split()}

    rows_of("good", "segv")
    before = state()
    for keys in (("good", "segv"), ("hang", "exit"), ("patricide", "segv")):
        rows_of(*keys, deadline_s=2.0)
        assert state() == before


PROGRAM = """
import sys
sys.path[:0] = {folders!r}
from gpuedge.probing import process
import test_probing_zygote as t
process.command = t.PROGRAMS.get
t.rows_of("hang", "good")
"""


def test_all_end_with_an_application_that_is_killed(tmp_path: Path) -> None:
    here = Path(__file__)
    folders = [str(here.parent), str(here.parents[2])]
    code = PROGRAM.format(folders=folders)
    program = subprocess.Popen([sys.executable, "-c", code])
    pid = tmp_path / "pid"
    try:
        ends = time.monotonic() + 30
        while not (pid.exists() and pid.read_text()) and time.monotonic() < ends:
            time.sleep(0.02)
    finally:
        program.kill()
        program.wait()
    assert is_gone(int(pid.read_text()))


def is_gone(pid: int) -> bool:
    for _ in range(250):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # where process 1 collects nobody
            return True
        time.sleep(0.02)
    return False
