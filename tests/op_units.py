"""Functions of one element or two: the operands each is tested with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
from op_cases import Array, Case

import gpuedge

SIZE = 1003
"""Not a multiple of four, and more than one workgroup."""


def spread(low: float, high: float) -> Array:
    """Random numbers, whole ones, halves and both ends."""
    rng = np.random.default_rng(11)
    some = rng.uniform(low, high, SIZE).astype(np.float32)
    some[100:200] = np.rint(some[100:200])
    some[200:300] = np.rint(some[200:300]) + np.float32(0.5)
    some = np.clip(some, np.float32(low), np.float32(high))
    some[:2] = low, high
    if low <= 0:
        some[2] = 0
    return some


DOMAINS: dict[str, tuple[float, float]] = {
    "abs": (-50, 50), "neg": (-50, 50), "floor": (-50, 50), "ceil": (-50, 50),
    "round": (-50, 50), "sign": (-2, 2), "relu": (-50, 50), "relu6": (-20, 20),
    "exp": (-80, 80), "log": (1e-3, 50), "sqrt": (0, 5000), "reciprocal": (0.01, 50),
    "sin": (-1000, 1000), "cos": (-1000, 1000), "erf": (-5, 5), "sigmoid": (-100, 100),
    "tanh": (-30, 30), "softplus": (-100, 100), "softsign": (-50, 50), "mish": (-30, 30),
    "silu": (-100, 100), "hard_swish": (-8, 8), "hard_sigmoid": (-8, 8), "leaky_relu": (-50, 50),
    "elu": (-50, 50), "celu": (-50, 50), "selu": (-50, 50), "gelu": (-20, 20),
}  # fmt: skip
PARAMETERS: dict[str, tuple[dict[str, float], ...]] = {
    "leaky_relu": ({}, {"alpha": 0.3}),
    "elu": ({}, {"alpha": 2.5}),
    "celu": ({}, {"alpha": 1.7}),
    "hard_sigmoid": ({}, {"alpha": 1 / 6, "beta": 0.25}),
}


def unary(name: str) -> list[Case]:
    """Cases of a function of one operand, as float32 and as float16."""
    found = []
    for dtype in (np.float32, np.float16):
        low, high = DOMAINS[name]
        if name == "exp" and dtype == np.float16:
            low, high = -10, 10
        x = spread(low, high).astype(dtype)
        for given in PARAMETERS.get(name, ({},)):
            found.append(
                Case(
                    f"{name} {x.dtype} {given}",
                    lambda d, x=x, given=given: getattr(gpuedge, name)(x, device=d, **given),
                    oracle.elementwise(name, x, **given),
                )
            )
    return found


def _case(what: str, call: Callable[[Any], Array], expected: oracle.Result) -> Case:
    return Case(what, call, expected)


def special() -> dict[str, Case]:
    """Functions that do not fit the table above."""
    x = spread(-20, 20)
    base, power = spread(0.05, 8), spread(-3, 3)[::-1].copy()
    whole = np.rint(spread(-4, 4))
    signed = spread(-3, 3)
    signed[signed == 0] = 1
    slope = np.float32([[0.3], [1.7], [-1]])
    rows = np.stack([x, x / 2, -x])
    statistics = [np.float32(v) for v in ([1, 2, 0.5], [0, 3, -1], [0.5, 0, 2], [1, 0.25, 4])]
    image = spread(-9, 9)[:990].reshape(2, 3, 11, 15)
    at = np.abs(image).mean((2, 3), keepdims=True, dtype=np.float64)
    mean = image.mean((2, 3), keepdims=True, dtype=np.float64)
    top = image.max((2, 3), keepdims=True).astype(np.float64)
    return {
        "gelu-tanh": _case(
            "gelu tanh",
            lambda d: gpuedge.gelu(x, approximate=True, device=d),
            oracle.elementwise("gelu_tanh", x),
        ),
        "pow": _case(
            "pow",
            lambda d: gpuedge.pow(base, power, device=d),
            oracle.elementwise("pow", base, power),
        ),
        "pow-whole": _case(
            "pow of negative bases",
            lambda d: gpuedge.pow(signed, whole, device=d),
            oracle.elementwise("pow", signed, whole),
        ),
        "prelu": _case(
            "prelu",
            lambda d: gpuedge.prelu(rows, slope, device=d),
            oracle.elementwise("prelu", rows, slope),
        ),
        "clip": _case(
            "clip",
            lambda d: gpuedge.clip(x, -1.5, None, device=d),
            (np.maximum(x.astype(np.float64), -1.5), np.zeros(x.shape)),
        ),
        "batch_norm": _case(
            "batch_norm",
            lambda d: gpuedge.batch_norm(image, *statistics, epsilon=1e-3, device=d),
            oracle.batch_norm(image, *statistics, 1e-3),
        ),
        "global_avg_pool2d": _case(
            "global_avg_pool2d",
            lambda d: gpuedge.global_avg_pool2d(image, device=d),
            (mean, (11 * 15 + 4) * oracle.ULP * at),
        ),
        "global_max_pool2d": _case(
            "global_max_pool2d",
            lambda d: gpuedge.global_max_pool2d(image, device=d),
            (top, np.zeros(top.shape)),
        ),
    }


SPECIAL = special()
ELSEWHERE = {
    "add", "avg_pool2d", "concat", "conv2d", "conv_transpose2d", "div", "elementwise", "flatten",
    "gemm", "log_softmax", "matmul", "max_pool2d", "maximum", "minimum", "mul", "reshape",
    "softmax", "sub", "transpose",
}  # fmt: skip
"""Operations that `op_cases` and `op_layers` cover."""


def uncovered() -> set[str]:
    """Return public operations that no case calls."""
    from gpuedge import ops

    return set(ops.__all__) - set(DOMAINS) - set(SPECIAL) - ELSEWHERE
