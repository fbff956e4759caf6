"""The GPU that a verb is about, found by the probe's children and never replaced by the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpuedge
from gpuedge.cli.output import Output, blaming
from gpuedge.core.errors import NoUsableDeviceError, UnknownDeviceError, UsageError
from gpuedge.runtime.strings import AUTO, CPU, find, wanted

if TYPE_CHECKING:
    from gpuedge.probing.report import ProbeRow

PROBE_S = 120.0
"""Time for finding the device; a probe that is done earlier ends earlier."""


def named_gpu(named: str | None, verb: str, output: Output) -> ProbeRow:
    """Return the row of a usable GPU; `verb` is as the user writes it, for what errors say.

    Raises
    ------
    UsageError (GE-200)
        ``auto`` or the CPU was named.
    UnknownDeviceError (GE-102), NoUsableDeviceError (GE-103)
        There is no such device, or it does not work.
    """
    with blaming(device=(UnknownDeviceError, NoUsableDeviceError)):
        device = wanted(named)
        if device in (AUTO, CPU):
            raise UsageError(
                f"{verb.partition(' ')[0]} needs a GPU that is named, not {device!r}.",
                asked_by="the command line" if named is None else "--device",
                hint=f"gpuedge {verb} --device vulkan; gpuedge probe lists what is here",
            )
        with output.working("looking for the device"):
            # A farm's machine may be slow; later children then find this verdict in the cache.
            report = gpuedge.probe(deadline_s=PROBE_S, backends=[device.partition(":")[0]])
            return find(device, report)
