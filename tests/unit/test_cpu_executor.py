"""The CPU executor: both engines, what they refuse, and what they promise."""

from __future__ import annotations

import gc
import os
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from graph_cases import Case, fits, windows
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from single_node import single

import gpuedge
from gpuedge.core.errors import ClosedError, InputError, ModelError, UnsupportedOpError
from gpuedge.executors import cpu
from gpuedge.executors.base import PlacementRow
from gpuedge.executors.cpu import CpuExecutor, Engine, usable_cores
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, Node, TensorType
from gpuedge.graph.writer import to_onnx

ENGINES: list[Engine] = ["onnxruntime", "numpy"]
ORT = f"onnxruntime {onnxruntime.__version__}"


def small() -> Graph:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (2, 3)))
    w = b.constant("w", np.arange(6, dtype=np.float32).reshape(3, 2))
    b.output(b.add("Relu", [b.add("MatMul", [x, w], output="p")], output="y"), x, w)
    return b.build()


X = np.array([[1, 0, -1], [2, 1, 0]], np.float32)
Y = np.array([[0, 0], [2, 5]], np.float32)


@pytest.mark.parametrize("engine", ENGINES)
def test_results_are_right_and_fresh_and_inputs_untouched(engine: Engine) -> None:
    graph = small()
    compiled = CpuExecutor(engine=engine).compile(graph)
    x = X.copy()
    x.flags.writeable = False
    first, second = compiled.run({"x": x}), compiled.run({"x": x})
    np.testing.assert_array_equal(first["y"], Y)
    np.testing.assert_array_equal(x, X)
    # Outputs that are inputs or constants are copies too; writing to a result harms nobody.
    for name, array in first.items():
        assert not np.shares_memory(array, x)
        assert not np.shares_memory(array, second[name])
        array[...] = 99
    np.testing.assert_array_equal(graph.constants["w"], np.arange(6).reshape(3, 2))
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], Y)
    assert list(first) == ["y", "x", "w"]


def doubled(rows: int | None = 2) -> bytes:
    """Return a model of y = max(x, 0) and z = x + x."""
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 3]) for n in "xyz"]
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Add", ["x", "x"], ["z"])]
    graph = helper.make_graph(nodes, "doubled", kinds[:1], kinds[1:])
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())


def test_bound_memory_is_read_and_written_in_place_in_every_run() -> None:
    x, y, z = X.copy(), np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    with gpuedge.Session(doubled(), device="cpu") as session:
        bound, other = session.bind({"x": x}, {"y": y, "z": z}), session.bind({"x": X}, {"y": y})
        for turn in range(5):  # from the second on in ONNX Runtime's own way
            x[...] = X + turn
            y[...] = z[...] = 99
            found = bound.run()
            assert found["y"] is y and found["z"] is z
            np.testing.assert_array_equal(y, np.maximum(X + turn, 0))
            np.testing.assert_array_equal(z, 2 * (X + turn))
        newer = X - 1
        for _ in range(3):
            z[...] = 99
            bound.run({"x": newer})
            np.testing.assert_array_equal(z, 2 * newer)
            other.run()
            np.testing.assert_array_equal(y, np.maximum(X, 0))
        swapped = session.bind({"x": newer}, {"z": y, "y": z})
        for _ in range(3):
            bound.run()
            np.testing.assert_array_equal(z, 2 * newer)
        swapped.run()
        np.testing.assert_array_equal(y, 2 * newer)


def test_memory_that_a_binding_was_made_for_is_not_kept() -> None:
    into = [np.zeros((2, 3), np.float32) for _ in "yz"]
    with gpuedge.Session(doubled(), device="cpu") as session:
        bound = session.bind({"x": X}, dict(zip("yz", into, strict=True)))
        for _ in range(3):
            bound.run()
        gone = [weakref.ref(memory) for memory in into]
        del into, bound
        gc.collect()
        assert [memory() for memory in gone] == [None, None]
        again = session.bind({"x": X}, {n: np.zeros((2, 3), np.float32) for n in "yz"})
        for _ in range(3):
            np.testing.assert_array_equal(again.run()["z"], 2 * X)


@pytest.mark.parametrize("rows", [2, None])
def test_bound_memory_of_any_strides_and_open_shapes(rows: int | None) -> None:
    whole = np.zeros((2, 6), np.float32)
    into = {"y": whole[:, ::2], "z": np.zeros((2, 3), np.float32)}
    with gpuedge.Session(doubled(rows), device="cpu") as session:
        bound = session.bind({"x": X}, into)
        for _ in range(3):
            whole[...] = 99
            bound.run()
            np.testing.assert_array_equal(whole[:, ::2], np.maximum(X, 0))
            np.testing.assert_array_equal(whole[:, 1::2], 99)


@pytest.mark.parametrize(("engine", "kernel"), [("onnxruntime", ORT), ("numpy", "numpy")])
def test_rows(engine: Engine, kernel: str) -> None:
    compiled = CpuExecutor(engine=engine).compile(small())
    assert compiled.rows == (
        PlacementRow(("p",), ("MatMul",), "cpu", kernel),
        PlacementRow(("y",), ("Relu",), "cpu", kernel),
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_closing_twice_and_running_after(engine: Engine) -> None:
    executor = CpuExecutor(engine=engine)
    compiled = executor.compile(small())
    compiled.close()
    compiled.close()
    with pytest.raises(ClosedError):
        compiled.run({"x": X})
    executor.close()
    executor.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_graph_without_nodes(engine: Engine) -> None:
    graph = Graph((), ("x",), ("x",), {"x": TensorType("float32", (2, 3))})
    found = CpuExecutor(engine=engine).compile(graph).run({"x": X})["x"]
    np.testing.assert_array_equal(found, X)
    assert not np.shares_memory(found, X)


def test_numpy_frees_what_is_no_longer_read_and_reads_shared_values() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (2, 3)))
    a = b.add("Abs", [x])
    b.output(b.add("Add", [b.add("Neg", [a]), b.add("Add", [a, a])], output="y"))
    found = CpuExecutor(engine="numpy").compile(b.build()).run({"x": X})
    np.testing.assert_array_equal(found["y"], np.abs(X))


def unknown() -> Graph:
    node = Node("Binarizer", ("x",), ("y",), {"threshold": 0.5}, domain="ai.onnx.ml")
    kind = TensorType("float32", (2, 3))
    return Graph((node,), ("x",), ("y",), {"x": kind, "y": kind}, {}, {"": 17, "ai.onnx.ml": 1})


def test_numpy_refuses_what_it_does_not_know() -> None:
    graph = unknown()
    executor = CpuExecutor(engine="numpy")
    reason = executor.supports(graph.nodes[0], graph)
    assert reason is not None
    assert "Binarizer node 'y'" in reason
    with pytest.raises(UnsupportedOpError, match="Binarizer"):
        executor.compile(graph)


def test_onnxruntime_runs_what_has_a_schema() -> None:
    graph = unknown()
    executor = CpuExecutor(engine="onnxruntime")
    assert executor.supports(graph.nodes[0], graph) is None
    np.testing.assert_array_equal(executor.compile(graph).run({"x": X})["y"], X > 0.5)
    nonsense = Node("Relux", ("x",), ("y",))
    assert executor.supports(nonsense, graph) == (
        "There is no operator Relux in operator set ai.onnx 17."
    )
    foreign = Node("Foo", ("x",), ("y",), domain="mine")
    assert "does not import" in str(executor.supports(foreign, graph))


def test_onnxruntimes_refusal_is_a_model_error_with_its_words() -> None:
    kind = TensorType("float32", (2, 3))
    node = Node("Relux", ("x",), ("y",), {}, "odd")
    graph = Graph((node,), ("x",), ("y",), {"x": kind, "y": kind}, {}, {"": 17})
    with pytest.raises(ModelError, match="Relux") as caught:
        CpuExecutor().compile(graph)
    assert ORT in str(caught.value) and "odd" in str(caught.value)


def test_what_only_numpy_can_run_goes_to_numpy() -> None:
    # ONNX Runtime has no Relu of operator set 1, and no float16 Celu.
    for case in (Case("Relu", [(4,)], opset=1), Case("Celu", [(4,)], dtype="float16")):
        with pytest.raises(ModelError):
            CpuExecutor(engine="onnxruntime").compile(case.graph())
        compiled = CpuExecutor().compile(case.graph())
        assert compiled.rows[0].kernel == "numpy"
        x = np.array([-1, 0, 1, 2], case.dtype)
        found = compiled.run({"x0": x})["y"]
        assert found.dtype == case.dtype
        np.testing.assert_array_equal(found[1:], x[1:])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["Conv", "MaxPool", "AveragePool"]).flatmap(windows), st.booleans())
def test_same_padding_is_right_where_onnxruntime_alone_is_not(case: Case, upper: bool) -> None:
    case.attrs.pop("pads", None)
    case.attrs["auto_pad"] = "SAME_UPPER" if upper else "SAME_LOWER"
    assume(fits(case))
    graph, feeds = case.graph(), case.feeds()
    found = CpuExecutor(threads=1).compile(graph).run(feeds)["y"]
    expected = CpuExecutor(engine="numpy").compile(graph).run(feeds)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_values_that_do_not_fit_are_an_input_error() -> None:
    node = Node("Gather", ("x", "at"), ("y",))
    types = {"x": TensorType("float32", (2, 3)), "at": TensorType("int64", (1,)),
             "y": TensorType("float32", (1, 3))}  # fmt: skip
    compiled = CpuExecutor().compile(Graph((node,), ("x", "at"), ("y",), types, {}, {"": 17}))
    np.testing.assert_array_equal(compiled.run({"x": X, "at": np.array([1])})["y"], X[1:])
    with pytest.raises(InputError, match="indices element out of data bounds"):
        compiled.run({"x": X, "at": np.array([7])})


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000\n", 3), ("150000 100000\n", 2), ("1000 100000\n", 1), ("odd\n", 3), (None, 3)],
)
def test_usable_cores(quota: str | None, expected: int, monkeypatch: Any, tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota)
    monkeypatch.setattr(cpu, "Path", lambda _: file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert usable_cores() == expected
    assert CpuExecutor().threads == expected
    assert CpuExecutor(threads=1).threads == 1


def test_numpy_serves_where_onnxruntime_is_not_installed(monkeypatch: Any) -> None:
    monkeypatch.setattr(cpu, "find_spec", lambda _: None)
    executor = CpuExecutor()
    assert (executor.engine, executor.kernel) == ("numpy", "numpy")
    np.testing.assert_array_equal(executor.compile(small()).run({"x": X})["y"], Y)


def test_nothing_is_printed(capfd: Any) -> None:
    case = Case("MaxPool", [(1, 1, 5)], {"kernel_shape": [1], "strides": [3]})
    CpuExecutor().compile(case.graph()).run(case.feeds())
    graph = single("Add", {"a": TensorType("float32", (2,)), "b": TensorType("float32", (2,))})
    with pytest.raises(InputError):
        CpuExecutor().compile(graph).run({"a": np.zeros(2, "f"), "b": np.zeros(3, "f")})
    assert capfd.readouterr() == ("", "")


def test_threads_rest_after_a_run() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (256, 256)))
    b.output(b.add("MatMul", [x, b.constant("w", np.ones((256, 256), np.float32))]))
    executable = CpuExecutor(threads=2).compile(b.build())

    def idle() -> float:
        for _ in range(5):
            executable.run({"x": np.ones((256, 256), np.float32)})
        begin = time.process_time()
        time.sleep(0.04)
        return time.process_time() - begin

    # Left to itself ONNX Runtime's second thread waits for work at full speed for longer than that.
    assert min(idle() for _ in range(3)) < 0.01


def resize(x: TensorType, scales: list[float], **attrs: Any) -> Graph:
    b = GraphBuilder()
    given = b.input("x", x)
    held = b.constant("s", np.float32(scales))
    more = b.add("Relu", [b.add("Resize", [given, "", held], attrs)])
    b.output(b.add("Neg", [more], output="y"))
    return b.build()


@pytest.mark.parametrize(
    ("mode", "way", "scale", "by_numpy"),
    [
        ("linear", "half_pixel", 0.6, False),
        ("linear", "align_corners", 2.0, False),
        ("linear", "align_corners", 0.6, True),
        ("cubic", "pytorch_half_pixel", 0.2, True),
        ("nearest", "asymmetric", 2.0, False),
        ("nearest", "asymmetric", 0.8, True),
    ],
)
def test_numpy_has_the_nodes_that_onnxruntime_computes_otherwise(
    mode: str, way: str, scale: float, by_numpy: bool
) -> None:
    kind = TensorType("float32", (1, 1, 6, 6))
    scales = [1.0, 1.0, scale, scale]
    graph = resize(kind, scales, mode=mode, coordinate_transformation_mode=way)
    compiled = CpuExecutor().compile(graph)
    kernels = [row.kernel for row in compiled.rows]
    assert kernels == ["numpy" if by_numpy else ORT, ORT, ORT]
    x = np.arange(36, dtype=np.float32).reshape(kind.shape)
    want = ReferenceEvaluator(to_onnx(graph)).run(None, {"x": x})[0]
    found, times = compiled.timed({"x": x})
    np.testing.assert_allclose(found["y"], want, rtol=1e-5)
    if by_numpy:
        assert ("Resize",) in [time.row.ops for time in times]
    compiled.close()
    with pytest.raises(ClosedError):
        compiled.run({"x": x})


def test_an_operator_without_a_kernel_goes_to_numpy_alone() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("int16", (2, 3)))
    wide = b.add("Cast", [b.add("ArgMax", [x], {"axis": 1})], {"to": 1})
    b.output(b.add("Neg", [wide], output="y"), x)
    graph = b.build()
    given = X.astype(np.int16)
    compiled = CpuExecutor().compile(graph)
    found = compiled.run({"x": given})
    np.testing.assert_array_equal(found["y"], -X.argmax(1)[:, None])
    np.testing.assert_array_equal(found["x"], given)
    assert not np.shares_memory(found["x"], given)
    assert [row.kernel for row in compiled.rows] == ["numpy", ORT, ORT]
