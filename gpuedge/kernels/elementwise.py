"""Lower elementwise chains: one generated epilogue each, alone or behind another operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from gpuedge.core.kernel import Number
from gpuedge.graph.fuse import is_literal, is_per_channel
from gpuedge.graph.ir import Node
from gpuedge.kernels.context import Context
from gpuedge.kernels.expressions import expression, helpers_for, literal
from gpuedge.kernels.layout import Kind, Layout, make


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Kernel text with what it binds: tensors by kernel name, and specs."""

    text: str
    tensors: dict[str, str]
    specs: dict[str, Number]


def lower(ctx: Context, node: Node) -> None:
    """Lower a ``Fused`` node without an anchor."""
    value = node.outputs[0]
    shape = ctx.graph.shape(value)
    kind = _kind(ctx, node, shape)
    out = ctx.scratch(kind, shape, value)
    epilogue = compose(ctx, node.body, make(kind, shape), None)
    ctx.launch(
        "elementwise", {"O": out, **epilogue.tensors}, epilogue.specs, epilogue=epilogue.text
    )
    ctx.define(value, out)


def _kind(ctx: Context, node: Node, shape: tuple[int, ...]) -> Kind:
    """Stay in the layout of the operand that is already packed, if every operand can follow."""
    for name in node.inputs:
        ready = ctx.have.get(name, {})
        if ctx.graph.shape(name) != shape or not ready or "linear" in ready:
            continue
        kind = next(iter(ready))
        axis = make(kind, shape).axis
        if all(
            is_literal(i, ctx.graph)
            or ctx.graph.shape(i) == shape
            or is_per_channel(ctx.graph.shape(i), shape, axis)
            for i in node.inputs
        ):
            return kind
    return "linear"


def compose(
    ctx: Context,
    body: Sequence[Node],
    out: Layout,
    first: str | None,
    partial: str | None = None,
    *,
    bound: Mapping[str, str] | None = None,
) -> Epilogue:
    """Write the epilogue that computes `body` over a texel of `out`.

    Parameters
    ----------
    ctx : Context
        Gives the operands in the layout they are read in.
    body : sequence of Node
        Elementwise nodes in order; the last one's output is the result.
    out : Layout
        The kernel's output, in the logical shape that operands broadcast to.
    first : str or None
        Graph value that the kernel passes in as `v`, for an epilogue behind another operation.
    partial : str or None
        Plan tensor to add to `v` first: an earlier part of a split sum.
    bound : mapping of str to str, optional
        Plan tensors the kernel reads anyway, by their names there. They are not bound twice, which
        `graph.fuse` counts on.
    """
    writer = _Writer(ctx, out, bound or {})
    lines = ["    vec4 r = v;"]
    if partial is not None:
        lines.append(f"    r = r + {writer.texel(partial)};")
    if first is not None:
        writer.locals[first] = "r"
    result = "r"
    for node in body:
        operands = [writer.operand(name) for name in node.inputs[: 1 if node.op == "Clip" else 2]]
        result = writer.assign(expression(node, ctx.graph, operands), node.outputs[0])
    if out.kind != "linear" and out.packed % 4 and body:
        result = writer.masked(result)
    body_text = "\n".join(lines + writer.lines)
    main = f"vec4 epilogue(vec4 v, ivec4 p) {{\n{body_text}\n    return {result};\n}}\n"
    text = "\n".join(writer.declarations) + helpers_for(body_text) + "".join(writer.functions)
    return Epilogue(f"{text}\n{main}", writer.tensors, writer.specs)


class _Writer:
    """Collects declarations, functions and statements of one epilogue."""

    def __init__(self, ctx: Context, out: Layout, bound: Mapping[str, str] | None = None) -> None:
        self.ctx = ctx
        self.out = out
        self.bound = bound or {}
        self.declarations: list[str] = []
        self.functions: list[str] = []
        self.lines: list[str] = []
        self.tensors: dict[str, str] = {}
        self.specs: dict[str, Number] = {}
        self.locals: dict[str, str] = {}

    def bind(self, tensor: str) -> str:
        """Return the kernel's name for a plan tensor."""
        one = self.ctx.tensors[tensor]
        for name, other in self.bound.items():
            same = self.ctx.tensors[other]
            if (same.memory, same.layout) == (one.memory, one.layout):
                return name
        name = f"E{len(self.tensors)}"
        self.tensors[name] = tensor
        self.declarations.append(f"in tensor {name};")
        return name

    def texel(self, tensor: str) -> str:
        return f"load4({self.bind(tensor)}, p)"

    def assign(self, text: str, value: str) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"    vec4 {name} = {text};")
        self.locals[value] = name
        return name

    def masked(self, result: str) -> str:
        """Keep the unused lanes of the last slice at zero."""
        left = f"{self.out.packed} - 4 * p.{self.out.slice_coordinate}"
        self.lines.append(f"    int left = {left};")
        lanes = [f"left > {i} ? {result}.{c} : 0.0" for i, c in enumerate("yzw", 1)]
        return f"vec4({result}.x, {', '.join(lanes)})"

    def operand(self, value: str) -> str:
        """Return the local that holds `value` for this texel."""
        if value in self.locals:
            return self.locals[value]
        graph, shape = self.ctx.graph, self.ctx.graph.shape(value)
        if is_literal(value, graph):
            return self.assign(f"vec4({literal(float(graph.constants[value].ravel()[0]))})", value)
        logical = self.out.shape
        if prod(shape) == prod(logical) and _aligned(shape, logical) == logical:
            tensor = self.ctx.need(value, self.out.kind, logical)
            return self.assign(self.texel(tensor), value)
        if self.out.kind != "linear":
            vector = self.bind(self.ctx.need(value, "linear"))
            if prod(shape) == 1:
                return self.assign(f"vec4(load1({vector}, 0))", value)
            return self.assign(f"texel({vector}, p.{self.out.slice_coordinate})", value)
        return self.assign(self._gather(value, shape), value)

    def _gather(self, value: str, shape: tuple[int, ...]) -> str:
        """Read a broadcast operand element by element."""
        name = self.bind(self.ctx.need(value, "linear"))
        sizes, strides = collapse(self.out.shape, broadcast_strides(shape, self.out.shape))
        return self.strided(name, sizes, strides)

    def strided(self, name: str, sizes: Sequence[int], strides: Sequence[int]) -> str:
        """Return the texel whose element e reads tensor `name` at strided coordinates."""
        steps = []
        for axis in reversed(range(len(sizes))):
            size, stride = f"{name}_D{axis}", f"{name}_S{axis}"
            for spec, number in ((size, sizes[axis]), (stride, strides[axis])):
                self.declarations.append(f"spec int {spec} = 1;")
                self.specs[spec] = number
            steps.append(f"    at += (left % {size}) * {stride};\n    left = left / {size};\n")
        self.functions.append(
            f"float {name}_at(int e) {{\n    int left = e;\n    int at = 0;\n"
            + "".join(steps)
            + f"    return load1({name}, at);\n}}\n"
        )
        if not any(line.startswith("    int e0") for line in self.lines):
            width = "dims(O).x"
            self.lines.append(f"    int e0 = 4 * (p.y * {width} + p.x);")
        calls = ", ".join(f"{name}_at(e0 + {i})" for i in range(4))
        return f"vec4({calls})"


def _aligned(shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(out) - len(shape)) + shape


def broadcast_strides(shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, ...]:
    """Return the element stride of `shape` along each axis of `out`; zero where it broadcasts."""
    aligned = _aligned(shape, out)
    strides = []
    step = 1
    for extent in reversed(aligned):
        strides.append(0 if extent == 1 else step)
        step *= extent
    return tuple(reversed(strides))


def collapse(
    sizes: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Drop axes of extent one and join neighbours that step alike; at least one axis is left."""
    out: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if out and out[-1][1] == stride * size:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    if not out:
        return (1,), (0,)
    return tuple(s for s, _ in out), tuple(s for _, s in out)


def lower_strided(
    ctx: Context, value: str, source: str, shape: tuple[int, ...], strides: Sequence[int]
) -> None:
    """Lower a gather (transpose, expand): each output element reads the input at strides."""
    flat = ctx.need(source, "linear")
    out = ctx.add(make("linear", shape), value, storage=ctx.tensors[flat].storage)
    writer = _Writer(ctx, make("linear", shape))
    name = writer.bind(flat)
    text = writer.strided(name, *collapse(shape, strides))
    body = "\n".join(writer.lines)
    epilogue = (
        "\n".join(writer.declarations)
        + "\n"
        + "".join(writer.functions)
        + f"vec4 epilogue(vec4 v, ivec4 p) {{\n{body}\n    return {text};\n}}\n"
    )
    ctx.launch("elementwise", {"O": out, **writer.tensors}, writer.specs, epilogue=epilogue)
    ctx.define(value, out)


def inner_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the element strides of a C-ordered array."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides)) if shape else ()
