"""Photographs as inputs of models, and outputs as pictures: Pillow reads and writes them.

The layout, the size and the number of channels come from the shape that the model gives its input;
options say what that leaves open, and how pixels become numbers.
"""

from __future__ import annotations

import argparse
import io
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuedge.core.errors import GpuEdgeError, InputError, UsageError
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import Dim, Signature
from gpuedge.safety.paths import open_regular

MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
"""What PNG and JPEG files begin with."""

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's modes of at most 8 bits a channel; from the others it would cut bits off."""

MAX_GIVEN = 65535
"""Pixels of a side of an image that is read: what JPEG allows."""

MAX_SIDE = 16384
"""Pixels of a side that an image may be resized to."""


@dataclass(frozen=True, slots=True)
class Preparing:
    """How pixels become numbers, as far as options say: ``(pixel * scale - mean) / std``.

    `size` is (height, width); `mean` and `std` have a number, or one for each channel in the
    model's order; `channels` is rgb, bgr or grey.
    """

    size: tuple[int, int] | None = None
    crop: bool = False
    layout: str | None = None
    channels: str | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def given(self) -> str:
        """An option that was given, else nothing."""
        names = ("size", "crop", "scale", "mean", "std", "layout", "channels")
        return next((f"--{name}" for name in names if getattr(self, name)), "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is said of images."""
    add = parser.add_argument_group("images").add_argument
    add("--size", type=_size, metavar="HxW", help="resize to this; else as the model's input says")
    add("--crop", action="store_true",
        help="keep proportions and cut the middle out, where an image is resized")  # fmt: skip
    add("--layout", choices=("nchw", "nhwc"), help="where the model's input shape leaves that open")
    add("--channels", choices=("rgb", "bgr", "grey"), help="what the model's channels are (rgb)")
    add("--scale", type=_number, metavar="S",
        help="a value is (pixel * scale - mean) / std; 0.00392 = 1/255 by default")  # fmt: skip
    add("--mean", type=_numbers, metavar="M[,M,M]", help="see --scale; in the model's order (0)")
    add("--std", type=_numbers, metavar="S[,S,S]", help="see --scale; in the model's order (1)")
    add("--images", nargs="?", type=_range, const=(0.0, 1.0), metavar="LOW,HIGH",
        help="write outputs of 1 or 3 channels as PNG too, these values black and white (0,1; "
        "uint8 as it is)")  # fmt: skip


def _number(text: str) -> float:
    try:
        number = float(text) if text.isascii() else math.nan
    except ValueError:
        number = math.nan
    if not (number and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number other than zero")
    return number


def _numbers(text: str, counts: tuple[int, ...] = (1, 3)) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, text.split(",")) if text.isascii() else ())
    except ValueError:
        numbers = ()
    if len(numbers) not in counts or not all(map(math.isfinite, numbers)):
        wanted = " or ".join(map(str, counts))
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted} numbers with commas between")
    return numbers


def _range(text: str) -> tuple[float, float]:
    low, high = _numbers(text, (2,))
    if low == high:
        raise argparse.ArgumentTypeError(f"{text!r} is a range without an extent")
    return low, high


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    sides = [int(s) if re.fullmatch("[0-9]{1,5}", s) else 0 for s in (height, width)]
    if not all(1 <= side <= MAX_SIDE for side in sides):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a height and a width from 1 to {MAX_SIDE}, such as 224x224"
        )
    return sides[0], sides[1]


def preparing(options: argparse.Namespace) -> Preparing:
    """Return what the options say. Raises UsageError for a division by zero."""
    if options.std is not None and not all(options.std):
        raise UsageError("--std cannot be 0: values are divided by it.", asked_by="--std")
    names = Preparing.__dataclass_fields__
    return Preparing(**{name: getattr(options, name) for name in names})


def _pillow() -> Any:
    """Return the module that reads and writes images. Raises UsageError where it is missing."""
    try:
        from PIL import Image, ImageOps  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "Images need the package pillow, which is not installed.",
            known=str(error),
            hint="pip install 'gpuedge[images]', or give a .npy file",
        ) from None
    import PIL

    return PIL


@dataclass(frozen=True, slots=True)
class ImageShape:
    """What an input has room for: `height` and `width` are None where it leaves them open."""

    rank: int
    is_channels_first: bool
    channels: int
    height: int | None
    width: int | None


def read_image(path: str, name: str, signature: Signature, how: Preparing) -> Array:
    """Return the image in a file as an array for the model's input `name`.

    Raises
    ------
    InputError (GE-203)
        It is not intact, has more than 8 bits a channel, or is too large.
    UsageError (GE-200)
        The input takes no image, options are needed or contradict it, or Pillow is missing.
    """
    place = _place(name, signature, how)
    side = (place.height, place.width)
    if how.size is not None and any(
        s is not None and s != h for s, h in zip(side, how.size, strict=True)
    ):
        raise _unfit(name, signature, f"{how.size[0]}x{how.size[1]} is asked for", "--size")
    pixels = _pixels(path, "L" if place.channels == 1 else "RGB", how.size or side, how.crop)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if how.channels == "bgr":
        pixels = pixels[..., ::-1]
    values = _values(pixels, name, signature, how)
    if place.is_channels_first:
        values = np.moveaxis(values, -1, 0)
    if place.rank == 2:
        values = values[0] if place.is_channels_first else values[..., 0]
    return np.ascontiguousarray(values[None] if place.rank == 4 else values)


def _place(name: str, signature: Signature, how: Preparing) -> ImageShape:
    """Tell from an input's shape what it has room for."""
    _, dims = signature
    if dims is None or len(dims) not in (2, 3, 4):
        raise _unfit(name, signature, "an image has 2, 3 or 4 dimensions")
    if len(dims) == 4 and isinstance(dims[0], int) and dims[0] != 1:
        raise _unfit(name, signature, "one image is a batch of one")
    inner: tuple[Dim, ...] = dims[-3:] if len(dims) > 2 else (1, *dims)
    layout = "nchw" if len(dims) == 2 else _layout(inner, how.layout)
    if layout is None:
        why = f"its channels are not {how.layout}" if how.layout else "where are its channels?"
        raise _unfit(name, signature, why, "--layout")
    is_first = layout == "nchw"
    depth, *sides = inner if is_first else (inner[2], *inner[:2])
    channels = depth if isinstance(depth, int) else 1 if how.channels == "grey" else 3
    if how.channels is not None and (how.channels == "grey") != (channels == 1):
        raise _unfit(name, signature, f"its channels cannot be {how.channels}", "--channels")
    height, width = (s if isinstance(s, int) else None for s in sides)
    return ImageShape(len(dims), is_first, channels, height, width)


def _layout(inner: tuple[Dim, ...], asked: str | None) -> str | None:
    """Return which of the three dimensions are channels; None where that is open or not so."""
    ends = {"nchw": inner[0], "nhwc": inner[2]}
    if asked is not None:
        return asked if ends[asked] in (1, 3) or not isinstance(ends[asked], int) else None
    could = [layout for layout, dim in ends.items() if dim in (1, 3)]
    return could[0] if len(could) == 1 else None


def _unfit(name: str, signature: Signature, why: str, option: str = "--input") -> UsageError:
    dtype, dims = signature
    shape = "of any shape" if dims is None else f"[{', '.join(str(d or '?') for d in dims)}]"
    return UsageError(
        f"An image does not fit the input {name!r}: {why}.",
        asked_by=option,
        known=f"the model takes {dtype} {shape}",
        hint="an image has 1 or 3 channels, first (nchw) or last (nhwc); else give a .npy file",
    )


def _pixels(path: str, mode: str, side: tuple[int | None, int | None], is_cropped: bool) -> Array:
    """Return the 8-bit pixels of an image, upright, of a size where one is given."""
    pil = _pillow()
    try:
        with warnings.catch_warnings(), open_regular(path) as file:
            warnings.simplefilter("ignore")  # of sizes below the limit, and of metadata
            image = pil.Image.open(file, formats=("PNG", "JPEG"))
            if max(image.size) > MAX_GIVEN:
                raise ValueError(f"{image.width} x {image.height} pixels, over {MAX_GIVEN} a side")
            if image.mode not in MODES:
                raise ValueError(f"pixels of mode {image.mode} have more than 8 bits")
            image = pil.ImageOps.exif_transpose(image).convert(mode)
            height, width = side[0] or image.height, side[1] or image.width
            if (width, height) != image.size:
                smooth = pil.Image.Resampling.BILINEAR
                if is_cropped:
                    image = pil.ImageOps.fit(image, (width, height), smooth)
                image = image.resize((width, height), smooth)
            return np.array(image)
    except GpuEdgeError:
        raise
    except Exception as error:  # decoders raise whatever a broken file leads them to
        raise InputError(
            f"{path} is not an intact PNG or JPEG image: {error}.",
            asked_by="--input",
            hint="8 bits a channel; other formats have to be converted",
        ) from None


def _values(pixels: Array, name: str, signature: Signature, how: Preparing) -> Array:
    """Return pixels as numbers of the model's dtype."""
    dtype = signature[0]
    if dtype == "uint8":
        if how.scale or how.mean or how.std:
            raise _unfit(name, signature, "uint8 takes pixels as they are", how.given)
        return pixels
    if not dtype.startswith("float"):
        raise _unfit(name, signature, "pixels become uint8 or floating-point numbers")
    for option, numbers in (("--mean", how.mean), ("--std", how.std)):
        if numbers is not None and len(numbers) not in (1, pixels.shape[-1]):
            raise _unfit(name, signature, f"{option} has {len(numbers)} numbers", option)
    values = pixels.astype(np.float64) * (how.scale or 1 / 255)
    values = (values - np.array(how.mean or (0,))) / np.array(how.std or (1,))
    return np.asarray(values, dtype)


def pictures(
    array: Array, how: Preparing, limits: tuple[float, float], say: Callable[[str], None]
) -> list[bytes]:
    """Return an output as PNG files, one for each of its batch; none where it is no picture.

    Pictures have 3 or 4 dimensions, the channels first (unless `how` says otherwise) or last.
    Values from ``limits[0]`` to ``limits[1]`` become 0 to 255, others the nearest of these; `say`
    is told how many. uint8 is taken as it is.
    """
    if array.ndim not in (3, 4) or array.dtype.kind not in "fiub" or min(array.shape) < 1:
        return []
    batch: Any = array if array.ndim == 4 else array[None]
    order = ("nhwc", "nchw") if how.layout == "nhwc" else ("nchw", "nhwc")
    axes = {"nchw": 1, "nhwc": 3}
    axis = next((axes[o] for o in order if batch.shape[axes[o]] in (1, 3)), None)
    if axis is None:
        return []
    batch = np.moveaxis(batch, axis, -1)
    if batch.shape[-1] == 3 and how.channels == "bgr":
        batch = batch[..., ::-1]
    if batch.dtype != np.uint8:
        low, high = limits
        scaled = (batch.astype(np.float64) - low) / (high - low)
        inside = (scaled >= -1e-3) & (scaled <= 1 + 1e-3)
        if not inside.all():
            say(f"{1 - inside.mean():.2%} of the values lie outside of {low:g} to {high:g}")
        batch = np.rint(np.nan_to_num(np.clip(scaled, 0, 1)) * 255).astype(np.uint8)
    return [_png(one[..., 0] if one.shape[-1] == 1 else one) for one in batch]


def _png(pixels: Array) -> bytes:
    buffer = io.BytesIO()
    _pillow().Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()
