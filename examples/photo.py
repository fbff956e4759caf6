"""The photograph of the examples: loading it, the filters, and writing pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError as error:
    sys.exit(f'This example needs {error.name}; in the checkout: pip install ".[examples]"')

Array = npt.NDArray[Any]


def _padded(rows: list[list[float]]) -> Array:
    return np.pad(np.array(rows, np.float32), 1)


_BINOMIAL = np.array([1, 4, 6, 4, 1], np.float32)

FILTERS: dict[str, Array] = {
    "blur": np.outer(_BINOMIAL, _BINOMIAL) / 256,
    "sharpen": _padded([[0, -1, 0], [-1, 5, -1], [0, -1, 0]]),
    "edges across": _padded([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]),
    "edges down": _padded([[-1, -2, -1], [0, 0, 0], [1, 2, 1]]),
}
"""5x5 filters: Gaussian (binomial), sharpening, and the two of Sobel."""

LABELS = ("original", "blur", "sharpen", "edges")
LABEL = 28
"""Height in pixels of the line below each picture."""


def load_photo(name: str = "china.jpg") -> Array:
    """Return a photograph as float32 from 0 to 1 of shape (3 colours, 1, height, width)."""
    try:  # here, so that who brings a picture needs no scikit-learn
        from sklearn.datasets import load_sample_image  # noqa: PLC0415
    except ImportError as error:
        sys.exit(f'This example needs {error.name}; in the checkout: pip install ".[examples]"')
    pixels = np.asarray(load_sample_image(name), np.float32) / 255
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[:, None])


def framed(photo: Array) -> Array:
    """Repeat the border pixels twice around a photograph, so that 5x5 filters see no black frame.

    Filtered with ``padding="valid"`` it has its old size again.
    """
    return np.pad(photo, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")


def filtered_exactly(photo: Array) -> Array:
    """Return what the filters make of a photograph, in float64 and one tap at a time."""
    _, _, height, width = photo.shape
    padded = framed(photo)[:, 0].astype(np.float64)
    out = np.zeros((len(photo), len(FILTERS), height, width))
    for k, taps in enumerate(FILTERS.values()):
        for (i, j), weight in np.ndenumerate(taps):
            out[:, k] += float(weight) * padded[:, i : i + height, j : j + width]
    return out


def labelled(image: Array, text: str) -> Array:
    """Put a line with a small text under an image: (3, height + LABEL, width)."""
    line = Image.new("L", (image.shape[2], LABEL), 255)
    font = ImageFont.load_default(0.7 * LABEL)
    ImageDraw.Draw(line).text((6, LABEL // 2), text, fill=40, font=font, anchor="lm")
    below = np.broadcast_to(np.asarray(line, np.float32) / 255, (3, *line.size[::-1]))
    return np.concatenate([image, below], axis=1)


def contact_sheet(photo: Array, filtered: Array) -> Array:
    """Arrange original, blur, sharpened and edge strength 2 by 2, each with its name below."""
    edges = np.hypot(filtered[:, 2], filtered[:, 3])
    named = zip(LABELS, (photo[:, 0], filtered[:, 0], filtered[:, 1], edges), strict=True)
    a, b, c, d = (labelled(np.clip(image, 0, 1), text) for text, image in named)
    return np.concatenate([np.concatenate([a, b], axis=2), np.concatenate([c, d], axis=2)], axis=1)


def boxed(image: Array, boxes: Array, labels: list[str]) -> Array:
    """Draw boxes (top, left, bottom, right) with labels into an image (3, height, width)."""
    pixels = (np.clip(image, 0, 1) * 255).round().astype(np.uint8)
    picture = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(0.7 * LABEL)
    for (top, left, bottom, right), text in zip(boxes.tolist(), labels, strict=True):
        draw.rectangle((left, top, right - 1, bottom - 1), outline=(255, 220, 0), width=2)
        spot = (right + 3, (top + bottom) / 2)
        draw.text(spot, text, (255, 220, 0), font, "lm", stroke_width=2, stroke_fill=(0, 0, 0))
    return np.asarray(picture, np.float32).transpose(2, 0, 1) / 255


def save_png(path: Path, image: Array) -> None:
    """Write a (3, height, width) image with values from 0 to 1, clipped; makes the folder."""
    pixels = (np.clip(image, 0, 1) * 255).round().astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.transpose(1, 2, 0)).save(path)
