"""Functions of one element, of two that broadcast, and expressions of up to six."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import add

import numpy as np

import gpuedge
from gpuedge.conformance.case import Built, Case, direct
from gpuedge.conformance.data import BYTES, WHOLE, Shape, dims, fill, operand, spread
from gpuedge.conformance.functions import elementwise as f
from gpuedge.conformance.storing import Keeper
from gpuedge.ops.expression import NAMES
from gpuedge.opset import FUNCTIONS
from gpuedge.opset.bounds import Num

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

PARAMETERS: dict[str, Mapping[str, float]] = {
    "leaky_relu": {"alpha": 0.3},
    "elu": {"alpha": 2.5},
    "celu": {"alpha": 1.7},
    "hard_sigmoid": {"alpha": 1 / 6, "beta": 0.25},
}
"""Further arguments to test with, besides the defaults."""

SIZE = 1003
"""Not a multiple of four, and more than one workgroup."""


def unary(
    op: str,
    size: int = SIZE,
    arguments: Mapping[str, float] | None = None,
    *,
    is_narrow: bool = False,
) -> Case:
    """Return a function of one element; ``tiny`` are numbers close to zero, of either sign."""
    given = dict(arguments or {})
    named = "".join(f"-{name}{value:.4g}" for name, value in given.items())
    # ONNX calls it an attribute of gelu; the oracle, another function.
    is_tanh = given.pop("approximate", 0.0) == 1.0
    meaning = f"{op}_tanh" if is_tanh else op

    def make(rng: np.random.Generator, data: str, dtype: str) -> Built:
        low, high = DOMAINS[op]
        if is_narrow or dtype == "float16":
            low, high = NARROW.get(op, (low, high))
        x = spread(rng, low, high, size)
        if dtype in BYTES:
            x = operand(rng, (size,), data, dtype)
        elif data == "tiny":
            x = np.exp2(rng.uniform(-30, 0, size)).astype(np.float32)
            if low < 0:
                x *= (1 - 2 * rng.integers(0, 2, size)).astype(np.float32)
        how = {**given, "approximate": True} if is_tanh else given
        return direct(
            getattr(gpuedge, op), [x.astype(dtype)], lambda n: f(meaning, n, **given), how
        )

    return Case(op, f"{size}{named}{'-narrow' if is_narrow else ''}", make)


def binary(op: str, a: Shape, b: Shape) -> Case:
    """Return a function of two operands that broadcast; divisors and bases stay clear of zero."""

    def make(rng: np.random.Generator, data: str, dtype: str) -> Built:
        draw = operand if dtype in BYTES else lambda rng, s, data, _: fill(rng, s, data)
        x, y = draw(rng, a, data, dtype), draw(rng, b, data, dtype)
        away = np.float32(0.125)
        if op == "div":
            y = np.where(y < 0, y - away, y + away)
        elif op == "pow" and data == "integers":  # negative bases with whole exponents
            x, y = np.where(x == 0, np.float32(1), x), np.clip(y, -3, 3)
        elif op == "pow":
            x = np.abs(x) + away
        given = [x.astype(dtype), y.astype(dtype)]
        return direct(getattr(gpuedge, op), given, lambda p, q: f(op, p, q))

    return Case(op, f"{dims(a)}-{dims(b)}", make)


def clip(shape: Shape, low: float | None, high: float | None) -> Case:
    """Return limits on one side or both."""
    said = ("" if low is None else f"-from{low:g}") + ("" if high is None else f"-to{high:g}")

    def wanted(x: Num) -> Num:
        least, most = -np.inf if low is None else low, np.inf if high is None else high
        return Num(np.clip(x.v, least, most), x.e)

    def make(rng: np.random.Generator, data: str, dtype: str) -> Built:
        x = operand(rng, shape, data, dtype)
        return direct(gpuedge.clip, [x], wanted, {"lo": low, "hi": high})

    return Case("clip", f"{dims(shape)}{said}", make)


Meaning = Callable[..., Num]

EXPRESSIONS: dict[str, tuple[str, Meaning]] = {
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

FORMULAS: dict[str, tuple[str, Meaning]] = {
    "square": ("a ** 2.0", lambda a: f("pow", a, 2.0)),
    "cube": ("a ** 3", lambda a: f("pow", a, 3.0)),
    "root": ("pow(a, 0.5)", lambda a: f("pow", a, 0.5)),
    "exponent": ("2 ** a", lambda a: f("pow", 2.0, a)),
    "constants": ("a * sqrt(6.25) - 3 / 4", lambda a: a * 2.5 - 0.75),
    "overflow": ("min(a, exp(1000))", lambda a: a),
    "underflow": ("max(a, 0 - 1e38 * 1e38)", lambda a: a),
}
"""Expressions of a positive operand, with operators between constants alone, which compilers
evaluate if they can."""

LETTERS = "abcdef"


def count(name: str) -> int:
    """Return how many inputs an expression of `EXPRESSIONS` has."""
    return len(gpuedge.elementwise(EXPRESSIONS[name][0]).names)


def _fused(
    text: str, row: tuple[str, Meaning], shapes: tuple[Shape, ...], *, is_positive: bool = False
) -> Case:
    """Return a fused expression over operands that broadcast."""
    words, meaning = row

    def make(rng: np.random.Generator, data: str, dtype: str) -> Built:
        compiled = gpuedge.elementwise(words)
        given = [fill(rng, s, data, 5) for s in shapes]
        given = [np.abs(g) + np.float32(0.125) for g in given] if is_positive else given
        given = [g.astype(dtype) for g in given]
        named = dict(zip(LETTERS, given, strict=False))

        def reference(keep: Keeper) -> Num:
            result = meaning(*(keep(g) for g in given))
            is_exact = data in WHOLE and keep.is_exact
            return Num(result.v, np.zeros_like(result.v)) if is_exact else result

        return Built(lambda device: compiled(**named, device=device), reference)

    return Case("elementwise", text, make)


def expression(name: str, shapes: tuple[Shape, ...]) -> Case:
    """Return an expression of `EXPRESSIONS`."""
    return _fused("-".join([name, *map(dims, shapes)]), EXPRESSIONS[name], shapes)


def _helper(function: str) -> tuple[str, Meaning]:
    """Return a function called on something computed, its result used again.

    Bases, divisors and logarithms stay away from zero.
    """
    called = {"minimum": "min", "maximum": "max"}.get(function, function)
    is_away = function in ("log", "sqrt", "reciprocal", "pow")
    inner = "b * b + 1.5" if is_away else "b + a"

    def computed(a: Num, b: Num) -> Num:
        return b * b + 1.5 if is_away else b + a

    if function in ("minimum", "maximum", "pow", "prelu"):
        return f"{called}({inner}, c) - a", lambda a, b, c: f(function, computed(a, b), c) - a
    return f"{called}({inner}) * c - a", lambda a, b, c: f(function, computed(a, b)) * c - a


def alone() -> Iterator[Case]:
    """Yield every function inside an expression, and every formula with constants."""
    known, shape = {"min": "minimum", "max": "maximum"}, (3, 37)
    for function in dict.fromkeys(known.get(n, n) for n in NAMES if n != "clip"):
        yield _fused(f"in-{function}-{dims(shape)}", _helper(function), (shape,) * 3)
    for name, row in FORMULAS.items():
        yield _fused(f"{name}-{dims(shape)}", row, (shape,), is_positive=True)
