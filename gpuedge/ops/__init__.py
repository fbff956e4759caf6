"""Operations on numpy arrays. Every one takes `device=` and runs on a GPU, or on the CPU.

Common to all of them
---------------------
Operands are float32, or float16 (computed in float32 and rounded once at the end). Python numbers
and lists are taken as float32. Results are new float32 or float16 arrays; of comparisons bool,
positions int64. Anything wrong with the
operands raises DTypeError (GE-202), ShapeError (GE-201) or InputError (GE-203) before any driver is
touched. A device that is named either computes the result or raises; ``device=None`` uses the
setting ``GPUEDGE_DEVICE``, by default ``auto``. Error bounds are in ``docs/numerics.md``.
"""

from __future__ import annotations

from gpuedge.ops import elementwise as _elementwise
from gpuedge.ops.elementwise import *  # noqa: F403  (one function for each row of the opset)
from gpuedge.ops.expression import elementwise
from gpuedge.ops.images import resize, to_float
from gpuedge.ops.layers import (
    avg_pool2d,
    batch_norm,
    conv2d,
    conv_transpose2d,
    gemm,
    global_avg_pool2d,
    global_max_pool2d,
    log_softmax,
    matmul,
    max_pool2d,
    softmax,
)
from gpuedge.ops.reducing import argmax, mean, non_max_suppression, nonzero, sum, topk
from gpuedge.ops.shaping import (
    concat,
    crop,
    flatten,
    flip,
    pad,
    reshape,
    slice,
    take,
    transpose,
    where,
)
from gpuedge.ops.special import clip, gelu, relu6, silu

__all__ = [
    "argmax", "avg_pool2d", "batch_norm", "clip", "concat", "conv2d", "conv_transpose2d", "crop",
    "elementwise", "flatten", "flip", "gelu", "gemm", "global_avg_pool2d", "global_max_pool2d",
    "log_softmax", "matmul", "max_pool2d", "mean", "non_max_suppression", "nonzero", "pad",
    "relu6", "reshape", "resize", "silu", "slice", "softmax", "sum", "take", "to_float", "topk",
    "transpose", "where",
]  # fmt: skip
__all__ += _elementwise.__all__
