"""Running sums."""

from __future__ import annotations

from gpuedge.opset.call import Call
from gpuedge.opset.expr import Expr, Load, where
from gpuedge.opset.index import Index, choose, flatten
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Tensor, computed, reshape


def _shifted_sum(x: Tensor, axis: int, by: int, back: bool) -> Tensor:
    """Return x plus itself moved `by` along an axis, where that is not beyond its end."""
    extent = x.shape[axis]

    def body(position: tuple[Index, ...]) -> Expr:
        other = list(position)
        other[axis] = position[axis] + by if back else position[axis] - by
        inside = [extent - 1 - other[axis]] if back else [other[axis]]
        spot = choose(inside, flatten(other, x.shape), Index())
        own = Load(x, flatten(position, x.shape))
        return own + where(inside, Load(x, spot), 0.0)

    return computed(x.shape, x.dtype, body)


def _cumsum(call: Call) -> Tensor:
    """Add neighbours at distances 1, 2, 4, ...: log2(n) passes.

    Hillis and Steele, *Data Parallel Algorithms* (Communications of the ACM 29, 1986). The error
    bound is that of pairwise summation, log2(n) 2^-24 sum(abs(x)).
    """
    x = call.input(0)
    given = call.constant_ints(1, "axis")
    if given is None or len(given) != 1:
        raise call.unsupported("needs one axis")
    axis = call.axis(given[0], x.rank)
    back = bool(call.integer("reverse", 0))
    total, by = x, 1
    if call.integer("exclusive", 0):
        total = _moved(total, axis, back)
    while by < (x.shape[axis] if x.shape else 1):
        total = _shifted_sum(total, axis, by, back)
        by *= 2
    return reshape(x, x.shape) if total is x else total


def _moved(x: Tensor, axis: int, back: bool) -> Tensor:
    """Return x moved by one along an axis, with a zero in the place that becomes free."""
    extent = x.shape[axis]

    def body(position: tuple[Index, ...]) -> Expr:
        other = list(position)
        other[axis] = position[axis] + 1 if back else position[axis] - 1
        inside = [extent - 1 - other[axis]] if back else [other[axis]]
        return where(inside, Load(x, choose(inside, flatten(other, x.shape), Index())), 0.0)

    return computed(x.shape, x.dtype, body)


OPERATORS: tuple[Operator, ...] = (
    Operator("CumSum", _cumsum, parameters=(1,), remark="with a constant axis"),
)
