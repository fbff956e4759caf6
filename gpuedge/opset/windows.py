"""How windows slide over images: strides, dilations and padding of convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.tensor import Array, Pads, Pair, Window

FLAT = 2
"""Spatial dimensions that there are primitives for; others are composed of reductions."""

MAX_EXTENT = 2**31 - 1
"""Largest extent of a padded image, a window's attribute or a result: shaders count in int32."""


def check_extents(call: OperatorCall) -> None:
    """Check that nothing a window slides over, or consists of, is empty or too long.

    Only the batch may be empty. ONNX Runtime is not to be asked: given a padded image without
    channels it computes forever (seen with 1.31.1), and other sizes it reads beyond.

    Raises
    ------
    ShapeError (GE-201)
        An extent is 0 or at least 2**31.
    """
    x = call.shape(0)
    if len(x) > 1 and x[1] == 0:
        raise call.bad_shape("has no input channels")
    if 0 in x[2:]:
        raise call.bad_shape("slides over an empty image")
    weights = call.shape(1) if call.has(1) else ()
    if 0 in weights:
        raise call.bad_shape("has empty weights")
    check_short(call, "an extent", (*x, *weights))


def check_short(call: OperatorCall, what: str, values: Sequence[int]) -> None:
    """Check that shaders can count to the values. Raises ShapeError (GE-201)."""
    if any(v > MAX_EXTENT for v in values):
        raise call.bad_shape(f"has {what} of {max(values)}; the most is {MAX_EXTENT}")


def spatial(call: OperatorCall) -> tuple[int, ...]:
    """Return the spatial extents of input 0, one or more of them."""
    shape = call.shape(0)
    if len(shape) < 3:
        raise call.unsupported(f"has an input of rank {len(shape)}, without spatial dimensions")
    return shape[2:]


@dataclass(frozen=True, slots=True)
class Slide:
    """How windows slide, a number for each spatial dimension; `before` and `after` are pads."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilations: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def is_flat(self) -> bool:
        """Whether there is a primitive for it: over one or two dimensions."""
        return len(self.out) <= FLAT

    @property
    def window(self) -> Window:
        """The same in pairs."""
        return Window(
            pair(self.kernel, 1), pair(self.strides, 1), box(self.before, self.after),
            pair(self.dilations, 1), pair(self.out, 1),
        )  # fmt: skip


def pair(values: Sequence[int], fill: int) -> Pair:
    """Return (y, x) of one or two values."""
    return (fill, values[0]) if len(values) == 1 else (values[0], values[1])


def box(begin: Sequence[int], end: Sequence[int]) -> Pads:
    """Return (top, left, bottom, right)."""
    top, left = pair(begin, 0)
    bottom, right = pair(end, 0)
    return (top, left, bottom, right)


def counts(
    call: OperatorCall, name: str, default: Sequence[int], *, least: int = 1
) -> tuple[int, ...]:
    """Return a per-dimension attribute, checked for length and lower bound."""
    values = call.ints(name, default)
    if len(values) != len(default):
        raise call.bad_shape(f"has {len(values)} {name} instead of {len(default)}")
    if any(v < least for v in values):
        raise call.bad_shape(f"has {name}={list(values)}; each must be at least {least}")
    check_short(call, f"{name} with a value", values)
    return values


def auto_pad(call: OperatorCall) -> str:
    """Return the way of automatic padding."""
    mode = call.text("auto_pad", "NOTSET") or "NOTSET"
    if mode not in {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"}:
        raise call.unsupported(f"has auto_pad={mode!r}, which does not exist")
    return mode


def split(total: int, upper: bool) -> Pair:
    """Divide padding between the two ends; the odd one goes to the end if `upper`."""
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def window(
    call: OperatorCall, size: Sequence[int], kernel: Sequence[int], ceil_mode: bool = False
) -> Slide:
    """Resolve strides, dilations, pads and output size of a window that slides over `size`."""
    rank = len(size)
    strides = counts(call, "strides", (1,) * rank)
    dilations = counts(call, "dilations", (1,) * rank)
    pads = counts(call, "pads", (0,) * (2 * rank), least=0)
    mode = auto_pad(call)
    begin: list[int] = []
    end: list[int] = []
    out: list[int] = []
    for axis in range(rank):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        step = strides[axis]
        low, high = (pads[axis], pads[axis + rank]) if mode == "NOTSET" else (0, 0)
        if mode.startswith("SAME"):
            count = -(-size[axis] // step)
            low, high = split(max((count - 1) * step + reach - size[axis], 0), mode == "SAME_UPPER")
        else:
            extent = size[axis] + low + high
            if extent < reach:
                raise call.bad_shape(f"has a window of {reach} over {extent} positions")
            room = extent - reach
            count = (-(-room // step) if ceil_mode else room // step) + 1
            # A window that would start beyond the input and its leading pad does not exist.
            if ceil_mode and (count - 1) * step >= size[axis] + low:
                count -= 1
        check_short(call, "a padded extent", (size[axis] + low + high, reach))
        begin.append(low)
        end.append(high)
        out.append(count)
    return Slide(tuple(kernel), strides, tuple(begin), tuple(end), dilations, tuple(out))


# --- numpy ---------------------------------------------------------------------------------------


def as_image(x: Array) -> Array:
    """Give an array with one spatial dimension a height of 1."""
    return x if x.ndim == 4 else x[:, :, None, :]


def as_rank(y: Array, rank: int) -> Array:
    """Take the height away again where the operand had none."""
    return y if rank == 4 else y[:, :, 0, :]


def pad_for(x: Array, slide: Window, fill: float) -> Array:
    """Pad an image, at the far ends as far as the last window reaches."""
    top, left, bottom, right = slide.pads
    height, width = (
        (slide.out[i] - 1) * slide.strides[i] + (slide.kernel[i] - 1) * slide.dilations[i] + 1
        for i in (0, 1)
    )
    bottom = max(bottom, height - x.shape[2] - top)
    right = max(right, width - x.shape[3] - left)
    if not any((top, left, bottom, right)):
        return x
    ends = ((0, 0), (0, 0), (top, bottom), (left, right))
    return np.pad(x, ends, constant_values=x.dtype.type(fill))


def unrolled(x: Array, slide: Window) -> Array:
    """Return a view (N, C, kh, kw, oh, ow) of a padded image."""
    n, c, row, column = x.strides
    shape = (x.shape[0], x.shape[1], *slide.kernel, *slide.out)
    steps = (n, c, row * slide.dilations[0], column * slide.dilations[1],
             row * slide.strides[0], column * slide.strides[1])  # fmt: skip
    return np.lib.stride_tricks.as_strided(x, shape, steps, writeable=False)
