"""gpuedge: use the GPU of an unknown device safely, and the CPU where it is not worth it."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take this name as true; importing typing costs 10 ms
__version__ = "0.1.0"
