"""Checks of what a device does when its driver fails or is slow; see `gles_child`."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from gles_kernels import COPY, SPIN, infos, launch, opened, printed, tensor, uploaded
from gles_life import ONES, add

from gpuedge import backends
from gpuedge.backends import device as base
from gpuedge.backends.base import Recording, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.gles import constants as c
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
    real = device.queue.gl.GetError
    device.queue.gl.GetError = lambda: c.CONTEXT_LOST
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
        device.queue.gl.GetError = real
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
    assert device.queue.reset_status is not None
    assert device.queue.reset_status() == 0
    device.queue.reset_status = lambda: 0x8254
    try:
        device.wait(device.submit(recording), 5.0)
    except DeviceLostError as error:
        assert "another context" in str(error)
    else:
        raise AssertionError("not believed")
    device.close()


def memory(level: str) -> None:
    """A driver that is out of memory says so in the right class, and may have some later."""
    device = opened(level)
    real, answers = device.queue.gl.GetError, [c.OUT_OF_MEMORY] + [0] * 9
    device.queue.gl.GetError = lambda: answers.pop(0) if answers else 0
    try:
        tensor(device, 4)
    except OutOfMemoryError as error:
        assert "GL_OUT_OF_MEMORY" in str(error)
    else:
        raise AssertionError("no error")
    device.queue.gl.GetError = real
    add(device)
    device.close()


def spinning(device: OpenDevice, seconds: float) -> Recording:
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
    """Work whose waiting was interrupted is forgotten with the next that is waited for."""
    device = opened(level)
    buffers = [uploaded(device, ONES), tensor(device, 64, Usage.OUTPUT)]
    recording = device.record([launch(device, printed(device, COPY), buffers)])
    assert device.queue.fences is not None
    real, tickets = device.queue.fences, []

    def interrupt(*_: Any) -> int:
        raise KeyboardInterrupt

    for _ in range(20):
        tickets.append(device.submit(recording))
        device.queue.fences = dataclasses.replace(real, wait=interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            device.wait(tickets[-1], 5.0)
        device.queue.fences = real
    device.wait(tickets[9], 5.0)
    assert len(device.queue.flying) == 10
    device.wait(tickets[-1], 5.0)
    assert not device.queue.flying
    for ticket in tickets:
        device.wait(ticket, 0.0)
    device.close()


def busy(level: str) -> None:
    """Closing a busy device does not wait longer than it is told."""
    base.CLOSE_TIMEOUT_S = 0.05
    device = opened(level)
    device.submit(spinning(device, 2.0))
    start = time.perf_counter()
    device.close()
    assert time.perf_counter() - start < 1.8


def other(level: str) -> None:
    """A device that is no longer the one that was listed is refused."""
    info = infos(level)[0]
    stranger = info.replace(identity=info.identity.replace(name="X", GL_RENDERER="X"))
    try:
        backends.load(level).open(stranger)
    except DriverError as error:
        now = info.identity.GL_RENDERER
        assert f"known here:   GL_RENDERER: expected 'X', found {now!r}\n" in str(error)
    else:
        raise AssertionError("it opens")
