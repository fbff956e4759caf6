"""GridSample in every mode, against ONNX Runtime, ONNX's reference and PyTorch's definition."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset import sampling
from gpuedge.runtime.crosscheck import CrossCheck

MODES, PADDINGS = ("nearest", "linear", "cubic"), ("zeros", "border", "reflection")


def model(x: Array, grid: Array, mode: str, padding: str, aligns: int) -> Any:
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding,
                            align_corners=aligns)  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [value("x", TensorProto.FLOAT, x.shape),
                      value("grid", TensorProto.FLOAT, grid.shape)],
        [value("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def clamped_taps(x: Array, grid: Array, aligns: int) -> Array:
    """Cubic interpolation of an image whose border goes on for ever, in float64."""
    high, wide = x.shape[2:]
    far = 40
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (far, far), (far, far)), mode="edge")
    y = np.zeros((x.shape[0], x.shape[1], *grid.shape[1:3]))
    for n, i, j in np.ndindex(grid.shape[:3]):
        places, taps = [], []
        for g, size in zip(grid[n, i, j, ::-1].astype(np.float64), (high, wide), strict=True):
            place = (g + 1) * (size - 1) / 2 if aligns else ((g + 1) * size - 1) / 2
            places.append(int(np.floor(place)) + far)
            d = np.abs(place - np.floor(place) - np.arange(-1, 3))
            near = 1.25 * d**3 - 2.25 * d**2 + 1
            outer = -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
            taps.append(np.where(d <= 1, near, outer))
        top, left = places
        patch = padded[n, :, top - 1 : top + 3, left - 1 : left + 3]
        y[n, :, i, j] = np.einsum("chw,h,w->c", patch, *taps)
    return y


@pytest.mark.parametrize(("mode", "padding", "aligns"), [*product(MODES, PADDINGS, (0, 1))])
def test_every_mode(mode: str, padding: str, aligns: int) -> None:
    rng = np.random.default_rng(3)
    for shape in ((2, 3, 5, 6), (1, 2, 4, 5, 3)):
        rank = len(shape) - 2
        if mode == "cubic" and rank == 3:
            continue  # ONNX Runtime has none
        x = rng.standard_normal(shape).astype(np.float32)
        grid = rng.uniform(-1.8, 1.8, (shape[0], *(6,) * rank, rank)).astype(np.float32)
        proto, feeds = model(x, grid, mode, padding, aligns), {"x": x, "grid": grid}
        graph = OnnxModel.load(proto).specialise({n: a.shape for n, a in feeds.items()})
        ours = CpuExecutor(engine="numpy").compile(graph).run(feeds)["y"]
        (theirs,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
        if (mode, padding) == ("cubic", "border"):
            wanted = clamped_taps(x, grid, aligns)
        else:
            (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("place", [-1e9, 1e9, -np.inf, np.inf])
def test_far_outside_a_cubic_is_the_border(place: float) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    grid = np.float32([[[[place, 0]]]])
    feeds = {"x": x, "grid": grid}
    proto = model(x, grid, "cubic", "border", 0)
    graph = OnnxModel.load(proto).specialise({n: a.shape for n, a in feeds.items()})
    (y,) = CpuExecutor(engine="numpy").compile(graph).run(feeds)["y"].ravel()
    assert y == (0 if place < 0 else 3)


def test_a_description_that_is_not_the_cpus_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with kernels of that description agrees with it; the CPU's answer is another."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((1, 2, 5, 6)).astype(np.float32)
    grid = rng.uniform(-1, 1, (1, 4, 4, 2)).astype(np.float32)
    feeds = {"x": x, "grid": grid}
    graph = OnnxModel.load(model(x, grid, "cubic", "border", 0)).specialise(
        {n: a.shape for n, a in feeds.items()}
    )
    right = CpuExecutor().compile(graph).run(feeds)
    taps = sampling._taps

    def clamping(mode: str, padding: str, place: Any, ends: Any, n: int) -> Any:
        return taps("linear" if mode == "cubic" else mode, padding, place, ends, n)

    monkeypatch.setattr(sampling, "_taps", clamping)
    wrong = CpuExecutor(engine="numpy").compile(graph).run(feeds)
    assert np.abs(wrong["y"] - right["y"]).max() > 0.1
    check = CrossCheck(graph, 1.0, CpuExecutor())
    said = check.compare(feeds, wrong, lambda _: right)
    assert said is not None and "differ from the CPU's" in said
