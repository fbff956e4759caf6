"""How far one operation on a GPU may be from the CPU's, given the same operands.

The figures are those of ``docs/numerics.md``, which holds for both sides. Sums of K products take
the square root of K where the page has K: the roundings of one sum are as often up as down (Higham
and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5),
2019), and whoever compares multiplies by a factor of its own. No figure is less than a unit in the
last place, so that adding it to a value changes the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.graph.params import (
    BatchNormParams,
    Canon,
    ClipParams,
    ConcatParams,
    ConvParams,
    ConvTransposeParams,
    ElementwiseParams,
    GemmParams,
    MatMulParams,
    PoolParams,
    ReshapeParams,
    SoftmaxParams,
    TransposeParams,
)

U = 2.0**-24
ULP = 2.0**-23
HALF_ULP = 2.0**-10
TINY = 2.0**-126
"""What is smaller may be taken for zero, and become zero (`docs/numerics.md`)."""
HUGE = 2.0**126
"""Beyond this a quotient may be zero: its divisor's reciprocal is below `TINY`."""
HALF_TINY = 2.0**-14
"""What is smaller than the least normal binary16 may be kept as zero."""

SMOOTH = frozenset((
    "AffineGrid", "CumSum", "DepthToSpace", "DFT", "Einsum", "Expand", "Gather", "GlobalLpPool",
    "GridSample", "GroupNormalization", "GRU", "InstanceNormalization", "LayerNormalization", "LRN",
    "LSTM", "LpNormalization", "LpPool", "MeanVarianceNormalization", "Pad", "RMSNormalization",
    "RNN", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Resize", "Slice", "SpaceToDepth",
    "Split", "Tile", "Upsample", "Sinh", "Cosh", "Asinh", "Atan", "Attention", "RotaryEmbedding",
    "GatherElements", "GatherND", "ReverseSequence",
))  # fmt: skip
"""Operators that have no canonical form, and whose results follow their operands smoothly."""

RANDOM = frozenset(("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike",
                    "Multinomial", "Bernoulli", "Dropout"))  # fmt: skip

Attrs = Mapping[str, float]
Own = Callable[[Attrs, Array, Sequence[Array]], Any]
"""The error of a result, from attributes, the result and the operands."""

EXACT = frozenset(
    ("Abs", "Neg", "Relu", "Max", "Min", "Floor", "Ceil", "Round", "Sign", "ThresholdedRelu")
)
"""Operators of one element that only move or compare."""

JUMPS: dict[str, Callable[[Array, Attrs], Array]] = {
    "Floor": lambda x, a: np.floor(x),
    "Ceil": lambda x, a: np.ceil(x),
    "Round": lambda x, a: np.rint(x),
    "Sign": lambda x, a: np.sign(x),
    "ThresholdedRelu": lambda x, a: np.where(x > a["alpha"], x, 0),
}
"""Operators whose result jumps: a small error of the operand may make a large one of the result."""


def _wide(x: Array) -> Array:
    return np.maximum(np.abs(x), 1)


def _power(a: Attrs, y: Array, x: Sequence[Array]) -> Array:
    base = np.abs(np.log2(np.maximum(np.abs(x[0]), 2.0**-126)))
    exponent = np.abs(x[1])
    return np.abs(y) * ((3 + 2 * exponent * base) * ULP + exponent * (4 * ULP * base + 2.0**-21))


def _terms(a: Attrs, y: Array, x: Sequence[Array]) -> Array:
    total: Array = sum((np.abs(one) for one in x[1:]), np.abs(x[0]))
    return len(x) * ULP * total


_ELEMENTWISE: dict[str, Own] = {
    "Add": lambda a, y, x: ULP * np.abs(y),
    "Sub": lambda a, y, x: ULP * np.abs(y),
    "Mul": lambda a, y, x: ULP * np.abs(y),
    "Div": lambda a, y, x: 2.5 * ULP * np.abs(y),
    "Reciprocal": lambda a, y, x: 2.5 * ULP * np.abs(y),
    "Pow": _power,
    "Sum": _terms,
    "Mean": lambda a, y, x: _terms(a, y, x) / len(x),
    "PRelu": lambda a, y, x: ULP * np.abs(y),
    "Exp": lambda a, y, x: (3 + 2 * np.abs(x[0])) * ULP * y,
    "Log": lambda a, y, x: np.maximum(3 * ULP * np.abs(y), 2.0**-21 * (np.abs(y) < 1)),
    "Sqrt": lambda a, y, x: 4.5 * ULP * y,
    "Sin": lambda a, y, x: 2e-6,  # up to 1000; beyond that `outside` knows nothing
    "Cos": lambda a, y, x: 2e-6,
    "Tanh": lambda a, y, x: np.minimum(1e-5, 4 * ULP + 1e-5 * np.abs(y)),
    "Erf": lambda a, y, x: 3e-6,
    "Sigmoid": lambda a, y, x: 1e-6,
    "Softplus": lambda a, y, x: 2e-6 + 1e-6 * np.abs(y),
    "Softsign": lambda a, y, x: 4 * ULP * np.abs(y),
    "Mish": lambda a, y, x: 1.5e-5 * _wide(x[0]),
    "LeakyRelu": lambda a, y, x: 1.25 * ULP * np.abs(y),
    "Elu": lambda a, y, x: 1e-6 * max(1.0, abs(a["alpha"])) + ULP * np.abs(y),
    "Celu": lambda a, y, x: 1e-6 * max(1.0, abs(a["alpha"])) + ULP * np.abs(y),
    "Selu": lambda a, y, x: abs(a["gamma"]) * 1e-6 * (max(1.0, abs(a["alpha"])) + np.abs(y)),
    "HardSigmoid": lambda a, y, x: 2 * ULP * _wide(a["alpha"] * x[0]),
    "HardSwish": lambda a, y, x: 2e-7 * _wide(x[0]),
    "Swish": lambda a, y, x: 2e-6 * _wide(x[0]),
    "Gelu": lambda a, y, x: (1e-5 if a["tanh"] else 1e-6) * _wide(x[0]),
}


def terms(params: Canon, graph: Graph, node: Node) -> int:
    """Return how many terms each output of a linear node sums up."""
    if isinstance(params, MatMulParams):
        return params.k
    if isinstance(params, GemmParams):
        return params.k + 1
    if isinstance(params, PoolParams):
        if params.global_:
            return math.prod(graph.shape(node.inputs[0])[2:])
        return math.prod(params.kernel)
    weights = graph.shape(node.inputs[1])
    if isinstance(params, ConvTransposeParams):
        return weights[0] // params.group * math.prod(weights[2:]) + 1
    return math.prod(weights[1:]) + 1


def is_linear(params: Canon) -> bool:
    """Tell whether a node sums products (or terms) of its operands."""
    kinds = (ConvParams, ConvTransposeParams, MatMulParams, GemmParams)
    return isinstance(params, kinds) or (isinstance(params, PoolParams) and params.kind == "avg")


def is_exact(params: Canon) -> bool:
    """Tell whether a node only moves or compares, so that its result has no error of its own."""
    if isinstance(params, ElementwiseParams):
        return params.op in EXACT
    if isinstance(params, PoolParams):
        return params.kind == "max"
    return isinstance(params, (ClipParams, ConcatParams, ReshapeParams, TransposeParams))


def own_error(params: Canon, y: Array, x: Sequence[Array], size: Array | None, k: int) -> Array:
    """Return the error that a node adds to each element of its result.

    Parameters
    ----------
    params : Canon
        What the node means.
    y : ndarray
        Its result.
    x : sequence of ndarray
        Its operands.
    size : ndarray, optional
        Of a linear node: the same sum over magnitudes.
    k : int
        Of a linear node: how many terms there are.
    """
    found: Any
    with np.errstate(all="ignore"):
        if size is not None:
            more = 4 if isinstance(params, PoolParams) else 1
            found = (math.sqrt(k) + more) * U * size
        elif isinstance(params, SoftmaxParams):
            found = _softmax(params, y, x[0])
        elif isinstance(params, BatchNormParams):
            found = _batch_norm(params, x)
        elif isinstance(params, ElementwiseParams) and params.op in _ELEMENTWISE:
            found = _ELEMENTWISE[params.op](dict(params.attrs), y, x)
        else:
            found = 0.0
        return np.broadcast_to(np.maximum(found, ULP * np.abs(y)), y.shape)


def outside(params: Canon, y: Array, x: Sequence[Array], error: Array, k: int) -> Array:
    """Tell for each element of a result whether nothing is promised about it.

    Parameters
    ----------
    params, y, x, k
        As for `own_error`.
    error : ndarray
        What `own_error` said. One that is not finite comes of sums that may overflow on the way.
    """
    with np.errstate(all="ignore"):
        found = np.isfinite(y) & ~np.isfinite(error)
        if isinstance(params, PoolParams) and k:
            found = found | (k * error / ((math.sqrt(k) + 4) * U) > np.finfo(np.float32).max)
        if isinstance(params, ElementwiseParams):
            if params.op in ("Sin", "Cos"):
                found = found | (np.abs(x[0]) > 1000)
            elif params.op in ("Div", "Reciprocal", "Softsign"):
                by = np.abs(x[-1])
                found = found | (by > HUGE)
                if params.op != "Softsign":
                    found = found | ((by < TINY) & (by > 0))
    return np.broadcast_to(found, y.shape)


def spread(
    unknown: dict[str, Array], nodes: Iterable[Node], params: Mapping[str, Canon | None],
    values: Mapping[str, Array],
) -> None:  # fmt: skip
    """Mark what depends on elements that nothing is promised about, from operands to results.

    Parameters
    ----------
    unknown : dict of str to ndarray
        The elements so far; added to.
    nodes : iterable of Node
        In the order they run in.
    params : mapping of str to canonical form, or None
        What the node means that makes a value.
    values : mapping of str to ndarray
        The values that are followed.
    """
    for node in nodes:
        masks = [unknown[n] for n in node.inputs if n in unknown]
        for name in (n for n in node.outputs if masks and n in values):
            mask = np.zeros(values[name].shape, bool) | unknown.get(name, False)
            if isinstance(params[name], (ElementwiseParams, ClipParams)):
                for one in masks:
                    mask = mask | one
            else:
                mask[...] = any(one.any() for one in masks)
            unknown[name] = mask


def flushed(x: Array) -> Array:
    """Return values with zero in place of the denormal ones; the same array if there are none."""
    small = (np.abs(x) < TINY) & (x != 0)
    return np.where(small, np.zeros((), x.dtype), x) if small.any() else x


def kept(y: Array, k: int) -> Array:
    """Return what a result is multiplied by where denormal numbers are zero: 1, or less.

    Of `k` products that are summed up each may be lost.
    """
    size = np.abs(y)
    with np.errstate(all="ignore"):
        if k:
            return np.where(size > 0, 1 - np.minimum(k * TINY / size, 1), 1).astype(y.dtype)
    return np.where((size < TINY) & (size > 0), 0, 1).astype(y.dtype)


def _softmax(p: SoftmaxParams, y: Array, x: Array) -> Array:
    view = x.reshape(p.outer, p.length, p.inner)
    if not view.size:
        return np.zeros(y.shape)
    below = (view.max(axis=1, keepdims=True) - view).reshape(y.shape)
    root = math.sqrt(p.length)
    if p.log:
        return np.asarray((root + 16) * ULP + 2 * ULP * below)
    return np.asarray(y * (root + 3 * below + 10) * ULP)


def _batch_norm(p: BatchNormParams, operands: Sequence[Array]) -> Array:
    x, *rest = operands
    column = (-1,) + (1,) * (x.ndim - 2)
    scale, bias, mean, variance = (v.reshape(column) for v in rest)
    factor = np.abs(scale) / np.sqrt(variance + p.epsilon)
    return np.asarray(4 * ULP * ((np.abs(x) + np.abs(mean)) * factor + np.abs(bias)))


def other_error(y: Array) -> Array:
    """Return the error of a smooth operator that only the CPU runs.

    Both sides use the same kernels there, but ONNX Runtime may join them to others differently.
    """
    if not y.size:
        return np.zeros(y.shape)
    return np.asarray(16 * ULP * (np.abs(y) + np.sqrt(np.mean(np.square(y, dtype=np.float64)))))


def half_error(y: Array) -> Array:
    """Return the error of keeping values as binary16: none for those that are on its grid."""
    with np.errstate(over="ignore", invalid="ignore"):
        on_grid = y.astype(np.float16) == y
    size = np.abs(y)
    return np.where(
        on_grid & (size >= HALF_TINY), 0, np.where(size < HALF_TINY, size, HALF_ULP * size)
    )
