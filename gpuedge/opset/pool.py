"""Pooling: maximum and average over windows, or over whole images."""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any

import numpy as np

from gpuedge.core.dtypes import BYTES
from gpuedge.opset import deep
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import f, magnitude
from gpuedge.opset.expr import Expr, apply
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Array, Centred, Pooling, Tensor, mapped, mean, reduced
from gpuedge.opset.windows import (
    FLAT,
    Slide,
    as_image,
    as_rank,
    check_extents,
    counts,
    pad_for,
    spatial,
    unrolled,
    window,
)

MOST_POWER = 8
"""Highest powers are products of so many factors."""

WHOLE = 1024
"""Images of more pixels are reduced in several passes; smaller ones are one window."""


def _pool(call: OperatorCall) -> tuple[Tensor, ...]:
    x, slide = call.input(0), _slide(call)
    is_max = call.op == "MaxPool"
    include = bool(call.integer("count_include_pad", 0)) and not is_max
    result = _result(x, slide, is_max=is_max, include_pad=include)
    if not any(call.outputs[1:]):
        if is_max and x.centred is not None:
            kept = _result(x.centred.tensor, slide, is_max=True)
            result.centred = Centred(kept, x.centred.zero)
        return (result,)
    by_columns = bool(call.integer("storage_order", 0))
    return result, deep.where_greatest(x, result, slide, by_columns=by_columns)


def _slide(call: OperatorCall) -> Slide:
    size = spatial(call)
    if "kernel_shape" not in call.attrs:
        raise call.unsupported("lacks the attribute kernel_shape")
    kernel = counts(call, "kernel_shape", (1,) * len(size))
    return window(call, size, kernel, bool(call.integer("ceil_mode", 0)))


def _global(call: OperatorCall) -> Tensor:
    x, size = call.input(0), spatial(call)
    rank, along = len(size), tuple(range(2, x.rank))
    if call.op == "GlobalAveragePool":
        return mean(x, along)
    if prod(size) > WHOLE or rank > FLAT:
        return reduced("max", x, along)
    ones = (1,) * rank
    return _result(x, Slide(size, ones, (0,) * rank, (0,) * rank, ones, ones), is_max=True)


def _result(x: Tensor, slide: Slide, *, is_max: bool, include_pad: bool = False) -> Tensor:
    if slide.is_flat:
        source = Pooling("max" if is_max else "avg", x, slide.window, include_pad)
        return Tensor((*x.shape[:2], *slide.out), x.dtype, source)
    if is_max:
        return deep.windowed(x, slide, "max", _lowest(np.dtype(x.dtype)))
    return deep.averaged(x, slide, include_pad=include_pad)


def _lp_pool(call: OperatorCall) -> Tensor:
    """Return the p-th root of the sum of p-th powers under a window."""
    x, p = call.input(0), call.integer("p", 2)
    if not 1 <= p <= MOST_POWER:
        raise call.unsupported(f"has p={p}; only 1 to {MOST_POWER} are known")

    def before(v: Expr) -> Expr:
        return reduce(lambda a, b: a * b, [magnitude(v)] * p)

    if call.op == "GlobalLpPool":
        total = reduced("sum", x, tuple(range(2, x.rank)), before=before)
    else:
        total = deep.windowed(x, _slide(call), "sum", 0.0, before)
    if p <= 2:
        return total if p == 1 else mapped(f("sqrt"), total)
    return mapped(lambda s: apply("pow", s, 1 / p), total)


OPERATORS: tuple[Operator, ...] = (
    Operator("MaxPool", _pool, dtypes=BYTES, check=check_extents),
    Operator("AveragePool", _pool, check=check_extents),
    Operator("GlobalMaxPool", _global, check=check_extents),
    Operator("GlobalAveragePool", _global, check=check_extents),
    Operator("LpPool", _lp_pool, check=check_extents),
    Operator("GlobalLpPool", _lp_pool, check=check_extents),
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
    slide, counts = source.window, []
    for i in (0, 1):
        begin, end = slide.pads[i], slide.pads[i + 2]
        start = np.arange(slide.out[i])[:, None] * slide.strides[i]
        at = start + np.arange(slide.kernel[i]) * slide.dilations[i]
        if source.count_include_pad:
            inside = at < begin + size[i] + end
        else:
            inside = (at >= begin) & (at < begin + size[i])
        counts.append(inside.sum(axis=1))
    table: Array = np.maximum(np.multiply.outer(counts[0], counts[1]), 1).astype(np.float32)
    return table
