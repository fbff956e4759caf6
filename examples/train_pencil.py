"""What you will see: a network learns to draw photographs with a pencil, then how well it does.

An image transformer as for style transfer: a convolution that halves the image, residual blocks,
instance normalisation, and a resize back to full size. What it imitates is a drawing that numpy
makes of parts of a photograph. The committed ``models/pencil.onnx`` (about 110 KB) came from this
script with its default arguments.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from learn import Array, Net, Value
from oracle import by_onnxruntime
from photo import load_photo

MODEL = Path(__file__).parent / "models" / "pencil.onnx"
PAPER, INK = np.float32([0.97, 0.94, 0.86]), np.float32([0.16, 0.14, 0.22])
GREY = np.float32([0.299, 0.587, 0.114])


def blurred(grey: Array, sigma: float = 4.0) -> Array:
    """Return (height, width) smoothed by a Gaussian, its border repeated."""
    reach = int(3 * sigma)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights = (weights / weights.sum()).astype(grey.dtype)
    for _ in range(2):
        padded = np.pad(grey, [(reach, reach), (0, 0)], "edge")
        parts = (weight * padded[i : i + len(grey)] for i, weight in enumerate(weights))
        grey = np.sum(list(parts), axis=0).T
    return grey


def drawing(photo: Array) -> Array:
    """Return a pencil drawing of (3, height, width): lines where it is darker than around."""
    grey = np.einsum("c,chw->hw", GREY, photo) + 0.02
    line = np.clip(grey / blurred(grey), 0, 1) ** 3 * (0.5 + 0.5 * grey)
    tone = np.clip(line, 0, 1)[None]
    return (PAPER[:, None, None] * tone + INK[:, None, None] * (1 - tone)).astype(np.float32)


def transformer(net: Net, image: Array) -> Value:
    """Half the size, two residual blocks, and back."""

    def layer(x: Value, count: int, stride: int = 1) -> Value:
        return net.relu(net.norm(net.conv(x, count, stride=stride)))

    x = layer(layer(net.start(image), 8), 24, stride=2)
    for _ in range(2):
        x = net.add(x, net.norm(net.conv(layer(x, 24), 24)))
    return net.sigmoid(net.conv(layer(net.double(x), 12), 3))


def train(steps: int, batch: int = 4, side: int = 64) -> Net:
    """Return a network that has seen `steps` batches of parts of a photograph."""
    net, rng, photo = Net(2), np.random.default_rng(2), load_photo("china.jpg")[:, 0]
    wanted = drawing(photo)
    for step in range(steps):
        places = [[rng.integers(0, e - side + 1) for e in photo.shape[1:]] for _ in range(batch)]
        cuts = [np.s_[:, y : y + side, x : x + side] for y, x in places]
        out = transformer(net, np.stack([photo[cut] for cut in cuts]))
        error = out.data - np.stack([wanted[cut] for cut in cuts])
        net.step(out, error / error.size, 5e-3 * min(1, 2 * (1 - step / steps)))
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--output", type=Path, default=MODEL)
    args = parser.parse_args()
    net = train(args.steps)
    shape = ["N", 3, "height", "width"]
    net.save(args.output, ("photo", "drawing"), [shape, shape])
    photo = load_photo("flower.jpg")[:, 0, 100:292, 200:456]
    found = by_onnxruntime(args.output, {"photo": photo[None]})[0]
    print(f"mean difference: {np.abs(found - drawing(photo)).mean():.4f} on an unseen photograph")


if __name__ == "__main__":
    main()
