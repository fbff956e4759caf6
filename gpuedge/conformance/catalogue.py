"""Every case there is: shapes picked by hand because they hurt, and shapes drawn from names.

A drawn shape depends on nothing but its family and number, so the list is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from gpuedge.conformance import nodes
from gpuedge.conformance.case import Geometry, Spec, digest, generator
from gpuedge.conformance.hard import (
    ARRANGED,
    CONVOLUTIONS,
    DEEP,
    GEMMS,
    MATMULS,
    POOLS,
    ROWS,
    TRANSPOSED,
)
from gpuedge.conformance.layers import LENGTHS, Conv, ConvTranspose, Gemm, MatMul, pick
from gpuedge.conformance.long import LONG, Long
from gpuedge.conformance.networks import EXACT, NETWORKS, Network
from gpuedge.conformance.shaping import Concat, Move, Pool, Softmax
from gpuedge.conformance.units import (
    DOMAINS,
    EXPRESSIONS,
    FORMULAS,
    NARROW,
    PARAMETERS,
    Binary,
    Clip,
    Expression,
    Formula,
    Helper,
    Unary,
    broadcastable,
)
from gpuedge.core.errors import UsageError
from gpuedge.plan.library import variants

FULL = 8
"""How many times as many drawn shapes the full profile has."""

PROFILES = ("smoke", "full")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
Draw = Callable[[np.random.Generator], Geometry]


def _drawn(family: str, count: int, draw: Draw) -> list[Geometry]:
    """Return `count` different geometries of a family, each from a generator of its own."""
    found: dict[str, Geometry] = {}
    number = 0
    while len(found) < count:
        made = draw(generator(f"{family} {number}"))
        found.setdefault(made.text, made)
        number += 1
    return list(found.values())


def _alternately(geometries: Iterable[Geometry], kinds: tuple[str, ...]) -> Iterator[Spec]:
    """Give each geometry one kind of data, in turn."""
    for i, geometry in enumerate(geometries):
        yield Spec(geometry, data=kinds[i % len(kinds)])


def _both(geometries: Iterable[Geometry], *kinds: str) -> Iterator[Spec]:
    """Give each geometry every kind of data."""
    for geometry in geometries:
        yield from (Spec(geometry, data=kind) for kind in kinds)


def _convolutions(scale: int) -> Iterator[Spec]:
    yield from _both(CONVOLUTIONS, "integers")
    yield from _alternately(CONVOLUTIONS, ("normal", "normal", "cancel", "extreme"))
    whole = _drawn("conv2d whole", 24 * scale, lambda r: Conv.draw(r, whole=True))
    yield from _alternately(whole, ("integers", "integers", "integers", "cancel"))
    yield from _both(_drawn("conv2d", 8 * scale, Conv.draw), "normal")
    yield from (Spec(g, "float16") for g in CONVOLUTIONS[:4])
    yield from _both(TRANSPOSED, "integers", "normal")
    drawn = _drawn("conv_transpose2d", 12 * scale, ConvTranspose.draw)
    yield from _alternately(drawn, ("integers", "integers", "normal"))


def _products(scale: int) -> Iterator[Spec]:
    yield from _both(MATMULS, "integers", "normal")
    yield from _alternately(MATMULS, ("cancel", "extreme"))
    yield from _alternately(
        _drawn("matmul", 16 * scale, MatMul.draw), ("integers", "integers", "normal")
    )
    yield from (Spec(g, "float16") for g in MATMULS[:3])
    yield from _both(GEMMS, "integers")
    yield from _alternately(_drawn("gemm", 10 * scale, Gemm.draw), ("integers", "normal"))


def _windows(scale: int) -> Iterator[Spec]:
    yield from _both(POOLS, "integers")
    for kind in ("max", "avg"):
        drawn = _drawn(f"{kind}_pool2d", 12 * scale, lambda r, k=kind: Pool.draw(r, k))  # type: ignore[misc]
        yield from _alternately(drawn, ("integers", "normal", "ties"))
    yield from (Spec(g, dtype, "integers") for g in POOLS[:6] for dtype in ("uint8", "int8")
                if g.kind == "max")  # fmt: skip
    yield from _both(ROWS, "normal")
    yield from _both(_drawn("softmax", 16 * scale, Softmax.draw), "normal")


def _movements(scale: int) -> Iterator[Spec]:
    yield from _both(ARRANGED, "normal")
    yield from _both(_drawn("concat", 10 * scale, Concat.draw), "normal")
    for op, count in (("transpose", 10), ("flatten", 3), ("reshape", 3)):
        drawn = _drawn(op, count * scale, lambda r, o=op: Move.draw(r, o))  # type: ignore[misc]
        yield from _both(drawn, "normal")
    closed = [g for g in ARRANGED if isinstance(g, (Concat, Move)) and g.op != "flatten"]
    yield from (Spec(g, dtype, "integers") for g in closed for dtype in ("uint8", "int8"))


def _functions(scale: int) -> Iterator[Spec]:
    for op in DOMAINS:
        yield Spec(Unary(op), data="normal")
        yield Spec(Unary(op, 250), "float16")
        if DOMAINS[op][0] <= 0:
            yield Spec(Unary(op, 199), data="tiny")
        yield from (
            Spec(Unary(op, 203, tuple(arguments.items()))) for arguments in PARAMETERS.get(op, ())
        )
    yield Spec(Unary("gelu", 1003, (("approximate", 1.0),)))
    yield Spec(Unary("relu", 301), "int8", "integers")
    for op in BINARY:
        same = Binary(op, (3, 5, 7), (3, 5, 7))
        yield from _both([same], "normal", "ties" if op != "pow" else "integers")
        yield Spec(same, "float16")
        for shapes in _pairs(op, 3 * scale):
            yield Spec(Binary(op, *shapes), data="integers" if op == "pow" else "normal")
        if op in ("maximum", "minimum"):
            yield from (Spec(same, dtype, "integers") for dtype in ("uint8", "int8"))
    for op in ("add", "mul", "sub", "maximum"):
        yield Spec(Binary(op, (7, 31), (31,)), data="extreme")
    yield from _both(
        [Binary("prelu", (3, 101), (3, 1)), Binary("prelu", (2, 5, 7), (7,))], "normal"
    )
    clips = [Clip((4, 33), -1.5, None), Clip((4, 33), None, 2.25), Clip((4, 33), -50, 50)]
    yield from _both(clips, "integers", "normal")
    yield Spec(Clip((4, 33), 7, 200), "uint8", "integers")
    yield Spec(Clip((4, 33), -100, 33), "int8", "integers")


def _pairs(op: str, count: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return pairs of shapes that broadcast, drawn."""
    found: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    number = 0
    while len(found) < count:
        a, b = broadcastable(generator(f"{op} shapes {number}"), 2)
        found.setdefault(f"{a}{b}", (a, b))
        number += 1
    return list(found.values())


def _expressions(scale: int) -> Iterator[Spec]:
    from gpuedge.ops.expression import NAMES

    for name in EXPRESSIONS:
        count = Expression.count(name)
        same = Expression(name, ((3, 4, 9),) * count)
        yield from _both([same], "integers", "normal")

        def draw(rng: np.random.Generator, name: str = name, count: int = count) -> Geometry:
            return Expression(name, broadcastable(rng, count, 1))

        yield from _both(_drawn(f"expression {name}", 2 * scale, draw), "integers")
    known = {"min": "minimum", "max": "maximum"}
    helped = dict.fromkeys(known.get(f, f) for f in NAMES if f != "clip")
    for function in helped:
        yield Spec(Helper(function))
    for name in FORMULAS:
        yield Spec(Formula(name))


def _networks(scale: int) -> Iterator[Spec]:
    for name in NETWORKS:
        yield Spec(Network(name))
        if name in EXACT:
            yield Spec(Network(name), data="integers")


def _variants(scale: int) -> Iterator[Spec]:
    """Cases that one variant of an operation must serve, the others being ruled out."""
    by_op: dict[str, list[str]] = {}
    for variant in variants():
        by_op.setdefault(variant.op, []).append(variant.id)
    rooms: dict[str, list[Geometry]] = {
        "conv2d": [*CONVOLUTIONS[:6], *_drawn("variants conv2d", 4 * scale, _wide_conv)],
        "matmul": [*DEEP, *_drawn("variants matmul", 6 * scale, _tall_matmul)],
    }
    for op, ids in by_op.items():
        for name in ids if len(ids) > 1 else ():
            rivals = tuple(other for other in ids if other != name)
            for i, geometry in enumerate(rooms.get(op, ())):
                if _suits(name, geometry):
                    data = ("integers", "integers", "normal")[i % 3]
                    yield Spec(geometry, data=data, variant=name, rivals=rivals)


def _wide_conv(rng: np.random.Generator) -> Geometry:
    made = Conv.draw(rng, whole=True)
    size = (made.size[0], made.size[1] + 3 + made.stride[1] * 4)
    groups = 1 if made.groups == made.c == made.m else made.groups
    return replace(made, size=size, groups=groups, n=pick(rng, (1, 2)))


def _tall_matmul(rng: np.random.Generator) -> Geometry:
    return MatMul.draw(rng, (*LENGTHS[3:], 40))


def _suits(variant: str, geometry: Geometry) -> bool:
    """Say whether a variant's own conditions let it serve a shape on a device that has all."""
    needs = next(v for v in variants() if v.id == variant).when
    facts = _facts(geometry)
    return all(low <= facts[name] <= high for name, (low, high) in needs.items())


def _facts(geometry: Geometry) -> dict[str, int]:
    if isinstance(geometry, Conv):
        return {"width": _out_width(geometry)}
    if isinstance(geometry, MatMul):
        rows = geometry.a[-2] if len(geometry.a) > 1 else 1
        columns = geometry.b[-1] if len(geometry.b) > 1 else 1
        return {"rows": rows, "depth": geometry.a[-1], "columns": columns}
    return {}


def _out_width(conv: Conv) -> int:
    reach = (conv.k[1] - 1) * conv.dilation[1] + 1
    return (conv.size[1] + conv.pads[1] + conv.pads[3] - reach) // conv.stride[1] + 1


def _large() -> Iterator[Spec]:
    """Shapes of the size that networks have, for the full profile."""
    whole = _drawn("large conv2d", 40, _large_conv)
    yield from _alternately(whole, ("integers", "normal"))
    products = _drawn("large matmul", 30, lambda r: MatMul.draw(r, (32, 47, 64, 100, 129, 200)))
    yield from _alternately(products, ("integers", "normal"))
    for kind in ("max", "avg"):
        pools = _drawn(f"large {kind}_pool2d", 10, lambda r, k=kind: _large_pool(r, k))  # type: ignore[misc]
        yield from _both(pools, "normal")
    for rows in ((16, 1000), (3, 64, 49), (2, 4096)):
        yield from _both([Softmax(rows), Softmax(rows, -2), Softmax(rows, log=True)], "normal")
    moved = [Move("transpose", (2, 32, 28, 30), (0, 2, 3, 1)), Move("transpose", (300, 170))]
    yield from _both([*moved, Concat(((1, 24, 28, 28), (1, 40, 28, 28)), 1)], "normal")
    for name in LONG:
        yield Spec(Long(name), data="integers", is_large=True)


def _large_conv(rng: np.random.Generator) -> Geometry:
    made = Conv.draw(rng, most=64, whole=True)
    size = (pick(rng, (14, 19, 28, 33)), pick(rng, (14, 21, 28, 35)))
    return replace(made, size=size, n=1)


def _large_pool(rng: np.random.Generator, kind: str) -> Geometry:
    return replace(Pool.draw(rng, kind), c=pick(rng, (16, 30)), size=(28, 27), n=1)


STORED = ("float16", "fixed16")


def _stored(scale: int) -> Iterator[Spec]:
    """Cases on coarser storages: the same operations, judged by the storage's own bound."""
    chosen: list[Spec] = [
        *(Spec(g) for g in CONVOLUTIONS[: 5 * scale]),
        *(Spec(g) for g in TRANSPOSED[: 2 * scale]),
        *(Spec(g) for g in MATMULS[: 3 * scale]),
        *(Spec(g, data="normal") for g in POOLS[: 3 * scale]),
        *(Spec(g) for g in ROWS[: 3 * scale]),
        *(Spec(g) for g in ARRANGED[: 4 * scale]),
        *(Spec(Unary(op, 211, is_narrow=True)) for op in list(NARROW)[: 8 * scale]),
        *(Spec(Binary(op, (3, 5, 7), (5, 1))) for op in ("add", "mul", "maximum")),
        *(Spec(Network(name)) for name in ("residual", "separable", "perceptron", "classifier")),
    ]
    for storage in STORED:
        for spec in chosen:
            yield replace(spec, storage=storage)


def everything(profile: str = "smoke") -> tuple[Spec, ...]:
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
    found: dict[str, Spec] = {}
    families = (_convolutions, _products, _windows, _movements, _functions, _expressions,
                _networks, _variants, _stored, nodes.specs)  # fmt: skip
    for family in families:
        for spec in family(1):
            found.setdefault(spec.id, spec)
    if profile == "full":
        for family in families:
            for spec in family(FULL):
                found.setdefault(spec.id, spec)
        for spec in _large():
            found.setdefault(spec.id, spec)
    return tuple(found.values())


def shard_of(name: str, shards: int) -> int:
    """Return which of so many shards a case belongs to, from 1; it depends on its name only."""
    return digest(f"shard {name}") % shards + 1
