"""Operations that move elements without changing them. All are exact, and take bytes as well.

`slice` here is the operation, not the type of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from gpuedge.core.dtypes import BYTES, rounded
from gpuedge.core.errors import DTypeError, InputError, ShapeError
from gpuedge.core.interchange import as_array
from gpuedge.core.words import PadMode
from gpuedge.graph.build import GraphBuilder
from gpuedge.ops.arguments import axes as counted
from gpuedge.ops.arguments import integer, integers, number
from gpuedge.ops.call import Array, call, simple, warm
from gpuedge.ops.reducing import shape_of
from gpuedge.runtime.inputs import brief

if TYPE_CHECKING:
    from gpuedge.device import Device

MOST_ARRAYS = 4096
"""Arrays that `concat` joins; planning takes a millisecond each."""


@warm
def concat(arrays: Sequence[Any], axis: int = 0, *, device: str | Device | None = None) -> Array:
    """Join arrays along an existing axis.

    Parameters
    ----------
    arrays : sequence of array_like, float32 or float16, or all int8 or all uint8
        At least one; shapes equal except along `axis`.
    axis : int
        May count from the end.
    device : str or Device, optional

    Raises
    ------
    InputError (GE-203)
        There are no arrays, or more than 4096.
    """
    if isinstance(arrays, (str, bytes)) or not hasattr(arrays, "__iter__"):
        raise InputError("concat takes a sequence of arrays.")
    inputs = [(f"array{i}", a) for i, a in enumerate(islice(arrays, MOST_ARRAYS + 1))]
    if not 1 <= len(inputs) <= MOST_ARRAYS:
        raise InputError(f"concat takes 1 to {MOST_ARRAYS} arrays.")
    return simple("concat", "Concat", inputs, device, also=BYTES, axis=integer("axis", axis))


@warm
def reshape(x: Any, shape: Sequence[int], *, device: str | Device | None = None) -> Array:
    """Give the same elements, in C order, another shape; one extent may be -1."""
    wanted = integers("shape", shape)

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        target = b.constant("shape", np.array(wanted, np.int64))
        return b.add("Reshape", [*names, target], {"allowzero": 1})

    return call("reshape", [("x", x)], write, device=device, key=wanted, also=BYTES)


@warm
def flatten(x: Any, axis: int = 1, *, device: str | Device | None = None) -> Array:
    """Join the axes before `axis`, and those from `axis` on, into a matrix."""
    return simple("flatten", "Flatten", [("x", x)], device, also=BYTES, axis=integer("axis", axis))


@warm
def transpose(
    x: Any, axes: Sequence[int] | None = None, *, device: str | Device | None = None
) -> Array:
    """Permute the axes: output axis i is input axis ``axes[i]``; by default they are reversed."""
    # A copy of a large array waits until its shape is known to be possible.
    rank = len(shape_of("transpose", x, BYTES))
    given = None if axes is None else integers("axes", axes)
    perm = None if given is None else tuple(a + rank * (a < 0) for a in given)
    return simple("transpose", "Transpose", [("x", x)], device, also=BYTES, perm=perm)


@warm
def flip(
    x: Any, axis: int | Sequence[int] | None = None, *, device: str | Device | None = None
) -> Array:
    """Reverse the order along axes, all of them by default: BGR to RGB with ``axis=-1``."""
    along = counted("axis", axis, len(shape_of("flip", x, BYTES)))
    first = np.iinfo(np.int64).min
    ends = [[-1] * len(along), [first] * len(along), list(along), [-1] * len(along)]
    return _sliced("flip", x, ends, device)


@warm
def slice(
    x: Any,
    start: Sequence[int],
    stop: Sequence[int],
    step: Sequence[int] | None = None,
    *,
    device: str | Device | None = None,
) -> Array:
    """``x[start[0]:stop[0]:step[0], start[1]:stop[1]:step[1], ...]``, for the first axes.

    Parameters
    ----------
    x : array_like, float32 or float16, or uint8 or int8
    start, stop : sequence of int
        One for each of the first axes; as in Python, negative ones count from the end, and what
        lies beyond an end is taken as that end.
    step : sequence of int, optional
        Not 0; by default 1.
    device : str or Device, optional

    Raises
    ------
    ShapeError (GE-201)
        They do not fit each other, or are more than the axes.
    """
    begin, end = integers("start", start), integers("stop", stop)
    by = (1,) * len(begin) if step is None else integers("step", step)
    shape = shape_of("slice", x, BYTES)
    if not len(begin) == len(end) == len(by) <= len(shape) or 0 in by:
        raise ShapeError(
            f"slice has start={brief(begin)}, stop={brief(end)} and step={brief(by)}.",
            known="as many of each as axes, or fewer; no step is 0",
        )
    picked = [range(n)[b:e:s] for n, b, e, s in zip(shape, begin, end, by, strict=False)]
    bounds = zip(*map(_bounds, picked, shape), strict=True) if picked else [()] * 3
    first, last, steps = bounds
    return _sliced("slice", x, [first, last, range(len(begin)), steps], device)


def _bounds(picked: range, extent: int) -> tuple[int, int, int]:
    """Return start, end and step with which ONNX picks what Python picks of an axis."""
    if not picked:
        return 0, 0, 1
    stop = picked.stop if picked.stop >= 0 else -extent - 1
    return picked.start, stop, picked.step


def _sliced(op: str, x: Any, bounds: Sequence[Sequence[int]], device: str | Device | None) -> Array:
    """Return what ONNX's Slice gives for starts, ends, axes and steps."""
    key = tuple(map(tuple, bounds))

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        given = [b.constant(f"bound{i}", np.array(n, np.int64)) for i, n in enumerate(key)]
        return b.add("Slice", [*names, *given])

    return call(op, [("x", x)], write, device=device, key=key, also=BYTES)


@warm
def crop(
    x: Any, top: int, left: int, height: int, width: int, *, device: str | Device | None = None
) -> Array:
    """Cut a rectangle out of the last two axes, those of images (..., H, W).

    Raises
    ------
    ShapeError (GE-201)
        It does not lie within the image.
    """
    names = ("top", "left", "height", "width")
    y, x_left, high, wide = (
        integer(n, v) for n, v in zip(names, (top, left, height, width), strict=True)
    )
    shape = shape_of("crop", x, BYTES)
    if len(shape) < 2 or min(y, x_left, high, wide) < 0:
        raise ShapeError(f"crop takes a rectangle of an image, not of {list(shape)}.")
    if y + high > shape[-2] or x_left + wide > shape[-1]:
        raise ShapeError(
            f"crop takes rows {y} to {y + high} and columns {x_left} to {x_left + wide}.",
            known=f"the image has {shape[-2]} rows and {shape[-1]} columns",
        )
    along = (len(shape) - 2, len(shape) - 1)
    return _sliced("crop", x, [(y, x_left), (y + high, x_left + wide), along, (1, 1)], device)


PAD_MODES = get_args(PadMode)


@warm
def pad(
    x: Any,
    pad_width: int | Sequence[int] | Sequence[Sequence[int]],
    mode: PadMode = "constant",
    constant_values: float = 0.0,
    *,
    device: str | Device | None = None,
) -> Array:
    """Add elements before and after, as `numpy.pad` does.

    Parameters
    ----------
    x : array_like, float32 or float16, or uint8 or int8
    pad_width : int, (before, after) or a sequence of such pairs
        For all axes, or for each.
    mode : {"constant", "edge", "reflect", "wrap"}
        What they hold: a number, the last element, the array mirrored there, or its other end.
    constant_values : float
        That number; of bytes a whole one of theirs.
    device : str or Device, optional

    Raises
    ------
    ShapeError (GE-201)
        The widths do not fit the array.
    InputError (GE-203)
        Widths are negative or no integers; there is no such mode.
    """
    shape = shape_of("pad", x, BYTES)
    pairs = _pairs(pad_width, shape)
    if mode not in PAD_MODES:
        raise InputError(
            f"mode={brief(mode)} is not known.", known=f"modes: {', '.join(PAD_MODES)}"
        )
    if mode != "constant" and any(
        max(two) > extent - (mode == "reflect") for two, extent in zip(pairs, shape, strict=True)
    ):
        raise ShapeError(f"pad has mode={mode!r} and widths that a shape of {list(shape)} lacks.")
    fill = number("constant_values", constant_values)
    widths = [*(a for a, _ in pairs), *(b for _, b in pairs)]

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        value = rounded(np.array(fill), b.type(names[0]).dtype)
        if b.type(names[0]).dtype in BYTES and value != fill:
            raise InputError(f"constant_values={fill:g} does not fit {value.dtype}.")
        inputs = [*names, b.constant("pads", np.array(widths, np.int64))]
        if mode == "constant":
            inputs.append(b.constant("value", value))
        return b.add("Pad", inputs, {"mode": mode})

    return call("pad", [("x", x)], write, device=device, key=(tuple(widths), mode, repr(fill)),
                also=BYTES)  # fmt: skip


def _pairs(pad_width: Any, shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return how much is added before and after each axis."""
    is_nested = hasattr(pad_width, "__iter__") and any(hasattr(w, "__iter__") for w in pad_width)
    given = [integers("pad_width", w) for w in pad_width] if is_nested else None
    if given is None:
        flat = integers("pad_width", pad_width) if hasattr(pad_width, "__iter__") else (
            integer("pad_width", pad_width),)  # fmt: skip
        given = [flat] * len(shape)
    if len(given) != len(shape) or any(len(w) not in (1, 2) for w in given):
        raise ShapeError(
            f"pad_width={brief(pad_width)} does not fit an array of rank {len(shape)}."
        )
    if any(min(w) < 0 for w in given):
        raise InputError(f"pad_width={brief(pad_width)} is negative.")
    return [(w[0], w[-1]) for w in given]


def take(
    x: Any, indices: Any, axis: int | None = None, *, device: str | Device | None = None
) -> Array:
    """Elements at positions along an axis, as `numpy.take`; None takes from ``x`` in C order.

    Parameters
    ----------
    x : array_like of rank 1 or more, float32 or float16, or uint8 or int8
    indices : array_like of integers
        Negative ones count from the end.
    axis : int, optional
    device : str or Device, optional

    Returns
    -------
    numpy.ndarray
        With the shape of `indices` in place of the axis.

    Raises
    ------
    DTypeError (GE-202)
        Indices are no integers.
    InputError (GE-203)
        One lies outside of the axis.
    """
    shape = shape_of("take", x, BYTES)
    if not shape:
        raise ShapeError("take is given a scalar.")
    along = None if axis is None else counted("axis", integer("axis", axis), len(shape))[0]
    places = as_array(indices, "'indices' of take")
    if places.dtype.kind not in "iu":
        raise DTypeError(f"'indices' of take has dtype {places.dtype}.", known="integers")
    extent = int(np.prod(shape)) if along is None else shape[along]
    if places.size and not -extent <= int(places.min()) <= int(places.max()) < extent:
        raise InputError(f"'indices' of take lie outside of [{-extent}, {extent}).")

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        source = names[0]
        if along is None:
            flat = b.constant("flat", np.array([-1], np.int64))
            source = b.add("Reshape", [source, flat])
        return b.add("Gather", [source, names[1]], {"axis": along or 0})

    inputs = [("x", x), ("indices", places.astype(np.int64))]
    others = {"indices": ("int64",)}
    return call("take", inputs, write, device=device, key=along, also=BYTES, others=others)


def where(condition: Any, x: Any, y: Any, *, device: str | Device | None = None) -> Array:
    """``x`` where the condition is not 0, else ``y``, with broadcasting, as `numpy.where`.

    Parameters
    ----------
    condition : array_like of bool, or of float32, float16, uint8 or int8
    x, y : array_like, float32 or float16, or both uint8 or both int8
    device : str or Device, optional
    """
    test = np.asarray(condition) if isinstance(condition, (bool, list, tuple)) else condition

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        is_bool = b.type(names[0]).dtype == "bool"
        first = names[0] if is_bool else b.add("Cast", [names[0]], {"to": 9})
        return b.add("Where", [first, *names[1:]])

    inputs = [("condition", test), ("x", x), ("y", y)]
    others = {"condition": ("bool", "float32", "float16", *BYTES)}
    return call("where", inputs, write, device=device, also=BYTES, others=others)
