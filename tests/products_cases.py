"""8-bit products of every operator and pair of types, with what is right, in int64.

Numbers lie at the ends of their types, so that sums of two products exceed 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx_models import model, weight
from quantised_cases import requantised, sums

from gpuedge.graph.ir import Array

TYPES = ("uint8", "int8")
MATRICES = ("MatMulInteger", "QLinearMatMul", "MatMul between QDQ", "Gemm between QDQ",
            "dynamic MatMulInteger")  # fmt: skip
IMAGES = ("ConvInteger", "QLinearConv", "Conv between QDQ")
FOREIGN = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat")
"""ONNX Runtime's own operators."""

OPS = (*MATRICES, *FOREIGN, *IMAGES, *(f"depthwise {name}" for name in IMAGES))
STEP = np.float32(2.0**15)
"""What one step of a quantised result stands for."""


@dataclass(frozen=True)
class Case:
    """A model with its inputs, and what it gives."""

    op: str
    first: str
    second: str
    is_constant: bool
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    wanted: Array

    @property
    def kind(self) -> str:
        """Whether the second operand is constant."""
        return "constant" if self.is_constant else "computed"

    def __str__(self) -> str:
        return f"{self.op} of {self.first} by {self.kind} {self.second}"


def cases() -> Iterator[Case]:
    """Yield every operator with every pair of types that it has."""
    for op in OPS:
        for first in TYPES:
            for second in TYPES:
                if first == "uint8" or not op.lower().startswith("dynamic"):
                    for is_constant in (True, False):
                        yield _case(op, first, second, is_constant=is_constant)


def _ends(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    about = np.iinfo(dtype)
    found = np.random.default_rng(seed).choice(np.array([about.min, about.max], dtype), shape)
    found[0] = about.max
    return found


def _case(op: str, first: str, second: str, *, is_constant: bool) -> Case:
    name, is_image = op.removeprefix("depthwise "), "Conv" in op
    zero_a, zero_b = (7 if first == "uint8" else 0), (3 if second == "uint8" else -2)
    if is_image:
        group = 6 if op != name else 1
        a, b = _ends(first, (2, 6, 5, 4), 1), _ends(second, (6, 6 // group, 3, 3), 2)
        attrs: dict[str, Any] = {"pads": [1] * 4, "group": group, "kernel_shape": [3, 3]}
        total = sums(a.astype(np.int64) - zero_a, b.astype(np.int64) - zero_b, 1, group=group)
    else:
        attrs, a, b = {}, _ends(first, (5, 38), 1), _ends(second, (11, 38), 2).T.copy()
        if name in ("dynamic MatMulInteger", "DynamicQuantizeMatMul"):
            a[0, 0], zero_a = 0, 0  # floats from 0 to 255 have the scale 1
        total = (a.astype(np.int64) - zero_a) @ (b.astype(np.int64) - zero_b)
    held = {"sa": np.float32(1), "za": np.array(zero_a, first), "sb": np.float32(1),
            "zb": np.array(zero_b, second), "sy": STEP,
            "zy": np.array(128 if first == "uint8" else 0, first)}  # fmt: skip
    feeds: dict[str, Array] = {"a": a}
    (held if is_constant else feeds)["b"] = b
    wanted = total.astype(np.int32)
    if "QLinear" in name or "QDQ" in name:
        wanted = requantised(total, 1 / STEP, int(held["zy"]), first)
    elif name not in ("MatMulInteger", "ConvInteger"):
        wanted = total.astype(np.float32)
    if name.lower().startswith("dynamic"):
        feeds["a"] = a.astype(np.float32)
    made = _model(name, attrs, feeds, held, wanted)
    return Case(op, first, second, is_constant, made, feeds, wanted)


def _model(
    name: str,
    attrs: Mapping[str, Any],
    feeds: Mapping[str, Array],
    held: Mapping[str, Any],
    wanted: Array,
) -> onnx.ModelProto:
    def node(op: str, inputs: str, output: str = "y", **more: Any) -> onnx.NodeProto:
        names = ["" if one == "-" else one for one in inputs.split()]
        return helper.make_node(op, names, output.split(), name=f"{op} {output}", **more)

    foreign = {"domain": "com.microsoft"}
    nodes = {
        "MatMulInteger": lambda: [node(name, "a b za zb")],
        "ConvInteger": lambda: [node(name, "a b za zb", **attrs)],
        "QLinearMatMul": lambda: [node(name, "a sa za b sb zb sy zy")],
        "QLinearConv": lambda: [node(name, "a sa za b sb zb sy zy", **attrs)],
        "DynamicQuantizeMatMul": lambda: [node(name, "a b sb zb", **foreign)],
        "MatMulIntegerToFloat": lambda: [node(name, "a b sa sb za zb", **foreign)],
        "dynamic MatMulInteger": lambda: [
            node("DynamicQuantizeLinear", "a", "q s z"), node("MatMulInteger", "q b z zb", "whole"),
            node("Cast", "whole", "f", to=1), node("Mul", "s sb", "both"), node("Mul", "f both"),
        ],
    }.get(name)  # fmt: skip
    made = nodes() if nodes is not None else [
        node("DequantizeLinear", "a sa za", "da"), node("DequantizeLinear", "b sb zb", "db"),
        node(name.partition(" ")[0], "da db", "f", **attrs), node("QuantizeLinear", "f sy zy"),
    ]  # fmt: skip
    *values, result = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in {**feeds, "y": wanted}.items()
    ]
    used = {one for n in made for one in n.input}
    proto = model(made, values, [result],
                  [weight(n, v) for n, v in held.items() if n in used])  # fmt: skip
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto
