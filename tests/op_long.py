"""Sums and maxima over more elements than any driver's loops can be trusted with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import oracle
from op_cases import Case, integers, normals

import gpuedge

LENGTH = 100_003


def _rng() -> np.random.Generator:
    return np.random.default_rng(5)


def softmax() -> Case:
    """An axis of 100,003."""
    x = normals(_rng(), (2, LENGTH))
    return Case("long softmax", lambda d: gpuedge.softmax(x, device=d), oracle.softmax(x, 1))


def softmax_inside() -> Case:
    """An axis of 100,003 that is not the last."""
    x = normals(_rng(), (LENGTH, 3))
    return Case("long softmax, axis 0", lambda d: gpuedge.softmax(x, 0, device=d),
                oracle.softmax(x, 0))  # fmt: skip


def global_average() -> Case:
    """A mean over 317 * 331 pixels: the sum of integers is exact, the division is not."""
    x = integers(_rng(), (1, 5, 317, 331))
    mean = x.mean((2, 3), keepdims=True, dtype=np.float64)
    return Case("long mean", lambda d: gpuedge.global_avg_pool2d(x, device=d),
                (mean, 2.5 * oracle.ULP * np.abs(mean)))  # fmt: skip


def global_maximum() -> Case:
    """A maximum over as many, all of them negative, the largest in the middle."""
    x = -1 - np.abs(integers(_rng(), (1, 5, 317, 331), 900))
    x[0, :, 200, 200] = np.float32([-0.5, -0.25, -1, -0.75, -0.125])
    top = x.max((2, 3), keepdims=True).astype(np.float64)
    return Case("long maximum", lambda d: gpuedge.global_max_pool2d(x, device=d),
                (top, np.zeros(top.shape)))  # fmt: skip


def product() -> Case:
    """A matrix product with K = 280,004."""
    a, b = integers(_rng(), (1, 4 * 70_001)), integers(_rng(), (4 * 70_001, 3))
    value = a.astype(np.float64) @ b.astype(np.float64)
    return Case("long matmul", lambda d: gpuedge.matmul(a, b, device=d),
                (value, np.zeros(value.shape)))  # fmt: skip


def product_rows() -> Case:
    """As `product` with enough rows for the other variants, and K not a multiple of four."""
    a, b = integers(_rng(), (33, 70_003), 2), integers(_rng(), (70_003, 33), 2)
    value = a.astype(np.float64) @ b.astype(np.float64)
    return Case("long matmul, many rows", lambda d: gpuedge.matmul(a, b, device=d),
                (value, np.zeros(value.shape)))  # fmt: skip


def convolution() -> Case:
    """A convolution over 9 * 7,301 = 65,709 products, with bias and activation after the split."""
    rng = _rng()
    x, w = integers(rng, (1, 7301, 3, 5)), integers(rng, (3, 7301, 3, 3))
    b = integers(rng, (3,))
    value, _ = oracle.conv2d(x, w, b, pads=(1, 1, 1, 1))
    value = np.maximum(value, 0)
    return Case("long conv2d",
                lambda d: gpuedge.conv2d(x, w, b, padding=1, activation="relu", device=d),
                (value, np.zeros(value.shape)))  # fmt: skip


def transposed_convolution() -> Case:
    """The same backwards, with a stride."""
    rng = _rng()
    x, w = integers(rng, (1, 7301, 2, 2)), integers(rng, (7301, 2, 3, 3))
    value, _ = oracle.conv_transpose2d(x, w, stride=(2, 2))
    return Case("long conv_transpose2d",
                lambda d: gpuedge.conv_transpose2d(x, w, stride=2, device=d),
                (value, np.zeros(value.shape)))  # fmt: skip


def window() -> Case:
    """A kernel of 127 by 129 taps, close to the longest that is taken."""
    rng = _rng()
    x, w = integers(rng, (1, 1, 130, 131)), integers(rng, (2, 1, 127, 129))
    value, _ = oracle.conv2d(x, w)
    return Case("large window", lambda d: gpuedge.conv2d(x, w, device=d),
                (value, np.zeros(value.shape)))  # fmt: skip


CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (softmax, softmax_inside, global_average, global_maximum, product, product_rows,
              convolution, transposed_convolution, window)
}  # fmt: skip
