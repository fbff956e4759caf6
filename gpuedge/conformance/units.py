"""Functions of one element, of two that broadcast, and expressions of up to six."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

import gpuedge
from gpuedge.conformance.case import Case
from gpuedge.conformance.data import WHOLE, fill
from gpuedge.conformance.functions import elementwise
from gpuedge.conformance.layers import Shape, dims, pick
from gpuedge.conformance.shaping import INTEGER_REACH, operand
from gpuedge.conformance.storing import Keeper
from gpuedge.opset import FUNCTIONS
from gpuedge.opset.bounds import Array, Num

UNARY = {name: one for name, one in FUNCTIONS.items() if len(one.operands) == 1}

DOMAINS: dict[str, tuple[float, float]] = {
    **{name: one.domain for name, one in UNARY.items()},
    "relu6": (-20, 20), "silu": (-100, 100), "gelu": (-20, 20),
}  # fmt: skip
"""Functions of one element, and where they are tested."""

NARROW: dict[str, tuple[float, float]] = {
    **{name: one.narrow for name, one in UNARY.items() if one.narrow is not None},
    "silu": (-8, 8), "gelu": (-4, 4),
}  # fmt: skip
"""Where a tensor with few distinct values, or float16, still says something."""

PARAMETERS: dict[str, tuple[dict[str, float], ...]] = {
    "leaky_relu": ({"alpha": 0.3},),
    "elu": ({"alpha": 2.5},),
    "celu": ({"alpha": 1.7},),
    "hard_sigmoid": ({"alpha": 1 / 6, "beta": 0.25},),
}
"""Further arguments to test with, besides the defaults."""

SIZE = 1003
"""Not a multiple of four, and more than one workgroup."""


def spread(rng: np.random.Generator, low: float, high: float, size: int = SIZE) -> Array:
    """Return random numbers, whole ones, halves, both ends, and zero where it lies between."""
    some = rng.uniform(low, high, size).astype(np.float32)
    tenth = size // 10
    some[tenth : 2 * tenth] = np.rint(some[tenth : 2 * tenth])
    some[2 * tenth : 3 * tenth] = np.rint(some[2 * tenth : 3 * tenth]) + np.float32(0.5)
    some = np.clip(some, np.float32(low), np.float32(high))
    some[:2] = low, high
    if low <= 0 <= high:
        some[2] = 0
    return some


@dataclass(frozen=True)
class Unary:
    """A function of one element; `arguments` go by name, `is_narrow` keeps to `NARROW`."""

    op: str
    size: int = SIZE
    arguments: tuple[tuple[str, float], ...] = ()
    is_narrow: bool = False

    @property
    def text(self) -> str:
        """Such as ``1003-alpha0.3``."""
        named = "".join(f"-{name}{value:.4g}" for name, value in self.arguments)
        return f"{self.size}{named}{'-narrow' if self.is_narrow else ''}"

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case; ``tiny`` are numbers close to zero, of either sign where defined."""
        low, high = DOMAINS[self.op]
        if self.is_narrow or dtype == "float16":
            low, high = NARROW.get(self.op, (low, high))
        x = spread(rng, low, high, self.size)
        if dtype in INTEGER_REACH:
            x = operand(rng, (self.size,), data, dtype)
        elif data == "tiny":
            x = np.exp2(rng.uniform(-30, 0, self.size)).astype(np.float32)
            if low < 0:
                x *= (1 - 2 * rng.integers(0, 2, self.size)).astype(np.float32)
        x = x.astype(dtype)
        given = dict(self.arguments)
        is_tanh = given.pop("approximate", 0.0) == 1.0
        named = {**given, "approximate": True} if is_tanh else given
        function = getattr(gpuedge, self.op)
        name = f"{self.op}_tanh" if is_tanh else self.op
        return Case(
            lambda device: function(x, device=device, **named),
            lambda keep: elementwise(name, keep(x), **given),
            f"{self.op} {self.text}",
        )


def broadcastable(rng: np.random.Generator, count: int, low: int = 0) -> tuple[Shape, ...]:
    """Return shapes of up to six axes that broadcast together."""
    rank = int(rng.integers(low, 7))
    out = [pick(rng, (1, 2, 3, 4, 5)) for _ in range(rank)]
    while int(np.prod(out)) > 600:
        out[int(np.argmax(out))] = 1
    found: list[Shape] = []
    for _ in range(count):
        tail = out[rank - int(rng.integers(0, rank + 1)) :] if rank else []
        found.append(tuple(1 if rng.random() < 0.25 else d for d in tail))
    return tuple(found)


@dataclass(frozen=True)
class Binary:
    """A function of two operands that broadcast."""

    op: str
    a: Shape
    b: Shape

    @property
    def text(self) -> str:
        """Such as ``2x3-1``."""
        return f"{dims(self.a)}-{dims(self.b)}"

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case; divisors and bases stay away from zero."""
        if dtype in INTEGER_REACH:
            a, b = (operand(rng, s, data, dtype) for s in (self.a, self.b))
        else:
            a, b = fill(rng, self.a, data), fill(rng, self.b, data)
        if self.op in ("div", "pow"):
            away = np.float32(0.125)
            if self.op == "div":
                b = np.where(b < 0, b - away, b + away)
            elif data == "integers":  # negative bases with whole exponents
                a, b = np.where(a == 0, np.float32(1), a), np.clip(b, -3, 3)
            else:
                a = np.abs(a) + away
        a, b = a.astype(dtype), b.astype(dtype)
        function = getattr(gpuedge, self.op)
        return Case(
            lambda device: function(a, b, device=device),
            lambda keep: elementwise(self.op, keep(a), keep(b)),
            self.text,
        )


@dataclass(frozen=True)
class Clip:
    """Limits on one side or both."""

    shape: Shape
    low: float | None
    high: float | None

    op = "clip"

    @property
    def text(self) -> str:
        """Such as ``2x3-from-1.5-to2``."""
        low = "" if self.low is None else f"-from{self.low:g}"
        return f"{dims(self.shape)}{low}" + ("" if self.high is None else f"-to{self.high:g}")

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        x = operand(rng, self.shape, data, dtype)
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high

        def reference(keep: Keeper) -> Num:
            found = keep(x)
            return Num(np.clip(found.v, low, high), found.e)

        return Case(
            lambda device: gpuedge.clip(x, self.low, self.high, device=device), reference, self.text
        )


def f(name: str, *operands: Num) -> Num:
    """Return a function of values with errors."""
    return elementwise(name, *operands)


EXPRESSIONS: dict[str, tuple[str, Callable[..., Num]]] = {
    "fma": ("relu(a * b + c)", lambda a, b, c: f("relu", a * b + c)),
    "abs": ("abs(a) - 2 * b", lambda a, b: a.abs() - 2.0 * b),
    "minmax": ("max(a, min(b, c)) * d - a",
               lambda a, b, c, d: f("maximum", a, f("minimum", b, c)) * d - a),
    "six": ("a + b + c + d + e + f", lambda *x: reduce(add, x)),
    "differences": ("(a - b) * (c - d) * (e + f)",
                    lambda a, b, c, d, e, f: (a - b) * (c - d) * (e + f)),
    "floor": ("clip(a, -2, 2) + floor(b * 0.5)",
              lambda a, b: Num(np.clip(a.v, -2, 2), a.e) + f("floor", b * 0.5)),
    "neg": ("-a", lambda a: -a),
    "cube": ("a * a * a - 1 + a", lambda a: a * a * a - 1.0 + a),
    "dot": ("(a + b) * c + d * e", lambda a, b, c, d, e: (a + b) * c + d * e),
    "same": ("a * b - b * a + a", lambda a, b: a * b - b * a + a),
}  # fmt: skip
"""Expressions that are exact on whole numbers, and what they mean."""


@dataclass(frozen=True)
class Expression:
    """A fused expression over operands that broadcast."""

    name: str
    shapes: tuple[Shape, ...]

    op = "elementwise"

    @property
    def text(self) -> str:
        """Such as ``fma-2x3-3-1``."""
        return f"{self.name}-" + "-".join(map(dims, self.shapes))

    @staticmethod
    def count(name: str) -> int:
        """Return how many inputs an expression of `EXPRESSIONS` has."""
        return len(gpuedge.elementwise(EXPRESSIONS[name][0]).names)

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        words, meaning = EXPRESSIONS[self.name]
        compiled = gpuedge.elementwise(words)
        given = [fill(rng, s, data, 5).astype(dtype) for s in self.shapes]

        def reference(keep: Keeper) -> Num:
            result = meaning(*(keep(g) for g in given))
            is_exact = data in WHOLE and keep.is_exact
            return Num(result.v, np.zeros_like(result.v)) if is_exact else result

        return Case(
            lambda device: compiled(*given, device=device), reference, f"{words} {self.text}"
        )


FORMULAS: dict[str, tuple[str, Callable[[Num], Num]]] = {
    "square": ("a ** 2.0", lambda a: f("pow", a, Num.of(np.float64(2)))),
    "cube": ("a ** 3", lambda a: f("pow", a, Num.of(np.float64(3)))),
    "root": ("pow(a, 0.5)", lambda a: f("pow", a, Num.of(np.float64(0.5)))),
    "exponent": ("2 ** a", lambda a: f("pow", Num.of(np.float64(2)), a)),
    "constants": ("a * sqrt(6.25) - 3 / 4", lambda a: a * 2.5 - 0.75),
    "overflow": ("min(a, exp(1000))", lambda a: a),
    "underflow": ("max(a, 0 - 1e38 * 1e38)", lambda a: a),
}
"""Expressions with operators between constants alone, which compilers evaluate if they can."""


@dataclass(frozen=True)
class Formula:
    """An expression of `FORMULAS` over one positive operand."""

    name: str
    shape: Shape = (3, 37)

    op = "elementwise"

    @property
    def text(self) -> str:
        """Such as ``square-3x37``."""
        return f"{self.name}-{dims(self.shape)}"

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        words, meaning = FORMULAS[self.name]
        compiled = gpuedge.elementwise(words)
        a = (np.abs(fill(rng, self.shape, data)) + np.float32(0.125)).astype(dtype)
        return Case(
            lambda device: compiled(a=a, device=device), lambda keep: meaning(keep(a)), words
        )


HELPED: dict[str, str] = {"minimum": "min", "maximum": "max"}
"""Functions by the name that expressions may also call them by."""


@dataclass(frozen=True)
class Helper:
    """A function called inside an expression, on something computed, its result used again."""

    function: str
    shape: Shape = (3, 37)

    op = "elementwise"

    @property
    def text(self) -> str:
        """Such as ``in-sigmoid-3x37``."""
        return f"in-{self.function}-{dims(self.shape)}"

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case; bases, divisors and logarithms stay away from zero."""
        a, b, c = (fill(rng, self.shape, data).astype(dtype) for _ in range(3))
        called = HELPED.get(self.function, self.function)
        is_binary = self.function in ("minimum", "maximum", "pow", "prelu")
        inner = "b * b + 1.5" if self.function in ("log", "sqrt", "reciprocal", "pow") else "b + a"
        words = f"{called}({inner}, c) - a" if is_binary else f"{called}({inner}) * c - a"
        compiled = gpuedge.elementwise(words)

        def reference(keep: Keeper) -> Num:
            x, y, z = keep(a), keep(b), keep(c)
            argument = y * y + 1.5 if inner != "b + a" else y + x
            if is_binary:
                return elementwise(self.function, argument, z) - x
            return elementwise(self.function, argument) * z - x

        return Case(lambda device: compiled(a=a, b=b, c=c, device=device), reference, words)
