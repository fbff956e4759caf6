"""What a launch needs, from the text of its kernel: loop iterations and shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuedge.core.kernel import Extents, Number
from gpuedge.lang import tree as t
from gpuedge.lang.evaluate import Lookup, Unknown, evaluate


def _lookup_in(
    specs: Mapping[str, Number], params: Mapping[str, Number], extents: Mapping[str, Extents]
) -> Lookup:
    def lookup(expr: t.Expr) -> Number:
        try:
            if isinstance(expr, t.Spec):
                return specs.get(expr.name, expr.default)
            if isinstance(expr, t.Param):
                return params[expr.name]
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
            own = self.block(function.body)
            if function.result is not None:
                own += self.called((function.result,))
            self.counts[function.name] = own

    def called(self, exprs: Iterable[t.Expr]) -> int:
        """Return the iterations inside the functions that expressions call."""
        total = 0
        for expr in exprs:
            if isinstance(expr, t.Call):
                total += self.counts[expr.function.name]
            total += self.called(t.children(expr))
        return total

    def block(self, body: list[t.Stmt]) -> int:
        """Return the iterations of a list of statements."""
        total = 0
        for stmt in body:
            if isinstance(stmt, t.For):
                total += self.loop(stmt)
            elif isinstance(stmt, t.If):
                total += self.called((stmt.condition,))
                total += self.block(stmt.then) + self.block(stmt.orelse)
            elif not isinstance(stmt, t.Barrier) and stmt.value is not None:
                total += self.called((stmt.value,))
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
            where = f"bound of loop {stmt.index.name} in kernel {self.kernel.name}"
            raise KeyError(where) from None
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
