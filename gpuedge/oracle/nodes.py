"""What operators of ONNX must give, and whole graphs: float64 with bounds, node by node.

Those that round have a meaning here (`MEANINGS`), with the bound that it is allowed. What the
others give is what ONNX's reference evaluator makes of float64. They move, compare or count, or
their operands are to be such that float32 gives the very same: their results have no error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import add
from types import MappingProxyType
from typing import Any

import numpy as np

from gpuedge.graph.ir import OPSET, Graph, Node
from gpuedge.graph.reference import run_node
from gpuedge.opset import FUNCTIONS, OPERATORS, angles
from gpuedge.opset.bounds import Array, Num
from gpuedge.opset.logic import COMPARISONS
from gpuedge.opset.nbits import MICROSOFT
from gpuedge.oracle import layers, recurrent
from gpuedge.oracle.attention import attention
from gpuedge.oracle.functions import WHOLE, clip, elementwise
from gpuedge.oracle.fused import FUSED

Value = Num | Array
"""Floats with their errors, or integers and truth values as they are."""

Meaning = Callable[..., "Value | tuple[Value, ...]"]
"""Takes operands (absent ones are None), whether sums are exact (`whole`), and attributes."""

NAMES = {"strides": "stride", "dilations": "dilation", "group": "groups", "kernel_shape": "kernel",
         "count_include_pad": "include_pad"}  # fmt: skip
"""Attributes of ONNX by the names that `layers` and public functions have for them."""


def word(value: Any) -> str:
    """Return an attribute that is a word."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _named(x: Num, kernel: Sequence[int], attrs: dict[str, Any]) -> dict[str, Any]:
    """Return attributes of a window as `layers` takes them."""
    named = {NAMES.get(name, name): value for name, value in attrs.items()}
    auto = word(named.pop("auto_pad", ""))
    if auto.startswith("SAME"):
        stride, dilation = (named.get(name, ()) for name in ("stride", "dilation"))
        is_upper = auto == "SAME_UPPER"
        named["pads"] = layers.same_pads(x.v.shape[2:], kernel, stride, dilation, upper=is_upper)
    return named


def _conv(layer: Callable[..., Num], x: Num, w: Num, b: Num | None = None, *, whole: bool,
          kernel_shape: Any = (), **attrs: Any) -> Num:  # fmt: skip
    return layer(x, w, b, whole=whole, **_named(x, w.v.shape[2:], attrs))


def _pool(kind: str, x: Num, *, whole: bool, kernel_shape: Any, **attrs: Any) -> Num:
    return layers.pool(kind, x, kernel_shape, **_named(x, kernel_shape, attrs))


def _unique(
    x: Value, *, whole: bool, axis: int | None = None, sorted: int = 1,
) -> tuple[Value, ...]:  # fmt: skip
    """Return what differs, where it is first, which each one is, and how many of each there are.

    ONNX's reference fails where tensors of several axes are flattened and not sorted.
    """
    held = x.v if isinstance(x, Num) else x
    some, first, which, count = np.unique(held, True, True, True, axis=axis)
    order = np.arange(len(first)) if sorted else np.argsort(first)
    some = np.take(some, order, 0 if axis is None else axis)
    places = np.argsort(order)[which.ravel()]
    return (Num.of(some) if isinstance(x, Num) else some, first[order], places, count[order])


def _gemm(*operands: Num, transA: int = 0, transB: int = 0, **how: Any) -> Num:  # noqa: N803
    return layers.gemm(*operands, trans_a=bool(transA), trans_b=bool(transB), **how)


_CONV = partial(_conv, layers.conv2d)


def _integer(
    product: Callable[..., Num], a: Array, b: Array, *zeros: Array | None, **how: Any
) -> Array:
    """Return sums of products of integers without their zero points: of rows, and of columns."""
    first, second = (*zeros, None, None)[:2]
    if first is not None:
        a = a - first.astype(np.int64)
    if second is not None:
        b = b - second.astype(np.int64)
    return product(Num.of(a), Num.of(b), **{**how, "whole": True}).v.astype(np.int32)


def _requantised(*operands: Any, **how: Any) -> Array:
    """Return a product of codes; older reference evaluators round it in another way."""
    a, scale_a, zero_a, b, scale_b, zero_b, scale, zero = operands
    sums = _integer(layers.matmul, a, b, zero_a, zero_b, **how)
    return _coded(sums, scale_a.v * scale_b.v / scale.v, zero)


def _requantised_conv(*operands: Any, **how: Any) -> Array:
    """Return a convolution of codes: filters have zero points, scales and biases of their own."""
    x, scale_x, zero_x, w, scale_w, zero_w, scale, zero, *bias = operands
    column = (-1,) + (1,) * (x.ndim - 2)
    sums = _integer(_CONV, x, w, zero_x, zero_w.reshape((*column, 1)), **how)
    sums = sums + (bias[0].reshape(column) if bias else 0)
    return _coded(sums, (scale_x.v * scale_w.v / scale.v).reshape(column), zero)


def _coded(sums: Array, factor: Array, zero: Array) -> Array:
    limits = np.iinfo(zero.dtype)
    codes = np.rint(sums * factor) + zero
    return np.asarray(np.clip(codes, limits.min, limits.max), zero.dtype)


def _reduced(f: Callable[..., Num], x: Num, given: Array | None = None, *, axes: Any = None,
             keepdims: int = 1, **how: Any) -> Num:  # fmt: skip
    """Axes became an input; without any, all are meant."""
    along = axes if given is None else given
    along = range(x.v.ndim) if along is None else along
    return f(x, along, keepdims=bool(keepdims), **how)


def _sum_of_squares(x: Num, axes: Any, **how: Any) -> Num:
    return layers.total(x * x, axes, **how)


def _sum(*x: Num, whole: bool, is_mean: bool = False) -> Num:
    sums = reduce(add, x)
    if whole or len(x) == 1:
        sums = Num(sums.v, reduce(np.add, (term.e for term in x)))
    return sums / float(len(x)) if is_mean else sums


def _folded(name: str, *x: Num, whole: bool) -> Num:
    return reduce(partial(elementwise, name), x)


def _function(name: str, *operands: Num, whole: bool, **attrs: float) -> Num:
    if whole and name in WHOLE and not any(x.e.any() for x in operands):
        return Num.of(WHOLE[name](*(x.v for x in operands)))
    return elementwise(name, *operands, is_last=False, **attrs)


def _clip(x: Num, low: Any = None, high: Any = None, *, whole: bool, **limits: float) -> Num:
    """Limits became inputs."""
    low, high = (limits.get(n) if o is None else o for n, o in (("min", low), ("max", high)))
    return clip(x, low, high)


def _gelu(x: Num, *, whole: bool, approximate: Any = "none") -> Num:
    return elementwise("gelu" if word(approximate) == "none" else "gelu_tanh", x)


def _softmax(x: Num, *, whole: bool, axis: int = -1, log: bool = False) -> Num:
    return layers.softmax(x, axis, log=log)


def _cumsum(x: Num, axis: Value, **how: Any) -> Num:
    return layers.cumsum(x, int(Num.of(axis).v), **how)


def _layer_norm(x: Num, scale: Num, *shift: Num, whole: bool, axis: int = -1,
                epsilon: float = 1e-5) -> tuple[Num, Num, Num]:  # fmt: skip
    along = range(axis % x.v.ndim, x.v.ndim)
    even, middle, inverse = layers.standardised(x, along, epsilon)
    return reduce(add, shift, even * scale), middle, inverse


def _instance_norm(x: Num, scale: Num, shift: Num, *, whole: bool, epsilon: float = 1e-5) -> Num:
    even = layers.standardised(x, range(2, x.v.ndim), epsilon)[0]
    return even * layers.column(scale, x.v.ndim) + layers.column(shift, x.v.ndim)


def _batch_norm(x: Num, *statistics: Num, whole: bool, epsilon: float = 1e-5, **_: Any) -> Num:
    scale, shift, middle, variance = (layers.column(p, x.v.ndim) for p in statistics)
    return (x - middle) * (scale / (variance + epsilon).sqrt()) + shift


def _lp_norm(x: Num, *, whole: bool, axis: int = -1, p: int = 2) -> Num:
    return x / layers.norm(x, axis, p, whole=whole, keepdims=True)


def _resize(x: Num, *given: Array | Num | None, whole: bool, mode: Any = "nearest",
            coordinate_transformation_mode: Any = "half_pixel", **_: Any) -> Num:  # fmt: skip
    """Along one axis after the other, without errors; the reference takes places in float32."""
    numbers = next(g for g in reversed(given) if g is not None and np.size(Num.of(g).v))
    value, where = x.v, word(coordinate_transformation_mode)
    for axis, number in enumerate(Num.of(numbers).v):
        size = x.v.shape[axis]
        count = float(number) * (size if isinstance(numbers, Num) else 1)
        if count != size:
            value = layers.resize(value, axis, count, word(mode), where)
    return Num.of(value)


def _deformed(x: Num, w: Num, offset: Num, *more: Num, **how: Any) -> Num:
    """Offsets of zero: a convolution."""
    if offset.v.any() or more:
        raise ValueError("no meaning is derived for offsets, biases and masks")
    return _conv(layers.conv2d, x, w, **how)


def _det(x: Num, *, whole: bool) -> Num:
    """Determinants of small matrices by their definition, along the first row."""
    size = x.v.shape[-1]

    def minor(row: int, columns: tuple[int, ...]) -> Num:
        entries = [Num(x.v[..., row, c], x.e[..., row, c]) for c in columns]
        if len(columns) == 1:
            return entries[0]
        parts = [e * minor(row + 1, columns[:i] + columns[i + 1 :]) for i, e in enumerate(entries)]
        return reduce(add, (-part if i % 2 else part for i, part in enumerate(parts)))

    total = minor(0, tuple(range(size)))
    return Num.of(total.v) if whole and not x.e.any() else total


ELEMENTWISE: dict[str, str] = {
    **{row.op: name for name, row in FUNCTIONS.items() if row.op not in COMPARISONS},
    **{op: op.lower() for op in (*angles.FORMULAS, "Swish")},
}
"""Functions of elements by operator."""

MEANINGS: dict[str, Meaning] = {
    **{op: partial(_function, name) for op, name in ELEMENTWISE.items()},
    **{op: partial(recurrent.layer, op) for op in recurrent.STEPS},
    "Attention": attention,
    "AveragePool": partial(_pool, "avg"),
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Conv": _CONV,
    "ConvTranspose": partial(_conv, layers.conv_transpose2d),
    "CumSum": _cumsum,
    "DeformConv": _deformed,
    "Det": _det,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda x, whole: layers.global_pool("avg", x),
    "GlobalLpPool": lambda x, whole, p=2: layers.global_pool("lp", x, p),
    "GlobalMaxPool": lambda x, whole: layers.global_pool("max", x),
    "InstanceNormalization": _instance_norm,
    "LRN": lambda x, whole, **attrs: layers.local_norm(x, **attrs),
    "LayerNormalization": _layer_norm,
    "LogSoftmax": partial(_softmax, log=True),
    "LpNormalization": _lp_norm,
    "LpPool": partial(_pool, "lp"),
    "MatMul": layers.matmul,
    "Max": partial(_folded, "maximum"),
    "MaxPool": partial(_pool, "max"),
    "Mean": partial(_sum, is_mean=True),
    "Min": partial(_folded, "minimum"),
    "ReduceL1": partial(_reduced, partial(layers.norm, p=1)),
    "ReduceL2": partial(_reduced, layers.norm),
    "ReduceLogSum": partial(_reduced, layers.log_sum),
    "ReduceLogSumExp": partial(_reduced, partial(layers.log_sum, is_exp=True)),
    "ReduceMean": partial(_reduced, partial(layers.total, is_mean=True)),
    "ReduceSum": partial(_reduced, layers.total),
    "ReduceSumSquare": partial(_reduced, _sum_of_squares),
    "Resize": _resize,
    "Softmax": _softmax,
    "Sum": _sum,
    "Unique": _unique,
}
"""Operators on floats that round, or that the reference does not compute in float64."""

INTEGERS: dict[str, Meaning] = {
    "ConvInteger": partial(_integer, _CONV),
    "MatMulInteger": partial(_integer, layers.matmul),
    "QLinearConv": _requantised_conv,
    "QLinearMatMul": _requantised,
    "Unique": _unique,
}
"""Operators on integers; the first two are for known answers, which do without onnx."""


def compute(
    node: Node, operands: Sequence[Any], opset: int = OPSET, *, whole: bool = False
) -> tuple[Value, ...]:
    """Return what a node must give.

    Parameters
    ----------
    node : Node
    operands : sequence of Num, array or None
        One for each input; arrays of floats are exact.
    opset : int
        The operator set that it is of.
    whole : bool
        Whether floats are whole numbers of which sums are exact.

    Raises
    ------
    UnsupportedOpError (GE-501)
        Neither the reference nor a definition here computes it.
    """
    given = [None if o is None else _value(o) for o in operands]
    meanings = MEANINGS if any(isinstance(g, Num) for g in given[:1]) else INTEGERS
    if node.domain == MICROSOFT:
        meanings = FUSED
    if node.op not in meanings:
        return _by_reference(node, given, opset)
    with np.errstate(all="ignore"):
        result = meanings[node.op](*given, whole=whole, **node.attrs)
    return result if isinstance(result, tuple) else (result,)


def _value(operand: Any) -> Value:
    array = operand if isinstance(operand, Num) else np.asarray(operand)
    return array if isinstance(array, Num) or array.dtype.kind != "f" else Num.of(array)


def _by_reference(node: Node, given: Sequence[Value | None], opset: int) -> tuple[Value, ...]:
    """Return what the reference makes of values; errors move as the values do."""

    def run(part: str) -> tuple[Array, ...]:
        arrays = (getattr(g, part) if isinstance(g, Num) else g for g in given)
        named = {n: a for n, a in zip(node.inputs, arrays, strict=False) if a is not None}
        return run_node(node, named, {"": opset})

    values = run("v")
    if not any(isinstance(g, Num) and g.e.any() for g in given):
        return tuple(map(_exact, values))
    known = OPERATORS.get(node.op)
    if known is None or not known.moves:
        raise ValueError(f"no bound is derived for {node.op} of values with errors")
    return tuple(map(Num, values, run("e")))


def _exact(array: Array) -> Value:
    if array.dtype.kind != "f":
        return array
    value = array.astype(np.float64)
    return Num(value, np.zeros_like(value))


def evaluate(
    graph: Graph,
    given: Mapping[str, Any],
    *,
    whole: bool = False,
    stored: Mapping[str, Callable[[Any], Num]] = MappingProxyType({}),
) -> dict[str, Value]:
    """Return every value of a graph.

    Parameters
    ----------
    graph : Graph
    given : mapping of str to Num or array
        Its inputs; constants too, where they are to be others than the graph's.
    whole : bool
        As `compute` takes it.
    stored : mapping of str to callable
        What storing makes of values, by the names of those that are stored on the way.
    """
    values = {**graph.constants, **given}
    for node in graph.nodes:
        operands = [values[name] if name else None for name in node.inputs]
        results = compute(node, operands, graph.opset.get("", OPSET), whole=whole)
        for name, result in zip(node.outputs, results, strict=False):
            values[name] = stored[name](result) if name in stored else result
    return values
