"""Checks of what a device does when its driver fails or is slow; see `gles_child`."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from gles_life import ONES
from seam_kernels import COPY, add, launch, opened, printed, tensor, uploaded

from gpuedge.backends.base import Usage
from gpuedge.backends.gles import constants as c
from gpuedge.core.errors import (
    DeviceLostError,
    OutOfMemoryError,
)


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
