"""What layers must give: float64 numpy by definition, with a bound on the error.

Nothing here shares code with the kernels or the CPU executor. Operands are arrays, or values with
errors of their own (`Num`); the bounds follow the derivations of ``docs/numerics.md``. Operations
that take `whole` work on integers: where operands are exact so is the result, bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuedge.conformance.functions import activated, elementwise
from gpuedge.opset.bounds import TINY, ULP, Array, Num, U

__all__ = ["activated", "elementwise"]  # of one element; the rest is here

Pair = tuple[int, int]
Pads = Sequence[int]
"""Top, left, bottom, right."""


def _product(product: Callable[[Array, Array], Array], a: Num, b: Num, k: int, whole: bool) -> Num:
    """Sum of `k` products per output, from any bilinear `product`.

    The bound of a sum in any order is 4 k 2^-24 times the sum of magnitudes; operands within e_a
    and e_b move it by no more than (|a| + e_a)(|b| + e_b) - |a||b|, summed.
    """
    value = product(a.v, b.v)
    size = product(np.abs(a.v), np.abs(b.v))
    if not (a.e.any() or b.e.any()):
        own = np.zeros_like(value) if whole else 4 * k * U * size + TINY
        return Num(value, own)
    wide = product(np.abs(a.v) + a.e, np.abs(b.v) + b.e)
    return Num(value, (wide - size) + 4 * k * U * wide + TINY)


def _summed(
    product: Callable[[Array, Array], Array], x: Num, w: Num, bias: Any, *, k: int, whole: bool
) -> Num:
    """Sum `k` products per output, and one more term: a bias per channel."""
    total = _product(product, x, w, k, whole)
    if bias is None:
        return total
    size, b = product(np.abs(x.v) + x.e, np.abs(w.v) + w.e), Num.of(bias)
    value, error = b.v.reshape(1, -1, 1, 1), b.e.reshape(1, -1, 1, 1)
    own = 0 if whole and not b.e.any() else 4 * U * (size + (k + 1) * np.abs(value)) + TINY
    return Num(total.v + value, np.asarray(total.e + error + own))


def conv2d(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    stride: Pair = (1, 1),
    pads: Pads = (0, 0, 0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    whole: bool = False,
) -> Num:
    """Cross-correlation."""
    x, w = Num.of(x), Num.of(w)

    correlate = partial(_correlate, stride=stride, pads=pads, dilation=dilation, groups=groups)
    return _summed(correlate, x, w, b, k=math.prod(w.v.shape[1:]), whole=whole)


def _correlate(
    x: Array, w: Array, *, stride: Pair, pads: Pads, dilation: Pair, groups: int
) -> Array:
    n, c, height, width = x.shape
    m, per, kh, kw = w.shape
    top, left, bottom, right = pads
    padded = np.zeros((n, c, height + top + bottom, width + left + right))
    padded[:, :, top : top + height, left : left + width] = x
    oh = (padded.shape[2] - (kh - 1) * dilation[0] - 1) // stride[0] + 1
    ow = (padded.shape[3] - (kw - 1) * dilation[1] - 1) // stride[1] + 1
    out = np.zeros((n, m, oh, ow))
    for g, ky, kx in itertools.product(range(groups), range(kh), range(kw)):
        mine = slice(g * m // groups, (g + 1) * m // groups)
        y0, x0 = ky * dilation[0], kx * dilation[1]
        seen = padded[
            :,
            g * per : (g + 1) * per,
            y0 : y0 + (oh - 1) * stride[0] + 1 : stride[0],
            x0 : x0 + (ow - 1) * stride[1] + 1 : stride[1],
        ]
        out[:, mine] += np.einsum("ncyx,mc->nmyx", seen, w[mine, :, ky, kx])
    return out


def conv_transpose2d(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    stride: Pair = (1, 1),
    pads: Pads = (0, 0, 0, 0),
    output_padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    whole: bool = False,
) -> Num:
    """Every input pixel spreads its filter over the output; `pads` cut the edges off."""
    x, w = Num.of(x), Num.of(w)

    spread = partial(
        _spread, stride=stride, pads=pads, dilation=dilation, groups=groups, extra=output_padding
    )
    k = x.v.shape[1] // groups * math.prod(w.v.shape[2:])
    return _summed(spread, x, w, b, k=k, whole=whole)


def _spread(
    x: Array, w: Array, *, stride: Pair, pads: Pads, dilation: Pair, groups: int, extra: Pair
) -> Array:
    n, c, height, width = x.shape
    _, per, kh, kw = w.shape
    top, left, bottom, right = pads
    full = [
        s * (size - 1) + more + (k - 1) * d + 1
        for s, size, more, k, d in zip(
            stride, (height, width), extra, (kh, kw), dilation, strict=True
        )
    ]
    out = np.zeros((n, groups, per, *full))
    images = x.reshape(n, groups, c // groups, height, width)
    filters = w.reshape(groups, c // groups, per, kh, kw)
    for i, j in itertools.product(range(height), range(width)):
        y, z = i * stride[0], j * stride[1]
        out[
            :,
            :,
            :,
            y : y + (kh - 1) * dilation[0] + 1 : dilation[0],
            z : z + (kw - 1) * dilation[1] + 1 : dilation[1],
        ] += np.einsum("ngc,gcmkl->ngmkl", images[:, :, :, i, j], filters)
    whole = out.reshape(n, groups * per, *full)
    return whole[:, :, top : full[0] - bottom, left : full[1] - right]


def matmul(a: Any, b: Any, *, whole: bool = False) -> Num:
    """Matrix product by numpy's rules."""
    a, b = Num.of(a), Num.of(b)
    return _product(lambda p, q: np.asarray(p @ q), a, b, a.v.shape[-1], whole)


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
    whole: bool = False,
) -> Num:
    """Compute alpha * a @ b + beta * c."""
    a, b = Num.of(a), Num.of(b)
    first = Num(a.v.T, a.e.T) if trans_a else a
    product = matmul(first, Num(b.v.T, b.e.T) if trans_b else b, whole=whole)
    value, bound = alpha * product.v, abs(alpha) * product.e
    if c is None:
        return Num(value, bound)
    other = Num.of(c)
    scaled, error = beta * other.v, abs(beta) * other.e
    own = 0 if whole and not bound.any() and not error.any() else 2 * ULP
    return Num(np.asarray(value + scaled), bound + error + own * (np.abs(value) + np.abs(scaled)))


def pool2d(
    kind: str,
    x: Any,
    kernel: Pair,
    stride: Pair,
    *,
    pads: Pads = (0, 0, 0, 0),
    dilation: Pair = (1, 1),
    ceil_mode: bool = False,
    include_pad: bool = False,
) -> Num:
    """Maximum or mean over windows, one output pixel at a time."""
    x = Num.of(x)
    size, begin, end = x.v.shape[2:], pads[:2], pads[2:]
    out = []
    for axis in range(2):
        room = size[axis] + begin[axis] + end[axis] - (kernel[axis] - 1) * dilation[axis] - 1
        count = (-(-room // stride[axis]) if ceil_mode else room // stride[axis]) + 1
        if ceil_mode and (count - 1) * stride[axis] >= size[axis] + begin[axis]:
            count -= 1
        out.append(count)
    value = np.zeros((*x.v.shape[:2], *out))
    bound = np.zeros_like(value)
    for oy, ox in itertools.product(range(out[0]), range(out[1])):
        taps, errors, positions = [], [], 0
        for ky, kx in itertools.product(range(kernel[0]), range(kernel[1])):
            y = oy * stride[0] + ky * dilation[0] - begin[0]
            z = ox * stride[1] + kx * dilation[1] - begin[1]
            positions += y < size[0] + end[0] and z < size[1] + end[1]
            if 0 <= y < size[0] and 0 <= z < size[1]:
                taps.append(x.v[:, :, y, z])
                errors.append(x.e[:, :, y, z])
        if kind == "max":
            value[:, :, oy, ox] = np.max(taps, axis=0) if taps else np.finfo(np.float32).min
            bound[:, :, oy, ox] = np.max(errors, axis=0) if taps else 0
        elif taps:
            divisor = positions if include_pad else len(taps)
            value[:, :, oy, ox] = np.sum(taps, axis=0) / divisor
            own = (math.prod(kernel) + 4) * ULP * np.sum(np.abs(taps), axis=0)
            bound[:, :, oy, ox] = (own + np.sum(errors, axis=0)) / divisor + TINY
    return Num(value, bound)


def global_pool(kind: str, x: Any) -> Num:
    """Maximum or mean over the last two axes."""
    x = Num.of(x)
    if kind == "max":
        return Num(x.v.max((2, 3), keepdims=True), x.e.max((2, 3), keepdims=True))
    return mean(x, (2, 3))


def mean(x: Num, axes: Sequence[int]) -> Num:
    """Mean along axes: a sum in any order, and a division."""
    along, count = tuple(axes), math.prod(x.v.shape[a] for a in axes)
    size = (np.abs(x.v) + x.e).mean(along, keepdims=True)
    own = (count + 4) * ULP * size + TINY
    return Num(x.v.mean(along, keepdims=True), x.e.mean(along, keepdims=True) + own)


def softmax(x: Any, axis: int, *, log: bool = False) -> Num:
    """Softmax or its logarithm."""
    x = Num.of(x)
    below = x.v - np.max(x.v, axis=axis, keepdims=True)
    n = x.v.shape[axis]
    total = np.sum(np.exp(below), axis=axis, keepdims=True)
    moved = 2 * x.e.max() if x.e.size else 0.0  # how far apart errors can push two exponents
    if log:
        bound = (n + 16) * ULP + 2 * ULP * (np.abs(below) + moved) + moved + TINY
        return Num(below - np.log(total), bound)
    value = np.exp(below) / total
    own = (n + 3 * (np.abs(below) + moved) + 10) * ULP
    return Num(value, value * ((1 + own) * np.exp(moved) - 1) + TINY)


def batch_norm(x: Any, statistics: Sequence[Array], eps: float) -> Num:
    """Normalisation with a given scale, bias, mean and variance."""
    x = Num.of(x)
    shape = (-1,) + (1,) * (x.v.ndim - 2)
    s, b, m, v = (np.asarray(p, np.float64).reshape(shape) for p in statistics)
    factor = s / np.sqrt(v + eps)
    shift = b - m * factor
    own = 3 * ULP * (np.abs(x.v * factor) + np.abs(shift)) + TINY
    return Num(x.v * factor + shift, own + np.abs(factor) * x.e)


def moved(f: Callable[[Array], Array], x: Any) -> Num:
    """What an operation that only moves elements gives."""
    x = Num.of(x)
    return Num(f(x.v), f(x.e))


def concat(parts: Sequence[Any], axis: int) -> Num:
    """Arrays joined along an axis."""
    nums = [Num.of(p) for p in parts]
    return Num(np.concatenate([n.v for n in nums], axis), np.concatenate([n.e for n in nums], axis))
