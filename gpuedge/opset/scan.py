"""Running sums and products."""

from __future__ import annotations

from collections.abc import Sequence

from gpuedge.core.dtypes import INTEGERS
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.expr import Expr, LoadExpr, where
from gpuedge.opset.index import Index, axes, choose, flatten
from gpuedge.opset.index import axis as along
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Reduce, Tensor, computed, mapped, reshape


def _along(call: OperatorCall) -> tuple[Tensor, int, bool]:
    """Return what runs, along which axis, and whether it runs backwards."""
    x = call.input(0)
    given = call.constant_ints(1, "axis")
    if given is None or len(given) != 1:
        raise call.unsupported("needs one axis")
    return x, call.axis(given[0], x.rank), bool(call.integer("reverse", 0))


def _cumprod(call: OperatorCall) -> Tensor:
    """Multiply up what comes before; of integers at once, so that no part exceeds the whole."""
    x, axis, back = _along(call)
    if not x.size:
        return reshape(x, x.shape)
    is_exclusive = bool(call.integer("exclusive", 0))
    if x.dtype in INTEGERS:
        extent = x.shape[axis]

        def body(here: Sequence[Index]) -> Expr:
            step = along(x.rank, extent)
            other = [*here[:axis], step, *here[axis + 1 :]]
            ahead = step - here[axis] if back else here[axis] - step
            return where([ahead - int(is_exclusive)], LoadExpr(x, flatten(other, x.shape)), 1.0)

        return Tensor(x.shape, x.dtype, Reduce("prod", (extent,), body(axes(x.shape))))
    total = _moved(x, axis, 1, back, 1.0) if is_exclusive else x
    by = 1
    while by < x.shape[axis]:
        total = mapped(lambda a, b: a * b, total, _moved(total, axis, by, back, 1.0))
        by *= 2
    return reshape(x, x.shape) if total is x else total


def _cumsum(call: OperatorCall) -> Tensor:
    x, axis, back = _along(call)
    total = running_sum(_moved(x, axis, 1, back) if call.integer("exclusive", 0) else x, axis, back)
    return reshape(x, x.shape) if total is x else total


def running_sum(x: Tensor, axis: int, back: bool = False) -> Tensor:
    """Add neighbours at distances 1, 2, 4, ...: log2(n) passes.

    Hillis and Steele, *Data Parallel Algorithms* (Communications of the ACM 29, 1986). The error
    bound is that of pairwise summation, log2(n) 2^-24 sum(abs(x)).
    """
    total, by = x, 1
    while by < (x.shape[axis] if x.shape else 1):
        total = mapped(lambda a, b: a + b, total, _moved(total, axis, by, back))
        by *= 2
    return total


def _moved(x: Tensor, axis: int, by: int, back: bool, fill: float = 0.0) -> Tensor:
    """Return x moved along an axis, with `fill` in the places that become free."""
    extent = x.shape[axis]

    def body(position: tuple[Index, ...]) -> Expr:
        other = list(position)
        other[axis] = position[axis] + by if back else position[axis] - by
        inside = [extent - 1 - other[axis]] if back else [other[axis]]
        return where(inside, LoadExpr(x, choose(inside, flatten(other, x.shape), Index())), fill)

    return computed(x.shape, x.dtype, body)


OPERATORS: tuple[Operator, ...] = (
    Operator("CumSum", _cumsum, parameters=(1,), dtypes=INTEGERS, remark="with a constant axis"),
    Operator("CumProd", _cumprod, parameters=(1,), dtypes=INTEGERS, remark="with a constant axis"),
)
