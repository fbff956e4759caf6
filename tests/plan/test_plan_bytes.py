"""int8, uint8 and wider integers: how plans keep them, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from planrun import FLOAT_TEXTURES, TEXTURES, plan_device, run_graph, seen_by
from single_node import single

import gpuedge
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import DTypeError, InputError, UnsupportedOpError
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, TensorType
from gpuedge.plan.plan import Plan
from gpuedge.plan.planner import plan, why_not

BOTH = ("int8", "uint8")


def numbers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """All values of the dtype come up, the outermost ones first."""
    about = np.iinfo(dtype)
    values = np.random.default_rng(seed).integers(about.min, about.max + 1, shape).astype(dtype)
    values.ravel()[:2] = about.min, about.max
    return values


X = (2, 5, 7, 6)


@pytest.mark.parametrize(("dtype", "kind"), [("int8", "rgba8_s8"), ("uint8", "rgba8_u8")])
def test_bytes_take_a_quarter_where_a_number_takes_a_texel(dtype: str, kind: str) -> None:
    """What comes from the host does everywhere."""
    word = f"buffer_{kind[-2:]}"
    for caps, storages in (
        (TEXTURES, {kind}), (FLOAT_TEXTURES, {"rgba32f", kind}), (VULKAN_MINIMUM, {"buffer", word}),
        (replace(VULKAN_MINIMUM, storages=("buffer", "buffer_f16")), {"buffer"}),
    ):  # fmt: skip
        device = plan_device(caps)
        gpuedge.max_pool2d(numbers(dtype, X), 3, device=device)
        assert seen_by(device).storages == storages


def kept(made: Plan) -> list[tuple[str, list[str], str]]:
    """Return of each pass its operation, the kinds of what it reads, and of what it writes."""
    return [
        (
            one.source.kernel.rpartition("/")[2],
            [made.tensors[n].storage.kind for n in one.tensors.values() if n not in one.outputs],
            made.tensors[one.outputs[0]].storage.kind,
        )
        for one in made.passes
    ]


def test_maps_and_sums_read_bytes_as_they_are() -> None:
    b = GraphBuilder()
    x = b.add("Cast", [b.input("x", TensorType("uint8", (5, 7, 3)))], {"to": 1})
    turned = b.add("Transpose", [b.add("Mul", [x, x])], {"perm": (2, 0, 1)})
    b.output(turned, b.add("ReduceMax", [x]))
    passes = kept(plan(b.build(), VULKAN_MINIMUM))
    assert [kinds for _, *kinds in passes] == [[["buffer_u8"], "buffer"]] * 2


def test_what_reads_them_again_and_again_reads_floats() -> None:
    """One pass makes those of a matrix, for both products; images are packed anyway."""
    b = GraphBuilder()
    x = b.input("x", TensorType("uint8", (12, 8)))
    y, z = (b.constant(n, numbers("int8", (8, 16), i)) for i, n in enumerate("yz"))
    b.output(b.add("MatMulInteger", [x, y]), b.add("MatMulInteger", [x, z]))
    passes = kept(plan(b.build(), VULKAN_MINIMUM))
    assert [kinds for _, *kinds in passes if "buffer_u8" in kinds[0]] == [[["buffer_u8"], "buffer"]]
    assert passes[0][0] == "elementwise" and len(passes) == 3
    b = GraphBuilder()
    x = b.input("x", TensorType("uint8", (1, 3, 8, 8)))
    b.output(b.add("ConvInteger", [x, b.constant("w", numbers("int8", (4, 3, 3, 3)))]))
    first, *rest = kept(plan(b.build(), VULKAN_MINIMUM))
    assert first[1:] == (["buffer_u8"], "buffer") and first[0].startswith("pack")
    assert all("buffer_u8" not in read for _, read, _ in rest)


@pytest.mark.parametrize("caps", [VULKAN_MINIMUM, FLOAT_TEXTURES, TEXTURES])
def test_an_input_that_is_a_result_is_copied_to_what_kernels_write(caps: Caps) -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("int8", (3, 5)))
    b.output(b.add("Identity", [x]), b.add("Reshape", [x, b.constant("s", np.array([15]))]))
    graph = b.build()
    written = "rgba8_s8" if caps is TEXTURES else caps.storages[0]
    assert {kind for *_, kind in kept(plan(graph, caps))} == {written}
    values = numbers("int8", (3, 5))
    for found in run_graph(graph, {"x": values}, caps).values():
        np.testing.assert_array_equal(found.reshape(3, 5), values)


def test_a_buffer_takes_four_times_as_many_bytes_as_floats() -> None:
    """A texture does not: it is its texels that are limited."""
    b = GraphBuilder()
    x = b.input("x", TensorType("uint8", (64, 1024)))
    b.output(b.add("ReduceSum", [b.add("Cast", [x], {"to": 1})]))
    graph, values = b.build(), numbers("uint8", (64, 1024))
    small = replace(VULKAN_MINIMUM, max_storage_buffer_bytes=1 << 16)
    (found,) = run_graph(graph, {"x": values}, small).values()
    assert found == values.sum() < 2**24
    smaller = replace(small, max_storage_buffer_bytes=(1 << 16) - 16)
    textures = replace(FLOAT_TEXTURES, max_storage_buffer_bytes=1 << 16)
    for caps, nbytes in ((smaller, 1 << 16), (textures, 1 << 18)):
        with pytest.raises(UnsupportedOpError, match=f"binds a tensor of {nbytes} bytes"):
            plan(graph, caps)


def test_models_of_bytes_and_floats() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("uint8", (1, 3, 8, 8)))
    f = b.input("f", TensorType("float32", (1, 3, 8, 8)))
    low = b.constant("low", numbers("uint8", (3, 1, 1), 4))
    pooled = b.add("MaxPool", [b.add("Max", [x, low])], {"kernel_shape": [2, 2]})
    b.output(pooled, b.add("Relu", [f]))
    feeds = {"x": numbers("uint8", (1, 3, 8, 8)), "f": np.ones((1, 3, 8, 8), np.float32)}
    got = run_graph(b.build(), feeds, TEXTURES)[pooled]
    assert got.dtype == np.uint8
    x = np.maximum(feeds["x"], numbers("uint8", (3, 1, 1), 4))
    wanted = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3)).max((4, 5))
    np.testing.assert_array_equal(got, wanted)
    kinds = {t.storage.kind for t in plan(b.build(), TEXTURES).tensors.values()}
    assert kinds == {"rgba8_float", "rgba8_u8"}


@pytest.mark.parametrize("op", ["Relu", "GlobalMaxPool", "AveragePool"])
def test_operators_that_leave_the_range_are_refused(op: str) -> None:
    kinds = {"a": TensorType("uint8", (1, 2, 4, 4)), "b": TensorType("uint8", (1, 2, 4, 4))}
    floats = {n: TensorType("float32", k.shape) for n, k in kinds.items()}
    attrs = {"kernel_shape": [2, 2]} if op == "AveragePool" else {}
    graph = single(op, {"a": floats["a"]}, attrs)
    assert why_not(graph.nodes[0], graph, VULKAN_MINIMUM) is None
    types = {**graph.types, **kinds, "y": TensorType("uint8", graph.shape("y"))}
    graph = type(graph)(graph.nodes, graph.inputs, graph.outputs, types, {}, graph.opset)
    why = why_not(graph.nodes[0], graph, VULKAN_MINIMUM)
    assert why is not None and "computes in uint8; only float32" in why


@pytest.mark.parametrize(("op", "dtype"), list(product(["Pow"], [*BOTH, "int16"])))
def test_integers_that_float32_does_not_hold_are_refused(op: str, dtype: str) -> None:
    with pytest.raises(UnsupportedOpError, match="beyond 16777216"):
        single(op, {n: TensorType(dtype, (1, 4)) for n in "ab"})


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_what_may_be_negative_is_not_read_as_unsigned(dtype: str) -> None:
    builder = GraphBuilder()
    a, b = (builder.input(n, TensorType(dtype, (4,))) for n in "ab")
    builder.output(builder.add("Greater", [builder.add("Sub", [a, b]), a], output="y"))
    graph = builder.build()
    with pytest.raises(UnsupportedOpError, match=f"negative ones, which {dtype} wraps"):
        plan(graph, VULKAN_MINIMUM)
    assert plan(single("Add", dict.fromkeys("ab", TensorType(dtype, (4,)))), VULKAN_MINIMUM).passes


def test_wide_integers_are_exact_or_refused() -> None:
    builder = GraphBuilder()
    names = [builder.input(n, TensorType("int64", (4,))) for n in "abc"]
    builder.output(builder.add("Add", [builder.add("Mul", names[:2]), names[2]], output="y"))
    graph = builder.build()
    made = plan(graph, VULKAN_MINIMUM)
    assert made.most_integer == 2**12  # whose squares are exact
    fits = {n: np.array([4096, -4095, 0, 17], np.int64) for n in "abc"}
    got = run_graph(graph, fits, VULKAN_MINIMUM)["y"]
    np.testing.assert_array_equal(got, fits["a"] * fits["b"] + fits["c"])


def test_other_types_are_refused() -> None:
    graph = single("Flatten", {"a": TensorType("float64", (2, 3))})
    why = why_not(graph.nodes[0], graph, VULKAN_MINIMUM)
    assert why == "'a' is float64; kernels compute in float32"


def test_arguments_that_do_not_fit() -> None:
    x = numbers("uint8", (4,))
    with pytest.raises(DTypeError, match="mixes the dtypes int8, uint8"):
        gpuedge.maximum(x, x.astype(np.int8), device="cpu")
    with pytest.raises(DTypeError, match="mixes the dtypes float32, uint8"):
        gpuedge.concat([x, x.astype(np.float32)], device="cpu")
    for number in (256, -1, 1.5):
        with pytest.raises(InputError, match="do not fit uint8"):
            gpuedge.minimum(x, number, device="cpu")
    for bounds in ((0.5, 3), (300, None), (None, -4)):
        with pytest.raises(InputError, match="do not fit uint8"):
            gpuedge.clip(x, *bounds, device="cpu")
    with pytest.raises(DTypeError) as caught:
        gpuedge.relu(x, device="cpu")
    assert caught.value.known == "supported dtypes: float32, float16, int8"
    with pytest.raises(DTypeError):
        gpuedge.max_pool2d(x.astype(np.int32).reshape(1, 1, 2, 2), 2, device="cpu")
