"""Computes formulas on a device; run by test_expressions for each configuration.

``python expression_child.py DEVICE`` prints a JSON object: which values of each formula are wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuedge

F = np.float32
FORMULAS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a % b": lambda a, b, c: np.mod(a, b),
    "a % -4": lambda a, b, c: np.mod(a, F(-4)),
    "a % b if b else c % 3": lambda a, b, c: np.where(b != 0, np.mod(a, b), np.mod(c, F(3))),
    "a != b": lambda a, b, c: a != b,
    "a and b": lambda a, b, c: np.logical_and(a, b),
    "a or b or c": lambda a, b, c: (a != 0) | (b != 0) | (c != 0),
    "not a": lambda a, b, c: np.logical_not(a),
    "not a == b": lambda a, b, c: ~(a == b),
    "-2 < a <= b != c": lambda a, b, c: (a > -2) & (a <= b) & (b != c),
    "1 < 2 > a": lambda a, b, c: a < 2,
    "(a != b) + 2 * (a and not b)": lambda a, b, c: F(a != b) + 2 * F((a != 0) & ~(b != 0)),
    "a if b < c else -a": lambda a, b, c: np.where(b < c, a, -a),
}
"""Formulas, and what numpy makes of them."""


def inputs(numbers: list[float]) -> dict[str, Any]:
    """Return every pair of these numbers, and a third one each."""
    a, b = np.meshgrid(*[np.array(numbers, F)] * 2)
    return {"a": a, "b": b, "c": np.roll(b, 3)}


WHOLE = inputs([float(n) for n in range(-9, 10)])
SPECIAL = inputs([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, -7.0])
MODS = ("a % b", "a % b if b else c % 3")


def wrong(text: str, given: dict[str, Any], device: Any) -> list[str]:
    """Return what is not as numpy has it, the sign of zero apart."""
    formula = gpuedge.elementwise(text)
    got = formula(*(given[name] for name in formula.names), device=device)
    with np.errstate(all="ignore"):
        want = np.broadcast_to(FORMULAS[text](*given.values()), got.shape)
    if (got.dtype == bool) != (want.dtype == bool):
        return [f"dtype {got.dtype}"]
    bad = ~((got == want) | ((got != got) & (want != want)))
    places = list(zip(*(given[n][bad] for n in "abc"), got[bad], want[bad], strict=True))
    return [", ".join(f"{float(v)}" for v in one) for one in places]


def main(device: str) -> None:
    """Compare bit for bit; by zero, and of NaN and infinity, only where the level keeps them."""
    found: dict[str, list[str]] = {}
    with gpuedge.open(device) as opened:
        is_finite = opened.caps.is_finite_only
        by_others = {n: v[WHOLE["b"] != 0] for n, v in WHOLE.items()}
        for text in FORMULAS:
            is_mod = is_finite and text in MODS
            found[text] = wrong(text, by_others if is_mod else WHOLE, opened)
            if not is_finite:
                found[f"{text}, special"] = wrong(text, SPECIAL, opened)
        print(json.dumps({"level": opened.caps.level, "is_finite": is_finite, "wrong": found}))


if __name__ == "__main__":
    main(sys.argv[1])
