"""Sums and maxima over more elements than any driver's loops can be trusted with.

One software driver ends the loops of an invocation after 65,535 turns and says nothing. Small
devices may refuse these shapes, but not compute them wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import gpuedge
from gpuedge.conformance import oracle
from gpuedge.conformance.case import Case
from gpuedge.conformance.data import fill
from gpuedge.conformance.functions import elementwise
from gpuedge.opset.bounds import Array

LENGTH = 100_003
Make = Callable[[np.random.Generator], Case]


def _whole(rng: np.random.Generator, shape: Sequence[int], reach: int = 4) -> Array:
    return fill(rng, shape, "integers", reach)


def _softmax(rng: np.random.Generator) -> Case:
    x = fill(rng, (2, LENGTH), "normal")
    return Case(lambda d: gpuedge.softmax(x, device=d), lambda keep: oracle.softmax(keep(x), 1))


def _softmax_inside(rng: np.random.Generator) -> Case:
    x = fill(rng, (LENGTH, 3), "normal")
    return Case(lambda d: gpuedge.softmax(x, 0, device=d), lambda keep: oracle.softmax(keep(x), 0))


def _mean(rng: np.random.Generator) -> Case:
    # The sum of whole numbers is exact, the division is not.
    x = _whole(rng, (1, 5, 317, 331))
    mean = x.mean((2, 3), keepdims=True, dtype=np.float64)
    wanted = oracle.Num(mean, 2.5 * oracle.ULP * np.abs(mean))
    return Case(lambda d: gpuedge.global_avg_pool2d(x, device=d), lambda keep: wanted)


def _maximum(rng: np.random.Generator) -> Case:
    # All of them negative, the largest in the middle.
    x = -1 - np.abs(_whole(rng, (1, 5, 317, 331), 900))
    x[0, :, 200, 200] = np.array([-0.5, -0.25, -1, -0.75, -0.125], np.float32)
    return Case(
        lambda d: gpuedge.global_max_pool2d(x, device=d),
        lambda keep: oracle.global_pool("max", keep(x)),
    )


def _product(rng: np.random.Generator) -> Case:
    a, b = _whole(rng, (1, 4 * 70_001)), _whole(rng, (4 * 70_001, 3))
    return Case(
        lambda d: gpuedge.matmul(a, b, device=d),
        lambda keep: oracle.matmul(keep(a), keep(b), whole=True),
    )


def _rows(rng: np.random.Generator) -> Case:
    # Enough rows for every variant, and a depth that is not a multiple of four.
    a, b = _whole(rng, (33, 70_003), 2), _whole(rng, (70_003, 33), 2)
    return Case(
        lambda d: gpuedge.matmul(a, b, device=d),
        lambda keep: oracle.matmul(keep(a), keep(b), whole=True),
    )


def _channels(rng: np.random.Generator) -> Case:
    # 9 * 7,301 = 65,709 products, with bias and activation after the split.
    x, w = _whole(rng, (1, 7301, 3, 5)), _whole(rng, (3, 7301, 3, 3))
    b = _whole(rng, (3,))
    return Case(
        lambda d: gpuedge.conv2d(x, w, b, padding=1, activation="relu", device=d),
        lambda keep: elementwise(
            "relu", oracle.conv2d(keep(x), keep(w), keep(b), pads=(1, 1, 1, 1), whole=True)
        ),
    )


def _back(rng: np.random.Generator) -> Case:
    x, w = _whole(rng, (1, 7301, 2, 2)), _whole(rng, (7301, 2, 3, 3))
    return Case(
        lambda d: gpuedge.conv_transpose2d(x, w, stride=2, device=d),
        lambda keep: oracle.conv_transpose2d(keep(x), keep(w), stride=(2, 2), whole=True),
    )


def _window(rng: np.random.Generator) -> Case:
    # 127 by 129 taps, close to the longest that is taken.
    x, w = _whole(rng, (1, 1, 130, 131)), _whole(rng, (2, 1, 127, 129))
    return Case(
        lambda d: gpuedge.conv2d(x, w, device=d),
        lambda keep: oracle.conv2d(keep(x), keep(w), whole=True),
    )


LONG: dict[str, tuple[str, Make]] = {
    "softmax": ("softmax", _softmax),
    "softmax-inside": ("softmax", _softmax_inside),
    "mean": ("global_avg_pool2d", _mean),
    "maximum": ("global_max_pool2d", _maximum),
    "product": ("matmul", _product),
    "product-rows": ("matmul", _rows),
    "channels": ("conv2d", _channels),
    "window": ("conv2d", _window),
    "channels-back": ("conv_transpose2d", _back),
}
"""Operation and builder by name."""


@dataclass(frozen=True)
class Long:
    """A case of `LONG`."""

    name: str

    @property
    def op(self) -> str:
        """The operation."""
        return LONG[self.name][0]

    @property
    def text(self) -> str:
        """The name."""
        return f"long-{self.name}"

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case; whole numbers where sums are to be exact."""
        return LONG[self.name][1](rng)
