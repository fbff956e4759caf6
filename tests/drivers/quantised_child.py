"""Computes quantised operators on a device; run by test_quantised for each configuration.

``python quantised_child.py DEVICE`` prints a JSON object: how many values of each case are wrong,
of those that products of bytes serve where the driver's are taken to be fast, and of those whose
weights are bytes on the device where it is taken for a GPU.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from quantised_cases import LARGE, Case
from quantised_model import network

import gpuedge
from gpuedge.executors.base import Executor
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.reader import OnnxModel

CONVOLUTIONS = ("byte convolution", "long byte convolution", "whole byte convolution",
                "unsigned weights")  # fmt: skip
FOURS = ("wide product", "byte product", "short product", *CONVOLUTIONS)
"""What is multiplied four bytes at a time."""


def whole_network() -> Case:
    """Return a network whose quantised parts are rewritten, and what numpy makes of it."""
    x = np.random.default_rng(12).uniform(-2, 2, (2, 3, 8, 10)).astype(np.float32)
    graph = OnnxModel.load(network()).specialise({"x": x.shape})
    (wanted,) = CpuExecutor(engine="numpy").compile(graph).run({"x": x}).values()
    return Case(graph, {"x": x}, wanted)


def main(device: str) -> None:
    """Compare bit for bit."""
    found, in_bytes, kept = {}, {}, {}
    with gpuedge.open(device) as opened:
        executor, caps = opened.executor, opened.caps
        cases = {**LARGE, "network": whole_network}
        for name, make in cases.items():
            found[name], _ = wrong(executor, make())
        if caps.dot_products:
            other = GpuExecutor(executor.impl, device)
            other.caps = replace(caps, dot_products=2)
            for name in (*FOURS, "network"):
                in_bytes[name] = wrong(other, cases[name]())
        other = GpuExecutor(executor.impl, device)
        other.caps = replace(caps, device_class="arm", dot_products=0)
        for name in (*CONVOLUTIONS, "byte product"):
            made = other.compile((case := cases[name]()).graph)
            (got,) = made.run(case.inputs).values()
            bytes_kept = sum(t.nbytes for t in made.plan.tensors.values()
                             if t.is_constant and t.storage.dtype == "int8")  # fmt: skip
            kept[name] = int(np.sum(got != case.wanted)), bytes_kept > 0
            made.close()
        print(json.dumps(
            {"level": caps.level, "wrong": found, "in_bytes": in_bytes, "kept": kept}
        ))  # fmt: skip


def wrong(executor: Executor, case: Case) -> tuple[int, bool]:
    """Return how many values are wrong, and whether products of bytes gave some of them."""
    made = executor.compile(case.graph)
    (got,) = made.run(case.inputs).values()
    kernels = {kernel for row in made.rows for kernel in row.kernel.split("+")}
    made.close()
    return int(np.sum(got != case.wanted)), not kernels.isdisjoint(("matmul_bytes", "conv2d_bytes"))


if __name__ == "__main__":
    main(sys.argv[1])
