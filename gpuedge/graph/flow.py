"""Control flow and sequences that are known while planning, written out as plain nodes.

A branch of an If takes its place, the steps of a Loop or Scan follow each other, and a sequence or
an optional value is a list of names. What only values tell stays as it is, for ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.graph.protos import node_of, tensor_value
from gpuedge.graph.writer import graphs_of
from gpuedge.opset import facts_of

if TYPE_CHECKING:
    import onnx

MOST_NODES = 4096
"""Nodes that loops of a graph may become together; reading that many takes seconds."""

ROUND = "gpuedge.round"
"""Domain of the node that stands for the steps of a Loop that are left; only the reader sees it."""

SEQUENCES = frozenset(
    {"SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceInsert", "SequenceErase",
     "SequenceLength", "SequenceMap", "SplitToSequence", "ConcatFromSequence", "Optional",
     "OptionalHasElement", "OptionalGetElement"}
)  # fmt: skip


DECIDING: dict[str, tuple[int, ...]] = {
    "If": (0,), "Loop": (0, 1), "SequenceAt": (1,), "SequenceInsert": (2,), "SequenceErase": (1,),
    "SplitToSequence": (1,),
}  # fmt: skip
"""Inputs of nodes whose values decide what they are written out as."""


def deciding(node: Node) -> tuple[str, ...]:
    """Return the values that decide what a node is written out as."""
    places = () if node.domain else DECIDING.get(node.op, ())
    return tuple(node.inputs[i] for i in places if len(node.inputs) > i and node.inputs[i])


class StaysOpenError(Exception):
    """What has been written out in part turns out to be known only while the model runs."""


@dataclass(frozen=True)
class Written:
    """What stands for a node: other nodes, and constants that they read."""

    nodes: tuple[Node, ...] = ()
    constants: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Body:
    """The graph that a node holds: a branch, or what a loop repeats."""

    graph: onnx.GraphProto

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Its nodes, with names of its own."""
        return tuple(map(node_of, self.graph.node))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of its inputs."""
        return tuple(value.name for value in self.graph.input)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of its outputs."""
        return tuple(value.name for value in self.graph.output)

    @cached_property
    def constants(self) -> dict[str, Array]:
        """Its weights."""
        return {tensor.name: tensor_value(tensor) for tensor in self.graph.initializer}

    def placed(
        self, prefix: str, given: Mapping[str, str]
    ) -> tuple[list[Node], tuple[str, ...], dict[str, Array]]:
        """Return it as a part of the graph around it: nodes, names of its outputs, constants.

        Its own values are renamed, as another copy may use the same names.
        """
        own = {name for node in self.nodes for name in node.outputs if name}
        names = {name: f"{prefix}/{name}" for name in (*own, *self.constants)} | dict(given)
        nodes = [_renamed(node, names, prefix) for node in self.nodes]
        outputs = tuple(names.get(name, name) for name in self.outputs)
        return nodes, outputs, {names[n]: array for n, array in self.constants.items()}


def _renamed(node: Node, names: Mapping[str, str], prefix: str) -> Node:
    attrs = dict(node.attrs)
    for key, value in node.attrs.items():
        if hasattr(value, "ByteSize"):
            attrs[key] = copied = type(value)()
            copied.CopyFrom(value)
            for inner in (copied.g, *copied.graphs):
                _rename(inner, names)
    return replace(
        node,
        inputs=tuple(names.get(name, name) for name in node.inputs),
        outputs=tuple(names.get(name, name) for name in node.outputs),
        attrs=attrs,
        name=f"{prefix}/{node.name}" if node.name else "",
    )


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename values around a graph in it and in those of its nodes; its own hide them."""
    own = {value.name for value in (*graph.input, *graph.initializer)}
    own.update(name for node in graph.node for name in node.output)
    names = {old: new for old, new in names.items() if old not in own}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names)
    for value in graph.output:
        value.name = names.get(value.name, value.name)


class Flow:
    """Writes out the nodes of one graph, in their order.

    Parameters
    ----------
    opset : int
        Operator set of the graph.
    is_open : bool
        Whether only branches are taken, and loops and sequences stay.

    Attributes
    ----------
    lists : dict
        What sequences hold, by name, as names of values.
    optionals : dict
        What optional values hold, by name; the empty name where that is nothing.
    left : int
        Nodes that loops may still become.
    """

    def __init__(self, opset: int, *, is_open: bool = False) -> None:
        self.opset, self.is_open = opset, is_open
        self.lists: dict[str, tuple[str, ...]] = {}
        self.optionals: dict[str, str] = {}
        self.left = MOST_NODES

    def written(self, node: Node, known: Graph) -> Written | None:
        """Return what a node becomes, None where it stays.

        Raises
        ------
        StaysOpenError
            It should not have been begun.
        """
        if node.domain == ROUND:
            loop: _Loop = node.attrs["loop"]
            return loop.round(known)
        if node.domain:
            return None
        if node.op == "If":
            return _taken(node, known)
        if self.is_open:
            return None
        if node.op == "Identity" and self.is_read(node.inputs):
            return self.call(node, node.inputs[0])
        make = WAYS.get(node.op)
        return None if make is None else make(self, node, known)

    def call(self, node: Node, name: str) -> Written:
        """Give a sequence or an optional value another name."""
        if name in self.lists:
            self.lists[node.outputs[0]] = self.lists[name]
        if name in self.optionals:
            self.optionals[node.outputs[0]] = self.optionals[name]
        return Written()

    def is_read(self, names: Iterable[str]) -> bool:
        """Tell whether any of them is a sequence or an optional value."""
        return any(name in self.lists or name in self.optionals for name in names)

    def take(self, nodes: int) -> bool:
        """Tell whether so many nodes more may be written out, and count them."""
        self.left -= nodes
        return self.left >= 0

    # -- pieces -----------------------------------------------------------------------------------

    def stacked(self, parts: Sequence[str], result: str, axis: int = 0) -> Written:
        """Return what joins values along a new axis."""
        names = [f"{result}/part{i}" for i in range(len(parts))]
        wide = [self.reshaping("Unsqueeze", p, n, axis) for p, n in zip(parts, names, strict=True)]
        nodes = [node for each in wide for node in each.nodes]
        constants = {n: a for each in wide for n, a in each.constants.items()}
        nodes.append(Node("Concat", tuple(names), (result,), {"axis": axis}, result))
        return Written(tuple(nodes), constants)

    def reshaping(self, op: str, source: str, result: str, axis: int) -> Written:
        """Return an Unsqueeze or Squeeze of an axis."""
        if self.opset < 13:
            return Written((Node(op, (source,), (result,), {"axes": (axis,)}, result),))
        axes = f"{result}/axes"
        node = Node(op, (source, axes), (result,), {}, result)
        return Written((node,), {axes: np.array([axis], np.int64)})


def joined(*parts: Written) -> Written:
    """Return several pieces as one."""
    constants = {n: a for part in parts for n, a in part.constants.items()}
    return Written(tuple(node for part in parts for node in part.nodes), constants)


def _same(source: str, result: str) -> Node:
    return Node("Identity", (source,), (result,), {}, result)


def truth(name: str, known: Graph) -> bool | None:
    """Return a condition; None where it is not known."""
    array = known.constants.get(name)
    return None if array is None or array.size != 1 else bool(array.reshape(-1)[0])


def _taken(node: Node, known: Graph) -> Written | None:
    """Return the branch that an If takes, where that is known."""
    is_true = truth(node.inputs[0], known)
    if is_true is None:
        return None
    body = Body(node.attrs["then_branch" if is_true else "else_branch"].g)
    nodes, results, constants = body.placed(next(filter(None, node.outputs)), {})
    ends = [_same(r, o) for r, o in zip(results, node.outputs, strict=True) if o]
    return Written((*nodes, *ends), constants)


# --- loops ---------------------------------------------------------------------------------------


def _label(node: Node) -> str:
    return next(filter(None, node.outputs), node.name)


def _loop(flow: Flow, node: Node, known: Graph) -> Written | None:
    """Begin a Loop whose steps can be counted while planning."""
    loop = _Loop(flow, node, known)
    return loop.round(known) if loop.is_planned(known) else None


def _trips(node: Node, known: Graph) -> int | None:
    """Return how many steps a Loop takes at most; None where there is no end, or it is unknown."""
    array = known.constants.get(node.inputs[0]) if node.inputs[0] else None
    return None if array is None or array.size != 1 else max(int(array.reshape(-1)[0]), 0)


class _Loop:
    """A Loop on its way: each round gives the nodes of a step, and the next round."""

    def __init__(self, flow: Flow, node: Node, known: Graph) -> None:
        self.flow, self.node, self.label = flow, node, _label(node)
        self.body = Body(node.attrs["body"].g)
        self.most = _trips(node, known)
        self.test = node.inputs[1] if len(node.inputs) > 1 else ""
        self.state = node.inputs[2:]
        self.rows: list[list[str]] = [[] for _ in self.body.outputs[1 + len(self.state) :]]
        self.step = 0

    def is_planned(self, known: Graph) -> bool:
        """Tell whether trips and conditions follow from what is known, and are not too many."""
        if self.node.inputs[0] and self.most is None:
            return False
        if self.test and truth(self.test, known) is None:
            return False
        if (self.most or 0) * len(self.body.nodes) > self.flow.left:
            return False
        if self.most is None and not self.test:
            return False
        settled = {i for i, name in enumerate(self.state) if name in known.constants}
        while True:
            names = {*self.body.inputs[:2], *(self.body.inputs[2 + i] for i in settled)}
            values = _settled(self.body, names, known)
            still = {i for i in settled if self.body.outputs[1 + i] in values}
            if still == settled:
                return self.body.outputs[0] in values
            settled = still

    def round(self, known: Graph) -> Written:
        """Return the next step and the rest; at the end, what gives the results."""
        is_on = True if not self.test else truth(self.test, known)
        if is_on is None or not self.flow.take(len(self.body.nodes)):
            raise StaysOpenError
        if not is_on or self.step == self.most:
            return self._end()
        prefix = f"{self.label}/{self.step}"
        number, test = f"{prefix}/step", f"{prefix}/test"
        inputs = (number, test, *self.state)
        nodes, results, constants = self.body.placed(
            prefix, dict(zip(self.body.inputs, inputs, strict=True))
        )
        constants |= {number: np.array(self.step, np.int64), test: np.array(True)}
        self.test, self.state = results[0], results[1 : 1 + len(self.state)]
        for row, name in zip(self.rows, results[1 + len(self.state) :], strict=True):
            row.append(name)
        self.step += 1
        rest = Node("Loop", (self.test,), (), {"loop": self}, self.label, ROUND)
        return Written((*nodes, rest), constants)

    def _end(self) -> Written:
        outputs = (*self.node.outputs, *[""] * (len(self.state) + len(self.rows)))
        ends = [_same(s, o) for s, o in zip(self.state, outputs, strict=False) if o]
        parts = [Written(tuple(ends))]
        for row, name in zip(self.rows, outputs[len(self.state) :], strict=False):
            if name and not row:
                raise StaysOpenError  # nothing tells the shape of what is empty
            if name:
                parts.append(self.flow.stacked(row, name))
        return joined(*parts)


def _settled(body: Body, names: set[str], known: Graph) -> set[str]:
    """Return which values of a body are known while planning if some are; so are all sizes."""
    values = {*names, *body.constants}
    for node in body.nodes:
        is_size = node.op in ("Shape", "Size") and not node.domain
        is_fixed = all(not n or n in values or n in known.constants for n in node.inputs)
        if (is_fixed and not facts_of(node.op).is_random and not any(graphs_of(node))) or is_size:
            values.update(node.outputs)
    return values


def _scan(flow: Flow, node: Node, known: Graph) -> Written | None:
    """Write out a Scan, whose steps are the extent of an axis."""
    is_old = known.opset.get("", 0) < 9
    inputs = node.inputs[1:] if is_old else node.inputs
    body = Body(node.attrs["body"].g)
    count = int(node.attrs["num_scan_inputs"])
    states, rows = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    if any(name not in known.types for name in inputs) or (is_old and node.inputs[0]):
        return None
    run = _ScanRun(flow, node, body, states, rows, known)
    steps = run.steps(1 if is_old else None)
    batches = known.shape(rows[0])[0] if is_old else 1
    if not steps or not batches or not flow.take(steps * batches * (len(body.nodes) + count)):
        return None
    return run.batches(batches, steps) if is_old else run.whole(steps)


@dataclass(frozen=True)
class _ScanRun:
    """A Scan and what it goes through."""

    flow: Flow
    node: Node
    body: Body
    states: tuple[str, ...]
    rows: tuple[str, ...]
    known: Graph

    def _ints(self, name: str, count: int) -> tuple[int, ...]:
        value = self.node.attrs.get(name)
        return tuple(value) if isinstance(value, tuple) else (0,) * count

    def steps(self, axis: int | None) -> int:
        """Return how many steps it takes; 0 where its inputs do not fit each other."""
        axes = self._ints("scan_input_axes", len(self.rows))
        shapes = [self.known.shape(name) for name in self.rows]
        places = [a if axis is None else axis for a in axes]
        if any(not -len(s) <= a < len(s) for a, s in zip(places, shapes, strict=True)):
            return 0
        extents = {shape[a] for a, shape in zip(places, shapes, strict=True)}
        return extents.pop() if len(extents) == 1 else 0

    def _through(
        self, prefix: str, states: Sequence[str], rows: Sequence[str], axes: Sequence[int],
        steps: int,
    ) -> tuple[list[Written], Sequence[str], list[list[str]]]:  # fmt: skip
        """Return the steps through rows: nodes, last states, and the results of each step."""
        kind = "scan_input_directions" if "num_scan_inputs" in self.node.attrs else ""
        turned = self._ints("directions" if "directions" in self.node.attrs else kind, len(rows))
        parts: list[Written] = []
        results: list[list[str]] = [[] for _ in self.body.outputs[len(states) :]]
        for step in range(steps):
            own = f"{prefix}/{step}"
            taken = [f"{own}/row{i}" for i in range(len(rows))]
            for i, (row, axis) in enumerate(zip(rows, axes, strict=True)):
                place = steps - 1 - step if turned[i] else step
                parts.append(_picked(row, taken[i], axis, place))
            given = dict(zip(self.body.inputs, (*states, *taken), strict=True))
            nodes, outputs, constants = self.body.placed(own, given)
            parts.append(Written(tuple(nodes), constants))
            states = outputs[: len(states)]
            for each, name in zip(results, outputs[len(states) :], strict=True):
                each.append(name)
        return parts, states, results

    def whole(self, steps: int) -> Written:
        """Return it as operator sets from 9 on have it."""
        axes = self._ints("scan_input_axes", len(self.rows))
        label, outputs = _label(self.node), self.node.outputs
        parts, states, results = self._through(label, self.states, self.rows, axes, steps)
        ends = [_same(s, o) for s, o in zip(states, outputs, strict=False) if o]
        parts.append(Written(tuple(ends)))
        into = self._ints("scan_output_axes", len(results))
        turned = self._ints("scan_output_directions", len(results))
        for i, name in enumerate(outputs[len(states) :]):
            if name:
                row = results[i][::-1] if turned[i] else results[i]
                parts.append(self.flow.stacked(row, name, into[i]))
        return joined(*parts)

    def batches(self, count: int, steps: int) -> Written:
        """Return it as operator set 8 has it: for each of a batch on its own."""
        label, parts = _label(self.node), list[Written]()
        ends: list[list[str]] = [[] for _ in self.node.outputs]
        for batch in range(count):
            own = f"{label}/batch{batch}"
            names = [f"{own}/given{i}" for i in range(len(self.states) + len(self.rows))]
            for name, taken in zip((*self.states, *self.rows), names, strict=True):
                parts.append(_picked(name, taken, 0, batch))
            cut = len(self.states)
            through = self._through(own, names[:cut], names[cut:], (0,) * len(self.rows), steps)
            parts += through[0]
            rows = [f"{own}/rows{i}" for i in range(len(through[2]))]
            for row, name in zip(through[2], rows, strict=True):
                parts.append(self.flow.stacked(row, name))
            for each, name in zip(ends, (*through[1], *rows), strict=False):
                each.append(name)
        for each, name in zip(ends, self.node.outputs, strict=True):
            if name:
                parts.append(self.flow.stacked(each, name))
        return joined(*parts)


def _picked(source: str, result: str, axis: int, place: int) -> Written:
    """Return what picks a place of an axis, which is gone then."""
    number = f"{result}/place"
    node = Node("Gather", (source, number), (result,), {"axis": axis}, result)
    return Written((node,), {number: np.array(place, np.int64)})


# --- sequences -----------------------------------------------------------------------------------


def _construct(flow: Flow, node: Node, known: Graph) -> Written:
    flow.lists[node.outputs[0]] = node.inputs
    return Written()


def _empty(flow: Flow, node: Node, known: Graph) -> Written:
    flow.lists[node.outputs[0]] = ()
    return Written()


def _place(node: Node, at: int, known: Graph, low: int, high: int) -> int | None:
    """Return a place in a sequence; None where it is not known, or not a place."""
    array = known.constants.get(node.inputs[at])
    if array is None or array.size != 1:
        return None
    place = int(array.reshape(-1)[0])
    return place if low <= place <= high else None


def _has(node: Node, at: int) -> bool:
    return len(node.inputs) > at and bool(node.inputs[at])


def _at(flow: Flow, node: Node, known: Graph) -> Written | None:
    items = flow.lists.get(node.inputs[0])
    if items is None:
        return None
    place = _place(node, 1, known, -len(items), len(items) - 1)
    return None if place is None else Written((_same(items[place], node.outputs[0]),))


def _insert(flow: Flow, node: Node, known: Graph) -> Written | None:
    items = flow.lists.get(node.inputs[0])
    if items is None:
        return None
    size = len(items)
    place = _place(node, 2, known, -size, size) if _has(node, 2) else size
    if place is None:
        return None
    place += size if place < 0 else 0
    flow.lists[node.outputs[0]] = (*items[:place], node.inputs[1], *items[place:])
    return Written()


def _erase(flow: Flow, node: Node, known: Graph) -> Written | None:
    items = flow.lists.get(node.inputs[0])
    if not items:
        return None
    size = len(items)
    place = _place(node, 1, known, -size, size - 1) if _has(node, 1) else size - 1
    if place is None:
        return None
    place %= size
    flow.lists[node.outputs[0]] = (*items[:place], *items[place + 1 :])
    return Written()


def _length(flow: Flow, node: Node, known: Graph) -> Written | None:
    items = flow.lists.get(node.inputs[0])
    if items is None:
        return None
    return Written((), {node.outputs[0]: np.array(len(items), np.int64)})


def _split(flow: Flow, node: Node, known: Graph) -> Written | None:
    """Write out a SplitToSequence whose parts are known."""
    source, result = node.inputs[0], node.outputs[0]
    kind, axis = known.types.get(source), int(node.attrs.get("axis", 0))
    if kind is None or not -len(kind.shape) <= axis < len(kind.shape):
        return None
    axis %= len(kind.shape)
    extent = kind.shape[axis]
    is_each = not _has(node, 1)
    sizes = _sizes(None if is_each else known.constants.get(node.inputs[1]), extent, is_each)
    if not sizes:
        return None
    names = tuple(f"{result}/{i}" for i in range(len(sizes)))
    flow.lists[result] = names
    if not is_each or node.attrs.get("keepdims", 1):
        return _cut(flow, source, names, axis, sizes)
    wide = tuple(f"{name}/wide" for name in names)
    thin = [flow.reshaping("Squeeze", w, n, axis) for w, n in zip(wide, names, strict=True)]
    return joined(_cut(flow, source, wide, axis, sizes), *thin)


def _sizes(given: Array | None, extent: int, is_each: bool) -> tuple[int, ...]:
    """Return the extents of the parts; none where they are not known, or do not fit."""
    if is_each:
        return (1,) * extent
    if given is None:
        return ()
    if given.ndim:
        sizes = tuple(int(n) for n in given)
        return sizes if sum(sizes) == extent and min(sizes, default=0) >= 0 else ()
    size = int(given)
    return () if size < 1 else tuple(min(size, extent - i) for i in range(0, extent, size))


def _cut(
    flow: Flow, source: str, names: tuple[str, ...], axis: int, sizes: tuple[int, ...]
) -> Written:
    if flow.opset < 13:
        attrs: dict[str, Any] = {"axis": axis, "split": sizes}
        return Written((Node("Split", (source,), names, attrs, names[0]),))
    split = f"{names[0]}/sizes"
    node = Node("Split", (source, split), names, {"axis": axis}, names[0])
    return Written((node,), {split: np.array(sizes, np.int64)})


def _concat(flow: Flow, node: Node, known: Graph) -> Written | None:
    items = flow.lists.get(node.inputs[0])
    if not items:
        return None
    axis, result = int(node.attrs.get("axis", 0)), node.outputs[0]
    if node.attrs.get("new_axis", 0):
        return flow.stacked(items, result, axis)
    return Written((Node("Concat", items, (result,), {"axis": axis}, node.name or result),))


def _map(flow: Flow, node: Node, known: Graph) -> Written | None:
    """Write out a SequenceMap: its body for each place of the first sequence."""
    items = flow.lists.get(node.inputs[0])
    body = Body(node.attrs["body"].g)
    if items is None or not flow.take(len(items) * len(body.nodes)):
        return None
    given = [flow.lists.get(name, (name,) * len(items)) for name in node.inputs]
    if any(len(each) != len(items) for each in given):
        return None
    parts, results = list[Written](), list[tuple[str, ...]]()
    for i in range(len(items)):
        names = dict(zip(body.inputs, (each[i] for each in given), strict=True))
        nodes, outputs, constants = body.placed(f"{_label(node)}/{i}", names)
        parts.append(Written(tuple(nodes), constants))
        results.append(outputs)
    for at, name in enumerate(node.outputs):
        if name:
            flow.lists[name] = tuple(row[at] for row in results)
    return joined(*parts)


def _optional(flow: Flow, node: Node, known: Graph) -> Written:
    flow.optionals[node.outputs[0]] = node.inputs[0] if node.inputs else ""
    return Written()


def _has_element(flow: Flow, node: Node, known: Graph) -> Written | None:
    name = node.inputs[0] if node.inputs else ""
    if name and not (flow.is_read([name]) or name in known.types):
        return None
    is_there = bool(flow.optionals.get(name, name))
    return Written((), {node.outputs[0]: np.array(is_there)})


def _element(flow: Flow, node: Node, known: Graph) -> Written | None:
    name = flow.optionals.get(node.inputs[0], node.inputs[0])
    if name in flow.lists:
        return flow.call(node, name)
    return Written((_same(name, node.outputs[0]),)) if name in known.types else None


Way = Callable[[Flow, Node, Graph], "Written | None"]

WAYS: dict[str, Way] = {
    "Loop": _loop, "Scan": _scan, "SequenceConstruct": _construct, "SequenceEmpty": _empty,
    "SequenceAt": _at, "SequenceInsert": _insert, "SequenceErase": _erase,
    "SequenceLength": _length, "SplitToSequence": _split, "ConcatFromSequence": _concat,
    "SequenceMap": _map, "Optional": _optional, "OptionalHasElement": _has_element,
    "OptionalGetElement": _element,
}  # fmt: skip
"""What writes out each operator, where it is known enough."""


def why_open(node: Node, graph: Graph) -> str | None:
    """Return why control flow or a sequence stayed, to complete a sentence; None for others."""
    if node.domain:
        return None
    if node.op == "If":
        return "has a condition that is only known while the model runs"
    if node.op in ("Loop", "Scan"):
        trips = _trips(node, graph) if node.op == "Loop" else None
        count = (trips or 0) * len(node.attrs["body"].g.node)
        if count > MOST_NODES:
            return f"would become {count} nodes; loops may become {MOST_NODES} together"
        return (
            "has steps or a condition that are only known while the model runs, or become more "
            f"than {MOST_NODES} nodes with other loops"
        )
    if node.op in SEQUENCES:
        return "works on a sequence or optional value that is only known while the model runs"
    return None
