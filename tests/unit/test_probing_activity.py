"""Hanging is told from computing, and from waiting for a processor, by the last second alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from gpuedge.backends.base import Candidate
from gpuedge.probing import activity, process
from gpuedge.probing.activity import Activity
from gpuedge.probing.judge import Ending, Transcript, is_cut_off, judge
from gpuedge.probing.report import ProbeRow

pytestmark = pytest.mark.timeout(60)

DEVICES: dict[str, Any] = {
    "event": "devices",
    "devices": [{"index": 0, "identity": {"api": "vulkan", "name": "G"}, "is_software": False}],
}
OPENING: list[dict[str, Any]] = [DEVICES, {"event": "step", "step": "open", "index": 0}]
COMPLETE: list[dict[str, Any]] = [
    *OPENING,
    {"event": "device", "index": 0, "status": "ok", "code": "ok"},
    {"event": "done"},
]


def row(events: list[dict[str, Any]], seconds: float = 4.0, **more: Any) -> ProbeRow:
    made = Transcript(events, 0, Ending("deadline"), "", seconds, deadline_s=4.0, **more)
    (found,) = judge(Candidate("vulkan", "icd", "f"), made).rows
    return found


def test_a_process_that_sleeps_instead_of_leaving_hangs() -> None:
    """It had computed before, while its driver was being unloaded."""
    late = {"silent_s": 2.0, "cpu_s": 1.5, "window_s": 1.0, "busy_s": 0.0, "waited_s": 0.0}
    found = row(COMPLETE, **late)
    assert (found.status, found.evidence["step"]) == ("timeout", "exit")
    assert not is_cut_off(found)
    assert row(COMPLETE, **{**late, "silent_s": 0.6, "window_s": 0.6}).status == "timeout"


@pytest.mark.parametrize(
    "meanwhile",
    [{"busy_s": 0.4, "waited_s": 0.0}, {"busy_s": 0.02, "waited_s": 0.8}],
    ids=["computes", "starves"],
)
def test_a_process_that_is_still_busy_leaving_does_not_hang(meanwhile: dict[str, float]) -> None:
    assert row(COMPLETE, silent_s=1.5, cpu_s=1.0, window_s=1.0, **meanwhile).status == "ok"


def test_a_starved_process_is_cut_off_and_not_said_to_hang() -> None:
    silent = {"silent_s": 3.0, "cpu_s": 0.3, "window_s": 1.0, "busy_s": 0.05}
    starved = row(OPENING, **silent, waited_s=0.9)
    assert is_cut_off(starved)
    assert "hung" not in starved.reason
    asleep = row(OPENING, **silent, waited_s=0.1)
    assert not is_cut_off(asleep)
    assert "it hung while opening the device" in asleep.reason


def test_only_the_last_second_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "waiting", lambda pid: (0.0, False))
    one = Activity()
    one.restart(1, 0.0, 0.0)
    for tick in range(1, 31):  # computes for a second, then sleeps for two
        one.look(1, tick / 10, min(1.0, tick / 10))
        assert tick in {19, 20, 21} or one.is_idle is (tick > 20)
    assert one.window_s == pytest.approx(1.0, abs=0.11)
    one.restart(1, 3.1, 1.0)
    assert one.window_s == 0.0


def test_a_wait_that_the_system_has_not_counted_yet_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that gets no processor at all is only said to be ready."""
    monkeypatch.setattr(activity, "waiting", lambda pid: (0.0, True))
    one = Activity()
    one.restart(1, 0.0, 0.5)
    for tick in range(1, 13):
        one.look(1, tick / 10, 0.5)
    assert one.waited_s == pytest.approx(1.0, abs=0.11)
    assert not one.is_idle


STARVED = "import os; os.nice(19); print(flush=True)\nwhile True: pass"
GREEDY = "print(flush=True)\nwhile True: pass"
ASLEEP = "import time; print(flush=True); time.sleep(60)"


@pytest.mark.skipif(sys.platform != "linux", reason="no other system says how long one waited")
@pytest.mark.parametrize(("code", "is_idle"), [(STARVED, False), (ASLEEP, True)])
def test_real_processes(code: str, is_idle: bool) -> None:
    """Of two that want one processor, the polite one gets a hundredth of it."""
    processor = {min(os.sched_getaffinity(0))}
    started = [
        subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
        for text in (code, GREEDY)
    ]
    try:
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
            os.sched_setaffinity(one.pid, processor)
        seen, pid = Activity(), started[0].pid
        begin = time.monotonic()
        seen.restart(pid, begin, process.cpu_seconds(pid))
        while (now := time.monotonic()) < begin + 1.3:
            seen.look(pid, now, process.cpu_seconds(pid))
            time.sleep(0.02)
        assert seen.window_s >= 0.9
        assert seen.is_idle is is_idle
        assert seen.busy_s is not None
        assert seen.waited_s is not None
        assert (seen.waited_s > 0.5) is not is_idle
    finally:
        for one in started:
            one.kill()
            one.communicate()


def test_a_process_that_is_gone_is_not_known() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    assert activity.waiting(ended.pid) == (None, False)
