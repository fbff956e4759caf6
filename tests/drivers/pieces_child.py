"""Random graphs as one submission and as one per pass, and progress of long work.

Usage: python pieces_child.py LEVEL GRAPHS FIRST

Runs so many graphs of more than one pass, from a seed on. Prints one JSON document: how many ran,
how many passes they had, the seeds whose results differ, and how often a long run told of progress.
The environment chooses the driver.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from modelgen.judge import graph_of
from modelgen.networks import random_case

from gpuedge import backends
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.executors import gpu
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType


def compare(executor: GpuExecutor, graphs: int, first: int, body: dict[str, Any]) -> None:
    """Run random graphs whole and pass by pass, and note what differs in any bit."""
    for seed in count(first):
        if body["graphs"] == graphs:
            return
        _, case = random_case(seed)
        graph = graph_of(case)
        if any(executor.supports(node, graph) for node in graph.nodes):
            continue
        try:
            executable = executor.compile(graph)
        except UnsupportedOpError:  # integers that grow on the way
            continue
        feeds = {name: case.feeds[name] for name in graph.inputs}
        whole = executable.run(feeds)
        passes = len(executable.plan.passes)
        if passes > 1:
            with executor.building():
                executable._record(list(range(1, passes + 1)))
            for _ in range(2):
                executable.poison()
                found = executable.run(feeds)
                if any(whole[n].tobytes() != found[n].tobytes() for n in graph.outputs):
                    body["different"].append(seed)
            body["graphs"] += 1
            body["passes"] += passes
        executable.close()


def long(executor: GpuExecutor, body: dict[str, Any]) -> None:
    """Run a product of matrices that is long for its pieces, and count how often it told."""
    side, products = (512 if "group" in executor.caps.forms else 128), 24
    builder = GraphBuilder()
    x = builder.input("x", TensorType("float32", (side, side)))
    y = x
    for _ in range(products):
        y = builder.add("MatMul", [y, x])
    builder.output(y)
    executable = executor.compile(builder.build())
    order = np.random.default_rng(1).permutation(side)
    feeds = {"x": np.eye(side, dtype=np.float32)[order]}
    times = []
    for _ in range(4):
        start = time.perf_counter()
        executable.run(feeds)
        times.append(time.perf_counter() - start)
    gpu.PIECE_S = min(times) / 8
    for _ in range(3):  # slow, slow again and cut, in pieces
        (result,) = executable.run(feeds).values()
    wanted = np.arange(side)
    for _ in range(products + 1):
        wanted = order[wanted]
    body["right"] = bool((result == np.eye(side, dtype=np.float32)[wanted]).all())
    body["pieces"], before = len(executable.recordings), executable.watchdog.pieces_done
    executable.run(feeds)
    body["told"] = executable.watchdog.pieces_done - before
    executable.close()


def main(level: str, graphs: int, first: int) -> None:
    """Open the first device of a level, try it and print what was found."""
    backend = backends.load(level)
    info = backend.enumerate(next(iter(backend.candidates(os.environ))))[0]
    executor = GpuExecutor(backend.open(info), level)
    body: dict[str, Any] = {"graphs": 0, "passes": 0, "different": []}
    compare(executor, graphs, first, body)
    long(executor, body)
    executor.close()
    print(json.dumps(body))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
