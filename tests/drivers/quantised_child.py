"""Computes quantised operators on a device; run by test_quantised for each configuration.

``python quantised_child.py DEVICE FIRST STEP`` prints a JSON object: how many values of every
STEP-th case are wrong.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from quantised_cases import LARGE, Case
from quantised_model import network

import gpuedge
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.reader import OnnxModel


def whole_network() -> Case:
    """Return a network whose quantised parts are rewritten, and what numpy makes of it."""
    x = np.random.default_rng(12).uniform(-2, 2, (2, 3, 8, 10)).astype(np.float32)
    graph = OnnxModel.load(network()).specialise({"x": x.shape})
    (wanted,) = CpuExecutor(engine="numpy").compile(graph).run({"x": x}).values()
    return Case(graph, {"x": x}, wanted)


def main(device: str, first: int, step: int) -> None:
    """Compare bit for bit."""
    found = {}
    with gpuedge.open(device) as opened:
        cases = {**LARGE, "network": whole_network}
        for name, make in islice(cases.items(), first, None, step):
            case = make()
            made = opened.executor.compile(case.graph)
            (got,) = made.run(case.inputs).values()
            made.close()
            found[name] = int(np.sum(got != case.wanted))
        print(json.dumps({"level": opened.caps.level, "wrong": found}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
