"""Devices that the interpreter computes on, and what a probe's child says of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import quirk_db
from planrun import PlanRun, Seen

from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.dtypes import rounded
from gpuedge.core.identity import Identity
from gpuedge.plan.planner import plan, why_not
from gpuedge.plan.storages import EXACT
from gpuedge.probing import child, kat, protocol, quirks

NAME = "llvmpipe (LLVM 15.0.6, 256 bits)"


class Rasteriser:
    """An open device without a driver; `opened` says how often each was opened, and as what."""

    opened: list[Any]

    def __init__(self, **caps: Any) -> None:
        self.caps = replace(VULKAN_MINIMUM, **caps)
        self.opened = []

    def __call__(self, info: Any) -> Rasteriser:
        self.info = info
        self.opened.append(info)
        return self

    def close(self) -> None:
        """Nothing is held."""


def info() -> DeviceInfo:
    """Return Mesa's software driver under Vulkan, as its backend would name it."""
    who = Identity(
        "vulkan", NAME, "linux", vendorID=0x10005, deviceID=0, driverID=13, device_type="CPU",
        driverName="llvmpipe", driverInfo="Mesa 22.3.6 (LLVM 15.0.6)",
    )  # fmt: skip
    return DeviceInfo(Candidate("vulkan", "/lvp.json", "f"), 0, who, True)


class Channel:
    """Collects what a child would send."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def send(self, event: str, **fields: Any) -> None:
        """Keep an event."""
        self.events.append({"event": event, **fields})

    def step(self, name: str, index: int | None = None) -> None:
        """Keep a step."""
        self.send("step", step=name, index=index)


Spoil = Callable[[Any, int, Any], None]


class Interpreted:
    """Makes executors whose plans the interpreter runs.

    Parameters
    ----------
    spoil : callable
        Gets a plan, the number of its run, and the output, which it may change.
    """

    def __init__(self, spoil: Spoil = lambda plan, run, array: None) -> None:
        self.spoil = spoil
        self.runs: dict[str, int] = {}

    def __call__(self, device: Any, name: str) -> Executor:
        return Executor(device.caps, self)


class Executor:
    """Stands where `GpuExecutor` does."""

    def __init__(self, caps: Any, owner: Interpreted) -> None:
        self.caps = caps
        self.owner = owner

    def supports(self, node: Any, graph: Any) -> str | None:
        """Ask the planner."""
        return why_not(node, graph, self.caps)

    def compile(self, graph: Any, precision: Any = None) -> Executable:
        """Plan a graph."""
        return Executable(graph, plan(graph, self.caps, (), precision or EXACT), self)


class Executable:
    """Runs one plan, the first time in earnest."""

    def __init__(self, graph: Any, made: Any, executor: Executor) -> None:
        self.graph = graph
        self.plan = made
        self.executor = executor
        self.known: dict[bytes, Any] = {}
        self.runs: dict[bytes, int] = {}

    def poison(self) -> None:
        """Nothing is kept between runs."""

    def run(self, inputs: Any) -> Any:
        """Return the outputs, spoilt or not."""
        key = b"".join(array.tobytes() for array in inputs.values())
        if key not in self.known:
            caps = self.executor.caps
            run = PlanRun(
                self.plan, caps.offset_alignment, Seen(), has_suballocation=caps.has_suballocation
            )
            found = run.run(inputs).items()
            self.known[key] = {n: rounded(v, self.graph.types[n].dtype) for n, v in found}
        made = {name: array.copy() for name, array in self.known[key].items()}
        for array in made.values():
            self.executor.owner.spoil(self.plan, self.runs.get(key, 0), array)
        self.runs[key] = self.runs.get(key, 0) + 1
        return made

    def close(self) -> None:
        """Nothing is held."""


SMALL = kat.places("every place", 12, 10)


def be_quick(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the interpreter do with smaller tensors, and nothing be shared with other tests."""
    patch.setattr(kat, "_places_case", lambda limit, *, is_slow: SMALL)
    patch.setattr(kat, "LARGE", 1 << 13)
    patch.setattr("logging.lastResort", logging.NullHandler())
    patch.setenv("GPUEDGE_CACHE_DIR", str(folder / "cache"))


class Told:
    """What a child would say of one device."""

    def __init__(
        self,
        folder: Path,
        *entries: dict[str, Any],
        executor: Interpreted | None = None,
        impl: Rasteriser | None = None,
        answers: Mapping[str, bool] | None = None,
        seconds: float = 600.0,
        runs: int = protocol.RUNS,
    ) -> None:
        self.impl = impl or Rasteriser()
        self.channel = Channel()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GPUEDGE_DB", str(quirk_db.folder(folder, *entries)))
            patch.setattr("gpuedge.probing.trials.GpuExecutor", executor or Interpreted())
            who = info()
            self.quirks = quirks.Quirks(who, "vulkan", answers)
            probe = child.DeviceProbe(
                who, self.quirks, self.channel, self.impl,
                ends=time.monotonic() + seconds, runs=runs,
            )  # fmt: skip
            self.event = probe.run()

    @property
    def outcomes(self) -> dict[str, str]:
        """What came of each entry."""
        return {e["id"]: e["outcome"] for e in self.event["evidence"].get("entries", [])}

    @property
    def caps(self) -> Caps:
        """The device's capabilities, as the row will have them."""
        return Caps.from_dict(self.event["caps"])


def variants(plan: Any) -> set[str]:
    """Return the kernel variants of a plan."""
    return {one.variant for one in plan.passes}


def broken(variant: str) -> Interpreted:
    """Return executors that get wrong what a kernel variant computes."""

    def spoil(plan: Any, number: int, array: Any) -> None:
        if variant in variants(plan):
            array.reshape(-1)[3] += 1

    return Interpreted(spoil)
