"""The null backend: computes nothing, records every call, and is the skeleton of a new backend.

Tests use it to see what the layers above ask of a device, to make any call fail on purpose, and to
hold them to the seam's rules (alignment, ranges, limits, nothing used after it was freed), which
real drivers may or may not notice. `README.md` in this folder says how to make a backend of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from gpuedge.backends.base import Candidate, DeviceInfo, Dispatch
from gpuedge.backends.null.device import (
    POISON,
    Call,
    Failure,
    NullBuffer,
    NullDevice,
    NullProgram,
    NullRecording,
    NullTicket,
)  # fmt: skip
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.identity import Identity

__all__ = [
    "POISON", "Call", "Failure", "NullBackend", "NullBuffer", "NullDevice", "NullProgram",
    "NullRecording", "NullTicket",
]  # fmt: skip


class NullBackend:
    """A backend with one device that computes nothing.

    Parameters
    ----------
    caps : Caps
        What the device claims to be able to do.
    fail : mapping of str to Failure
        Method names (``enumerate``, ``open`` and those of a device) and what they raise.
    on_dispatch : callable, optional
        Called with every dispatch of a submit; may write into ``binding.buffer.data``, and so make
        the device compute after all.

    Examples
    --------
    >>> from gpuedge.backends.base import Usage
    >>> backend = NullBackend()
    >>> device = backend.open(backend.enumerate(backend.candidates({})[0])[0])
    >>> into = bytearray(2)
    >>> device.read(device.alloc(2, Usage.OUTPUT), memoryview(into))
    >>> into.hex()
    'abab'
    """

    name: ClassVar[str] = "null"

    def __init__(
        self,
        caps: Caps = VULKAN_MINIMUM,
        *,
        fail: Mapping[str, Failure] | None = None,
        on_dispatch: Callable[[Dispatch], None] | None = None,
    ) -> None:
        self.caps = caps
        self.fail = dict(fail or {})
        self.on_dispatch = on_dispatch

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List the one driver there is."""
        return [Candidate(self.name, "null", "null-1")]

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """List the one device there is."""
        self._raise("enumerate")
        identity = Identity(api="null", name="null device", os="any", device_type="OTHER")
        return [DeviceInfo(candidate, 0, identity, self.caps.is_software)]

    def open(self, info: DeviceInfo, **options: Any) -> NullDevice:
        """Open the device; it has no options and ignores those of other backends."""
        self._raise("open")
        return NullDevice(info, self.caps, self.fail, self.on_dispatch)

    def _raise(self, method: str) -> None:
        failure = self.fail.get(method)
        if isinstance(failure, BaseException):
            raise failure
