"""Windows, rows and movements: pooling, softmax, normalisation, concatenation, transposes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import gpuedge
from gpuedge.conformance.case import Built, Case, case, repeated
from gpuedge.conformance.data import Shape, dims, disguised, fill, operand, padding, pick, short
from gpuedge.conformance.layers import Arguments, Pair
from gpuedge.opset.bounds import Array
from gpuedge.oracle import layers as oracle


def pool(
    kind: str,
    c: int,
    size: Pair,
    k: Pair,
    stride: Pair,
    *,
    pads: Shape = (0, 0, 0, 0),
    dilation: Pair = (1, 1),
    ceil: bool = False,
    include: bool = False,
    n: int = 1,
) -> Case:
    """Return a maximum or mean over windows."""
    text = (
        f"n{n}c{c}h{size[0]}w{size[1]}-k{short(k)}s{short(stride)}p{short(pads, '.')}"
        f"d{short(dilation)}{'-ceil' if ceil else ''}{'-include' if include else ''}"
    )
    how: Arguments = {"kernel": k, "stride": stride, "ceil_mode": ceil}
    more: Arguments = {"dilation": dilation} if kind == "max" else {"count_include_pad": include}
    wanted = partial(oracle.pool, kind, pads=pads, dilation=dilation, include_pad=include, **how)

    return case(
        f"{kind}_pool2d", text, lambda rng, *drawn: [operand(rng, (n, c, *size), *drawn)], wanted,
        {**how, **more, "padding": padding(pads)},
    )  # fmt: skip


def draw_pool(rng: np.random.Generator, kind: str) -> Arguments:
    """Return a random one; windows of dilated maxima may meet no pixel at all."""
    k = (int(rng.integers(1, 5)), int(rng.integers(1, 5)))
    stride = (pick(rng, (1, 2, 3, 5)), pick(rng, (1, 2, 3, 5)))
    dilation, reach = (1, 1), k
    if kind == "max" and rng.random() < 0.5:
        dilation = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        reach = ((k[0] - 1) * dilation[0] + 1, (k[1] - 1) * dilation[1] + 1)
    pads = [int(rng.integers(0, reach[i % 2])) for i in range(4)]
    sides = (1, 2, 3, 4, 5, 7, 8, 11)
    size = (max(pick(rng, sides), reach[0]), max(pick(rng, sides), reach[1]))
    return {
        "kind": kind, "c": pick(rng, (1, 2, 3, 4, 5, 8, 9, 13)), "size": size, "k": k,
        "stride": stride, "pads": tuple(pads), "dilation": dilation,
        "ceil": bool(rng.random() < 0.5), "include": kind == "avg" and bool(rng.random() < 0.5),
        "n": pick(rng, (1, 1, 2)),
    }  # fmt: skip


def global_pool(kind: str, shape: Shape) -> Case:
    """Return a maximum or mean over all pixels; no maximum may come from what is not there."""

    def draw(rng: np.random.Generator, data: str, dtype: str) -> list[Array]:
        x = operand(rng, shape, data, dtype)
        return [-np.abs(x) - np.float32(1) if kind == "max" else x]

    return case(f"global_{kind}_pool2d", dims(shape), draw, partial(oracle.global_pool, kind))


def softmax(
    shape: Shape, axis: int = -1, *, log: bool = False, scale: float = 1.0, offset: float = 0.0
) -> Case:
    """Return softmax or its logarithm of `scale` times normal numbers, plus `offset`."""
    more = (f"-x{scale:g}" if scale != 1 else "") + (f"-plus{offset:g}" if offset else "")

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Array]:
        return [fill(rng, shape, data) * np.float32(scale) + np.float32(offset)]

    op, text = "log_softmax" if log else "softmax", f"{dims(shape)}-axis{axis}{more}"
    return case(op, text, draw, partial(oracle.softmax, axis=axis, log=log), {"axis": axis})


def draw_softmax(rng: np.random.Generator) -> Case:
    """Return a random one."""
    rank = int(rng.integers(1, 5))
    shape = tuple(pick(rng, (1, 2, 3, 5, 7, 16)) for _ in range(rank))
    return softmax(
        shape, int(rng.integers(-rank, rank)), log=bool(rng.random() < 0.5),
        scale=pick(rng, (1, 5, 30)), offset=pick(rng, (0.0, 0.0, 1000.0)),
    )  # fmt: skip


def batch_norm(shape: Shape) -> Case:
    """Return a normalisation with given statistics."""

    def make(rng: np.random.Generator, data: str, dtype: str) -> Built:
        x = operand(rng, shape, data, dtype)
        statistics = [rng.standard_normal(shape[1]).astype(x.dtype) for _ in range(3)]
        statistics.append(rng.uniform(0.25, 4, shape[1]).astype(x.dtype))
        return Built(
            repeated(lambda d: gpuedge.batch_norm(x, *statistics, epsilon=1e-3, device=d)),
            lambda keep: oracle.batch_norm(keep(x), *statistics, eps=1e-3, store=keep.store),
        )

    return Case("batch_norm", dims(shape), make)


def draw_batch_norm(rng: np.random.Generator) -> Case:
    """Return a random one."""
    sides = tuple(pick(rng, (1, 2, 3, 5, 7, 8)) for _ in range(int(rng.integers(0, 3))))
    return batch_norm((pick(rng, (1, 2, 3)), pick(rng, (1, 2, 3, 4, 5, 8, 9, 13)), *sides))


def draw_global(rng: np.random.Generator, kind: str) -> Case:
    """Return a random one."""
    sides = (pick(rng, (1, 2, 3, 5, 7, 11, 16)), pick(rng, (1, 2, 4, 5, 9, 17)))
    return global_pool(kind, (pick(rng, (1, 2, 3)), pick(rng, (1, 2, 3, 4, 5, 8, 9)), *sides))


def draw_reshape(rng: np.random.Generator) -> Case:
    """Return a random one that parts and joins axes."""
    shape = tuple(pick(rng, (1, 2, 3, 4, 5, 6, 7, 8)) for _ in range(int(rng.integers(1, 6))))
    left, to = math.prod(shape), []
    for factor in (2, 7, 3, 5, 4):
        if left % factor == 0 and rng.random() < 0.5:
            to.append(factor)
            left //= factor
    to.insert(int(rng.integers(0, len(to) + 1)), -1)
    return move("reshape", shape, tuple(to), pick(rng, ("plain", "strided", "swapped")))


def concat(shapes: tuple[Shape, ...], axis: int) -> Case:
    """Return arrays joined along an axis, some of them perhaps empty."""

    def call(*parts: Array, device: Any) -> Array:
        return gpuedge.concat(parts, axis, device=device)

    text = "-".join(map(dims, shapes)) + f"-axis{axis}"
    return case(
        "concat", text, lambda rng, *kind: [operand(rng, s, *kind) for s in shapes],
        lambda *parts: oracle.concat(parts, axis), call=call,
    )  # fmt: skip


def draw_concat(rng: np.random.Generator) -> Case:
    """Return a random one of one to five arrays."""
    rank = int(rng.integers(1, 6))
    shape = [pick(rng, (1, 2, 3, 5, 8)) for _ in range(rank)]
    axis = int(rng.integers(-rank, rank))
    shapes = []
    for _ in range(int(rng.integers(1, 6))):
        shape[axis] = pick(rng, (0, 1, 2, 3, 4, 7))
        shapes.append(tuple(shape))
    if not any(math.prod(s) for s in shapes):
        shape[axis] = 3
        shapes.append(tuple(shape))
    return concat(tuple(shapes), axis)


MOVES: dict[str, tuple[Callable[..., Array], Callable[[Array, Shape], Array]]] = {
    "transpose": (
        lambda x, to, device: gpuedge.transpose(x, to or None, device=device),
        lambda a, to: a.transpose(to or None),
    ),
    "flatten": (
        lambda x, to, device: gpuedge.flatten(x, *to, device=device),
        lambda a, to: a.reshape(math.prod(a.shape[: to[0]]), -1),
    ),
    "reshape": (
        lambda x, to, device: gpuedge.reshape(x, to, device=device),
        lambda a, to: a.reshape(to),
    ),
}
"""Call and meaning by operation."""


def move(op: str, shape: Shape, order: Shape = (), guise: str = "plain") -> Case:
    """Return a transpose (`order` are the axes), a reshape or flattening (the shape or the axis).

    The guise is how the operand lies in the host's memory.
    """
    named = "" if guise == "plain" else f"-{guise}"
    call, meaning = MOVES[op]

    text = f"{dims(shape)}-{'.'.join(map(str, order)) or 'all'}{named}"
    return case(
        op, text, lambda rng, *kind: [disguised(guise, operand(rng, shape, *kind))],
        partial(oracle.moved, lambda a: meaning(a, order)), {"to": order}, call=call,
    )  # fmt: skip


def draw_move(rng: np.random.Generator, op: str) -> Case:
    """Return a random one of up to six axes."""
    rank = int(rng.integers(1, 7))
    shape = tuple(pick(rng, (1, 2, 3, 4, 5)) for _ in range(rank))
    guise = pick(rng, ("plain", "plain", "strided", "swapped"))
    order: dict[str, Any] = {
        "transpose": tuple(int(i) for i in rng.permutation(rank)),
        "flatten": (int(rng.integers(0, rank + 1)),),
        "reshape": (-1, shape[-1]),
    }
    return move(op, shape, order[op], guise)


POOLS: tuple[Case, ...] = (
    pool("max", 5, (7, 9), (3, 3), (2, 2), pads=(1, 1, 1, 1)),
    pool("avg", 5, (7, 9), (3, 3), (2, 2), pads=(1, 1, 1, 1)),
    pool("max", 3, (6, 5), (2, 3), (1, 2), pads=(1, 0, 0, 2), ceil=True),
    pool("avg", 3, (6, 5), (2, 3), (1, 2), pads=(1, 0, 0, 2), ceil=True, include=True),
    pool("max", 4, (8, 8), (2, 2), (2, 2)),
    pool("max", 1, (9, 9), (3, 3), (1, 1), pads=(2, 2, 2, 2), dilation=(2, 2), n=2),
    pool("avg", 9, (4, 4), (4, 4), (4, 4)),
    pool("avg", 2, (5, 6), (3, 3), (1, 1), pads=(2, 2, 2, 2)),
    pool("max", 8, (1, 1), (1, 1), (1, 1)),
    pool("avg", 6, (7, 7), (2, 2), (3, 3), ceil=True),
    # windows that reach past the image on either side
    pool("max", 6, (1, 3), (2, 2), (1, 1), pads=(1, 1, 1, 1), dilation=(2, 2)),
)

ROWS: tuple[Case, ...] = (
    softmax((3, 10)),
    softmax((2, 5, 4), 1),
    global_pool("avg", (2, 5, 4, 6)),
    global_pool("max", (1, 9, 7, 5)),
    softmax((7, 3, 2), 0, log=True),
    softmax((2, 3, 4, 5), -2),
    softmax((1, 300), -1, scale=5.0),
    softmax((4, 1)),
    softmax((3, 17), -1, log=True, scale=30.0, offset=1000.0),
    global_pool("avg", (1, 3, 16, 17)),
    global_pool("max", (2, 4, 1, 1)),
    batch_norm((2, 5, 3, 4)),
    batch_norm((3, 7)),
)

ARRANGED: tuple[Case, ...] = (
    concat(((2, 3, 4, 5), (2, 5, 4, 5)), 1),
    move("transpose", (2, 3, 4, 5), (0, 2, 3, 1)),
    concat(((3, 1), (3, 4), (3, 2)), -1),
    move("transpose", (7, 9)),
    move("reshape", (3, 8, 5), (5, -1)),
    concat(((1, 4, 3, 3), (1, 4, 3, 3), (1, 8, 3, 3)), 1),
    concat(((2, 0, 3), (2, 5, 3)), 1),
    concat(((5,), (1,), (2,), (7,), (3,), (4,)), 0),
    move("transpose", (1, 5, 1, 7), (3, 1, 0, 2)),
    move("transpose", (3, 4, 2, 3, 2), (4, 1, 3, 0, 2), "strided"),
    move("flatten", (2, 3, 4, 5), (2,)),
    move("reshape", (4, 6), (2, 3, 2, 2)),
)
