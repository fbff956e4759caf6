"""How long a host is waited for: what does nothing is ended early, what computes is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import isolation_fakes as fakes
import pytest
import test_isolation_device as other
from runtime_fakes import FakePool
from test_watching import graph

from gpuedge.backends.null import NullDevice
from gpuedge.core.errors import DeviceTimeoutError
from gpuedge.decide.policy import Policy
from gpuedge.isolation import patience
from gpuedge.isolation.patience import CALL_S, Patience, Stillness, wants_to_run
from gpuedge.runtime.compiled import CompiledModel, Request


@pytest.mark.parametrize("does", ["build=sleep:60", "build=hold:60"])
def test_driver_that_hangs_while_it_compiles_is_given_up_by_the_watchdog(does: str) -> None:
    device = fakes.host(does)
    device.bear(0.5)
    start = time.monotonic()
    with pytest.raises(DeviceTimeoutError, match="did not answer") as hung:
        device.build(other.BLOB, {})
    assert patience.FLOOR_S <= time.monotonic() - start < 20
    assert hung.value.reason is not None and hung.value.reason.code == "device-hung"
    device.close()


def test_driver_that_computes_has_its_time() -> None:
    device = fakes.host("build=compute:4")
    device.bear(0.5)
    assert device.build(other.BLOB, {}).blob is other.BLOB
    device.close()


@pytest.mark.parametrize("does", ["submit=hold:60", "write=hold:60"])
def test_what_goes_with_a_wait_is_bounded_by_it(does: str) -> None:
    device = fakes.host(does)
    start = time.monotonic()
    with pytest.raises(DeviceTimeoutError):
        fakes.run_once(device, b"abc", timeout_s=0.3)
    assert time.monotonic() - start < CALL_S
    device.close()


class Clock:
    """Time and a process that uses what it is told of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.used = 100.0, 5.0
        self.is_runnable = False
        self.looks = 0
        monkeypatch.setattr(patience.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(patience.process, "cpu_seconds", self._look)
        monkeypatch.setattr(patience, "wants_to_run", lambda pid: self.is_runnable)

    def _look(self, pid: int) -> float:
        self.looks += 1
        return self.used

    def until(self, ask: Callable[[], bool], share: float, most: float = 60.0) -> float:
        """Return after how many seconds the answer is yes."""
        begin = self.now
        while not ask() and self.now - begin < most:
            self.now += 0.1
            self.used += 0.1 * share
        return self.now - begin


@pytest.mark.parametrize(("share", "is_still"), [(0.0, True), (0.05, True), (0.2, False)])
def test_a_tenth_of_the_time_is_computing(
    share: float, is_still: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    found = clock.until(Stillness(1, 2.0).lasts_too_long, share)
    assert (2.0 <= found <= 4.0) if is_still else found >= 60.0


def test_process_without_a_processor_is_not_still(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.is_runnable = True
    assert clock.until(Stillness(1, 2.0).lasts_too_long, 0.0) >= 60.0


def test_short_calls_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert clock.until(Stillness(1, 2.0).lasts_too_long, 0.0, 0.9) >= 0.9
    assert clock.looks == 0


def test_gap_of_this_process_is_not_held_against_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    stillness = Stillness(1, 2.0)
    clock.until(stillness.lasts_too_long, 0.0, 1.3)
    clock.now += 3600  # stopped, or asleep, as the host was
    assert not stillness.lasts_too_long()
    assert clock.until(stillness.lasts_too_long, 0.0) < 4.0


class Notes:
    """What a host notes of its progress."""

    position = 0

    def told(self) -> tuple[float, int]:
        return patience.time.monotonic(), self.position


def test_host_may_do_nothing_where_it_waits_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, notes = Clock(monkeypatch), Notes()
    notes.position = 1
    still = Stillness(1, 2.0)
    waiting = Patience(notes, [10.0, 30.0, 10.0], None, still, [1])  # type: ignore[arg-type]

    def is_over() -> bool:
        return waiting.deadline() <= clock.now

    begin = clock.now
    assert clock.until(is_over, 0.0, 25.0) >= 25.0
    notes.position = 2
    assert 2.0 <= clock.until(is_over, 0.0) <= 4.0
    assert clock.now - begin < 30.0


def test_a_process_that_runs_wants_to() -> None:
    assert wants_to_run(os.getpid())
    sleeping = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        end, sleeps = time.monotonic() + 20, False
        while not sleeps and time.monotonic() < end:  # it may start to run again after a first rest
            time.sleep(0.05)
            sleeps = not wants_to_run(sleeping.pid)
        assert sleeps
    finally:
        sleeping.communicate()


def test_policy_reaches_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float | None] = []
    monkeypatch.setattr(NullDevice, "bear", lambda self, s: told.append(s), raising=False)
    for watchdog_s, isolation in ((3.5, "process"), (None, "process"), (4.5, "inline")):
        policy = Policy(canary=0.0, watchdog_s=watchdog_s)
        CompiledModel(graph(), Request("vulkan", policy, isolation=isolation), FakePool())
    assert told == [3.5, None]
