"""How a device keeps the texels of a tensor: storage buffers, or one of several texture formats.

A tensor is a row of texels of four values. A storage buffer holds them as they are. A texture holds
them row by row, `row` physical texels wide (a power of two), each logical texel in `units` physical
texels beside one another: texel q begins at physical texel ``q * units``. So a view of the same
bytes under another shape is the same texture, whatever the storage. Where kernels draw to several
textures at once (`LAYERS`), physical texel f has the number f div `LAYERS` in layer f mod `LAYERS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class StorageKind:
    """One way to keep texels.

    Attributes
    ----------
    name : str
    units : int
        Physical texels that hold one logical texel of four values.
    unit_bytes : int
        Bytes of one physical texel.
    is_exact : bool
        Whether every finite float32, or every integer in `low` to `high`, comes back unchanged
        (denormals may become zero).
    low, high : float or None
        The range of values it can hold, where that is fixed.
    """

    name: str
    units: int
    unit_bytes: int
    is_exact: bool
    low: float | None = None
    high: float | None = None


BUFFER: Final = "buffer"
HALF_BUFFER: Final = "buffer_f16"
UNSIGNED_BUFFER: Final = "buffer_u8"
SIGNED_BUFFER: Final = "buffer_s8"
BYTE_BUFFERS: Final = frozenset((UNSIGNED_BUFFER, SIGNED_BUFFER))
KINDS: Final = {
    kind.name: kind
    for kind in (
        StorageKind(BUFFER, 1, 16, True),  # float32 in a storage buffer
        StorageKind(HALF_BUFFER, 1, 8, False),  # float16 in a storage buffer, two to a word
        StorageKind(UNSIGNED_BUFFER, 1, 4, True, 0, 255),  # integers, four to a word; only read
        StorageKind(SIGNED_BUFFER, 1, 4, True, -128, 127),
        StorageKind("rgba32f", 1, 16, True),  # float32 in a float texture
        StorageKind("rgba32ui", 1, 16, True),  # the bits of float32 in an integer texture
        StorageKind("rgba16f", 1, 8, False),  # float16 in a half texture
        StorageKind("rgba8_float", 4, 4, True),  # one float32 in the four bytes of a texel
        StorageKind("rgba8_fixed16", 2, 4, False),  # two 16-bit fractions of a range in a texel
        StorageKind("rgba8_u8", 1, 4, True, 0, 255),  # four integers in a texel
        StorageKind("rgba8_s8", 1, 4, True, -128, 127),
    )
}
"""Every storage kind by name."""

BYTE_DTYPES: Final = {
    UNSIGNED_BUFFER: "uint8", SIGNED_BUFFER: "int8", "rgba8_u8": "uint8", "rgba8_s8": "int8"
}  # fmt: skip
"""Kinds that keep bytes of the host as they are, and of which dtype."""

TEXELS: Final = "texels"
HALF_TEXELS: Final = "texels_f16"
READ_AS: Final = {BUFFER: TEXELS, HALF_BUFFER: HALF_TEXELS}
"""What a kernel may read a tensor of a buffer as: a texel buffer over the same bytes. Only that of
`TensorArg.storage`; how a tensor is kept stays as it is."""
TEXEL_KINDS: Final = frozenset(READ_AS.values())
"""What is only read, by way of a texel buffer."""

TEXTURE: Final = "texture"
HALF_TEXTURE: Final = "texture_f16"
COPIED_AS: Final = {BUFFER: TEXTURE, HALF_BUFFER: HALF_TEXTURE}
"""What a kernel may read a tensor of a buffer as, too: a texture of the same bytes, texel after
texel in rows of `TEXTURE_ROW`. WebGPU copies them beforehand; on Vulkan both share memory."""
IMAGE: Final = "image"
HALF_IMAGE: Final = "image_f16"
LOADED_AS: Final = {BUFFER: IMAGE, HALF_BUFFER: HALF_IMAGE}
"""Such a copy, of which kernels load texels past the units for textures: a storage texture."""
IMAGE_KINDS: Final = frozenset(LOADED_AS.values())
TEXTURE_KINDS: Final = frozenset(COPIED_AS.values()) | IMAGE_KINDS
"""What is only read, of a texture."""
READ_ONLY: Final = TEXEL_KINDS | TEXTURE_KINDS | BYTE_BUFFERS
"""What no kernel writes."""
TEXTURE_SHIFT: Final = 11
TEXTURE_ROW: Final = 1 << TEXTURE_SHIFT
"""Texels of a row of it: a width that all devices of WebGPU have, those over OpenGL, too (the
limits of its compatibility mode and more), and all of Vulkan (4096)."""
LAYERS: Final = {"essl300": 4}
"""Layers of the textures of a dialect, if not 1: OpenGL ES 3.0 draws to at least four. They are a
multiple of all `StorageKind.units`."""

FIXED16_STEPS: Final = 65535
"""Steps of the range of ``rgba8_fixed16``."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of one tensor.

    Attributes
    ----------
    kind : str
    low, high : float
        The range of ``rgba8_fixed16``.
    dtype : str
        The numpy dtype of the elements that the host writes and reads. A buffer keeps their bytes
        as they are, whatever the dtype; kernels read them as they declare them. A texture converts
        from and to float32, or keeps the integers of ``rgba8_u8`` (uint8) and ``rgba8_s8`` (int8).
    """

    kind: str = BUFFER
    low: float = 0.0
    high: float = 0.0
    dtype: str = "float32"

    @property
    def about(self) -> StorageKind:
        """The facts of its kind."""
        return KINDS[self.kind]

    @property
    def texel_bytes(self) -> int:
        """Bytes of the host that one logical texel takes."""
        return 4 * _ITEM_BYTES[self.dtype]


_ITEM_BYTES: Final = {"float32": 4, "float16": 2, "uint8": 1, "int8": 1}

FLOAT32: Final = Storage()
"""Texels of float32 as they are, in a storage buffer."""
