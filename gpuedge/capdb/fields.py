"""The words of ``entries.schema.json``, and the ranges of numbers that conditions are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

APIS: Final = ("vulkan", "gles", "metal", "d3d12", "wgpu")
LEVELS: Final = ("vulkan", "gles31", "gles30", "gles20", "wgpu")
OPERATING_SYSTEMS: Final = ("android", "linux", "windows", "macos", "ios", "chromeos")
LAYERS: Final = (
    "native", "angle", "moltenvk", "kosmickrisp", "venus", "virgl", "dozen", "zink", "emulator",
    "d3d12-gl",
)  # fmt: skip
VENDORS: Final = (
    "qualcomm", "arm", "imagination", "apple", "nvidia", "intel", "amd", "samsung", "huawei",
    "broadcom", "vivante", "mesa-software", "swiftshader", "microsoft",
)  # fmt: skip
FAMILIES: Final = {
    "adreno": "qualcomm",
    "mali-utgard": "arm",
    "mali-midgard": "arm",
    "mali-bifrost": "arm",
    "mali-valhall": "arm",
    "mali-5thgen": "arm",
    "powervr-sgx": "imagination",
    "powervr-rogue": "imagination",
    "powervr-volcanic": "imagination",
    "tegra": "nvidia",
    "geforce": "nvidia",
    "v3d": "broadcom",
    "videocore4": "broadcom",
    "xclipse": "samsung",
    "maleoon": "huawei",
    "intel-gen7": "intel",
    "intel-gen8": "intel",
    "intel-gen9": "intel",
    "intel-gen11": "intel",
    "intel-xe": "intel",
    "intel-xe2": "intel",
    "rdna1": "amd",
    "rdna2": "amd",
    "rdna3": "amd",
    "rdna4": "amd",
    "gcn": "amd",
    "apple-m": "apple",
    "apple-a": "apple",
}
"""Families of GPUs, and the vendor whose name each belongs to."""

SCHEMES: Final = (
    "vk-adreno", "vk-arm", "vk-mesa", "vk-nvidia", "vk-intel-win", "vk-amd", "vk-moltenvk",
    "vk-img-build", "vk-samsung", "vk-raw", "vk-api", "gl-es", "gl-adreno", "gl-mali", "gl-img",
    "gl-mesa", "gl-nvidia", "gl-tegra", "gl-vivante", "gl-xclipse", "gl-apple", "adreno-compiler",
    "win-wddm", "linux-nvidia", "linux-kernel", "macos", "emulator-host",
)  # fmt: skip
FEATURES: Final = (
    "fp16", "fp16-storage", "int8", "int8-storage", "int64", "subgroups", "subgroup-arithmetic",
    "cooperative-matrix", "integer-dot", "images", "float-textures", "half-textures",
    "integer-textures", "texel-buffers", "group-kernels", "shared-memory", "atomics",
    "pipeline-cache", "suballocation", "buffer-device-address", "async-compute", "transfer-queue",
    "mapped-device-memory", "external-memory", "timestamps", "push-constants", "uniform-buffers",
    "robust-access", "multiple-outputs", "framebuffer-fetch", "program-binary", "memory-priority",
    "specialization", "float64", "image-arrays", "dynamic-indexing", "copy-image",
    "several-devices",
)  # fmt: skip
STORAGES: Final = (
    "rgba32f", "rgba32ui", "rgba16f", "rgba8_float", "rgba8_fixed16", "rgba8_u8", "rgba8_s8",
)  # fmt: skip
LIMITS: Final = (
    "max_invocations", "max_shared_bytes", "max_storage_buffers", "max_storage_buffer_bytes",
    "max_allocation_bytes", "max_push_bytes", "max_texture_size", "max_outputs",
)  # fmt: skip
TESTS: Final = ("standard", "kernels", "half", "storages", "large", "repeat")
STATES: Final = ("proposed", "canary", "active", "retired")
EFFECTS: Final = (
    "crash_at_load", "crash", "hang", "wrong_result", "corrupt_pipeline_cache", "leak",
    "feature_broken", "feature_misreported", "unexplained", "slow",
)  # fmt: skip
KINDS_OF_DEVICE: Final = ("DISCRETE_GPU", "INTEGRATED_GPU", "VIRTUAL_GPU", "CPU", "OTHER")


@dataclass(frozen=True, slots=True)
class Range:
    """``low <= x < below`` over whole numbers, versions or dates; None leaves a side open."""

    low: Any = None
    below: Any = None

    def holds(self, value: Any) -> bool:
        """Say whether a value lies in the range."""
        return (self.low is None or self.low <= value) and (
            self.below is None or value < self.below
        )


@dataclass(frozen=True, slots=True)
class DeviceIds:
    """Ids of devices: ``first <= x <= last``, or ``x & mask == value``."""

    spans: tuple[tuple[int, int], ...] = ()
    masks: tuple[tuple[int, int], ...] = ()

    def holds(self, number: int) -> bool:
        """Say whether an id is one of these."""
        return any(first <= number <= last for first, last in self.spans) or any(
            number & mask == value for value, mask in self.masks
        )


def stripped(version: Sequence[int]) -> tuple[int, ...]:
    """Return a version without trailing zeros.

    Versions of different length compare as if the shorter one were padded by zeros; without
    trailing zeros, tuples compare just so.
    """
    end = len(version)
    while end and not version[end - 1]:
        end -= 1
    return tuple(version[:end])
