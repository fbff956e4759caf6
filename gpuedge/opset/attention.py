"""Attention over a cache of keys and values: what decoders of transformers are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import larger, pick, tanh
from gpuedge.opset.expr import Expr, LoadExpr, apply, where
from gpuedge.opset.gather import loaded
from gpuedge.opset.index import Index, Loaded, axes, axis, choose, flatten, of
from gpuedge.opset.limits import Limit
from gpuedge.opset.logic import LARGEST, equal
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import (
    Reduce,
    Tensor,
    at,
    broadcast_shape,
    computed,
    constant,
    joined,
    mapped,
    product,
    reduced,
    reshape,
    retyped,
    transpose,
)

MOST_STEPS = 64
"""Most tokens that a LinearAttention takes at once: each is three passes after the one before."""

MOST_WRITTEN = 1 << 20
"""Largest position that a circular cache is written to, before it wraps."""

Position = tuple[Index, ...]


# --- attention -----------------------------------------------------------------------------------


def heads(call: OperatorCall, index: int, count: int) -> Tensor:
    """Return an input as (batch, heads, sequence, size of a head).

    Raises ShapeError (GE-201) where it has not three axes, of which the last has `count` heads, nor
    four.
    """
    x = call.input(index)
    if x.rank == 4:
        return x
    if x.rank != 3 or count < 1 or x.shape[2] % count:
        raise call.bad_shape(f"cannot take {count} heads from its input {index}")
    batch, length, width = x.shape
    return transpose(reshape(x, (batch, length, count, width // count)), (0, 2, 1, 3))


@dataclass(frozen=True)
class Masks:
    """Which keys the queries of an attention look at, and what is added to their scores.

    Attributes
    ----------
    shape : tuple of int
        Of the scores: (batch, heads, queries, keys).
    mask : Tensor or None
        Bools, or floats to add, that broadcast to the scores; where it has fewer keys, the rest is
        left out.
    lengths : Tensor or None
        How many keys there are, by batch.
    past : int
        Keys before that of the first query, where `lengths` does not tell.
    left, right : int
        How far from its own place a query looks; without an end where negative.
    is_last_free : bool
        Whether the last query looks at all keys, whatever `right` says.
    is_first : bool
        Whether the first query has the place of the first key, whatever `lengths` says.
    """

    shape: tuple[int, ...]
    mask: Tensor | None = None
    lengths: Tensor | None = None
    past: int = 0
    left: int = -1
    right: int = -1
    is_last_free: bool = False
    is_first: bool = False

    def tests(self, position: Position) -> list[Index]:
        """Return what is negative where a key is left out because of its place."""
        batch, _, query, key = position
        tests = [] if self.mask is None else [self.mask.shape[-1] - 1 - key]
        here = query + self.past
        if self.lengths is not None:
            length = of(Loaded(at(self.lengths, (batch,)), 0, self.shape[3]))
            tests.append(length - 1 - key)
            here = here if self.is_first else query + length - self.shape[2]
        if self.left >= 0:
            tests.append(key - here + self.left)
        if self.right >= 0:
            if self.is_last_free:
                here = here + (query + 1) // self.shape[2] * self.shape[3]
            tests.append(here - key + self.right)
        return tests

    def applied(self, score: Expr, position: Position, none: Expr | float) -> Expr:
        """Return a score with what is added to it, or `none` where its key is left out."""
        tests = self.tests(position)
        if self.mask is None:
            return where(tests, score, none)
        own = position[4 - self.mask.rank :]
        fixed = [Index() if n == 1 else i for i, n in zip(own, self.mask.shape, strict=True)]
        place = choose(tests, flatten(fixed, self.mask.shape), Index())
        mask = LoadExpr(self.mask, place)
        chosen = pick(mask, score, none) if self.mask.dtype == "bool" else score + mask
        return where(tests, chosen, none)

    def kept(self, weight: Expr, position: Position) -> Expr:
        """Return a weight, or 0 where its key is left out."""
        if self.mask is not None and self.mask.dtype != "bool":
            return where(self.tests(position), weight, 0.0)
        return self.applied(weight, position, 0.0)


def attended(
    q: Tensor, k: Tensor, v: Tensor, masks: Masks, *, scale: float, softcap: float = 0.0
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return an attention of (batch, heads, sequence, size), and its scores at four stages.

    The scores are those after scaling, after the cap, after masks, and their softmax. Heads of keys
    and values serve several of queries, as many as there are times more. A query that looks at
    nothing gets zeros. The maximum goes first, as in Softmax (`gpuedge.opset.norm`); what is left
    out gets no weight, whatever it holds; the sum of the weights divides what they make of the
    values, which are fewer. Float16 is rounded to at the end only.
    """
    dtype = q.dtype
    q, k, v = (x if x.dtype == "float32" else retyped(x, "float32") for x in (q, k, v))
    batch, count, length, _ = q.shape
    groups, keys = k.shape[1:3]
    rows = (batch, groups, count // groups * length)
    scores = product(reshape(q, (*rows, q.shape[3])), transpose(k, (0, 1, 3, 2)))
    scaled = mapped(lambda x: x * scale, reshape(scores, masks.shape))
    capped = scaled if not softcap else mapped(lambda x: softcap * tanh(x * (1 / softcap)), scaled)
    here, over = axes((*masks.shape[:3], 1)), axis(4, keys)
    each = (*here[:3], over)
    peak = Tensor(
        (*masks.shape[:3], 1), q.dtype,
        Reduce("max", (keys,), masks.applied(at(capped, each), each, -LARGEST)),
    )  # fmt: skip

    def weight(position: Position) -> Expr:
        score = masks.applied(at(capped, position), position, -LARGEST)
        most = larger(at(peak, (*position[:3], Index())), -LARGEST)  # of nothing but -infinity
        power = apply("exp", score - most)
        return masks.kept(power, position)

    weights = computed(masks.shape, q.dtype, weight)
    total = reduced("sum", weights, (3,))

    def shared(x: Expr, s: Expr) -> Expr:
        return x / pick(equal(s, 0.0), 1.0, s)

    mixed = product(reshape(weights, (*rows, keys)), v)
    result = mapped(
        shared, reshape(mixed, (*masks.shape[:3], v.shape[3])), total, dtype=dtype
    )  # fmt: skip
    below = constant(np.array(-np.inf, np.float32))
    masked = computed(masks.shape, q.dtype,
                      lambda p: masks.applied(at(capped, p), p, at(below, ())))  # fmt: skip
    stages = (scaled, capped, masked, mapped(shared, weights, total))
    return result, tuple(x if dtype == "float32" else retyped(x, dtype) for x in stages)


def _attention(call: OperatorCall) -> tuple[Tensor, ...]:
    q = heads(call, 0, call.integer("q_num_heads", 0))
    new = [heads(call, i, call.integer("kv_num_heads", 0)) for i in (1, 2)]
    pasts = [call.optional(i) for i in (4, 5)]
    if (pasts[0] is None) != (pasts[1] is None):
        raise call.bad_shape("has a past of keys or values, and not of both")
    k, v = (x if past is None else _after(call, past, x)
            for x, past in zip(new, pasts, strict=True))  # fmt: skip
    batch, count, length, size = q.shape
    if k.shape[0] != batch or k.shape[3] != size or v.shape[:3] != k.shape[:3]:
        raise call.bad_shape("has keys or values that do not fit its queries")
    if not k.shape[1] or count % k.shape[1]:
        raise call.bad_shape(f"shares {k.shape[1]} heads of keys among {count} of queries")
    masks = _masks(call, (batch, count, length, k.shape[2]), k.shape[2] - new[0].shape[2])
    scale = call.number("scale", 1 / sqrt(size) if size else 1.0)
    if 0 in (*q.shape, *k.shape, *v.shape):
        y = computed((*q.shape[:3], v.shape[3]), q.dtype, lambda _: 0.0)
        stages: tuple[Tensor, ...] = (computed(masks.shape, q.dtype, lambda _: 0.0),) * 4
    else:
        y, stages = attended(q, k, v, masks, scale=scale, softcap=call.number("softcap", 0.0))
    if call.input(0).rank == 3:
        y = reshape(transpose(y, (0, 2, 1, 3)), (batch, length, count * v.shape[3]))
    mode = call.integer("qk_matmul_output_mode", 0)
    if not 0 <= mode < len(stages):
        raise call.unsupported(f"has qk_matmul_output_mode={mode}, which does not exist")
    present = (reshape(x, x.shape) for x in (k, v))
    return (y, *present, stages[mode])


def _after(call: OperatorCall, past: Tensor, new: Tensor) -> Tensor:
    """Return new keys or values after those of the past."""
    is_fit = past.rank == 4 and past.shape[:2] == new.shape[:2] and past.shape[3] == new.shape[3]
    if not is_fit:
        raise call.bad_shape("has a past that does not fit")
    if not past.size:
        return new
    return joined(past, new, 2) if new.size else past


def _masks(call: OperatorCall, shape: tuple[int, ...], past: int) -> Masks:
    mask, lengths = call.optional(3), call.optional(6)
    if mask is not None:
        wide = (*mask.shape[:-1], shape[3])
        is_fit = mask.rank and mask.shape[-1] <= shape[3]
        if not is_fit or mask.rank > 4 or broadcast_shape([wide, shape]) != shape:
            raise call.bad_shape(f"has a mask that does not fit scores of {list(shape)}")
        if mask.dtype not in ("bool", call.input(0).dtype):
            raise call.unsupported(f"has a mask of dtype {mask.dtype}")
    if lengths is not None and (lengths.shape != shape[:1] or call.has(4)):
        raise call.bad_shape("has lengths of its keys that do not fit")
    left, right = (call.integer(f"{side}_window_size", -1) for side in ("left", "right"))
    if call.integer("is_causal", 0):
        right = 0
    return Masks(shape, mask, lengths, past, left, right)


def _lengths(call: OperatorCall) -> tuple[Limit, ...]:
    if not call.has(6):
        return ()
    return (Limit(6, "lengths of keys", (0,), (call.shape(1)[-2],)),)


def _is_otherwise(call: OperatorCall) -> bool:
    """Tell whether ONNX Runtime rounds every step to float16, or has these masks otherwise.

    It refuses masks of fewer keys than there are, of one row for all queries, and of one axis, and
    shows scores without their mask. After a past, one query reads keys after its own too, in spite
    of `is_causal`.
    """
    mask, is_shown = call.optional(3), len(call.outputs) > 3 and bool(call.outputs[3])
    is_one = call.shape(0)[-2] == 1 and call.shape(1)[-2] > 1 and call.has(4)
    if call.input(0).dtype == "float16" or (is_one and call.integer("is_causal", 0)):
        return True
    if mask is None:
        return False
    is_short = mask.shape[-1] < call.shape(1)[-2] and not call.has(4)
    is_of_rows = mask.rank > 1 and mask.shape[-2] == call.shape(0)[-2]
    is_masked = is_shown and call.integer("qk_matmul_output_mode", 0) == 2
    return is_short or not is_of_rows or is_masked


# --- linear attention ----------------------------------------------------------------------------


def _linear_attention(call: OperatorCall) -> tuple[Tensor, ...]:
    """Update a state token by token, and read it with each query; all in float32."""
    rule = call.text("update_rule", "gated_delta")
    is_gated, is_delta = rule.startswith("gated"), rule.endswith("delta")
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        raise call.unsupported(f"has update_rule={rule!r}, which does not exist")
    if (call.has(4), call.has(5)) != (is_gated, is_delta):
        raise call.bad_shape(f"has inputs that do not fit update_rule={rule!r}")
    counts = call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0)
    if any(call.input(i).rank != 3 for i in range(3)) or not counts[1] or counts[0] % counts[1]:
        raise call.bad_shape(f"has {counts[0]} heads of queries for {counts[1]} of keys")
    q, k, v = (heads(call, i, counts[min(i, 1)]) for i in range(3))
    batch, groups, steps, size = k.shape
    if steps > MOST_STEPS:
        raise call.unsupported(f"takes {steps} tokens at once; {MOST_STEPS} are the most")
    past = call.optional(3)
    wanted = (batch, groups, size, v.shape[3])
    state = computed(wanted, "float32", lambda _: 0.0) if past is None else past
    if state.shape != wanted or q.shape[3] != size or v.shape[2] != steps:
        raise call.bad_shape("has a state or heads that do not fit")
    decay = heads(call, 4, groups) if is_gated else None
    beta = heads(call, 5, call.shape(5)[2]) if is_delta else None
    _check_rates(call, k.shape, decay, beta)
    tokens = _Tokens(k, v, decay, beta)
    scale = call.number("scale", 0.0) or 1 / sqrt(size)
    outputs = []
    for step in range(steps):
        state = _updated(state, tokens, step)
        outputs.append(_read(state, q, step, scale))
    y = outputs[0]
    for other in outputs[1:]:
        y = joined(y, other, 2)
    y = reshape(transpose(y, (0, 2, 1, 3)), (batch, steps, counts[0] * v.shape[3]))
    kept = mapped(lambda x: x, state, dtype=(past or q).dtype)
    return mapped(lambda x: x, y, dtype=q.dtype), kept


def _check_rates(
    call: OperatorCall, shape: tuple[int, ...], decay: Tensor | None, beta: Tensor | None
) -> None:
    """Raise ShapeError (GE-201) where decays or rates do not fit keys of a shape."""
    batch, groups, steps, size = shape
    fits = decay is None or decay.shape in ((*shape[:3], 1), shape)
    fits &= beta is None or beta.shape in ((batch, groups, steps, 1), (batch, 1, steps, 1))
    if not (fits and size):
        raise call.bad_shape("has decays or rates that do not fit")


@dataclass(frozen=True)
class _Tokens:
    """Keys and values, and by what the state fades and is corrected."""

    k: Tensor
    v: Tensor
    decay: Tensor | None
    beta: Tensor | None


def _updated(state: Tensor, tokens: _Tokens, step: int) -> Tensor:
    """Return the state (batch, heads, size of keys, of values) after a token."""
    k, v, decay, beta = tokens.k, tokens.v, tokens.decay, tokens.beta

    def faded(place: Sequence[Index]) -> Expr:
        old = at(state, place)
        if decay is None:
            return old
        batch, head, row, _ = place
        own = row if decay.shape[3] > 1 else Index()
        return old * apply("exp", at(decay, (batch, head, Index(step), own)))

    missing: Tensor | None = None
    if beta is not None:
        shape = (*state.shape[:2], state.shape[3])
        batch, head, column = axes(shape)
        row = axis(3, state.shape[2])
        stored = faded((batch, head, row, column)) * at(k, (batch, head, Index(step), row))
        missing = Tensor(shape, "float32", Reduce("sum", (state.shape[2],), stored))

    def body(place: Position) -> Expr:
        batch, head, row, column = place
        new: Expr = at(v, (batch, head, Index(step), column))
        if missing is not None and beta is not None:
            own = head if beta.shape[1] > 1 else Index()
            rate = at(beta, (batch, own, Index(step), Index()))
            new = rate * (new - at(missing, (batch, head, column)))
        return faded(place) + at(k, (batch, head, Index(step), row)) * new

    return computed(state.shape, "float32", body)


def _read(state: Tensor, q: Tensor, step: int, scale: float) -> Tensor:
    """Return what the queries of a step read from a state: (batch, heads, 1, size of values)."""
    shape = (*q.shape[:2], 1, state.shape[3])
    batch, head, _, column = axes(shape)
    row = axis(4, state.shape[2])
    group = head // (q.shape[1] // state.shape[1])
    body = at(q, (batch, head, Index(step), row)) * at(state, (batch, group, row, column))
    total = Tensor(shape, "float32", Reduce("sum", (state.shape[2],), body))
    return mapped(lambda x: x * scale, total)


# --- positions -----------------------------------------------------------------------------------


def rotated(x: Tensor, along: int, cos: Tensor, sin: Tensor, places: Tensor | None, *,
            is_interleaved: bool, scale: float = 1.0) -> Tensor:  # fmt: skip
    """Return x with pairs along its last axis turned by the angles of their place in the sequence.

    Parameters
    ----------
    x : Tensor
        Of rank 4, with the sequence on axis `along`.
    along : int
    cos, sin : Tensor
        Of shape (places, pairs), or (batch, sequence, pairs) without `places`.
    places : Tensor, optional
        Rows of `cos` and `sin`: (batch, sequence), or (1,) that of the first.
    is_interleaved : bool
        Whether pairs are neighbours; else the first half pairs with the second.
    scale : float
        What the result is multiplied by.
    """
    pairs = cos.shape[-1]

    def body(position: Position) -> Expr:
        d, step = position[3], position[along]
        inside = [2 * pairs - 1 - d]
        if is_interleaved:
            odd = d % 2
            pair, other, first = d // 2, d + 1 - 2 * odd, [-odd]
        else:
            first = [pairs - 1 - d]
            pair = choose(first, d, d - pairs)
            other = choose(first, d + pairs, d - pairs)
        pair, other = (choose(inside, i, Index()) for i in (pair, other))
        if places is None:
            row: tuple[Index, ...] = (position[0], step, pair)
        elif places.rank == 2:
            row = (loaded(places, (position[0], step), cos.shape[0]), pair)
        else:
            begin = of(Loaded(at(places, (Index(),)), 0, cos.shape[0] - x.shape[along]))
            row = (begin + step, pair)
        here, there = at(x, position), at(x, (*position[:3], other))
        turn = at(sin, row) * there
        mixed = here * at(cos, row) + where(first, -turn, turn)
        result = where(inside, mixed, here)
        return result * scale if scale != 1 else result

    return computed(x.shape, x.dtype, body)


def _rotary(call: OperatorCall) -> Tensor:
    x, cos, sin, places = call.input(0), call.input(1), call.input(2), call.optional(3)
    count = call.integer("num_heads", 0)
    if x.rank == 3 and count > 0 and not x.shape[2] % count:
        whole, along = reshape(x, (*x.shape[:2], count, x.shape[2] // count)), 1
    elif x.rank == 4:
        whole, along = x, 2
    else:
        raise call.bad_shape(f"cannot take {count} heads from its input 0")
    size = call.integer("rotary_embedding_dim", 0) or whole.shape[3]
    wanted = (x.shape[0], whole.shape[along])
    rows = cos.shape[:2] if places is None else places.shape
    is_fit = cos.rank == (3 if places is None else 2) and cos.shape == sin.shape
    if not is_fit or rows != wanted or cos.shape[-1] * 2 != size or size > whole.shape[3]:
        raise call.bad_shape("has angles that do not fit")
    turned = rotated(whole, along, cos, sin, places,
                     is_interleaved=bool(call.integer("interleaved", 0)))  # fmt: skip
    return reshape(turned, x.shape)


def _places(call: OperatorCall) -> tuple[Limit, ...]:
    if not call.has(3):
        return ()
    extent = call.shape(1)[0]
    return (Limit(3, "positions", (-extent,), (extent - 1,)),)


# --- caches --------------------------------------------------------------------------------------


def _tensor_scatter(call: OperatorCall) -> Tensor:
    """Write what is new at a place of its own for each batch."""
    past, new, begins = call.input(0), call.input(1), call.optional(2)
    along = call.axis(call.integer("axis", -2), past.rank)
    mode = call.text("mode", "linear")
    if mode not in ("linear", "circular"):
        raise call.unsupported(f"has mode={mode!r}, which does not exist")
    extent, count = past.shape[along], new.shape[along] if new.rank == past.rank else 0
    rest = (*past.shape[:along], count, *past.shape[along + 1 :])
    is_fit = begins is None or begins.shape == past.shape[:1]
    if not along or new.shape != rest or count > extent or not is_fit:
        raise call.bad_shape("has new elements that do not fit")
    if not new.size:
        return reshape(past, past.shape)
    most = MOST_WRITTEN if mode == "circular" else extent - count

    def body(position: Position) -> Expr:
        own = position[along]
        if begins is not None:
            own = own - of(Loaded(at(begins, (position[0],)), 0, most))
        if mode == "circular":
            own = own % extent
        inside = [own, count - 1 - own]
        place = flatten((*position[:along], own, *position[along + 1 :]), new.shape)
        return where(inside, LoadExpr(new, choose(inside, place, Index())), at(past, position))

    return computed(past.shape, past.dtype, body)


def _begins(call: OperatorCall) -> tuple[Limit, ...]:
    """Return the limits of where a cache is written to."""
    if not call.has(2):
        return ()
    along = call.axis(call.integer("axis", -2), call.input(0).rank)
    most = call.shape(0)[along] - call.shape(1)[along]
    if call.text("mode", "linear") == "circular":
        most = MOST_WRITTEN
    return (Limit(2, "positions", (0,), (most,)),)


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "Attention",
        _attention,
        others=(3, 6),
        limits=_lengths,
        differs=_is_otherwise,
        remark="softmax in float32, whatever precision is asked for",
    ),
    Operator("LinearAttention", _linear_attention, others=(3,),
             remark=f"up to {MOST_STEPS} tokens at once"),
    Operator("RotaryEmbedding", _rotary, others=(3,), limits=_places),
    Operator("TensorScatter", _tensor_scatter, moves=True, others=(2,), limits=_begins),
)  # fmt: skip
