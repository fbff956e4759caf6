"""Conformance: does a device compute what it should? Named cases, run in child processes.

Every operation of gpuedge, on shapes picked to hurt and shapes drawn from their names, with numbers
that must come back bit for bit or within a derived bound of a float64 reference that shares no code
with the kernels. Run by ``gpuedge conformance run --device D``; see ``docs/conformance.md``.
"""

from __future__ import annotations

SCHEMA = "gpuedge.conformance/1"
"""Of the summary, and of the first row of a file of results."""
