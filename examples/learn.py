"""Small networks in numpy: described once, trained here, and written as ONNX models.

A network is a function that calls the methods of a `Net`: each computes, notes what its gradient
needs, and notes the ONNX node that does the same. It imports nothing but numpy and onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
EPSILON = 1e-5


class Value:
    """An array that a network computed, and the gradient of the loss for it."""

    def __init__(self, data: Array, name: str) -> None:
        self.data, self.name = data, name
        self.grad: Array = np.zeros_like(data)


class Net:
    """Weights by name, and what the last call of a network noted."""

    def __init__(self, seed: int = 0, dtype: npt.DTypeLike = np.float32) -> None:
        self.weights: dict[str, Array] = {}
        self.grads: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []
        self._dtype = dtype
        self._rng = np.random.default_rng(seed)
        self._back: list[Callable[[], None]] = []
        self._moments: dict[str, tuple[Array, Array]] = {}
        self._steps = 0

    def start(self, data: Array) -> Value:
        """Begin a call of the network with its input."""
        self.nodes, self._back, self.grads = [], [], {}
        return Value(np.asarray(data, self._dtype), "x")

    def _weight(self, name: str, shape: Sequence[int], fill: float | None = None) -> Array:
        """Return a weight; a new one is `fill`, or random (He initialisation)."""
        if name not in self.weights:
            scale = np.sqrt(2.0 / np.prod(shape[1:]))
            made = (
                self._rng.standard_normal(shape) * scale if fill is None else np.full(shape, fill)
            )
            self.weights[name] = made.astype(self._dtype)
        return self.weights[name]

    def _note(
        self, op: str, inputs: Sequence[Value | str], data: Array,
        back: Callable[[Array], Sequence[Array | None]], **attributes: Any,
    ) -> Value:  # fmt: skip
        """Note a node and its gradient: `back` maps that of the result to those of the inputs."""
        out = Value(data, f"{op.lower()}{len(self.nodes)}")
        names = [v if isinstance(v, str) else v.name for v in inputs]
        self.nodes.append(helper.make_node(op, names, [out.name], out.name, **attributes))

        def run() -> None:
            for one, grad in zip(inputs, back(out.grad), strict=False):
                if isinstance(one, Value):
                    one.grad += grad
                elif grad is not None:
                    self.grads[one] = self.grads.get(one, 0) + grad

        self._back.append(run)
        return out

    def conv(
        self, x: Value, count: int, size: int = 3, *, stride: int = 1, dilation: int = 1,
        causal: bool = False,
    ) -> Value:  # fmt: skip
        """Convolution over all axes behind the channels; `causal` pads only before."""
        name, axes = f"conv{len(self.nodes)}", x.data.ndim - 2
        w = self._weight(f"{name}.w", (count, x.data.shape[1], *(size,) * axes))
        b = self._weight(f"{name}.b", (count,), 0.0)
        reach = (size - 1) * dilation
        before, after = (reach, 0) if causal else (reach // 2, reach - reach // 2)
        padded = np.pad(x.data, [(0, 0), (0, 0), *[(before, after)] * axes])
        extents = [(e - 1) // stride + 1 for e in x.data.shape[2:]]
        taps = list(np.ndindex(*(size,) * axes))

        def cut(array: Array, tap: Sequence[int]) -> Array:
            starts = [t * dilation for t in tap]
            ends = [s + (e - 1) * stride + 1 for s, e in zip(starts, extents, strict=True)]
            region = [slice(s, e, stride) for s, e in zip(starts, ends, strict=True)]
            found: Array = array[(slice(None), slice(None), *region)]
            return found

        rows = len(x.data), -1, int(np.prod(extents))
        out = sum(w[(..., *tap)] @ cut(padded, tap).reshape(rows) for tap in taps) + b[:, None]

        def back(grad: Array) -> tuple[Array, Array, Array]:
            flat, dw, dx = (
                grad.reshape(len(grad), count, -1),
                np.zeros_like(w),
                np.zeros_like(padded),
            )
            for tap in taps:
                dw[(..., *tap)] = (flat @ cut(padded, tap).reshape(rows).swapaxes(1, 2)).sum(0)
                region = cut(dx, tap)
                region += (w[(..., *tap)].T @ flat).reshape(region.shape)
            inner = tuple(slice(before, before + e) for e in x.data.shape[2:])
            return dx[(slice(None), slice(None), *inner)], dw, flat.sum((0, 2))

        return self._note(
            "Conv", (x, f"{name}.w", f"{name}.b"), out.reshape(len(out), count, *extents), back,
            kernel_shape=[size] * axes, pads=[before] * axes + [after] * axes,
            strides=[stride] * axes, dilations=[dilation] * axes,
        )  # fmt: skip

    def relu(self, x: Value) -> Value:
        """Negative values become zero."""
        return self._note("Relu", (x,), np.maximum(x.data, 0), lambda g: (g * (x.data > 0),))

    def sigmoid(self, x: Value) -> Value:
        """Values from 0 to 1."""
        y = 1 / (1 + np.exp(-x.data))
        return self._note("Sigmoid", (x,), y, lambda g: (g * y * (1 - y),))

    def add(self, x: Value, y: Value) -> Value:
        """A residual connection."""
        return self._note("Add", (x, y), x.data + y.data, lambda g: (g, g))

    def concat(self, x: Value, y: Value) -> Value:
        """A skip connection: the channels of both."""
        count = x.data.shape[1]
        data = np.concatenate([x.data, y.data], axis=1)
        return self._note("Concat", (x, y), data, lambda g: (g[:, :count], g[:, count:]), axis=1)

    def halve(self, x: Value) -> Value:
        """The largest of 2x2 pixels."""
        n, c, h, w = x.data.shape
        blocks = x.data.reshape(n, c, h // 2, 2, w // 2, 2)
        top = blocks.max((3, 5), keepdims=True)
        share = (blocks == top) / (blocks == top).sum((3, 5), keepdims=True)
        return self._note(
            "MaxPool", (x,), top[:, :, :, 0, :, 0],
            lambda g: ((share * g[:, :, :, None, :, None]).reshape(n, c, h, w),),
            kernel_shape=[2, 2], strides=[2, 2],
        )  # fmt: skip

    def double(self, x: Value) -> Value:
        """Every pixel becomes 2x2."""
        n, c, h, w = x.data.shape
        self.weights["twice"] = np.float32([1, 1, 2, 2])
        return self._note(
            "Resize", (x, "", "twice"), x.data.repeat(2, 2).repeat(2, 3),
            lambda g: (g.reshape(n, c, h, 2, w, 2).sum((3, 5)),),
            mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip

    def norm(self, x: Value) -> Value:
        """Instance normalisation: every channel of every image by itself."""
        name, axes = f"norm{len(self.nodes)}", tuple(range(2, x.data.ndim))
        column = (-1, *(1,) * len(axes))
        scale = self._weight(f"{name}.scale", (x.data.shape[1],), 1.0)
        shift = self._weight(f"{name}.shift", (x.data.shape[1],), 0.0)
        centred = x.data - x.data.mean(axes, keepdims=True)
        root = np.sqrt((centred**2).mean(axes, keepdims=True) + EPSILON)
        y = centred / root

        def back(grad: Array) -> tuple[Array, Array, Array]:
            g = grad * scale.reshape(column)
            slope = g - g.mean(axes, keepdims=True) - y * (g * y).mean(axes, keepdims=True)
            return slope / root, (grad * y).sum((0, *axes)), grad.sum((0, *axes))

        data = y * scale.reshape(column) + shift.reshape(column)
        inputs = (x, f"{name}.scale", f"{name}.shift")
        return self._note("InstanceNormalization", inputs, data, back, epsilon=EPSILON)

    def step(self, out: Value, grad: Array, rate: float) -> None:
        """Go back through the network from the gradient of the loss; one step of Adam."""
        out.grad = np.asarray(grad, self._dtype)
        for run in reversed(self._back):
            run()
        self._steps += 1
        for name, slope in self.grads.items():
            first, second = self._moments.get(name, (0.0, 0.0))
            first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
            self._moments[name] = first, second
            size = np.sqrt(second / (1 - 0.99**self._steps)) + 1e-8
            self.weights[name] -= (rate * first / (1 - 0.9**self._steps) / size).astype(self._dtype)

    def save(self, path: Path, names: tuple[str, str], shapes: Sequence[Sequence[Any]]) -> None:
        """Write what was noted as an ONNX model; `names` and `shapes` of its input and output."""
        nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in self.nodes]
        renamed = {"x": names[0], nodes[-1].output[0]: names[1]}
        for node in nodes:
            for values in (node.input, node.output):
                values[:] = [renamed.get(value, value) for value in values]
        infos = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip(names, shapes, strict=True)
        ]
        used = {value for node in nodes for value in node.input}
        weights = {name: value for name, value in self.weights.items() if name in used}
        write(model_of(nodes, path.stem, infos[0], infos[1:], weights), path)


def model_of(
    nodes: Sequence[onnx.NodeProto], name: str, given: onnx.ValueInfoProto,
    answers: Sequence[onnx.ValueInfoProto], weights: Mapping[str, Array],
) -> onnx.ModelProto:  # fmt: skip
    """Return a checked model with one input."""
    tensors = [numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, name, [given], answers, tensors)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="gpuedge")
    onnx.checker.check_model(model, full_check=True)
    return model


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write a model, and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    print(f"wrote {path} ({path.stat().st_size} bytes)")
