"""How tensors lie in device memory: linear, or packed four neighbours of one axis to a texel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpuedge.core.kernel import Extents

FOLD = 4096
"""Texels per row of a linear tensor: a texture width that ES 3.1 devices must offer half of, and
small enough to keep workgroup counts far below the guaranteed 65,535 per axis."""

TEXEL = 16
"""Bytes of four float32."""

Kind = Literal["linear", "channels", "rows"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Arrangement of one tensor of logical `shape`; ``shaders/README.md`` describes the kinds."""

    kind: Kind
    shape: tuple[int, ...]
    extents: Extents

    @property
    def nbytes(self) -> int:
        """Bytes in float32 storage, with padding; never zero."""
        return TEXEL * max(1, prod(self.extents))

    @property
    def axis(self) -> int:
        """The axis whose neighbours share a texel."""
        return 1 if self.kind == "channels" else len(self.shape) - 1

    @property
    def packed(self) -> int:
        """Extent of that axis."""
        return self.shape[self.axis] if self.shape else 1

    @property
    def inner(self) -> int:
        """Elements that follow one step along that axis."""
        return prod(self.shape[self.axis + 1 :])

    @property
    def slice_coordinate(self) -> str:
        """The texel coordinate that counts slices of four."""
        return "z" if self.kind == "channels" else "x"


def linear(shape: tuple[int, ...]) -> Layout:
    """C order, four values to a texel, folded into rows of at most `FOLD` texels."""
    texels = -(-prod(shape) // 4)
    width = max(1, min(texels, FOLD))
    return Layout("linear", shape, (width, max(1, -(-texels // width)), 1, 1))


def channels(shape: tuple[int, ...]) -> Layout:
    """NC4HW4 of (N, C, H, W) or (N, C, W): x = column, y = row, slice = channel / 4, n = image."""
    n, c, *size = shape
    height, width = (1, size[0]) if len(size) == 1 else size
    return Layout("channels", shape, (width, height, -(-c // 4), n))


def rows(shape: tuple[int, ...]) -> Layout:
    """Matrices (..., M, N): x = column / 4, y = row, n = matrix."""
    *batch, height, width = shape
    return Layout("rows", shape, (-(-width // 4), height, 1, prod(batch)))


def make(kind: Kind, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a kind."""
    return {"linear": linear, "channels": channels, "rows": rows}[kind](shape)


def same_bytes(layout: Layout) -> bool:
    """Tell whether a packed layout holds exactly the bytes of the linear one."""
    return layout.kind == "linear" or (layout.inner == 1 and layout.packed % 4 == 0)


def along(extents: Extents, count: int) -> str:
    """Return what every `count` texels have in common, from a multiple of `count` on.

    ``row``, ``plane`` (slice and batch) or nothing, as `gpuedge.lang.print_kernel` takes it.

    >>> along((8, 3, 2, 1), 4), along((2, 2, 5, 1), 4), along((7, 7, 2, 1), 4)
    ('row', 'plane', '')
    """
    width, height, slices, batch = extents
    if count == 1:
        return ""
    if not width % count:
        return "row"
    return "plane" if not width * height % count or slices * batch == 1 else ""


def to_texels(array: npt.NDArray[np.float32], layout: Layout) -> npt.NDArray[np.float32]:
    """Arrange a host array of shape `layout.shape` as the device sees it: (texels * 4,) float32."""
    out = np.zeros(layout.nbytes // 4, np.float32)
    if layout.kind == "linear":
        out[: array.size] = array.ravel()
        return out
    slices = -(-layout.packed // 4)
    view = out.reshape(-1, slices, layout.inner, 4)
    source = array.reshape(-1, layout.packed, layout.inner)
    for lane in range(4):
        part = source[:, lane::4, :]
        view[:, : part.shape[1], :, lane] = part
    return out
