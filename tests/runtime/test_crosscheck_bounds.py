"""Cross-checks: right results pass, wrong ones are noticed, what cannot be judged is skipped.

Two CPU engines that sum in different orders stand for two right devices; float64 references come
from the conformance suite, which shares no code with what is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from gpuedge.conformance.networks import NETWORKS
from gpuedge.conformance.storing import KEEPERS
from gpuedge.core.errors import OutOfMemoryError
from gpuedge.executors.base import Executor
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.expand import expand
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset.evaluate import evaluate
from gpuedge.runtime.crosscheck import FACTOR, CrossCheck, RunningErrors

Feeds = dict[str, Array]


@cache
def ours() -> CpuExecutor:
    return CpuExecutor()


def other(graph: Graph, feeds: Feeds) -> Feeds:
    """What a right device with other kernels answers."""
    return CpuExecutor(engine="numpy").compile(graph).run(feeds)


def network(name: str, data: str = "random") -> tuple[Graph, Feeds, Array]:
    """Return a network of the conformance suite, inputs, and the exact result."""
    model, feeds, reference = NETWORKS[name].make(np.random.default_rng(5), data)
    graph = OnnxModel.load(model).specialise({n: a.shape for n, a in feeds.items()})
    return graph, feeds, reference(KEEPERS["float32"], False).v


def graph_of(
    inputs: Mapping[str, Array], write: Callable[[GraphBuilder], str], opset: int = 17
) -> Graph:
    """Return a graph over inputs of given shapes."""
    builder = GraphBuilder()
    for name, array in inputs.items():
        builder.input(name, TensorType(array.dtype.name, array.shape))
    builder.output(write(builder))
    return builder.build()


class Checked:
    """A cross-check with the CPU that it compares with."""

    def __init__(self, graph: Graph, share: float, cpu: Executor, **options: Any) -> None:
        self.inner = CrossCheck(graph, share, cpu, **options)
        self._graph, self._cpu = graph, cpu

    def compare(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> str | None:
        return self.inner.compare(
            inputs, outputs, lambda given: self._cpu.compile(self._graph).run(given)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def checked(graph: Graph, **options: Any) -> Checked:
    return Checked(graph, 1.0, ours(), **options)


def usual(y: Array) -> tuple[int, ...]:
    """Return the place of an element of ordinary size."""
    size = np.sqrt(np.mean(np.square(y, dtype=np.float64)))
    return tuple(int(i) for i in np.unravel_index(np.argmin(abs(abs(y) - size)), y.shape))


# -- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, []), (1.0, list(range(10))), (0.5, [0, 2, 4, 6, 8]), (0.3, [0, 3, 6, 9]), (1e-9, [0])],
)
def test_the_first_and_then_every_nth_is_due(share: float, expected: list[int]) -> None:
    graph, _, _ = network("perceptron")
    one = CrossCheck(graph, share, ours())
    assert [i for i in range(10) if one.is_due()] == expected
    assert one.is_off == (share == 0)


def test_one_in_256_by_default() -> None:
    from gpuedge import Policy

    graph, _, _ = network("perceptron")
    one = CrossCheck(graph, Policy().crosscheck, ours())
    assert [i for i in range(600) if one.is_due()] == [0, 256, 512]


# -- right results --------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["random", "integers"])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_right_results_pass(name: str, data: str) -> None:
    graph, feeds, exact = network(name, data)
    one = checked(graph)
    answer = other(graph, feeds)
    assert one.compare(feeds, answer) is None
    assert one.note == ""
    (output,) = graph.outputs
    found = RunningErrors(graph, feeds, ours()).values[output]
    assert (abs(answer[output] - exact) <= FACTOR * found.e).all()
    assert (abs(found.v - exact) <= FACTOR * found.e).all()
    assert FACTOR * found.e.max() <= 5e-3 * abs(exact).max()  # it says something


@pytest.mark.parametrize("name", sorted(NETWORKS))
@pytest.mark.parametrize("harm", ["percent", "sign", "zero", "stale", "nan", "shifted"])
def test_wrong_results_are_noticed(name: str, harm: str) -> None:
    graph, feeds, _ = network(name)
    (output,) = graph.outputs
    answer = other(graph, feeds)
    y = answer[output].copy()
    if harm == "percent":
        y[usual(y)] *= 1.01
    elif harm == "sign":
        y[usual(y)] *= -1
    elif harm == "zero":
        y[:] = 0
    elif harm == "nan":
        y[usual(y)] = np.nan
    elif harm == "shifted":
        y = np.roll(y, 1)
    else:
        y = other(graph, {n: np.roll(a, 1) for n, a in feeds.items()})[output]
    one = checked(graph)
    said = one.compare(feeds, {output: y})
    assert said is not None
    assert f"'{output}' differ from the CPU's" in said
    assert one.compare(feeds, answer) is None  # the next one is judged by itself
    assert one.compare(feeds, {output: y}) is not None  # also by what was derived before


def test_a_deep_network_is_still_judged() -> None:
    """Worst-case bounds of 40 layers exceed every value; a sum over the depth does not."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 16, 8, 8)).astype(np.float32)

    def write(g: GraphBuilder) -> str:
        h = "x"
        for i in range(40):
            w = (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32)
            g.constant(f"w{i}", w)
            y = g.add("Relu", [g.add("Conv", [h, f"w{i}"], {"pads": (1, 1, 1, 1)})])
            h = g.add("Add", [y, h]) if i % 2 else y
        return h

    graph = graph_of({"x": x}, write)
    answer = other(graph, {"x": x})
    (output,) = graph.outputs
    assert checked(graph).compare({"x": x}, answer) is None
    y = answer[output].copy()
    y[usual(y)] *= 1.01
    assert checked(graph).compare({"x": x}, {output: y}) is not None
    allowed = FACTOR * RunningErrors(graph, {"x": x}, ours()).values[output].e
    apart = abs(answer[output] - ours().compile(graph).run({"x": x})[output])
    assert apart.max() < allowed.max() / 20  # room for devices that round worse


FUNCTIONS = ["Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tanh", "Erf", "Sigmoid", "Softplus",
             "Softsign", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Abs",
             "Relu", "Neg", "Softmax", "LogSoftmax", "GlobalAveragePool"]  # fmt: skip


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_pass_and_a_percent_is_noticed(op: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(0.5, 4, (1, 3, 6, 7)).astype(np.float32)
    graph = graph_of({"x": x}, lambda g: g.add(op, [g.add(op, ["x"])]))
    (output,) = graph.outputs
    answer = other(graph, {"x": x})
    assert checked(graph).compare({"x": x}, answer) is None
    y = answer[output].copy()
    y[usual(y)] *= 1.2 if op == "Exp" else 1.01  # of Exp the largest is far beyond the rest
    assert checked(graph).compare({"x": x}, {output: y}) is not None


def test_what_only_moves_has_no_error_of_its_own() -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 4)).astype(np.float32)
    graph = graph_of({"x": x}, lambda g: g.add("Relu", [g.add("Transpose", ["x"])]))
    (output,) = graph.outputs
    answer = other(graph, {"x": x})
    assert checked(graph).compare({"x": x}, answer) is None
    y = answer[output].copy()
    y[usual(y)] += np.float32(1e-4)
    assert checked(graph).compare({"x": x}, {output: y}) is not None


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_bytes_must_be_equal(dtype: str) -> None:
    x = np.random.default_rng(4).integers(0, 100, (1, 2, 6, 6)).astype(dtype)
    graph = graph_of(
        {"x": x}, lambda g: g.add("MaxPool", ["x"], {"kernel_shape": (2, 2), "strides": (2, 2)})
    )
    (output,) = graph.outputs
    answer = other(graph, {"x": x})
    assert checked(graph).compare({"x": x}, answer) is None
    y = answer[output].copy()
    y[0, 1, 2, 0] += 1
    said = checked(graph).compare({"x": x}, {output: y})
    assert said is not None
    assert "[0, 1, 2, 0]" in said


def test_an_error_that_grows_is_judged_so() -> None:
    """A difference of large numbers makes small errors large."""
    x = np.random.default_rng(6).standard_normal((1, 64)).astype(np.float32)

    def write(g: GraphBuilder) -> str:
        g.constant("big", np.array(1e4, np.float32))
        g.constant("w", np.eye(64, dtype=np.float32))
        near = g.add("Add", [g.add("MatMul", ["x", "w"]), "big"])
        return g.add("Sub", [near, "big"])

    graph = graph_of({"x": x}, write)
    (output,) = graph.outputs
    right = other(graph, {"x": x})[output]
    off_by_one_step = right + np.float32(2.0**-10)  # a unit in the last place of 1e4
    assert checked(graph).compare({"x": x}, {output: off_by_one_step}) is None
    assert checked(graph).compare({"x": x}, {output: -right}) is not None


# -- what is not judged ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_inputs_that_are_not_finite_are_skipped(value: float) -> None:
    graph, feeds, _ = network("perceptron")
    answer = other(graph, feeds)
    bad = {n: a.copy() for n, a in feeds.items()}
    next(iter(bad.values())).reshape(-1)[0] = value
    one = checked(graph)
    assert one.compare(bad, {n: a * 0 for n, a in answer.items()}) is None
    assert "not finite" in one.note
    assert one.compare(feeds, answer) is None
    assert one.note == ""


def test_infinity_must_be_in_the_same_places() -> None:
    x = np.array([[100.0, 1.0, 4.0]], np.float32)
    graph = graph_of({"x": x}, lambda g: g.add("Exp", ["x"]))
    (output,) = graph.outputs
    right = np.array([[np.inf, np.exp(1), np.exp(4)]], np.float32)
    assert checked(graph).compare({"x": x}, {output: right}) is None
    for place, value in ((0, 7), (1, np.inf), (1, np.nan)):
        y = right.copy()
        y[0, place] = value
        assert checked(graph).compare({"x": x}, {output: y}) is not None, (place, value)


def test_values_inside_that_are_not_finite_are_not_judged_but_others_are() -> None:
    x = np.array([[0.0, 1.0, 4.0]], np.float32)
    graph = graph_of({"x": x}, lambda g: g.add("Tanh", [g.add("Reciprocal", ["x"])]))
    one = checked(graph)
    y = np.tanh(np.array([[0.0, 1.0, 0.25]], np.float32))
    assert one.compare({"x": x}, {graph.outputs[0]: y}) is None
    assert one.compare({"x": x}, {graph.outputs[0]: y * 0}) is not None


def onnx_graph(node: Any, outputs: Any, x: Array, *before: Any) -> Graph:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    proto = helper.make_graph([*before, node], "g", [value("x", TensorProto.FLOAT, x.shape)],
                              outputs)  # fmt: skip
    made = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return OnnxModel.load(made).specialise({"x": x.shape})


def test_a_size_that_rounding_decides_is_not_compared() -> None:
    from onnx import TensorProto, helper

    x = np.float32([[0, 1, 2], [3, 4, 5]])
    before = helper.make_node("Sin", ["x"], ["h"])
    node = helper.make_node("NonZero", ["h"], ["y"])
    graph = onnx_graph(node, [helper.make_tensor_value_info("y", TensorProto.INT64, (2, None))], x,
                       before)  # fmt: skip
    one = checked(graph)
    for count in (5, 6):
        assert one.compare({"x": x}, {"y": np.zeros((2, count), np.int64)}) is None
        assert "not compared (no error bound for NonZero, whose size inexact values" in one.note
    said = one.compare({"x": x + 1}, {"y": np.zeros((2, 6), np.int64)})
    assert said is not None and "7 of 12 elements of 'y' differ" in said
    said = one.compare({"x": x + 1}, {"y": np.zeros((2, 5), np.int64)})
    assert said == "'y' has shape [2, 5] instead of [2, 6]"
    assert not one.note


def test_what_reads_a_size_by_values_is_compared() -> None:
    from onnx import TensorProto, helper

    x = np.float32([[0, 1, 2], [3, 4, 5]])
    before = helper.make_node("NonZero", ["x"], ["h"])
    node = helper.make_node("Add", ["h", "h"], ["y"])
    graph = onnx_graph(node, [helper.make_tensor_value_info("y", TensorProto.INT64, (2, None))], x,
                       before)  # fmt: skip
    one, right = checked(graph), 2 * np.stack(np.nonzero(x))
    assert one.compare({"x": x}, {"y": right}) is None and not one.note
    said = one.compare({"x": x}, {"y": right + (right == 4)})
    assert said is not None and "2 of 10 elements of 'y' differ" in said
    assert one.compare({"x": x * 0}, {"y": right[:, :0]}) is None and not one.note


def test_an_operator_without_a_bound_ends_comparing() -> None:
    from onnx import TensorProto, helper

    x = np.random.default_rng(7).standard_normal((2, 5)).astype(np.float32)
    before = helper.make_node("Exp", ["x"], ["h"])
    node = helper.make_node("RandomNormalLike", ["h"], ["y"])
    graph = onnx_graph(node, [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 5))], x,
                       before)  # fmt: skip
    one = checked(graph)
    assert one.compare({"x": x}, {"y": x}) is None
    assert one.note == "no error bound for RandomNormalLike"
    assert one.is_off


def test_a_smooth_operator_of_the_cpu_is_followed() -> None:
    from onnx import TensorProto, helper

    x = np.random.default_rng(8).standard_normal((2, 5)).astype(np.float32)
    before = helper.make_node("Exp", ["x"], ["h"])
    node = helper.make_node("ReduceL2", ["h"], ["y"], axes=[1])
    graph = onnx_graph(node, [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 1))], x,
                       before)  # fmt: skip
    exact = np.sqrt(np.square(np.exp(x.astype(np.float64))).sum(1, keepdims=True))
    assert checked(graph).compare({"x": x}, {"y": exact.astype(np.float32)}) is None
    wrong = (exact * [[1], [1.01]]).astype(np.float32)
    assert checked(graph).compare({"x": x}, {"y": wrong}) is not None


@pytest.mark.parametrize("error", [OutOfMemoryError("Out of memory."), MemoryError()])
def test_a_cpu_that_fails_judges_nothing(error: Exception) -> None:
    class Full(CpuExecutor):
        def compile(self, segment: Graph) -> Any:
            raise error

    graph, feeds, _ = network("perceptron")
    one = Checked(graph, 1.0, Full())
    assert one.compare(feeds, other(graph, feeds)) is None
    assert "out of memory" in one.note.lower()


# -- storage --------------------------------------------------------------------------------------


def test_fixed_point_is_not_compared() -> None:
    graph, feeds, _ = network("residual")
    one = checked(graph, storage="fixed16")
    assert not one.is_due()
    assert "fixed-point" in one.note
    assert one.compare(feeds, {n: a * 0 for n, a in other(graph, feeds).items()}) is None


def halved(graph: Graph, feeds: Feeds) -> Feeds:
    """What a device answers that keeps inputs, matrices and every result as binary16."""

    def half(a: Array) -> Array:
        return a.astype(np.float16).astype(np.float32) if a.dtype == np.float32 else a

    kept = {n: half(a) if a.ndim > 1 else a for n, a in graph.constants.items()}
    rounded = replace(graph, constants=kept)
    values = {n: half(a) if a.ndim > 1 else a for n, a in feeds.items()}
    for node in graph.nodes:
        (made,) = evaluate([expand(node, rounded)[0]], values)
        values[node.outputs[0]] = half(made)
    return {n: values[n] for n in graph.outputs}


def test_results_off_the_grid_are_rounded_by_float16_storage() -> None:
    x = np.linspace(0, 2, 33, dtype=np.float32).reshape(1, 33)  # on the grid of binary16
    graph = graph_of({"x": x}, lambda g: g.add("Exp", ["x"]))
    (output,) = graph.outputs
    y = np.exp(x.astype(np.float64)).astype(np.float16).astype(np.float32)
    assert checked(graph, storage="float16").compare({"x": x}, {output: y}) is None
    assert checked(graph).compare({"x": x}, {output: y}) is not None


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_float16_storage_has_its_own_tolerance(name: str) -> None:
    graph, feeds, _ = network(name)
    answer = halved(graph, feeds)
    assert checked(graph, storage="float16").compare(feeds, answer) is None
    assert checked(graph).compare(feeds, answer) is not None
    assert checked(graph, storage="float16").compare(feeds, {n: -a for n, a in answer.items()})


# -- odd inputs -----------------------------------------------------------------------------------

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
        ("Ceil", 1e-40, [1, 0], []),
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
        assert (checked(graph).compare({"x": x}, {output: y}) is None) == is_right, value


@pytest.mark.parametrize(
    ("factors", "may_vanish"),
    [((1e-40, 1e38, 100), True), ((1e-20, 1e-20, 1e38, 100), True), ((1e-20, 1e20), False)],
)
def test_denormal_constants_and_results_may_be_zero(
    factors: tuple[float, ...], may_vanish: bool
) -> None:
    x = np.array([[0.5, 1, 2]], np.float32)

    def write(g: GraphBuilder) -> str:
        h = "x"
        for i, factor in enumerate(factors):
            g.constant(f"c{i}", np.array([factor], np.float32))
            h = g.add("Mul", [h, f"c{i}"])
        return h

    graph = graph_of({"x": x}, write)
    (output,) = graph.outputs
    answer = other(graph, {"x": x})
    assert checked(graph).compare({"x": x}, answer) is None
    said = checked(graph).compare({"x": x}, {output: answer[output] * 0})
    assert (said is None) == may_vanish


@pytest.mark.parametrize("harm", ["small", "zero", "stale"])
def test_inputs_that_cancel_do_not_blind_later_comparisons(harm: str) -> None:
    """Of a constant image nothing is left but rounding errors, and those may be of any size."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((1, 3, 33, 33)).astype(np.float32)
    flat = np.full_like(x, 0.3)

    def write(g: GraphBuilder) -> str:
        g.constant("k", np.array([0.7], np.float32))
        return g.add("Mul", [g.add("Sub", ["x", g.add("GlobalAveragePool", ["x"])]), "k"])

    graph = graph_of({"x": x}, write)
    (output,) = graph.outputs
    one = checked(graph)
    for i in range(2):
        noise = rng.standard_normal(x.shape).astype(np.float32) * np.float32(2e-8)
        assert one.compare({"x": flat + np.float32(i)}, {output: noise}) is None
    answer = other(graph, {"x": x})[output]
    wrong = {"zero": answer * 0, "stale": np.roll(answer, 1), "small": answer.copy()}[harm]
    wrong[usual(answer)] *= np.float32(1.001)
    assert one.compare({"x": x}, {output: wrong}) is not None
    assert one.compare({"x": x}, {output: answer}) is None


@pytest.mark.parametrize("shift", [0.0, 8.0, 16.0, 40.0])
@pytest.mark.parametrize("op", ["Sigmoid", "Softplus", "Exp", "Tanh", "Softmax"])
def test_tails_of_functions_are_right_and_lies_about_them_noticed(op: str, shift: float) -> None:
    """What a device may differ by follows from the formula: a tail of 1e-18 is no place for 1."""
    x = np.random.default_rng(4).standard_normal((2, 64)).astype(np.float32) - np.float32(shift)
    graph = graph_of({"x": x}, lambda g: g.add(op, ["x"]))
    (output,) = graph.outputs
    right = other(graph, {"x": x})[output]
    noise = right * np.float32(5e-7)
    assert checked(graph).compare({"x": x}, {output: right + noise}) is None
    assert checked(graph).compare({"x": x}, {output: right + 1}) is not None


def test_places_that_inexact_numbers_lead_to() -> None:
    """Of two scores that are equal within their errors either may come first."""
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    x = np.float32([-3, 1, 0.5, np.nextafter(np.float32(1), 2), -2, 0])

    def write(b: GraphBuilder) -> str:
        count, table = b.constant("k", np.array([5], np.int64)), b.constant("rows", rows)
        _, best = b.add_all("TopK", [b.add("Sigmoid", ["x"]), count], outputs=2)
        return b.add("Gather", [table, best])

    graph = graph_of({"x": x}, write)
    (name,) = graph.outputs
    for answer, is_right in (
        (rows[[3, 1, 2, 5, 4]], True), (rows[[1, 3, 2, 5, 4]], True),
        (rows[[1, 3, 2, 5, 4]] + np.eye(5, 2) * 999, False),
    ):  # fmt: skip
        assert (checked(graph).compare({"x": x}, {name: np.float32(answer)}) is None) == is_right


@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "uint16"])
def test_what_a_cast_makes_of_floats_beyond_its_type_is_not_compared(to: str) -> None:
    """ONNX leaves it open: ONNX Runtime wraps, GPUs take the nearest."""
    feeds = {"x": np.array([1e6, -1e6, 9e9, 3.0], np.float32)}
    number = {"int8": 3, "uint8": 2, "int16": 5, "uint16": 4}[to]
    graph = graph_of(feeds, lambda b: b.add("Cast", ["x"], {"to": number}))
    name = graph.outputs[0]
    about = np.iinfo(to)
    made = {name: np.array([about.max, about.min, 0, 3], to)}
    wanted = {name: np.array([64, 64, 1, 3], to)}
    check = CrossCheck(graph, 1.0, ours())
    assert check.compare(feeds, made, lambda _: wanted) is None
    assert check.note.startswith("3 of 4 elements") and "beyond" in check.note
    made[name][3] = 4
    assert "1 of 4 elements" in str(check.compare(feeds, made, lambda _: wanted))


@pytest.mark.parametrize(
    ("op", "feeds", "attrs"),
    [
        ("Mod", {"a": np.float32([5e5, 7]), "b": np.float32([1e-37, 4])}, {"fmod": 1}),
        ("Pow", {"a": np.float32([0, 3]), "b": np.float32([1e-40, 2])}, {}),
        ("LRN", {"a": np.float32([[[3e19, 3]], [[3e19, 3]]]).T.reshape(2, 2, 1, 1)}, {"size": 1}),
    ],
)
def test_what_overflows_or_is_flushed_on_the_way_is_not_compared(
    op: str, feeds: dict[str, np.ndarray], attrs: dict[str, Any]
) -> None:
    """A right device makes NaN, 0 or infinity of the first half; the rest is compared."""
    graph = graph_of(feeds, lambda b: b.add(op, list(feeds), attrs))
    (name,) = graph.outputs
    right = other(graph, feeds)[name]
    for odd in (np.nan, 0.0, np.inf):
        made = right.copy()
        made[0] = odd
        assert checked(graph).compare(feeds, {name: made}) is None
    made[1] *= np.float32(1.01)
    assert "differ" in str(checked(graph).compare(feeds, {name: made}))
