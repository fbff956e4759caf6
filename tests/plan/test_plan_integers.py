"""Quantised operators and 32-bit integers, bit for bit, without any device."""

from __future__ import annotations

from dataclasses import replace

import daily
import numpy as np
import planrun
import pytest
from mutants import INTEGER_MUTANTS, mutated
from operators import CAPS, LEVELS, RUNTIME, run_on
from planrun import TEXTURES, WIDE, Seen, kernel_of, run_graph
from quantised_cases import CASES

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import KernelError
from gpuedge.graph.ir import Array
from gpuedge.opset.functions import FUNCTIONS
from gpuedge.plan.library import texts
from gpuedge.plan.planner import plan


def planned(name: str, caps: Caps = VULKAN_MINIMUM, seen: Seen | None = None) -> Array:
    case = CASES[name]()
    (got,) = run_graph(case.graph, case.inputs, caps, seen=seen).values()
    return got


ONE_PASS = {
    "vulkan": {"cancelling": "conv2d_int_map", "product": "matmul_int_map", "ties": "conv2d_px4"},
    "gles31": {
        "many": "conv2d_int_tile4x8", "cancelling": "conv2d_int_tile1x8",
        "biased": "conv2d_int_tile1x8", "extreme": "conv2d_int_map",
        "wide product": "matmul_int_block8x4", "product": "matmul_int_map",
    },
}  # fmt: skip
"""Sums that one pass computes, which carries where they are long, and its variant."""


@pytest.mark.parametrize("level", [level for level in LEVELS if level not in ("wgpu", *RUNTIME)])
@pytest.mark.parametrize("name", daily.some(CASES, 4))
def test_levels_give_the_very_bits(name: str, level: str) -> None:
    case, seen = CASES[name](), Seen()
    (got,) = run_on(level, case.graph, case.inputs, seen).values()
    np.testing.assert_array_equal(got, case.wanted)
    wanted = ONE_PASS.get(level, {}).get(name)
    sums = [v for v in seen.variants if v.startswith(("conv2d", "matmul"))]
    assert wanted is None or sums == [wanted]


@pytest.mark.parametrize("name", ["ties", "product", "weights given"])
def test_node_by_node_too(name: str) -> None:
    case = CASES[name]()
    (got,) = run_graph(case.graph, case.inputs, TEXTURES, rewrites=False).values()
    np.testing.assert_array_equal(got, case.wanted)


@pytest.mark.parametrize(
    ("name", "wanted"),
    daily.some([("wide product", "matmul_bytes"), ("byte product", "matmul_bytes"),
     ("short product", "matmul_bytes"), ("product", "matmul_int_map"),
     ("byte convolution", "conv2d_bytes"), ("long byte convolution", "conv2d_bytes"),
     ("whole byte convolution", "conv2d_bytes"), ("unsigned weights", "conv2d_bytes"),
     ("cancelling", "conv2d_int_map")], 3),
)  # fmt: skip
def test_products_of_bytes_only_where_a_driver_says_that_they_are_fast(
    name: str, wanted: str
) -> None:
    """Long sums and short ones; with a zero point that leaves signed bytes it is as before."""
    for count in (0, 1, 2):
        seen = Seen()
        got = planned(name, replace(WIDE, dot_products=count), seen)
        np.testing.assert_array_equal(got, CASES[name]().wanted)
        served = {v for v in seen.variants if v.startswith(("matmul", "conv2d"))}
        fours = {"matmul_bytes", "conv2d_bytes"}
        assert (served == {wanted}) if count == 2 else served.isdisjoint(fours)


@pytest.mark.parametrize(
    "name", ["byte convolution", "long byte convolution", "unsigned weights", "byte product"]
)
@pytest.mark.parametrize("level", ["vulkan", "gles30"])
def test_weights_stay_bytes(name: str, level: str) -> None:
    """A quarter of the memory; rasterisers keep floats in buffers, and bytes in textures."""
    case = CASES[name]()
    for device_class, is_float in (("arm", False), ("cpu-llvm", level == "vulkan")):
        caps = replace(CAPS[level], device_class=device_class)
        made = plan(case.graph, caps)
        weights = [t for t in made.tensors.values() if t.is_constant and t.nbytes > 800]
        assert {t.storage.dtype for t in weights} == {"float32" if is_float else "int8"}
        (got,) = run_graph(case.graph, case.inputs, caps).values()
        np.testing.assert_array_equal(got, case.wanted)


def test_sums_of_either_sign_need_no_digits() -> None:
    seen = Seen()
    np.testing.assert_array_equal(planned("signs", seen=seen), CASES["signs"]().wanted)
    assert not any("int" in v for v in seen.variants)


CAUGHT_BY = {
    "matmul_bytes: offset": "byte product",
    "matmul_bytes: sums of columns": "byte product",
    "matmul_bytes: third byte": "short product",
    "matmul_bytes: rows of B": "short product",
    "matmul_bytes: last row": "wide product",
    "matmul_bytes: high digit": "wide product",
    "matmul_bytes: low digit": "wide product",
    "matmul_bytes: whole": "byte product",
    "matmul_bytes: batch of B": "short product",
    "conv2d_bytes: offset": "byte convolution",
    "conv2d_bytes: sums of weights": "byte convolution",
    "conv2d_bytes: third byte": "byte convolution",
    "conv2d_bytes: input channels": "byte convolution",
    "conv2d_bytes: last pixel": "byte convolution",
    "conv2d_bytes: image of a batch": "byte convolution",
    "conv2d_bytes: beyond the last slice": "byte convolution",
    "conv2d_bytes: columns of the kernel": "byte convolution",
    "conv2d_bytes: high digit": "whole byte convolution",
    "conv2d_bytes: low digit": "whole byte convolution",
    "conv2d_bytes: last digit of the bias": "long byte convolution",
    "conv2d_int_tile: no carry": "cancelling",
    "conv2d_int_tile: last columns": "many",
    "conv2d_int_tile: last slice": "many",
    "conv2d_int_tile: inputs of a group": "biased",
    "conv2d_int_tile: bias in one digit": "many",
    "matmul_int_block: no carry": "wide product",
    "matmul_int_block: rows of a matrix": "wide product",
    "matmul_int_block: batch of A": "wide product",
    "conv2d_int: no carry": "cancelling",
    "conv2d_int: pads hold zero, not the zero point": "biased",
    "conv2d_int: last slice of outputs": "biased",
    "conv2d_int: bias in one digit": "biased",
    "matmul_int: no carry": "product",
    "matmul_int: digits": "whole product",
}


@pytest.mark.parametrize("name", daily.some(INTEGER_MUTANTS, 4))
def test_wrong_kernel_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = mutated(texts(), name)
    monkeypatch.setattr(planrun, "texts", lambda: wrong)
    kernel_of.cache_clear()
    case, caps = CAUGHT_BY[name], VULKAN_MINIMUM
    if INTEGER_MUTANTS[name][0].startswith("group/"):
        caps = WIDE if "bytes" in name else CAPS["gles31"]
    with pytest.raises((AssertionError, KernelError)):
        assert (planned(case, caps) != CASES[case]().wanted).mean() <= 0.05
    kernel_of.cache_clear()


def test_rounding_half_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    up = replace(FUNCTIONS["round"], text=lambda x: f"floor({x} + 0.5)")
    monkeypatch.setitem(FUNCTIONS, "round", up)
    assert (planned("ties") != CASES["ties"]().wanted).mean() > 0.1
