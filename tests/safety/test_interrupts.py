"""Ctrl-C waits for the end of a driver call, once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from gpuedge.safety.interrupts import held


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


def test_other_threads_change_nothing() -> None:
    seen = []

    def work() -> None:
        with held:
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
