"""The functions of a decision against the mathematical functions of Python; no others decide."""

from __future__ import annotations

import ast
import math
import random
from pathlib import Path
from statistics import NormalDist

import pytest

import gpuedge.decide
from gpuedge.decide import exact

DRAWS = 20_000


def reference_phi(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def test_exp_and_ln_are_within_a_few_last_bits() -> None:
    rng = random.Random(1)
    for _ in range(DRAWS):
        x = rng.uniform(-690, 690)
        assert abs(exact.exp(x) / math.exp(x) - 1) <= 1e-15
        y = math.exp(x)
        assert abs(exact.ln(y) - math.log(y)) <= 1e-15 * abs(math.log(y))
        near = 1 + rng.uniform(-1e-3, 1e-3)
        assert abs(exact.ln(near) - math.log(near)) <= 1e-15 * abs(math.log(near))


def test_phi_is_within_what_it_states() -> None:
    rng = random.Random(2)
    for _ in range(DRAWS):
        z = rng.uniform(-10, 10)
        assert abs(exact.phi(z) - reference_phi(z)) <= 1e-14
        if -8 < z < 0:
            assert abs(exact.phi(z) / reference_phi(z) - 1) <= 1e-10


def test_phi_meets_itself_between_the_points_of_its_table() -> None:
    """Where two expansions meet, both hold; a table that is off by one row jumps there."""
    for place in range(-67, 67):
        edge = (place + 0.5) / exact.STEPS
        assert abs(exact.phi(edge + 1e-12) - exact.phi(edge - 1e-12)) < 2e-12
    assert abs(exact.phi(0) - 0.5) <= 1e-15
    assert (exact.phi(-40), exact.phi(40)) == (0.0, 1.0)


def test_quantile_is_the_inverse() -> None:
    rng = random.Random(3)
    for p in [1e-6, 0.5, 0.9, 0.99, 1 - 1e-6, *(rng.uniform(1e-6, 1 - 1e-6) for _ in range(500))]:
        assert abs(exact.quantile(p) - NormalDist().inv_cdf(p)) <= 1e-11
    for bad in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="quantile needs"):
            exact.quantile(bad)


def test_ends_of_the_range() -> None:
    assert exact.exp(0.0) == 1.0
    assert exact.ln(1.0) == 0.0
    assert exact.exp(1e9) == exact.exp(exact.LARGEST) < math.inf
    assert exact.exp(-1e9) > 0
    assert abs(exact.ln(10**40) / math.log(10**40) - 1) < 1e-15
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="above zero"):
            exact.ln(bad)


def test_root_is_exact_to_its_digits() -> None:
    rng = random.Random(4)
    for value in [1, 2, 10**6, *(rng.randrange(1, 10**8) for _ in range(2000))]:
        assert abs(exact.root(value) - math.sqrt(value / 1e6)) <= 1.01e-9


def test_bits_are_those_that_records_were_made_with() -> None:
    """Fixed bits, so that a change of a last bit, on whatever machine, is seen."""
    bits = [exact.exp(0.7), exact.exp(-13.3), exact.ln(0.37), exact.ln(12345.678),
            exact.phi(-1.3), exact.phi(2.71), exact.density(0.4), exact.quantile(0.9)]  # fmt: skip
    assert [x.hex() for x in bits] == BITS


BITS = [
    "0x1.01c2a61268987p+1",
    "0x1.c17e4c120ae6fp-20",
    "-0x1.fd0ea24bf89b8p-1",
    "0x1.2d79559791e31p+3",
    "0x1.8c7eaa3883ae1p-4",
    "0x1.fe470d822653cp-1",
    "0x1.791bcec2c8cfdp-2",
    "0x1.4813c36e26d33p+0",
]


PURE = ("exact", "belief", "trial", "monitor", "assess", "rules", "words", "explain",
        "decision", "attempts", "segments", "record", "conditions")  # fmt: skip
"""What replays: none of it may use functions whose last bits differ between machines."""

FORBIDDEN = {"exp", "log", "log2", "log10", "log1p", "expm1", "pow", "erf", "erfc", "sin", "cos",
             "tan", "tanh", "gamma", "fsum", "hypot"}  # fmt: skip


@pytest.mark.parametrize("name", PURE)
def test_no_function_of_the_c_library_decides(name: str) -> None:
    assert gpuedge.decide.__file__ is not None
    path = Path(gpuedge.decide.__file__).parent / f"{name}.py"
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in ("math", "cmath"):
            assert not {a.name for a in node.names} & FORBIDDEN, name
        if isinstance(node, ast.Import):
            assert not {a.name for a in node.names} & {"math", "cmath", "numpy"}, name
        if isinstance(node, ast.ImportFrom):
            assert node.module not in ("numpy", "random", "time", "datetime"), name
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            # A float to a power calls the C library; squares and powers of whole numbers do not.
            for side in (node.left, node.right):
                assert isinstance(side, ast.Constant), f"{name}:{node.lineno}"
                assert type(side.value) is int, f"{name}:{node.lineno}"
