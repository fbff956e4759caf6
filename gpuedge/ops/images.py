"""What the frames of a camera need: numbers from bytes, and other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from gpuedge.core.errors import InputError, ShapeError
from gpuedge.core.words import ResizeMode
from gpuedge.graph.build import GraphBuilder
from gpuedge.ops.arguments import Size, flag, pair
from gpuedge.ops.call import Array, call, warm
from gpuedge.ops.expression import Elementwise
from gpuedge.ops.reducing import shape_of
from gpuedge.runtime.inputs import brief

if TYPE_CHECKING:
    from gpuedge.device import Device


@cache
def _scaled() -> Elementwise:
    return Elementwise("x * scale + offset")


def to_float(
    x: Any, scale: Any = 1 / 255, offset: Any = 0.0, *, device: str | Device | None = None
) -> Array:
    """``x * scale + offset`` as float32; by default bytes of an image as numbers from 0 to 1.

    Error bound: 2 ULP of the larger of product and result.

    Parameters
    ----------
    x : array_like, uint8 or int8, or float32 or float16
    scale, offset : array_like, float32, or float
        Broadcast with `x`: of shape (3,) for the channels of (H, W, 3).
    device : str or Device, optional
    """
    return _scaled()(x, scale, offset, device=device)


MODES = get_args(ResizeMode)


@warm
def resize(
    x: Any,
    size: Size,
    mode: ResizeMode = "linear",
    *,
    antialias: bool = False,
    device: str | Device | None = None,
) -> Array:
    """Resample the last two axes, those of images (..., H, W), to a size.

    Pixels are squares with their values in the middle (``half_pixel`` in ONNX, ``align_corners``
    false in PyTorch); beyond the border lies its last pixel. Error bound: (n + 4 (H + W)) 2^-24
    max(abs(x)), with n the pixels that one is made of: positions have the precision of float32.

    Parameters
    ----------
    x : array_like of shape (..., H, W), float32 or float16
    size : int or (int, int)
        New height and width.
    mode : {"linear", "nearest", "cubic"}
        Cubic with the coefficient -0.75.
    antialias : bool
        Whether pixels that lie between are averaged where the image shrinks; not for ``nearest``.
    device : str or Device, optional

    Raises
    ------
    ShapeError (GE-201)
        It is no image, has no pixels, or is to have none.
    InputError (GE-203)
        There is no such mode.
    """
    shape, new = shape_of("resize", x), pair("size", size)
    smooth = flag("antialias", antialias)
    if mode not in MODES or (smooth and mode == "nearest"):
        raise InputError(
            f"mode={brief(mode)}, antialias={smooth} is not known.",
            known=f"modes: {', '.join(MODES)}; antialias is not for nearest",
        )
    if len(shape) < 2 or 0 in shape or min(new) < 1:
        raise ShapeError(f"resize cannot make {list(new)} pixels of the shape {list(shape)}.")

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        lead = int(np.prod(shape[:-2]))
        target = (1, lead, *shape[-2:])
        image = b.add("Reshape", [*names, b.constant("image", np.array(target, np.int64))])
        sizes = b.constant("sizes", np.array((1, lead, *new), np.int64))
        attrs = {"mode": mode, "antialias": int(smooth)}
        resized = b.add("Resize", [image, "", "", sizes], attrs)
        return b.add("Reshape", [resized, b.constant("shape", np.array((*shape[:-2], *new)))])

    return call("resize", [("x", x)], write, device=device, key=(new, mode, smooth))
