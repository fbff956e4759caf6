"""Ctrl-C waits for the end of a driver call, once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

import gpuedge
from gpuedge.runtime.devices import Pool, PooledDevice
from gpuedge.runtime.opening import INLINE
from gpuedge.safety.interrupts import held, rlock, whole
from gpuedge.safety.monitor import Monitor


@pytest.fixture(autouse=True)
def _plain_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_waits_for_the_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):
        with held:
            interrupt()
            done.append("inner")
        done.append("never")
    assert done == ["inner"]


def test_the_second_does_not_wait() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held:
        interrupt()
        interrupt()
        done.append("never")
    assert done == []


def test_nested_blocks_wait_for_the_outer_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held:
        with held:
            interrupt()
        done.append("between")
    assert done == ["between"]


def test_without_interrupt_nothing_is_raised() -> None:
    with held, held:
        pass
    with held:
        pass


def test_an_error_is_not_hidden_without_an_interrupt() -> None:
    with pytest.raises(ValueError, match="mine"), held:
        raise ValueError("mine")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM, signal.SIGTERM])
def test_a_handler_of_the_application_waits_too(number: signal.Signals) -> None:
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        came.append(number)

    before = signal.signal(number, note)
    try:
        with held:
            os.kill(os.getpid(), number)
            assert came == []
        assert came == [number]
        assert signal.getsignal(number) is note
    finally:
        signal.signal(number, before)


def test_a_device_whose_opening_is_interrupted_belongs_to_the_pool() -> None:
    one = PooledDevice(Pool(), ("vulkan:0", INLINE))
    opened: list[Any] = []

    def make() -> Any:
        with held:
            opened.append(object())
            interrupt()
        return opened[-1]

    with pytest.raises(KeyboardInterrupt):
        one.open(make)
    assert one.open(lambda: cast("Any", object())) is opened[0]


def test_several_that_came_are_all_told() -> None:
    came: list[int] = []
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)

    def note(number: int, frame: object) -> None:
        came.append(number)

    before = [signal.signal(number, note) for number in numbers]
    try:
        with held:
            for number in numbers:
                os.kill(os.getpid(), number)
            assert came == []
        assert sorted(came) == sorted(numbers)
    finally:
        for number, one in zip(numbers, before, strict=True):
            signal.signal(number, one)


def test_a_handler_finds_no_monitor_locked_by_who_waits_for_it() -> None:
    monitor, taken = Monitor(), []

    def take(number: int, frame: object) -> None:
        def lock() -> None:
            if monitor.lock.acquire(timeout=5):
                taken.append(number)
                monitor.lock.release()

        other = threading.Thread(target=lock)
        other.start()
        other.join(20)

    before = signal.signal(signal.SIGUSR1, take)
    try:
        step = partial(signal.raise_signal, signal.SIGUSR1)
        assert monitor.wait_for(lambda: step() or True)
        assert taken == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_raises_is_no_error_of_the_input() -> None:
    """It comes out of the conversion of an operand, of which any exception is an error."""
    mine = TimeoutError("mine")

    def stop(number: int, frame: object) -> None:
        raise mine

    class Slow:
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            os.kill(os.getpid(), signal.SIGALRM)
            return np.zeros(3, np.float32)

    class Wrong:
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise TimeoutError("not a handler's")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(TimeoutError) as found:
            gpuedge.add(Slow(), np.zeros(3, np.float32), device="cpu")
        assert found.value is mine
        assert found.value.__context__ is None
        with pytest.raises(gpuedge.InputError, match="not a handler's"):
            gpuedge.add(Wrong(), np.zeros(3, np.float32), device="cpu")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_locks_left_behind_are_released_by_the_outermost_call_alone() -> None:
    lock = rlock()

    def is_free() -> bool:
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return found == [True]

    @whole
    def inner() -> None:
        lock.acquire()
        raise ValueError

    @whole
    def outer() -> None:
        lock.acquire()
        with pytest.raises(ValueError):
            inner()
        assert not is_free()
        raise KeyError

    with pytest.raises(KeyError):
        outer()
    assert is_free()


def test_other_threads_change_nothing() -> None:
    seen = []

    def work() -> None:
        with held:
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
