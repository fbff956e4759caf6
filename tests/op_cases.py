"""Conformance cases for tests that bring their own device: an interpreter, a validated driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuedge.conformance.case import Case, Geometry, Spec, generator
from gpuedge.conformance.layers import Conv, ConvTranspose, Gemm, MatMul, pick
from gpuedge.conformance.long import LONG, Long
from gpuedge.conformance.shaping import BatchNorm, Concat, GlobalPool, Move, Pool, Softmax
from gpuedge.conformance.units import (
    DOMAINS,
    EXPRESSIONS,
    PARAMETERS,
    Binary,
    Clip,
    Expression,
    Unary,
    broadcastable,
)

__all__ = ["DOMAINS", "Case", "Family", "check", "run_cases"]


def check(spec: Spec, device: Any) -> None:
    """Run a case on a device; raise AssertionError unless it gives what it should."""
    verdict = spec.build().judge(device, spec.storage)
    if not verdict.ok:
        raise AssertionError(f"{spec.id}: {verdict.message}")


@dataclass(frozen=True)
class Family:
    """Drawn cases of one operation, always the same ones in the same order."""

    name: str
    draw: Callable[[np.random.Generator], Geometry]
    kinds: tuple[str, ...]

    def spec(self, number: int) -> Spec:
        """Return one of them."""
        geometry = self.draw(generator(f"test {self.name} {number}"))
        return Spec(geometry, data=self.kinds[number % len(self.kinds)])


def run_cases(family: Family, count: int, device: Any) -> None:
    """Check the first `count` cases of a family."""
    for number in range(count):
        check(family.spec(number), device)


def _kinds(whole: bool) -> tuple[str, ...]:
    return ("integers", "integers", "cancel") if whole else ("normal",)


def conv2d(*, whole: bool) -> Family:
    """Convolutions: groups, strides, padding beyond the kernel, dilation."""
    return Family("conv2d", lambda rng: Conv.draw(rng, most=64, whole=whole), _kinds(whole))


def conv_transpose2d(*, whole: bool) -> Family:
    """Transposed convolutions."""
    return Family("conv_transpose2d", ConvTranspose.draw, _kinds(whole))


def matmul(*, whole: bool) -> Family:
    """Products of matrices, of batches of them and of vectors."""
    return Family("matmul", lambda rng: MatMul.draw(rng, LENGTHS), _kinds(whole))


LENGTHS = (1, 2, 3, 4, 5, 7, 8, 13, 31, 32, 33, 41, 64, 67)


def gemm(*, whole: bool) -> Family:
    """Scaled products plus anything that broadcasts to them."""
    return Family("gemm", Gemm.draw, _kinds(whole))


def pooling(kind: str) -> Family:
    """Maximum or mean over windows."""
    return Family(kind, lambda rng: Pool.draw(rng, kind), ("integers", "normal", "ties"))


def softmax() -> Family:
    """Softmax and its logarithm along every axis."""
    return Family("softmax", Softmax.draw, ("normal",))


def concat() -> Family:
    """Concatenation of one to five arrays, some of them empty, along any axis."""
    return Family("concat", Concat.draw, ("normal",))


def movement() -> Family:
    """Transposes of rank 1 to 6, reshapes and flattening."""
    ops = ("transpose", "transpose", "flatten", "reshape")
    return Family("movement", lambda rng: Move.draw(rng, pick(rng, ops)), ("normal",))


def binary() -> Family:
    """Two operands that broadcast."""
    ops = ("add", "sub", "mul", "maximum", "minimum", "div")
    return Family(
        "binary", lambda rng: Binary(pick(rng, ops), *broadcastable(rng, 2)), ("normal", "ties")
    )


def expression() -> Family:
    """Fused expressions over operands that broadcast in all ways."""

    def draw(rng: np.random.Generator) -> Geometry:
        name = pick(rng, tuple(EXPRESSIONS))
        count = Expression.count(name)
        shapes = broadcastable(rng, count, 1)
        return Expression(name, shapes[:1] * count if rng.random() < 0.5 else shapes)

    return Family("expression", draw, ("integers",))


def unary(name: str) -> list[Spec]:
    """Cases of a function of one operand, as float32 and as float16."""
    given: tuple[dict[str, float], ...] = ({}, *PARAMETERS.get(name, ()))
    return [
        Spec(Unary(name, arguments=tuple(arguments.items())), dtype)
        for dtype in ("float32", "float16")
        for arguments in given
    ]


SPECIAL: dict[str, Spec] = {
    "gelu-tanh": Spec(Unary("gelu", arguments=(("approximate", 1.0),))),
    "pow": Spec(Binary("pow", (1003,), (1003,))),
    "pow-whole": Spec(Binary("pow", (1003,), (1003,)), data="integers"),
    "prelu": Spec(Binary("prelu", (3, 1003), (3, 1))),
    "clip": Spec(Clip((3, 101), -1.5, None)),
    "batch_norm": Spec(BatchNorm((2, 3, 11, 15))),
    "global_avg_pool2d": Spec(GlobalPool("avg", (2, 3, 11, 15))),
    "global_max_pool2d": Spec(GlobalPool("max", (2, 3, 11, 15))),
}
"""Functions that do not fit the families."""


def long(name: str) -> Spec:
    """A sum or maximum over more elements than drivers' loops can be trusted with."""
    return Spec(Long(name), data="integers")


LONG_NAMES = tuple(LONG)
