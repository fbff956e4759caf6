"""What sums, products, windows and norms must give: float64 numpy by definition, with a bound.

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

from gpuedge.opset import winograd
from gpuedge.opset.bounds import TINY, ULP, Array, Num, U, power
from gpuedge.opset.tensor import Window

Sizes = Sequence[int]
"""One for each axis of an image, all of them 1 if there are none; of padding first all at the
begin, then all at the end, or none."""

# --- products and convolutions --------------------------------------------------------------------


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

    2 k roundings, each of 2 U of what is summed at the most and as likely up as down, come to the
    root of 8 k times U: the bound divided by the root of 2 k.

    The bound of a sum in any order is 4 k 2^-24 times the sum of magnitudes; operands within e_a
    and e_b move it by no more than (|a| + e_a)(|b| + e_b) - |a||b|, summed.
    """
    value, is_exact = product(a.v, b.v), not (a.e.any() or b.e.any())
    if whole and is_exact:
        return Num(value, np.zeros_like(value))
    size = product(np.abs(a.v), np.abs(b.v))
    if is_exact:
        own = np.maximum(4 * k * U * size, least) + TINY
        return Num(value, own, likely=None if np.any(least) else own / math.sqrt(2 * k))
    wide = product(np.abs(a.v) + a.e, np.abs(b.v) + b.e)
    return Num(value, (wide - size) + np.maximum(4 * k * U * wide, least) + TINY)


def conv2d(
    x: Any, w: Any, b: Any = None, *, whole: bool = False, tiled: Window | None = None, **how: Any
) -> Num:
    """Cross-correlation along any number of axes; `how` is what `convolve` takes.

    `tiled`: how windows slide where a device may compute it in transformed tiles, never exactly.
    """
    x, w = Num.of(x), Num.of(w)
    k, least = math.prod(w.v.shape[1:]), 0.0 if tiled is None else winograd.bound(x, w, tiled)
    return _summed(partial(convolve, **how), x, w, b, k=k, whole=whole and tiled is None,
                   least=least)  # fmt: skip


def conv_transpose2d(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    whole: bool = False,
    output_padding: Sizes = (),
    **how: Any,
) -> Num:
    """Every input pixel spreads its filter over the output; `pads` cut the edges off."""
    x, w = Num.of(x), Num.of(w)
    k = x.v.shape[1] // how.get("groups", 1) * math.prod(w.v.shape[2:])
    return _summed(partial(convolve, extra=output_padding, **how), x, w, b, k=k, whole=whole)


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
    value, error = column(bias, x.v.ndim)
    if whole and not error.any():
        return Num(total.v + value, total.e + error)
    size = product(np.abs(x.v) + x.e, np.abs(w.v) + w.e)
    own = 4 * U * (size + (k + 1) * np.abs(value)) + TINY
    likely = None if total.likely is None else total.likely + error + own / math.sqrt(2 * k)
    return Num(total.v + value, np.asarray(total.e + error + own), likely=likely)


def convolve(
    x: Array,
    w: Array,
    *,
    stride: Sizes = (),
    pads: Sizes = (),
    dilation: Sizes = (),
    groups: int = 1,
    extra: Sizes | None = None,
) -> Array:
    """Return the correlation of images with filters in float64, tap by tap.

    With `extra` output padding images are spread instead.
    """
    rank, kernel = x.ndim - 2, w.shape[2:]
    stride, dilation = (sizes or (1,) * rank for sizes in (stride, dilation))
    pads = pads or (0,) * 2 * rank
    begin, end = pads[:rank], pads[rank:]
    x = x.astype(np.float64).reshape(len(x), groups, x.shape[1] // groups, *x.shape[2:])
    w = w.astype(np.float64).reshape(groups, len(w) // groups, *w.shape[1:])
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    is_back = extra is not None
    if extra is None:
        wide = np.pad(x, ((0, 0),) * 3 + tuple(zip(begin, end, strict=True)))
        steps = [(n - r) // s + 1 for n, r, s in zip(wide.shape[3:], reach, stride, strict=True)]
        out = np.zeros((*x.shape[:2], w.shape[1], *steps))
    else:
        steps, more = list(x.shape[3:]), extra or (0,) * rank
        full = [s * (n - 1) + m + r for s, n, m, r in zip(stride, steps, more, reach, strict=True)]
        wide = np.zeros((*x.shape[:2], w.shape[2], *full))
    everywhere = (slice(None),) * 3
    for taps in itertools.product(*map(range, kernel)):
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(taps, dilation, steps, stride, strict=True)
        )
        seen, tap = wide[everywhere + window], w[everywhere + taps]
        if is_back:
            seen += np.einsum("ngc...,gcm->ngm...", x, tap)
        else:
            out += np.einsum("ngc...,gmc->ngm...", seen, tap)
    if is_back:
        inside = tuple(slice(b, n - e) for b, n, e in zip(begin, wide.shape[3:], end, strict=True))
        out = wide[everywhere + inside]
    return out.reshape(len(out), groups * out.shape[2], *out.shape[3:])


def same_pads(
    size: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes, *, upper: bool
) -> tuple[int, ...]:
    """Return the padding with which there is a window for each stride.

    An odd one goes to the end (`upper`), or to the begin.
    """
    stride, dilation = (sizes or (1,) * len(size) for sizes in (stride, dilation))
    both = [
        max(0, (n - 1) // s * s + (k - 1) * d + 1 - n)
        for n, k, s, d in zip(size, kernel, stride, dilation, strict=True)
    ]
    begin = [(n + (not upper)) // 2 for n in both]
    return (*begin, *(n - b for n, b in zip(both, begin, strict=True)))


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
    likely = bound if product.likely is None else abs(alpha) * product.likely
    if c is None:
        return Num(value, bound, likely=likely)
    other = Num.of(c)
    scaled, error = beta * other.v, abs(beta) * other.e
    own = 0 if whole and not bound.any() and not error.any() else 2 * ULP
    more = error + own * (np.abs(value) + np.abs(scaled))
    return Num(np.asarray(value + scaled), bound + more, likely=likely + more)


# --- windows --------------------------------------------------------------------------------------


def _windows(
    parts: Sequence[Array],
    kernel: Sizes,
    stride: Sizes,
    pads: Sizes,
    dilation: Sizes,
    *,
    is_up: bool,
) -> list[Array]:
    """Return the taps of windows of images, one after the other along a first axis.

    The last two results tell which taps lie in the image, and which there or in its padding. No
    window begins behind the image; `is_up`: one may end there.
    """
    rank, size = len(kernel), parts[0].shape[2:]
    taken = [*parts, np.ones((1, 1), bool), np.ones((1, 1), bool)]
    for axis in range(rank):
        begin, step, reach = pads[axis], stride[axis], (kernel[axis] - 1) * dilation[axis] + 1
        end = size[axis] + pads[rank + axis]
        room = begin + end - reach
        count = (-(-room // step) if is_up else room // step) + 1
        if is_up and (count - 1) * step >= size[axis] + begin:
            count -= 1
        first = np.arange(count)[:, None] * step - begin
        places = first + np.arange(kernel[axis]) * dilation[axis]
        inside = np.clip(places, 0, size[axis] - 1)
        taken[:-2] = [part.take(inside, 2 + 2 * axis) for part in taken[:-2]]
        taken[-2] = taken[-2][..., None, None] & (places >= 0) & (places < size[axis])
        taken[-1] = taken[-1][..., None, None] & (places < end)
    taps = range(3, 3 + 2 * rank, 2)
    ahead = [np.ascontiguousarray(np.moveaxis(part, taps, range(rank))) for part in taken]
    return [part.reshape(-1, *part.shape[rank:]) for part in ahead]


def pool(
    kind: str,
    x: Any,
    kernel: Sizes,
    stride: Sizes = (),
    *,
    pads: Sizes = (),
    dilation: Sizes = (),
    ceil_mode: bool = False,
    include_pad: bool = False,
    p: int = 2,
) -> Num:
    """Maximum, mean or p-norm (``max``, ``avg``, ``lp``) over windows, along any number of axes."""
    x, rank = Num.of(x), len(kernel)
    stride, dilation = (sizes or (1,) * rank for sizes in (stride, dilation))
    pads = pads or (0,) * 2 * rank
    value, error, is_inside, is_padded = _windows(
        list(x), kernel, stride, pads, dilation, is_up=ceil_mode
    )
    error, is_seen = np.where(is_inside, error, 0), is_inside.any(0)
    if kind == "max":
        largest = np.where(is_inside, value, -np.inf).max(0)
        return Num(np.where(is_seen, largest, np.finfo(np.float32).min), error.max(0))
    value = np.where(is_inside, value, 0)
    if kind == "lp":
        return norm(Num(value, error), 0, p)
    divisor = np.maximum((is_padded if include_pad else is_inside).sum(0), 1)
    size, count = ULP * np.abs(value).sum(0), math.prod(kernel)
    bound, likely = (
        np.where(is_seen, (roundings * size + error.sum(0)) / divisor + TINY, 0)
        for roundings in (count + 4, math.sqrt(count) + 4)
    )
    return Num(value.sum(0) / divisor, bound, likely=likely)


def global_pool(kind: str, x: Any, p: int = 2) -> Num:
    """Maximum, mean or p-norm of images."""
    x = Num.of(x)
    along = tuple(range(2, x.v.ndim))
    if kind == "max":
        return Num(x.v.max(along, keepdims=True), x.e.max(along, keepdims=True))
    return mean(x, along) if kind == "avg" else norm(x, along, p, keepdims=True)


WEIGHTS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda away: np.maximum(0.0, 1 - np.abs(away)),
    "cubic": lambda away: _keys(np.abs(away)),
}
"""What an element counts for at a place so far away, in elements, by the mode of a resize."""


def _keys(d: Array, a: float = -0.75) -> Array:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def resize(
    x: Array, axis: int, whole: float, mode: str = "linear", where: str = "half_pixel"
) -> Array:
    """Return `whole` elements along an axis, and no part of one, by ONNX's words for the rest."""
    size = x.shape[axis]
    to = np.arange(int(np.floor(whole + 1e-9)))
    if where == "half_pixel" or (where == "pytorch_half_pixel" and whole > 1):
        places = (to + 0.5) * size / whole - 0.5
    elif where == "align_corners":
        places = to * (size - 1) / max(whole - 1, 1e-9)
    else:
        places = to * size / whole - (0.5 if where == "pytorch_half_pixel" else 0)
    if mode == "nearest":
        nearest: Array = x.take(np.clip(np.floor(places), 0, size - 1).astype(int), axis)
        return nearest
    taps = np.floor(places)[:, None] + np.arange(-1, 3)
    table, read = np.zeros((len(to), size)), np.clip(taps, 0, size - 1).astype(int)
    np.add.at(table, (np.arange(len(to))[:, None], read), WEIGHTS[mode](taps - places[:, None]))
    return np.asarray(np.swapaxes(table @ np.swapaxes(x, axis, -2), axis, -2))


# --- sums and norms -------------------------------------------------------------------------------


def total(
    x: Any, axes: Any = None, *, whole: bool = False, keepdims: bool = True, is_mean: bool = False
) -> Num:
    """Sums or means along axes, all of them by default."""
    x = Num.of(x)
    axes = range(x.v.ndim) if axes is None else np.ravel(axes)
    how: dict[str, Any] = {"axis": tuple(int(a) for a in axes), "keepdims": bool(keepdims)}
    terms = math.prod(x.v.shape[a] for a in how["axis"])
    count = terms if is_mean else 1
    value = np.asarray(x.v.sum(**how)) / count
    size = np.zeros_like(value) if whole else ULP * np.abs(x.v).sum(**how) / count
    more = x.e.sum(**how) / count + (2.5 * ULP * np.abs(value) if is_mean else 0)
    more = more + (0 if whole else TINY / count)
    return Num(value, terms * size + more, likely=math.sqrt(terms) * size + more)


def norm(x: Num, axes: Any, p: int = 2, *, whole: bool = False, keepdims: bool = False) -> Num:
    """The p-norm along axes."""
    if p == 1:
        return total(x.abs(), axes, whole=whole, keepdims=keepdims)
    if p == 2:
        return total(x * x, axes, whole=whole, keepdims=keepdims).sqrt()
    powers = total(power(x.abs(), Num.of(p)), axes, whole=whole, keepdims=keepdims)
    return power(powers, Num.of(1 / p))


def log_sum(x: Num, axes: Any, *, keepdims: bool = True, is_exp: bool = False, **how: Any) -> Num:
    """Logarithms of sums along axes, or of sums of exponentials."""
    if not is_exp:
        return total(x, axes, keepdims=keepdims, **how).log()
    along = tuple(int(a) for a in np.ravel(axes))
    peak = Num.of(x.v.max(along, keepdims=True))
    result = total((x - peak).exp(), axes).log() + peak
    return result if keepdims else Num(result.v.squeeze(along), result.e.squeeze(along))


def cumsum(x: Num, axis: int, *, whole: bool = False, exclusive: int = 0, reverse: int = 0) -> Num:
    """Running sums; the bound is that of summing pairs, ceil(log2(n)) + 1 roundings."""

    def running(a: Array) -> Array:
        a = np.flip(a, axis) if reverse else a
        sums = np.cumsum(a, axis) - (a if exclusive else 0)
        return np.asarray(np.flip(sums, axis) if reverse else sums)

    roundings = 0 if whole else math.ceil(math.log2(x.v.shape[axis])) + 1
    return Num(running(x.v), roundings * U * running(np.abs(x.v)) + bool(roundings) * TINY)


def mean(x: Num, axes: Sequence[int]) -> Num:
    """Mean along axes: a sum in any order, and a division."""
    along, count = tuple(axes), math.prod(x.v.shape[a] for a in axes)
    size = (np.abs(x.v) + x.e).mean(along, keepdims=True)
    error = x.e.mean(along, keepdims=True) + TINY
    bound, likely = (error + n * ULP * size for n in (count + 4, math.sqrt(count) + 4))
    return Num(x.v.mean(along, keepdims=True), bound, likely=likely)


def softmax(x: Any, axis: int, *, log: bool = False) -> Num:
    """Softmax or its logarithm."""
    x = Num.of(x)
    below = x.v - np.max(x.v, axis=axis, keepdims=True)
    n = x.v.shape[axis]
    total = np.sum(np.exp(below), axis=axis, keepdims=True)
    moved = 2 * x.e.max() if x.e.size else 0.0  # how far apart errors can push two exponents
    count = (n, math.sqrt(n))
    if log:
        more = 2 * ULP * (np.abs(below) + moved) + moved + TINY
        bound, likely = ((roundings + 16) * ULP + more for roundings in count)
        return Num(below - np.log(total), bound, likely=likely)
    value = np.exp(below) / total
    own = [(roundings + 3 * (np.abs(below) + moved) + 10) * ULP for roundings in count]
    bound, likely = (value * ((1 + part) * np.exp(moved) - 1) + TINY for part in own)
    return Num(value, bound, likely=likely)


def batch_norm(
    x: Any, *statistics: Any, eps: float, store: Callable[[Num], Num] = lambda x: x
) -> Num:
    """Normalisation with a given scale, bias, mean and variance.

    These become one factor and one shift for each channel, which are kept as `store` says.
    """
    x = Num.of(x)
    s, b, m, v = (Num.of(p).v for p in statistics)
    scales = s / np.sqrt(v + eps)
    factor, shift = (column(store(Num.of(p)), x.v.ndim) for p in (scales, b - m * scales))
    own = 3 * ULP * (np.abs(x.v * factor.v) + np.abs(shift.v)) + TINY
    stored = (np.abs(factor.v) + factor.e) * x.e + np.abs(x.v) * factor.e + shift.e
    return Num(x.v * factor.v + shift.v, own + stored)


def column(p: Any, rank: int) -> Num:
    """Return one number per channel as it broadcasts to images."""
    shape = (-1,) + (1,) * (rank - 2)
    return Num(*(part.reshape(shape) for part in Num.of(p)))


def standardised(x: Num, axes: Sequence[int], epsilon: float) -> tuple[Num, Num, Num]:
    """Values without their mean, divided by their deviation; the mean; the inverse deviation."""
    middle = mean(x, axes)
    centred = x - middle
    inverse = 1.0 / (mean(centred * centred, axes) + epsilon).sqrt()
    return centred * inverse, middle, inverse


def local_norm(x: Num, *, size: int, alpha: float, beta: float, bias: float) -> Num:
    """Values divided by a power of the squares of channels nearby."""
    before, count = (size - 1) // 2, x.v.shape[1]
    room = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.v.ndim - 2)]
    wide = [np.pad(part, room) for part in x * x]
    near = [Num(*(part[:, i : i + count] for part in wide)) for i in range(size)]
    sums = sum(near[1:], near[0])
    return x / power(sums * (alpha / size) + bias, Num.of(np.asarray(beta)))


# --- what only moves ------------------------------------------------------------------------------


def moved(f: Callable[[Array], Array], x: Any) -> Num:
    """What an operation that only moves elements gives."""
    x = Num.of(x)
    return Num(f(x.v), f(x.e))


def choose(test: Num, x: Num, y: Num) -> Num:
    """What there is of one where a test is not zero, and of the other elsewhere."""
    return Num(*(np.where(test.v != 0, a, b) for a, b in zip(x, y, strict=True)))


def concat(parts: Sequence[Any], axis: int) -> Num:
    """Arrays joined along an axis."""
    nums = [Num.of(p) for p in parts]
    return Num(np.concatenate([n.v for n in nums], axis), np.concatenate([n.e for n in nums], axis))
