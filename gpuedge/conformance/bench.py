"""An open device under test: runs one case after the other, and proves that the device did it."""

from __future__ import annotations

import os
import platform
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import gpuedge
from gpuedge.conformance.case import Case, digest
from gpuedge.conformance.storing import KEEPERS
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    GpuEdgeError,
    KernelLimitError,
    NoUsableDeviceError,
    OutOfMemoryError,
    UnsupportedOpError,
)
from gpuedge.core.record import Record
from gpuedge.decide.policy import Policy
from gpuedge.device import Device
from gpuedge.executors.gpu import GpuExecutable, GpuExecutor
from gpuedge.executors.plugin import PluginExecutable, PluginExecutor
from gpuedge.executors.programs import Programs
from gpuedge.ops import call as ops_call
from gpuedge.plan.library import variants
from gpuedge.plan.select import lacks

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl, Program
    from gpuedge.core.driver import DeviceInfo
    from gpuedge.executors.base import Runtime

Row = dict[str, Any]

PASSED, FAILED, ERROR, SKIPPED = "passed", "failed", "error", "skipped"
CRASHED, TIMEOUT, FLAKE = "crashed", "timeout", "flake"
STATUSES = (PASSED, FAILED, ERROR, CRASHED, TIMEOUT, FLAKE, SKIPPED)
"""What can become of a case. The first two and the last are answers of the device; an error is a
refusal, `crashed` and `timeout` are said of the process that ran the case, and a flake passed when
it was run again."""


class Expected(Record):
    """What a file of expectations says of a case (`gpuedge.conformance.expectations`)."""

    kind: str
    reason: str
    link: str = ""


SMOKE_TWICE = 4
"""One case of so many runs twice where not all do; which, its name says."""


MOST_SECONDS = 10**9
"""Times in results are shorter."""


class RowFields(Record):
    """What every row has, and of what types the rest of it is where it is there."""

    IS_OPEN = True

    id: str
    op: str
    status: Annotated[str, STATUSES]
    seconds: Annotated[float | None, range(MOST_SECONDS)] = None
    worst: float | None = None
    rms: float | None = None
    bits: str = ""
    code: str = ""
    reason: str = ""
    device: str = ""
    map: tuple[Annotated[str, re.compile("[0-9]{1,64}")], ...] = ()
    kernels: tuple[str, ...] = ()
    again: str = ""
    after: str = ""
    expectation: Annotated[Mapping[str, Any] | None, Expected] = None


KEPT_PROGRAMS = 64
"""Kernels that stay built for the next cases: many cases differ in shapes and numbers only."""


class KeptPrograms(Programs):
    """The product's programs, each given back a few cases later."""

    def __init__(self, impl: DeviceImpl) -> None:
        super().__init__(impl)
        self._idle: deque[Program] = deque()

    def release(self, program: Program) -> None:
        """Give one use of a program back, once so many others were."""
        self._idle.append(program)
        if len(self._idle) > KEPT_PROGRAMS:
            super().release(self._idle.popleft())


class Watched(GpuExecutor):
    """The product's executor, remembering what it compiled."""

    def __init__(self, impl: DeviceImpl, name: str) -> None:
        super().__init__(impl, name)
        self.programs = KeptPrograms(impl)
        self.made: list[GpuExecutable] = []
        self._own = self.caps

    def compile(self, *arguments: Any, **named: Any) -> GpuExecutable:
        """Compile a segment as the product does, and remember it.

        Its outputs hold no numbers of a case before: what is not written is wrong.
        """
        model = super().compile(*arguments, **named)
        model.poison()
        self.made.append(model)
        return model

    def flush(self) -> None:
        """Keep no printed kernel on disk: no app of this machine needs those of the cases."""

    def without(self, variants: Iterable[str]) -> None:
        """Use none of these variants from now on; forget what was compiled."""
        self.made.clear()
        self._restricted = set(variants)

    def start(self, case: Case) -> None:
        """Start a case: forget what was compiled; use no variant of its rivals.

        One of one variant may use what works, though its driver does not call it fast.
        """
        self.without(case.rivals)
        is_forced = case.variant and self._own.dot_products
        self.caps = replace(self._own, dot_products=2) if is_forced else self._own


class WatchedRuntime(PluginExecutor):
    """The same of a device that takes whole graphs."""

    def __init__(self, runtime: Runtime, info: DeviceInfo, name: str) -> None:
        super().__init__(runtime, info, name)
        self.made: list[PluginExecutable] = []

    def compile(self, *arguments: Any, **named: Any) -> PluginExecutable:
        """Compile a segment as the product does, and remember it."""
        model = super().compile(*arguments, **named)
        self.made.append(model)
        return model

    def start(self, case: Case) -> None:
        """Start a case: forget what was compiled."""
        self.made.clear()


class Bench:
    """A device that was asked for by name, strictly: never the CPU in its place.

    `repeats`: each case runs twice, and has to give the same bits; else one of `SMOKE_TWICE` does.
    """

    def __init__(self, device: str, *, repeats: bool = False) -> None:
        self.repeats = repeats
        opened = gpuedge.open(device).executor
        self.executor: Watched | WatchedRuntime
        if isinstance(opened, PluginExecutor):
            self.executor = WatchedRuntime(opened.runtime, opened.info, opened.device)
        elif isinstance(opened, GpuExecutor):
            self.executor = Watched(opened.impl, opened.device)
        else:
            raise NoUsableDeviceError(f"{device!r} is not a GPU, and conformance is about GPUs.")
        self.is_spent = False
        """Whether the device is lost or stuck, so that another process must go on."""

    def described(self) -> Row:
        """Return who the device is, as the header of results keeps it."""
        return {
            "device": self.executor.device,
            "identity": self.executor.info.identity.to_dict(),
            "caps": self.executor.caps.to_dict() if isinstance(self.executor, Watched) else {},
            "versions": versions(),
        }

    def run(self, case: Case) -> Row:
        """Run one case and return its row."""
        row: Row = case.described()
        self.executor.start(case)
        why_not = self._skip(case)
        if why_not:
            return {**row, "status": SKIPPED, "reason": why_not}
        try:
            return {**row, **self._judged(case)}
        except Exception as error:  # whatever a case raises is the case's result
            return {**row, **self._failure(case, error)}
        finally:
            self._release()

    def _judged(self, case: Case) -> Row:
        policy = Policy() if case.storage == "float32" else Policy(storage=case.storage)
        device = Device(self.executor, "for conformance", policy)
        before = self._runs()
        own = self.executor
        is_finite = own.caps.is_finite_only if isinstance(own, Watched) else True
        twice = self.repeats or digest(f"twice {case.id}") % SMOKE_TWICE == 0
        verdict = case.judge(device, is_finite=is_finite, twice=twice)
        rows = [row for model in self.executor.made for row in model.rows]
        kernels = list(dict.fromkeys(k for row in rows for k in row.kernel.split("+")))
        storages = list(dict.fromkeys(s for row in rows for s in row.storage.split("+") if s))
        outcome: Row = {
            "worst": verdict.worst, "rms": verdict.rms, "bits": verdict.bits,
            "kernels": kernels, "storages": storages,
        }  # fmt: skip
        elsewhere = [row.device for row in rows if row.device not in (self.executor.device, "host")]
        if not verdict.ok:
            outcome |= {"status": FAILED, "reason": verdict.message, "map": list(verdict.map)}
        elif elsewhere or not rows or self._runs() == before:
            outcome |= {"status": FAILED, "reason": "the device did not do the work"}
        elif case.variant and case.variant not in kernels:
            outcome |= {"status": FAILED, "reason": f"it was not served by {case.variant}"}
        elif isinstance(self.executor, WatchedRuntime):
            outcome |= {"status": PASSED}
        elif not KEEPERS[case.storage].is_among(storages) and kernels != ["view"]:
            outcome |= {"status": FAILED, "reason": f"nothing was kept as {case.storage}"}
        else:
            outcome |= {"status": PASSED}
        return outcome

    def _runs(self) -> int:
        """Return something that grows with every run on the device."""
        if isinstance(self.executor, Watched):
            return self.executor.impl.counters.submits
        return sum(model.watchdog.pieces_done for model in self.executor.made)

    def _skip(self, case: Case) -> str:
        """Return why a case does not apply to this device; empty if it does."""
        if isinstance(self.executor, WatchedRuntime):
            is_about_kernels = case.variant or case.rivals or case.storage != "float32"
            return "it is about kernels, and the device takes whole graphs" * bool(is_about_kernels)
        offered = self.executor.caps.storages
        if not KEEPERS[case.storage].is_among(offered):
            wanted = " or ".join(KEEPERS[case.storage].kinds)
            return f"the device offers no {wanted} (it has {', '.join(offered)})"
        for variant in variants():
            if variant.id == case.variant and (lacking := lacks(variant, self.executor.caps)):
                return f"{variant.id}: {lacking}"
        return ""

    def _failure(self, case: Case, error: Exception) -> Row:
        too_large = (UnsupportedOpError, KernelLimitError, OutOfMemoryError)
        if case.is_large and isinstance(error, too_large):
            return {"status": SKIPPED, "reason": f"too large for this device: {error.what}"}
        if isinstance(self.executor, WatchedRuntime) and isinstance(error, UnsupportedOpError):
            return {"status": SKIPPED, "reason": f"the runtime refuses it: {error.known}"[:500]}
        self.is_spent = isinstance(error, (DeviceLostError, DeviceTimeoutError))
        code = error.code if isinstance(error, GpuEdgeError) else type(error).__name__
        what = [error.what, error.known] if isinstance(error, GpuEdgeError) else [str(error)]
        status = TIMEOUT if isinstance(error, DeviceTimeoutError) else ERROR
        reason = "; ".join(w for w in what if w).replace("\n", " ")
        return {"status": status, "code": code, "reason": f"{code}: {reason}"[:500]}

    def _release(self) -> None:
        """Give back what the case compiled: the next one measures its own ranges and memory."""
        try:
            ops_call.release(self.executor)
        except GpuEdgeError:
            self.is_spent = True

    def close(self) -> None:
        """Close the device."""
        self.executor.close()


def versions() -> Row:
    """Return the versions that results depend on."""
    import numpy as np

    return {
        "gpuedge": gpuedge.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
    }
