"""Prints how many quotients near ties are rounded to other integers than numpy's.

Once as the driver divides, and twice as one that is 2 ULP off, up or down: software rasterisers
divide exactly, and would say nothing of what real GPUs need.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from onnx import TensorProto, helper

import gpuedge
from gpuedge.opset.functions import HELPERS

DIVISION = "float q = a / b;"
OFF = {"as it is": 1.0, "up": 1 + 2.0**-22, "down": 1 - 2.0**-22}
STEP = np.float32(0.019607844)


def model(kind: int, size: int) -> bytes:
    x, y = (helper.make_tensor_value_info(n, t, (size,)) for n, t in (("x", 1), ("y", kind)))
    held = [helper.make_tensor("s", TensorProto.FLOAT, (), [STEP]),
            helper.make_tensor("z", kind, (), [3])]  # fmt: skip
    graph = helper.make_graph([helper.make_node("QuantizeLinear", "xsz", "y")], "g", [x], [y], held)
    opset = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())


def near_ties(low: int, high: int) -> np.ndarray:
    """Return numbers whose quotients lie within four units in the last place of a tie."""
    rng = np.random.default_rng(high)
    ties = rng.integers(low - 5, high + 5, 4000) + 0.5
    away = rng.integers(-4, 5, 4000) * 2.0**-24
    return np.concatenate([(ties * STEP * (1 + away)), [0.0, 1e30, -1e30]]).astype(np.float32)


def wrong(device: str, text: dict[str, str], factor: float) -> dict[str, int]:
    """Return how many codes are wrong, and how many would be if quotients were rounded."""
    for name, one in text.items():
        assert DIVISION in one
        HELPERS[name] = one.replace(DIVISION, f"float q = a / b * {factor!r};")
    found = {"wrong": 0, "would be": 0}
    for kind, low, high in ((TensorProto.UINT8, 0, 255), (TensorProto.INT16, -32768, 32767)):
        x = near_ties(low, high)
        wanted, naive = (
            np.clip(np.rint(x / STEP * np.float32(f)) + 3, low, high) for f in (1.0, factor)
        )
        plain = gpuedge.Policy(crosscheck=0.0)
        with gpuedge.Session(
            model(kind, x.size), device=device, policy=plain, fallback="error"
        ) as session:
            found["wrong"] += int((session.run({"x": x})["y"] != wanted).sum())
        found["would be"] += int((naive != wanted).sum())
    return found


def main() -> None:
    gpuedge.probe(deadline_s=60.0)
    text = {name: HELPERS[name] for name in ("steps10_1", "steps18_1")}
    found = {name: wrong(sys.argv[1], text, factor) for name, factor in OFF.items()}
    print(json.dumps(found))


main()
