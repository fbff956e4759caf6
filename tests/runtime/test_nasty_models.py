"""Models that are wrong in one place: an error of ours names the node, on every kind of device.

And models that only look wrong, which run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import F32, I64, model, value, weight
from planrun import TEXTURES, WIDE, plan_device

import gpuedge
from gpuedge.core.errors import GpuEdgeError, ModelError, ShapeError, UnsupportedOpError

DEVICES = {"plan": plan_device(WIDE), "textures": plan_device(TEXTURES), "cpu": "cpu"}
MATRIX, IMAGE = (2, 3), (1, 2, 4, 3)


def of(op: str, shape: Any, *held: Any, outputs: int = 1, opset: int = 17, **attrs: Any) -> Any:
    """Return a model of one node whose operands after the first are constants; None is absent."""
    names = ["" if h is None else f"c{i}" for i, h in enumerate(held)]
    made = [f"y{i}" for i in range(outputs)]
    given = [weight(n, h) for n, h in zip(names, held, strict=True) if n]
    node = helper.make_node(op, ["x", *names], made, name="node", **attrs)
    kinds = {"TopK": (F32, I64), "ArgMax": (I64,)}.get(op, (F32,) * outputs)
    outs = [value(n, None, k) for n, k in zip(made, kinds, strict=True)]
    return model([node], [value("x", shape)], outs, given, opset=opset)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


WRONG: dict[str, tuple[Any, type[GpuEdgeError]]] = {
    "strides of zero": (of("Conv", IMAGE, ones(2, 2, 1, 1), strides=[0, -1]), ShapeError),
    "pads below zero": (of("Conv", IMAGE, ones(2, 2, 1, 1), pads=[-1, 0, 0, 0]), ShapeError),
    "no group": (of("Conv", IMAGE, ones(2, 2, 1, 1), group=0), ShapeError),
    "a rank too few": (of("Conv", IMAGE, ones(2, 2)), ShapeError),
    "a window larger than the image": (of("MaxPool", IMAGE, kernel_shape=[9, 9]), ShapeError),
    "no window": (of("AveragePool", IMAGE, kernel_shape=[0, 0]), ShapeError),
    "too few strides": (of("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[1]), ShapeError),
    "blocks of nothing": (of("DepthToSpace", (1, 4, 2, 2), blocksize=0), ShapeError),
    "a window over nothing": (of("MaxPool", (1, 2, 0, 3), kernel_shape=[2, 2]), ShapeError),
    "picked from nothing": (of("Gather", (0, 3), ints(0)), ShapeError),
    "an index beyond": (of("Gather", MATRIX, ints(7)), ShapeError),
    "two extents to guess": (of("Reshape", MATRIX, ints(-1, -1)), ShapeError),
    "another size": (of("Reshape", MATRIX, ints(4, 2)), ShapeError),
    "an extent below zero": (of("Reshape", MATRIX, ints(-5, 2)), ShapeError),
    "an axis twice": (of("Transpose", MATRIX, perm=[0, 0]), ShapeError),
    "an axis beyond": (of("Softmax", MATRIX, axis=9), ShapeError),
    "cropped away": (of("Pad", MATRIX, ints(-5, 0, 0, 0)), ShapeError),
    "steps of zero": (of("Slice", MATRIX, ints(0), ints(1), ints(0), ints(0)), ShapeError),
    "parts that do not add up": (of("Split", MATRIX, ints(1, 1), outputs=2, axis=1), ShapeError),
    "the first minus one": (of("TopK", MATRIX, ints(-1), outputs=2), ShapeError),
    "the first nine of three": (of("TopK", MATRIX, ints(9), outputs=2), ShapeError),
    "infinitely large": (of("Resize", IMAGE, None, floats(1, 1, np.inf, 1)), ShapeError),
    "smaller than nothing": (of("Resize", IMAGE, None, floats(1, 1, -2, 1)), ShapeError),
    "of no size": (of("Resize", IMAGE, None, None, ints(1, 2, 0, 3)), ShapeError),
    "more than memory": (of("Tile", MATRIX, ints(2**40, 2**40)), ModelError),
    "a weight in no file": (of("Add", MATRIX, ones(3)), ModelError),
    "no such operator": (of("Mish", MATRIX), UnsupportedOpError),
    "an operator set to come": (of("Relu", MATRIX, opset=99), ModelError),
    "no operator set": (of("Relu", MATRIX, opset=0), ModelError),
    "the neighbour of nothing": (of("OneHot", (2,), np.int64(-3), floats(0, 1)), ShapeError),
}
_LOST = WRONG["a weight in no file"][0].graph.initializer[0]
_LOST.ClearField("raw_data")
_LOST.data_location = TensorProto.EXTERNAL
_LOST.external_data.add(key="location", value="missing.bin")


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(name: str) -> None:
    proto, kind = WRONG[name]
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    for device in DEVICES.values():
        with pytest.raises(kind) as caught:
            gpuedge.Session(proto.SerializeToString(), device=device, fallback="error").run(
                {"x": ones(*shape)}
            )
        of_model = ("weight", "operator set")
        assert "'node'" in str(caught.value) or any(w in caught.value.what for w in of_model)


def graph(*nodes: onnx.NodeProto, held: Any = (), more: Any = ()) -> Any:
    outs = [value(nodes[-1].output[0] if nodes else "x", None)]
    return model(list(nodes), [value("x", [2, 3]), *more], outs, list(held))


NODE = helper.make_node
ODD: dict[str, Any] = {
    "no nodes": graph(),
    "nodes without names": graph(NODE("Neg", ["x"], ["a"]), NODE("Neg", ["a"], ["y"])),
    "one name twice": graph(NODE("Neg", ["x"], ["a"], "n"), NODE("Neg", ["a"], ["y"], "n")),
    "an unused weight": graph(NODE("Identity", ["x"], ["y"]), held=[weight("w", ones(3))]),
    "a weight that is an input": graph(
        NODE("Mul", ["x", "w"], ["y"]), held=[weight("w", ones(3))], more=[value("w", [3])]
    ),
    "an absent bound": graph(
        NODE("Clip", ["x", "", "w"], ["y"]), held=[weight("w", np.float32(9))]
    ),
    "a name of control characters": graph(NODE("Identity", ["x"], ["y\n\x1b[31m"])),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("device", DEVICES)
def test_what_only_looks_wrong_runs(name: str, device: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = ODD[name].SerializeToString()
    with gpuedge.Session(data, device=DEVICES[device], fallback="error") as session:
        feeds = {"x": x} | ({"w": ones(3)} if "w" in session.inputs else {})
        (got,) = session.run(feeds).values()
    np.testing.assert_array_equal(got, x)
