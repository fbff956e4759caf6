"""ONNX Runtime's own operators that its optimiser writes, on drawn operands and attributes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gpuedge.conformance.case import Case
from gpuedge.conformance.data import pick
from gpuedge.conformance.drawn import TWINS, Draw, Drawn, Rng, flag, one, present, shape_of
from gpuedge.opset.nbits import MICROSOFT

_one = partial(one, domain=MICROSOFT)


def _gelu(onnx: str, rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4)
    has_bias = onnx == "BiasGelu" or (onnx == "FastGelu" and flag(rng))
    how = {"alpha": float(rng.integers(1, 17)) / 8} if onnx == "QuickGelu" else {}
    return _one(onnx, shape, *([shape[-1:]] if has_bias else []), **how)


def _product(rng: Rng) -> Case:
    m, k, n = (pick(rng, (1, 2, 3, 4, 5, 7, 9, 13, 33)) for _ in range(3))
    batch = shape_of(rng, 0, 2, 6)
    first, second = flag(rng), flag(rng)
    a, b = ((k, m) if first else (m, k)), ((n, k) if second else (k, n))
    left, right = pick(rng, ((batch, batch), ((), batch), (batch, ())))
    return _one("FusedMatMul", (*left, *a), (*right, *b), transA=first, transB=second,
                alpha=2.0 ** int(rng.integers(-3, 3)))  # fmt: skip


def _norm(onnx: str, rng: Rng) -> Case:
    shape = (*shape_of(rng, 1, 2, 40), pick(rng, (3, 4, 7, 8, 16, 33)))
    row = shape[-1:]
    shift = [pick(rng, (None, row))] if onnx == "SkipLayerNormalization" else []
    more = [row, *shift, pick(rng, (None, row))]
    return _one(onnx, shape, pick(rng, (shape, shape[1:])), *more, name=present(more),
                outputs=pick(rng, ((0,), (0, 3))), epsilon=0.125)  # fmt: skip


def _turned(rng: Rng) -> Case:
    n, count, length, half = (pick(rng, (1, 2, 3, 5)) for _ in range(4))
    more = flag(rng) * pick(rng, (1, 2, 4))  # what is not turned
    room, size = length + pick(rng, (0, 3)), 2 * half + more
    first = Drawn((1,), 0, room - length + 1, "int64")
    places = pick(rng, (first, Drawn((n, length), 0, room, "int64")))
    how: dict[str, Any] = {"num_heads": count, "rotary_embedding_dim": 2 * half} if more else {}
    shape = pick(rng, ((n, count, length, size), (n, length, count * size)))
    return _one("RotaryEmbedding", shape, places, (room, half), (room, half),
                interleaved=flag(rng), **how)  # fmt: skip


def _multi_head(rng: Rng) -> Case:
    n, count, size = pick(rng, (1, 2)), pick(rng, (1, 2, 3)), pick(rng, (2, 4, 5, 8))
    rows, past = pick(rng, (1, 2, 3, 5)), flag(rng) * pick(rng, (1, 3, 4))
    is_causal = flag(rng)
    keys = rows if is_causal else pick(rng, (1, 3, 5, 8))
    q, kv = (n, rows, count * size), (n, keys, count * size)
    bias = pick(rng, (None, (3 * count * size,)))
    mask = (rng.random((n, past + keys)) < 0.6).astype(np.int32)
    mask[:, 0] = 1  # each query sees a key
    kept = pick(rng, (None, mask))
    added = pick(rng, (None, (1, count, rows, past + keys)))
    held = [(n, count, past, size)] * 2 if past else []
    more = [bias, kept, added, *held]
    return _one("MultiHeadAttention", q, kv, kv, *more, outputs=3 if past else 1,
                name=present(more), num_heads=count, unidirectional=is_causal)  # fmt: skip


def _group_query(rng: Rng) -> Case:
    n, groups, size = pick(rng, (1, 2)), pick(rng, (1, 2)), pick(rng, (4, 8, 16))
    rows, past = pick(rng, (1, 2, 3)), flag(rng) * pick(rng, (1, 4, 6))
    total, count = past + rows, groups * pick(rng, (1, 2, 3))
    room = past + pick(rng, (0, rows, rows + 3)) if past else 0
    is_near = flag(rng)
    fewest = rows - 1 if past else total - 1 if is_near else 0  # less is padding
    lengths = Drawn((n,), fewest, total, "int32")
    kv = (n, rows, groups * size)
    held = [(n, groups, room, size)] * 2 if past else [None, None]
    is_turned = flag(rng)
    angles = [(total + 3, size // 2)] * 2 if is_turned else []
    how: dict[str, Any] = {"do_rotary": 1, "rotary_interleaved": flag(rng)} if is_turned else {}
    how |= {"softcap": 2.0} if flag(rng) else {}
    how |= {"local_window_size": 2} if is_near else {}
    return _one("GroupQueryAttention", (n, rows, count * size), kv, kv, *held, lengths,
                np.int32(total), *angles, constant=[6], outputs=3, num_heads=count,
                kv_num_heads=groups, **how)  # fmt: skip


NORMAL = ("normal",)
NORMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
DRAWERS: tuple[tuple[int, tuple[str, ...], dict[str, Draw]], ...] = (
    (30, NORMAL, {n: partial(_gelu, n) for n in ("BiasGelu", "FastGelu", "QuickGelu")}),
    (40, NORMAL, {n: partial(_norm, n) for n in NORMS}),
    (40, TWINS, {"FusedMatMul": _product, "ort RotaryEmbedding": _turned}),
    (60, NORMAL, {"MultiHeadAttention": _multi_head, "GroupQueryAttention": _group_query}),
)
"""As `gpuedge.conformance.drawn.DRAWERS`."""
