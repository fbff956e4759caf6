"""Requests of many threads and in a queue; isolation and health of sessions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Any

import numpy as np
import pytest
from session_fakes import Gate, held
from test_session import X, model, session

import gpuedge
from gpuedge.core import config
from gpuedge.core.errors import (
    ClosedError,
    ConfigError,
    DTypeError,
    RequestTimeoutError,
    UsageError,
)
from gpuedge.runtime import serving

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


# -- the queue ------------------------------------------------------------------------------------


def test_a_thousand_requests_come_back_right_and_in_order() -> None:
    order: list[int] = []
    with session() as s:
        futures = []
        for i in range(1000):
            futures.append(s.run_async({"x": X * i}))
            futures[-1].add_done_callback(partial(lambda i, _: order.append(i), i))
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(30)["y"], np.maximum(X * i * 2, 0))
    assert order == list(range(1000))


def test_a_buffer_may_be_used_again_at_once(gate: Gate) -> None:
    x = X.copy()
    with session() as s:
        held(s, gate)
        futures = []
        for i in range(5):
            x[:] = i
            futures.append(s.run_async({"x": x}))
        x[:] = -1
        gate.open.set()
        assert [f.result(20)["y"][0, 0] for f in futures] == [0, 2, 4, 6, 8]


def test_waiting_requests_can_be_cancelled_and_running_ones_not(gate: Gate) -> None:
    with session() as s:
        held(s, gate)
        first, second, third = (s.run_async({"x": X * i}) for i in (1, 2, 3))
        assert gate.came.wait(20)
        assert not first.cancel()
        assert second.cancel()
        gate.open.set()
        np.testing.assert_array_equal(first.result(20)["y"], [[2, 0, 6]])
        np.testing.assert_array_equal(third.result(20)["y"], [[6, 0, 18]])
        with pytest.raises(CancelledError):
            second.result(0)


def test_errors_belong_to_their_future_alone() -> None:
    with session() as s:
        bad = s.run_async({"x": X.astype(np.float64)})
        good = s.run_async({"x": X})
        with pytest.raises(DTypeError):
            bad.result(20)
        np.testing.assert_array_equal(good.result(20)["y"], [[2, 0, 6]])


def test_close_finishes_what_was_asked(gate: Gate) -> None:
    s = session()
    held(s, gate)
    futures = [s.run_async({"x": X * i}) for i in range(5)]
    closing = threading.Thread(target=s.close)
    closing.start()
    assert gate.came.wait(20)
    closing.join(0.1)
    assert closing.is_alive()
    gate.open.set()
    closing.join(20)
    assert [f.result(0)["y"][0, 0] for f in futures] == [0, 2, 4, 6, 8]


def test_settings_of_the_caller_hold_in_the_worker() -> None:
    seen: list[str] = []
    with session() as s:
        s.run({"x": X})
        latest = s._latest
        assert latest is not None
        run = latest.run

        def told(inputs: Any) -> Any:
            seen.append(config.get("device").value)
            return run(inputs)

        latest.run = told  # type: ignore[method-assign]
        with gpuedge.config(device="gles20"):
            inside = s.run_async({"x": X})
        wait([inside, s.run_async({"x": X})], 20)
    assert seen == ["gles20", config.get("device").value]


def test_a_full_queue_waits_for_a_place(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_WAITING", 2)
    with session() as s:
        held(s, gate)
        futures = [s.run_async({"x": X})]
        assert gate.came.wait(20)
        futures += [s.run_async({"x": X}) for _ in range(2)]
        asked = threading.Thread(target=lambda: futures.append(s.run_async({"x": X})))
        asked.start()
        asked.join(0.2)
        assert asked.is_alive()
        with pytest.raises(RequestTimeoutError, match="No place among 2"):
            s.run_async({"x": X}, timeout_s=0.05)
        futures[1].cancel()  # whoever is cancelled gives its place to the next who asks
        futures.append(s.run_async({"x": X}))
        gate.open.set()
        asked.join(20)
        assert not asked.is_alive()
    assert len(futures) == 5
    assert all(f.done() for f in futures)


def test_a_callback_cannot_wait_for_a_place(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_WAITING", 1)
    refused: list[BaseException] = []
    with session() as s:
        held(s, gate)
        first = s.run_async({"x": X})
        assert gate.came.wait(20)

        def ask(_: Future[Any]) -> None:
            try:
                s.run_async({"x": X})
            except UsageError as error:
                refused.append(error)

        first.add_done_callback(ask)
        second = s.run_async({"x": X})
        gate.open.set()
        second.result(20)
    assert [type(error) for error in refused] == [UsageError]


def test_a_closed_session_refuses_also_those_that_waited_for_a_place(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_WAITING", 1)
    refused: list[BaseException] = []
    s = session()
    held(s, gate)
    s.run_async({"x": X})
    assert gate.came.wait(20)
    waiting = s.run_async({"x": X})

    def ask() -> None:
        try:
            s.run_async({"x": X})
        except ClosedError as error:
            refused.append(error)

    asked, closing = threading.Thread(target=ask), threading.Thread(target=s.close)
    asked.start()
    asked.join(0.1)
    closing.start()
    asked.join(20)
    gate.open.set()
    closing.join(20)
    assert [type(error) for error in refused] == [ClosedError]
    assert waiting.done()


def test_an_unused_queue_costs_no_thread() -> None:
    with session() as s:
        s.run_async({"x": X}).result(20)
        worker = s._server._worker
        assert worker is not None
        worker.join(20)
        assert not worker.is_alive()
        np.testing.assert_array_equal(s.run_async({"x": X}).result(20)["y"], [[2, 0, 6]])
    assert serving.MAX_WAITING == 1024


# -- many threads, isolation, health --------------------------------------------------------------


def test_sixty_four_threads_and_one_that_closes() -> None:
    s = session()
    wrong: list[Any] = []
    right = [0]
    lock = threading.Lock()
    halfway = threading.Event()

    def work(seed: int) -> None:
        for i in range(20):
            x = np.full((1 + (seed + i) % 3, 3), seed * 100 + i, np.float32)
            try:
                result = s.run({"x": x}, timeout_s=30 if seed % 8 == 0 else None)["y"]
            except ClosedError:
                return
            except BaseException as error:
                wrong.append(error)
                return
            if not np.array_equal(result, x * 2):
                wrong.append((seed, i))
            with lock:
                right[0] += 1
                if right[0] > 640:
                    halfway.set()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    assert halfway.wait(50)
    s.close()
    for thread in threads:
        thread.join(20)
    assert wrong == []
    assert right[0] > 640
    assert not any(thread.is_alive() for thread in threads)


def test_a_thread_that_calls_in_a_loop_leaves_others_their_turn() -> None:
    """Whoever calls again at once finds the session free before those that are woken for it."""
    with session() as s:
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                s.run({"x": X})

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(50):
                s.run({"x": X}, timeout_s=30)
        finally:
            over.set()
            thread.join(30)


@pytest.mark.parametrize("is_waiting", [False, True], ids=["running", "waiting"])
def test_a_request_that_was_never_ended_keeps_no_other_thread(
    gate: Gate, is_waiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after signals that come again while what the first one raised is on its way."""
    right, mine = serving.Server._end_of, threading.get_ident()

    def end_of(server: serving.Server, job: serving.Job) -> None:
        if job.thread == mine:
            raise TimeoutError("a handler's")
        right(server, job)

    def interrupted(server: serving.Server, job: serving.Job) -> None:
        if job in server._next and job.thread == mine:
            raise TimeoutError("a handler's")

    with session() as s:
        s.run({"x": X})
        if is_waiting:
            held(s, gate)
            first = s.run_async({"x": X})
            assert gate.came.wait(30)
        with monkeypatch.context() as patch:
            patch.setattr(serving.Server, "_end_of", end_of)
            if is_waiting:
                patch.setattr(serving.Server, "_end_lost", interrupted)
            with pytest.raises(TimeoutError, match="a handler's"):
                s.run({"x": X})
        gate.open.set()
        if is_waiting:
            first.result(30)
        np.testing.assert_array_equal(s.run_async({"x": X}).result(30)["y"], [[2, 0, 6]])
        np.testing.assert_array_equal(s.run({"x": X})["y"], [[2, 0, 6]])


def test_isolation_of_a_device_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with gpuedge.open("cpu") as device:
        assert device.isolation == "inline"
        with pytest.raises(ConfigError, match="opened with isolation='inline'") as caught:
            gpuedge.Session(model(), device=device, isolation="process")
        assert caught.value.code == "GE-101"
        assert caught.value.asked_by == "isolation='process'"
        monkeypatch.setenv("GPUEDGE_ISOLATION", "process")
        with gpuedge.Session(model(), device=device) as s:  # what the environment says is no wish
            np.testing.assert_array_equal(s.run({"x": X})["y"], [[2, 0, 6]])


def test_isolation_comes_from_call_context_and_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(**options: Any) -> str:
        from gpuedge.runtime.request import make_request

        return make_request("vulkan", **options).isolation

    assert found() == "inline"
    monkeypatch.setenv("GPUEDGE_ISOLATION", "process")
    assert found() == "process"
    assert found(isolation="inline") == "inline"
    with gpuedge.config(isolation="inline"):
        assert found() == "inline"


def test_health_before_and_after_the_first_run() -> None:
    with session() as s:
        assert (s.health.state, s.health.device, s.health.p50_s) == ("cpu", "cpu", None)
        s.run({"x": X})
        health = s.health
        assert (health.state, health.on_device, health.on_cpu) == ("cpu", 0, 1)
        assert health.p50_s is not None
        assert health.to_dict()["schema"] == "gpuedge.health/4"
