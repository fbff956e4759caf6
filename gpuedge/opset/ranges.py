"""Between what the values of tensors lie, as far as that follows from dtypes and formulas.

Kernels compute integers in float32, which is exact up to 2^24: whether they stay there is decided
by these ranges while planning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isnan, prod
from typing import Final

import numpy as np

from gpuedge.core.dtypes import EXACT, SMALL, WIDE
from gpuedge.opset.expr import Apply, Expr, LoadExpr, Number, Position, Where, loads, walk
from gpuedge.opset.tensor import Array, Constant, Convolution, Given, Map, Product, Reduce, Tensor
from gpuedge.opset.tensor import reachable as all_of

Range = tuple[float, float]

UNKNOWN: Final[Range] = (-inf, inf)


class Spans:
    """Between what values lie if integers that come from outside are at most `most`."""

    def __init__(self, most: int = EXACT) -> None:
        self.most = most
        self._found: dict[int, Range] = {}

    def of(self, tensor: Tensor) -> Range:
        """Return between what the values of a tensor lie; infinite where nothing is known."""
        for each in all_of([tensor]):
            if each.serial not in self._found:
                self._found[each.serial] = self._within(each)
        return self._found[tensor.serial]

    def given(self, tensor: Tensor) -> Range:
        """Return the same of what the source gives, also where it is kept as floats."""
        low, high = self.of(tensor)
        own = self._computed(tensor)
        return max(low, own[0]), min(high, own[1])

    def wraps(self, tensor: Tensor) -> bool:
        """Tell whether an integer without a sign may come out negative, which is kept as 0."""
        if tensor.dtype not in WIDE or tensor.dtype[0] != "u" or not tensor.reads:
            return False
        self.of(tensor)
        return self._computed(tensor)[0] < 0

    def largest(self, tensor: Tensor) -> float:
        """Return a bound on the absolute values of a tensor."""
        return max(map(abs, self.of(tensor)))

    def extent(self, body: Expr) -> float:
        """Return a bound on the absolute values that occur while an expression is computed."""
        for load in loads(body):
            self.of(load.tensor)
        return max(abs(end) for pair in self._ranges(body).values() for end in pair)

    def _within(self, tensor: Tensor) -> Range:
        """Return what the dtype allows of what the source may give."""
        low, high = limits(tensor.dtype)
        source = tensor.source
        if isinstance(source, Constant):
            return _of_array(source.array)
        if tensor.dtype not in WIDE:
            return low, high
        own = self._computed(tensor)
        return max(low, own[0]), min(high, own[1])

    def _computed(self, tensor: Tensor) -> Range:
        """Return what the source gives, whatever the dtype holds."""
        source = tensor.source
        range_ = UNKNOWN if tensor.span is None else tensor.span
        if isinstance(source, Given):
            range_ = (-self.most, self.most)
        elif isinstance(source, Map) and tensor.span is None:
            range_ = self._ranges(source.body)[id(source.body)]
        elif isinstance(source, Reduce) and tensor.span is None:
            range_ = self._reduced(source)
        elif isinstance(source, Product):
            range_ = _sums(source.a.shape[-1], self.of(source.a), self.of(source.b))
        elif isinstance(source, Convolution):
            taps = prod(source.w.shape[2:]) * max(source.w.shape[:2])
            range_ = _sums(taps, self.of(source.x), self.of(source.w))
        return range_

    def _reduced(self, source: Reduce) -> Range:
        low, high = self._ranges(source.body)[id(source.body)]
        count = prod(source.over)
        if source.combine == "sum":
            return min(0.0, low) * count, max(0.0, high) * count
        if source.combine == "prod":
            return UNKNOWN if max(abs(low), abs(high)) > 1 else (-1.0, 1.0)
        return low, high

    def _ranges(self, body: Expr) -> dict[int, Range]:
        """Return the range of every part of an expression, by identity."""
        ranges: dict[int, Range] = {}
        for expr in walk(body):
            range_ = UNKNOWN
            if isinstance(expr, Number):
                range_ = (expr.value, expr.value)
            elif isinstance(expr, LoadExpr):
                range_ = self._found[expr.tensor.serial]
            elif isinstance(expr, Position):
                range_ = (expr.index.low, expr.index.high)
            elif isinstance(expr, Where):
                range_ = _union(ranges[id(expr.yes)], ranges[id(expr.no)])
            elif isinstance(expr, Apply) and expr.function in _RULES:
                range_ = _RULES[expr.function](*(ranges[id(a)] for a in expr.args))
            ranges[id(expr)] = UNKNOWN if any(map(isnan, range_)) else range_
        return ranges


def span(tensor: Tensor) -> Range:
    """Return between what the values of a tensor lie."""
    return Spans().of(tensor)


def largest(tensor: Tensor) -> float:
    """Return a bound on the absolute values of a tensor."""
    return Spans().largest(tensor)


def byte_offset(tensor: Tensor) -> int | None:
    """Return what whole numbers, and 0, must lose to be signed bytes; None if they cannot be."""
    low, high = Spans().given(tensor)
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low > 255:
        return None
    return 0 if low >= -128 and high <= 127 else int(low) + 128


def exact_inputs(outputs: Sequence[Tensor]) -> tuple[int, Tensor | None]:
    """Return how large integers from outside may be, and a tensor that is too large even so.

    What leaves a program is looked at there; what is read inside of it has to stay exact.
    """
    inside = [r for tensor in all_of(outputs) for r in _whole(tensor) if r.dtype in WIDE]
    beyond: Tensor | None = None
    for bits in (24, 20, 16, 12, 8):
        spans = Spans(2**bits)
        beyond = next((r for r in inside if spans.largest(r) > EXACT or spans.wraps(r)), None)
        if beyond is None:
            return spans.most, None
    return EXACT, beyond


def _whole(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return what a tensor reads as one float32; sums that carry read their bias in digits."""
    source = tensor.source
    if isinstance(source, Convolution) and source.carry is not None:
        return (source.x, source.w)
    return tensor.reads


def _sums(terms: int, a: Range, b: Range) -> Range:
    most = terms * max(map(abs, a)) * max(map(abs, b))
    return -most, most


def limits(dtype: str) -> Range:
    """Return the least and the greatest value of a dtype; infinite for floats."""
    if dtype == "bool":
        return 0.0, 1.0
    if dtype not in (*SMALL, *WIDE):
        return UNKNOWN
    about = np.iinfo(dtype)
    return float(about.min), float(about.max)


def _of_array(array: Array) -> Range:
    if not array.size or array.dtype.kind not in "fiub":
        return UNKNOWN if array.size else (0.0, 0.0)
    low, high = float(array.min()), float(array.max())
    return UNKNOWN if isnan(low) else (low, high)


def _union(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), max(a[1], b[1])


def _products(a: Range, b: Range) -> Range:
    ends = [x * y if x and y else 0.0 for x in a for y in b]
    return min(ends), max(ends)


def _same(a: Range, *_: Range) -> Range:
    return a


_RULES: dict[str, Callable[..., Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _products,
    "div": lambda a, b: (-max(map(abs, a)), max(map(abs, a))) if b[0] >= 1 else UNKNOWN,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (max(0.0, a[0], -a[1]), max(map(abs, a))),
    "sign": lambda a: (-1.0, 1.0),
    "floor": lambda a: (a[0] - 1, a[1]),
    "ceil": lambda a: (a[0], a[1] + 1),
    "round": lambda a: (a[0] - 1, a[1] + 1),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "above": lambda a, b: (0.0, 1.0),
    "equal": lambda a, b: (0.0, 1.0),
    "none": lambda a: (0.0, 1.0),
    "pick": lambda c, a, b: _union(a, b),
    "keep_nan": _same,
}
"""Ranges of functions from those of their arguments; all others may give anything."""
