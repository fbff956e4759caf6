"""What ONNX Runtime's own operators must give that its optimiser makes of several of ONNX's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpuedge.opset.bounds import Array, Num
from gpuedge.oracle import attention, layers
from gpuedge.oracle.functions import elementwise


def _gelu(name: str, x: Num, bias: Num | None = None, *, whole: bool) -> Num:
    return elementwise(name, x if bias is None else x + bias)


def _quick_gelu(x: Num, *, whole: bool, alpha: float = 1.702) -> Num:
    return elementwise("swish", x, alpha=alpha)


def _product(
    a: Num, b: Num, *, whole: bool, alpha: float = 1.0, transA: int = 0, transB: int = 0,  # noqa: N803
) -> Num:  # fmt: skip
    a, b = (
        layers.moved(lambda m: m.swapaxes(-1, -2), x) if is_turned and x.v.ndim > 1 else x
        for x, is_turned in ((a, transA), (b, transB))
    )
    product = layers.matmul(a, b, whole=whole)
    return Num.of(product.v * alpha) if whole else product * alpha


def _gathered(
    held: Array, places: Array, scale: Num, zeros: Array | None = None, *, whole: bool,
    bits: int = 4, block_size: int = 128,
) -> Num:  # fmt: skip
    """Return rows of codes, each block of a row with a scale and a zero point."""
    codes, width = _codes(held, bits), held.shape[1] * 8 // bits
    middle = _codes(zeros, bits) if zeros is not None else np.full(scale.v.shape, 1 << (bits - 1))
    block = np.arange(width) // block_size
    weights = Num.of(codes - middle[:, block]) * Num.of(scale.v[:, block])
    picked = layers.moved(lambda rows: rows[places], weights)
    return Num.of(picked.v) if whole else picked


def _codes(packed: Array, bits: int) -> Array:
    """Return codes of which a byte holds one of 8 bits, or two of 4, the lower half first."""
    halves = [packed] if bits == 8 else [packed & 15, packed >> 4]
    return np.stack(halves, -1).reshape(len(packed), -1).astype(np.float64)


def _total(x: Num, skip: Num, bias: Num | None) -> Num:
    return x + skip if bias is None else x + skip + bias


def _layer_norm(
    x: Num, skip: Num, scale: Num, shift: Num | None = None, bias: Num | None = None, *,
    whole: bool, epsilon: float = 1e-12,
) -> tuple[Num, ...]:  # fmt: skip
    total = _total(x, skip, bias)
    even, middle, inverse = layers.standardised(total, [x.v.ndim - 1], epsilon)
    y = even * scale
    return y if shift is None else y + shift, middle, inverse, total


def _rms_norm(
    x: Num, skip: Num, scale: Num, bias: Num | None = None, *, whole: bool, epsilon: float = 1e-12
) -> tuple[Num, ...]:
    total = _total(x, skip, bias)
    inverse = 1.0 / (layers.mean(total * total, [x.v.ndim - 1]) + epsilon).sqrt()
    return total * inverse * scale, inverse, inverse, total


FUSED: dict[str, Callable[..., Any]] = {
    "BiasGelu": partial(_gelu, "gelu"),
    "FastGelu": partial(_gelu, "gelu_tanh"),
    "FusedMatMul": _product,
    "GatherBlockQuantized": _gathered,
    "GroupQueryAttention": attention.group_query,
    "MultiHeadAttention": attention.multi_head,
    "QuickGelu": _quick_gelu,
    "RotaryEmbedding": attention.rotary,
    "SkipLayerNormalization": _layer_norm,
    "SkipSimplifiedLayerNormalization": _rms_norm,
}
"""Operators of the domain ``com.microsoft`` by name."""
