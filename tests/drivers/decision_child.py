"""A process that serves one model under ``auto``, on a CPU path as slow as it is told to be.

Usage: decision_child.py MILLISECONDS KIND SECONDS; prints a JSON object. It serves until a GPU
answers, or for so many seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import gpuedge
from gpuedge.decide.decision import Decision
from gpuedge.executors.base import Executable
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.executors.gpu import GpuExecutable
from gpuedge.graph.ir import Array, Graph
from gpuedge.graph.shaped import ShapedModel

SIDE, CHANNELS = 40, 24


def model(kind: str) -> ModelProto:
    """Return two convolutions; ``mixed`` ends in what no GPU here has a kernel for."""
    rng = np.random.default_rng(0)
    nodes, weights, before, width = [], [], "x", 3
    for i in range(2):
        w = (rng.standard_normal((CHANNELS, width, 3, 3)) * 0.1).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes.append(helper.make_node("Conv", [before, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        before, width = f"c{i}", CHANNELS
    if kind == "mixed":
        nodes.append(helper.make_node("Binarizer", [before], ["y"], domain="ai.onnx.ml"))
    else:
        nodes.append(helper.make_node("Relu", [before], ["y"]))
    shapes = [[1, 3, SIDE, SIDE], [1, CHANNELS, SIDE, SIDE]]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("xy", shapes, strict=True)
    )
    graph = helper.make_graph(nodes, "two", [x], [y], weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


class Slow:
    """An executable that takes so much longer."""

    def __init__(self, inner: Executable, seconds: float) -> None:
        self.inner, self.seconds = inner, seconds
        self.rows = inner.rows

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Wait, then compute."""
        time.sleep(self.seconds)
        return self.inner.run(inputs)

    def close(self) -> None:
        """Close."""
        self.inner.close()


def main(milliseconds: float, kind: str, seconds: float) -> dict[str, object]:
    """Load the model, serve, and say what was decided.

    The CPU takes so many milliseconds longer; below 0 the driver does.
    """
    compile_, load_ = CpuExecutor.compile, CpuExecutor.load
    x = np.random.default_rng(1).standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)
    with gpuedge.Session(model(kind), device="cpu") as alone:
        wanted = alone.run({"x": x})["y"]

    def slow(self: CpuExecutor, segment: Graph) -> Executable:
        work = sum(name in segment.constants for name in ("w0", "w1")) / 2
        return Slow(compile_(self, segment), milliseconds / 1e3 * work)

    def slow_whole(self: CpuExecutor, model: ShapedModel) -> Executable:
        return Slow(load_(self, model), milliseconds / 1e3)

    run = GpuExecutable.run

    def slow_driver(self: GpuExecutable, *operands: Any, **options: Any) -> dict[str, Array]:
        time.sleep(-milliseconds / 1e3)
        return run(self, *operands, **options)

    if milliseconds >= 0:
        CpuExecutor.compile = slow  # type: ignore[method-assign]
        CpuExecutor.load = slow_whole  # type: ignore[method-assign]
    else:
        GpuExecutable.run = slow_driver  # type: ignore[method-assign]
    policy = gpuedge.Policy(allow_software=True, min_speedup=1.0)
    with gpuedge.Session(model(kind), policy=policy) as session:
        worst, until, served = 0.0, time.perf_counter() + seconds, 0
        while time.perf_counter() < until and not session.health.on_device:
            found = session.run({"x": x})["y"]
            worst = max(worst, float(np.abs(found - wanted).max() / np.abs(wanted).max()))
            served += 1
        decision, health = session.explain(), session.health
        text = decision.to_json()
        known = decision.record.candidates
        return {
            "device": decision.device,
            "served": served,
            "places": [row.device for row in session.placement for _ in row.nodes],
            "apart": worst,
            "codes": {row.device: row.code for row in decision.rows},
            "windows": max((c.belief.windows for c in known if c.belief), default=0),
            "replays": Decision.from_dict(json.loads(text)).replay().to_json() == text,
            "health": health.to_dict(),
            "said": decision.explain(verbose=True),
        }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), sys.argv[2], float(sys.argv[3]))))
