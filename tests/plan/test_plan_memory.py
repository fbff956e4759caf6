"""The memory plan: nothing alive is overwritten, whatever the sizes and lifetimes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planrun import WIDE, PlanRun, Seen, run_graph

from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.plan.arrange import ARENA, CONSTANTS, Region, arrange
from gpuedge.plan.layout import channels, linear, make, rows, same_bytes, to_texels
from gpuedge.plan.memory import Lifetime, align, place
from gpuedge.plan.planner import plan


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    found = []
    for i in range(draw(st.integers(0, 20))):
        first = draw(st.integers(0, 12))
        nbytes = draw(st.sampled_from([16, 32, 48, 256, 272, 4096, 5000]))
        found.append(Lifetime(f"t{i}", nbytes, first, first + draw(st.integers(0, 6))))
    return found


@settings(max_examples=200, derandomize=True, deadline=None)
@given(lifetimes(), st.sampled_from([4, 16, 64, 256]))
def test_live_tensors_never_overlap(tensors: list[Lifetime], alignment: int) -> None:
    offsets, total = place(tensors, alignment)
    assert set(offsets) == {t.name for t in tensors}
    assert total % alignment == 0
    for t in tensors:
        assert offsets[t.name] % alignment == 0
        assert offsets[t.name] + t.nbytes <= total
    for i, a in enumerate(tensors):
        for b in tensors[:i]:
            together = a.first <= b.last and b.first <= a.last
            apart = (
                offsets[a.name] + a.nbytes <= offsets[b.name]
                or offsets[b.name] + b.nbytes <= offsets[a.name]
            )
            assert apart or not together, (a, b)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(lifetimes())
def test_arena_lies_between_the_peak_and_the_sum(tensors: list[Lifetime]) -> None:
    _, total = place(tensors, 16)
    peak = max(
        (sum(t.nbytes for t in tensors if t.first <= i <= t.last) for i in range(20)), default=0
    )
    assert peak <= total <= sum(align(t.nbytes, 16) for t in tensors)


def test_memory_is_shared_by_tensors_that_never_meet() -> None:
    chain = [Lifetime(f"t{i}", 1024, i, i + 1) for i in range(10)]
    _, total = place(chain, 256)
    assert total == 2048


@pytest.mark.parametrize(
    ("a", "b", "overlap"),
    [
        (Region("x", 0, 16), Region("x", 16, 16), False),
        (Region("x", 0, 17), Region("x", 16, 16), True),
        (Region("x", 0, 16), Region("y", 0, 16), False),
        (Region("x", 64, 16), Region("x", 0, 256), True),
    ],
)
def test_regions(a: Region, b: Region, overlap: bool) -> None:
    assert a.overlaps(b) is overlap
    assert b.overlaps(a) is overlap


def diamond() -> Graph:
    """Branches that could run side by side, then meet: every tensor kind of a plan."""
    b = GraphBuilder()
    rng = np.random.default_rng(1)
    x = b.input("x", TensorType("float32", (2, 5, 6, 7)))
    weights = [
        b.constant(f"w{i}", rng.integers(-2, 3, (5, 5, 3, 3)).astype(np.float32)) for i in range(3)
    ]
    left = b.add("Conv", [x, weights[0]], {"pads": [1, 1, 1, 1]})
    right = b.add("MaxPool", [x], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})
    deep = b.add("Conv", [left, weights[1]], {"pads": [1, 1, 1, 1]})
    flat = b.add("Transpose", [right], {"perm": [0, 1, 2, 3]})
    joined = b.add("Concat", [deep, flat, left], {"axis": 1})
    last = b.add("Add", [b.add("Conv", [right, weights[2]], {"pads": [1, 1, 1, 1]}), left])
    b.output(joined, last)
    return b.build()


@pytest.mark.parametrize("caps", [VULKAN_MINIMUM, WIDE], ids=["minimum", "wide"])
def test_branches_share_the_arena(caps: object) -> None:
    graph = diamond()
    x = np.random.default_rng(2).integers(-3, 4, (2, 5, 6, 7)).astype(np.float32)
    out = run_graph(graph, {"x": x}, caps)  # type: ignore[arg-type]
    assert {v.shape for v in out.values()} == {(2, 15, 6, 7), (2, 5, 6, 7)}
    made = plan(graph, caps)  # type: ignore[arg-type]
    where = arrange(made, 256)
    scratch = {
        t.memory: t.layout.nbytes
        for t in made.tensors.values()
        if where.regions.get(t.memory, Region("", 0, 0)).buffer == ARENA
    }
    assert where.buffers[ARENA].nbytes < sum(scratch.values())
    assert set(where.inputs) | set(where.outputs) | {ARENA, CONSTANTS} == set(where.buffers)
    assert not where.depends[0]
    assert any(not d for d in where.depends[1:])


def test_arena_that_ignored_lifetimes_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuedge.plan import arrange as module

    monkeypatch.setattr(module, "place", lambda items, _: ({t.name: 0 for t in items}, 1 << 16))
    made = plan(diamond(), VULKAN_MINIMUM)
    x = {"x": np.random.default_rng(2).standard_normal((2, 5, 6, 7)).astype(np.float32)}
    wrong = PlanRun(made, 256, Seen()).run(x)
    monkeypatch.undo()
    right = PlanRun(made, 256, Seen()).run(x)
    assert any(not np.array_equal(right[n], wrong[n], equal_nan=True) for n in right)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    st.sampled_from(["channels", "rows", "linear"]),
    st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 9]), min_size=4, max_size=4),
)
def test_packed_layouts_hold_every_element_once(kind: str, shape: list[int]) -> None:
    layout = make(kind, tuple(shape))  # type: ignore[arg-type]
    size = int(np.prod(shape))
    array = np.arange(1, size + 1, dtype=np.float32).reshape(shape)
    width, height, slices, batch = layout.extents
    texels = to_texels(array, layout)
    assert texels.nbytes == layout.nbytes == 16 * width * height * slices * batch
    np.testing.assert_array_equal(np.sort(texels[texels != 0]), array.ravel())
    grid = texels.reshape(batch, slices, height, width, 4)
    n, c, y, x = (s - 1 for s in shape)
    if kind == "channels":
        assert grid[n, c // 4, y, x, c % 4] == array[n, c, y, x]
    elif kind == "rows":
        assert grid[n * shape[1] + c, 0, y, x // 4, x % 4] == array[n, c, y, x]
    else:
        assert texels[size - 1] == array[n, c, y, x]
    if same_bytes(layout):
        np.testing.assert_array_equal(texels[:size], array.ravel())


def test_layouts_of_known_shapes() -> None:
    assert linear(()).extents == (1, 1, 1, 1)
    assert linear((0, 3)).extents == (1, 1, 1, 1)
    assert linear((4 * 4096 + 1,)).extents == (4096, 2, 1, 1)
    assert channels((2, 9, 3, 5)).extents == (5, 3, 3, 2)
    assert channels((2, 9, 7)).extents == (7, 1, 3, 2)
    assert rows((2, 3, 4, 5)).extents == (2, 4, 1, 6)
