"""From a graph segment to a plan: rewrite, lower node by node, collect outputs."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

import numpy as np

from gpuedge.core.caps import Caps
from gpuedge.core.dtypes import BYTES
from gpuedge.core.errors import GpuEdgeError, UnsupportedOpError
from gpuedge.graph.canon import FLOATS, canonical, is_known, operands
from gpuedge.graph.decompose import decompose, without_bias
from gpuedge.graph.fuse import FUSED, fuse
from gpuedge.graph.ir import Graph, Node
from gpuedge.graph.params import (
    ConcatParams,
    ConvParams,
    ConvTransposeParams,
    MatMulParams,
    PoolParams,
    ReshapeParams,
    SoftmaxParams,
    TransposeParams,
)
from gpuedge.kernels import conv, elementwise, matmul, shaping
from gpuedge.kernels.context import Context, most_bindings
from gpuedge.kernels.expressions import SUPPORTED
from gpuedge.kernels.layout import linear
from gpuedge.kernels.plan import Pass, Plan, Step
from gpuedge.kernels.storages import EXACT, Keeping, offers

DTYPES = frozenset((*FLOATS, *BYTES))
"""Element types that kernels compute in float32 and give back unchanged."""


def plan(
    graph: Graph, caps: Caps, restricted: Collection[str] = (), keeping: Keeping = EXACT
) -> Plan:
    """Return the passes that compute `graph` on a device with `caps`.

    Parameters
    ----------
    graph : Graph
        Nodes that `why_not` accepts; float32, float16 or byte values (computed in float32).
    caps : Caps
        The device's limits, after restrictions.
    restricted : collection of str
        Ids of variants that must not be used.
    keeping : Keeping
        How tensors are to be kept where the device offers it.

    Raises
    ------
    UnsupportedOpError (GE-501)
        A node needs more than the device offers.
    """
    bindings = most_bindings(caps)
    whole = decompose(graph)
    if keeping.kind == "fixed16" and offers(caps, keeping.kind):
        whole = without_bias(whole)
    source = fuse(
        whole,
        operands=bindings - 1,
        extras=bindings - 4,
        elementwise=SUPPORTED,
    )
    ctx = Context(source, caps, restricted, keeping)
    origin = {label(n): n.op for n in graph.nodes}
    steps: dict[tuple[str, ...], Step] = {}
    for node in source.nodes:
        names = tuple(dict.fromkeys(label(n) for n in node.body or (node,)))
        ctx.ops = tuple(origin[n] for n in names)
        before = len(ctx.passes)
        if prod(source.shape(node.outputs[0])):
            _lower(ctx, node)
        steps[names] = _step(ctx, names, ctx.passes[before:], steps.get(names))
    return _finish(ctx, source, tuple(steps.values()))


def _step(ctx: Context, names: tuple[str, ...], made: list[Pass], before: Step | None) -> Step:
    """Return the step of the passes just made, and of those that the same nodes made before."""
    variants = before.variants if before else ()
    storages = before.storages if before else ()
    variants += tuple(one.variant for one in made)
    storages += tuple(ctx.tensors[n].storage.kind for one in made for n in one.outputs)
    return Step(names, ctx.ops, tuple(dict.fromkeys(variants)), tuple(dict.fromkeys(storages)))


def label(node: Node) -> str:
    """Return the name a node is reported under: its own, or its output's."""
    return node.name or node.outputs[0]


def _lower(ctx: Context, node: Node) -> None:
    head, *tail = node.body or (node,)
    _refuse_empty_operands(ctx, head)
    if node.op == FUSED and head.op in SUPPORTED:
        elementwise.lower(ctx, node)
        return
    params = canonical(head, ctx.graph)
    if isinstance(params, ConvParams):
        conv.lower(ctx, head, params, tail)
    elif isinstance(params, ConvTransposeParams):
        conv.lower_transpose(ctx, head, params, tail)
    elif isinstance(params, MatMulParams):
        matmul.lower(ctx, head, params, tail)
    elif isinstance(params, PoolParams):
        shaping.lower_pool(ctx, head, params)
    elif isinstance(params, SoftmaxParams):
        shaping.lower_softmax(ctx, head, params)
    elif isinstance(params, ConcatParams):
        shaping.lower_concat(ctx, head, params)
    elif isinstance(params, TransposeParams):
        shaping.lower_transpose(ctx, head, params)
    elif isinstance(params, ReshapeParams):
        shaping.lower_reshape(ctx, head)
    else:
        raise UnsupportedOpError(f"{head.op} has no kernel.")


def _refuse_empty_operands(ctx: Context, node: Node) -> None:
    for name in operands(node):
        if not prod(ctx.graph.shape(name)) and node.op != "Concat":
            raise UnsupportedOpError(f"{node.op} reads the empty tensor '{name}'.")


def _finish(ctx: Context, graph: Graph, steps: tuple[Step, ...]) -> Plan:
    outputs: dict[str, str] = {}
    fixed = {}
    for value in graph.outputs:
        shape = graph.shape(value)
        if value in graph.constants:
            fixed[value] = graph.constants[value]
        elif not prod(shape):
            fixed[value] = np.zeros(shape, graph.types[value].dtype)
        else:
            outputs[value] = _own_memory(ctx, ctx.need(value, "linear"), outputs, shape)
    return Plan(tuple(ctx.passes), ctx.tensors, outputs, graph.constants, steps, fixed)


def _own_memory(ctx: Context, name: str, outputs: dict[str, str], shape: tuple[int, ...]) -> str:
    """Return `name`, or a copy where the host writes its memory or another output has it."""
    storage = ctx.tensors[name].memory
    taken = {ctx.tensors[o].memory for o in outputs.values()}
    if ctx.tensors[storage].host is None and storage not in taken:
        return name
    copy = ctx.add(linear(shape), storage=ctx.tensors[name].storage)
    text = "in tensor E0;\nvec4 epilogue(vec4 v, ivec4 p) { return load4(E0, p); }\n"
    ctx.launch("elementwise", {"O": copy, "E0": name}, epilogue=text)
    return copy


def why_not(node: Node, graph: Graph, caps: Caps) -> str | None:
    """Return None if a device with `caps` can run `node`, else one sentence saying why not.

    The answer comes from planning the node alone, so it is the planner's own.
    """
    if not is_known(node):
        return f"{node.op} has no kernel"
    for name in operands(node):
        if caps.is_finite_only and not _is_finite(name, graph):
            return f"the constant '{name}' holds NaN or infinity, which this device does not keep"
    for name in (*node.inputs, *node.outputs):
        if not name or name in graph.constants:
            continue
        if name not in graph.types:
            return f"the shape of '{name}' is not known before running"
        if graph.types[name].dtype not in DTYPES:
            return f"'{name}' is {graph.types[name].dtype}; kernels compute in float32"
    try:
        canonical(node, graph)
        plan(_alone(node, graph), caps)
    except GpuEdgeError as error:
        return error.what if error.known is None else f"{error.what} ({error.known})"
    return None


def _is_finite(value: str, graph: Graph) -> bool:
    array = graph.constants.get(value)
    return array is None or array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _alone(node: Node, graph: Graph) -> Graph:
    constants = {i: graph.constants[i] for i in node.inputs if i in graph.constants}
    inputs = tuple(dict.fromkeys(i for i in node.inputs if i and i not in constants))
    return Graph(
        nodes=(node,),
        inputs=inputs,
        outputs=tuple(o for o in node.outputs if o),
        types=graph.types,
        constants=constants,
        opset=graph.opset,
    )
