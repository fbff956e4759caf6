"""Operators of ONNX Runtime's own that read weights of 4 or 8 bits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from gpuedge.core.dtypes import NIBBLES
from gpuedge.opset import gather, quantized
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.expr import Expr
from gpuedge.opset.index import Index, axes
from gpuedge.opset.limits import by_axis
from gpuedge.opset.matmul import multiplied
from gpuedge.opset.operator import Operator
from gpuedge.opset.packed import PackedWeights, nibble
from gpuedge.opset.tensor import Array, Map, Tensor, at, constant, mapped, transpose

MICROSOFT = "com.microsoft"
BLOCKS = (16, 32, 64, 128, 256)
"""Weights of a row that share a scale."""


def _known(call: OperatorCall, index: int, what: str) -> Array:
    array = call.constant(index, what)
    if array is None:
        raise call.unsupported(f"lacks its {what}")
    return array


def _zeros(call: OperatorCall, index: int, bits: int, shape: tuple[int, int]) -> Array:
    """Return zero points as float32: one for each block, or for all.

    Given as floats, or as codes of `bits` that are packed row by row.
    """
    given = call.constant(index, "zero points")
    rows, count = shape
    if given is None:
        return np.full((1, 1), 1 << (bits - 1), np.float32)
    if given.dtype.kind == "f" and given.size == rows * count:
        return given.reshape(shape).astype(np.float32)
    packed = -(-count * bits // 8)
    if given.dtype != np.uint8 or given.size != rows * packed:
        raise call.unsupported(f"has zero points {list(given.shape)} of {given.dtype}")
    codes = given.reshape(rows, packed)
    if bits == 4:
        codes = np.stack((codes & 15, codes >> 4), -1).reshape(rows, -1)
    return codes[:, :count].astype(np.float32)


def _rows(
    call: OperatorCall, codes: Array, shape: tuple[int, int], scales: int, zeros: int
) -> Tensor:
    """Return rows of weights as floats; each row has blocks of its own.

    Parameters
    ----------
    call : OperatorCall
    codes : ndarray of uint8
        Rows of codes, perhaps padded; of 4 bits two to a byte.
    shape : (int, int)
        Rows and columns of the weights.
    scales, zeros : int
        Places of these inputs.
    """
    bits, block = call.integer("bits", 4), call.integer("block_size", 128)
    if bits not in (4, 8):
        raise call.unsupported(f"has weights of {bits} bits; only 4 and 8 are known")
    if block not in BLOCKS:
        raise call.unsupported(f"has blocks of {block}; known are {', '.join(map(str, BLOCKS))}")
    rows, columns = shape
    count = -(-columns // block)
    scale = _known(call, scales, "scales")
    if scale.size != rows * count or codes.size < rows * -(-columns * bits // 8):
        raise call.bad_shape(f"has weights or scales that do not fit {rows} rows of {columns}")
    held = constant(codes.reshape(rows, -1))
    factor = constant(scale.reshape(rows, count))
    centre = constant(_zeros(call, zeros, bits, (rows, count)))

    def body(position: tuple[Index, ...]) -> Expr:
        value = nibble(held, position) if bits == 4 else at(held, position) + 0.0
        place = (position[0], position[1] // block)
        zero = at(centre, place if centre.size > 1 else (Index(), Index()))
        return (value - zero) * at(factor, place)

    result = Tensor(shape, scale.dtype.name, Map(body(axes(shape))))
    result.is_unpacked = True
    result.packed = PackedWeights(
        held, bits, shape, scale.reshape(rows, count).astype(np.float32),
        np.asarray(centre.array), (1, block),
    )  # fmt: skip
    return result


def _matmul(call: OperatorCall) -> Tensor:
    a, codes = call.input(0), _known(call, 1, "weights")
    if call.has(4):
        raise call.unsupported("has a g_idx, which gives rows to groups in any order")
    depth, columns = call.integer("K", 0), call.integer("N", 0)
    if not a.rank or a.shape[-1] != depth or codes.dtype != np.uint8:
        raise call.bad_shape(f"multiplies rows of {a.shape[-1:]} by {depth} rows of weights")
    weights = _rows(call, codes, (columns, depth), 2, 3)
    total = multiplied(a, transpose(weights, (1, 0)))
    bias = call.optional(5)
    return total if bias is None else mapped(lambda p, q: p + q, total, bias)


def _is_refused(call: OperatorCall) -> bool:
    """Tell of floats as zero points of 8 bits, which ONNX Runtime's CPU kernel refuses."""
    zero = call.optional(3)
    return zero is not None and zero.dtype != "uint8" and call.integer("bits", 4) == 8


def _gather(call: OperatorCall) -> Tensor:
    data, scale = call.input(0), call.input(2)
    along = call.axis(call.integer("gather_axis", 0), data.rank)
    blocked = call.axis(call.integer("quantize_axis", 1), data.rank)
    if data.dtype in NIBBLES:
        attrs = {"axis": blocked, "block_size": call.integer("block_size", 128)}
        inputs, names = (data, scale, call.optional(3)), (*call.names[:1], *call.names[2:])
        weights = quantized.dequantized(replace(call, inputs=inputs, names=names, attrs=attrs))
    else:
        codes = _known(call, 0, "weights")
        if codes.dtype != np.uint8 or data.rank != 2 or (along, blocked) != (0, 1):
            raise call.unsupported("has weights that are no rows of bytes, or other axes")
        width = codes.shape[1] * 8 // call.integer("bits", 4)
        weights = _rows(call, codes, (codes.shape[0], width), 2, 3)
    picked = replace(
        call, inputs=(weights, call.input(1)), names=call.names[:2], attrs={"axis": along}
    )
    return gather.gathered(picked)


OPERATORS: tuple[Operator, ...] = (
    Operator("MatMulNBits", _matmul, others=(1, 3), domain=MICROSOFT, differs=_is_refused,
             remark="of 4 and 8 bits, without g_idx"),
    Operator("GatherBlockQuantized", _gather, dtypes=("uint8", *NIBBLES), others=(1, 2, 3),
             domain=MICROSOFT, limits=partial(by_axis, named="gather_axis"),
             remark="of 4 and 8 bits"),
)  # fmt: skip
