"""Arithmetic in float16, where it is asked for: what of a node's tensors is rounded to it.

Sums, differences and products of elementwise operators are rounded one by one: float32 of two
float16 rounds the same way as float16 itself (24 >= 2 * 11 + 2 bits: Figueroa, "When is double
rounding innocuous?", SIGNUM Newsletter 30(3), 1995), so that the expression says what a device does
that computes in float16. Operators with another function, such as a division or an exponential,
compute in float32, and round once. Convolutions and matrix products round operands and products.
Everything else stays as it is: reductions, softmax, normalisations, integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gpuedge.core.dtypes import ACCEPTED as FLOATS
from gpuedge.opset.bounds import HALF_MOST
from gpuedge.opset.elementwise import OPERATORS
from gpuedge.opset.expr import Apply, Expr, LoadExpr, Number, walk
from gpuedge.opset.tensor import Convolution, Map, Product, Tensor

ROUNDED: Final = frozenset(("add", "sub", "mul"))
"""Functions that give what no float16 is of those that are."""

_CHOOSING = frozenset(("neg", "abs", "max", "min", "pick", "keep_nan"))
"""Functions that give one of their operands, but for its sign."""

_STEPS = ROUNDED | _CHOOSING | {"above", "equal", "sign", "floor", "ceil", "round"}
_ELEMENTWISE = frozenset(one.name for one in OPERATORS)


def halve(op: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor | None]) -> None:
    """Round what a node makes of its inputs, in place: the tensors built after those."""
    given = [t for t in inputs if t is not None]
    given += [part for t in given if (d := t.digits) for part in (d.high, d.low, d.rounded)]
    last = max((t.serial for t in given), default=-1)
    stack, seen = list(outputs), set[int]()
    while stack:
        tensor = stack.pop()
        if tensor.serial <= last or tensor.serial in seen:
            continue
        seen.add(tensor.serial)
        stack.extend(tensor.reads)
        source = tensor.source
        if isinstance(source, (Product, Convolution)):
            if source.carry is None and tensor.dtype in FLOATS:
                tensor.source = replace(source, is_half=True)
        elif isinstance(source, Map) and op in _ELEMENTWISE and _is_float(tensor, source):
            tensor.source = Map(_halved(source.body))


def _is_float(tensor: Tensor, source: Map) -> bool:
    computes = any(isinstance(e, Apply) for e in walk(source.body))
    return computes and {tensor.dtype, *(t.dtype for t in tensor.reads)} <= set(FLOATS)


def _halved(body: Expr) -> Expr:
    """Return an expression with everything rounded; where a step has no float16, as a whole."""
    done: dict[int, Expr] = {}
    for expr in walk(body):
        if isinstance(expr, Number):
            done[id(expr)] = Number(float(np.float16(expr.value))) if _fits(expr) else expr
        elif isinstance(expr, LoadExpr) and _fits_constant(expr):
            done[id(expr)] = Apply("half", (expr,))
        elif isinstance(expr, Apply) and expr.function in _STEPS:
            applied = Apply(expr.function, tuple(done[id(a)] for a in expr.args))
            done[id(expr)] = Apply("half", (applied,)) if expr.function in ROUNDED else applied
        else:
            return Apply("half", (body,))
    halved = done[id(body)]
    return halved if is_half(halved) else Apply("half", (halved,))


def _fits(number: Number) -> bool:
    return abs(number.value) <= HALF_MOST


def _fits_constant(load: LoadExpr) -> bool:
    array = load.tensor.array
    return array is None or not array.size or float(np.abs(array).max()) <= HALF_MOST


def is_half(expr: Expr) -> bool:
    """Tell whether the value of an expression is certain to be a float16."""
    if isinstance(expr, Apply):
        return expr.function == "half" or (
            expr.function in _CHOOSING and all(is_half(a) for a in expr.args)
        )
    return isinstance(expr, Number) and _fits(expr) and float(np.float16(expr.value)) == expr.value


def is_native(expr: Expr) -> bool:
    """Tell whether an expression is one step in float16: of such numbers, and rounded to it."""
    if not (isinstance(expr, Apply) and expr.function == "half"):
        return False
    inner = expr.args[0]
    return isinstance(inner, Apply) and inner.function in ROUNDED and all(map(is_half, inner.args))
