"""Bodies that differ in what they read only, such as those of steps: their kernel is written once.

Pure but for `written`, which asks a context for the operands.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from gpuedge.opset.expr import Apply, Expr, LoadExpr, Number, Position, Where, walk
from gpuedge.opset.index import Atom, Chosen, Index, Quotient, Remainder
from gpuedge.opset.tensor import Tensor
from gpuedge.plan.context import Context
from gpuedge.plan.emit import Epilogue, Writer
from gpuedge.plan.layout import Layout


def written(ctx: Context, out: Layout, body: Expr, packed: Collection[int]) -> Epilogue:
    """Return the text of a kernel that computes a body, and what it binds.

    Parameters
    ----------
    ctx : Context
        Gives the operands, and remembers texts.
    out : Layout
        The kernel's output.
    body : Expr
    packed : collection of int
        As for `Writer`.
    """
    form = Form(body)
    seen = [(t.shape, t.serial in packed) for t in form.operands]
    key = (form.key, out, *seen)
    known = ctx.written.get(key)
    writer = Writer(ctx, out, packed=packed)
    if known is not None:
        text, reads = known
        if all(writer.read(form.operands[i], kind) == name for i, kind, name in reads):
            return Epilogue(text.text, writer.tensors, text.specs, text.is_half)
        writer = Writer(ctx, out, packed=packed)  # two operands are one here, or are not
    text = writer.epilogue(writer.texel(body))
    numbers = {t.serial: i for i, t in enumerate(form.operands)}
    ctx.written[key] = text, [(numbers[t.serial], kind, name) for t, kind, name in writer.reads]
    return text


class Form:
    """What a body has in common with others that read other tensors.

    Attributes
    ----------
    operands : list of Tensor
        In the order in which they are read first.
    key : hashable
        Equal for bodies that are equal with their operands numbered in that order.
    """

    def __init__(self, body: Expr) -> None:
        self.operands: list[Tensor] = []
        self._tensors: dict[int, int] = {}
        self._exprs: dict[int, int] = {}
        self._indices: dict[int, Hashable] = {}
        self._loaded: dict[int, int] = {}
        parts: list[Hashable] = []
        for expr in walk(body):
            parts.append(self._of(expr))
            self._exprs[id(expr)] = len(self._exprs)
        # terms are ordered by the serials of what is loaded
        ranked = [
            self._exprs[number] for number in sorted(self._loaded, key=self._loaded.__getitem__)
        ]
        self.key: Hashable = (*parts, *ranked)

    def _of(self, expr: Expr) -> Hashable:
        if isinstance(expr, Number):
            return expr.value.hex()
        if isinstance(expr, LoadExpr):
            number = self._tensors.setdefault(expr.tensor.serial, len(self.operands))
            if number == len(self.operands):
                self.operands.append(expr.tensor)
            return number, self._index(expr.at)
        if isinstance(expr, Apply):
            return (expr.function, *(self._exprs[id(a)] for a in expr.args))
        if isinstance(expr, Where):
            tests = tuple([self._index(t) for t in expr.test])
            return tests, self._exprs[id(expr.yes)], self._exprs[id(expr.no)]
        if isinstance(expr, Position):
            return (self._index(expr.index),)
        raise TypeError(type(expr).__name__)

    def _index(self, index: Index) -> Hashable:
        if not index.loaded:
            return index, index.axes
        if id(index) not in self._indices:
            terms = tuple([(self._atom(atom), factor) for atom, factor in index.terms])
            self._indices[id(index)] = index.constant, terms
        return self._indices[id(index)]

    def _atom(self, atom: Atom) -> Hashable:
        if not atom.loaded:
            return atom, atom.axes
        if isinstance(atom, (Quotient, Remainder)):
            return type(atom), self._index(atom.of), atom.by
        if isinstance(atom, Chosen):
            return tuple([self._index(i) for i in (*atom.test, atom.yes, atom.no)])
        (value,) = atom.loaded
        self._loaded[id(value)] = value.serial
        return self._exprs[id(value)], atom.range
