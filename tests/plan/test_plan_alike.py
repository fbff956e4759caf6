"""Kernels that differ in what they read only are written once, as if each were written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from planrun import FLOAT_TEXTURES, TEXTURES, WIDE

from gpuedge.core.caps import Caps
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.opset.expr import Expr, LoadExpr, Position, where
from gpuedge.opset.index import Index, Loaded, Substitution, axis, of
from gpuedge.opset.tensor import Tensor, given
from gpuedge.plan import alike
from gpuedge.plan.alike import Form
from gpuedge.plan.emit import Writer
from gpuedge.plan.plan import Plan
from gpuedge.plan.planner import plan

STEPS, BATCH, HIDDEN = 9, 2, 8


def recurrent(op: str, gates: int, direction: str, *, has_lengths: bool = False) -> Graph:
    """Return a recurrent layer of a few steps."""
    count = 1 + (direction == "bidirectional")
    rng, b = np.random.default_rng(1), GraphBuilder()
    shapes = {"W": (count, gates * HIDDEN, 4), "R": (count, gates * HIDDEN, HIDDEN),
              "B": (count, 2 * gates * HIDDEN)}  # fmt: skip
    x = b.input("X", TensorType("float32", (STEPS, BATCH, 4)))
    held = [b.constant(n, rng.random(s, np.float32)) for n, s in shapes.items()]
    lengths = [b.input("L", TensorType("int32", (BATCH,)))] if has_lengths else []
    attrs = {"hidden_size": HIDDEN, "direction": direction}
    b.output(b.add(op, [x, *held, *lengths], attrs))
    return b.build()


def two_alike() -> Graph:
    """Return two kernels of one text, but that the operands of the second lie in one place."""
    b = GraphBuilder()
    x, y = (b.input(n, TensorType("float32", (5, 7))) for n in "xy")
    held = b.add("Exp", [x])
    same = b.add("Identity", [held])
    b.output(same, *(b.add("Mul", [b.add("Tanh", [one]), other])
                     for one, other in ((x, y), (held, same))))  # fmt: skip
    return b.build()


GRAPHS: dict[str, Callable[[], Graph]] = {
    "LSTM": lambda: recurrent("LSTM", 4, "bidirectional"),
    "LSTM with lengths": lambda: recurrent("LSTM", 4, "bidirectional", has_lengths=True),
    "GRU": lambda: recurrent("GRU", 3, "reverse"),
    "RNN": lambda: recurrent("RNN", 1, "forward"),
    "two alike": two_alike,
}


def made(result: Plan) -> tuple[Any, ...]:
    return result.passes, [t.name for t in result.tensors.values()], result.outputs


@pytest.mark.parametrize("caps", [WIDE, TEXTURES, FLOAT_TEXTURES], ids=lambda caps: caps.level)
@pytest.mark.parametrize("graph", GRAPHS)
def test_plans_are_those_in_which_each_kernel_is_written(
    graph: str, caps: Caps, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plan(GRAPHS[graph](), caps)
    real = alike.Form

    class Alone(real):  # type: ignore[misc, valid-type]
        def __init__(self, body: Expr) -> None:
            super().__init__(body)
            self.key = object()

    monkeypatch.setattr(alike, "Form", Alone)
    assert made(found) == made(plan(GRAPHS[graph](), caps))


def test_all_steps_have_the_texts_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    real = Writer.epilogue

    def epilogue(self: Writer, *args: Any, **more: Any) -> Any:
        written.append("")
        return real(self, *args, **more)

    monkeypatch.setattr(Writer, "epilogue", epilogue)
    passes = plan(GRAPHS["LSTM"](), WIDE).passes
    assert len([p for p in passes if p.source.epilogue]) >= 2 * STEPS
    assert len(written) < STEPS


def forms() -> list[Expr]:
    """Return bodies that are alike in pairs, and in no other way."""

    def late(t: Tensor, u: Tensor) -> Expr:
        i = axis(0, 8)
        second = of(Loaded(LoadExpr(u, i), 0, 3))
        first = of(Loaded(LoadExpr(t, i), 0, 3))
        return LoadExpr(t, first) * LoadExpr(u, second)

    def early(t: Tensor, u: Tensor) -> Expr:
        i = axis(0, 8)
        first = of(Loaded(LoadExpr(t, i), 0, 3))
        second = of(Loaded(LoadExpr(u, i), 0, 3))
        return LoadExpr(t, first) * LoadExpr(u, second)

    def body(t: Tensor, u: Tensor, size: int, *, turned: bool = False) -> Expr:
        i = axis(0, size)
        place = of(Loaded(LoadExpr(u, i), 0, 3))
        other = of(Loaded(LoadExpr(t, i), 0, 3))
        first, second = (other, place) if turned else (place, other)
        return where([i - 1], LoadExpr(t, first + second * 4), Position(i % 2)) * 0.5

    def tensors() -> tuple[Tensor, Tensor]:
        return given("t", (16,), "float32"), given("u", (16,), "float32")

    t, u = tensors()
    pairs = [
        (body(*tensors(), 8), body(*tensors(), 8)),
        (body(*tensors(), 6), body(*tensors(), 6)),
        (body(*tensors(), 8, turned=True), body(*tensors(), 8, turned=True)),
        (late(t, u), late(u, t)),
        (early(t, u), early(u, t)),
        (body(t, t, 8), body(u, u, 8)),
        (LoadExpr(t, Index(1)) * 2.0, LoadExpr(u, Index(1)) * 2.0),
        (LoadExpr(t, Index(2)) * 2.0, LoadExpr(u, Index(2)) * 2.0),
    ]
    return [one for pair in pairs for one in pair]


def test_forms_are_equal_for_what_differs_in_operands_only() -> None:
    keys = [Form(body).key for body in forms()]
    for i, key in enumerate(keys):
        assert [j for j, other in enumerate(keys) if other == key] == [i & ~1, i | 1]


@pytest.mark.parametrize("sizes", [(4, 8), (8, 4)])
def test_what_axes_become_depends_on_their_sizes(sizes: tuple[int, int]) -> None:
    """Indices are equal whatever the sizes of their axes; what is remembered of them is not."""
    whole = axis(0, 16) % 4
    for size in sizes:
        found = Substitution({0: axis(1, size)})(whole)
        assert found.high == 3
        assert found == (axis(1, 4) if size == 4 else axis(1, 8) % 4)
    for size in sizes:
        assert Substitution({1: axis(2, 3)})(axis(0, size) // 2).high == (size - 1) // 2
