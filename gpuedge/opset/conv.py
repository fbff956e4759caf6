"""Convolution and transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuedge.core.layouts import other_order
from gpuedge.opset import deep
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Array, Convolution, Map, Shape, Tensor, mapped
from gpuedge.opset.windows import (
    Slide,
    as_image,
    as_rank,
    auto_pad,
    check_extents,
    check_short,
    counts,
    pad_for,
    spatial,
    split,
    unrolled,
    window,
)


def _check_weights(call: OperatorCall, x: Shape, w: Shape, group: int) -> None:
    if len(w) != len(x):
        raise call.bad_shape(f"has weights of rank {len(w)} for an input of rank {len(x)}")
    if group < 1:
        raise call.bad_shape(f"has group={group}")
    if "kernel_shape" in call.attrs and call.ints("kernel_shape", w[2:]) != w[2:]:
        given = list(call.attrs["kernel_shape"])
        raise call.bad_shape(f"has kernel_shape={given}, unlike its weights")


def _check_bias(call: OperatorCall, filters: int) -> None:
    if call.has(2) and call.shape(2) != (filters,):
        raise call.bad_shape(f"needs a bias of shape [{filters}]")


def is_direct(slide: Slide, w: Tensor, bias: Tensor | None) -> bool:
    """Tell whether the kernels of convolutions serve: they take weights from the host."""
    return slide.is_flat and not any(t and isinstance(t.source, Map) for t in (w, bias))


def _result(call: OperatorCall, filters: int, slide: Slide, group: int, transposed: bool) -> Tensor:
    x, w, bias = call.input(0), call.input(1), call.optional(2)
    if is_direct(slide, w, bias):
        source = Convolution(x, w, bias, slide.window, group, transposed)
        return Tensor((x.shape[0], filters, *slide.out), x.dtype, source)
    result = (deep.spread if transposed else deep.convolved)(x, w, slide, group)
    return result if bias is None else mapped(lambda y, b: y + b, result, deep.column(bias, x.rank))


def sliding(call: OperatorCall) -> tuple[Slide, int]:
    """Return how the windows of a Conv node slide, and its groups. Raises ShapeError (GE-201)."""
    size = spatial(call)
    x, w = call.shape(0), call.shape(1)
    group = call.integer("group", 1)
    _check_weights(call, x, w, group)
    if group * w[1] != x[1]:
        takes = f"its weights take {w[1]} in each of {group} groups"
        error = call.bad_shape(f"has {x[1]} input channels, but {takes}")
        error.hint = other_order(x, lambda y: y[1] == group * w[1])
        raise error
    if w[0] % group:
        raise call.bad_shape(f"has {w[0]} filters, which {group} groups cannot share evenly")
    _check_bias(call, w[0])
    return window(call, size, w[2:]), group


def convolution(call: OperatorCall) -> Tensor:
    """Compose a Conv node."""
    slide, group = sliding(call)
    return _result(call, call.shape(1)[0], slide, group, False)


def _conv_transpose(call: OperatorCall) -> Tensor:
    size = spatial(call)
    rank = len(size)
    x, w = call.shape(0), call.shape(1)
    group = call.integer("group", 1)
    _check_weights(call, x, w, group)
    if w[0] != x[1] or x[1] % group:
        raise call.bad_shape(f"has {x[1]} input channels, weights {list(w)}, {group} groups")
    _check_bias(call, w[1] * group)
    strides = counts(call, "strides", (1,) * rank)
    dilations = counts(call, "dilations", (1,) * rank)
    extra = counts(call, "output_padding", (0,) * rank, least=0)
    pads = counts(call, "pads", (0,) * (2 * rank), least=0)
    mode = auto_pad(call)
    wanted = call.ints("output_shape", ())[-rank:]
    if not wanted and mode.startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(size, strides, strict=True))
    full = [
        s * (n - 1) + e + (k - 1) * d + 1
        for s, n, e, k, d in zip(strides, size, extra, w[2:], dilations, strict=True)
    ]
    if any(e >= s for e, s in zip(extra, strides, strict=True)):
        why = f"each must be less than its stride, {list(strides)}"
        raise call.bad_shape(f"has output_padding={list(extra)}; {why}")
    check_short(call, "an output extent", full)
    if any(w > f for w, f in zip(wanted, full, strict=False)) and mode.startswith("SAME"):
        # ONNX's reference, its shape inference and ONNX Runtime disagree about what this means.
        raise call.unsupported(f"is to give {list(wanted)}, more than its windows reach, {full}")
    begin, end = _cuts(mode, full, wanted, pads)
    out = wanted or tuple(f - b - e for f, b, e in zip(full, begin, end, strict=True))
    if min(out) < 1:
        raise call.bad_shape(f"has pads {begin + end} that leave an output of {list(out)}")
    slide = Slide(w[2:], strides, tuple(begin), tuple(end), dilations, out)
    return _result(call, w[1] * group, slide, group, True)


def _cuts(
    mode: str, full: Sequence[int], wanted: Sequence[int], pads: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return what is cut off before and after, given the uncut size and the wanted one."""
    rank = len(full)
    if not wanted:
        if mode == "VALID":
            return [0] * rank, [0] * rank
        return list(pads[:rank]), list(pads[rank:])
    cuts = [split(f - w, mode == "SAME_UPPER") for f, w in zip(full, wanted, strict=True)]
    return [c[0] for c in cuts], [c[1] for c in cuts]


OPERATORS: tuple[Operator, ...] = (
    Operator("Conv", convolution, check=check_extents),
    Operator("ConvTranspose", _conv_transpose, check=check_extents),
)


# --- numpy meaning -------------------------------------------------------------------------------


def compute(source: Convolution, x: Array, w: Array, bias: Array | None) -> Array:
    """Compute a convolution of either direction in numpy."""
    rank = x.ndim
    run = _spread if source.is_transposed else _convolve
    y = run(source, as_image(x), as_image(w))
    if bias is not None:
        y = y + bias.reshape(1, -1, 1, 1)
    return as_rank(y, rank)


def _convolve(source: Convolution, x: Array, w: Array) -> Array:
    """One matrix product per group over the unrolled windows."""
    slide, group, filters, batch = source.window, source.group, w.shape[0], x.shape[0]
    windows = unrolled(pad_for(x, slide, 0.0), slide)
    if w.shape[1] == 1 and group == x.shape[1] == filters:
        # Depthwise: a weighted sum over the window, without unrolling it.
        depthwise: Array = np.einsum("ncklhw,ckl->nchw", windows, w[:, 0], optimize=False)
        return depthwise
    rows = w.reshape(1, group, filters // group, -1)
    # No -1 here: the batch may be empty.
    columns = windows.reshape(batch, group, rows.shape[3], slide.out[0] * slide.out[1])
    y: Array = np.matmul(rows, columns).reshape(batch, filters, *slide.out)
    return y


def _spread(source: Convolution, x: Array, w: Array) -> Array:
    """Scatter each input pixel, times the kernel, onto the output."""
    slide, group, per_group = source.window, source.group, w.shape[1]
    batch, channels, height, width = x.shape
    (kh, kw), (sh, sw), (dh, dw) = slide.kernel, slide.strides, slide.dilations
    rows = w.reshape(1, group, channels // group, -1).swapaxes(2, 3)
    pixels = x.reshape(batch, group, channels // group, height * width)
    spread = np.matmul(rows, pixels).reshape(batch, group * per_group, kh, kw, height, width)
    top, left = slide.pads[:2]
    full = (
        max(slide.out[0] + top, (height - 1) * sh + (kh - 1) * dh + 1),
        max(slide.out[1] + left, (width - 1) * sw + (kw - 1) * dw + 1),
    )
    y = np.zeros((batch, group * per_group, *full), x.dtype)
    for i in range(kh):
        for j in range(kw):
            down = slice(i * dh, i * dh + (height - 1) * sh + 1, sh)
            across = slice(j * dw, j * dw + (width - 1) * sw + 1, sw)
            y[:, :, down, across] += spread[:, :, i, j]
    return y[:, :, top : top + slide.out[0], left : left + slide.out[1]]
