"""Look-up tables larger than a binding are read in parts, and every element is the table's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planrun import FLOAT_TEXTURES, TEXTURES, WIDE, run_graph
from table_cases import CASES, MOST, ROWS, WIDTH, rows

from gpuedge.core.caps import Caps
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.plan.plan import Plan
from gpuedge.plan.planner import plan, why_not


def narrow(caps: Caps, operands: int = 32) -> Caps:
    """Return the limits of a device that binds `MOST` bytes, and so many tensors, at once."""
    return replace(caps, max_storage_buffer_bytes=MOST, max_storage_buffers=operands,
                   max_push_bytes=1024)  # fmt: skip


def held(made: Plan) -> list[Any]:
    """Return the constants that a plan binds, in order."""
    constants = {t.host.sources[0]: t for t in made.tensors.values() if t.host and t.is_constant}
    return [made.constants[name] for name in constants]


@pytest.mark.parametrize("caps", [WIDE, TEXTURES, FLOAT_TEXTURES], ids=lambda caps: caps.level)
@pytest.mark.parametrize("case", CASES)
def test_one_kernel_picks_the_very_elements(case: str, caps: Caps) -> None:
    graph, feeds, wanted = CASES[case]()
    made = plan(graph, narrow(caps))
    assert len(made.passes) == 1
    found = run_graph(graph, feeds, narrow(caps))
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


def test_nodes_that_are_computed_by_themselves_pick_from_parts_as_well() -> None:
    graph, feeds, wanted = CASES["bag weighted"]()
    (found,) = run_graph(graph, feeds, narrow(WIDE), rewrites=False).values()
    np.testing.assert_array_equal(found, *wanted.values())


def test_parts_share_the_memory_of_the_table_and_are_about_as_large() -> None:
    graph, _, _ = rows(0, (ROWS, WIDTH))
    whole, parts = graph.constants["t"], held(plan(graph, narrow(WIDE)))
    assert [part.size for part in parts] == [ROWS * WIDTH // 4] * 4
    assert all(np.shares_memory(part, whole) for part in parts)


def test_a_table_that_fits_stays_whole() -> None:
    graph, _, _ = rows(0, (ROWS, WIDTH))
    fits = replace(WIDE, max_storage_buffer_bytes=ROWS * WIDTH * 4)
    assert held(plan(graph, fits)) == [graph.constants["t"]]
    smaller = replace(fits, max_storage_buffer_bytes=ROWS * WIDTH * 4 - 16)
    assert len(held(plan(graph, smaller))) == 2
    allocated = replace(fits, max_allocation_bytes=ROWS * WIDTH * 4 - 16)
    assert len(held(plan(graph, allocated))) == 2


@pytest.mark.parametrize(("operands", "passes"), [(6, 1), (5, 2), (4, 3)])
def test_what_binds_few_tensors_picks_in_several_passes(operands: int, passes: int) -> None:
    graph, feeds, wanted = rows(0, (ROWS, WIDTH))
    caps = narrow(WIDE, operands)
    made = plan(graph, caps)
    assert len(made.passes) == passes
    assert max(len(launch.tensors) for launch in made.passes) == min(operands, 6)
    (found,), (value,) = run_graph(graph, feeds, caps).values(), wanted.values()
    np.testing.assert_array_equal(found, value)


def test_what_binds_too_few_says_so() -> None:
    graph, _, _ = rows(0, (ROWS, WIDTH))
    why = why_not(graph.nodes[0], graph, narrow(WIDE, 3))
    assert why is not None
    assert "binds 4 tensors" in why
    assert "at most 3" in why


def test_indices_outside_of_the_table_give_some_element_of_it() -> None:
    graph, feeds, _ = rows(0, (ROWS, WIDTH))
    picked = np.resize([ROWS, 10**6, -ROWS - 1, -(10**6)], feeds["i"].shape)
    (found,) = run_graph(graph, {"i": picked}, narrow(WIDE)).values()
    (whole,) = run_graph(graph, {"i": picked}, WIDE).values()
    np.testing.assert_array_equal(found, whole)


def test_a_constant_that_is_added_is_no_table() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (ROWS, WIDTH)))
    b.output(b.add("Add", [x, b.constant("c", np.ones((ROWS, WIDTH), np.float32))]))
    with pytest.raises(UnsupportedOpError, match="binds a tensor of 28800 bytes"):
        plan(b.build(), narrow(WIDE))
