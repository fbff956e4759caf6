"""Values of scalar expressions without running a kernel: folding, loop trips, shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from gpuedge.core.kernel import Extents, Number
from gpuedge.lang import tree as t

INT_MIN, INT_MAX = -(2**31), 2**31 - 1


class Unknown(Exception):  # noqa: N818  (never leaves this package; not an error)
    """The value depends on something that was not given."""


def _divide(a: Number, b: Number) -> Number:
    return a // b if isinstance(a, int) else a / b


_OPERATORS: dict[str, Callable[[Number, Number], Number]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "&&": lambda a, b: bool(a and b),
    "||": lambda a, b: bool(a or b),
}
_BUILTINS: dict[str, Callable[..., Number]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "clamp": lambda x, low, high: min(max(x, low), high),
}

Lookup = Callable[[t.Expr], Number]
"""Gives the value of a SpecRef, a ParamRef, or a Swizzle of one component of a Dims."""


def _nothing(expr: t.Expr) -> Number:
    raise Unknown


def evaluate(expr: t.Expr, lookup: Lookup = _nothing) -> Number:
    """Return the value of a scalar expression whose locals all keep their first value.

    Raises
    ------
    Unknown
        The expression contains a load, an identifier or something `lookup` does not know.
    ArithmeticError
        An int leaves 32 bits; a divisor is not positive or a dividend negative. The message says
        which.
    """
    value = _evaluate(expr, lookup)
    if expr.type == "int" and not INT_MIN <= value <= INT_MAX:
        raise ArithmeticError("does not fit in 32 bits")
    return value


def _evaluate(expr: t.Expr, lookup: Lookup) -> Number:  # noqa: PLR0911  (one per kind)
    again = partial(evaluate, lookup=lookup)
    if isinstance(expr, t.Literal):
        return expr.value
    if isinstance(expr, t.LocalRef):
        if expr.local.assigned or expr.local.value is None:
            raise Unknown
        return again(expr.local.value)
    if isinstance(expr, t.Unary):
        return not again(expr.value) if expr.op == "!" else -again(expr.value)
    if isinstance(expr, t.Binary):
        return _binary(expr, again(expr.left), again(expr.right))
    if isinstance(expr, t.Select):
        return again(expr.yes if again(expr.condition) else expr.no)
    if isinstance(expr, t.Cast):
        value = again(expr.value)
        return float(value) if expr.type == "float" else int(value)
    if isinstance(expr, t.Builtin) and expr.name in _BUILTINS:
        return _BUILTINS[expr.name](*map(again, expr.args))
    if isinstance(expr, t.Swizzle) and not isinstance(expr.base, t.Dims):
        return again(_component(expr.base, expr.components[0]))
    return lookup(expr)


def _binary(expr: t.Binary, a: Number, b: Number) -> Number:
    if expr.op in "/%" and expr.type == "int":
        if b <= 0:
            raise ArithmeticError(f"{expr.op} needs a positive divisor, not {b}")
        if a < 0:
            raise ArithmeticError(f"{expr.op} needs a dividend that is not negative, not {a}")
    return _OPERATORS[expr.op](a, b)


def _component(vector: t.Expr, index: int) -> t.Expr:
    """Return the scalar expression behind one component of a vector built on the spot."""
    if isinstance(vector, t.Splat):
        return vector.value
    if isinstance(vector, t.LocalRef) and vector.local.value and not vector.local.assigned:
        return _component(vector.local.value, index)
    if isinstance(vector, t.Swizzle):
        return _component(vector.base, vector.components[index])
    if isinstance(vector, t.Dims):
        return t.Swizzle("int", vector, (index,), vector.time)
    if isinstance(vector, t.Construct):
        for arg in vector.args:
            width = t.WIDTH[arg.type]
            if index < width:
                return arg if width == 1 else _component(arg, index)
            index -= width
    raise Unknown


def _lookup_in(
    specs: Mapping[str, Number], params: Mapping[str, Number], extents: Mapping[str, Extents]
) -> Lookup:
    def lookup(expr: t.Expr) -> Number:
        try:
            if isinstance(expr, t.SpecRef):
                return specs.get(expr.spec.name, expr.spec.default)
            if isinstance(expr, t.ParamRef):
                return params[expr.param.name]
            if isinstance(expr, t.Swizzle) and isinstance(expr.base, t.Dims):
                return extents[expr.base.tensor.name][expr.components[0]]
        except KeyError:
            raise Unknown from None
        raise Unknown

    return lookup


def shared_bytes(kernel: t.Kernel, specs: Mapping[str, Number] | None = None) -> int:
    """Return the bytes of shared memory of a workgroup, with vec3 taking 16 as all drivers do."""
    lookup = _lookup_in(specs or {}, {}, {})
    total = 0
    for array in kernel.shared:
        width = t.WIDTH[array.type]
        total += int(evaluate(array.size, lookup)) * 4 * (4 if width == 3 else width)
    return total


class _Trips:
    """Counts loop iterations; helpers are counted once each and added per call."""

    def __init__(self, kernel: t.Kernel, lookup: Lookup) -> None:
        self.kernel = kernel
        self.lookup = lookup
        self.counts: dict[str, int] = {}
        for function in (*kernel.functions, kernel.main):
            own = self.block(function.body) + self.called(function.result)
            self.counts[function.name] = own

    def called(self, expr: object) -> int:
        """Return the iterations inside the functions that an expression calls."""
        total = self.counts[expr.function.name] if isinstance(expr, t.Call) else 0
        return total + sum(map(self.called, t.children(expr)))

    def block(self, body: list[t.Stmt]) -> int:
        """Return the iterations of a list of statements."""
        total = 0
        for stmt in body:
            if isinstance(stmt, t.For):
                total += self.loop(stmt)
            elif isinstance(stmt, t.If):
                total += self.called(stmt.condition)
                total += self.block(stmt.then) + self.block(stmt.orelse)
            elif not isinstance(stmt, t.Barrier):
                total += self.called(stmt.value)
        return total

    def loop(self, stmt: t.For) -> int:
        """Return the iterations of a loop and all inside it."""
        try:
            start = int(evaluate(stmt.start, self.lookup))
        except Unknown:
            start = 0
        try:
            bound, step = (int(evaluate(e, self.lookup)) for e in (stmt.bound, stmt.step))
        except Unknown:
            raise KeyError(
                f"bound of loop {stmt.index.name} in kernel {self.kernel.name}"
            ) from None
        trips = max(0, -(-(bound - start) // step))
        return trips * (1 + self.block(stmt.body))


def trip_count(
    kernel: t.Kernel,
    *,
    extents: Mapping[str, Extents],
    specs: Mapping[str, Number] | None = None,
    params: Mapping[str, Number] | None = None,
) -> int:
    """Return the most loop iterations, over all loops, that one invocation can make.

    Both sides of a branch are counted, and a loop that starts at an invocation's id as if it
    started at 0. Drivers have limits on this sum.

    Raises
    ------
    KeyError
        A tensor's extents or a param that a bound needs is missing.
    """
    lookup = _lookup_in(specs or {}, params or {}, extents)
    return _Trips(kernel, lookup).counts["main"]
