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

from gpuedge.conformance.catalogue import everything
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import KernelError
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.plan import conv, lower, matmul
from gpuedge.plan.context import MAX_TRIPS
from gpuedge.plan.library import texts, variants

DEVICES = {
    "minimum": plan_device,
    "wide": lambda: plan_device(WIDE),
    "tiles": lambda: plan_device(replace(WIDE, device_class="nvidia")),
    "rasteriser": lambda: plan_device(replace(WIDE, device_class="cpu-llvm")),
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
    "conv2d-tiles": (cases.tiles(), 4),
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
    assert seen.most_bindings <= (4 if device in ("minimum", "maps", "tiny") else 8)
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


@pytest.mark.parametrize("device", ["minimum", "tiles", "rasteriser", "maps"])
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


FORCED = [case for case in everything("smoke") if case.variant]
"""Cases that one variant must serve, the others being ruled out."""


@pytest.mark.parametrize("variant", sorted({case.variant for case in FORCED}))
def test_variants_compute(variant: str) -> None:
    for case in FORCED:
        if case.variant == variant:
            made = plan_device(WIDE, case.rivals)
            cases.check(case, made)
            assert variant in seen_by(made).variants, case.id
            assert not seen_by(made).variants & set(case.rivals)


NUMBERING = ("group/conv2d_unit", "group/conv2d_run")
"""Kernels that number the pixels of a plane, and so have to tell an epilogue where it is."""


@pytest.mark.parametrize("kernel", NUMBERING)
def test_an_epilogue_knows_its_pixel(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_epilogue(kernel)
    column = "x == d.x ? 0 : x;"
    assert column in texts()[kernel]
    wrong = {**texts(), kernel: texts()[kernel].replace(column, "x == d.x ? 1 : x;")}
    monkeypatch.setattr(planrun, "texts", lambda: wrong)
    kernel_of.cache_clear()
    with pytest.raises((AssertionError, KernelError)):
        check_epilogue(kernel)
    kernel_of.cache_clear()


def check_epilogue(kernel: str) -> None:
    """Add what lies beside the pixels of a convolution, by all its variants."""
    rng = np.random.default_rng(0)
    w = rng.integers(-3, 4, (32, 32, 1, 1)).astype(np.float32)
    x = rng.integers(-3, 4, (2, 32, 5, 7)).astype(np.float32)
    builder = GraphBuilder(opset=17)
    builder.input("x", TensorType("float32", x.shape))
    builder.constant("w", w)
    first = builder.add("Conv", ["x", "w"])
    second = builder.add("Conv", [first, "w"])
    builder.output(builder.add("Add", [second, first], output="y"))
    for variant in (v for v in variants() if v.kernel == kernel and not v.transforms):
        made = plan_device(WIDE, {v.id for v in variants() if v.op == "conv2d"} - {variant.id})
        y = made.executor.compile(builder.build()).run({"x": x})["y"]
        assert seen_by(made).variants >= {variant.id}
        between = np.einsum("mc,nchw->nmhw", w[:, :, 0, 0], x)
        expected = np.einsum("mc,nchw->nmhw", w[:, :, 0, 0], between) + between
        assert (y == expected).all()


def test_every_variant_is_exercised() -> None:
    made = plan_device()
    rest = (cases.conv2d(whole=True), cases.matmul(whole=True), cases.conv_transpose2d(whole=True),
            cases.pooling("max"), cases.softmax(), cases.concat(), cases.binary())  # fmt: skip
    for strategy in rest:
        cases.run_cases(strategy, 6, made)
    used = seen_by(made).variants | {case.variant for case in FORCED}
    assert used == {variant.id for variant in variants()}


def _caught_by(kernel: str) -> list[cases.Family]:
    if "pool" in kernel:
        return [cases.pooling("max"), cases.pooling("avg")]
    return [cases.conv2d(whole=True)]


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_kernel_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = mutated(texts(), name)
    monkeypatch.setattr(planrun, "texts", lambda: wrong)
    kernel_of.cache_clear()
    kernel = MUTANTS[name][0]
    mine = {variant.id for variant in variants() if kernel in variant.kernels}
    with pytest.raises((AssertionError, KernelError)):
        for case in reversed(FORCED):  # what the rarer variants are given shows the most
            if case.variant in mine:
                cases.check(case, plan_device(WIDE, case.rivals))
        for strategy in () if mine & {case.variant for case in FORCED} else _caught_by(kernel):
            cases.run_cases(strategy, 60, plan_device())
    kernel_of.cache_clear()


def test_a_forgotten_barrier_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuedge.plan import arrange

    monkeypatch.setattr(arrange, "_dependences", lambda plan, regions: (False,) * len(plan.passes))
    with pytest.raises(AssertionError, match="a barrier is missing"):
        cases.run_cases(cases.softmax(), 5, plan_device())
