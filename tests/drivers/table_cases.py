"""Graphs that pick from look-up tables, with results that float32 holds exactly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType

Array = Any
Made = tuple[Graph, dict[str, Array], dict[str, Array]]
"""A graph, its inputs, and what it gives."""

MOST = 8192
"""Bytes of a binding that the tables of these graphs do not fit in."""

ROWS, WIDTH = 300, 24

KINDS = {"int8": np.int8, "uint8": np.uint8, "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}


def table(*shape: int) -> Array:
    return np.random.default_rng(shape).integers(-999, 1000, shape).astype(np.float32)


def ids(rows: int, *shape: int) -> Array:
    """Return numbers of rows, of which some count from the end: at both ends, and of each part."""
    found = np.random.default_rng(rows).integers(-rows, rows, shape)
    edges = {rows * part // parts for parts in (2, 3, 4) for part in range(1, parts)}
    wanted = [0, rows - 1, -1, -rows, *sorted(edges), *(edge - 1 for edge in sorted(edges))]
    found.flat[: len(wanted)] = wanted
    return found


def rows(axis: int, shape: tuple[int, ...]) -> Made:
    """Return a Gather."""
    b, held, i = GraphBuilder(), table(*shape), ids(shape[axis], 3, 7)
    picked = b.input("i", TensorType("int64", i.shape))
    b.output(y := b.add("Gather", [b.constant("t", held), picked], {"axis": axis}))
    return b.build(), {"i": i}, {y: np.take(held, i, axis)}


def elements() -> Made:
    """Return a GatherElements."""
    b, held, i = GraphBuilder(), table(ROWS, WIDTH), ids(ROWS, 6, WIDTH)
    picked = b.input("i", TensorType("int64", i.shape))
    b.output(y := b.add("GatherElements", [b.constant("t", held), picked]))
    return b.build(), {"i": i}, {y: np.take_along_axis(held, i, 0)}


def bag(how: str) -> Made:
    """Return bags of rows: their sum, the sum with weights, or the mean of eight."""
    b, held, i = GraphBuilder(), table(ROWS, WIDTH), ids(ROWS, 5, 8)
    feeds = {"i": i}
    y = b.add("Gather", [b.constant("t", held), b.input("i", TensorType("int64", i.shape))])
    each = held[i]
    if how == "weighted":
        feeds["w"] = w = np.random.default_rng(1).choice(np.float32([0, 0.5, 1, 2]), i.shape)
        column = b.constant("last", np.array([-1]))
        wide = b.add("Unsqueeze", [b.input("w", TensorType("float32", w.shape)), column])
        y, each = b.add("Mul", [y, wide]), each * w[..., None]
    op = "ReduceMean" if how == "mean" else "ReduceSum"
    y = b.add(op, [y, b.constant("axes", np.array([1]))], {"keepdims": 0})
    b.output(y)
    return b.build(), feeds, {y: each.mean(1) if how == "mean" else each.sum(1)}


def packed(dtype: str) -> Made:
    """Return a Gather from a table of bytes or half bytes, whose rows have a scale each."""
    rng = np.random.default_rng(3)
    bits = 4 if dtype.endswith("int4") else 8
    low = 0 if dtype[0] == "u" else -(1 << (bits - 1))
    count, width = 24_000 // (bits * 6), 48
    codes = rng.integers(low, low + (1 << bits), (count, width)).astype(KINDS[dtype])
    scale = rng.choice(np.float32([0.25, 0.5, 1]), (count,))
    b, i = GraphBuilder(), ids(count, 2, 9)
    numbers = b.add("DequantizeLinear", [b.constant("q", codes), b.constant("s", scale)],
                    {"axis": 0})  # fmt: skip
    picked = b.input("i", TensorType("int64", i.shape))
    b.output(y := b.add("Gather", [numbers, picked]))
    return b.build(), {"i": i}, {y: (codes.astype(np.float32) * scale[:, None])[i]}


CASES: dict[str, Callable[[], Made]] = {
    "rows": partial(rows, 0, (ROWS, WIDTH)),
    "odd rows": partial(rows, 0, (401, 13)),
    "columns": partial(rows, 1, (9, 700)),
    "elements": elements,
    **{f"bag {how}": partial(bag, how) for how in ("sum", "mean", "weighted")},
    **{f"packed {dtype}": partial(packed, dtype) for dtype in KINDS},
}  # fmt: skip
