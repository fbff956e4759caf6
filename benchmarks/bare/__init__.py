"""Each GPU API with nothing in between but its binding: what gpuedge is measured against."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol


class Bare(Protocol):
    """A device opened through an API alone."""

    def work(self) -> Callable[[], bytes]:
        """Set up a copy of the float32 values 0 to 15; the result runs it and returns them."""

    def close(self) -> None:
        """Destroy it."""


def opened(level: str, api: str = "Vulkan") -> Bare:
    """Open the device that the environment chooses; only the library of `level` is loaded.

    Parameters
    ----------
    level : str
        ``vulkan``, ``gles31``, ``gles30``, ``gles20`` or ``wgpu``.
    api : str
        What a wgpu adapter uses: ``Vulkan`` or ``OpenGL``.
    """
    module, name, arguments = {
        "vulkan": ("vk", "BareVulkan", ()),
        "wgpu": ("webgpu", "BareWgpu", (api,)),
    }.get(level, ("gl", "BareGl", (f"{level[-2]}.{level[-1]}",)))
    made: Bare = getattr(import_module(f"bare.{module}"), name)(*arguments)
    return made
