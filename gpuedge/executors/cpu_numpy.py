"""Every known operator in numpy: what runs where ONNX Runtime is not installed.

Values are float32 here; float16 graphs are computed in float32 and rounded where the graph says
float16. Elements of other dtypes are only moved. Nothing is modified in place that came from
outside, and results may share memory with inputs (the executor copies what it hands out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from math import erf, pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.executors import cpu_windows
from gpuedge.graph.canon import (
    BatchNormParams,
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
    canonical,
    operands,
)
from gpuedge.graph.ir import Array, Graph, Node

F32 = npt.NDArray[np.float32]
Attrs = dict[str, float]


def run_node(node: Node, graph: Graph, values: Sequence[Array]) -> Array:
    """Compute the output of one known node.

    Parameters
    ----------
    node : Node
        A node with a canonical form; not a fused group.
    graph : Graph
        The graph it belongs to, for types, constants and operator set.
    values : sequence of ndarray
        Its operands, in the order of `gpuedge.graph.canon.operands`, of the graph's types.

    Returns
    -------
    ndarray
        The output, of the dtype of the first operand; may share memory with it.
    """
    params = canonical(node, graph)
    dtype = values[0].dtype
    if dtype == np.float16:
        values = [v.astype(np.float32) if v.dtype == np.float16 else v for v in values]
    with np.errstate(all="ignore"):
        result = _KERNELS[type(params)](params, *values)
        # Numpy may have turned a result of rank 0 into a scalar.
        return np.asarray(result).astype(dtype, copy=False)


def run_graph(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """Run all nodes (fused groups by their bodies) and return the outputs, freshly allocated."""
    values: dict[str, Array] = {**graph.constants, **inputs}
    nodes = [step for node in graph.nodes for step in (node.body or (node,))]
    last: dict[str, int] = {name: i for i, node in enumerate(nodes) for name in node.inputs}
    keep = {*graph.outputs, *graph.constants, *inputs}
    for i, node in enumerate(nodes):
        values[node.outputs[0]] = run_node(node, graph, [values[n] for n in operands(node)])
        for name in node.inputs:
            if last.get(name) == i and name not in keep:
                values.pop(name, None)
    return {name: values[name].copy() for name in graph.outputs}


# --- elementwise ---------------------------------------------------------------------------------


@cache
def _erf_table() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    points = np.arange(-_ERF_END * _ERF_STEPS, _ERF_END * _ERF_STEPS + 1) / _ERF_STEPS
    return points, np.array([erf(p) for p in points])


_ERF_END = 4
"""erf(4) differs from 1 by 1.5e-8, less than half a unit in the last place of float32."""
_ERF_STEPS = 64


def erf32(x: F32) -> F32:
    """Return the error function: the nearest of 513 exact values and a Taylor step of order 4.

    The step is at most 1/128, so the truncation error stays below 1e-11.
    """
    points, exact = _erf_table()
    wide = np.clip(x.astype(np.float64), -_ERF_END, _ERF_END)
    index = np.rint(np.nan_to_num(wide) * _ERF_STEPS).astype(np.int64) + _ERF_END * _ERF_STEPS
    p = points[index]
    d = wide - p
    series = 1 - d * (p - d * ((2 * p * p - 1) / 3 - d * (p * (2 * p * p - 3) / 6)))
    return (exact[index] + d * 2 / sqrt(pi) * np.exp(-p * p) * series).astype(np.float32)


def _sigmoid(x: F32) -> F32:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _softplus(x: F32) -> F32:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _negative_part(x: F32, scale: float, alpha: float = 1.0) -> F32:
    """Return x where positive, else scale * (exp(x / alpha) - 1)."""
    low = np.float32(scale) * np.expm1(np.minimum(x, 0) / np.float32(alpha))
    return np.where(x > 0, x, low)


def _gelu(x: F32, a: Attrs) -> F32:
    if a["tanh"]:
        step = np.tanh(np.float32(sqrt(2 / pi)) * (x + np.float32(0.044715) * x * x * x))
    else:
        step = erf32(x * np.float32(sqrt(0.5)))
    result: F32 = np.float32(0.5) * x * (1 + step)
    return result


def _hard_sigmoid(x: F32, alpha: float, beta: float) -> F32:
    line: F32 = x * np.float32(alpha) + np.float32(beta)
    return np.clip(line, np.float32(0), np.float32(1))


_UNARY: dict[str, Callable[[Any, Attrs], Any]] = {
    "Abs": lambda x, a: np.abs(x),
    "Neg": lambda x, a: -x,
    "Exp": lambda x, a: np.exp(x),
    "Log": lambda x, a: np.log(x),
    "Sqrt": lambda x, a: np.sqrt(x),
    "Reciprocal": lambda x, a: np.float32(1) / x,
    "Floor": lambda x, a: np.floor(x),
    "Ceil": lambda x, a: np.ceil(x),
    "Round": lambda x, a: np.rint(x),
    "Sign": lambda x, a: np.sign(x),
    "Sin": lambda x, a: np.sin(x),
    "Cos": lambda x, a: np.cos(x),
    "Relu": lambda x, a: np.maximum(x, np.float32(0)),
    "LeakyRelu": lambda x, a: np.where(x < 0, x * np.float32(a["alpha"]), x),
    "Elu": lambda x, a: _negative_part(x, a["alpha"]),
    "Selu": lambda x, a: np.float32(a["gamma"]) * _negative_part(x, a["alpha"]),
    "Sigmoid": lambda x, a: _sigmoid(x),
    "HardSigmoid": lambda x, a: _hard_sigmoid(x, a["alpha"], a["beta"]),
    "HardSwish": lambda x, a: x * _hard_sigmoid(x, 1 / 6, 0.5),
    "Tanh": lambda x, a: np.tanh(x),
    "Softplus": lambda x, a: _softplus(x),
    "Softsign": lambda x, a: x / (1 + np.abs(x)),
    "Mish": lambda x, a: x * np.tanh(_softplus(x)),
    "Gelu": _gelu,
    "Erf": lambda x, a: erf32(x),
    "ThresholdedRelu": lambda x, a: np.where(x > np.float32(a["alpha"]), x, np.float32(0)),
    "Celu": lambda x, a: _negative_part(x, a["alpha"], a["alpha"]),
    "Swish": lambda x, a: x * _sigmoid(x * np.float32(a["alpha"])),
}

_BROADCAST: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "PRelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "Max": np.maximum,
    "Min": np.minimum,
    "Sum": np.add,
    "Mean": np.add,
}


def _elementwise(p: ElementwiseParams, *values: F32) -> Any:
    if p.op in _UNARY:
        return _UNARY[p.op](values[0], dict(p.attrs))
    total = reduce(_BROADCAST[p.op], values)
    return total / np.float32(len(values)) if p.op == "Mean" else total


def _clip(p: ClipParams, x: F32) -> F32:
    result: F32 = np.minimum(np.maximum(x, np.float32(p.lo)), np.float32(p.hi))
    return result


# --- the rest ------------------------------------------------------------------------------------


def _gemm(p: GemmParams, a: F32, b: F32, c: F32 | None = None) -> F32:
    product: F32 = np.float32(p.alpha) * ((a.T if p.trans_a else a) @ (b.T if p.trans_b else b))
    if c is not None:
        product += np.float32(p.beta) * c
    return product


def _softmax(p: SoftmaxParams, x: F32) -> F32:
    view = x.reshape(p.outer, p.length, p.inner)
    if not view.size:
        return x
    shifted = view - view.max(axis=1, keepdims=True)
    powers = np.exp(shifted)
    total = powers.sum(axis=1, keepdims=True)
    result: F32 = shifted - np.log(total) if p.log else powers / total
    return result.reshape(x.shape)


def _batch_norm(p: BatchNormParams, x: F32, *parameters: F32) -> F32:
    column = (-1,) + (1,) * (x.ndim - 2)
    scale, bias, mean, variance = (v.reshape(column) for v in parameters)
    result: F32 = (x - mean) / np.sqrt(variance + np.float32(p.epsilon)) * scale + bias
    return result


_KERNELS: dict[type, Callable[..., Array]] = {
    ElementwiseParams: _elementwise,
    ClipParams: _clip,
    GemmParams: _gemm,
    MatMulParams: lambda p, a, b: np.matmul(a, b),
    SoftmaxParams: _softmax,
    BatchNormParams: _batch_norm,
    ConcatParams: lambda p, *values: np.concatenate(values, axis=p.axis),
    TransposeParams: lambda p, x: x.transpose(p.perm),
    ReshapeParams: lambda p, x: x.reshape(p.shape),
    ConvParams: cpu_windows.conv,
    ConvTransposeParams: cpu_windows.conv_transpose,
    PoolParams: cpu_windows.pool,
}
