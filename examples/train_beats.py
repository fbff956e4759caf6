"""What you will see: a temporal convolution learns to find heart beats in seconds, then its score.

The signals are made up: beats at a changing rate, a wandering base line, noise, and spikes that
are no beats. The network sees only the past, so it can follow a live signal; it says "beat" a few
samples later. The committed ``models/beats.onnx`` (about 30 KB) came from this script with its
default arguments.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from learn import Array, Net, Value
from oracle import by_onnxruntime

MODEL = Path(__file__).parent / "models" / "beats.onnx"
RATE = 100
"""Samples a second."""
DELAY = 12
"""Samples after which a beat is to be told."""


def signal(rng: np.random.Generator, length: int) -> tuple[Array, Array]:
    """Return a signal and the places of its beats."""
    t, x = np.arange(length), np.zeros(length)
    at, beats = rng.uniform(0, 60), []
    while at < length:
        size = rng.uniform(0.7, 1.3)
        for shift, width, height in ((-16, 3, 0.15), (-2.5, 1, -0.2), (0, 1.2, 1), (3, 1, -0.3),
                                     (24, 5, 0.3)):  # fmt: skip
            x += size * height * np.exp(-0.5 * ((t - at - shift) / width) ** 2)
        beats.append(round(at))
        at += rng.uniform(0.5, 1.1) * RATE
    for _ in range(length // 120):  # touches of the electrode: steep, and as high as a beat
        x += rng.choice([-1, 1]) * rng.uniform(0.5, 1.5) * (abs(t - rng.uniform(0, length)) < 1)
    x += 0.4 * np.sin(2 * np.pi * (t / rng.uniform(150, 400) + rng.uniform()))
    x += rng.normal(0, 0.08, length)
    return x.astype(np.float32), np.array([b for b in beats if b < length - DELAY])


def tcn(net: Net, x: Array) -> Value:
    """Residual blocks of dilated convolutions; the last one looks back 1.3 seconds."""
    y = net.conv(net.start(x), 16, causal=True)
    for dilation in (1, 2, 4, 8, 16, 32):
        inner = net.relu(net.conv(y, 16, dilation=dilation, causal=True))
        y = net.add(y, net.conv(inner, 16, 1))
    return net.sigmoid(net.conv(net.relu(y), 1, 1))


def train(steps: int, batch: int = 8, length: int = 400) -> Net:
    """Return a network that has seen `steps` batches of signals."""
    net, rng = Net(3), np.random.default_rng(3)
    for step in range(steps):
        signals, wanted = np.zeros((batch, 1, length)), np.zeros((batch, 1, length))
        for one, target in zip(signals, wanted, strict=True):
            one[0], beats = signal(rng, length)
            for shift in range(-2, 3):
                target[0, beats[beats + DELAY + shift < length] + DELAY + shift] = 1
        out = tcn(net, signals)
        p = np.clip(out.data, 1e-6, 1 - 1e-6)
        grad = (p - wanted) / (p * (1 - p)) / p.size  # of the cross entropy
        net.step(out, grad, 5e-3 * min(1, 2 * (1 - step / steps)))
    return net


def found_in(chances: Array) -> Array:
    """Return where beats are: the middle of every stretch above one half."""
    above = np.concatenate([[0], (chances > 0.5).astype(int), [0]])
    starts, ends = np.flatnonzero(np.diff(above) == 1), np.flatnonzero(np.diff(above) == -1)
    return (starts + ends - 1) // 2 - DELAY


def score(found: Array, beats: Array) -> float:
    """Return 2 hits / (found + beats), where a hit is within 5 samples."""
    hits = sum(bool((abs(found - beat) <= 5).any()) for beat in beats)
    return 2 * hits / max(1, len(found) + len(beats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--output", type=Path, default=MODEL)
    args = parser.parse_args()
    net = train(args.steps)
    shape = ["N", 1, "length"]
    net.save(args.output, ("signal", "beat"), [shape, shape])
    x, beats = signal(np.random.default_rng(99), 60 * RATE)
    chances = by_onnxruntime(args.output, {"signal": x[None, None]})[0, 0]
    print(f"F1 score: {score(found_in(chances), beats):.3f} on {len(beats)} unseen beats")


if __name__ == "__main__":
    main()
