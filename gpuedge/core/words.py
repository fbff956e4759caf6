"""Fixed words of the public API, as types for annotations. What each does is told where it is used.

They are `typing.Literal`, so that type checkers refuse other words and editors offer these.
"""

from __future__ import annotations

from typing import Literal

DeviceName = (
    Literal["auto", "cpu", "vulkan", "gles31", "gles30", "gles20", "wgpu", "metal", "dx12"] | str
)
Fallback = Literal["cpu", "error"]
Isolation = Literal["inline", "process"]
Activation = Literal[
    "relu", "leaky_relu", "elu", "sigmoid", "tanh", "hard_swish", "relu6", "silu", "gelu"
]
PadMode = Literal["constant", "edge", "reflect", "wrap"]
ResizeMode = Literal["linear", "nearest", "cubic"]
StoragePrecision = Literal["float32", "float16", "fixed16"]
Arithmetic = Literal["float32", "float16"]
WhenToDecide = Literal["service", "load"]
Tuning = Literal["off", "fast", "full"]
ProbeStatus = Literal["ok", "absent", "broken", "blocked", "wrong", "timeout", "crashed"]

__all__ = [
    "Activation", "Arithmetic", "DeviceName", "Fallback", "Isolation", "PadMode",
    "ProbeStatus", "ResizeMode", "StoragePrecision", "Tuning", "WhenToDecide",
]  # fmt: skip
