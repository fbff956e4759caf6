"""From a graph segment to a plan: expand, fuse, lower stage by stage, collect outputs."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuedge.core.caps import Caps
from gpuedge.core.dtypes import EXACT as EXACT_INTEGERS
from gpuedge.core.errors import GpuEdgeError, UnsupportedOpError
from gpuedge.graph import functions
from gpuedge.graph.expand import expand, operands, operator_of, outside, program
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.graph.writer import reads
from gpuedge.opset.call import OPEN_SIZE
from gpuedge.opset.evaluate import evaluate
from gpuedge.opset.expr import LoadExpr, loads, rewrite
from gpuedge.opset.operator import ANY, FLOATS
from gpuedge.opset.ranges import exact_inputs
from gpuedge.opset.tensor import (
    Constant,
    Convolution,
    Given,
    Map,
    Pooling,
    Product,
    Reduce,
    Tensor,
    mapped,
    reshape,
)
from gpuedge.plan import conv, lower, matmul
from gpuedge.plan.context import Context, most_bindings
from gpuedge.plan.fuse import Fusion, Limits, Stage, alias_of, fuse, is_identity
from gpuedge.plan.plan import OpenOutput, Plan, Step
from gpuedge.plan.rewrites import rewritten
from gpuedge.plan.storages import EXACT, StoragePrecision, is_finite, lacks, offers
from gpuedge.plan.tables import Tables
from gpuedge.plan.tuned import UNTUNED, Tunings

MAKERS = 3
"""Most nodes in a row that are planned with one that reads what they make of constants."""

DTYPES = frozenset((*FLOATS, *ANY))
"""Element types that kernels compute in float32; of integers, what that holds exactly."""


def plan(
    graph: Graph,
    caps: Caps,
    restricted: Collection[str] = (),
    precision: StoragePrecision = EXACT,
    *,
    rewrites: bool = True,
    tuned: Tunings = UNTUNED,
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
    precision : StoragePrecision
        How tensors are to be kept, and computed, where the device offers it.
    rewrites : bool
        Whether nodes may be joined in one kernel, read in place and computed while planning, and
        may hand each other tensors in layouts of their own. Without, each is computed by itself.
    tuned : mapping of str to TunedKernel
        What was measured on this very device.

    Raises
    ------
    UnsupportedOpError (GE-501)
        A node needs more than the device offers.
    """
    context = Context(graph, caps, restricted, precision, tuned)
    return _Planner(context, precision, rewrites=rewrites).plan()


class _Planner:
    def __init__(self, context: Context, precision: StoragePrecision, *, rewrites: bool) -> None:
        self.ctx, self.rewrites = context, rewrites
        graph, caps = context.graph, context.caps
        is_stepped = precision.kind == "fixed16" and offers(caps, precision.kind)
        is_half = precision.arithmetic == "float16" and not lacks(caps, "float16")
        values = without_bias(graph) if is_stepped else program(graph, is_half=is_half)
        self.outputs = {name: values.get(name) or _outside(name, graph) for name in graph.outputs}
        self.open: dict[str, OpenOutput] = {}
        for name, tensor in tuple(self.outputs.items()):
            if tensor.length is not None:
                open_output = OpenOutput(
                    tensor.dtype, tensor.shape, tensor.length.axis, f"{name}/length"
                )
                self.open[name] = open_output
                self.outputs[open_output.count] = tensor.length.count
        bindings = most_bindings(caps)
        wanted = [*self.outputs.values(), *(() if rewrites else _handed(graph, values))]
        wanted = [part for t in wanted if t.size for part in _parts(t)]
        self.most_integer = _exact_inputs(wanted)
        tables = Tables(context.storages.most_elements, bindings - 1)
        self.moved = rewritten(wanted, tables, joins=rewrites)
        for name, tensor in values.items():
            self._name(name, self._now(tensor))
        wanted = [self._now(tensor) for tensor in wanted]
        self.fusion: Fusion = fuse(wanted, Limits(bindings - 1, bindings - 4))
        self.images = _images(self.fusion, wanted)
        self.labels = {label(n): n.op for n in graph.nodes}
        self.groups: dict[int, tuple[dict[str, None], list[int]]] = {}  # nodes and passes
        self.placed: dict[str, int] = {}  # the group of a node
        self.count = 0

    def _now(self, tensor: Tensor) -> Tensor:
        """Return what is computed instead of a tensor."""
        return self.moved.get(tensor.serial, tensor)

    def _name(self, name: str, tensor: Tensor) -> None:
        """Note which graph value a tensor is, and the tensor that it is another view of."""
        seen: Tensor | None = tensor
        while seen is not None and not self.ctx.is_host(seen):
            self.ctx.names.setdefault(seen.serial, name)
            seen = alias_of(seen)

    def plan(self) -> Plan:
        for stage in self.fusion.stages:
            names = self._labels(stage)
            self.ctx.ops = tuple(self.labels[n] for n in names)
            before = len(self.ctx.passes)
            self._lower(stage)
            if not self.rewrites and stage.tensor.size:
                self.ctx.flatten(stage.tensor)
            self._place(names, range(before, len(self.ctx.passes)))
        for name in self.labels:
            if name not in self.placed:
                self._place([name], range(0))
        return self._finish()

    def _labels(self, stage: Stage) -> list[str]:
        """Return the nodes that a stage is a part of, or the first part of."""
        own = [t.label for t in stage.covered if t.label in self.labels]
        names = list(dict.fromkeys(own))
        first = [n for n in names if n not in self.placed]
        if stage.tensor.label in self.labels and stage.tensor.label not in first:
            first.append(stage.tensor.label)
        return first or names

    def _place(self, names: Sequence[str], passes: Sequence[int] | range) -> None:
        """Note the passes of nodes; groups that share a node become one, the last."""
        shared = sorted({self.placed[n] for n in names if n in self.placed})
        number = shared[0] if shared else self.count
        self.count += 1
        labels, numbers = self.groups.pop(number, ({}, []))
        for other in shared[1:]:
            more, theirs = self.groups.pop(other)
            labels |= more
            numbers += theirs
            self.placed |= dict.fromkeys(more, number)
        labels |= dict.fromkeys(names)
        numbers += passes
        self.placed |= dict.fromkeys(names, number)
        self.groups[number] = labels, numbers

    def _lower(self, stage: Stage) -> None:
        ctx, tensor, anchor = self.ctx, stage.tensor, stage.anchor
        if not tensor.size:
            return
        self._refuse_empty(stage)
        if anchor is None:
            self._lower_map(stage)
        elif isinstance(anchor.source, Reduce):
            lower.lower_reduce(ctx, anchor, self.fusion.bodies[anchor.serial], tensor, stage.body)
        elif isinstance(anchor.source, Convolution):
            conv.lower(ctx, anchor, tensor, stage.body)
        elif isinstance(anchor.source, Product):
            matmul.lower(ctx, anchor, tensor, stage.body)
        elif isinstance(anchor.source, Pooling):
            lower.lower_pool(ctx, anchor)
        else:
            raise UnsupportedOpError(f"{'+'.join(ctx.ops)} has no kernel.")

    def _lower_map(self, stage: Stage) -> None:
        ctx, tensor, body = self.ctx, stage.tensor, stage.body
        if body is None:
            raise TypeError("a map without a body")
        known = rewrite(body, {}, self._settled) if ctx.known else body
        is_known = all(isinstance(load.tensor.source, Constant) for load in loads(known))
        stays = any(ctx.storages.keeps(load.tensor) for load in loads(known))
        if is_known and self.rewrites and not stays:
            # the body, because what it was made of may read inputs that do not matter any more
            array = evaluate([Tensor(tensor.shape, tensor.dtype, Map(known))], {})[0]
            ctx.settle(tensor, array)
        elif isinstance(body, LoadExpr) and is_identity(body, tensor.shape):
            ctx.alias(tensor, body.tensor)
        else:
            is_image = self.rewrites and tensor.serial in self.images
            lower.lower_map(ctx, tensor, body, is_image=is_image)

    def _settled(self, load: LoadExpr) -> LoadExpr:
        return LoadExpr(self.ctx.known.get(load.tensor.serial, load.tensor), load.at)

    def _refuse_empty(self, stage: Stage) -> None:
        bodies = [b for b in (stage.body, self.fusion.bodies.get(stage.tensor.serial)) if b]
        for body in bodies:
            for load in loads(body):
                if not load.tensor.size:
                    what = self.ctx.value_of(load.tensor)
                    raise UnsupportedOpError(
                        f"{'+'.join(self.ctx.ops)} reads the empty tensor '{what}'."
                    )

    def _finish(self) -> Plan:
        ctx = self.ctx
        outputs: dict[str, str] = {}
        lows: dict[str, str] = {}
        fixed: dict[str, Array] = {}
        for value, wanted in self.outputs.items():
            tensor = self._now(wanted)
            tensor = ctx.known.get(tensor.serial, tensor)
            if tensor.array is not None:
                fixed[value] = tensor.array
            elif not tensor.size:
                fixed[value] = np.zeros(tensor.shape, tensor.dtype)
            else:
                for part, home in zip(_parts(wanted), (outputs, lows), strict=False):
                    name = ctx.need(self._now(part), "linear")
                    home[value] = _own_memory(ctx, name, (*outputs.values(), *lows.values()))
        steps = [self._step(tuple(names), passes) for names, passes in self.groups.values()]
        return Plan(tuple(ctx.passes), ctx.tensors, outputs, ctx.constants, tuple(steps), fixed,
                    self.most_integer, lows, self.open, ctx.choices)  # fmt: skip

    def _step(self, names: tuple[str, ...], passes: Sequence[int]) -> Step:
        launches = [self.ctx.passes[i] for i in passes]
        storages = [self.ctx.tensors[n].storage.kind for launch in launches for n in launch.outputs]
        return Step(
            names,
            tuple(self.labels[n] for n in names),
            tuple(dict.fromkeys(launch.variant for launch in launches)),
            tuple(dict.fromkeys(storages)),
            tuple(passes),
        )


def _outside(name: str, graph: Graph) -> Tensor:
    tensor = outside(name, graph)
    if tensor is None:
        raise UnsupportedOpError(f"The type of the output '{name}' is not known.")
    return tensor


def _images(fusion: Fusion, results: Sequence[Tensor]) -> set[int]:
    """Return what convolutions and pooling read as images, and nothing else reads."""
    images, others = set[int](), {t.serial for t in results}
    for stage in fusion.stages:
        for tensor in dict.fromkeys((stage.tensor, *(t for t in (stage.anchor,) if t))):
            source, body = tensor.source, fusion.bodies.get(tensor.serial)
            if isinstance(source, Convolution | Pooling):
                images.add(source.x.serial)
            elif body is not None:
                others |= {load.tensor.serial for load in loads(body)}
            else:
                others |= {t.serial for t in tensor.reads}
    return images - others


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return what is computed of a tensor that others take: itself, or its digits."""
    digits = tensor.digits
    return (tensor,) if digits is None else (digits.high, digits.low)


def _handed(graph: Graph, values: Mapping[str, Tensor]) -> list[Tensor]:
    """Return what one node computes and another reads."""
    names = dict.fromkeys(name for node in graph.nodes for name in operands(node))
    tensors = [values[name] for name in names if name in values]
    return [t for t in tensors if not isinstance(t.source, (Given, Constant))]


def without_bias(graph: Graph) -> dict[str, Tensor]:
    """Return the program of a graph with constant biases of convolutions added by maps.

    Where weights are kept in steps of their range, a bias among them would make the steps wider.
    """
    intermediate: dict[str, Tensor] = {}
    for node in graph.nodes:
        tensors = list(expand(node, graph, intermediate))
        source = tensors[0].source
        if isinstance(source, Convolution) and source.bias and source.bias.array is not None:
            whole, bias = tensors[0], source.bias
            bare = Tensor(whole.shape, whole.dtype, replace(source, bias=None), whole.label)
            column = reshape(bias, (*bias.shape, *(1,) * (whole.rank - 2)))
            tensors[0] = mapped(lambda x, b: x + b, bare, column)
            tensors[0].label = whole.label
        intermediate.update((n, t) for n, t in zip(node.outputs, tensors, strict=False) if n)
    return intermediate


def label(node: Node) -> str:
    """Return the name a node is reported under: its own, or its output's."""
    return node.name or node.outputs[0]


def _own_memory(ctx: Context, name: str, outputs: Collection[str]) -> str:
    """Return `name`, or a copy where the host writes its memory or others have some of it."""
    tensor = ctx.tensors[name]
    whole = ctx.tensors[tensor.memory]
    taken = {ctx.tensors[o].memory for o in outputs}
    if whole.host is None and whole.name not in taken and tensor.nbytes == whole.nbytes:
        return name
    return ctx.copy(name)


def plan_or_refusals(graph: Graph, caps: Caps) -> Plan | dict[int, str]:
    """Return the plan of a graph on a device with `caps`, or what of the graph it cannot run.

    That is the nodes, by identity, with what `why_not` says of each. The plan is tried first: it is
    needed anyway, and where there is one, no node has to be planned alone.
    """
    opened = _opened(graph)
    if not opened.whys and not any(_not_computed(n, graph, opened) for n in graph.nodes):
        planned = _planned(graph, caps)
        if not isinstance(planned, str) and _not_kept(planned, graph, caps) is None:
            return planned
    whys = {id(n): why_not(n, graph, caps) for n in graph.nodes}
    whys |= opened.whys
    return {number: why for number, why in whys.items() if why is not None}


def why_not(node: Node, graph: Graph, caps: Caps) -> str | None:
    """Return None if a device with `caps` can run `node`, else one sentence saying why not.

    The answer comes from planning the node alone, so it is the planner's own. With it come nodes
    that compute its operands from constants, too large to be folded: planning knows their results.
    """
    why = _not_computed(node, graph)
    if why is not None:
        return why
    makers = _makers(node, graph)
    planned = _planned(_alone(node, graph, makers), caps)
    if isinstance(planned, str) and makers:
        planned = _planned(_alone(node, graph), caps)
    if isinstance(planned, str):
        return planned
    why = _not_kept(planned, graph, caps)
    return _not_read(planned.open, graph) if why is None and planned.open else why


@dataclass(frozen=True)
class _Opened:
    """Values whose size only values tell, as far as nodes follow them, and why nodes do not."""

    names: frozenset[str]
    whys: Mapping[int, str]


NOTHING_OPENED = _Opened(frozenset(), {})


def _opened(graph: Graph) -> _Opened:
    """Return what follows from nodes whose results are of any size, up to some length."""
    known: dict[str, Tensor] = {}
    names: set[str] = set()
    whys: dict[int, str] = {}
    for node in graph.nodes:
        is_typed = all(name in graph.types for name in (*node.inputs, *node.outputs) if name)
        if is_typed or (operator_of(node) is None and names.isdisjoint(node.inputs)):
            continue
        try:
            tensors = expand(node, graph, known)
        except GpuEdgeError as error:
            if not names.isdisjoint(node.inputs):
                whys[id(node)] = _said(error)
            continue
        known.update((n, t) for n, t in zip(node.outputs, tensors, strict=False) if n)
        names.update(n for n in node.outputs if n in known and known[n].length is not None)
    return _Opened(frozenset(names), whys)


def _not_computed(node: Node, graph: Graph, opened: _Opened = NOTHING_OPENED) -> str | None:
    """Return None if there are kernels for a node and the types of its values, else a sentence."""
    operator = operator_of(node)
    if operator is None and functions.body(node, graph) is None:
        return f"{node.op} has no kernel"
    for name in (*node.inputs, *node.outputs):
        kind = graph.types.get(name)
        if name in graph.constants or (kind is None and name not in node.inputs) or not name:
            continue
        if kind is None and name in opened.names:
            continue
        if kind is None:
            return f"the shape of '{name}' is not known before running"
        if kind.dtype not in DTYPES:
            return f"'{name}' is {kind.dtype}; kernels compute in float32"
    return None


def _planned(part: Graph, caps: Caps) -> Plan | str:
    """Return the plan of a part of a graph, or one sentence saying why there is none."""
    try:
        return plan(part, caps)
    except GpuEdgeError as error:
        return _said(error)


def _said(error: GpuEdgeError) -> str:
    return error.what if error.known is None else f"{error.what} ({error.known})"


def _not_read(names: Container[str], graph: Graph) -> str | None:
    """Return None if no node reads these values, else one sentence."""
    for node in graph.nodes:
        for name in reads(node):
            if name in names:
                return f"{label(node)!r} reads '{name}', {OPEN_SIZE}"
    return None


def _exact_inputs(outputs: Sequence[Tensor]) -> int:
    """Return how large integers may be that come in. Raises UnsupportedOpError (GE-501)."""
    most, beyond = exact_inputs(outputs)
    if beyond is not None:
        raise UnsupportedOpError(
            f"{_what(beyond)} integers beyond {EXACT_INTEGERS}{_sign(beyond)}.",
            known="kernels compute in float32, where larger ones are not exact",
        )
    return most


def _sign(beyond: Tensor) -> str:
    return f", or negative ones, which {beyond.dtype} wraps" if beyond.dtype[0] == "u" else ""


def _what(beyond: Tensor) -> str:
    known = isinstance(beyond.source, Constant)
    return "A constant holds" if known else f"'{beyond.label}' may give"


def _not_kept(plan: Plan, graph: Graph, caps: Caps) -> str | None:
    """Return None if a device keeps all constants of a node's plan, else one sentence.

    These are what it uploads, inside of the operator too, and results that are known already; of
    one element these are written into the kernels that read them.
    """
    if not caps.is_finite_only:
        return None
    uploaded = (t.host.sources for t in plan.tensors.values() if t.host and t.is_constant)
    known = {name: plan.constants[name] for names in uploaded for name in names}
    known |= {name: array for name, array in plan.fixed.items() if array.size > 1}
    for name, array in known.items():
        if not is_finite(array):
            what = f"the constant '{name}'" if name in graph.constants else "a constant in it"
            return f"{what} holds NaN or infinity, which this device does not keep"
    return None


def _makers(node: Node, graph: Graph, depth: int = MAKERS) -> tuple[Node, ...]:
    """Return the nodes that compute operands of a node from constants alone, in a few steps."""
    makers: dict[int, Node] = {}
    for maker in (graph.settled[i] for i in node.inputs if i and i in graph.settled):
        before = _makers(maker, graph, depth - 1) if depth else ()
        makers |= {id(m): m for m in (*before, maker)}
    return tuple(makers.values())


def _alone(node: Node, graph: Graph, makers: tuple[Node, ...] = ()) -> Graph:
    nodes = (*makers, node)
    inner = {o for m in makers for o in m.outputs}
    read = dict.fromkeys(i for n in nodes for i in n.inputs if i and i not in inner)
    used = {*read, *inner, *node.outputs}
    return Graph(
        nodes=nodes,
        inputs=tuple(i for i in read if i not in graph.constants),
        outputs=tuple(o for o in node.outputs if o),
        types={n: graph.types[n] for n in used if n in graph.types},
        constants={i: graph.constants[i] for i in read if i in graph.constants},
        opset=graph.opset,
    )
