"""Runs networks exported by PyTorch whole on a device; run by test_torch_models.

``python torch_child.py DEVICE NAME...`` prints a list: of each network its name, the shape of its
input, whether integers are ONNX Runtime's, the largest error of the others in units of what is
allowed, and on what its nodes ran.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

import gpuedge
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset.bounds import TINY
from gpuedge.opset.errors import HUGE
from gpuedge.runtime.crosscheck import FACTOR, RunningErrors

FOLDER = Path(__file__).resolve().parents[1] / "models" / "torch"
SEED = 3
OPEN = {
    "unet_dynamic": ((1, 3, 36, 44), (2, 3, 52, 40)),
    "unet_script": ((1, 3, 36, 44), (2, 3, 52, 40)),
    "deeplab_dynamic": ((1, 3, 36, 44), (1, 3, 52, 40)),
    "decoder_dynamic": ((1, 5), (2, 9)),
    "tagger_script": ((1, 5), (2, 9)),
}
"""Shapes of inputs whose sizes are open; of others only the batch is."""


def shapes_of(name: str, given: Any) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of inputs that a network is run with."""
    if isinstance(given.shape[0], int):
        return OPEN.get(name, (tuple(given.shape),))
    return OPEN.get(name, ((1, *given.shape[1:]), (3, *given.shape[1:])))


def most(graph: Any, feeds: dict[str, Any], name: str) -> dict[str, Any]:
    """Return how far each output may be from ONNX Runtime's.

    Which boxes are picked, inexact numbers tell. Where the same ones are, they are as exact as all
    boxes and scores together before the picking. Masks of -3.4e38 are too near to infinity to be
    bounded; exp(-1e4), too, is 0 in float64.
    """
    masked = {
        n: np.where(a < -HUGE, a.dtype.type(-1e4), a) if a.dtype.kind == "f" else a
        for n, a in graph.constants.items()
    }
    graph = replace(graph, constants=masked)
    errors = RunningErrors(graph, feeds, CpuExecutor()).values
    if name != "detector":
        return {n: FACTOR * errors[n].e + TINY for n in graph.outputs}
    first = {"boxes": "Clip", "scores": "ReduceMax", "labels": "ArgMax"}
    made = {n.op: n.outputs[0] for n in graph.nodes}
    return {n: FACTOR * errors[made[op]].e.max() + TINY for n, op in first.items()}


def one(device: str, name: str) -> list[tuple[Any, ...]]:
    """Return a row for each shape of a network's input."""
    file, rows = FOLDER / f"{name}.onnx", []
    rng = np.random.default_rng(SEED)
    runtime = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (given,) = runtime.get_inputs()
    policy = gpuedge.Policy(crosscheck=0.0)
    with gpuedge.Session(file, device=device, fallback="error", policy=policy) as session:
        for shape in shapes_of(name, given):
            x: npt.NDArray[Any] = rng.uniform(0, 1, shape).astype(np.float32)
            if given.type == "tensor(int64)":
                x = rng.integers(1, 128, shape)
            wanted = dict(zip(session.outputs, runtime.run(None, {given.name: x}), strict=True))
            allowed = most(OnnxModel.load(file).specialise({given.name: shape}), {given.name: x},
                           name)  # fmt: skip
            found = session.run({given.name: x})
            is_same, worst = True, 0.0
            for output, want in wanted.items():
                got = found[output]
                if got.shape != want.shape or (want.dtype.kind != "f" and (got != want).any()):
                    is_same = False
                elif want.dtype.kind == "f":
                    assert np.isfinite(allowed[output]).all(), output
                    away = np.abs(got.astype(np.float64) - want)
                    worst = max(worst, float((away / allowed[output]).max(initial=0)))
            places = sorted({row.device for row in session.placement})
            rows.append((name, shape, is_same, worst, places))
    return rows


if __name__ == "__main__":
    print(json.dumps([row for name in sys.argv[2:] for row in one(sys.argv[1], name)]))
