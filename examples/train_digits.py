"""What you will see: a small CNN learns handwritten digits in under a minute, then its accuracy.

Trains with plain numpy on scikit-learn's 8x8 digits and writes an ONNX model (about 100 KB). The
committed ``models/digits.onnx`` came from this script with its default arguments.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from learn import model_of, write
from onnx import TensorProto, helper
from oracle import by_onnxruntime

Array = npt.NDArray[Any]
SPLIT_SEED = 20  # fixes which fifth of the images is never trained on
TRAIN_SEED = 1
BATCH = 64


def load_split() -> tuple[Array, Array, Array, Array]:
    """Return train images, train labels, held-out images, held-out labels.

    Images are float32 of shape (N, 1, 8, 8) from 0 to 1; one fifth of the 1797 is held out.
    """
    try:  # here, so that who brings a picture needs no scikit-learn
        from sklearn.datasets import load_digits  # noqa: PLC0415
    except ImportError as error:
        sys.exit(f'This example needs {error.name}; in the checkout: pip install ".[examples]"')
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    held = len(images) // 5
    train, test = order[held:], order[:held]
    return images[train], digits.target[train], images[test], digits.target[test]


def columns(x: Array) -> Array:
    """Unfold 3x3 neighbourhoods with padding 1: (N, C, H, W) to (N, H, W, C*9)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    n, c, h, w = x.shape
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * 9)


def fold(cols: Array, channels: int) -> Array:
    """Add 3x3 neighbourhoods back onto the image: the transpose of `columns`."""
    n, h, w, _ = cols.shape
    parts = cols.reshape(n, h, w, channels, 3, 3).transpose(4, 5, 0, 3, 1, 2)
    padded = np.zeros((n, channels, h + 2, w + 2), cols.dtype)
    for i in range(3):
        for j in range(3):
            padded[:, :, i : i + h, j : j + w] += parts[i, j]
    return padded[:, :, 1:-1, 1:-1]


def pool(x: Array) -> tuple[Array, Array]:
    """2x2 maximum, and a mask of where it came from (ties share the gradient)."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // 2, 2, w // 2, 2)
    top = blocks.max(axis=(3, 5), keepdims=True)
    mask = (blocks == top).astype(x.dtype)
    return top[:, :, :, 0, :, 0], mask / mask.sum(axis=(3, 5), keepdims=True)


def unpool(grad: Array, mask: Array) -> Array:
    """Send the gradient of a pooled image back to the pixels that won."""
    n, c, h, _, w, _ = mask.shape
    return (mask * grad[:, :, :, None, :, None]).reshape(n, c, h * 2, w * 2)


def init(rng: np.random.Generator) -> dict[str, Array]:
    """Fresh weights (He initialisation), in the layout ONNX wants; 27,050 numbers."""
    shapes = {"w1": (16, 1, 3, 3), "w2": (32, 16, 3, 3), "w3": (160, 128), "w4": (10, 160)}
    params: dict[str, Array] = {}
    for name, shape in shapes.items():
        scale = np.sqrt(2.0 / np.prod(shape[1:]))
        params[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        params["b" + name[1]] = np.zeros(shape[0], np.float32)
    return params


def conv(x: Array, w: Array, b: Array) -> tuple[Array, Array]:
    """3x3 convolution with padding 1; also returns the unfolded input for the way back."""
    cols = columns(x)
    out = cols @ w.reshape(len(w), -1).T + b
    return out.transpose(0, 3, 1, 2), cols


def conv_grad(grad: Array, cols: Array, w: Array) -> tuple[Array, Array, Array]:
    """Gradients of `conv` for its input columns, weights and bias."""
    flat = grad.transpose(0, 2, 3, 1)
    rows = flat.reshape(-1, len(w))
    dw = (rows.T @ cols.reshape(len(rows), -1)).reshape(w.shape)
    return flat @ w.reshape(len(w), -1), dw, rows.sum(axis=0)


def gradients(p: dict[str, Array], x: Array, labels: Array) -> dict[str, Array]:
    """Gradient of the mean cross entropy for one batch."""
    a1, cols1 = conv(x, p["w1"], p["b1"])
    h1, mask1 = pool(np.maximum(a1, 0))
    a2, cols2 = conv(h1, p["w2"], p["b2"])
    h2, mask2 = pool(np.maximum(a2, 0))
    flat = h2.reshape(len(x), -1)
    h3 = np.maximum(flat @ p["w3"].T + p["b3"], 0)
    logits = h3 @ p["w4"].T + p["b4"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    d4 = odds / odds.sum(axis=1, keepdims=True)
    d4[np.arange(len(x)), labels] -= 1
    d4 /= len(x)
    g = {"w4": d4.T @ h3, "b4": d4.sum(axis=0)}
    d3 = (d4 @ p["w4"]) * (h3 > 0)
    g |= {"w3": d3.T @ flat, "b3": d3.sum(axis=0)}
    d2 = unpool((d3 @ p["w3"]).reshape(h2.shape), mask2) * (a2 > 0)
    dcols, g["w2"], g["b2"] = conv_grad(d2, cols2, p["w2"])
    d1 = unpool(fold(dcols, 16), mask1) * (a1 > 0)
    _, g["w1"], g["b1"] = conv_grad(d1, cols1, p["w1"])
    return g


def train(x: Array, labels: Array, epochs: int) -> dict[str, Array]:
    """Adam (Kingma and Ba, 2015, their constants) with a learning rate falling to zero."""
    rng = np.random.default_rng(TRAIN_SEED)
    p = init(rng)
    mean = {k: np.zeros_like(v) for k, v in p.items()}
    square = {k: np.zeros_like(v) for k, v in p.items()}
    steps = epochs * -(-len(x) // BATCH)
    step = 0
    for epoch in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x), BATCH):
            pick = order[start : start + BATCH]
            step += 1
            rate = 2e-3 * (1 - step / (steps + 1))
            for name, g in gradients(p, x[pick], labels[pick]).items():
                mean[name] = 0.9 * mean[name] + 0.1 * g
                square[name] = 0.999 * square[name] + 0.001 * g * g
                size = np.sqrt(square[name] / (1 - 0.999**step)) + 1e-8
                p[name] = p[name] - (rate / (1 - 0.9**step) * mean[name] / size).astype(np.float32)
        print(f"\repoch {epoch + 1} of {epochs}", end="", flush=True)
    print()
    return p


def to_onnx(p: dict[str, Array]) -> onnx.ModelProto:
    """Pack the weights as an ONNX model with a free batch size."""
    halve = {"kernel_shape": [2, 2], "strides": [2, 2]}
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["c1"], "conv1", **same),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], "pool1", **halve),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], "conv2", **same),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("MaxPool", ["r2"], ["p2"], "pool2", **halve),
        helper.make_node("Flatten", ["p2"], ["flat"], "flatten", axis=1),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["d1"], "dense1", transB=1),
        helper.make_node("Relu", ["d1"], ["r3"], "relu3"),
        helper.make_node("Gemm", ["r3", "w4", "b4"], ["logits"], "dense2", transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], "softmax", axis=1),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])
    answer = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10])
    return model_of(nodes, "digits", image, [answer], p)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=40)
    default = Path(__file__).parent / "models" / "digits.onnx"
    parser.add_argument("--output", type=Path, default=default)
    args = parser.parse_args()
    x, labels, held_x, held_labels = load_split()
    write(to_onnx(train(x, labels, args.epochs)), args.output)

    guesses = by_onnxruntime(args.output, {"image": held_x}).argmax(axis=1)
    print(f"held-out accuracy: {(guesses == held_labels).mean():.4f} on {len(held_x)} images")


if __name__ == "__main__":
    main()
