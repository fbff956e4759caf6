"""Reductions along axes, and where things are: sums, extremes, the largest, what is not zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.dtypes import BYTES, as_operand
from gpuedge.core.errors import InputError, ShapeError
from gpuedge.graph.build import GraphBuilder
from gpuedge.ops.arguments import axes, flag, integer, number
from gpuedge.ops.call import Array, call, is_lazy, several, warm

if TYPE_CHECKING:
    from gpuedge.device import Device

Axes = int | Sequence[int] | None


def shape_of(op: str, x: Any, also: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the shape of an operand; a large array is not copied for it."""
    is_known = type(x) is np.ndarray or is_lazy(x)
    shape: tuple[int, ...] = x.shape if is_known else as_operand(x, f"'x' of {op}", also)[0].shape
    return shape


def as_float(b: GraphBuilder, name: str) -> str:
    """Return bytes as float32."""
    return b.add("Cast", [name], {"to": 1}) if b.type(name).dtype in BYTES else name


def _reduced(
    name: str, op: str, x: Any, axis: Axes, *, keepdims: bool, device: str | Device | None
) -> Array:
    along, keeps = axes("axis", axis, len(shape_of(name, x, BYTES))), flag("keepdims", keepdims)

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        inputs = [as_float(b, names[0]), b.constant("axes", np.array(along, np.int64))]
        attrs = {"keepdims": int(keeps), "noop_with_empty_axes": 1}
        return b.add(op, inputs, attrs)

    return call(name, [("x", x)], write, device=device, key=(along, keeps), also=BYTES)


@warm
def sum(
    x: Any, axis: Axes = None, *, keepdims: bool = False, device: str | Device | None = None
) -> Array:
    """Sum along axes, all of them by default; of bytes as float32.

    Error bound: that of adding n numbers one by one, (n - 1) 2^-24 sum(abs(x)).

    Parameters
    ----------
    x : array_like, float32 or float16, or uint8 or int8
    axis : int or sequence of int, optional
        May count from the end.
    keepdims : bool
        Whether they stay, with extent 1.
    device : str or Device, optional

    Raises
    ------
    ShapeError (GE-201)
        There is no such axis.
    """
    return _reduced("sum", "ReduceSum", x, axis, keepdims=keepdims, device=device)


@warm
def mean(
    x: Any, axis: Axes = None, *, keepdims: bool = False, device: str | Device | None = None
) -> Array:
    """Mean along axes, all of them by default; arguments as of `sum`.

    Error bound: that of `sum` divided by n, and 2.5 ULP of the division.

    Raises
    ------
    ShapeError (GE-201)
        There is no such axis, or there is nothing along it.
    """
    if 0 in shape_of("mean", x, BYTES):
        raise ShapeError("mean is given nothing to take the mean of.")
    return _reduced("mean", "ReduceMean", x, axis, keepdims=keepdims, device=device)


@warm
def argmax(
    x: Any,
    axis: int | None = None,
    *,
    keepdims: bool = False,
    device: str | Device | None = None,
) -> Array:
    """Position of the largest element along an axis, or in C order; the first of equal ones.

    Parameters
    ----------
    x : array_like, float32 or float16
        Not empty; must not hold NaN.
    axis : int, optional
        May count from the end; None looks through the whole array.
    keepdims : bool
        Whether the axis stays, with extent 1.
    device : str or Device, optional

    Returns
    -------
    numpy.ndarray of int64

    Raises
    ------
    ShapeError (GE-201)
        There is no such axis, or nothing in the array.
    """
    shape, keeps = shape_of("argmax", x), flag("keepdims", keepdims)
    rank = len(shape)
    along = None if axis is None else axes("axis", integer("axis", axis), rank)[0]
    if 0 in shape:
        raise ShapeError("argmax is given nothing to look through.")

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        if along is not None:
            return b.add("ArgMax", names, {"axis": along, "keepdims": int(keeps)})
        flat = b.add("Reshape", [*names, b.constant("flat", np.array([-1], np.int64))])
        places = b.add("ArgMax", [flat], {"axis": 0, "keepdims": 1})
        kept = np.array([1] * rank if keeps else [], np.int64)
        return b.add("Reshape", [places, b.constant("kept", kept)])

    return call("argmax", [("x", x)], write, device=device, key=(along, keeps))


def topk(
    x: Any, k: int, axis: int = -1, *, largest: bool = True, device: str | Device | None = None
) -> tuple[Array, Array]:
    """The k largest (or smallest) elements along an axis, sorted, and their positions.

    Of equal elements the first goes first. Exact.

    Parameters
    ----------
    x : array_like, float32 or float16
        Of rank 1 or more; must not hold NaN.
    k : int
        From 0 to the extent of the axis.
    axis : int
        May count from the end.
    largest : bool
        False for the smallest.
    device : str or Device, optional

    Returns
    -------
    values : numpy.ndarray
        As `x`, with extent k along the axis.
    indices : numpy.ndarray of int64
        Of the same shape.

    Raises
    ------
    ShapeError (GE-201)
        There is no such axis, or it has fewer elements.
    """
    along = axes("axis", integer("axis", axis), len(shape_of("topk", x)))[0]
    count, is_largest = integer("k", k), flag("largest", largest)

    def write(b: GraphBuilder, names: Sequence[str]) -> Sequence[str]:
        inputs = [*names, b.constant("k", np.array([count], np.int64))]
        return b.add_all("TopK", inputs, {"axis": along, "largest": int(is_largest)}, outputs=2)

    key = (count, along, is_largest)
    values, indices = several("topk", [("x", x)], write, device=device, key=key)
    return values, indices


def nonzero(x: Any, *, device: str | Device | None = None) -> tuple[Array, ...]:
    """Positions of the elements that are not zero, in C order: an int64 array for each axis.

    Exact. The device computes them for all elements, and how many are valid; so many are kept.

    Parameters
    ----------
    x : array_like of rank 1 or more, float32 or float16, or uint8, int8 or bool
    device : str or Device, optional

    Raises
    ------
    ShapeError (GE-201)
        It is a scalar.
    """
    if not shape_of("nonzero", x, (*BYTES, "bool")):
        raise ShapeError("nonzero is given a scalar.", hint="numpy.atleast_1d(x)")
    places = call("nonzero", [("x", x)], lambda b, names: b.add("NonZero", names), device=device,
                 others={"x": (*BYTES, "bool")})  # fmt: skip
    return tuple(places)


def non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size: int,
    iou_threshold: float = 0.5,
    score_threshold: float | None = None,
    *,
    device: str | Device | None = None,
) -> Array:
    """Boxes of high scores that do not overlap with a better one, best first.

    A box is dropped if the part that it shares with one that stays, of what both cover, is above
    `iou_threshold`. Where that is within 2^-21 of it, either may be the result.

    Parameters
    ----------
    boxes : array_like of shape (count, 4), float32
        Two opposite corners each: (y, x, y, x).
    scores : array_like of shape (count,) or (classes, count), float32
        Classes are looked at one by one.
    max_output_size : int
        Most boxes of a class, 512 or fewer on a GPU.
    iou_threshold : float
        From 0 to 1.
    score_threshold : float, optional
        Only boxes with a score above it are taken.
    device : str or Device, optional

    Returns
    -------
    numpy.ndarray of int64
        Numbers of boxes, of shape (found,); with classes (found, 2): class and number, in the
        order of the classes.

    Raises
    ------
    ShapeError (GE-201)
        The shapes do not fit each other.
    """
    at_most, overlap = integer("max_output_size", max_output_size), number(
        "iou_threshold", iou_threshold)  # fmt: skip
    floor = None if score_threshold is None else number("score_threshold", score_threshold)
    if not 0 <= overlap <= 1 or at_most < 0:
        raise InputError(
            f"non_max_suppression has max_output_size={at_most}, iou_threshold={overlap:g}.",
            known="a count, and a share from 0 to 1",
        )
    has_classes = len(shape_of("non_max_suppression", scores)) == 2

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        axes_added = [b.constant(f"new{i}", np.array(at, np.int64)) for i, at in
               enumerate(([0], [0] if has_classes else [0, 1]))]  # fmt: skip
        inputs = [b.add("Unsqueeze", [n, at]) for n, at in zip(names, axes_added, strict=True)]
        numbers = [np.array([at_most], np.int64), np.array([overlap], np.float32)]
        numbers += [] if floor is None else [np.array([floor], np.float32)]
        inputs += [b.constant(f"number{i}", n) for i, n in enumerate(numbers)]
        return b.add("NonMaxSuppression", inputs)

    given = [("boxes", boxes), ("scores", scores)]
    picked = call("non_max_suppression", given, write, device=device, key=(at_most, overlap, floor))
    return picked[:, 1:] if has_classes else picked[:, 2]
