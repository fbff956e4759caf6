"""Images keep their channels in texels: joined, cut, shuffled, resized and reduced as they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from planrun import FLOAT_TEXTURES, TEXTURES, WIDE, Seen, run_graph

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.opset.expr import LoadExpr, where
from gpuedge.opset.index import Index, axes, axis, choose, flatten
from gpuedge.opset.tensor import given, joined
from gpuedge.plan.layout import channels, to_texels
from gpuedge.plan.places import guarded, packed, part_of, sections
from gpuedge.plan.planner import plan

FINE = replace(VULKAN_MINIMUM, offset_alignment=16)
LEVELS = {"fine": FINE, "coarse": VULKAN_MINIMUM, "wide": WIDE, "floats": FLOAT_TEXTURES,
          "bytes": TEXTURES}  # fmt: skip
SIDE = (5, 6)

Build = Callable[["Image"], tuple[Sequence[str], Callable[[Array], Sequence[Array]]]]


class Image:
    """A graph that begins with pooling by 1, after which channels are in texels."""

    def __init__(self, n: int, c: int) -> None:
        self.builder = GraphBuilder()
        self.names = (f"c{i}" for i in count())
        self.shape = (n, c, *SIDE)
        self.x = self.packed(self.builder.input("x", TensorType("float32", self.shape)))

    def packed(self, x: str) -> str:
        return self.add("MaxPool", x, kernel_shape=[1, 1])

    def add(self, op: str, *inputs: str | Array, **attrs: Any) -> str:
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        return self.builder.add(op, names, attrs)

    def constant(self, array: Array) -> str:
        return self.builder.constant(next(self.names), array)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def taken(self, x: str, start: int, stop: int) -> str:
        return self.add("Slice", x, self.ints(start), self.ints(stop), self.ints(1))

    def shuffled(self, x: str, shape: Sequence[int], groups: int) -> str:
        n, c, h, w = shape
        x = self.add("Reshape", x, self.ints(n, groups, c // groups, h, w))
        x = self.add("Transpose", x, perm=[0, 2, 1, 3, 4])
        return self.add("Reshape", x, self.ints(n, c, h, w))


def _shuffle(x: Array, groups: int) -> Array:
    n, c, h, w = x.shape
    return x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2).reshape(x.shape)


def _concat(sizes: Sequence[int]) -> Build:
    def build(image: Image) -> tuple[Sequence[str], Callable[[Array], Sequence[Array]]]:
        ends = np.cumsum(sizes)
        parts = [
            image.packed(image.taken(image.x, int(e - s), int(e)))
            for s, e in zip(sizes, ends, strict=True)
        ]
        turned = [*parts[1:], parts[0]]
        whole = image.packed(image.add("Concat", *turned, axis=1))
        return [whole], lambda x: [np.concatenate([x[:, sizes[0] :], x[:, : sizes[0]]], axis=1)]

    return build


def _branches(image: Image) -> tuple[Sequence[str], Callable[[Array], Sequence[Array]]]:
    """A part that others read too, one that is joined twice, and one that comes from outside."""
    a = image.packed(image.taken(image.x, 0, 8))
    whole = image.add("Concat", a, "x", a, axis=1)
    return [image.packed(whole), image.packed(a)], lambda x: [
        np.concatenate([x[:, :8], x, x[:, :8]], axis=1), x[:, :8],
    ]  # fmt: skip


def _shuffles(image: Image) -> tuple[Sequence[str], Callable[[Array], Sequence[Array]]]:
    made = image.packed(image.shuffled(image.x, image.shape, 3))
    return [made], lambda x: [_shuffle(x, 3)]


def _resized(image: Image) -> tuple[Sequence[str], Callable[[Array], Sequence[Array]]]:
    scales = np.array([1, 1, 2, 3], np.float32)
    made = image.add("Resize", image.x, "", scales, mode="nearest", nearest_mode="floor",
                     coordinate_transformation_mode="asymmetric")  # fmt: skip
    return [image.packed(made)], lambda x: [x.repeat(2, axis=2).repeat(3, axis=3)]


def _padded(image: Image) -> tuple[Sequence[str], Callable[[Array], Sequence[Array]]]:
    pads = ((0, 0), (0, 0), (2, 1), (1, 3))
    both = image.ints(0, 0, 2, 1, 0, 0, 1, 3)
    made = [image.packed(image.add("Pad", image.x, both, mode=m)) for m in ("reflect", "constant")]
    return made, lambda x: [np.pad(x, pads, mode="reflect"), np.pad(x, pads)]


def _summed(image: Image) -> tuple[Sequence[str], Callable[[Array], Sequence[Array]]]:
    total = image.add("ReduceSum", image.x, image.ints(2, 3))
    along = image.add("ReduceMax", image.x, image.ints(1))
    return [total, image.add("Sub", image.x, total), along], lambda x: [
        x.sum((2, 3), keepdims=True), x - x.sum((2, 3), keepdims=True), x.max(1, keepdims=True),
    ]  # fmt: skip


CASES: dict[str, Build] = {
    "joined": _concat((8, 4, 12)), "joined, last ones apart": _concat((6, 12, 6)),
    "joined in threes": _concat((3, 9, 12)), "branches": _branches, "shuffled": _shuffles,
    "resized": _resized, "padded": _padded, "summed": _summed,
}  # fmt: skip


def built(name: str, n: int, c: int = 24) -> tuple[Graph, Array, dict[str, Array]]:
    image = Image(n, c)
    outputs, meaning = CASES[name](image)
    for one in outputs:
        image.builder.output(one)
    x = np.random.default_rng(5).integers(-9, 10, image.shape).astype(np.float32)
    return image.builder.build(), x, dict(zip(outputs, meaning(x), strict=True))


@pytest.mark.parametrize("caps", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers(name: str, n: int, caps: Caps) -> None:
    graph, x, wanted = built(name, n)
    for rewrites in (True, False):
        found = run_graph(graph, {"x": x}, caps, rewrites=rewrites)
        for output, array in wanted.items():
            np.testing.assert_array_equal(found[output], array)


def test_odd_channels() -> None:
    for name in ("shuffled", "resized", "padded", "summed"):
        graph, x, wanted = built(name, 2, 9)
        for output, array in run_graph(graph, {"x": x}).items():
            np.testing.assert_array_equal(array, wanted[output])


def passes(name: str, caps: Caps = FINE, n: int = 1) -> list[str]:
    graph, _, _ = built(name, n)
    return [one.variant for one in plan(graph, caps).passes]


def test_channels_are_joined_and_cut_where_they_lie() -> None:
    # one pass packs the input, one unpacks the output
    assert passes("joined") == ["pack_map", *["pool_map"] * 5, "unpack_map"]
    assert passes("joined", WIDE).count("elementwise_map") > 0  # parts begin at no multiple of 256
    assert passes("joined", n=2).count("elementwise_map") == 4
    assert passes("joined", replace(FINE, has_suballocation=False)).count("elementwise_map") == 4


@pytest.mark.parametrize("name", ["shuffled", "resized"])
def test_elements_move_in_one_pass(name: str) -> None:
    assert passes(name) == ["pack_map", "pool_map", "elementwise_map", "pool_map", "unpack_map"]


def test_sums_of_planes_read_texels() -> None:
    graph, _, _ = built("summed", 1)
    made = plan(graph, FINE)
    assert [one.variant for one in made.passes].count("unpack_map") == 1  # an output
    (total,) = (one for one in made.passes if one.variant == "reduce_map" and
                made.tensors[one.outputs[0]].layout.shape == (1, 24, 1, 1))  # fmt: skip
    assert "texel(E0, " in str(total.source.epilogue)


def test_a_part_that_is_an_output_has_memory_of_its_own() -> None:
    image = Image(1, 8)
    a, b = (image.packed(image.taken(image.x, i, i + 4)) for i in (0, 4))
    pooled = [image.add("GlobalAveragePool", one) for one in (a, b)]
    whole = image.add("Concat", *pooled, axis=1)
    for one in (*pooled, whole):
        image.builder.output(one)
    x = np.arange(8 * 30, dtype=np.float32).reshape(1, 8, *SIDE)
    means = x.mean((2, 3), keepdims=True)
    found = run_graph(image.builder.build(), {"x": x}, FINE, seen=Seen())
    np.testing.assert_allclose(found[whole], means, rtol=1e-6)
    np.testing.assert_array_equal(found[pooled[1]], found[whole][:, 4:])


# --- the integers --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 7, 3, 2), (3, 8, 2, 5), (2, 5, 4)])
def test_packed_counts_the_floats_of_a_packed_tensor(shape: tuple[int, ...]) -> None:
    layout = channels(shape)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    texels = to_texels(array, layout)
    for number in range(array.size):
        place = packed(Index(number), layout)
        assert place.value is not None
        assert texels[place.value] == number


def test_parts_of_what_is_joined() -> None:
    a, b, c = (given(n, (1, k, 2, 3), "float32") for n, k in (("a", 4), ("b", 8), ("c", 3)))
    whole = joined(joined(a, b, 1), c, 1)
    (position,) = [axes(whole.shape)]
    ab, rest = whole.reads
    inner = joined(a, b, 1).source
    assert [ab.shape, rest] == [(1, 12, 2, 3), c]
    found = sections(whole.source.body, whole.shape)  # type: ignore[union-attr]
    assert [(r.start, r.stop) for r, _ in found] == [(0, 12), (12, 15)]
    last = found[1][1]
    assert isinstance(last, LoadExpr)
    assert last.at == flatten(axes(c.shape), c.shape)
    assert len(sections(inner.body, (1, 12, 2, 3))) == 2  # type: ignore[union-attr]
    assert len(sections(LoadExpr(a, flatten(axes(a.shape), a.shape)), a.shape)) == 1
    assert position[1].high == 14


def test_a_guard_is_left_out_only_under_the_same_test() -> None:
    x = given("x", (1, 8), "float32")
    inside, other = axis(1, 12) - 4, 9 - axis(1, 12)
    load = LoadExpr(x, choose([inside], inside, Index()))
    assert guarded(load) is load
    body = where([inside], load, 0.0)
    assert guarded(body).yes.at == inside  # type: ignore[attr-defined]
    assert guarded(where([other], load, 0.0)).yes.at == load.at  # type: ignore[attr-defined]
    assert guarded(where([-inside - 1], 0.0, load)).no.at == inside  # type: ignore[attr-defined]
    assert guarded(where([-inside - 1, other], 0.0, load)).no.at == load.at  # type: ignore[attr-defined]


def test_a_part_of_a_tensor() -> None:
    x, shape = given("x", (1, 12, 2, 3), "float32"), (1, 4, 2, 3)
    position = list(axes(shape))

    def taken(*ahead: int) -> LoadExpr:
        moved = [p + a for p, a in zip(position, ahead, strict=True)]
        return LoadExpr(x, flatten(moved, x.shape))

    assert part_of(taken(0, 8, 0, 0), shape) == 8
    assert part_of(taken(0, 3, 0, 0), shape) == 3
    assert part_of(LoadExpr(x, flatten([position[0], position[1] * 2, *position[2:]], x.shape)),
                   shape) is None  # fmt: skip
    assert part_of(LoadExpr(given("y", (2, 12, 2, 3), "float32"), Index()), shape) is None
