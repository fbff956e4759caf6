"""Latencies of fixed graphs on a device and on the CPU path, and the traces they are kept in."""

from __future__ import annotations

SCHEMA = "gpuedge.trace/2"
"""Format of a trace: the schema of the sealed file."""
