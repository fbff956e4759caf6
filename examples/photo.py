"""The photograph of the examples: loading it, the filters, and writing pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from sklearn.datasets import load_sample_image

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


def load_photo(name: str = "china.jpg") -> Array:
    """Return a photograph as float32 from 0 to 1 of shape (3 colours, 1, height, width)."""
    pixels = np.asarray(load_sample_image(name), np.float32) / 255
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[:, None])


def filtered_exactly(photo: Array) -> Array:
    """Return what the filters make of a photograph, in float64 and one tap at a time."""
    _, _, height, width = photo.shape
    padded = np.pad(photo[:, 0].astype(np.float64), ((0, 0), (2, 2), (2, 2)))
    out = np.zeros((len(photo), len(FILTERS), height, width))
    for k, taps in enumerate(FILTERS.values()):
        for (i, j), weight in np.ndenumerate(taps):
            out[:, k] += float(weight) * padded[:, i : i + height, j : j + width]
    return out


def contact_sheet(photo: Array, filtered: Array) -> Array:
    """Arrange original, blur, sharpened and edge strength 2 by 2: (3, 2 * height, 2 * width)."""
    edges = np.hypot(filtered[:, 2], filtered[:, 3])
    top = np.concatenate([photo[:, 0], filtered[:, 0]], axis=2)
    bottom = np.concatenate([filtered[:, 1], edges], axis=2)
    return np.concatenate([top, bottom], axis=1)


def save_png(path: Path, image: Array) -> None:
    """Write a (3, height, width) image with values from 0 to 1, clipped; makes the folder."""
    pixels = (np.clip(image, 0, 1) * 255).round().astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.transpose(1, 2, 0)).save(path)
