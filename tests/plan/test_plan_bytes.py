"""Operations on int8 and uint8: bit exact on every level, and small where numbers are large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from planrun import FLOAT_TEXTURES, TEXTURES, plan_device, run_graph, seen_by
from single_node import single

import gpuedge
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import DTypeError, InputError, UnsupportedOpError
from gpuedge.device import Device
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, TensorType
from gpuedge.plan.planner import plan, why_not

DEVICES: dict[str, Callable[[], Any]] = {
    "vulkan": plan_device,
    "textures": lambda: plan_device(TEXTURES),
    "floats": lambda: plan_device(FLOAT_TEXTURES),
    "numpy": lambda: Device(CpuExecutor(engine="numpy"), "for tests"),
    "cpu": lambda: "cpu",
}
BOTH = ("int8", "uint8")


def numbers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """All values of the dtype come up, the outermost ones first."""
    about = np.iinfo(dtype)
    values = np.random.default_rng(seed).integers(about.min, about.max + 1, shape).astype(dtype)
    values.ravel()[:2] = about.min, about.max
    return values


def windows(x: Array, size: int, stride: int, pad: int) -> Array:
    """Maximum over windows by definition."""
    n, c, h, w = x.shape
    out = [(d + 2 * pad - size) // stride + 1 for d in (h, w)]
    y = np.empty((n, c, *out), x.dtype)
    for i in range(out[0]):
        for j in range(out[1]):
            top, left = i * stride - pad, j * stride - pad
            part = x[:, :, max(top, 0) : top + size, max(left, 0) : left + size]
            y[:, :, i, j] = part.max(axis=(2, 3))
    return y


X = (2, 5, 7, 6)
CASES: dict[str, Callable[[Array, Array, Any], tuple[Array, Array]]] = {
    "max_pool2d": lambda x, y, d: (
        gpuedge.max_pool2d(x, 3, stride=2, padding=1, device=d),
        windows(x, 3, 2, 1),
    ),
    "concat": lambda x, y, d: (
        gpuedge.concat([x, y, x], 1, device=d),
        np.concatenate([x, y, x], 1),
    ),
    "transpose": lambda x, y, d: (
        gpuedge.transpose(x, (3, 1, 0, 2), device=d),
        x.transpose(3, 1, 0, 2),
    ),
    "reshape": lambda x, y, d: (gpuedge.reshape(x, (6, -1), device=d), x.reshape(6, -1)),
    "flatten": lambda x, y, d: (gpuedge.flatten(x, device=d), x.reshape(2, -1)),
    "clip": lambda x, y, d: (gpuedge.clip(x, 3, 99, device=d), np.clip(x, 3, 99)),
    "clip_open": lambda x, y, d: (
        gpuedge.clip(x, None, 9, device=d),
        np.minimum(x, x.dtype.type(9)),
    ),
    "maximum": lambda x, y, d: (gpuedge.maximum(x, y, device=d), np.maximum(x, y)),
    "minimum": lambda x, y, d: (gpuedge.minimum(x, y[0, 0], device=d), np.minimum(x, y[0, 0])),
    "with_number": lambda x, y, d: (
        gpuedge.maximum(x, 17, device=d),
        np.maximum(x, x.dtype.type(17)),
    ),
    "sign": lambda x, y, d: (gpuedge.sign(x, device=d), np.sign(x)),
    "strided": lambda x, y, d: (
        gpuedge.maximum(x[:, ::-1], y, device=d),
        np.maximum(x[:, ::-1], y),
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", CASES)
def test_bytes_are_exact(name: str, dtype: str, device: str) -> None:
    x, y = numbers(dtype, X), numbers(dtype, X, 1)
    got, wanted = CASES[name](x, y, DEVICES[device]())
    assert got.dtype == wanted.dtype == dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_relu_of_int8(device: str) -> None:
    x = numbers("int8", (300,))
    got = gpuedge.relu(x, device=DEVICES[device]())
    assert got.dtype == np.int8
    np.testing.assert_array_equal(got, np.maximum(x, np.int8(0)))


@pytest.mark.parametrize(("dtype", "kind"), [("int8", "rgba8_s8"), ("uint8", "rgba8_u8")])
def test_bytes_take_a_quarter_where_a_number_takes_a_texel(dtype: str, kind: str) -> None:
    for caps, storage in (
        (TEXTURES, kind), (FLOAT_TEXTURES, "rgba32f"), (VULKAN_MINIMUM, "buffer"),
    ):  # fmt: skip
        device = plan_device(caps)
        gpuedge.max_pool2d(numbers(dtype, X), 3, device=device)
        assert seen_by(device).storages == {storage}


def test_a_window_without_pixels_gives_the_least_integer() -> None:
    x = numbers("int8", (1, 2, 2, 2))
    for name in ("vulkan", "textures", "numpy"):
        device = DEVICES[name]()
        got = gpuedge.max_pool2d(x, 2, dilation=3, padding=((1, 1), (1, 1)), device=device)
        np.testing.assert_array_equal(got, np.full((1, 2, 1, 1), -128, np.int8))


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
    wanted = windows(np.maximum(feeds["x"], numbers("uint8", (3, 1, 1), 4)), 2, 1, 0)
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


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Neg", "Abs", "Div", "Pow"])
def test_small_integers_wrap(op: str, dtype: str) -> None:
    """As numpy has it; products of 16 bits are refused, because float32 does not hold them."""
    a, b = np.array([[200, 100, 3, 7]], np.int64), np.array([[100, 99, 2, 1]], np.int64)
    a = (a if dtype == "uint8" else a - 150).astype(dtype)
    b = b.astype(dtype)
    kinds = {n: TensorType(dtype, (1, 4)) for n in ("ab" if op not in ("Neg", "Abs") else "a")}
    if (op, dtype) == ("Mul", "int16") or op == "Pow":
        with pytest.raises(UnsupportedOpError, match="beyond 16777216"):
            single(op, kinds)
        return
    graph = single(op, kinds)
    assert why_not(graph.nodes[0], graph, VULKAN_MINIMUM) is None
    whole = {"Add": a + b, "Sub": a - b, "Mul": a * b, "Neg": -a, "Abs": np.abs(a),
             "Div": np.trunc(a / b).astype(np.int64).astype(dtype)}[op]  # fmt: skip
    np.testing.assert_array_equal(run_graph(graph, {"a": a, "b": b}, VULKAN_MINIMUM)["y"], whole)


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
