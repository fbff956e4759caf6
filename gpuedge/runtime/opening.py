"""Opening the devices of probed rows, inline or in a worker process, and what a fork must know."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from gpuedge import backends
from gpuedge.core import debug
from gpuedge.core.errors import DeviceLostError, DriverError, GpuEdgeError, UsageError
from gpuedge.core.text import named
from gpuedge.executors.driver_calls import cause_of
from gpuedge.safety import paths
from gpuedge.safety.interrupts import held, is_of_handler

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl
    from gpuedge.executors.base import Executor, Runtime
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.executors.plugin import PluginExecutor
    from gpuedge.probing.report import ProbeRow
    from gpuedge.safety.blocklist import Marker

INLINE, PROCESS = "inline", "process"

log = logging.getLogger("gpuedge")

NOT_CARRIED = "worker processes carry kernels, not graphs, so that executors of plug-ins stay here"
"""Why there is no isolation for them."""

STAYING = ("gles31", "gles30", "gles20")
"""Backends whose drivers stay when their last device is closed, because a process shares the EGL
display. A child forked off then hangs as it does with an open device (Mesa 22.3.6, llvmpipe).
Those of plug-ins are taken to stay as well; PoCL's threads do."""


_inline: set[int] = set()
"""Numbers of the GPU devices of this process that may be open.

Whatever opened them: a driver with an open device does not survive a fork. A device that was
dropped without being closed counts too, because nothing else ends its driver's threads; so does
one that hung. Devices in worker processes do not: their drivers are not in this process.
"""
_numbers = count(1)


def is_any_inline() -> bool:
    """Tell whether a device of this process is open, or may be."""
    return bool(_inline)


def open_row(
    row: ProbeRow, isolation: str = INLINE, context: Any = None
) -> GpuExecutor | PluginExecutor:
    """Open the device of a usable row.

    Parameters
    ----------
    row : ProbeRow
    isolation : {"inline", "process"}
        Where the driver lives: in this process, or in one of its own.
    context : moderngl.Context, optional
        A context of the application to share with.

    Raises
    ------
    UsageError (GE-200)
        The device is not of OpenGL ES, or the context cannot be shared with; it has no isolation.
    DeviceError (GE-4xx)
        It does not open, or nothing is left of it that the capability database does not rule out.
    """
    if context is not None and (row.backend not in STAYING or isolation == PROCESS):
        raise UsageError(
            f"{row.device} cannot share with a context of the application.",
            asked_by=f"context={context!r}, isolation={isolation!r}",
            known=f"these can, in this process: {', '.join(STAYING)}",
        )
    if isolation == PROCESS:
        if backends.is_executor(row.backend):
            raise UsageError(
                f"{row.device} runs in this process only.",
                asked_by=f"isolation={isolation!r}",
                known=NOT_CARRIED,
                hint="isolation='inline'",
            )
        return _open_isolated(row)
    number = next(_numbers)
    _inline.add(number)
    try:
        executor = _open_inline(row, {} if context is None else {"context": context})
    except BaseException:
        _inline.discard(number)
        raise
    if row.backend in backends.BUILTIN and row.backend not in STAYING:
        executor.on_released = partial(_inline.discard, number)
    return executor


def _open_inline(row: ProbeRow, options: Mapping[str, Any]) -> GpuExecutor | PluginExecutor:
    marker = _marker(row)
    try:
        marker.step("open")
        with held:  # most of it is the driver's
            impl = backends.load(row.backend).open(row.info(), **options)
        marker.quiet()
        if backends.is_executor(row.backend):
            from gpuedge.executors.plugin import PluginExecutor

            return PluginExecutor(cast("Runtime", impl), row.info(), row.device, marker=marker)
        return _executor_of(impl, row, INLINE, marker)
    except BaseException as error:
        marker.quiet()
        marker.close()
        if isinstance(error, GpuEdgeError) or is_of_handler(error):
            raise
        raise DriverError(  # a plug-in's
            f"The device '{row.device}' did not open.",
            known=named(error),
            hint="gpuedge probe --refresh tries its driver in a process of its own",
            reason="open-failed",
        ) from error


def _open_isolated(row: ProbeRow) -> GpuExecutor:
    from gpuedge.isolation import open_isolated

    marker = _marker(row, is_hosted=True)
    marker.step("open")
    try:
        impl = open_isolated(row.info())
    except DeviceLostError as error:
        if not error.is_outside and error.reason is not None and error.reason.code == "worker-died":
            marker.crashed(cause_of(error), "open")
        raise
    marker.quiet()
    return _executor_of(impl, row, PROCESS, marker)


def _executor_of(impl: DeviceImpl, row: ProbeRow, isolation: str, marker: Marker) -> GpuExecutor:
    """Return the executor of an open device, which may do what the row says."""
    from gpuedge.capdb import Restrictions
    from gpuedge.executors.gpu import GpuExecutor

    traced = cast("DeviceImpl", debug.Traced(impl)) if debug.level() >= 5 else impl
    try:
        return GpuExecutor(
            traced, row.device, isolation=isolation, marker=marker,
            restrictions=Restrictions.from_dict(row.restrictions),
            is_finite_only=row.caps.get("is_finite_only"),
        )  # fmt: skip
    except BaseException:
        impl.close()
        raise


def _marker(row: ProbeRow, *, is_hosted: bool = False) -> Marker:
    from gpuedge.safety.blocklist import Blocklist, key_of

    info = row.info()
    memory = Blocklist(paths.cache_folder())
    key = key_of(info.candidate, info.index)
    name, code = f"{row.device} ({row.name})", backends.code_of(row.backend)
    return memory.begin(key, name, code=code, is_hosted=is_hosted)


closing: list[Callable[[Executor], None]] = []
"""Called with each executor that the caller opened and has closed, to forget what is its."""


def close(executor: Executor) -> None:
    """Close a device that the caller opened, and forget everything made for it."""
    try:
        executor.close()
    finally:
        for forget in closing:
            forget(executor)


def is_stale(row: ProbeRow) -> bool:
    """Tell whether a driver's files have changed since the row was made, as far as can be told."""
    from gpuedge.probing import api
    from gpuedge.probing.report import ProbeRow

    listed = api.candidates(row.backend, {**os.environ, **row.env})
    if any(isinstance(c, ProbeRow) and c.code != "no-candidates" for c in listed):
        log.debug("%s: its drivers cannot be listed: %s", row.backend, listed)
        return False  # that says nothing of this one
    return not any(c.key == row.key and c.fingerprint == row.fingerprint for c in listed)
