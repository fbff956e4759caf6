"""A model compiled for the shapes of inputs that came last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuedge.runtime.compiled import Compiled
    from gpuedge.runtime.placing import Request

Shapes = tuple[tuple[int, ...], ...]

MAX_SHAPES = 8
"""Sets of input shapes kept compiled; the least recently used one is dropped."""


class Compiles(Protocol):
    """What makes a compiled model."""

    def compile(self, shapes: Shapes, request: Request) -> Compiled:
        """Compile the model for these input shapes. Raises GpuEdgeError."""


class Variants:
    """Compiled models by input shapes.

    Parameters
    ----------
    compiler : Compiles
    request : Request

    Attributes
    ----------
    lock : RLock
        For users that take no turns.
    """

    def __init__(self, compiler: Compiles, request: Request) -> None:
        self.lock = threading.RLock()
        self._compiler = compiler
        self._request = request
        self._ready: OrderedDict[Shapes, Compiled] = OrderedDict()

    def get(self, shapes: Shapes) -> Compiled:
        """Return the compiled model for these input shapes."""
        ready = self._ready.get(shapes)
        if ready is None:
            ready = self._ready[shapes] = self._compiler.compile(shapes, self._request)
            if len(self._ready) > MAX_SHAPES:
                self._ready.popitem(last=False)[1].close()
        self._ready.move_to_end(shapes)
        return ready

    def close(self) -> None:
        """Close and forget all of them."""
        with self.lock:
            ready, self._ready = self._ready, OrderedDict()
        for one in ready.values():
            one.close()
