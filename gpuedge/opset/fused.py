"""Operators of ONNX Runtime's own that its optimiser makes of several of ONNX's.

As the schemas of ``com.microsoft`` in ONNX Runtime 1.32 have them, and where these leave it open,
as its CPU kernels compute them.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from gpuedge.opset.attention import Masks, attended, heads, rotated
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import above, gelu, gelu_tanh, logistic, pick
from gpuedge.opset.expr import Expr, LoadExpr, Position, apply, where
from gpuedge.opset.index import Index, Loaded, choose, flatten, of
from gpuedge.opset.limits import Limit
from gpuedge.opset.matmul import multiplied, scaled
from gpuedge.opset.nbits import MICROSOFT
from gpuedge.opset.norm import standardised
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import (
    Tensor,
    at,
    broadcast_shape,
    computed,
    joined,
    mapped,
    mean,
    reshape,
    transpose,
    view,
)


def _refuse(call: OperatorCall, inputs: dict[int, str], **attributes: int) -> None:
    """Refuse inputs by their names, and attributes that are not as here.

    Raises UnsupportedOpError (GE-501).
    """
    for position, what in inputs.items():
        if call.has(position):
            raise call.unsupported(f"has {what}, which only ONNX Runtime computes")
    for name, usual in attributes.items():
        if call.integer(name, usual) != usual:
            raise call.unsupported(f"has {name}={call.integer(name, usual)}; only {usual} is known")


# --- elements, norms, products -------------------------------------------------------------------


def _biased(call: OperatorCall) -> Tensor:
    x, bias = call.input(0), call.optional(1)
    if bias is None:
        return x
    if bias.rank != 1 or broadcast_shape([x.shape, bias.shape]) != x.shape:
        raise call.bad_shape("has a bias that does not fit the last axis")
    return mapped(lambda a, b: a + b, x, bias)


def _bias_gelu(call: OperatorCall) -> Tensor:
    return mapped(gelu, _biased(call))


def _fast_gelu(call: OperatorCall) -> Tensor:
    return mapped(gelu_tanh, _biased(call))


def _quick_gelu(call: OperatorCall) -> Tensor:
    alpha = call.number("alpha", 1.702)
    return mapped(lambda x: x * logistic(x * alpha), call.input(0))


def _fused_matmul(call: OperatorCall) -> Tensor:
    _refuse(call, {}, transBatchA=0, transBatchB=0)
    sides = []
    for index, name in enumerate(("transA", "transB")):
        x = call.input(index)
        if not x.rank:
            raise call.bad_shape("cannot multiply a scalar")
        if call.integer(name, 0) and x.rank > 1:  # of a vector there is nothing to turn
            x = transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))
        sides.append(x)
    left, right = (x.shape if x.rank > 1 else (1, *x.shape, 1)[i : 2 + i]
                   for i, x in enumerate(sides))  # fmt: skip
    if left[-1] != right[-2] or broadcast_shape([left[:-2], right[:-2]]) is None:
        raise call.bad_shape("has matrices that do not fit")
    return scaled(multiplied(sides[0], sides[1]), call.number("alpha", 1.0))


def _is_by_vector(call: OperatorCall) -> bool:
    """Tell of turned matrices times a vector, which ONNX Runtime does not turn."""
    return call.input(1).rank == 1 and bool(call.integer("transA", 0))


def _skipped(call: OperatorCall, bias: int) -> Tensor:
    """Return the sum of the input, what skipped a layer, and a bias."""
    x, skip = call.input(0), call.input(1)
    if not x.rank or broadcast_shape([x.shape, skip.shape]) != x.shape:
        raise call.bad_shape("has a skip that does not fit its input")
    for index in range(2, len(call.names)):
        if call.has(index) and call.shape(index) != x.shape[-1:]:
            raise call.bad_shape(f"has an input {index} that does not fit the last axis")
    if any(call.outputs[1:3]):
        raise call.unsupported("gives means and deviations, which ONNX Runtime's CPU does not")
    total = mapped(lambda a, b: a + b, x, skip)
    added = call.optional(bias)
    return total if added is None else mapped(lambda a, b: a + b, total, added)


def _results(call: OperatorCall, y: Tensor, total: Tensor) -> tuple[Tensor, ...]:
    return (y, total, total, total)[: len(call.outputs)]


def _skip_layer_norm(call: OperatorCall) -> tuple[Tensor, ...]:
    total = _skipped(call, 4)
    centred, inverse, _ = standardised(total, (total.rank - 1,), call.number("epsilon", 1e-12))
    y = mapped(lambda c, i, s: c * i * s, centred, inverse, call.input(2))
    shift = call.optional(3)
    y = y if shift is None else mapped(lambda a, b: a + b, y, shift)
    return _results(call, y, total)


def _skip_rms_norm(call: OperatorCall) -> tuple[Tensor, ...]:
    total, epsilon = _skipped(call, 3), call.number("epsilon", 1e-12)
    squares = mean(mapped(lambda v: v * v, total), (total.rank - 1,))
    inverse = mapped(lambda v: 1.0 / apply("sqrt", v + epsilon), squares)
    return _results(call, mapped(lambda v, i, s: v * i * s, total, inverse, call.input(2)), total)


# --- positions -----------------------------------------------------------------------------------


def _rotary(call: OperatorCall) -> Tensor:
    _refuse(call, {}, is_packed_batching=0)
    if call.number("scale", 1.0) != 1:
        raise call.unsupported("has a scale, which only ONNX Runtime computes")
    x, places, cos, sin = (call.input(i) for i in range(4))
    size = 2 * cos.shape[-1] if cos.rank == 2 else 0
    partial = call.integer("rotary_embedding_dim", 0)
    if x.rank == 4:
        whole, along = x, 2
    else:
        count = call.integer("num_heads", 0) if partial else x.shape[-1] // max(size, 1)
        if x.rank != 3 or count < 1 or x.shape[2] % count:
            raise call.bad_shape("has an input that cannot be split into heads")
        whole, along = reshape(x, (*x.shape[:2], count, x.shape[2] // count)), 1
    wanted = partial or whole.shape[3]
    if not size or sin.shape != cos.shape or size != wanted or size > whole.shape[3]:
        raise call.bad_shape("has angles that do not fit")
    if places.shape not in ((1,), (x.shape[0], whole.shape[along])):
        raise call.bad_shape("has positions that do not fit")
    turned = rotated(whole, along, cos, sin, places,
                     is_interleaved=bool(call.integer("interleaved", 0)))  # fmt: skip
    return reshape(turned, x.shape)


def _rotary_places(call: OperatorCall) -> tuple[Limit, ...]:
    most, places = call.shape(2)[0] - 1, call.shape(1)
    length = call.shape(0)[2 if call.input(0).rank == 4 else 1]
    return (Limit(1, "positions", (0,), (most if len(places) == 2 else most + 1 - length,)),)


# --- attention -----------------------------------------------------------------------------------


def _merged(y: Tensor) -> Tensor:
    """Return (batch, heads, sequence, size) as (batch, sequence, heads times size)."""
    batch, count, length, size = y.shape
    return reshape(transpose(y, (0, 2, 1, 3)), (batch, length, count * size))


def _scores_bias(call: OperatorCall, index: int, shape: tuple[int, ...]) -> Tensor | None:
    """Return what is added to scores."""
    bias = call.optional(index)
    if bias is not None and (bias.rank != 4 or broadcast_shape([bias.shape, shape]) != shape):
        raise call.bad_shape(f"has an attention_bias that does not fit scores of {list(shape)}")
    return bias


def _reads_unwritten(call: OperatorCall) -> bool:
    """Tell of what ONNX Runtime computes from memory that it has not written.

    A past without a present, and capped queries that are padding, and so is all in their window.
    """
    if call.has(6 if call.op == "MultiHeadAttention" else 3) and not any(call.outputs[1:3]):
        return True
    is_near = 0 < call.integer("local_window_size", -1) < call.shape(0)[1]
    return is_near and call.number("softcap", 0.0) > 0


def _multi_head(call: OperatorCall) -> tuple[Tensor, ...]:
    _refuse(call, {8: "a past_sequence_length (a cache that is shared)", 9: "a cache_indirection"})
    if any(call.outputs[3:]):
        raise call.unsupported("gives its scores, which only ONNX Runtime does")
    if not call.has(1) or not call.has(2) or 5 in (call.input(0).rank, call.input(1).rank):
        raise call.unsupported("has queries, keys and values in one tensor; only three are known")
    count = call.integer("num_heads", 0)
    parts, begin = [], 0
    for index in range(3):
        part = _of_bias(call, index, begin)
        begin += call.shape(index)[-1] if call.input(index).rank == 3 else 0
        parts.append(heads(_with(call, index, part), index, count))
    q, k, v = parts
    pasts = [call.optional(i) for i in (6, 7)]
    if pasts != [None, None] and 4 in (call.input(1).rank, call.input(2).rank):
        raise call.unsupported("has a past and keys or values that are a past themselves")
    if (pasts[0] is None) != (pasts[1] is None):
        raise call.bad_shape("has a past of keys or values, and not of both")
    past = 0 if pasts[0] is None else pasts[0].shape[2]
    k, v = (x if old is None or not old.size else joined(old, x, 2)
            for x, old in zip((k, v), pasts, strict=True))  # fmt: skip
    batch, _, length, size = q.shape
    is_fit = k.shape[:2] == q.shape[:2] and k.shape[3] == size and v.shape[:3] == k.shape[:3]
    if not is_fit or 0 in (*q.shape, *k.shape, *v.shape):
        raise call.bad_shape("has keys or values that do not fit its queries, or none")
    shape = (batch, count, length, k.shape[2])
    # ONNX Runtime never hides keys from the last query, not even those after its own.
    masks = Masks(shape, _padding(call, shape), None, past,
                  right=0 if call.integer("unidirectional", 0) else -1,
                  is_last_free=past + length < shape[3])  # fmt: skip
    scale = call.number("scale", 0.0) or 1 / sqrt(size)
    y, _ = attended(q, k, v, masks, scale=scale)
    return _merged(y), reshape(k, k.shape), reshape(v, v.shape)


def _of_bias(call: OperatorCall, index: int, begin: int) -> Tensor | None:
    """Return the part of a bias that belongs to queries, keys or values."""
    bias, x = call.optional(3), call.input(index)
    if bias is None:
        return None
    widths = [call.shape(i)[-1] for i in range(3) if call.input(i).rank == 3]
    if bias.shape != (sum(widths),) or len(widths) < 3:
        raise call.bad_shape("has a bias that does not fit")
    return view(bias, x.shape[-1:], lambda p: [p[0] + begin])


def _with(call: OperatorCall, index: int, bias: Tensor | None) -> OperatorCall:
    """Return the call with a bias added to an input."""
    if bias is None:
        return call
    inputs = list(call.inputs)
    inputs[index] = mapped(lambda a, b: a + b, call.input(index), bias)
    return replace(call, inputs=tuple(inputs))


def _padding(call: OperatorCall, shape: tuple[int, ...]) -> Tensor | None:
    """Return what is added to scores: a bias, and much less than nothing where keys are padding.

    Added, and not left out, as ONNX Runtime does it: where nothing but padding is seen, that is
    what the softmax is of. Bounds count the rounding of the sums, 10,000 times U.
    """
    bias, kept = _scores_bias(call, 5, shape), call.optional(4)
    if kept is None:
        return bias
    batch, keys = shape[0], shape[3]
    if kept.shape != (batch, keys):
        raise call.unsupported(f"has a key_padding_mask of shape {list(kept.shape)}; only "
                               f"{[batch, keys]} (batch, keys) is known")  # fmt: skip
    least = call.number("mask_filter_value", -10000.0)
    rows = reshape(kept, (batch, 1, 1, keys))
    dtype = call.input(0).dtype

    def hidden(k: Expr) -> Expr:
        return pick(above(k, 0.0), 0.0, least)

    if bias is None:
        return mapped(hidden, rows, dtype=dtype)
    return mapped(lambda k, b: hidden(k) + b, rows, bias, dtype=dtype)


def _group_query(call: OperatorCall) -> tuple[Tensor, ...]:
    _refuse(call, {9: "position_ids", 11: "a head_sink", 12: "a quantised cache",
                   13: "a quantised cache", 14: "norms of queries", 15: "norms of keys",
                   16: "query_seqlens"},
            smooth_softmax=0, qk_output=0, sliding_window_cache=0, causal=1)  # fmt: skip
    if call.integer("smooth_softmax", 0) > 0 or any(call.outputs[3:]):
        raise call.unsupported("gives its scores, which only ONNX Runtime does")
    if not call.has(1) or not call.has(2):
        raise call.unsupported("has queries, keys and values in one tensor; only three are known")
    (total,) = call.constant_ints(6, "total sequence length") or (0,)
    groups = call.integer("kv_num_heads", 0)
    q, k, v = (heads(call, i, call.integer("num_heads", 0) if i == 0 else groups)
               for i in range(3))  # fmt: skip
    batch, count, length, size = q.shape
    pasts = [call.optional(i) for i in (3, 4)]
    held = 0 if pasts[0] is None else pasts[0].shape[2]
    is_fit = k.shape == v.shape == (batch, groups, length, size) and call.shape(5) == (batch,)
    is_fit &= all(p is None or p.shape == (batch, groups, held, size) for p in pasts)
    if not is_fit or (pasts[0] is None) != (pasts[1] is None) or count % max(groups, 1):
        raise call.bad_shape("has keys, values, a past or lengths that do not fit its queries")
    if total < length or 0 in q.shape:
        raise call.bad_shape(f"has a total sequence length of {total} for {length} queries")
    is_first, keys = total == length, max(held, total)
    lengths = computed((batch,), "int32", lambda p: at(call.input(5), p) + 1.0)
    begins = None if is_first else computed(
        (batch,), "int32", lambda p: at(call.input(5), p) + float(1 - length)
    )  # fmt: skip
    if call.integer("do_rotary", 0):
        q, k = (_turned(call, x, begins, keys) for x in (q, k))
    k, v = (_cached(new, past, begins, keys) for new, past in zip((k, v), pasts, strict=True))
    shape = (batch, count, length, keys)
    bias = _scores_bias(call, 10, (*shape[:3], total))
    window = call.integer("local_window_size", -1)
    if not window:
        raise call.unsupported("has local_window_size=0, of which nothing is seen")
    masks = Masks(shape, bias, lengths, 0, window - 1 if window > 0 else -1, 0, is_first=is_first)
    scale = call.number("scale", 0.0) or 1 / sqrt(size)
    y, _ = attended(q, k, v, masks, scale=scale, softcap=call.number("softcap", 0.0))
    return _merged(y), k, v


def _turned(call: OperatorCall, x: Tensor, begins: Tensor | None, keys: int) -> Tensor:
    """Return queries or keys turned by their places, the first of which is `begins` of a batch."""
    cos, sin = call.input(7), call.input(8)
    batch, _, length, size = x.shape
    pairs = cos.shape[-1] if cos.rank == 2 else 0
    if not pairs or sin.shape != cos.shape or 2 * pairs > size or cos.shape[0] < keys:
        raise call.bad_shape("has angles that do not fit")

    def place(position: tuple[Index, ...]) -> Expr:
        step: Expr = Position(position[1])
        return step if begins is None else step + at(begins, (position[0],))

    places = computed((batch, length), "int32", place)
    return rotated(x, 2, cos, sin, places,
                   is_interleaved=bool(call.integer("rotary_interleaved", 0)))  # fmt: skip


def _cached(new: Tensor, past: Tensor | None, begins: Tensor | None, keys: int) -> Tensor:
    """Return a cache with what is new where a batch begins, and zeros behind it."""
    shape = (*new.shape[:2], keys, new.shape[3])

    def body(position: tuple[Index, ...]) -> Expr:
        begin = Index()
        if begins is not None:
            begin = of(Loaded(at(begins, (position[0],)), 0, keys - new.shape[2]))
        own = position[2] - begin
        inside = [own, new.shape[2] - 1 - own]
        place = flatten((*position[:2], own, position[3]), new.shape)
        fresh = LoadExpr(new, choose(inside, place, Index()))
        if past is None or not past.size:
            return where(inside, fresh, 0.0)
        held = [past.shape[2] - 1 - position[2], begin - 1 - position[2]]
        old = LoadExpr(past, choose(held, flatten(position, past.shape), Index()))
        return where(inside, fresh, where(held, old, 0.0))

    return computed(shape, new.dtype, body)


def _group_lengths(call: OperatorCall) -> tuple[Limit, ...]:
    (total,) = call.constant_ints(6, "total sequence length") or (0,)
    length = call.shape(0)[1]
    least = 0 if total == length else length - 1
    return (Limit(5, "lengths less one", (least,), (total - 1,)),)


OPERATORS: tuple[Operator, ...] = (
    Operator("BiasGelu", _bias_gelu, domain=MICROSOFT),
    Operator("FastGelu", _fast_gelu, domain=MICROSOFT),
    Operator("QuickGelu", _quick_gelu, domain=MICROSOFT),
    Operator("FusedMatMul", _fused_matmul, domain=MICROSOFT, differs=_is_by_vector,
             remark="without transBatchA and B"),
    Operator("SkipLayerNormalization", _skip_layer_norm, domain=MICROSOFT),
    Operator("SkipSimplifiedLayerNormalization", _skip_rms_norm, domain=MICROSOFT),
    Operator("RotaryEmbedding", _rotary, others=(1,), domain=MICROSOFT, limits=_rotary_places),
    Operator("MultiHeadAttention", _multi_head, others=(4,), domain=MICROSOFT,
             differs=_reads_unwritten,
             remark="queries, keys and values apart, without a shared cache"),
    Operator("GroupQueryAttention", _group_query, parameters=(6,), others=(5,), domain=MICROSOFT,
             differs=_reads_unwritten, limits=_group_lengths,
             remark="queries, keys and values apart; without sinks, norms and quantised caches"),
)  # fmt: skip
