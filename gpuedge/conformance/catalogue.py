"""Every case there is: shapes picked by hand because they hurt, and shapes drawn from names.

A drawn shape depends on nothing but its family and number, so the list is the same everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from gpuedge.conformance import (
    camera,
    fused,
    layers,
    nodes,
    operators,
    packed,
    searching,
    shaping,
    units,
)
from gpuedge.conformance import drawn as drawers
from gpuedge.conformance.case import Case, digest, generator
from gpuedge.conformance.data import BYTES, broadcastable, pick
from gpuedge.conformance.layers import CONVOLUTIONS, GEMMS, MATMULS, TRANSPOSED, conv
from gpuedge.conformance.long import LONG, long
from gpuedge.conformance.networks import NETWORKS, network
from gpuedge.conformance.shaping import ARRANGED, POOLS, ROWS, concat, move, pool, softmax
from gpuedge.conformance.units import binary, clip, unary
from gpuedge.core.errors import UsageError
from gpuedge.opset import FUNCTIONS
from gpuedge.plan.library import variants

FULL = 8
"""How many times as many drawn shapes the full profile has."""

PROFILES = ("smoke", "full")

SIZES = re.compile(r"-(\d+x)*(\d+|0d)\b")
"""The shapes in the text of a case."""

BINARY = [name for name, one in FUNCTIONS.items() if one.operands == ("a", "b")]
Rng = np.random.Generator
Draw = Callable[[Rng], Case]

# --- what there is -------------------------------------------------------------------------------

WHOLE, NORMAL, BOTH = ("integers",), ("normal",), ("integers", "normal")
SINGLE, HALF = ("float32",), ("float16",)
MAXIMA = [one for one in POOLS[:6] if one.op == "max_pool2d"]
CLIPS = [clip((4, 33), -1.5, None), clip((4, 33), None, 2.25), clip((4, 33), -50, 50)]
SAME = {op: binary(op, (3, 5, 7), (3, 5, 7)) for op in BINARY}

LISTED: tuple[tuple[Sequence[Case], Sequence[str], Iterable[str]], ...] = (
    (CONVOLUTIONS, WHOLE, SINGLE),
    (CONVOLUTIONS[:4], NORMAL, HALF),
    (TRANSPOSED, BOTH, SINGLE),
    (MATMULS, BOTH, SINGLE),
    (MATMULS[:3], NORMAL, HALF),
    (GEMMS, WHOLE, SINGLE),
    (POOLS, WHOLE, SINGLE),
    (MAXIMA, WHOLE, BYTES),
    (ROWS, NORMAL, SINGLE),
    (ARRANGED, NORMAL, SINGLE),
    ([one for one in ARRANGED if one.op != "flatten"], WHOLE, BYTES),
    ([unary(op) for op in units.DOMAINS], NORMAL, SINGLE),
    ([units.every(op) for op in units.DOMAINS], ("every",), HALF),
    ([unary(op, 199) for op, (low, _) in units.DOMAINS.items() if low <= 0], ("tiny",), SINGLE),
    ([unary(op, 203, more) for op, more in units.PARAMETERS.items()], NORMAL, SINGLE),
    ([unary("gelu", arguments={"approximate": 1.0})], NORMAL, SINGLE),
    *(([unary(op, 301)], WHOLE, one.dtypes) for op, one in units.UNARY.items()),
    (list(SAME.values()), NORMAL, (*SINGLE, *HALF)),
    ([one for op, one in SAME.items() if op != "pow"], ("ties",), SINGLE),
    ([SAME["pow"]], WHOLE, SINGLE),
    *(([one], WHOLE, FUNCTIONS[op].dtypes) for op, one in SAME.items()),
    ([binary(op, (7, 31), (31,)) for op in ("add", "mul", "sub", "maximum")], ("extreme",), SINGLE),
    ([binary("prelu", (3, 101), (3, 1)), binary("prelu", (2, 5, 7), (7,))], NORMAL, SINGLE),
    (CLIPS, WHOLE, SINGLE),
    ([clip((4, 33), 7, 200)], WHOLE, ("uint8",)),
    ([clip((4, 33), -100, 33)], WHOLE, ("int8",)),
    ([units.expression(n, ((3, 4, 9),) * units.count(n)) for n in units.EXPRESSIONS], BOTH, SINGLE),
    (list(units.alone()), NORMAL, SINGLE),
    (camera.CASES, BOTH, SINGLE),
    (camera.MOVED, WHOLE, BYTES),
    ([network(name) for name in NETWORKS], NORMAL, SINGLE),
    ([network(name) for name, one in NETWORKS.items() if one.is_exact], WHOLE, SINGLE),
)
"""Cases with kinds of data and dtypes, of which each case gets all."""

IN_TURN: tuple[tuple[Sequence[Case], Sequence[str]], ...] = (
    (CONVOLUTIONS, ("normal", "normal", "cancel", "extreme")),
    (MATMULS, ("cancel", "extreme")),
)
"""Cases with kinds of data that they get in turn."""


def _convolution(rng: Rng) -> Case:
    return conv(**layers.draw_conv(rng, whole=True))


def _pool(kind: str) -> Draw:
    return lambda rng: pool(**shaping.draw_pool(rng, kind))


def _pair(op: str) -> Draw:
    return lambda rng: binary(op, *broadcastable(rng, 2))


def _expression(name: str) -> Draw:
    return lambda rng: units.expression(name, broadcastable(rng, units.count(name), 1))


MIXED = ("integers", "integers", "normal")
POOLED = ("integers", "normal", "ties")

DRAWN: dict[str, tuple[int, Draw, Sequence[str]]] = {
    "conv2d whole": (24, _convolution, ("integers", "integers", "integers", "cancel")),
    "conv2d": (8, lambda rng: conv(**layers.draw_conv(rng)), NORMAL),
    "conv_transpose2d": (12, lambda rng: conv(**layers.draw_back(rng)), MIXED),
    "matmul": (16, layers.draw_matmul, MIXED),
    "gemm": (10, layers.draw_gemm, BOTH),
    "max_pool2d": (12, _pool("max"), POOLED),
    "avg_pool2d": (12, _pool("avg"), POOLED),
    "softmax": (16, shaping.draw_softmax, NORMAL),
    "concat": (10, shaping.draw_concat, NORMAL),
    "transpose": (10, partial(shaping.draw_move, op="transpose"), NORMAL),
    "flatten": (3, partial(shaping.draw_move, op="flatten"), NORMAL),
    "reshape": (3, partial(shaping.draw_move, op="reshape"), NORMAL),
    **{f"{op} shapes": (3, _pair(op), WHOLE if op == "pow" else NORMAL) for op in BINARY},
    **{f"expression {name}": (2, _expression(name), WHOLE) for name in units.EXPRESSIONS},
}
"""Families of drawn cases: how many, how each is drawn, and the kinds of data they get in turn."""


def _unary(op: str) -> Draw:
    return lambda rng: units.draw_unary(rng, op)


NUMBERED = [op for op in units.UNARY if FUNCTIONS[op].numbers]
CLOSED = {op: one.dtypes for op, one in FUNCTIONS.items() if one.dtypes}
CAMERA: dict[str, tuple[Draw, Sequence[str]]] = {
    "flip": (camera.draw_flip, NORMAL), "slice": (camera.draw_slice, NORMAL),
    "crop": (camera.draw_crop, NORMAL), "pad": (camera.draw_pad, NORMAL),
    "take": (camera.draw_take, NORMAL), "where": (camera.draw_where, NORMAL),
    "argmax": (camera.draw_argmax, ("ties", "normal")),
    "topk": (camera.draw_topk, ("ties", "normal")),
    "resize": (camera.draw_resize, NORMAL), "to_float": (camera.draw_to_float, BOTH),
}  # fmt: skip
TWINS = drawers.TWINS
"""Each case with floats and, under the same name but for these, with whole numbers."""

WIDE: dict[str, tuple[int, Draw, Sequence[str], Sequence[str]]] = {
    "every conv2d": (900, _convolution, TWINS, SINGLE),
    "every conv2d cancel": (150, _convolution, ("cancel", "extreme"), SINGLE),
    "every conv2d acts": (300, lambda rng: conv(**layers.draw_conv(rng)), NORMAL, SINGLE),
    "every conv2d half": (150, _convolution, BOTH, HALF),
    "every conv_transpose2d": (400, lambda rng: conv(**layers.draw_back(rng)), TWINS, SINGLE),
    "every matmul": (600, layers.draw_matmul, TWINS, SINGLE),
    "every matmul sums": (120, layers.draw_matmul, ("cancel", "extreme"), SINGLE),
    "every matmul half": (120, layers.draw_matmul, BOTH, HALF),
    "every gemm": (400, layers.draw_gemm, TWINS, SINGLE),
    "every max_pool2d": (400, _pool("max"), ("ties", "normal"), SINGLE),
    "every max_pool2d bytes": (80, _pool("max"), WHOLE, tuple(BYTES)),
    "every avg_pool2d": (300, _pool("avg"), TWINS, SINGLE),
    "every global_max": (60, partial(shaping.draw_global, kind="max"), ("ties", "normal"), SINGLE),
    "every global_avg": (60, partial(shaping.draw_global, kind="avg"), TWINS, SINGLE),
    "every softmax": (500, shaping.draw_softmax, NORMAL, SINGLE),
    "every batch_norm": (120, shaping.draw_batch_norm, BOTH, SINGLE),
    "every concat": (350, shaping.draw_concat, NORMAL, SINGLE),
    "every concat bytes": (60, shaping.draw_concat, WHOLE, tuple(BYTES)),
    "every transpose": (400, partial(shaping.draw_move, op="transpose"), NORMAL, SINGLE),
    "every transpose bytes": (60, partial(shaping.draw_move, op="transpose"), WHOLE, tuple(BYTES)),
    "every flatten": (80, partial(shaping.draw_move, op="flatten"), NORMAL, SINGLE),
    "every reshape": (150, shaping.draw_reshape, NORMAL, SINGLE),
    **{f"every {op}": (32, _unary(op), (*NORMAL, "ties"), SINGLE) for op in units.DOMAINS},
    **{f"every {op} half": (12, _unary(op), NORMAL, HALF) for op in units.DOMAINS},
    **{f"every {op} numbers": (16, partial(units.draw_parameters, op=op), NORMAL, SINGLE)
       for op in NUMBERED},
    **{f"every {op}": (90, _pair(op), WHOLE if op == "pow" else (*NORMAL, "ties"), SINGLE)
       for op in BINARY if op != "prelu"},
    **{f"every {op} half": (40, _pair(op), WHOLE if op == "pow" else NORMAL, HALF)
       for op in BINARY},
    **{f"every {op} bytes": (15, _pair(op) if op in BINARY else _unary(op), WHOLE, dtypes)
       for op, dtypes in CLOSED.items()},
    **{f"every {op} extreme": (12, _pair(op), ("extreme",), SINGLE)
       for op in BINARY if FUNCTIONS[op].bound == "exactly rounded"},
    "every clip": (120, units.draw_clip, (*NORMAL, "ties"), SINGLE),
    **{f"every expression {name}": (30, _expression(name), BOTH, SINGLE)
       for name in units.EXPRESSIONS},
    **{f"every inside {name}": (10, partial(units.draw_alone, name=name), NORMAL, SINGLE)
       for name in units.INSIDE},
    "every random": (900, units.draw_random, WHOLE, SINGLE),
    **{f"every {op}": (90, draw, kinds, SINGLE) for op, (draw, kinds) in CAMERA.items()},
    **{f"every {op}": (80, partial(camera.draw_total, op=op), TWINS, SINGLE)
       for op in ("sum", "mean")},
    "every nonzero": (50, camera.draw_places, WHOLE, SINGLE),
    "every non_max_suppression": (40, camera.draw_boxes, NORMAL, SINGLE),
}  # fmt: skip
"""More drawn families of the full profile: how many, how each is drawn, kinds, dtypes."""


def _large_convolution(rng: Rng) -> Case:
    settings = layers.draw_conv(rng, most=64, whole=True)
    size = (pick(rng, (14, 19, 28, 33)), pick(rng, (14, 21, 28, 35)))
    return conv(**{**settings, "size": size, "n": 1})


def _large_pool(kind: str) -> Draw:
    def draw(rng: Rng) -> Case:
        settings = shaping.draw_pool(rng, kind)
        return pool(**{**settings, "c": pick(rng, (16, 30)), "size": (28, 27), "n": 1})

    return draw


SIDES = (32, 47, 64, 100, 129, 200)

LARGE_DRAWN: dict[str, tuple[int, Draw, Sequence[str]]] = {
    "large conv2d": (40, _large_convolution, BOTH),
    "large matmul": (30, partial(layers.draw_matmul, lengths=SIDES), BOTH),
    "large max_pool2d": (10, _large_pool("max"), NORMAL),
    "large avg_pool2d": (10, _large_pool("avg"), NORMAL),
}
LARGE = (
    *(
        softmax(rows, axis, log=log)
        for rows in ((16, 1000), (3, 64, 49), (2, 4096))
        for axis, log in ((-1, False), (-2, False), (-1, True))
    ),
    move("transpose", (2, 32, 28, 30), (0, 2, 3, 1)),
    move("transpose", (300, 170)),
    concat(((1, 24, 28, 28), (1, 40, 28, 28)), 1),
    *map(long, LONG),
)
"""Shapes of the size that networks have, for the full profile."""


def _wide_convolution(rng: Rng) -> Case:
    settings = layers.draw_conv(rng, whole=True)
    size = (settings["size"][0], settings["size"][1] + 3 + settings["stride"][1] * 4)
    groups = 1 if settings["groups"] == settings["c"] == settings["m"] else settings["groups"]
    return conv(**{**settings, "size": size, "groups": groups, "n": pick(rng, (1, 2))})


TALL = (*layers.LENGTHS[3:], 40)


def _depthwise(rng: Rng) -> Case:
    settings = layers.draw_conv(rng, whole=True)
    side, stride = pick(rng, ((3, 1), (3, 2), (5, 1)))
    c = pick(rng, (2, 3, 5, 8, 9))
    size = (pick(rng, (5, 6, 8)), pick(rng, (7, 9, 12)))
    chosen = {"c": c, "m": c, "groups": c, "k": (side, side), "stride": (stride, stride)}
    return conv(**{**settings, **chosen, "size": size, "dilation": (1, 1)})


def _back(rng: Rng) -> Case:
    settings = layers.draw_back(rng)
    return conv(
        **{**settings, "size": (settings["size"][0], settings["size"][1] + 4), "dilation": (1, 1)}
    )


def _packed(c: int, size: tuple[int, int], m: int) -> Case:
    """Return a convolution whose input is packed."""
    case = conv(c, size, m, (1, 1), n=2)
    return replace(case, facts={**case.facts, "is_whole": int(size[0] * size[1] % 4 == 0)})


MOVED = ((10, (4, 6), 12), (3, (5, 8), 4), (6, (5, 7), 8), (8, (2, 6), 5), (5, (3, 3), 6))
"""Channels, sizes and filters."""

FORCED: dict[str, tuple[Sequence[Case], int, Draw]] = {
    "conv2d": ((*CONVOLUTIONS[:6], *layers.TILES, *layers.IN_TILES), 4, _wide_convolution),
    "dwconv2d": (layers.DEPTHWISE, 4, _depthwise),
    "conv_transpose2d": (layers.BACK, 3, _back),
    "matmul": (layers.DEEP, 6, partial(layers.draw_matmul, lengths=TALL)),
    "conv2d_int": (operators.BYTE_CONVOLUTIONS, 5, operators.draw_integer_convolution),
    "matmul_int": (operators.BYTE_PRODUCTS, 6, operators.draw_integer_product),
    **{
        f"matmul_packed{bits}": (packed.products(bits), 4, partial(packed.draw_product, bits=bits))
        for bits in (4, 8)
    },
    "pack": ([_packed(*one) for one in MOVED], 0, _back),
    "unpack": ([layers.flattened(*one) for one in MOVED], 0, _back),
}
"""What every variant of an operation computes: listed cases, and how many of what is drawn."""

FURTHER: dict[str, Sequence[Case]] = {
    "conv2d": (*layers.JOINED, *operators.BYTE_BIASES),
    "dwconv2d": layers.JOINED_DEPTHWISE,
    "conv_transpose2d": layers.JOINED_BACK, "matmul": layers.JOINED_MATMULS,
    "conv2d_int": operators.BYTE_WINDOWS,
    "matmul_int": operators.BATCHES_OF_BYTES,
    "matmul_packed4": [packed.BATCH],
    "pack": [layers.beside_infinity(6, (4, 6), 4)],
}  # fmt: skip
"""And what they compute besides, in every profile."""

VARIANT_EACH = 11
"""Before the full profile draws more, a variant has no more of the others."""

SMOKE_EACH = 2
"""Cases of an operation, dtype, variant and storage in the smoke profile: less than 60 s a level on
two cores where llvmpipe or lavapipe compiles every kernel anew, some 0.1 s each."""

# --- how it is put together ----------------------------------------------------------------------


MOST_DRAWS = 30
"""So many times as often as wanted a family draws; those with few shapes give fewer."""


def drawn(family: str, count: int, draw: Draw, kinds: Sequence[str] = NORMAL) -> list[Case]:
    """Return `count` different cases of a family, each from a generator of its own."""
    cases: dict[str, Case] = {}
    for number in range(MOST_DRAWS * count):
        if len(cases) == count:
            break
        case = draw(generator(f"{family} {number}"))
        cases.setdefault(case.text, replace(case, data=kinds[len(cases) % len(kinds)]))
    return list(cases.values())


def _twins(case: Case, kinds: Sequence[str]) -> Iterator[Case]:
    yield from (replace(case, data=kind) for kind in kinds) if kinds == TWINS else (case,)


def _wide() -> Iterator[Case]:
    """The families of the full profile, of public functions and of every operator of ONNX."""
    for family, (count, draw, kinds, dtypes) in WIDE.items():
        for dtype in dtypes:
            for case in drawn(family, count, draw, kinds):
                yield from _twins(replace(case, dtype=dtype), kinds)
    for count, kinds, family_of in (*drawers.DRAWERS, *fused.DRAWERS, *searching.DRAWERS):
        for op, draw in family_of.items():
            for case in drawn(f"every onnx {op}", count, draw, kinds):
                yield from _twins(case, kinds)
    yield from (replace(unary(op, 250), dtype="float16") for op in units.DOMAINS)


def _plain(scale: int) -> Iterator[Case]:
    for cases, kinds, dtypes in LISTED:
        for dtype in dtypes:
            yield from (replace(case, data=kind, dtype=dtype) for case in cases for kind in kinds)
    for cases, kinds in IN_TURN:
        yield from (replace(case, data=kinds[i % len(kinds)]) for i, case in enumerate(cases))
    for family, (count, draw, kinds) in DRAWN.items():
        yield from drawn(family, count * scale, draw, kinds)


def _variants(scale: int) -> Iterator[Case]:
    """Cases that one variant of an operation must serve, the others being ruled out."""
    for op, (listed, count, draw) in FORCED.items():
        cases = [*listed, *drawn(f"variants {op}", count * scale, draw)]
        mine = [variant for variant in variants() if variant.op == op]
        for variant in mine:
            rivals = tuple(other.id for other in mine if other is not variant)
            for some, most in (
                (cases, VARIANT_EACH if scale == 1 else None),
                (FURTHER.get(op, ()), None),
            ):
                # whether its own conditions let it serve the shape on a device that has all
                fitting = [
                    (i, case)
                    for i, case in enumerate(some)
                    if all(low <= case.facts[n] <= high for n, (low, high) in variant.when.items())
                ]
                for i, case in fitting[:most]:
                    data = "normal" if case.facts.get("tiles") else MIXED[i % 3]
                    data = "every" if case.data == "every" else data
                    yield replace(case, data=data, variant=variant.id, rivals=rivals)


def _stored(scale: int) -> Iterator[Case]:
    """Cases on coarser storages: the same operations, judged by the storage's own bound."""
    chosen = [
        *CONVOLUTIONS[: 5 * scale],
        *TRANSPOSED[: 2 * scale],
        *MATMULS[: 3 * scale],
        *POOLS[: 3 * scale],
        *ROWS[: 3 * scale],
        *ARRANGED[: 4 * scale],
        *(unary(op, 211, is_narrow=True) for op in list(units.NARROW)[: 8 * scale]),
        *(binary(op, (3, 5, 7), (5, 1)) for op in ("add", "mul", "maximum")),
        *map(network, ("residual", "separable", "perceptron", "classifier")),
    ]
    return (replace(case, storage=storage) for storage in ("float16", "fixed16") for case in chosen)


def _large() -> Iterator[Case]:
    for family, (count, draw, kinds) in LARGE_DRAWN.items():
        yield from drawn(family, count, draw, kinds)
    yield from LARGE


FAMILIES = (_plain, _variants, _stored, nodes.cases, operators.cases)


@cache
def listed() -> tuple[Case, ...]:
    """Return the cases picked by hand and what families draw first; the full profile has more."""
    return _each_once(case for family in FAMILIES for case in family(1))


@cache
def everything(profile: str = "smoke") -> tuple[Case, ...]:
    """Return all cases of a profile, each once, in an order that never changes.

    Raises
    ------
    UsageError (GE-200)
        There is no such profile.
    """
    if profile not in PROFILES:
        raise UsageError(
            f"There is no profile {profile!r}.", known=f"profiles: {', '.join(PROFILES)}"
        )
    if profile == "smoke":
        return tuple(_smoke())
    more = (case for family in FAMILIES for case in family(FULL))
    return _each_once((*listed(), *more, *_wide(), *_large()))


def _each_once(cases: Iterable[Case]) -> tuple[Case, ...]:
    return tuple({case.id: case for case in cases}.values())


def _smoke() -> Iterator[Case]:
    counts = Counter[tuple[str, ...]]()
    for case in listed():
        # what a fused kernel or a network computes stands before its sizes
        what = SIZES.sub("", case.text) if case.op in ("elementwise", "network") else ""
        counts[kind := (case.op, what, case.dtype, case.variant, case.storage)] += 1
        if counts[kind] <= SMOKE_EACH:
            yield case


def shard_of(name: str, shards: int) -> int:
    """Return which of so many shards a case belongs to, from 1; it depends on its name only."""
    return digest(f"shard {name}") % shards + 1
