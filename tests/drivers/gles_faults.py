"""Checks of what a device does when its driver fails or is slow; see `gles_child`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from gles_kernels import COPY, SPIN, infos, launch, opened, printed, tensor, uploaded
from gles_life import ONES, add, application

from gpuedge import backends
from gpuedge.backends.base import Recording, Usage
from gpuedge.backends.gles import names
from gpuedge.backends.gles.device import GlesDevice
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    OutOfMemoryError,
)


def lost(level: str) -> None:
    """A lost context is an error of its own, then and ever after, and can be closed."""
    device = opened(level)
    blob = printed(device, COPY)
    buffers = [uploaded(device, ONES), tensor(device, 64, Usage.OUTPUT)]
    recording = device.record([launch(device, blob, buffers)])
    ticket = device.submit(recording)
    real = device._gl.GetError
    device._gl.GetError = lambda: names.CONTEXT_LOST
    calls: list[Callable[[], Any]] = [
        lambda: device.submit(recording),
        lambda: device.wait(ticket, 1.0),
        lambda: device.write(buffers[0], memoryview(ONES)),
        lambda: device.read(buffers[1], memoryview(bytearray(16))),
        lambda: device.alloc(64, Usage.INPUT),
        lambda: device.build(blob, {}),
        lambda: device.record([]),
    ]
    for i, call in enumerate(calls):
        try:
            call()
        except DeviceLostError as error:
            assert error.code == "GE-401"
            assert "GL_CONTEXT_LOST" in str(error)
        else:
            raise AssertionError(i)
        device._gl.GetError = real
    device.free(buffers[0])
    device.release(recording)
    device.close()
    again = opened(level)
    add(again)
    again.close()


def reset(level: str) -> None:
    """A driver that tells of a reset is believed."""
    device = opened(level)
    buffers = [uploaded(device, ONES), tensor(device, 64, Usage.OUTPUT)]
    recording = device.record([launch(device, printed(device, COPY), buffers)])
    assert device._reset_status is not None
    assert device._reset_status() == 0
    device._reset_status = lambda: 0x8254
    try:
        device.wait(device.submit(recording), 5.0)
    except DeviceLostError as error:
        assert "another context" in str(error)
    else:
        raise AssertionError("not believed")
    device.close()


def memory(level: str) -> None:
    """A driver that is out of memory says so in the right class, and may have some later."""
    for stack in ("raw", "moderngl") if level != "gles20" else ("raw",):
        device = opened(level, stack=stack)
        real, answers = device._gl.GetError, [0, names.OUT_OF_MEMORY] + [0] * 9
        if stack == "raw":
            answers = answers[1:]
        device._gl.GetError = lambda a=answers: a.pop(0) if a else 0  # type: ignore[misc]
        try:
            tensor(device, 4)
        except OutOfMemoryError as error:
            assert "GL_OUT_OF_MEMORY" in str(error)
        else:
            raise AssertionError("no error")
        device._gl.GetError = real
        add(device)
        device.close()


def spinning(device: GlesDevice, seconds: float) -> Recording:
    """Record work that takes about that long."""
    result = tensor(device, 20_000, Usage.OUTPUT)
    blob = printed(device, SPIN)

    def work(turns: int) -> Recording:
        return device.record([launch(device, blob, [result], params={"N": turns})])

    turns = 16
    while True:
        device.wait(device.submit(work(turns)), 60.0)
        start = time.perf_counter()
        device.wait(device.submit(work(turns)), 60.0)
        taken = time.perf_counter() - start
        if taken > 0.05 or turns > 10_000:
            break
        turns *= 4
    one = launch(device, blob, [result], params={"N": turns})
    return device.record([one] * max(1, int(seconds / taken)))


def deadline(level: str) -> None:
    """Waiting has an end; the work goes on, and can be waited for again."""
    device = opened(level)
    work = spinning(device, 1.5)
    start = time.perf_counter()
    ticket = device.submit(work)
    submitted = time.perf_counter() - start
    try:
        device.wait(ticket, 0.01)
    except DeviceTimeoutError as error:
        assert error.code == "GE-403"
        waited = time.perf_counter() - start
        device.wait(ticket, 60.0)
        whole = time.perf_counter() - start
        assert waited < whole / 2, (submitted, waited, whole)
    else:
        raise AssertionError(f"submit took {submitted:.3f} s")
    device.wait(ticket, 0.0)
    device.close()


def unwaited(level: str) -> None:
    """Work whose waiting was interrupted is forgotten once it is done."""
    device = opened(level)
    buffers = [uploaded(device, ONES), tensor(device, 64, Usage.OUTPUT)]
    recording = device.record([launch(device, printed(device, COPY), buffers)])
    real, tickets = device._fences.wait, []

    def interrupt(fence: Any, seconds: float) -> bool:
        if seconds:
            raise KeyboardInterrupt
        return real(fence, seconds)

    for _ in range(20):
        tickets.append(device.submit(recording))
        device._fences.wait = interrupt  # type: ignore[method-assign]
        with contextlib.suppress(KeyboardInterrupt):
            device.wait(tickets[-1], 5.0)
        device._fences.wait = real  # type: ignore[method-assign]
        with device.entered():
            device._gl.Finish()
    assert len(device._flying) <= 1, len(device._flying)
    for ticket in tickets:
        device.wait(ticket, 5.0)
    assert device._flying == []
    device.close()


def interrupted(level: str) -> None:
    """An interruption at any point of taking and giving back the context is undone at once."""
    device = opened(level)
    library = device._opened.display.library
    for name in ("QueryAPI", "GetCurrentDisplay", "GetCurrentContext", "MakeCurrent", "BindAPI"):
        real = getattr(library, name)
        setattr(library, name, lambda *args, real=real: real(*args))
    mine = {device._context._take.__code__.co_filename, __file__}
    left = 0

    def event(frame: FrameType, kind: str, _: object) -> None:
        nonlocal left
        code = frame.f_code
        if kind == "c_call" or code.co_filename not in mine or code.co_name == "__del__":
            return
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    def attempt() -> bool:
        try:
            sys.setprofile(event)  # after every call of C or Python, and before each of Python
            with device.entered(), device.entered():
                pass
            sys.setprofile(None)
        except KeyboardInterrupt:
            return True
        return False

    with application(level, is_desktop=True) as state:
        before, count = state(), 1
        left = count
        while attempt():
            assert state() == before, count
            free: list[bool] = []
            other = threading.Thread(target=lambda f=free: f.append(is_free(device)))
            other.start()
            other.join(20)
            assert free == [True], count
            count += 1
            left = count
        assert count > 25
        add(device)
    device.close()


def is_free(device: GlesDevice) -> bool:
    """Whether this thread can have the context without waiting."""
    taken = bool(device._context._lock.acquire(timeout=0.0))
    if taken:
        device._context._lock.release()
        add(device)
    return taken


def busy(level: str) -> None:
    """Closing a busy device does not wait longer than it is told."""
    device = opened(level, close_timeout_s=0.05)
    device.submit(spinning(device, 2.0))
    start = time.perf_counter()
    device.close()
    assert time.perf_counter() - start < 1.0


def other(level: str) -> None:
    """A device that is no longer the one that was listed is refused."""
    info = infos(level)[0]
    stranger = info.replace(identity=dataclasses.replace(info.identity, name="X", GL_RENDERER="X"))
    try:
        backends.load(level).open(stranger)
    except DriverError as error:
        assert "expected X, found" in str(error)
    else:
        raise AssertionError("it opens")
