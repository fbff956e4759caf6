"""The memory plan: nothing alive is overwritten, whatever the sizes and lifetimes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planrun import FLOAT_TEXTURES, WIDE, PlanRun, Seen, run_graph
from usual_nets import USUAL

from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.storage import Storage
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.plan.arrange import ARENA, CONSTANTS, Arrangement, BufferSpec, Region, arrange
from gpuedge.plan.layout import channels, linear, make, rows, same_bytes, to_texels
from gpuedge.plan.memory import Lifetime, align, most_alive, place, share
from gpuedge.plan.plan import Plan
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


def sums(tensors: list[Lifetime]) -> list[list[int]]:
    """Sizes of what is alive at each pass, the largest first."""
    last = max((t.last for t in tensors), default=0)
    return [
        sorted((t.nbytes for t in tensors if t.first <= i <= t.last), reverse=True)
        for i in range(last + 1)
    ]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(lifetimes())
def test_objects_hold_one_tensor_at_a_time(tensors: list[Lifetime]) -> None:
    homes, sizes = share(tensors)
    assert set(homes) == {t.name for t in tensors}
    assert set(homes.values()) == set(range(len(sizes)))
    for i, a in enumerate(tensors):
        assert a.nbytes <= sizes[homes[a.name]]
        for b in tensors[:i]:
            together = a.first <= b.last and b.first <= a.last
            assert not (together and homes[a.name] == homes[b.name]), (a, b)
    assert most_alive(tensors) == max(map(sum, sums(tensors)), default=0) <= sum(sizes)


@pytest.mark.parametrize("name", USUAL)
def test_usual_networks_take_little_more_than_they_must(name: str) -> None:
    graph = USUAL[name]()
    made = plan(graph, replace(WIDE, max_storage_buffer_bytes=1 << 30))
    where = arrange(made, 256)
    items = scratch_of(made, where)
    assert where.most_alive == max(map(sum, sums(items))) > 1 << 20
    assert where.memory["scratch"] == where.buffers[ARENA].nbytes <= 1.15 * where.most_alive
    assert sum(where.memory.values()) == sum(b.nbytes for b in where.buffers.values())


@pytest.mark.parametrize("name", USUAL)
def test_usual_networks_share_textures(name: str) -> None:
    """Of n tensors alive at once each has an object: so many objects, so large, there must be."""
    graph = USUAL[name]()
    made = plan(graph, replace(FLOAT_TEXTURES, max_storage_buffer_bytes=1 << 30))
    where = arrange(made, 16, has_suballocation=False)
    alive = sums(scratch_of(made, where))
    least = sum(
        max(sizes[i] for sizes in alive if len(sizes) > i) for i in range(max(map(len, alive)))
    )
    assert where.most_alive <= least <= where.memory["scratch"] <= 1.15 * least


def scratch_of(made: Plan, where: Arrangement) -> list[Lifetime]:
    """Return sizes and lifetimes of what passes hand to each other, from the plan alone."""
    host = {t.memory for t in made.tensors.values() if t.host is not None}
    host |= {made.tensors[n].memory for n in made.outputs.values()}
    size: dict[str, int] = {}
    for tensor in made.tensors.values():
        size[tensor.memory] = max(size.get(tensor.memory, 0), tensor.layout.nbytes)
    found: dict[str, Lifetime] = {}
    for i, one in enumerate(made.passes):
        for tensor in (made.tensors[n] for n in one.tensors.values()):
            if tensor.memory not in host:
                first = found[tensor.memory].first if tensor.memory in found else i
                found[tensor.memory] = Lifetime(tensor.memory, size[tensor.memory], first, i)
    assert {where.buffers[where.regions[n].buffer].role for n in found} == {"scratch"}
    return [*found.values()]


def test_a_texture_is_taken_over_by_smaller_tensors() -> None:
    sizes = [4096, 1024, 2048, 1024, 4096]
    chain = [Lifetime(f"t{i}", size, i, i + 1) for i, size in enumerate(sizes)]
    homes, taken = share(chain)
    assert sorted(taken) == [1024, 4096]
    assert homes["t0"] == homes["t2"] == homes["t4"] != homes["t1"] == homes["t3"]


def test_half_of_a_texture_is_counted_as_half() -> None:
    made = BufferSpec(1600, "scratch", Storage("rgba16f"))
    assert made.device_nbytes == 800
    assert BufferSpec(1600, "scratch", Storage("rgba8_float")).device_nbytes == 1600


def test_memory_is_shared_by_tensors_that_never_meet() -> None:
    chain = [Lifetime(f"t{i}", 1024, i, i + 1) for i in range(10)]
    _, total = place(chain, 256)
    assert total == 2048


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
