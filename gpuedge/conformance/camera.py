"""What a camera frame needs: moving pixels, sums, places, other sizes. Oracles are numpy's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import gpuedge
from gpuedge.conformance.case import Case, case
from gpuedge.conformance.data import Shape, broadcastable, dims, fill, operand, pick
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


# --- drawn ----------------------------------------------------------------------------------------


def _shape(rng: Rng, low: int = 1, high: int = 6, most: int = 1200) -> Shape:
    shape = [
        pick(rng, (1, 2, 3, 4, 5, 7, 8, 11, 13)) for _ in range(int(rng.integers(low, high + 1)))
    ]
    while int(np.prod(shape)) > most:
        shape[int(np.argmax(shape))] = pick(rng, (1, 2, 3))
    return tuple(shape)


def draw_flip(rng: Rng) -> Case:
    """Return a random one."""
    shape = _shape(rng)
    axis = int(rng.integers(-len(shape), len(shape)))
    return _moved("flip", shape, f"axis{axis}", lambda a: np.flip(a, axis), axis=axis)


def draw_slice(rng: Rng) -> Case:
    """Return a random one, with steps of either sign."""
    shape = _shape(rng, 1, 5)
    ends: list[tuple[int, int, int]] = []
    for extent in shape[: int(rng.integers(1, len(shape) + 1))]:
        low, high = sorted(int(v) for v in rng.integers(0, extent, 2))
        by = pick(rng, (1, 1, 2, 3, -1, -2))
        ends.append((low, high + 1, by) if by > 0 else (high, low - 1 if low else -extent - 1, by))
    start, stop, step = zip(*ends, strict=True)
    where = tuple(slice(a, b if b >= 0 else None, by) for a, b, by in ends)
    text = "-".join(f"{a}.{b}.{by}" for a, b, by in ends)
    return _moved("slice", shape, text, lambda a: a[where], start=start, stop=stop, step=step)


def draw_crop(rng: Rng) -> Case:
    """Return a random one."""
    shape = _shape(rng, 2, 4)
    top, left = (int(rng.integers(0, d)) for d in shape[-2:])
    height, width = (
        int(rng.integers(1, shape[-2] - top + 1)),
        int(rng.integers(1, shape[-1] - left + 1)),
    )
    return _moved("crop", shape, f"{top}.{left}-{height}x{width}",
                  lambda a: a[..., top : top + height, left : left + width],
                  top=top, left=left, height=height, width=width)  # fmt: skip


def draw_pad(rng: Rng) -> Case:
    """Return a random one."""
    shape = tuple(d + 1 for d in _shape(rng, 1, 4, 300))
    mode: Any = pick(rng, ("constant", "reflect", "edge"))
    width = tuple((int(rng.integers(0, min(d, 4))), int(rng.integers(0, min(d, 4)))) for d in shape)
    text = f"by{'.'.join(str(n) for pair in width for n in pair)}-{mode}"
    return _moved("pad", shape, text, lambda a: np.pad(a, width, mode), pad_width=width, mode=mode)


def draw_take(rng: Rng) -> Case:
    """Return a random one."""
    shape = _shape(rng, 1, 5)
    axis = int(rng.integers(-len(shape), len(shape)))
    places = tuple(int(i) for i in rng.integers(-shape[axis], shape[axis], pick(rng, (1, 2, 3, 5))))
    return _moved("take", shape, f"{'.'.join(map(str, places))}-axis{axis}",
                  lambda a: np.take(a, places, axis), indices=places, axis=axis)  # fmt: skip


def draw_where(rng: Rng) -> Case:
    """Return a random one."""
    a, b, c = broadcastable(rng, 3)
    return _where(a, b, c)


def draw_total(rng: Rng, op: str) -> Case:
    """Return a random sum or mean."""
    shape = _shape(rng)
    count = int(rng.integers(1, len(shape) + 1))
    return _total(op, shape, tuple(int(a) for a in rng.permutation(len(shape))[:count]))


def draw_argmax(rng: Rng) -> Case:
    """Return a random one."""
    shape = _shape(rng)
    axis = int(rng.integers(-len(shape), len(shape)))
    return _one("argmax", shape, lambda x: Num.of(x.v.argmax(axis)), f"axis{axis}", axis=axis)


def draw_topk(rng: Rng) -> Case:
    """Return a random one."""
    shape = _shape(rng, 1, 4, 600)
    axis = int(rng.integers(-len(shape), len(shape)))
    return _topk(shape, int(rng.integers(1, min(shape[axis], 9) + 1)), axis, int(rng.integers(2)))


def draw_places(rng: Rng) -> Case:
    """Return random numbers of which some are zero."""
    return _places(_shape(rng, 1, 4, 300))


def draw_boxes(rng: Rng) -> Case:
    """Return random boxes."""
    return _boxes(int(rng.integers(1, 30)), int(rng.integers(1, 9)))


def draw_resize(rng: Rng) -> Case:
    """Return a random one."""
    shape = (*_shape(rng, 0, 2, 5), pick(rng, (2, 3, 5, 7, 9)), pick(rng, (2, 3, 4, 5, 8)))
    size = (pick(rng, (1, 3, 5, 8, 11)), pick(rng, (2, 3, 7, 9, 13)))
    return _one("resize", shape, partial(_resized, size=size), dims(size), size=size)


def draw_to_float(rng: Rng) -> Case:
    """Return a random one."""
    scale, offset = float(rng.integers(1, 64)) / 64, float(rng.integers(-8, 9)) / 8
    return _one("to_float", _shape(rng), lambda x: x * scale + offset, f"x{scale:g}-plus{offset:g}",
                scale=scale, offset=offset)  # fmt: skip


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
