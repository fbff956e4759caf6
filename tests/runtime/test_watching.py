"""How long a run may take, what is written down around calls into drivers, and how devices end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from faulty import PLAIN, FaultyPool, until

from gpuedge.backends.null import NullBackend, NullDevice
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import (
    ClosedError,
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    GpuEdgeError,
)
from gpuedge.decide.policy import Policy
from gpuedge.executors import waiting
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.request import Request
from gpuedge.safety.watchdog import Watchdog

X = {"x": np.ones(4, np.float32)}


def graph() -> Graph:
    builder = GraphBuilder()
    builder.output(builder.add("Relu", [builder.input("x", TensorType("float32", (4,)))]))
    return builder.build()


class Diary:
    """A marker that remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def step(self, name: str) -> None:
        self.said.append(name)

    def quiet(self) -> None:
        self.said.append("quiet")

    def crashed(self, why: str, step: str) -> None:
        self.said.append(f"crashed: {why}, {step}")

    def close(self) -> None:
        self.said.append("close")


def opened(isolation: str = "inline", **fail: BaseException) -> tuple[GpuExecutor, Diary]:
    backend = NullBackend(VULKAN_MINIMUM, fail=fail)
    impl = backend.open(backend.enumerate(backend.candidates({})[0])[0])
    diary = Diary()
    return GpuExecutor(impl, "vulkan:0", isolation=isolation, marker=diary), diary


def null(executor: GpuExecutor) -> NullDevice:
    assert isinstance(executor.impl, NullDevice)
    return executor.impl


def test_watchdog_of_the_policy_stays() -> None:
    pool = FaultyPool()
    compiled = CompiledModel(
        graph(), Request("vulkan", Policy(crosscheck=0.0, watchdog_s=0.25)), pool
    )
    assert compiled.health().watchdog_s == 0.25
    for _ in range(20):
        compiled.run(X)
    waits = [c.args[1] for c in pool.devices[0].calls if c.method == "wait"]
    assert waits == [0.25] * 20
    assert compiled.health().watchdog_s == 0.25


def test_first_run_has_a_minute_and_later_ones_two_seconds() -> None:
    executor, _ = opened()
    made = executor.compile(graph())
    for _ in range(3):
        made.run(X)
    waits = [c.args[1] for c in null(executor).calls if c.method == "wait"]
    assert waits == [60.0, 2.0, 2.0]


LATE = DeviceTimeoutError("Too slow.")


def opened_as(
    isolation: str = "inline", *later: GpuEdgeError, is_software: bool, late: int
) -> GpuExecutor:
    """Return a device whose first waits end too early, so many, and later ones too."""
    caps = replace(VULKAN_MINIMUM, is_software=is_software)
    backend = NullBackend(caps, fail={"wait": [*[LATE] * late, None, *later]})
    impl = backend.open(backend.enumerate(backend.candidates({})[0])[0])
    return GpuExecutor(impl, "vulkan:0", isolation=isolation)


def waits(executor: GpuExecutor) -> int:
    return [c.method for c in null(executor).calls].count("wait")


@pytest.mark.parametrize(
    ("is_software", "is_active", "late", "ends_after"),
    [
        (True, True, 3, None),
        (True, True, 99, 10),  # an endless loop is found: 600 s
        (True, False, 1, 1),  # nothing works there
        (False, True, 1, 1),  # what works there may be the application
    ],
)
def test_software_rasteriser_that_computes_has_more_time(
    monkeypatch: pytest.MonkeyPatch,
    is_software: bool,
    is_active: bool,
    late: int,
    ends_after: int | None,
) -> None:
    monkeypatch.setattr(waiting, "is_active", lambda used_s, over_s: is_active)
    executor = opened_as(is_software=is_software, late=late)
    made = executor.compile(graph())
    if ends_after is None:
        made.run(X)
    else:
        with pytest.raises(DeviceTimeoutError):
            made.run(X)
    assert waits(executor) == (ends_after or late + 1)
    assert executor.is_hung is (ends_after is not None)


def test_first_run_has_ten_times_what_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = opened_as(is_software=False, late=4)
    made = executor.compile(graph())
    made.watchdog.expect(lambda: 30.0)
    made.run(X)
    assert waits(executor) == 5 and not executor.is_hung


def test_models_are_predicted_for_their_device() -> None:
    pool = FaultyPool(fail={"wait": [LATE]})
    big = GraphBuilder()
    x = big.input("x", TensorType("float32", (2048, 2048)))
    for _ in range(32):
        x = big.add("MatMul", [x, x])
    big.output(x)
    compiled = CompiledModel(big.build(), Request("vulkan", PLAIN), pool)
    (part,) = compiled.parts
    dog = part.executable.watchdog  # type: ignore[union-attr]
    assert dog.limit_s == 60.0 < dog.patience_s


def test_worker_that_computes_has_more_time_in_its_first_run() -> None:
    executor = opened_as("process", LATE, is_software=False, late=2)
    null(executor).was_alive = True  # type: ignore[attr-defined]
    made = executor.compile(graph())
    made.run(X)  # its driver compiles
    assert waits(executor) == 3
    with pytest.raises(DeviceTimeoutError):
        made.run(X)
    assert waits(executor) == 4


def test_what_waits_for_a_run_is_as_patient_as_its_watchdog() -> None:
    compiled = CompiledModel(graph(), Request("vulkan", PLAIN), FaultyPool())
    watch = compiled.watch(0.5)
    assert (watch.limit_s, watch.most_s) == (60.5, 600.5)
    executor = compiled.executor
    assert isinstance(executor, GpuExecutor) and executor.driver_pid is None
    executor.at_work = Watchdog()
    executor.at_work.expect(lambda: 20.0)
    watch = compiled.watch(0.5)
    assert (watch.limit_s, watch.most_s) == (200.5, 2000.5)
    fixed = Request("vulkan", Policy(crosscheck=0.0, watchdog_s=3.0))
    watch = CompiledModel(graph(), fixed, FaultyPool()).watch(0.5)
    assert (watch.limit_s, watch.most_s) == (3.5, None)


@pytest.mark.parametrize("is_slow", [True, False])
def test_three_slow_requests_are_no_reason_to_leave_a_device(is_slow: bool) -> None:
    pool = FaultyPool(fail={"wait": [LATE] if is_slow else LATE})  # its work ends later, or never
    compiled = CompiledModel(graph(), Request("vulkan", PLAIN), pool)
    for failed in range(1, 6 if is_slow else 4):
        compiled.run(X)
        assert compiled.health().failed == failed
        until(lambda: not pool.device("vulkan:0").state.is_recovering)
    assert pool.device("vulkan:0").state.health == ("ok" if is_slow else "demoted")
    assert sum(one.is_closed for one in pool.devices) == (4 if is_slow else 0)


def test_process_that_was_stopped_waits_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def stopped() -> float:
        clock[0] += 100
        return clock[0]

    monkeypatch.setattr(waiting, "perf_counter", stopped)
    executor, _ = opened(wait=[DeviceTimeoutError("Too slow.")])  # type: ignore[arg-type]
    executor.compile(graph()).run(X)
    assert [c.method for c in null(executor).calls].count("wait") == 2
    assert not executor.is_hung


def test_host_that_was_ended_for_its_silence_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 100.0, 100.0])
    monkeypatch.setattr(waiting, "perf_counter", lambda: next(clock))
    gone = DeviceLostError("The worker is gone.", reason="worker-died")
    errors = [DeviceTimeoutError("Too slow."), gone]
    executor, diary = opened("process", wait=errors)  # type: ignore[arg-type]
    with pytest.raises(DeviceTimeoutError):
        executor.compile(graph()).run(X)
    assert executor.is_hung and diary.said[-1] == "quiet"


def test_watch_is_told_before_and_after_every_stage() -> None:
    executor, diary = opened()
    made = executor.compile(graph())
    made.run(X)
    made.run(X)
    executor.close()
    steps = ["compile", "quiet"] * 3  # the kernel, the memory, the recording
    assert diary.said == [*steps, "first", "quiet", "close"]


@pytest.mark.parametrize("error", [DriverError("No."), DeviceLostError("Lost."), ClosedError("!")])
def test_watch_is_quiet_after_an_error(error: GpuEdgeError) -> None:
    executor, diary = opened(submit=error)
    with pytest.raises(type(error)):
        executor.compile(graph()).run(X)
    assert diary.said == [*["compile", "quiet"] * 3, "first", "quiet"]


def test_death_of_the_host_is_a_strike_and_one_only() -> None:
    died = DeviceLostError("Gone.", known="SIGSEGV in a run", reason="worker-died")
    executor, diary = opened("process", submit=died)
    made = executor.compile(graph())
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            made.run(X)
    assert [s for s in diary.said if s.startswith("crashed")] == [
        "crashed: SIGSEGV in a run, first"
    ]


def test_hung_device_of_this_process_is_never_closed() -> None:
    executor, _ = opened(wait=DeviceTimeoutError("Too slow."))
    made = executor.compile(graph())
    with pytest.raises(DeviceTimeoutError):
        made.run(X)
    assert executor.is_hung
    executor.retire()
    before = len(null(executor).calls)
    made.close()
    executor.close()
    executor.close()
    assert null(executor).calls[before:] == []
    assert executor.closed and not executor.released
    with pytest.raises(ClosedError):
        made.run(X)


def test_hung_device_of_another_process_is_closed() -> None:
    executor, _ = opened("process", wait=DeviceTimeoutError("Too slow."))
    with pytest.raises(DeviceTimeoutError):
        executor.compile(graph()).run(X)
    executor.close()
    assert null(executor).is_closed and executor.released


def test_giving_back_does_not_wait_for_a_thread_that_is_stuck() -> None:
    executor, _ = opened()
    go_on, inside = threading.Event(), threading.Event()

    def stuck() -> None:
        with executor.lock:
            inside.set()
            go_on.wait(30)

    thread = threading.Thread(target=stuck)
    thread.start()
    assert inside.wait(10)
    start = time.monotonic()
    assert not executor.give_back(0.05)
    assert time.monotonic() - start < 25
    assert executor.closed and not null(executor).is_closed
    go_on.set()
    thread.join()
    assert executor.give_back(5) and null(executor).is_closed


EXIT = """
import sys, threading, time
sys.path.insert(0, {tests!r})
from faulty import LOST, PLAIN, X, FaultyPool, graph
from gpuedge.runtime import devices
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.request import Request
from gpuedge.runtime.devices import RetryLimits
devices.DEVICE_END_S = 0.2
pool = FaultyPool([LOST], limits=RetryLimits(pauses_s=({pause},)))
import atexit
atexit.register(pool.end)
compiled, inputs = CompiledModel(graph(), Request("vulkan", PLAIN), pool), {{"x": X}}
{then}
print("end", flush=True)
"""


@pytest.mark.parametrize(
    ("pause", "then"),
    [
        (60.0, "compiled.run(inputs)"),  # a recovery waits
        (0.0, "pool.gate.clear(); compiled.run(inputs); time.sleep(0.2)"),  # a child is at work
        (60.0, "pool.devices[0].close = lambda: time.sleep(60)"),  # closing hangs
        (60.0, "pool.devices[0].close = lambda: time.sleep(60); compiled.run(inputs)"),
        (
            60.0,
            "lock = compiled.executor.lock; held = threading.Event()\n"
            "def stuck():\n"
            "    with lock: held.set(); time.sleep(60)\n"
            "threading.Thread(target=stuck, daemon=True).start(); held.wait(10)",
        ),
    ],
    ids=["waiting", "probing", "hung", "hung and failed", "thread stuck"],
)
def test_nothing_holds_up_the_end_of_the_interpreter(pause: float, then: str) -> None:
    code = EXIT.format(tests=str(__file__).rpartition("/")[0], pause=pause, then=then)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    lines = [line for line in ran.stderr.splitlines() if "lost" not in line.lower()]
    assert (ran.returncode, ran.stdout, lines) == (0, "end\n", [])


def test_policy_reaches_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float | None] = []
    monkeypatch.setattr(NullDevice, "limit_idle", lambda self, s: told.append(s), raising=False)
    for watchdog_s, isolation in ((3.5, "process"), (None, "process"), (4.5, "inline")):
        policy = Policy(crosscheck=0.0, watchdog_s=watchdog_s)
        CompiledModel(graph(), Request("vulkan", policy, isolation=isolation), FaultyPool())
    assert told == [3.5, None]
