"""What ONNX Runtime makes of a model, to compare with. The other examples import it from here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # gpuedge does so, too: before it is imported

import onnxruntime


def by_onnxruntime(model: object, inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the first output of a model, a path or bytes, on the CPU."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(inputs))[0])
