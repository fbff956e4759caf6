"""Canaries on odd inputs: denormal numbers, what lies outside the domain, results that cancel.

What counts as right is what ``docs/numerics.md`` promises and what drivers were seen to answer.
"""

from __future__ import annotations

import numpy as np
import pytest
from test_canary import Feeds, canary, graph_of, other, usual

from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph

# -- operands that little is promised about -------------------------------------------------------

OUT = [-np.inf, np.inf, np.nan, 16.0]
"""What devices made of Sin(3e38), and more."""


@pytest.mark.parametrize(
    ("op", "odd", "right", "wrong"),
    [
        ("Log", 2e-39, [-89.1076, -87.87, -np.inf], []),
        ("Reciprocal", 9e-39, [1.111111e38, 8.5e37, np.inf], []),
        ("Reciprocal", 1e-40, [np.inf, 8.5e37], []),
        ("Reciprocal", 2e38, [5e-39, 0], []),
        ("Sqrt", 1e-40, [1e-20, 0], [1e-3, np.inf]),
        ("Sqrt", -1e-40, [np.nan, 0], []),
        ("Ceil", 1e-40, [1, 0], [50, np.nan]),
        ("Sin", 3e38, OUT, []),
        ("Cos", 1001, OUT, []),
        ("Sin", 999, [np.sin(999.0)], OUT),
        ("Exp", -1e-40, [1.0], [1.01, np.inf]),
    ],
)
def test_odd_operands_are_judged_by_what_is_promised(
    op: str, odd: float, right: list[float], wrong: list[float]
) -> None:
    """Denormal numbers may count as zero; sine and cosine hold up to 1000."""
    x = np.array([[1, 2, 3, odd]], np.float32)
    graph = graph_of({"x": x}, lambda g: g.add(op, ["x"]))
    (output,) = graph.outputs
    y = other(graph, {"x": x})[output]
    for value, is_right in [*((v, True) for v in right), *((v, False) for v in wrong)]:
        y[0, 3] = value
        assert (canary(graph).check({"x": x}, {output: y}) is None) == is_right, value
    y[0, 3] = right[0]
    y[0, 1] += np.float32(0.02)  # the ordinary ones beside it are still judged
    if op != "Ceil":
        assert canary(graph).check({"x": x}, {output: y}) is not None


def scaled(*factors: float) -> tuple[Graph, Feeds, str]:
    """Return a graph that multiplies by one constant after the other, and inputs of it."""
    x = np.array([[0.5, 1, 2]], np.float32)

    def write(g: GraphBuilder) -> str:
        h = "x"
        for i, factor in enumerate(factors):
            g.constant(f"c{i}", np.array([factor], np.float32))
            h = g.add("Mul", [h, f"c{i}"])
        return h

    graph = graph_of({"x": x}, write)
    return graph, {"x": x}, graph.outputs[0]


@pytest.mark.parametrize(
    ("factors", "may_vanish"),
    [((1e-40, 1e38, 100), True), ((1e-20, 1e-20, 1e38, 100), True), ((1e-30, 1e30), False)],
)
def test_denormal_constants_and_results_may_be_zero(
    factors: tuple[float, ...], may_vanish: bool
) -> None:
    graph, feeds, output = scaled(*factors)
    answer = other(graph, feeds)
    assert canary(graph).check(feeds, answer) is None
    said = canary(graph).check(feeds, {output: answer[output] * 0})
    assert (said is None) == may_vanish
    assert canary(graph).check(feeds, {output: answer[output] + 20}) is not None


def test_products_that_are_denormal_may_be_lost_from_a_sum() -> None:
    x = np.full((1, 400), 1e-20, np.float32)

    def write(g: GraphBuilder) -> str:
        g.constant("w", np.full((400, 2), 1e-19, np.float32))
        g.constant("big", np.array([1e37], np.float32))
        return g.add("Mul", [g.add("MatMul", ["x", "w"]), "big"])

    graph = graph_of({"x": x}, write)
    (output,) = graph.outputs
    assert canary(graph).check({"x": x}, other(graph, {"x": x})) is None
    assert canary(graph).check({"x": x}, {output: np.zeros((1, 2), np.float32)}) is None
    assert canary(graph).check({"x": x}, {output: np.full((1, 2), 100, np.float32)}) is not None


def test_what_depends_on_an_unknown_value_is_not_compared() -> None:
    x = np.array([[3e38, 1, 2]], np.float32)

    def follow(g: GraphBuilder) -> str:
        return g.add("Tanh", [g.add("Sin", ["x"])])

    def total(g: GraphBuilder) -> str:
        g.constant("w", np.ones((3, 2), np.float32))
        return g.add("MatMul", [g.add("Sin", ["x"]), "w"])

    graph = graph_of({"x": x}, follow)
    (output,) = graph.outputs
    y = other(graph, {"x": x})[output]
    y[0, 0] = -1
    one = canary(graph)
    assert one.check({"x": x}, {output: y}) is None
    assert one.skipped == 0
    y[0, 1] += 0.01
    assert one.check({"x": x}, {output: y}) is not None

    graph = graph_of({"x": x}, total)
    (output,) = graph.outputs
    one = canary(graph)
    assert one.check({"x": x}, {output: np.full((1, 2), -np.inf, np.float32)}) is None
    assert one.skipped == 1
    assert f"nothing is promised about '{output}'" in str(one.why_skipped)
    plain = {"x": np.ones((1, 3), np.float32)}
    assert one.check(plain, {output: np.zeros((1, 2), np.float32)}) is not None


# -- inputs that cancel ---------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [1, 3])
@pytest.mark.parametrize("harm", ["small", "zero", "stale"])
def test_inputs_that_cancel_do_not_blind_later_comparisons(harm: str, warm: int) -> None:
    """Of a constant image nothing is left but rounding errors, and those may be of any size."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((1, 3, 33, 33)).astype(np.float32)
    flat = np.full_like(x, 0.3)

    def write(g: GraphBuilder) -> str:
        g.constant("k", np.array([0.7], np.float32))
        return g.add("Mul", [g.add("Sub", ["x", g.add("GlobalAveragePool", ["x"])]), "k"])

    graph = graph_of({"x": x}, write)
    (output,) = graph.outputs
    one = canary(graph)
    for i in range(warm):
        noise = rng.standard_normal(x.shape).astype(np.float32) * np.float32(2e-8)
        assert one.check({"x": flat + np.float32(i)}, {output: noise}) is None
    answer = other(graph, {"x": x})[output]
    wrong = {"zero": answer * 0, "stale": np.roll(answer, 1), "small": answer.copy()}[harm]
    wrong[usual(answer)] *= np.float32(1.001)
    for _ in range(2):
        assert one.check({"x": x}, {output: wrong}) is not None
        assert one.check({"x": x}, {output: answer}) is None
        one.check({"x": flat}, {output: answer * np.float32(1e-8)})
