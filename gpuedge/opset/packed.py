"""Constant weights of 4 or 8 bits, which stay bytes on a device and become numbers where read.

A number is ``(code - zero point) * scale``, or what a table has for a byte. Two codes of 4 bits lie
in a byte, that of the lower place first; those with a sign are kept 8 higher, as their zero points
are, so that all are 0 to 15. Rows of an odd length end in half a byte of nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import numpy as np

from gpuedge.core.dtypes import BYTES, FLOAT8, NIBBLES
from gpuedge.opset.expr import Expr, Position, apply
from gpuedge.opset.index import Index, Loaded, axes, of
from gpuedge.opset.tensor import Array, Map, Tensor, at, constant

CODES: Final = (*BYTES, *NIBBLES, *FLOAT8)
"""Dtypes of constants that stay as they are; of less than float32 has."""

Place = Callable[[Tensor, tuple[Index, ...]], Sequence[Index]]

LEAST: Final = 1 << 10
"""Elements from which weights are kept so: smaller ones are folded to float32."""


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """What a matrix of weights is unpacked from.

    Attributes
    ----------
    codes : Tensor
        A constant of uint8 or int8, of `shape`; of 4 bits two to a byte along the last axis.
    bits : int
        4 or 8.
    shape : (int, int)
        Rows and columns of the codes, without what pads them.
    scale, zero : ndarray
        float32 of rank 2: one for each block; of the zero points one may stand for all.
    block : (int, int)
        Rows and columns of a block.
    is_turned : bool
        Whether the matrix is that of the codes, transposed.
    """

    codes: Tensor
    bits: int
    shape: tuple[int, int]
    scale: Array
    zero: Array
    block: tuple[int, int]
    is_turned: bool = False

    def turned(self) -> PackedWeights:
        """Return what the transposed matrix is unpacked from."""
        return replace(self, is_turned=not self.is_turned)

    def by_rows(self) -> tuple[Array, Array, int] | None:
        """Return scales and zero points (blocks of rows, columns) and the rows of a block.

        They are those of the matrix as it is read. None where columns share a block but not all of
        them do.
        """
        scale, zero = (a.T if self.is_turned else a for a in (self.scale, self.zero))
        (rows, across), count = self.block, self.shape
        if self.is_turned:
            rows, across, count = across, rows, count[::-1]
        if across > 1 and scale.shape[1] > 1:
            return None
        wide = np.broadcast_to(scale, (scale.shape[0], count[1]))
        return wide, zero if zero.size == 1 else np.broadcast_to(zero, wide.shape), rows

    def matrix(self, codes: Array) -> Array:
        """Return the codes of the matrix, uint8 or int8, from the array of `codes`."""
        rows, columns = self.shape
        if self.bits == 4:
            split = np.empty((rows, 2 * codes.shape[-1]), np.uint8)
            split[:, ::2], split[:, 1::2] = codes & 15, codes >> 4
            codes = split
        whole = codes.reshape(rows, -1)[:, :columns]
        return whole.T if self.is_turned else whole


def keeps_codes(tensor: Tensor) -> bool:
    """Tell whether a tensor is a constant of bytes large enough to stay one."""
    return tensor.array is not None and tensor.dtype in BYTES and tensor.size >= LEAST // 2


_pairs: dict[int, Tensor] = {}
"""Codes in pairs, by the arrays that they were made of, while these live: nodes are expanded
several times."""


def _paired(array: Array) -> Tensor:
    key = id(array)
    if key not in _pairs:
        _pairs[key] = constant(in_pairs(array))
        weakref.finalize(array, _pairs.pop, key, None)
    return _pairs[key]


def in_pairs(array: Array) -> Array:
    """Return codes of 4 bits, two to a byte along the last axis, without a sign."""
    offset = 8 if array.dtype.name == "int4" else 0
    codes = (array.astype(np.int8) + offset).astype(np.uint8)
    if codes.shape[-1] % 2:
        codes = np.concatenate((codes, np.zeros((*codes.shape[:-1], 1), np.uint8)), -1)
    paired: Array = codes[..., ::2] | codes[..., 1::2] << 4
    return paired


def nibble(codes: Tensor, position: tuple[Index, ...]) -> Expr:
    """Return the code at a position, two of which lie in a byte along the last axis."""
    *outer, last = position
    pair = at(codes, (*outer, last // 2))
    high = apply("floor", pair * 0.0625)
    is_high = Position(last % 2)
    # exact: integers below 256, and a factor of 0 or 1
    return (pair - 16.0 * high) * (1.0 - is_high) + high * is_high


def of_table(codes: Tensor, dtype: str, position: tuple[Index, ...]) -> Expr:
    """Return the number that a float8 stands for."""
    used = codes.array
    kind = np.dtype(dtype)
    table = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32)
    bad = ~np.isfinite(table)
    if used is not None and not np.isin(np.flatnonzero(bad), used).any():
        table[bad] = 0.0  # never read: devices that keep no NaN need not keep one
    number = of(Loaded(at(codes, position), 0, 255))
    return at(constant(table), (number,))


def unpacked(
    x: Tensor, scale: Tensor, zero: Tensor | None, place: Place, blocks: tuple[int, ...]
) -> Tensor | None:  # fmt: skip
    """Return constant weights as floats that are computed where they are read.

    Parameters
    ----------
    x : Tensor
        The codes.
    scale, zero : Tensor
    place : callable
        Returns where a position of `x` finds its scale, or zero point.
    blocks : tuple of int
        How many elements share a scale, along each axis.

    Returns
    -------
    Tensor or None
        None where `x` is no large constant of such a dtype, or the others are not constant.
    """
    array, scales = x.array, scale.array
    zeros = None if zero is None else zero.array
    if array is None or scales is None or x.size < LEAST or x.dtype not in CODES or not x.rank:
        return None
    if zero is not None and zeros is None:
        return None
    offset = 8.0 if x.dtype == "int4" else 0.0
    if x.dtype in FLOAT8:
        codes = constant(np.ascontiguousarray(array).view(np.uint8))
    else:
        codes = _paired(array) if x.dtype in NIBBLES else x
    centre = np.zeros((), np.float32) if zeros is None else zeros.astype(np.float32)
    if zeros is not None and not zeros.any():
        zero = None
    shifted = None if zero is None and not offset else constant(np.asarray(centre + offset))

    def body(position: tuple[Index, ...]) -> Expr:
        if x.dtype in FLOAT8:
            value = of_table(codes, x.dtype, position)
        elif x.dtype in NIBBLES:
            value = nibble(codes, position)
        else:
            value = at(codes, position) + 0.0
        if shifted is not None:
            value = value - at(shifted, place(shifted, position))
        return value * at(scale, place(scale, position))

    result = Tensor(x.shape, scale.dtype, Map(body(axes(x.shape))))
    result.is_unpacked = True
    if x.rank == 2 and x.dtype not in FLOAT8:
        shape = (x.shape[0], x.shape[1])
        counts = tuple(-(-n // b) for n, b in zip(shape, blocks, strict=True))
        flat = np.asarray(centre + offset, np.float32)
        result.packed = PackedWeights(
            codes, 4 if x.dtype in NIBBLES else 8, shape,
            scales.astype(np.float32).reshape(counts),
            flat.reshape(counts if flat.size == prod(counts) else (1, 1)),
            (blocks[0], blocks[1]),
        )  # fmt: skip
    return result
