"""Softmax and normalisations."""

from __future__ import annotations

from math import prod

import numpy as np

from gpuedge.opset import deep
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import f, magnitude, pick
from gpuedge.opset.expr import apply
from gpuedge.opset.index import axes, axis
from gpuedge.opset.logic import equal
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Reduce, Tensor, constant, mapped, mean, reduced, reshape

TRAINING = 14
"""Operator set from which BatchNormalization gives running means and variances in training."""


def _softmax(call: OperatorCall) -> Tensor:
    x = call.input(0)
    flat = call.version < 13
    given = call.integer("axis", 1 if flat else -1)
    # Flattening may start one past the last axis: rows of one element.
    axis = given if flat and given == x.rank else call.axis(given, x.rank)
    before = prod(x.shape[:axis])
    if flat:
        rows = reshape(x, (before, prod(x.shape[axis:]), 1))
    else:
        length = x.shape[axis] if x.shape else 1
        rows = reshape(x, (before, length, prod(x.shape[axis + 1 :])))
    if not x.size:
        return reshape(x, x.shape)
    return reshape(_normalised(rows, is_log=call.op == "LogSoftmax"), x.shape)


def _normalised(rows: Tensor, is_log: bool) -> Tensor:
    """Softmax along the middle of three axes, or its logarithm; the maximum goes first.

    Blanchard, Higham and Higham, *Accurately Computing the Log-Sum-Exp and Softmax Functions*
    (IMA Journal of Numerical Analysis 41, 2021), algorithm 4.1.
    """
    peak = reduced("max", rows, (1,))
    below = mapped(lambda x, m: x - m, rows, peak)
    powers = mapped(lambda x, m: apply("exp", x - m), rows, peak)
    total = reduced("sum", powers, (1,))
    if is_log:
        # the minimum changes nothing, but keeps Mesa's compiler for ES 2.0 (22.3) from computing
        # x - (m + log(s)), which loses the digits that m is there to save
        return mapped(lambda d, s: apply("min", d, 0.0) - apply("log", s), below, total)
    # the exponentials again: computing them twice is cheaper than keeping them
    return mapped(lambda x, m, s: apply("exp", x - m) / s, rows, peak, total)


def _batch_norm(call: OperatorCall) -> Tensor | tuple[Tensor, ...]:
    x = call.input(0)
    is_training = bool(call.integer("training_mode", 0))
    old = call.version < 7 and not call.integer("is_test", 0)
    if old or (call.version < TRAINING and any(call.outputs[1:])):
        raise call.unsupported("is in training mode, as operator sets before 14 had it")
    if call.version < 9 and not call.integer("spatial", 1):
        raise call.unsupported("normalises every position by itself (spatial=0)")
    if x.rank < 2:
        raise call.unsupported(f"has an input of rank {x.rank}; at least 2 is needed")
    for index in range(1, 5):
        if call.shape(index) != (x.shape[1],):
            raise call.bad_shape(f"needs parameters of shape [{x.shape[1]}]")
    epsilon = call.number("epsilon", 1e-5)
    if is_training:
        return _trained(call, x, epsilon)
    column = (x.shape[1],) + (1,) * (x.rank - 2)
    parameters = [call.input(i) for i in range(1, 5)]
    arrays = [p.array for p in parameters]
    if any(a is None for a in arrays):
        s, b, m, v = (reshape(p, column) for p in parameters)
        centred = mapped(lambda x, m: x - m, x, m)
        factors = mapped(lambda s, v: s / apply("sqrt", v + epsilon), s, v)
        return mapped(lambda c, f, b: c * f + b, centred, factors, b)
    scale, shift, middle, variance = (np.asarray(a, np.float64) for a in arrays)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
    # Not x factor + (shift - middle factor): near the mean its two terms are much larger than
    # their sum, and so are the errors that they are rounded with.
    a, b, m = (constant(row.astype(np.float32).reshape(column)) for row in (factor, shift, middle))
    centred = mapped(lambda x, m: x - m, x, m)
    return mapped(lambda c, a, b: c * a + b, centred, a, b)


def _trained(call: OperatorCall, x: Tensor, epsilon: float) -> tuple[Tensor, ...]:
    """Normalise by mean and variance of the batch; return the running ones, moved on, as well."""
    keeping = call.number("momentum", 0.9)
    along = tuple(i for i in range(x.rank) if i != 1)
    scale, shift = (deep.column(call.input(i), x.rank) for i in (1, 2))
    centred, inverse, middle = standardised(x, along, epsilon)
    factor = mapped(lambda i, s: i * s, inverse, scale)
    result = mapped(lambda c, a, b: c * a + b, centred, factor, shift)
    variance = mean(mapped(lambda c: c * c, centred), along)
    moved = (
        mapped(
            lambda r, n: r * keeping + n * (1.0 - keeping), call.input(i), reshape(new, (new.size,))
        )
        for i, new in ((3, middle), (4, variance))
    )
    return result, *moved


def _layer_norm(call: OperatorCall) -> Tensor | tuple[Tensor, ...]:
    """Centre and scale over the last axes; the variance is that of the centred values."""
    x, scale, shift = call.input(0), call.input(1), call.optional(2)
    axis = call.axis(call.integer("axis", -1), x.rank)
    along = tuple(range(axis, x.rank))
    for index in (1, 2) if shift is not None else (1,):
        if not _fits(call.shape(index), x.shape):
            raise call.bad_shape(f"cannot broadcast its input {index} to its first")
    centred, inverse, middle = standardised(x, along, call.number("epsilon", 1e-5))
    result = mapped(lambda c, i, s: c * i * s, centred, inverse, scale)
    if shift is not None:
        result = mapped(lambda r, b: r + b, result, shift)
    return (result, middle, inverse)[: len(call.outputs)]


def standardised(
    x: Tensor, along: tuple[int, ...], epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x without its mean along axes, the inverse of its deviation, and the mean."""
    # the mean of what is left of x corrects the rounding of the first mean, which may be far larger
    # than the deviation (Chan, Golub and LeVeque, *Algorithms for Computing the Sample Variance*,
    # The American Statistician 37(3), 1983)
    near = mean(x, along)
    rest = mean(mapped(lambda x, m: x - m, x, near), along)
    middle = mapped(lambda m, r: m + r, near, rest)

    def centred() -> Tensor:
        # anew for each reader: subtracting again is cheaper than keeping the differences
        return mapped(lambda x, m, r: x - m - r, x, near, rest)

    variance = mean(mapped(lambda c: c * c, centred()), along)
    return centred(), mapped(lambda v: 1.0 / apply("sqrt", v + epsilon), variance), middle


def _instance_norm(call: OperatorCall) -> Tensor:
    x = call.input(0)
    if x.rank < 3:
        raise call.unsupported(f"has an input of rank {x.rank}, without spatial dimensions")
    if any(call.shape(i) != (x.shape[1],) for i in (1, 2)):
        raise call.bad_shape(f"needs a scale and a bias of shape [{x.shape[1]}]")
    scale, shift = (deep.column(call.input(i), x.rank) for i in (1, 2))
    centred, inverse, _ = standardised(
        x, tuple(range(2, x.rank)), call.number("epsilon", 1e-5)
    )  # fmt: skip
    factor = mapped(lambda i, s: i * s, inverse, scale)  # for each channel, not for each element
    return mapped(lambda c, a, b: c * a + b, centred, factor, shift)


def _lp_normalization(call: OperatorCall) -> Tensor:
    x, p = call.input(0), call.integer("p", 2)
    along = call.axis(call.integer("axis", -1), x.rank)
    if p not in (1, 2):
        raise call.unsupported(f"has p={p}; only 1 and 2 exist")
    before = magnitude if p == 1 else lambda v: v * v
    total = reduced("sum", x, (along,), before=before)
    norm = total if p == 1 else mapped(f("sqrt"), total)
    # as ONNX's reference has it, nothing but zeros stays so
    return mapped(lambda x, n: x / pick(equal(n, 0.0), 1.0, n), x, norm)


def _lrn(call: OperatorCall) -> Tensor:
    """Divide by a power of the squares of neighbouring channels."""
    x, size = call.input(0), call.integer("size", 1)
    if x.rank < 2 or size < 1:
        raise call.bad_shape(f"looks at {size} channels")
    alpha, beta = call.number("alpha", 1e-4) / size, call.number("beta", 0.75)
    bias = call.number("bias", 1.0)
    here = axes(x.shape)
    place = list(here)
    place[1] = here[1] + axis(x.rank, size) - (size - 1) // 2
    inside = [place[1], x.shape[1] - 1 - place[1]]
    near = deep.read(x, place, inside, 0.0)
    squares = Tensor(x.shape, x.dtype, Reduce("sum", (size,), near * near))
    return mapped(lambda x, s: x / apply("pow", bias + alpha * s, beta), x, squares)


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    tail = whole[len(whole) - len(shape) :]
    return len(shape) <= len(whole) and all(n in (1, m) for n, m in zip(shape, tail, strict=True))


OPERATORS: tuple[Operator, ...] = (
    Operator("Softmax", _softmax),
    Operator("LogSoftmax", _softmax),
    Operator("BatchNormalization", _batch_norm, remark="in training from operator set 14 on"),
    Operator("LayerNormalization", _layer_norm),
    Operator("InstanceNormalization", _instance_norm),
    Operator("LpNormalization", _lp_normalization),
    Operator("LRN", _lrn),
)
