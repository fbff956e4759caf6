"""Packed models: graphs that were read and rewritten before, in a file that needs no onnx package.

What is read back is checked field by field, and the types of all values are inferred again: a file
with right hashes may still be of another's making. Where shapes are asked for that were not packed,
the original answers, which takes the onnx package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from typing import Annotated, Any

import numpy as np

from gpuedge.core.errors import (
    GpuEdgeError,
    MissingPackageError,
    PackError,
    ShapeError,
    UnsupportedOpError,
)
from gpuedge.core.record import MOST_WHOLE, UnfitError, plain, read
from gpuedge.core.text import shown
from gpuedge.graph.container import DTYPES, Container, is_packed, opened, stored
from gpuedge.graph.expand import infer, settled
from gpuedge.graph.ir import Array, Graph, Node, TensorType, type_of
from gpuedge.graph.limits import MAX_COUNT, MAX_ELEMENTS, MAX_RANK
from gpuedge.graph.reader import Fixed, Model, OnnxModel, Shapes, Signature
from gpuedge.graph.shaped import Serialised, ShapedModel
from gpuedge.graph.sizes import check_sizes
from gpuedge.lang.cache import LANGUAGE_VERSION, decoded
from gpuedge.opset.call import node_label

FORMAT = 2
"""Version of what the parts of a file mean. Raise it whenever that changes."""

MODEL, KERNELS, ORIGINAL = "gpuedge/model", "gpuedge/kernels", "gpuedge/original"
"""Parts that are no arrays of the model's: JSON, printed kernels, ONNX without its weights."""

CUT = 1024
"""Bytes of a weight from which on the original refers to it instead of repeating it."""

MOST_NAME = 1024
"""Characters of a value's name that go into the name of its part."""

Names = Annotated[tuple[str, ...], range(MAX_COUNT)]
Extent = Annotated[int, range(MAX_ELEMENTS + 1)]
Extents = Annotated[tuple[Extent, ...], range(MAX_RANK + 1)]


def _attributes(held: dict[str, Any]) -> dict[str, Any]:
    """Return attributes; ValueError where ONNX has none such: lists are of one kind."""
    for value in held.values():
        kinds = {type(each) for each in value} if isinstance(value, list) else {type(value)}
        if len(kinds) > 1 or kinds == {list}:
            raise ValueError("an attribute is no number, text, list or array")
    return held


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A `Node`. An array among the attributes is ``{"part": name}``."""

    IS_LIST = True

    op: str
    inputs: Names
    outputs: Names
    attrs: Annotated[dict[str, Any], _attributes]
    name: str
    domain: str
    body: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TypeRecord:
    """A `TensorType`."""

    IS_LIST = True

    dtype: str
    shape: Extents


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """A `Graph`; `constants` are names of parts, `folded` nodes have no attributes."""

    nodes: Annotated[tuple[NodeRecord, ...], range(MAX_COUNT)]
    inputs: Names
    outputs: Names
    types: Mapping[str, TypeRecord]
    constants: Mapping[str, str]
    opset: Mapping[str, int]
    folded: Annotated[tuple[NodeRecord, ...], range(MAX_COUNT)] = ()
    golden: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SignatureRecord:
    """An input or output of the model; `dims` is None where it has any rank."""

    IS_LIST = True

    name: str
    dtype: str
    dims: tuple[Extent | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class OriginalRecord:
    """The ONNX model that was packed.

    `cuts` are places in the part `ORIGINAL` at which the bytes of another part come. `is_settled`
    says that ONNX Runtime may be given it as it is.
    """

    cuts: tuple[tuple[int, str], ...]
    is_settled: bool


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """What the part `MODEL` holds; `parameters` are inputs on whose values the graphs depend."""

    inputs: Annotated[tuple[SignatureRecord, ...], range(MAX_COUNT)]
    outputs: Annotated[tuple[SignatureRecord, ...], range(MAX_COUNT)]
    graphs: Annotated[tuple[GraphRecord, ...], range(1, 1024)]
    original: OriginalRecord | None = None
    parameters: Names = ()


# -- writing ---------------------------------------------------------------------------------------


class PackWriter:
    """Collects the arrays of graphs as parts, each content once for each name.

    Attributes
    ----------
    parts : dict of str to ndarray
    """

    def __init__(self) -> None:
        self.parts: dict[str, Array] = {}
        self._known: dict[tuple[str, str, tuple[int, ...], bytes], str] = {}

    def part(self, name: str, array: Array) -> str:
        """Add an array and return the name of its part. Raises UnsupportedOpError."""
        if array.dtype.name not in DTYPES:
            raise UnsupportedOpError(
                f"{shown(name)} is {array.dtype.name}, which a packed model cannot hold."
            )
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.sha256(flat.data).digest()
        key = (name, array.dtype.name, array.shape, digest)
        if key not in self._known:
            free = name[:MOST_NAME] or "attribute"
            if free.startswith(("gpuedge/", "__")):  # those are parts of ours, and of the format
                free = f"~{free}"
            while free in self.parts:
                free = f"{free}~{len(self.parts)}"
            self.parts[free] = array
            self._known[key] = free
        return self._known[key]

    def graph(self, graph: Graph, golden: Mapping[str, Array] | None = None) -> GraphRecord:
        """Return a graph as a record. Raises UnsupportedOpError where it cannot be one."""
        return GraphRecord(
            tuple(self._node(node, graph) for node in graph.nodes),
            graph.inputs, graph.outputs,
            {n: TypeRecord(k.dtype, k.shape) for n, k in graph.types.items()
             if n not in graph.constants},
            {n: self.part(n, a) for n, a in graph.constants.items()},
            dict(graph.opset),
            tuple(NodeRecord(n.op, n.inputs, n.outputs, {}, n.name, n.domain, None)
                  for n in graph.folded),
            {n: self.part(f"golden/{n}", a) for n, a in (golden or {}).items()},
        )  # fmt: skip

    def _node(self, node: Node, graph: Graph) -> NodeRecord:
        inner = node.body
        if inner is None:
            with suppress(ShapeError, UnsupportedOpError):  # only ONNX Runtime knows it
                inner = settled(node, graph)
        attrs = {name: self._value(node, name, value) for name, value in node.attrs.items()}
        body = None if inner is None else plain(self.graph(inner))
        return NodeRecord(
            node.op, node.inputs, node.outputs, attrs, node.name, node.domain, body
        )  # fmt: skip

    def _value(self, node: Node, name: str, value: Any) -> Any:
        """Return an attribute as JSON."""
        if isinstance(value, np.ndarray):
            return {"part": self.part(f"{node.outputs[0]}.{name}", value)}
        if isinstance(value, np.generic):
            value = value.item()
        held = value if isinstance(value, (tuple, list)) else (value,)
        if all(isinstance(v, (bool, int, str)) or _is_number(v) for v in held):
            return list(value) if isinstance(value, (tuple, list)) else value
        raise UnsupportedOpError(
            f"{node_label(node.op, node.name, node.outputs)} has the attribute {shown(name)}, "
            "which a packed model cannot hold.",
            known="numbers but NaN, texts, lists of them and arrays of numbers can be held",
            hint="give sessions the ONNX file",
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, float) and not isnan(value)


def signatures(known: Mapping[str, Signature]) -> tuple[SignatureRecord, ...]:
    """Return inputs or outputs as records. Raises UnsupportedOpError."""
    for name, (dtype, _) in known.items():
        if dtype not in DTYPES:
            raise UnsupportedOpError(
                f"{shown(name)} is {dtype}, which a packed model cannot take or give.",
                hint="give sessions the ONNX file",
            )
    return tuple(SignatureRecord(n, dtype, dims) for n, (dtype, dims) in known.items())


def original_of(data: bytes, writer: PackWriter, *, is_settled: bool) -> OriginalRecord:
    """Add an ONNX model without the weights that are parts already; return how to join them."""
    at, kept, cuts = 0, list[bytes](), list[tuple[int, str]]()
    places = list[tuple[int, int, str]]()
    for name, array in writer.parts.items():
        held = stored(array).tobytes() if array.nbytes >= CUT else b""
        found = data.find(held, at) if held else -1
        found = data.find(held) if held and found < 0 else found
        if found >= 0:
            places.append((found, found + len(held), name))
            at = found + len(held)
    end = size = 0
    for first, last, name in sorted(places):
        if first >= end:  # else two parts hold the same bytes
            kept.append(data[end:first])
            size += first - end
            cuts.append((size, name))
            end = last
    kept.append(data[end:])
    writer.parts[ORIGINAL] = np.frombuffer(b"".join(kept), np.uint8)
    return OriginalRecord(tuple(cuts), is_settled)


# -- reading ---------------------------------------------------------------------------------------


def joined(file: Container, original: OriginalRecord) -> bytes:
    """Return the ONNX model of a file, byte for byte. Raises PackError."""
    rest = file.part(ORIGINAL, "uint8").reshape(-1).data
    pieces, at = list[Any](), 0
    for place, name in original.cuts:
        if not at <= place <= len(rest):
            raise file.damaged("its original is cut where it is not")
        array = file.part(name)
        pieces += [rest[at:place], stored(array)]
        at = place
    pieces.append(rest[at:])
    if len({name for _, name in original.cuts}) < len(original.cuts):  # it could be of any size
        raise file.damaged("its original holds a part twice")
    return b"".join(pieces)


class _GraphReader:
    """Makes graphs of records, whose every name, type and reference is checked."""

    def __init__(self, file: Container) -> None:
        self._file = file

    def graph(self, record: GraphRecord, *, is_body: bool = False) -> Graph:
        """Return a graph. Raises PackError."""
        constants = {name: self._file.part(part) for name, part in record.constants.items()}
        types = {name: self._type(kind) for name, kind in record.types.items()}
        types.update((name, type_of(array)) for name, array in constants.items())
        graph = Graph(
            tuple(self._node(node) for node in record.nodes),
            record.inputs, record.outputs, types, constants, record.opset,
            tuple(self._node(node) for node in record.folded),
        )  # fmt: skip
        self._check_order(graph)
        if not is_body:
            self._check_types(graph)
        return graph

    def _type(self, record: TypeRecord) -> TensorType:
        if record.dtype not in DTYPES and record.dtype != "object":
            raise self._file.damaged(f"it has the type {shown(record.dtype)}")
        return TensorType(record.dtype, record.shape)

    def _node(self, record: NodeRecord) -> Node:
        if not any(record.outputs):
            raise self._file.damaged("a node has no outputs")
        attrs = {name: self._value(value) for name, value in record.attrs.items()}
        inner = None
        if record.body is not None:
            inner = self.graph(read(GraphRecord, record.body), is_body=True)
        return Node(
            record.op, record.inputs, record.outputs, attrs, record.name, record.domain, inner
        )

    def _value(self, value: Any) -> Any:
        """Return an attribute."""
        if isinstance(value, dict) and value.keys() == {"part"}:
            return self._file.part(value["part"])
        held = value if isinstance(value, list) else [value]
        for each in held:
            is_fit = type(each) in (str, bool) or (type(each) is float and not isnan(each))
            if not is_fit and not (type(each) is int and -MOST_WHOLE < each < MOST_WHOLE):
                raise self._file.damaged("an attribute is no number, text, list or array")
        return tuple(value) if isinstance(value, list) else value

    def _check_order(self, graph: Graph) -> None:
        """Refuse names that are given twice, or read before they are there."""
        known = {*graph.inputs, *graph.constants, ""}
        if len(known) != len(graph.inputs) + len(graph.constants) + 1:
            raise self._file.damaged("a value is an input and a constant, or two of them")
        for node in graph.nodes:
            missing = [name for name in node.inputs if name not in known]
            made = [name for name in node.outputs if name]
            if missing or not known.isdisjoint(made) or len({*made}) < len(made):
                what = node_label(node.op, node.name, node.outputs)
                raise self._file.damaged(f"{what} reads what is not there, or makes what is")
            known.update(made)
        lacking = [name for name in graph.outputs if name not in known or not name]
        if lacking or len({*graph.outputs}) < len(graph.outputs):
            raise self._file.damaged("nothing computes one of its outputs")

    def _check_types(self, graph: Graph) -> None:
        """Compare the types of all values with what the operators give, and refuse huge ones."""
        if any(name not in graph.types for name in graph.inputs):
            raise self._file.damaged("an input has no type")
        for node in graph.nodes:
            try:
                kinds: Iterable[TensorType | None] = infer(node, graph)
            except ShapeError as error:
                raise self._file.damaged(error.what) from None
            except UnsupportedOpError:
                kinds = ()  # only ONNX Runtime knows
            for name, kind in zip(node.outputs, kinds, strict=False):
                if name and kind is not None and graph.types.get(name) != kind:
                    raise self._file.damaged(f"{shown(name)} has another type than is computed")
            check_sizes(node, graph.types)


class PackedModel(Model):
    """A packed model: a graph for each set of shapes that it was packed for.

    Parameters
    ----------
    file : Container

    Attributes
    ----------
    about : About
        Which versions wrote it, and of what.
    kernels : dict of str to bytes
        Printed kernels by key, where they are of this version of the language.

    Raises
    ------
    PackError (GE-502)
        It is of another format, or damaged.
    """

    def __init__(self, file: Container) -> None:
        self._file, self.about = file, file.about
        self._record = record = record_of(file)
        self.inputs = self._signatures(record.inputs)
        self._outputs = self._signatures(record.outputs)
        if not self.inputs.keys() >= {*record.parameters}:
            raise file.damaged("its parameters are no inputs")
        self._by_shapes: dict[tuple[tuple[int, ...], ...], GraphRecord] = {}
        self._made: dict[tuple[tuple[int, ...], ...], Graph] = {}
        for each in record.graphs:
            self._by_shapes[self._shapes_of(each)] = each
        self.opset = dict(record.graphs[0].opset)
        self.kernels: dict[str, bytes] = {}
        self._find_kernels()
        data, names = record.original, (tuple(self.inputs), tuple(self._outputs))
        self._serialised: Serialised | None = None
        if data is not None and data.is_settled:
            self._serialised = Serialised(self.original, *names)

    @classmethod
    def load(cls, model: Any) -> PackedModel:
        """Read a path or bytes. Raises PackError (GE-502)."""
        file = opened(model)
        try:
            return cls(file)
        except UnfitError as error:
            raise file.damaged(str(error)) from None
        except RecursionError:
            raise file.damaged("it is nested too deep") from None

    def _find_kernels(self) -> None:
        if KERNELS not in self._file.parts:
            return
        if self.about.language != LANGUAGE_VERSION:
            self.notes = (
                f"its kernels, of language version {self.about.language}, are printed anew: this "
                f"gpuedge prints version {LANGUAGE_VERSION}",
            )
            return
        self.kernels = decoded(self._file.part(KERNELS, "uint8").tobytes())

    def _signatures(self, records: Iterable[SignatureRecord]) -> dict[str, Signature]:
        known: dict[str, Signature] = {}
        for record in records:
            if record.name in known or record.dtype not in DTYPES:
                raise self._file.damaged(f"its {shown(record.name)} is there twice, or no tensor")
            known[record.name] = record.dtype, record.dims
        return known

    def _shapes_of(self, record: GraphRecord) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a graph's inputs, which are the model's."""
        kinds = [record.types.get(name) for name in self.inputs]
        fits = record.inputs == (*self.inputs,) and record.outputs == (*self._outputs,)
        wanted = [dtype for dtype, _ in self.inputs.values()]
        if not fits or [k and k.dtype for k in kinds] != wanted:
            raise self._file.damaged("a graph has other inputs or outputs than the model")
        shapes = {n: k.shape for n, k in zip(self.inputs, kinds, strict=True) if k is not None}
        try:
            self.bind(shapes)
        except GpuEdgeError as error:
            raise self._file.damaged(error.what) from None
        return tuple(shapes.values())

    @property
    def outputs(self) -> dict[str, Signature]:
        """Dtype name and shape of each output."""
        return self._outputs

    @property
    def parameters(self) -> frozenset[str]:
        """Inputs for whose values a graph can only be made of the original."""
        return frozenset(self._record.parameters)

    @property
    def contested(self) -> frozenset[str]:
        """None: models where these decide whether ONNX Runtime is right are not packed."""
        return frozenset()

    @property
    def shapes(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """The sets of shapes that it was packed for, by the names of the inputs."""
        return tuple(dict(zip(self.inputs, each, strict=True)) for each in self._by_shapes)

    def original(self) -> bytes:
        """Return the ONNX model that was packed, weights included. Raises PackError."""
        known = self._record.original
        if known is None:
            raise PackError("The packed model holds no original.", asked_by=self._file.source)
        return joined(self._file, known)

    @cached_property
    def _unpacked(self) -> OnnxModel:
        return OnnxModel.load(self.original())

    def _other(self, asked_by: str) -> OnnxModel:
        """Return the original. Raises PackError where it is not there, or nothing here reads it."""
        packed = "; ".join(map(str, self.shapes))
        try:
            return self._unpacked
        except (MissingPackageError, PackError) as error:
            raise PackError(
                f"The packed model ({self._file.source}) holds no graph for this.",
                asked_by=asked_by,
                known=f"packed for {packed}; {error.what}",
                hint="gpuedge pack with these shapes as well, or install what reads the original: "
                "pip install 'gpuedge[models]'",
            ) from None

    def graph(self, shapes: tuple[tuple[int, ...], ...]) -> Graph:
        """Return the graph for these shapes, in the order of the inputs; they must be packed."""
        if shapes not in self._made:
            try:
                graph = _GraphReader(self._file).graph(self._by_shapes[shapes])
            except UnfitError as error:
                raise self._file.damaged(str(error)) from None
            except RecursionError:
                raise self._file.damaged("it is nested too deep") from None
            for name, (dtype, _) in self._outputs.items():
                if name in graph.types and graph.types[name].dtype != dtype:
                    raise self._file.damaged(f"its output {shown(name)} is not {dtype}")
            self._made[shapes] = graph
        return self._made[shapes]

    def golden(self, graph: Graph) -> dict[str, Array]:
        """Return inputs and right outputs of one of its graphs by name; empty where none are held.

        Raises PackError.
        """
        record = self._by_shapes.get(tuple(graph.shape(name) for name in graph.inputs))
        known = {n: self._file.part(part) for n, part in record.golden.items()} if record else {}
        wanted = {name: graph.types.get(name) for name in (*graph.inputs, *graph.outputs)}
        if known and (known.keys() != wanted.keys() or any(
            kind not in (None, type_of(known[name])) for name, kind in wanted.items()
        )):  # fmt: skip
            raise self._file.damaged("its golden values are of other types than its values")
        return known

    def with_shapes(self, shapes: Shapes, *, rewrites: bool = True) -> ShapedModel:
        """Return the model for shapes; those that were not packed take the original."""
        sizes = tuple(s.shape if isinstance(s, Fixed) else s for s in shapes)
        self.bind(dict(zip(self.inputs, sizes, strict=True)))
        values = [n for n, s in zip(self.inputs, shapes, strict=True) if isinstance(s, Fixed)]
        if values or sizes not in self._by_shapes or not rewrites:
            asked = f"shapes {list(sizes)}" if rewrites else "Policy(rewrites=False)"
            if values:
                asked = f"a graph for the values of {', '.join(map(shown, values))}"
            return self._other(asked).with_shapes(shapes, rewrites=rewrites)
        is_odd = any(0 in size for size in sizes)
        given = None if is_odd else self._serialised
        return ShapedModel(lambda: self.graph(sizes), given, kernels=self.kernels)

    def check_shapes(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise as `bind`, or PackError where there is no graph for these shapes."""
        self.bind(shapes)
        sizes = tuple(tuple(shapes[name]) for name in self.inputs)
        if sizes not in self._by_shapes:
            self._other(f"shapes {list(sizes)}").check_shapes(shapes)

    def specialise(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        values: Mapping[str, Array] | None = None,
        *,
        rewrites: bool = True,
    ) -> Graph:
        """Return the graph for these shapes; where one was packed it need not be named."""
        given = {n: tuple(s) for n, s in (shapes or {}).items()}
        given = {**(self.shapes[0] if len(self.shapes) == 1 else {}), **given}
        self.bind(given)
        fixed = {n: tuple(d for d in dims or () if isinstance(d, int))
                 for n, (_, dims) in self.inputs.items()}  # fmt: skip
        sizes = tuple(given.get(name, fixed[name]) for name in self.inputs)
        if sizes in self._by_shapes and rewrites and not values:
            return self.graph(sizes)
        asked = f"shapes {list(sizes)}" if rewrites else "Policy(rewrites=False)"
        return self._other(asked).specialise(given, values, rewrites=rewrites)


def record_of(file: Container) -> ModelRecord:
    """Return what a file holds. Raises PackError where it is of another format, or damaged."""
    if file.about.format != FORMAT:
        raise PackError(
            f"The packed model ({file.source}) is of format {file.about.format}; this gpuedge "
            f"reads format {FORMAT}.",
            known=f"gpuedge {file.about.gpuedge} wrote it, of {file.about.model or 'a model'}",
            hint=f"gpuedge pack {file.source} -o NEW.gpuedge makes it anew from the original in it",
        )
    return read(ModelRecord, file.document(MODEL))


def read_model(model: Any) -> Model:
    """Read a packed model, or whatever `OnnxModel.load` reads; what was read is returned.

    Raises as that does, and PackError (GE-502).
    """
    if isinstance(model, Model):
        return model
    return PackedModel.load(model) if is_packed(model) else OnnxModel.load(model)


def document(record: ModelRecord) -> Array:
    """Return a record as the part `MODEL`."""
    text = json.dumps(plain(record), separators=(",", ":"), ensure_ascii=True)
    return np.frombuffer(text.encode(), np.uint8)
