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
from gpuedge.opset import winograd
from gpuedge.opset.bounds import TINY, ULP, Array, Num, U
from gpuedge.opset.tensor import Window

__all__ = ["activated", "elementwise"]  # of one element; the rest is here

Sizes = Sequence[int]
"""One for each axis of an image; of padding first all at the begin, then all at the end."""


def _product(
    product: Callable[[Array, Array], Array],
    a: Num,
    b: Num,
    k: int,
    whole: bool,
    *,
    least: Any = 0.0,
) -> Num:
    """Sum of `k` products per output, from any bilinear `product`, whose own bound is `least`.

    The bound of a sum in any order is 4 k 2^-24 times the sum of magnitudes; operands within e_a
    and e_b move it by no more than (|a| + e_a)(|b| + e_b) - |a||b|, summed.
    """
    value = product(a.v, b.v)
    size = product(np.abs(a.v), np.abs(b.v))
    if not (a.e.any() or b.e.any()):
        own = np.zeros_like(value) if whole else np.maximum(4 * k * U * size, least) + TINY
        return Num(value, own)
    wide = product(np.abs(a.v) + a.e, np.abs(b.v) + b.e)
    return Num(value, (wide - size) + np.maximum(4 * k * U * wide, least) + TINY)


def conv2d(
    x: Any, w: Any, b: Any = None, *, whole: bool = False, tiled: Window | None = None, **how: Any
) -> Num:
    """Cross-correlation along any number of axes; `how` is what `_convolve` takes.

    `tiled`: how windows slide where a device may compute it in transformed tiles, never exactly.
    """
    x, w = Num.of(x), Num.of(w)
    k, least = math.prod(w.v.shape[1:]), 0.0 if tiled is None else winograd.bound(x, w, tiled)
    return _summed(partial(_convolve, **how), x, w, b, k=k, whole=whole and tiled is None,
                   least=least)  # fmt: skip


def conv_transpose2d(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    whole: bool = False,
    output_padding: Sizes = (0, 0),
    **how: Any,
) -> Num:
    """Every input pixel spreads its filter over the output; `pads` cut the edges off."""
    x, w = Num.of(x), Num.of(w)
    k = x.v.shape[1] // how.get("groups", 1) * math.prod(w.v.shape[2:])
    return _summed(partial(_convolve, extra=output_padding, **how), x, w, b, k=k, whole=whole)


def _summed(
    product: Callable[[Array, Array], Array],
    x: Num,
    w: Num,
    bias: Any,
    *,
    k: int,
    whole: bool,
    least: Any = 0.0,
) -> Num:
    """Sum `k` products per output, and one more term: a bias per channel."""
    total = _product(product, x, w, k, whole, least=least)
    if bias is None:
        return total
    size, b = product(np.abs(x.v) + x.e, np.abs(w.v) + w.e), Num.of(bias)
    value, error = (part.reshape(-1, *(1,) * (x.v.ndim - 2)) for part in b)
    own = 0 if whole and not b.e.any() else 4 * U * (size + (k + 1) * np.abs(value)) + TINY
    return Num(total.v + value, np.asarray(total.e + error + own))


def _convolve(
    x: Array,
    w: Array,
    *,
    stride: Sizes = (1, 1),
    pads: Sizes = (0, 0, 0, 0),
    dilation: Sizes = (1, 1),
    groups: int = 1,
    extra: Sizes | None = None,
) -> Array:
    """Correlate an image with filters, tap by tap; with `extra` output padding, spread it."""
    rank, kernel = x.ndim - 2, w.shape[2:]
    begin, end = pads[:rank], pads[rank : 2 * rank]
    x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    w = w.reshape(groups, -1, *w.shape[1:])
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=False)]
    is_back = extra is not None
    if extra is None:
        wide = np.pad(x, ((0, 0),) * 3 + tuple(zip(begin, end, strict=True)))
        steps = [(size - r) // s + 1 for size, r, s in zip(wide.shape[3:], reach, stride)]  # noqa: B905
        out = np.zeros((*x.shape[:2], w.shape[1], *steps))
    else:
        steps = list(x.shape[3:])
        full = [s * (n - 1) + more + r for s, n, more, r in zip(stride, steps, extra, reach)]  # noqa: B905
        wide = np.zeros((*x.shape[:2], w.shape[2], *full))
    everywhere = (slice(None),) * 3
    for taps in itertools.product(*map(range, kernel)):
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(taps, dilation, steps, stride)  # noqa: B905
        )
        seen, tap = wide[everywhere + window], w[everywhere + taps]
        if is_back:
            seen += np.einsum("ngc...,gcm->ngm...", x, tap)
        else:
            out += np.einsum("ngc...,gmc->ngm...", seen, tap)
    if is_back:
        inside = tuple(slice(b, n - e) for b, n, e in zip(begin, wide.shape[3:], end, strict=True))
        out = wide[everywhere + inside]
    return out.reshape(out.shape[0], -1, *out.shape[3:])


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
    kernel: Sizes,
    stride: Sizes,
    *,
    pads: Sizes = (0, 0, 0, 0),
    dilation: Sizes = (1, 1),
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


def batch_norm(x: Any, *statistics: Any, eps: float) -> Num:
    """Normalisation with a given scale, bias, mean and variance."""
    x = Num.of(x)
    shape = (-1,) + (1,) * (x.v.ndim - 2)
    s, b, m, v = (Num.of(p).v.reshape(shape) for p in statistics)
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
