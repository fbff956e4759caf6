"""The capability database: identities of devices and what is known about them.

Today it answers one question, the tuning class of a device. Does not hold known-bad drivers yet.
"""

from __future__ import annotations

from gpuedge.capdb.classes import DEVICE_CLASSES, ClassRow, classify, load

__all__ = ["DEVICE_CLASSES", "ClassRow", "classify", "load"]
