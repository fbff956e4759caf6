"""The watchdog: what is slow, what is hung, and what only slept with the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gpuedge.safety import watchdog
from gpuedge.safety.watchdog import (
    MOST_GAP_S,
    MOST_S,
    RUN_LIMIT_S,
    STRETCH,
    Slowness,
    Watch,
    Watchdog,
    percentile,
)

HAS_PROC = Path("/proc/self/stat").exists()


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(watchdog, "monotonic", lambda: self.now)


@pytest.mark.parametrize("count", [1, 2, 3, 99, 100, 101, 128, 500])
@pytest.mark.parametrize("share", [50, 90, 99])
def test_percentile_is_numpys(count: int, share: int) -> None:
    times = sorted(np.random.default_rng(count).exponential(size=count).tolist())
    assert percentile(times, share) == np.percentile(times, share, method="inverted_cdf")


def test_watchdog_begins_generously_and_never_goes_below_two_seconds() -> None:
    dog = Watchdog()
    assert dog.limit_s == RUN_LIMIT_S == 60
    for _ in range(300):
        dog.note(0.001)
    assert dog.limit_s == 2.0


def test_watchdog_is_ten_times_the_99th_percentile_of_the_last_runs() -> None:
    dog = Watchdog()
    for _ in range(128):
        dog.note(0.5)
    assert dog.limit_s == 5.0
    dog.note(3.0)  # one of 128 is above the percentile
    for _ in range(31):
        dog.note(0.5)
    assert dog.limit_s == 5.0
    for _ in range(128):
        dog.note(0.7)
    assert dog.limit_s == pytest.approx(7.0)
    for _ in range(128):
        dog.note(30.0)
    assert dog.limit_s == 300.0  # slow runs are no hang
    for _ in range(128):
        dog.note(3000.0)
    assert dog.limit_s == dog.most_s == MOST_S


def test_fixed_limit_stays() -> None:
    dog = Watchdog()
    dog.fix(0.25)
    for _ in range(40):
        dog.note(9.0)
    assert dog.limit_s == 0.25


def test_first_limit_follows_the_prediction_and_what_the_device_took_before() -> None:
    slowness = Slowness()
    asked: list[float] = []

    def dog(predicted_s: float) -> Watchdog:
        made = Watchdog(slowness)
        made.expect(lambda: asked.append(predicted_s) or predicted_s)
        return made

    small, large = dog(0.001), dog(20.0)
    assert small.patience_s == RUN_LIMIT_S and large.patience_s == 200.0
    assert large.most_s == STRETCH * 200.0 and large.limit_s == RUN_LIMIT_S
    large.note(60.0)
    assert large.patience_s == large.limit_s == 600.0
    assert dog(20.0).patience_s == 600.0  # three times as slow as predicted
    assert dog(1e6).patience_s == dog(1e6).most_s == MOST_S
    quick = dog(0.5)
    for _ in range(3):
        quick.note(0.1)
    assert quick.patience_s == 2.0 and quick.most_s == RUN_LIMIT_S
    assert asked == [0.001, 20.0, 20.0, 1e6, 1e6]  # once each, and for quick runs not at all


def test_limit_of_the_policy_is_not_stretched() -> None:
    dog = Watchdog()
    dog.expect(lambda: 1e3)
    dog.fix(0.25)
    assert dog.patience_s == dog.most_s == 0.25


def test_work_hangs_once_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = Watch(3.0)
    for _ in range(5):
        clock.now += 0.5
        assert not watch.look()
    clock.now += 0.5
    assert watch.look()
    watch.restart()
    assert not watch.look()


def test_sleep_of_the_machine_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = Watch(3.0)
    clock.now += 3600
    assert not watch.look()
    assert watch.spent_s == MOST_GAP_S


@pytest.mark.skipif(not HAS_PROC, reason="the system does not tell what processes do")
@pytest.mark.parametrize(
    ("text", "is_idle"), [("import time; time.sleep(60)", True), ("while True: pass", False)]
)
def test_idle_process_is_told_from_one_that_computes(text: str, is_idle: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", text]) as child:
        try:
            time.sleep(0.5)  # it starts
            watch = Watch(60.0, child.pid, idle_s=0.6)
            until = time.monotonic() + 1.5
            found = False
            while not found and time.monotonic() < until:
                time.sleep(0.1)
                found = watch.look()
            assert found is is_idle
        finally:
            child.kill()


@pytest.mark.skipif(not HAS_PROC, reason="the system does not tell what processes do")
def test_process_that_is_gone_is_not_idle() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        pid = child.pid
    watch = Watch(60.0, pid, idle_s=0.1)
    time.sleep(0.3)
    assert not watch.look()
    assert watchdog.cpu_seconds(os.getpid()) is not None


@pytest.mark.skipif(not HAS_PROC, reason="the system does not tell what processes do")
@pytest.mark.parametrize("text", ["import time; time.sleep(60)", "while True: pass"])
def test_process_that_computes_has_more_time_and_not_without_end(text: str) -> None:
    with subprocess.Popen([sys.executable, "-c", text]) as child:
        try:
            time.sleep(0.5)  # it starts
            watch = Watch(1.5, child.pid, most_s=3.0)
            while not watch.look():
                time.sleep(0.1)
            is_busy = "while" in text
            assert (3.0 if is_busy else 1.5) <= watch.spent_s and watch.is_alive is is_busy
            assert is_busy or watch.spent_s < 3.0
        finally:
            child.kill()
