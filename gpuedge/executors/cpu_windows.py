"""Convolution and pooling in numpy, through strided views of the padded input."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.graph.canon import ConvParams, ConvTransposeParams, PoolParams

F32 = npt.NDArray[np.float32]


def _lowest(dtype: np.dtype[Any]) -> float:
    """Return what padding counts as in a maximum; ONNX Runtime takes this too, not infinity."""
    return float(np.finfo(dtype).min if dtype.kind == "f" else np.iinfo(dtype).min)


def _as_2d(x: F32) -> F32:
    """Give a tensor with one spatial dimension a height of 1."""
    return x if x.ndim == 4 else x[:, :, None, :]


def _own_rank(y: F32, rank: int) -> F32:
    return y if rank == 2 else y[:, :, 0, :]


def _padded(x: F32, params: ConvParams | PoolParams, fill: float) -> F32:
    """Pad `x`, at the far ends as far as the last window reaches (`ceil_mode`, or a remainder)."""
    top, left, bottom, right = params.pads
    height, width = (
        (params.out[i] - 1) * params.strides[i] + (params.kernel[i] - 1) * params.dilations[i] + 1
        for i in (0, 1)
    )
    bottom = max(bottom, height - x.shape[2] - top)
    right = max(right, width - x.shape[3] - left)
    if not any((top, left, bottom, right)):
        return x
    ends = ((0, 0), (0, 0), (top, bottom), (left, right))
    return np.pad(x, ends, constant_values=x.dtype.type(fill))


def _windows(x: F32, params: ConvParams | PoolParams) -> F32:
    """Return a view (N, C, kh, kw, oh, ow) of the padded `x`."""
    n, c, row, column = x.strides
    shape = (x.shape[0], x.shape[1], *params.kernel, *params.out)
    strides = (
        n,
        c,
        row * params.dilations[0],
        column * params.dilations[1],
        row * params.strides[0],
        column * params.strides[1],
    )
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)


def conv(params: ConvParams, x: F32, w: F32, bias: F32 | None = None) -> F32:
    """Convolve: one matrix product per group over the unrolled windows."""
    x, w = _as_2d(x), _as_2d(w)
    group, filters = params.group, w.shape[0]
    windows = _windows(_padded(x, params, 0.0), params)
    batch = x.shape[0]
    if w.shape[1] == 1 and group == x.shape[1] == filters:
        # Depthwise: a weighted sum over the window, without unrolling it.
        y = np.einsum("ncklhw,ckl->nchw", windows, w[:, 0], optimize=False)
    else:
        pixels = params.out[0] * params.out[1]
        rows = w.reshape(1, group, filters // group, -1)
        # No -1 here: the batch may be empty.
        columns = windows.reshape(batch, group, rows.shape[3], pixels)
        y = np.matmul(rows, columns).reshape(batch, filters, *params.out)
    if bias is not None:
        y = y + bias.reshape(1, -1, 1, 1)
    return _own_rank(y, params.rank)


def conv_transpose(params: ConvTransposeParams, x: F32, w: F32, bias: F32 | None = None) -> F32:
    """Scatter each input pixel, times the kernel, onto the output."""
    x, w = _as_2d(x), _as_2d(w)
    batch, channels, height, width = x.shape
    group, per_group = params.group, w.shape[1]
    (kh, kw), (sh, sw), (dh, dw) = params.kernel, params.strides, params.dilations
    rows = w.reshape(1, group, channels // group, -1).swapaxes(2, 3)
    pixels = x.reshape(batch, group, channels // group, height * width)
    spread = np.matmul(rows, pixels).reshape(batch, group * per_group, kh, kw, height, width)
    top, left = params.pads[:2]
    full = (
        max(params.out[0] + top, (height - 1) * sh + (kh - 1) * dh + 1),
        max(params.out[1] + left, (width - 1) * sw + (kw - 1) * dw + 1),
    )
    y = np.zeros((batch, group * per_group, *full), np.float32)
    for i in range(kh):
        for j in range(kw):
            down = slice(i * dh, i * dh + (height - 1) * sh + 1, sh)
            across = slice(j * dw, j * dw + (width - 1) * sw + 1, sw)
            y[:, :, down, across] += spread[:, :, i, j]
    y = y[:, :, top : top + params.out[0], left : left + params.out[1]]
    if bias is not None:
        y = y + bias.reshape(1, -1, 1, 1)
    return _own_rank(y, params.rank)


def pool(params: PoolParams, x: F32) -> F32:
    """Reduce windows to their maximum or their average."""
    if params.global_:
        axes = tuple(range(2, x.ndim))
        if params.kind == "max":
            return np.asarray(x.max(axis=axes, keepdims=True))
        return np.asarray(x.mean(axis=axes, keepdims=True))
    image = _as_2d(x)
    if params.kind == "max":
        y = _windows(_padded(image, params, _lowest(image.dtype)), params).max(axis=(2, 3))
        return _own_rank(y, params.rank)
    sums = _windows(_padded(image, params, 0.0), params).sum(axis=(2, 3))
    return _own_rank(sums / _divisor(params, image.shape[2:]), params.rank)


def _divisor(params: PoolParams, size: tuple[int, ...]) -> F32:
    """Return how many positions each window averages over, shape (oh, ow)."""
    counts = []
    for i in (0, 1):
        begin, end = params.pads[i], params.pads[i + 2]
        start = np.arange(params.out[i])[:, None] * params.strides[i]
        at = start + np.arange(params.kernel[i]) * params.dilations[i]
        if params.count_include_pad:
            inside = at < begin + size[i] + end
        else:
            inside = (at >= begin) & (at < begin + size[i])
        counts.append(inside.sum(axis=1))
    table: F32 = np.maximum(np.multiply.outer(counts[0], counts[1]), 1).astype(np.float32)
    return table
