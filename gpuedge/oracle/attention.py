"""What attention must give, ONNX's and that of ONNX Runtime's own operators, by its definition.

Queries, keys and values are (batch, heads, sequence, size), or (batch, sequence, heads * size).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuedge.opset.bounds import Array, Num
from gpuedge.oracle import layers
from gpuedge.oracle.functions import elementwise

LEFT_OUT = -1e4
"""A score that counts for nothing: float64 has 0 for the exponential of so little."""


def attended(
    q: Num, k: Num, v: Num, seen: Array, *, scale: float = 0.0, bias: Num | None = None,
    softcap: float = 0.0, whole: bool = False,
) -> Num:  # fmt: skip
    """Return values weighed by the softmax of scores.

    Heads of keys and values serve several of queries, as many as there are times more. `seen`
    tells which keys a query looks at, one at least; no `scale` is the root of the size.
    """
    shared = q.v.shape[1] // k.v.shape[1]
    k, v = (layers.moved(lambda a: np.repeat(a, shared, 1), x) for x in (k, v))
    turned = layers.moved(lambda a: a.swapaxes(-1, -2), k)
    scores = layers.matmul(q, turned, whole=whole) * (scale or q.v.shape[-1] ** -0.5)
    if softcap:
        scores = elementwise("tanh", scores * (1 / softcap)) * softcap
    if bias is not None:
        scores = scores + bias
    kept = Num(np.where(seen, scores.v, LEFT_OUT), np.where(seen, scores.e, 0.0))
    return layers.matmul(layers.softmax(kept, -1), v)


def heads(x: Num, count: int) -> Num:
    """Return (batch, sequence, heads * size) as (batch, heads, sequence, size)."""
    batch, length = x.v.shape[:2]
    return layers.moved(lambda a: a.reshape(batch, length, count, -1).swapaxes(1, 2), x)


def merged(x: Num) -> Num:
    """Return (batch, heads, sequence, size) as (batch, sequence, heads * size)."""
    batch, _, length, _ = x.v.shape
    return layers.moved(lambda a: a.swapaxes(1, 2).reshape(batch, length, -1), x)


def attention(
    q: Num, k: Num, v: Num, mask: Array | None = None, *, whole: bool, scale: float = 0.0,
    is_causal: int = 0,
) -> Num:  # fmt: skip
    """ONNX's Attention; a mask of truth values, which leave each query a key."""
    places = (q.v.shape[2], k.v.shape[2])
    seen = np.tri(*places) > 0 if is_causal else np.ones(places, bool)
    return attended(q, k, v, seen if mask is None else seen & mask, scale=scale, whole=whole)


def multi_head(
    q: Num, k: Num, v: Num, *more: Any,
    whole: bool, num_heads: int, scale: float = 0.0, unidirectional: int = 0,
) -> tuple[Num, Num, Num]:  # fmt: skip
    """ONNX Runtime's MultiHeadAttention; a padding mask leaves each query a key.

    Its CPU kernel hides no key from the last query.
    """
    bias, kept, added, past_k, past_v = (*more, *(None,) * 5)[:5]
    parts = [q, k, v]
    if bias is not None:
        ends = np.cumsum([part.v.shape[-1] for part in parts])[:-1]
        cuts = zip(*(np.split(part, ends) for part in bias), strict=True)
        parts = [part + Num(*cut) for part, cut in zip(parts, cuts, strict=True)]
    q, k, v = (heads(part, num_heads) if part.v.ndim == 3 else part for part in parts)
    past = 0 if past_k is None else past_k.v.shape[2]
    k, v = (x if old is None else layers.concat([old, x], 2)
            for x, old in zip((k, v), (past_k, past_v), strict=True))  # fmt: skip
    places = (q.v.shape[2], k.v.shape[2])
    seen = np.tri(*places, past) > 0 if unidirectional else np.ones(places, bool)
    seen[-1] = True
    if kept is not None:
        seen = seen & (kept > 0)[:, None, None]
    return merged(attended(q, k, v, seen, scale=scale, bias=added, whole=whole)), k, v


def group_query(
    q: Num, k: Num, v: Num, *more: Any,
    whole: bool, num_heads: int, kv_num_heads: int, scale: float = 0.0, softcap: float = 0.0,
    do_rotary: int = 0, rotary_interleaved: int = 0, local_window_size: int = -1,
) -> tuple[Num, Num, Num]:  # fmt: skip
    """ONNX Runtime's GroupQueryAttention; lengths are of all keys of a batch, less one."""
    past_k, past_v, lengths, total, cos, sin, _, bias = (*more, *(None,) * 4)[:8]
    q, k, v = heads(q, num_heads), heads(k, kv_num_heads), heads(v, kv_num_heads)
    length = q.v.shape[2]
    begins = lengths * 0 if total == length else lengths + 1 - length
    places = begins[:, None] + np.arange(length)
    if do_rotary:
        q, k = (rotated(x, places, cos, sin, interleaved=rotary_interleaved) for x in (q, k))
    k, v = (_cached(x, old, begins, int(total)) for x, old in ((k, past_k), (v, past_v)))
    away = places[:, None, :, None] - np.arange(k.v.shape[2])
    seen = (np.arange(k.v.shape[2]) <= lengths[:, None, None, None]) & (away >= 0)
    seen &= (away < local_window_size) | (local_window_size < 0)
    if bias is not None:  # of the keys that there are; behind them nothing is seen
        room = [(0, 0)] * 3 + [(0, k.v.shape[2] - int(total))]
        bias = layers.moved(lambda a: np.pad(a, room), bias)
    y = attended(q, k, v, seen, scale=scale, bias=bias, softcap=softcap, whole=whole)
    return merged(y), k, v


def _cached(new: Num, past: Num | None, begins: Array, total: int) -> Num:
    """Return a cache with what is new where a batch begins, and zeros behind it."""
    held = 0 if past is None else past.v.shape[2]
    batch, count, length, size = new.v.shape
    whole = [np.zeros((batch, count, max(held, total), size)) for _ in range(2)]
    for part, own, old in zip(whole, new, past or new, strict=True):
        for row, begin in enumerate(begins):
            part[row, :, :begin] = old[row, :, :begin]
            part[row, :, begin : begin + length] = own[row]
    return Num(*whole)


def rotated(x: Num, places: Array, cos: Num, sin: Num, *, interleaved: int = 0) -> Num:
    """Return pairs of (batch, heads, sequence, size) turned by the angles of their places.

    Pairs are neighbours (`interleaved`), or one of each half; what has no angle stays.
    """
    half = cos.v.shape[-1]
    pair = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved
        else (slice(half), slice(half, 2 * half))
    )  # fmt: skip
    c, s = (layers.moved(lambda a: a[places][:, None], table) for table in (cos, sin))
    a, b = (Num(x.v[..., part], x.e[..., part]) for part in pair)
    value, error = x.v.copy(), x.e.copy()
    for part, turned in zip(pair, (a * c - b * s, a * s + b * c), strict=True):
        value[..., part], error[..., part] = turned
    return Num(value, error)


def rotary(
    x: Num, places: Array, cos: Num, sin: Num, *, whole: bool, num_heads: int = 0,
    rotary_embedding_dim: int = 0, interleaved: int = 0,
) -> Num:  # fmt: skip
    """ONNX Runtime's RotaryEmbedding; one place is that of the first of a sequence."""
    count = num_heads if rotary_embedding_dim else x.v.shape[-1] // (2 * cos.v.shape[-1])
    own = heads(x, count) if x.v.ndim == 3 else x
    batch, _, length, _ = own.v.shape
    if places.shape == (1,):
        places = np.tile(places + np.arange(length), (batch, 1))
    y = rotated(own, places, cos, sin, interleaved=interleaved)
    y = Num.of(y.v) if whole else y
    return merged(y) if x.v.ndim == 3 else y
