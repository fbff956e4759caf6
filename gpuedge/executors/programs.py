"""The kernels built on one device: checked against its limits, and built once each.

This is the one place where a kernel's needs are compared with what a device offers: backends build
what they are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from gpuedge.backends.base import DeviceImpl, Program
from gpuedge.core.caps import Caps
from gpuedge.core.errors import GpuEdgeError, KernelLimitError
from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.plan.plan import Pass

Size = tuple[int, int, int]
_AXES = ("LX", "LY", "LZ")
_Key = tuple[str, tuple[Number, ...]]


class Programs:
    """The programs of one open device; executables that need the same kernel share a program."""

    def __init__(self, impl: DeviceImpl) -> None:
        self._impl = impl
        self._programs: dict[_Key, Program] = {}
        self._users: dict[_Key, int] = {}

    def build(
        self,
        blob: KernelBlob,
        specs: Mapping[str, Number],
        caps: Caps,
        local_size: Size | None = None,
    ) -> Program:
        """Return a kernel's program, compiled now or before; give it back with `release`.

        Parameters
        ----------
        blob : KernelBlob
        specs : mapping
            Specialisation constants by name; what is missing has its default.
        caps : Caps
            What the device may use.
        local_size : (int, int, int), optional
            Size of a workgroup, where it is not the constants LX, LY, LZ.

        Raises
        ------
        InputError (GE-203), KernelLimitError (GE-303), DeviceError (GE-4xx)
        """
        values = blob.values(specs)
        key = (blob.digest, values)
        if key not in self._programs:
            check_limits(blob, values, caps, local_size)
            self._programs[key] = self._impl.build(blob, specs)
        self._users[key] = self._users.get(key, 0) + 1
        return self._programs[key]

    def release(self, program: Program) -> None:
        """Give one use of a program back; the device drops it with the last."""
        key = next((k for k, known in self._programs.items() if known is program), None)
        if key is None:
            return
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self._impl.release(self._programs.pop(key))


def check_limits(
    blob: KernelBlob, values: tuple[Number, ...], caps: Caps, local_size: Size | None = None
) -> None:
    """Compare what a kernel needs with what a device offers, before any driver sees it.

    Drivers need not report any of this, and several crash instead.

    Raises
    ------
    KernelLimitError (GE-303)
        The kernel is for another dialect, or needs too many invocations, tensors, outputs or bytes.
    """
    if blob.dialect != caps.dialect:
        raise KernelLimitError(
            f"Kernel {blob.name!r} is {blob.dialect}; this device takes {caps.dialect}."
        )
    size = local_size or _local_size(blob, values)
    needs = [
        ("invocations per workgroup", prod(size), caps.max_invocations),
        *((f"workgroup size {axis}", n, most)
          for axis, n, most in zip(_AXES, size, caps.max_local_size, strict=True)),
        ("tensors", len(blob.tensors), caps.max_storage_buffers),
        ("outputs", sum(t.access == "write" for t in blob.tensors), caps.max_outputs),
        ("bytes of extents and parameters", blob.push_bytes, caps.max_push_bytes),
    ]  # fmt: skip
    for what, needed, offered in needs:
        if needed > offered:
            raise KernelLimitError(
                f"Kernel {blob.name!r} needs {needed} {what}; this device offers {offered}.",
                known=f"workgroup size {size[0]}x{size[1]}x{size[2]}",
            )
    if min(size) < 1:
        raise KernelLimitError(f"Kernel {blob.name!r} has the workgroup size {size}.")


def _local_size(blob: KernelBlob, values: tuple[Number, ...]) -> Size:
    by_name = {spec.name: int(value) for spec, value in zip(blob.specs, values, strict=True)}
    return by_name.get("LX", 1), by_name.get("LY", 1), by_name.get("LZ", 1)


class RefusedPassError(Exception):
    """The driver refused to build the kernel of a pass."""

    def __init__(self, refused: Pass, error: GpuEdgeError) -> None:
        super().__init__(str(error))
        self.launch = refused
        self.error = error
