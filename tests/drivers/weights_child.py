"""Computes models with weights of few bits on a device; run by test_packed for each configuration.

``python weights_child.py DEVICE`` prints a JSON object: the level, how many values of each case are
wrong, and what constants take of the device's memory.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from packed_cases import CASES

import gpuedge
from gpuedge.graph.reader import OnnxModel


def main(device: str) -> None:
    """Compare bit for bit."""
    wrong, held = {}, {}
    with gpuedge.open(device) as opened:
        for name, make in CASES.items():
            proto, feeds, wanted = make()
            graph = OnnxModel.load(proto).specialise({n: v.shape for n, v in feeds.items()})
            made = opened.executor.compile(graph)
            wrong[name] = int(np.sum(made.run(feeds)["y"] != wanted))
            tensors = [t for t in made.plan.tensors.values() if t.is_constant]
            held[name] = sum(t.nbytes for t in tensors if t.memory == t.name)
            made.close()
        print(json.dumps({"level": opened.caps.level, "wrong": wrong, "held": held}))


if __name__ == "__main__":
    main(sys.argv[1])
