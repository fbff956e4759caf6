"""Maps after joins, and equal maps: the same bits as without rewrites, in fewer passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planrun import WIDE, run_graph

from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.expand import program
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.opset.evaluate import evaluate
from gpuedge.opset.expr import Expr
from gpuedge.opset.index import Index
from gpuedge.opset.tensor import at, computed, joined, reduced
from gpuedge.opset.tensor import given as given_
from gpuedge.oracle.layers import convolve
from gpuedge.plan import planner
from gpuedge.plan.planner import plan
from gpuedge.plan.rewrites import rewritten


class Made:
    """A graph with what its values are in float64."""

    def __init__(self, seed: int, batch: int = 1, size: tuple[int, int] = (4, 8)) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = GraphBuilder(opset=17)
        x = self.rng.integers(-3, 4, (batch, 4, *size)).astype(np.float32)
        self.feeds = {self.builder.input("x", TensorType("float32", x.shape)): x}
        self.values: dict[str, Array] = {"x": x.astype(np.float64)}

    def add(self, op: str, names: list[str], value: Any, **attrs: Any) -> str:
        name = self.builder.add(op, names, attrs)
        self.values[name] = value
        return name

    def number(self, value: float) -> str:
        name = f"c{len(self.values)}"
        self.values[name] = np.float64(value)
        return self.builder.constant(name, np.array(value, np.float32))

    def conv(self, x: str, filters: int) -> str:
        w = self.rng.integers(-1, 2, (filters, self.values[x].shape[1], 1, 1)).astype(np.float32)
        held = self.builder.constant(f"w{len(self.values)}", w)
        return self.add("Conv", [x, held], convolve(self.values[x], w))

    def concat(self, names: list[str], axis: int = 1) -> str:
        parts = [self.values[n] for n in names]
        return self.add("Concat", names, np.concatenate(parts, axis), axis=axis)

    def relu(self, x: str) -> str:
        return self.add("Relu", [x], np.maximum(self.values[x], 0))

    def less(self, x: str, by: float) -> str:
        return self.add("Sub", [x, self.number(by)], self.values[x] - by)

    def pool(self, x: str) -> str:
        value = self.values[x]
        wide = np.maximum(value[..., :-1], value[..., 1:])
        return self.add("MaxPool", [x], wide, kernel_shape=[1, 2])

    def done(self, *names: str) -> Graph:
        self.builder.output(*names)
        return self.builder.build()


@st.composite
def random_graphs(draw: st.DrawFn) -> tuple[Made, Graph]:
    """Convolutions, joins along any axis, maps after them, pools, and some values twice."""
    size = draw(st.sampled_from([(4, 8), (4, 8), (3, 5)]))  # where parts may lie in place, or not
    made = Made(draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([1, 1, 2])), size)
    names = ["x"]
    for _ in range(draw(st.integers(2, 10))):
        x = draw(st.sampled_from(names[-3:]))
        other = draw(st.sampled_from(names[-3:]))
        step = draw(st.sampled_from(["conv", "conv", "concat", "concat", "relu", "less", "pool"]))
        if np.abs(made.values[x]).max() > 10_000:
            continue
        if step == "conv":
            names.append(made.conv(x, draw(st.sampled_from([3, 4, 8]))))
        elif step == "concat":
            axis = draw(st.sampled_from([1, 1, 1, 2]))
            a, b = made.values[x], made.values[other]
            if np.delete(a.shape, axis).tolist() == np.delete(b.shape, axis).tolist():
                names.append(made.concat([x, other], axis))
        elif step == "pool":
            if made.values[x].shape[-1] > 1:
                names.append(made.pool(x))
        else:
            names.append(made.relu(x) if step == "relu" else made.less(x, float(step == "less")))
    extra = [n for n in names[1:-1] if draw(st.integers(0, 4)) == 0]
    last = names[-1] if len(names) > 1 else made.relu("x")
    return made, made.done(*dict.fromkeys([last, *extra]))


def check(made: Made, graph: Graph) -> None:
    """Compare every output of a plan with what it is."""
    got = run_graph(graph, made.feeds, WIDE)
    for name in graph.outputs:
        np.testing.assert_array_equal(got[name], made.values[name])


@settings(max_examples=80, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_graphs())
def test_rewritten_plans_compute_the_same(case: tuple[Made, Graph]) -> None:
    check(*case)


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_graphs())
def test_rewriting_is_pure(case: tuple[Made, Graph]) -> None:
    made, graph = case
    values = program(graph)
    roots = [values[name] for name in graph.outputs]
    before = evaluate(roots, made.feeds)
    moved = rewritten(roots)
    after = evaluate([moved[t.serial] for t in roots], made.feeds)
    again = evaluate(roots, made.feeds)
    for one, two, three in zip(before, after, again, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)


def passes(graph: Graph) -> list[str]:
    """Return the variants of a plan, pass by pass."""
    return [one.variant.split("_")[0] for one in plan(graph, WIDE).passes]


def without(graph: Graph) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "rewritten", lambda *_, **__: {})
        return passes(graph)


def test_a_map_after_a_join_ends_the_kernels_before_it() -> None:
    made = Made(0)
    x = made.conv("x", 8)
    both = made.concat([made.relu(made.conv(x, 8)), made.conv(x, 12)])
    graph = made.done(made.conv(made.relu(made.less(both, 2.0)), 4))
    assert without(graph).count("elementwise") == passes(graph).count("elementwise") + 1
    check(made, graph)


@pytest.mark.parametrize("is_output", [True, False])
@pytest.mark.parametrize("who", ["the join", "a part", "the map"])
def test_what_others_read_is_not_computed_twice(who: str, is_output: bool) -> None:
    made = Made(1)
    x = made.conv("x", 8)
    part = made.conv(x, 8)
    both = made.concat([part, made.conv(x, 12)])
    less = made.less(both, 2.0)
    read = {"the join": both, "a part": part, "the map": less}[who]
    graph = made.done(made.conv(less, 4), read if is_output else made.conv(read, 4))
    is_spread = who == "the map"
    assert passes(graph).count("elementwise") == without(graph).count("elementwise") - is_spread
    check(made, graph)


def test_equal_maps_that_kernels_read_are_one() -> None:
    made = Made(2)
    x = made.conv("x", 8)
    ends = [made.conv(made.less(made.relu(x), by), 4) for by in (1.0, 1.0, 2.0)]
    graph = made.done(*ends)
    assert len(passes(graph)) == len(without(graph)) - 1
    check(made, graph)


def test_equal_maps_of_other_places_are_two() -> None:
    made = Made(3)
    x = made.conv("x", 8)
    high = made.builder.constant("sizes", np.array([4, 4]))
    halves = made.builder.add_all("Split", [x, high], {"axis": 1}, outputs=2)
    for name, value in zip(halves, np.split(made.values[x], 2, axis=1), strict=True):
        made.values[name] = value
    graph = made.done(*(made.conv(made.less(half, 1.0), 4) for half in halves))
    check(made, graph)


def test_what_is_cheaper_to_compute_again_is() -> None:
    made = Made(4)
    ones = made.builder.constant("ones", np.ones(4, np.float32))
    made.builder.output(made.builder.add("InstanceNormalization", ["x", ones, ones]))
    graph = made.builder.build()
    assert passes(graph) == without(graph)


def test_a_map_that_reads_other_places_of_a_join_stays() -> None:
    parts = [reduced("sum", given_(n, (1, c, 4, 8, 2), "float32"), (4,), keepdims=False)
             for n, c in (("a", 4), ("b", 8))]  # fmt: skip
    whole = joined(*parts, 1)

    def twice(place: tuple[Index, ...]) -> Expr:
        turned = [place[0], 11 - place[1], *place[2:]]
        return at(whole, place) + at(whole, turned)

    wanted = computed(whole.shape, "float32", twice)
    rng = np.random.default_rng(5)
    feeds = {
        n: rng.integers(-3, 4, (1, c, 4, 8, 2)).astype(np.float32) for n, c in (("a", 4), ("b", 8))
    }
    held = np.concatenate([feeds[n].sum(4) for n in "ab"], axis=1)
    got = evaluate([rewritten([wanted])[wanted.serial]], feeds)[0]
    np.testing.assert_array_equal(got, held + held[:, ::-1])
