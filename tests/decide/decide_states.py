"""States of a decision that the tests share: a GPU in every phase, and what is known of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuedge.decide.belief import Belief
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import DeviceCandidate, Record

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
    from math import log

    fields: dict[str, Any] = {
        "phase": "ready", "belief": Belief(ppm(log(gpu_ms / cpu_ms)), ppm(0.02), 3),
        "latency_ns": round(gpu_ms * MS),
    }  # fmt: skip
    return replace(predicted(), **{**fields, **more})


def decided(*candidates: DeviceCandidate, asked: str = "auto", **more: Any) -> Decision:
    """Return the decision; of `more`, what is a field of `Record` goes there, else to `Policy`."""
    known = {"requests": 12, "database": "12 (embedded)"} | {
        name: more.pop(name) for name in list(more) if name in Record.__dataclass_fields__
    }
    return decide(Record(asked, Policy(**more), candidates, "0.1.0", **known))
