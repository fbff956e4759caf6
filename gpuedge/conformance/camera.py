"""What a camera frame needs: moving pixels, sums, places, other sizes. Oracles are numpy's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import gpuedge
from gpuedge.conformance.case import Case, case
from gpuedge.conformance.data import Shape, dims, fill, operand
from gpuedge.opset.bounds import Array, Num, U
from gpuedge.oracle import layers as oracle

Rng = np.random.Generator


def _one(op: str, shape: Shape, wanted: Callable[..., Num], text: str = "", **how: Any) -> Case:
    """Return a function of one array."""
    draw = lambda rng, *kind: [operand(rng, shape, *kind)]  # noqa: E731
    return case(op, "-".join(filter(None, (dims(shape), text))), draw, wanted, how)


def _moved(op: str, shape: Shape, text: str, meaning: Callable[[Array], Array], **how: Any) -> Case:
    return _one(op, shape, partial(oracle.moved, meaning), text, **how)


def _total(op: str, shape: Shape, axis: Shape) -> Case:
    wanted = partial(oracle.total, axes=axis, keepdims=False, is_mean=op == "mean")
    draw = lambda rng, *kind: [operand(rng, shape, *kind)]  # noqa: E731
    text = f"{dims(shape)}-axes{'.'.join(map(str, axis))}"
    return case(op, text, draw, wanted, {"axis": axis}, is_sum=True)


def _where(a: Shape, b: Shape, c: Shape) -> Case:
    draw = lambda rng, *kind: [operand(rng, s, *kind) for s in (a, b, c)]  # noqa: E731
    return case("where", "-".join(map(dims, (a, b, c))), draw, oracle.choose)


def _topk(shape: Shape, k: int, axis: int, part: int) -> Case:
    """Return the values (`part` 0) or the positions of the largest."""

    def call(x: Array, device: Any) -> Array:
        return gpuedge.topk(x, k, axis, device=device)[part]

    def wanted(x: Num) -> Num:
        order = np.argsort(-x.v, axis, kind="stable")
        first = np.take(order, np.arange(k), axis)
        return Num.of(np.take_along_axis(x.v, first, axis) if part == 0 else first)

    text = f"{dims(shape)}-k{k}-axis{axis}-{('values', 'indices')[part]}"
    draw = lambda rng, *kind: [operand(rng, shape, *kind)]  # noqa: E731
    return case("topk", text, draw, wanted, call=call)


def _resized(x: Num, size: Shape) -> Num:
    """Linear: positions along an axis are a few roundings off, and so are the weights."""
    parts = list(x)
    for axis, count in zip((-2, -1), size, strict=True):
        parts = [oracle.resize(part, axis, count) for part in parts]
    own = (8 + 4 * sum(x.v.shape[-2:])) * U * np.abs(x.v).max()
    return Num(parts[0], parts[1] + own)


def _kept(boxes: Array, scores: Array, most: int, allowed: float) -> list[int]:
    """Return the best boxes that overlap by no more than what is allowed."""
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        low = np.maximum(boxes[i, :2], boxes[kept, :2])
        both = np.maximum(np.minimum(boxes[i, 2:], boxes[kept, 2:]) - low, 0).prod(1)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        if len(kept) < most and not (both > allowed * (areas[i] + areas[kept] - both)).any():
            kept.append(int(i))
    return kept


def _boxes(count: int, most: int) -> Case:
    def draw(rng: Rng, data: str, dtype: str) -> list[Array]:
        corner, size = rng.integers(0, 40, (count, 2)), rng.integers(1, 16, (count, 2))
        boxes = np.concatenate([corner, corner + size], 1).astype(np.float32)
        return [boxes, fill(rng, (count,), data)]

    def wanted(boxes: Num, scores: Num) -> Num:
        return Num.of(np.array(_kept(boxes.v, scores.v, most, 0.25), np.int64))

    how = {"max_output_size": most, "iou_threshold": 0.25}
    return case("non_max_suppression", f"{count}-most{most}", draw, wanted, how)


def _places(shape: Shape) -> Case:
    call = lambda x, device: np.stack(gpuedge.nonzero(x, device=device))  # noqa: E731
    draw = lambda rng, data, _: [fill(rng, shape, data, 1)]  # noqa: E731
    wanted = lambda x: Num.of(np.stack(np.nonzero(x.v)))  # noqa: E731
    return case("nonzero", dims(shape), draw, wanted, call=call)


MOVED: tuple[Case, ...] = (
    _moved("flip", (5, 7, 3), "axis-1", lambda a: a[..., ::-1], axis=-1),
    _moved("flip", (4, 9), "all", lambda a: a[::-1, ::-1]),
    _moved("slice", (6, 11), "steps", lambda a: a[1:6:2, -1:2:-3],
           start=(1, -1), stop=(6, 2), step=(2, -3)),
    _moved("crop", (3, 9, 11), "2.3-5x6", lambda a: a[:, 2:7, 3:9],
           top=2, left=3, height=5, width=6),
    _moved("pad", (3, 5), "by2", lambda a: np.pad(a, 2), pad_width=2),
    _moved("pad", (4, 6), "reflect", lambda a: np.pad(a, (1, 3), "reflect"),
           pad_width=(1, 3), mode="reflect"),
    _moved("take", (7, 5), "axis1", lambda a: np.take(a, [4, 0, -1], 1),
           indices=(4, 0, -1), axis=1),
    _where((3, 7), (3, 7), (7,)),
)  # fmt: skip
"""For bytes as well."""

CASES: tuple[Case, ...] = (
    *MOVED,
    *(_total(op, shape, axis) for op in ("sum", "mean")
      for shape, axis in (((7, 9, 3), (0, 1)), ((5, 300), (1,)))),
    _one("argmax", (9, 13), lambda x: Num.of(x.v.argmax(1)), "axis1", axis=1),
    _one("argmax", (3, 5, 4), lambda x: Num.of(x.v.argmax()), "all"),
    _topk((4, 33), 5, -1, 0), _topk((9, 3, 2), 4, 0, 1), _topk((2, 700), 90, 1, 1),
    _places((211,)), _places((3, 5, 7)), _boxes(20, 6),
    _one("resize", (3, 7, 9), partial(_resized, size=(11, 5)), "11x5", size=(11, 5)),
    _one("resize", (2, 1, 6, 4), partial(_resized, size=(6, 9)), "6x9", size=(6, 9)),
    _one("to_float", (5, 7, 3), lambda x: x * 0.5 + 0.25, "half", scale=0.5, offset=0.25),
)  # fmt: skip
