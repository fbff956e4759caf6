"""What is counted of a device that serves, drift, several sessions, and runs that are stuck."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

import numpy as np
import pytest
from flaky import (
    EXHAUSTED,
    LOST,
    NEVER,
    PLAIN,
    TRACE,
    FlakyExecutable,
    FlakyExecutor,
    FlakyPool,
    X,
    cpu,
    graph,
    made,
    result,
    until,
)
from runtime_fakes import SOON

from gpuedge.core.errors import DeviceLostError, DriverError
from gpuedge.core.reasons import Reason
from gpuedge.decide.policy import Policy
from gpuedge.graph.ir import Array
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.devices import RetryLimits
from gpuedge.runtime.health import Health
from gpuedge.runtime.request import Request


def test_drift_is_noticed_and_answered_by_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    pool = FlakyPool()
    compiled = made(pool, policy=Policy(crosscheck=1.0))
    other = made(pool, "Tanh")
    pool.opened[0].factor = np.float32(1)
    np.testing.assert_array_equal(result(compiled), cpu())
    pool.opened[0].factor = np.float32(1.01)
    with caplog.at_level(logging.WARNING, "gpuedge"):
        np.testing.assert_array_equal(result(compiled), cpu())
    health = compiled.health()
    assert (health.state, health.crosschecks, health.crosschecks_failed) == ("demoted", 2, 1)
    assert (health.on_device, health.on_cpu) == (1, 1)
    assert health.failures[-1].code == "drifted" and "drifted" in caplog.text
    np.testing.assert_array_equal(result(other), cpu("Tanh"))  # it is the device that drifted
    until(lambda: pool.opened[0].released)
    time.sleep(0.1)
    assert len(pool.opened) == 1


def test_inputs_that_change_meanwhile_are_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's array is another one before the CPU has repeated the inference."""
    pool, x = FlakyPool(), X.copy()
    compiled = made(pool, policy=Policy(crosscheck=1.0))
    pool.opened[0].factor = np.float32(1)
    run = FlakyExecutable.run

    def changing(self: FlakyExecutable, inputs: Mapping[str, Array]) -> dict[str, Array]:
        computed = run(self, inputs)
        x[:] = 3
        return computed

    monkeypatch.setattr(FlakyExecutable, "run", changing)
    np.testing.assert_array_equal(result(compiled, x), cpu())
    health = compiled.health()
    assert (health.state, health.crosschecks, health.crosschecks_failed) == ("ok", 1, 0)


def test_inputs_are_copied_only_where_they_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, given = FlakyPool(), X.copy()
    compiled = made(pool, policy=Policy(crosscheck=1 / 4))
    pool.opened[0].factor = np.float32(1)
    run, same = FlakyExecutable.run, []

    def noting(self: FlakyExecutable, inputs: Mapping[str, Array]) -> dict[str, Array]:
        same.append(inputs["x"] is given)
        return run(self, inputs)

    monkeypatch.setattr(FlakyExecutable, "run", noting)
    for _ in range(8):
        result(compiled, given)
    assert same == [False, True, True, True] * 2


def test_comparison_that_a_failure_prevented_is_made_up_for() -> None:
    pool = FlakyPool([EXHAUSTED])  # which the device survives
    compiled = made(pool, policy=Policy(crosscheck=1 / 1000))
    pool.opened[0].factor = np.float32(1.01)
    for _ in range(2):
        np.testing.assert_array_equal(result(compiled), cpu())
    assert (compiled.health().crosschecks, compiled.health().crosschecks_failed) == (1, 1)


def test_drift_with_fallback_error_is_an_error() -> None:
    pool = FlakyPool()
    compiled = made(pool, fallback="error", policy=Policy(crosscheck=1.0))
    pool.opened[0].factor = np.float32(1.01)
    with pytest.raises(DriverError, match="drifted") as caught:
        result(compiled)
    assert caught.value.reason is not None and caught.value.reason.code == "drifted"


def test_first_result_after_recovery_is_compared() -> None:
    pool = FlakyPool([None, LOST])
    compiled = made(pool, policy=Policy(crosscheck=1 / 1000))
    pool.opened[0].factor = np.float32(1)
    result(compiled)
    result(compiled)
    until(lambda: pool.device("vulkan:0").state.is_ok)
    pool.opened[1].factor = np.float32(1.01)
    np.testing.assert_array_equal(result(compiled), cpu())
    assert compiled.health().crosschecks_failed == 1


def test_results_are_compared_where_the_device_failed_at_first() -> None:
    pool = FlakyPool(opening=[LOST])
    pool.gate.clear()
    with pytest.raises(DeviceLostError):
        made(pool)
    pool.device("vulkan:0").fail(Reason("device-lost"), FlakyExecutor([]))
    compiled = made(pool, policy=Policy(crosscheck=1.0))  # on the CPU: the device is not back yet
    assert compiled.health().state == "recovering"
    pool.gate.set()
    until(lambda: pool.device("vulkan:0").state.is_ok)
    pool.opened[0].factor = np.float32(1.01)
    np.testing.assert_array_equal(result(compiled), cpu())
    assert compiled.health().crosschecks_failed == 1


def test_device_of_the_caller_is_left_for_good_and_not_closed() -> None:
    pool = FlakyPool([LOST])
    mine = pool.gpu("vulkan")
    request = Request("vulkan:0", PLAIN, "cpu", mine)
    compiled = CompiledModel(graph("Exp"), request, pool)
    np.testing.assert_array_equal(result(compiled), cpu())
    np.testing.assert_array_equal(result(compiled), cpu())
    assert not pool.opened[0].closed and pool.opened[0].runs == 1
    assert compiled.health().state == "demoted"


def test_each_isolation_has_its_own_device_and_standing() -> None:
    pool = FlakyPool([LOST], limits=NEVER)
    inline = made(pool)
    hosted = CompiledModel(graph("Exp"), Request("vulkan", PLAIN, isolation="process"), pool)
    assert [e.isolation for e in pool.opened] == ["inline", "process"]
    result(inline)
    np.testing.assert_array_equal(result(hosted), cpu() * TRACE)
    assert inline.health().state == "recovering"
    assert (hosted.health().state, hosted.health().isolation) == ("ok", "process")


def test_one_failure_that_many_report_counts_once() -> None:
    pool = FlakyPool()
    made(pool)
    pool.gate.clear()
    health = pool.device("vulkan:0")
    for _ in range(5):
        health.fail(Reason("device-lost"), pool.opened[0])
    assert health.state.is_recovering
    pool.gate.set()


def test_abandoned_run_leaves_the_device_alone() -> None:
    pool = FlakyPool([])
    compiled = made(pool)
    inside, go_on = threading.Event(), threading.Event()

    def stuck() -> None:
        inside.set()
        go_on.wait(20)

    pool.opened[0].step = stuck  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: result(compiled))
    thread.start()
    assert inside.wait(10)
    assert compiled.abandon()
    again = made(pool)  # neither waits for the thread nor touches the device
    np.testing.assert_array_equal(result(again), cpu())
    assert again.health().state == "demoted" and len(pool.opened) == 1
    assert "device-hung" in {r.code for r in again.decision.rows}
    go_on.set()
    thread.join(10)
    assert not thread.is_alive()
    assert not compiled.abandon()  # nothing is inside any more


def test_health_counts_times_and_prints() -> None:
    compiled = made(FlakyPool())
    for _ in range(7):
        result(compiled)
    health = compiled.health()
    assert health.on_device == 7 and health.state == "ok" and health.reason == ""
    assert health.p50_s is not None and health.p99_s is not None
    assert 0 < health.p50_s <= health.p99_s < 10
    record = health.to_dict()
    assert record["schema"] == "gpuedge.health/4" and record["on_device"] == 7
    assert "7 on the device" in str(health)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(2.37, "2.37 s"), (0.0015, "1.5 ms"), (0.99999, "1 s"), (1234.0, "1230 s"), (3e-5, "30 us")],
)
def test_health_shows_times_as_plain_numbers(seconds: float, shown: str) -> None:
    text = str(Health("ok", "cpu", p50_s=seconds, watchdog_s=seconds))
    assert f"p50 / p90 / p99  {shown} / - / -" in text
    assert f"watchdog         {shown}" in text


def test_health_of_the_cpu() -> None:
    compiled = made(FlakyPool())
    on_cpu = CompiledModel(graph("Exp"), Request("cpu"), FlakyPool())
    result(on_cpu)
    assert (on_cpu.health().state, on_cpu.health().on_cpu) == ("cpu", 1)
    assert compiled.health().p50_s is None


def test_threads_that_share_a_device_lose_nothing() -> None:
    scripts = [[None] * 5 + [LOST] for _ in range(40)]
    limits = RetryLimits(failures=10_000, pauses_s=SOON.pauses_s)
    pool = FlakyPool(*scripts, limits=limits)
    wanted = {op: cpu(op) for op in ("Exp", "Tanh", "Sigmoid", "Softsign")}
    wrong: list[str] = []
    on_device: list[int] = []

    def work(op: str) -> None:
        compiled = made(pool, op)
        asked, end = 0, time.monotonic() + 30
        while asked < 60 or (len(pool.opened) < 6 and time.monotonic() < end):
            asked += 1
            got = result(compiled)
            right = (wanted[op], wanted[op] * TRACE)
            if not any(np.array_equal(got, one) for one in right):
                wrong.append(op)
        health = compiled.health()
        on_device.append(health.on_device)
        if health.on_device + health.on_cpu != asked:
            wrong.append(str(health))

    threads = [threading.Thread(target=work, args=(op,)) for op in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(t.is_alive() for t in threads)
    assert wrong == [] and len(pool.opened) >= 6
    begun = sum(one.runs for one in pool.opened)
    assert 0 < sum(on_device) <= begun
