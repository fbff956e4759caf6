"""Running sums."""

from __future__ import annotations

from gpuedge.core.dtypes import INTEGERS
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.expr import Expr, LoadExpr, where
from gpuedge.opset.index import Index, choose, flatten
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Tensor, computed, mapped, reshape


def _cumsum(call: OperatorCall) -> Tensor:
    x = call.input(0)
    given = call.constant_ints(1, "axis")
    if given is None or len(given) != 1:
        raise call.unsupported("needs one axis")
    axis = call.axis(given[0], x.rank)
    back = bool(call.integer("reverse", 0))
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


def _moved(x: Tensor, axis: int, by: int, back: bool) -> Tensor:
    """Return x moved along an axis, with zeros in the places that become free."""
    extent = x.shape[axis]

    def body(position: tuple[Index, ...]) -> Expr:
        other = list(position)
        other[axis] = position[axis] + by if back else position[axis] - by
        inside = [extent - 1 - other[axis]] if back else [other[axis]]
        return where(inside, LoadExpr(x, choose(inside, flatten(other, x.shape), Index())), 0.0)

    return computed(x.shape, x.dtype, body)


OPERATORS: tuple[Operator, ...] = (
    Operator("CumSum", _cumsum, parameters=(1,), dtypes=INTEGERS, remark="with a constant axis"),
)
