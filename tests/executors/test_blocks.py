"""Large formulas on the CPU, in blocks: numpy's numbers, and results that belong to the caller."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import gpuedge
from gpuedge.executors import blocks
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType

Array = Any
F = np.float32
SIZE = blocks.LEAST + 12_345
"""No multiple of a block."""

SPECIAL = np.array([0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 3e38, 1e-42], F)


def noise(seed: int) -> Array:
    """Return numbers of which some are special, in every block."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=SIZE).astype(F)
    values[:: seed + 5] = rng.choice(SPECIAL, len(values[:: seed + 5]))
    return values


A, B, C = noise(1), noise(2), noise(3)

FORMULAS: dict[str, Any] = {
    "relu(a * b + c)": lambda a, b, c: np.maximum(a * b + c, F(0)),
    "a + b": lambda a, b, c: a + b,
    "a - b / c": lambda a, b, c: a - b / c,
    "max(a, min(b, c)) * 2 - 0.1": lambda a, b, c: np.maximum(a, np.minimum(b, c)) * F(2) - F(0.1),
    "sqrt(abs(-a))": lambda a, b, c: np.sqrt(np.abs(-a)),
    "floor(a) + ceil(b) + round(c)": lambda a, b, c: np.floor(a) + np.ceil(b) + np.rint(c),
    "clip(a * a, 0.25, 4)": lambda a, b, c: np.minimum(np.maximum(a * a, F(0.25)), F(4)),
    "(a + b) * (a - b) + (b + c) * (b - c)": lambda a, b, c: (a + b) * (a - b) + (b + c) * (b - c),
    "leaky_relu(a) + a": lambda a, b, c: np.maximum(a, F(0)) + F(0.01) * np.minimum(a, F(0)) + a,
}


def run(text: str, *given: Array) -> Array:
    return gpuedge.elementwise(text)(*given, device="cpu")


def kernels(graph: Graph, executor: CpuExecutor | None = None) -> set[str]:
    executable = (executor or CpuExecutor()).compile(graph)
    executable.close()
    return {row.kernel.partition(" ")[0] for row in executable.rows}


def relu_of(dtype: str, *shapes: tuple[int, ...], op: str = "Add") -> Graph:
    b = GraphBuilder()
    names = [b.input(f"x{i}", TensorType(dtype, shape)) for i, shape in enumerate(shapes)]
    b.output(b.add("Relu", [b.add(op, names)]))
    return b.build()


@pytest.mark.parametrize("text", FORMULAS)
def test_numbers_are_those_of_numpy(text: str) -> None:
    names = gpuedge.elementwise(text).names
    got = run(text, *({"a": A, "b": B, "c": C}[n] for n in names))
    with np.errstate(all="ignore"):
        wanted = FORMULAS[text](A, B, C)
    assert got.dtype == F
    np.testing.assert_array_equal(got, wanted)


def test_shapes_views_and_single_numbers() -> None:
    a = np.random.default_rng(4).normal(size=(3, 1024, 1024)).astype(F)
    text = "a * b + c"
    for b in (F(3), np.full((1, 1, 1), 3, F)):
        wanted = np.float32(3) * a + a
        np.testing.assert_array_equal(run(text, a, b, a), wanted)
    turned = a.transpose(2, 0, 1)
    assert not turned.flags.c_contiguous
    np.testing.assert_array_equal(run(text, turned, turned, turned), turned * turned + turned)
    half = np.abs(a).astype(np.float16)
    got = run("a + a", half)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, half + half)


def test_results_belong_to_the_caller() -> None:
    formula = gpuedge.elementwise("a + b")
    ones = np.ones(SIZE, F)

    def made(number: int) -> Array:
        return formula(ones * number, ones, device="cpu")

    kept = [made(1), made(2)[5:9], memoryview(made(3)), made(4).reshape(-1, 1)[::7]]
    address = made(5).ctypes.data
    for number in range(6, 9):
        assert made(number).ctypes.data == address, "memory that nobody uses is used again"
    for number, array in enumerate(kept, 1):
        assert set(np.asarray(array).ravel()) == {F(number + 1)}
    result = made(9)
    result += 1
    assert result[-1] == 11
    assert made(9)[-1] == 10


def test_memory_of_two_results_is_kept_at_most() -> None:
    graph = relu_of("float32", (SIZE,), (SIZE,))
    executable = CpuExecutor().compile(graph)
    held = [executable.run({"x0": A, "x1": B}) for _ in range(5)]
    assert len({id(next(iter(r.values())).base) for r in held}) == 5
    assert len(executable.blocks._kept) == blocks.KEPT  # type: ignore[attr-defined]
    executable.close()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same(threads: int) -> None:
    executable = CpuExecutor(threads).compile(relu_of("float32", (SIZE,), (SIZE,), op="Mul"))
    before = threading.active_count()
    (got,) = executable.run({"x0": A, "x1": B}).values()
    assert threading.active_count() == before
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.maximum(A * B, F(0)))


def test_the_caller_does_it_all_where_threads_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    executable = CpuExecutor(3).compile(relu_of("float32", (SIZE,), (SIZE,)))
    (got,) = executable.run({"x0": A, "x1": B}).values()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.maximum(A + B, F(0)))


def test_an_error_of_a_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = CpuExecutor(2).compile(relu_of("float32", (SIZE,), (SIZE,)))
    caller, whole = threading.current_thread(), blocks.Blocks._compute

    def compute(self: Any, *args: Any) -> None:
        if threading.current_thread() is not caller:
            raise MemoryError("no more")
        whole(self, *args)

    monkeypatch.setattr(blocks.Blocks, "_compute", compute)
    with pytest.raises(gpuedge.OutOfMemoryError, match="no more"):
        executable.run({"x0": A, "x1": B})


def test_only_large_formulas_of_exact_functions_are_taken_from_onnx_runtime() -> None:
    whole = (SIZE,)
    assert kernels(relu_of("float32", whole, whole)) == {"numpy"}
    assert kernels(relu_of("float32", whole, whole), CpuExecutor(engine="onnxruntime")) == {
        "onnxruntime"
    }
    for graph in (
        relu_of("float32", (blocks.LEAST - 1,), (blocks.LEAST - 1,)),
        relu_of("float32", (1024, 1200), (1200,)),  # rows that broadcast
        relu_of("float32", whole, whole, op="Pow"),  # rounded otherwise in numpy
        relu_of("float16", whole, whole),
    ):
        assert kernels(graph) == {"onnxruntime"}


def test_whose_base_was_frozen_or_reshaped_is_not_used_again() -> None:
    formula = gpuedge.elementwise("relu(a*b+c)")
    a = np.full(SIZE, 2, F)
    for change in ("freeze", "reshape"):
        y = formula(a, a, a, device="cpu")
        if change == "freeze":
            y.flags.writeable = y.base.flags.writeable = False
        else:
            y.base.shape = (1, -1)
        del y
        for _ in range(3):
            np.testing.assert_array_equal(formula(a, a, a, device="cpu"), 6)
