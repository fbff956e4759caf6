"""Conditions, conversions and whole numbers. A condition is 1 or 0, and so is a bool."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gpuedge.core.dtypes import BYTES, EXACT, INTEGERS, SMALL, WIDE
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.digits import as_floats
from gpuedge.opset.elementwise import above, larger, magnitude, pick, quotient, truncated, wrapped
from gpuedge.opset.expr import Expr, apply
from gpuedge.opset.limits import divisor
from gpuedge.opset.operator import ANY, FLOATS, Function, Operator
from gpuedge.opset.ranges import largest, limits, span
from gpuedge.opset.tensor import Tensor, mapped, reshape, retyped

LARGEST = float(np.finfo(np.float32).max)
"""What lies above is infinity."""


def equal(a: Expr, b: Expr | float) -> Expr:
    """1 where a is b, else 0."""
    return apply("equal", a, b)


def _not(x: Expr) -> Expr:
    return 1.0 - x


COMPARISONS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Equal": equal,
    "Greater": above,
    "Less": lambda a, b: above(b, a),
    "GreaterOrEqual": lambda a, b: above(a, b) + equal(a, b),
    "LessOrEqual": lambda a, b: above(b, a) + equal(a, b),
}
CONNECTIVES: dict[str, Callable[[Expr, Expr], Expr]] = {
    "And": lambda a, b: a * b,
    "Or": lambda a, b: a + b - a * b,
    "Xor": lambda a, b: magnitude(a - b),
}


def broadcast_map(
    call: OperatorCall, formula: Callable[..., Expr], *tensors: Tensor, dtype: str | None = None
) -> Tensor:
    """Return a formula of a node's operands. Raises ShapeError (GE-201) if they do not fit."""
    try:
        return mapped(formula, *tensors, dtype=dtype)
    except ValueError:
        raise call.bad_shape("has inputs that do not broadcast") from None


def _compare(formula: Callable[..., Expr], call: OperatorCall) -> Tensor:
    return broadcast_map(call, formula, call.input(0), call.input(1), dtype="bool")


def _negate(call: OperatorCall) -> Tensor:
    return mapped(_not, call.input(0))


def _where(call: OperatorCall) -> Tensor:
    condition, yes, no = (call.input(i) for i in range(3))
    return broadcast_map(call, pick, condition, yes, no, dtype=yes.dtype)


def _is_nan(call: OperatorCall) -> Tensor:
    return mapped(lambda x: apply("none", x), call.input(0), dtype="bool")


def _is_inf(call: OperatorCall) -> Tensor:
    up, down = call.integer("detect_positive", 1), call.integer("detect_negative", 1)

    def formula(x: Expr) -> Expr:
        size = magnitude(x) if up and down else x if up else -x
        return above(size, LARGEST) if up or down else 0.0 * above(x, x)

    return mapped(formula, call.input(0), dtype="bool")


# --- conversions ---------------------------------------------------------------------------------

ELEMENT_TYPES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32",
                 7: "int64", 9: "bool", 10: "float16", 12: "uint32", 13: "uint64"}  # fmt: skip
"""Element types of ONNX (TensorProto.DataType) that kernels compute in."""


def converted(call: OperatorCall, x: Tensor, dtype: str) -> Tensor:
    """Return a tensor in another dtype, as ONNX's Cast has it.

    Fractions are cut off; integers that do not fit wrap, and what is beyond them in floats becomes
    the nearest (ONNX leaves that open); 32 bits and more have the precision of
    float32. float16 is rounded where it leaves the device.
    """
    if dtype in FLOATS:
        return retyped(as_floats(x), dtype)
    if dtype == "bool" and x.dtype != "bool":
        return mapped(lambda v: 1.0 - equal(v, 0.0), x, dtype=dtype)
    if dtype in INTEGERS and x.dtype in FLOATS:
        low, high = limits(dtype)
        if dtype in WIDE:
            result = mapped(truncated, x, dtype=dtype)
            result.span = max(low, -EXACT), EXACT
            return result
        return mapped(lambda v: apply("min", apply("max", truncated(v), low), high), x, dtype=dtype)
    same = retyped(x, dtype)
    if dtype in SMALL and not (limits(dtype)[0] <= span(x)[0] and span(x)[1] <= limits(dtype)[1]):
        return wrapped(call, mapped(lambda v: v + 0.0, x, dtype=dtype))
    return same


def _cast(call: OperatorCall) -> Tensor:
    x = call.input(0)
    if call.op == "CastLike":
        wanted: str | None = call.input(1).dtype
    else:
        wanted = ELEMENT_TYPES.get(call.integer("to", 0))
    known = (*FLOATS, *ANY)
    if x.dtype == wanted:
        return reshape(x, x.shape)
    if wanted not in known or x.dtype not in known:
        raise call.unsupported(f"converts {x.dtype} to {wanted or 'a type that kernels lack'}")
    return converted(call, x, wanted)


# --- whole numbers -------------------------------------------------------------------------------


def _remainder(a: Expr, b: Expr, *, like_c: bool) -> Expr:
    """Return what division leaves: with the sign of `a` as C has it, else with that of `b`.

    By infinity nothing divides: `a` stays, or becomes `b` where the signs differ. Of infinity
    nothing is left but NaN.
    """
    rest = a - quotient(a, b) * b
    rest = pick(above(magnitude(b), larger(magnitude(a), LARGEST)), a, rest)
    if like_c:
        return rest
    return pick(above(0.0, rest * apply("sign", b)), rest + b, rest)


def _mod(call: OperatorCall) -> Tensor:
    a, b = call.input(0), call.input(1)
    like_c = bool(call.integer("fmod", 0))
    result = broadcast_map(call, partial(_remainder, like_c=like_c), a, b)
    if result.dtype in INTEGERS:
        result.span = -largest(b), largest(b)
    return result


OPERATORS: tuple[Operator, ...] = (
    *(Operator(name, partial(_compare, formula), dtypes=ANY)
      for name, formula in COMPARISONS.items()),
    *(Operator(name, partial(_compare, formula), dtypes=("bool",))
      for name, formula in CONNECTIVES.items()),
    Operator("Not", _negate, dtypes=("bool",)),
    Operator("Where", _where, dtypes=ANY, others=(0,)),
    Operator("IsNaN", _is_nan),
    Operator("IsInf", _is_inf),
    Operator("Cast", _cast, moves=True, is_open_beyond=True),
    Operator("CastLike", _cast, moves=True, is_open_beyond=True),
    Operator("Mod", _mod, dtypes=INTEGERS, limits=divisor),
)  # fmt: skip

FUNCTIONS: tuple[Function, ...] = tuple(
    Function(name, op, f"Whether {meaning}, with broadcasting; a bool array", "exact", ("a", "b"),
             dtypes=BYTES)
    for name, op, meaning in (
        ("equal", "Equal", "a is b"), ("greater", "Greater", "a is above b"),
        ("greater_equal", "GreaterOrEqual", "a is b or above"), ("less", "Less", "a is below b"),
        ("less_equal", "LessOrEqual", "a is b or below"),
    )
)  # fmt: skip
