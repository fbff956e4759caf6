"""States of a decision that the tests share: a GPU in every phase, and what is known of it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from gpuedge.decide.belief import Belief
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.decision_record import DecisionRecord, DeviceCandidate
from gpuedge.decide.policy import Policy

MS = 10**6
CPU = DeviceCandidate("cpu", is_software=False, latency_ns=3_700_000, served=12)


def ppm(value: float) -> int:
    """Return a number in millionths."""
    return round(value * 10**6)


def predicted(theta: float = -1.1, device: str = "vulkan:0", **more: Any) -> DeviceCandidate:
    """Return a GPU that was not opened; theta is ln(GPU latency / CPU latency)."""
    fields: dict[str, Any] = {
        "phase": "closed", "name": "Mali-G52", "is_software": False, "predicted_ns": 1_200_000,
        "startup_ns": 200 * MS, "belief": Belief(ppm(theta), ppm(1.2), 0),
    }  # fmt: skip
    return DeviceCandidate(device, **{**fields, **more})


def measured(gpu_ms: float, cpu_ms: float = 3.7, **more: Any) -> DeviceCandidate:
    """Return a GPU that was compared with the CPU path and says of itself what was measured."""
    fields: dict[str, Any] = {
        "phase": "ready", "belief": Belief(ppm(math.log(gpu_ms / cpu_ms)), ppm(0.02), 3),
        "latency_ns": round(gpu_ms * MS),
    }  # fmt: skip
    return replace(predicted(), **{**fields, **more})


def decided(*candidates: DeviceCandidate, asked: str = "auto", **more: Any) -> Decision:
    """Return the decision; `more` are fields of `DecisionRecord`, else of `Policy`."""
    known = {"requests": 12, "database": "12 (embedded)"} | {
        name: more.pop(name) for name in list(more) if name in DecisionRecord.__dataclass_fields__
    }
    return decide(DecisionRecord(asked, Policy(**more), candidates, "0.1.0", **known))


def quadrature(mean: float, sd: float, k: float, points: int = 40_000) -> tuple[float, float]:
    """E(k - X)+ and E(X - k)+ of X = exp(N(mean, sd)), by the trapezoidal rule."""
    cpu = gpu = 0.0
    step = 20.0 / points
    for i in range(points + 1):
        z = -10.0 + i * step
        x = math.exp(mean + sd * z)
        weight = step * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        cpu += weight * max(k - x, 0.0)
        gpu += weight * max(x - k, 0.0)
    return cpu, gpu


LLVMPIPE = DeviceCandidate("vulkan:0", name="llvmpipe", is_software=True)
ABSENT = DeviceCandidate("vulkan", "no-loader", "libvulkan.so.1 was not found.")
BARE = DeviceCandidate(
    "vulkan", "no-device", "the driver loads but offers no device", name="a.json"
)
LATE_CPU = replace(CPU, at_ns=30 * MS)
OTHER_GPU = {"device": "vulkan:1", "name": "Adreno"}

case = partial(decided, previous_requests=(100, 870))

CASES: dict[str, Decision] = {
    "no driver": case(CPU),
    "absent": case(ABSENT, CPU),
    "drivers without a device": case(BARE, BARE, CPU),
    "software": case(BARE, LLVMPIPE, CPU),
    "probing ruled it out": case(predicted(code="quirk", detail="adreno-1234 forbids it."), CPU),
    "too much memory": case(measured(1.2, memory_bytes=5 << 30), CPU, max_memory_bytes=1 << 30),
    "does not pay yet": case(predicted(), CPU),
    "predicted slower": case(predicted(0.7), CPU, requests=1),
    "nothing known of it": case(predicted(startup_ns=0), replace(CPU, latency_ns=0)),
    "little known of it": case(predicted(), replace(CPU, latency_ns=0)),
    "pays by now": case(predicted(), CPU, requests=118),
    "paid in earlier launches": case(measured(1.2, phase="closed", latency_ns=0), CPU),
    "opening": case(predicted(phase="opening"), CPU),
    "opening is late": case(predicted(phase="late", waited_ns=4 * 10**9, retry_ns=30 * 10**9), CPU),
    "on trial": case(measured(1.2, phase="trial"), CPU),
    "failed": case(predicted(phase="failed", code="compile-failed"), CPU),
    "faster": case(measured(1.2), CPU),
    "faster at load": case(measured(1.2), CPU, decide="load"),
    "faster before": case(measured(1.2, latency_ns=0), CPU),
    "slower": case(measured(4.8, phase="lost"), CPU),
    "answers next": case(measured(1.2), CPU, in_use="cpu", waits_ns=0),
    "answers soon": case(measured(1.2), CPU, in_use="cpu", waits_ns=34_400 * MS),
    "not yet the CPU": case(measured(4.8), CPU, in_use="vulkan:0", waits_ns=3_000 * MS),
    "too little": case(measured(3.4), CPU),
    "about the same": case(measured(3.8), CPU),
    "demoted": case(measured(1.2, is_demoted=True), measured(2.0, **OTHER_GPU), CPU),
    "two GPUs": case(measured(1.2), measured(1.5, **OTHER_GPU), CPU),
    "demoted, but alone": case(measured(1.2, is_demoted=True), CPU),
    "two routes to one device": case(
        measured(1.2, physical="a"),
        predicted(device="gles31:0", physical="a"),
        predicted(-2.0, device="gles31:1", physical="b"),
        CPU,
    ),
    "deadline kept by a GPU": case(
        measured(3.6, at_ns=15 * MS),
        measured(1.2, at_ns=25 * MS, **OTHER_GPU),
        LATE_CPU,
        deadline_s=0.02,
    ),
    "deadline missed by all": case(
        measured(3.6, at_ns=28 * MS),
        measured(5.0, at_ns=25 * MS, **OTHER_GPU),
        LATE_CPU,
        deadline_s=0.02,
    ),
    "deadline missed by all, the CPU is the fastest": case(
        measured(3.6, at_ns=35 * MS), LATE_CPU, deadline_s=0.02
    ),
    "deadline missed by the CPU, nothing compared": case(
        predicted(phase="opening"), LATE_CPU, deadline_s=0.02
    ),
    "deadline kept by the CPU alone": case(
        measured(1.2, at_ns=25 * MS), replace(CPU, at_ns=18 * MS), deadline_s=0.02
    ),
    "software allowed": case(
        measured(1.2, name="llvmpipe", is_software=True), CPU, allow_software=True
    ),
    "named": case(LLVMPIPE, CPU, asked="vulkan:0"),
    "named cpu": case(measured(1.0), ABSENT, CPU, asked="cpu"),
    "named, with operators it lacks": case(
        predicted(code="unsupported-op", detail="no Einsum here"), CPU, asked="vulkan:0"
    ),
    "named, and failed since": case(
        predicted(device="gles31:0"),
        predicted(code="device-lost", detail=""),
        CPU,
        asked="vulkan:0",
    ),
}
"""Every state with its name; what is decided in it is in tests/golden/decisions."""
