"""How tensors are kept: whose buffer is whose, and what each storage does to the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planrun import FLOAT_TEXTURES, TEXTURES, PlanRun, Seen, kept, run_graph
from single_node import single

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.core.storage import Storage
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.plan import arrange as arranging
from gpuedge.plan import conv, lower, matmul
from gpuedge.plan.arrange import arrange
from gpuedge.plan.plan import Plan
from gpuedge.plan.planner import plan, why_not
from gpuedge.plan.storages import UNBOUNDED, StoragePrecision, fixed16, range_of

FLOAT = "float32"


def chain(length: int = 6, shape: tuple[int, ...] = (1, 4, 8, 8)) -> Graph:
    """Poolings of one size, which no kernel joins."""
    b = GraphBuilder()
    value = b.input("x", TensorType(FLOAT, shape))
    for _ in range(length):
        value = b.add("MaxPool", [value], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})
    b.output(value)
    return b.build()


def network() -> tuple[Graph, dict[str, Array]]:
    """Every way in which plans make tensors, with an input and constants."""
    rng = np.random.default_rng(5)
    b = GraphBuilder()
    x = b.input("x", TensorType(FLOAT, (2, 6, 9, 7)))
    w = b.constant("w", rng.standard_normal((6, 6, 3, 3)).astype(np.float32))
    bias = b.constant("b", rng.standard_normal(6).astype(np.float32))
    first = b.add("Relu", [b.add("Conv", [x, w, bias], {"pads": [1, 1, 1, 1]})])
    pooled = b.add("MaxPool", [first], {"kernel_shape": [2, 2], "strides": [2, 2]})
    scale = b.constant("s", rng.standard_normal((6, 1, 1)).astype(np.float32))
    joined = b.add("Concat", [pooled, b.add("Mul", [pooled, scale])], {"axis": 1})
    mean = b.add("GlobalAveragePool", [joined])
    flat = b.add("Flatten", [mean])
    m = b.constant("m", rng.standard_normal((12, 10)).astype(np.float32))
    c = b.constant("c", rng.standard_normal(10).astype(np.float32))
    logits = b.add("Gemm", [flat, m, c])
    b.output(b.add("Softmax", [logits]), b.add("Transpose", [joined], {"perm": [1, 0, 3, 2]}))
    return b.build(), {"x": rng.standard_normal((2, 6, 9, 7)).astype(np.float32)}


# -- buffers --------------------------------------------------------------------------------------


def homes(made: Plan) -> arranging.Arrangement:
    return arrange(made, 256, has_suballocation=False)


def test_without_suballocation_every_tensor_has_a_whole_buffer() -> None:
    made = plan(network()[0], TEXTURES)
    where = homes(made)
    assert {r.offset for r in where.regions.values()} == {0}
    assert not {arranging.ARENA, arranging.CONSTANTS} & set(where.buffers)
    alive = {made.tensors[n].memory for n in where.regions}
    constants = [m for m in alive if made.tensors[m].is_constant]
    assert len({where.regions[m].buffer for m in constants}) == len(constants) > 2
    roles = {where.buffers[where.regions[m].buffer].role for m in constants}
    assert roles == {"constant"}
    assert len(where.inputs) == 1 and len(where.outputs) == 2


def test_dead_buffers_are_taken_over() -> None:
    where = homes(plan(chain(8), TEXTURES))
    scratch = [n for n, home in where.buffers.items() if home.role == "scratch"]
    assert len(scratch) == 2  # read one, write the other


def test_only_buffers_of_the_same_storage_and_size_are_taken_over() -> None:
    graph = chain(6)
    ranges = {v: (0.0, float(i)) for i, v in enumerate(graph.types, 1)}
    where = homes(plan(graph, TEXTURES, (), StoragePrecision("fixed16", ranges)))
    kinds = [home.storage for home in where.buffers.values() if home.role == "scratch"]
    assert len(kinds) == 7 == len(set(kinds))  # every range is another, so nothing is shared


@pytest.mark.parametrize("caps", [TEXTURES, FLOAT_TEXTURES], ids=["bytes", "floats"])
def test_network_on_textures(caps: Caps) -> None:
    graph, feeds = network()
    seen = Seen()
    others = ("conv2d_taps3", "matmul_turned")  # which add in another order
    got = run_graph(graph, feeds, caps, others, seen)
    wanted = run_graph(graph, feeds, VULKAN_MINIMUM, ("conv2d_px4", "matmul_rows"))
    assert seen.storages == {caps.storages[0]}
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)


def test_buffer_taken_over_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(plan: Plan) -> dict[str, tuple[int, int]]:
        return {name: (first, first) for name, (first, _) in lifetimes(plan).items()}

    lifetimes = arranging._lifetimes
    monkeypatch.setattr(arranging, "_lifetimes", hasty)
    made = plan(chain(4), TEXTURES)
    x = np.zeros((1, 4, 8, 8), np.float32)
    with pytest.raises(AssertionError, match=r"read and written at once|from the buffer of"):
        PlanRun(made, 256, Seen(), has_suballocation=False).run({"x": x})


def test_view_kept_in_another_way_is_caught() -> None:
    graph, feeds = network()
    made = plan(graph, TEXTURES)
    view = next(
        t for t in made.tensors.values()
        if t.name != t.memory and any(t.name in p.tensors.values() for p in made.passes)
    )  # fmt: skip
    wrong = replace(view, storage=Storage("rgba8_u8"))
    made = replace(made, tensors={**made.tensors, view.name: wrong})
    with pytest.raises(AssertionError, match="kept in two ways"):
        PlanRun(made, 256, Seen(), has_suballocation=False).run(feeds)


# -- fixed point ----------------------------------------------------------------------------------

bounds = st.floats(-1e30, 1e30)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(bounds, bounds, st.integers(0, 65535))
def test_fixed_point_holds_its_range_and_zero_exactly(a: float, b: float, k: int) -> None:
    low, high = min(a, b), max(a, b)
    storage = fixed16(low, high)
    width = max(high, 0.0) - min(low, 0.0)
    if storage is None:
        assert 0 < width < 2.0**-100
        return
    step = (storage.high - storage.low) / 65535
    assert storage.low <= min(low, 0.0) and storage.high >= max(high, 0.0)
    if width:
        assert step <= width / 65535 * (1 + 1 / 64)
    value = storage.low + k * step
    assert float(np.float32(storage.low) + np.float32(k) * np.float32(step)) == value
    assert kept(np.float32([0, value]), storage).tolist() == [0, value]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.001, 1000), st.floats(-0.9, 0.9))
def test_fixed_point_is_within_half_a_step(seed: int, scale: float, shift: float) -> None:
    values = ((np.random.default_rng(seed).random(64) - 0.5 + shift) * scale).astype(np.float32)
    storage = fixed16(*range_of(values))
    assert storage is not None
    step = (storage.high - storage.low) / 65535
    assert (np.abs(kept(values, storage).astype(np.float64) - values) <= step * 0.516).all()
    beyond = kept(np.float32([storage.low - scale, storage.high + scale]), storage)
    assert beyond.tolist() == [storage.low, storage.high]


def test_zero_between_two_steps_costs_one_more() -> None:
    storage = fixed16(-0.5, 65534.5)  # 65,535 steps of 1, but zero would lie beside them
    assert storage is not None
    assert (storage.high - storage.low) / 65535 == 1 + 2.0**-7


def test_ranges_that_float32_cannot_step_through_stay_exact() -> None:
    assert fixed16(*UNBOUNDED) is None
    assert fixed16(-1e38, 1e38) is None
    assert fixed16(0.0, 1e-35) is None
    assert fixed16(float("nan"), 1.0) is None


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0, 0.1])
def test_range_of_one_value(value: float) -> None:
    storage = fixed16(value, value)
    assert storage is not None
    (back,) = kept(np.float32([value]), storage)
    assert abs(float(back) - value) <= abs(value) / 65535


def test_range_of_arrays() -> None:
    assert range_of(np.float32([3, -1, 2])) == (-1.0, 3.0)
    assert range_of(np.zeros((0, 4), np.float32)) == (0.0, 0.0)
    for bad in (np.nan, np.inf, -np.inf):
        assert range_of(np.float32([1, bad, 2])) == UNBOUNDED


def storages_of(made: Plan) -> dict[str, str]:
    """Kinds by the first part of the tensors' names, of those that hold memory."""
    found: dict[str, set[str]] = {}
    for tensor in made.tensors.values():
        found.setdefault(tensor.name.partition("@")[0], set()).add(tensor.storage.kind)
    return {name: "+".join(sorted(kinds)) for name, kinds in found.items()}


def test_what_is_kept_in_fixed_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "MAX_TRIPS", 12)
    monkeypatch.setattr(matmul, "STEP", 1)
    monkeypatch.setattr(lower, "CHUNK", 4)
    graph, _ = network()
    ranges = dict.fromkeys(graph.types, (-4.0, 4.0))
    made = plan(graph, TEXTURES, (), StoragePrecision("fixed16", ranges))
    fixed, exact = "rgba8_fixed16", "rgba8_float"
    for name, tensor in made.tensors.items():
        value = name.partition("@")[0]
        if value in ("w", "m") or (value and tensor.host is not None and value == "x"):
            assert tensor.storage.kind == fixed, name
        if value in ("s", "c") or "/bias" in value:
            assert tensor.storage.kind == exact, name
    sums = [p for p in made.passes if p.variant in ("conv2d_map", "matmul_map")]
    assert len(sums) > 2  # they are split: parts of sums are exact, the last part is not
    for op in ("conv2d_map", "matmul_map"):
        kinds = [made.tensors[p.outputs[0]].storage.kind for p in sums if p.variant == op]
        assert set(kinds[:-1]) == {exact}
    assert [made.tensors[p.outputs[0]].storage.kind for p in sums if p.variant == "conv2d_map"][
        -1
    ] == fixed
    for one in made.passes:
        if one.variant == "reduce_map" and not one.outputs[0].startswith("GlobalAveragePool"):
            assert made.tensors[one.outputs[0]].storage.kind == exact
    steps = {step.ops: step.storages for step in made.steps}
    assert steps[("MaxPool",)] == (fixed,)
    assert set(steps[("Softmax",)]) == {exact, fixed}


def test_unknown_range_stays_exact() -> None:
    graph = chain(2)
    first, last = (node.outputs[0] for node in graph.nodes)
    made = plan(graph, TEXTURES, (), StoragePrecision("fixed16", {"x": (0, 1), last: UNBOUNDED}))
    kinds = storages_of(made)
    assert (kinds["x"], kinds[first], kinds[last]) == (
        "rgba8_fixed16", "rgba8_float", "rgba8_float",
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["fixed16", "float16"])
def test_devices_that_do_not_offer_it_keep_tensors_exactly(precision: str) -> None:
    graph, _ = network()
    ranges = dict.fromkeys(graph.types, (-4.0, 4.0))
    buffers = replace(VULKAN_MINIMUM, storages=("buffer",))
    for caps in (buffers, replace(TEXTURES, storages=("rgba8_float",))):
        made = plan(graph, caps, (), StoragePrecision(precision, ranges))
        assert {t.storage.kind for t in made.tensors.values()} == {caps.storages[0]}
        assert len(made.passes) == len(plan(graph, caps).passes)


@pytest.mark.parametrize(
    ("caps", "exact_kind", "half_kind"),
    [(FLOAT_TEXTURES, "rgba32f", "rgba16f"), (VULKAN_MINIMUM, "buffer", "buffer_f16")],
)
def test_half_is_for_what_fits_half(caps: Caps, exact_kind: str, half_kind: str) -> None:
    graph, feeds = network()
    seen = Seen()
    got = run_graph(graph, feeds, caps, (), seen, StoragePrecision("float16"))
    assert seen.storages == {exact_kind, half_kind}
    exact = run_graph(graph, feeds, caps)
    for name, value in exact.items():
        worst = np.abs(got[name] - value).max()
        assert 0 < worst < 2e-2  # about 2^-11 for each store of numbers up to ten
    large = single("MatMul", {"a": TensorType(FLOAT, (8, 8))}, None,
                   {"b": np.full((8, 8), 7e4, np.float32)})  # fmt: skip
    made = plan(large, caps, (), StoragePrecision("float16"))
    assert storages_of(made)["b"] == exact_kind and storages_of(made)["a"] == half_kind


def test_halves_in_buffers_take_half_the_memory() -> None:
    graph, _ = network()
    sizes = [
        sum(home.nbytes for home in homes(plan(graph, VULKAN_MINIMUM, (), kept)).buffers.values())
        for kept in (StoragePrecision(), StoragePrecision("float16"))
    ]
    assert sizes[1] < 0.62 * sizes[0]  # biases and scales stay float32


# -- limits of small devices ----------------------------------------------------------------------

TINY = replace(TEXTURES, max_texture_size=64, max_storage_buffer_bytes=64 * 64 // 4 * 16)
"""Textures of 64 by 64 texels, four of them for a texel of the plan."""


def test_too_large_tensors_name_the_limit() -> None:
    fits, more = (single("Relu", {"x": TensorType(FLOAT, (n,))}) for n in (4096, 4097))
    assert plan(fits, TINY).passes
    with pytest.raises(UnsupportedOpError, match="binds a tensor of") as caught:
        plan(more, TINY)
    assert "at most 16384 (max_storage_buffer_bytes, textures of at most 64 by 64)" in str(
        caught.value
    )
    why = why_not(more.nodes[0], more, TINY)
    assert why is not None and "max_storage_buffer_bytes" in why


@pytest.mark.parametrize("bindings", [4, 5, 8])
def test_kernels_bind_no_more_than_the_device_allows(bindings: int) -> None:
    graph, feeds = network()
    for caps in (
        replace(TEXTURES, max_storage_buffers=bindings),
        replace(TEXTURES, max_storage_buffers=16, max_push_bytes=16 * bindings),
    ):
        seen = Seen()
        run_graph(graph, feeds, caps, (), seen)
        ranges = dict.fromkeys(graph.types, (-20.0, 20.0))
        run_graph(graph, feeds, caps, (), seen, StoragePrecision("fixed16", ranges))
        assert seen.most_bindings <= bindings
