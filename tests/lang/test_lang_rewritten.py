"""Kernels rewritten for several texels, or for one number of one: they compute the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kernel_interpreter import Frame, Run, Value, interpret

from gpuedge import lang
from gpuedge.core.kernel import Extents, Number
from gpuedge.lang import components, neighbours
from gpuedge.lang import tree as t
from gpuedge.plan.layout import along
from gpuedge.plan.library import texts

COUNT = 4
HEAD = "kernel map t;\nin tensor A;\nin tensor K;\nout tensor O;\nspec int N = 3;\n"
CARRIED = HEAD + (
    "vec4 main(ivec4 p) { vec4 late = vec4(0.0); vec4 sum = vec4(1.0);\n"
    "for (int i = 0; i < N; i++) { late += sum; sum = sum * 0.5 + load4(A, p); }\n"
    "return late + load4(K, ivec4(0, 0, 0, 0)); }"
)
BRANCHED = HEAD + (
    "vec4 main(ivec4 p) { vec4 v = vec4(0.0); int z = p.z + 1;\n"
    "for (int i = 0; i < N; i++) {\n"
    "    vec4 a = load4(A, p);\n"
    "    v += a.x * load4(K, ivec4(i, z, 0, 0));\n"
    "    float s = 1.0; if (a.y > 0.0) { s = 2.0; } else { s += 0.5; } v.y = s; }\n"
    "if (N > 2) { v = v * 2.0; }\n"
    "return v; }"
)
ARRAYS = HEAD + (
    "vec4 main(ivec4 p) { vec4 v[2]; int at[2];\n"
    "unroll for (int i = 0; i < 2; i++) { at[i] = (p.x + i) % 2;\n"
    "    v[i] = load4(A, ivec4(at[i], 0, 0, 0)); }\n"
    "return v[0] * float(at[1] + 1) + v[1] * 3.0 + load4(K, ivec4(at[0], 1, 0, 0)); }"
)
FUNCTIONS = HEAD + (
    "float deep(vec4 v) { return v.x + v.y * 3.0; }\n"
    "vec4 add(vec4 v, vec4 w, float s) { vec4 u = v * s; return u + w * deep(w); }\n"
    "vec4 main(ivec4 p) { vec4 a = load4z(A, p - ivec4(1, 0, 0, 0));\n"
    "vec4 b = vec4(a.yx, 1.0, deep(a)); float c = deep(a * b);\n"
    "vec4 k = texel(K, p.x); vec4 u = vec4(c, 2.0, b.x, 4.0);\n"
    "return u - add(a, k, 2.0) + max(b, vec4(c)) + vec4(load1(A, 5)); }"
)
GROUPED = HEAD + (
    "vec4 main(ivec4 p) { int c = p.x / 4; int pair = p.x / 2;\n"
    "return load4(A, ivec4(c, p.y, 0, 0)) + load4(K, ivec4(pair, 0, 0, 0)) * float(p.x % 4); }"
)
WINDOW: dict[str, Number] = {
    "KH": 3, "KW": 3, "SY": 1, "SX": 1, "DY": 1, "DX": 1, "PT": 1, "PL": 1, "SPAN": 2, "ICG": 8,
    "OCG": 8, "BIAS": True,
}  # fmt: skip
OUTS: tuple[Extents, ...] = ((8, 3, 2, 2), (6, 2, 2, 1), (5, 3, 2, 2))

Made = dict[str, npt.NDArray[np.float32]]


def ints(w: int, h: int, s: int = 1, n: int = 1) -> npt.NDArray[np.float32]:
    drawn = np.random.default_rng(w * h * s * n).integers(-9, 10, (n, s, h, w, 4))
    return drawn.astype(np.float32)


OWN: dict[str, str] = {
    "carried": CARRIED, "branched": BRANCHED, "arrays": ARRAYS, "functions": FUNCTIONS,
    "grouped": GROUPED,
}  # fmt: skip
LIBRARY: dict[str, tuple[Made, dict[str, Number], dict[str, int]]] = {
    "conv2d": ({"X": ints(6, 7, 2, 2), "K": ints(8, 10, 2)}, WINDOW, {"TX": 3}),
    "conv_transpose2d": ({"X": ints(6, 7, 2, 2), "K": ints(8, 10, 2)}, WINDOW, {}),
    "pool": ({"X": ints(6, 7, 2, 2)}, {**WINDOW, "PB": 1, "PR": 1, "C": 6}, {}),
    "winograd_output": ({"X": ints(4, 36, 2, 2), "K": ints(1, 37, 2)}, {"BIAS": True}, {}),
    "matmul_turned": ({"A": ints(3, 8, n=2), "B": ints(4, 10, n=2)}, {"KT": 3}, {}),
}


def case(name: str) -> tuple[t.Kernel, Made, dict[str, Number]]:
    """Return a kernel, its inputs, and values for its specs and params."""
    if name in OWN:
        return lang.load(OWN[name], filename="t"), {"A": ints(8, 3, 2, 2), "K": ints(4, 3)}, {}
    inputs, values, consts = LIBRARY[name]
    return lang.load(texts()[f"map/{name}"], filename=name, consts=consts), inputs, values


class Rewritten(Run):
    """Runs what only printers see."""

    def _load(self, expr: t.Load, frame: Frame) -> Value:
        value = super()._load(expr, frame)
        if expr.component is None:
            return value
        return np.take_along_axis(value, self.which(expr.component, frame), 0)[0]

    def _op(self, expr: t.Op, frame: Frame) -> Value:
        if expr.name != "component":
            return super()._op(expr, frame)
        value = np.broadcast_to(self.value(expr.args[0], frame), (4, self.lanes))
        return np.take_along_axis(value, self.which(expr.args[1], frame), 0)[0]

    def which(self, component: t.Expr, frame: Frame) -> Value:
        return np.broadcast_to(self.value(component, frame), (1, self.lanes)).astype(np.int64)

    def position(self, number: Value) -> Value:
        width, height, slices, _ = self.extents[self.kernel.out.name]
        row = number // width
        plane = row // height
        return np.stack([number % width, row % height, plane % slices, plane // slices])


def running(name: str, out: Extents) -> tuple[Rewritten, npt.NDArray[np.float32]]:
    """Return a run of a kernel to be, and what its own text gives."""
    kernel, inputs, values = case(name)
    params = {p.name: values[p.name] for p in kernel.params}
    specs = {s.name: values[s.name] for s in kernel.specs if s.name in values}
    wanted = interpret(kernel, inputs, out, specs, params).reshape(-1, 4)
    return Rewritten(kernel, inputs, out, specs=specs, params=params, strict=False), wanted


def beside(name: str, out: Extents, module: ModuleType = neighbours) -> bool:
    """Tell whether a kernel for neighbours gives what the kernel for each of them does."""
    run, wanted = running(name, out)
    made = module.side_by_side(run.kernel, COUNT, along(out, COUNT))
    first = np.arange(0, len(wanted), COUNT, dtype=np.int32)
    run.lanes = len(first)
    last = len(wanted) - 1
    numbers = [np.minimum(first + j, last).astype(np.int32) for j in range(COUNT)]
    with np.errstate(all="ignore"):
        frame = {
            local.uid: run.position(number)
            for local, number in zip(made.positions, numbers, strict=True)
        }
        run.block(made.body, frame)
        for number, value in zip(numbers, made.values, strict=True):
            run.out[number] = np.broadcast_to(run.value(value, frame), (4, run.lanes)).T
    return np.array_equal(run.out, wanted)


def apart(name: str, out: Extents, module: ModuleType = components) -> bool:
    """Tell whether a kernel for one number gives what the kernel for its texel does."""
    run, wanted = running(name, out)
    made = module.one_component(run.kernel, 1 + neighbours.most_uid(run.kernel))
    number = np.arange(4 * len(wanted), dtype=np.int32)
    run.lanes = len(number)
    with np.errstate(all="ignore"):
        place = run.position(number // 4)
        frame = {run.kernel.main.args[0].uid: place, made.component.uid: number % 4}
        run.block(made.body, frame)
        got = np.broadcast_to(run.value(made.value, frame), (run.lanes,))
    return np.array_equal(got, wanted.reshape(-1))


@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize("name", [*OWN, *LIBRARY])
def test_the_same_for_neighbours_and_for_one_number(name: str, out: Extents) -> None:
    assert beside(name, out)
    assert apart(name, out)


def mistaken(module: ModuleType, old: str, new: str) -> ModuleType:
    """Return a module with one mistake in its source."""
    source = inspect.getsource(module)
    assert source.count(old) >= 1, f"{module.__name__} no longer contains {old!r}"
    made = ModuleType(module.__name__)
    made.__dict__.update(__file__=module.__file__)
    exec(compile(source.replace(old, new, 1), str(module.__file__), "exec"), made.__dict__)
    return made


WRONG: dict[str, tuple[Callable[..., bool], ModuleType, str, str]] = {
    "what a loop carries": (
        beside, neighbours, "while known < len(self.locals):", "if known < len(self.locals):"),
    "what a plane shares": (beside, neighbours, '"plane": "zw"', '"plane": "yzw"'),
    "what rows share": (beside, neighbours, '"row": "yzw"', '"row": "xyzw"'),
    "assigned in a branch": (
        beside, neighbours, "self._block(stmt.then, apart)", "self._block(stmt.then, is_apart)"),
    "assigned elsewhere": (
        beside, neighbours, "self._block(stmt.orelse, apart)", "pass"),
    "arrays": (beside, neighbours, "return replace(changed, array=self.local(changed.array, j))",
               "return changed"),
    "columns of a group": (
        beside, neighbours, "size.value % self._count == 0", "size.value % 2 == 0"),
    "groups where there are no rows": (
        beside, neighbours, "self._same == frozenset((1, 2, 3))", "True"),
    "the last value": (beside, neighbours, "copies.value(main.value, j)", "main.value"),
    "a component is assigned": (
        apart, components, "if stmt.component is not None:", "if False:"),
    "needed whole": (apart, components, "self._whole.add(expr.local.uid)", "pass"),
    "parts of a vector": (
        apart, components, '("vector", "splat", "cast")', '("splat", "cast")'),
    "arguments needed whole": (
        apart, components,
        "if wanted.type == arg.type:\n                    self._uses(arg)",
        "if False:\n" + " " * 20 + "pass"),
    "a load's component": (apart, components, "component=self._index())",
                           'component=t.Literal("int", 0))'),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_noticed(name: str) -> None:
    judge, module, old, new = WRONG[name]
    made: Any = mistaken(module, old, new)

    def fails(one: str, out: Extents) -> bool:
        try:
            return not judge(one, out, made)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            return True  # the tree makes no sense

    assert any(fails(one, out) for one in [*OWN, *LIBRARY] for out in OUTS)
