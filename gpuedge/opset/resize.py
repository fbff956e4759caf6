"""Resampling: where each position is read, and how neighbours are weighed, is known while planning.

Every mode is separable. For each axis there is a table of the taps of each position: constant
indices and weights, computed here in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite

import numpy as np

from gpuedge.core.dtypes import BYTES
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.expr import LoadExpr, apply, where
from gpuedge.opset.index import Index, Loaded, axes, axis, flatten, of
from gpuedge.opset.operator import GROWS, Operator
from gpuedge.opset.ranges import limits
from gpuedge.opset.tensor import (
    Array,
    Reduce,
    Tensor,
    at,
    computed,
    constant,
    mapped,
    reshape,
    view,
)

MOST_POSITIONS = 2**24
"""Of the axis that is made: its taps are a table that the host makes."""


@dataclass(frozen=True)
class _Way:
    """The attributes of a Resize node."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    antialias: bool = False
    cubic: float = -0.75
    excludes: bool = False
    extrapolation: float = 0.0


def _places(way: _Way, size: int, out: int, scale: float, roi: tuple[float, float]) -> Array:
    """Return where in the input each position lies."""
    y, whole = np.arange(out, dtype=np.float64), scale * size
    if way.coordinates == "align_corners":
        return np.zeros(out) if whole == 1 else y * (size - 1) / (whole - 1)
    if way.coordinates == "asymmetric":
        return y / scale
    if way.coordinates == "tf_crop_and_resize":
        begin, end = roi
        if whole == 1:
            return np.full(out, (begin + end) * (size - 1) / 2)
        return y * (end - begin) * (size - 1) / (whole - 1) + begin * (size - 1)
    if way.coordinates == "pytorch_half_pixel" and whole == 1:
        return np.full(out, -0.5)
    shift = size / 2 * (1 - out / whole) if way.coordinates == "half_pixel_symmetric" else 0.0
    return shift + (y + 0.5) / scale - 0.5


def _nearest(way: _Way, places: Array) -> Array:
    """Return the one tap of each position."""
    low = np.floor(places)
    ratio = places - low
    up = {
        "round_prefer_floor": ratio > 0.5,
        "round_prefer_ceil": ratio >= 0.5,
        "floor": np.zeros_like(ratio, bool),
        "ceil": ratio > 0,
    }[way.nearest]
    indices: Array = (low + up).astype(np.int64)
    return indices


def _linear(distance: float, _: float) -> float:
    return max(0.0, 1.0 - distance)


def _cubic(distance: float, a: float) -> float:
    """Keys' kernel.

    *Cubic convolution interpolation for digital image processing* (IEEE Trans. Acoustics, Speech,
    and Signal Processing 29, 1981).
    """
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1
    if distance < 2:
        return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return 0.0


def _taps(way: _Way, places: Array, size: int, scale: float) -> tuple[Array, Array]:
    """Return indices and weights of the taps of each position.

    With antialiasing they reach further where the result is smaller.
    """
    step = min(scale, 1.0) if way.antialias else 1.0
    kernel, reach = (_linear, 1) if way.mode == "linear" else (_cubic, 2)
    first = floor(-reach / step) + 1
    offsets = np.arange(first, 2 - first)
    # on a tap itself, the taps before it are taken
    base = np.ceil(places) - 1
    indices = (base[:, None] + offsets).astype(np.int64)
    distances = np.abs(indices - places[:, None]) * step
    weights = np.vectorize(kernel)(distances, way.cubic).astype(np.float64)
    if way.antialias:
        weights /= weights.sum(axis=1, keepdims=True)
    if way.excludes:
        weights[(indices < 0) | (indices >= size)] = 0.0
        weights /= weights.sum(axis=1, keepdims=True)
    return indices, weights


def _along(x: Tensor, i: int, way: _Way, scale: float, places: Array) -> Tensor:
    """Resample along one axis at places of it."""
    size, out = x.shape[i], len(places)
    shape = (*x.shape[:i], out, *x.shape[i + 1 :])
    whole = "float32" if x.dtype in BYTES else x.dtype  # integers are rounded once, at the end
    if way.mode == "nearest":
        table = constant(np.clip(_nearest(way, places), 0, size - 1))

        def to(position: tuple[Index, ...]) -> list[Index]:
            index = of(Loaded(at(table, (position[i],)), 0, size - 1))
            return [*position[:i], index, *position[i + 1 :]]

        result = view(x, shape, to)
    else:
        indices, weights = _taps(way, places, size, scale)
        table = constant(np.clip(indices, 0, size - 1))
        factors = constant(weights.astype(np.float32))
        here, step = axes(shape), axis(len(shape), indices.shape[1])
        index = of(Loaded(at(table, (here[i], step)), 0, size - 1))
        value = LoadExpr(x, flatten([*here[:i], index, *here[i + 1 :]], x.shape))
        body = value * at(factors, (here[i], step))
        result = Tensor(shape, whole, Reduce("sum", (indices.shape[1],), body))
    outside = (places < 0) | (places > size - 1)
    if way.coordinates != "tf_crop_and_resize" or not outside.any():
        return result
    tests = constant(np.where(outside, -1, 0))
    return computed(shape, result.dtype, lambda position: where(
        [of(Loaded(at(tests, (position[i],)), -1, 0))], at(result, position), way.extrapolation
    ))  # fmt: skip


def _sizes(
    call: OperatorCall, x: Tensor, which: Sequence[int], scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
) -> tuple[list[int], list[float]]:  # fmt: skip
    """Return the extents of the result along axes, and the factors that lead there."""
    own = [x.shape[i] for i in which]
    if scales is not None:
        return [floor(n * s) for n, s in zip(own, scales, strict=True)], list(scales)
    if sizes is None:
        raise call.unsupported("has neither scales nor sizes")
    factors = [s / n for n, s in zip(own, sizes, strict=True)]
    policy = call.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return list(sizes), factors
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [floor(n * factor + 0.5) for n in own], [factor] * len(own)


def _way(call: OperatorCall) -> _Way:
    old = call.version < 11
    mode = call.text("mode", "nearest")
    way = _Way(
        mode={"bilinear": "linear"}.get(mode, mode),
        coordinates="asymmetric" if old
        else call.text("coordinate_transformation_mode", "half_pixel"),
        nearest="floor" if old else call.text("nearest_mode", "round_prefer_floor"),
        antialias=bool(call.integer("antialias", 0)),
        cubic=call.number("cubic_coeff_a", -0.75),
        excludes=bool(call.integer("exclude_outside", 0)),
        extrapolation=call.number("extrapolation_value", 0.0),
    )  # fmt: skip
    if way.mode not in {"nearest", "linear", "cubic"}:
        raise call.unsupported(f"has mode={mode!r}, which does not exist")
    return way


@dataclass(frozen=True)
class _Axis:
    """An axis that is resampled: its number, extents before and after, factor, and the places."""

    number: int
    size: int
    out: int
    scale: float
    places: Array


def _axes(call: OperatorCall, way: _Way) -> list[_Axis]:
    x = call.input(0)
    which = [call.axis(a, x.rank) for a in call.ints("axes", range(x.rank))]
    scales, sizes, roi = _parameters(call, len(which))
    fitting = [p for p in (scales, sizes) if p is not None]
    if any(len(p) != len(which) for p in fitting) or not x.size:
        raise call.bad_shape("has scales or sizes that do not fit")
    if not all(isfinite(s) and s > 0 for s in scales or ()) or min(sizes or (1,)) < 1:
        raise call.bad_shape("has scales or sizes that are not positive")
    extents, factors = _sizes(call, x, which, scales, sizes)
    if min(extents, default=1) < 1:
        raise call.unsupported("gives nothing at all along an axis")
    if max(extents, default=0) > MOST_POSITIONS:
        raise call.unsupported(f"makes an axis longer than {MOST_POSITIONS}")
    resized = []
    crops = way.coordinates == "tf_crop_and_resize"
    for n, (i, out, factor) in enumerate(zip(which, extents, factors, strict=True)):
        if out != x.shape[i] or factor != 1 or crops:
            ends = (roi[n], roi[n + len(which)])
            places = _places(way, x.shape[i], out, factor, ends)
            resized.append(_Axis(i, x.shape[i], out, factor, places))
    return resized


def _resize(call: OperatorCall) -> Tensor:
    x = result = call.input(0)
    way = _way(call)
    for resized in _axes(call, way):
        result = _along(result, resized.number, way, resized.scale, resized.places)
    if result is x:
        return reshape(x, x.shape)
    if result.dtype == x.dtype:
        return result
    low, high = limits(x.dtype)
    return mapped(lambda v: apply("min", apply("max", apply("round", v), low), high), result,
                  dtype=x.dtype)  # fmt: skip


NEAR = 1e-4
"""How far from a tie a place is safe from roundings of float32, relative to it."""


def _is_near_tie(way: _Way, resized: _Axis) -> bool:
    """Tell whether roundings of float32 may decide which pixel is the nearest.

    A place right on a tie is not: where the factor is exact, so is the quotient.
    """
    tie = 0.5 if way.nearest.startswith("round") else 0.0
    away = np.abs(resized.places - tie - np.rint(resized.places - tie))
    is_near = away < NEAR * np.maximum(1.0, np.abs(resized.places))
    is_exact = float(np.float32(resized.scale)) == resized.scale
    return bool(np.any(is_near & (away > 0) if is_exact else is_near))


def _differs(call: OperatorCall) -> bool:
    """Tell where ONNX Runtime resamples otherwise than ONNX's reference.

    It takes the extent of the result where scales give a broken one, cuts integers off instead of
    rounding them, decides ties in float32, and has no kernels for some forms.
    """
    x, way = call.input(0), _way(call)
    resampled = _axes(call, way)
    is_broken = any(a.scale * a.size != a.out for a in resampled)
    to_one = any(a.out == 1 for a in resampled)
    if (
        way.coordinates == "tf_crop_and_resize"
        or (way.coordinates == "pytorch_half_pixel" and to_one)
        or (way.coordinates in ("align_corners", "half_pixel_symmetric") and is_broken)
        or (call.text("keep_aspect_ratio_policy", "stretch") != "stretch" and is_broken)
    ):
        return True
    if way.mode == "nearest":
        return any(_is_near_tie(way, a) for a in resampled)
    is_flat = way.mode == "cubic" and (x.rank != 4 or any(a.number < 2 for a in resampled))
    is_cut = bool(resampled) and (x.dtype in BYTES or (way.excludes and not way.antialias))
    return is_flat or is_cut


def _parameters(
    call: OperatorCall, count: int
) -> tuple[list[float] | None, list[int] | None, list[float]]:
    """Return scales, sizes and the region; an empty input is an absent one."""
    if call.op == "Upsample" and call.version < 9:
        return [float(s) for s in call.attrs.get("scales", ())], None, [0.0] * count + [1.0] * count
    given = call.constant(1 if call.version < 11 else 2, "scales")
    scales = [float(s) for s in given.reshape(-1)] if given is not None and given.size else None
    if call.version < 11:
        return scales, None, [0.0] * count + [1.0] * count
    wanted = call.constant_ints(3, "sizes")
    region = call.constant(1, "region")
    roi = [float(r) for r in region.reshape(-1)] if region is not None and region.size else []
    return scales, list(wanted) if wanted else None, roi or [0.0] * count + [1.0] * count


OPERATORS: tuple[Operator, ...] = (
    Operator("Resize", _resize, parameters=(1, 2, 3), dtypes=BYTES,
             remark="with constant scales or sizes", differs=_differs, facts=GROWS),
    Operator("Upsample", _resize, parameters=(1,), remark="with constant scales",
             differs=_differs, facts=GROWS),
)  # fmt: skip
