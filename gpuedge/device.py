"""Devices opened by hand: `gpuedge.open()`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import DeviceError, NoUsableDeviceError, UsageError
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.opening import INLINE, close, open_row
from gpuedge.runtime.request import check_isolation, check_policy
from gpuedge.runtime.strings import AUTO, CPU, check_in_use, wanted

if TYPE_CHECKING:
    import moderngl

    from gpuedge.core.caps import Caps
    from gpuedge.core.identity import Identity
    from gpuedge.core.kernel import Number
    from gpuedge.core.words import DeviceName, Isolation
    from gpuedge.decide.policy import Policy
    from gpuedge.executors.base import Executor
    from gpuedge.runtime.user_kernel import OutputSpec, UserKernel


class Device:
    """An open device of one's own; a context manager. Made by `gpuedge.open`.

    It can be given as `device=` to every operation and to `Session`; they follow the policy it was
    opened with, unless they are given one of their own. Where its driver lives stays as it is.
    Closing it makes what was compiled on it
    unusable.
    """

    def __init__(self, executor: Executor, why: str, policy: Policy | None = None) -> None:
        self.executor = executor
        self.why = why
        self.policy = policy

    @property
    def name(self) -> str:
        """Device string, such as ``vulkan:0``."""
        return self.executor.device

    @property
    def isolation(self) -> str:
        """Where its driver lives: ``inline``, in this process, or ``process``, in one of its own.

        The CPU is always ``inline``.
        """
        isolation: str = getattr(self.executor, "isolation", INLINE)
        return isolation

    @property
    def identity(self) -> Identity | None:
        """Who the device says it is; None for the CPU."""
        info = getattr(self.executor, "info", None)
        identity: Identity | None = None if info is None else info.identity
        return identity

    @property
    def caps(self) -> Caps | None:
        """What the device can do; None for the CPU, and where a plug-in takes whole graphs."""
        caps: Caps | None = getattr(self.executor, "caps", None)
        return caps

    def kernel(
        self,
        source: str | os.PathLike[str],
        *,
        inputs: Sequence[str],
        outputs: Mapping[str, OutputSpec],
        specs: Mapping[str, Number] | None = None,
    ) -> UserKernel:
        """Compile a GLSL compute shader of one's own, to be called with arrays by name.

        Parameters
        ----------
        source : str or path
            A file, or GLSL text (anything with a line break). Storage buffers in set 0, bindings
            0, 1, 2, ..., each one array of float, int or uint or vectors of them, and where the
            device offers it of float16 or of integers of 8 and 16 bits; scalars as push constants.
        inputs : sequence of str
            Buffers it reads, by the name of the array, the instance or the block.
        outputs : mapping
            Buffers it writes: name to (shape, dtype), the shape a tuple or ``"NAME.shape"``.
        specs : mapping, optional
            Specialisation constants by name.

        Returns
        -------
        UserKernel
            Call it: ``kernel(a=array, n=3)``.

        Raises
        ------
        KernelSyntaxError (GE-301), CompilerUnavailableError (GE-302), KernelLimitError (GE-303)
            The shader, or the lack of a compiler for it.
        InputError (GE-203), UsageError (GE-200)
            A name that the shader does not have; a device that runs no GLSL.

        Notes
        -----
        A shader that reads or writes outside its buffers can crash the driver and the process.
        """
        from gpuedge.runtime.user_kernel import make_kernel

        return make_kernel(self.executor, source, inputs, outputs, specs)

    def close(self) -> None:
        """Close the device; may be called twice."""
        close(self.executor)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        identity = self.identity
        return f"Device({self.name!r}, {identity.name if identity else 'CPU'!r})"


def open(
    device: DeviceName | None = None,
    *,
    policy: Policy | None = None,
    isolation: Isolation | None = None,
    context: moderngl.Context | None = None,
) -> Device:
    """Open a device.

    Parameters
    ----------
    device : str, optional
        ``"vulkan"``, ``"vulkan:1"``, ``"cpu"``, or ``"auto"`` (the default): the best device that
        probing trusts and `policy` allows, else the CPU.
    policy : Policy, optional
        ``Policy(allow_software=True)`` lets ``auto`` take a software rasteriser. What runs on the
        device follows it too, such as ``Policy(storage="fixed16")``.
    isolation : {"inline", "process"}, optional
        Where the driver lives: in this process (the default), or in one of its own, whose death
        this process survives. Setting: ``GPUEDGE_ISOLATION``.

    context : moderngl.Context, optional
        A context of the application's own, current in this thread. The device shares its textures
        and buffers (`SharedModel`) and leaves its state alone. Only levels of OpenGL ES can:
        ``gles31``, and with a context of OpenGL ES also ``gles30`` and ``gles20``.

    Returns
    -------
    Device
        Use it in a ``with`` statement, or close it.

    Raises
    ------
    ConfigError (GE-101)
        `policy` is not a Policy.
    UnknownDeviceError (GE-102), NoUsableDeviceError (GE-103)
        The device named does not exist or cannot be used here; the message says why.
    UsageError (GE-200)
        A context that cannot be shared with, or one without a level of OpenGL ES.
    DeviceError (GE-4xx)
        The device named failed to open.
    """
    from gpuedge.decide.policy import Policy
    from gpuedge.executors.cpu import CpuExecutor

    where = check_isolation(isolation)
    check_policy(policy)
    asked = wanted(device)
    if context is not None and asked in (AUTO, CPU):
        raise UsageError(
            f"device={asked!r} cannot share a context of OpenGL.",
            hint="name the level: device='gles31', 'gles30' or 'gles20'",
        )
    if asked == CPU:
        return Device(CpuExecutor(), "asked for by name", policy)
    if asked != AUTO:
        check_in_use(asked)
    if context is not None:
        return Device(open_row(POOL.row(asked), where, context), "asked for by name", policy)
    if asked != AUTO:
        return Device(open_row(POOL.row(asked), where), "asked for by name", policy)
    failures: dict[str, str] = {}
    for row in POOL.current().devices:
        if row.is_software and not (policy or Policy()).allow_software:
            failures[row.device] = "a software rasteriser"
            continue
        try:
            opened = open_row(POOL.row(row.device), where)
            return Device(opened, "the best device that works", policy)
        except (DeviceError, NoUsableDeviceError) as error:
            failures[row.device] = error.what
    return Device(CpuExecutor(), _why(failures), policy)


def _why(failures: Mapping[str, Any]) -> str:
    if not failures:
        return "no usable GPU was found"
    return "no GPU was taken: " + "; ".join(f"{d}: {why}" for d, why in failures.items())
