"""Matrix products."""

from __future__ import annotations

import numpy as np

from gpuedge.opset.bounds import TINY
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import (
    Carry,
    Tensor,
    broadcast_shape,
    computed,
    constant,
    mapped,
    product,
    transpose,
)


def multiplied(a: Tensor, b: Tensor, carry: Carry | None = None) -> Tensor:
    """Return a product; a sum over nothing is zero."""
    if a.size and b.size:
        return product(a, b, carry)
    shape = np.matmul(np.empty(a.shape, "b"), np.empty(b.shape, "b")).shape
    return computed(tuple(shape), a.dtype, lambda _: 0.0)


def _matmul(call: OperatorCall) -> Tensor:
    a, b = call.shape(0), call.shape(1)
    if not a or not b:
        raise call.bad_shape("cannot multiply a scalar")
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    if left[-1] != right[-2]:
        raise call.bad_shape(f"multiplies rows of {left[-1]} by columns of {right[-2]}")
    if broadcast_shape([left[:-2], right[:-2]]) is None:
        raise call.bad_shape("has batch dimensions that do not broadcast")
    return multiplied(call.input(0), call.input(1))


def _gemm(call: OperatorCall) -> Tensor:
    a, b = call.input(0), call.input(1)
    if a.rank != 2 or b.rank != 2:
        raise call.bad_shape("needs two matrices")
    left = transpose(a, (1, 0)) if call.integer("transA", 0) else a
    right = _transposed(b) if call.integer("transB", 0) else b
    (m, k), (k_b, n) = left.shape, right.shape
    if k != k_b:
        raise call.bad_shape(f"multiplies rows of {k} by columns of {k_b}")
    c = call.optional(2)
    if c is not None:
        wide = (1,) * (2 - c.rank) + c.shape
        if c.rank > 2 or wide[0] not in (1, m) or wide[1] not in (1, n):
            raise call.bad_shape(f"cannot broadcast its third input to [{m}, {n}]")
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    if alpha == 1:
        total = multiplied(left, right)
    elif right.array is not None and _is_kept(right, smaller := scaled(right, alpha)):
        total = multiplied(left, smaller)
    else:
        total = scaled(multiplied(left, right), alpha)
    if c is None or beta == 0:
        return total
    return mapped(lambda p, q: p + q, total, scaled(c, beta))


def _transposed(b: Tensor) -> Tensor:
    """Transpose a matrix, at once if it is constant."""
    if b.array is not None:
        return constant(b.array.T)
    return transpose(b, (1, 0))


def _is_kept(before: Tensor, after: Tensor) -> bool:
    """Tell whether scaling made no constant infinite, or so small that devices drop it."""
    old, new = np.abs(np.asarray(before.array)), np.abs(np.asarray(after.array))
    return bool(np.all((old == 0) | (old == np.inf) | ((new >= TINY) & (new < np.inf))))


def scaled(tensor: Tensor, factor: float) -> Tensor:
    """Multiply by a number, at once if the tensor is constant."""
    if factor == 1:
        return tensor
    if tensor.array is not None:
        with np.errstate(over="ignore"):
            return constant((tensor.array * np.float32(factor)).astype(tensor.dtype))
    return mapped(lambda x: x * factor, tensor)


OPERATORS: tuple[Operator, ...] = (
    Operator("MatMul", _matmul),
    Operator("Gemm", _gemm, remark="becomes a matrix product and an addition"),
)
