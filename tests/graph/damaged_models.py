"""Damages a model many times and loads and runs what is left; run by test_damaged_models.

``python damaged_models.py MODEL FIRST COUNT`` prints the number of each case before trying it (so
that a crash names its case), then what came of it; anything but a GpuEdgeError is a traceback.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import onnx

import gpuedge

DIGITS = Path(__file__).parents[2] / "examples" / "models" / "digits.onnx"


def flippable(data: bytes) -> list[int]:
    """Return the positions outside large weights, where a flip would only change a number."""
    inside: set[int] = set()
    for tensor in onnx.ModelProto.FromString(data).graph.initializer:
        raw = tensor.raw_data
        if len(raw) > 64:
            start = data.find(raw)
            inside.update(range(start, start + len(raw)))
    return [i for i in range(len(data)) if i not in inside]


def damage(data: bytes, places: list[int], seed: int) -> bytes:
    """Return `data` with one to four bits flipped, or, every sixth time, cut short."""
    rng = random.Random(seed)
    if seed % 6 == 5:
        return data[: rng.randrange(len(data))]
    damaged = bytearray(data)
    for place in rng.choices(places, k=rng.choice([1, 1, 2, 4])):
        damaged[place] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def attempt(data: bytes) -> str:
    """Load and run a model; return the class of the error, or that there was none."""
    try:
        with gpuedge.Session(data, device="cpu") as session:
            feeds = {}
            for name, (dtype, dims) in session.inputs.items():
                shape = [d if isinstance(d, int) and d < 1000 else 2 for d in dims or ()]
                feeds[name] = np.ones(shape, dtype)
            session.run(feeds)
    except gpuedge.GpuEdgeError as error:
        str(error)
        return type(error).__name__
    return "ran"


def main() -> None:
    path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    data = Path(path).read_bytes()
    places = flippable(data)
    for seed in range(first, first + count):
        print(seed, end=" ", flush=True)
        print(attempt(damage(data, places, seed)), flush=True)


if __name__ == "__main__":
    main()
