"""A map kernel for several neighbouring texels at once: what is the same for all is done once.

Fragment shaders of OpenGL ES 3.0 compute the texels of several textures. `side_by_side` writes the
main of a map kernel for that: locals and statements that depend on what differs between the texels
are there once for each of them; loads of weights that they share, and loops, once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gpuedge.lang import tree as t

SAME: Final = {"": "", "plane": "zw", "row": "yzw"}
"""What neighbours lie in, at least: the parts of their positions that are equal."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Statements and results of main for `count` texels at the `positions`, one local each."""

    positions: list[t.Local]
    body: list[t.Stmt]
    values: list[t.Expr]


def side_by_side(kernel: t.Kernel, count: int, along: str) -> SideBySide:
    """Return main of a map kernel for `count` neighbours; `along` is a key of `SAME`."""
    main = kernel.main
    same = frozenset("xyzw".index(letter) for letter in SAME[along])
    differing = _Differing(main.args[0], same, count)
    differing.find(main.body)
    copies = _Copies(differing, most_uid(kernel), count)
    positions = [copies.local(main.args[0], j) for j in range(count)]
    body = [stmt for outer in main.body for stmt in copies.statement(outer)]
    return SideBySide(positions, body, [copies.value(main.value, j) for j in range(count)])


def most_uid(kernel: t.Kernel) -> int:
    """Return the highest number of a local."""
    functions = [*kernel.functions, kernel.main]
    uids = [a.uid for f in functions for a in f.args]
    uids += [local.uid for f in functions for local in _declared(f.body)]
    return max(uids)


def _declared(body: list[t.Stmt]) -> Iterator[t.Local]:
    for stmt in body:
        if isinstance(stmt, t.Declare):
            yield stmt.local
        elif isinstance(stmt, t.For):
            yield stmt.index
            yield from _declared(stmt.body)
        elif isinstance(stmt, t.If):
            yield from _declared(stmt.then)
            yield from _declared(stmt.orelse)


class _Differing:
    """Which locals differ between neighbours: `locals`, by their uid."""

    def __init__(self, position: t.Local, same: frozenset[int], count: int) -> None:
        self._position = position
        self._same = same
        self._count = count
        self.locals = {position.uid}

    def has(self, expr: t.Expr) -> bool:
        """Tell whether the values of an expression differ."""
        if isinstance(expr, t.LocalRef):
            return expr.local.uid in self.locals
        if isinstance(expr, t.Swizzle) and isinstance(expr.base, t.LocalRef):
            if expr.base.local is self._position:
                return not self._same.issuperset(expr.components)
        elif isinstance(expr, t.Element) and getattr(expr.array, "uid", 0) in self.locals:
            return True
        elif isinstance(expr, t.Op) and expr.name == "/" and self._is_group(*expr.args):
            return False
        return any(map(self.has, t.children(expr)))

    def _is_group(self, column: t.Expr, size: t.Expr) -> bool:
        """Tell whether a column is divided so that all neighbours in a row give the same."""
        return (
            isinstance(column, t.Swizzle)
            and isinstance(column.base, t.LocalRef)
            and (column.base.local, column.components) == (self._position, (0,))
            and isinstance(size, t.Literal)
            and size.value % self._count == 0
            and self._same == frozenset((1, 2, 3))
        )

    def find(self, body: list[t.Stmt]) -> None:
        """Add all locals of main that differ: a loop may carry what does to its beginning."""
        known = 0
        while known < len(self.locals):
            known = len(self.locals)
            self._block(body, False)

    def _block(self, body: list[t.Stmt], is_apart: bool) -> None:
        """`is_apart`: whether not all neighbours come here."""
        for stmt in body:
            if isinstance(stmt, t.Declare):
                self._mark(
                    stmt.local, is_apart or (stmt.value is not None and self.has(stmt.value))
                )
            elif isinstance(stmt, t.Assign) and isinstance(stmt.target, t.Local):
                index = stmt.index is not None and self.has(stmt.index)
                self._mark(stmt.target, is_apart or index or self.has(stmt.value))
            elif isinstance(stmt, t.If):
                apart = is_apart or self.has(stmt.condition)
                self._block(stmt.then, apart)
                self._block(stmt.orelse, apart)
            elif isinstance(stmt, t.For):
                self._mark(stmt.index, is_apart)
                self._block(stmt.body, is_apart)

    def _mark(self, local: t.Local, differs: bool) -> None:
        if differs:
            self.locals.add(local.uid)


class _Copies:
    """Writes what differs once for each of `count` neighbours; the rest stays as it is."""

    def __init__(self, differing: _Differing, uid: int, count: int) -> None:
        self._differing = differing
        self._uid = uid
        self._count = count
        self._locals: dict[tuple[int, int], t.Local] = {}

    def local(self, local: t.Local, j: int) -> t.Local:
        """Return the local of neighbour `j`; the first one has those of the kernel."""
        if not j or local.uid not in self._differing.locals:
            return local
        key = local.uid, j
        if key not in self._locals:
            self._locals[key] = replace(local, uid=self._next())
        return self._locals[key]

    def _next(self) -> int:
        self._uid += 1
        return self._uid

    def value(self, expr: t.Expr, j: int) -> t.Expr:
        """Return an expression for neighbour `j`."""
        if not self._differing.has(expr):
            return expr
        if isinstance(expr, t.LocalRef):
            return replace(expr, local=self.local(expr.local, j))
        changed = _changed(expr, lambda child: self.value(child, j))
        if isinstance(changed, t.Element) and isinstance(changed.array, t.Local):
            return replace(changed, array=self.local(changed.array, j))
        return changed

    def _shared(self, expr: t.Expr, into: list[t.Stmt]) -> t.Expr:
        """Return an expression that differs; what all neighbours load of it is loaded before."""
        if self._differing.has(expr):
            return _changed(expr, lambda child: self._shared(child, into))
        if not _loads(expr):
            return expr
        local = t.Local("all", expr.type, self._next(), expr.time)
        into.append(t.Declare(local, expr))
        return t.LocalRef(expr.type, local, expr.time)

    def statement(self, stmt: t.Stmt) -> Iterator[t.Stmt]:
        """Yield a statement for all neighbours."""
        if isinstance(stmt, t.For) and stmt.index.uid not in self._differing.locals:
            yield replace(stmt, body=[s for inner in stmt.body for s in self.statement(inner)])
        elif isinstance(stmt, t.If) and not self._differing.has(stmt.condition):
            then, orelse = (
                [s for inner in part for s in self.statement(inner)]
                for part in (stmt.then, stmt.orelse)
            )
            yield replace(stmt, then=then, orelse=orelse)
        elif (local := _target(stmt)) is not None and local.uid not in self._differing.locals:
            yield stmt
        else:
            before: list[t.Stmt] = []
            if isinstance(stmt, t.Declare | t.Assign) and stmt.value is not None:
                stmt = replace(stmt, value=self._shared(stmt.value, before))
            yield from before
            for j in range(self._count):
                yield self._one(stmt, j)

    def _one(self, stmt: t.Stmt, j: int) -> t.Stmt:
        """Return a statement for neighbour `j` alone."""
        if isinstance(stmt, t.Declare):
            value = None if stmt.value is None else self.value(stmt.value, j)
            return replace(stmt, local=self.local(stmt.local, j), value=value)
        if isinstance(stmt, t.Assign) and isinstance(stmt.target, t.Local):
            index = None if stmt.index is None else self.value(stmt.index, j)
            target, value = self.local(stmt.target, j), self.value(stmt.value, j)
            return replace(stmt, target=target, index=index, value=value)
        if isinstance(stmt, t.If):
            then, orelse = ([self._one(s, j) for s in part] for part in (stmt.then, stmt.orelse))
            return t.If(self.value(stmt.condition, j), then, orelse)
        if isinstance(stmt, t.For):
            body = [self._one(s, j) for s in stmt.body]
            return replace(stmt, index=self.local(stmt.index, j), body=body)
        raise TypeError(type(stmt).__name__)


def _changed(expr: t.Expr, change: Callable[[t.Expr], t.Expr]) -> t.Expr:
    """Return an expression with those directly inside it changed."""
    if isinstance(expr, t.Op | t.Call):
        return replace(expr, args=tuple(map(change, expr.args)))
    if isinstance(expr, t.Swizzle):
        return replace(expr, base=change(expr.base))
    if isinstance(expr, t.Load):
        return replace(expr, position=change(expr.position))
    return replace(expr, index=change(expr.index)) if isinstance(expr, t.Element) else expr


def _loads(expr: t.Expr) -> bool:
    """Tell whether an expression may load from a tensor."""
    return isinstance(expr, t.Load | t.Call) or any(map(_loads, t.children(expr)))


def _target(stmt: t.Stmt) -> t.Local | None:
    if isinstance(stmt, t.Declare):
        return stmt.local
    target = stmt.target if isinstance(stmt, t.Assign) else None
    return target if isinstance(target, t.Local) else None
