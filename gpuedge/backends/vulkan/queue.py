"""Submitting command buffers and waiting for them: a ring of fences, nothing built per submit."""

from __future__ import annotations

import logging
import time
from typing import Any

from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.api import Api
from gpuedge.core.errors import DeviceError, DeviceLostError, DeviceTimeoutError

_FOREVER_S = 1e9
"""Waits of 30 years and more have no limit; larger numbers of nanoseconds need not fit."""

log = logging.getLogger("gpuedge.vulkan")


class VulkanTicket:
    """One submission; `fence` is a C array of one fence, None once it is known to be done."""

    __slots__ = ("fence",)

    def __init__(self, fence: Any) -> None:
        self.fence = fence

    @property
    def is_done(self) -> bool:
        """True once the work is known to have finished."""
        return self.fence is None


class Queue:
    """The device's queue.

    Attributes
    ----------
    lost : DeviceLostError or None
        Set once the driver reports a lost device; everything raises it from then on.
    """

    def __init__(self, api: Api, device: Any, family: int, name: str) -> None:
        self._api = api
        self._device = device
        self._name = name
        self._free: list[Any] = []
        self._all: list[Any] = []
        self._flying: list[VulkanTicket] = []
        self.lost: DeviceLostError | None = None
        place = api.ffi.new("VkQueue *")
        api.lib.vkGetDeviceQueue(device, family, 0, place)
        self.handle = place[0]
        # Bound once: attribute look-ups on a cffi library are a noticeable part of a submit.
        self._submit = api.lib.vkQueueSubmit
        self._wait = api.lib.vkWaitForFences
        self._reset = api.lib.vkResetFences

    def submit_info(self, commands: Any) -> Any:
        """Return the reusable VkSubmitInfo of one command buffer."""
        buffers = self._api.array("VkCommandBuffer", [commands])
        return self._api.make("VkSubmitInfo", commandBufferCount=1, pCommandBuffers=buffers)

    def check(self, result: int, call: str) -> None:
        """Raise the error of a failing result; remember a lost device."""
        if result == c.SUCCESS:
            return
        error = c.error_for(result, call, self._name)
        if isinstance(error, DeviceLostError):
            self.lost = error
        raise error

    def check_lost(self) -> None:
        """Raise DeviceLostError if the device was lost before."""
        if self.lost is not None:
            raise DeviceLostError(self.lost.what, known=self.lost.known)

    def submit(self, info: Any) -> VulkanTicket:
        """Submit prebuilt work."""
        if self.lost is not None:
            self.check_lost()
        fence = self._free.pop() if self._free else self._fence()
        result = self._submit(self.handle, 1, info, fence[0])
        if result != c.SUCCESS:
            self._free.append(fence)
            self.check(result, "vkQueueSubmit")
        ticket = VulkanTicket(fence)
        self._flying.append(ticket)
        return ticket

    def _fence(self) -> Any:
        """Return an unused fence: one of a finished ticket nobody waited for, or a new one."""
        for ticket in list(self._flying):
            if self._api.lib.vkGetFenceStatus(self._device, ticket.fence[0]) == c.SUCCESS:
                self._finish(ticket)
        if self._free:
            return self._free.pop()
        made = self._api.ffi.new("VkFence[1]")
        info = self._api.make("VkFenceCreateInfo")
        result = self._api.lib.vkCreateFence(self._device, info, self._api.ffi.NULL, made)
        self.check(result, "vkCreateFence")
        self._all.append(made)
        return made

    def _finish(self, ticket: VulkanTicket) -> None:
        fence = ticket.fence
        ticket.fence = None
        self._flying.remove(ticket)
        self.check(self._reset(self._device, 1, fence), "vkResetFences")
        self._free.append(fence)

    def wait(self, ticket: VulkanTicket, timeout_s: float) -> None:
        """Wait until `ticket` is done, at most `timeout_s` seconds."""
        if ticket.fence is None:
            return
        if self.lost is not None:
            self.check_lost()
        result = self._wait(self._device, 1, ticket.fence, 1, _nanoseconds(timeout_s))
        if result == c.SUCCESS:
            self._finish(ticket)
            return
        if result == c.TIMEOUT:
            raise DeviceTimeoutError(
                f"Work on {self._name} did not finish within {timeout_s:g} s.",
                known="it is still running; wait again, or close the device",
            )
        self.check(result, "vkWaitForFences")

    def drain(self, timeout_s: float) -> bool:
        """Wait for everything in flight; return False if some of it does not end in time."""
        end = time.monotonic() + timeout_s
        for ticket in list(self._flying):
            if self.lost is not None:
                return True  # the specification counts work on a lost device as finished
            try:
                self.wait(ticket, max(0.0, end - time.monotonic()))
            except DeviceLostError:
                return True
            except DeviceError as error:  # too late, or no answer: either way it may still run
                log.debug("draining: %s", error)
                return False
        return True

    def close(self) -> None:
        """Destroy the fences; nothing may be in flight."""
        for fence in self._all:
            self._api.lib.vkDestroyFence(self._device, fence[0], self._api.ffi.NULL)
        self._all.clear()
        self._free.clear()
        self._flying.clear()


def _nanoseconds(seconds: float) -> int:
    return c.UINT64_MAX if seconds >= _FOREVER_S else max(0, int(seconds * 1e9))
