"""Every operation through the planner and the interpreter: no driver, all checks on.

The same cases that real drivers get, on imaginary devices: one of minimum limits, one that binds
eight tensors, one that ranks shared memory first, and ones whose best variants are ruled out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import op_cases as cases
import planrun
import pytest
from mutants import MUTANTS, mutated
from planrun import LOOP_LIMIT, TEXTURES, WIDE, kernel_of, plan_device, seen_by

import gpuedge
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import KernelError
from gpuedge.plan import conv, lower, matmul
from gpuedge.plan.context import MAX_TRIPS
from gpuedge.plan.library import texts, variants

SOFTWARE = replace(VULKAN_MINIMUM, device_class="cpu-llvm")
DEVICES = {
    "minimum": plan_device,
    "wide": lambda: plan_device(WIDE),
    "tiles": lambda: plan_device(replace(WIDE, device_class="nvidia")),
    "software": lambda: plan_device(SOFTWARE),
    "maps": lambda: plan_device(replace(VULKAN_MINIMUM, forms=frozenset({"map"}))),
    "tiny": lambda: plan_device(
        replace(
            VULKAN_MINIMUM,
            forms=frozenset({"map"}),
            max_invocations=64,
            max_local_size=(32, 4, 2),
            offset_alignment=16,
        )
    ),
    "textures": lambda: plan_device(TEXTURES),
}
STRATEGIES: dict[str, tuple[cases.Family, int]] = {
    "conv2d-whole": (cases.conv2d(whole=True), 20),
    "conv2d-random": (cases.conv2d(whole=False), 7),
    "conv_transpose2d-whole": (cases.conv_transpose2d(whole=True), 10),
    "matmul-whole": (cases.matmul(whole=True), 20),
    "matmul-random": (cases.matmul(whole=False), 5),
    "gemm-whole": (cases.gemm(whole=True), 10),
    "max_pool2d": (cases.pooling("max"), 10),
    "avg_pool2d": (cases.pooling("avg"), 10),
    "softmax": (cases.softmax(), 7),
    "concat": (cases.concat(), 10),
    "movement": (cases.movement(), 12),
    "binary": (cases.binary(), 15),
    "expression": (cases.expression(), 15),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_plans_compute(device: str, name: str) -> None:
    strategy, count = STRATEGIES[name]
    made = DEVICES[device]()
    cases.run_cases(strategy, count, made)
    seen = seen_by(made)
    assert seen.passes > count / 2
    assert seen.most_bindings <= (8 if device in ("wide", "tiles", "textures") else 4)
    assert seen.most_trips <= 2 * MAX_TRIPS


@pytest.mark.parametrize("name", cases.DOMAINS)
def test_unary_plans(name: str) -> None:
    for case in cases.unary(name):
        cases.check(case, plan_device())


@pytest.mark.parametrize("name", cases.SPECIAL)
def test_special_plans(name: str) -> None:
    cases.check(cases.SPECIAL[name], plan_device())
    cases.check(cases.SPECIAL[name], plan_device(WIDE))


@pytest.mark.parametrize("name", ["softmax", "softmax-inside", "mean", "maximum"])
def test_long_plans(name: str) -> None:
    made = plan_device()
    cases.check(cases.long(name), made)
    assert 256 <= seen_by(made).most_trips < LOOP_LIMIT


@pytest.mark.parametrize("device", ["minimum", "tiles", "maps"])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d", "matmul", "gemm", "softmax"])
def test_split_sums(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # With a limit this low nearly every sum is split, epilogues and all.
    monkeypatch.setattr(conv, "MAX_TRIPS", 30)
    monkeypatch.setattr(matmul, "STEP", 8)
    monkeypatch.setattr(lower, "CHUNK", 5)
    strategies = {
        "conv2d": cases.conv2d(whole=True),
        "conv_transpose2d": cases.conv_transpose2d(whole=True),
        "matmul": cases.matmul(whole=True),
        "gemm": cases.gemm(whole=True),
        "softmax": cases.softmax(),
    }
    made = DEVICES[device]()
    cases.run_cases(strategies[name], 15, made)
    assert seen_by(made).most_trips <= 90


def test_every_variant_is_exercised() -> None:
    used: set[str] = set()
    ruled_out: list[tuple[str, ...]] = [
        (),
        ("matmul_rows",),
        ("matmul_rows", "matmul_tile", "conv2d_px4"),
    ]
    for restricted in ruled_out:
        made = plan_device(VULKAN_MINIMUM, restricted)
        for strategy in (cases.conv2d(whole=True), cases.matmul(whole=True)):
            cases.run_cases(strategy, 6, made)
        large = np.ones((40, 40), np.float32)  # drawn shapes seldom reach the tiled kernel
        np.testing.assert_array_equal(gpuedge.matmul(large, large, device=made), 40 * large)
        used |= seen_by(made).variants
        assert not seen_by(made).variants & set(restricted)
    large = (np.arange(70 * 66).reshape(70, 66) % 7 - 3).astype(np.float32)
    products = [v.id for v in variants() if v.op == "matmul" and v.id != "matmul_map"]
    for one in products:
        made = plan_device(SOFTWARE, tuple(other for other in products if other != one))
        cases.run_cases(cases.matmul(whole=True), 6, made)
        np.testing.assert_array_equal(gpuedge.matmul(large, large.T, device=made), large @ large.T)
        used |= seen_by(made).variants
    made = plan_device()
    rest = (cases.conv_transpose2d(whole=True), cases.pooling("max"), cases.softmax(),
            cases.concat(), cases.binary())  # fmt: skip
    for strategy in rest:
        cases.run_cases(strategy, 6, made)
    used |= seen_by(made).variants
    carrying = {"conv2d_int_map", "matmul_int_map"}  # of integers: test_plan_integers.py
    assert used == {variant.id for variant in variants()} - carrying


def _caught_by(kernel: str) -> list[cases.Family]:
    if "matmul" in kernel:
        return [cases.matmul(whole=True)]
    if "pool" in kernel:
        return [cases.pooling("max"), cases.pooling("avg")]
    found = {
        "map/conv_transpose2d": cases.conv_transpose2d(whole=True),
    }
    return [found.get(kernel, cases.conv2d(whole=True))]


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_kernel_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = mutated(texts(), name)
    monkeypatch.setattr(planrun, "texts", lambda: wrong)
    kernel_of.cache_clear()
    kernel = MUTANTS[name][0]
    restricted = {
        "map/conv2d": ("conv2d_px4",),
        "map/matmul": ("matmul_rows", "matmul_tile"),
        "group/matmul_tile": ("matmul_rows",),
    }
    caps = SOFTWARE if "block" in kernel else VULKAN_MINIMUM
    made = plan_device(caps, restricted.get(kernel, ()))
    with pytest.raises((AssertionError, KernelError)):
        for strategy in _caught_by(kernel):
            cases.run_cases(strategy, 60, made)
    kernel_of.cache_clear()


def test_a_forgotten_barrier_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuedge.plan import arrange

    monkeypatch.setattr(arrange, "_dependences", lambda plan, regions: (False,) * len(plan.passes))
    with pytest.raises(AssertionError, match="a barrier is missing"):
        cases.run_cases(cases.softmax(), 5, plan_device())
