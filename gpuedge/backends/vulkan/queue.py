"""The open device and its queue: making objects, waiting by fences, noticing a lost device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from gpuedge.backends import common
from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.api import Api
from gpuedge.core.errors import DeviceLostError


class VulkanTicket:
    """One submission; `fence` is a C array of one fence, None once it is known to be done."""

    __slots__ = ("fence",)

    def __init__(self, fence: Any) -> None:
        self.fence = fence


class Queue:
    """An open VkDevice and its queue.

    `lost` is set once the driver reports a lost device, and everything raises it from then on;
    `on_work` is called once, when the first work has finished.
    """

    scope = nullcontext()  # nothing to bind: objects of this API belong to no thread

    def __init__(self, api: Api, device: Any, family: int, name: str) -> None:
        self.api = api
        self.device = device
        self.name = name
        self.lost: DeviceLostError | None = None
        self.on_work: Callable[[], None] | None = None
        self._free: list[Any] = []
        self._flying: list[VulkanTicket] = []
        place = api.ffi.new("VkQueue *")
        api.lib.vkGetDeviceQueue(device, family, 0, place)
        self.handle = place[0]
        # Bound once: attribute look-ups on a cffi library are a noticeable part of a submit.
        self._submit = api.lib.vkQueueSubmit
        self._wait = api.lib.vkWaitForFences
        self._reset = api.lib.vkResetFences

    def check(self, result: int, call: str) -> None:
        """Raise the error of a failing result; remember a lost device."""
        if result == c.SUCCESS:
            return
        error = self.api.error(result, call, self.name)
        if isinstance(error, DeviceLostError):
            self.lost = error
        raise error

    def create(self, kind: str, **fields: Any) -> Any:
        """Return a new object such as a ``Fence``, made by ``vkCreateFence``."""
        api = self.api
        handle = api.ffi.new(f"Vk{kind} *")
        info = api.make(f"Vk{kind}CreateInfo", **fields)
        result = getattr(api.lib, f"vkCreate{kind}")(self.device, info, api.ffi.NULL, handle)
        self.check(result, f"vkCreate{kind}")
        return handle[0]

    def destroy(self, kind: str, handle: Any) -> None:
        """Destroy what `create` returned."""
        getattr(self.api.lib, f"vkDestroy{kind}")(self.device, handle, self.api.ffi.NULL)

    def submit(self, recording: Any) -> VulkanTicket:
        """Start recorded work (`gpuedge.backends.vulkan.record`)."""
        fence = self._free.pop() if self._free else self._fence()
        result = self._submit(self.handle, 1, recording.submit_info, fence[0])
        ticket = VulkanTicket(fence)
        if result not in (c.SUCCESS, c.DEVICE_LOST):
            self._free.append(fence)
            self.check(result, "vkQueueSubmit")
        self._flying.append(ticket)  # of a submission that lost the device, a part may run
        if result:
            self.check(result, "vkQueueSubmit")
        return ticket

    def _fence(self) -> Any:
        return self.api.ffi.new("VkFence[1]", [self.create("Fence")])

    def wait(self, ticket: VulkanTicket, timeout_s: float) -> None:
        """Wait until `ticket` is done, at most `timeout_s` seconds."""
        fence = ticket.fence
        if fence is None:
            return
        result = self._wait(self.device, 1, fence, 1, int(timeout_s * 1e9))
        if result == c.TIMEOUT:
            raise common.timeout_error(self.name, timeout_s)
        if result != c.SUCCESS:
            self.check(result, "vkWaitForFences")
        ticket.fence = None
        self._flying.remove(ticket)
        if result := self._reset(self.device, 1, fence):
            self.check(result, "vkResetFences")
        self._free.append(fence)
        if self.on_work is not None:
            self.on_work()
            self.on_work = None

    @property
    def is_idle(self) -> bool:
        """Whether everything that was submitted is known to have ended."""
        return not self._flying

    def finish(self, timeout_s: float) -> None:
        """Wait for everything in flight. Raises DeviceError.

        Fences of work that lost the device need not be signalled; that of an empty submission is,
        after all before it, where the driver still takes one.
        """
        if self.lost is not None and self._flying:
            last = VulkanTicket(self._fence())
            self._flying.append(last)
            none = self.api.ffi.NULL
            self.check(self._submit(self.handle, 0, none, last.fence[0]), "vkQueueSubmit")
            fences = [last.fence[0]]
        else:
            fences = [ticket.fence[0] for ticket in self._flying]
        if fences:
            every = self.api.ffi.new("VkFence[]", fences)
            result = self._wait(self.device, len(fences), every, 1, int(timeout_s * 1e9))
            self.check(result, "vkWaitForFences")

    def close(self) -> None:
        """Destroy the fences; nothing may be in flight."""
        for fence in [*self._free, *(ticket.fence for ticket in self._flying)]:
            self.destroy("Fence", fence[0])
        self._free.clear()
        self._flying.clear()
