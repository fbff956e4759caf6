"""Pooling: maximum and average over windows, or over whole images."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpuedge.core.dtypes import BYTES
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Array, Pooling, Tensor, Window, mean, reduced
from gpuedge.opset.windows import (
    as_image,
    as_rank,
    check_extents,
    counts,
    pad_for,
    pair,
    spatial,
    unrolled,
    window,
)

WHOLE = 1024
"""Images of more pixels are reduced in several passes; smaller ones are one window."""


def _pool(call: OperatorCall) -> Tensor:
    size = spatial(call)
    if len(call.outputs) > 1 and call.outputs[1]:
        raise call.unsupported("is asked for the indices of its maxima")
    if "kernel_shape" not in call.attrs:
        raise call.unsupported("lacks the attribute kernel_shape")
    kernel = counts(call, "kernel_shape", (1,) * len(size))
    slide = window(call, size, kernel, bool(call.integer("ceil_mode", 0)))
    is_max = call.op == "MaxPool"
    include = bool(call.integer("count_include_pad", 0)) and not is_max
    return _result(call, Pooling("max" if is_max else "avg", call.input(0), slide, include))


def _global(call: OperatorCall) -> Tensor:
    x, size = call.input(0), spatial(call)
    is_max = call.op == "GlobalMaxPool"
    if prod(size) > WHOLE:
        along = tuple(range(2, x.rank))
        return reduced("max", x, along) if is_max else mean(x, along)
    slide = Window(pair(size, 1), (1, 1), (0, 0, 0, 0), (1, 1), (1, 1))
    return _result(call, Pooling("max" if is_max else "avg", x, slide))


def _result(call: OperatorCall, source: Pooling) -> Tensor:
    x = source.x
    return Tensor((*x.shape[:2], *source.window.out[4 - x.rank :]), x.dtype, source)


OPERATORS: tuple[Operator, ...] = (
    Operator("MaxPool", _pool, dtypes=BYTES, remark="without the indices of the maxima",
             check=check_extents),
    Operator("AveragePool", _pool, check=check_extents),
    Operator("GlobalMaxPool", _global, check=check_extents),
    Operator("GlobalAveragePool", _global, check=check_extents),
)  # fmt: skip


# --- numpy meaning -------------------------------------------------------------------------------


def compute(source: Pooling, x: Array) -> Array:
    """Compute a pooling in numpy."""
    rank, image, slide = x.ndim, as_image(x), source.window
    if source.kind == "max":
        lowest = _lowest(np.dtype(source.x.dtype))
        windows = unrolled(pad_for(image, slide, lowest), slide)
        return as_rank(windows.max(axis=(2, 3)), rank)
    sums = unrolled(pad_for(image, slide, 0.0), slide).sum(axis=(2, 3))
    return as_rank(sums / _divisor(source, image.shape[2:]), rank)


def _lowest(dtype: np.dtype[Any]) -> float:
    """Return what padding counts as in a maximum; ONNX Runtime takes this too, not infinity."""
    return float(np.finfo(dtype).min if dtype.kind == "f" else np.iinfo(dtype).min)


def _divisor(source: Pooling, size: tuple[int, ...]) -> Array:
    """Return how many positions each window averages over, shape (oh, ow)."""
    slide, found = source.window, []
    for i in (0, 1):
        begin, end = slide.pads[i], slide.pads[i + 2]
        start = np.arange(slide.out[i])[:, None] * slide.strides[i]
        at = start + np.arange(slide.kernel[i]) * slide.dilations[i]
        if source.count_include_pad:
            inside = at < begin + size[i] + end
        else:
            inside = (at >= begin) & (at < begin + size[i])
        found.append(inside.sum(axis=1))
    table: Array = np.maximum(np.multiply.outer(found[0], found[1]), 1).astype(np.float32)
    return table
