"""Winograd's minimal filtering F(4x4, 3x3): which convolutions it may serve, and how exactly.

A tile of 6 by 6 pixels d and a filter g give 4 by 4 outputs as A^T ((G g G^T) * (B^T d B)) A, with
36 products instead of 144 (Lavin and Gray, "Fast algorithms for convolutional neural networks",
CVPR 2016). The points are 0, +-sqrt(1/2), +-sqrt(2) and infinity, with which errors are a quarter
of those of 0, +-1, +-2.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from gpuedge.opset.bounds import Array, Num, U
from gpuedge.opset.tensor import Convolution, Window

SIDE = 4
"""Outputs of a tile along each axis."""

POINTS = 36
"""Products of a tile, one for each pair of points."""

LEAST_CHANNELS, LEAST_FILTERS, LEAST_PIXELS = 16, 13, 144
"""Below these the transforms cost more than they save; integers stay exact there."""

BEFORE, AFTER = 8, 12
"""Roundings that a term passes besides those of its sum over channels: 4 along each axis of B; 5
along each of A, one of its weight and one of the product. Those of constants are among them."""

_R = sqrt(0.5)
_B = np.array([
    [1, 0, -2.5, 0, 1, 0],
    [0, -2 * _R, -2, _R, 1, 0],
    [0, 2 * _R, -2, -_R, 1, 0],
    [0, -_R, -0.5, 2 * _R, 1, 0],
    [0, _R, -0.5, -2 * _R, 1, 0],
    [0, 1, 0, -2.5, 0, 1],
])  # fmt: skip
_G = np.array([
    [1, 0, 0],
    [-2 / 3, -2 / 3 * _R, -1 / 3],
    [-2 / 3, 2 / 3 * _R, -1 / 3],
    [1 / 6, _R / 3, 1 / 3],
    [1 / 6, -_R / 3, 1 / 3],
    [0, 0, 1],
])  # fmt: skip
_A = np.array([
    [1, 1, 1, 1, 1, 0],
    [0, _R, -_R, 2 * _R, -2 * _R, 0],
    [0, 0.5, 0.5, 2, 2, 0],
    [0, _R / 2, -_R / 2, 4 * _R, -4 * _R, 1],
])  # fmt: skip


def tiles(window: Window, channels: int, filters: int, group: int) -> int:
    """Return how many tiles an image has; 0 if a convolution cannot be computed so, or is small.

    At least half of what the tiles cover are outputs.
    """
    height, width = window.out
    is_plain = window.kernel == (3, 3) and window.strides == window.dilations == (1, 1)
    if not is_plain or group != 1 or channels < LEAST_CHANNELS or filters < LEAST_FILTERS:
        return 0
    count = -(-height // SIDE) * -(-width // SIDE)
    pixels = height * width
    return count if pixels >= LEAST_PIXELS and count * SIDE**2 <= 2 * pixels else 0


def may_serve(source: Convolution) -> bool:
    """Tell whether a device may compute a convolution so; never one of integers, or in float16.

    Weights are constants, so that the host transforms them once.
    """
    is_exact = source.is_half or source.is_whole or source.carry is not None
    if source.is_transposed or is_exact or source.w.array is None:
        return False
    channels, filters = source.x.shape[1], source.w.shape[0]
    return tiles(source.window, channels, filters, source.group) > 0


def transformed(w: Array) -> Array:
    """Return filters (M, C, 3, 3) at the points: (M, C, 6, 6) float64."""
    flat = w.astype(np.float64).reshape(-1, 9) @ np.kron(_G, _G).T
    return np.asarray(flat.reshape(*w.shape[:2], 6, 6))


def send_to_points(taps: Array, out: Array) -> None:
    """Write filters at the points: their taps are rows of `taps` (S, 9, N), those of `out` points.

    Computed in float64 and rounded once, to what `out` (S, 36, N) holds. One of S at a time stays
    in the processor's caches, where this takes a tenth of the time.
    """
    matrix = np.kron(_G, _G)
    for rows, to in zip(taps, out, strict=True):
        to[:] = matrix @ rows.astype(np.float64)


def filtered(x: Array, w: Array, window: Window) -> Array:
    """Return the convolution of images (N, C, H, W) in float64, computed tile by tile."""
    return _assembled(_A, _summed(transformed(w), _sent(_B, _seen(x, window))), window)


def bound(x: Num, w: Num, window: Window) -> Array:
    """Return how far float32 may be from the exact convolution, whatever cancels in that.

    Of each stage the roundings that a term passes, relative to absolute values of that stage, sent
    through the absolute values of the matrices that follow; to first order (Higham, section 3.1).
    Errors that the operands have widen it, but are not in it.
    """
    v, d, u = _sizes(x, w, window)
    products = (x.v.shape[1] + AFTER) * _summed(u, v) + BEFORE * _summed(u, d)
    return U * _assembled(np.abs(_A), products, window)


def running_error(x: Num, w: Num, window: Window) -> Array:
    """Return the same with roundings of different origin as independent ones: by their squares.

    Those of a sum over channels count as in any sum: by the root of their number, and two more.
    """
    v, d, u = _sizes(x, w, window)
    sums = (np.sqrt(x.v.shape[1] + AFTER) + 2) * _summed(u, v)
    squares = sums**2 + BEFORE * _summed(u**2, d**2)
    return np.asarray(U * np.sqrt(_assembled(_A**2, squares, window)))


def _sizes(x: Num, w: Num, window: Window) -> tuple[Array, Array, Array]:
    """Return magnitudes: of inputs at the points, of the terms they are sums of, of weights."""
    b, g = np.abs(_B), np.abs(_G)
    off = _seen(x.e, window)
    inputs = np.abs(_sent(_B, _seen(x.v, window))) + _sent(b, off)
    terms = _sent(b, _seen(np.abs(x.v), window) + off)
    return inputs, terms, np.abs(transformed(w.v)) + _sent(g, w.e)


def _sent(matrix: Array, x: Array) -> Array:
    return np.asarray(matrix @ x @ matrix.T)


def _seen(x: Array, window: Window) -> Array:
    """Return the pixels of each tile: (N, C, rows of tiles, columns of tiles, 6, 6) float64."""
    rows, columns = (-(-size // SIDE) for size in window.out)
    padded = np.zeros((*x.shape[:2], SIDE * rows + 2, SIDE * columns + 2))
    top, left = window.pads[:2]
    inside = padded[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    inside[...] = x[:, :, : inside.shape[2], : inside.shape[3]]
    seen = np.lib.stride_tricks.sliding_window_view(padded, (6, 6), axis=(2, 3))
    return np.asarray(seen[:, :, ::SIDE, ::SIDE])


def _summed(u: Array, v: Array) -> Array:
    return np.asarray(np.einsum("mcij,nctuij->nmtuij", u, v, optimize=True))


def _assembled(matrix: Array, products: Array, window: Window) -> Array:
    tiles = _sent(matrix, products).swapaxes(3, 4)
    batch, filters, rows, _, columns, _ = tiles.shape
    whole = tiles.reshape(batch, filters, SIDE * rows, SIDE * columns)
    return np.asarray(whole[:, :, : window.out[0], : window.out[1]])
