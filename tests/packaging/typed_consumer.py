"""What a program that is checked strictly writes with gpuedge."""

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import gpuedge

Arrays = dict[str, npt.NDArray[Any]]


def load(path: str, device: gpuedge.DeviceName, fallback: gpuedge.Fallback) -> gpuedge.Session:
    policy = gpuedge.Policy(storage="float16", tune="fast", decide="load", arithmetic="float16")
    return gpuedge.Session(path, device=device, policy=policy, fallback=fallback)


def use(session: gpuedge.Session, x: npt.NDArray[np.float32]) -> tuple[gpuedge.PlacementRow, ...]:
    assert_type(session.run({"x": x}), Arrays)
    assert_type(session.run(None, {"x": x}), list[npt.NDArray[Any]])
    assert_type(session.run_async({"x": x}), gpuedge.Answer[Arrays])
    assert_type(session.explain(), gpuedge.Decision)
    assert_type(session.health, gpuedge.Health)
    return session.placement


async def serve(session: gpuedge.Session, x: npt.NDArray[np.float32]) -> Arrays:
    return await session.run_async({"x": x})


def look(report: gpuedge.ProbeReport) -> dict[str, gpuedge.ProbeStatus]:
    best: gpuedge.ProbeRow | None = report.best
    assert best is None or best.status == "ok"
    return {row.device: row.status for row in report.tried}


def tell(step: gpuedge.ProbeProgress) -> None:
    print(step.stage == "started", step.done, step.total)


def rows(decision: gpuedge.Decision) -> list[gpuedge.CandidateRow]:
    return list(decision.rows)


def convolve(x: Any, w: Any, activation: gpuedge.Activation) -> npt.NDArray[Any]:
    formula: gpuedge.Elementwise = gpuedge.elementwise("a * 2")
    stays: gpuedge.DeviceArray = gpuedge.array(x, device="vulkan:1")
    print(gpuedge.explain(gpuedge.relu, stays).device, formula(x))
    return gpuedge.conv2d(x, w, padding="same", activation=activation, device="auto")


look(gpuedge.probe(progress=tell))
load("net.onnx", "vulkan:1", "error")
# Each of these is refused; a comment that is not needed is an error, too.
load("net.onnx", "cpu", "gpu")  # type: ignore[arg-type]
gpuedge.Session("net.onnx", fallback="gpu")  # type: ignore[arg-type]
gpuedge.Session("net.onnx", isolation="thread")  # type: ignore[arg-type]
gpuedge.Policy(tune="slow")  # type: ignore[arg-type]
gpuedge.conv2d(0, 0, activation="swish")  # type: ignore[arg-type]
gpuedge.conv2d(0, 0, padding="full")  # type: ignore[arg-type]
gpuedge.pad(0, [], mode="mirror")  # type: ignore[arg-type]
gpuedge.Session("net.onnx").run(x=0)  # type: ignore[call-overload]
missing = gpuedge.no_such_name  # type: ignore[attr-defined]
