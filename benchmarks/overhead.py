"""What gpuedge adds to one inference: over onnxruntime on the CPU, over bare submits on a GPU."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import onnxruntime
from common import devices, medians, report
from onnx import TensorProto, helper
from truth.models import MODELS, NETWORKS, sample

import gpuedge


def relu_model(size: int) -> bytes:
    """Return a model of one Relu over `size` values: as little work as a model can have."""
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [size]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "relu", value[:1], value[1:]
    )
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())


ALONE_S, TURNS = 1.0, 5
"""Seconds of requests, and how many processes of each side take turns."""


def alone(name: str, side: str) -> tuple[float, float]:
    """Return p50 and p90 (s) of requests back to back, of one side that has the process to itself.

    Threads of ONNX Runtime wait for the next run, and would disturb another side in between.
    """
    model = MODELS[name]()
    plain = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {"x": sample(tuple(plain.get_inputs()[0].shape))}
    if side == "auto":
        del plain
        session = gpuedge.Session(model)
        took = taken(lambda: session.run(feeds), ALONE_S)
    else:
        took = taken(lambda: plain.run(None, feeds), ALONE_S)
    return statistics.median(took), statistics.quantiles(took, n=10)[-1]


def taken(run: Callable[[], object], seconds: float) -> list[float]:
    """Return what each call took; the first fifty do not count."""
    for _ in range(50):
        run()
    took, end = list[float](), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        run()
        took.append(time.perf_counter() - start)
    return took


def served(name: str) -> list[object]:
    """A network under ``auto``, where the CPU answers, against ONNX Runtime as it is.

    Each side runs in processes of its own, in turns; the least of each counts, for what others do
    on the machine only ever adds.
    """
    least = dict.fromkeys(("auto", "plain"), (math.inf, math.inf))
    for _ in range(TURNS):
        for side in least:
            command = [sys.executable, __file__, "--alone", name, side]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            least[side] = min(least[side][0], found[0]), min(least[side][1], found[1])
    mine, theirs = least["auto"], least["plain"]
    ratios = [f"{a / b:.2f}" for a, b in zip(mine, theirs, strict=True)]
    return [name, *(f"{s * 1e6:.0f}" for s in (*mine, *theirs)), *ratios]


def main() -> None:
    """Measure and print."""
    if "--alone" in sys.argv:
        print(json.dumps(alone(*sys.argv[-2:])))
        return
    report(
        "networks under auto where the CPU answers, microseconds per inference",
        ("network", "auto p50", "p90", "onnxruntime p50", "p90", "p50 /", "p90 /"),
        [served(name) for name in NETWORKS],
    )
    model, x = relu_model(16), np.ones(16, np.float32)
    direct = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    rows = []
    for device in ("auto", "cpu"):
        with gpuedge.Session(model, device=device) as session:
            found = medians(
                {
                    "direct": lambda: direct.run(None, {"x": x}),
                    "session": lambda s=session: s.run({"x": x}),
                    "op": lambda d=device: gpuedge.relu(x, device=d),
                }
            )
        for name, what in (("session", "Session.run"), ("op", "gpuedge.relu")):
            rows.append(row(device, what, "onnxruntime alone", found[name], found["direct"]))
    for device in devices():
        with gpuedge.Session(model, device=device, fallback="error") as session:
            session.run({"x": x})
            executable = session._latest.choice.placed.whole  # the recorded work itself
            impl, recording = executable.executor.impl, executable.recordings[0]
            found = medians(
                {
                    "bare": lambda i=impl, r=recording: i.wait(i.submit(r), 10.0),
                    "session": lambda s=session: s.run({"x": x}),
                }
            )
        rows.append(
            row(device, "Session.run", "bare submit + wait", found["session"], found["bare"])
        )
    report(
        "one kernel over 16 values, microseconds per inference",
        ("device", "call", "compared with", "us", "peer us", "ratio"),
        rows,
    )


def row(device: str, what: str, peer: str, mine: float, theirs: float) -> tuple[str, ...]:
    """Return one line of the table."""
    return device, what, peer, f"{mine * 1e6:.1f}", f"{theirs * 1e6:.1f}", f"{mine / theirs:.2f}"


if __name__ == "__main__":
    main()
