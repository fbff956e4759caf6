"""Backends: one folder per GPU API. This registry is the only place that knows their names."""

from __future__ import annotations

import sys
from importlib import import_module

from gpuedge.core.errors import UnknownDeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuedge.backends.base import Backend

BUILTIN = {
    "metal": "gpuedge.backends.wgpu:MetalBackend",
    "dx12": "gpuedge.backends.wgpu:Dx12Backend",
    "vulkan": "gpuedge.backends.vulkan:VulkanBackend",
    "gles31": "gpuedge.backends.gles:Gles31Backend",
    "wgpu": "gpuedge.backends.wgpu:WgpuBackend",
    "gles30": "gpuedge.backends.gles:Gles30Backend",
    "gles20": "gpuedge.backends.gles:Gles20Backend",
    "null": "gpuedge.backends.null:NullBackend",
}
"""Backend name to class, in order of preference. Others are found by entry point."""

_ELSEWHERE = {"metal": "darwin", "dx12": "win32"}
"""Backends of APIs that exist on one system only, and that system (as in `sys.platform`)."""


def probed(platform: str = sys.platform) -> tuple[str, ...]:
    """Return the built-in backends that `gpuedge.probe()` tries by default, best level first."""
    skipped = {name for name, home in _ELSEWHERE.items() if home != platform}
    return tuple(name for name in BUILTIN if name not in skipped | {"null"})


PROBED = probed()
"""Built-in backends that `gpuedge.probe()` tries by default on this system."""


def names() -> list[str]:
    """Return the names of all backends that reach devices, built in and plug-ins."""
    known = dict.fromkeys([*PROBED, *BUILTIN])
    return [*(name for name in known if name != "null"), *sorted(_plugins())]


def _plugins() -> dict[str, str]:
    from importlib.metadata import entry_points

    found = entry_points(group="gpuedge.backends")
    return {e.name: e.value for e in found if e.name not in BUILTIN}


def load(name: str) -> Backend:
    """Return the backend called `name`. Its GPU library is not loaded yet.

    Raises
    ------
    UnknownDeviceError (GE-102)
        No backend has that name.
    """
    target = BUILTIN.get(name) or _plugins().get(name)
    if target is None:
        raise UnknownDeviceError(
            f"No backend is called {name!r}.", known=f"backends: {', '.join(names())}"
        )
    module, _, attribute = target.partition(":")
    backend: Backend = getattr(import_module(module), attribute)()
    return backend
