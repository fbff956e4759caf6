"""Sums and maxima over more elements than any driver's loops can be trusted with.

One software driver ends the loops of an invocation after 65,535 turns and says nothing. Small
devices may refuse these shapes, but not compute them wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuedge.conformance.case import Case, case
from gpuedge.conformance.data import fill
from gpuedge.opset.bounds import ULP, Array, Num
from gpuedge.oracle import layers as oracle
from gpuedge.oracle.functions import activated

LENGTH = 100_003
IMAGE = (1, 5, 317, 331)
Rng = np.random.Generator
Draw = Callable[[Rng], list[Array]]


def _drawn(*shapes: Sequence[int], data: str = "integers", reach: int = 4) -> Draw:
    return lambda rng: [fill(rng, shape, data, reach) for shape in shapes]


def _negative(rng: Rng) -> list[Array]:
    """Return negative numbers, the largest of them in the middle."""
    x = -1 - np.abs(fill(rng, IMAGE, "integers", 900))
    x[0, :, 200, 200] = np.array([-0.5, -0.25, -1, -0.75, -0.125], np.float32)
    return [x]


def _mean(x: Num) -> Num:
    """Return a mean of whole numbers: the sum is exact, the division is not."""
    value = x.v.mean((2, 3), keepdims=True)
    return Num(value, 2.5 * ULP * np.abs(value))


def _channels(x: Num, w: Num, b: Num) -> Num:
    return activated("relu", oracle.conv2d(x, w, b, pads=(1, 1, 1, 1), whole=True))


MATMUL = partial(oracle.matmul, whole=True)
CONV = partial(oracle.conv2d, whole=True)
BACK = partial(oracle.conv_transpose2d, stride=(2, 2), whole=True)

LONG: dict[str, tuple[str, Draw, Callable[..., Num], dict[str, Any]]] = {
    "softmax": (
        "softmax", _drawn((2, LENGTH), data="normal"), partial(oracle.softmax, axis=1), {}
    ),
    "softmax-inside": (
        "softmax", _drawn((LENGTH, 3), data="normal"), partial(oracle.softmax, axis=0), {"axis": 0}
    ),
    "mean": ("global_avg_pool2d", _drawn(IMAGE), _mean, {}),
    "maximum": ("global_max_pool2d", _negative, partial(oracle.global_pool, "max"), {}),
    "product": ("matmul", _drawn((1, 4 * 70_001), (4 * 70_001, 3)), MATMUL, {}),
    # Enough rows for every variant, and a depth that is not a multiple of four.
    "product-rows": ("matmul", _drawn((33, 70_003), (70_003, 33), reach=2), MATMUL, {}),
    # 9 * 7,301 = 65,709 products, with bias and activation after the split.
    "channels": (
        "conv2d", _drawn((1, 7301, 3, 5), (3, 7301, 3, 3), (3,)), _channels,
        {"padding": 1, "activation": "relu"},
    ),
    # 127 by 129 taps, close to the longest that is taken.
    "window": ("conv2d", _drawn((1, 1, 130, 131), (2, 1, 127, 129)), CONV, {}),
    "channels-back": (
        "conv_transpose2d", _drawn((1, 7301, 2, 2), (7301, 2, 3, 3)), BACK, {"stride": 2}
    ),
}  # fmt: skip
"""Operation, operands, oracle and further arguments by name; sums of whole numbers are exact."""


def long(name: str) -> Case:
    """Return a case of `LONG`."""
    op, operands, wanted, how = LONG[name]
    return case(
        op, f"long-{name}", lambda rng, *_: operands(rng), wanted, how,
        data="integers", is_large=True,
    )  # fmt: skip
