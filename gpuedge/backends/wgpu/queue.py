"""The device's queue: submitting, waiting with a time-out, and what was reported meanwhile."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import Any

from gpuedge.backends import common
from gpuedge.backends.wgpu import constants as c
from gpuedge.backends.wgpu.api import Api
from gpuedge.core.errors import DeviceLostError

_SPIN_S = 1e-3
"""Shorter work is waited for without sleeping, which may take 100 us longer than asked."""
_SHARE = 0.05
"""Between later looks at the device, sleep this share of the time waited so far."""
_LONGEST_NAP_S = 2e-3

_give_way = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Lets others run: a software driver may wait for the very core that looks at it."""


class WgpuTicket:
    """One submission and the output buffers that it maps for reading."""

    __slots__ = ("number", "outputs")

    def __init__(self, number: int, outputs: tuple[Any, ...]) -> None:
        self.number = number
        self.outputs = outputs


class Queue:
    """An open WebGPU device, its queue, and what wgpu-native reports about them.

    `lost` is set once the device is reported lost, and everything raises it from then on.
    """

    scope = nullcontext()  # nothing to bind: objects of this API belong to no thread

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self.device: Any = None
        self.instance: Any = None
        self.handle: Any = None
        self.lost: DeviceLostError | None = None
        self.number = api.register(self._told)
        self.submitted = 0
        self.finished = 0
        self._errors: list[tuple[int, str]] = []
        self._mapping: dict[int, Any] = {}
        self._commands = api.empty("WGPUCommandBuffer", 1)
        me = api.pointer(self.number)
        mode = c.CALLBACK_ALLOW_SPONTANEOUS
        self._done = api.make(
            "WGPUQueueWorkDoneCallbackInfo", mode=mode, callback=api.done_callback, userdata1=me
        )
        self._mapped = api.make(
            "WGPUBufferMapCallbackInfo", mode=mode, callback=api.mapped_callback, userdata1=me
        )

    def attach(self, device: Any, instance: Any) -> None:
        """Take over an open device."""
        self.device = device
        self.instance = instance
        self.handle = self.api.lib.wgpuDeviceGetQueue(device)

    # --- what the driver reports ----------------------------------------------------------------
    def _told(self, event: str, code: int, message: str, which: int) -> None:
        if event == "done":
            if code == c.SUCCESS:  # else the device is lost, and the work may still run
                self.finished = max(self.finished, which)
        elif event == "mapped":
            buffer = self._mapping.pop(which, None)
            if buffer is not None:
                buffer.on_mapped(code == c.SUCCESS)
        elif event == "lost":
            self.lost = common.lost_error(self.name, message or None)
        else:  # the call that caused it raises it when it returns
            self._errors.append((code, message))

    def check(self, call: str) -> None:
        """Raise what the last call reported: a DeviceError."""
        if not self._errors and self.lost is None:
            return
        errors, self._errors = self._errors, []
        if self.lost is not None:
            raise DeviceLostError(self.lost.what, known=self.lost.known)
        kind, message = errors[0]
        error = c.error_for(kind, message.strip(), call, self.name)
        if isinstance(error, DeviceLostError):
            self.lost = error
        raise error

    def create(self, kind: str, about: Any) -> Any:
        """Return a new object such as a ``Buffer``, or raise what its creation reported."""
        call = f"wgpuDeviceCreate{kind}"
        return self.checked(getattr(self.api.lib, call)(self.device, about), kind, call)

    def checked(self, handle: Any, kind: str, call: str) -> Any:
        """Return what a call made, or release it and raise what the call reported."""
        try:
            self.check(call)
        except BaseException:
            if handle != self.api.ffi.NULL:
                self.release(kind, handle)
            raise
        return handle

    def release(self, kind: str, handle: Any) -> None:
        """Give back what `create` returned."""
        getattr(self.api.lib, f"wgpu{kind}Release")(handle)

    # --- work -----------------------------------------------------------------------------------
    def submit(self, encoder: Any, outputs: tuple[Any, ...]) -> WgpuTicket:
        """Submit what was encoded, and ask for `outputs` to be mapped when it is done."""
        lib = self.api.lib
        commands = lib.wgpuCommandEncoderFinish(encoder, self.api.ffi.NULL)
        lib.wgpuCommandEncoderRelease(encoder)
        self.checked(commands, "CommandBuffer", "wgpuCommandEncoderFinish")
        self._commands[0] = commands
        lib.wgpuQueueSubmit(self.handle, 1, self._commands)
        lib.wgpuCommandBufferRelease(commands)
        if self._errors:
            self.check("wgpuQueueSubmit")
        self.submitted += 1
        self._done.userdata2 = self.api.pointer(self.submitted)
        lib.wgpuQueueOnSubmittedWorkDone(self.handle, self._done[0])
        for buffer in outputs:
            self.map(buffer, c.MAP_READ)
        return WgpuTicket(self.submitted, outputs)

    def map(self, buffer: Any, mode: int) -> None:
        """Ask for a staging buffer to be mapped once everything submitted is done."""
        number = id(buffer)
        self._mapping[number] = buffer
        buffer.is_pending = True
        self._mapped.userdata2 = self.api.pointer(number)
        self.api.lib.wgpuBufferMapAsync(buffer.handle, mode, 0, buffer.nbytes, self._mapped[0])
        if self._errors:
            self._mapping.pop(number, None)
            buffer.is_pending = False
            self.check("wgpuBufferMapAsync")

    def poll(self) -> None:
        """Let wgpu-native look at the device and call back.

        Not by wgpuDevicePoll, which ends the process where the device is lost.
        """
        self.api.lib.wgpuInstanceProcessEvents(self.instance)
        if self._errors or self.lost is not None:
            self.check("wgpuInstanceProcessEvents")

    def check_alive(self) -> None:
        """Raise DeviceLostError where the last poll found the device lost, and did not say so.

        The first thing that reports it without ending the process is making something new.
        """
        api = self.api
        encoder = api.lib.wgpuDeviceCreateCommandEncoder(self.device, api.ffi.NULL)
        api.lib.wgpuCommandEncoderRelease(encoder)
        self.check("wgpuDeviceCreateCommandEncoder")

    def _is_done(self, ticket: WgpuTicket) -> bool:
        return ticket.number <= self.finished and not any(b.is_pending for b in ticket.outputs)

    def wait(self, ticket: WgpuTicket, timeout_s: float) -> None:
        """Wait until `ticket` is done, at most `timeout_s` seconds."""
        if self._is_done(ticket):
            return
        start = time.monotonic()
        while True:
            self.poll()
            if self._is_done(ticket):
                return
            waited = time.monotonic() - start
            if waited >= timeout_s:
                raise common.timeout_error(self.name, timeout_s)
            if waited < _SPIN_S:
                _give_way()
            else:
                self.check_alive()
                time.sleep(min(_LONGEST_NAP_S, waited * _SHARE, timeout_s - waited))

    @property
    def is_idle(self) -> bool:
        """Whether everything that was submitted is known to have ended."""
        return self.finished >= self.submitted

    def finish(self, timeout_s: float) -> None:
        """Wait for everything in flight. Raises DeviceError."""
        self.wait(WgpuTicket(self.submitted, ()), timeout_s)
        self.poll()
        self.check_alive()

    def close(self) -> None:
        """Give the queue back and listen no more."""
        if self.handle is not None:
            self.api.lib.wgpuQueueRelease(self.handle)
            self.handle = None
        self._mapping.clear()
        self.api.forget(self.number)
