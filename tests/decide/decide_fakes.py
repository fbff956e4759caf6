"""Fakes for the decision tests: a clock that only moves when told, executors that run on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.decide.model import DeviceModel, Prediction
from gpuedge.executors.base import PlacementRow, Work
from gpuedge.graph.cost import count
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.safety.deadline import DeadlineCall

MS = 1_000_000
TWO = 693_147
"""A claimed error of a factor of two, in millionths of a nat."""


class FakeClock:
    """Integer nanoseconds; moves only when something takes time on it."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


@contextmanager
def patient(stuck: threading.Event | None = None) -> Iterator[None]:
    """Let calibration wait as long as a busy machine needs: its limit counts from `stuck` on."""
    never = threading.Event()

    class Patient(DeadlineCall[Any]):
        def wait(self, seconds: float) -> bool:
            ends = time.monotonic() + 60
            while not super().wait(0.01) and not (stuck or never).is_set():
                assert time.monotonic() < ends, "a calibration without a hanging driver must end"
            return super().wait(seconds)

    with mock.patch("gpuedge.decide.calibrate.DeadlineCall", Patient):
        yield


@dataclass
class FakeExecutable:
    work: Work
    take: Callable[[], None]
    rows: tuple[PlacementRow, ...] = ()
    closed: int = 0

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.take()
        return {}

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeExecutor:
    """An executor whose runs take exactly what `truth` says, on `clock`."""

    device: str
    truth: DeviceModel
    clock: FakeClock
    compile_s: float = 0.0
    cold_s: float = 0.0
    noise: tuple[float, ...] = (1.0,)
    fail_compile: Exception | None = None
    fail_run: Exception | None = None
    refuse: frozenset[str] = frozenset()
    made: list[FakeExecutable] = field(default_factory=list)
    closed: int = 0
    runs: int = 0

    def supports(self, node: Node, graph: Graph) -> str | None:
        return f"no {node.op} here" if node.op in self.refuse else None

    def compile(self, segment: Graph) -> FakeExecutable:
        refused = [n.op for n in segment.nodes if n.op in self.refuse]
        if refused:
            raise UnsupportedOpError(f"no {refused[0]} here")
        if self.fail_compile is not None:
            raise self.fail_compile
        work = Work(**count(segment))
        self.clock.spend(self.compile_s * work.launches)
        warm = [False]

        def take() -> None:
            if self.fail_run is not None:
                raise self.fail_run
            steady = exact_seconds(self.truth, work) * self.noise[self.runs % len(self.noise)]
            self.clock.spend(steady if warm[0] else steady + self.cold_s)
            warm[0] = True
            self.runs += 1

        self.made.append(FakeExecutable(work, take))
        return self.made[-1]

    def close(self) -> None:
        self.closed += 1


def exact_seconds(m: DeviceModel, work: Work) -> float:
    """The documented formula written a second time, without the noise model."""
    assert m.bandwidth_bps and m.transfer_in_bps and m.transfer_out_bps
    arithmetic = sum(f / m.flops_per_s[k] for k, f in work.flops.items())
    crossing = work.bytes_in / m.transfer_in_bps + work.bytes_out / m.transfer_out_bps
    fixed = m.overhead_s + m.launch_s * work.launches
    return fixed + crossing + max(work.bytes_moved / m.bandwidth_bps, arithmetic)


def edge_gpu(device: str = "vulkan:0", **changes: Any) -> DeviceModel:
    """A plausible small GPU."""
    fields: dict[str, Any] = {
        "device": device, "launch_s": 30e-6, "overhead_s": 200e-6, "transfer_in_bps": 2e9,
        "transfer_out_bps": 1e9, "bandwidth_bps": 10e9,
        "flops_per_s": {"conv": 40e9, "matmul": 30e9, "map": 8e9}, "open_s": 0.1,
    }  # fmt: skip
    return DeviceModel(**{**fields, **changes})


def edge_cpu(**changes: Any) -> DeviceModel:
    """A plausible small CPU."""
    fields: dict[str, Any] = {
        "launch_s": 5e-6, "overhead_s": 20e-6, "transfer_in_bps": 50e9, "transfer_out_bps": 50e9,
        "bandwidth_bps": 5e9, "flops_per_s": {"conv": 8e9, "matmul": 8e9, "map": 2e9},
    }  # fmt: skip
    return edge_gpu("cpu", **{**fields, **changes})


def ms(at: float, startup: float = 0.0) -> Prediction:
    """A prediction of `at` milliseconds at the percentile, `startup` milliseconds to start."""
    ns = round(at * MS)
    return Prediction(
        ns * 3 // 4, ns, ns, ns * 3 // 8, ns * 3 // 2, round(startup * MS), "made up for a test",
        p99_ns=ns * 5 // 4, sigma_micro=TWO,
    )  # fmt: skip


@dataclass(frozen=True)
class FakeRow:
    device: str
    status: str = "ok"
    code: str = "ok"
    reason: str = "answered with the right numbers"
    name: str = ""
    is_software: bool | None = False
    identity: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = "f1"
    physical: str = ""


@dataclass(frozen=True)
class FakeReport:
    tried: tuple[FakeRow, ...] = ()

    @property
    def devices(self) -> tuple[FakeRow, ...]:
        return tuple(r for r in self.tried if r.status == "ok")
