"""Building graphs by hand, node by node, with every type inferred. Needs no ONNX package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuedge.core.errors import ShapeError, UsageError
from gpuedge.graph.expand import infer
from gpuedge.graph.ir import OPSET, Array, Graph, Node, TensorType, type_of
from gpuedge.graph.limits import MAX_ELEMENTS
from gpuedge.opset import OPERATORS
from gpuedge.opset.call import node_label

NEWER = {
    "RotaryEmbedding": 23, "Attention": 24, "Swish": 24, "TensorScatter": 24, "BitCast": 26,
    "CumProd": 26, "LinearAttention": 27,
}  # fmt: skip
"""Known operators that came after `OPSET`; using one raises the graph's operator set."""


class GraphBuilder:
    """Collects nodes and infers the type of everything they compute.

    >>> b = GraphBuilder()
    >>> x = b.input("x", TensorType("float32", (2, 3)))
    >>> b.output(b.add("Relu", [x]))
    >>> b.build().types["Relu/0"].shape
    (2, 3)
    """

    def __init__(self, opset: int = OPSET) -> None:
        self._nodes: list[Node] = []
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, Array] = {}
        self._opset = {"": opset}
        self._open: set[str] = set()  # results whose size only values tell
        # A view of what exists so far: the dictionaries are shared with it on purpose.
        self._so_far = Graph((), (), (), self._types, self._constants, self._opset)

    def _define(self, name: str, kind: TensorType) -> str:
        if not name or name in self._types:
            raise UsageError(f"The value name {name!r} is empty or already taken.")
        self._types[name] = kind
        return name

    def type(self, value: str) -> TensorType:
        """Return the type of a value made so far."""
        return self._types[value]

    def input(self, name: str, kind: TensorType) -> str:
        """Add a graph input and return its name."""
        self._inputs.append(self._define(name, kind))
        return name

    def constant(self, name: str, value: Any) -> str:
        """Add a constant and return its name. The array is not copied."""
        array = np.asarray(value)
        self._constants[self._define(name, type_of(array))] = array
        return name

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any] | None = None,
        *,
        output: str | None = None,
    ) -> str:
        """Append a node of one output; see `add_all`."""
        return self.add_all(op, inputs, attrs, name=output)[0]

    def add_all(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        name: str | None = None,
    ) -> tuple[str, ...]:
        """Append a node of a known operator and return the names of its outputs.

        Raises
        ------
        ShapeError (GE-201), UnsupportedOpError (GE-501)
            As from `gpuedge.graph.expand.infer`; a result has more than `MAX_ELEMENTS` elements.
        """
        missing = [i for i in inputs if i and i not in self._types]
        if missing:
            raise UsageError(f"{op} reads {missing[0]!r}, which does not exist.")
        self._opset[""] = max(self._opset[""], NEWER.get(op, 0))
        domain = OPERATORS[op].domain if op in OPERATORS else ""
        self._opset.setdefault(domain, 1)
        # The slash keeps it apart from every Python identifier, such as an argument's name.
        name = name or f"{op}/{len(self._nodes)}"
        results = (name, *(f"{name}.{i}" for i in range(1, outputs)))
        node = Node(op, tuple(inputs), results, dict(attrs or {}), name, domain)
        for value, kind in zip(results, infer(node, self._so_far), strict=False):
            if kind is None:
                self._open.add(value)
                continue
            if kind.size > MAX_ELEMENTS:
                raise ShapeError(
                    f"{node_label(op, name, ())} would give {list(kind.shape)}, "
                    f"{kind.size} elements.",
                    known=f"the most is {MAX_ELEMENTS}",
                )
            self._define(value, kind)
        self._nodes.append(node)
        return results

    def include(self, graph: Graph, inputs: Sequence[str]) -> tuple[str, ...]:
        """Append the nodes of a graph, with values made so far as its inputs; return its outputs.

        Parameters
        ----------
        graph : Graph
            Made by a builder, so that its types are known.
        inputs : sequence of str
            In its order.
        """
        prefix = f"{len(self._nodes)}."
        names = {"": "", **dict(zip(graph.inputs, inputs, strict=True))}
        for name, kind in graph.types.items():
            if name not in names:
                names[name] = self._define(prefix + name, kind)
        self._constants.update((names[name], array) for name, array in graph.constants.items())
        for node in graph.nodes:
            into = [tuple(names[n] for n in some) for some in (node.inputs, node.outputs)]
            self._nodes.append(replace(node, inputs=into[0], outputs=into[1], name=into[1][0]))
        for domain, version in graph.opset.items():
            self._opset[domain] = max(self._opset.get(domain, 0), version)
        return tuple(names[name] for name in graph.outputs)

    def output(self, *values: str) -> None:
        """Declare values as graph outputs."""
        for value in values:
            if value not in self._types.keys() | self._open or value in self._outputs:
                raise UsageError(f"The output {value!r} does not exist or is declared twice.")
            self._outputs.append(value)

    def build(self) -> Graph:
        """Return the graph."""
        return Graph(
            tuple(self._nodes),
            tuple(self._inputs),
            tuple(self._outputs),
            dict(self._types),
            dict(self._constants),
            dict(self._opset),
        )


def chain(
    inputs: Mapping[str, Array], *nodes: tuple[str, str, Mapping[str, Any]], constants: str = ""
) -> Graph:
    """Return a chain of nodes over arrays, which have names of one letter.

    Parameters
    ----------
    inputs : Mapping of str to array
    *nodes : tuple of str, str and Mapping
        Operator, names of its inputs, attributes. The results are called ``1``, ``2``, ...; the
        last is the output, ``y``.
    constants : str
        Names of the inputs that are fixed.
    """
    builder = GraphBuilder()
    for name, array in inputs.items():
        if name in constants:
            builder.constant(name, array)
        else:
            builder.input(name, type_of(array))
    for i, (op, names, attrs) in enumerate(nodes, 1):
        last = builder.add(op, list(names), attrs, output="y" if i == len(nodes) else str(i))
    builder.output(last)
    return builder.build()
