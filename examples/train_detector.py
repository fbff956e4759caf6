"""What you will see: a tiny detector learns to find digits in a photograph, in a minute.

Trains with plain numpy on scikit-learn's 8x8 digits, painted into pieces of its two photographs,
and writes an ONNX model from a camera's frame to boxes. The committed ``models/detector.onnx`` came
from this script with its default arguments.
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from learn import model_of, write
from onnx import TensorProto, helper
from photo import load_photo
from train_digits import load_split

split = cache(load_split)
Array = npt.NDArray[Any]
HEIGHT, WIDTH = 240, 320  # of a frame
SIDE, STEP = 24, 8  # of a window, and how far the next one is away
NOTHING = 10  # the class of windows without a digit in their middle
SAMPLES, BATCH = 4096, 64
BEST, MOST = 100, 20  # windows that boxes are chosen from, and how many at most
LAYERS = ((3, 12, 3, 2), (12, 24, 3, 2), (24, 48, 5, 2), (48, 11, 1, 1))
"""Channels in and out, side and stride of each convolution; together they see one window."""


# --- pictures ------------------------------------------------------------------------------------


def painted(ground: Array, digit: Array, top: int, left: int, colour: Array) -> None:
    """Paint a digit, three times as large and smoothed, into a picture (3, H, W) from 0 to 1."""
    large = digit.repeat(3, 0).repeat(3, 1)
    padded = np.pad(large, 1)
    ink = sum(padded[i : i + SIDE, j : j + SIDE] for i in range(3) for j in range(3)) / 9
    y, x = max(top, 0), max(left, 0)
    part = ground[:, y : top + SIDE, x : left + SIDE]
    ink = ink[y - top :, x - left :][: part.shape[1], : part.shape[2]]
    part += np.clip(1.5 * ink, 0, 1) * (colour[:, None, None] - part)


def bright(rng: np.random.Generator) -> Array:
    """Return a colour of chalk."""
    return rng.uniform(0.8, 1.0, 3).astype(np.float32)


def scene(seed: int, count: int = 10) -> tuple[Array, list[tuple[int, int, int]]]:
    """Return a frame (H, W, 3) of bytes, blue first, and what is in it: (top, left, digit).

    Neither the digits nor this part of the photograph were trained on.
    """
    rng = np.random.default_rng(seed)
    _, _, digits, labels = split()
    ground = load_photo("china.jpg")[:, 0, -HEIGHT:, -WIDTH:] * np.float32(0.8)
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        top, left = int(rng.integers(HEIGHT - SIDE)), int(rng.integers(WIDTH - SIDE))
        if all(max(abs(top - y), abs(left - x)) > SIDE + 4 for y, x, _ in found):
            pick = int(rng.integers(len(digits)))
            painted(ground, digits[pick, 0], top, left, bright(rng))
            found.append((top, left, int(labels[pick])))
    frame = (np.clip(ground, 0, 1) * 255).round().astype(np.uint8)
    return np.ascontiguousarray(frame[::-1].transpose(1, 2, 0)), found


def windows(rng: np.random.Generator, grounds: list[Array], count: int) -> tuple[Array, Array]:
    """Return windows (N, 3, SIDE, SIDE) and their classes: half have a digit in their middle.

    Of the others half have one at their edge, which is not to be found there.
    """
    digits, labels, _, _ = split()
    x, y = np.empty((count, 3, SIDE, SIDE), np.float32), np.full(count, NOTHING)
    for i in range(count):
        ground = grounds[int(rng.integers(len(grounds)))]
        top, left = (int(rng.integers(n - SIDE)) for n in ground.shape[1:])
        x[i] = ground[:, top : top + SIDE, left : left + SIDE] * rng.uniform(0.5, 1.0)
        kind = i % 4
        if kind == 3:
            continue
        pick = int(rng.integers(len(digits)))
        shift = rng.integers(-4, 5, 2)
        if kind == 2:
            axis = int(rng.integers(2))
            shift = rng.integers(-16, 17, 2)
            shift[axis] = rng.choice([-1, 1]) * rng.integers(9, 18)
        else:
            y[i] = labels[pick]
        painted(x[i], digits[pick, 0], int(shift[0]), int(shift[1]), bright(rng))
    return x, y


# --- learning ------------------------------------------------------------------------------------


def columns(x: Array, side: int, stride: int) -> Array:
    """Unfold neighbourhoods: (N, C, H, W) to (N, h, w, C * side * side)."""
    seen = np.lib.stride_tricks.sliding_window_view(x, (side, side), axis=(2, 3))
    part = seen[:, :, ::stride, ::stride]
    n, c, h, w = part.shape[:4]
    return part.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * side * side)


def fold(cols: Array, shape: tuple[int, ...], side: int, stride: int) -> Array:
    """Add neighbourhoods back onto the image: the transpose of `columns`."""
    n, h, w, _ = cols.shape
    parts = cols.reshape(n, h, w, shape[1], side, side).transpose(4, 5, 0, 3, 1, 2)
    image = np.zeros(shape, cols.dtype)
    for i in range(side):
        for j in range(side):
            image[:, :, i : i + h * stride : stride, j : j + w * stride : stride] += parts[i, j]
    return image


def gradients(p: list[Array], x: Array, classes: Array) -> tuple[list[Array], float]:
    """Return gradients of the mean cross entropy for a batch, and the share that is right."""
    inputs, unfolded = [x], []
    for i, (_, out, side, stride) in enumerate(LAYERS):
        unfolded.append(columns(inputs[i], side, stride))
        y = unfolded[i] @ p[2 * i].reshape(out, -1).T + p[2 * i + 1]
        is_last = i == len(LAYERS) - 1
        inputs.append((y if is_last else np.maximum(y, 0)).transpose(0, 3, 1, 2))
    logits = inputs[-1][:, :, 0, 0]
    odds = np.exp(logits - logits.max(1, keepdims=True))
    grad = odds / odds.sum(1, keepdims=True)
    grad[np.arange(len(grad)), classes] -= 1
    back = (grad / len(grad))[:, None, None]
    found: list[Array] = []
    for i in reversed(range(len(LAYERS))):
        _, out, side, stride = LAYERS[i]
        flat, cols = back.reshape(-1, out), unfolded[i].reshape(-1, unfolded[i].shape[-1])
        found += [flat.sum(0), (flat.T @ cols).reshape(p[2 * i].shape)]
        if i:
            image = fold(back @ p[2 * i].reshape(out, -1), inputs[i].shape, side, stride)
            back = (image * (inputs[i] > 0)).transpose(0, 2, 3, 1)
    return found[::-1], float((logits.argmax(1) == classes).mean())


def train(epochs: int) -> list[Array]:
    """Adam (Kingma and Ba, 2015, their constants) with a learning rate falling to zero."""
    rng = np.random.default_rng(1)
    china, flower = load_photo("china.jpg")[:, 0], load_photo("flower.jpg")[:, 0]
    grounds = [china[:, : -HEIGHT - SIDE], china[:, :, : -WIDTH - SIDE], flower]
    p: list[Array] = []
    for channels, out, side, _ in LAYERS:
        scale = np.sqrt(2 / (channels * side * side))
        weights = rng.standard_normal((out, channels, side, side)) * scale
        p += [weights.astype(np.float32), np.zeros(out, np.float32)]
    mean, square = [np.zeros_like(v) for v in p], [np.zeros_like(v) for v in p]
    steps = epochs * (SAMPLES // BATCH)
    for step in range(1, steps + 1):
        x, classes = windows(rng, grounds, BATCH)
        grads, right = gradients(p, x, classes)
        rate = 4e-3 * (1 - step / (steps + 1))
        for i, g in enumerate(grads):
            mean[i] = 0.9 * mean[i] + 0.1 * g
            square[i] = 0.999 * square[i] + 0.001 * g * g
            size = np.sqrt(square[i] / (1 - 0.999**step)) + 1e-8
            p[i] = p[i] - (rate / (1 - 0.9**step) * mean[i] / size).astype(np.float32)
        if step % (SAMPLES // BATCH) == 0:
            print(f"\repoch {step * BATCH // SAMPLES} of {epochs}: {right:.2f}", end="", flush=True)
    print()
    return p


# --- the model -----------------------------------------------------------------------------------


def to_onnx(p: list[Array]) -> onnx.ModelProto:
    """Pack everything from a frame of a camera to boxes as an ONNX model."""
    rows, across = (range(0, size - SIDE + 1, STEP) for size in (HEIGHT, WIDTH))
    boxes = np.float32([[(y, x, y + SIDE, x + SIDE) for y in rows for x in across]])[0]
    given: dict[str, Any] = {
        "last": [-1], "before": [-(2**31)], "channels": [2], "back": [-1], "front": [0],
        "ten": [NOTHING], "one": [1], "flat": [NOTHING, len(boxes)], "best": [BEST],
        "most": [MOST],
    }  # fmt: skip
    constants = {name: np.array(value, np.int64) for name, value in given.items()}
    constants |= {f"p{i}": v for i, v in enumerate(p)} | {"places": boxes}
    constants |= {"scale": np.float32(1 / 255), "overlap": np.float32([0.2])}
    constants |= {"least": np.float32([0.8])}
    node = helper.make_node
    nodes = [
        node("Cast", ["frame"], ["numbers"], "cast", to=TensorProto.FLOAT),
        node("Slice", ["numbers", "last", "before", "channels", "back"], ["rgb"], "to_rgb"),
        node("Transpose", ["rgb"], ["chw"], "channels_first", perm=[2, 0, 1]),
        node("Unsqueeze", ["chw", "front"], ["batch"], "batch"),
        node("Mul", ["batch", "scale"], ["x0"], "scale"),
    ]
    for i, (_, _, side, stride) in enumerate(LAYERS):
        how = {"kernel_shape": [side, side], "strides": [stride, stride]}
        nodes.append(node("Conv", [f"x{i}", f"p{2 * i}", f"p{2 * i + 1}"], [f"c{i}"], f"conv{i}",
                          **how))  # fmt: skip
        if i < len(LAYERS) - 1:
            nodes.append(node("Relu", [f"c{i}"], [f"x{i + 1}"], f"relu{i}"))
    nodes += [
        node("Softmax", [f"c{len(LAYERS) - 1}"], ["odds"], "softmax", axis=1),
        node("Slice", ["odds", "front", "ten", "one"], ["digits"], "digits"),
        node("Reshape", ["digits", "flat"], ["classes"], "windows"),
        node("ReduceMax", ["classes"], ["sure"], "surest", axes=[0], keepdims=1),
        node("ArgMax", ["classes"], ["digit"], "digit", axis=0, keepdims=0),
        node("TopK", ["sure", "best"], ["scores_of", "windows_of"], "best", axis=1),
        node("Gather", ["places", "windows_of"], ["boxes"], "boxes", axis=0),
        node("Gather", ["digit", "windows_of"], ["labels"], "labels", axis=0),
        node("Unsqueeze", ["scores_of", "one"], ["scores"], "scores"),
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["kept"],
             "kept"),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    outputs = [
        value("boxes", TensorProto.FLOAT, [1, BEST, 4]),
        value("labels", TensorProto.INT64, [1, BEST]),
        value("scores", TensorProto.FLOAT, [1, 1, BEST]),
        value("kept", TensorProto.INT64, ["found", 3]),
    ]
    frame = value("frame", TensorProto.UINT8, [HEIGHT, WIDTH, 3])
    return model_of(nodes, "detector", frame, outputs, constants)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=30)
    default = Path(__file__).parent / "models" / "detector.onnx"
    parser.add_argument("--output", type=Path, default=default)
    args = parser.parse_args()
    write(to_onnx(train(args.epochs)), args.output)


if __name__ == "__main__":
    main()
