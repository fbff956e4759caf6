"""A small network as quantisers write it, with QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx_models import model, value, weight

SX, SY = np.float32(1 / 64), np.float32(1 / 8)


def network(bias_scale: float = 1.0, zero: int = 0) -> onnx.ModelProto:
    """Convolutions, pools, a shortcut and a fully connected layer, as quantisers write them."""
    rng = np.random.default_rng(11)
    held: dict[str, Any] = {
        "sx": SX, "zx": np.uint8(120), "s1": SY, "z1": np.uint8(zero),
        "w1": rng.integers(-127, 128, (6, 3, 3, 3)).astype(np.int8),
        "sw1": np.float32(2.0 ** -np.arange(6, 12)), "zw1": np.zeros(6, np.int8),
        "b1": rng.integers(-3000, 3000, 6).astype(np.int32), "zb1": np.zeros(6, np.int32),
        "w2": rng.integers(-127, 128, (6, 6, 1, 1)).astype(np.int8), "sw2": np.float32(2.0**-8),
        "zw2": np.int8(0), "s2": np.float32(0.3), "z2": np.uint8(100),
        "w3": rng.integers(-127, 128, (6, 5)).astype(np.int8), "sw3": np.float32(0.01),
        "b3": rng.integers(-900, 900, 5).astype(np.int32), "zb3": np.int32(0),
        "s3": np.float32(0.7), "z3": np.uint8(128),
    }  # fmt: skip
    held["sb1"] = held["s1"] * 0 + held["sw1"] * SX * np.float32(bias_scale)
    held["sb3"] = held["sw3"] * held["s2"]
    q, d = "QuantizeLinear", "DequantizeLinear"

    def node(op: str, inputs: str, output: str, **attrs: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs.split(), [output], name=output, **attrs)

    nodes = [
        node(q, "x sx zx", "xq"), node(d, "xq sx zx", "xd"),
        node(d, "w1 sw1 zw1", "w1d", axis=0), node(d, "b1 sb1 zb1", "b1d", axis=0),
        node("Conv", "xd w1d b1d", "c1", pads=[1] * 4), node("Relu", "c1", "r1"),
        node(q, "r1 s1 z1", "r1q"), node(d, "r1q s1 z1", "r1d"),
        node("MaxPool", "r1d", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node(q, "m s1 z1", "mq"), node(d, "mq s1 z1", "md"),
        node(d, "w2 sw2 zw2", "w2d"), node("Conv", "md w2d", "c2"),
        node(q, "c2 s2 z2", "c2q"), node(d, "c2q s2 z2", "c2d"),
        node("Add", "c2d md", "a"), node(q, "a s2 z2", "aq"), node(d, "aq s2 z2", "ad"),
        node("GlobalAveragePool", "ad", "g"), node(q, "g s2 z2", "gq"), node(d, "gq s2 z2", "gd"),
        node("Flatten", "gd", "fd"), node(q, "fd s2 z2", "fq"), node(d, "fq s2 z2", "f"),
        node(d, "w3 sw3", "w3d"), node(d, "b3 sb3 zb3", "b3d"),
        node("Gemm", "f w3d b3d", "y3"), node(q, "y3 s3 z3", "yq"), node(d, "yq s3 z3", "y"),
    ]  # fmt: skip
    return model(nodes, [value("x", ["N", 3, 8, 10])], [value("y", None)],
                 [weight(n, v) for n, v in held.items()])  # fmt: skip
