"""A model under ``auto``: who answers, when a GPU is opened, and what it must pass before that."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import EXHAUSTED, LOST, NEVER, REFUSED, TRACE, Gate, X, refuse_operators, until
from scripted_fakes import World, result

import gpuedge
from gpuedge.core.errors import DeviceLostError, InputError
from gpuedge.decide.belief import Belief
from gpuedge.decide.decision_record import DeviceCandidate
from gpuedge.decide.options import DEFAULT
from gpuedge.decide.policy import Policy
from gpuedge.runtime.auto import ChosenDevice
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.devices import PooledDevice
from gpuedge.runtime.segments import Segments

WANTED = -X


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path)


def taken(world: World, compiled: CompiledModel, most: int = 2_000) -> int:
    """Serve until a GPU answers; return how many requests that took."""
    for n in range(most):
        if compiled.executor.device != "cpu":
            return n
        np.testing.assert_array_equal(world.serve(compiled)[0], WANTED)
    raise AssertionError(f"still on the CPU: {compiled.decision.explain(verbose=True)}")


def evidence(compiled: CompiledModel) -> DeviceCandidate:
    return next(e for e in compiled.decision.record.candidates if e.device == "vulkan:0")


def on_trial(world: World, compiled: CompiledModel) -> None:
    """Serve until a GPU is open, and on trial."""
    until(lambda: bool(world.serve(compiled)) and evidence(compiled).phase == "trial")


# -- the first request ----------------------------------------------------------------------------


def test_first_answer_is_the_cpu_s_and_nothing_is_probed_or_opened(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool)
    report, asked = pool.report, list[str]()
    pool.report = lambda *_: asked.append(threading.current_thread().name) or report()  # type: ignore
    np.testing.assert_array_equal(result(compiled), WANTED)
    assert world.background.wait(10)
    assert asked == [] and pool.devices == []
    assert [row.device for row in compiled.rows] == ["cpu"]
    health = compiled.health()
    assert (health.state, health.device, health.on_cpu) == ("cpu", "cpu", 1)
    world.serve(compiled)
    assert set(asked) == {"gpuedge-job"}  # later, and in the background


def test_gpu_is_opened_when_the_requests_served_would_have_paid_for_it(world: World) -> None:
    """10 ms on the CPU, 1 ms and 1 s of start-up predicted: about a hundred requests."""
    world.predict(1.0, startup_ms=1_000)
    pool = world.pool(10, 1)
    compiled = world.auto(pool)
    world.serve(compiled, 40)
    assert pool.devices == []
    for _ in range(400):
        if pool.devices:
            break
        world.serve(compiled)
    assert 60 <= compiled.health().on_cpu <= 300
    taken(world, compiled)
    health = compiled.health()
    assert (health.state, health.device, health.switches) == ("ok", "vulkan:0", 1)


def test_gpu_that_is_predicted_slower_is_not_opened(world: World) -> None:
    world.predict(1_000.0)
    pool = world.pool(1, 0.01)
    compiled = world.auto(pool)
    world.serve(compiled, 300)
    assert pool.devices == [] and compiled.decision.device == "cpu"
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert (row.status, row.code) == ("rejected", "slower")


def test_gpu_that_turns_out_slower_is_not_taken(world: World) -> None:
    pool = world.pool(10, 30)
    compiled = world.auto(pool)
    for answer in world.serve(compiled, 200):
        np.testing.assert_array_equal(answer, WANTED)
    assert len(pool.devices) == 1 and compiled.executor.device == "cpu"
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert row.code == "measured-slower"
    assert pool.spent["gpu"] < 0.05 * pool.spent["cpu"] + 1.0


def test_gpus_that_missed_the_deadline_are_looked_for_again(world: World) -> None:
    pool = world.pool(10, 1)
    there = pool.report()
    (first, *rest) = there.tried
    starved = first.replace(status="timeout", code="deadline", evidence={"is_unfinished": True})
    pool.known = there.replace(tried=(starved, *rest))
    pool.again_ns = lambda _: 30 * 10**9  # type: ignore
    compiled = world.auto(pool)
    world.serve(compiled, 100)
    pool.known = there
    pool.again_ns = lambda _: None  # type: ignore
    assert compiled.decision.device == "cpu" and pool.devices == []
    while world.clock.now < 30 * 10**9:
        world.serve(compiled)
        assert pool.devices == [] or world.clock.now >= 30 * 10**9
    taken(world, compiled)


@pytest.mark.parametrize("tune", ["off", "fast"])
def test_kernels_are_timed_in_the_background_and_that_is_no_start_up(
    world: World, monkeypatch: pytest.MonkeyPatch, tune: str
) -> None:
    threads, inner = list[str](), Segments.tune

    def slow(self: Segments, *arguments: Any, **named: Any) -> Any:
        world.clock.spend(2.0)
        threads.append(threading.current_thread().name)
        return inner(self, *arguments, **named)

    monkeypatch.setattr(Segments, "tune", slow)
    monkeypatch.setattr("gpuedge.runtime.segments.tuned_of", lambda parts: f"tuned: {tune}")
    compiled = world.auto(world.pool(10, 1), policy=Policy(tune=tune))
    taken(world, compiled)
    assert threads == (["gpuedge-job"] if tune == "fast" else [])
    assert evidence(compiled).startup_ns < 10**9
    assert f"tuned: {tune}" in compiled.decision.reason


# -- the trial ------------------------------------------------------------------------------------


def test_a_request_on_trial_is_answered_from_the_cpu_s_numbers(world: World) -> None:
    """The device multiplies by a trace; not one answer has it before the device has won."""
    pool = world.pool(10, 1)
    compiled = world.auto(pool)
    before, ran = 0, 0
    while compiled.executor.device == "cpu":
        before = pool.devices[0].runs if pool.devices else 0
        (answer,) = world.serve(compiled)
        np.testing.assert_array_equal(answer, WANTED)
        ran = pool.devices[0].runs if pool.devices else 0
    assert ran >= before and ran >= 5  # it was warmed up, and ran on trial
    assert compiled.health().crosschecks >= 2
    np.testing.assert_array_equal(world.serve(compiled)[0], WANTED)  # the first is compared


@pytest.mark.parametrize(("gpu_ms", "cold"), [(1, 2), (149, 2), (150, 1)])
def test_long_runs_warm_a_gpu_up_sooner(world: World, gpu_ms: float, cold: int) -> None:
    """Two runs, or until they took 150 ms together; one more is timed, as in the simulator."""
    pool = world.pool(1_000, gpu_ms)
    compiled = world.auto(pool, policy=Policy(crosscheck=0))  # nothing else runs in the background
    while not pool.devices:
        world.serve(compiled)
    assert pool.runs["gpu"] == cold + DEFAULT.warm_runs


def test_decision_says_when_a_side_that_has_to_wait_takes_over(world: World) -> None:
    compiled = world.auto(world.pool(10, 1))
    taken(world, compiled)
    assert isinstance(compiled.choice, ChosenDevice)
    chooser = compiled.choice.chooser
    chooser.candidates["vulkan:0"].belief = Belief(1_000_000, 1_000, 9)
    assert "the CPU takes over after the next request" in compiled.decision.reason


def test_only_the_time_of_the_gpu_counts_for_it(world: World) -> None:
    """5 ms beside 10: with the CPU's answer it would take 15."""
    pool = world.pool(10, 5)
    compiled = world.auto(pool)
    taken(world, compiled)
    belief = evidence(compiled).belief
    assert belief is not None and belief.theta < np.log(0.75)


def test_wrong_numbers_in_the_background_never_reach_a_request(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    pool = world.pool(10, 1)
    pool.factor = np.float32(1.01)
    compiled = world.auto(pool)
    with caplog.at_level(logging.WARNING, "gpuedge"):
        for answer in world.serve(compiled, 100):
            np.testing.assert_array_equal(answer, WANTED)
    assert "differ from the CPU's" in caplog.text
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert (row.status, row.code) == ("rejected", "drifted")
    assert pool.device("vulkan:0").state.health == "demoted" and len(pool.devices) == 1


def test_wrong_numbers_on_trial_condemn_the_device_at_once(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool)
    on_trial(world, compiled)
    pool.devices[0].factor = np.float32(1.01)
    runs = pool.devices[0].runs
    for answer in world.serve(compiled, 60):
        np.testing.assert_array_equal(answer, WANTED)
    assert pool.devices[0].runs == runs + 1
    assert compiled.health().crosschecks_failed == 1
    assert "drifted" in {r.code for r in compiled.decision.rows}


def test_drift_in_service_is_answered_by_the_cpu(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool, policy=Policy(crosscheck=1.0))
    taken(world, compiled)
    pool.devices[0].factor = np.float32(1.01)
    for answer in world.serve(compiled, 40):
        np.testing.assert_array_equal(answer, WANTED)
    health = compiled.health()
    assert (health.state, health.device, health.crosschecks_failed) == ("demoted", "vulkan:0", 1)


# -- opening that fails or stalls -----------------------------------------------------------------


def test_device_that_does_not_open_is_left_for_this_launch(world: World) -> None:
    pool = world.pool(10, 1)
    pool.opening = [REFUSED] * 9
    compiled = world.auto(pool)
    for answer in world.serve(compiled, 100):
        np.testing.assert_array_equal(answer, WANTED)
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert row.code == "open-failed" and "The driver refused" in row.reason
    assert compiled.health().failed == 1


def test_opening_that_stalls_is_tried_again_and_is_no_verdict(world: World) -> None:
    pool = world.pool(10, 1)
    world.background.stall_s = 0.05
    gate, times = threading.Event(), list[int]()

    def slow() -> None:
        times.append(world.clock.now)
        if len(times) == 1:
            gate.wait(30)

    pool.on_open = slow
    compiled = world.auto(pool)
    while not times:
        world.serve(compiled)
    world.serve(compiled, 20)
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert (row.status, row.code) == ("waiting", "open-late")
    assert "had not ended after 50 ms; it is tried again in 29" in compiled.decision.explain()
    assert "did not answer" not in str(compiled.decision)
    world.background.stall_s = 20.0
    gate.set()
    until(lambda: bool(world.serve(compiled)) and compiled.executor.device != "cpu")
    assert len(times) == 1  # it came back late, and is used all the same


def test_opening_that_never_ends_is_tried_four_times(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = world.pool(1_000, 1)
    world.background.stall_s = 0.05
    gate = threading.Event()
    pool.on_open, pool.opening = lambda: gate.wait(60), [LOST] * 9
    suspended, suspend = list[PooledDevice](), PooledDevice.suspend
    monkeypatch.setattr(PooledDevice, "suspend", lambda of: suspended.append(of) or suspend(of))
    compiled = world.auto(pool)
    for answer in world.serve(compiled, 400):
        np.testing.assert_array_equal(answer, WANTED)
    gate.set()
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert (row.status, row.code) == ("rejected", "open-stalled")
    assert len(suspended) == 4


def test_device_lost_while_it_warms_up_is_opened_again(world: World) -> None:
    pool = world.pool(10, 1)
    pool.scripts = [[LOST]]
    compiled = world.auto(pool)
    while not pool.devices:
        world.serve(compiled)
    until(lambda: pool.device("vulkan:0").state.is_ok)
    taken(world, compiled)
    assert len(pool.devices) == 2 and compiled.health().failed == 0


# -- in service -----------------------------------------------------------------------------------


def test_device_lost_in_service_is_answered_by_the_cpu_and_comes_back(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool)
    taken(world, compiled)
    pool.gate.clear()
    pool.devices[0].script = [LOST]
    np.testing.assert_array_equal(result(compiled), WANTED)
    health = compiled.health()
    assert (health.state, health.device, health.failed) == ("recovering", "vulkan:0", 1)
    world.serve(compiled, 30)
    assert compiled.executor.device == "cpu"
    pool.gate.set()
    until(lambda: pool.device("vulkan:0").state.is_ok)
    taken(world, compiled)
    assert len(pool.devices) == 2 and compiled.health().state == "ok"


def test_device_without_memory_is_kept_for_two_requests(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool)
    taken(world, compiled)
    pool.devices[0].script = [EXHAUSTED]
    np.testing.assert_array_equal(world.serve(compiled)[0], WANTED)
    assert compiled.executor.device == "vulkan:0"
    pool.devices[0].script = [EXHAUSTED] * 3
    world.serve(compiled, 3)
    assert compiled.executor.device == "cpu"


def test_strict_request_raises_only_where_the_device_had_won(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool, fallback="error")
    taken(world, compiled)
    pool.devices[0].script = [LOST]
    with pytest.raises(DeviceLostError):
        result(compiled)
    np.testing.assert_array_equal(world.serve(compiled)[0], WANTED)  # auto may run on the CPU


def test_no_memory_for_copies_of_the_inputs_is_no_fault_of_the_device(world: World) -> None:
    class Large(np.ndarray):
        def copy(self, *_: object) -> np.ndarray:  # type: ignore[override]
            raise MemoryError

    pool = world.pool(10, 1)
    compiled = world.auto(pool)
    on_trial(world, compiled)
    for _ in range(3):
        np.testing.assert_array_equal(world.serve(compiled, 1, X.view(Large))[0], WANTED)
    assert compiled.health().failed == 0
    taken(world, compiled)


def test_gpu_that_slows_down_is_left(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool)
    taken(world, compiled)
    world.serve(compiled, 200)
    pool.seconds["gpu"] = 0.1
    world.serve(compiled, 2_000)
    assert compiled.executor.device == "cpu"
    assert compiled.health().switches == 2


def test_policy_without_monitor_looks_at_nothing_afterwards(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool, policy=Policy(monitor=False))
    taken(world, compiled)
    pool.runs.clear()
    pool.seconds["gpu"] = 0.02
    world.serve(compiled, 1_000)
    assert pool.runs["cpu"] <= 1_000 / 256 + 1  # cross-checks


def test_errors_of_inputs_are_the_cpu_s_own_and_change_nothing(world: World) -> None:
    compiled = world.auto(world.pool(10, 1))
    with pytest.raises((InputError, KeyError)):
        compiled.run({})
    np.testing.assert_array_equal(world.serve(compiled)[0], WANTED)


# -- policies -------------------------------------------------------------------------------------


def test_software_is_not_opened_unless_allowed(world: World) -> None:
    for is_allowed, opened in ((False, 0), (True, 1)):
        pool = world.pool(10, 1)
        first = pool.known.tried[0].replace(is_software=True)
        pool.known = pool.known.replace(tried=(first, *pool.known.tried[1:]))
        compiled = world.auto(pool, policy=Policy(allow_software=is_allowed))
        world.serve(compiled, 100)
        assert len(pool.devices) == opened
        compiled.close()


def test_device_that_needs_too_much_memory_is_not_opened(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool, policy=Policy(max_memory_bytes=16))
    world.serve(compiled, 100)
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert row.code == "too-much-memory" and pool.devices == []


def test_deciding_at_load_compares_before_the_first_request(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool, policy=Policy(decide="load"))
    assert compiled.executor.device == "vulkan:0"
    health = compiled.health()
    assert (health.on_device, health.on_cpu, health.p50_s) == (0, 0, None)
    world.serve(compiled)
    assert compiled.health().on_device == 1


def test_deciding_at_load_ends_although_a_driver_hangs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuedge.runtime.auto.LOAD_S", 0.3)
    pool, gate = world.pool(10, 1), threading.Event()
    pool.on_open = lambda: gate.wait(30)
    compiled = world.auto(pool, policy=Policy(decide="load"))
    np.testing.assert_array_equal(world.serve(compiled)[0], WANTED)
    gate.set()
    until(
        lambda: bool(world.serve(compiled)) and compiled.executor.device != "cpu"
    )  # then as in service


# -- history --------------------------------------------------------------------------------------


def test_next_launch_opens_at_once_what_paid_before(world: World) -> None:
    first = world.auto(world.pool(10, 1))
    taken(world, first)
    world.serve(first, 3_000)
    first.close()
    pool = world.pool(10, 1)
    second = world.auto(pool)
    world.serve(second, 3)
    assert len(pool.devices) == 1
    assert taken(world, second) < 60


def test_requests_are_counted_across_launches(world: World) -> None:
    compiled = world.auto(world.pool(10, 1))
    world.serve(compiled, 70)
    compiled.close()
    again = world.auto(world.pool(10, 1))
    world.serve(again, 3)
    assert again.decision.record.previous_requests == (70,)
    other = world.auto(world.pool(10, 1), "Abs")
    world.serve(other, 3)
    assert other.decision.record.previous_requests == ()


# -- several models -------------------------------------------------------------------------------


def test_two_models_share_one_device(world: World) -> None:
    pool = world.pool(10, 1)
    one, two = world.auto(pool), world.auto(pool)
    taken(world, one)
    taken(world, two)
    assert len(pool.devices) == 1
    pool.devices[0].script = [LOST]
    np.testing.assert_array_equal(world.serve(one)[0], WANTED)
    np.testing.assert_array_equal(world.serve(two)[0], WANTED)  # it is closed for both
    one.close()
    two.close()


def test_model_closed_while_a_device_opens_leaves_nothing_behind(world: World, gate: Gate) -> None:
    pool = world.pool(10, 1)
    pool.on_open = gate
    compiled = world.auto(pool)
    for _ in range(200):
        result(compiled)
        if gate.came.wait(0.02):
            break
    compiled.close()
    gate.open.set()
    assert world.background.wait(10)
    (device,) = pool.devices
    assert device.count("alloc") == device.count("free")


# -- mixtures -------------------------------------------------------------------------------------


def test_model_of_which_a_gpu_runs_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_operators(monkeypatch, "Sign")
    world.predict(0.001)
    pool = world.pool(10, 0.1)
    pool.is_by_node = True
    compiled = world.auto(pool, "Neg", "Sign", "Neg")
    wanted = np.sign(X)
    for _ in range(300):
        np.testing.assert_array_equal(world.serve(compiled)[0], wanted)
        if compiled.executor.device != "cpu":
            break
    assert [row.device for row in compiled.rows] == ["vulkan:0", "cpu", "vulkan:0"]
    assert len(compiled.refusals) == 1
    strict = world.auto(world.pool(10, 0.1), "Abs", "Sign", fallback="error")
    world.serve(strict, 20)
    row = next(r for r in strict.decision.rows if r.device == "vulkan:0")
    assert row.code == "unsupported-op" and "operators cannot run" not in row.reason
    refuse_operators(monkeypatch, "Sign", "Abs")
    strict = world.auto(world.pool(10, 0.1), "Sign", "Neg", "Abs", fallback="error")
    world.serve(strict, 20)
    row = next(r for r in strict.decision.rows if r.device == "vulkan:0")
    assert row.reason.endswith("; 2 operators cannot run there: Abs, Sign")


def test_no_number_of_a_device_on_trial_that_fails_midway_reaches_a_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_operators(monkeypatch, "Abs")
    world.predict(0.001)
    pool = world.pool(10, 0.1, limits=NEVER)
    pool.is_by_node, pool.factor = True, TRACE
    compiled = world.auto(pool, "Neg", "Abs", "Neg")
    on_trial(world, compiled)
    runs, wanted = pool.devices[0].runs, -np.abs(X)
    pool.devices[0].script = [None, LOST]
    for answer in world.serve(compiled, 40):
        np.testing.assert_array_equal(answer, wanted)
    assert pool.devices[0].runs == runs + 2 and compiled.health().failed == 1


# -- processes ------------------------------------------------------------------------------------

SERVE = """
import os, signal, sys
import numpy as np
sys.path[:0] = {paths!r}
from faulty import X, FaultyPool, graph
from gpuedge.decide.policy import Policy
from gpuedge.decide.decision_record import DeviceCandidate
from gpuedge.runtime.auto import ChosenDevice
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.devices import PooledDevice
from gpuedge.runtime.background import BACKGROUND
from gpuedge.runtime.request import Request
BACKGROUND.share = 0.0
model = CompiledModel(graph(), Request("auto", Policy()), FaultyPool())
for _ in range({requests}):
    model.run({{"x": X}})
    BACKGROUND.wait(10)
{end}
"""


@pytest.mark.parametrize("requests", [5, 100])
def test_requests_served_survive_a_kill(world: World, tmp_path: Path, requests: int) -> None:
    code = SERVE.format(
        paths=[str(Path(__file__).parent), str(Path(__file__).parents[1] / "unit")],
        requests=requests, end="os.kill(os.getpid(), signal.SIGKILL)",
    )  # fmt: skip
    environ = {**os.environ, "GPUEDGE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, check=False, timeout=100
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    again = world.auto(world.pool(10, 1))
    world.serve(again, 3)
    (kept,) = again.decision.record.previous_requests
    assert requests / 2.5 <= kept <= requests


def test_a_forked_child_begins_anew_on_the_cpu(world: World) -> None:
    pool = world.pool(10, 1)
    compiled = world.auto(pool)
    taken(world, compiled)
    pid = os.fork()
    if pid == 0:
        status = 1
        with suppress(BaseException):
            status = int(not np.array_equal(result(compiled), WANTED))
        os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    np.testing.assert_array_equal(world.serve(compiled)[0], WANTED)


def test_single_operations_take_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[CompiledModel]()
    start = CompiledModel.__init__

    def noting(self: CompiledModel, *args: Any, **options: Any) -> None:
        made.append(self)
        start(self, *args, **options)

    monkeypatch.setattr(CompiledModel, "__init__", noting)
    x = np.linspace(-1, 1, 37, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(gpuedge.relu(x, device="auto"), np.maximum(x, 0))
    assert len(made) == 1 and made[0].health().on_cpu == 3
