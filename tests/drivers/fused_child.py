"""Computes what ONNX Runtime's optimiser writes on a device; run by test_fused_run.

``python fused_child.py DEVICE CASE...`` prints a JSON object: the level, by case how many bounds a
value is off at most, and why cases were refused.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from fused_cases import CASES

import gpuedge
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.opset.errors import allowed
from gpuedge.runtime.crosscheck import RunningErrors


def main(device: str, *names: str) -> None:
    """Compare with ONNX Runtime."""
    off, refused = {}, {}
    with gpuedge.open(device) as opened:
        for name in names:
            case = CASES[name]
            graph, feeds = case.made()
            theirs = CpuExecutor(engine="onnxruntime").compile(graph).run(feeds)
            bounds = RunningErrors(graph, feeds, CpuExecutor(engine="numpy"))
            try:
                made = opened.executor.compile(graph)
            except UnsupportedOpError as error:
                refused[name] = str(error)
                continue
            ours, worst = made.run(feeds), 0.0
            made.close()
            for output, want in theirs.items():
                most = np.broadcast_to(allowed(bounds.values[output], is_whole=False), want.shape)
                apart = np.abs(ours[output].astype(np.float64) - want)
                with np.errstate(all="ignore"):
                    times = np.where(apart > 0, apart / most, 0)
                worst = max(worst, float(times.max()))
            off[name] = worst
        print(json.dumps({"level": opened.caps.level, "off": off, "refused": refused}))


if __name__ == "__main__":
    main(*sys.argv[1:])
