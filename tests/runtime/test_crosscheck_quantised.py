"""Quantised models: what is rounded at a tie may move by a step, and anything more is noticed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from faulty import GPU, FaultyPool
from usual_nets import Net

from gpuedge import quantize
from gpuedge.decide.policy import Policy
from gpuedge.executors.base import Executable
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, Node, TensorType
from gpuedge.graph.reader import OnnxModel
from gpuedge.graph.shaped import ShapedModel
from gpuedge.graph.writer import to_bytes
from gpuedge.runtime.background import Pace
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.crosscheck import CrossCheck, RunningErrors
from gpuedge.runtime.gates import Gates, Passed, Refused
from gpuedge.runtime.placed import Compilation
from gpuedge.runtime.request import Request

Feeds = dict[str, Array]
SHAPE = (1, 3, 12, 12)


@cache
def network(depth: int) -> tuple[Graph, Feeds]:
    """Return a quantised chain of convolutions with random weights, and an image."""
    rng, net = np.random.default_rng(depth), Net(*SHAPE)
    x = net.x
    for _ in range(depth):
        x = net.unit(x, 16, 3)
    graph = net.classified(x)
    weights = {
        name: (rng.standard_normal(a.shape) * np.sqrt(2 / max(a[0].size, 1))).astype(np.float32)
        if a.ndim > 1 else a for name, a in graph.constants.items()
    }  # fmt: skip
    graph.constants.update(weights)  # type: ignore[attr-defined]
    made = [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(3)]
    model = quantize(to_bytes(graph), made[:2])
    return OnnxModel.load(model).specialise({"x": SHAPE}), made[2]


def divided(graph: Graph) -> Graph:
    """Return a graph whose input is divided by one first, which may be 2.5 ULP off."""
    first = Node("Div", ("x", "one"), ("quotient",))
    nodes = [
        replace(n, inputs=tuple("quotient" if i == "x" else i for i in n.inputs))
        for n in graph.nodes
    ]
    return replace(
        graph,
        nodes=(first, *nodes),
        types={**graph.types, "quotient": graph.types["x"]},
        constants={**graph.constants, "one": np.ones(1, np.float32)},
    )


def answer(graph: Graph, feeds: Feeds) -> Feeds:
    return CpuExecutor().compile(graph).run(feeds)


def checked(graph: Graph, feeds: Feeds, found: Feeds) -> tuple[str | None, str]:
    check = CrossCheck(graph, 1.0, CpuExecutor())
    said = check.compare(feeds, found, lambda given: answer(graph, dict(given)))
    return said, check.note


HARMS: dict[str, Callable[[Array], Array]] = {
    "shifted": lambda y: y + 5 * np.abs(y).max(),
    "a tenth": lambda y: y * np.float32(1.1),
    "zero": lambda y: y * 0,
    "sign": lambda y: -y,
    "one": lambda y: np.where(np.arange(y.size).reshape(y.shape) == 3, y + np.abs(y).max(), y),
}


@pytest.mark.parametrize("depth", [1, 3, 9])
def test_wrong_results_of_quantised_networks_are_noticed(depth: int) -> None:
    graph, feeds = network(depth)
    assert any(node.op == "QLinearConv" for node in graph.nodes)
    right = answer(graph, feeds)
    assert checked(graph, feeds, right) == (None, "")
    for harm, made in HARMS.items():
        wrong = {n: made(y).astype(y.dtype) for n, y in right.items()}
        said, _ = checked(graph, feeds, wrong)
        assert said is not None and "differ from the CPU's" in said, harm


@pytest.mark.parametrize("depth", [1, 3, 9])
def test_ties_that_another_device_rounds_otherwise_are_right(depth: int) -> None:
    """Inputs off by two units in the last place stand for a quotient that is rounded otherwise."""
    graph, feeds = network(depth)
    graph = divided(graph)
    rng, moved = np.random.default_rng(depth), 0
    scale = next(graph.constants[n.inputs[1]] for n in graph.nodes if n.op == "QuantizeLinear")
    ties = (np.rint(feeds["x"] / scale - 0.5) + 0.5) * scale
    x = np.where(rng.random(SHAPE) < 0.05, ties, feeds["x"]).astype(np.float32)
    right = answer(graph, {"x": x})
    for _ in range(4):
        off = rng.choice([-2, -1, 1, 2], SHAPE) * 2.0**-23
        found = answer(graph, {"x": (x * (1 + off)).astype(np.float32)})
        moved += any((found[n] != right[n]).any() for n in right)
        assert checked(graph, {"x": x}, found)[0] is None
    assert moved  # else nothing was tried


def quantised(dtype: str, *, back: bool = False) -> Graph:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (2, 6)))
    scale, zero = b.constant("s", np.float32(0.1)), b.constant("z", np.array(3, dtype))
    q = b.add("QuantizeLinear", [x, scale, zero], output="q")
    b.output(b.add("DequantizeLinear", [q, scale, zero], output="y") if back else q)
    return b.build()


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_tie_allows_one_step_and_nothing_else_any(dtype: str) -> None:
    x = np.float32([[0.25, 0.31, 1.449, 1.5, 0, 2], [0.95, 1.05, 3, 3.001, 7, 8]])
    is_tie = np.abs(np.abs(x / np.float32(0.1)) % 1 - 0.5) < 1e-5
    assert is_tie.sum() == 3
    direct = RunningErrors(quantised(dtype), {"x": x}, CpuExecutor()).values["q"]
    assert not direct.e.any(), "the division of QuantizeLinear is exact on every device"
    graph = divided(quantised(dtype))
    found = RunningErrors(graph, {"x": x}, CpuExecutor()).values["q"]
    np.testing.assert_array_equal(found.e, is_tie)
    right = answer(graph, {"x": x})["q"]
    for at in np.ndindex(x.shape):
        for by in (-3, -1, 1, 3):
            y = right.copy()
            y[at] += np.array(by).astype(dtype)
            said, note = checked(graph, {"x": x}, {"q": y})
            assert ((said is None) == (is_tie[at] and abs(by) == 1), note) == (True, ""), (at, by)


def test_steps_go_on_in_floats_by_their_scale() -> None:
    x = np.float32([[0.25, 0.31, 1.449, 1.5, 0, 2], [0.95, 1.05, 3, 3.001, 7, 8]])
    graph = divided(quantised("uint8", back=True))
    right = answer(graph, {"x": x})["y"]
    for at, step, is_right in (((0, 0), 1, True), ((0, 1), 1, False), ((0, 0), 6, False)):
        y = right.copy()
        y[at] += np.float32(0.1 * step)
        assert (checked(graph, {"x": x}, {"y": y})[0] is None) == is_right, (at, step)


def converting(op: str, **attrs: Any) -> Graph:
    b = GraphBuilder()
    h = b.add("Sin", [b.input("x", TensorType("float32", (1, 4)))])
    b.output(b.add(op, [h], attrs, output="y"))
    return b.build()


def test_the_best_of_inexact_numbers_is_one_of_those_that_may_be() -> None:
    """Of scores that are equal within their errors either is the best; of others it is clear."""
    graph, x = converting("ArgMax", axis=1), np.float32([[1, 1, 0, 0]])
    right = answer(graph, {"x": x})["y"]
    assert checked(graph, {"x": x}, {"y": right + 1}) == (None, "")
    assert checked(graph, {"x": x}, {"y": right + 2})[0] is not None
    far = np.float32([[1, 0, 0, 1]])  # the first or the last: there is nothing else to be
    note = "'y' is not compared (rounding could change it by any amount)"
    assert checked(graph, {"x": far}, {"y": right + 2}) == (None, note)
    x = np.float32([[1, 0.5, 0, 0]])
    assert checked(graph, {"x": x}, {"y": right + 1})[0] is not None
    assert checked(graph, {"x": x}, {"y": right}) == (None, "")


def test_a_cast_moves_by_one_where_an_integer_is_near() -> None:
    graph, x = converting("Cast", to=6), np.float32([[np.pi / 2, 0.5, 0, -np.pi / 2]])
    right = answer(graph, {"x": x})["y"]
    assert right.tolist() == [[1, 0, 0, -1]]
    for at, is_right in ((0, True), (1, False), (3, True)):
        y = right.copy()
        y[0, at] -= np.sign(y[0, at]) or 1
        assert (checked(graph, {"x": x}, {"y": y})[0] is None) == is_right, at
    y[0, 0] = 5
    assert checked(graph, {"x": x}, {"y": y})[0] is not None


# -- sessions --------------------------------------------------------------------------------------


class ShiftedRun:
    """A segment whose results are off by five times their largest number."""

    def __init__(self, inner: Executable) -> None:
        self.inner, self.rows, self.close = inner, inner.rows, inner.close

    def run(self, inputs: Mapping[str, Array]) -> Feeds:
        """Compute, and be wrong."""
        made = self.inner.run(inputs)
        return {n: y + (5 * np.abs(y).max()).astype(y.dtype) for n, y in made.items()}


class CpuAsGpu(CpuExecutor):
    """A GPU that computes any network, on the CPU in truth; wrong if it is told to."""

    device, isolation = GPU, "inline"
    closed = False

    def __init__(self, *, is_wrong: bool) -> None:
        super().__init__()
        self.is_wrong = is_wrong

    def compile(self, segment: Graph, *_: object, **__: object) -> Executable:
        """Compile for the CPU."""
        made = super().compile(segment)
        return ShiftedRun(made) if self.is_wrong else made

    def retire(self) -> None:
        """Let nothing start any more."""
        self.closed = True


class CpuPool(FaultyPool):
    """A pool with such a GPU."""

    def __init__(self, *, is_wrong: bool = True) -> None:
        super().__init__()
        self.is_wrong = is_wrong

    def _open_gpu(self, name: str, isolation: str) -> CpuAsGpu:
        return CpuAsGpu(is_wrong=self.is_wrong)


def test_a_quantised_model_on_a_wrong_device_is_answered_by_the_cpu() -> None:
    graph, feeds = network(3)
    compiled = CompiledModel(graph, Request("vulkan", Policy(crosscheck=1.0)), CpuPool())
    (name,) = graph.outputs
    np.testing.assert_array_equal(compiled.run(feeds)[name], answer(graph, feeds)[name])
    health = compiled.health()
    assert (health.crosschecks, health.crosschecks_failed) == (1, 1)
    assert health.state == "demoted" and "1 differed" in str(health)


def gated(graph: Graph, pool: CpuPool) -> Passed | Refused:
    """Return what a device comes to on the way of `auto` to it."""
    request = Request("auto", Policy(crosscheck=1 / 256))
    model = ShapedModel(lambda: graph)
    return Gates(Compilation(model, request, pool), "vulkan:0", None, 0).passed(Pace())


def test_a_right_device_passes_the_gates_of_auto() -> None:
    found = gated(network(3)[0], CpuPool(is_wrong=False))
    assert isinstance(found, Passed)
    assert found.placed.check is not None and found.placed.check.note == ""
    found.placed.close_all()


def test_the_gates_say_what_they_could_not_compare(caplog: pytest.LogCaptureFixture) -> None:
    kind = TensorType("float32", (2, 3))
    nodes = (Node("RandomNormalLike", ("x",), ("y",)),)
    graph = Graph(nodes, ("x",), ("y",), {"x": kind, "y": kind})
    with caplog.at_level(logging.INFO, "gpuedge"):
        found = gated(graph, CpuPool())
    assert isinstance(found, Passed)
    assert "not compared with the CPU: no error bound for RandomNormalLike" in caplog.text
    found.placed.close_all()


def test_the_gates_of_auto_refuse_it(caplog: pytest.LogCaptureFixture) -> None:
    graph, _ = network(3)
    pool = CpuPool()
    assert isinstance(gated(graph, pool), Refused)
    assert "differ from the CPU's" in caplog.text
    assert pool.device("vulkan:0").state.health == "demoted"


def test_health_and_explain_say_what_is_not_compared() -> None:
    kind = TensorType("float32", (2, 3))
    nodes = (Node("RandomNormalLike", ("x",), ("y",)),)
    graph = Graph(nodes, ("x",), ("y",), {"x": kind, "y": kind})
    compiled = CompiledModel(graph, Request("vulkan", Policy(crosscheck=1.0)), CpuPool())
    compiled.run({"x": np.ones((2, 3), np.float32)})
    health = compiled.health()
    assert (health.crosschecks, health.crosschecks_failed) == (1, 0)
    assert health.crosschecks_not_compared == health.to_dict()["crosschecks_not_compared"] == 1
    assert "0 agreed, 0 differed, 1 not compared" in str(health)
    assert "not compared: no error bound for RandomNormalLike" in str(health)
    said = compiled.decision.explain(verbose=True)
    assert "Not compared with the CPU: no error bound for RandomNormalLike." in said
