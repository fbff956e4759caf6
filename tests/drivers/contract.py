"""The contract of an open device: what its checks are given, and the list of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import validation
from seam_kernels import Floats

from gpuedge import backends
from gpuedge.backends.base import DeviceInfo
from gpuedge.core.errors import GpuEdgeError

RNG = np.random.default_rng(7)
BIG = 1 << 15
"""Texels of a tensor that WebGPU stages, and that fills several rows of any texture."""

BUFFERS = ("vulkan", "wgpu", "gles31")
TEXTURES = ("gles20", "gles30")
GPUS = (*BUFFERS, *TEXTURES)
ALL = (*GPUS, "null")


class Site:
    """A driver's first device: what checks open, and one that they share."""

    def __init__(self, level: str, info: DeviceInfo, request: dict[str, Any]) -> None:
        self.level = level
        self.info = info
        self.request = request
        self._shared: Any = None

    @property
    def device(self) -> Any:
        """The device that checks share."""
        if self._shared is None:
            self._shared = self.open()
        return self._shared

    def open(self) -> Any:
        """Open another device; Vulkan's under the validation layer."""
        if self.level == "vulkan":
            return validation.validated(self.info)
        return backends.load(self.level).open(self.info)

    def close(self) -> None:
        """Close the device that checks share."""
        if self._shared is not None:
            self._shared.close()


Check = Callable[[Site], None]


class Rule(NamedTuple):
    """A check, the levels that it is for, and whether staged memory makes a difference to it."""

    check: Check
    levels: tuple[str, ...]
    staged: bool


RULES: dict[str, Rule] = {}
"""All checks by name, in the order in which they run."""


def rule(levels: tuple[str, ...], *, staged: bool = False) -> Callable[[Check], Check]:
    """Put a check on the list."""

    def note(check: Check) -> Check:
        RULES[check.__name__] = Rule(check, levels, staged)
        return check

    return note


@contextlib.contextmanager
def raises(kind: type[GpuEdgeError], words: str) -> Iterator[None]:
    """Expect an error of exactly this kind whose text has these words."""
    try:
        yield
    except GpuEdgeError as error:
        assert type(error) is kind, repr(error)
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def ints(count: int, most: int = 1000) -> Floats:
    """Return whole numbers, which every exact storage holds."""
    return RNG.integers(-most, most, count).astype(np.float32)
