"""Computing tensors in numpy: what runs where ONNX Runtime is not installed.

Float16 values are computed in float32 and rounded where a tensor is float16. Elements of other
dtypes are only moved. Nothing is modified in place that came from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuedge.opset import conv, pool
from gpuedge.opset.digits import joined, part_of
from gpuedge.opset.expr import Apply, Expr, LoadExpr, Number, Position, Where, walk
from gpuedge.opset.functions import FUNCTIONS
from gpuedge.opset.index import Axis, Chosen, Index, Quotient, Remainder, affine
from gpuedge.opset.tensor import (
    Array,
    Carry,
    Constant,
    Convolution,
    Given,
    Map,
    Pooling,
    Product,
    Reduce,
    Shape,
    Tensor,
    reachable,
)

_COMBINE: dict[str, Any] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def evaluate(outputs: Sequence[Tensor], values: Mapping[str, Array]) -> list[Array]:
    """Return the values of tensors.

    Parameters
    ----------
    outputs : sequence of Tensor
    values : mapping of str to ndarray
        What is given from outside, by name.

    Returns
    -------
    list of ndarray
        One for each output, as long as it is; may share memory with `values` or constants.
    """
    wanted = [part for tensor in outputs for part in _parts(tensor)]
    wanted += [t.length.count for t in outputs if t.length is not None]
    order = reachable(wanted)
    last: dict[int, int] = {tensor.serial: len(order) for tensor in wanted}
    for at, tensor in enumerate(order):
        for operand in tensor.reads:
            last[operand.serial] = max(last.get(operand.serial, 0), at)
    done: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for at, tensor in enumerate(order):
            done[tensor.serial] = _compute(tensor, done, values)
            for operand in tensor.reads:
                if last[operand.serial] == at:
                    done.pop(operand.serial, None)
    return [_cut(tensor, done) for tensor in outputs]


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    digits = tensor.digits
    return (tensor,) if digits is None else (digits.high, digits.low)


def _cut(tensor: Tensor, done: Mapping[int, Array]) -> Array:
    """Return a result without what lies beyond its length."""
    parts = [done[part.serial] for part in _parts(tensor)]
    whole = parts[0] if len(parts) == 1 else joined(parts[0], parts[1], tensor.dtype)
    if tensor.length is None:
        return whole
    count = int(done[tensor.length.count.serial].reshape(-1)[0])
    return whole[(slice(None),) * tensor.length.axis + (slice(count),)]


def _compute(tensor: Tensor, done: Mapping[int, Array], values: Mapping[str, Array]) -> Array:
    source = tensor.source
    if isinstance(source, Given):
        array = values[source.name]
        return array if source.part == "whole" else part_of(array, source.part)
    if isinstance(source, Constant):
        return source.array
    parts = [done[t.serial] for t in tensor.reads]
    if tensor.digits is not None and tensor.digits.high is tensor.reads[0]:
        computed = joined(parts[0], parts[1], tensor.dtype)
    elif isinstance(source, Map):
        computed = Elements(tensor.shape, done).result(source.body)
    elif isinstance(source, Reduce):
        elements = Elements((*tensor.shape, *source.over), done).result(source.body)
        along = tuple(range(tensor.rank, tensor.rank + len(source.over)))
        computed = _COMBINE[source.combine](elements, axis=along)
    elif isinstance(source, Product):
        a, b = (_wide(done[t.serial], source.carry) for t in (source.a, source.b))
        computed = _carried(np.matmul(a, b), source.carry)
    elif isinstance(source, Convolution):
        x, w = (_wide(done[t.serial], source.carry) for t in (source.x, source.w))
        bias = None if source.bias is None else _wide(done[source.bias.serial])
        computed = _carried(conv.compute(source, x, w, bias), source.carry)
    elif isinstance(source, Pooling):
        computed = pool.compute(source, _wide(parts[0]))
    # Numpy may have turned a result of rank 0 into a scalar.
    return np.asarray(computed).astype(tensor.dtype, copy=False).reshape(tensor.shape)


def _carried(total: Array, carry: Carry | None) -> Array:
    return total if carry is None else part_of(total, carry.part)


def _wide(array: Array, carry: Carry | None = None) -> Array:
    """Return numbers to compute with: float32 for float16, for all but floats of numpy float64.

    Integers of 4 bits among them, which numpy would compute modulo 16.
    """
    if carry is None and array.dtype == np.float16:
        return array.astype(np.float32)
    is_float = carry is None and array.dtype.kind == "f"
    return array if is_float else array.astype(np.float64)


class Elements:
    """Expressions over all positions of a shape at once.

    Attributes
    ----------
    values : dict
        What was computed so far, by identity of the expression.
    """

    def __init__(self, shape: Shape, done: Mapping[int, Array]) -> None:
        self.shape = shape
        self._done = done
        self.values: dict[int, Any] = {}

    def result(self, body: Expr) -> Array:
        """Return the array of `body`."""
        only_moves = not any(isinstance(e, (Apply, Position)) for e in walk(body))
        for expr in walk(body):
            value = self.compute(expr)
            self.values[id(expr)] = value if only_moves else _wide(np.asarray(value))
        return np.broadcast_to(self.values[id(body)], self.shape)

    def compute(self, expr: Expr) -> Any:
        """Return an expression whose parts are in `values`."""
        if isinstance(expr, Number):
            return np.float32(expr.value)
        if isinstance(expr, LoadExpr):
            return self.load(expr)
        if isinstance(expr, Apply):
            return FUNCTIONS[expr.function].numpy(*(self.values[id(a)] for a in expr.args))
        if isinstance(expr, Where):
            yes, no = self.values[id(expr.yes)], self.values[id(expr.no)]
            return np.where(self.test(expr.test), yes, no)
        if isinstance(expr, Position):
            return self._index(expr.index).astype(np.float32)
        raise TypeError(type(expr).__name__)

    def load(self, expr: LoadExpr) -> Array:
        """Return what is loaded at each position."""
        array = self._done[expr.tensor.serial]
        if 0 in self.shape:
            return np.empty(self.shape, array.dtype)
        linear = affine(expr.at)
        if linear is None:
            taken: Array = array.reshape(-1)[self._index(expr.at)]
            return taken
        flat = np.ascontiguousarray(array).reshape(-1)[expr.at.constant :]
        low = sum(min(0, f * (self.shape[n] - 1)) for n, f in linear.items())
        if low:  # steps backwards: begin where it ends
            taken = array.reshape(-1)[self._index(expr.at)]
            return taken
        steps = [linear.get(n, 0) * flat.itemsize for n in range(len(self.shape))]
        return np.lib.stride_tricks.as_strided(flat, self.shape, steps, writeable=False)

    def is_same(self, a: LoadExpr, b: LoadExpr) -> Any:
        """Return where two of them are the same element."""
        return a.tensor is b.tensor and self._index(a.at) == self._index(b.at)

    def test(self, test: Sequence[Index]) -> Any:
        """Return where no index is negative."""
        passed: Any = True
        for index in test:
            passed = np.logical_and(passed, self._index(index) >= 0)
        return passed

    def _index(self, index: Index) -> Any:
        total: Any = np.int64(index.constant)
        for atom, factor in index.terms:
            total = total + factor * self._atom(atom)
        return total

    def _atom(self, atom: Any) -> Any:
        if isinstance(atom, Axis):
            steps = [1] * len(self.shape)
            steps[atom.number] = atom.size
            return np.arange(atom.size, dtype=np.int64).reshape(steps)
        if isinstance(atom, Quotient):
            return self._index(atom.of) // atom.by
        if isinstance(atom, Remainder):
            return self._index(atom.of) % atom.by
        if isinstance(atom, Chosen):
            yes, no = self._index(atom.yes), self._index(atom.no)
            return np.where(self.test(atom.test), yes, no)
        value = np.asarray(self.values[id(atom.value)])
        if value.dtype.kind == "f":  # of NaN there is no integer
            value = np.where(np.isnan(value), atom.low, value)
        return np.clip(value, atom.low, atom.high).astype(np.int64)
