"""Rewrites of what is to be computed, before kernels are made of it. Pure, and with the same bits.

* A map that follows a join (Concat) of tensors that nothing else reads is done to each of them, so
  that it can end the kernel that computes it, and their results only lie beside each other.
* Of equal maps that kernels read from memory there is one.
* Tables larger than a binding are divided (`gpuedge.plan.tables`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from gpuedge.opset.expr import Apply, Expr, LoadExpr, Number, Where, loads, rewrite, walk
from gpuedge.opset.index import everything
from gpuedge.opset.tensor import (
    Constant,
    Convolution,
    Map,
    Pooling,
    Product,
    Reduce,
    Source,
    Tensor,
    reachable,
)
from gpuedge.plan.fuse import ANCHORS, alias_of, is_identity, is_view
from gpuedge.plan.places import sections
from gpuedge.plan.tables import Tables, like

FROM_MEMORY = (Convolution, Product, Pooling)
"""What reads its operands from memory, whatever they are."""

Moved = dict[int, Tensor]
"""What is computed instead of tensors, by their serials."""

Rule = Callable[[Tensor, Tensor], Tensor]
"""Takes a tensor, and what it has become by what it reads; returns what it becomes."""


def rewritten(
    roots: Sequence[Tensor], tables: Tables | None = None, *, joins: bool = True
) -> Moved:
    """Return what to compute instead of `roots` and of each tensor that they depend on.

    `tables` are divided where they must be. Without `joins` every map stays by itself.
    """
    rules: list[Callable[[Sequence[Tensor]], Rule]] = []
    if tables is not None and any(map(tables.are_in, reachable(roots))):
        rules.append(lambda _: lambda _, new: tables.divided(new))
    if joins:
        rules += [lambda held: _Merge(held).one, lambda held: _Spread(held).one]
    moved: Moved = {}
    for rule in rules:
        now = _rebuilt(roots, rule(roots))
        moved = {serial: now.get(t.serial, t) for serial, t in moved.items()} if moved else now
        roots = [now[t.serial] for t in roots]
    return moved


def _rebuilt(roots: Sequence[Tensor], rule: Rule) -> Moved:
    """Apply a rule to each tensor, and to what it has become by what it reads, operands first."""
    moved: Moved = {}
    for tensor in reachable(roots):
        moved[tensor.serial] = rule(tensor, _with_operands(tensor, moved))
    return moved


def _with_operands(tensor: Tensor, moved: Moved) -> Tensor:
    """Return a tensor that reads what its operands have become."""
    if all(moved[t.serial] is t for t in tensor.reads):
        return tensor
    source = tensor.source
    new: Source = source
    if isinstance(source, (Map, Reduce)):
        new = replace(source, body=_reading(source.body, moved))
    elif isinstance(source, Product):
        new = replace(source, a=moved[source.a.serial], b=moved[source.b.serial])
    elif isinstance(source, Pooling):
        new = replace(source, x=moved[source.x.serial])
    elif isinstance(source, Convolution):
        bias = None if source.bias is None else moved[source.bias.serial]
        x, w = moved[source.x.serial], moved[source.w.serial]
        new = replace(source, x=x, w=w, bias=bias)
    return like(tensor, new)


def _reading(body: Expr, moved: Moved) -> Expr:
    return rewrite(body, {}, lambda load: LoadExpr(moved[load.tensor.serial], load.at))


class _Merge:
    """Takes the first of equal maps that kernels read from memory."""

    def __init__(self, roots: Sequence[Tensor]) -> None:
        readers = [t for t in reachable(roots) if isinstance(t.source, FROM_MEMORY)]
        self.kept = {operand.serial for t in readers for operand in t.reads}
        self.numbers: dict[Hashable, int] = {}
        self.numbered: dict[int, int] = {}
        self.first: dict[Hashable, Tensor] = {}

    def one(self, old: Tensor, new: Tensor) -> Tensor:
        """Return the first tensor that is equal to `new`, which may be `new`."""
        source = new.source
        if isinstance(source, Constant) and new.size == 1:
            key: Hashable = ("constant", source.array.tobytes())
        elif isinstance(source, Map):
            key = self._number(source.body)
        else:
            return new
        key = (new.shape, new.dtype, key)
        self.numbered[new.serial] = self.numbers.setdefault(key, len(self.numbers))
        if isinstance(source, Constant) or old.serial not in self.kept:
            return new
        return self.first.setdefault(key, new)

    def _number(self, body: Expr) -> int:
        """Return a number that equal expressions have in common."""
        numbers: dict[int, int] = {}
        for expr in walk(body):
            key: Hashable = id(expr)
            if isinstance(expr, Number):
                key = ("number", expr.value.hex())
            elif isinstance(expr, LoadExpr):
                known = self.numbered.get(expr.tensor.serial, -1 - expr.tensor.serial)
                key = ("load", known, expr.at)
            elif isinstance(expr, Apply):
                key = (expr.function, *(numbers[id(a)] for a in expr.args))
            elif isinstance(expr, Where):
                key = ("where", expr.test, numbers[id(expr.yes)], numbers[id(expr.no)])
            numbers[id(expr)] = self.numbers.setdefault(key, len(self.numbers))
        return numbers[id(body)]


class _Spread:
    """Does a map that follows a join to each tensor that is joined."""

    def __init__(self, roots: Sequence[Tensor]) -> None:
        self.roots = {t.serial for t in roots}
        self.users = Counter(operand.serial for t in reachable(roots) for operand in t.reads)

    def one(self, old: Tensor, new: Tensor) -> Tensor:
        """Return the join of what a map makes of the joined, if `new` is such a map."""
        whole = self._joined(new)
        if whole is not None and isinstance(new.source, Map) and isinstance(whole.source, Map):
            mapped = {t.serial: _done_to(t, new.source.body, new) for t in whole.reads}
            self.users.update({part.serial: 1 for part in mapped.values()})
            new = like(new, Map(_reading(whole.source.body, mapped)))
        if new is not old:
            self.users[new.serial] = self.users[old.serial]
            self.roots |= {new.serial} if old.serial in self.roots else set()
        return new

    def _joined(self, new: Tensor) -> Tensor | None:
        """Return the join that a map reads each element of at its place, and nothing else does."""
        body = new.source.body if isinstance(new.source, Map) else Number(0.0)
        wide = [load for load in loads(body) if load.tensor.size > 1]
        is_plain = all(isinstance(load, (Apply, Number, LoadExpr)) for load in walk(body))
        if is_view(body) or not is_plain or len({load.tensor.serial for load in wide}) != 1:
            return None
        whole = wide[0].tensor
        if whole.shape != new.shape or not all(is_identity(load, new.shape) for load in wide):
            return None
        while self._is_alone(whole) and (other := alias_of(whole)) is not None:
            if other.shape != whole.shape:
                return None
            whole = other
        return whole if self._is_alone(whole) and self._is_join(whole) else None

    def _is_join(self, whole: Tensor) -> bool:
        """Tell whether a tensor joins, by channels, results that kernels end with."""
        if whole.rank not in (3, 4) or not isinstance(whole.source, Map):
            return False
        parts = sections(whole.source.body, whole.shape)
        return len(parts) > 1 and all(
            isinstance(load, LoadExpr)
            and load.tensor.shape == (whole.shape[0], len(part), *whole.shape[2:])
            and is_identity(load, load.tensor.shape)
            and self._ends(load.tensor)
            for part, load in parts
        )

    def _ends(self, tensor: Tensor) -> bool:
        """Tell whether only one reader has what a kernel with an epilogue gives."""
        if not self._is_alone(tensor) or isinstance(tensor.source, ANCHORS):
            return self._is_alone(tensor)
        is_map = isinstance(tensor.source, Map)
        return is_map and any(t.shape == tensor.shape and self._ends(t) for t in tensor.reads)

    def _is_alone(self, tensor: Tensor) -> bool:
        return self.users[tensor.serial] == 1 and tensor.serial not in self.roots


def _done_to(part: Tensor, body: Expr, whole: Tensor) -> Tensor:
    """Return what the body of `whole`, which reads one large tensor, makes of a part of that."""
    place = everything(part.shape)

    def read(load: LoadExpr) -> LoadExpr:
        return LoadExpr(part, place) if load.tensor.size > 1 else load

    mapped = Tensor(part.shape, whole.dtype, Map(rewrite(body, {}, read)), whole.label)
    mapped.span = whole.span
    return mapped
