"""Every row of the table of operators on every level: interpreter, numpy and ONNX Runtime."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import daily
import numpy as np
import pytest
from operators import CAPS, COMBINED, LEVELS, NOTHING, TABLE, Row, check, run_on

from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.ir import Node
from gpuedge.graph.reference import run_node
from gpuedge.opset import sampling
from gpuedge.opset.bounds import Num
from gpuedge.oracle.nodes import INTEGERS, MEANINGS, compute
from gpuedge.runtime.crosscheck import CrossCheck


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", daily.some(sorted({row.op for row in TABLE})))
def test_a_level_computes_what_an_operator_is(op: str, level: str) -> None:
    for row in TABLE:
        if row.op == op and level not in row.lacking:
            check(row, level)


def choices(count: int) -> Iterator[tuple[int, ...]]:
    """Yield which operands are constant: each combination, of many operands one and all but one."""
    for size in range(count):
        if count < 4 or size in (1, count - 1):
            yield from itertools.combinations(range(count), size)


@pytest.mark.parametrize("row", COMBINED, ids=lambda row: row.id)
def test_any_operand_may_be_constant(row: Row) -> None:
    """The planner arranges what the host fills together: some of it comes with each call."""
    for number, chosen in enumerate(choices(len(row.operands))):
        check(replace(row, constant=chosen), ("wgpu", "gles20")[number % 2])


def is_judged(row: Row) -> bool:
    """Tell whether the oracle has a meaning of its own, and the reference can say the same.

    The reference rounds codes in another way, and cannot transpose convolutions of groups.
    """
    has_meaning = row.op in {*MEANINGS, *INTEGERS} - {"QLinearMatMul"}
    is_grouped = row.op == "ConvTranspose" and "group" in row.attrs
    has_elements = row.named()["x0"].size > 0
    return has_meaning and has_elements and row.wanted is None and not is_grouped


JUDGED = list(filter(is_judged, TABLE))


@pytest.mark.parametrize("op", sorted({row.op for row in JUDGED}))
def test_the_oracle_agrees_with_the_reference(op: str) -> None:
    for row in JUDGED:
        if row.op == op:
            named = row.named()
            given = {n: a.astype(float) if a.dtype == "f4" else a for n, a in named.items()}
            names = tuple(f"x{i}" if o is not None else "" for i, o in enumerate(row.operands))
            node = Node(op, names, ("y",), dict(row.attrs), op)
            (wanted,) = run_node(node, given, {"": row.opset})
            result = Num.of(compute(node, [given.get(n) for n in names], row.opset)[0])
            assert result.v.shape == wanted.shape
            # some references round to float32
            np.testing.assert_allclose(result.v, wanted, rtol=0, atol=1e-5, err_msg=row.id)


def test_what_reads_nothing_gives_nothing() -> None:
    """Not only the operator: also what it is fused with."""
    for row in NOTHING:
        graph = row.graph()
        then = Node("Neg", ("y",), ("z",))
        both = replace(graph, nodes=(*graph.nodes, then), outputs=("y", "z"),
                       types={**graph.types, "z": graph.types["y"]})  # fmt: skip
        for level in CAPS:
            found = run_on(level, both, row.feeds())
            np.testing.assert_array_equal(found["y"], row.exact.v, err_msg=row.id)
            np.testing.assert_array_equal(found["z"], -row.exact.v, err_msg=row.id)


def test_a_description_that_is_not_the_cpus_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with kernels of that description agrees with it; the CPU's answer is another."""
    modes = ("cubic", "border")
    sampled = next(
        r for r in TABLE if tuple(r.attrs.values())[:2] == modes and r.op == "GridSample"
    )
    graph, feeds, taps = sampled.graph(), sampled.feeds(), sampling._taps
    right = CpuExecutor().compile(graph).run(feeds)

    def clamping(mode: str, *others: Any) -> Any:
        return taps("linear" if mode == "cubic" else mode, *others)

    monkeypatch.setattr(sampling, "_taps", clamping)
    wrong = CpuExecutor(engine="numpy").compile(graph).run(feeds)
    assert np.abs(wrong["y"] - right["y"]).max() > 0.1
    said = CrossCheck(graph, 1.0, CpuExecutor()).compare(feeds, wrong, lambda _: right)
    assert said is not None and "differ from the CPU's" in said
