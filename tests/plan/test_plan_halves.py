"""Arithmetic in float16 in plans: what it touches, what stays, and how far results may be off."""

from __future__ import annotations

import re
from dataclasses import replace

import daily
import numpy as np
import pytest
from modelgen.case import Case
from modelgen.judge import graph_of, judge
from modelgen.networks import random_case
from planrun import PlanExecutor

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.decide.policy import Policy
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.opset import bounds
from gpuedge.opset.bounds import Num
from gpuedge.plan.plan import Plan
from gpuedge.plan.planner import plan
from gpuedge.plan.storages import StoragePrecision
from gpuedge.runtime.crosscheck import CrossCheck
from gpuedge.runtime.segments import not_half, precision_of

OFFERS = replace(VULKAN_MINIMUM, has_fp16_arithmetic=True)
HALF = StoragePrecision(arithmetic="float16")
RNG = np.random.default_rng(8)


def graph(*nodes: tuple[str, str, dict[str, object]], dtype: str = "float32") -> Graph:
    """Return a chain over a and b of shape (4, 6); results are called 1, 2, ..."""
    builder = GraphBuilder(opset=17)
    for name in "ab":
        builder.input(name, TensorType(dtype, (4, 6)))
    for i, (op, names, attrs) in enumerate(nodes, 1):
        last = builder.add(op, list(names), attrs, output=str(i))
    builder.output(last)
    return builder.build()


def texts(made: Plan) -> list[tuple[str, str | None]]:
    return [(one.variant, one.source.epilogue) for one in made.passes]


def in_half(one: Graph, caps: Caps = OFFERS) -> Plan:
    return plan(one, caps, (), HALF)


CHAIN = (("Mul", "ab", {}), ("Add", "1b", {}), ("Relu", "2", {}), ("Sub", "3a", {}))


def test_a_chain_is_computed_step_by_step() -> None:
    (one,) = in_half(graph(*CHAIN)).passes
    assert one.variant == "elementwise_map_f16" and one.source.is_half
    assert one.source.epilogue is not None
    steps = re.findall(r"hvec4 t\d+ = \((\w+|hvec4\(t\d+\)) [-+*] t\d+\);", one.source.epilogue)
    assert len(steps) == 3
    a, b = (RNG.normal(0, 3, (4, 6)).astype(np.float32) for _ in "ab")
    (found,) = PlanExecutor(OFFERS).compile(graph(*CHAIN), HALF).run({"a": a, "b": b}).values()
    x, y = a.astype(np.float16), b.astype(np.float16)
    np.testing.assert_array_equal(found, np.maximum(x * y + y, 0) - x)


def test_other_functions_round_once() -> None:
    a, b = (RNG.uniform(0.5, 3, (4, 6)).astype(np.float32) for _ in "ab")
    one = graph(("Div", "ab", {}), ("Exp", "1", {}))
    (found,) = PlanExecutor(OFFERS).compile(one, HALF).run({"a": a, "b": b}).values()
    wanted = np.exp((a / b).astype(np.float16).astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "nodes",
    [
        (("Softmax", "a", {"axis": 1}),),
        (("ReduceMean", "a", {"axes": [1]}),),
        (("ReduceSum", "a", {}),),
        (("LpNormalization", "a", {}),),
        (("LogSoftmax", "a", {}),),
        (("Transpose", "a", {"perm": [1, 0]}),),
    ],
)
def test_what_stays_as_it_is(nodes: tuple[tuple[str, str, dict[str, object]], ...]) -> None:
    assert texts(in_half(graph(*nodes))) == texts(plan(graph(*nodes), OFFERS))


def test_integers_stay_as_they_are() -> None:
    one = graph(("Mul", "ab", {}), ("Add", "1b", {}), dtype="int32")
    assert texts(in_half(one)) == texts(plan(one, OFFERS))


def test_devices_without_it_and_quantised_models_stay_as_they_are() -> None:
    one = graph(*CHAIN)
    assert texts(in_half(one, VULKAN_MINIMUM)) == texts(plan(one, VULKAN_MINIMUM))
    policy = Policy(arithmetic="float16")
    assert precision_of(policy, OFFERS, one, {}).arithmetic == "float16"
    assert precision_of(policy, VULKAN_MINIMUM, one, {}).arithmetic == "float32"
    assert "vulkan level offers no float16 arithmetic" in not_half(policy, VULKAN_MINIMUM, one)
    coded = graph(("DynamicQuantizeLinear", "a", {}))
    assert precision_of(policy, OFFERS, coded, {}).arithmetic == "float32"
    assert "integer operators" in not_half(policy, OFFERS, coded)
    assert not_half(policy, OFFERS, one) == not_half(Policy(), VULKAN_MINIMUM, one) == ""


def test_constants_beyond_float16_do_not_overflow_alone() -> None:
    builder = GraphBuilder(opset=17)
    builder.input("a", TensorType("float32", (4, 6)))
    builder.constant("m", np.float32(-1e9))
    builder.output(builder.add("Mul", ["a", "m"], {}, output="y"))
    one = builder.build()
    (found,) = PlanExecutor(OFFERS).compile(one, HALF).run({"a": np.zeros((4, 6), "f4")}).values()
    np.testing.assert_array_equal(found, 0)


def test_rounding_is_within_its_bound() -> None:
    x = np.concatenate([RNG.normal(0, 10.0**k, 4000) for k in range(-9, 5)])
    for given in (Num(x, np.zeros_like(x)), Num(x, np.abs(x) * 1e-4)):
        v, e = bounds.half(given)
        for off in (-1, 0, 1):
            got = (given.v + off * given.e).astype(np.float16).astype(np.float64)
            flushed = np.where(np.abs(got) < bounds.HALF_TINY, 0, got)
            assert (np.abs(got - v) <= e).all() and (np.abs(flushed - v) <= e).all()
    large = bounds.half(Num(np.array([65000.0, 66000.0]), np.array([600.0, 0.0])))
    assert np.isinf(large.e).all()


def cases(part: int) -> list[tuple[int, Case]]:
    return [(seed, random_case(seed)[1]) for seed in range(300 + part, 324, 3)]


@pytest.mark.parametrize("part", daily.some(range(3), 3))
def test_random_networks_are_within_their_bounds_and_wrong_ones_are_not(part: int) -> None:
    noticed = run = 0
    for seed, case in cases(part):
        try:
            planned = in_half(graph_of(case))
        except UnsupportedOpError:
            continue
        if not any("_f16" in one.variant for one in planned.passes):
            continue
        found = PlanExecutor(OFFERS).compile(graph_of(case), HALF).run(case.feeds)
        run += 1
        assert not judge(case, found, in_half=True).why, seed
        (name, *_) = case.outputs
        worse = {**found, name: found[name] * np.float32(1.25) + np.float32(0.25)}
        noticed += bool(judge(case, worse, in_half=True).why)
    assert run >= 2
    assert noticed >= 0.7 * run


def test_the_crosscheck_judges_float16_by_its_own_bound() -> None:
    builder = GraphBuilder(opset=17)
    builder.input("a", TensorType("float32", (64, 96)))
    builder.constant("w", RNG.normal(0, 1, (96, 8)).astype(np.float32))
    builder.output(builder.add("MatMul", ["a", "w"], {}, output="y"))
    one, feeds = builder.build(), {"a": RNG.normal(0, 1, (64, 96)).astype(np.float32)}
    found, cpu = PlanExecutor(OFFERS).compile(one, HALF).run(feeds), CpuExecutor()
    on_cpu = cpu.compile(one).run
    check = CrossCheck(one, 1.0, cpu, arithmetic="float16")
    assert check.compare(feeds, found, on_cpu) is None and not check.note
    assert CrossCheck(one, 1.0, cpu).compare(feeds, found, on_cpu) is not None
    off = {"y": found["y"] + np.float32(0.5)}
    assert check.compare(feeds, off, on_cpu) is not None
