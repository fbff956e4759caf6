"""Choosing variants: every reason for and against, and the reasons in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_needs import shared_bytes
from planrun import check_limits
from single_node import single

from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import ConfigError, KernelLimitError, UnsupportedOpError
from gpuedge.core.kernel import Extents
from gpuedge.graph.ir import TensorType
from gpuedge.lang import load, print_kernel
from gpuedge.opset.tensor import Window
from gpuedge.plan import conv, library, matmul
from gpuedge.plan.library import texts, variants
from gpuedge.plan.planner import plan
from gpuedge.plan.select import consider, select

MAPS = replace(VULKAN_MINIMUM, forms=frozenset({"map"}))
LARGE = matmul.facts(64, 64, 64)


def shape(
    width: int = 8, kernel: tuple[int, int] = (3, 3), stride: int = 1, dilation: int = 1, *,
    height: int = 8, channels: int = 16, filters: int = 16, group: int = 1, pad: int = 1,
) -> dict[str, int]:  # fmt: skip
    """Return the facts of a convolution with an output of this width and height."""
    window = Window(kernel, (stride,) * 2, (pad,) * 4, (dilation,) * 2, (height, width))
    return conv.facts(window, conv.Slices(channels, filters, group))


WIDE = shape()


def chosen(op: str, facts: dict[str, int], caps: object = VULKAN_MINIMUM, *out: str) -> str:
    return select(op, facts, caps, out).id  # type: ignore[arg-type]


def test_best_score_wins() -> None:
    assert chosen("conv2d", WIDE) == "conv2d_px4"
    assert chosen("matmul", LARGE) == "matmul_rows"


def test_score_depends_on_the_class_of_device() -> None:
    big = replace(VULKAN_MINIMUM, device_class="nvidia")
    assert chosen("matmul", LARGE, big) == "matmul_tile"
    assert chosen("matmul", LARGE, replace(big, device_class="mali")) == "matmul_rows"


def test_products_on_rasterisers_are_in_blocks_that_fit() -> None:
    caps = replace(VULKAN_MINIMUM, device_class="cpu-llvm")
    found = [chosen("matmul", LARGE | {"rows": rows}, caps) for rows in (1, 2, 5, 47, 48)]
    assert [name.removeprefix("matmul_block") for name in found] == [
        "1x2", "4x2", "8x4", "8x4", "16x4",
    ]  # fmt: skip
    assert chosen("matmul", LARGE | {"columns": 12}, caps) == "matmul_block4x2"
    small = replace(caps, device_class="cpu-subzero")
    assert chosen("matmul", LARGE, small) == "matmul_block16x4"
    assert chosen("matmul", LARGE | {"rows": 47}, small) == "matmul_rows"


SOFTWARE = replace(VULKAN_MINIMUM, device_class="cpu-llvm")


@pytest.mark.parametrize(
    ("rows", "columns", "wanted", "plain"),
    [
        (48, 71, "16x4", "16x4"),
        (48, 72, "32x1_lanes", "16x4"),
        (17, 256, "32x1_lanes", "8x4"),
        (16, 256, "16x1_lanes", "8x4"),
        (9, 40, "8x4", "8x4"),
        (8, 256, "8x4_lanes", "8x4"),
        (8, 272, "8x4", "8x4"),
        (4, 512, "4x2", "4x2"),
    ],
)
def test_products_share_rows_where_columns_fill_subgroups(
    rows: int, columns: int, wanted: str, plain: str
) -> None:
    facts = matmul.facts(rows, 64, columns)
    assert chosen("matmul", facts, replace(SOFTWARE, subgroup_lanes=8)) == f"matmul_block{wanted}"
    few = replace(SOFTWARE, subgroup_lanes=4)
    assert chosen("matmul", facts, few) == f"matmul_block{plain}"


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (shape(), "conv2d_shared4x8"),
        (shape(5, height=5), "conv2d_shared4x8"),
        (shape(2, height=5), "conv2d_shared4x8"),
        (shape(2, height=4), "conv2d_map"),
        (shape(3, height=1), "conv2d_tile1x8"),
        (shape(1), "conv2d_map"),
        (shape(kernel=(9, 9), filters=3), "conv2d_shared1x8"),
        (shape(stride=2), "conv2d_tile4x8"),
        (shape(dilation=2), "conv2d_tile4x8"),
        (shape(kernel=(5, 5)), "conv2d_tile4x8"),
        (shape(512, (1, 3), dilation=4, height=1), "conv2d_tile4x8"),
        (shape(filters=8, kernel=(5, 5)), "conv2d_tile1x8"),
        (shape(channels=4), "conv2d_stem2x8"),
        (shape(channels=3), "conv2d_image4x6"),
        (shape(channels=3, filters=24), "conv2d_stem2x8"),
        (shape(channels=3, filters=28, kernel=(7, 7), stride=2), "conv2d_image4x6"),
        (shape(channels=3, filters=3), "conv2d_tile1x8"),
        (shape(kernel=(1, 1), pad=0), "conv2d_unit4x8"),
        (shape(kernel=(1, 1), pad=1), "conv2d_tile4x8"),
        (shape(kernel=(1, 1), pad=0, stride=2), "conv2d_tile4x8"),
        (shape(3, (1, 1), pad=0, height=9), "conv2d_unit4x8"),
        (shape(kernel=(1, 1), pad=0, channels=48, filters=48, group=4), "conv2d_unit4x8"),
        (shape(kernel=(1, 1), pad=0, channels=48, filters=48, group=8), "conv2d_map"),
    ],
)
def test_convolutions_in_register_tiles(facts: dict[str, int], wanted: str) -> None:
    assert chosen("conv2d", facts, SOFTWARE) == wanted
    assert chosen("conv2d", facts) in ("conv2d_map", "conv2d_px4")  # where nothing was measured
    for lanes in (4, 16):
        assert chosen("conv2d", facts, replace(SOFTWARE, subgroup_lanes=lanes)) == wanted
    lanes_of = f"{wanted.replace('4x6', '4x4')}_lanes"
    own = lanes_of if lanes_of in {v.id for v in variants()} else wanted
    assert chosen("conv2d", facts, replace(SOFTWARE, subgroup_lanes=8)) == own
    assert wanted.endswith(("4x8", "2x8", "4x6")) == (own != wanted)


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (shape(channels=8, filters=8, group=8), "dwconv2d_3x3"),
        (shape(channels=8, filters=8, group=8, stride=2), "dwconv2d_3x3s2"),
        (shape(channels=8, filters=8, group=8, kernel=(5, 5)), "dwconv2d_5x5"),
        (shape(channels=8, filters=8, group=8, kernel=(3, 5)), "dwconv2d_row1x8"),
        (shape(channels=8, filters=8, group=8, kernel=(2, 3)), "dwconv2d_row3x8"),
        (shape(channels=8, filters=8, group=8, kernel=(7, 7)), "dwconv2d_row7x8"),
        (shape(channels=8, filters=8, group=8, dilation=2), "dwconv2d_row1x8"),
        (shape(2, channels=8, filters=8, group=8), "dwconv2d_map"),
    ],
)
def test_depthwise_convolutions_in_register_tiles(facts: dict[str, int], wanted: str) -> None:
    assert chosen("dwconv2d", facts, SOFTWARE) == wanted
    assert chosen("dwconv2d", facts) == "dwconv2d_map"


def test_transposed_convolutions_in_register_tiles() -> None:
    for filters, wanted in ((16, "tile4x8"), (8, "tile1x8")):
        facts = shape(filters=filters, stride=2)
        assert chosen("conv_transpose2d", facts, SOFTWARE) == f"conv_transpose2d_{wanted}"
        assert chosen("conv_transpose2d", facts) == "conv_transpose2d_map"
    assert chosen("conv_transpose2d", shape(dilation=2), SOFTWARE) == "conv_transpose2d_map"


def test_no_tile_of_a_flat_grid_has_two_parts() -> None:
    (tile,) = (v for v in variants() if v.id == "conv2d_tile4x8")
    assert tile.grid((17, 3, 10, 2)) == (9, 3, 2)
    assert tile.grid((17, 3, 10, 2), (2, 1)) == (12, 3, 2)  # columns 0, 2, .. 16 and 1, 3, .. 15
    assert tile.grid((17, 3, 10, 2), (1, 2)) == (9, 4, 2)  # twice five slices


@pytest.mark.parametrize(
    ("op", "facts", "out", "wanted"),
    [
        ("conv2d", shape(3840, height=2160, channels=3, filters=4), (3840, 2160, 1, 1), "_tile1x8"),
        ("conv2d", shape(3840, height=1092, channels=3, filters=4), (3840, 1092, 1, 1), "_tile1x8"),
        ("conv2d", shape(), (8, 8, 4, 65_535), "_shared4x8"),
        ("conv2d", shape(), (8, 8, 4, 65_536), "_map"),
        ("dwconv2d", shape(3840, height=2160, channels=3, filters=3, group=3), (3840, 2160, 1, 1),
         "_3x3"),
        ("matmul", matmul.facts(1, 4, 4), (1, 1, 1, 65_536), "_map"),
    ],
)  # fmt: skip
def test_kernels_in_groups_need_no_more_workgroups_than_there_may_be(
    op: str, facts: dict[str, int], out: Extents, wanted: str
) -> None:
    assert select(op, facts, SOFTWARE, out=out).id == op + wanted


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (shape(28, height=28, channels=32, filters=24), "run28_lanes"),
        (shape(28, height=28, channels=32, filters=20), "shared4x8_lanes"),
        (shape(28, height=28, channels=28, filters=24), "shared4x8_lanes"),
        (shape(29, height=28, channels=32, filters=24), "shared4x8_lanes"),
        (shape(7, (1, 1), height=7, pad=0, channels=32, filters=64), "run28_lanes"),
        (shape(7, (1, 1), 2, height=7, pad=0, channels=64, filters=128, group=2), "run28_lanes"),
    ],
)
def test_runs_of_pixels_serve_where_slices_fill_subgroups(
    facts: dict[str, int], wanted: str
) -> None:
    caps = replace(SOFTWARE, subgroup_lanes=8)
    assert chosen("conv2d", facts | {"tiles": 0}, caps) == f"conv2d_{wanted}"


def test_runs_are_cut_from_planes_or_rows() -> None:
    plane, row = (next(v for v in variants() if v.id == f"conv2d_{name}_lanes")
                  for name in ("run28", "winograd"))  # fmt: skip
    assert plane.grid((14, 14, 20, 3)) == (8 * 7, 3, 3)
    assert plane.grid((14, 15, 20, 3), (1, 2)) == (8 * 8, 4, 3)  # twice ten slices
    assert row.grid((17, 36, 9, 1)) == (8 * 2 * 36, 2, 1)


def test_a_workgroup_that_is_a_subgroup_is_never_wider() -> None:
    facts, out = shape(384, height=216, channels=3, filters=8), (384, 216, 2, 1)
    for most, wanted in ((65_535, "conv2d_stem2x8_lanes"), (256, "conv2d_stem2x8")):
        caps = replace(SOFTWARE, subgroup_lanes=8, max_groups=(most, 65_535, 65_535))
        assert select("conv2d", facts, caps, out=out).id == wanted


def test_shape_rules_variants_out() -> None:
    assert chosen("conv2d", shape(3, height=99)) == "conv2d_map"
    assert chosen("matmul", LARGE | {"rows": 3}) == "matmul_map"
    nvidia = replace(VULKAN_MINIMUM, device_class="nvidia")
    for fact in ("rows", "columns", "depth"):
        assert chosen("matmul", LARGE | {fact: 31}, nvidia) == "matmul_rows"


def test_bounds_are_inclusive() -> None:
    assert chosen("conv2d", shape(4, height=1)) == "conv2d_px4"
    assert chosen("conv2d", shape(1_000_001, height=1)) == "conv2d_map"


def test_levels_without_groups_get_maps() -> None:
    assert chosen("conv2d", WIDE, MAPS) == "conv2d_map"
    assert chosen("matmul", LARGE, MAPS) == "matmul_map"


def test_variants_for_several_texels_an_invocation() -> None:
    several = replace(MAPS, map_texels=4)
    assert chosen("matmul", LARGE, several) == "matmul_turned"
    assert chosen("matmul", LARGE | {"turned_rows": 0}, several) == "matmul_map"
    assert chosen("matmul", LARGE | {"turned_rows": 2, "rows": 2}, several) == "matmul_map"
    assert chosen("conv2d", shape(8), several) == "conv2d_taps3"
    assert chosen("conv2d", shape(8, stride=2), several) == "conv2d_map"
    odd = shape(7, height=7)
    rasteriser = replace(several, device_class="cpu-llvm")
    assert chosen("conv2d", odd, rasteriser) == "conv2d_longer_taps3"
    assert chosen("conv2d", odd | {"is_in_threes": 0}, rasteriser) == "conv2d_longer"
    assert chosen("conv2d", odd | {"is_in_threes": 0}, several) == "conv2d_map", "not measured"
    assert chosen("conv2d", odd | {"columns_over": 0, "pixels_over": 0}, rasteriser) == (
        "conv2d_taps3"
    )


def test_restrictions_are_kept() -> None:
    assert chosen("matmul", LARGE, VULKAN_MINIMUM, "matmul_rows") == "matmul_tile"
    assert chosen("matmul", LARGE, VULKAN_MINIMUM, "matmul_rows", "matmul_tile") == "matmul_map"


def test_needs_are_compared_with_limits() -> None:
    nvidia = replace(VULKAN_MINIMUM, device_class="nvidia")
    assert chosen("matmul", LARGE, replace(nvidia, max_shared_bytes=8192)) == "matmul_tile"
    assert chosen("matmul", LARGE, replace(nvidia, max_shared_bytes=8191)) == "matmul_rows"
    assert chosen("conv2d", WIDE, replace(VULKAN_MINIMUM, max_invocations=64)) == "conv2d_px4"


def test_every_candidate_has_one_reason() -> None:
    turned, *rows = consider("matmul", LARGE, VULKAN_MINIMUM, ["matmul_tile"])
    assert turned.variant.id == "matmul_turned"
    assert turned.why_not == "needs map_texels >= 4, the device has 1"
    assert [r.variant.id for r in rows[:3]] == ["matmul_rows", "matmul_tile", "matmul_map"]
    assert [r.score for r in rows[:4]] == [1.5, 1.2, 1.0, 1.0]
    assert [r.why_not for r in rows[:3]] == [
        "",
        "ruled out on this device",
        "another variant scores higher here",
    ]
    (first, *_) = consider("conv2d", shape(2), VULKAN_MINIMUM)
    assert first.why_not == "for width from 4 to 1000000, here 2"
    (first, *_) = consider("conv2d", WIDE, MAPS)
    assert first.why_not == "the vulkan level has no group kernels"
    tile = consider("matmul", LARGE, replace(VULKAN_MINIMUM, max_shared_bytes=100))[2]
    assert tile.why_not == "needs max_shared_bytes >= 8192, the device has 100"


def test_nothing_fits() -> None:
    small = replace(MAPS, max_invocations=8)
    with pytest.raises(KernelLimitError) as caught:
        select("conv2d", WIDE, small)
    assert caught.value.code == "GE-303"
    assert "conv2d_map: workgroups of 64 exceed the device's 8" in str(caught.value.known)
    with pytest.raises(KernelLimitError, match="no variant exists"):
        select("no such operation", {}, VULKAN_MINIMUM)


def test_too_many_workgroups_are_refused() -> None:
    kinds = {"a": TensorType("float32", (70_000, 8, 4)), "b": TensorType("float32", (4, 32))}
    with pytest.raises(UnsupportedOpError, match="70000 workgroups along one axis"):
        plan(single("MatMul", kinds), VULKAN_MINIMUM)


def test_too_large_tensors_are_refused() -> None:
    fits, more = (TensorType("float32", (n,)) for n in (1 << 25, (1 << 25) + 1))
    check_limits(plan(single("Relu", {"x": fits}), VULKAN_MINIMUM), VULKAN_MINIMUM)
    with pytest.raises(UnsupportedOpError, match="binds a tensor of 134283264 bytes"):
        plan(single("Relu", {"x": more}), VULKAN_MINIMUM)


@pytest.mark.parametrize("kernel", [(16384, 1), (1, 16384), (128, 128), (16383, 1), (3, 3)])
@pytest.mark.parametrize("filters", [(2, 1), (1, 1), (4, 9)])
def test_no_window_comes_near_the_loop_limit(
    kernel: tuple[int, int], filters: tuple[int, int]
) -> None:
    # check_limits counts the iterations of every pass; some drivers end loops at 65,535.
    m, c = filters
    kinds = {
        "x": TensorType("float32", (1, c, *kernel)),
        "w": TensorType("float32", (m, c, *kernel)),
    }
    check_limits(plan(single("Conv", kinds), VULKAN_MINIMUM), VULKAN_MINIMUM)
    pool = single("AveragePool", {"x": kinds["x"]}, {"kernel_shape": kernel})
    check_limits(plan(pool, VULKAN_MINIMUM), VULKAN_MINIMUM)


@pytest.mark.parametrize("op", ["Conv", "AveragePool"])
def test_larger_windows_are_refused(op: str) -> None:
    kernel = (129, 128)
    kinds = {"x": TensorType("float32", (1, 1, *kernel))}
    attrs = {}
    if op == "Conv":
        kinds["w"] = TensorType("float32", (2, 1, *kernel))
    else:
        attrs["kernel_shape"] = kernel
    with pytest.raises(UnsupportedOpError):
        plan(single(op, kinds, attrs), VULKAN_MINIMUM)


def test_selection_is_a_pure_function() -> None:
    before = variants()
    assert consider("matmul", LARGE, VULKAN_MINIMUM) == consider("matmul", LARGE, VULKAN_MINIMUM)
    assert variants() is before


@pytest.mark.parametrize("variant", variants(), ids=lambda v: v.id)
def test_rows_are_sound(variant: library.Variant) -> None:
    kernel = load(texts()[variant.kernel], filename=variant.kernel, consts=dict(variant.consts))
    assert kernel.form == variant.form
    size = variant.local[0] * variant.local[1] * variant.local[2]
    assert size <= VULKAN_MINIMUM.max_invocations
    names = {s.name: s for s in print_kernel(kernel).specs}
    assert {"LX", "LY", "LZ"} <= set(names)
    if variant.form == "group":
        assert shared_bytes(kernel) <= variant.needs.get("max_shared_bytes", 0)
        assert variant.needs["max_invocations"] == size
        assert variant.local[:2] == (names["LX"].default, names["LY"].default)
    assert variant.score["any"] > 0


def test_every_operation_has_an_unconditional_map() -> None:
    for op in {v.op for v in variants()}:
        free = [v for v in variants() if v.op == op and v.form == "map" and not v.when]
        assert len(free) == 1, op
        assert not free[0].needs
    ids = [v.id for v in variants()]
    assert len(set(ids)) == len(ids)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "variants.toml"
    monkeypatch.setattr(library, "data_dir", lambda _: tmp_path)
    texts()  # read before the folder moves away
    library._tables.cache_clear()
    yield path
    library._tables.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not toml",
        '[[variant]]\nop = "a"\nid = "b"\nkernel = "map/none"\nlocal = [1, 1, 1]\n',
        '[[variant]]\nop = "a"\n',
        '[[variant]]\nop = "a"\nid = "b"\nkernel = "map/pool"\nlocal = [1, 1, 1]\nfoo = 1\n',
        '[[variant]]\nop = "a"\nid = "b"\nkernel = "map/pool"\nlocal = [1, 1, 1]\n',  # no [reads]
        "variant = []\n[reads]\ntexels = 5\n",
    ],
)
def test_malformed_tables_are_refused(table: Path, text: str) -> None:
    table.write_text(text)
    with pytest.raises(ConfigError, match="cannot be used"):
        variants()
