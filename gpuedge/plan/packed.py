"""Lower products by weights of few bits, which their kernels unpack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuedge.core.kernel import Number
from gpuedge.graph.ir import Array
from gpuedge.opset.evaluate import evaluate
from gpuedge.opset.expr import Expr
from gpuedge.opset.packed import PackedWeights
from gpuedge.opset.tensor import Product, Tensor, constant
from gpuedge.plan.context import MAX_TRIPS, Context
from gpuedge.plan.emit import Epilogue, epilogue
from gpuedge.plan.layout import rows, to_texels
from gpuedge.plan.lower import materialise
from gpuedge.plan.plan import HostTensor, Texels


@dataclass(frozen=True)
class Weights:
    """Weights on a device: their codes, scales with zero points, and specs of the kernel."""

    codes: str
    scales: str
    bits: int
    specs: Mapping[str, Number]


def filled_by(columns: int) -> dict[str, int]:
    """Return how many percent columns are of the next multiple of 32 and of 128."""
    return {f"filled_{n}s": 100 * columns // (-(-columns // n) * n) for n in (32, 128)}


def facts(rows: int, columns: int) -> dict[str, int]:
    """Return what ``when`` in ``variants.toml`` may ask of a product."""
    return {"rows": rows, "columns": columns, **filled_by(columns)}


def lower(ctx: Context, anchor: Tensor, left: str, tensor: Tensor, body: Expr | None) -> bool:
    """Lower a product by packed weights, and the map that follows it.

    `left` is the other operand, in rows layout. Returns False where the usual kernels are to serve:
    the weights are there as floats then.
    """
    source = anchor.source
    if not isinstance(source, Product) or source.b.packed is None or ctx.have.get(source.b.serial):
        return False
    packed, deep = source.b.packed, ctx.tensors[left].layout.extents[0]
    weights = _weights(ctx, packed, deep) if source.carry is None else None
    if weights is not None:
        follows = epilogue(ctx, rows(anchor.shape), anchor, body, partial=None,
                           bound={"A": left, "B": weights.codes, "S": weights.scales})  # fmt: skip
        out = ctx.add(rows(anchor.shape), ctx.value_of(tensor))
        _launch(ctx, out, left, weights, follows)
        ctx.define(tensor, out)
    elif ctx.storages.keeps(packed.codes):
        materialise(ctx, source.b)
    else:
        ctx.settle(source.b, evaluate([source.b], {})[0])
    return weights is not None


def _weights(ctx: Context, packed: PackedWeights, deep: int) -> Weights | None:
    """Put weights where the kernel wants them; None where it cannot take them.

    `deep` is the number of texels of a row of the left operand.
    """
    found = packed.by_rows()
    if found is None or not ctx.storages.keeps(packed.codes):
        return None
    scale, zero, own = found
    block = deep if len(scale) == 1 else own // 4
    blocks = len(scale)
    if (blocks > 1 and own % 4) or block * blocks > MAX_TRIPS:
        return None
    codes = _codes(ctx, packed, 4 * block * blocks, scale.shape[1])
    by_block = zero.size > 1
    both = np.stack((scale, zero), 1).reshape(-1, scale.shape[1]) if by_block else scale
    held = constant(np.ascontiguousarray(both, np.float32))
    layout, name = rows(both.shape), ctx.value_of(held)

    def build(array: Texels) -> Texels:
        return to_texels(array, layout)

    scales = ctx.add(layout, name, HostTensor((name,), build), ctx.storages.exact)
    specs: dict[str, Number] = {
        "BLOCK": block, "BLOCKS": blocks, "REST": deep % block > 0, "ZEROS": by_block,
        "ZERO": 0.0 if by_block else float(zero.reshape(())),
    }  # fmt: skip
    return Weights(codes, scales, packed.bits, specs)


def _codes(ctx: Context, packed: PackedWeights, height: int, width: int) -> str:
    """Add the codes of a matrix, padded to `height` rows; of 4 bits two of them are one."""
    pairs = 2 if packed.bits == 4 else 1
    name = ctx.value_of(packed.codes)

    def build(codes: Array) -> Array:
        padded = np.zeros((height, -(-width // 4) * 4), codes.dtype)
        matrix = packed.matrix(codes)
        padded[: matrix.shape[0], :width] = matrix
        return (padded[::2] | padded[1::2] << 4 if pairs == 2 else padded).reshape(-1)

    layout = rows((height // pairs, width))
    return ctx.add(layout, name, HostTensor((name,), build), ctx.storages.of_input(name))


def _launch(ctx: Context, out: str, left: str, weights: Weights, follows: Epilogue | None) -> None:
    """Append the pass."""
    tensors = {"A": left, "B": weights.codes, "S": weights.scales, "O": out}
    specs = {**weights.specs, "A_ONE": ctx.tensors[left].layout.extents[3] == 1}
    text, is_half = None, False
    if follows is not None:
        tensors, specs = tensors | follows.tensors, specs | follows.specs
        text, is_half = follows.text, follows.is_half
    *_, height, width = ctx.tensors[out].layout.shape
    known = facts(height, width)
    op = f"matmul_packed{weights.bits}"
    ctx.launch(op, tensors, specs, epilogue=text, facts=known, is_half=is_half)
