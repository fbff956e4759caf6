"""Express composite operators by simpler ones that have kernels: a function from graph to graph.

Variadic operators become binary chains, batch normalisation a scale and a shift, Gemm a matrix
product with its scalings and its addition. Constants are combined on the host.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuedge.graph.canon import canonical
from gpuedge.graph.elementwise import ELEMENTWISE, VARIADIC
from gpuedge.graph.ir import Array, Graph, Node, TensorType, type_of
from gpuedge.graph.params import BatchNormParams, GemmParams


def decompose(graph: Graph) -> Graph:
    """Return `graph` without variadic nodes, Gemm and constant BatchNormalization."""
    work = _Decomposer(graph)
    for node in graph.nodes:
        work.rewrite(node)
    return replace(graph, nodes=tuple(work.nodes), types=work.types, constants=work.constants)


def without_bias(graph: Graph) -> Graph:
    """Return `graph` with constant biases of convolutions added by nodes of their own.

    Where weights are kept in steps of their range, a bias among them would make the steps wider.
    """
    work = _Decomposer(graph)
    for node in graph.nodes:
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if node.domain or node.op not in ("Conv", "ConvTranspose") or bias not in graph.constants:
            work.nodes.append(node)
            continue
        out = node.outputs[0]
        shape = graph.shape(out)
        column = graph.constants[bias].reshape((-1,) + (1,) * (len(shape) - 2))
        added = work.constant(f"{out}/bias", column)
        sums = work.emit(node.op, node.inputs[:2], f"{out}/sums", shape, node, **node.attrs)
        work.emit("Add", (sums, added), out, shape, node)
    return replace(graph, nodes=tuple(work.nodes), types=work.types, constants=work.constants)


class _Decomposer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types = dict(graph.types)
        self.constants = dict(graph.constants)
        self.nodes: list[Node] = []

    def constant(self, name: str, value: Array) -> str:
        self.constants[name] = value
        self.types[name] = type_of(value)
        return name

    def emit(
        self, op: str, inputs: tuple[str, ...], out: str, shape: tuple[int, ...], node: Node,
        **attrs: object,
    ) -> str:  # fmt: skip
        """Append a node that stands for a part of `node`; returns its output."""
        self.types[out] = TensorType(self.types[node.outputs[0]].dtype, shape)
        self.nodes.append(Node(op, inputs, (out,), attrs, name=node.name or node.outputs[0]))
        return out

    def rewrite(self, node: Node) -> None:
        if node.domain:
            self.nodes.append(node)
        elif node.op == "Gemm":
            self.gemm(node)
        elif node.op == "MatMul":
            self.product((node.inputs[0], node.inputs[1]), node.outputs[0], node)
        elif node.op == "BatchNormalization":
            self.batch_norm(node)
        elif ELEMENTWISE.get(node.op) == VARIADIC:
            self.chain(node)
        else:
            self.nodes.append(node)

    def batch_norm(self, node: Node) -> None:
        x, *parameters = node.inputs[:5]
        params = canonical(node, self.graph)
        if any(p not in self.constants for p in parameters) or not isinstance(
            params, BatchNormParams
        ):
            self.nodes.append(node)
            return
        scale, shift, mean, variance = (self.constants[p].astype(np.float64) for p in parameters)
        factor = scale / np.sqrt(variance + params.epsilon)
        shape = self.types[x].shape
        per_channel = (-1,) + (1,) * (len(shape) - 2)
        out = node.outputs[0]
        dtype = np.float32
        a = self.constant(f"{out}/scale", factor.astype(dtype).reshape(per_channel))
        b = self.constant(
            f"{out}/shift", (shift - mean * factor).astype(dtype).reshape(per_channel)
        )
        scaled = self.emit("Mul", (x, a), f"{out}/scaled", shape, node)
        self.emit("Add", (scaled, b), out, shape, node)

    def chain(self, node: Node) -> None:
        op = "Add" if node.op in ("Sum", "Mean") else node.op
        out, left = node.outputs[0], node.inputs[0]
        final = self.types[out].shape
        rest = node.inputs[1:]
        for i, right in enumerate(rest):
            shape = np.broadcast_shapes(self.types[left].shape, self.types[right].shape)
            last = i == len(rest) - 1 and node.op != "Mean"
            left = self.emit(op, (left, right), out if last else f"{out}/{i}", shape, node)
        if node.op == "Mean":
            count = self.constant(f"{out}/count", np.array(len(node.inputs), np.float32))
            self.emit("Div", (left, count), out, final, node)
        elif not rest:
            self.emit("Identity", (left,), out, final, node)

    def gemm(self, node: Node) -> None:
        params = canonical(node, self.graph)
        if not isinstance(params, GemmParams):
            raise TypeError(node.op)
        a, b, *rest = node.inputs
        c = rest[0] if rest and rest[0] and params.beta != 0 else None
        out = node.outputs[0]
        left = self.oriented(a, params.trans_a, (params.m, params.k), f"{out}/a", node)
        right = self.oriented(b, params.trans_b, (params.k, params.n), f"{out}/b", node)
        shape = (params.m, params.n)
        if params.alpha != 1:
            right = self.scaled(right, params.alpha, f"{out}/alpha", node)
        product = f"{out}/product" if c else out
        self.types[product] = TensorType(self.types[out].dtype, shape)
        self.product((left, right), product, node)
        if c:
            if params.beta != 1:
                c = self.scaled(c, params.beta, f"{out}/beta", node)
            self.emit("Add", (product, c), out, shape, node)

    def product(self, operands: tuple[str, str], out: str, node: Node) -> None:
        """Append a matrix product; a sum over nothing is zero."""
        kind = self.types[out]
        if kind.size and not all(self.types[o].size for o in operands):
            self.constant(out, np.zeros(kind.shape, kind.dtype))
        else:
            self.emit("MatMul", operands, out, kind.shape, node)

    def oriented(
        self, value: str, transposed: bool, shape: tuple[int, int], out: str, node: Node
    ) -> str:
        if not transposed:
            return value
        if value in self.constants:
            return self.constant(out, np.ascontiguousarray(self.constants[value].T))
        return self.emit("Transpose", (value,), out, shape, node, perm=(1, 0))

    def scaled(self, value: str, factor: float, out: str, node: Node) -> str:
        if value in self.constants:
            array = self.constants[value]
            return self.constant(out, (array * np.float32(factor)).astype(array.dtype))
        scalar = self.constant(f"{out}/factor", np.array(factor, np.float32))
        return self.emit("Mul", (value, scalar), out, self.types[value].shape, node)
