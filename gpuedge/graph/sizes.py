"""Sizes of all that a model computes, from shapes, before anything of it is computed."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import ModelError, ShapeError, UnsupportedOpError
from gpuedge.core.text import shown
from gpuedge.graph import fold, schema
from gpuedge.graph.ir import Array, Graph, Node, TensorType, type_of
from gpuedge.graph.limits import MAX_ELEMENTS, MAX_RANK
from gpuedge.graph.protos import node_of, tensor_value
from gpuedge.graph.writer import graphs_of
from gpuedge.opset.call import node_label
from gpuedge.safety.machine import memory_bytes

if TYPE_CHECKING:
    import onnx

REMEMBERED = 1024
"""Sets of shapes whose sizes were looked at and are remembered."""

SMALL = 1024
"""Weights of at most this many elements are shown to inference by value: shapes, axes, counts."""

SUSPECT = 1 << 26
"""A model without a value of more bytes needs no closer look: most models."""

INNER_LIMIT = 1 << 16
"""Largest value inside a Loop, Scan or If that is computed to know what depends on it, bytes."""

MOST_ROUNDS = 64
"""Rounds of a Loop whose sizes are looked at; what doubles has passed every bound before."""


def check_sizes(node: Node, types: Mapping[str, TensorType]) -> None:
    """Refuse a node whose results are too large, or do not fit beside its operands.

    Raises ModelError (GE-500).
    """
    for name in node.outputs:
        if name in types:
            check_size(node, name, types[name])
    names = {name for name in (*node.inputs, *node.outputs) if name in types}
    _check_memory(node, sum(types[name].nbytes for name in names))


def check_size(node: Node, name: str, kind: TensorType) -> None:
    """Refuse a value that no machine this runs on could hold, before anything tries.

    Raises ModelError (GE-500).
    """
    label = node_label(node.op, node.name, node.outputs)
    if len(kind.shape) > MAX_RANK:
        raise ModelError(
            f"{label} would compute {shown(name)} of {len(kind.shape)} dimensions.",
            known=f"the most is {MAX_RANK}",
        )
    if kind.size > MAX_ELEMENTS:
        raise ModelError(
            f"{label} would compute {shown(name)} of {kind.size} elements.",
            known=f"shape {list(kind.shape)}; the most is {MAX_ELEMENTS}",
            hint="give the model smaller inputs, or look at the nodes before this one: "
            "something grows with each of them",
        )
    _check_memory(node, kind.nbytes)


def _check_memory(node: Node, nbytes: int) -> None:
    most = _memory()
    if most is not None and nbytes > most:
        raise ModelError(
            f"{node_label(node.op, node.name, node.outputs)} would need {nbytes / 2**30:.1f} GiB.",
            known=f"this machine, or the container, has {most / 2**30:.1f} GiB of memory",
            hint="give the model smaller inputs, or look at the nodes before this one",
        )


_memory = cache(memory_bytes)


class Sizes:
    """What ONNX's own inference says of the sizes of a model's values: fast, before any folding.

    Parameters
    ----------
    graph : GraphProto
    opsets : iterable of OperatorSetIdProto
    """

    def __init__(self, graph: onnx.GraphProto, opsets: Iterable[onnx.OperatorSetIdProto]) -> None:
        self._bare = _bare(graph, opsets)
        self._is_whole = not any(map(_has_graph, graph.node))
        self.are_known = lru_cache(REMEMBERED)(self._are_known)

    def _are_known(self, *shapes: tuple[int, ...]) -> bool:
        """Tell whether all sizes follow from the shapes of the inputs, and none is empty.

        Raises
        ------
        ModelError (GE-500)
            A value would be too large.
        """
        from gpuedge.graph.onnx_package import onnx

        proto = onnx.ModelProto.FromString(self._bare)
        for value, shape in zip(proto.graph.input, shapes, strict=False):
            value.type.tensor_type.shape.SetInParent()
            for extent in shape:
                value.type.tensor_type.shape.dim.add(dim_value=extent)
        model = schema.inferred(proto)
        if model is None:
            return False
        graph = model.graph
        known = {v.name: kind for v in (*graph.value_info, *graph.output, *graph.input)
                 if (kind := _type(v)) is not None}  # fmt: skip
        largest = max((kind.nbytes for kind in known.values()), default=0)
        is_large = largest > SUSPECT or any(len(kind.shape) > MAX_RANK for kind in known.values())
        for node in graph.node if is_large else ():
            check_sizes(node_of(node), known)
        return self._is_whole and all(
            name in known and all(known[name].shape)
            for node in graph.node for name in node.output if name
        )  # fmt: skip


def _has_graph(node: onnx.NodeProto) -> bool:
    return any(a.HasField("g") or len(a.graphs) for a in node.attribute)


def _bare(graph: onnx.GraphProto, opsets: Iterable[onnx.OperatorSetIdProto]) -> bytes:
    """Return a model without shapes and without the numbers that say nothing of sizes."""
    from gpuedge.graph.onnx_package import onnx

    proto = onnx.ModelProto(ir_version=8, opset_import=opsets)
    bare = proto.graph
    bare.name = "sizes"
    for given, kept in ((graph.input, bare.input), (graph.output, bare.output)):
        for value in given:
            kind = kept.add(name=value.name).type.tensor_type
            kind.elem_type = value.type.tensor_type.elem_type
    for tensor in graph.initializer:
        _add_weight(bare, tensor, tensor.name)
    for node in graph.node:
        if [a.name for a in node.attribute] == ["value"] and node.op_type == "Constant":
            _add_weight(bare, node.attribute[0].t, node.output[0])
        elif not _has_graph(node):
            bare.node.add().CopyFrom(node)
    data: bytes = proto.SerializeToString()
    return data


def _add_weight(bare: onnx.GraphProto, tensor: onnx.TensorProto, name: str) -> None:
    """Add a weight, as an input where only its shape matters."""
    if prod(tensor.dims) <= SMALL:
        copy = bare.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = name
        return
    kind = bare.input.add(name=name).type.tensor_type
    kind.elem_type = tensor.data_type
    for extent in tensor.dims:
        kind.shape.dim.add(dim_value=extent)


def _type(value: onnx.ValueInfoProto) -> TensorType | None:
    """Return a type whose extents are all known."""
    kind = value.type.tensor_type
    extents = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
    if not kind.HasField("shape") or min(extents, default=0) < 0:
        return None
    return TensorType(schema.dtype_name(kind.elem_type) if kind.elem_type else "", tuple(extents))


def check_inside(node: Node, known: Graph) -> None:
    """Refuse sizes inside the graphs of a node (If, Loop, Scan), as far as shapes tell them.

    A Loop is followed for as many rounds as it is certain to make.

    Raises ModelError (GE-500).
    """
    for graph in graphs_of(node):
        types = dict(_given(node, graph, known))
        if node.op != "Loop":
            _walk(graph, known, types)
            continue
        trips, is_certain = _trips(node, known), True
        for done in range(1, MOST_ROUNDS + 1):
            inner = _walk(graph, known, types)
            is_certain = is_certain and trips is not None and _goes_on(graph, inner)
            if not is_certain or done >= (trips or 0) or not _feed_back(graph, inner, types):
                break
        if is_certain:
            _check_stacked(node, graph, inner, trips or 0)


def _given(node: Node, graph: onnx.GraphProto, known: Graph) -> Iterator[tuple[str, TensorType]]:
    """Yield the types that a body's inputs have in its first round, where they are known."""
    outer: Sequence[TensorType | None] = [known.types.get(name) for name in node.inputs]
    if node.op == "Loop":
        outer = [TensorType("int64", ()), TensorType("bool", ()), *outer[2:]]
    elif node.op == "Scan":
        count = int(node.attrs.get("num_scan_inputs", 0))
        axes = node.attrs.get("scan_input_axes") or [0] * count
        states, parts = outer[: len(outer) - count], outer[len(outer) - count :]
        outer = [*states, *map(_slice, parts, axes)] if known.opset.get("", 0) >= 9 else []
    for value, kind in zip(graph.input, outer, strict=False):
        if kind is not None:
            yield value.name, kind


def _slice(kind: TensorType | None, axis: int) -> TensorType | None:
    if kind is None or not -len(kind.shape) <= axis < len(kind.shape):
        return None
    axis %= len(kind.shape)
    return replace(kind, shape=kind.shape[:axis] + kind.shape[axis + 1 :])


def _walk(graph: onnx.GraphProto, known: Graph, given: Mapping[str, TensorType]) -> Graph:
    """Return what is known of a body's values for these types of its inputs."""
    constants: ChainMap[str, Array] = ChainMap({}, known.constants)  # type: ignore[arg-type]
    types: ChainMap[str, TensorType] = ChainMap(dict(given), known.types)  # type: ignore[arg-type]
    for tensor in graph.initializer:
        constants[tensor.name] = tensor_value(tensor)
        types[tensor.name] = type_of(constants[tensor.name])
    so_far = replace(known, types=types, constants=constants)
    for node in map(node_of, graph.node):
        try:
            arrays = fold.evaluate(node, so_far, INNER_LIMIT)
            kinds = fold.types_of(node, so_far) if arrays is None else ()
        except (ShapeError, UnsupportedOpError):
            continue  # of a branch that is perhaps not taken
        for name, array in zip(node.outputs, arrays or (), strict=False):
            constants[name], types[name] = array, type_of(array)
        for name, kind in zip(node.outputs, kinds, strict=False):
            if name and kind is not None:
                types[name] = kind
        check_sizes(node, types)
        if arrays is None:
            check_inside(node, so_far)
    return so_far


def _trips(node: Node, known: Graph) -> int | None:
    """Return how often a Loop goes round unless its body ends it; None where that is open."""
    count, condition = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else ""
    is_true = not condition or (condition in known.constants and known.constants[condition].all())
    if not is_true or count not in known.constants:
        return None
    return int(known.constants[count].reshape(-1)[0])


def _goes_on(graph: onnx.GraphProto, inner: Graph) -> bool:
    """Tell whether a Loop's body is certain not to end it."""
    source = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Identity"}
    name = graph.output[0].name
    while name in source:
        name = source[name]
    is_true = name in inner.constants and bool(inner.constants[name].all())
    return is_true or name == graph.input[1].name


def _feed_back(graph: onnx.GraphProto, inner: Graph, types: dict[str, TensorType]) -> bool:
    """Give a Loop's body what it made; return whether all types are known and any changed."""
    carried = [v.name for v in graph.input][2:]
    results = [inner.types.get(v.name) for v in graph.output][1 : len(carried) + 1]
    if None in results:
        return False
    new: dict[str, Any] = dict(zip(carried, results, strict=False))
    is_changed = any(types.get(name) != kind for name, kind in new.items())
    types.update(new)
    return is_changed


def _check_stacked(node: Node, graph: onnx.GraphProto, inner: Graph, trips: int) -> None:
    """Refuse what a Loop would stack: a slice for each round."""
    carried = len(graph.input) - 2
    for value, name in zip(graph.output[carried + 1 :], node.outputs[carried:], strict=False):
        kind = inner.types.get(value.name)
        if name and kind is not None:
            check_size(node, name, replace(kind, shape=(trips, *kind.shape)))
