"""What was measured of kernels, as an input of the planner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.record import UnfitError, plain, read
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.plan.matmul import facts
from gpuedge.plan.planner import plan
from gpuedge.plan.select import BEATEN, SLOWER, consider, taken
from gpuedge.plan.tuned import BEGUN, TunedKernel, key_of, label_of

CPU = replace(VULKAN_MINIMUM, device_class="cpu-llvm")
LARGE = facts(64, 64, 64)


def kernel(variant: str, usual: str = "matmul_rows", **more: object) -> TunedKernel:
    return TunedKernel(variant, usual, **more)  # type: ignore[arg-type]


def conv(channels: int = 16, size: int = 16) -> Graph:
    """Return a 3x3 convolution of constant weights, which Winograd's filtering may serve."""
    builder = GraphBuilder(opset=17)
    builder.input("x", TensorType("float32", (1, channels, size, size)))
    builder.constant("w", np.ones((channels, channels, 3, 3), np.float32))
    builder.output(builder.add("Conv", ["x", "w"], {"pads": [1] * 4}, output="y"))
    return builder.build()


def test_what_was_measured_goes_before_the_scores() -> None:
    rows = consider("matmul", LARGE, VULKAN_MINIMUM, tuned=kernel("matmul_map"))
    assert taken("matmul", rows).id == "matmul_map"
    usual = next(row for row in rows if row.variant.id == "matmul_rows")
    assert usual.why_not == SLOWER and usual.fits
    untuned = consider("matmul", LARGE, VULKAN_MINIMUM)
    assert next(row for row in untuned if row.variant.id == "matmul_map").why_not == BEATEN


def test_what_does_not_fit_is_not_used_whatever_was_measured() -> None:
    small = facts(64, 16, 64)  # too shallow for the tile
    rows = consider("matmul", small, VULKAN_MINIMUM, tuned=kernel("matmul_tile"))
    assert taken("matmul", rows).id == "matmul_rows"
    ruled_out = consider(
        "matmul", LARGE, VULKAN_MINIMUM, ("matmul_map",), tuned=kernel("matmul_map")
    )
    assert taken("matmul", ruled_out).id == "matmul_rows"
    assert BEATEN in {row.why_not for row in ruled_out}


def test_what_is_left_out_is_not_used_and_the_reason_is_told() -> None:
    tuned = kernel("matmul_rows", left_out={"matmul_rows": "it was wrong"})
    rows = consider("matmul", LARGE, VULKAN_MINIMUM, tuned=tuned)
    assert taken("matmul", rows).id != "matmul_rows"
    told = next(row for row in rows if row.variant.id == "matmul_rows")
    assert told.why_not == "left out on this device: it was wrong" and not told.fits


def test_a_table_that_rules_out_everything_is_ignored_for_that_choice() -> None:
    usual = plan(conv(), CPU)
    (key, choice), *_ = usual.choices.items()
    tuned = TunedKernel(choice.variants[-1], choice.variants[0],
                        left_out=dict.fromkeys(choice.variants, "it was wrong"))  # fmt: skip
    same = plan(conv(), CPU, tuned={key: replace(tuned, variant=choice.variants[0])})
    assert [launch.variant for launch in same.passes] == [p.variant for p in usual.passes]


def test_what_ended_a_process_is_used_for_no_kernel() -> None:
    usual = plan(conv(), CPU).choices
    (variant,) = {choice.variants[0] for choice in usual.values() if choice.op == "conv2d"}
    dead = TunedKernel("pack_map", "pack_map", left_out={variant: BEGUN})
    wrong = replace(dead, left_out={variant: "it was wrong"})
    assert variant not in {p.variant for p in plan(conv(), CPU, tuned={"other": dead}).passes}
    assert variant in {p.variant for p in plan(conv(), CPU, tuned={"other": wrong}).passes}


def test_no_table_chooses_a_variant_that_is_less_exact_than_the_usual_one() -> None:
    """Winograd's filtering is exact for no whole numbers; where it is usual, others may be used."""
    usual = plan(conv(), VULKAN_MINIMUM)
    for key, choice in usual.choices.items():
        assert not any("winograd" in variant for variant in choice.variants)
        forged = TunedKernel("conv2d_winograd", choice.variants[0], 1, 2, "full")
        after = plan(conv(), VULKAN_MINIMUM, tuned={key: forged})
        assert [p.variant for p in after.passes] == [p.variant for p in usual.passes]
    every = {v for choice in plan(conv(), CPU).choices.values() for v in choice.variants}
    assert any("winograd" in v for v in every) and "conv2d_map" in every


def test_less_effort_never_replaces_more_and_what_is_left_out_stays() -> None:
    full = kernel("matmul_map", ns=5, usual_ns=10, effort="full", left_out={"matmul_tile": "no"})
    fast = kernel("matmul_rows", ns=8, usual_ns=8, effort="fast", left_out={"matmul_split": "x"})
    both = {"matmul_tile": "no", "matmul_split": "x"}
    assert fast.after(full) == replace(full, left_out=both)
    assert full.after(fast) == replace(full, left_out=both)
    assert replace(fast, left_out={"matmul_map": "x"}).after(full).variant == "matmul_rows"
    begun = kernel("matmul_rows", left_out={"matmul_map": BEGUN})
    assert begun.after(full).variant == "matmul_map"
    newer = replace(full, ns=6, left_out={})
    assert newer.after(full) == replace(newer, left_out={"matmul_tile": "no"})
    assert newer.after(full, tried=["matmul_tile"]) == newer


def test_a_plan_names_its_choices_and_the_passes_before_which_they_were_made() -> None:
    planned = plan(conv(), CPU)
    for choice in planned.choices.values():
        assert len(choice.variants) > 1
        for place in choice.passes:
            assert planned.passes[place].variant == choice.variants[0]


def test_a_plan_takes_what_was_measured_and_a_new_choice_follows_from_it() -> None:
    """Without Winograd's filtering there is another choice, between direct kernels."""
    before = plan(conv(), CPU)
    key = next(k for k, c in before.choices.items() if "winograd" in c.variants[0])
    direct = next(v for v in before.choices[key].variants if "winograd" not in v)
    tuned = TunedKernel(direct, before.choices[key].variants[0], 1, 2, "fast")
    after = plan(conv(), CPU, tuned={key: tuned})
    assert not any("winograd" in launch.variant for launch in after.passes)
    (new,) = after.choices.keys() - before.choices.keys()
    assert after.choices[new].op == "conv2d" and after.choices[new].tuned is None
    assert after.choices[key].tuned == tuned


def test_a_key_holds_what_the_speed_depends_on() -> None:
    out = (64, 64, 1, 1)
    keys = {
        key_of("matmul", LARGE, out), key_of("matmul", LARGE, (64, 64, 2, 1)),
        key_of("matmul", facts(64, 65, 64), out), key_of("matmul", LARGE, out, (2, 1)),
        key_of("matmul", LARGE, out, is_half=True), key_of("matmul", LARGE, out, storage="float16"),
    }  # fmt: skip
    assert len(keys) == 6
    assert key_of("matmul", {**LARGE, "bindings": 4}, out) in keys
    assert {label_of(key) for key in keys} == {"matmul 64x64x1x1", "matmul 64x64x2x1"}


def test_a_record_is_read_back_if_its_variants_exist() -> None:
    made = kernel("matmul_map_f16", ns=5, usual_ns=10, effort="full", left_out={"matmul_tile": "x"})
    assert read(TunedKernel, plain(made)) == made
    assert (made.gain, made.is_other, kernel("matmul_rows").gain) == (2.0, True, 1.0)
    for change in (
        {"variant": "matmul_of_mine"}, {"left_out": {"nobody": "x"}}, {"ns": -1}, {"ns": 0.5},
        {"effort": "some"}, {"left_out": {"matmul_map": "a\nb"}},
        {"left_out": {"matmul_map": "x" * 401}},
    ):  # fmt: skip
        with pytest.raises(UnfitError):
            read(TunedKernel, {**plain(made), **change})
