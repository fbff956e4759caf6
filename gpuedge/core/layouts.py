"""Orders of the axes of images, recognised where an array has the other one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ORDERS = {
    "NHWC": (0, 3, 1, 2), "NCHW": (0, 2, 3, 1), "HWC": (2, 0, 1), "CHW": (1, 2, 0),
    "NDHWC": (0, 4, 1, 2, 3), "NCDHW": (0, 2, 3, 4, 1),
}  # fmt: skip
"""Orders by name, and the axes of the same array with its channels at the other end."""


def other_order(
    shape: Sequence[int], fits: Callable[[tuple[int, ...]], bool], name: str = "x"
) -> str | None:
    """Return what to write to turn an array of `shape` into one that `fits`; None if nothing is.

    Its channels are moved to the other end, it gets an axis for the batch, or both.
    """
    for order, axes in {"": tuple(range(len(shape))), **_ORDERS}.items():
        if len(axes) != len(shape):
            continue
        turned = tuple(shape[axis] for axis in axes)
        code = f"{name}.transpose{axes}" if order else name
        told = f"the array is {order}: " if order else ""
        if order and fits(turned):
            return told + code
        if len(shape) in (2, 3) and fits((1, *turned)):
            return f"{told or 'the axis of the batch is missing: '}{code}[None]"
    return None
