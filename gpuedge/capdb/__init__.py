"""The capability database: identities of devices and what is known about them.

`lookup` judges a device by the entries about drivers; `classify` gives its tuning class, `model`
the name that is the same under every API.
"""

from __future__ import annotations

from gpuedge.capdb.classes import DEVICE_CLASSES, ClassRow, classify, load
from gpuedge.capdb.identity.names import NameRules, load_names, model
from gpuedge.capdb.judgement import Judgement, lookup
from gpuedge.capdb.restrict import Restrictions

__all__ = [
    "DEVICE_CLASSES", "ClassRow", "Judgement", "NameRules", "Restrictions", "classify", "load",
    "load_names", "lookup", "model",
]  # fmt: skip
