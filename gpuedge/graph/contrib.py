"""Operators of ONNX Runtime's own, written in ONNX's, so that every device can compute them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuedge.graph.ir import Node

MICROSOFT = "com.microsoft"

DYNAMIC = 11
"""Operator set from which there is DynamicQuantizeLinear."""

FLOAT = 1
"""ONNX's number for float32."""


def spelled(node: Node, opset: Mapping[str, int]) -> tuple[Node, ...]:
    """Return nodes in the place of one: itself, or what it stands for.

    DynamicQuantizeMatMul and MatMulIntegerToFloat are a MatMulInteger, whose sums are scaled.
    MatMulNBits computes in float32 whatever its `accuracy_level`: with 4, ONNX Runtime rounds the
    other operand to 8 bits on some processors.
    """
    if node.domain == MICROSOFT and node.op == "MatMulNBits":
        attrs = {name: v for name, v in node.attrs.items() if name != "accuracy_level"}
        return (replace(node, attrs=attrs),)
    if node.domain != MICROSOFT or opset.get("", 0) < DYNAMIC:
        return (node,)
    y = node.outputs[0]
    inputs = (*node.inputs, *("",) * 7)
    if node.op == "MatMulIntegerToFloat":
        a, b, scale_a, scale_b, zero_a, zero_b, bias = inputs[:7]
        return _scaled(node, (a, b, zero_a, zero_b), (scale_a, scale_b), bias)
    if node.op != "DynamicQuantizeMatMul":
        return (node,)
    x, b, scale_b, zero_b, bias = inputs[:5]
    quantised = (f"{y}/bytes", f"{y}/step", f"{y}/zero")
    first = Node("DynamicQuantizeLinear", (x,), quantised, {}, f"{node.name or y}/bytes")
    return (
        first,
        *_scaled(node, (quantised[0], b, quantised[2], zero_b), (quantised[1], scale_b), bias),
    )


def _scaled(
    node: Node, operands: tuple[str, ...], scales: tuple[str, str], bias: str
) -> tuple[Node, ...]:
    """Return a product of integers as floats, in the order in which ONNX Runtime rounds."""
    y = node.outputs[0]
    scaled = f"{y}/scaled" if bias else y
    while not operands[-1]:
        operands = operands[:-1]
    steps = [
        ("MatMulInteger", operands, f"{y}/whole", {}),
        ("Cast", (f"{y}/whole",), f"{y}/float", {"to": FLOAT}),
        ("Mul", scales, f"{y}/scale", {}),
        ("Mul", (f"{y}/float", f"{y}/scale"), scaled, {}),
    ]
    if bias:
        steps.append(("Add", (scaled, bias), y, {}))
    return tuple(
        Node(op, tuple(inputs), (out,), attrs, f"{node.name}/{out}")
        for op, inputs, out, attrs in steps
    )
