"""Every operation through the planner and the interpreter: no driver, all checks on.

The same cases that real drivers get, on imaginary devices: one of minimum limits, one that binds
eight tensors, one that ranks shared memory first, and ones whose best variants are ruled out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import zip_longest

import daily
import numpy as np
import op_cases as cases
import planrun
import pytest
from mutants import MUTANTS, mutated
from operators import CAPS
from planrun import LOOP_LIMIT, WIDE, PlanExecutor, Seen, kernel_of, plan_device, seen_by

from gpuedge.conformance.case import Case
from gpuedge.conformance.catalogue import listed
from gpuedge.conformance.storing import KEEPERS
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import KernelError
from gpuedge.decide.policy import Policy
from gpuedge.device import Device
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.plan import conv, lower, matmul
from gpuedge.plan.context import MAX_TRIPS
from gpuedge.plan.library import texts, variants

TINY = {"max_invocations": 64, "max_local_size": (32, 4, 2), "offset_alignment": 16}
MAPS = replace(VULKAN_MINIMUM, forms=frozenset({"map"}))
DEVICES: dict[str, Caps] = {
    **CAPS, "wide": WIDE, "shared memory": replace(WIDE, device_class="nvidia"),
    "rasteriser": replace(WIDE, device_class="cpu-llvm"), "maps": MAPS,
    "tiny": replace(MAPS, **TINY),  # type: ignore[arg-type]
}  # fmt: skip
PLAIN = [case for case in listed() if not case.variant]
"""What every device computes, by any variants, in any storage that it has."""


def serves(case: Case, caps: Caps) -> bool:
    """Tell whether a device keeps tensors as a case asks."""
    return KEEPERS[case.storage].is_among(caps.storages)


def check(case: Case, caps: Caps) -> Seen:
    """Run a case on an imaginary device, whose limits and storages it may not leave."""
    policy = Policy() if case.storage == "float32" else Policy(storage=case.storage)
    made = Device(PlanExecutor(caps), "for planning tests", policy)
    cases.check(case, made)
    seen = seen_by(made)
    assert seen.most_bindings <= caps.max_storage_buffers
    assert seen.most_trips <= 2 * MAX_TRIPS
    assert seen.storages <= set(caps.storages)
    assert not seen.passes or KEEPERS[case.storage].is_among(seen.storages)
    return seen


@pytest.mark.parametrize("device", DEVICES)
def test_plans_compute(device: str) -> None:
    """Each device computes its share of every operation, half of it a day, the rarest each day."""
    caps, number = DEVICES[device], list(DEVICES).index(device)
    days = 2
    shares = Counter[str]()
    passes = 0
    for case in PLAIN:
        shares[case.op] += 1
        turn, is_others = divmod(shares[case.op] - number, len(DEVICES))
        is_its_own = not is_others and turn % days == daily.turn(days)
        if serves(case, caps) and (is_its_own or case.storage == "fixed16"):
            passes += check(case, caps).passes
    assert passes > 30


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
def test_plans_compute_everything(device: str) -> None:
    for case in PLAIN:
        if serves(case, DEVICES[device]):
            check(case, DEVICES[device])


@pytest.mark.parametrize("name", ["softmax", "softmax-inside", "mean", "maximum"])
def test_long_plans(name: str) -> None:
    made = plan_device()
    cases.check(cases.long(name), made)
    assert 256 <= seen_by(made).most_trips < LOOP_LIMIT


@pytest.mark.parametrize("device", ["vulkan", "shared memory", "rasteriser", "maps"])
@pytest.mark.parametrize(
    "name", daily.some(["conv2d", "conv_transpose2d", "matmul", "gemm", "softmax"])
)
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
    made = plan_device(DEVICES[device])
    cases.run_cases(strategies[name], 15, made)
    assert seen_by(made).most_trips <= 90


FORCED: dict[str, list[Case]] = {}
"""Cases that one variant must serve, the others being ruled out, by variant."""

for _case in listed():
    if _case.variant:
        FORCED.setdefault(_case.variant, []).append(_case)


def sampled(variant: str) -> list[Case]:
    """Return some of a variant's cases, which show every mistake of `mutants`, the rarest first.

    Those that a tensor is added to are left to the tests that compute everything. Sums of integers
    take the interpreter long; `test_plan_integers` computes more of them.
    """
    found = [case for case in FORCED[variant] if "-joined" not in case.text][::-1]
    return found[:1] if "_int_" in variant else found[:: -(-len(found) // 12)]


def check_variant(variant: str, chosen: list[Case]) -> None:
    for case in chosen:
        made = plan_device(WIDE, case.rivals)
        cases.check(case, made)
        assert variant in seen_by(made).variants, case.id
        assert not seen_by(made).variants & set(case.rivals)


@pytest.mark.parametrize("variant", daily.some(sorted(FORCED)))
def test_variants_compute(variant: str) -> None:
    chosen = sampled(variant)
    check_variant(variant, chosen[daily.turn(2) % len(chosen) :: 2])


@pytest.mark.long
@pytest.mark.parametrize("variant", sorted(FORCED))
def test_variants_compute_everything(variant: str) -> None:
    check_variant(variant, FORCED[variant])


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
    used = seen_by(made).variants | set(FORCED)
    assert used == {variant.id for variant in variants()}


def _caught_by(kernel: str) -> list[cases.Family]:
    if "pool" in kernel:
        return [cases.pooling("max"), cases.pooling("avg")]
    return [cases.conv2d(whole=True)]


@pytest.mark.parametrize("name", daily.some(MUTANTS, 4))
def test_wrong_kernel_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = mutated(texts(), name)
    monkeypatch.setattr(planrun, "texts", lambda: wrong)
    kernel_of.cache_clear()
    kernel = MUTANTS[name][0]
    mine = [v.id for v in variants() if kernel in v.kernels and v.id in FORCED]
    with pytest.raises((AssertionError, KernelError)):
        for chosen in zip_longest(*map(sampled, reversed(mine))):
            for case in filter(None, chosen):
                check_variant(case.variant, [case])
        for strategy in () if mine else _caught_by(kernel):
            cases.run_cases(strategy, 60, plan_device())
    kernel_of.cache_clear()


def test_a_forgotten_barrier_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuedge.plan import arrange

    monkeypatch.setattr(arrange, "_dependences", lambda plan, regions: (False,) * len(plan.passes))
    with pytest.raises(AssertionError, match="a barrier is missing"):
        cases.run_cases(cases.softmax(), 5, plan_device())
