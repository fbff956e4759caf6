"""Operations with operands that hurt, for any device: hypothesis strategies of `Case`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import oracle
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gpuedge

Array = npt.NDArray[Any]
ACTIVATIONS = (
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "sigmoid",
    "tanh",
    "hard_swish",
    "silu",
    "gelu",
)


@dataclass(frozen=True)
class Case:
    """One call of the public API, and what it must give."""

    what: str
    call: Callable[[Any], Array]
    expected: oracle.Result

    def check(self, device: Any) -> None:
        """Run on a device and compare."""
        oracle.check(self.call(device), self.expected, self.what)

    def __repr__(self) -> str:
        return self.what


def run_cases(strategy: st.SearchStrategy[Case], count: int, device: Any) -> None:
    """Check `count` cases, always the same ones; fewer is a failure."""
    done = []

    @settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(case: Case) -> None:
        case.check(device)
        done.append(case.what)

    each()
    assert len(done) >= count, f"only {len(done)} of {count} cases: {strategy}"


def integers(rng: np.random.Generator, shape: Sequence[int], reach: int = 4) -> Array:
    """Small integers: sums of products of them are exact."""
    return rng.integers(-reach, reach + 1, tuple(shape)).astype(np.float32)


def normals(rng: np.random.Generator, shape: Sequence[int], _: int = 0) -> Array:
    """Random numbers."""
    return rng.standard_normal(tuple(shape)).astype(np.float32)


@st.composite
def generators(draw: st.DrawFn) -> np.random.Generator:
    """A seeded random generator."""
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


def disguised(kind: int, array: Array) -> Array:
    """The same numbers as float16, strided, big-endian, read-only or plain."""
    if kind == 1:
        return array.astype(np.float16)
    if kind == 2 and array.ndim:
        wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), np.float32)
        wide[..., ::-2] = array
        return wide[..., ::-2]
    if kind == 3:
        return array.astype(">f4")
    if kind == 4:
        array = array.copy()
        array.flags.writeable = False
    return array


DISGUISES = st.sampled_from([0, 0, 0, 1, 2, 3, 4])


@st.composite
def softmax(draw: st.DrawFn) -> Case:
    """Softmax and its logarithm along every axis."""
    rng = draw(generators())
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 7, 16, 31]), min_size=1, max_size=4)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    log = draw(st.booleans())
    x = normals(rng, shape) * np.float32(draw(st.sampled_from([1, 5, 30])))
    function = gpuedge.log_softmax if log else gpuedge.softmax
    return Case(
        f"softmax {shape} {axis=} {log=}",
        lambda d: function(x, axis, device=d),
        oracle.softmax(x, axis, log=log),
    )


def moved(value: Array) -> oracle.Result:
    """What an operation that only moves elements gives."""
    return value.astype(np.float64), np.zeros(value.shape)


@st.composite
def concat(draw: st.DrawFn) -> Case:
    """Concatenation of one to five arrays, some of them empty, along any axis."""
    rng = draw(generators())
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5, 8]), min_size=1, max_size=5))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    parts = []
    for extent in draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 7]), min_size=1, max_size=5)):
        shape[axis] = extent
        parts.append(disguised(draw(st.sampled_from([0, 2, 3])), normals(rng, shape)))
    return Case(
        f"concat {[p.shape for p in parts]} {axis=}",
        lambda d: gpuedge.concat(parts, axis, device=d),
        moved(np.concatenate(parts, axis)),
    )


@st.composite
def movement(draw: st.DrawFn) -> Case:
    """Transposes of rank 1 to 6, reshapes and flattening."""
    rng = draw(generators())
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5]), min_size=1, max_size=6))
    x = disguised(draw(DISGUISES), normals(rng, shape))
    axes = draw(st.permutations(range(len(shape))))
    how = draw(st.sampled_from(["transpose", "transpose", "reverse", "flatten", "reshape"]))
    axis = draw(st.integers(0, len(shape)))
    calls: dict[str, tuple[Callable[[Any], Array], Array]] = {
        "transpose": (lambda d: gpuedge.transpose(x, axes, device=d), x.transpose(axes)),
        "reverse": (lambda d: gpuedge.transpose(x, device=d), x.T),
        "flatten": (
            lambda d: gpuedge.flatten(x, axis, device=d),
            x.reshape(int(np.prod(shape[:axis])), -1),
        ),
        "reshape": (
            lambda d: gpuedge.reshape(x, (-1, shape[-1]), device=d), x.reshape(-1, shape[-1])
        ),
    }  # fmt: skip
    call, value = calls[how]
    return Case(f"{how} {shape} {axes} {x.dtype}", call, moved(value))


@st.composite
def shapes(draw: st.DrawFn, count: int, low: int = 0) -> list[tuple[int, ...]]:
    """Shapes of rank 0 to 6 that broadcast together."""
    out = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5]), min_size=low, max_size=6))
    found = []
    for _ in range(count):
        rank = draw(st.integers(0, len(out)))
        tail = out[len(out) - rank :]
        found.append(tuple(1 if draw(st.booleans()) and draw(st.booleans()) else d for d in tail))
    return found


@st.composite
def binary(draw: st.DrawFn) -> Case:
    """Two operands that broadcast."""
    rng = draw(generators())
    name = draw(st.sampled_from(["add", "sub", "mul", "maximum", "minimum", "div"]))
    first, second = draw(shapes(2))
    if draw(st.integers(0, 9)) == 0:
        first, second = (0, 3), (3,)
    a, b = normals(rng, first), normals(rng, second)
    if name == "div":
        b = np.abs(b) + np.float32(0.1)
    a = disguised(draw(st.sampled_from([0, 0, 2, 3, 4])), a)
    return Case(
        f"{name} {first} {second}",
        lambda d: getattr(gpuedge, name)(a, b, device=d),
        oracle.elementwise(name, a, b),
    )


EXPRESSIONS: dict[str, Callable[..., Array]] = {
    "relu(a * b + c)": lambda a, b, c: np.maximum(a * b + c, 0),
    "abs(a) - 2 * b": lambda a, b: np.abs(a) - 2 * b,
    "max(a, min(b, c)) * d - a": lambda a, b, c, d: np.maximum(a, np.minimum(b, c)) * d - a,
    "a + b + c + d + e + f": lambda *x: sum(x),
    "(a - b) * (c - d) * (e + f)": lambda a, b, c, d, e, f: (a - b) * (c - d) * (e + f),
    "clip(a, -2, 2) + floor(b * 0.5)": lambda a, b: np.clip(a, -2, 2) + np.floor(b * 0.5),
    "-a": lambda a: -a,
    "a * a * a - 1 + a": lambda a: a * a * a - 1 + a,
    "(a + b) * c + d * e": lambda a, b, c, d, e: (a + b) * c + d * e,
}
"""Expressions of one to six inputs that are exact on integers."""


@st.composite
def expression(draw: st.DrawFn) -> Case:
    """A fused expression over operands that broadcast in all ways."""
    rng = draw(generators())
    text, function = draw(st.sampled_from(sorted(EXPRESSIONS.items(), key=lambda e: e[0])))
    compiled = gpuedge.elementwise(text)
    same = draw(st.booleans())
    found = draw(shapes(len(compiled.names), 1))
    given_ = [integers(rng, found[0] if same else s, 5) for s in found]
    value = np.asarray(function(*(g.astype(np.float64) for g in given_)))
    return Case(
        f"{text} {[g.shape for g in given_]}",
        lambda d: compiled(*given_, device=d),
        (value, np.zeros_like(value)),
    )
