"""Computes quantised operators on a device; run by test_quantised for each configuration.

``python quantised_child.py DEVICE`` prints a JSON object: how many values of each case are wrong,
and of those that products of bytes serve where the driver's are taken to be fast.
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


def whole_network() -> Case:
    """Return a network whose quantised parts are rewritten, and what numpy makes of it."""
    x = np.random.default_rng(12).uniform(-2, 2, (2, 3, 8, 10)).astype(np.float32)
    graph = OnnxModel.load(network()).specialise({"x": x.shape})
    (wanted,) = CpuExecutor(engine="numpy").compile(graph).run({"x": x}).values()
    return Case(graph, {"x": x}, wanted)


def main(device: str) -> None:
    """Compare bit for bit."""
    found, in_bytes = {}, {}
    with gpuedge.open(device) as opened:
        executor, caps = opened.executor, opened.caps
        cases = {**LARGE, "network": whole_network}
        for name, make in cases.items():
            found[name], _ = wrong(executor, make())
        if caps.dot_products:
            other = GpuExecutor(executor.impl, device)
            other.caps = replace(caps, dot_products=2)
            for name in ("wide product", "byte product", "short product", "network"):
                in_bytes[name] = wrong(other, cases[name]())
        print(json.dumps({"level": caps.level, "wrong": found, "in_bytes": in_bytes}))


def wrong(executor: Executor, case: Case) -> tuple[int, bool]:
    """Return how many values are wrong, and whether products of bytes gave some of them."""
    made = executor.compile(case.graph)
    (got,) = made.run(case.inputs).values()
    kernels = {kernel for row in made.rows for kernel in row.kernel.split("+")}
    made.close()
    return int(np.sum(got != case.wanted)), "matmul_bytes" in kernels


if __name__ == "__main__":
    main(sys.argv[1])
