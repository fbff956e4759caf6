"""Lower matrix products with numpy broadcasting of the batch."""

from __future__ import annotations

from math import prod

from gpuedge.core.kernel import Number
from gpuedge.opset.expr import Expr
from gpuedge.opset.tensor import Carry, Product, Tensor, broadcast
from gpuedge.plan.context import MAX_TRIPS, Context
from gpuedge.plan.emit import epilogue
from gpuedge.plan.layout import rows
from gpuedge.plan.lower import in_chunks, materialise

STEP = MAX_TRIPS // 64 * 64
"""Texels of a row summed by one pass: a multiple of every kernel's own step."""


def lower(ctx: Context, anchor: Tensor, tensor: Tensor, body: Expr | None) -> None:
    """Lower a product, and the map that follows it."""
    source = anchor.source
    if not isinstance(source, Product):
        raise TypeError(type(source).__name__)
    batch = anchor.shape[:-2]
    operands = (_operand(ctx, source.a, batch), _operand(ctx, source.b, batch))
    _ProductJob(ctx, anchor, operands, source.carry).run(tensor, body)


def _operand(ctx: Context, tensor: Tensor, batch: tuple[int, ...]) -> str:
    """Return an operand in rows layout with one matrix, or as many as the batch has."""
    own = tensor.shape[:-2]
    if prod(own) != 1 and (1,) * (len(batch) - len(own)) + own != batch:
        tensor = broadcast(tensor, (*batch, *tensor.shape[-2:]))
        materialise(ctx, tensor)
    return ctx.need(tensor, "rows")


class _ProductJob:
    """One product being lowered: operands in rows layout."""

    def __init__(
        self, ctx: Context, anchor: Tensor, operands: tuple[str, str], carry: Carry | None
    ) -> None:
        self.ctx = ctx
        self.carry = carry
        self.anchor = anchor
        self.operands = operands
        self.layout = rows(anchor.shape)
        self.depth = ctx.tensors[operands[0]].layout.extents[0]

    def run(self, tensor: Tensor, body: Expr | None) -> None:
        """Launch the passes and define `tensor`."""
        if self.carry is not None:
            self.ctx.define(tensor, self._carried(self.carry, body, self.ctx.value_of(tensor)))
            return
        partial: str | None = None
        for start in range(0, self.depth, STEP):
            count = min(STEP, self.depth - start)
            last = start + count == self.depth
            value = self.ctx.value_of(tensor) if last else ""
            partial = self._pass(start, count, body if last else None, partial, value)
        if partial is not None:
            self.ctx.define(tensor, partial)

    def _pass(
        self, start: int, count: int, body: Expr | None, partial: str | None, value: str
    ) -> str:
        """Launch one pass; its result is graph value `value`, or only a part of the sum."""
        return self._launch("matmul", {"K0": start, "KT": count}, body, partial, value)

    def _carried(self, carry: Carry, body: Expr | None, value: str) -> str:
        """Launch the pass that keeps sums in two digits."""
        return self._launch("matmul_int", in_chunks(self.ctx, carry, self.depth, 1), body, None,
                            value)  # fmt: skip

    def _launch(
        self, op: str, specs: dict[str, Number], body: Expr | None, partial: str | None, value: str
    ) -> str:
        ctx, (left, right) = self.ctx, self.operands
        out = ctx.add(self.layout, value)
        tensors = {"A": left, "B": right, "O": out}
        for name, tensor in (("A_ONE", left), ("B_ONE", right)):
            specs[name] = ctx.tensors[tensor].layout.extents[3] == 1
        bound = {"A": left, "B": right}
        made = epilogue(ctx, self.layout, self.anchor, body, partial=partial, bound=bound)
        if made is not None:
            tensors, specs = tensors | made.tensors, specs | made.specs
        shape = self.layout.shape
        facts = {"rows": shape[-2], "columns": shape[-1], "depth": self.depth * 4}
        ctx.launch(op, tensors, specs, epilogue=made.text if made else None, facts=facts)
        return out
