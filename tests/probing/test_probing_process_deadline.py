"""The deadline holds whatever the child does, and nothing of it stays in this process."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from probing_fakes import WORKER

from gpuedge.backends.base import Candidate
from gpuedge.probing.report import ProbeRow
from gpuedge.probing.run import probe_all

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="these children fork and stop"),
]

LATE_S = 1.0
"""What a probe may take longer than it was given; a hang would be for ever. Idle it is 0.02."""

TRIES = 3
"""A busy machine makes one measurement late; a fault would make all of them late."""


def probed(key: str, deadline_s: float) -> tuple[ProbeRow, float]:
    """Probe once; return the row, and how late it came."""
    start = time.monotonic()
    ((row,),) = probe_all([Candidate("fake", key, "f")], deadline_s, WORKER)
    return row, time.monotonic() - start - deadline_s


def least_late(key: str, deadline_s: float) -> float:
    late = float("inf")
    for _ in range(TRIES):
        row, one = probed(key, deadline_s)
        assert (row.status, row.code) == ("timeout", "deadline")
        assert one >= -0.001
        late = min(late, one)
        if late < LATE_S:
            break
    return late


@pytest.mark.parametrize("deadline_s", [0.05, 0.4, 1.5])
def test_deadline_of_a_driver_that_hangs(deadline_s: float) -> None:
    assert least_late("hang", deadline_s) < LATE_S


@pytest.mark.parametrize("key", ["busy", "silent", "stopped", "family", "second-hangs"])
def test_deadline_whatever_it_does_meanwhile(key: str) -> None:
    late = float("inf")
    for _ in range(TRIES):
        start = time.monotonic()
        (rows,) = probe_all([Candidate("fake", key, "f")], 0.6, WORKER)
        late = min(late, time.monotonic() - start - 0.6)
        assert rows[-1].status == "timeout"
        if late < LATE_S:
            break
    assert late < LATE_S


def test_deadline_counts_from_where_the_caller_says() -> None:
    start = time.monotonic()
    rows = probe_all([Candidate("fake", "hang", "f")], 60.0, WORKER, begin=start - 59.5)
    assert rows[0][0].status == "timeout"
    assert time.monotonic() - start < 30


def test_waiting_for_a_child_that_closed_its_output_costs_nothing() -> None:
    before = time.process_time()
    probed("silent", 1.5)
    assert time.process_time() - before < 0.5


def children() -> set[str]:
    """Children of this process, those that ended and were not waited for among them."""
    lists = Path("/proc/self/task").glob("*/children")
    return {pid for tasks in lists for pid in tasks.read_text().split()}


def state() -> tuple[list[str], int, dict[str, str], str, int, set[str]]:
    ends = time.monotonic() + 100  # on a busy machine a killed process is not gone at once
    while threading.active_count() > 1 and time.monotonic() < ends:
        time.sleep(0.02)
    mask = os.umask(0)
    os.umask(mask)
    fds = Path("/proc/self/fd")
    open_files = sorted(f.name for f in fds.iterdir()) if fds.exists() else []
    return open_files, threading.active_count(), dict(os.environ), str(Path.cwd()), mask, children()


@pytest.mark.parametrize("key", ["silent", "stopped", "family", "segv", "flood-die"])
def test_nothing_of_a_child_is_left(key: str) -> None:
    probed("ok", 30.0)
    before = state()
    probed(key, 0.5)
    assert state() == before


def test_an_orphan_of_another_session_holds_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be found by its group; but no descriptor, thread or second of ours is its own."""
    monkeypatch.setenv("PROBE_PIDFILE", str(tmp_path / "pid"))
    probed("ok", 30.0)
    before = state()
    start = time.monotonic()
    row, _ = probed("orphan", 60.0)
    assert time.monotonic() - start < 50
    orphan = int((tmp_path / "pid").read_text())
    try:
        assert row.status == "ok"
        assert state() == before
    finally:
        os.kill(orphan, signal.SIGKILL)
