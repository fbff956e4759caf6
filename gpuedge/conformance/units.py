"""Functions of one element, of two that broadcast, and expressions of up to six."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

import gpuedge
from gpuedge.conformance.case import Case, case, digest
from gpuedge.conformance.data import (
    BYTES,
    Shape,
    broadcastable,
    dims,
    every_half,
    fill,
    operand,
    spread,
)
from gpuedge.ops.expression import NAMES
from gpuedge.opset import FUNCTIONS
from gpuedge.opset.bounds import HALF_MOST, Array, Num
from gpuedge.oracle import functions as oracle
from gpuedge.oracle.functions import elementwise
from gpuedge.oracle.layers import choose

Rng = np.random.Generator

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
    given: dict[str, Any] = dict(arguments or {})
    named = "".join(f"-{name}{value:.4g}" for name, value in given.items())
    # ONNX calls it an attribute of gelu; the oracle, another function.
    is_tanh = given.pop("approximate", 0.0) == 1.0

    def draw(rng: Rng, data: str, dtype: str) -> list[Array]:
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
        return [x]

    wanted = partial(elementwise, f"{op}_tanh" if is_tanh else op, **given)
    how = {**given, "approximate": True} if is_tanh else given
    return case(op, f"{size}{named}{'-narrow' if is_narrow else ''}", draw, wanted, how)


def shaped(op: str, shape: Shape) -> Case:
    """Return a function of one element on an array of any shape."""

    def draw(rng: Rng, data: str, dtype: str) -> list[Array]:
        low, high = NARROW.get(op, DOMAINS[op]) if dtype == "float16" else DOMAINS[op]
        size = int(np.prod(shape))
        if dtype in BYTES:
            x = operand(rng, (size,), data, dtype)
        elif data == "ties":  # few numbers, among them halves
            x = np.clip(rng.integers(-8, 9, size) * 0.5, low, high).astype(np.float32)
        else:
            x = rng.uniform(low, high, size).astype(np.float32)
        return [x.reshape(shape)]

    return case(op, f"shape{dims(shape)}", draw, partial(elementwise, op))


def draw_unary(rng: Rng, op: str) -> Case:
    """Return one on a random shape of up to six axes, or on a single number."""
    return shaped(op, broadcastable(rng, 1)[0])


def draw_parameters(rng: Rng, op: str) -> Case:
    """Return one with random further arguments."""
    named = FUNCTIONS[op].numbers
    given = {name: float(rng.integers(1, 24)) / 8 for name in named if name != "gamma"}
    return unary(op, int(rng.integers(11, 400)), given)


def draw_clip(rng: Rng) -> Case:
    """Return random limits on one side or both."""
    low, high = sorted(float(v) for v in rng.integers(-20, 21, 2) / 8)
    kind = int(rng.integers(3))
    return clip(broadcastable(rng, 1)[0], None if kind == 1 else low, None if kind == 2 else high)


def draw_alone(rng: Rng, name: str) -> Case:
    """Return a function inside an expression over operands that broadcast."""
    return _inside(name, broadcastable(rng, 3, 1))


EXACT = (
    "{0} + {1}", "{0} - {1}", "max({0}, {1})", "min({0}, {1})", "abs({0})", "-{0}", "relu({0})",
    "{0} * 2", "{0} * 0.5", "floor({0})", "ceil({0} * 0.5)", "clip({0}, -3, 2)",
)  # fmt: skip
"""What expressions are made of that stay exact: halves of whole numbers, and sums of them."""


def draw_random(rng: Rng) -> Case:
    """Return a random expression of three to six operands, exact on small whole numbers."""
    count = int(rng.integers(3, 7))
    parts = list(LETTERS[:count])
    steps = 0
    while len(parts) > 1 or steps < 3:
        form = EXACT[int(rng.integers(len(EXACT)))]
        taken = [
            parts.pop(int(rng.integers(len(parts))))
            for _ in range(1 + ("{1}" in form and len(parts) > 1))
        ]
        if "{1}" in form and len(taken) < 2:
            taken.append("a")
        parts.append(f"({form.format(*taken)})")
        steps += 1
    if rng.random() < 0.5:
        parts[0] = f"{parts[0]} * b"
    words = parts[0]
    shapes = broadcastable(rng, count, 1)
    text = f"random{digest(words) % 10**8}-" + "-".join(map(dims, shapes))
    return _fused(text, words, shapes, is_exact=True)


def every(op: str) -> Case:
    """Return a function of one element of all 65,536 numbers of float16."""

    def draw(_: Rng, data: str, __: str) -> list[Array]:
        return [every_half(is_finite=data == "finite")]

    def wanted(x: Num) -> Num:
        found = elementwise(op, x)
        most = elementwise(op, np.clip(x.v, -HALF_MOST, HALF_MOST)).e
        error = np.where(np.isinf(x.v) & np.isnan(found.e), most, found.e)
        is_open = np.isinf(x.v) & np.isnan(found.v)  # of infinity times zero nothing is promised
        return Num(found.v, np.where(is_open, np.inf, error))

    return case(op, "all65536", draw, wanted, dtype="float16", data="every")


def binary(op: str, a: Shape, b: Shape) -> Case:
    """Return a function of two operands that broadcast; divisors and bases stay clear of zero."""

    def draw(rng: Rng, data: str, dtype: str) -> list[Array]:
        x, y = (
            operand(rng, s, data, dtype) if dtype in BYTES else fill(rng, s, data) for s in (a, b)
        )
        away = np.float32(0.125)
        if op == "div":
            y = np.where(y < 0, y - away, y + away)
        elif op == "pow" and data == "integers":  # negative bases with whole exponents
            x, y = np.where(x == 0, np.float32(1), x), np.clip(y, -3, 3)
        elif op == "pow":
            x = np.abs(x) + away
        return [x, y]

    return case(op, f"{dims(a)}-{dims(b)}", draw, partial(elementwise, op))


def clip(shape: Shape, low: float | None, high: float | None) -> Case:
    """Return limits on one side or both."""
    said = ("" if low is None else f"-from{low:g}") + ("" if high is None else f"-to{high:g}")
    return case(
        "clip", f"{dims(shape)}{said}", lambda rng, *kind: [operand(rng, shape, *kind)],
        partial(oracle.clip, low=low, high=high), {"lo": low, "hi": high},
    )  # fmt: skip


EXPRESSIONS = {
    "fma": "relu(a * b + c)",
    "abs": "abs(a) - 2 * b",
    "minmax": "max(a, min(b, c)) * d - a",
    "six": "a + b + c + d + e + f",
    "differences": "(a - b) * (c - d) * (e + f)",
    "floor": "clip(a, -2, 2) + floor(b * 0.5)",
    "neg": "-a",
    "cube": "a * a * a - 1 + a",
    "dot": "(a + b) * c + d * e",
    "same": "a * b - b * a + a",
}
"""Expressions that are exact on whole numbers."""

FORMULAS = {
    "square": ("a ** 2.0", "pow(a, 2.0)"),
    "cube": ("a ** 3", "pow(a, 3.0)"),
    "root": ("pow(a, 0.5)", "pow(a, 0.5)"),
    "exponent": ("2 ** a", "pow(2.0, a)"),
    "constants": ("a * sqrt(6.25) - 3 / 4", "a * 2.5 - 0.75"),
    "overflow": ("min(a, exp(1000))", "a"),
    "underflow": ("max(a, 0 - 1e38 * 1e38)", "a"),
}
"""Expressions of a positive operand, with operators between constants alone, which compilers
evaluate if they can; and what they come to."""

LETTERS = "abcdef"
CALLED = {"minimum": "min", "maximum": "max"}
"""Functions that expressions call by another name."""

WORDS: dict[str, Any] = {
    **{CALLED.get(n, n): partial(elementwise, n) for n in (*FUNCTIONS, "silu", "gelu", "relu6")},
    "clip": oracle.clip,
    "where": choose,
}


@cache
def count(name: str) -> int:
    """Return how many inputs an expression of `EXPRESSIONS` has."""
    return len(gpuedge.elementwise(EXPRESSIONS[name]).names)


def _fused(
    text: str, words: str, shapes: tuple[Shape, ...], *, meant: str = "", is_exact: bool = False
) -> Case:
    """Return a fused expression over operands that broadcast, which may mean a simpler one.

    It means what Python makes of it with values that carry their errors.
    """

    def draw(rng: Rng, data: str, _: str) -> list[Array]:
        given = [fill(rng, s, data, 5) for s in shapes]
        return [np.abs(g) + np.float32(0.125) for g in given] if meant else given

    def wanted(*given: Num, whole: bool) -> Num:
        code = compile(meant or words, "expression", "eval")
        result = Num.of(eval(code, {**WORDS, **dict(zip(LETTERS, given, strict=False))}))
        stays = is_exact and whole and not any(g.e.any() for g in given)
        return Num(result.v, np.zeros_like(result.v)) if stays else result

    def call(*given: Array, device: Any) -> Array:
        named = dict(zip(LETTERS, given, strict=False))
        return gpuedge.elementwise(words)(**named, device=device)

    return case("elementwise", text, draw, wanted, call=call, is_sum=True)


def expression(name: str, shapes: tuple[Shape, ...]) -> Case:
    """Return an expression of `EXPRESSIONS`."""
    text = "-".join([name, *map(dims, shapes)])
    return _fused(text, EXPRESSIONS[name], shapes, is_exact=True)


INSIDE = [name for name in NAMES if name not in ("clip", *CALLED)]


def _inside(name: str, shapes: tuple[Shape, ...]) -> Case:
    """Return a function of something computed, its result used again."""
    full = {short: long for long, short in CALLED.items()}.get(name, name)
    # bases and divisors are not zero
    inner = "b * b + 1.5" if name in ("log", "sqrt", "reciprocal", "pow") else "b + a"
    if name == "prelu":
        inner += " + c"  # its slope may not be larger than what it is for
    is_pair = full in FUNCTIONS and len(FUNCTIONS[full].operands) == 2
    words = f"{name}({inner}, c) - a" if is_pair else f"{name}({inner}) * c - a"
    if name == "where":
        words = "where(greater(a + b, c), b, c) * a"
    said = dims(shapes[0]) if len(set(shapes)) == 1 else "-".join(map(dims, shapes))
    return _fused(f"in-{full}-{said}", words, shapes)


def alone() -> Iterator[Case]:
    """Yield every function inside an expression, and every formula with constants."""
    shape = (3, 37)
    for name in INSIDE:
        yield _inside(name, (shape,) * 3)
    for name, (words, meant) in FORMULAS.items():
        yield _fused(f"{name}-{dims(shape)}", words, (shape,), meant=meant)
