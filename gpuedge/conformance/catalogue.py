"""Every case there is: shapes picked by hand because they hurt, and shapes drawn from names.

A drawn shape depends on nothing but its family and number, so the list is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from gpuedge.conformance import layers, nodes, shaping, units
from gpuedge.conformance.case import Case, digest, generator
from gpuedge.conformance.data import Shape, broadcastable, pick
from gpuedge.conformance.layers import CONVOLUTIONS, MATMULS, TRANSPOSED, conv
from gpuedge.conformance.long import LONG, long
from gpuedge.conformance.networks import NETWORKS, network
from gpuedge.conformance.shaping import ARRANGED, POOLS, ROWS, concat, move, pool, softmax
from gpuedge.conformance.units import binary, clip, unary
from gpuedge.core.errors import UsageError
from gpuedge.plan.library import variants

FULL = 8
"""How many times as many drawn shapes the full profile has."""

PROFILES = ("smoke", "full")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
Draw = Callable[[np.random.Generator], Case]


def _drawn(family: str, count: int, draw: Draw) -> list[Case]:
    """Return `count` different cases of a family, each from a generator of its own."""
    found: dict[str, Case] = {}
    number = 0
    while len(found) < count:
        made = draw(generator(f"{family} {number}"))
        found.setdefault(made.text, made)
        number += 1
    return list(found.values())


def _alternately(cases: Iterable[Case], *kinds: str) -> Iterator[Case]:
    """Give each case one kind of data, in turn."""
    for i, case in enumerate(cases):
        yield replace(case, data=kinds[i % len(kinds)])


def _each(cases: Iterable[Case], *kinds: str) -> Iterator[Case]:
    """Give each case every kind of data."""
    return (replace(case, data=kind) for case in cases for kind in kinds)


def _typed(cases: Iterable[Case], dtypes: Iterable[str], data: str = "normal") -> Iterator[Case]:
    """Give each case every dtype."""
    return (replace(case, dtype=dtype, data=data) for case in cases for dtype in dtypes)


BYTES = ("uint8", "int8")
HALF = ("float16",)


def _convolutions(scale: int) -> Iterator[Case]:
    yield from _each(CONVOLUTIONS, "integers")
    yield from _alternately(CONVOLUTIONS, "normal", "normal", "cancel", "extreme")
    drawn = _drawn(
        "conv2d whole", 24 * scale, lambda rng: conv(**layers.draw_conv(rng, whole=True))
    )
    yield from _alternately(drawn, "integers", "integers", "integers", "cancel")
    yield from _drawn("conv2d", 8 * scale, lambda rng: conv(**layers.draw_conv(rng)))
    yield from _typed(CONVOLUTIONS[:4], HALF)
    yield from _each(TRANSPOSED, "integers", "normal")
    drawn = _drawn("conv_transpose2d", 12 * scale, lambda rng: conv(**layers.draw_back(rng)))
    yield from _alternately(drawn, "integers", "integers", "normal")


def _products(scale: int) -> Iterator[Case]:
    yield from _each(MATMULS, "integers", "normal")
    yield from _alternately(MATMULS, "cancel", "extreme")
    drawn = _drawn("matmul", 16 * scale, layers.draw_matmul)
    yield from _alternately(drawn, "integers", "integers", "normal")
    yield from _typed(MATMULS[:3], HALF)
    yield from _each(layers.GEMMS, "integers")
    yield from _alternately(_drawn("gemm", 10 * scale, layers.draw_gemm), "integers", "normal")


def _windows(scale: int) -> Iterator[Case]:
    yield from _each(POOLS, "integers")
    for kind in ("max", "avg"):

        def draw(rng: np.random.Generator, kind: str = kind) -> Case:
            return pool(**shaping.draw_pool(rng, kind))

        drawn = _drawn(f"{kind}_pool2d", 12 * scale, draw)
        yield from _alternately(drawn, "integers", "normal", "ties")
    yield from _typed((c for c in POOLS[:6] if c.op == "max_pool2d"), BYTES, "integers")
    yield from ROWS
    yield from _drawn("softmax", 16 * scale, shaping.draw_softmax)


def _movements(scale: int) -> Iterator[Case]:
    yield from ARRANGED
    yield from _drawn("concat", 10 * scale, shaping.draw_concat)
    for op, count in (("transpose", 10), ("flatten", 3), ("reshape", 3)):

        def draw(rng: np.random.Generator, op: str = op) -> Case:
            return shaping.draw_move(rng, op)

        yield from _drawn(op, count * scale, draw)
    yield from _typed((c for c in ARRANGED if c.op != "flatten"), BYTES, "integers")


def _functions(scale: int) -> Iterator[Case]:
    for op, (low, _) in units.DOMAINS.items():
        yield unary(op)
        yield from _typed([unary(op, 250)], HALF)
        if low <= 0:
            yield replace(unary(op, 199), data="tiny")
        if op in units.PARAMETERS:
            yield unary(op, 203, units.PARAMETERS[op])
    yield unary("gelu", arguments={"approximate": 1.0})
    yield replace(unary("relu", 301), dtype="int8", data="integers")
    for op in BINARY:
        same = binary(op, (3, 5, 7), (3, 5, 7))
        yield from _each([same], "normal", "ties" if op != "pow" else "integers")
        yield from _typed([same], HALF)
        pairs = (binary(op, *shapes) for shapes in _pairs(op, 3 * scale))
        yield from _each(pairs, "integers" if op == "pow" else "normal")
        if op in ("maximum", "minimum"):
            yield from _typed([same], BYTES, "integers")
    for op in ("add", "mul", "sub", "maximum"):
        yield replace(binary(op, (7, 31), (31,)), data="extreme")
    yield from (binary("prelu", (3, 101), (3, 1)), binary("prelu", (2, 5, 7), (7,)))
    clips = [clip((4, 33), -1.5, None), clip((4, 33), None, 2.25), clip((4, 33), -50, 50)]
    yield from _each(clips, "integers", "normal")
    yield from _typed([clip((4, 33), 7, 200)], ["uint8"], "integers")
    yield from _typed([clip((4, 33), -100, 33)], ["int8"], "integers")


def _pairs(op: str, count: int) -> Iterable[tuple[Shape, ...]]:
    """Return different pairs of shapes that broadcast, drawn."""
    found: dict[tuple[Shape, ...], None] = {}
    number = 0
    while len(found) < count:
        found[broadcastable(generator(f"{op} shapes {number}"), 2)] = None
        number += 1
    return found


def _expressions(scale: int) -> Iterator[Case]:
    for name in units.EXPRESSIONS:
        count = units.count(name)
        yield from _each([units.expression(name, ((3, 4, 9),) * count)], "integers", "normal")

        def draw(rng: np.random.Generator, name: str = name, count: int = count) -> Case:
            return units.expression(name, broadcastable(rng, count, 1))

        yield from _each(_drawn(f"expression {name}", 2 * scale, draw), "integers")
    yield from units.alone()


def _networks(scale: int) -> Iterator[Case]:
    for name, one in NETWORKS.items():
        yield from _each([network(name)], "normal", *(["integers"] if one.is_exact else []))


def _variants(scale: int) -> Iterator[Case]:
    """Cases that one variant of an operation must serve, the others being ruled out."""
    by_op: dict[str, list[str]] = {}
    for variant in variants():
        by_op.setdefault(variant.op, []).append(variant.id)
    rooms: dict[str, list[Case]] = {
        "conv2d": [*CONVOLUTIONS[:6], *_drawn("variants conv2d", 4 * scale, _wide_conv)],
        "matmul": [*layers.DEEP, *_drawn("variants matmul", 6 * scale, _tall_matmul)],
    }
    for op, ids in by_op.items():
        for name in ids if len(ids) > 1 else ():
            rivals = tuple(other for other in ids if other != name)
            for i, case in enumerate(rooms.get(op, ())):
                if _suits(name, case):
                    data = ("integers", "integers", "normal")[i % 3]
                    yield replace(case, data=data, variant=name, rivals=rivals)


def _wide_conv(rng: np.random.Generator) -> Case:
    made = layers.draw_conv(rng, whole=True)
    size = (made["size"][0], made["size"][1] + 3 + made["stride"][1] * 4)
    groups = 1 if made["groups"] == made["c"] == made["m"] else made["groups"]
    return conv(**{**made, "size": size, "groups": groups, "n": pick(rng, (1, 2))})


def _tall_matmul(rng: np.random.Generator) -> Case:
    return layers.draw_matmul(rng, (*layers.LENGTHS[3:], 40))


def _suits(variant: str, case: Case) -> bool:
    """Say whether a variant's own conditions let it serve a shape on a device that has all."""
    needs = next(v for v in variants() if v.id == variant).when
    return all(low <= case.facts[name] <= high for name, (low, high) in needs.items())


def _large() -> Iterator[Case]:
    """Shapes of the size that networks have, for the full profile."""
    yield from _alternately(_drawn("large conv2d", 40, _large_conv), "integers", "normal")
    sides = (32, 47, 64, 100, 129, 200)
    products = _drawn("large matmul", 30, lambda rng: layers.draw_matmul(rng, sides))
    yield from _alternately(products, "integers", "normal")
    for kind in ("max", "avg"):

        def draw(rng: np.random.Generator, kind: str = kind) -> Case:
            made = shaping.draw_pool(rng, kind)
            return pool(**{**made, "c": pick(rng, (16, 30)), "size": (28, 27), "n": 1})

        yield from _drawn(f"large {kind}_pool2d", 10, draw)
    for rows in ((16, 1000), (3, 64, 49), (2, 4096)):
        yield from (softmax(rows), softmax(rows, -2), softmax(rows, log=True))
    yield move("transpose", (2, 32, 28, 30), (0, 2, 3, 1))
    yield move("transpose", (300, 170))
    yield concat(((1, 24, 28, 28), (1, 40, 28, 28)), 1)
    yield from map(long, LONG)


def _large_conv(rng: np.random.Generator) -> Case:
    made = layers.draw_conv(rng, most=64, whole=True)
    size = (pick(rng, (14, 19, 28, 33)), pick(rng, (14, 21, 28, 35)))
    return conv(**{**made, "size": size, "n": 1})


STORED = ("float16", "fixed16")


def _stored(scale: int) -> Iterator[Case]:
    """Cases on coarser storages: the same operations, judged by the storage's own bound."""
    chosen: list[Case] = [
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
    return (replace(case, storage=storage) for storage in STORED for case in chosen)


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
    families = (_convolutions, _products, _windows, _movements, _functions, _expressions,
                _networks, _variants, _stored, nodes.cases)  # fmt: skip
    scales = (1,) if profile == "smoke" else (1, FULL)
    drawn = (case for scale in scales for family in families for case in family(scale))
    found: dict[str, Case] = {}
    for case in (*drawn, *(_large() if profile == "full" else ())):
        found.setdefault(case.id, case)
    return tuple(found.values())


def shard_of(name: str, shards: int) -> int:
    """Return which of so many shards a case belongs to, from 1; it depends on its name only."""
    return digest(f"shard {name}") % shards + 1
