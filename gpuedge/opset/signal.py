"""Fourier transforms, the windows that are put over signals, and filters of their spectra.

A transform is a product with the matrix of its sines and cosines; a long one whose length has
factors is taken apart (Cooley and Tukey, *An Algorithm for the Machine Calculation of Complex
Fourier Series*, Mathematics of Computation 19(90), 1965). Sums are those of products: the error
bound of a length n is that of a dot product of 2 n terms, or of one for each factor.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.expr import where
from gpuedge.opset.index import Index
from gpuedge.opset.logic import ELEMENT_TYPES
from gpuedge.opset.operator import ANY, FLOATS, GROWS, Operator
from gpuedge.opset.tensor import (
    Array,
    Shape,
    Tensor,
    at,
    computed,
    constant,
    mapped,
    product,
    reshape,
    transpose,
    view,
)
from gpuedge.opset.views import padded, sliced

DIRECT = 512
"""Longest transform of many factors that is one product."""

LONGEST = 2048
"""Longest one without factors: its matrix holds 64 MB."""

FIRST_AXIS_INPUT = 20
"""Operator set from which DFT takes its axis from an input."""


# --- Fourier transforms --------------------------------------------------------------------------


def circle(steps: Array, count: int) -> tuple[Array, Array]:
    """Return cosine and sine of `steps` of `count` round a circle, float64.

    They are taken of at most an eighth of it, so that the zeros, ones and symmetries are exact.
    """
    quarter = (8 * steps + count) // (2 * count)
    rest = (4 * steps - quarter * count) * (np.pi / (2 * count))
    c, s = np.cos(rest), np.sin(rest)
    turn = quarter % 4
    return np.choose(turn, [c, -s, -c, s]), np.choose(turn, [s, c, -s, -c])


def _matrix(
    rows: int, columns: int, count: int, sign: int, *, parts: int = 2, real: bool = False
) -> Array:
    """Return what turns `rows` numbers of `parts` parts into `columns` frequencies.

    `real` ones are the real parts alone, of a spectrum whose other half is its mirror image.
    """
    steps = np.outer(np.arange(rows), np.arange(columns)) % count
    c, s = circle(steps, count)
    turned = np.empty((rows, 2, columns, 2))
    turned[:, 0, :, 0], turned[:, 0, :, 1] = c, sign * s
    turned[:, 1, :, 0], turned[:, 1, :, 1] = -sign * s, c
    if real:
        twice = np.full(rows, 2.0)
        twice[0] = 1.0
        if count % 2 == 0:
            twice[-1] = 1.0
        turned = turned[..., :1] * twice[:, None, None, None]
    used = turned[:, :parts]
    return used.reshape(rows * parts, -1).astype(np.float32)


def _factor(count: int) -> int:
    """Return the largest divisor up to the square root."""
    return next(d for d in range(int(count**0.5), 0, -1) if count % d == 0)


def _turned(x: Tensor, cosines: Array, sines: Array) -> Tensor:
    """Return complex numbers (..., 2) times those of constants that broadcast."""
    c, s = (constant(a.astype(np.float32)[..., None]) for a in (cosines, sines))
    real = view(x, x.shape, lambda p: [*p[:-1], Index(0)])
    imaginary = view(x, x.shape, lambda p: [*p[:-1], Index(1)])
    ahead = mapped(lambda r, i, c, s: r * c - i * s, real, imaginary, c, s)
    aside = mapped(lambda r, i, c, s: r * s + i * c, real, imaginary, c, s)
    return computed(x.shape, x.dtype, lambda p: where([-p[-1]], at(ahead, p), at(aside, p)))


def _whole(call: OperatorCall, x: Tensor, sign: int) -> Tensor:
    """Return the transform of rows (R, n, 2) of complex numbers."""
    rows, count, _ = x.shape
    first = _factor(count)
    if count <= DIRECT or first == 1:
        if count > LONGEST:
            raise call.unsupported(f"has a length of {count}, a prime beyond {LONGEST}")
        matrix = constant(_matrix(count, count, count, sign))
        return reshape(product(reshape(x, (rows, 2 * count)), matrix), x.shape)
    second = count // first
    apart = transpose(reshape(x, (rows, first, second, 2)), (0, 2, 1, 3))
    inner = _whole(call, reshape(apart, (rows * second, first, 2)), sign)
    steps = np.outer(np.arange(second), np.arange(first))
    c, s = circle(steps, count)
    turned = _turned(reshape(inner, (rows, second, first, 2)), c, sign * s)
    other = reshape(transpose(turned, (0, 2, 1, 3)), (rows * first, second, 2))
    outer = reshape(_whole(call, other, sign), (rows, first, second, 2))
    return reshape(transpose(outer, (0, 2, 1, 3)), x.shape)


def _transform(
    call: OperatorCall, x: Tensor, along: int, count: int, *, inverse: bool, onesided: bool
) -> Tensor:
    """Return the transform of x (..., parts) along an axis, cut or filled up with zeros first."""
    parts = x.shape[-1]
    back = inverse and onesided
    taken = count // 2 + 1 if back else count
    frame = (*x.shape[:along], taken, *x.shape[along + 1 :])
    x = x if frame == x.shape else padded(x, (0,) * x.rank, frame, 0.0)
    order = [i for i in range(x.rank) if i not in (along, x.rank - 1)]
    kept = tuple(x.shape[i] for i in order)
    rows = reshape(transpose(x, (*order, along, x.rank - 1)), (prod(kept), taken, parts))
    columns = count if back or not onesided else count // 2 + 1
    sign = 1 if inverse else -1
    if max(count, taken) <= DIRECT:
        matrix = constant(_matrix(taken, columns, count, sign, parts=parts, real=back))
        result = product(reshape(rows, (prod(kept), taken * parts)), matrix)
    elif back:
        raise call.unsupported(f"has a real result of a length of {count}; the most is {DIRECT}")
    else:
        frame = (prod(kept), count, 2)
        both = rows if parts == 2 else padded(rows, (0, 0, 0), frame, 0.0)
        result = sliced(
            _whole(call, both, sign), (0, 0, 0), (1, 1, 1), (prod(kept), columns, 2)
        )  # fmt: skip
    if inverse:
        result = mapped(lambda v: v / float(count), result)
    shape = (*kept, columns, 1 if back else 2)
    there = [*order, along, x.rank - 1]
    return transpose(reshape(result, shape), [there.index(i) for i in range(x.rank)])


def _parts(call: OperatorCall, x: Tensor) -> None:
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise call.bad_shape("needs real or complex numbers along its last axis")


def _dft(call: OperatorCall) -> Tensor:
    x = call.input(0)
    _parts(call, x)
    inverse, onesided = bool(call.integer("inverse", 0)), bool(call.integer("onesided", 0))
    if call.version < FIRST_AXIS_INPUT:
        given = call.integer("axis", 1)
    else:
        given = (call.constant_ints(2, "axis") or (-2,))[0]
    along = call.axis(given, x.rank)
    if along == x.rank - 1:
        raise call.bad_shape("transforms along the axis of real and imaginary parts")
    length = call.constant_ints(1, "length")
    extent = x.shape[along]
    count = length[0] if length else 2 * (extent - 1) if inverse and onesided else extent
    if count < 1 or not x.size:
        raise call.bad_shape(f"has a length of {count}")
    return _transform(call, x, along, count, inverse=inverse, onesided=onesided)


def _stft(call: OperatorCall) -> Tensor:
    """Transform frames of a signal (N, length, parts), each under a window."""
    x, window = call.input(0), call.optional(2)
    _parts(call, x)
    step = (call.constant_ints(1, "step") or (0,))[0]
    length = call.constant_ints(3, "length of frames")
    count = length[0] if length else x.shape[1] if window is None else window.shape[0]
    if x.rank != 3 or step < 1 or not 0 < count <= x.shape[1]:
        raise call.bad_shape(f"has frames of {count} in steps of {step}")
    if window is not None and window.shape != (count,):
        raise call.bad_shape(f"needs a window of shape [{count}]")
    shape: Shape = (x.shape[0], 1 + (x.shape[1] - count) // step, count, x.shape[2])
    frames = view(x, shape, lambda p: [p[0], p[1] * step + p[2], p[3]])
    if window is not None:
        frames = mapped(lambda v, w: v * w, frames, reshape(window, (count, 1)))
    onesided = bool(call.integer("onesided", 1))
    return _transform(call, frames, 2, count, inverse=False, onesided=onesided)


# --- constants -----------------------------------------------------------------------------------


def _made(call: OperatorCall, values: Array) -> Tensor:
    dtype = ELEMENT_TYPES.get(call.integer("output_datatype", 1))
    if dtype not in (*FLOATS, *ANY):
        raise call.unsupported("gives a dtype that kernels lack")
    return constant(values.astype(dtype))


def _cosines(weights: tuple[float, ...], call: OperatorCall) -> Tensor:
    """Return the sum of cosines of one, two, ... turns over a window."""
    size = (call.constant_ints(0, "size") or (-1,))[0]
    if size < 0:
        raise call.bad_shape(f"has a size of {size}")
    period = size if call.integer("periodic", 1) else size - 1
    place = np.arange(size)
    # of a symmetric window of one place ONNX's formula divides by zero; numpy.hanning gives 1
    each = [w * circle(place * i, max(period, 1))[0] for i, w in enumerate(weights)]
    return _made(call, np.sum(each, axis=0) if period else np.ones(size))


def _mel_weights(call: OperatorCall) -> Tensor:
    """Return triangular filters (frequencies, bands) whose corners are equally far apart in mel."""
    names = ("number of bands", "length", "rate", "lower edge", "upper edge")
    bands, length, rate, low, high = (
        np.asarray(call.constant(i, what)).reshape(-1)[0].item() for i, what in enumerate(names)
    )
    if bands < 1 or length < 1 or rate < 1 or not 0 <= low < high:
        raise call.bad_shape(f"has {bands} bands from {low} to {high} Hz")
    edges = 2595 * np.log1p(np.array([low, high]) / 700) / np.log(10)
    mel = np.arange(bands + 2) * ((edges[1] - edges[0]) / (bands + 2)) + edges[0]
    hertz = 700 * np.expm1(mel / 2595 * np.log(10))
    corners = ((length + 1) * hertz // rate).astype(int)
    place = np.arange(length // 2 + 1)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    if middle[-1] >= len(place) or right[-1] > len(place):
        raise call.bad_shape(f"has bands up to {high} Hz, beyond half of its rate")
    rising = np.where(middle > left, (place - left) / np.maximum(middle - left, 1), 1.0)
    falling = (right - place) / np.maximum(right - middle, 1)
    is_low = (place >= left) & (place <= middle) & ((middle > left) | (place == middle))
    is_high = (place >= middle) & (place < right)
    return _made(call, np.where(is_high, falling, np.where(is_low, rising, 0.0)))


def _otherwise(_: OperatorCall) -> bool:
    """ONNX Runtime leaves some 1e-8 of the largest value where there is nothing."""
    return True


HAMMING = 25 / 46
"""Of the Hamming window, as ONNX has it."""

WINDOWS: dict[str, tuple[float, ...]] = {
    "BlackmanWindow": (0.42, -0.5, 0.08),
    "HammingWindow": (HAMMING, HAMMING - 1),
    "HannWindow": (0.5, -0.5),
}

OPERATORS: tuple[Operator, ...] = (
    Operator("DFT", _dft, parameters=(1, 2), differs=_otherwise, facts=GROWS,
             remark=f"with a constant length and axis; primes up to {LONGEST}"),
    Operator("STFT", _stft, parameters=(1, 3), differs=_otherwise, facts=GROWS,
             remark="with a constant step and length"),
    *(Operator(name, partial(_cosines, weights), parameters=(0,), dtypes=ANY, facts=GROWS,
               remark="with a constant size")
      for name, weights in WINDOWS.items()),
    Operator("MelWeightMatrix", _mel_weights, parameters=(0, 1, 2, 3, 4), facts=GROWS,
             remark="of constants"),
)  # fmt: skip
