"""Misbehaving probe processes: every way to end is survived, in time, and told apart."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import daily
import pytest
from probing_fakes import WORKER

from gpuedge.backends.base import Candidate
from gpuedge.probing import judge, launcher
from gpuedge.probing.report import ProbeRow
from gpuedge.probing.run import probe_all
from gpuedge.safety import child, watchdog

LONG = 20.0


def rows_of(key: str, deadline_s: float = LONG) -> list[ProbeRow]:
    (rows,) = probe_all([Candidate("fake", key, "f", {"FAKE_DRIVER": key})], deadline_s, WORKER)
    return rows


def one(key: str, deadline_s: float = LONG) -> ProbeRow:
    (row,) = rows_of(key, deadline_s)
    return row


@pytest.mark.parametrize(
    ("key", "status", "code", "words"),
    [
        ("ok", "ok", "ok", "right numbers"),
        ("absent", "absent", "no-device", "none here"),
        ("segv", "crashed", "crashed", "SIGSEGV while loading the driver"),
        ("abort", "crashed", "crashed", "SIGABRT while opening the device"),
        ("exit0", "crashed", "exited", "exit status 0 while loading the driver"),
        ("exit3", "crashed", "exited", "exit status 3 while building a kernel"),
        ("garbage", "broken", "no-token", "do not carry the token"),
        ("forged", "broken", "no-token", "do not carry the token"),
        ("torn", "crashed", "crashed", "SIGKILL while opening the device, which the system sends"),
        ("crash-at-exit", "crashed", "crashed", "SIGABRT while leaving the process"),
        ("wrong", "wrong", "untouched-output", "wrote nothing"),
        ("slow", "ok", "ok", "right numbers"),
    ],
)
def test_ending_is_judged(key: str, status: str, code: str, words: str) -> None:
    row = one(key)
    assert (row.status, row.code) == (status, code)
    assert words in row.reason


def test_signal_and_step_are_evidence() -> None:
    row = one("abort")
    assert row.evidence["signal"] == "SIGABRT"
    assert row.evidence["step"] == "open"
    assert (row.index, row.name) == (0, "hard abort")


@pytest.mark.parametrize(("key", "deadline_s"), daily.some([("hang", 4.0), ("hang-at-exit", 10.0)]))
def test_hang_is_killed_at_the_deadline(key: str, deadline_s: float) -> None:
    """A busy machine starts a child in two seconds, and lets it answer in as many."""
    start = time.monotonic()
    row = one(key, deadline_s)
    took = time.monotonic() - start
    assert (row.status, row.code) == ("timeout", "deadline")
    assert deadline_s <= took < 40.0  # it would hang for ever


def test_what_a_killed_process_still_does_is_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system takes its memory apart in its name."""
    sleeping = child.Child([sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path)
    level = judge.LevelResult(Candidate("fake", "hang", "f"))
    running = launcher.Running(sleeping, [level], "", tmp_path / "result")
    ends = time.monotonic() + 20.0
    while running.activity.idle_s() < judge.LEAVING_S and time.monotonic() < ends:
        assert not running.has_ended(math.inf)
        time.sleep(child.TICK_S)
    running.is_late = not running.has_ended(math.inf)
    sleeping.kill()
    monkeypatch.setattr(watchdog, "_wants_to_run", lambda _: True)
    time.sleep(watchdog.LOOK_S)  # it is looked at again
    transcript = running.transcript(0.0)
    assert transcript.ending.how == "deadline"
    assert (transcript.idle_s or 0.0) >= judge.LEAVING_S


def test_flood_does_not_block() -> None:
    assert one("flood").status == "ok"


def test_only_the_tail_of_a_flood_is_kept() -> None:
    tail = one("flood-die").evidence["output_tail"]
    assert len(tail) == child.TAIL_BYTES
    assert tail.endswith("ooothe last words")


def test_tail_of_a_failure_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_DIE_EARLY", "1")
    row = one("ok")
    assert (row.status, row.code) == ("broken", "no-token")
    assert row.evidence["step"] == "start"
    assert "No module named 'gpuedge'" in row.reason


def test_crash_of_one_device_spares_the_others() -> None:
    rows = rows_of("second-dies")
    assert [(r.index, r.status) for r in rows] == [(0, "ok"), (1, "crashed"), (2, "ok")]
    assert "while running a kernel" in rows[1].reason


def test_driver_that_will_not_load_twice_loses_no_device() -> None:
    rows = rows_of("dies-then-vanishes")
    assert [(r.index, r.status) for r in rows] == [(0, "crashed"), (1, "timeout")]


def test_hang_of_one_device_keeps_those_before_it() -> None:
    rows = rows_of("second-hangs", 3.0)
    assert [(r.index, r.status) for r in rows] == [(0, "ok"), (1, "timeout"), (2, "timeout")]
    assert "while running" in rows[1].reason
    assert "its turn did not come" in rows[2].reason


def test_device_without_a_result_is_not_ok() -> None:
    rows = rows_of("forgets-one")
    assert [(r.status, r.code) for r in rows] == [("ok", "ok"), ("broken", "no-token")]


def test_grandchild_is_killed_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_PIDFILE", str(tmp_path / "pid"))
    assert one("grandchild").status == "ok"
    pid = int((tmp_path / "pid").read_text())
    assert _is_gone(pid)


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        try:  # an orphan may stay a zombie where process 1 reaps nobody
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_candidates_run_at_the_same_time() -> None:
    keys = ["hang", "ok", "segv", "hang@2"]
    results = probe_all([Candidate("fake", k, "f") for k in keys], 3.0, WORKER)
    assert [r[0].status for r in results] == ["timeout", "ok", "crashed", "timeout"]


def test_environment_is_the_childs_only() -> None:
    row = one("environment")
    assert '"fake": "environment"' in row.reason
    assert str(Path.cwd()) not in row.reason
    assert "FAKE_DRIVER" not in os.environ


def test_missing_program_is_a_row() -> None:
    ((row,),) = probe_all([Candidate("fake", "ok", "f")], LONG, ["/nonexistent/python"])
    assert (row.status, row.code) == ("blocked", "no-child")
    assert "No such file" in row.reason


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for _ in range(2):  # the second round finds what the first opened for good
        before = _open_files(), threading.active_count()
        keys = ["ok", "segv", "exit0", "hang", "flood"]
        probe_all([Candidate("fake", k, "f") for k in keys], 1.5, WORKER)
    for _ in range(500):  # on a busy machine a killed process is not collected at once
        if threading.active_count() == before[1]:
            break
        time.sleep(0.02)
    assert (_open_files(), threading.active_count()) == before
    assert list(tmp_path.iterdir()) == []


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


APPLICATION = """
import signal, sys, tempfile
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for some
sys.path.insert(0, {fakes!r})
tempfile.tempdir = {temporary!r}
from probing_fakes import WORKER
from gpuedge.backends.base import Candidate
from gpuedge.probing.run import probe_all
probe_all([Candidate("fake", key, "f") for key in ("hang", "family")], 600.0, WORKER)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_everything_ends_with_an_application_that_is_killed(tmp_path: Path, number: int) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    fakes = str(Path(__file__).parent)
    code = APPLICATION.format(fakes=fakes, temporary=str(temporary))
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as application:
        try:
            # The launcher, the child that hangs, and the family of four.
            assert _until(lambda: len(_users_of(temporary)) >= 6)
            application.send_signal(number)
            application.wait(60)
        finally:
            application.kill()  # what is left of it would fail a test that has no part in it
    assert _until(lambda: not _users_of(temporary))
    assert _until(lambda: not list(temporary.iterdir()))


LATE = """
import os, sys, tempfile, time
sys.path.insert(0, {fakes!r})
tempfile.tempdir = {temporary!r}
from probing_fakes import WORKER
from gpuedge.backends.base import Candidate
from gpuedge.probing.run import probe_all

def tell(at, rows):
    if rows:
        time.sleep(0.5)  # the launcher has nothing left to do
        os.kill(os.getpid(), 9)

probe_all([Candidate("fake", "ok", "f")], 600.0, WORKER, tell=tell)
"""


def test_nothing_stays_of_a_probe_whose_application_is_killed_at_its_end(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    code = LATE.format(fakes=str(Path(__file__).parent), temporary=str(temporary))
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode != 0
    assert _until(lambda: not _users_of(temporary) and not list(temporary.iterdir()))


def _users_of(folder: Path) -> list[str]:
    """Return the processes whose current folder lies in `folder`."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (place / "cwd").readlink().is_relative_to(folder):
                found.append(place.name)
    return found


def _until(is_so: Callable[[], bool]) -> bool:
    ends = time.monotonic() + 100  # far above what it takes on a busy machine
    while not is_so() and time.monotonic() < ends:
        time.sleep(0.02)
    return is_so()


def test_probe_stops_when_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    start = time.monotonic()
    probe_all([Candidate("fake", "hang", "f")], 60.0, WORKER, stop=lambda: True)
    assert time.monotonic() - start < 30
    assert list(tmp_path.iterdir()) == []
