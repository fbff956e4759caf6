"""Arguments of wrong types: every public function answers with an error of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuedge

MODEL = str(Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx")
SHAPES = {"image": (1, 1, 8, 8)}
SAMPLE = [{"image": np.zeros((1, 1, 8, 8), np.float32)}]
WRONG: list[Any] = [
    5, float("nan"), "nonsense", b"x", [3], {"a": 1}, object(), (), True, {3: 4}, [None],
    np.ones(3), [{"image": "a"}], {"image": 5}, {"image": "a"}, {"image": (1, 1.5, 8, 8)},
    lambda *_: 1,
]  # fmt: skip
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "pack": (gpuedge.pack, {"model": MODEL, "path": "x.gpuedge", "shapes": SHAPES}),
    "quantize": (gpuedge.quantize, {"model": MODEL, "calibration": SAMPLE}),
    "quantize weights": (gpuedge.quantize, {"model": MODEL, "weights": "int4"}),
    "quantization_error": (
        gpuedge.quantization_error, {"model": MODEL, "quantized": MODEL, "samples": SAMPLE},
    ),
    "Session": (gpuedge.Session, {"model": MODEL, "device": "cpu"}),
    "check": (gpuedge.check, {"model": MODEL, "device": "cpu", "shapes": SHAPES}),
    "open": (gpuedge.open, {"device": "cpu"}),
    "Policy": (gpuedge.Policy, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_every_argument(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, usual = CALLS[name]
    bare = list[str]()
    monkeypatch.chdir(tmp_path)  # some of these are paths that can be written
    for argument in inspect.signature(call).parameters:
        for wrong in WRONG:
            try:
                made = call(**{**usual, argument: wrong})
            except gpuedge.GpuEdgeError as error:
                assert error.what
            except Exception as error:
                bare.append(f"{argument}={wrong!r}: {error!r}")
            else:
                getattr(made, "close", lambda: None)()
    assert bare == []
