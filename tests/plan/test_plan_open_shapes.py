"""Models whose resizing, padding and expanding depend on the shapes of their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import model, value, weight
from planrun import TEXTURES, WIDE, run_graph

from gpuedge.graph.reader import OnnxModel

NODE = helper.make_node


def ints(**held: Any) -> list[Any]:
    return [weight(name, np.array(array, np.int64)) for name, array in held.items()]


def doubled() -> Any:
    nodes = [
        NODE("Shape", ["x"], ["s"]), NODE("Slice", ["s", "i0", "i2"], ["nc"]),
        NODE("Slice", ["s", "i2", "i4"], ["hw"]), NODE("Mul", ["hw", "i2"], ["twice"]),
        NODE("Concat", ["nc", "twice"], ["t"], axis=0),
        NODE("Resize", ["x", "", "", "t"], ["y"], mode="nearest"),
    ]  # fmt: skip
    return nodes, ints(i0=[0], i2=[2], i4=[4])


def padded() -> Any:
    nodes = [
        NODE("Shape", ["x"], ["s"], start=2, end=3), NODE("Mod", ["s", "eight"], ["m"]),
        NODE("Sub", ["eight", "m"], ["d"]), NODE("Mod", ["d", "eight"], ["p"]),
        NODE("Concat", ["none", "p", "one"], ["pads"], axis=0), NODE("Pad", ["x", "pads"], ["y"]),
    ]  # fmt: skip
    return nodes, ints(eight=[8], none=[0] * 6, one=[0])


def expanded() -> Any:
    nodes = [
        NODE("Shape", ["x"], ["s"]), NODE("Expand", ["b", "s"], ["e"]),
        NODE("Add", ["e", "x"], ["y"]),
    ]  # fmt: skip
    return nodes, [weight("b", np.float32([1.5]).reshape(1, 1, 1, 1))]


@pytest.mark.parametrize("caps", [WIDE, TEXTURES], ids=["buffers", "textures"])
@pytest.mark.parametrize("make", [doubled, padded, expanded])
def test_sizes_that_follow_the_input(make: Any, caps: Any) -> None:
    nodes, held = make()
    proto = model(nodes, [value("x", ["N", 3, "H", "W"])], [value("y", [None] * 4)], held, opset=18)
    loaded, oracle = OnnxModel.load(proto), ReferenceEvaluator(proto)
    for shape in ((1, 3, 4, 5), (2, 3, 9, 3)):
        x = np.random.default_rng(1).integers(-9, 9, shape).astype(np.float32)
        graph = loaded.specialise({"x": shape})
        assert not {"Shape", "Mod", "Slice"} & {n.op for n in graph.nodes}
        np.testing.assert_array_equal(
            run_graph(graph, {"x": x}, caps)["y"], oracle.run(None, {"x": x})[0]
        )
