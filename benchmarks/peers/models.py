"""The models that every peer runs: single operators at real sizes, and networks, from seeds.

Networks that the tests plan (`tests/usual_nets.py`) are taken from there; their zeros become
weights of a seed. Nothing is downloaded.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.graph.writer import to_onnx

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from usual_nets import USUAL, Net

SEED = 20261126
SIDE = 224
"""Rows and columns of an image, as ImageNet's networks take them."""


def _one(op: str, shapes: Mapping[str, tuple[int, ...]], held: tuple[str, ...] = (), **attrs: Any
         ) -> Graph:  # fmt: skip
    """Return one operator; the operands in `held` are weights."""
    builder = GraphBuilder()
    for name, shape in shapes.items():
        if name in held:
            builder.constant(name, np.zeros(shape, np.float32))
        else:
            builder.input(name, TensorType("float32", shape))
    builder.output(builder.add(op, list(shapes), attrs))
    return builder.build()


def conv(c_in: int, c_out: int, size: int, side: int, *, stride: int = 1, group: int = 1) -> Graph:
    """Return a convolution with bias of a square image."""
    net = Net(1, c_in, side, side)
    return net.done(net.conv(net.x, c_out, size, stride=stride, group=group))


def matmul(n: int) -> Graph:
    """Return the product of two square matrices that are both inputs."""
    return _one("MatMul", {"a": (n, n), "b": (n, n)})


def chain(elements: int) -> Graph:
    """Return relu(a * b + c)."""
    builder = GraphBuilder()
    for name in "abc":
        builder.input(name, TensorType("float32", (elements // 256, 256)))
    total = builder.add("Add", [builder.add("Mul", ["a", "b"]), "c"])
    builder.output(builder.add("Relu", [total]))
    return builder.build()


def reduction(op: str, *shape: int) -> Graph:
    """Return a reduction over the last axis."""
    builder = GraphBuilder()
    builder.input("x", TensorType("float32", shape))
    axes = builder.constant("axes", np.array([-1]))
    builder.output(builder.add(op, ["x", axes], {"keepdims": 1}))
    return builder.build()


def squeezenet() -> Graph:
    """Iandola et al. 2016, version 1.1 of the authors' repository."""
    net = Net(1, 3, SIDE, SIDE)
    x = net.pool(net.unit(net.x, 64, 3, stride=2), 3, 2)
    for at, (narrow, wide) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    ):
        x = net.pool(x, 3, 2) if at in (2, 4) else x
        squeezed = net.unit(x, narrow)
        x = net.add("Concat", net.unit(squeezed, wide), net.unit(squeezed, wide, 3), axis=1)
    x = net.add("GlobalAveragePool", net.unit(x, 1000))
    return net.done(net.add("Softmax", net.add("Flatten", x), axis=1))


MOBILE = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
          (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
"""Sandler et al. 2018, table 2: expansion, channels, repeats, first stride."""


def mobilenet() -> Graph:
    """MobileNetV2; batch norms folded."""
    net = Net(1, 3, SIDE, SIDE)
    limits = [net.builder.constant(n, np.array(v, np.float32)) for n, v in (("lo", 0), ("hi", 6))]

    def unit(x: str, *shape: int, **how: int) -> str:
        return net.add("Clip", net.conv(x, *shape, **how), *limits)

    x = unit(net.x, 32, 3, stride=2)
    for expansion, out, repeats, first in MOBILE:
        for at in range(repeats):
            stride, wide = (1 if at else first), expansion * net.channels(x)
            y = unit(x, wide) if expansion > 1 else x
            y = net.conv(unit(y, wide, 3, stride=stride, group=wide), out)
            x = net.add("Add", x, y) if at else y
    return net.classified(unit(x, 1280))


def tcn() -> Graph:
    """Bai et al. 2018: six residual blocks of two causal, dilated convolutions; 512 steps."""
    net = Net(1, 32, 1, 512)

    def causal(x: str, out: int, reach: int) -> str:
        w = net.weight(out, net.channels(x), 1, 3)
        return net.add("Relu", net.add(
            "Conv", x, w, net.weight(out), kernel_shape=(1, 3), dilations=(1, reach),
            pads=(0, 2 * reach, 0, 0)))  # fmt: skip

    x = net.x
    for block in range(6):
        y = causal(causal(x, 64, 1 << block), 64, 1 << block)
        x = net.add("Relu", net.add("Add", y, x if block else net.conv(x, 64)))
    return net.done(net.conv(x, 16))


def style() -> Graph:
    """Johnson et al. 2016 with instance norms, as wide as in the paper, on 256 by 256."""
    net = Net(1, 3, 256, 256)

    def normed(x: str, out: int, size: int = 3, stride: int = 1) -> str:
        x = net.conv(x, out, size, stride=stride)
        return net.add("InstanceNormalization", x, net.weight(out), net.weight(out))

    x = net.add("Relu", normed(net.x, 32, 9))
    for out in (64, 128):
        x = net.add("Relu", normed(x, out, 3, 2))
    for _ in range(5):
        x = net.add("Add", x, normed(net.add("Relu", normed(x, 128)), 128))
    scales = net.builder.constant("scales", np.array([1, 1, 2, 2], np.float32))
    for out in (64, 32):
        x = net.add("Resize", x, "", scales, mode="nearest", nearest_mode="floor",
                    coordinate_transformation_mode="asymmetric")  # fmt: skip
        x = net.add("Relu", normed(x, out))
    return net.done(net.add("Tanh", net.conv(x, 3, 9)))


OPERATORS: dict[str, Callable[[], Graph]] = {
    "conv 3x3 64@56": lambda: conv(64, 64, 3, 56),
    "conv 1x1 128@28": lambda: conv(128, 128, 1, 28),
    "depthwise 3x3 64@112": lambda: conv(64, 64, 3, 112, group=64),
    "conv 3x3 32@256": lambda: conv(32, 32, 3, 256),
    "conv 7x7 s2 3>64@224": lambda: conv(3, 64, 7, 224, stride=2),
    **{f"matmul {n}": partial(matmul, n) for n in (64, 256, 1024, 2048)},
    "gemv 2048": lambda: _one("MatMul", {"x": (1, 2048), "w": (2048, 2048)}, ("w",)),
    **{f"relu(a*b+c) {n}": partial(chain, k)
       for n, k in (("1K", 1 << 10), ("64K", 1 << 16), ("1M", 1 << 20), ("16M", 1 << 24))},
    "softmax 128x1000": lambda: _one("Softmax", {"x": (128, 1000)}, axis=-1),
    "sum of rows 1024x1024": lambda: reduction("ReduceSum", 1024, 1024),
    "greatest of rows 1024x1024": lambda: reduction("ReduceMax", 1024, 1024),
    "mean of planes 512@28": lambda: _one("GlobalAveragePool", {"x": (1, 512, 28, 28)}),
}  # fmt: skip
"""Single operators by name; `64@56` is 64 channels of 56 by 56."""

NETWORKS: dict[str, Callable[[], Graph]] = {
    "squeezenet": squeezenet,
    "mobilenet": mobilenet,
    "resnet50": USUAL["resnet50"],
    "shufflenet": USUAL["shufflenet"],
    "unet": USUAL["unet"],
    "tcn": tcn,
    "style": style,
    "transformer": lambda: USUAL["transformer"](1),
}
"""Networks by name."""

QUANTISED = {"squeezenet int8": "squeezenet", "mobilenet int8": "mobilenet"}
"""Networks with QuantizeLinear and DequantizeLinear around their operators, and what of."""

WORK = (*OPERATORS, *NETWORKS, *QUANTISED)


def graph_of(name: str) -> Graph:
    """Return the float32 graph of a work with its weights."""
    return weighted({**OPERATORS, **NETWORKS}[QUANTISED.get(name, name)]())


def weighted(graph: Graph) -> Graph:
    """Return a graph with the zeros among its weights replaced by values of a seed.

    Matrices and kernels are drawn as He et al. 2015 do, which keeps activations of one size
    through relu; what normalisations multiply with lies around 1.
    """
    rng, constants = np.random.default_rng(SEED), dict(graph.constants)
    factors = {n.inputs[1] for n in graph.nodes if n.op.endswith("Normalization")}
    products = {n.inputs[1] for n in graph.nodes if n.op in {"MatMul", "Gemm"}}
    for name, array in graph.constants.items():
        if array.dtype != np.float32 or array.ndim == 0 or array.any():
            continue
        drawn = rng.standard_normal(array.shape)
        if array.ndim > 1:
            fan = array.shape[0] if name in products else prod(array.shape[1:])
            constants[name] = (drawn * sqrt(2 / fan)).astype(np.float32)
        else:
            constants[name] = (0.05 * drawn + (name in factors)).astype(np.float32)
    return replace(graph, constants=constants)


def inputs_of(graph: Graph, seed: int = SEED) -> dict[str, Any]:
    """Return normal values for every input."""
    rng = np.random.default_rng(seed + 1)
    return {name: rng.standard_normal(graph.shape(name), np.float32) for name in graph.inputs}


def model_of(name: str) -> bytes:
    """Return the work as an ONNX file."""
    graph = graph_of(name)
    plain = to_onnx(graph).SerializeToString(deterministic=True)
    return quantised(plain, graph) if name in QUANTISED else plain


def quantised(model: bytes, graph: Graph) -> bytes:
    """Return a model in 8-bit integers (QDQ), made by ONNX Runtime's own tool from four inputs."""
    from onnxruntime import quantization as tool  # noqa: PLC0415 - slow to import, seldom needed

    class Reader(tool.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [inputs_of(graph, SEED + at) for at in range(1, 5)]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    with tempfile.TemporaryDirectory() as folder:
        plain, made = Path(folder, "plain.onnx"), Path(folder, "made.onnx")
        plain.write_bytes(model)
        tool.quantize_static(plain, made, Reader(), quant_format=tool.QuantFormat.QDQ,
                             activation_type=tool.QuantType.QUInt8,
                             weight_type=tool.QuantType.QInt8, per_channel=True)  # fmt: skip
        return made.read_bytes()
