"""Time limits of requests, and sessions behind a device that hangs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from flaky import until
from runtime_fakes import FakePool
from session_fakes import Gate, hang, held, running, taken_by_sessions
from test_session import X, model, session

import gpuedge
from gpuedge.core.errors import (
    ClosedError,
    DeviceTimeoutError,
    DTypeError,
    RequestTimeoutError,
    UsageError,
)
from gpuedge.runtime import clock, serving
from gpuedge.runtime.request import make_request
from gpuedge.safety import monitor
from gpuedge.safety.deadline import DeadlineCall

pytestmark = pytest.mark.timeout(120)

GPU = "vulkan:0"
QUIET = gpuedge.Policy(crosscheck=0.0, watchdog_s=0.2)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> FakePool:
    return taken_by_sessions(monkeypatch)


# -- time limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "1", True, [1.0]])
def test_a_time_limit_must_be_one(timeout_s: Any) -> None:
    with session() as s:
        with pytest.raises(UsageError, match="timeout_s cannot be"):
            s.run({"x": X}, timeout_s=timeout_s)
        with pytest.raises(UsageError, match="timeout_s cannot be"):
            s.run_async({"x": X}, timeout_s=timeout_s)


def test_a_run_that_is_done_in_time_is_an_ordinary_one() -> None:
    with session() as s:
        np.testing.assert_array_equal(s.run({"x": X}, timeout_s=30)["y"], [[2, 0, 6]])
        np.testing.assert_array_equal(s.run({"x": X}, timeout_s=np.float32(30))["y"], [[2, 0, 6]])
        with pytest.raises(DTypeError):
            s.run({"x": X.astype(np.int8)}, timeout_s=30)


def test_expiry_is_both_errors_and_the_next_request_is_answered(gate: Gate) -> None:
    with session() as s:
        held(s, gate)
        with pytest.raises(RequestTimeoutError, match=r"no result after 0\.05 s") as caught:
            s.run({"x": X}, timeout_s=0.05)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.code == "GE-406"
        assert caught.value.known == "it still runs"
        np.testing.assert_array_equal(s.run({"x": X * 2})["y"], [[4, 0, 12]])
        assert not gate.left.is_set()  # it was not waited for
        assert gate.names == ["gpuedge-run"]
        gate.open.set()


def test_a_result_that_came_after_the_limit_is_told_as_that(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = DeadlineCall.wait

    def late(call: Any, _: float) -> bool:
        time.sleep(0.1)
        gate.open.set()
        return wait(call, 20)

    with session() as s:
        held(s, gate)
        monkeypatch.setattr(DeadlineCall, "wait", late)
        with pytest.raises(RequestTimeoutError) as caught:
            s.run({"x": X}, timeout_s=0.05)
        assert caught.value.known == "it ended after the limit, and what came of it was dropped"


def test_time_in_the_queue_counts(gate: Gate) -> None:
    with session() as s:
        held(s, gate)
        first = s.run_async({"x": X})
        assert gate.came.wait(20)
        late, patient = s.run_async({"x": X}, timeout_s=0.05), s.run_async({"x": X}, timeout_s=30)
        with pytest.raises(RequestTimeoutError, match=r"waited for all of its 0\.05 s"):
            late.result(10)
        assert not first.done()
        gate.open.set()
        np.testing.assert_array_equal(patient.result(20)["y"], [[2, 0, 6]])


def test_waiting_for_other_threads_counts(gate: Gate) -> None:
    with session() as s:
        first = running(s, gate)
        with pytest.raises(RequestTimeoutError) as caught:
            s.run({"x": X}, timeout_s=0.05)
        assert "its turn had not come" in str(caught.value.known)
        gate.open.set()
        first.join(20)
        np.testing.assert_array_equal(s.run({"x": X})["y"], [[2, 0, 6]])
        assert len(gate.names) == 2  # the one that was given up did not run


def test_a_limit_too_short_to_begin_blames_no_other_run() -> None:
    with session() as s:
        with pytest.raises(RequestTimeoutError) as caught:
            s.run({"x": X}, timeout_s=1e-9)
        assert "other runs" not in str(caught.value)


def test_a_turn_that_is_not_taken_is_the_next_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "POLL_S", 60.0)  # or those that wait would look by themselves
    with session() as s:
        server, request = s._server, make_request("cpu")
        running, given_up = serving.Job(request), serving.Job(request)
        server._begin(running)
        given_up.thread, given_up.is_given_up = -1, True
        given_up.looked_ns = clock.now_ns() + 60_000_000_000  # it is there, and slow
        server._next.append(given_up)
        behind = threading.Thread(target=lambda: s.run({"x": X}))
        behind.start()
        until(lambda: len(server._next) == 2 and len(server._monitor._waiting) == 1)
        server._end_of(running)
        until(lambda: len(server._monitor._waiting) == 1)
        assert behind.is_alive()
        with pytest.raises(RequestTimeoutError):
            server._next_turn(given_up)
        server._end_of(given_up)
        behind.join(20)
        assert not behind.is_alive()


def test_a_request_within_another_of_its_thread_waits_for_nobody_who_waits_for_that() -> None:
    with session() as s:
        server, outer = s._server, serving.Job(make_request("cpu"))

        def work() -> None:
            server._begin(outer)
            began.set()
            until(lambda: len(server._next) == 1)
            s.run({"x": X})  # as the handler of a signal may
            server._end_of(outer)

        began = threading.Event()
        threads = [threading.Thread(target=run) for run in (work, lambda: s.run({"x": X}))]
        threads[0].start()
        assert began.wait(20)
        threads[1].start()
        threads[0].join(20)
        is_stuck = threads[0].is_alive()
        server._end_of(outer)
        for thread in threads:
            thread.join(20)
        assert not is_stuck


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="threads get no signals here")
def test_a_handler_may_wait_for_others_while_its_thread_waits_for_its_turn(gate: Gate) -> None:
    with session() as s:
        first = running(s, gate)
        answers = []

        def handler(*_: object) -> None:
            gate.open.set()
            answers.extend(s.run_async({"x": X}).result(60) for _ in range(3))

        def interrupt() -> None:
            until(lambda: bool(s._server._next and s._server._monitor._waiting))
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            helper = threading.Thread(target=interrupt)
            helper.start()
            answers.append(s.run({"x": X}))
        finally:
            signal.signal(signal.SIGUSR1, before)
        first.join(20)
        assert len(answers) == 4
        for answer in answers:
            np.testing.assert_array_equal(answer["y"], [[2, 0, 6]])


# -- a device that hangs --------------------------------------------------------------------------


def test_a_device_that_hangs_is_left_and_the_cpu_answers(pool: FakePool, gate: Gate) -> None:
    with gpuedge.Session(model(), device=GPU, policy=QUIET) as s:
        hang(s, pool, gate)
        with pytest.raises(RequestTimeoutError):
            s.run({"x": X}, timeout_s=0.05)
        np.testing.assert_array_equal(s.run({"x": X})["y"], [[2, 0, 6]])
        until(lambda: s.health.state != "recovering")  # the watchdog's time
        np.testing.assert_array_equal(s.run({"x": X})["y"], [[2, 0, 6]])
        assert s.health.state == "demoted"
        assert "stuck" in s.health.reason or "hung" in s.health.reason
        assert s.explain().device == "cpu"
        with pytest.raises(DeviceTimeoutError, match="left alone"):
            pool.executor(GPU)
        with gpuedge.Session(model(), device=GPU, policy=QUIET) as other:
            np.testing.assert_array_equal(other.run({"x": X})["y"], [[2, 0, 6]])
        gate.open.set()


def test_a_device_that_returns_late_is_used_again(pool: FakePool, gate: Gate) -> None:
    patient = gpuedge.Policy(crosscheck=0.0, watchdog_s=60)
    with gpuedge.Session(model(), device=GPU, policy=patient) as s:
        s.run({"x": X})
        write, pool.devices[0]._on_dispatch = pool.devices[0]._on_dispatch, gate
        with pytest.raises(RequestTimeoutError):
            s.run({"x": X}, timeout_s=0.05)
        np.testing.assert_array_equal(s.run({"x": X})["y"], [[2, 0, 6]])  # of the CPU
        assert s.health.state == "recovering"
        gate.open.set()
        until(lambda: s.health.state == "ok")
        pool.devices[0]._on_dispatch = write
        np.testing.assert_array_equal(s.run({"x": X})["y"], [[0, 0, 0]])  # of the fake GPU
        assert s.health.state == "ok"


def test_without_the_cpu_a_device_that_hangs_is_an_error(pool: FakePool, gate: Gate) -> None:
    with gpuedge.Session(model(), device=GPU, policy=QUIET, fallback="error") as s:
        hang(s, pool, gate)
        with pytest.raises(RequestTimeoutError):
            s.run({"x": X}, timeout_s=0.05)
        with pytest.raises(DeviceTimeoutError) as caught:
            s.run({"x": X})
        assert caught.value.reason is not None
        assert caught.value.reason.code == "device-hung"
        gate.open.set()


def test_threads_that_wait_behind_a_stuck_request_are_answered(pool: FakePool, gate: Gate) -> None:
    def stuck() -> None:
        with pytest.raises(RequestTimeoutError):
            s.run({"x": X}, timeout_s=0.3)

    with gpuedge.Session(model(), device=GPU, policy=QUIET) as s:
        hang(s, pool, gate)
        found: list[Any] = []
        threads = [threading.Thread(target=stuck)]
        threads[0].start()
        assert gate.came.wait(20)
        for i in range(4):
            ask = partial(lambda i: found.append(s.run({"x": X * i})["y"][0, 0]), i)
            threads.append(threading.Thread(target=ask))
            threads[-1].start()
        until = time.monotonic() + 20
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        assert sorted(found) == [0, 2, 4, 6]
        assert not gate.left.is_set()  # the device still hangs
        gate.open.set()


def test_closing_does_not_wait_for_a_device_that_hangs(
    pool: FakePool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LEAVE_S", 0.1)
    s = gpuedge.Session(model(), device=GPU, policy=gpuedge.Policy(crosscheck=0.0))
    hang(s, pool, gate)
    with pytest.raises(RequestTimeoutError):
        s.run({"x": X}, timeout_s=0.05)
    s.close()
    assert not gate.left.is_set()
    with pytest.raises(ClosedError):
        s.run({"x": X})
    gate.open.set()
