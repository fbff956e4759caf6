"""Lower matrix products with numpy broadcasting of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gpuedge.core.kernel import Number
from gpuedge.graph.ir import Node
from gpuedge.graph.params import MatMulParams
from gpuedge.kernels.context import MAX_TRIPS, Context
from gpuedge.kernels.elementwise import broadcast_strides, compose, lower_strided
from gpuedge.kernels.layout import Layout, rows

STEP = MAX_TRIPS // 64 * 64
"""Texels of a row summed by one pass: a multiple of every kernel's own step."""


def lower(ctx: Context, node: Node, params: MatMulParams, tail: Sequence[Node]) -> None:
    """Lower a MatMul node followed by the elementwise nodes `tail`."""
    a, b = node.inputs
    shape_a, shape_b = ctx.graph.shape(a), ctx.graph.shape(b)
    full_a = (*shape_a[:-2], params.m, params.k)
    full_b = (*shape_b[:-2], params.k, params.n) if len(shape_b) > 1 else (params.k, params.n)
    if len(shape_a) == 1:
        full_a = (1, params.k)
    left = _operand(ctx, a, full_a, params.batch)
    right = _operand(ctx, b, full_b, params.batch)
    layout = rows((*params.batch, params.m, params.n))
    _Job(ctx, node, (left, right), layout).run(tail)


def _operand(ctx: Context, value: str, shape: tuple[int, ...], batch: tuple[int, ...]) -> str:
    """Return an operand in rows layout with one matrix, or as many as the batch has."""
    own = shape[:-2]
    if prod(own) == 1 or (1,) * (len(batch) - len(own)) + own == batch:
        return ctx.need(value, "rows", shape)
    wide = (*batch, *shape[-2:])
    name = ctx.fresh(f"{value}.wide")
    lower_strided(ctx, name, value, wide, broadcast_strides(shape, wide))
    return ctx.need(name, "rows", wide)


class _Job:
    """One product being lowered: operands in rows layout, nodes that follow it."""

    def __init__(self, ctx: Context, node: Node, operands: tuple[str, str], layout: Layout) -> None:
        self.ctx = ctx
        self.node = node
        self.operands = operands
        self.layout = layout
        self.depth = ctx.tensors[operands[0]].layout.extents[0]

    def run(self, tail: Sequence[Node]) -> None:
        """Launch the passes and define the value of the last node."""
        partial: str | None = None
        for start in range(0, self.depth, STEP):
            count = min(STEP, self.depth - start)
            last = start + count == self.depth
            value = (tail[-1] if tail else self.node).outputs[0] if last else ""
            partial = self._pass(start, count, tail if last else (), partial, value)
        if partial is not None:
            self.ctx.define((tail[-1] if tail else self.node).outputs[0], partial)

    def _pass(
        self, start: int, count: int, tail: Sequence[Node], partial: str | None, value: str
    ) -> str:
        """Launch one pass; its result is graph value `value`, or only a part of the sum."""
        ctx, (left, right) = self.ctx, self.operands
        out = ctx.add(self.layout, value)
        tensors = {"A": left, "B": right, "O": out}
        specs: dict[str, Number] = {"K0": start, "KT": count}
        for name, tensor in (("A_ONE", left), ("B_ONE", right)):
            specs[name] = ctx.tensors[tensor].layout.extents[3] == 1
        epilogue = None
        if tail or partial is not None:
            bound = {"A": left, "B": right}
            made = compose(ctx, tail, self.layout, self.node.outputs[0], partial, bound=bound)
            tensors |= made.tensors
            specs |= made.specs
            epilogue = made.text
        shape = self.layout.shape
        facts = {"rows": shape[-2], "columns": shape[-1], "depth": self.depth * 4}
        ctx.launch("matmul", tensors, specs, epilogue=epilogue, facts=facts)
        return out
