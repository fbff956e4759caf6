"""What you will see: a small U-Net learns to find patterned shapes in minutes, then its score.

Scenes are drawn over a photograph: discs and squares of any bright colours, plain,
striped or chequered. Trains on one photograph and is judged on another. The committed
``models/shapes.onnx`` (about 120 KB) came from this script with its default arguments.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from learn import Array, Net, Value
from oracle import by_onnxruntime
from photo import load_photo

CLASSES = ("background", "plain", "striped", "chequered")
MODEL = Path(__file__).parent / "models" / "shapes.onnx"


def backdrop(name: str) -> Array:
    """Return a photograph at half its size, in pale colours: (3, height, width), from 0 to 1."""
    photo = load_photo(name)[:, 0, :426]
    photo = photo.reshape(3, 213, 2, 320, 2).mean((2, 4))
    return 0.3 * photo + 0.7 * photo.mean(0)


def scene(rng: np.random.Generator, photo: Array, size: tuple[int, int]) -> tuple[Array, Array]:
    """Return a scene (3, height, width) and the class of every pixel, one shape to 700 pixels."""
    height, width = size
    top, left = (rng.integers(0, e - s + 1) for e, s in zip(photo.shape[1:], size, strict=True))
    image = photo[:, top : top + height, left : left + width].copy()
    classes = np.zeros(size, np.int64)
    y, x = np.mgrid[:height, :width]
    for _ in range(max(1, height * width // 700)):
        radius, turn = rng.uniform(8, 13), rng.uniform(0, 2 * np.pi)
        dy, dx = y - rng.uniform(0, height), x - rng.uniform(0, width)
        u, v = np.cos(turn) * dx + np.sin(turn) * dy, np.cos(turn) * dy - np.sin(turn) * dx
        forms = u**2 + v**2, 1.2 * np.maximum(abs(u), abs(v)) ** 2, (abs(u) + abs(v)) ** 2 / 1.5
        inside = forms[rng.integers(3)] < radius**2
        kind = rng.integers(1, len(CLASSES))
        waves = np.sin(u) > 0, (np.sin(u) > 0) ^ (np.sin(v) > 0)
        for part in (inside, inside & waves[kind - 2]) if kind > 1 else (inside,):
            colour = rng.permutation([rng.uniform(0, 0.2), rng.uniform(), rng.uniform(0.8, 1)])
            image[:, part] = colour[:, None] + rng.normal(0, 0.05, (3, int(part.sum())))
        classes[inside] = kind
    return np.clip(image, 0, 1).astype(np.float32), classes


def unet(net: Net, image: Array) -> Value:
    """Down twice and up twice, each level joined with what it was on the way down."""

    def block(x: Value, count: int) -> Value:
        return net.relu(net.conv(net.relu(net.conv(x, count)), count))

    fine = block(net.start(image), 8)
    middle = block(net.halve(fine), 16)
    deep = block(net.halve(middle), 32)
    middle = block(net.concat(net.double(deep), middle), 16)
    fine = block(net.concat(net.double(middle), fine), 8)
    return net.conv(fine, len(CLASSES), 1)


def slope(scores: Array, classes: Array) -> Array:
    """Gradient of the mean cross entropy for the scores."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    grad = powers / powers.sum(1, keepdims=True)
    np.put_along_axis(grad, classes[:, None], np.take_along_axis(grad, classes[:, None], 1) - 1, 1)
    return grad / classes.size


def train(steps: int, batch: int = 6, side: int = 48) -> Net:
    """Return a network that has seen `steps` batches."""
    net, rng, photo = Net(1), np.random.default_rng(1), backdrop("china.jpg")
    for step in range(steps):
        images, classes = zip(*(scene(rng, photo, (side, side)) for _ in range(batch)), strict=True)
        out = unet(net, np.stack(images))
        rate = 3e-3 * min(1, 2 * (1 - step / steps))
        net.step(out, slope(out.data, np.stack(classes)), rate)
    return net


def overlap(found: Array, classes: Array) -> float:
    """Mean over the classes of intersection over union."""
    pairs = [(found == kind, classes == kind) for kind in range(len(CLASSES))]
    return float(np.mean([(a & b).sum() / (a | b).sum() for a, b in pairs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--output", type=Path, default=MODEL)
    args = parser.parse_args()
    net = train(args.steps)
    shape = ["N", 3, "height", "width"]
    net.save(args.output, ("image", "scores"), [shape, ["N", len(CLASSES), "height", "width"]])
    image, classes = scene(np.random.default_rng(99), backdrop("flower.jpg"), (192, 256))
    found = by_onnxruntime(args.output, {"image": image[None]})[0].argmax(0)
    print(f"mean intersection over union: {overlap(found, classes):.3f} on an unseen scene")


if __name__ == "__main__":
    main()
