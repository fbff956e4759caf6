"""Runs models with open shapes on a device; run by test_dynamic_shapes for some levels.

``python shapes_child.py DEVICE`` prints a JSON object: for each model a row per request, with the
largest difference from ONNX Runtime over the largest value, what `Session.profile` says of shapes,
and the bytes of device memory that the driver was asked for and not given back since.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import gpuedge

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnx_models import model, value, weight

RNG = np.random.default_rng(8)
MOST = 3
ORDER = (0, 1, 0, 2, 3, 0, 1, 1, 4, 0, 2)
"""Numbers of shapes, in the order in which they are asked for."""


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return (RNG.standard_normal(shape) / 2).astype(np.float32)


def batch() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["y"], transB=1),
    ]
    held = [weight("w", drawn(5, 3, 3, 3)), weight("b", drawn(5)), weight("v", drawn(7, 80))]
    return model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 7])], held)


def image() -> onnx.ModelProto:
    """A model that makes an image smaller, and as large as it was: sizes are computed in it."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Shape", ["x"], ["all"]),
        helper.make_node("Slice", ["all", "two", "four"], ["hw"]),
        helper.make_node("Concat", ["nc", "hw"], ["size"], axis=0),
        helper.make_node("Resize", ["c", "", "", "size"], ["u"], mode="linear"),
        helper.make_node("Concat", ["x", "u"], ["y"], axis=1),
    ]
    held = [
        weight("w", drawn(4, 2, 3, 3)), weight("two", np.array([2])), weight("four", np.array([4])),
        weight("nc", np.array([1, 4])),
    ]  # fmt: skip
    return model(nodes, [value("x", [1, 2, "H", "W"])], [value("y", [1, 6, "H", "W"])], held)


def sequence() -> onnx.ModelProto:
    """One head of attention, whose mask is made from the length."""
    nodes = [
        *(helper.make_node("MatMul", ["x", f"w{n}"], [n]) for n in "qkv"),
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Shape", ["x"], ["all"]),
        helper.make_node("Gather", ["all", "one"], ["length"]),
        helper.make_node("Range", ["zero", "length", "one"], ["at"]),
        helper.make_node("Unsqueeze", ["at", "last"], ["row"]),
        helper.make_node("GreaterOrEqual", ["row", "at"], ["seen"]),
        helper.make_node("Where", ["seen", "s", "never"], ["m"]),
        helper.make_node("Softmax", ["m"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["y"]),
    ]
    held = [
        *(weight(f"w{n}", drawn(6, 6)) for n in "qkv"),
        weight("zero", np.array(0)), weight("one", np.array(1)), weight("last", np.array([1])),
        weight("never", np.float32(-1e4)),
    ]  # fmt: skip
    return model(nodes, [value("x", [2, "S", 6])], [value("y", [2, "S", 6])], held)


MODELS = {
    "batch": (batch(), [(n, 3, 8, 8) for n in (1, 4, 2, 9, 5)]),
    "image": (image(), [(1, 2, *hw) for hw in ((8, 8), (7, 13), (13, 7), (1, 1), (20, 33))]),
    "sequence": (sequence(), [(2, s, 6) for s in (1, 17, 2, 40, 5)]),
}


class Held:
    """What a driver was asked for and not given back since, in bytes, and the most of it."""

    def __init__(self, impl: Any) -> None:
        self.now = self.most = 0
        self._sizes: dict[int, int] = {}
        self._alloc, self._free = impl.alloc, impl.free
        impl.alloc, impl.free = self.alloc, self.free

    def alloc(self, nbytes: int, *more: Any) -> Any:
        buffer = self._alloc(nbytes, *more)
        self._sizes[id(buffer)] = nbytes
        self.now += nbytes
        self.most = max(self.most, self.now)
        return buffer

    def free(self, buffer: Any) -> None:
        self.now -= self._sizes.pop(id(buffer))
        self._free(buffer)


def rows(name: str, device: Any) -> list[dict[str, Any]]:
    proto, shapes = MODELS[name]
    found, held = [], Held(device.executor.impl)
    truth = onnxruntime.InferenceSession(proto.SerializeToString())
    policy = gpuedge.Policy(max_shapes=MOST)
    with gpuedge.Session(proto, device=device, fallback="error", policy=policy) as session:
        for i in ORDER:
            x = drawn(*shapes[i])
            (wanted,) = truth.run(None, {"x": x})
            made = session.run({"x": x})["y"]
            assert made.shape == wanted.shape
            found.append({
                "error": float(np.abs(made - wanted).max() / np.abs(wanted).max()),
                "shapes": session.profile()["shapes"], "held": held.now, "most": held.most,
            })  # fmt: skip
    found.append({"held": held.now})
    return found


def main() -> None:
    gpuedge.probe(deadline_s=60)
    with gpuedge.open(sys.argv[1]) as device:
        print(json.dumps({name: rows(name, device) for name in MODELS}))


if __name__ == "__main__":
    main()
