"""Devices with too little time, routes that are known, entries in force, and timing that ends."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from decide_fakes import FakeClock, FakeExecutor, FakeRow, edge_gpu
from flaky import FlakyPool, cpu, graph, result
from test_decide_choose import GPU, Bench

from gpuedge.core.errors import DeviceTimeoutError
from gpuedge.decide.belief import Belief
from gpuedge.decide.gather import Background
from gpuedge.decide.policy import Policy
from gpuedge.decide.store import CalibrationStore, PastLaunch
from gpuedge.runtime import devices
from gpuedge.runtime.compiled import CompiledModel, Request
from gpuedge.runtime.trying import TIMED, timed


def test_slow_device_that_comes_back_is_calibrated_with_more_time(tmp_path: Path) -> None:
    release, back, told = threading.Event(), threading.Event(), list[str]()
    bench, opener = Bench(), Bench().open

    def slow(device: str) -> FakeExecutor:
        bench.stuck.set()
        release.wait(30)
        return opener(device)

    def returned(device: str) -> None:
        told.append(f"back {device}")
        back.set()

    bench.open = slow  # type: ignore[method-assign]
    store = CalibrationStore(tmp_path)
    more: dict[str, Any] = {
        "store": store, "on_hang": lambda d: told.append(f"late {d}"), "on_back": returned,
    }  # fmt: skip
    found = bench.choose(GPU, policy=Policy(calibration_s=1.2), **more)
    assert found.rows[0].code == "deadline"
    release.set()
    assert back.wait(10)
    assert told == ["late vulkan:0", "back vulkan:0"]
    same = bench.choose(GPU, policy=Policy(calibration_s=1.2), **more)
    assert (same.device, same.rows[0].code) == ("cpu", "not-calibrated")
    assert Bench().choose(GPU, policy=Policy(calibration_s=8), **more).device == "vulkan:0"


@pytest.mark.parametrize(("budget", "is_opened"), [(0.45, False), (2.0, True)])
def test_no_gpu_is_opened_when_hardly_any_time_is_left(budget: float, is_opened: bool) -> None:
    bench, hung = Bench(), list[str]()
    found = bench.choose(GPU, policy=Policy(calibration_s=budget), on_hang=hung.append)
    assert bool(bench.opened) is is_opened
    assert hung == []
    if not is_opened:
        assert found.rows[0].code == "not-calibrated"
        assert "no time left" in found.rows[0].reason


@pytest.mark.parametrize(
    ("visited", "physical", "is_timed"),
    [
        ((), "one", True),
        (("vulkan:0",), "one", False),
        (("vulkan:0",), "two", True),
        (("vulkan:0", "gles31:0"), "two", False),
    ],
)
def test_cpu_is_timed_only_where_a_device_is_new(
    visited: tuple[str, ...], physical: str, is_timed: bool
) -> None:
    visit = PastLaunch(Belief(-500_000, 40_000, 1), 10**7, 10**7, 1000, 1_700_000_000)
    bench = Bench(speeds={d: edge_gpu(d) for d in ("vulkan:0", "gles31:0")})
    asked: list[float] = []

    def time_cpu(seconds: float) -> list[int]:
        asked.append(seconds)
        return [50_000_000] * 3

    bench.choose(
        FakeRow("vulkan:0", physical="one"), FakeRow("gles31:0", physical=physical),
        background=Background(launch_of=lambda d: visit if d in visited else None),
        time_cpu=time_cpu, policy=Policy(calibration_s=20),
    )  # fmt: skip
    assert bool(asked) is is_timed


def test_entries_are_the_ids_of_those_in_force() -> None:
    rows = [
        {"id": "a-old", "outcome": "cleared", "summary": "was tested"},
        {"id": "b-crash", "outcome": "applies", "summary": "crashes"},
        {"id": "c-wrong", "outcome": "cut", "summary": "not tested"},
        "d-plain", 7, {"outcome": "applies"},
    ]  # fmt: skip
    blocked = Listed("vulkan:0", "blocked", "quirk", "b-crash forbids it", evidence=rows)
    assert Bench().choose(blocked).rows[0].entries == ("b-crash", "c-wrong", "d-plain")
    cleared = Listed("vulkan:0", evidence=rows[:1])
    assert Bench().choose(cleared).rows[0].entries == ()


class Listed(FakeRow):
    """A row with what the entries of the database came to."""

    def __init__(self, *fields: Any, evidence: list[Any]) -> None:
        super().__init__(*fields)
        object.__setattr__(self, "evidence", {"entries": evidence})


def test_device_that_was_left_is_waited_for_and_used_again() -> None:
    pool = FlakyPool()
    first = pool.gpu("vulkan:0")
    pool.suspend("vulkan:0")
    assert getattr(first, "closed", False)
    back = threading.Timer(0.3, pool.resume, ["vulkan:0"])
    begin = monotonic()
    back.start()
    named = CompiledModel(graph("Exp"), Request("vulkan:0"), pool)
    assert monotonic() - begin >= 0.25
    back.join()
    np.testing.assert_allclose(result(named), cpu("Exp"), rtol=1e-5)
    assert (named.decision.device, named.health().state) == ("vulkan:0", "ok")
    assert pool.gpu("vulkan:0") is not first
    pool.close()


def test_device_that_does_not_come_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "AWAY_S", 0.05)
    pool = FlakyPool()
    pool.suspend("vulkan:0")
    with pytest.raises(DeviceTimeoutError, match="did not answer before"):
        pool.gpu("vulkan:0")
    pool.resume("vulkan:0")
    assert pool.gpu("vulkan:0").device == "vulkan:0"
    pool.resume("vulkan:0")  # which says nothing new
    assert not getattr(pool.gpu("vulkan:0"), "closed", False)
    pool.abandon("vulkan:0")  # a request hangs in it: that is for good
    pool.resume("vulkan:0")
    with pytest.raises(DeviceTimeoutError):
        pool.gpu("vulkan:0")


@pytest.mark.parametrize(("run_s", "runs"), [(0.4, 1), (0.05, 6), (0.001, TIMED + 1)])
def test_timing_ends_after_the_cold_run_that_takes_all_the_time(
    monkeypatch: pytest.MonkeyPatch, run_s: float, runs: int
) -> None:
    clock, count = FakeClock(), list[int]()
    monkeypatch.setattr("gpuedge.runtime.clock.now_ns", clock)

    def run() -> None:
        count.append(1)
        clock.spend(run_s)

    found = timed(run, 0.3)
    assert (len(count), len(found)) == (runs, runs - 1)
