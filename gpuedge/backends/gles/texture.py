"""Tensors in textures: where texels lie, writing and reading them, framebuffers to render to them.

Texel number q of a tensor begins at physical texel ``q * units``, and physical texel f lies at
``(f mod row, f div row)``. A tensor shorter than a row is a texture of one row of its exact width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuedge.backends.base import Usage
from gpuedge.backends.gles import names
from gpuedge.backends.gles.formats import physical
from gpuedge.backends.gles.gl import Gl
from gpuedge.backends.gles.stack import Box, Format, GlObject, Stack
from gpuedge.backends.gles.stack_raw import address
from gpuedge.core import texels
from gpuedge.core.errors import InputError, OutOfMemoryError
from gpuedge.core.storage import BUFFER, Storage

TEXEL = 16
"""Bytes of a logical texel on the host: four float32."""

MAX_ROW = 4096
"""Texels of a row at most; every device of these levels that is still in use has such textures,
and longer rows would only waste the rest of the last one."""


def row_length(max_size: int) -> int:
    """Return the physical texels of a row: the greatest power of two that fits.

    >>> row_length(8192), row_length(64), row_length(100)
    (4096, 64, 64)
    """
    return 1 << (min(max_size, MAX_ROW).bit_length() - 1)


def boxes(first: int, count: int, row: int) -> Iterator[Box]:
    """Cut `count` physical texels from number `first` on into boxes: at most three.

    >>> list(boxes(6, 20, 8))
    [(6, 0, 2, 1), (0, 1, 8, 2), (0, 3, 2, 1)]
    """
    y, x = divmod(first, row)
    if x and count:
        width = min(count, row - x)
        yield x, y, width, 1
        y, count = y + 1, count - width
    if count >= row:
        yield 0, y, row, count // row
        y, count = y + count // row, count % row
    if count:
        yield 0, y, count, 1


@dataclass(slots=True, eq=False)
class GlesTexture:
    """A tensor's texture: `width` x `height` physical texels of `form`."""

    nbytes: int
    usage: Usage
    storage: Storage
    form: Format
    width: int
    height: int
    made: GlObject
    frame: GlObject | None = None

    @property
    def name(self) -> int:
        """The texture's name in OpenGL."""
        return self.made.name


class Textures:
    """The textures of one device, and the framebuffers that render to them.

    Parameters
    ----------
    gl : Gl
    stack : Stack
    formats : dict of str to Format
        Physical formats that work here.
    default : str
        Storage kind of tensors for which none is asked.
    max_size : int
        Physical texels per side.
    """

    def __init__(
        self, gl: Gl, stack: Stack, formats: dict[str, Format], default: str, max_size: int
    ) -> None:
        self._gl = gl
        self._stack = stack
        self._formats = formats
        self._default = default
        self._max_size = max_size
        self.row = row_length(max_size)
        self._frames: dict[tuple[int, ...], GlObject] = {}

    def alloc(self, nbytes: int, usage: Usage, storage: Storage) -> GlesTexture:
        """Make a texture for `nbytes` bytes of float32. Raises OutOfMemoryError."""
        if storage.kind == BUFFER:
            storage = Storage(self._default)
        form = self._formats.get(physical(storage.kind))
        if form is None:
            raise InputError(
                f"This device keeps no tensors as {storage.kind}.",
                known=f"its formats: {', '.join(self._formats)}",
            )
        count = max(1, -(-nbytes // TEXEL)) * storage.about.units
        width, height = min(self.row, count), -(-count // self.row)
        if height > self._max_size:
            raise OutOfMemoryError(
                f"A tensor of {nbytes} bytes does not fit into a texture.",
                known=f"{storage.kind}: {width} x {height} texels; the device has "
                f"{self._max_size} per side",
            )
        made = self._stack.texture(form, width, height)
        return GlesTexture(nbytes, usage, storage, form, width, height, made)

    def free(self, texture: GlesTexture) -> None:
        """Delete a texture and the framebuffers that render to it."""
        for key in [k for k in self._frames if texture.name in k]:
            self._stack.delete(self._frames.pop(key))
        self._stack.delete(texture.made)

    def frame(self, textures: Sequence[GlesTexture]) -> GlObject:
        """Return the framebuffer that renders to these textures."""
        key = tuple(t.name for t in textures)
        known = self._frames.get(key)
        if known is None:
            known = self._frames[key] = self._stack.framebuffer([t.made for t in textures])
        if len(textures) == 1:
            textures[0].frame = known
        return known

    def area(self, texture: GlesTexture, nbytes: int) -> tuple[int, int]:
        """Return the width and height that the first `nbytes` bytes of a texture cover."""
        count = -(-nbytes // TEXEL) * texture.storage.about.units
        return min(self.row, count), -(-count // self.row)

    # --- moving texels --------------------------------------------------------------------------

    def write(self, texture: GlesTexture, data: memoryview, offset: int) -> None:
        """Copy host bytes of float32 into a texture, whole texels or not."""
        flat = np.frombuffer(data, np.uint8)
        head, tail = offset % TEXEL, -(offset + flat.size) % TEXEL
        if head or tail:  # keep what else is in the first and last texel
            whole = np.zeros(head + flat.size + tail, np.uint8)
            for start in {0, whole.size - TEXEL}:
                self.read(texture, whole[start : start + TEXEL], offset - head + start)
            whole[head : head + flat.size] = flat
            flat, offset = whole, offset - head
        raw = texels.encoded(flat.view(np.float32), texture.storage)
        form, units = texture.form, texture.storage.about.units
        count, at = flat.size // TEXEL * units, 0
        for box in boxes(offset // TEXEL * units, count, self.row):
            size = box[2] * box[3] * form.nbytes
            self._stack.upload(texture.made, form, box, raw[at : at + size])
            at += size

    def read(self, texture: GlesTexture, into: Any, offset: int) -> None:
        """Copy texels to host bytes of float32, whole texels or not."""
        target = np.frombuffer(into, np.uint8)
        if not target.size:
            return
        form, units = texture.form, texture.storage.about.units
        head = offset % TEXEL
        count = -(-(head + target.size) // TEXEL) * units
        is_plain = (form.read_bytes == TEXEL and form.nbytes == TEXEL) or units == 4
        straight = is_plain and not head and target.size == count // units * TEXEL
        raw = target if straight else np.empty(count * form.read_bytes, np.uint8)
        self._fetch(texture, address(raw), offset // TEXEL * units, count)
        if not straight:
            kind = texture.storage
            if form.read_bytes != form.nbytes:  # halves, read as floats
                kind = Storage("rgba32f")
            found = texels.decode(raw, kind).view(np.uint8)
            target[:] = found[head : head + target.size]

    def _fetch(self, texture: GlesTexture, place: int, first: int, count: int) -> None:
        gl, form = self._gl, texture.form
        frame = texture.frame or self.frame([texture])
        gl.BindFramebuffer(names.FRAMEBUFFER, frame.name)
        for box in boxes(first, count, self.row):
            gl.ReadPixels(*box, form.read_layout, form.read_type, place)
            place += box[2] * box[3] * form.read_bytes
