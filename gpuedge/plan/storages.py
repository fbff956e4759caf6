"""How the tensors of a plan are kept: exactly, or in less memory where that was asked for.

The exact storage of a device is the first of `Caps.storages`. Bytes (int8, uint8) that come from
the host stay bytes, which kernels only read; others take a quarter of the exact storage where that
spends a texel on every number. float16 and 16-bit fixed point are asked
for by `StoragePrecision`; what they cannot hold stays exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, frexp, inf, isfinite, ldexp
from typing import Final

import numpy as np

from gpuedge.core.caps import Caps
from gpuedge.core.dtypes import ACCEPTED as FLOATS
from gpuedge.core.errors import NotFiniteError
from gpuedge.core.storage import (
    BYTE_BUFFERS,
    BYTE_DTYPES,
    COPIED_AS,
    FIXED16_STEPS,
    HALF_BUFFER,
    LOADED_AS,
    READ_AS,
    TEXTURE_KINDS,
    Storage,
)
from gpuedge.graph.ir import Array
from gpuedge.opset.packed import keeps_codes
from gpuedge.opset.tensor import Tensor
from gpuedge.plan.layout import FOLD, TEXEL
from gpuedge.plan.library import reads
from gpuedge.plan.plan import Pass, Plan, PlanTensor

Range = tuple[float, float]
"""The lowest and the highest of some numbers."""

UNBOUNDED: Final[Range] = (-inf, inf)
"""The range of numbers of which one is infinite or NaN."""

FLOAT_TEXEL: Final = "rgba8_float"
FIXED: Final = "rgba8_fixed16"
HALVES: Final = {HALF_BUFFER: Storage(HALF_BUFFER, dtype="float16"), "rgba16f": Storage("rgba16f")}
"""Storages of float16 by their kind."""
BYTES: Final = {"uint8": "rgba8_u8", "int8": "rgba8_s8"}

HALF_MAX: Final = 65504.0
"""Largest finite float16."""

STEP_BITS: Final = 8
"""Significant bits of a fixed-point step. With 16 bits for the multiple that makes 24, so that
float32 holds every value that can be stored exactly, zero among them, fused multiplication or not;
a step grows by at most 1 part in 128."""

WIDEST: Final = 2.0**120
NARROWEST: Final = 2.0**-100
"""Ranges wider or narrower than these are kept exactly: their steps would leave float32."""


@dataclass(frozen=True)
class StoragePrecision:
    """How the user wants tensors kept and computed: `Policy.storage` with what it needs.

    Attributes
    ----------
    kind : str
        ``float32`` (the exact storage), ``float16`` or ``fixed16``.
    ranges : mapping
        Lowest and highest of graph values, where they are known; only ``fixed16`` needs them.
    arithmetic : str
        `Policy.arithmetic`: ``float32``, or ``float16`` where the device offers it (`lacks`).
    """

    kind: str = "float32"
    ranges: Mapping[str, Range] = field(default_factory=dict)
    arithmetic: str = "float32"


EXACT: Final = StoragePrecision()


def offers(caps: Caps, precision: str) -> bool:
    """Tell whether a device can keep tensors as `Policy.storage` asks, other than exactly."""
    kinds = {"float16": tuple(HALVES), "fixed16": (FIXED,)}.get(precision, ())
    return any(kind in caps.storages for kind in kinds)


def lacks(caps: Caps, arithmetic: str) -> str:
    """Return why a device does not compute as `Policy.arithmetic` asks; empty if it does."""
    if arithmetic == "float32" or caps.has_fp16_arithmetic:
        return ""
    return f"the {caps.level} level offers no {arithmetic} arithmetic on this device"


def fixed16(low: float, high: float) -> Storage | None:
    """Return the fixed-point storage that holds `low` to `high` and, exactly, zero.

    Unused lanes of packed layouts are zero, hence that. None where float32 could not hold the
    steps of such a range.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    width = high - low
    if not isfinite(width) or width > WIDEST or 0.0 < width < NARROWEST:
        return None
    step = _short((width or 1.0) / FIXED16_STEPS)
    below = ceil(-low / step)
    while below + ceil(high / step) > FIXED16_STEPS:
        step = _short(step * (1 + 2.0**-STEP_BITS))
        below = ceil(-low / step)
    return Storage(FIXED, -below * step, (FIXED16_STEPS - below) * step)


def _short(step: float) -> float:
    """Return the least number of `STEP_BITS` significant bits that is not below `step`."""
    mantissa, exponent = frexp(step)
    return ldexp(ceil(ldexp(mantissa, STEP_BITS)), exponent - STEP_BITS)


def input_storage(dtype: str, caps: Caps) -> Storage | None:
    """Return how bytes from the host are kept as they are; None for others, or where not."""
    kinds = [kind for kind, kept in BYTE_DTYPES.items() if kept == dtype and kind in caps.storages]
    return Storage(kinds[0], *_limits(dtype), dtype) if kinds else None


def range_of(array: Array) -> Range:
    """Return the lowest and the highest element; `UNBOUNDED` where one is not finite."""
    if not array.size:
        return 0.0, 0.0
    low, high = float(array.min()), float(array.max())  # NaN, if there is one, is both
    return (low, high) if isfinite(low) and isfinite(high) else UNBOUNDED


def is_finite(array: Array) -> bool:
    """Tell whether an array has neither NaN nor infinity as float32."""
    if array.dtype.kind in "iub":
        return True
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.asarray(array, np.float32)).all())


def require_finite(device: str, names: Sequence[str], arrays: Sequence[Array]) -> None:
    """Raise NotFiniteError (GE-205) for NaN or infinity."""
    for name, array in zip(names, arrays, strict=True):
        if not is_finite(array):
            raise NotFiniteError(
                f"'{name}' holds NaN or infinity, which {device} does not keep.",
                known="numbers are kept there in the bytes of a texture",
                hint="device='auto' or device='cpu' computes it",
            )


class Storages:
    """Chooses storages for the tensors of one plan, by name: see `Context`."""

    def __init__(
        self,
        dtypes: Mapping[str, str],
        constants: Mapping[str, Array],
        caps: Caps,
        precision: StoragePrecision = EXACT,
    ) -> None:
        self.exact = Storage(caps.storages[0])
        self._dtypes = dtypes
        self._constants = constants
        self._ranges = dict(precision.ranges)
        self._most_bytes = min(
            caps.max_storage_buffer_bytes,
            caps.max_allocation_bytes or caps.max_storage_buffer_bytes,
        )
        self._small = precision.kind if offers(caps, precision.kind) else ""
        self._half = next((s for kind, s in HALVES.items() if kind in caps.storages), self.exact)
        self._takes_floats = "floats" in reads(caps.device_class)
        self._inputs = {dtype: input_storage(dtype, caps) for dtype in BYTES}
        self._bytes = {
            dtype: Storage(kind, *_limits(dtype))
            for dtype, kind in BYTES.items()
            if caps.storages[0] == FLOAT_TEXEL and kind in caps.storages
        }

    def of(self, value: str) -> Storage:
        """Return the storage of a tensor that holds a graph value."""
        return self.of_all((value,))

    def of_input(self, value: str) -> Storage:
        """Return the storage of what the host writes before each run."""
        return self._inputs.get(self._dtypes.get(value, "")) or self.of(value)

    def keeps(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is a constant of bytes that stay bytes on this device."""
        return keeps_codes(tensor) and self._inputs.get(tensor.dtype) is not None

    def of_weights(self, *tensors: Tensor) -> Storage | None:
        """Return how constant weights of int8 are kept as bytes; None where floats are faster.

        `tensors` after the first are laid out with it.
        """
        codes = tensors[0]
        kept = self._inputs.get(codes.dtype) if keeps_codes(codes) else None
        if kept is None or codes.dtype != "int8" or any(t.array is None for t in tensors):
            return None
        return None if kept.kind in BYTE_BUFFERS and self._takes_floats else kept

    def most_elements(self, tensor: Tensor) -> int:
        """Return how many elements of a constant one binding holds in C order, in whole rows."""
        kept = self._inputs.get(tensor.dtype) if self.keeps(tensor) else None
        storage = kept or self._bytes.get(tensor.dtype, self.exact)
        texels = self._most_bytes // bound_bytes(TEXEL, storage)
        return 4 * max(1, texels - texels % FOLD if texels > FOLD else texels)

    def is_input(self, storage: Storage, value: str) -> bool:
        """Tell whether only an input is kept so: kernels would keep that value otherwise."""
        return storage.dtype in BYTES and storage.kind != self.of(value).kind

    def written(self, storage: Storage) -> Storage:
        """Return the storage of a tensor that a kernel makes of one in `storage` by moving it."""
        if storage.dtype in BYTES:
            return self._bytes.get(storage.dtype, self.exact)
        return storage

    def of_all(self, values: Iterable[str]) -> Storage:
        """Return the storage of a tensor made of several graph values, such as packed weights."""
        values = tuple(values)
        exact = self.exact_of(values)
        if not self._small or any(self._dtypes.get(v) not in FLOATS for v in values):
            return exact
        ranges = [self._range(value) for value in values]
        known = [r for r in ranges if r is not None]
        if self._small == "float16":
            fits = all(max(-low, high) <= HALF_MAX for low, high in known)
            return self._half if fits else exact
        if len(known) < len(ranges):
            return exact
        low, high = min(low for low, _ in known), max(high for _, high in known)
        return fixed16(low, high) or exact

    def exact_of(self, values: Iterable[str]) -> Storage:
        """Return the smallest storage that keeps graph values exactly whatever they hold."""
        dtypes = {self._dtypes.get(v, "") for v in values}
        return self._bytes.get(dtypes.pop(), self.exact) if len(dtypes) == 1 else self.exact

    def _range(self, value: str) -> Range | None:
        if value in self._constants and value not in self._ranges:
            self._ranges[value] = range_of(np.asarray(self._constants[value], np.float32))
        return self._ranges.get(value)


def bound_bytes(nbytes: int, storage: Storage) -> int:
    """Return what a tensor takes of `Caps.max_storage_buffer_bytes`, from its bytes as float32.

    Textures of bytes have as many texels as those of floats, and these are limited.
    """
    is_texture = storage.kind in BYTES.values()
    return nbytes if is_texture else nbytes // TEXEL * storage.texel_bytes


def kernel_kinds(launch: Pass, tensors: Mapping[str, PlanTensor], caps: Caps) -> dict[str, str]:
    """Return the storage kind that the kernel of a pass is printed for, by its tensors' names.

    Where a class of devices reads texels faster through its units for textures
    (``variants.toml``), tensors that the pass only reads are read so, as far as the device's limits
    reach: as texel buffers, else as textures or images.
    """
    ways = reads(caps.device_class)
    buffers = caps.max_texel_buffers if "texels" in ways else 0
    copy_of = LOADED_AS if "images" in ways and not caps.has_texture_views else COPIED_AS
    copies = caps.max_texture_copies if ways & {"textures", "images"} else 0
    kinds = {}
    for name, value in launch.tensors.items():
        tensor = tensors[value]
        kind = tensor.storage.kind
        size = tensor.layout.nbytes // TEXEL
        if value not in launch.outputs and kind in READ_AS:
            if buffers and size <= caps.max_texel_elements:
                kind, buffers = READ_AS[kind], buffers - 1
            elif copies and size <= caps.max_copied_elements:
                kind, copies = copy_of[kind], copies - 1
        kinds[name] = kind
    return kinds


def copied(plan: Plan, caps: Caps) -> set[str]:
    """Return the tensors that kernels of a plan read of copies in textures."""
    if caps.has_texture_views:
        return set()
    return {
        launch.tensors[name]
        for launch in plan.passes
        for name, kind in kernel_kinds(launch, plan.tensors, caps).items()
        if kind in TEXTURE_KINDS
    }


def _limits(dtype: str) -> Range:
    about = np.iinfo(dtype)
    return float(about.min), float(about.max)
