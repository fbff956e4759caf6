"""Conformance cases for tests that bring their own device: an interpreter, a validated driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuedge.conformance.case import Case, generator
from gpuedge.conformance.data import broadcastable, pick
from gpuedge.conformance.layers import conv, draw_back, draw_conv, draw_gemm, draw_matmul
from gpuedge.conformance.long import LONG, long
from gpuedge.conformance.shaping import (
    batch_norm,
    draw_concat,
    draw_move,
    draw_pool,
    draw_softmax,
    global_pool,
    pool,
)
from gpuedge.conformance.units import DOMAINS, EXPRESSIONS, PARAMETERS, clip, count
from gpuedge.conformance.units import binary as two
from gpuedge.conformance.units import expression as fused
from gpuedge.conformance.units import unary as one

__all__ = ["DOMAINS", "Case", "Family", "check", "long", "run_cases"]


def check(case: Case, device: Any) -> None:
    """Run a case on a device; raise AssertionError unless it gives what it should."""
    verdict = case.judge(device)
    if not verdict.ok:
        raise AssertionError(f"{case.id}: {verdict.message}")


@dataclass(frozen=True)
class Family:
    """Drawn cases of one operation, always the same ones in the same order."""

    name: str
    draw: Callable[[np.random.Generator], Case]
    kinds: tuple[str, ...]

    def case(self, number: int) -> Case:
        """Return one of them."""
        drawn = self.draw(generator(f"test {self.name} {number}"))
        return replace(drawn, data=self.kinds[number % len(self.kinds)])


def run_cases(family: Family, count: int, device: Any) -> None:
    """Check the first `count` cases of a family."""
    for number in range(count):
        check(family.case(number), device)


def _kinds(whole: bool) -> tuple[str, ...]:
    return ("integers", "integers", "cancel") if whole else ("normal",)


def conv2d(*, whole: bool) -> Family:
    """Convolutions: groups, strides, padding beyond the kernel, dilation."""
    return Family("conv2d", lambda rng: conv(**draw_conv(rng, most=64, whole=whole)), _kinds(whole))


def _tiles(rng: np.random.Generator) -> Case:
    return conv(
        pick(rng, (16, 18, 21)), (pick(rng, (14, 15, 17)), pick(rng, (14, 16, 19))),
        pick(rng, (13, 16, 18)), pads=tuple(int(p) for p in rng.integers(0, 3, 4)),
        n=pick(rng, (1, 2)), bias=bool(rng.random() < 0.5), act=pick(rng, (None, "relu")),
        fixed=True,
    )  # fmt: skip


def tiles() -> Family:
    """Convolutions that transformed tiles may serve, of models with constant weights."""
    return Family("tiles", _tiles, ("normal", "extreme", "integers"))


def conv_transpose2d(*, whole: bool) -> Family:
    """Transposed convolutions."""
    return Family("conv_transpose2d", lambda rng: conv(**draw_back(rng)), _kinds(whole))


def matmul(*, whole: bool) -> Family:
    """Products of matrices, of batches of them and of vectors."""
    return Family("matmul", lambda rng: draw_matmul(rng, LENGTHS), _kinds(whole))


LENGTHS = (1, 2, 3, 4, 5, 7, 8, 13, 31, 32, 33, 41, 64, 67)


def gemm(*, whole: bool) -> Family:
    """Scaled products plus anything that broadcasts to them."""
    return Family("gemm", draw_gemm, _kinds(whole))


def pooling(kind: str) -> Family:
    """Maximum or mean over windows."""
    return Family(kind, lambda rng: pool(**draw_pool(rng, kind)), ("integers", "normal", "ties"))


def softmax() -> Family:
    """Softmax and its logarithm along every axis."""
    return Family("softmax", draw_softmax, ("normal",))


def concat() -> Family:
    """Concatenation of one to five arrays, some of them empty, along any axis."""
    return Family("concat", draw_concat, ("normal",))


def movement() -> Family:
    """Transposes of rank 1 to 6, reshapes and flattening."""
    ops = ("transpose", "transpose", "flatten", "reshape")
    return Family("movement", lambda rng: draw_move(rng, pick(rng, ops)), ("normal",))


def binary() -> Family:
    """Two operands that broadcast."""
    ops = ("add", "sub", "mul", "maximum", "minimum", "div")
    return Family(
        "binary", lambda rng: two(pick(rng, ops), *broadcastable(rng, 2)), ("normal", "ties")
    )


def expression() -> Family:
    """Fused expressions over operands that broadcast in all ways."""

    def draw(rng: np.random.Generator) -> Case:
        name = pick(rng, tuple(EXPRESSIONS))
        wanted = count(name)
        shapes = broadcastable(rng, wanted, 1)
        return fused(name, shapes[:1] * wanted if rng.random() < 0.5 else shapes)

    return Family("expression", draw, ("integers",))


def unary(name: str) -> list[Case]:
    """Cases of a function of one operand, as float32 and as float16."""
    given = [None, *([PARAMETERS[name]] if name in PARAMETERS else [])]
    return [
        replace(one(name, arguments=arguments), dtype=dtype)
        for dtype in ("float32", "float16")
        for arguments in given
    ]


SPECIAL: dict[str, Case] = {
    "gelu-tanh": one("gelu", arguments={"approximate": 1.0}),
    "pow": two("pow", (1003,), (1003,)),
    "pow-whole": replace(two("pow", (1003,), (1003,)), data="integers"),
    "prelu": two("prelu", (3, 1003), (3, 1)),
    "clip": clip((3, 101), -1.5, None),
    "batch_norm": batch_norm((2, 3, 11, 15)),
    "global_avg_pool2d": global_pool("avg", (2, 3, 11, 15)),
    "global_max_pool2d": global_pool("max", (2, 3, 11, 15)),
}
"""Functions that do not fit the families."""

LONG_NAMES = tuple(LONG)
