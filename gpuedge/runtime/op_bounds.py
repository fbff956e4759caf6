"""How far one operation on a GPU may be from the CPU's, given the same operands.

The figures are those of ``docs/numerics.md``, which holds for both sides. Sums of K products take
the square root of K: the roundings of one sum are as often up as down (N. J. Higham, "Accuracy and
Stability of Numerical Algorithms", 2nd ed., SIAM 2002, ch. 3; Higham and Mary, "A new approach to
probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gpuedge.graph.ir import Graph, Node

U = 2.0**-24
ULP = 2.0**-23
HALF_ULP = 2.0**-10
"""What keeping a value as binary16 may change it by."""


class Own(NamedTuple):
    """The error that an operation adds: relative to the size of its result, and absolute."""

    relative: float
    absolute: float = 0.0


EXACT = frozenset((
    "Abs", "Clip", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND", "Identity", "Max", "MaxPool", "GlobalMaxPool", "Min", "Neg",
    "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "ScatterElements",
    "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu",
    "Unsqueeze", "Where",
))  # fmt: skip
"""Operators that only move, negate or compare."""

SUMS = frozenset((
    "AveragePool", "Conv", "ConvTranspose", "CumSum", "Einsum", "Gemm", "GlobalAveragePool",
    "MatMul", "Mean", "ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Sum",
    "Add", "Sub",
))  # fmt: skip
"""Operators that sum up: what cancels there leaves the rounding errors of the operands."""

SHAPES = frozenset(("Shape", "Size"))
"""Operators that look at no element."""

JUMPS = frozenset((
    "ArgMax", "ArgMin", "Bernoulli", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual",
    "Hardmax", "IsInf", "IsNaN", "Less", "LessOrEqual", "Mod", "Multinomial", "NonMaxSuppression",
    "NonZero", "Not", "OneHot", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "Round", "Shrink", "Sign", "ThresholdedRelu", "TopK", "Unique",
))  # fmt: skip
"""Operators whose result jumps, or is random: of inexact operands nothing is known about it."""

_ULPS = {"Add": 1, "Sub": 1, "Mul": 1, "Div": 2.5, "Reciprocal": 2.5, "Sqrt": 4.5, "PRelu": 1,
         "LeakyRelu": 1.25, "Softsign": 4, "HardSigmoid": 2, "BatchNormalization": 8}  # fmt: skip

_OTHERS = {
    "Celu": Own(ULP, 1e-6), "Cos": Own(0, 2e-6), "Elu": Own(ULP, 1e-6), "Erf": Own(0, 3e-6),
    "Exp": Own(67 * ULP), "Gelu": Own(1e-5, 1e-5), "HardSwish": Own(2e-7, 2e-7),
    "Log": Own(3 * ULP, 2.0**-21), "LogSoftmax": Own(80 * ULP), "Mish": Own(1.5e-5, 1.5e-5),
    "Pow": Own(2e-5), "Selu": Own(2e-6, 2e-6), "Sigmoid": Own(0, 1e-6), "Sin": Own(0, 2e-6),
    "Softmax": Own(80 * ULP), "Softplus": Own(1e-6, 2e-6), "Swish": Own(2e-6, 2e-6),
    "Tanh": Own(1e-5),
}  # fmt: skip

_UNKNOWN = 64 * ULP
"""The error of a smooth operator without a figure of its own, besides that of its sums."""


def terms(node: Node, graph: Graph) -> int:
    """Return about how many terms one element of a node's result sums up."""
    sizes = [math.prod(graph.shape(n)) if n in graph.types else 1 for n in node.inputs if n]
    if node.op in ("Conv", "ConvTranspose"):
        shape = graph.shape(node.inputs[1])
        return math.prod(shape[1:] if node.op == "Conv" else (shape[0], *shape[2:])) + 1
    if node.op in ("MatMul", "Gemm"):
        shape = graph.shape(node.inputs[0])
        return (shape[0] if node.attrs.get("transA") else shape[-1]) + 1 if shape else 1
    if node.op in ("Sum", "Mean"):
        return len(sizes)
    made = node.outputs[0]
    out = math.prod(graph.shape(made)) if made in graph.types else 1
    return max(1, *(-(-size // max(out, 1)) for size in sizes)) if sizes else 1


def own_error(node: Node, graph: Graph) -> Own:
    """Return the error that a node adds to its result."""
    if node.op in EXACT or node.op in JUMPS:
        return Own(0.0)
    if node.op in _ULPS:
        return Own(_ULPS[node.op] * ULP)
    root = math.sqrt(terms(node, graph))
    if node.op in _OTHERS:
        found = _OTHERS[node.op]
        return Own(found.relative + root * U, found.absolute)
    if node.op in SUMS:
        return Own((root + 4) * U)
    return Own(_UNKNOWN + root * U)
