"""Runs models that take frames on a device; run by test_frames_run for each configuration.

``python frames_child.py DEVICE`` prints a JSON object: the level, how many pixels differ where they
are only moved, the largest error of those that are weighed, in its bound, how many bytes go up for
a frame, and what differs of frames that are bound, read-only, or parts of others.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import gpuedge

SIZES = (24, 32), (23, 29)  # whole words, and not
NEW = (13, 15)


def model(mode: str, size: tuple[int, int]) -> bytes:
    """Return a model that gives back the image of a frame, cropped, blue first."""
    shape = [1, 3, *NEW]
    image, result = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [image], [result])
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = gpuedge.for_frames(plain, size, resize=mode, crop=True, swap_rb=True, scale=1)
    return bytes(made.SerializeToString())


def differences(session: gpuedge.Session, frame: Any, wanted: Any) -> int:
    """Return how many numbers differ where the same frame comes in other ways."""
    read_only, wide = frame.copy(), np.zeros((frame.shape[0], 2 * frame.shape[1], 3), np.uint8)
    read_only.setflags(write=False)
    wide[:, ::2] = frame
    results = [session.run({"frame": x})["y"] for x in (read_only, wide[:, ::2])]
    memory = session.input("frame")
    assert memory.dtype == np.uint8
    bound = session.bind({"frame": memory})
    for factor in (0, 1):
        memory[...] = frame * factor
        results.append(np.asarray(bound.run()["y"]) + wanted * (1 - factor))
    return sum(int((result != wanted).sum()) for result in results)


def found(device: str, size: tuple[int, int]) -> dict[str, Any]:
    """Compare frames of a size with float64."""
    h, w = size
    frame = np.random.default_rng(29).integers(0, 256, (h, w, 3), dtype=np.uint8)
    across = round(h * NEW[1] / NEW[0])
    left = (w - across) // 2
    image = frame[:, left : left + across, ::-1].transpose(2, 0, 1).astype(np.float64)
    taps, nearest = [], []
    for old, new in zip((h, across), NEW, strict=True):
        places = (np.arange(new) + 0.5) * old / new - 0.5
        distances = np.abs(np.clip(places, 0, old - 1)[:, None] - np.arange(old))
        taps.append(np.maximum(0, 1 - distances))
        nearest.append(distances.argmin(1))
    results, differing = {}, 0
    for mode in ("nearest", "linear"):
        with gpuedge.Session(model(mode, size), device=device, fallback="error") as session:
            results[mode] = session.run({"frame": frame})["y"]
            differing += differences(session, frame, results[mode])
            level = {row.device.partition(":")[0] for row in session.placement} - {"host"}
            steps = session.profile({"frame": frame})["steps"]
            (uploaded,) = (step["nbytes"] for step in steps if step["ops"] == ["upload"])
    moved = image[:, nearest[0]][..., nearest[1]]
    error = np.abs(results["linear"][0] - taps[0] @ image @ taps[1].T).max()
    bound = (4 + 4 * (h + w)) * 2.0**-24 * 255  # as gpuedge.resize has it
    wrong = int((results["nearest"][0] != moved).sum())
    return {
        "level": sorted(level), "wrong": wrong, "error": float(error / bound),
        "uploaded": uploaded, "differing": differing,
    }  # fmt: skip


def main(device: str) -> None:
    """Print what was found of frames of both sizes."""
    print(json.dumps([found(device, size) for size in SIZES]))


if __name__ == "__main__":
    main(sys.argv[1])
