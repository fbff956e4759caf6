"""One node in float64: ONNX's reference evaluator, and definitions where it lacks or misreads one.

Its floats are given as float64, so that what it computes is the exact value for every purpose here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]


class CannotError(Exception):
    """A node that neither the reference nor a definition here computes."""


def _flattened(meaning: Callable[[Array], Array]) -> Callable[..., Array]:
    """Return a meaning over rows as operator sets before 13 have it: all from `axis` on is a row.

    The reference takes the axis alone, as later operator sets do.
    """

    def over(x: Array, *, axis: int = 1, **_: Any) -> Array:
        rows = x.reshape(prod(x.shape[: axis % max(x.ndim, 1)]), -1)
        return meaning(rows).reshape(x.shape)

    return over


def _softmax(rows: Array) -> Array:
    powers: Array = np.exp(rows - rows.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _log_softmax(rows: Array) -> Array:
    below = rows - rows.max(1, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(1, keepdims=True)))


def _hardmax(rows: Array) -> Array:
    return np.eye(rows.shape[1])[rows.argmax(1)]


def _batch_norm(x: Array, *statistics: Array, epsilon: float = 1e-5, **_: Any) -> Array:
    column = (-1,) + (1,) * (x.ndim - 2)
    scale, shift, middle, variance = (s.reshape(column) for s in statistics)
    return np.asarray((x - middle) / np.sqrt(variance + epsilon) * scale + shift)


def _dequantize(x: Array, scale: Array, zero: Any = 0, *, axis: int = 1, **_: Any) -> Array:
    column = (-1,) + (1,) * (x.ndim - 1 - axis % max(x.ndim, 1))
    s, z = (np.reshape(a, column if np.size(a) > 1 else ()) for a in (scale, zero))
    return np.asarray((x.astype(np.float64) - z) * s)


def _mean_variance(x: Array, *, axes: Sequence[int] = (0, 2, 3), **_: Any) -> Array:
    along = tuple(axes)
    centred = x - x.mean(along, keepdims=True)
    # the body that ONNX gives for it adds this to the deviation
    return np.asarray(centred / (np.sqrt((centred**2).mean(along, keepdims=True)) + 1e-9))


def _upsample(x: Array, scales: Array | Sequence[float], *, mode: Any = "nearest") -> Array:
    if mode not in ("nearest", b"nearest"):
        raise CannotError("Upsample of another mode")
    for axis, factor in enumerate(np.asarray(scales, np.float64)):
        count = int(np.floor(x.shape[axis] * factor))
        x = x.take(np.floor(np.arange(count) / factor).astype(int), axis)
    return x


def _upsample_attribute(x: Array, *, scales: Sequence[float], mode: Any = "nearest") -> Array:
    return _upsample(x, scales, mode=mode)


def _keys(distance: Array, a: float = -0.75) -> Array:
    """Keys' kernel of cubic interpolation."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _triangle(distance: Array) -> Array:
    return np.maximum(0.0, 1 - np.abs(distance))


def _resize(x: Array, *given: Array, mode: bytes = b"nearest",
            coordinate_transformation_mode: bytes = b"half_pixel",
            nearest_mode: bytes = b"floor") -> Array:  # fmt: skip
    """Resize along one axis after the other; the reference takes places in float32."""
    numbers = next(g for g in reversed(given) if g.size)
    is_sizes = numbers.dtype.kind == "i"
    for axis, number in enumerate(numbers):
        size = x.shape[axis]
        scale = number / size if is_sizes else float(number)
        whole, y = scale * size, np.arange(int(np.floor(scale * size + 1e-9)))
        places = {
            b"asymmetric": y / scale,
            b"align_corners": y * (size - 1) / max(whole - 1, 1e-9) if whole != 1 else y * 0.0,
            b"half_pixel": (y + 0.5) / scale - 0.5,
            b"pytorch_half_pixel": (y + 0.5) / scale - 0.5 if whole > 1 else y * 0.0 - 0.5,
        }[coordinate_transformation_mode]
        if mode == b"nearest":
            x = x.take(np.clip(np.floor(places), 0, size - 1).astype(int), axis)
        elif scale != 1:
            kernel = _triangle if mode == b"linear" else _keys
            taps = np.floor(places)[:, None] + np.arange(-1, 3)
            table = np.zeros((len(y), size))
            at = np.clip(taps, 0, size - 1).astype(int)
            np.add.at(table, (np.arange(len(y))[:, None], at), kernel(taps - places[:, None]))
            x = np.moveaxis(np.tensordot(table, x, (1, axis)), 0, axis)
    return x


def _mish(x: Array) -> Array:
    return np.asarray(x * np.tanh(np.log1p(np.exp(np.minimum(x, 50)))))


def _hard_swish(x: Array) -> Array:
    return np.asarray(x * np.clip(x / 6 + 0.5, 0, 1))


def _global_lp(x: Array, *, p: int = 2) -> Array:
    along = tuple(range(2, x.ndim))
    return np.asarray((np.abs(x) ** p).sum(along, keepdims=True) ** (1 / p))


def _lp_norm(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    size = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
    return np.asarray(x / np.where(size == 0, 1, size))


def _extent(n: int, kernel: int, stride: int, pads: int, begin: int, *, is_up: bool) -> int:
    """Return how many windows there are; none begins behind the numbers."""
    room = n + pads - kernel
    count = (-(-room // stride) if is_up else room // stride) + 1
    return count - 1 if is_up and (count - 1) * stride >= n + begin else count


def _pooled(kind: str, x: Array, *, kernel_shape: Sequence[int], strides: Sequence[int] = (),
            pads: Sequence[int] = (), p: int = 2, ceil_mode: int = 0,
            count_include_pad: int = 0) -> Array:  # fmt: skip
    rank = x.ndim - 2
    steps, around = strides or [1] * rank, pads or [0] * 2 * rank
    begins, ends = around[:rank], around[rank:]
    counts = [_extent(n, k, s, a + e, a, is_up=bool(ceil_mode)) for n, k, s, a, e in
              zip(x.shape[2:], kernel_shape, steps, begins, ends, strict=True)]  # fmt: skip
    far = [max(0, (c - 1) * s + k - n - a) for c, s, k, n, a in
           zip(counts, steps, kernel_shape, x.shape[2:], begins, strict=True)]  # fmt: skip
    room = [(0, 0), (0, 0), *zip(begins, far, strict=True)]
    empty = -np.inf if kind == "max" else 0.0
    every = (slice(None), slice(None), *(slice(0, (c - 1) * s + 1, s)
                                         for c, s in zip(counts, steps, strict=True)))  # fmt: skip

    def windows(a: Array, filling: float) -> Array:
        wide = np.pad(a, room, constant_values=filling)
        seen = np.lib.stride_tricks.sliding_window_view(
            wide, tuple(kernel_shape), tuple(range(2, 2 + rank))
        )
        return seen[every].reshape(*x.shape[:2], *counts, -1)

    if kind == "max":
        return np.asarray(windows(x, empty).max(-1))
    if kind == "lp":
        return np.asarray((np.abs(windows(x, empty)) ** p).sum(-1) ** (1 / p))
    share = windows(np.ones_like(x), float(count_include_pad)).sum(-1)
    return np.asarray(windows(x, empty).sum(-1) / share)


def _global(best: Callable[..., Any], x: Array) -> Array:
    return np.asarray(best(x, tuple(range(2, x.ndim)), keepdims=True))


def _lrn(x: Array, *, size: int, alpha: float, beta: float, bias: float) -> Array:
    before = (size - 1) // 2
    wide = np.pad(x**2, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
    sums = sum(wide[:, i : i + x.shape[1]] for i in range(size))
    return np.asarray(x / (bias + alpha / size * sums) ** beta)


def _conv_transpose(x: Array, w: Array, b: Any = None, *, group: int = 1,
                    kernel_shape: Sequence[int] = (), strides: Sequence[int] = (),
                    pads: Sequence[int] = ()) -> Array:  # fmt: skip
    rank = x.ndim - 2
    steps, around = strides or [1] * rank, pads or [0] * 2 * rank
    kernel, each = w.shape[2:], x.shape[1] // group
    size = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], steps, kernel, strict=True)]
    whole = np.zeros((len(x), group * w.shape[1], *size))
    for g in range(group):
        mine, filters = slice(g * each, (g + 1) * each), slice(g * w.shape[1], (g + 1) * w.shape[1])
        for tap in np.ndindex(*kernel):
            made = np.einsum("nc...,co->no...", x[:, mine], w[(mine, slice(None), *tap)])
            at = (slice(t, t + (n - 1) * s + 1, s)
                  for t, n, s in zip(tap, x.shape[2:], steps, strict=True))  # fmt: skip
            whole[(slice(None), filters, *at)] += made
    inside = (slice(a, n - e) for a, e, n in zip(around[:rank], around[rank:], size, strict=True))
    cut = whole[(slice(None), slice(None), *inside)]
    return np.asarray(cut if b is None else cut + b.reshape(-1, *[1] * rank))


def _gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    inside = [slice(0, n) for n in indices.shape]
    inside[axis] = slice(None)
    return np.take_along_axis(x[tuple(inside)], indices.astype(np.int64), axis)


OWN: tuple[tuple[str, int, int, Callable[..., Array]], ...] = (
    ("Softmax", 0, 12, _flattened(_softmax)),
    ("LogSoftmax", 0, 12, _flattened(_log_softmax)),
    ("Hardmax", 0, 12, _flattened(_hardmax)),
    ("BatchNormalization", 0, 13, _batch_norm),
    ("DequantizeLinear", 0, 18, _dequantize),
    ("MeanVarianceNormalization", 0, 99, _mean_variance),
    ("Upsample", 0, 8, _upsample_attribute),
    ("Upsample", 9, 9, _upsample),
    ("Resize", 10, 10, _upsample),
    ("Resize", 11, 99, _resize),
    ("GatherElements", 0, 99, _gather_elements),
    ("LpNormalization", 0, 99, _lp_norm),
    ("MaxPool", 0, 99, partial(_pooled, "max")),
    ("AveragePool", 0, 99, partial(_pooled, "avg")),
    ("LpPool", 0, 99, partial(_pooled, "lp")),
    ("GlobalMaxPool", 0, 99, partial(_global, np.max)),
    ("GlobalAveragePool", 0, 99, partial(_global, np.mean)),
    ("LRN", 0, 99, _lrn),
    ("ConvTranspose", 0, 99, _conv_transpose),
    ("Mish", 0, 99, _mish),
    ("HardSwish", 0, 99, _hard_swish),
    ("GlobalLpPool", 0, 99, _global_lp),
)
"""Operator, first and last operator set, and what it means there."""


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as numpy and Python have them."""
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {
        n: numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v
        for n, v in found.items()
    }


def wide(array: Array) -> Array:
    """Return floats as float64, all else as it is."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _renamed(node: onnx.NodeProto) -> onnx.NodeProto:
    made = onnx.NodeProto.FromString(node.SerializeToString())
    for attribute in made.attribute:
        if attribute.name == "mode":
            attribute.s = {b"bilinear": b"linear", b"bicubic": b"cubic"}[attribute.s]
    return made


def compute(node: onnx.NodeProto, arrays: Sequence[Array | None], opset: int) -> list[Array]:
    """Return the outputs of a node. Raises CannotError."""
    given = [None if a is None else wide(a) for a in arrays]
    for op, first, last, meaning in OWN:
        if op == node.op_type and first <= opset <= last:
            return [meaning(*(g for g in given if g is not None), **attributes(node))]
    if node.op_type == "GridSample" and opset < 20:  # the reference knows the newer words alone
        node, opset = _renamed(node), 20
    feeds = {n: a for n, a in zip(node.input, given, strict=True) if a is not None}
    names = list(feeds)
    graph = helper.make_graph(
        [node], "node",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(feeds[n].dtype),
                                       feeds[n].shape) for n in names],
        [onnx.ValueInfoProto(name=o) for o in node.output if o],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:
        raise CannotError(f"{node.op_type}: {type(error).__name__}: {error}") from error
    return [wide(np.asarray(one)) for one in found]
