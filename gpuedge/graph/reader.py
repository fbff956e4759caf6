"""ONNX models to graphs: parsed once, then specialised to static shapes as often as needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.dtypes import is_numpys
from gpuedge.core.errors import InputError, ModelError, ShapeError, UnsupportedOpError
from gpuedge.core.text import MOST_LISTED, plain, shown
from gpuedge.graph import fold, guard, parse, schema
from gpuedge.graph.checks import passes_on
from gpuedge.graph.contrib import spelled
from gpuedge.graph.flow import ROUND, Flow, StaysOpenError, deciding
from gpuedge.graph.integers import holds_quantised, in_integers
from gpuedge.graph.ir import Array, Graph, Node, TensorType, type_of
from gpuedge.graph.limits import MAX_RANK
from gpuedge.graph.protos import node_of, tensor_value
from gpuedge.graph.schema import schema_reason
from gpuedge.graph.shaped import Serialised, ShapedModel
from gpuedge.graph.sizes import Sizes, check_inside, check_sizes
from gpuedge.graph.writer import reads
from gpuedge.opset import OPERATORS, facts_of
from gpuedge.opset.call import node_label
from gpuedge.opset.windows import MAX_EXTENT

if TYPE_CHECKING:
    import onnx

__all__ = ["Dim", "Model", "OnnxModel", "Signature", "schema_reason"]

MAX_VALUES = 64
"""Elements of an input (a shape, axes, a count) whose values a graph is specialised to."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """An array as a key: what a graph may be specialised to."""

    shape: tuple[int, ...]
    dtype: str
    data: bytes

    @classmethod
    def of(cls, array: Array) -> Fixed:
        """Return the key of an array."""
        return cls(array.shape, array.dtype.name, array.tobytes())

    @property
    def array(self) -> Array:
        """The array."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


Shapes = tuple[tuple[int, ...] | Fixed, ...]
"""Of all inputs; of those that parametrise the model their values."""


def shapes_of(arrays: Mapping[str, Array], parameters: Container[str]) -> Shapes:
    """Return what a graph is specialised to for inputs, of which some parametrise it."""
    return tuple(
        Fixed.of(a) if name in parameters and a.size <= MAX_VALUES else a.shape
        for name, a in arrays.items()
    )


LARGE = 1 << 16
"""Bytes of a weight that says nothing of shapes."""

Dim = int | str | None
"""An extent: known, symbolic, or free."""

ARTICLE = {"optional_type": "an", "opaque_type": "an"}

Signature = tuple[str, tuple[Dim, ...] | None]
"""Dtype name and shape of a model's input or output; a shape of None has any rank."""


def _signature(value: onnx.ValueInfoProto) -> Signature:
    kind = value.type.WhichOneof("value")
    tensor = value.type.tensor_type
    if kind is None or (kind == "tensor_type" and not tensor.elem_type):
        raise ModelError(f"The model does not say what type its {shown(value.name)} has.")
    if kind != "tensor_type":
        raise UnsupportedOpError(
            f"The model's {shown(value.name)} is {ARTICLE.get(kind, 'a')} "
            f"{kind.removesuffix('_type')}; inputs and outputs must be tensors."
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


def _weights(graph: onnx.GraphProto) -> Iterator[tuple[str, Array]]:
    """Yield the initialisers as read-only arrays. Raises InputError where one holds NaN."""
    for tensor in graph.initializer:
        schema.dtype_name(tensor.data_type, tensor.name)
        array = tensor_value(tensor)
        # the largest element is NaN where any is, and takes no memory to find
        if array.dtype.kind == "f" and array.size and np.isnan(array.max()):
            raise InputError(
                f"The weight {shown(tensor.name)} holds NaN.",
                known=f"{int(np.isnan(array).sum())} of {array.size} values",
                hint="the training may have diverged, or the file is damaged",
            )
        yield tensor.name, array


def is_keeping(op: str, inputs: Sequence[str], attrs: Mapping[str, Any]) -> bool:
    """Tell whether ONNX Runtime (seen with 1.32.0) needs the outputs of a node that it may lack.

    It refuses an Attention with a past and without the present when that runs, and crashes where
    a BatchNormalization is in training and lacks one of its means.
    """
    if op == "Attention":
        return any(inputs[4:6])
    return op == "BatchNormalization" and bool(attrs.get("training_mode"))


WINDOW = {"kernel_shape", "strides", "dilations", "pads", "output_padding", "output_shape"}
"""Attributes that say how large a result becomes."""


def _is_settled(graph: onnx.GraphProto) -> bool:
    """Tell whether ONNX Runtime can be given a model as it is.

    Not where `gpuedge.executors.cpu` writes nodes otherwise or gives them to numpy because of its
    mistakes, where parts are written in integers, where an output is an input or a weight, where a
    kernel or matrix is or may be empty (it hangs on some of these), where what enters or leaves is
    of a dtype that it has no numpy arrays of, nor where sizes have to be inferred to keep within
    `gpuedge.graph.limits`.
    """
    elements = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    are_held = all(is_numpys(schema.dtype_name(element)) for element in elements if element)
    if not are_held or holds_quantised(graph):
        return False
    if any(0 in tensor.dims and len(tensor.dims) > 1 for tensor in graph.initializer):
        return False
    results: set[str] = set()
    for node in graph.node:
        results.update(node.output)
        known = OPERATORS.get(node.op_type)
        if facts_of(node.op_type).grows or (known is not None and known.differs is not None):
            return False
        is_kept = is_keeping(node.op_type, node.input, {a.name: a.i for a in node.attribute})
        if is_kept or "" in node.output:
            return False
        for attribute in node.attribute:
            is_odd = attribute.name == "auto_pad" and attribute.s.startswith(b"SAME")
            # ONNX's inference would wrap around
            is_odd |= attribute.name in WINDOW and any(abs(i) > MAX_EXTENT for i in attribute.ints)
            if is_odd or (attribute.name == "beta" and attribute.f != 1):
                return False
    return results.issuperset(output.name for output in graph.output)


def _limiting(nodes: Iterable[onnx.NodeProto], inputs: Mapping[str, Signature]) -> tuple[Node, ...]:
    """Return the nodes that limit values of integer inputs of the model, however these get there.

    What gets there by way of other nodes has no type among the inputs: `OnnxModel.specialise` knows
    it.
    """
    given = {name for name, (dtype, _) in inputs.items() if dtype[:1] in "iu"}
    found = []
    for node in nodes if given else ():
        known = OPERATORS.get(node.op_type)
        if passes_on(node.op_type, node.input, node.output, given):
            given.add(node.output[0])
        elif known is not None and known.limits is not None and not given.isdisjoint(node.input):
            found.append(node_of(node))
    return tuple(found)


@dataclass(frozen=True)
class _Contents:
    """What graphs are made of."""

    nodes: tuple[Node, ...]
    weights: dict[str, Array]
    infos: tuple[Any, ...]


class Model(ABC):
    """A model that graphs are made of, whose shapes may still be open.

    Attributes
    ----------
    inputs : dict
        Dtype name and shape of each; extents are numbers, symbols or None.
    opset : dict
        Operator set versions by domain.
    notes : tuple of str
        What of the file is not used here, and why.
    """

    inputs: dict[str, Signature]
    opset: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def shapes(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """The sets of shapes that it was packed for, by the names of the inputs."""
        return ()

    @property
    @abstractmethod
    def outputs(self) -> dict[str, Signature]:
        """Dtype name and shape of each output."""

    @property
    @abstractmethod
    def parameters(self) -> frozenset[str]:
        """Inputs whose values a graph has to be made for, so that all of it can be planned."""

    @property
    @abstractmethod
    def contested(self) -> frozenset[str]:
        """Those of them that decide whether ONNX Runtime computes a node as ONNX has it."""

    @abstractmethod
    def with_shapes(self, shapes: Shapes, *, rewrites: bool = True) -> ShapedModel:
        """Return the model for what `shapes_of` gives of its inputs. Raises as `bind`."""

    @abstractmethod
    def check_shapes(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise as `bind`, or ModelError where something would be too large."""

    @abstractmethod
    def specialise(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        values: Mapping[str, Array] | None = None,
        *,
        rewrites: bool = True,
    ) -> Graph:
        """Return the graph for these input shapes; `values` are inputs that become constants."""

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
            signature_of(name, self.inputs)
        symbols: dict[str, int] = {}
        owner: dict[str, str] = {}
        for name, (_, wanted) in self.inputs.items():
            given = _given(name, wanted, shapes, self.shapes)
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


class OnnxModel(Model):
    """A checked ONNX model.

    Attributes
    ----------
    inputs, opset : dict
        As of every `Model`.
    data : bytes
        The model as it was checked, weights included.
    serialised : Serialised or None
        The same for ONNX Runtime; None where it is not to be given that.
    """

    def __init__(self, proto: onnx.ModelProto, data: bytes) -> None:
        if proto.graph.sparse_initializer:
            raise UnsupportedOpError("The model has sparse initialisers, which are not supported.")
        for _ in _weights(proto.graph):
            pass  # each must be readable
        self.inputs = {v.name: _signature(v) for v in proto.graph.input}
        self.opset = parse.opsets(proto)
        self._stated = {v.name: _signature(v) for v in proto.graph.output}
        self._limited = _limiting(proto.graph.node, self.inputs)
        reads = {name for node in self._limited for name in node.inputs}
        self._read = {
            t.name: TensorType(schema.dtype_name(t.data_type), tuple(t.dims))
            for t in proto.graph.initializer if t.name in reads
        }  # fmt: skip
        self.data = data
        self._sizes = Sizes(proto.graph, proto.opset_import)
        self.serialised: Serialised | None = None
        if _is_settled(proto.graph):
            if guard.guard(proto):
                data = proto.SerializeToString()
            self.serialised = Serialised(lambda: data, tuple(self.inputs), tuple(self._stated))

    @classmethod
    def load(cls, model: Any) -> OnnxModel:
        """Read a model.

        Parameters
        ----------
        model : str, os.PathLike, bytes, onnx.ModelProto or OnnxModel
            External weights are read only from the model's own folder. What was read is returned.

        Raises
        ------
        ModelError (GE-500)
            It cannot be read, or is not valid ONNX.
        UnsupportedOpError (GE-501)
            An operator does not exist in its operator set, or an input is no tensor.
        InputError (GE-203)
            A weight holds NaN.
        """
        return model if isinstance(model, cls) else cls(*parse.load(model))

    @cached_property
    def outputs(self) -> dict[str, Signature]:
        """Dtype name and shape of each output, inferred where the model does not state it."""
        if all(shape is not None for _, shape in self._stated.values()):
            return self._stated
        proto = parse.parsed(self.data)
        for tensor in proto.graph.initializer:
            if len(tensor.raw_data) > LARGE:  # of no use to inference, which copies it
                tensor.ClearField("raw_data")
        parse.complete(proto)
        return {v.name: _signature(v) for v in proto.graph.output}

    @cached_property
    def _contents(self) -> _Contents:
        graph = parse.parsed(self.data).graph
        each = (node for n in graph.node for node in spelled(node_of(n), self.opset))
        nodes = _live(tuple(each), tuple(self._stated))
        return _Contents(nodes, dict(_weights(graph)), (*graph.value_info, *graph.output))

    @cached_property
    def _rewritten(self) -> _Contents:
        """The contents with their quantised parts in integers."""
        known, outputs = self._contents, tuple(self._stated)
        nodes, constants = in_integers(known.nodes, known.weights, outputs, self.opset.get("", 0))
        return replace(known, nodes=_live(nodes, outputs), weights={**known.weights, **constants})

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Inputs that only parametrise nodes (a shape, axes), at once or by what is made of them.

        For their values the graph has to be known before it can be planned. So has it for those
        that are a condition or a position in a sequence themselves.
        """
        nodes = self._contents.nodes
        names = fold.needed(nodes, self.opset).union(*map(deciding, nodes))
        return frozenset(names & self.inputs.keys())

    @cached_property
    def contested(self) -> frozenset[str]:
        """Those of them that decide whether ONNX Runtime computes a node as ONNX has it."""
        if self.serialised is not None:
            return frozenset()
        names = fold.needed(self._contents.nodes, self.opset, only_contested=True)
        return frozenset(names & self.inputs.keys())

    @property
    def contested_node(self) -> str:
        """How messages name the first node that depends on one of these; empty without any."""
        nodes = self._contents.nodes
        for count, node in enumerate(nodes, 1):
            names = fold.needed(nodes[:count], self.opset, only_contested=True)
            if names & self.inputs.keys():
                return node_label(node.op, node.name, node.outputs)
        return ""

    def with_shapes(self, shapes: Shapes, *, rewrites: bool = True) -> ShapedModel:
        """Return the model for what `shapes_of` gives of its inputs. Raises as `bind`."""
        known = dict(zip(self.inputs, shapes, strict=True))
        values = {n: k.array for n, k in known.items() if isinstance(k, Fixed)}
        sizes = {n: k.shape if isinstance(k, Fixed) else k for n, k in known.items()}
        self.bind(sizes)
        is_odd = values or any(0 in size for size in sizes.values())
        make = partial(self.specialise, sizes, values, rewrites=rewrites)
        given = None if is_odd else self.serialised
        model = ShapedModel(make, given, partial(self._limiting, sizes))
        if not self._are_known(sizes) and given is not None:
            _ = model.graph  # it may be too large, and knows before ONNX Runtime computes any of it
        return model

    def _are_known(self, sizes: Mapping[str, Sequence[int]]) -> bool:
        """Tell whether ONNX's inference knows every size. Raises ModelError for one too large."""
        return self._sizes.are_known(*(tuple(sizes[name]) for name in self.inputs))

    def check_shapes(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise as `bind`, or ModelError where ONNX's inference finds a value too large."""
        self.bind(shapes)
        self._are_known(shapes)

    def _limiting(self, sizes: Mapping[str, Sequence[int]]) -> Graph | None:
        """Return the nodes that limit values of inputs; None if they need more than is known."""
        types = dict(self._read)
        for name, (dtype, _) in self.inputs.items():
            types[name] = TensorType(dtype, tuple(sizes[name]))
        if any(name and name not in types for n in self._limited for name in n.inputs):
            return None
        return Graph(self._limited, tuple(self.inputs), (), types, {}, self.opset)

    def specialise(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        values: Mapping[str, Array] | None = None,
        *,
        rewrites: bool = True,
    ) -> Graph:
        """Return the graph for these input shapes, with everything constant folded.

        Parameters
        ----------
        shapes : Mapping, optional
            Shape of every input; inputs whose shape the model fixes may be left out.
        values : Mapping, optional
            Inputs that are to be constants of the graph.
        rewrites : bool
            Whether to fold floating-point values that planning does not need, too, and to write
            what stands between DequantizeLinear and QuantizeLinear in integers.

        Raises
        ------
        InputError (GE-203), ShapeError (GE-201)
            As from `bind`, or because the shapes do not fit an operator of the model.
        """
        shapes = shapes or {}
        symbols = self.bind(shapes)
        types = {
            name: TensorType(dtype, _given(name, wanted, shapes, self.shapes))
            for name, (dtype, wanted) in self.inputs.items()
        }
        self._are_known({name: types[name].shape for name in self.inputs})
        try:
            return self._walked(types, symbols, values or {}, Flow(self._opset), rewrites=rewrites)
        except StaysOpenError:
            flow = Flow(self._opset, is_open=True)
            return self._walked(types, symbols, values or {}, flow, rewrites=rewrites)

    @property
    def _opset(self) -> int:
        return self.opset.get("", 0)

    def _walked(
        self, types: dict[str, TensorType], symbols: Mapping[str, int],
        values: Mapping[str, Array], flow: Flow, *, rewrites: bool,
    ) -> Graph:  # fmt: skip
        """Return the graph for inputs of these types; `flow` writes out what is no plain node.

        Raises StaysOpenError where it has written out too much.
        """
        types = dict(types)
        contents = self._rewritten if rewrites else self._contents
        constants = {**contents.weights, **values}
        types.update((name, type_of(array)) for name, array in constants.items())
        # A view of what is known so far; the dictionaries grow while the nodes are walked.
        known = Graph((), (), (), types, constants, self.opset)
        kept: list[Node] = []
        folded: list[Node] = []
        left = fold.TOTAL_LIMIT
        needed = None if rewrites else fold.needed(contents.nodes, self.opset)
        packed = fold.unpacked_when_read(contents.nodes, tuple(self._stated)) if rewrites else set()
        coming = deque(contents.nodes)
        while coming:
            node = coming.popleft()
            written = flow.written(node, known)
            if written is not None:
                folded.extend([node] if node.domain != ROUND else [])
                constants.update(written.constants)
                types.update((n, type_of(a)) for n, a in written.constants.items())
                coming.extendleft(reversed(written.nodes))
                continue
            if not packed.isdisjoint(node.outputs) and fold.stays_packed(node, known):
                arrays = None
            else:
                arrays = fold.evaluate(node, known, min(fold.FOLD_LIMIT, left))
            is_left = needed is not None and needed.isdisjoint(node.outputs)
            is_left = is_left and node.op != "Constant"
            if arrays is not None and not (is_left and all(v.dtype.kind == "f" for v in arrays)):
                left -= sum(v.nbytes for v in arrays)
                folded.append(node)
                pairs = [(n, v) for n, v in zip(node.outputs, arrays, strict=True) if n]
                constants.update(pairs)
                types.update((n, type_of(v)) for n, v in pairs)
                continue
            if flow.is_read(reads(node)):
                raise StaysOpenError
            kept.append(node)
            self._add_types(node, known, symbols, types)
        inputs = tuple(name for name in self.inputs if name not in constants)
        return self._finish(kept, folded, types, constants, inputs)

    def _add_types(
        self, node: Node, known: Graph, symbols: Mapping[str, int], types: dict[str, TensorType]
    ) -> None:
        """Infer a node's outputs; where that is not possible, believe what the model declares."""
        inferred = fold.types_of(node, known)
        if None in inferred:
            stated = fold.declared(self._contents.infos, node.outputs, symbols)
            inferred = tuple(i or s for i, s in zip(inferred, stated, strict=True))
        for name, kind in zip(node.outputs, inferred, strict=False):
            if name and kind is not None:
                types[name] = kind
        check_sizes(node, types)
        check_inside(node, known)

    def _finish(
        self,
        kept: list[Node],
        folded: list[Node],
        types: dict[str, TensorType],
        constants: dict[str, Array],
        inputs: tuple[str, ...],
    ) -> Graph:
        """Drop what folding left unused and freeze the result."""
        for name, (dtype, _) in self._stated.items():
            if name in types and types[name].dtype != dtype:
                raise ModelError(
                    f"The model says that its output {shown(name)} is {dtype}, but it computes "
                    f"{types[name].dtype}."
                )
        nodes = _live(tuple(kept), tuple(self._stated))
        used = {*self.inputs, *self._stated}
        for node in nodes:
            used.update(reads(node))
            used.update(node.outputs)
        return Graph(
            nodes,
            inputs,
            tuple(self._stated),
            {n: t for n, t in types.items() if n in used},
            {n: c for n, c in constants.items() if n in used},
            dict(self.opset),
            tuple(folded),
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
    name: str, wanted: tuple[Dim, ...] | None, shapes: Mapping[str, Sequence[int]],
    packed: Sequence[Mapping[str, tuple[int, ...]]],
) -> tuple[int, ...]:  # fmt: skip
    """Return the shape an input is to have."""
    if name in shapes:
        return tuple(int(d) for d in shapes[name])
    if wanted is None or not all(isinstance(d, int) for d in wanted):
        dims = (None, 3, 224, 224) if wanted is None else wanted
        size = 224 if len(dims) == 4 else 1  # of images: 1 would be too small for most networks
        such = tuple(d if isinstance(d, int) else size if i else 1 for i, d in enumerate(dims))
        known = f"its shape is {_shown(wanted)}, which does not say how large it is"
        if packed:
            known += f"; packed for {' and '.join(map(str, packed[:MOST_LISTED]))}"
        raise InputError(
            f"The input {shown(name)} is missing.",
            known=known,
            hint=f"shapes={dict(packed[0]) if packed else {name: such}}",
        )
    return tuple(d for d in wanted if isinstance(d, int))


def _shown(dims: Sequence[Dim] | None) -> str:
    if dims is None:
        return "of any rank"
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"


def signature_of(name: Any, inputs: Mapping[str, Signature]) -> Signature:
    """Return dtype and extents of an input. Raises InputError (GE-203) where there is none."""
    if not isinstance(name, str) or name not in inputs:
        raise InputError(f"The model has no input {shown(str(name))}.", known=takes(inputs))
    return inputs[name]


def takes(inputs: Mapping[str, Signature]) -> str:
    """Return what a model takes, for a message: ``the model takes x: float32[N, 3]``."""
    first = list(inputs.items())[:MOST_LISTED]
    named = [f"{plain(name)}: {dtype} {_shown(dims)}" for name, (dtype, dims) in first]
    more = ["..."] if len(inputs) > MOST_LISTED else []
    return f"the model takes {', '.join([*named, *more]) or 'no inputs'}"


def _mismatch(name: str, given: Sequence[int], wanted: Sequence[Dim], why: str) -> ShapeError:
    return ShapeError(
        f"The input {shown(name)} {why}.",
        known=f"given {list(given)}, the model takes {_shown(wanted)}",
    )
