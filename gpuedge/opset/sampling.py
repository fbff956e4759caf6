"""Reading between the elements of an image: at places that are computed while running."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import above, magnitude, pick, truncated
from gpuedge.opset.expr import Expr, LoadExpr, Position, apply, lift
from gpuedge.opset.index import Index, Loaded, axes, axis, flatten, of
from gpuedge.opset.limits import images
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Reduce, Tensor, at, computed, mapped
from gpuedge.opset.windows import check_extents, counts, spatial, window

Taps = list[tuple[Expr, Expr | None]]
"""Whole positions along an axis with weights; None weighs 1."""


def _floor(x: Expr) -> Expr:
    return apply("floor", x)


def _inside(place: Expr, extent: int) -> Expr:
    """1 where a whole number is a position of an axis, else 0."""
    return above(place, -0.5) * above(extent - 0.5, place)


def interpolated(
    x: Tensor, outer: Sequence[Index], taps: Sequence[Taps], *, only_inside: bool
) -> Expr:
    """Return the weighted sum of elements of an image (N, C, ...) at products of taps.

    Taps outside are those of the nearest position, or nothing with `only_inside`.
    """
    total: Expr | None = None
    for corner in product(*taps):
        place = [
            of(Loaded(tap, 0, n - 1)) if n > 1 else Index()
            for (tap, _), n in zip(corner, x.shape[2:], strict=True)
        ]
        value: Expr = LoadExpr(x, flatten([*outer, *place], x.shape))
        if only_inside:
            test = lift(1.0)
            for (tap, _), n in zip(corner, x.shape[2:], strict=True):
                test = test * _inside(tap, n)
            value = pick(test, value, 0.0)
        for _, weight in corner:
            value = value if weight is None else value * weight
        total = value if total is None else total + value
    return lift(0.0) if total is None else total


def linear_taps(place: Expr) -> Taps:
    """Return the positions around a place with the weights of linear interpolation."""
    low = _floor(place)
    ratio = place - low
    return [(low, 1.0 - ratio), (low + 1.0, ratio)]


def _cubic_taps(place: Expr, a: float = -0.75) -> Taps:
    low = _floor(place)
    r = place - low
    s = 1.0 - r

    def outer(d: Expr) -> Expr:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    def inner(d: Expr) -> Expr:
        return ((a + 2) * d - (a + 3)) * d * d + 1.0

    return [(low - 1.0, outer(r + 1.0)), (low, inner(r)), (low + 1.0, inner(s)),
            (low + 2.0, outer(s + 1.0))]  # fmt: skip


def _reflected(x: Expr, low: float, high: float) -> Expr:
    """Return a place reflected at both ends until it lies between them."""
    size = high - low
    if size <= 0:
        return lift(low)
    ahead = x - low
    rest = ahead - 2 * size * _floor(ahead * (0.5 / size))
    inside = above(x, high) + above(low, x)
    return pick(inside, high - magnitude(size - rest), x)


def _grid_sample(call: OperatorCall) -> Tensor:
    x, grid = call.input(0), call.input(1)
    rank = x.rank - 2
    if rank < 1 or grid.rank != x.rank or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        raise call.bad_shape("has a grid that does not fit")
    mode = call.text("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    padding = call.text("padding_mode", "zeros")
    if mode not in {"nearest", "linear", "cubic"} or 0 in x.shape:
        raise call.unsupported(f"has mode={mode!r}")
    aligns = bool(call.integer("align_corners", 0))
    shape = (*x.shape[:2], *grid.shape[1:-1])

    def body(position: tuple[Index, ...]) -> Expr:
        taps = []
        for i, n in enumerate(x.shape[2:]):
            given = at(grid, (position[0], *position[2:], Index(rank - 1 - i)))
            low, high = (0.0, n - 1.0) if aligns else (-0.5, n - 0.5)
            ahead = given + 1.0
            place = ahead * ((n - 1) / 2) if aligns else (ahead * float(n) - 1.0) * 0.5
            taps_of_axis = _taps(mode, padding, place, (low, high), n)
            taps.append(_padded(taps_of_axis, padding, low, high))
        return interpolated(x, position[:2], taps, only_inside=padding == "zeros")

    return computed(shape, x.dtype, body)


def _taps(mode: str, padding: str, place: Expr, ends: tuple[float, float], n: int) -> Taps:
    place = apply("round", place) if mode == "nearest" else place
    if padding == "border":
        # Of a cubic not the place but its taps stay inside, as in PyTorch and ONNX Runtime: from
        # two steps outside on all of them are the border. ONNX's reference differs beyond it.
        out = 2.0 if mode == "cubic" else 0.0
        place = apply("min", apply("max", place, -out), n - 1.0 + out)
    elif padding == "reflection":
        place = _reflected(place, *ends)
    if mode == "nearest":
        return [(truncated(place), None)]
    return linear_taps(place) if mode == "linear" else _cubic_taps(place)


def _padded(taps: Taps, padding: str, low: float, high: float) -> Taps:
    """Reflect taps that lie outside themselves."""
    if padding != "reflection":
        return taps
    return [(truncated(_reflected(tap, low, high)), weight) for tap, weight in taps]


def _roi_align(call: OperatorCall) -> Tensor:
    """Return the mean or maximum of samples in the cells of regions (Mask R-CNN)."""
    x, rois, batches = (call.input(i) for i in range(3))
    height, width = call.integer("output_height", 1), call.integer("output_width", 1)
    ratio, scale = call.integer("sampling_ratio", 0), call.number("spatial_scale", 1.0)
    if ratio < 1:
        raise call.unsupported("takes as many samples as its regions ask for (sampling_ratio=0)")
    old = call.version < 16
    half = call.text("coordinate_transformation_mode", "output_half_pixel" if old else "half_pixel")
    is_max = call.text("mode", "avg") == "max"
    if x.rank != 4 or rois.shape[1:] != (4,) or batches.shape != rois.shape[:1] or 0 in x.shape:
        raise call.bad_shape("has regions that do not fit")
    shape = (rois.shape[0], x.shape[1], height, width)
    here = axes(shape)
    steps = [axis(4 + i, ratio) for i in range(2)]
    batch = of(Loaded(at(batches, (here[0],)), 0, x.shape[0] - 1))
    is_half = half == "half_pixel"
    places, kept = [], lift(1.0)
    for i, (n, count) in enumerate(zip(x.shape[2:], (height, width), strict=True)):
        begin, end = (at(rois, (here[0], Index(k))) * scale - (0.5 if is_half else 0.0)
                      for k in (1 - i, 3 - i))  # fmt: skip
        size = end - begin if is_half else apply("max", end - begin, 1.0)
        cell = size / float(count)
        place = begin + Position(here[2 + i]) * cell + (Position(steps[i]) + 0.5) * cell / ratio
        kept = kept * (1.0 - above(-1.0, place)) * (1.0 - above(place, float(n)))
        places.append(apply("min", apply("max", place, 0.0), n - 1.0))
    parts = [
        interpolated(x, (batch, here[1]), corners, only_inside=False)
        for corners in (_corners(places) if is_max else [[linear_taps(p) for p in places]])
    ]
    body = parts[0]
    for part in parts[1:]:
        body = apply("max", body, part)
    body = pick(kept, body, 0.0)
    total = Tensor(shape, x.dtype, Reduce("max" if is_max else "sum", (ratio, ratio), body))
    return total if is_max else mapped(lambda s: s / float(ratio * ratio), total)


def _corners(places: Sequence[Expr]) -> list[list[Taps]]:
    """Return each product of linear taps by itself."""
    return [[[tap] for tap in corner] for corner in product(*(linear_taps(p) for p in places))]


def _deform_conv(call: OperatorCall) -> Tensor:
    """Convolve with windows whose every position is moved by an offset."""
    x, w, offsets = (call.input(i) for i in range(3))
    bias, mask = call.optional(3), call.optional(4)
    groups, parts = call.integer("group", 1), call.integer("offset_group", 1)
    slide = window(call, spatial(call), counts(call, "kernel_shape", w.shape[2:]))
    taps = prod(slide.kernel)
    fits = offsets.shape == (x.shape[0], parts * taps * 2, *slide.out)
    if x.rank != 4 or not fits or w.shape[1] * groups != x.shape[1] or w.shape[0] % groups:
        raise call.bad_shape("has weights or offsets that do not fit")
    shape = (x.shape[0], w.shape[0], *slide.out)
    n, m, *out = axes(shape)
    c, *k = (axis(4 + i, e) for i, e in enumerate((w.shape[1], *slide.kernel)))
    source = m // (w.shape[0] // groups) * w.shape[1] + c
    tap = source // (x.shape[1] // parts) * taps + flatten(k, slide.kernel)
    places = [
        Position(out[i] * slide.strides[i] + k[i] * slide.dilations[i] - slide.before[i])
        + at(offsets, (n, tap * 2 + i, *out))
        for i in range(2)
    ]
    value = interpolated(x, (n, source), [linear_taps(p) for p in places], only_inside=True)
    value = value * LoadExpr(w, flatten([m, c, *k], w.shape))
    if mask is not None:
        value = value * at(mask, (n, tap, *out))
    total = Tensor(shape, x.dtype, Reduce("sum", (w.shape[1], *slide.kernel), value))
    if bias is None:
        return total
    return computed(shape, x.dtype, lambda p: at(total, p) + at(bias, (p[1],)))


OPERATORS: tuple[Operator, ...] = (
    Operator("GridSample", _grid_sample, remark="at a border as in PyTorch and ONNX Runtime"),
    Operator("RoiAlign", _roi_align, others=(2,), remark="with sampling_ratio", limits=images),
    Operator("DeformConv", _deform_conv, check=check_extents),
)
