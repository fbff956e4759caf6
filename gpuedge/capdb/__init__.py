"""The capability database: identities of devices and what is known about them.

It answers two questions: the tuning class of a device, and which names mean the same model. Does
not hold known-bad drivers yet.
"""

from __future__ import annotations

from gpuedge.capdb.classes import DEVICE_CLASSES, ClassRow, classify, load
from gpuedge.capdb.names import NameRules, load_names, model

__all__ = [
    "DEVICE_CLASSES", "ClassRow", "NameRules", "classify", "load", "load_names", "model",
]  # fmt: skip
