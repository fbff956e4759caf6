"""Nodes that compute 8-bit products, and what is done where ONNX Runtime gets these wrong.

A constant int8 operand is moved into uint8, whose products do not saturate: 128 more for each
number and for the zero point. ONNX Runtime has a setting for that (``session.x64quantprecision``),
but with it refuses int8 by int8, and models of which two nodes share an operand or a zero point
(seen with 1.32.0). What cannot be moved is computed by numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gpuedge.core.dtypes import BYTES
from gpuedge.graph.integers import holds_quantised, is_quantised
from gpuedge.graph.ir import Array, Graph, Node, type_of
from gpuedge.graph.protos import attribute_value, tensor_value
from gpuedge.graph.schema import CONTRIB
from gpuedge.graph.writer import graphs_of


class ByteProduct(NamedTuple):
    """Which products a node computes; what ONNX Runtime fuses MatMulInteger into counts as that."""

    op: str
    first: str
    second: str
    is_constant: bool

    def __str__(self) -> str:
        kind = "constant" if self.is_constant else "computed"
        return f"{self.op} of {self.first} by {kind} {self.second}"


NATIVE = {"MatMulInteger": (0, 1), "ConvInteger": (0, 1), "QLinearMatMul": (0, 3),
          "QLinearConv": (0, 3)}  # fmt: skip
FOREIGN = {"QGemm": (0, 3), "QAttention": (0, 1), "DynamicQuantizeLSTM": (-1, 1),
           "DynamicQuantizeMatMul": (-1, 1), "MatMulIntegerToFloat": (0, 1)}  # fmt: skip
"""Where ONNX's operators and ONNX Runtime's own have their operands; -1: floats, as uint8."""

_MOVABLE = {
    "MatMulInteger": ((1, 3),), "ConvInteger": ((1, 3),),
    "QLinearMatMul": ((3, 5),), "QLinearConv": ((3, 5),), "QGemm": ((3, 5),),
    "QAttention": ((1, 7),), "DynamicQuantizeLSTM": ((1, 9), (2, 11)),
    "DynamicQuantizeMatMul": ((1, 3),), "MatMulIntegerToFloat": ((1, 5),),
}  # fmt: skip
"""Where operators have what can be moved, and its zero point."""

_FIRST_ZERO = {"QLinearMatMul": 2, "QLinearConv": 2, "QGemm": 2, "MatMulIntegerToFloat": 4}
"""Where the zero point of the first operand is, of operators without kernels for int8 by uint8."""

SHIFT = 128

Held = Callable[[str], "Array | None"]
"""Returns a constant by name."""


def products(graph: Graph) -> dict[int, ByteProduct]:
    """Return the nodes that compute 8-bit products, by identity."""
    if not any(is_quantised(node.op) or any(graphs_of(node)) for node in graph.nodes):
        return {}
    by_node = {id(node): _product(node, graph) for node in graph.nodes}
    return {at: product for at, product in by_node.items() if product is not None}


def _product(node: Node, graph: Graph) -> ByteProduct | None:
    if any(graphs_of(node)):  # what is inside cannot be told apart
        inner = any(holds_quantised(b) for a in node.attrs.values() for b in _bodies(a))
        return ByteProduct("MatMulInteger", "uint8", "int8", is_constant=True) if inner else None
    op, at = node.op, None if node.domain else NATIVE.get(node.op)
    if node.domain in CONTRIB and op in FOREIGN:
        op, at = "MatMulInteger", FOREIGN[op]
    if at is None:
        return None
    names = ["" if i < 0 else node.inputs[i] for i in at]
    first, second = (
        ("uint8" if not n else graph.types[n].dtype if n in graph.types else "?") for n in names
    )
    if not {first, second} <= set(BYTES):
        return None
    return ByteProduct(op, first, second, names[1] in graph.constants)


def _bodies(attribute: Any) -> tuple[Any, ...]:
    is_proto = hasattr(attribute, "HasField")
    return (attribute.g, *attribute.graphs) if is_proto else ()


def moved(
    graph: Graph, products: Mapping[int, ByteProduct], wrong: Collection[ByteProduct]
) -> tuple[Graph, frozenset[int]]:
    """Return a graph with constant int8 operands of wrong products in uint8.

    Parameters
    ----------
    graph : Graph
    found : mapping of int to ByteProduct
        What `products` gives of it.
    wrong : collection of ByteProduct
        Those that come out wrong.

    Returns
    -------
    graph : Graph
    left : frozenset of int
        Its nodes that are wrong even so, by identity.
    """
    mover = _Mover(graph.constants)
    new: dict[int, Node] = {}
    left: set[int] = set()
    for node in graph.nodes:
        product = products.get(id(node))
        if product is None or product not in wrong:
            continue
        if any(graphs_of(node)):
            new[id(node)] = mover.inside(node)
            continue
        can = product._replace(second="uint8") not in wrong
        inputs = mover.inputs(node.op, node.inputs, graph.constants.get) if can else None
        if inputs is None:
            left.add(id(node))
        else:
            new[id(node)] = replace(node, inputs=inputs)
    nodes = tuple(new.get(id(node), node) for node in graph.nodes)
    types = {**graph.types, **{name: type_of(array) for name, array in mover.made.items()}}
    constants = {**graph.constants, **mover.made}
    return replace(graph, nodes=nodes, types=types, constants=constants), frozenset(left)


class _Mover:
    """Makes the constants that are needed; two nodes that share one do so then, too."""

    def __init__(self, outer: Mapping[str, Array]) -> None:
        self._outer = outer
        self.made: dict[str, Array] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Array] = []

    def inputs(self, op: str, inputs: tuple[str, ...], held: Held) -> tuple[str, ...] | None:
        """Return a node's inputs with those of int8 moved; None where that cannot be."""
        names = [*inputs, *("",) * 12]
        for at, zero_at in _MOVABLE.get(op, ()):
            array, zero = held(names[at]), held(names[zero_at])
            if array is None or array.dtype != np.int8 or (names[zero_at] and zero is None):
                return None
            names[at] = self._constant(names[at], array)
            zero = np.zeros((), np.int8) if zero is None else zero
            names[zero_at] = self._constant(f"{names[at]}/zero", zero)
        while not names[-1]:
            names.pop()
        return tuple(names)

    def inside(self, node: Node) -> Node:
        """Return a node with the operands that its bodies hold, or take from outside, moved."""
        attrs = dict(node.attrs)
        for name, value in attrs.items():
            if any(map(holds_quantised, _bodies(value))):
                attrs[name] = type(value)()
                attrs[name].CopyFrom(value)
                for body in _bodies(attrs[name]):
                    self._body(body, self._outer.get)
        return replace(node, attrs=attrs)

    def _body(self, body: Any, outer: Held) -> None:
        own = {tensor.name: tensor for tensor in body.initializer}
        own |= {n.output[0]: n for n in body.node if n.op_type == "Constant"}
        hidden = {name for n in body.node for name in n.output} | {v.name for v in body.input}

        def held(name: str) -> Array | None:
            held_node = own.get(name)
            if held_node is None:
                return None if name in hidden else outer(name)
            if not hasattr(held_node, "op_type"):
                return tensor_value(held_node)
            value = attribute_value(held_node.attribute[0])
            return value if isinstance(value, np.ndarray) else None

        for node in body.node:
            at = _FIRST_ZERO.get(node.op_type)
            zero = None if at is None or at >= len(node.input) else held(node.input[at])
            if at is None or (zero is not None and zero.dtype == np.uint8):
                inputs = self.inputs(node.op_type, tuple(node.input), held)
                node.input[:] = node.input if inputs is None else inputs
            for attribute in node.attribute:
                for inner in _bodies(attribute):
                    self._body(inner, held)

    def _constant(self, name: str, array: Array) -> str:
        if id(array) not in self._names:
            self._names[id(array)] = name_of = f"{name}/uint8/{len(self.made)}"
            self.made[name_of] = (array.astype(np.int16) + SHIFT).astype(np.uint8)
            self._kept.append(array)  # so that no other array gets its identity
        return self._names[id(array)]
