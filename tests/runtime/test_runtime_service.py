"""A device that fails while it serves: who answers, and how the device comes back."""

from __future__ import annotations

import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
from flaky import (
    CHAIN,
    DIED,
    EXHAUSTED,
    HUNG,
    LOST,
    NEVER,
    REFUSED,
    TRACE,
    FlakyPool,
    X,
    cpu,
    made,
    result,
    until,
)

from gpuedge.core.errors import ClosedError, DeviceError, DeviceLostError, GpuEdgeError
from gpuedge.core.reasons import Reason


@pytest.mark.parametrize("fails_at", [0, 1, 2])
@pytest.mark.parametrize("error", [LOST, HUNG, EXHAUSTED, REFUSED, DIED], ids=lambda e: e.code)
def test_request_is_finished_on_the_cpu_segment_by_segment(
    fails_at: int, error: DeviceError
) -> None:
    pool = FlakyPool([*[None] * fails_at, error], refuses=["Abs"], limits=NEVER)
    compiled = made(pool, *CHAIN)
    got = result(compiled)
    value = X
    for i, op in enumerate(CHAIN):  # what the device gave before it failed carries its trace
        value = cpu(op, x=value)
        if op != "Abs" and i // 2 < fails_at:
            value = value * TRACE
    np.testing.assert_array_equal(got, value)
    assert np.array_equal(got, cpu(*CHAIN)) is (fails_at == 0)
    assert pool.opened[0].runs == fails_at + 1  # nothing was tried again, nothing after it
    health = compiled.health()
    assert (health.on_device, health.on_cpu, health.failed) == (0, 1, 1)


def test_answer_is_that_of_the_cpu_to_the_last_bit_while_the_device_is_away() -> None:
    pool = FlakyPool([LOST], refuses=["Abs"], limits=NEVER)
    compiled = made(pool, *CHAIN)
    for seed in range(5):
        x = np.random.default_rng(seed).normal(size=(2, 12)).astype(np.float32)
        np.testing.assert_array_equal(result(compiled, x), cpu(*CHAIN, x=x))
    assert pool.opened[0].runs == 1


def test_inputs_are_intact_after_a_failure() -> None:
    x = X.copy()
    result(made(FlakyPool([LOST]), "Exp"), x)
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize(
    ("error", "code"),
    [(LOST, "device-lost"), (HUNG, "device-hung"), (REFUSED, "run-failed"), (DIED, "worker-died")],
)
def test_device_comes_back(error: DeviceError, code: str) -> None:
    pool = FlakyPool([None, error])
    compiled = made(pool)
    wanted = cpu()
    np.testing.assert_array_equal(result(compiled), wanted * TRACE)
    pool.gate.clear()
    for _ in range(3):
        np.testing.assert_array_equal(result(compiled), wanted)
    pool.gate.set()
    until(lambda: len(pool.opened) == 2)
    until(lambda: pool.device("vulkan:0").state.is_ok)
    np.testing.assert_array_equal(result(compiled), wanted * TRACE)
    assert compiled.decision.device == compiled.executor.device == "vulkan:0"
    assert [r.device for r in compiled.rows] == ["vulkan:0"]
    health = compiled.health()
    assert health.state == "ok" and [f.code for f in health.failures] == [code]
    assert pool.opened[0].released


def test_device_that_is_back_before_the_request_ends_is_taken_back() -> None:
    pool = FlakyPool([LOST], refuses=["Abs"])
    compiled = made(pool, *CHAIN)
    serve = compiled.run_on_cpu

    def late(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        until(lambda: pool.device("vulkan:0").state.is_ok)
        return serve(inputs)

    compiled.run_on_cpu = late  # type: ignore[method-assign]
    np.testing.assert_array_equal(result(compiled), cpu(*CHAIN))
    result(compiled)
    assert compiled.health().state == "ok" and pool.opened[1].runs == 3


def test_meanwhile_it_says_that_it_is_recovering() -> None:
    compiled = made(FlakyPool([LOST], limits=NEVER))
    result(compiled)
    health = compiled.health()
    assert (health.state, health.device) == ("recovering", "vulkan:0")
    assert "device was lost" in health.reason and "recovering" in str(health)
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert (row.status, row.code) == ("rejected", "recovering")
    assert compiled.decision.device == "cpu"
    assert [r.device for r in compiled.rows] == ["cpu"]


def test_third_failure_in_ten_minutes_is_the_last(caplog: pytest.LogCaptureFixture) -> None:
    pool = FlakyPool([LOST], [None, LOST], [LOST])
    compiled = made(pool)
    while compiled.health().failed < 3:
        result(compiled)
    assert compiled.health().state == "demoted"
    time.sleep(0.2)
    np.testing.assert_array_equal(result(compiled), cpu())
    assert len(pool.opened) == 3
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert row.code == "failed-often" and "3 times in 10 minutes" in row.reason
    assert compiled.health().failed == 3
    assert "3 times" in str(made(pool).decision)  # for the life of the process


def test_old_failures_count_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FlakyPool(*[[LOST]] * 6)
    compiled = made(pool)
    now = [1000.0]
    monkeypatch.setattr("gpuedge.runtime.devices.monotonic", lambda: now[0])
    for n in range(2, 7):
        result(compiled)
        until(lambda n=n: len(pool.opened) == n)  # type: ignore[misc]
        until(lambda: pool.device("vulkan:0").state.is_ok)
        now[0] += 301
    assert compiled.health().failed == 5


def test_driver_that_fails_in_the_child_is_tried_again_and_then_left() -> None:
    pool = FlakyPool([LOST])
    pool.verdicts = ["it crashed", "it crashed again", None]
    compiled = made(pool)
    result(compiled)
    until(lambda: len(pool.opened) == 2)
    pool = FlakyPool([LOST])
    pool.verdicts = ["it crashed"] * 5
    compiled = made(pool)
    result(compiled)
    until(lambda: pool.device("vulkan:0").state.health == "demoted")
    result(compiled)
    assert len(pool.verdicts) == 2 and len(pool.opened) == 1
    assert "it crashed" in compiled.health().reason
    assert compiled.health().state == "demoted"


def test_device_that_does_not_open_anew_is_left() -> None:
    pool = FlakyPool([LOST], opening=[None, REFUSED, REFUSED, REFUSED])
    compiled = made(pool)
    result(compiled)
    until(lambda: pool.device("vulkan:0").state.health == "demoted")
    np.testing.assert_array_equal(result(compiled), cpu())
    assert "The driver refused" in str(compiled.decision)


def test_all_sessions_share_the_failure_and_the_way_back() -> None:
    pool = FlakyPool([LOST])
    first, second = made(pool, "Exp"), made(pool, "Tanh")
    pool.gate.clear()
    result(first)
    np.testing.assert_array_equal(result(second), cpu("Tanh"))
    assert second.health().state == "recovering"
    pool.gate.set()
    until(lambda: pool.device("vulkan:0").state.is_ok)
    assert len(pool.opened) == 2
    np.testing.assert_array_equal(result(first), cpu() * TRACE)
    np.testing.assert_array_equal(result(second), cpu("Tanh") * TRACE)
    assert len(pool.device("vulkan:0")._failures) == 1  # not one per session


def test_new_session_of_a_device_that_recovers_begins_on_the_cpu() -> None:
    pool = FlakyPool([LOST])
    pool.gate.clear()
    result(made(pool))
    late = made(pool, "Tanh")
    np.testing.assert_array_equal(result(late), cpu("Tanh"))
    pool.gate.set()
    until(lambda: pool.device("vulkan:0").state.is_ok)
    np.testing.assert_array_equal(result(late), cpu("Tanh") * TRACE)


def test_request_does_not_wait_for_the_close_of_the_device() -> None:
    pool = FlakyPool([LOST])
    compiled = made(pool)
    pool.opened[0].closing.clear()
    start = time.monotonic()
    result(compiled)
    assert time.monotonic() - start < 5
    assert pool.opened[0].closed and not pool.opened[0].released
    pool.opened[0].closing.set()
    until(lambda: len(pool.opened) == 2)


def test_exhausted_device_is_kept_twice_and_left_at_the_third_in_a_row() -> None:
    pool = FlakyPool([EXHAUSTED, EXHAUSTED, None, EXHAUSTED, EXHAUSTED, EXHAUSTED])
    compiled = made(pool)
    wanted = cpu()
    for factor in (1, 1, TRACE, 1, 1):
        np.testing.assert_array_equal(result(compiled), wanted * np.float32(factor))
        assert compiled.health().state == "ok"
    np.testing.assert_array_equal(result(compiled), wanted)
    assert compiled.health().state == "demoted"
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert row.code == "out-of-memory"
    assert len(pool.opened) == 1 and not pool.opened[0].closed  # others may do with its memory
    assert compiled.health().failed == 5


@pytest.mark.parametrize("error", [LOST, EXHAUSTED, HUNG])
def test_fallback_error_raises_and_waits_for_the_device_next_time(error: GpuEdgeError) -> None:
    pool = FlakyPool([error])
    compiled = made(pool, fallback="error")
    with pytest.raises(type(error)) as caught:
        result(compiled)
    assert caught.value is error
    np.testing.assert_array_equal(result(compiled), cpu() * TRACE)
    assert len(pool.opened) == (1 if error is EXHAUSTED else 2)


def test_fallback_error_waits_for_the_device_after_ctrl_c_in_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = FlakyPool([LOST])
    compiled = made(pool, fallback="error")
    pool.opened[0].closing.clear()  # it recovers for as long as that
    with pytest.raises(DeviceLostError):
        result(compiled)
    with monkeypatch.context() as patch:
        patch.setattr(pool.device("vulkan:0"), "wait", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            result(compiled)
    threading.Timer(0.2, pool.opened[0].closing.set).start()
    np.testing.assert_array_equal(result(compiled), cpu() * TRACE)


def test_fallback_error_says_why_the_device_is_not_there() -> None:
    pool = FlakyPool([LOST])
    pool.verdicts = ["it crashed"] * 3
    compiled = made(pool, fallback="error")
    for _ in range(2):
        with pytest.raises(DeviceLostError) as caught:
            result(compiled)
    assert caught.value.reason is not None
    assert caught.value.reason.code == "failed-often" and "it crashed" in str(caught.value)


def test_pool_that_is_closed_recovers_nothing() -> None:
    pool = FlakyPool([LOST])
    compiled = made(pool)
    pool.opened[0].closing.clear()
    result(compiled)
    pool.close()
    pool.opened[0].closing.set()
    until(lambda: pool.opened[0].released)
    time.sleep(0.2)
    assert len(pool.opened) == 1
    result(compiled)  # asks the pool anew
    assert len(pool.opened) == 2


def test_recovery_threads_end() -> None:
    before = set(threading.enumerate())
    pool = FlakyPool([LOST], [LOST])
    result(made(pool))
    until(lambda: pool.device("vulkan:0").state.is_ok)
    until(lambda: set(threading.enumerate()) <= before)


def test_closing_the_pool_ends_recovery_threads_and_none_is_waited_for_at_exit() -> None:
    before = set(threading.enumerate())
    pool = FlakyPool([LOST], limits=NEVER)
    result(made(pool))
    mine = set(threading.enumerate()) - before
    assert mine and all(t.daemon for t in mine)
    pool.close()
    until(lambda: set(threading.enumerate()) <= before)


def test_device_closed_in_the_middle_of_a_request_loses_nothing() -> None:
    pool = FlakyPool([ClosedError("The device was closed.")])
    compiled = made(pool)
    pool.gate.clear()
    first = pool.opened[0]
    step = first.step

    def closed() -> None:
        pool.device("vulkan:0").fail(Reason("device-lost"), first)
        step()

    first.step = closed  # type: ignore[method-assign]
    np.testing.assert_array_equal(result(compiled), cpu())
    pool.gate.set()
