"""Tensors on the device: textures at the fragment levels, storage buffers at the compute level.

Texel number q of a tensor begins at physical texel ``q * units``. Physical texel f lies in layer
``f mod layers``, and there at place p = ``f div layers``, ``(p mod row, p div row)``. A tensor
shorter than a row is a texture of one row of its exact width. A storage buffer keeps the bytes of
the host as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.backends.base import Usage
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.api import Gl
from gpuedge.core import texels
from gpuedge.core.errors import DriverError, InputError, OutOfMemoryError
from gpuedge.core.storage import BUFFER, BYTE_DTYPES, Storage
from gpuedge.core.texels import Bytes

TEXEL = 16
"""Bytes of a logical texel on the host: four float32."""

KEPT = 1 << 28
"""Bytes of float32 that fit into a texture of several layers where the device allows: as many as
with 4096 texels per side, which most have."""

LEAST_ROW = 128
"""Places of a row of such a texture at least, but for the smallest devices."""

MAX_ROW = 4096
"""Texels of a row at most, those of all layers; every device of these levels that is still in use
has such textures, and longer rows would only waste the rest of the last one."""

BYTES = "rgba8"
"""The physical format of all storage kinds whose names begin so."""

Box = tuple[int, int, int, int]
"""Column, row, width, height of a part of a texture, in physical texels."""

_TEXTURE_STATE = (
    (c.TEXTURE_MIN_FILTER, c.NEAREST),
    (c.TEXTURE_MAG_FILTER, c.NEAREST),
    (c.TEXTURE_WRAP_S, c.CLAMP_TO_EDGE),
    (c.TEXTURE_WRAP_T, c.CLAMP_TO_EDGE),
)
_HINTS = {
    Usage.CONSTANT: c.STATIC_DRAW,
    Usage.INPUT: c.DYNAMIC_DRAW,
    Usage.OUTPUT: c.DYNAMIC_READ,
    Usage.SCRATCH: c.DYNAMIC_COPY,
}


@dataclass(frozen=True, slots=True)
class Format:
    """How texels lie in a texture and in the host's memory.

    The first three are arguments of glTexImage2D, `read_layout` and `read_type` of glReadPixels;
    `nbytes` and `read_bytes` are those of one physical texel on the host when it is written and
    when it is read, which differ where halves are read as floats.
    """

    internal: int
    layout: int
    type: int
    nbytes: int
    read_layout: int
    read_type: int
    read_bytes: int


def physical(kind: str) -> str:
    """Return the physical format of a storage kind."""
    return BYTES if kind.startswith("rgba8_") else kind


def address(data: Any) -> int:
    """Return where contiguous host memory lies; the caller keeps it alive."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(data))  # four times as fast
    except TypeError:  # it is read-only
        place: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        return place


def target_of(layers: int) -> int:
    """Return where OpenGL binds a texture of so many layers."""
    return c.TEXTURE_2D if layers == 1 else c.TEXTURE_2D_ARRAY


def make_texture(gl: Gl, form: Format, width: int, height: int, layers: int = 1) -> int:
    """Make a texture, nearest texel, clamped at its edges; contents undefined."""
    name, target = gl.generate("Textures"), target_of(layers)
    gl.BindTexture(target, name)
    for key, value in _TEXTURE_STATE:
        gl.TexParameteri(target, key, value)
    kind = (form.layout, form.type, None)
    if layers == 1:
        gl.TexImage2D(target, 0, form.internal, width, height, 0, *kind)
    else:
        gl.TexImage3D(target, 0, form.internal, width, height, layers, 0, *kind)
    failed = gl.error()
    if failed:
        gl.delete("Textures", name)
        raise c.error_for(failed, f"a texture of {width} x {height}, {layers} layers")
    return name


def upload(  # noqa: PLR0917  (what, where, from where)
    gl: Gl, texture: int, form: Format, box: Box, data: Any, layers: int = 1
) -> None:
    """Write a part of a texture: its physical texels one after the other."""
    target = target_of(layers)
    gl.BindTexture(target, texture)
    if layers == 1:
        gl.TexSubImage2D(target, 0, *box, form.layout, form.type, address(data))
        return
    apart = np.ascontiguousarray(_texels(data, form.nbytes).reshape(-1, layers).T)
    x, y, width, height = box
    size = (width, height, layers)
    gl.TexSubImage3D(target, 0, x, y, 0, *size, form.layout, form.type, address(apart))


def download(gl: Gl, form: Format, box: Box, into: Bytes, layers: int = 1) -> None:
    """Read a part of what the framebuffer that is bound renders to, texel by texel."""
    if layers == 1:
        gl.ReadPixels(*box, form.read_layout, form.read_type, address(into))
        return
    apart = np.empty((layers, into.size // layers), np.uint8)
    for layer, plane in enumerate(apart):
        gl.ReadBuffer(c.COLOR_ATTACHMENT0 + layer)
        gl.ReadPixels(*box, form.read_layout, form.read_type, address(plane))
    texels_of = _texels(into, form.read_bytes).reshape(-1, layers)
    texels_of[...] = _texels(apart, form.read_bytes).reshape(layers, -1).T


def _texels(data: Any, nbytes: int) -> npt.NDArray[Any]:
    """See bytes as physical texels, each as one number: the fastest way to move them about."""
    return np.frombuffer(data, np.uint8).view({4: "u4", 8: "u8", 16: "c16"}[nbytes])


def make_framebuffer(gl: Gl, texture: int, layers: int = 1) -> int:
    """Make a framebuffer that renders to the layers of a texture.

    Raises DriverError if it is incomplete.
    """
    name = gl.generate("Framebuffers")
    gl.BindFramebuffer(c.FRAMEBUFFER, name)
    if layers == 1:
        gl.FramebufferTexture2D(c.FRAMEBUFFER, c.COLOR_ATTACHMENT0, c.TEXTURE_2D, texture, 0)
    else:
        places = [c.COLOR_ATTACHMENT0 + layer for layer in range(layers)]
        for layer, place in enumerate(places):
            gl.FramebufferTextureLayer(c.FRAMEBUFFER, place, texture, 0, layer)
        gl.DrawBuffers(layers, (ctypes.c_uint * layers)(*places))
    status = gl.CheckFramebufferStatus(c.FRAMEBUFFER)
    gl.error()
    if status != c.FRAMEBUFFER_COMPLETE:
        gl.delete("Framebuffers", name)
        raise DriverError(
            "The driver does not render to a texture.",
            known=f"the framebuffer's status is {status:#06x}",
        )
    return name


def row_length(max_size: int, layers: int = 1) -> int:
    """Return the physical texels of a row of one layer: a power of two that fits.

    Of one layer it is the greatest. Of several it is the least with which `KEPT` bytes fit into a
    texture: rasterisers draw four rows at a time, of which short ones waste fewer, and squares of
    64 by 64 one after the other, of which short rows keep what lies together together.

    >>> row_length(8192), row_length(64), row_length(100), row_length(16384, 4), row_length(64, 4)
    (4096, 64, 64, 256, 64)
    """
    longest = 1 << (min(max_size, MAX_ROW // layers).bit_length() - 1)
    if layers == 1:
        return longest
    least = max(LEAST_ROW, -(-KEPT // (TEXEL * layers * max_size)))
    return min(longest, 1 << (least - 1).bit_length())


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
    """A tensor's texture: `width` x `height` physical texels of `form` in each layer.

    `frame` is the framebuffer that renders to it. `plain` is the same in one layer, where an
    application was given it; `plain_frame` renders to that, and `plain_program` draws it.

    Four numbers are `texel` bytes of the host and `units` physical texels; `span` are the fewest
    bytes of the host that fill places of all layers, and how many places those are.
    """

    nbytes: int
    storage: Storage
    texel: int
    units: int
    span: tuple[int, int]
    form: Format
    width: int
    height: int
    name: int
    frame: int = 0
    plain: int = 0
    plain_frame: int = 0
    plain_program: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether its bytes are those of the host."""
        return self.form.read_bytes == self.form.nbytes == self.texel or self.units == 4


class Textures:
    """The textures of one device, and the framebuffers that render to them.

    `formats` are the physical ones that work here, `default` is the storage kind of tensors for
    which none is asked, `max_size` counts physical texels per side, `layers` those of a texture.
    """

    def __init__(
        self, gl: Gl, formats: dict[str, Format], default: str, max_size: int, layers: int
    ) -> None:
        self.layers = layers
        self._gl = gl
        self._formats = formats
        self._default = default
        self._max_size = max_size
        self.row = row_length(max_size, layers)

    def alloc(self, nbytes: int, _: Usage, storage: Storage) -> GlesTexture:
        """Make a texture for `nbytes` bytes of the host. Raises OutOfMemoryError."""
        if storage.kind == BUFFER and storage.dtype == "float32":
            storage = Storage(self._default)
        form = self._formats.get(physical(storage.kind))
        if form is None or storage.dtype not in ("float32", BYTE_DTYPES.get(storage.kind)):
            raise InputError(
                f"This device keeps no tensors of {storage.dtype} as {storage.kind}.",
                known=f"its formats, of float32: {', '.join(self._formats)}",
            )
        texel, units = storage.texel_bytes, storage.about.units
        span = texel * max(1, self.layers // units), max(1, units // self.layers)
        count = -(-max(1, nbytes) // span[0]) * span[1]
        width, height = min(self.row, count), -(-count // self.row)
        if height > self._max_size:
            raise OutOfMemoryError(
                f"A tensor of {nbytes} bytes does not fit into a texture.",
                known=f"{storage.kind}: {width} x {height} texels; the device has "
                f"{self._max_size} per side",
            )
        name = make_texture(self._gl, form, width, height, self.layers)
        return GlesTexture(nbytes, storage, texel, units, span, form, width, height, name)

    def free(self, texture: GlesTexture) -> None:
        """Delete a texture and all that was made for it."""
        if texture.plain_program:
            self._gl.DeleteProgram(texture.plain_program)
        for frame in filter(None, (texture.frame, texture.plain_frame)):
            self._gl.delete("Framebuffers", frame)
        for name in filter(None, (texture.name, texture.plain)):
            self._gl.delete("Textures", name)

    def frame(self, texture: GlesTexture) -> int:
        """Return the framebuffer that renders to a texture."""
        texture.frame = texture.frame or make_framebuffer(self._gl, texture.name, self.layers)
        return texture.frame

    def area(self, texture: GlesTexture, nbytes: int) -> tuple[int, int]:
        """Return the width and height that the first `nbytes` bytes of a texture cover."""
        span, places = texture.span
        count = -(-nbytes // span) * places
        return min(self.row, count), -(-count // self.row)

    def write(self, texture: GlesTexture, data: memoryview, offset: int) -> None:
        """Copy bytes of the host into a texture, whole texels or not."""
        raw = np.frombuffer(data, np.uint8)
        span, places = texture.span
        head, tail = offset % span, -(offset + raw.size) % span
        if head or tail:  # keep what else is at the first and last place
            whole = np.zeros(head + raw.size + tail, np.uint8)
            ends = {0} if head else set()
            if offset + raw.size < texture.nbytes:
                ends.add(whole.size - span)
            for start in ends:
                self.read(texture, whole[start : start + span], offset - head + start)
            whole[head : head + raw.size] = raw
            raw, offset = whole, offset - head
        count, at = raw.size // span * places, 0
        if texture.texel != TEXEL:
            raw = texels.moved(raw, texture.storage)
        elif not texture.is_plain:
            raw = texels.encoded(raw.view(np.float32), texture.storage)
        for box in boxes(offset // span * places, count, self.row):
            size = box[2] * box[3] * self.layers * texture.form.nbytes
            upload(self._gl, texture.name, texture.form, box, raw[at : at + size], self.layers)
            at += size

    def read(self, texture: GlesTexture, into: Any, offset: int) -> None:
        """Copy texels to bytes of the host, whole texels or not."""
        target = np.frombuffer(into, np.uint8)
        if not target.size:
            return
        form, (span, places) = texture.form, texture.span
        head = offset % span
        count = -(-(head + target.size) // span) * places
        size = count * self.layers * form.read_bytes
        straight = texture.is_plain and not head and target.size == size
        raw = target if straight else np.empty(size, np.uint8)
        self._fetch(texture, raw, offset // span * places, count)
        if texture.texel != TEXEL:
            raw = texels.moved(raw, texture.storage)
            target[:] = raw[head : head + target.size]
        elif not straight:
            kind = texture.storage
            if form.read_bytes != form.nbytes:  # halves, read as floats
                kind = Storage("rgba32f")
            decoded = texels.decode(raw, kind).view(np.uint8)
            target[:] = decoded[head : head + target.size]

    def _fetch(self, texture: GlesTexture, raw: Bytes, first: int, count: int) -> None:
        gl, form, at = self._gl, texture.form, 0
        gl.BindFramebuffer(c.FRAMEBUFFER, self.frame(texture))
        for box in boxes(first, count, self.row):
            size = box[2] * box[3] * self.layers * form.read_bytes
            download(gl, form, box, raw[at : at + size], self.layers)
            at += size
        if code := gl.GetError():
            gl.fail(code, "reading back")


@dataclass(slots=True, eq=False)
class GlesBuffer:
    """A shader storage buffer; `place` is where the host sees it, 0 where it does not."""

    nbytes: int
    name: int
    place: int = 0


class Buffers:
    """The storage buffers of one device; `is_shared` says whether the host can see them."""

    def __init__(self, gl: Gl, *, is_shared: bool = False) -> None:
        self._gl = gl
        self._is_shared = is_shared

    def alloc(self, nbytes: int, usage: Usage, _: Storage) -> GlesBuffer:
        """Make a buffer. Raises OutOfMemoryError."""
        gl = self._gl
        name = gl.generate("Buffers")
        gl.BindBuffer(c.COPY_WRITE_BUFFER, name)
        gl.BufferData(c.COPY_WRITE_BUFFER, max(16, nbytes), None, _HINTS[usage])
        failed = gl.error()
        if failed:
            gl.delete("Buffers", name)
            raise c.error_for(failed, f"glBufferData of {nbytes} bytes")
        return GlesBuffer(nbytes, name)

    def free(self, buffer: GlesBuffer) -> None:
        """Delete a buffer."""
        self._gl.delete("Buffers", buffer.name)

    def address(self, buffer: GlesBuffer) -> int | None:
        """Return where the host sees a new buffer from now on; None if it cannot."""
        gl, size = self._gl, max(16, buffer.nbytes)
        if not self._is_shared:
            return None
        gl.BindBuffer(c.COPY_WRITE_BUFFER, buffer.name)
        kept = c.MAP_SHARED | c.DYNAMIC_STORAGE  # the latter for `write`, once it is not shared
        gl.BufferStorage(c.COPY_WRITE_BUFFER, size, None, kept)
        buffer.place = gl.MapBufferRange(c.COPY_WRITE_BUFFER, 0, size, c.MAP_SHARED) or 0
        gl.error()  # a driver that refuses leaves a buffer of the usual kind
        return buffer.place or None

    def write(self, buffer: GlesBuffer, data: memoryview, offset: int) -> None:
        """Copy host bytes into a buffer."""
        gl = self._gl
        gl.BindBuffer(c.COPY_WRITE_BUFFER, buffer.name)
        gl.BufferSubData(c.COPY_WRITE_BUFFER, offset, data.nbytes, address(data))

    def read(self, buffer: GlesBuffer, into: Any, offset: int) -> None:
        """Copy bytes of a buffer to the host."""
        target = np.frombuffer(into, np.uint8)
        if not target.size:
            return
        gl = self._gl
        gl.BindBuffer(c.COPY_READ_BUFFER, buffer.name)
        if buffer.place:  # it was an application's, who dropped it: a result is here now
            gl.UnmapBuffer(c.COPY_READ_BUFFER)
            buffer.place = 0
        try:
            place = gl.MapBufferRange(c.COPY_READ_BUFFER, offset, target.size, c.MAP_READ)
            if not place:
                raise c.error_for(gl.error(), f"glMapBufferRange of {target.size} bytes")
            ctypes.memmove(address(target), place, target.size)
        except BaseException:  # such as KeyboardInterrupt; a mapped buffer could not be used again
            gl.UnmapBuffer(c.COPY_READ_BUFFER)
            gl.error()  # it may not have been mapped, or no longer
            raise
        gl.UnmapBuffer(c.COPY_READ_BUFFER)
        if code := gl.GetError():
            gl.fail(code, "reading back")
