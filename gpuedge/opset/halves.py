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
        one = stack.pop()
        if one.serial <= last or one.serial in seen:
            continue
        seen.add(one.serial)
        stack.extend(one.reads)
        source = one.source
        if isinstance(source, (Product, Convolution)):
            if source.carry is None and one.dtype in FLOATS:
                one.source = replace(source, is_half=True)
        elif isinstance(source, Map) and op in _ELEMENTWISE and _is_float(one, source):
            one.source = Map(_halved(source.body))


def _is_float(one: Tensor, source: Map) -> bool:
    computes = any(isinstance(e, Apply) for e in walk(source.body))
    return computes and {one.dtype, *(t.dtype for t in one.reads)} <= set(FLOATS)


def _halved(body: Expr) -> Expr:
    """Return an expression with everything rounded; where a step has no float16, as a whole."""
    done: dict[int, Expr] = {}
    for one in walk(body):
        if isinstance(one, Number):
            done[id(one)] = Number(float(np.float16(one.value))) if _fits(one) else one
        elif isinstance(one, LoadExpr) and _fits_constant(one):
            done[id(one)] = Apply("half", (one,))
        elif isinstance(one, Apply) and one.function in _STEPS:
            made = Apply(one.function, tuple(done[id(a)] for a in one.args))
            done[id(one)] = Apply("half", (made,)) if one.function in ROUNDED else made
        else:
            return Apply("half", (body,))
    found = done[id(body)]
    return found if is_half(found) else Apply("half", (found,))


def _fits(one: Number) -> bool:
    return abs(one.value) <= HALF_MOST


def _fits_constant(one: LoadExpr) -> bool:
    array = one.tensor.array
    return array is None or not array.size or float(np.abs(array).max()) <= HALF_MOST


def is_half(one: Expr) -> bool:
    """Tell whether the value of an expression is certain to be a float16."""
    if isinstance(one, Apply):
        return one.function == "half" or (
            one.function in _CHOOSING and all(is_half(a) for a in one.args)
        )
    return isinstance(one, Number) and _fits(one) and float(np.float16(one.value)) == one.value


def is_native(one: Expr) -> bool:
    """Tell whether an expression is one step in float16: of such numbers, and rounded to it."""
    if not (isinstance(one, Apply) and one.function == "half"):
        return False
    inner = one.args[0]
    return isinstance(inner, Apply) and inner.function in ROUNDED and all(map(is_half, inner.args))
