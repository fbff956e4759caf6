"""Rewrite: what stands between DequantizeLinear and QuantizeLinear becomes an integer operator.

A pure function of nodes and constants, without types. Conv, MatMul and Gemm become QLinearConv and
QLinearMatMul, with a Relu that the zero point of the result makes superfluous; maximum pooling,
reshaping and transposing are done on the integers; averages are taken of integers, and scaled once.
What does not fit stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuedge.core.dtypes import BYTES
from gpuedge.graph.ir import Array, Node
from gpuedge.graph.writer import reads

POOLS_BYTES = 12
"""Operator set from which MaxPool takes int8 and uint8."""

OWN = ("QGemm", "QAttention")
"""Quantised operators of ONNX Runtime whose names do not say so."""

MOVES = ("Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze")
"""Operators that hand on the elements of their first input."""


def is_quantised(op: str) -> bool:
    """Tell from its name whether an operator takes or gives numbers that stand for others."""
    return any(part in op for part in ("Quantize", "QLinear", "Integer")) or op in OWN


def holds_quantised(graph: Any) -> bool:
    """Tell whether an ONNX graph, or one inside its nodes, has such operators."""
    return any(
        is_quantised(node.op_type)
        or any(
            holds_quantised(inner)
            for a in node.attribute
            if a.type in (a.GRAPH, a.GRAPHS)
            for inner in (a.g, *a.graphs)
        )
        for node in graph.node
    )


@dataclass(frozen=True)
class _Quantised:
    """Integers with the names of their scale and zero point, which are constant."""

    name: str
    scale: str
    zero: str
    axis: int


class _Rewrite:
    def __init__(
        self, nodes: Sequence[Node], constants: Mapping[str, Array], outputs: Sequence[str],
        opset: int,
    ) -> None:  # fmt: skip
        self.nodes = nodes
        self.constants = constants
        self.opset = opset
        self.made: dict[str, Array] = {}
        self.maker = {name: node for node in nodes for name in node.outputs if name}
        self.users = Counter(name for node in nodes for name in reads(node))
        self.users.update(outputs)

    def fused(self) -> tuple[Node, ...]:
        """Return the nodes with every QuantizeLinear replaced that ends such a part."""
        nodes: list[Node] = []
        for node in self.nodes:
            nodes += self._ended(node) if node.op == "QuantizeLinear" else (node,)
        return tuple(nodes)

    def _ended(self, last: Node) -> Sequence[Node]:
        result = self._parameters(last)
        node = None if result is None else self._sole(last.inputs[0])
        if result is None or node is None:
            return (last,)
        zero, dtype = self.constants[result.zero], self.constants[result.zero].dtype
        if node.op == "Relu" and zero.size == 1 and zero.item() == np.iinfo(dtype).min:
            node = self._sole(node.inputs[0])
        rule = None if node is None or node.domain else _RULES.get(node.op)
        replaced = None if rule is None or node is None else rule(self, node, result, last)
        return replaced or (last,)

    def _sole(self, name: str) -> Node | None:
        """Return the node that makes a value which nothing else reads."""
        node = self.maker.get(name)
        return node if node is not None and self.users[name] == 1 and not node.domain else None

    def _parameters(self, node: Node) -> _Quantised | None:
        """Return what a QuantizeLinear or DequantizeLinear by constants says, of bytes or int32."""
        scale, zero = (*node.inputs, "", "")[1:3]
        if scale not in self.constants or node.attrs.get("block_size", 0):
            return None
        if not zero and node.op == "DequantizeLinear" and node.inputs[0] in self.constants:
            held = self.constants[node.inputs[0]]
            zero = self._constant(node, "zero", np.zeros(self.constants[scale].shape, held.dtype))
        known = self.constants.get(zero, self.made.get(zero))
        if known is None or self.constants[scale].dtype != np.float32:
            return None
        return _Quantised(node.inputs[0], scale, zero, int(node.attrs.get("axis", 1)))

    def _source(self, name: str) -> _Quantised | None:
        """Return what a value is dequantised from."""
        node = self.maker.get(name)
        is_it = node is not None and node.op == "DequantizeLinear" and not node.domain
        return self._parameters(node) if is_it and node is not None else None

    def _bytes(self, name: str, axis: int | None = None) -> _Quantised | None:
        """Return bytes that a value is dequantised from, all in one scale or by an axis."""
        source = self._source(name)
        if source is None or self._held(source.zero).dtype.name not in BYTES:
            return None
        sizes = {self.constants[source.scale].size, self._held(source.zero).size}
        by_axis = axis is not None and source.axis == axis
        return source if sizes == {1} or (by_axis and len(sizes) == 1) else None

    def _held(self, name: str) -> Array:
        return self.made[name] if name in self.made else self.constants[name]

    def _weights(self, name: str, axis: int) -> _Quantised | None:
        source = self._bytes(name, axis)
        return source if source is not None and source.name in self.constants else None

    def _bias(self, name: str, x: _Quantised, w: _Quantised) -> str | None:
        """Return the name of an int32 bias whose scale is that of the products."""
        source = self._source(name)
        if source is None or source.name not in self.constants:
            return None
        held, scale = self.constants[source.name], self.constants[source.scale].astype(np.float64)
        product = self.constants[x.scale].astype(np.float64) * self.constants[w.scale]
        fits = scale.size in (1, product.size) and np.allclose(scale, product, rtol=4e-7, atol=0)
        is_plain = held.dtype == np.int32 and not self._held(source.zero).any()
        return source.name if fits and is_plain else None

    def _constant(self, node: Node, what: str, value: Array) -> str:
        name = f"{node.outputs[0]}/{what}"
        self.made[name] = value
        return name

    # -- rules: each returns nodes in the place of a QuantizeLinear, or None ----------------------

    def conv(self, node: Node, y: _Quantised, last: Node) -> Sequence[Node] | None:
        """Return a QLinearConv."""
        inputs = self._linear(node, 0, y)
        if inputs is None:
            return None
        return (replace(node, op="QLinearConv", inputs=inputs, outputs=last.outputs),)

    def _linear(self, node: Node, axis: int, y: _Quantised) -> tuple[str, ...] | None:
        """Return the inputs of a QLinearConv: with weights by `axis`, and the bias if any."""
        x, w = self._bytes(node.inputs[0]), self._weights(node.inputs[1], axis)
        if x is None or w is None or not self._is_one(y):
            return None
        inputs = (x.name, x.scale, x.zero, w.name, w.scale, w.zero, y.scale, y.zero)
        if len(node.inputs) < 3 or not node.inputs[2]:
            return inputs
        bias = self._bias(node.inputs[2], x, w)
        return None if bias is None else (*inputs, bias)

    def matmul(self, node: Node, y: _Quantised, last: Node) -> Sequence[Node] | None:
        """Return a QLinearMatMul."""
        a, b = self._bytes(node.inputs[0]), self._bytes(node.inputs[1], 1)
        if a is None or b is None or not self._is_one(y):
            return None
        by_column = self.constants[b.scale].size > 1
        if by_column and (b.name not in self.constants or self.constants[b.name].ndim != 2):
            return None
        inputs = (a.name, a.scale, a.zero, b.name, b.scale, b.zero, y.scale, y.zero)
        return (replace(node, op="QLinearMatMul", inputs=inputs, outputs=last.outputs),)

    def gemm(self, node: Node, y: _Quantised, last: Node) -> Sequence[Node] | None:
        """Return a QLinearConv of images of one pixel: QLinearMatMul takes no bias."""
        turned = int(node.attrs.get("transB", 0))
        is_plain = all(node.attrs.get(n, 1) == 1 for n in ("alpha", "beta"))
        inputs = self._linear(node, 1 - turned, y)
        if inputs is None or not is_plain or node.attrs.get("transA", 0):
            return None
        held = self.constants[inputs[3]]
        rows = held if turned else np.ascontiguousarray(held.T)
        image, flat = f"{node.outputs[0]}/image", f"{node.outputs[0]}/flat"
        to = self._constant(node, "to", np.array([-1, rows.shape[1], 1, 1]))
        back = self._constant(node, "back", np.array([-1, rows.shape[0]]))
        weights = self._constant(node, "weights", rows.reshape(*rows.shape, 1, 1))
        inner = (image, *inputs[1:3], weights, *inputs[4:])
        return (
            Node("Reshape", (inputs[0], to), (image,), {}, f"{node.name}/image"),
            replace(node, op="QLinearConv", inputs=inner, outputs=(flat,), attrs={}),
            Node("Reshape", (flat, back), last.outputs, {}, last.name),
        )

    def moved(self, node: Node, y: _Quantised, last: Node) -> Sequence[Node] | None:
        """Return what picks among the integers, which come out as they went in."""
        x = self._bytes(node.inputs[0])
        pools = node.op == "MaxPool" and (self.opset < POOLS_BYTES or any(node.outputs[1:]))
        if x is None or pools or not self._is_one(y):
            return None
        held = [(self._held(a), self._held(b)) for a, b in ((x.scale, y.scale), (x.zero, y.zero))]
        same = all(a.dtype == b.dtype and a.item() == b.item() for a, b in held)
        inputs = (x.name, *node.inputs[1:])
        return (replace(node, inputs=inputs, outputs=last.outputs),) if same else None

    def average(self, node: Node, y: _Quantised, last: Node) -> Sequence[Node] | None:
        """Return the average of whole numbers; their scale is that of the QuantizeLinear then."""
        x = self._bytes(node.inputs[0])
        if x is None or not self._is_one(y):
            return None
        scale = self.constants[y.scale] / self.constants[x.scale]
        whole, mean = f"{node.outputs[0]}/whole", f"{node.outputs[0]}/mean"
        unit = self._constant(node, "one", np.ones_like(self.constants[x.scale]))
        both = self._constant(node, "scale", np.asarray(scale, np.float32))
        return (
            Node("DequantizeLinear", (x.name, unit, x.zero), (whole,), {}, f"{node.name}/whole"),
            replace(node, inputs=(whole,), outputs=(mean,)),
            replace(last, inputs=(mean, both, y.zero)),
        )

    def _is_one(self, y: _Quantised) -> bool:
        zero = self._held(y.zero)
        return self.constants[y.scale].size == zero.size == 1 and zero.dtype.name in BYTES


_Rule = Callable[[_Rewrite, Node, _Quantised, Node], "Sequence[Node] | None"]
_RULES: dict[str, _Rule] = {
    "Conv": _Rewrite.conv, "MatMul": _Rewrite.matmul, "Gemm": _Rewrite.gemm,
    "MaxPool": _Rewrite.moved, "AveragePool": _Rewrite.average,
    "GlobalAveragePool": _Rewrite.average, **dict.fromkeys(MOVES, _Rewrite.moved),
}  # fmt: skip


def in_integers(
    nodes: Sequence[Node], constants: Mapping[str, Array], outputs: Sequence[str], opset: int
) -> tuple[tuple[Node, ...], dict[str, Array]]:
    """Return nodes with quantised parts in integers, and the constants that these need besides.

    Parameters
    ----------
    nodes : sequence of Node
        In order; what is not needed any more stays among the result.
    constants : mapping of str to ndarray
        Weights, scales and zero points by name.
    outputs : sequence of str
        Values that have to stay.
    opset : int
        Version of the default operator set.
    """
    if not any(node.op == "QuantizeLinear" for node in nodes):
        return tuple(nodes), {}
    work = _Rewrite(nodes, constants, outputs, opset)
    return work.fused(), work.made
