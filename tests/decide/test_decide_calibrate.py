"""Calibration on scripted clocks: what it finds, and that it keeps its budget whatever happens."""

from __future__ import annotations

import math
import threading
import time

import pytest
from decide_fakes import FakeClock, FakeExecutor, edge_cpu, edge_gpu, patient

from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    OutOfMemoryError,
    UnsupportedOpError,
)
from gpuedge.core.reasons import Reason
from gpuedge.decide import calibrate as product
from gpuedge.decide.calibrate import MAX_RUNS, open_and_calibrate
from gpuedge.decide.cases import ORDER
from gpuedge.decide.model import DeviceModel
from gpuedge.executors.base import Work


def calibrate(fake: FakeExecutor, budget_s: float, *, clock: FakeClock) -> DeviceModel | Reason:
    """Calibrate in the time of a clock, however busy the machine is."""
    with patient():
        return product.calibrate(fake, budget_s, clock=clock)


def executor(truth: DeviceModel | None = None, **more: object) -> FakeExecutor:
    return FakeExecutor("vulkan:0", truth or edge_gpu(), FakeClock(), **more)  # type: ignore[arg-type]


def test_finds_the_speeds_and_ignores_cold_runs() -> None:
    fake = executor(compile_s=0.002, cold_s=0.01)
    found = calibrate(fake, 2.0, clock=fake.clock)
    assert isinstance(found, DeviceModel)
    assert found.complete
    assert found.device == "vulkan:0"
    assert found.flops_per_s["conv"] == pytest.approx(40e9, rel=0.1)
    assert found.launch_s == pytest.approx(30e-6, rel=0.05)
    # Compiling 2 ms a pass, and 10 ms late in the first run: one launch in most graphs.
    assert 0.004 < found.compile_s_per_pass <= 0.012


def test_spread_is_that_of_the_quartiles_and_ignores_a_spike() -> None:
    fake = executor(noise=(1.0, 1.2, 1.4, 1.6, 1.8))
    found = calibrate(fake, 60.0, clock=fake.clock)
    assert isinstance(found, DeviceModel)
    # 25 runs are five rounds: quartiles 1.2 and 1.6; a normal's are 1.349 sigma apart
    sigma = math.log(1.6 / 1.2) / 1.349
    assert found.spread["conv"] == pytest.approx(math.exp(1.28155 * sigma), rel=1e-3)
    spiky = executor(noise=(1.0,) * 12 + (50.0,))
    found = calibrate(spiky, 60.0, clock=spiky.clock)
    assert isinstance(found, DeviceModel)
    assert found.spread["conv"] == 1.0


def test_everything_compiled_is_closed_and_the_executor_is_not() -> None:
    fake = executor()
    calibrate(fake, 2.0, clock=fake.clock)
    assert [e.closed for e in fake.made] == [1] * len(ORDER)
    assert fake.closed == 0


def test_runs_are_bounded_even_with_all_the_time_in_the_world() -> None:
    fake = executor()
    calibrate(fake, 60.0, clock=fake.clock)
    assert fake.runs == len(ORDER) * (MAX_RUNS + 1)


@pytest.mark.parametrize("factor", [1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001])
def test_slow_device_stays_in_budget_or_gives_a_reason(factor: float) -> None:
    fake = executor(edge_gpu().scaled(factor))
    begin = fake.clock()
    found = calibrate(fake, 1.0, clock=fake.clock)
    assert fake.clock() - begin <= 1e9
    if isinstance(found, Reason):
        assert found.code == "not-calibrated"
        assert "within 1 s" in found.sentence
        assert factor <= 0.003
        return
    assert found.complete is (factor >= 0.3)
    if found.complete:
        assert found.flops_per_s["conv"] == pytest.approx(40e9 * factor, rel=0.1)
    else:
        # What was not told apart (launch, transfer) is counted as arithmetic: never too fast.
        assert found.flops_per_s["conv"] <= 40e9 * factor * 1.01


def test_long_graphs_are_foreseen_from_short_ones() -> None:
    # One run of the 4 MiB graph takes 0.25 s here: as a first run it would be past the end.
    fake = FakeExecutor("cpu", edge_cpu().scaled(0.01), FakeClock())
    begin = fake.clock()
    found = calibrate(fake, 0.3, clock=fake.clock)
    assert fake.clock() - begin <= 0.3e9
    assert isinstance(found, DeviceModel)
    assert not found.complete
    assert max(e.work.bytes_moved for e in fake.made) < 4 << 20
    # What the small copy shows stands in for it: input, output and 5e7 of memory are alike.
    assert 5e7 / 2 < (found.bandwidth_bps or 0) < 5e7 * 2


def test_slow_compiler_gives_a_partial_model() -> None:
    fake = executor(compile_s=0.15)
    begin = fake.clock()
    found = calibrate(fake, 1.0, clock=fake.clock)
    assert fake.clock() - begin <= 1e9
    assert isinstance(found, DeviceModel)
    assert not found.complete
    assert 20e9 < found.flops_per_s["conv"] <= 40e9
    assert found.compile_s_per_pass == pytest.approx(0.15)


def test_operator_that_is_missing_leaves_a_partial_model() -> None:
    fake = executor(refuse=frozenset({"MaxPool"}))
    found = calibrate(fake, 2.0, clock=fake.clock)
    assert isinstance(found, DeviceModel)
    assert not found.complete
    # Between the slowest of the three ways a copy goes (1e9 out, 2e9 in) and the fastest.
    for rate in (found.bandwidth_bps, found.transfer_in_bps, found.transfer_out_bps):
        assert 1e9 <= (rate or 0) <= 10e9
    assert "factor of 4" in found.predict(Work({"conv": 1e6})).confidence
    none = executor(refuse=frozenset({"Conv"}))
    assert calibrate(none, 2.0, clock=none.clock) == Reason(
        "not-calibrated", "the conv-small graph could not be timed within 2 s"
    )


@pytest.mark.parametrize(
    ("where", "error", "code"),
    [
        ("compile", DriverError("no pipeline"), "compile-failed"),
        ("run", DriverError("no"), "run-failed"),
        ("run", DeviceLostError("gone"), "device-lost"),
        ("run", DeviceTimeoutError("late"), "run-failed"),
        ("compile", OutOfMemoryError("full"), "out-of-memory"),
        ("run", RuntimeError("a bug in a plug-in\nwith lines"), "not-calibrated"),
        ("compile", UnsupportedOpError("no Add here"), "not-calibrated"),
    ],
)
def test_failure_becomes_a_reason(where: str, error: Exception, code: str) -> None:
    fake = executor(**{f"fail_{where}": error})
    found = calibrate(fake, 2.0, clock=fake.clock)
    assert isinstance(found, Reason)
    assert found.code == code
    assert "\n" not in found.detail
    assert all(e.closed == 1 for e in fake.made)


def test_device_that_does_not_open() -> None:
    def refuse() -> FakeExecutor:
        raise DriverError("the queue is taken")

    with patient():
        found = open_and_calibrate(refuse, 1.0)
    assert found == Reason("open-failed", "the queue is taken")


def test_opening_is_timed_and_counts_against_the_budget() -> None:
    fake = executor()

    def opener(seconds: float) -> FakeExecutor:
        fake.clock.spend(seconds)
        return fake

    with patient():
        found = open_and_calibrate(lambda: opener(0.3), 2.0, clock=fake.clock)
    assert isinstance(found, DeviceModel)
    assert found.open_s == pytest.approx(0.3)
    with patient():
        late = open_and_calibrate(lambda: opener(1.9), 2.0, clock=fake.clock)
    assert isinstance(late, Reason)


@pytest.mark.parametrize("where", ["open", "run"])
def test_hanging_driver_is_left_behind_in_time(where: str) -> None:
    release, entered = threading.Event(), threading.Event()
    fake = executor()

    def hang() -> FakeExecutor:
        entered.set()
        release.wait(30)
        return fake

    class Hanging(FakeExecutor):
        def compile(self, segment):  # type: ignore[no-untyped-def]
            made = super().compile(segment)
            made.take = hang
            return made

    stuck = Hanging("vulkan:0", edge_gpu(), fake.clock)
    begin = time.perf_counter()
    found = open_and_calibrate(hang if where == "open" else lambda: stuck, 0.3)
    took = time.perf_counter() - begin
    release.set()
    assert entered.is_set()
    assert isinstance(found, Reason)
    assert found.code == "deadline"
    assert 0.3 <= took < 1.0


def test_no_budget_starts_nothing() -> None:
    fake = executor()
    found = calibrate(fake, 0.0, clock=fake.clock)
    assert isinstance(found, Reason)
    assert fake.runs == 0


def test_first_dispatch_that_compiles_for_long_keeps_the_deadline() -> None:
    fake = executor(cold_s=0.7)
    begin = fake.clock()
    found = calibrate(fake, 1.0, clock=fake.clock)
    assert isinstance(found, Reason)
    assert fake.clock() - begin <= 1e9


# ---- interleaving


def alternatives(clock: FakeClock, a_s: float, b_s: float, cold_s: float, drift: float) -> tuple:
    """Two callables whose first run after a switch is cold, on a machine that slows down."""
    last = [""]
    begin = clock()

    def run(alternative: str, seconds: float) -> None:
        slow = 1 + drift * (clock() - begin) / 1e9
        clock.spend((seconds + (cold_s if last[0] != alternative else 0.0)) * slow)
        last[0] = alternative

    return (lambda: run("a", a_s)), (lambda: run("b", b_s))


def test_cpu_calibrates_too() -> None:
    fake = FakeExecutor("cpu", edge_cpu(), FakeClock())
    found = calibrate(fake, 0.8, clock=fake.clock)
    assert isinstance(found, DeviceModel)
    assert found.flops_per_s["matmul"] == pytest.approx(8e9, rel=0.1)
