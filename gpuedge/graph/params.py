"""Canonical parameters: what an ONNX node means once defaults, versions and padding are resolved.

All of these are plain frozen data. Two-dimensional pairs are (height, width); a one-dimensional
convolution or pooling is seen as two-dimensional with height 1 (`rank` keeps the model's own
number of spatial dimensions). Pads are (top, left, bottom, right) and never negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ConvParams:
    """Convolution of x (N, C, H, W) with w (M, C/group, kh, kw) and an optional bias (M).

    `out` is the spatial size of the result, (height, width).
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair
    group: int
    out: Pair
    rank: int = 2


@dataclass(frozen=True, slots=True)
class ConvTransposeParams:
    """Transposed convolution of x (N, C, H, W) with w (C, M/group, kh, kw) and a bias (M).

    Input pixel (i, j) adds to output pixel (i*stride + kernel_index*dilation - pad); positions
    outside `out` are dropped, and positions of `out` that nothing reaches hold the bias.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair
    group: int
    output_padding: Pair
    out: Pair
    rank: int = 2


@dataclass(frozen=True, slots=True)
class PoolParams:
    """Max or average pooling of x (N, C, H, W).

    `pads` are those of the model; with `ceil_mode` the last window may reach further. An average
    divides by the number of input pixels under the window, or, with `count_include_pad`, by the
    number of window positions inside the input and its pads. A window that meets no pixel at all
    (dilated, on a small input) gives 0 as average and the lowest finite float32 as maximum.
    """

    kind: Literal["max", "avg"]
    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair
    ceil_mode: bool
    count_include_pad: bool
    global_: bool
    out: Pair
    rank: int = 2


@dataclass(frozen=True, slots=True)
class GemmParams:
    """alpha * A' @ B' + beta * C, where A' is A transposed if `trans_a`, and so on."""

    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    m: int
    k: int
    n: int


@dataclass(frozen=True, slots=True)
class MatMulParams:
    """Batched product: `batch` is the broadcast batch shape, operands are (m, k) and (k, n).

    A one-dimensional operand was given an extent of 1, which the node's output drops again.
    """

    batch: tuple[int, ...]
    m: int
    k: int
    n: int


@dataclass(frozen=True, slots=True)
class SoftmaxParams:
    """Softmax (or its logarithm) along the middle of the view (outer, length, inner)."""

    axis: int
    outer: int
    length: int
    inner: int
    log: bool


@dataclass(frozen=True, slots=True)
class ConcatParams:
    """Concatenation along `axis`, which is not negative."""

    axis: int


@dataclass(frozen=True, slots=True)
class TransposeParams:
    """Output dimension i is input dimension `perm[i]`."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReshapeParams:
    """The same elements in the same order, seen with `shape` (Reshape, Flatten, Identity, ...)."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchNormParams:
    """(x - mean) / sqrt(var + epsilon) * scale + bias per channel (dimension 1)."""

    epsilon: float


@dataclass(frozen=True, slots=True)
class ClipParams:
    """min(max(x, lo), hi); an absent bound is the extreme finite value of the dtype."""

    lo: float
    hi: float


@dataclass(frozen=True, slots=True)
class ElementwiseParams:
    """One output element from the broadcast inputs; `attrs` are (name, value), defaults filled."""

    op: str
    attrs: tuple[tuple[str, float], ...] = ()


Canon = (
    ConvParams
    | ConvTransposeParams
    | PoolParams
    | GemmParams
    | MatMulParams
    | SoftmaxParams
    | ConcatParams
    | TransposeParams
    | ReshapeParams
    | BatchNormParams
    | ClipParams
    | ElementwiseParams
)
