"""Evaluating constant nodes and inferring types of unknown ones, with the ONNX package."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.graph import schema
from gpuedge.graph.expand import expand, infer, is_contested, is_known, parameters
from gpuedge.graph.ir import Array, Graph, Node, TensorType, type_of
from gpuedge.graph.reference import run_node
from gpuedge.graph.writer import graphs_of, reads, to_onnx
from gpuedge.opset import facts_of
from gpuedge.opset.call import node_label
from gpuedge.opset.evaluate import evaluate as compute_all

log = logging.getLogger("gpuedge")

FOLD_LIMIT = 64 << 20
"""Largest result of a folded node, bytes; more would only move work into memory."""

TOTAL_LIMIT = 256 << 20
"""Most bytes that all folded nodes of a graph may hold together."""

_SMALL = 4096
"""Constants of at most this many elements are shown to shape inference by value."""


def evaluate(node: Node, graph: Graph, limit: int = FOLD_LIMIT) -> tuple[Array, ...] | None:
    """Return the outputs of a node if they are known while planning, else None.

    `limit` is the most that an output may hold, in bytes.

    That is the case where all inputs are constant, and for Shape and Size of anything whose type
    is known. Random operators, subgraphs and large results are left to run time; where neither the
    reference nor our own description can compute a node, the log says why.
    """
    at_once = _at_once(node, graph) if node.domain == "" else None
    if at_once is not None:
        return (at_once,)
    fixed = not facts_of(node.op).is_random and node.domain in ("", "ai.onnx.ml")
    fixed = fixed and all(not name or name in graph.constants for name in node.inputs)
    if not fixed or any(graphs_of(node)):
        return None
    kinds = types_of(node, graph)
    if any(_nbytes(kind) > limit for kind in kinds if kind is not None):
        return None
    # A result of unknown size may be of any size: it is not computed to find out.
    if not facts_of(node.op).picks and not all(
        kind for kind, name in zip(kinds, node.outputs, strict=False) if name
    ):
        return None
    whys: list[str] = []
    for compute in _ways(kinds):
        try:
            arrays = compute(node, graph)
        except (UnsupportedOpError, ShapeError) as error:
            whys.append(f"{error.what} ({error.known})" if error.known else error.what)
            continue
        # The reference gives results of rank 1 for scalars: types must fit.
        named = zip(node.outputs, arrays, kinds, strict=False)
        if all(_is_plausible(array, kind) for name, array, kind in named if name):
            return arrays
        whys.append(f"{compute.__name__[1:]} it would give other types than it should")
    label = node_label(node.op, node.name, node.outputs)
    log.info("%s is computed at every inference, though all it reads is constant: %s",
             label, "; ".join(whys))  # fmt: skip
    return None


UNPACKS = {"MatMul": 1, "Gemm": 1, "Gather": 0, "Transpose": 0}
"""Operators whose kernels read weights of few bits as they are, and at which input."""


def unpacked_when_read(nodes: Sequence[Node], outputs: Sequence[str]) -> set[str]:
    """Return what DequantizeLinear makes that is only read by operators that unpack themselves."""
    wide = set(outputs)
    for node in reversed(nodes):
        place = UNPACKS.get(node.op) if node.domain == "" else None
        is_kept = node.op != "Transpose" or wide.isdisjoint(node.outputs)
        for i, name in enumerate(node.inputs):
            if i != place or not is_kept:
                wide.add(name)
        for graph in graphs_of(node):
            wide.update(name for inner in graph.node for name in inner.input)
    made = {n.outputs[0] for n in nodes if n.op == "DequantizeLinear" and n.outputs}
    return made - wide


def stays_packed(node: Node, graph: Graph) -> bool:
    """Tell whether a DequantizeLinear makes floats of large constants of few bits."""
    return is_known(node) and any(tensor.is_unpacked for tensor in expand(node, graph))


def _ways(kinds: Sequence[TensorType | None]) -> tuple[Callable[..., tuple[Array, ...]], ...]:
    """Return what computes results of these types, the surest first.

    The reference is exact with integers and double, where our own computes in float64 and float32.
    With other numbers ours is tested against more than one oracle; the reference has mistakes
    (LRN of onnx 1.23 sums over as many channels as there are images).
    """
    is_float = any(kind is not None and kind.dtype in ("float32", "float16") for kind in kinds)
    return (_by_description, _by_reference) if is_float else (_by_reference, _by_description)


def _by_reference(node: Node, graph: Graph) -> tuple[Array, ...]:
    return run_node(node, graph.constants, graph.opset)


def _by_description(node: Node, graph: Graph) -> tuple[Array, ...]:
    """Return what the reference cannot compute, such as old versions of operators, by our own."""
    tensors = zip(node.outputs, expand(node, graph), strict=False)
    arrays = iter(compute_all([tensor for name, tensor in tensors if name], {}))
    return tuple(next(arrays) if name else np.empty(0) for name in node.outputs)


def needed(
    nodes: Sequence[Node], opset: Mapping[str, int], *, only_contested: bool = False
) -> set[str]:
    """Return the values that have to be known while planning: what parametrises nodes.

    With `only_contested`, those of operators that ONNX Runtime may compute otherwise than ONNX.
    """
    names: set[str] = set()
    for node in reversed(nodes):
        if not only_contested or is_contested(node):
            names.update(parameters(node, opset))
        if node.op not in ("Shape", "Size") and not names.isdisjoint(node.outputs):
            names.update(reads(node))
    return names


def _nbytes(kind: TensorType) -> int:
    return 0 if kind.dtype == "object" else kind.size * np.dtype(kind.dtype).itemsize


def _is_plausible(array: Array, kind: TensorType | None) -> bool:
    small = array.dtype != object and array.nbytes <= FOLD_LIMIT
    return small and (kind is None or type_of(array) == kind)


def _at_once(node: Node, graph: Graph) -> Array | None:
    """Return what needs no computing: the sizes of a known type, a constant."""
    if node.op in ("Shape", "Size") and node.inputs[0] in graph.types:
        return _extent(node, graph.types[node.inputs[0]].shape)
    value = node.attrs.get("value") if node.op == "Constant" else None
    return value if isinstance(value, np.ndarray) else None


def _extent(node: Node, shape: tuple[int, ...]) -> Array:
    if node.op == "Size":
        return np.array(TensorType("int64", shape).size, np.int64)
    start = node.attrs.get("start", 0)
    return np.array(shape[slice(start, node.attrs.get("end"))], np.int64)


def types_of(node: Node, graph: Graph) -> tuple[TensorType | None, ...]:
    """Return the types of a node's outputs, None where they cannot be known before running.

    Raises
    ------
    ShapeError (GE-201)
        A known operator is given shapes that do not fit.
    """
    if is_known(node):
        try:
            return infer(node, graph)
        except UnsupportedOpError:
            return _ask_onnx(node, graph)  # a form only ONNX Runtime understands
    types = _ask_onnx(node, graph)
    if None in types and all(name in graph.types for name in node.inputs if name):
        try:  # ONNX infers nothing of some that it defines by others (GroupNormalization)
            return infer(node, graph)
        except UnsupportedOpError:
            return types
    return types


def _ask_onnx(node: Node, graph: Graph) -> tuple[TensorType | None, ...]:
    names = dict.fromkeys(reads(node))
    if any(name not in graph.types for name in names):
        return (None,) * len(node.outputs)
    values = {
        name: graph.constants[name]
        for name in names
        if name in graph.constants and graph.constants[name].size <= _SMALL
    }
    alone = Graph((node,), tuple(n for n in names if n not in values),
                  tuple(o for o in node.outputs if o), {n: graph.types[n] for n in names},
                  values, graph.opset)  # fmt: skip
    inferred = schema.inferred(to_onnx(alone))
    if inferred is None:
        return (None,) * len(node.outputs)
    return declared((v for v in inferred.graph.output), node.outputs, {})


def declared(
    values: Iterable[object], names: Iterable[str], symbols: Mapping[str, int]
) -> tuple[TensorType | None, ...]:
    """Return the types that value infos state for `names`, with symbolic extents replaced."""
    types = {value.name: _static(value, symbols) for value in values}  # type: ignore[attr-defined]
    return tuple(types.get(name) for name in names)


def _static(value: object, symbols: Mapping[str, int]) -> TensorType | None:
    kind = value.type.tensor_type  # type: ignore[attr-defined]
    if not kind.elem_type or not kind.HasField("shape"):
        return None
    shape = []
    for dim in kind.shape.dim:
        extent = dim.dim_value if dim.HasField("dim_value") else symbols.get(dim.dim_param)
        if extent is None or extent < 0:
            return None
        shape.append(int(extent))
    return TensorType(schema.dtype_name(kind.elem_type), tuple(shape))
