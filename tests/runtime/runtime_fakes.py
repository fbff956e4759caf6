"""A pool whose GPU is a null device that fails on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pytest

from gpuedge import __version__
from gpuedge.backends.base import Dispatch
from gpuedge.backends.null import Failure, NullBackend, NullDevice
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.executors.base import Executor
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.ir import Graph
from gpuedge.plan.plan import Plan
from gpuedge.plan.planner import judge
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.runtime.devices import Pool, RetryLimits

BROKEN = ProbeRow("vulkan:1", "vulkan", "wrong", "wrong-numbers", "the numbers are wrong", "Liar")
ABSENT = ProbeRow("vulkan", "vulkan", "absent", "no-device", "the driver offers no device", "none")


def row(caps: Caps = VULKAN_MINIMUM, *, is_software: bool = False) -> ProbeRow:
    """Return a usable row of a device called ``vulkan:0``."""
    return ProbeRow(
        "vulkan:0", "vulkan", "ok", "ok", "answered with the right numbers", "Fake GPU",
        identity={"api": "vulkan", "name": "Fake GPU", "os": "linux", "vendorID": 1},
        is_software=is_software, caps=caps.to_dict(), key="fake", fingerprint="f", index=0,
    )  # fmt: skip


def refuse_operators(monkeypatch: pytest.MonkeyPatch, *ops: str) -> None:
    """Let no GPU have a kernel for these operators, whatever ours can do."""

    def judged(graph: Graph, caps: Caps) -> Plan | dict[int, str]:
        made = judge(graph, caps)
        whys = {id(n): f"no kernel for {n.op}" for n in graph.nodes if n.op in ops}
        return whys | (made if isinstance(made, dict) else {}) if whys else made

    monkeypatch.setattr("gpuedge.runtime.forecast.judge", judged)
    monkeypatch.setattr("gpuedge.executors.gpu.judge", judged)


SOON = RetryLimits(pauses_s=(0.01, 0.02, 0.04))
"""A device that failed is opened anew at once."""


class FakePool(Pool):
    """A pool with one null GPU, opened anew after each failure.

    Attributes
    ----------
    known : ProbeReport
        What probing says.
    devices : list of NullDevice
        Every device that was opened, in order.
    fail : mapping
        How the next device that is opened fails.
    verdicts : list
        What trying the driver in a child says, one at a time; afterwards that it is good.
    gate : threading.Event
        While it is clear no such child ends.
    """

    def __init__(
        self, fail: Mapping[str, Failure] | None = None, *, usable: bool = True,
        is_software: bool = False, limits: RetryLimits = SOON,
    ) -> None:  # fmt: skip
        super().__init__(limits)
        first = row(is_software=is_software)
        rows = (first if usable else first.replace(status="broken", code="open-failed"),)
        self.known = ProbeReport((*rows, BROKEN, ABSENT), __version__)
        self.devices: list[NullDevice] = []
        self.fail = fail or {}
        self.on_dispatch: Callable[[Dispatch], None] | None = None
        self.verdicts: list[str | None] = []
        self.gate = threading.Event()
        self.gate.set()

    def report(self) -> ProbeReport:
        return self.known

    def _try_in_child(self, name: str, stop: threading.Event) -> str | None:
        self.gate.wait(30)
        return self.verdicts.pop(0) if self.verdicts else None

    def _open_gpu(self, name: str, isolation: str) -> Executor:
        backend = NullBackend(caps=VULKAN_MINIMUM, fail=self.fail, on_dispatch=self.on_dispatch)
        candidate = backend.candidates({})[0]
        impl = backend.open(backend.enumerate(candidate)[0])
        assert isinstance(impl, NullDevice)
        self.devices.append(impl)
        return GpuExecutor(impl, name, isolation=isolation)
