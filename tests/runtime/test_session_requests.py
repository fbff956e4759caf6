"""Requests of many threads, in a queue and with time limits, on the CPU; callbacks and closing."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Any

import numpy as np
import pytest
from faulty import FaultyPool, Gate, answer, asking, session, until

import gpuedge
from gpuedge.core import config
from gpuedge.core.errors import (
    ClosedError,
    ConfigError,
    DTypeError,
    GpuEdgeError,
    RequestTimeoutError,
    UsageError,
)
from gpuedge.runtime import serving
from gpuedge.runtime.request import make_request
from gpuedge.safety import monitor
from gpuedge.safety.deadline import DeadlineCall

pytestmark = pytest.mark.timeout(120)

X = np.array([[1, -2, 3]], np.float32)


@pytest.fixture(autouse=True)
def pool(take: Callable[[FaultyPool], FaultyPool]) -> FaultyPool:
    return take(FaultyPool())


def opened(**options: Any) -> gpuedge.Session:
    """Return a session that negates on the CPU, of any number of rows."""
    return session(shape=("N", 3), device="cpu", **options)


def first_of(future: Future[Any], seconds: float = 20) -> float:
    """Return the first number of a result, negated as it was."""
    return -float(future.result(seconds)["y"][0, 0])


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


# -- the queue ------------------------------------------------------------------------------------


def test_a_thousand_requests_come_back_right_and_in_order() -> None:
    order: list[int] = []
    with opened() as s:
        futures = []
        for i in range(1000):
            futures.append(s.run_async({"x": X * i}))
            futures[-1].add_done_callback(partial(lambda i, _: order.append(i), i))
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(30)["y"], -X * i)
    assert order == list(range(1000))


def test_a_buffer_may_be_used_again_at_once(pool: FaultyPool, gate: Gate) -> None:
    x = X.copy()
    with opened() as s:
        pool.on_cpu = gate
        futures = []
        for i in range(5):
            x[:] = i
            futures.append(s.run_async({"x": x}))
        x[:] = -1
        gate.open.set()
        assert [first_of(f) for f in futures] == [0, 1, 2, 3, 4]


def test_waiting_requests_can_be_cancelled_and_running_ones_not(
    pool: FaultyPool, gate: Gate
) -> None:
    with opened() as s:
        pool.on_cpu = gate
        first, second, third = (s.run_async({"x": X * i}) for i in (1, 2, 3))
        assert gate.came.wait(20)
        assert not first.cancel()
        assert second.cancel()
        gate.open.set()
        assert (first_of(first), first_of(third)) == (1, 3)
        with pytest.raises(CancelledError):
            second.result(0)


def test_errors_belong_to_their_future_alone() -> None:
    with opened() as s:
        bad = s.run_async({"x": X.astype(np.float64)})
        good = s.run_async({"x": X})
        with pytest.raises(DTypeError):
            bad.result(20)
        assert first_of(good) == 1


def test_settings_of_the_caller_hold_in_the_worker(pool: FaultyPool) -> None:
    seen: list[str] = []
    with opened() as s:
        pool.on_cpu = lambda: seen.append(config.get("device").value)
        with gpuedge.config(device="gles20"):
            inside = s.run_async({"x": X})
        wait([inside, s.run_async({"x": X})], 20)
    assert seen == ["gles20", config.get("device").value]


def test_a_full_queue_waits_for_a_place(
    pool: FaultyPool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_WAITING", 2)
    with opened() as s:
        pool.on_cpu = gate
        futures = [s.run_async({"x": X})]
        assert gate.came.wait(20)
        futures += [s.run_async({"x": X}) for _ in range(2)]
        with asking(lambda: futures.append(s.run_async({"x": X}))) as (asked,):
            asked.join(0.1)
            assert asked.is_alive()
            with pytest.raises(RequestTimeoutError, match="No place among 2"):
                s.run_async({"x": X}, timeout_s=0.05)
            futures[1].cancel()  # whoever is cancelled gives its place to the next who asks
            futures.append(s.run_async({"x": X}))
            gate.open.set()
    assert len(futures) == 5
    assert all(f.done() for f in futures)


def test_a_callback_cannot_wait_for_a_place(
    pool: FaultyPool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_WAITING", 1)
    refused: list[BaseException] = []
    with opened() as s:
        pool.on_cpu = gate
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


def test_an_unused_queue_costs_no_thread() -> None:
    with opened() as s:
        for _ in range(2):
            assert first_of(s.run_async({"x": X})) == 1
            until(lambda: not named("gpuedge-session"))
    assert serving.MAX_WAITING == 1024


# -- many threads ---------------------------------------------------------------------------------


def test_sixty_four_threads_and_one_that_closes() -> None:
    s = opened()
    wrong: list[Any] = []
    right = [0]
    lock = threading.Lock()
    halfway = threading.Event()

    def work(seed: int) -> None:
        for i in range(20):
            x = np.full((1 + (seed + i) % 3, 3), seed * 100 + i, np.float32)
            try:
                result = answer(s, x, timeout_s=30 if seed % 8 == 0 else None)
            except ClosedError:
                return
            except BaseException as error:
                wrong.append(error)
                return
            if not np.array_equal(result, -x):
                wrong.append((seed, i))
            with lock:
                right[0] += 1
                if right[0] > 640:
                    halfway.set()

    with asking(*(partial(work, i) for i in range(64))):
        assert halfway.wait(50)
        s.close()
    assert wrong == []
    assert right[0] > 640


def test_a_thread_that_calls_in_a_loop_leaves_others_their_turn() -> None:
    """Whoever calls again at once finds the session free before those that are woken for it."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            answer(s, X)

    with opened() as s, asking(work):
        try:
            for _ in range(50):
                answer(s, X, timeout_s=30)
        finally:
            over.set()


def test_a_turn_that_is_not_taken_is_the_next_one_at_once(
    pool: FaultyPool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is given up as its turn comes, and is slow to go; the one behind it is told."""
    monkeypatch.setattr(monitor, "POLL_S", 60.0)  # or those that wait would look by themselves
    wait_for = monitor.Monitor.wait_for

    def slow(self: monitor.Monitor, *arguments: Any) -> Any:
        try:
            return wait_for(self, *arguments)
        except RequestTimeoutError:
            gate.open.set()
            time.sleep(0.1)  # the one before has ended, and the one behind has looked
            raise

    monkeypatch.setattr(monitor.Monitor, "wait_for", slow)
    done: list[np.ndarray] = []
    with opened() as s:
        pool.on_cpu = gate
        with asking(lambda: answer(s, X)):
            assert gate.came.wait(20)
            behind = threading.Timer(0.05, lambda: done.append(answer(s, X)))
            behind.start()
            with pytest.raises(RequestTimeoutError):
                answer(s, X, timeout_s=0.2)
            behind.join(20)
            assert len(done) == 1


def test_a_request_within_another_of_its_thread_waits_for_nobody_who_waits_for_that(
    pool: FaultyPool,
) -> None:
    """As the handler of a signal may ask for one."""
    began, asked = threading.Event(), threading.Event()

    def within() -> None:
        pool.on_cpu = None
        began.set()
        assert asked.wait(20)
        time.sleep(0.1)  # until that one waits
        np.testing.assert_array_equal(answer(s, X), -X)

    def other() -> None:
        assert began.wait(20)
        asked.set()
        answer(s, X)

    with opened() as s:
        pool.on_cpu = within
        with asking(lambda: answer(s, X), other):
            pass


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="threads get no signals here")
def test_a_handler_may_wait_for_others_while_its_thread_waits_for_its_turn(
    pool: FaultyPool, gate: Gate
) -> None:
    answers = []

    def handler(*_: object) -> None:
        gate.open.set()
        answers.extend(s.run_async({"x": X}).result(60)["y"] for _ in range(3))

    def interrupt() -> None:
        time.sleep(0.2)  # until the main thread waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with opened() as s:
            pool.on_cpu = gate
            with asking(lambda: answer(s, X)):
                assert gate.came.wait(20)
                with asking(interrupt):
                    answers.append(answer(s, X))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(answers) == 4
    for found in answers:
        np.testing.assert_array_equal(found, -X)


@pytest.mark.parametrize("is_waiting", [False, True], ids=["running", "waiting"])
def test_a_request_that_was_never_ended_keeps_no_other_thread(
    pool: FaultyPool, gate: Gate, is_waiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after signals that come again while what the first one raised is on its way."""
    server = "gpuedge.runtime.serving.Server."
    mine, ends = threading.get_ident(), serving.Server._end_of

    def raised(_: object, job: serving.Job) -> None:
        if job.thread == mine:
            raise TimeoutError("a handler's")

    def end_of(of: serving.Server, job: serving.Job) -> None:
        raised(of, job)
        ends(of, job)

    with opened() as s:
        if is_waiting:
            pool.on_cpu = gate
            first = s.run_async({"x": X})
            assert gate.came.wait(30)
        with monkeypatch.context() as patch:
            patch.setattr(f"{server}_end_of", end_of)
            if is_waiting:
                patch.setattr(f"{server}_end_lost", raised)
            with pytest.raises(TimeoutError, match="a handler's"):
                answer(s, X)
        gate.open.set()
        if is_waiting:
            assert first_of(first, 30) == 1
        assert first_of(s.run_async({"x": X}), 30) == 1
        np.testing.assert_array_equal(answer(s, X), -X)


# -- time limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timeout_s",
    [0, -1, float("nan"), float("inf"), "1", True, [1.0], 10**400, 10**5000, np.complex64(1), 1j],
    ids=["zero", "negative", "nan", "infinite", "text", "bool", "list", "huge", "unprintable",
         "numpy", "complex"],
)  # fmt: skip
def test_a_time_limit_must_be_one(timeout_s: Any) -> None:
    with opened() as s:
        for call in (s.run, s.run_async):
            with pytest.raises(UsageError, match="timeout_s cannot be") as caught:
                call({"x": X}, timeout_s=timeout_s)
            assert len(str(caught.value)) < 300


def test_a_run_that_is_done_in_time_is_an_ordinary_one() -> None:
    with opened() as s:
        for timeout_s in (30, np.float32(30)):
            np.testing.assert_array_equal(answer(s, X, timeout_s=timeout_s), -X)
        with pytest.raises(DTypeError):
            s.run({"x": X.astype(np.int8)}, timeout_s=30)


def test_expiry_is_both_errors_and_the_next_request_is_answered(
    pool: FaultyPool, gate: Gate
) -> None:
    with opened() as s:
        pool.on_cpu = gate
        with pytest.raises(RequestTimeoutError, match=r"no result after 0\.05 s") as caught:
            answer(s, X, timeout_s=0.05)
        pool.on_cpu = None
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.code == "GE-406"
        assert caught.value.known == "it still runs"
        np.testing.assert_array_equal(answer(s, X), -X)
        assert not gate.left.is_set()  # it was not waited for
        assert gate.names == ["gpuedge-run"]
        gate.open.set()


def test_a_result_that_came_after_the_limit_is_told_as_that(
    pool: FaultyPool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    within = DeadlineCall.wait

    def late(call: Any, _: float) -> bool:
        time.sleep(0.1)
        gate.open.set()
        return within(call, 20)

    with opened() as s:
        pool.on_cpu = gate
        monkeypatch.setattr(DeadlineCall, "wait", late)
        with pytest.raises(RequestTimeoutError) as caught:
            answer(s, X, timeout_s=0.05)
        assert caught.value.known == "it ended after the limit, and what came of it was dropped"


def test_time_in_the_queue_counts(pool: FaultyPool, gate: Gate) -> None:
    with opened() as s:
        pool.on_cpu = gate
        first = s.run_async({"x": X})
        assert gate.came.wait(20)
        late, patient = s.run_async({"x": X}, timeout_s=0.05), s.run_async({"x": X}, timeout_s=30)
        with pytest.raises(RequestTimeoutError, match=r"waited for all of its 0\.05 s"):
            late.result(10)
        assert not first.done()
        gate.open.set()
        assert first_of(patient) == 1


def test_waiting_for_other_threads_counts_and_leaves_no_thread(
    pool: FaultyPool, gate: Gate
) -> None:
    with opened() as s:
        pool.on_cpu = gate
        with asking(lambda: answer(s, X)):
            assert gate.came.wait(20)
            for _ in range(5):
                with pytest.raises(RequestTimeoutError, match=r"after 0\.02 s") as caught:
                    answer(s, X, timeout_s=0.02)
                assert "its turn had not come" in str(caught.value.known)
            until(lambda: not named("gpuedge-run"))
            gate.open.set()
        np.testing.assert_array_equal(answer(s, X), -X)
        assert len(gate.names) == 2  # those that were given up did not run


@pytest.mark.parametrize("timeout_s", [1e-9, 1e-6])
def test_a_limit_that_has_passed_names_what_was_given_and_blames_no_other_run(
    timeout_s: float,
) -> None:
    with opened() as s:
        answer(s, X)
        with pytest.raises(RequestTimeoutError, match=f"no result after {timeout_s:g} s") as caught:
            answer(s, X, timeout_s=timeout_s)
        assert "other runs" not in str(caught.value)
        with pytest.raises(RequestTimeoutError, match=f"{timeout_s:g} s"):
            s.run_async({"x": X}, timeout_s=timeout_s).result(10)


# -- callbacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_wants_to_end_the_program_ends_no_worker(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: Any) -> None:
        raise error(3)

    with opened() as s:
        s.run_async({"x": X}).add_done_callback(leave)
        for i in (1, 2):
            assert first_of(s.run_async({"x": X * i}), 10) == i
    assert "callback" in caplog.text and error.__name__ in caplog.text


def test_such_a_callback_of_an_expired_request_keeps_the_clock_alive(
    pool: FaultyPool, gate: Gate
) -> None:
    with opened() as s:
        pool.on_cpu = gate
        s.run_async({"x": X})
        assert gate.came.wait(10)
        s.run_async({"x": X}, timeout_s=0.02).add_done_callback(lambda _: sys.exit(3))
        with pytest.raises(RequestTimeoutError):
            s.run_async({"x": X}, timeout_s=0.1).result(10)
        gate.open.set()


# -- closing --------------------------------------------------------------------------------------


def test_close_finishes_what_was_asked(pool: FaultyPool, gate: Gate) -> None:
    s = opened()
    pool.on_cpu = gate
    futures = [s.run_async({"x": X * i}) for i in range(5)]
    with asking(s.close) as (closing,):
        assert gate.came.wait(20)
        closing.join(0.1)
        assert closing.is_alive()
        gate.open.set()
    assert [first_of(f, 0) for f in futures] == [0, 1, 2, 3, 4]
    s.close()
    for call in (s.run, s.run_async):
        with pytest.raises(ClosedError):
            call({"x": X})


def test_a_closed_session_refuses_also_those_that_waited_for_a_place(
    pool: FaultyPool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_WAITING", 1)
    refused: list[BaseException] = []
    s = opened()
    pool.on_cpu = gate
    s.run_async({"x": X})
    assert gate.came.wait(20)
    waiting = s.run_async({"x": X})

    def ask() -> None:
        try:
            s.run_async({"x": X})
        except ClosedError as error:
            refused.append(error)

    with asking(ask) as (asked,):
        asked.join(0.1)
        with asking(s.close):
            asked.join(20)
            gate.open.set()
    assert [type(error) for error in refused] == [ClosedError]
    assert waiting.done()


def test_closing_inside_a_callback(pool: FaultyPool) -> None:
    for _ in range(20):
        s, gate = opened(), Gate()
        outcome: list[object] = []

        def closing(
            future: Future[Any], s: gpuedge.Session = s, outcome: list[object] = outcome
        ) -> None:
            try:
                s.close()
                outcome.append(first_of(future))
            except BaseException as error:
                outcome.append(error)

        pool.on_cpu = gate
        with asking(partial(answer, s, X)):  # nothing else runs before the callback is there
            assert gate.came.wait(20)
            first, second = s.run_async({"x": X}), s.run_async({"x": X})
            first.add_done_callback(closing)
            gate.open.set()
            until(lambda outcome=outcome: bool(outcome))  # type: ignore[misc]
        assert outcome == [1.0]
        with pytest.raises(ClosedError):
            second.result(10)
        for call in (s.run, s.run_async):
            with pytest.raises(ClosedError):
                call({"x": X})
        s.close()


def test_closing_while_others_ask_loses_no_worker() -> None:
    for _ in range(10):
        s = opened()
        errors: list[BaseException] = []

        def ask(s: gpuedge.Session = s, errors: list[BaseException] = errors) -> None:
            try:
                while True:
                    s.run_async({"x": X}).result(10)
            except GpuEdgeError as error:
                errors.append(error)

        with asking(ask, ask, ask):
            s.close()
        assert [type(e) for e in errors] == [ClosedError] * 3
        assert not named("gpuedge-session")


# -- isolation ------------------------------------------------------------------------------------


def test_isolation_of_a_device_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with gpuedge.open("cpu") as device:
        assert device.isolation == "inline"
        with pytest.raises(ConfigError, match="opened with isolation='inline'") as caught:
            session(device=device, isolation="process")
        assert caught.value.code == "GE-101"
        assert caught.value.asked_by == "isolation='process'"
        monkeypatch.setenv("GPUEDGE_ISOLATION", "process")
        with session(shape=("N", 3), device=device) as s:  # what the environment says is no wish
            np.testing.assert_array_equal(answer(s, X), -X)


def test_isolation_comes_from_call_context_and_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(**options: Any) -> str:
        return make_request("vulkan", **options).isolation

    assert found() == "inline"
    monkeypatch.setenv("GPUEDGE_ISOLATION", "process")
    assert found() == "process"
    assert found(isolation="inline") == "inline"
    with gpuedge.config(isolation="inline"):
        assert found() == "inline"
