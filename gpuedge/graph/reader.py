"""ONNX models to graphs: parsed once, then specialised to static shapes as often as needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.errors import InputError, ModelError, ShapeError, UnsupportedOpError
from gpuedge.core.text import listed, shown
from gpuedge.graph import fold, parse, schema
from gpuedge.graph.ir import Array, Graph, Node, TensorType, type_of
from gpuedge.graph.limits import MAX_ELEMENTS, MAX_RANK
from gpuedge.graph.protos import attribute_value
from gpuedge.graph.schema import schema_reason
from gpuedge.graph.writer import reads
from gpuedge.opset.call import node_label

if TYPE_CHECKING:
    import onnx

__all__ = ["Dim", "OnnxModel", "Signature", "schema_reason"]

Dim = int | str | None
"""An extent: known, symbolic, or free."""

Signature = tuple[str, tuple[Dim, ...] | None]
"""Dtype name and shape of a model's input or output; a shape of None has any rank."""


def _node(proto: onnx.NodeProto) -> Node:
    return Node(
        proto.op_type,
        tuple(proto.input),
        tuple(proto.output),
        {a.name: attribute_value(a) for a in proto.attribute},
        proto.name,
        "" if proto.domain == "ai.onnx" else proto.domain,
    )


def _signature(value: onnx.ValueInfoProto) -> Signature:
    kind = value.type.WhichOneof("value")
    tensor = value.type.tensor_type
    if kind is None or (kind == "tensor_type" and not tensor.elem_type):
        raise ModelError(f"The model does not say what type its {shown(value.name)} has.")
    if kind != "tensor_type":
        raise UnsupportedOpError(
            f"The model's {shown(value.name)} is a {kind.removesuffix('_type')}; "
            "inputs and outputs must be tensors."
        )
    if not tensor.HasField("shape"):
        return schema.dtype_name(tensor.elem_type), None
    if len(tensor.shape.dim) > MAX_RANK:
        raise ModelError(
            f"The model's {shown(value.name)} has {len(tensor.shape.dim)} dimensions.",
            known=f"the most is {MAX_RANK}",
        )
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(int(dim.dim_value) if dim.dim_value >= 0 else None)
        else:
            dims.append(dim.dim_param or None)
    return schema.dtype_name(tensor.elem_type), tuple(dims)


def _weights(graph: onnx.GraphProto) -> dict[str, Array]:
    """Return the initialisers as read-only arrays. Raises InputError where one holds NaN."""
    from onnx import numpy_helper

    if graph.sparse_initializer:
        raise UnsupportedOpError("The model has sparse initialisers, which are not supported.")
    found: dict[str, Array] = {}
    for tensor in graph.initializer:
        schema.dtype_name(tensor.data_type, f"the weight {shown(tensor.name)}")
        try:
            array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise ModelError(f"The weight {shown(tensor.name)} cannot be read: {error}.") from None
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise InputError(
                f"The weight {shown(tensor.name)} holds NaN.",
                known=f"{int(np.isnan(array).sum())} of {array.size} values",
                hint="the training may have diverged, or the file is damaged",
            )
        array.flags.writeable = False
        found[tensor.name] = array
    return found


@dataclass(frozen=True)
class OnnxModel:
    """A parsed and checked model whose shapes may still be open.

    Attributes
    ----------
    inputs, outputs : dict
        Dtype name and shape of each; extents are numbers, symbols or None.
    """

    inputs: dict[str, Signature]
    outputs: dict[str, Signature]
    opset: dict[str, int]
    _nodes: tuple[Node, ...] = field(repr=False)
    _weights: dict[str, Array] = field(repr=False)
    _infos: tuple[Any, ...] = field(repr=False)

    @classmethod
    def load(cls, model: Any) -> OnnxModel:
        """Read a model.

        Parameters
        ----------
        model : str, os.PathLike, bytes or onnx.ModelProto
            External weights are read only from the model's own folder.

        Raises
        ------
        ModelError (GE-500)
            It cannot be read, or is not valid ONNX.
        UnsupportedOpError (GE-501)
            An operator does not exist in its operator set, or an input is no tensor.
        InputError (GE-203)
            A weight holds NaN.
        """
        proto = parse.load(model)
        weights = _weights(proto.graph)
        nodes = tuple(_node(n) for n in proto.graph.node)
        outputs = {v.name: v for v in proto.graph.output}
        return cls(
            {v.name: _signature(v) for v in proto.graph.input if v.name not in weights},
            {name: _signature(v) for name, v in outputs.items()},
            parse.opsets(proto),
            _live(nodes, tuple(outputs)),
            weights,
            (*proto.graph.value_info, *proto.graph.output),
        )

    def bind(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Match shapes against the model's inputs and return the values of its symbols.

        Raises
        ------
        InputError (GE-203)
            An input is unknown or has no shape.
        ShapeError (GE-201)
            A rank or extent differs, or one symbol would need two values.
        """
        for name in shapes:
            if name not in self.inputs:
                raise InputError(
                    f"The model has no input {shown(str(name))}.", known=listed(self.inputs)
                )
        symbols: dict[str, int] = {}
        owner: dict[str, str] = {}
        for name, (_, wanted) in self.inputs.items():
            given = _given(name, wanted, shapes)
            if wanted is None:
                continue
            if len(given) != len(wanted):
                raise _mismatch(name, given, wanted, f"has rank {len(given)}, not {len(wanted)}")
            for at, (extent, dim) in enumerate(zip(given, wanted, strict=True)):
                if isinstance(dim, int) and extent != dim:
                    raise _mismatch(name, given, wanted, f"has {extent} at axis {at}, not {dim}")
                if not isinstance(dim, str):
                    continue
                if symbols.setdefault(dim, extent) != extent:
                    raise _mismatch(
                        name, given, wanted,
                        f"sets {shown(dim)} to {extent}, but {shown(owner[dim])} sets it to "
                        f"{symbols[dim]}",
                    )  # fmt: skip
                owner.setdefault(dim, name)
        return symbols

    def specialise(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
        """Return the graph for these input shapes, with everything constant folded.

        Parameters
        ----------
        shapes : Mapping, optional
            Shape of every input; inputs whose shape the model fixes may be left out.

        Raises
        ------
        InputError (GE-203), ShapeError (GE-201)
            As from `bind`, or because the shapes do not fit an operator of the model.
        """
        shapes = shapes or {}
        symbols = self.bind(shapes)
        types = {
            name: TensorType(dtype, _given(name, wanted, shapes))
            for name, (dtype, wanted) in self.inputs.items()
        }
        constants = dict(self._weights)
        types.update((name, type_of(array)) for name, array in constants.items())
        # A view of what is known so far; the dictionaries grow while the nodes are walked.
        known = Graph((), (), (), types, constants, self.opset)
        kept: list[Node] = []
        folded: list[Node] = []
        left = fold.TOTAL_LIMIT
        for node in self._nodes:
            values = fold.evaluate(node, known, min(fold.FOLD_LIMIT, left))
            if values is not None:
                left -= sum(v.nbytes for v in values)
                folded.append(node)
                pairs = [(n, v) for n, v in zip(node.outputs, values, strict=True) if n]
                constants.update(pairs)
                types.update((n, type_of(v)) for n, v in pairs)
                continue
            kept.append(node)
            self._add_types(node, known, symbols, types)
        return self._finish(kept, folded, types, constants)

    def _add_types(
        self, node: Node, known: Graph, symbols: Mapping[str, int], types: dict[str, TensorType]
    ) -> None:
        """Infer a node's outputs; where that is not possible, believe what the model declares."""
        inferred = fold.types_of(node, known)
        if None in inferred:
            stated = fold.declared(self._infos, node.outputs, symbols)
            inferred = tuple(i or s for i, s in zip(inferred, stated, strict=True))
        for name, kind in zip(node.outputs, inferred, strict=False):
            if name and kind is not None:
                _check_size(node, name, kind)
                types[name] = kind

    def _finish(
        self,
        kept: list[Node],
        folded: list[Node],
        types: dict[str, TensorType],
        constants: dict[str, Array],
    ) -> Graph:
        """Drop what folding left unused and freeze the result."""
        for name, (dtype, _) in self.outputs.items():
            if name in types and types[name].dtype != dtype:
                raise ModelError(
                    f"The model says that its output {shown(name)} is {dtype}, but it computes "
                    f"{types[name].dtype}."
                )
        nodes = _live(tuple(kept), tuple(self.outputs))
        used = {*self.inputs, *self.outputs}
        for node in nodes:
            used.update(reads(node))
            used.update(node.outputs)
        return Graph(
            nodes,
            tuple(self.inputs),
            tuple(self.outputs),
            {n: t for n, t in types.items() if n in used},
            {n: c for n, c in constants.items() if n in used},
            dict(self.opset),
            tuple(folded),
        )


def _check_size(node: Node, name: str, kind: TensorType) -> None:
    """Refuse a value that no machine this runs on could hold, before anything tries."""
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
        )


def _live(nodes: tuple[Node, ...], outputs: tuple[str, ...]) -> tuple[Node, ...]:
    """Return the nodes that the outputs depend on, in their order."""
    wanted = set(outputs)
    alive: list[Node] = []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            alive.append(node)
            wanted.update(reads(node))
    return tuple(reversed(alive))


def _given(
    name: str, wanted: tuple[Dim, ...] | None, shapes: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    """Return the shape an input is to have."""
    if name in shapes:
        return tuple(int(d) for d in shapes[name])
    if wanted is None or not all(isinstance(d, int) for d in wanted):
        raise InputError(
            f"The input {shown(name)} is missing.",
            known=f"its shape is {_shown(wanted)}, which does not say how large it is",
        )
    return tuple(d for d in wanted if isinstance(d, int))


def _shown(dims: Sequence[Dim] | None) -> str:
    if dims is None:
        return "of any rank"
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"


def _mismatch(name: str, given: Sequence[int], wanted: Sequence[Dim], why: str) -> ShapeError:
    return ShapeError(
        f"The input {shown(name)} {why}.",
        known=f"given {list(given)}, the model takes {_shown(wanted)}",
    )
