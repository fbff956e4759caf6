"""What every operation must give: float64 numpy by definition, with a bound on the error.

Nothing here shares code with gpuedge. Results are pairs (expected, bound), both float64; the
bounds follow the derivations of ``docs/numerics.md``. A bound of zero means bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from running_error import TINY, ULP, Num, U, erf, gelu, sigmoid, sine, softplus, tail

Array = npt.NDArray[Any]
Result = tuple[Array, Array]

_ERF = np.vectorize(math.erf, otypes=[float])
LAMBDA, ALPHA = 1.05070102214813232421875, 1.67326319217681884765625
"""Selu's constants as ONNX gives them."""


def _logistic(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


def _pow(a: Array, b: Array) -> Result:
    value = np.power(a, b)
    size = Num.of(np.maximum(np.abs(a), TINY)).log(2.0) * Num.of(b)
    exact = np.exp2(size.v)
    e = exact * np.expm1(size.e * math.log(2)) + (3 + 2 * np.abs(size.v)) * ULP * exact + TINY
    return value, np.where((b == 0) | (a == 0), 0, e)


def _exact(f: Callable[..., Array]) -> Callable[..., Result]:
    def both(*x: Array, **_: float) -> Result:
        value = np.asarray(f(*x), np.float64)
        return value, np.zeros_like(value)

    return both


def _both(f: Callable[..., Array], bound: Callable[..., Num]) -> Callable[..., Result]:
    def both(*x: Array, **k: float) -> Result:
        with np.errstate(all="ignore"):
            value = np.asarray(f(*x, **k), np.float64)
            error = bound(*(Num.of(np.asarray(i)) for i in x), **k).e
        return value, np.broadcast_to(error, value.shape)

    return both


ELEMENTWISE: dict[str, Callable[..., Result]] = {
    "abs": _exact(np.abs),
    "neg": _exact(np.negative),
    "floor": _exact(np.floor),
    "ceil": _exact(np.ceil),
    "round": _exact(np.rint),
    "sign": _exact(np.sign),
    "relu": _exact(lambda x: np.maximum(x, 0)),
    "relu6": _exact(lambda x: np.clip(x, 0, 6)),
    "maximum": _exact(np.maximum),
    "minimum": _exact(np.minimum),
    "add": _exact(lambda a, b: (a + b).astype(np.float32)),
    "sub": _exact(lambda a, b: (a - b).astype(np.float32)),
    "mul": _exact(lambda a, b: (a * b).astype(np.float32)),
    "div": _both(lambda a, b: a / b, lambda a, b: a / b),
    "pow": _pow,
    "prelu": _both(
        lambda x, s: np.where(x > 0, x, s * x),
        lambda x, s: x.clip(0, math.inf) + s * x.clip(-math.inf, 0),
    ),
    "exp": _both(np.exp, Num.exp),
    "log": _both(np.log, Num.log),
    "sqrt": _both(np.sqrt, Num.sqrt),
    "reciprocal": _both(lambda x: 1 / x, lambda x: 1.0 / x),
    "sin": _both(np.sin, lambda x: sine(x, 0)),
    "cos": _both(np.cos, lambda x: sine(x, math.pi / 2)),
    "erf": _both(_ERF, erf),
    "sigmoid": _both(_logistic, sigmoid),
    "tanh": _both(np.tanh, Num.tanh),
    "softplus": _both(lambda x: np.logaddexp(0, x), softplus),
    "softsign": _both(lambda x: x / (1 + np.abs(x)), lambda x: x / (1.0 + x.abs())),
    "mish": _both(
        lambda x: x * np.tanh(np.logaddexp(0, x)), lambda x: x * softplus(x).tanh()
    ),
    "silu": _both(lambda x: x * _logistic(x), lambda x: x * sigmoid(x)),
    "hard_swish": _both(
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1), lambda x: x * (x * (1 / 6) + 0.5).clip(0, 1)
    ),
    "hard_sigmoid": _both(
        lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
        lambda x, alpha=0.2, beta=0.5: x * alpha + beta,
    ),
    "leaky_relu": _both(
        lambda x, alpha=0.01: np.where(x > 0, x, alpha * x),
        lambda x, alpha=0.01: x.clip(0, math.inf) + alpha * x.clip(-math.inf, 0),
    ),
    "elu": _both(
        lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x)),
        lambda x, alpha=1.0: tail(x, alpha),
    ),
    "celu": _both(
        lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x / alpha)),
        lambda x, alpha=1.0: tail(x, alpha, 1 / alpha),
    ),
    "selu": _both(
        lambda x: LAMBDA * np.where(x > 0, x, ALPHA * np.expm1(x)),
        lambda x: LAMBDA * tail(x, ALPHA),
    ),
    "gelu": _both(
        lambda x: 0.5 * x * (1 + _ERF(x / math.sqrt(2))), lambda x: gelu(x, tanh=False)
    ),
    "gelu_tanh": _both(
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda x: gelu(x, tanh=True),
    ),
}  # fmt: skip
"""Functions of float64 arrays by their name in gpuedge."""


def elementwise(name: str, *operands: Array, **attrs: float) -> Result:
    """Apply a function of `ELEMENTWISE` to float32 operands."""
    with np.errstate(all="ignore"):
        return ELEMENTWISE[name](*(np.asarray(o, np.float64) for o in operands), **attrs)


def sums(value: Array, absolute: Array, k: int) -> Result:
    """Bound of a sum of `k` products in any order: 4 k 2^-24 times the sum of magnitudes."""
    return value, 4 * k * U * absolute + TINY


def conv2d(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    stride: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Result:
    """Cross-correlation; `pads` are (top, left, bottom, right)."""
    total = _correlate(x, w, b, stride, pads, dilation, groups)
    size = _correlate(
        np.abs(x), np.abs(w), None if b is None else np.abs(b), stride, pads, dilation, groups
    )
    return sums(total, size, math.prod(w.shape[1:]) + (b is not None))


def _correlate(
    x: Array, w: Array, b: Array | None, stride: Any, pads: Any, dilation: Any, groups: int
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
        out[:, mine] += np.einsum("ncyx,mc->nmyx", seen, w[mine, :, ky, kx].astype(np.float64))
    return out if b is None else out + np.asarray(b, np.float64)[None, :, None, None]


def conv_transpose2d(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    stride: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    output_padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Result:
    """Every input pixel spreads its filter over the output; `pads` cut the edges off."""
    n, c, height, width = x.shape
    _, per, kh, kw = w.shape
    top, left, bottom, right = pads
    full = [
        s * (size - 1) + extra + (k - 1) * d + 1
        for s, size, extra, k, d in zip(
            stride, (height, width), output_padding, (kh, kw), dilation, strict=True
        )
    ]
    both = []
    for image, weights in ((x, w), (np.abs(x), np.abs(w))):
        out = np.zeros((n, groups * per, *full))
        for channel, i, j in itertools.product(range(c), range(height), range(width)):
            g = channel // (c // groups)
            y, z = i * stride[0], j * stride[1]
            spread = image[:, channel, i, j].astype(np.float64)[:, None, None, None]
            spread = spread * weights[channel][None]
            out[
                :,
                g * per : (g + 1) * per,
                y : y + (kh - 1) * dilation[0] + 1 : dilation[0],
                z : z + (kw - 1) * dilation[1] + 1 : dilation[1],
            ] += spread
        both.append(out[:, :, top : full[0] - bottom, left : full[1] - right])
    k = c // groups * kh * kw
    if b is not None:
        both = [both[0] + b[None, :, None, None], both[1] + np.abs(b)[None, :, None, None]]
    return sums(both[0], both[1], k + (b is not None))


def matmul(a: Array, b: Array) -> Result:
    """Matrix product by numpy's rules."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return sums(np.asarray(a @ b), np.asarray(np.abs(a) @ np.abs(b)), a.shape[-1])


def gemm(
    a: Array, b: Array, c: Array | None, alpha: float, beta: float, ta: bool, tb: bool
) -> Result:
    """alpha * a @ b + beta * c."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    value, bound = matmul(a.T if ta else a, b.T if tb else b)
    value, bound = alpha * value, abs(alpha) * bound
    if c is None:
        return value, bound
    scaled = beta * np.asarray(c, np.float64)
    return value + scaled, bound + 2 * ULP * (np.abs(value) + np.abs(scaled))


def pool2d(
    kind: str,
    x: Array,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    *,
    ceil_mode: bool = False,
    include_pad: bool = False,
) -> Result:
    """Maximum or mean over windows, one output pixel at a time."""
    x = np.asarray(x, np.float64)
    size, begin, end = x.shape[2:], pads[:2], pads[2:]
    out = []
    for axis in range(2):
        room = size[axis] + begin[axis] + end[axis] - (kernel[axis] - 1) * dilation[axis] - 1
        count = (-(-room // stride[axis]) if ceil_mode else room // stride[axis]) + 1
        if ceil_mode and (count - 1) * stride[axis] >= size[axis] + begin[axis]:
            count -= 1
        out.append(count)
    value = np.zeros((*x.shape[:2], *out))
    bound = np.zeros_like(value)
    for oy, ox in itertools.product(range(out[0]), range(out[1])):
        taps, positions = [], 0
        for ky, kx in itertools.product(range(kernel[0]), range(kernel[1])):
            y = oy * stride[0] + ky * dilation[0] - begin[0]
            z = ox * stride[1] + kx * dilation[1] - begin[1]
            positions += y < size[0] + end[0] and z < size[1] + end[1]
            if 0 <= y < size[0] and 0 <= z < size[1]:
                taps.append(x[:, :, y, z])
        if kind == "max":
            value[:, :, oy, ox] = np.max(taps, axis=0) if taps else np.finfo(np.float32).min
            continue
        divisor = positions if include_pad else len(taps)
        value[:, :, oy, ox] = np.sum(taps, axis=0) / divisor if taps else 0
        size_of = np.sum(np.abs(taps), axis=0) / divisor if taps else 0
        bound[:, :, oy, ox] = (math.prod(kernel) + 4) * ULP * size_of + TINY
    return value, bound


def softmax(x: Array, axis: int, *, log: bool = False) -> Result:
    """Softmax or its logarithm."""
    x = np.asarray(x, np.float64)
    below = x - np.max(x, axis=axis, keepdims=True)
    n = x.shape[axis]
    total = np.sum(np.exp(below), axis=axis, keepdims=True)
    if log:
        return below - np.log(total), (n + 16) * ULP + 2 * ULP * np.abs(below) + TINY
    value = np.exp(below) / total
    return value, (n + 3 * np.abs(below) + 10) * ULP * value + TINY


def batch_norm(x: Array, scale: Array, bias: Array, mean: Array, var: Array, eps: float) -> Result:
    """Normalisation with given statistics."""
    shape = (-1,) + (1,) * (x.ndim - 2)
    s, b, m, v = (np.asarray(p, np.float64).reshape(shape) for p in (scale, bias, mean, var))
    factor = s / np.sqrt(v + eps)
    shift = b - m * factor
    return x * factor + shift, 3 * ULP * (np.abs(x * factor) + np.abs(shift)) + TINY


def check(got: Array, wanted: Result, what: str = "") -> None:
    """Assert that a float32 (or float16) result has the right shape and lies within the bound."""
    value, bound = wanted
    assert got.shape == value.shape, f"{what}: shape {got.shape}, not {value.shape}"
    limit = bound + (2.0**-11 * np.abs(value) + 2.0**-25 if got.dtype == np.float16 else 0)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(got.astype(np.float64) - value) <= limit)
    wrong &= ~(np.isnan(got) & np.isnan(value)) & (got != value)
    if not wrong.any():
        return
    at = tuple(int(i[0]) for i in np.nonzero(wrong))
    raise AssertionError(
        f"{what}: {int(wrong.sum())} of {wrong.size} wrong, first at {at}: "
        f"{got[at]} instead of {value[at]} +- {np.broadcast_to(limit, value.shape)[at]}"
    )
