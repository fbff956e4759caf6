"""How a device that failed comes back to the sessions that use it, or is left for good."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from unittest.mock import Mock

import numpy as np
import pytest
from faulty import (
    DIED,
    EXHAUSTED,
    GPU,
    HUNG,
    LOST,
    NEVER,
    REFUSED,
    SOON,
    TRACE,
    FaultyPool,
    X,
    answer,
    asking,
    refuse_operators,
    row_of,
    session,
    until,
)

from gpuedge.core.errors import ClosedError, DeviceError, DeviceLostError, GpuEdgeError
from gpuedge.core.reasons import Reason
from gpuedge.runtime.devices import RetryLimits

Take = Callable[[FaultyPool], FaultyPool]


def is_back(pool: FaultyPool) -> bool:
    return pool.device(GPU).state.is_ok


def is_left(pool: FaultyPool) -> bool:
    return pool.device(GPU).state.health == "demoted"


@pytest.mark.parametrize(
    ("error", "code"),
    [(LOST, "device-lost"), (HUNG, "device-hung"), (REFUSED, "run-failed"), (DIED, "worker-died")],
)
def test_device_comes_back(take: Take, error: DeviceError, code: str) -> None:
    pool = take(FaultyPool([None, error]))
    with session() as s:
        np.testing.assert_array_equal(answer(s), -X * TRACE)
        pool.gate.clear()
        for _ in range(3):
            np.testing.assert_array_equal(answer(s), -X)
        pool.gate.set()
        until(lambda: is_back(pool))
        assert len(pool.devices) == 2
        np.testing.assert_array_equal(answer(s), -X * TRACE)
        assert s.explain().device == GPU
        assert [r.device for r in s.placement] == [GPU]
        assert s.health.state == "ok" and [f.code for f in s.health.failures] == [code]
        assert pool.devices[0].is_closed is (error is not HUNG)  # closing that one may hang, too


def test_device_that_is_back_before_the_request_ends_is_taken_back(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_operators(monkeypatch, "Abs")
    pool = take(FaultyPool([LOST]))
    pool.on_cpu = lambda: until(lambda: is_back(pool))
    with session("Neg", "Abs", "Neg", "Abs", "Neg") as s:
        np.testing.assert_array_equal(answer(s), -np.abs(X))
        answer(s)
        assert s.health.state == "ok" and pool.devices[1].runs == 3


def test_third_failure_in_ten_minutes_is_the_last(take: Take) -> None:
    pool = take(FaultyPool([LOST], [None, LOST], [LOST]))
    with session() as s:
        while s.health.failed < 3:
            answer(s)
        assert s.health.state == "demoted"
        np.testing.assert_array_equal(answer(s), -X)
        assert row_of(s).code == "failed-often" and "3 times in 10 minutes" in row_of(s).reason
        assert s.health.failed == 3
        until(lambda: pool.devices[2].is_closed)
        assert len(pool.devices) == 3
    with session() as later:
        assert "3 times" in str(later.explain())  # for the life of the process


def test_old_failures_count_no_more(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = take(FaultyPool(*[[LOST]] * 6))
    now = [1000.0]
    monkeypatch.setattr("gpuedge.runtime.devices.monotonic", lambda: now[0])
    with session() as s:
        for n in range(2, 7):
            answer(s)
            until(lambda: is_back(pool))
            assert len(pool.devices) == n
            now[0] += 301
        assert s.health.failed == 5


@pytest.mark.parametrize(("failures", "is_given_up"), [(2, False), (5, True)])
def test_driver_that_fails_in_the_child_is_tried_again_and_then_left(
    take: Take, failures: int, is_given_up: bool
) -> None:
    pool = take(FaultyPool([LOST]))
    pool.verdicts = ["it crashed"] * failures
    with session() as s:
        answer(s)
        until(lambda: is_left(pool) if is_given_up else is_back(pool))
        answer(s)
        assert s.health.state == ("demoted" if is_given_up else "ok")
        if is_given_up:
            assert len(pool.verdicts) == 2 and len(pool.devices) == 1
            assert "it crashed" in s.health.reason


def test_device_that_does_not_open_anew_is_left(take: Take) -> None:
    pool = take(FaultyPool([LOST], opening=[None, REFUSED, REFUSED, REFUSED]))
    with session() as s:
        answer(s)
        until(lambda: is_left(pool))
        np.testing.assert_array_equal(answer(s), -X)
        assert "The driver refused" in str(s.explain())


def test_sessions_share_a_failure_and_the_way_back(take: Take) -> None:
    """Three of them meet it, which is one failure; one of them was opened only after it."""
    pool = take(FaultyPool([LOST]))
    pool.gate.clear()
    one, three = X[0], X.reshape(3, 8)
    with session() as first, session(shape=one.shape) as second:
        answer(first)
        with session(shape=three.shape) as late:
            for s, x in ((second, one), (late, three)):
                np.testing.assert_array_equal(answer(s, x), -x)
                assert s.health.state == "recovering"
            pool.gate.set()
            until(lambda: is_back(pool))
            assert len(pool.devices) == 2
            for s, x in ((first, X), (second, one), (late, three)):
                np.testing.assert_array_equal(answer(s, x), -x * TRACE)


def test_one_failure_that_many_report_counts_once(take: Take) -> None:
    pool = take(FaultyPool())
    with session():
        pool.gate.clear()
        executor = pool.executor(GPU)
        for _ in range(5):
            pool.device(GPU).fail(Reason("device-lost"), executor)
        assert pool.device(GPU).state.is_recovering
        pool.gate.set()


def test_request_does_not_wait_for_the_close_of_the_device(take: Take) -> None:
    pool = take(FaultyPool([LOST]))
    with session() as s:
        pool.devices[0].closing.clear()
        start = time.monotonic()
        answer(s)
        assert time.monotonic() - start < 5
        assert not pool.devices[0].is_closed
        pool.devices[0].closing.set()
        until(lambda: is_back(pool))


def test_device_closed_in_the_middle_of_a_request_loses_nothing(take: Take) -> None:
    pool = take(FaultyPool([ClosedError("The device was closed.")]))
    with session() as s:
        pool.gate.clear()
        executor = pool.executor(GPU)
        pool.devices[0].on_submit = lambda: pool.device(GPU).fail(Reason("device-lost"), executor)
        np.testing.assert_array_equal(answer(s), -X)
        pool.gate.set()


@pytest.mark.parametrize("fallback", ["cpu", "error"])
def test_device_that_another_session_loses_while_one_compiles_for_it(
    take: Take, fallback: str
) -> None:
    pool, x = take(FaultyPool([LOST])), X[0]
    pool.gate.clear()

    def lose(stage: str, done: int, _: int) -> None:
        if stage == "compile" and done == 1 and not first.health.failed:
            np.testing.assert_array_equal(answer(first), -X)
            if fallback == "error":
                pool.gate.set()

    with session() as first, session(shape=x.shape, fallback=fallback, progress=lose) as second:
        is_away = fallback == "cpu"
        assert second.health.state == ("recovering" if is_away else "ok")
        np.testing.assert_array_equal(answer(second, x), -x if is_away else -x * TRACE)
        pool.gate.set()
        until(lambda: is_back(pool))
        np.testing.assert_array_equal(answer(second, x), -x * TRACE)


# -- where only the device may answer -------------------------------------------------------------


@pytest.mark.parametrize("error", [LOST, EXHAUSTED, HUNG])
def test_fallback_error_raises_and_waits_for_the_device_next_time(
    take: Take, error: GpuEdgeError
) -> None:
    pool = take(FaultyPool([error]))
    with session(fallback="error") as s:
        with pytest.raises(type(error)) as caught:
            answer(s)
        assert caught.value is error
        assert s.explain().device == GPU
        np.testing.assert_array_equal(answer(s), -X * TRACE)
        assert len(pool.devices) == (1 if error is EXHAUSTED else 2)
        assert pool.devices[0].is_closed is (error is LOST)


def test_fallback_error_waits_for_the_device_after_ctrl_c_in_the_wait(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = take(FaultyPool([LOST]))
    with session(fallback="error") as s:
        pool.devices[0].closing.clear()  # it recovers for as long as that
        with pytest.raises(DeviceLostError):
            answer(s)
        with monkeypatch.context() as patch:
            patch.setattr(pool.device(GPU), "wait", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                answer(s)
        threading.Timer(0.1, pool.devices[0].closing.set).start()
        np.testing.assert_array_equal(answer(s), -X * TRACE)


def test_fallback_error_says_why_the_device_is_not_there(
    take: Take, caplog: pytest.LogCaptureFixture
) -> None:
    pool = take(FaultyPool([LOST]))
    pool.gate.clear()
    pool.verdicts = ["it crashed"] * 3
    with session(fallback="error") as s:
        with pytest.raises(DeviceLostError):
            answer(s)
        assert s.health.state == "recovering" and "lost" in s.health.reason
        pool.gate.set()
        with pytest.raises(DeviceLostError) as caught:
            answer(s)
        assert caught.value.reason is not None
        assert caught.value.reason.code == "failed-often" and "it crashed" in str(caught.value)
        assert s.health.state == "demoted"
        assert "failed too often" in s.health.reason and "it crashed" in s.health.reason
        said = str(s.explain())
        assert "Does not run now" in said and "it crashed" in said
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert any("not used any more" in text and "it crashed" in text for text in warned)


# -- threads --------------------------------------------------------------------------------------


def test_pool_that_is_closed_recovers_nothing(take: Take) -> None:
    pool = take(FaultyPool([LOST]))
    before = set(threading.enumerate())
    with session() as s:
        pool.devices[0].closing.clear()
        answer(s)
        pool.close()
        pool.devices[0].closing.set()
        until(lambda: pool.devices[0].is_closed)
        until(lambda: set(threading.enumerate()) <= before)
        assert len(pool.devices) == 1
        answer(s)  # asks the pool anew
        assert len(pool.devices) == 2


@pytest.mark.parametrize("is_closed", [False, True], ids=["back", "closed"])
def test_recovery_threads_end(take: Take, is_closed: bool) -> None:
    before = set(threading.enumerate())
    pool = take(FaultyPool([LOST], limits=NEVER if is_closed else SOON))
    with session() as s:
        answer(s)
        if is_closed:
            mine = set(threading.enumerate()) - before
            assert mine and all(t.daemon for t in mine)
            pool.close()
        else:
            until(lambda: is_back(pool))
        until(lambda: set(threading.enumerate()) <= before)


def test_threads_that_share_a_device_lose_nothing(take: Take) -> None:
    scripts = [[None] * 5 + [LOST] for _ in range(40)]
    pool = take(FaultyPool(*scripts, limits=RetryLimits(10_000, pauses_s=SOON.pauses_s)))
    wrong: list[str] = []
    on_device: list[int] = []

    def work(size: int) -> None:
        x = X.ravel()[:size]
        right = (-x, -x * TRACE)
        asked, end = 0, time.monotonic() + 100
        with session(shape=x.shape) as s:
            while asked < 60 or (len(pool.devices) < 6 and time.monotonic() < end):
                asked += 1
                found = answer(s, x)
                if not any(np.array_equal(found, one) for one in right):
                    wrong.append(str(found))
            health = s.health
        on_device.append(health.on_device)
        if health.on_device + health.on_cpu != asked:
            wrong.append(str(health))

    with asking(*(lambda size=size: work(size) for size in (4, 8, 12, 16))):  # type: ignore[misc]
        pass
    assert wrong == [] and len(pool.devices) >= 6
    assert 0 < sum(on_device) <= sum(one.runs for one in pool.devices)
