"""Random nodes shared by the tests of graphs and of the CPU executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from single_node import single

from gpuedge.core.errors import GpuEdgeError
from gpuedge.graph.ir import Array, Graph, TensorType


@dataclass
class Case:
    """One node: operator, shapes of its tensor inputs, attributes, constant inputs."""

    op: str
    shapes: list[tuple[int, ...]]
    attrs: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    opset: int = 20
    dtype: str = "float32"

    @property
    def names(self) -> list[str]:
        return [f"x{i}" for i in range(len(self.shapes))]

    def graph(self) -> Graph:
        inputs = {n: TensorType(self.dtype, s) for n, s in zip(self.names, self.shapes)}  # noqa: B905
        return single(self.op, inputs, self.attrs, self.constants, opset=self.opset)

    def feeds(self, seed: int = 0) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {
            n: rng.standard_normal(s).astype(self.dtype)
            for n, s in zip(self.names, self.shapes, strict=True)
        }

    def model(self) -> onnx.ModelProto:
        """The same node as ONNX, without going through gpuedge; the output has no type."""
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        node = helper.make_node(self.op, [*self.names, *self.constants], ["y"], **self.attrs)
        graph = helper.make_graph(
            [node],
            "case",
            [
                helper.make_tensor_value_info(n, element, s)
                for n, s in zip(self.names, self.shapes, strict=True)
            ],
            [helper.make_tensor_value_info("y", element, None)],
            [numpy_helper.from_array(v, n) for n, v in self.constants.items()],
        )
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


@st.composite
def windows(draw: st.DrawFn, op: str) -> Case:
    """A Conv, ConvTranspose, MaxPool or AveragePool with any padding; it may not fit."""
    rank = draw(st.sampled_from([1, 2, 2]))
    per_axis = lambda low, high: st.lists(  # noqa: E731
        st.integers(low, high), min_size=rank, max_size=rank
    )
    kernel = draw(per_axis(1, 3))
    size = draw(per_axis(1, 9))
    attrs: dict[str, Any] = {}
    if draw(st.booleans()):
        attrs["strides"] = draw(per_axis(1, 3))
    if draw(st.booleans()) and op != "AveragePool":
        attrs["dilations"] = draw(per_axis(1, 2))
    how = draw(st.sampled_from(["none", "pads", "pads", "auto"]))
    if how == "auto":
        attrs["auto_pad"] = draw(st.sampled_from(["VALID", "SAME_UPPER", "SAME_LOWER"]))
    elif how == "pads":
        attrs["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    batch, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2, 3]))
    channels = group * draw(st.integers(1, 2))
    shapes = [(batch, channels, *size)]
    if op.startswith("Conv"):
        attrs["group"] = group
        filters = draw(st.integers(1, 3))
        if op == "Conv":
            shapes.append((filters * group, channels // group, *kernel))
        else:
            shapes.append((channels, filters, *kernel))
            if draw(st.booleans()):
                top = attrs.get("strides", [1] * rank)
                attrs["output_padding"] = [draw(st.integers(0, s - 1)) for s in top]
        if draw(st.booleans()):
            shapes.append((filters * group,))
        opset = draw(st.sampled_from([7, 11, 20]))
    else:
        attrs["kernel_shape"] = kernel
        opset = draw(st.sampled_from([10, 11, 20] if op == "MaxPool" else [10, 11, 19, 20]))
        if draw(st.booleans()):
            attrs["ceil_mode"] = 1
        if op == "AveragePool":
            if draw(st.booleans()):
                attrs["count_include_pad"] = 1
            if opset >= 19 and draw(st.booleans()):
                attrs["dilations"] = draw(per_axis(1, 2))
    return Case(op, shapes, attrs, opset=opset)


def fits(case: Case) -> bool:
    """Whether every window of a Conv or pooling lies within the padded input."""
    size = case.shapes[0][2:]
    kernel = case.attrs.get("kernel_shape") or case.shapes[1][2:]
    rank = len(size)
    pads = case.attrs.get("pads", [0] * (2 * rank))
    reach = [
        (k - 1) * d + 1
        for k, d in zip(kernel, case.attrs.get("dilations", [1] * rank), strict=True)
    ]
    same = str(case.attrs.get("auto_pad")).startswith("SAME")
    return same or all(
        n + a + b >= r for n, a, b, r in zip(size, pads[:rank], pads[rank:], reach, strict=True)
    )


def possible(case: Case) -> bool:
    """Whether the node has a canonical form and its shapes fit."""
    try:
        case.graph()
    except GpuEdgeError:
        return False
    return True


shape_lists = st.lists(st.integers(1, 4), min_size=0, max_size=4).map(tuple)


@st.composite
def broadcasts(draw: st.DrawFn, count: int) -> list[tuple[int, ...]]:
    """`count` shapes that broadcast together."""
    full = draw(shape_lists)
    found = []
    for _ in range(count):
        own = tuple(d if draw(st.booleans()) else 1 for d in full)
        found.append(own[draw(st.integers(0, len(own))) :])
    return found


@st.composite
def matrices(draw: st.DrawFn) -> Case:
    """A MatMul, with batches and vectors."""
    m, k, n = (draw(st.integers(1, 5)) for _ in range(3))
    batches = draw(broadcasts(2))
    a, b = (*batches[0], m, k), (*batches[1], k, n)
    if draw(st.integers(0, 4)) == 0:
        a = (k,)
    if draw(st.integers(0, 4)) == 0:
        b = (k,)
    return Case("MatMul", [a, b], opset=draw(st.sampled_from([9, 13])))


@st.composite
def gemms(draw: st.DrawFn) -> Case:
    m, k, n = (draw(st.integers(1, 5)) for _ in range(3))
    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
    shapes = [(k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)]
    bias = draw(st.sampled_from([None, (m, n), (n,), (1, n), (m, 1), (1,), ()]))
    if bias is not None:
        shapes.append(bias)
    attrs = {"transA": int(trans_a), "transB": int(trans_b)}
    if draw(st.booleans()):
        attrs |= {"alpha": draw(st.sampled_from([0.5, 2.0])), "beta": 0.25}
    return Case("Gemm", shapes, attrs, opset=draw(st.sampled_from([11, 13])))


@st.composite
def softmaxes(draw: st.DrawFn) -> Case:
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    op = draw(st.sampled_from(["Softmax", "LogSoftmax"]))
    opset = draw(st.sampled_from([9, 11, 13]))
    attrs = {}
    low = 0 if opset < 11 else -len(shape)
    if draw(st.booleans()) or (opset < 13 and len(shape) == 1):
        attrs["axis"] = draw(st.integers(low, len(shape) - 1))
    return Case(op, [tuple(shape)], attrs, opset=opset)


@st.composite
def moves(draw: st.DrawFn) -> Case:
    """Concat, Transpose, Flatten, Squeeze, Unsqueeze, Reshape."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    rank = len(shape)
    op = draw(
        st.sampled_from(["Concat", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Reshape"])
    )
    axis = draw(st.integers(-rank, rank - 1))
    if op == "Concat":
        others = [
            (*shape[: axis % rank], draw(st.integers(1, 3)), *shape[axis % rank + 1 :])
            for _ in range(draw(st.integers(0, 2)))
        ]
        return Case(op, [shape, *others], {"axis": axis}, opset=13)
    if op == "Transpose":
        return Case(op, [shape], {"perm": draw(st.permutations(range(rank)))}, opset=13)
    if op == "Flatten":
        return Case(op, [shape], {"axis": axis}, opset=13)
    if op == "Reshape":
        return _reshape(draw, shape)
    opset = draw(st.sampled_from([11, 13, 20]))
    if op == "Squeeze":
        axes = draw(st.permutations([i for i, d in enumerate(shape) if d == 1]))
        if not axes:
            return Case(op, [shape], opset=opset)
    else:
        axes = draw(st.lists(st.integers(0, rank), min_size=1, max_size=2, unique=True))
    if opset < 13:
        return Case(op, [shape], {"axes": list(axes)}, opset=opset)
    return Case(op, [shape], constants={"axes": np.array(axes, np.int64)}, opset=opset)


def _reshape(draw: st.DrawFn, shape: tuple[int, ...]) -> Case:
    size = int(np.prod(shape))
    first = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    target = draw(
        st.sampled_from([[first, -1], [-1, first], [first, size // first], [-1], [0, -1]])
    )
    return Case("Reshape", [shape], constants={"to": np.array(target, np.int64)}, opset=13)
