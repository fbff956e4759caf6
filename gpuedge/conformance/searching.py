"""Operators that search, count or sample where their numbers say, on drawn operands.

Their results are compared bit for bit: operands are such that float32 gives what float64 does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuedge.conformance.case import Case
from gpuedge.conformance.data import pick
from gpuedge.conformance.drawn import (
    Draw,
    Drawn,
    Rng,
    Shaped,
    axis_of,
    flag,
    image_of,
    one,
    shape_of,
)
from gpuedge.opset.bounds import Array
from gpuedge.opset.nbits import MICROSOFT


@dataclass(frozen=True)
class Boxes(Shaped):
    """Rows of (x1, y1, x2, y2) on a lattice, which reach beyond a square from 0 to `side`.

    `by_centre`: of (x, y, width, height).
    """

    side: int
    step: float = 1.0
    by_centre: int = 0

    def __call__(self, rng: Rng, *_: str) -> Array:
        """Return them."""
        most = round(self.side / self.step)
        first = rng.integers(-most // 4, most, (*self.shape, 2))
        size = rng.integers(1, most, (*self.shape, 2))
        second = size if self.by_centre else first + size
        return (np.concatenate((first, second), -1) * self.step).astype(np.float32)

    @property
    def text(self) -> str:
        """Their part of a name."""
        return f"{super().text}in{self.side}"


@dataclass(frozen=True)
class Scores(Shaped):
    """Different numbers in [0, 1) along the last axis, in an order that is drawn."""

    def __call__(self, rng: Rng, *_: str) -> Array:
        """Return them."""
        order = np.argsort(rng.random(self.shape), -1)
        return (order / 2.0 ** int(self.shape[-1]).bit_length()).astype(np.float32)


@dataclass(frozen=True)
class Coded(Shaped):
    """Halves of steps of a range from -`zero` steps, 255 of them wide, both ends among them."""

    zero: int
    step: float

    def __call__(self, rng: Rng, *_: str) -> Array:
        """Return them."""
        halves = rng.integers(-2 * self.zero, 2 * (255 - self.zero) + 1, self.shape)
        ends = rng.permutation(halves.size)[:2]
        np.put(halves, ends, np.array([-2 * self.zero, 2 * (255 - self.zero)]))
        return (halves * (self.step / 2)).astype(np.float32)

    @property
    def text(self) -> str:
        """Their part of a name."""
        return f"{super().text}-from{-self.zero}by{self.step:g}"


def _non_zero(rng: Rng) -> Case:
    shape, dtype = shape_of(rng, 1, 5), pick(rng, ("float32", "bool", "int32"))
    x = shape if dtype == "float32" else Drawn(shape, 0, 2, dtype)
    return one("NonZero", x, name=dtype)


def _unique(rng: Rng) -> Case:
    dtype = pick(rng, ("float32", "int64", "uint8"))
    shape = shape_of(rng, 1, 3, 300)
    how: dict[str, Any] = {"axis": axis_of(rng, shape)} if flag(rng) else {}
    return one("Unique", Drawn(shape, 0, pick(rng, (2, 9, 200)), dtype), sorted=flag(rng),
               outputs=4, name=dtype, **how)  # fmt: skip


def _suppressed(rng: Rng) -> Case:
    n, classes, count = pick(rng, (1, 2)), pick(rng, (1, 2, 3)), pick(rng, (1, 5, 9, 20))
    most, overlap, floor = pick(rng, (1, 2, 3, 30)), pick(rng, (0.25, 0.5)), pick(rng, (0, 0.25))
    limits = (np.array([most]), *(np.array([v], np.float32) for v in (overlap, floor)))
    by_centre = flag(rng)
    boxes = Boxes((n, count), 16, by_centre=by_centre)
    return one("NonMaxSuppression", boxes, Scores((n, classes, count)), *limits,
               constant=(2, 3, 4), center_point_box=by_centre)  # fmt: skip


def _grams(rng: Rng) -> Case:
    least = pick(rng, (1, 2))
    pool, begins, sizes = list[int](), list[int](), range(1, least + flag(rng) + 1)
    for size in sizes:
        begins.append(len(pool))
        rows = rng.integers(0, 5, (pick(rng, (2, 4)), size))
        pool += np.unique(rows, axis=0).ravel().tolist()
    ends = (*begins[1:], len(pool))
    count = sum((end - begin) // size for begin, end, size in zip(begins, ends, sizes, strict=True))
    mode = pick(rng, ("TF", "IDF", "TFIDF"))
    # ONNX's reference takes the weights of sequences for those of columns
    columns = rng.permutation(count) if mode == "TF" else np.arange(count)
    how = {} if mode == "TF" else {"weights": (rng.integers(1, 9, count) / 4).tolist()}
    x = Drawn(pick(rng, ((7,), (1, 5), (3, 9), (2, 40))), 0, 5, "int64")
    return one("TfIdfVectorizer", x, mode=mode, min_gram_length=least,
               max_gram_length=len(sizes), max_skip_count=pick(rng, (0, 1, 3)),
               ngram_counts=begins, ngram_indexes=columns.tolist(), pool_int64s=pool,
               **how)  # fmt: skip


def _quantised(rng: Rng) -> Case:
    shape, zero = (2, *shape_of(rng, 0, 3, 500)), pick(rng, (0, 1, 100, 254, 255))
    return one("DynamicQuantizeLinear", Coded(shape, zero, pick(rng, (0.25, 1.0, 2.0))), outputs=3)


def _aligned(rng: Rng) -> Case:
    x, count = image_of(rng, 2), pick(rng, (1, 3, 7))
    size = {name: pick(rng, (1, 2, 4)) for name in ("output_height", "output_width")}
    mode, half = pick(rng, ("avg", "max")), pick(rng, ("half_pixel", "output_half_pixel"))
    # sides and samples are powers of 2: means and weights are exact
    return one("RoiAlign", x, Boxes((count,), 8, 0.5), Drawn((count,), 0, x[0], "int64"), **size,
               sampling_ratio=pick(rng, (1, 2, 4)), spatial_scale=pick(rng, (0.5, 1.0, 2.0)),
               mode=mode, coordinate_transformation_mode=half)  # fmt: skip


def _rows(rng: Rng) -> Case:
    bits, block, count = pick(rng, (4, 8)), pick(rng, (16, 32)), pick(rng, (1, 2, 3))
    rows, width = pick(rng, (2, 5, 33)), block * count - pick(rng, (0, 0, 4))
    codes = Drawn((rows, width * bits // 8), 0, 256, "uint8")
    where = Drawn(pick(rng, ((), (4,), (2, 3))), -rows, rows, "int64")
    zero = Drawn((rows, -(-count * bits // 8)), 0, 256, "uint8")
    more = [zero] * flag(rng)
    return one("GatherBlockQuantized", codes, where, Drawn((rows, count), 1, 5, "float32"), *more,
               constant=(0, 2, 3)[: 2 + len(more)], bits=bits, block_size=block,
               domain=MICROSOFT)  # fmt: skip


INTEGERS = ("integers",)
DRAWERS: tuple[tuple[int, tuple[str, ...], dict[str, Draw]], ...] = (
    (30, ("ties",), {"NonZero": _non_zero}),
    (30, INTEGERS, {"Unique": _unique, "NonMaxSuppression": _suppressed}),
    (30, INTEGERS, {"TfIdfVectorizer": _grams, "DynamicQuantizeLinear": _quantised}),
    (40, INTEGERS, {"RoiAlign": _aligned, "GatherBlockQuantized": _rows}),
)
"""As `gpuedge.conformance.drawn.DRAWERS`."""
