"""The error bounds that docstrings state, against their derivation; and judging by them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpuedge
from gpuedge.conformance.case import compare
from gpuedge.conformance.layers import ACTIVATIONS
from gpuedge.conformance.units import DOMAINS
from gpuedge.opset.bounds import ULP, Array, Num, U
from gpuedge.oracle.functions import elementwise
from gpuedge.oracle.layers import matmul

DOCS = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
Bound = Callable[[Array, Array], Array]


def per_size(factor: float) -> Bound:
    return lambda x, y: factor * np.maximum(1, np.abs(x))


def ulps(factor: float) -> Bound:
    return lambda x, y: factor * ULP * np.abs(y) + 1e-37


def absolute(factor: float) -> Bound:
    return lambda x, y: np.full_like(y, factor)


CLAIMS: dict[str, tuple[str, Bound]] = {
    "sigmoid": ("1e-6 absolute", absolute(1e-6)),
    "tanh": ("1e-5 absolute", absolute(1e-5)),
    "erf": ("3e-6 absolute", absolute(3e-6)),
    "sin": ("2e-6 absolute for abs(x) <= 1000", absolute(2e-6)),
    "cos": ("2e-6 absolute for abs(x) <= 1000", absolute(2e-6)),
    "softplus": (
        "2e-6 absolute plus 1e-6 relative",
        lambda x, y: 2e-6 + 1e-6 * np.abs(y),
    ),
    "selu": ("1e-6 absolute plus 1e-6 relative", lambda x, y: 1e-6 + 1e-6 * np.abs(y)),
    "softsign": ("4 ULP", ulps(4)),
    "sinh": ("(8 + 2 abs(x)) ULP", lambda x, y: (8 + 2 * np.abs(x)) * ULP * np.abs(y) + 1e-37),
    "mish": ("1e-6 * max(1, abs(x))", per_size(1e-6)),
    "silu": ("2e-6 * max(1, abs(x))", per_size(2e-6)),
    "hard_swish": ("2e-7 * max(1, abs(x))", per_size(2e-7)),
    "hard_sigmoid": (
        "2 ULP of max(1, alpha * x)",
        lambda x, y: 2 * ULP * np.maximum(1, np.abs(x) * 0.2),
    ),
    "leaky_relu": ("1.25 ULP", ulps(1.25)),
    "elu": ("1e-6 * max(1, alpha) absolute plus 1 ULP", lambda x, y: 1e-6 + ULP * np.abs(y)),
    "celu": ("1e-6 * max(1, alpha) absolute plus 1 ULP", lambda x, y: 1e-6 + ULP * np.abs(y)),
    "gelu": ("1e-6 * max(1, abs(x))", per_size(1e-6)),
    "gelu_tanh": ("1e-5 * max(1, abs(x))", per_size(1e-5)),
    "sqrt": ("4.5 ULP", ulps(4.51)),
    "reciprocal": ("2.5 ULP", ulps(2.51)),
    "exp": ("(3 + 2 abs(x)) ULP", lambda x, y: (3.01 + 2 * np.abs(x)) * ULP * y + 1e-37),
}


def grid(name: str) -> Array:
    low, high = DOMAINS[name.removesuffix("_tanh")]
    wide = np.linspace(low, high, 20_001)
    near = np.linspace(max(low, -4), min(high, 4), 20_001)
    tiny = np.geomspace(1e-30, 1, 200)
    both = np.concatenate([wide, near, tiny, -tiny])
    return both[(both >= low) & (both <= high)].astype(np.float32)


@pytest.mark.parametrize("name", CLAIMS)
def test_docstring_states_what_the_derivation_gives(name: str) -> None:
    text, claim = CLAIMS[name]
    documented = " ".join(str(getattr(gpuedge, name.removesuffix("_tanh")).__doc__).split())
    assert text in documented
    x = grid(name)
    value, bound = elementwise(name, x)
    assert (bound <= claim(x.astype(np.float64), value)).all()
    # Not too generous either, somewhere.
    assert (bound >= claim(x.astype(np.float64), value) / 12).any()


@pytest.mark.parametrize(("name", "more"), [("sinh", 8), ("cosh", 6)])
def test_hyperbolic_functions_are_as_good_up_to_where_they_overflow(name: str, more: int) -> None:
    x = np.concatenate(
        [np.linspace(0, 89.41, 20_001), np.geomspace(1e-30, 1, 99)], dtype=np.float32
    )
    value, bound = elementwise(name, x)
    assert value.max() > 3.3e38 and f"| `{name}`" in DOCS.read_text()
    assert (bound <= (more + 2 * x.astype(np.float64)) * ULP * value + 1e-37).all()


def test_every_inexact_function_is_claimed() -> None:
    x = np.float32([0.3, 1.7])
    inexact = {n for n in DOMAINS if elementwise(n, x).e.any()}
    assert inexact - set(CLAIMS) == {"log"}  # whose bound has two parts; checked below


def test_logarithm() -> None:
    x = grid("log")
    value, bound = elementwise("log", x)
    stated = np.where((x >= 0.5) & (x <= 2), 2.0**-21, 3 * ULP * np.abs(value))
    assert (bound <= np.maximum(stated, 3 * ULP * np.abs(value)) * 1.001 + 1e-37).all()


def test_running_errors_cover_float32_arithmetic() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.uniform(0.5, 2, 1000).astype(np.float32) for _ in range(3))
    wide = [v.astype(np.float64) for v in (a, b, c)]
    tracked = (Num.of(wide[0]) * wide[1] + wide[2]) / wide[1] - wide[0]
    got = (a * b + c) / b - a
    error = np.abs(got - tracked.v)
    assert error.max() > U  # float32 is not exact here ...
    assert (error <= tracked.e).all()  # ... and the bound holds
    assert (tracked.e < 30 * U * np.maximum(1, np.abs(tracked.v) * 4)).all()  # without being empty


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_activation_is_steeper_than_the_cases_assume(name: str) -> None:
    x = np.linspace(-20, 20, 400_001)
    value = elementwise(name, x).v
    assert np.abs(np.diff(value) / np.diff(x)).max() <= 1.5


def test_what_is_far_off_fits_a_row_of_results() -> None:
    none = Num(np.zeros(1), np.full(1, 2.0**-126))
    found = compare(np.float32([3e-8]), none)
    assert not found.ok and found.worst == 1e9, "3e30 would be no number of a record"


def test_judging_notices() -> None:
    good = Num(np.array([1.0, 2.0]), np.zeros(2))
    assert compare(np.float32([1, 2]), good).ok
    for bad in ([1, np.nextafter(np.float32(2), np.float32(3))], [1, np.nan], [[1, 2]]):
        assert not compare(np.float32(bad), good).ok
    for bad_type in (np.array([1.0, 2.0]), np.float16([1, 2]), [1.0, 2.0], None):
        assert not compare(bad_type, good).ok
    odd = Num(np.array([math.nan, math.inf]), np.zeros(2))
    assert compare(np.float32([math.nan, math.inf]), odd).ok
    assert "instead of 2" in compare(np.float32([1, 3]), good).message
    assert (
        "instead of 5"
        in compare(np.asarray(np.float32(1)), Num(np.asarray(5.0), good.e[0])).message
    )
    half = Num(np.array([1.0 + 2.0**-12]), np.zeros(1))
    assert compare(np.float16([1]), half, "float16").ok
    found = compare(np.float32([1, 2.5]), Num(good.v, np.array([0.0, 1.0])))
    assert found.ok and found.worst == 0.5


def test_errors_that_are_all_near_their_bounds_are_too_far_off_together() -> None:
    rng = np.random.default_rng(3)
    value = rng.uniform(1, 2, 400)
    wanted = Num(value.astype(np.float32).astype(np.float64), np.full(400, 1e-3))
    for size in (0.99, 0.3):
        got = (wanted.v + rng.uniform(-size, size, 400) * 1e-3).astype(np.float32)
        assert compare(got, wanted).ok
    biased = compare((wanted.v + 0.9e-3).astype(np.float32), wanted)
    assert not biased.ok and "together" in biased.message and biased.rms is not None
    assert biased.worst is not None and biased.worst < 1 < biased.rms
    few = Num(wanted.v[:2], wanted.e[:2])
    assert compare((few.v + 0.9e-3).astype(np.float32), few).ok  # too few to tell
    same = Num(np.full(400, 1.5), wanted.e)
    assert compare(np.full(400, 1.5009, np.float32), same).ok  # one number, 400 times


def test_a_long_sum_may_be_far_off_in_no_typical_element() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((40, 40)).astype(np.float32) for _ in range(2))
    wanted = matmul(a, b)
    assert wanted.likely is not None
    assert np.allclose(wanted.likely * math.sqrt(2 * 40), wanted.e)
    sums = np.zeros((40, 40), np.float32)
    for k in range(40):
        sums += a[:, k : k + 1] * b[k]
    honest = compare(sums, wanted)
    assert honest.ok and honest.rms is not None and honest.rms < 0.5
    # half of the bound everywhere: no element alone is wrong
    shifted = compare((wanted.v + 0.5 * wanted.e).astype(np.float32), wanted)
    assert not shifted.ok and shifted.worst is not None and shifted.worst < 1


def test_halves_overflow_to_infinity_and_to_nothing_else() -> None:
    wanted = Num(np.array([65530.0, 65500.0, 1e300, -7e4]), np.zeros(4))
    assert compare(np.float16([np.inf, 65504, np.inf, -np.inf]), wanted, "float16").ok
    for bad in ([65504, 65504, np.inf, -np.inf], [np.inf, np.inf, np.inf, -np.inf],
                [np.inf, 65504, -np.inf, -np.inf], [np.inf, 65504, np.nan, -np.inf]):  # fmt: skip
        assert not compare(np.float16(bad), wanted, "float16").ok, bad


def test_page_lists_every_operation() -> None:
    page = DOCS.read_text(encoding="utf-8")
    from gpuedge import ops

    missing = [n for n in ops.__all__ if not re.search(rf"`{n}`", page)]
    assert missing == []
