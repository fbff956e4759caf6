"""RNN, GRU and LSTM in float64, row by row, as ONNX's operator pages write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}

ACTIVATIONS: dict[str, tuple[int, Callable[[Array, float, float], Array], float, float]] = {
    "relu": (0, lambda x, a, b: np.maximum(x, 0), 0, 0),
    "tanh": (0, lambda x, a, b: np.tanh(x), 0, 0),
    "sigmoid": (0, lambda x, a, b: 1 / (1 + np.exp(-x)), 0, 0),
    "softsign": (0, lambda x, a, b: x / (1 + np.abs(x)), 0, 0),
    "softplus": (0, lambda x, a, b: np.log1p(np.exp(x)), 0, 0),
    "leakyrelu": (1, lambda x, a, b: np.where(x >= 0, x, a * x), 0.01, 0),
    "thresholdedrelu": (1, lambda x, a, b: np.where(x > a, x, 0), 1.0, 0),
    "elu": (1, lambda x, a, b: np.where(x >= 0, x, a * np.expm1(x)), 1.0, 0),
    "affine": (2, lambda x, a, b: a * x + b, 1.0, 0.0),
    "scaledtanh": (2, lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (2, lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
}
"""How many numbers each takes, what it is, and its defaults."""


def _chosen(op: str, attrs: Mapping[str, Any], count: int) -> list[list[Callable[[Array], Array]]]:
    names = attrs.get("activations", list(DEFAULTS[op]) * count)
    alphas, betas = list(attrs.get("activation_alpha", ())), list(attrs.get("activation_beta", ()))
    clip = attrs.get("clip", 0.0)
    made: list[Callable[[Array], Array]] = []
    for name in names:
        takes, formula, alpha, beta = ACTIVATIONS[name.lower()]
        alpha = alphas.pop(0) if takes > 0 and alphas else alpha
        beta = betas.pop(0) if takes > 1 and betas else beta

        def one(x: Array, f: Any = formula, a: float = alpha, b: float = beta) -> Array:
            y: Array = f(np.clip(x, -clip, clip) if clip > 0 else x, a, b)
            return y

        made.append(one)
    per = len(DEFAULTS[op])
    return [made[i : i + per] for i in range(0, len(made), per)]


def _step(
    op: str, attrs: Mapping[str, Any], f: Sequence[Callable[[Array], Array]], x: Array,
    h: Array, c: Array, w: Array, r: Array, wb: Array, rb: Array, p: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the states of one row after one step; matrices are split by gate."""
    if op == "RNN":
        return f[0](w[0] @ x + r[0] @ h + wb[0] + rb[0]), c
    if op == "GRU":
        z = f[0](w[0] @ x + r[0] @ h + wb[0] + rb[0])
        s = f[0](w[1] @ x + r[1] @ h + wb[1] + rb[1])
        if attrs.get("linear_before_reset", 0):
            n = f[1](w[2] @ x + s * (r[2] @ h + rb[2]) + wb[2])
        else:
            n = f[1](w[2] @ x + r[2] @ (s * h) + rb[2] + wb[2])
        return (1 - z) * n + z * h, c
    i = f[0](w[0] @ x + r[0] @ h + p[0] * c + wb[0] + rb[0])
    k = f[0](w[2] @ x + r[2] @ h + p[2] * c + wb[2] + rb[2])
    if attrs.get("input_forget", 0):
        k = 1 - i
    n = f[1](w[3] @ x + r[3] @ h + wb[3] + rb[3])
    cell = k * c + i * n
    o = f[0](w[1] @ x + r[1] @ h + p[1] * cell + wb[1] + rb[1])
    return o * f[2](cell), cell


def reference(op: str, attrs: Mapping[str, Any], given: Mapping[str, Array]) -> list[Array]:
    """Return Y, Y_h and, of LSTM, Y_c in float64.

    `given` has X, W, R, and perhaps B, lens, h, c, P. What is past the end of a sequence is zero,
    and so are the last states of one of no length, as ONNX Runtime has them.
    """
    wide = {n: a.astype(np.float64) for n, a in given.items()}
    x, w, r = wide["X"], wide["W"], wide["R"]
    is_first = bool(attrs.get("layout", 0))
    x = x.swapaxes(0, 1) if is_first else x
    steps, batch, _ = x.shape
    count, rows, hidden = r.shape
    gates = GATES[op]
    b = wide.get("B", np.zeros((count, 2 * rows)))
    lens = given.get("lens", np.full(batch, steps))
    zero = np.zeros((count, batch, hidden))
    h0, c0 = (
        wide[n].swapaxes(0, 1) if n in wide and is_first else wide.get(n, zero) for n in ("h", "c")
    )
    p = wide.get("P", np.zeros((count, 3 * hidden)))
    formulas = _chosen(op, attrs, count)
    y, y_h, y_c = np.zeros((steps, count, batch, hidden)), h0.copy(), c0.copy()
    reverse = attrs.get("direction", "forward") == "reverse"
    for d in range(count):
        split = [m[d].reshape(gates, hidden, -1) for m in (w, r)]
        biases = b[d].reshape(2, gates, hidden)
        for row in range(batch):
            if not lens[row]:
                y_h[d, row] = y_c[d, row] = 0
            times = list(range(int(lens[row])))
            for t in reversed(times) if reverse or d == 1 else times:
                y_h[d, row], y_c[d, row] = _step(
                    op, attrs, formulas[d], x[t, row], y_h[d, row], y_c[d, row], *split, *biases,
                    p[d].reshape(3, hidden),
                )  # fmt: skip
                y[t, d, row] = y_h[d, row]
    results = [y, y_h, y_c] if op == "LSTM" else [y, y_h]
    if is_first:
        return [y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in results[1:])]
    return results


def drawn(
    op: str, seed: int, *, steps: int = 5, batch: int = 3, width: int = 4, hidden: int = 6,
    attrs: Mapping[str, Any], has: str = "", dtype: str = "float32",
) -> dict[str, Array]:  # fmt: skip
    """Return inputs of a node; `has` names the optional ones: B, lens, h, c, P."""
    rng = np.random.default_rng(seed)
    count, gates = 1 + (attrs.get("direction") == "bidirectional"), GATES[op]
    first = bool(attrs.get("layout", 0))
    state = (batch, count, hidden) if first else (count, batch, hidden)
    scale = 1 / np.sqrt(hidden)
    shapes = {
        "X": (batch, steps, width) if first else (steps, batch, width),
        "W": (count, gates * hidden, width), "R": (count, gates * hidden, hidden),
        "B": (count, 2 * gates * hidden), "h": state, "c": state, "P": (count, 3 * hidden),
    }  # fmt: skip
    wanted = {"X", "W", "R", *has.split()}
    given = {
        n: rng.uniform(-1, 1, s).astype(dtype) * np.asarray(1 if n in "Xhc" else scale, dtype)
        for n, s in shapes.items() if n in wanted
    }  # fmt: skip
    if "lens" in wanted:
        given["lens"] = rng.integers(1, steps + 1, batch).astype(np.int32)
    return given
