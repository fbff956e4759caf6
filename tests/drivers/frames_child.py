"""Runs models that take frames on a device; run by test_frames_run for each configuration.

``python frames_child.py DEVICE`` prints a JSON object: the level, how many pixels differ where they
are only moved, and the largest error of those that are weighed, in its bound.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from onnx import TensorProto, helper

import gpuedge

H, W, NEW = 24, 32, (13, 15)


def model(mode: str) -> bytes:
    """Return a model that gives back the image of a frame, cropped, blue first."""
    shape = [1, 3, *NEW]
    image, result = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [image], [result])
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = gpuedge.for_frames(plain, (H, W), resize=mode, crop=True, swap_rb=True, scale=1)
    return bytes(made.SerializeToString())


def main(device: str) -> None:
    """Compare with float64."""
    frame = np.random.default_rng(29).integers(0, 256, (H, W, 3), dtype=np.uint8)
    across = round(H * NEW[1] / NEW[0])
    left = (W - across) // 2
    image = frame[:, left : left + across, ::-1].transpose(2, 0, 1).astype(np.float64)
    taps, nearest = [], []
    for size, new in zip((H, across), NEW, strict=True):
        places = (np.arange(new) + 0.5) * size / new - 0.5
        distances = np.abs(np.clip(places, 0, size - 1)[:, None] - np.arange(size))
        taps.append(np.maximum(0, 1 - distances))
        nearest.append(distances.argmin(1))
    found = {}
    for mode in ("nearest", "linear"):
        with gpuedge.Session(model(mode), device=device, fallback="error") as session:
            found[mode] = session.run({"frame": frame})["y"][0]
            level = {row.device.partition(":")[0] for row in session.placement} - {"host"}
    moved = image[:, nearest[0]][..., nearest[1]]
    error = np.abs(found["linear"] - taps[0] @ image @ taps[1].T).max()
    bound = (4 + 4 * (H + W)) * 2.0**-24 * 255  # as gpuedge.resize has it
    wrong = int((found["nearest"] != moved).sum())
    print(json.dumps({"level": sorted(level), "wrong": wrong, "error": float(error / bound)}))


if __name__ == "__main__":
    main(sys.argv[1])
