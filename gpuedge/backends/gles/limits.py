"""What an opened context can do, as plain data for the layers above."""

from __future__ import annotations

import ctypes
from typing import Any

from gpuedge.backends.gles import formats, names
from gpuedge.backends.gles.gl import Gl
from gpuedge.backends.gles.stack import Format
from gpuedge.backends.gles.texture import TEXEL, row_length
from gpuedge.core.caps import Caps
from gpuedge.core.errors import DriverError
from gpuedge.core.storage import KINDS

DIALECTS = {"gles20": "essl100", "gles30": "essl300", "gles31": "essl310"}

VECTORS_PER_TENSOR = 2
"""Uniform vectors of one tensor at most: its extents, and its size and range."""

OTHER_VECTORS = 4
"""Uniform vectors kept for parameters."""

EXACT_INDEX_BYTES = 1 << 25
"""2^23 float32: OpenGL ES 2.0 counts in float32, where whole numbers above 2^24 are not all there.
Half of that leaves room for sums of indices, which compilers reorder (seen on softpipe and zink:
``a % b + t`` as ``(a + t) - b * (a / b)``)."""

MAX_BYTES = (1 << 31) - TEXEL
"""Larger buffers cannot be addressed by the signed 32-bit indices of the shaders."""

NO_LIMIT = (1 << 31) - 1
"""Of workgroups, where there are none: fragments are drawn, however a plan groups them."""

LEAST_SIDE = 64
"""Texels per side of the smallest texture limit that the specification allows."""

PUSH_BYTES = 16
"""Bytes of the block of values per tensor: its extents."""

MAX_ALIGNMENT = 4096
"""Alignments of parts of a buffer are 256 at most by the specification; such as these are a lie."""


def check(values: dict[str, int], least: int, most: int = NO_LIMIT) -> None:
    """Refuse a device whose limits cannot be.

    Raises
    ------
    DriverError (GE-405)
        One of `values` is below what every device has, or above what it may be.
    """
    for name, value in values.items():
        if not least <= value <= most:
            raise DriverError(
                "The driver's limits cannot be.",
                known=f"GL_{name} is {value}; by the specification it is {least} to {most}",
            )


def fragment_caps(
    gl: Gl, level: str, kinds: tuple[str, ...], is_software: bool, most_side: int = NO_LIMIT
) -> Caps:
    """Return the limits of a context that draws; `kinds` are the storage kinds on offer.

    Textures are at most `most_side` texels wide and high, whatever the driver says.

    Raises DriverError for limits that cannot be.
    """
    size = min(gl.integer(names.MAX_TEXTURE_SIZE), *gl.integers(names.MAX_VIEWPORT_DIMS, 2))
    size = min(size, max(LEAST_SIDE, most_side))
    units = gl.integer(names.MAX_TEXTURE_IMAGE_UNITS)
    vectors = gl.integer(names.MAX_FRAGMENT_UNIFORM_VECTORS)
    check({"MAX_TEXTURE_SIZE": size}, least=LEAST_SIDE)
    check({"MAX_TEXTURE_IMAGE_UNITS": units, "MAX_FRAGMENT_UNIFORM_VECTORS": vectors}, least=8)
    tensors = max(1, min(units + 1, (vectors - OTHER_VECTORS) // VECTORS_PER_TENSOR))
    largest = row_length(size) * size // KINDS[kinds[0]].units * TEXEL
    outputs = 1
    if level == "gles30":
        outputs = min(gl.integer(names.MAX_DRAW_BUFFERS), gl.integer(names.MAX_COLOR_ATTACHMENTS))
    return Caps(
        level=level,
        dialect=DIALECTS[level],
        forms=frozenset({"map"}),
        is_software=is_software,
        max_invocations=NO_LIMIT,
        max_local_size=(NO_LIMIT, NO_LIMIT, NO_LIMIT),
        max_groups=(NO_LIMIT, NO_LIMIT, NO_LIMIT),
        max_shared_bytes=0,
        max_storage_buffers=tensors,
        max_storage_buffer_bytes=min(
            largest, EXACT_INDEX_BYTES if level == "gles20" else MAX_BYTES
        ),
        max_allocation_bytes=None,
        offset_alignment=TEXEL,
        max_push_bytes=max(128, tensors * PUSH_BYTES + 64),
        storages=kinds,
        has_suballocation=False,
        max_texture_size=size,
        max_outputs=max(1, outputs),
        is_finite_only=kinds[0] == "rgba8_float",
    )


def compute_caps(gl: Gl, is_software: bool) -> Caps:
    """Return the limits of a context that launches compute shaders.

    Raises DriverError for limits that cannot be.
    """
    blocks = min(
        gl.integer(names.MAX_COMPUTE_STORAGE_BLOCKS),
        gl.integer(names.MAX_COMBINED_STORAGE_BLOCKS),
        gl.integer(names.MAX_STORAGE_BINDINGS),
    )
    alignment = gl.integer(names.STORAGE_OFFSET_ALIGNMENT)
    invocations = gl.integer(names.MAX_COMPUTE_INVOCATIONS)
    check({"MAX_SHADER_STORAGE_BUFFER_BINDINGS": blocks}, least=4)
    check({"MAX_COMPUTE_WORK_GROUP_INVOCATIONS": invocations}, least=128)
    check({"SHADER_STORAGE_BUFFER_OFFSET_ALIGNMENT": alignment}, least=1, most=MAX_ALIGNMENT)
    largest = ctypes.c_int64(0)
    gl.GetInteger64v(names.MAX_STORAGE_BLOCK_SIZE, ctypes.byref(largest))
    # Values go in as uniforms: four components a vector, some kept for parameters.
    components = gl.integer(names.MAX_COMPUTE_UNIFORM_COMPONENTS)
    return Caps(
        level="gles31",
        dialect=DIALECTS["gles31"],
        forms=frozenset({"map", "group"}),
        is_software=is_software,
        max_invocations=invocations,
        max_local_size=gl.indexed(names.MAX_COMPUTE_SIZE),
        max_groups=gl.indexed(names.MAX_COMPUTE_GROUPS),
        max_shared_bytes=gl.integer(names.MAX_COMPUTE_SHARED_BYTES),
        max_storage_buffers=blocks,
        max_storage_buffer_bytes=min(largest.value, MAX_BYTES),
        max_allocation_bytes=None,
        offset_alignment=max(TEXEL, alignment),
        max_push_bytes=max(128, min(components * 4, blocks * PUSH_BYTES + 64)),
        max_outputs=blocks,
    )


def offered(level: str, found: dict[str, Format], wanted: Any) -> tuple[str, ...]:
    """Return the storage kinds on offer, reduced to `wanted` (None: all)."""
    kinds = formats.storages(level, found)
    return kinds if wanted is None else tuple(k for k in kinds if k in set(wanted))
