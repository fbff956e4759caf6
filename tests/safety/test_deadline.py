"""Calls with a deadline: in time or late, never both, and never waited for longer than asked."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

import gpuedge
from gpuedge.core import config
from gpuedge.safety.deadline import DeadlineCall, call_within


def test_result_and_error_reach_the_caller() -> None:
    assert call_within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        call_within(5, lambda: {}["x"])


def test_call_that_hangs_is_left_in_time() -> None:
    release = threading.Event()
    start = monotonic()
    with pytest.raises(TimeoutError, match=r"100 ms"):
        call_within(0.1, release.wait)
    assert monotonic() - start < 50
    release.set()


def test_late_call_runs_what_was_left_for_its_return() -> None:
    release, back = threading.Event(), threading.Event()
    call = DeadlineCall(release.wait)
    assert not call.wait(0.05)
    assert call.give_up(back.set)
    assert call.is_given_up
    assert not back.is_set()
    release.set()
    assert back.wait(30)
    assert call.is_over


def test_call_that_is_over_cannot_be_given_up() -> None:
    back = threading.Event()
    call = DeadlineCall(lambda: 1)
    assert call.wait(30)
    assert not call.give_up(back.set)
    assert call.result() == 1
    assert not back.is_set()


def test_settings_of_the_caller_hold_in_the_thread() -> None:
    with gpuedge.config(device="cpu"):
        assert call_within(5, lambda: config.get("device").value) == "cpu"


def test_no_thread_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="thread"):
        call_within(5, lambda: 1)
