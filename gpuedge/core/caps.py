"""What a device can do, as plain data. Unknown is None, never a default that looks measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from gpuedge.core.record import MOST_WHOLE, plain, read
from gpuedge.core.storage import BUFFER, HALF_BUFFER, KINDS, SIGNED_BUFFER, UNSIGNED_BUFFER


def _storages(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of storage kinds, an exact one first. Raises ValueError for anything else."""
    unknown = [name for name in names if name not in KINDS]
    if unknown or not names:
        raise ValueError(f"{unknown or 'nothing'} is no storage kind")
    if not KINDS[names[0]].is_exact or KINDS[names[0]].low is not None:
        raise ValueError(f"{names[0]!r} does not keep float32 as it is")
    return names


Count = Annotated[int, range(MOST_WHOLE)]
Size = Annotated[int, range(1, MOST_WHOLE)]
Triple = tuple[Count, Count, Count]
_BUFFERS = (BUFFER, HALF_BUFFER, UNSIGNED_BUFFER, SIGNED_BUFFER)


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits and features of one opened device, as its backend reports them.

    Sizes are in bytes and counts are plain integers. `device_class` is the tuning class of the
    capability database (``mali``, ``nvidia``, ``cpu-llvm``, ...), filled in above the seam.

    `storages` are the kinds of `gpuedge.core.storage` a kernel can read and write here, the best
    exact one for float32 first. `has_suballocation`: several tensors of one dispatch may lie in one
    buffer. `max_texture_size` counts physical texels per side (None where tensors are buffers);
    `max_storage_buffers` and `max_storage_buffer_bytes` bound the tensors of a kernel and the size
    of one (16 bytes per texel of float32) on every level, whatever they are kept in. Kernels may
    read `max_texel_buffers` of them as texel buffers of `max_texel_elements` texels, and
    `max_texture_copies` of them as textures or images of `max_copied_elements` texels, which are
    copies unless `has_texture_views`: then textures share the memory of the buffers.
    `max_outputs`: tensors one kernel can write. `dot_products`: 2 where kernels may multiply packed
    bytes and the driver says that its hardware does so, 1 where it does not say so; else 0.
    `subgroup_lanes`: invocations of a subgroup, where a kernel may take a value from a constant one
    of them; else 0. `map_texels`: neighbouring texels that an invocation of a map kernel computes,
    from a multiple of so many on. `is_finite_only`: NaN and infinities are not kept, or nothing
    promises it and no known answer told (`gpuedge.probing.kat`). `ruled_out`:
    kernel variants that are not used here (`gpuedge.capdb.restrict`).

    `has_fp16_storage` and `has_int8_storage`: kernels that users bring may declare storage buffers
    of 16-bit floats and integers, of 8-bit integers. `has_fp16_arithmetic`: kernels may compute in
    float16, with every sum, difference and product rounded to it.
    """

    IS_OPEN = True

    level: str
    dialect: str
    forms: frozenset[str]
    is_software: bool
    max_invocations: Count
    max_local_size: Triple
    max_groups: Triple
    max_shared_bytes: Count
    max_storage_buffers: Count
    max_storage_buffer_bytes: Count
    max_allocation_bytes: Count | None
    offset_alignment: Size
    max_push_bytes: Count
    has_fp16_storage: bool | None = None
    has_int8_storage: bool | None = None
    has_fp16_arithmetic: bool | None = None
    device_class: str = "generic"
    storages: Annotated[tuple[str, ...], _storages] = _BUFFERS
    has_suballocation: bool = True
    max_texture_size: Count | None = None
    max_texel_buffers: Count = 0
    max_texel_elements: Count = 0
    subgroup_lanes: Count = 0
    dot_products: Count = 0
    max_texture_copies: Count = 0
    max_copied_elements: Count = 0
    has_texture_views: bool = False
    max_outputs: Count = 1
    map_texels: Size = 1
    is_finite_only: bool = False
    ruled_out: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        record: dict[str, Any] = plain(self)
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Caps:
        """Rebuild from `to_dict`; unknown keys are ignored. Raises UnfitError.

        So it does for what no device can have: a negative count, an unknown storage.
        """
        return read(cls, record)


VULKAN_MINIMUM = Caps(
    level="vulkan",
    dialect="spirv",
    forms=frozenset({"map", "group", "raw"}),
    is_software=False,
    max_invocations=128,
    max_local_size=(128, 128, 64),
    max_groups=(65535, 65535, 65535),
    max_shared_bytes=16384,
    max_storage_buffers=4,
    max_storage_buffer_bytes=1 << 27,
    max_allocation_bytes=None,
    offset_alignment=256,
    max_push_bytes=128,
    max_outputs=4,
)
"""The limits every Vulkan 1.0 device must meet (Vulkan specification, Required Limits)."""
