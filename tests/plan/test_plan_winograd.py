"""Convolutions in transformed tiles: where plans take them, how far they err, and where never."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planrun import WIDE, run_graph

from gpuedge.core.caps import Caps
from gpuedge.core.storage import BUFFER, HALF_BUFFER
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.opset import winograd
from gpuedge.opset.bounds import Num
from gpuedge.opset.tensor import Window
from gpuedge.oracle.layers import convolve
from gpuedge.plan.planner import plan
from gpuedge.plan.storages import EXACT, StoragePrecision
from gpuedge.runtime import crosscheck
from gpuedge.runtime.crosscheck import CrossCheck

ID = "conv2d_winograd"
RASTERISER = replace(
    WIDE, device_class="cpu-llvm", max_texel_buffers=16, max_texel_elements=1 << 27
)
RNG = np.random.default_rng(44)


def drawn(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def graph(
    size: tuple[int, ...] = (1, 16, 12, 13),
    filters: int = 16,
    kernel: int = 3,
    op: str = "Conv",
    **attrs: object,
) -> Graph:
    """Return one convolution with pads of 1, and a sum with another tensor."""
    builder = GraphBuilder(opset=17)
    builder.input("x", TensorType("float32", size))
    group = int(str(attrs.get("group", 1)))
    shape = (filters, size[1] // group, kernel, kernel)
    builder.constant("w", drawn(*(shape if op == "Conv" else (shape[1], shape[0], *shape[2:]))))
    builder.constant("b", drawn(filters))
    builder.output(builder.add(op, ["x", "w", "b"], {"pads": [1, 1, 1, 1], **attrs}))
    return builder.build()


def variants(
    one: Graph, caps: Caps = RASTERISER, restricted: tuple[str, ...] = (),
    precision: StoragePrecision = EXACT,
) -> set[str]:  # fmt: skip
    made = plan(one, caps, restricted, precision)
    return {p.variant for p in made.passes if p.variant.startswith("conv")}


def test_three_passes_of_one_variant_whose_tensors_count() -> None:
    made = plan(graph(), RASTERISER)
    passes = [p for p in made.passes if p.variant == ID]
    assert [p.source.kernel for p in passes] == [
        "group/winograd_input", "group/conv2d_tile", "group/winograd_output",
    ]  # fmt: skip
    inputs, products = (made.tensors[p.tensors["O"]] for p in passes[:2])
    assert inputs.nbytes == products.nbytes == 16 * 4 * 36 * 3 * 4
    (weights,) = (t for t in made.tensors.values() if t.host and t.host.sources[0] == "w")
    assert weights.nbytes == 16 * 16 * 37 * 4
    assert made.steps[0].variants.count(ID) == 1


@pytest.mark.parametrize(("channels", "filters"), [(16, 16), (18, 13), (64, 37)])
def test_weights_at_the_points_are_rounded_once(channels: int, filters: int) -> None:
    """Of each filter G w G^T in float64; then the bias, at the first input channel."""
    one = graph((1, channels, 12, 13), filters)
    (weights,) = (t for t in plan(one, RASTERISER).tensors.values() if t.host and t.is_constant)
    assert weights.host is not None and weights.host.build is not None
    w, b = one.constants["w"], one.constants["b"]
    ins, outs = (-(-n // 4) for n in (channels, filters))
    got = weights.host.build(w, b).reshape(outs, 37, 4 * ins, 4)  # slice, point, channel in, out
    assert got.dtype == np.float32
    wanted, sizes = np.zeros((2, outs * 4, ins * 4, 36))
    for into, g, x in ((wanted, winograd._G, w), (sizes, abs(winograd._G), abs(w))):
        into[:filters, :channels] = (g @ x.astype(np.float64) @ g.T).reshape(filters, channels, 36)
    points = got[:, :36].transpose(0, 3, 2, 1).reshape(wanted.shape)
    half = np.spacing(np.abs(wanted).astype(np.float32)) / 2
    # In float64 a term passes 8 additions and a product, here or in kron; in G w G^T 4 and 2.
    assert (np.abs(points - wanted) <= half + 16 * 2.0**-53 * sizes).all()
    biases = np.zeros(outs * 4, np.float32)
    biases[:filters] = b
    assert np.array_equal(got[:, 36, 0].ravel(), biases)
    assert not got[:, 36, 1:].any()


@pytest.mark.parametrize(
    "one",
    [
        graph((1, 15, 12, 13)),  # few channels
        graph(filters=12),  # three slices
        graph((1, 16, 11, 13)),  # 143 pixels
        graph((1, 16, 1, 144)),  # a quarter of what the tiles cover
        graph((1, 16, 24, 26), strides=[2, 2]),
        graph((1, 16, 14, 15), dilations=[2, 2]),
        graph((1, 32, 12, 13), filters=32, group=2),
        graph(kernel=5),
        graph(op="ConvTranspose"),
    ],
)
def test_others_are_computed_directly(one: Graph) -> None:
    assert ID not in variants(one)


def test_classes_where_it_was_not_measured() -> None:
    for name in ("generic", "mali", "adreno", "nvidia"):
        assert ID not in variants(graph(), replace(RASTERISER, device_class=name))


@pytest.mark.parametrize(
    "limits",
    [
        {"max_storage_buffer_bytes": 64 * 37 * 16 - 1},
        {"max_texel_elements": 36 * 12 * 4 - 1},
        {"ruled_out": frozenset({ID})},
    ],
)
def test_limits_leave_the_tiles(limits: dict[str, object]) -> None:
    big = replace(RASTERISER, max_storage_buffer_bytes=64 * 37 * 16, max_texel_elements=1 << 20)
    assert variants(graph(), big) == {ID}
    assert variants(graph(), replace(big, **limits)) == {"conv2d_shared4x8_lanes"}  # type: ignore[arg-type]


def test_textures_hold_what_texel_buffers_do_not() -> None:
    small = replace(RASTERISER, max_texel_elements=36 * 12 * 4 - 1)
    assert variants(graph(), small) == {"conv2d_shared4x8_lanes"}
    assert variants(graph(), replace(small, max_copied_elements=64 * 37)) == {ID}


def test_a_failure_leaves_the_tiles() -> None:
    assert variants(graph(), restricted=(ID,)) == {"conv2d_shared4x8_lanes"}


def test_never_in_float16() -> None:
    caps = replace(RASTERISER, has_fp16_arithmetic=True, storages=(BUFFER, HALF_BUFFER))
    assert variants(graph(), caps) == {ID}
    for precision in (StoragePrecision("float16"), StoragePrecision(arithmetic="float16")):
        (found,) = variants(graph(), caps, precision=precision)
        assert "winograd" not in found


@pytest.mark.parametrize("op", ["ConvInteger", "QLinearConv"])
def test_integers_are_summed_exactly(op: str) -> None:
    builder = GraphBuilder(opset=17)
    builder.input("x", TensorType("uint8", (1, 16, 12, 13)))
    w = RNG.integers(-7, 8, (16, 16, 3, 3)).astype(np.int8)
    builder.constant("w", w)
    names = ["x", "w"]
    if op == "QLinearConv":
        for name in ("xs", "ws", "ys"):
            builder.constant(name, np.asarray(0.5, np.float32))
        for name, dtype in (("xz", "u1"), ("wz", "i1"), ("yz", "u1")):
            builder.constant(name, np.asarray(0, dtype))
        names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    builder.output(builder.add(op, names, {"pads": [1, 1, 1, 1]}))
    one = builder.build()
    assert variants(one) == {"conv2d_shared4x8_lanes"}
    x = RNG.integers(0, 256, (1, 16, 12, 13)).astype(np.uint8)
    (got,) = run_graph(one, {"x": x}, RASTERISER).values()
    (wanted,) = CpuExecutor(engine="numpy").compile(one).run({"x": x}).values()
    np.testing.assert_array_equal(got, wanted)


def test_the_algorithm_is_a_convolution() -> None:
    x, w = RNG.standard_normal((2, 3, 9, 10)), RNG.standard_normal((5, 3, 3, 3))
    window = Window((3, 3), (1, 1), (1, 1, 1, 1), (1, 1), (9, 10))
    wanted = convolve(x, w, pads=(1, 1, 1, 1))
    np.testing.assert_allclose(winograd.filtered(x, w, window), wanted, 0, 1e-12)


@pytest.mark.parametrize("kind", ["normal", "positive", "edge"])
def test_errors_lie_within_both_bounds_and_near_the_running_one(kind: str) -> None:
    """A sum that is exactly 0 has a bound, and no bound is far from what is found."""
    one = graph((2, 24, 14, 15), 14)
    x, w = drawn(2, 24, 14, 15), one.constants["w"]
    if kind == "positive":
        x = np.abs(x)
    elif kind == "edge":
        x[..., :, 5:] = 0
    (got,) = run_graph(one, {"x": x}, RASTERISER).values()
    exact = convolve(x, w, pads=(1, 1, 1, 1))
    window = Window((3, 3), (1, 1), (1, 1, 1, 1), (1, 1), (14, 15))
    b = one.constants["b"].astype(np.float64).reshape(-1, 1, 1)
    error = np.abs(got - (exact + b)) - 2.0**-24 * np.abs(exact + b)
    bound = winograd.bound(Num.of(x), Num.of(w), window)
    running = winograd.running_error(Num.of(x), Num.of(w), window)
    assert (error <= np.minimum(bound, 2 * running) + 1e-30).all()
    if kind == "edge":
        assert np.abs(exact[..., 6]).max() == 0 and np.abs(got - b)[..., 6:8].max() > 0
    assert error.max() > 0.02 * running.max()


def test_cross_checks_know_the_bound_and_notice_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crosscheck, "SCREEN", 0.0)  # nothing passes by its size alone
    one = graph((1, 16, 12, 13), 16)
    x = RNG.integers(-4, 5, (1, 16, 12, 13)).astype(np.float32)
    x[..., 5:] = 0
    cpu = CpuExecutor()
    answer = run_graph(one, {"x": x}, RASTERISER)
    compiled = cpu.compile(one)
    check = CrossCheck(one, 1.0, cpu)
    assert check.compare({"x": x}, answer, compiled.run) is None and not check.note
    (name,) = answer
    worse = answer[name].copy()
    worse[0, 3, 4, 5] += 2e-3 * np.abs(worse).max()
    said = check.compare({"x": x}, {name: worse}, compiled.run)
    assert said is not None and "1 of 2496" in said
