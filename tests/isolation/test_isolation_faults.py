"""Workers that die, hang or answer nonsense: one clear error, in time, and no process left."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import isolation_fakes as fakes
import pytest

from gpuedge.backends.base import Counters, Usage
from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
)
from gpuedge.core.record import plain
from gpuedge.isolation import client, open_isolated
from gpuedge.isolation.device import IsolatedDevice
from gpuedge.isolation.messages import HEADER, MAGIC, pack


def code_of(error: DeviceError) -> str | None:
    return None if error.reason is None else error.reason.code


def check_lost(device: IsolatedDevice, pid: int) -> None:
    """Whatever is asked now, the answer is the same; and nothing runs."""
    assert device.is_lost
    assert fakes.gone_within(pid, 20.0)
    for call in (
        lambda: device.alloc(16, Usage.SCRATCH),
        lambda: device.record([]),
        lambda: fakes.run_once(device, b"x"),
    ):
        with pytest.raises(DeviceLostError) as lost:
            call()
        assert code_of(lost.value) == "worker-died"
    device.close()
    device.close()


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("submit=signal:SIGSEGV", "SIGSEGV while running a kernel"),
        ("wait=signal:SIGABRT", "SIGABRT while running a kernel"),
        ("read=signal:SIGBUS", "SIGBUS while reading results back"),
        ("record=signal:SIGKILL", "SIGKILL while recording work"),
        ("alloc=exit:0", "exit status 0 while reserving memory"),
        ("write=exit:7", "exit status 7 while copying data to the device"),
        ("submit=close-pipes:", "while running a kernel"),
    ],
)
def test_a_worker_that_dies_is_a_lost_device_with_cause_and_step(does: str, words: str) -> None:
    device = fakes.isolated(does)
    pid = device.pid
    with pytest.raises(DeviceLostError) as lost:
        fakes.run_once(device, b"some bytes")
    assert code_of(lost.value) == "worker-died"
    assert words in str(lost.value.known)
    said = "the driver's last words" in str(lost.value.known)
    assert said == ("signal" in does)
    assert "Fatal Python error" not in str(lost.value.known)
    check_lost(device, pid)


@pytest.mark.parametrize(
    ("does", "code", "words"),
    [
        ("open=signal:SIGSEGV", "worker-died", "SIGSEGV while opening the device"),
        ("open=exit:0", "worker-died", "exit status 0 while opening the device"),
        ("open=hold:60", "device-hung", "it hung while opening the device"),
    ],
)
def test_a_driver_that_fails_at_opening_takes_only_the_worker(
    does: str, code: str, words: str
) -> None:
    start = time.monotonic()
    with pytest.raises((DeviceLostError, DeviceTimeoutError)) as failed:
        fakes.isolated(does, deadline_s=2.0 if "hold" in does else 30.0)
    assert code_of(failed.value) == code
    assert words in str(failed.value.known)
    assert time.monotonic() - start < 50.0


def test_a_program_that_cannot_be_started_is_said_to_be_so() -> None:
    with pytest.raises(BackendUnavailableError) as failed:
        IsolatedDevice(fakes.info(), 5.0, ("/nonexistent/python",))
    assert code_of(failed.value) == "no-child"


@pytest.mark.parametrize("does", ["wait=hold:60"])
def test_a_hanging_driver_is_ended_after_the_time_it_was_given(does: str) -> None:
    device = fakes.isolated(does)
    pid = device.pid
    start = time.monotonic()
    with pytest.raises(DeviceTimeoutError) as hung:
        fakes.run_once(device, b"abc", timeout_s=0.3)
    assert time.monotonic() - start < 50.0
    assert code_of(hung.value) == "device-hung"
    assert "it hung while running a kernel" in str(hung.value.known)
    check_lost(device, pid)


@pytest.mark.parametrize("step", ["free", "alloc", "build"])
def test_a_stopped_worker_is_ended_whatever_it_is_asked(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import test_isolation_device as other

    monkeypatch.setattr("gpuedge.isolation.device.WORKER_CALL_S", 0.3)
    monkeypatch.setattr("gpuedge.isolation.device.WORKER_BUILD_S", 0.3)
    monkeypatch.setattr("gpuedge.isolation.client.WORKER_CALL_S", 0.3)
    device = open_isolated(fakes.info())
    buffer, pid = device.alloc(16, Usage.OUTPUT), device.pid
    os.kill(pid, signal.SIGSTOP)
    if step == "free":  # is quiet: the next call says so
        device.free(buffer)
    elif step == "alloc":
        with pytest.raises(DeviceTimeoutError):
            device.alloc(16, Usage.OUTPUT)
    else:
        with pytest.raises(DeviceTimeoutError):
            device.build(other.BLOB, {})
    check_lost(device, pid)


COUNTS = plain(Counters())
GARBAGE = {
    "no-frame": b"\x00" * 64,
    "driver-prints": b"INFO: driver 1.2.3 says hello to everybody\n",
    "other-version": b"gpE9" + pack(2, {"counters": COUNTS})[4:],
    "huge-length": HEADER.pack(MAGIC, 2, 0xFFFFFFFF, 0),
    "huge-extra": HEADER.pack(MAGIC, 2, 2, 0xFFFFFFF0) + b"{}",
    "bytes-after": pack(2, {"counters": COUNTS}, b"more"),
    "not-json": HEADER.pack(MAGIC, 2, 5, 0) + b"{]{]{",
    "not-utf8": HEADER.pack(MAGIC, 2, 4, 0) + b"\xff\xfe\xfd\xfc",
    "no-object": HEADER.pack(MAGIC, 2, 2, 0) + b"[]",
    "deep": HEADER.pack(MAGIC, 2, 30_000, 0) + b"[" * 30_000,
    "long-number": HEADER.pack(MAGIC, 2, 9_000, 0) + b"9" * 9_000,
    "wrong-sequence": pack(1, {"counters": COUNTS}),
    "twice": pack(2, {"counters": COUNTS}) * 2,
    "no-counters": pack(2, {}),
    "counters-text": pack(2, {"counters": "1234"}),
    "error-text": pack(2, {"error": "boom", "counters": COUNTS}),
    "error-class": pack(2, {"error": {"kind": "SystemExit", "what": "x"}, "counters": COUNTS}),
    "error-long": pack(2, {"error": {"kind": "DriverError", "what": "x" * 9000}}),
    "error-reason": pack(
        2, {"error": {"kind": "DriverError", "what": "x", "reason": {"code": "nonsense"}}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GARBAGE)
def test_nonsense_for_an_answer_is_a_lost_device(name: str) -> None:
    device = IsolatedDevice(fakes.info(), 30.0, fakes.opened(GARBAGE[name]))
    pid = device.pid
    with pytest.raises(DeviceLostError) as lost:
        device.alloc(16, Usage.OUTPUT)
    assert code_of(lost.value) == "worker-died"
    assert "nonsense" in str(lost.value.known)
    check_lost(device, pid)


def test_an_honest_answer_in_the_same_place_is_none() -> None:
    """What the test above changes is what makes the difference."""
    right = [
        pack(2, {"counters": COUNTS | {"submits": 8}}),
        pack(3, {"counters": COUNTS | {"submits": 9}}),
    ]
    device = IsolatedDevice(fakes.info(), 30.0, fakes.opened(*right))
    device.alloc(16, Usage.OUTPUT)
    assert device.counters.submits == 8
    device.record([])
    assert device.counters.submits == 9
    device.close()


HOSTILE_CAPS = {
    "nothing": {},
    "text": {"caps": "all of them"},
    "float": {"caps": fakes.OPENED["caps"] | {"max_push_bytes": 1.5}},
}
"""What each field may be, `tests/unit/test_records.py` tries."""


@pytest.mark.parametrize("name", HOSTILE_CAPS)
def test_caps_that_no_device_has_are_refused(name: str) -> None:
    answer = {"counters": COUNTS, **HOSTILE_CAPS[name]}
    with pytest.raises(DeviceLostError) as lost:
        IsolatedDevice(fakes.info(), 30.0, fakes.canned(pack(1, answer)))
    assert code_of(lost.value) == "worker-died"
    assert "nonsense" in str(lost.value.known)


def test_a_worker_killed_at_any_moment_costs_one_request() -> None:
    """Each answer that comes is right; then comes the one error, and nothing hangs."""
    chance = random.Random(4)
    for _ in range(12):
        device = fakes.isolated("wait=sleep:0.004")
        fakes.run_once(device, b"warm")
        killer = threading.Timer(chance.uniform(0.0, 0.05), os.kill, (device.pid, signal.SIGKILL))
        killer.start()
        data = chance.randbytes(chance.choice([10, 1000, 300_000]))
        with pytest.raises(DeviceLostError) as lost:
            while True:
                assert fakes.run_once(device, data) == data
        killer.join()
        assert code_of(lost.value) == "worker-died"
        assert str(lost.value.known).startswith("SIGKILL ")
        check_lost(device, device.pid)


def notes(device: IsolatedDevice, *noted: int) -> None:
    """Make the worker's notes of its progress these, one at each look, and then the last."""
    left = list(noted)
    device._client.arena.noted = lambda most: (  # type: ignore[method-assign]
        left.pop(0) if len(left) > 1 else left[0]
    )


def hung_after(device: IsolatedDevice, *ops: client.Op) -> float:
    """Return after how long a worker that does nothing is given up in a batch of calls."""
    os.kill(device.pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(DeviceTimeoutError):
        device._client.ask(*ops)
    return time.monotonic() - start


def waiting(*limits: float) -> list[client.Op]:
    return [client.Op("wait", [1, s], s) for s in limits]


def test_false_notes_of_progress_buy_no_time(device: IsolatedDevice) -> None:
    """Notes that go to and fro give each call its time once."""
    notes(device, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0)
    assert 0.6 <= hung_after(device, *waiting(0.6, 0.6)) < 3.0


def test_each_call_has_its_own_time(device: IsolatedDevice) -> None:
    notes(device, 0, 0, 1)
    assert 1.6 <= hung_after(device, *waiting(0.6, 1.6)) < 4.0


@pytest.fixture
def device() -> Iterator[IsolatedDevice]:
    made = open_isolated(fakes.info())
    yield made
    made.close()
