"""Which tensors become kernels: chains of maps join, views vanish, epilogues attach. Pure.

A `Stage` is one tensor that will be in memory. Its body reads other stages, constants and inputs;
whatever was computed on the way is inlined in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from gpuedge.opset.expr import Apply, Expr, LoadExpr, Number, Position, loads, rewrite, walk
from gpuedge.opset.index import Axis, Index, axes, everything, unflatten
from gpuedge.opset.tensor import (
    Constant,
    Convolution,
    Given,
    Map,
    Product,
    Reduce,
    Tensor,
    reachable,
)

MOST_LITERAL = 2.0**15
"""Literals stay between this and its reciprocal. Compilers combine them (lavapipe makes one factor
of two), and those of a whole chain (`CHAIN_LIMIT`) must give neither infinity nor zero together."""

ANCHORS = (Convolution, Product, Reduce)
"""What has a kernel that an epilogue can follow."""

CHAIN_LIMIT = 8
"""Most computing maps in one kernel; longer texts compile slowly on drivers."""


@dataclass(frozen=True)
class Limits:
    """What one kernel may read: tensors of a map, and of an epilogue besides the anchor's own."""

    operands: int
    extras: int


@dataclass(frozen=True)
class Stage:
    """A tensor to compute by one kernel, or a few.

    Attributes
    ----------
    tensor : Tensor
        What will be in memory.
    anchor : Tensor or None
        A reduction, product, convolution or pooling that the stage begins with.
    body : Expr or None
        What is done to it, over the axes of `tensor`; None where nothing is.
    covered : tuple of Tensor
        Everything that the stage computes.
    """

    tensor: Tensor
    anchor: Tensor | None
    body: Expr | None
    covered: tuple[Tensor, ...]


def as_number(tensor: Tensor) -> float | None:
    """Return the value of a constant scalar that kernels take as text, else None.

    Zeros and what is large, tiny or not finite stay tensors: drivers fold ``x * 0`` and ``x / 0``
    with literals in ways that IEEE 754 does not (seen with lavapipe).
    """
    array = tensor.array
    if array is None or array.size != 1 or array.dtype.kind not in "fiu":
        return None
    number = float(array.reshape(()))
    return number if 1 / MOST_LITERAL <= abs(number) <= MOST_LITERAL else None


def is_identity(load: LoadExpr, shape: tuple[int, ...]) -> bool:
    """Tell whether a load reads each element at its own place in an array of `shape`."""
    return load.tensor.size == prod(shape) and load.at == everything(shape)


def is_view(body: Expr) -> bool:
    """Tell whether a body only moves elements."""
    return not any(isinstance(e, (Apply, Position)) for e in walk(body))


def alias_of(tensor: Tensor) -> Tensor | None:
    """Return the tensor whose elements these are, in the same order; None if there is none."""
    if isinstance(tensor.source, Map):
        body = tensor.source.body
        if isinstance(body, LoadExpr) and is_identity(body, tensor.shape):
            return body.tensor
    return None


@dataclass(frozen=True)
class Fusion:
    """Stages, operands first, and the body of every map and reduction with all inlined."""

    stages: tuple[Stage, ...]
    bodies: dict[int, Expr]


def fuse(outputs: Sequence[Tensor], limits: Limits) -> Fusion:
    """Return what to compute for some outputs that are not empty."""
    work = _Fuser(outputs, limits)
    return Fusion(tuple(work.stages()), work.bodies)


class _Fuser:
    """Decides for every map whether it is inlined into what reads it."""

    def __init__(self, outputs: Sequence[Tensor], limits: Limits) -> None:
        self.limits = limits
        self.results = {t.serial for t in outputs}
        self.order = [t for t in reachable(outputs) if not isinstance(t.source, (Given, Constant))]
        self.kept = set(self.results)
        self.bodies: dict[int, Expr] = {}
        self.covered: dict[int, tuple[Tensor, ...]] = {}
        self.lengths: dict[int, int] = {}
        self.users: dict[int, int] = {}
        for tensor in self.order:
            for operand in tensor.reads:
                self.users[operand.serial] = self.users.get(operand.serial, 0) + 1

    def stages(self) -> list[Stage]:
        """Return the stages, operands first."""
        for tensor in self.order:
            self._compose(tensor)
        stage_tensors = [t for t in self.order if self._is_stage(t)]
        anchors = self._attached(stage_tensors)
        begun = {a.serial for a in anchors.values()}
        return [
            self._stage(t, anchors.get(t.serial)) for t in stage_tensors if t.serial not in begun
        ]

    def _is_stage(self, tensor: Tensor) -> bool:
        return tensor.serial in self.kept or not isinstance(tensor.source, Map)

    def _compose(self, tensor: Tensor) -> None:
        """Write the body of a tensor with everything inlined that may be."""
        source, number = tensor.source, tensor.serial
        self.covered[number], self.lengths[number] = (tensor,), 0
        if not isinstance(source, (Map, Reduce)):
            for operand in tensor.reads:
                if not (isinstance(source, Product) and operand.packed):  # its kernel unpacks
                    self._keep(operand)
            return
        other = self._other(tensor)
        if other is not None:
            self.bodies[number] = source.body
            if number in self.kept:
                self._keep(other)
            return
        own = 0 if is_view(source.body) else 1
        refused: set[int] = set()
        while True:
            body, inlined = self._inlined(tensor, source.body, refused)
            length = own + sum(self.lengths[u.serial] for u in inlined)
            if _count(body) <= self.limits.operands and length <= CHAIN_LIMIT:
                break
            if not inlined:
                break
            # what reads most, and of these what was computed last
            worst = max(inlined, key=lambda u: (_count(self.bodies[u.serial]), u.serial))
            refused.add(worst.serial)
        for operand in {load.tensor.serial: load.tensor for load in loads(body)}.values():
            self._keep(operand)
        self.bodies[number], self.lengths[number] = body, length
        parts = [t for u in inlined for t in self.covered[u.serial]]
        self.covered[number] = (*dict.fromkeys(parts), tensor)

    def _inlined(self, tensor: Tensor, body: Expr, refused: set[int]) -> tuple[Expr, list[Tensor]]:
        """Return a body with everything inlined that may be, and what that was."""
        inlined: list[Tensor] = []
        while True:
            read = {load.tensor.serial: load.tensor for load in loads(body)}
            chosen = [u for n, u in read.items() if n not in refused and self._may(u, tensor, body)]
            body = self._put(body, {u.serial for u in chosen})
            if not chosen:
                return body, inlined
            inlined += chosen

    def _other(self, tensor: Tensor) -> Tensor | None:
        """Return what a tensor is an alias of; None where that only moves elements for it.

        Elements are moved once then, to where the alias wants them.
        """
        other = alias_of(tensor)
        if other is None or other.serial in self.kept or not isinstance(other.source, Map):
            return other
        is_moved = is_view(other.source.body) and alias_of(other) is None
        return None if is_moved and self.users[other.serial] == 1 else other

    def _keep(self, tensor: Tensor) -> None:
        """Note that a tensor has to be in memory."""
        if isinstance(tensor.source, (Given, Constant)) or tensor.serial in self.kept:
            return
        self.kept.add(tensor.serial)
        other = self._other(tensor)
        if other is not None:
            self._keep(other)

    def _may(self, part: Tensor, whole: Tensor, body: Expr) -> bool:
        """Tell whether `part` need not be in memory for `whole`."""
        if not isinstance(part.source, Map) or part.serial in self.kept or not part.size:
            return False
        is_shared = self.users[part.serial] > 1
        other = self._other(part)
        if other is not None:
            if is_shared:
                self._keep(other)
            return True
        if is_view(part.source.body):
            if is_shared and alias_of(part) is not None:
                self._keep(part)
                return False
            return True
        inner_loads = loads(self.bodies[part.serial])
        # what is made of constants may not fit into memory everywhere (infinity, on ES 2.0)
        is_known = all(isinstance(o.tensor.source, Constant) for o in inner_loads)
        if part.is_unpacked or (is_known and part.size == 1):
            return True
        positions = {load.at for load in loads(body) if load.tensor is part}
        domain = whole.size
        if isinstance(whole.source, Reduce):
            domain *= prod(whole.source.over)
        # nothing may be computed twice
        return self.users[part.serial] == 1 and len(positions) == 1 and domain <= part.size

    def _put(self, body: Expr, chosen: set[int]) -> Expr:
        """Return `body` with chosen tensors replaced by what they are."""
        done: dict[tuple[int, Index], Expr] = {}

        def load(expr: LoadExpr) -> Expr:
            number = as_number(expr.tensor)
            if number is not None:
                return Number(number)
            if expr.tensor.serial not in chosen:
                return expr
            key = (expr.tensor.serial, expr.at)
            if key not in done:
                done[key] = self._moved(expr)
            return done[key]

        return rewrite(body, {}, load)

    def _moved(self, load: LoadExpr) -> Expr:
        """Return what an inlined tensor is at the position of a load."""
        body, shape = self.bodies[load.tensor.serial], load.tensor.shape
        position = unflatten(load.at, shape)
        return body if position == axes(shape) else rewrite(body, dict(enumerate(position)))

    def _attached(self, stage_tensors: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return the anchor that each map can be the epilogue of, by the map's number."""
        readers: dict[int, list[Tensor]] = {}
        for tensor in stage_tensors:
            for part in self._read(tensor):
                readers.setdefault(part.serial, []).append(tensor)
        anchors: dict[int, Tensor] = {}
        for tensor in stage_tensors:
            body = self.bodies.get(tensor.serial)
            if not isinstance(tensor.source, Map) or body is None or is_view(body):
                continue
            for anchor in self._read(tensor):
                is_anchor = isinstance(anchor.source, ANCHORS)
                alone = readers[anchor.serial] == [tensor] and anchor.serial not in self.results
                if is_anchor and alone and self._fits(anchor, tensor, body):
                    anchors[tensor.serial] = anchor
                    break
        return anchors

    def _read(self, tensor: Tensor) -> list[Tensor]:
        body = self.bodies.get(tensor.serial)
        if body is None:
            return list(tensor.reads)
        return list(dict.fromkeys(load.tensor for load in loads(body)))

    def _fits(self, anchor: Tensor, tensor: Tensor, body: Expr) -> bool:
        """Tell whether `body` can follow the anchor's own kernel, texel by texel."""
        body_loads = loads(body)
        mine = [load for load in body_loads if load.tensor is anchor]
        read = self._bound(anchor)
        others = {load.tensor.serial for load in body_loads if load.tensor is not anchor}
        if not all(is_identity(load, tensor.shape) for load in mine) or _is_nested(anchor, body):
            return False
        if isinstance(anchor.source, Reduce):
            inner = self.bodies[anchor.serial]
            both = others | {load.tensor.serial for load in loads(inner)}
            return len(both) <= self.limits.operands
        others -= {t.serial for t in read if t.shape == tensor.shape}
        if anchor.shape != tensor.shape or len(others) > self.limits.extras:
            return False
        return follows(body, tensor.shape, packed_axis(anchor))

    def _bound(self, anchor: Tensor) -> tuple[Tensor, ...]:
        """Return what an anchor's kernel binds in the layout that its epilogue reads."""
        source = anchor.source
        if isinstance(source, Convolution):
            return (source.x,)
        if not isinstance(source, Product):
            return ()
        return (source.a,) if source.b.packed else (source.a, source.b)

    def _stage(self, tensor: Tensor, anchor: Tensor | None) -> Stage:
        covered = self.covered[tensor.serial]
        if anchor is not None:
            covered = (*self.covered[anchor.serial], *covered)
            return Stage(tensor, anchor, self.bodies[tensor.serial], covered)
        if isinstance(tensor.source, Map):
            return Stage(tensor, None, self.bodies[tensor.serial], covered)
        return Stage(tensor, tensor, None, covered)


def _count(body: Expr) -> int:
    return len({load.tensor.serial for load in loads(body)})


def _is_nested(anchor: Tensor, body: Expr) -> bool:
    """Tell whether what an anchor gives decides a place or a branch: no texel at once does that."""
    for expr in walk(body):
        is_texel = isinstance(expr, (Apply, Number))
        is_own = isinstance(expr, LoadExpr) and expr.tensor is anchor
        if not (is_texel or is_own) and any(load.tensor is anchor for load in loads(expr)):
            return True
    return False


def packed_axis(anchor: Tensor) -> int:
    """Return the axis whose neighbours share a texel in an anchor's own layout."""
    return anchor.rank - 1 if isinstance(anchor.source, Product) else 1


def follows(body: Expr, shape: tuple[int, ...], axis: int) -> bool:
    """Tell whether a body can be computed in a packed layout: a texel holds four along `axis`.

    Every load must be of the element's own place, of a scalar, or of one value for each position
    along the axis.
    """
    for expr in walk(body):
        if not isinstance(expr, (Apply, Number, LoadExpr)):
            return False
        if isinstance(expr, LoadExpr) and per_channel(expr, shape, axis) is None:
            return False
    return True


def per_channel(load: LoadExpr, shape: tuple[int, ...], axis: int) -> str | None:
    """Return how a packed layout can serve a load: ``own``, ``channel``, ``scalar`` or not."""
    if is_identity(load, shape) and load.tensor.shape == shape:
        return "own"
    if load.at.value == 0 and load.tensor.size == 1:
        return "scalar"
    if load.tensor.size == shape[axis] and load.at == Index(0, {Axis(axis, shape[axis]): 1}):
        return "channel"
    return None
