"""Planning takes as many operations for each node of a long graph as of a short one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.graph.partition import partition
from gpuedge.plan.arrange import arrange
from gpuedge.plan.plan import Plan
from gpuedge.plan.planner import plan, why_not

SHORT, TIMES = 30, 4


def blocks(count: int) -> Graph:
    """Conv, Relu, Add of what came before, Mul by a constant: again and again."""
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (1, 4, 2, 2)))
    for i in range(count):
        w = b.constant(f"w{i}", np.ones((4, 4, 1, 1), np.float32))
        y = b.add("Add", [x, b.add("Relu", [b.add("Conv", [x, w])])])
        x = b.add("Mul", [y, b.constant(f"c{i}", np.ones((4, 1, 1), np.float32))])
    b.output(x)
    return b.build()


def operations(step: Callable[[], Any]) -> int:
    """Return how many bytecodes of ours are executed."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if "gpuedge" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    return count


STEPS: dict[str, Callable[[Graph], Any]] = {
    "why_not": lambda g: [why_not(n, g, VULKAN_MINIMUM) for n in g.nodes[-8:]],
    "partition": lambda g: partition(g, lambda n: "cpu" if n.op == "Mul" else "gpu"),
    "plan": lambda g: plan(g, VULKAN_MINIMUM),
}
ARRANGED: dict[str, Callable[[Plan], Any]] = {
    "arrange": lambda made: arrange(made, 256),
    "arrange whole": lambda made: arrange(made, 16, has_suballocation=False),
}


def grows_with(step: Callable[[Any], Any], short: Any, long: Any, times: float) -> None:
    step(short)  # what is read and cached once
    few, many = (operations(lambda g=g: step(g)) for g in (short, long))
    assert few > 100
    assert many < 1.25 * times * few, f"{few} operations became {many}"


@pytest.mark.parametrize("name", STEPS)
def test_operations_grow_with_the_nodes(name: str) -> None:
    times = 1 if name == "why_not" else TIMES  # which is asked of eight nodes
    grows_with(STEPS[name], blocks(SHORT), blocks(SHORT * TIMES), times)


@pytest.mark.parametrize("name", ARRANGED)
def test_memory_is_arranged_in_as_many_as_there_are_passes(name: str) -> None:
    short, long = (plan(blocks(count), VULKAN_MINIMUM) for count in (SHORT, SHORT * TIMES))
    grows_with(ARRANGED[name], short, long, TIMES)
