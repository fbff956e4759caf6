"""Networks in 8 bits against float32, on devices and by ONNX Runtime on the CPU.

``python benchmarks/quantised.py DEVICE`` prints, for a small residual network and a small MobileNet
of random weights, processor time in milliseconds (the least of some runs), passes and device memory
of constants. ``--passes`` prints every pass of each plan. ONNX Runtime has one thread.

Forms: ``float32``; ``qdq``, of `gpuedge.quantize`; ``unsigned``, the same with weights of uint8
around 113.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import processor
from onnx import TensorProto, helper, numpy_helper

import gpuedge
from gpuedge.graph.reader import OnnxModel

SIZE = 64
RESIDUAL = ((32, 1), (64, 2), (128, 2), (256, 2))
MOBILE = ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (256, 1))
ZERO = 113


class Builder:
    """A float32 network, node by node."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Add a node and return its output."""
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attrs))
        return name

    def weight(self, *shape: int) -> str:
        """Add random weights and return their name."""
        name = f"w{len(self.held)}"
        deep = max(1, int(np.prod(shape[1:])))
        array = self.rng.standard_normal(shape) * (2 / deep) ** 0.5
        self.held.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def conv(
        self, x: str, c: int, m: int, k: int, s: int = 1, *, by: int = 1, relu: bool = True
    ) -> str:
        """Add a convolution with a bias and perhaps a Relu."""
        y = self.add("Conv", x, self.weight(m, c // by, k, k), self.weight(m), pads=[k // 2] * 4,
                     strides=[s, s], group=by)  # fmt: skip
        return self.add("Relu", y) if relu else y

    def head(self, x: str, channels: int) -> onnx.ModelProto:
        """Add what classifies and return the model."""
        flat = self.add("Flatten", self.add("GlobalAveragePool", x))
        y = self.add("Gemm", flat, self.weight(channels, 100), self.weight(100))
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                for name, shape in (("x", [1, 3, 2 * SIZE, 2 * SIZE]), (y, [1, 100]))]  # fmt: skip
        graph = helper.make_graph(self.nodes, "network", ends[:1], ends[1:], self.held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def residual() -> onnx.ModelProto:
    """Return blocks of two 3x3 convolutions beside a shortcut (He et al., 2015)."""
    net, channels = Builder(), 32
    x = net.conv("x", 3, channels, 7, 2)
    for count, stride in RESIDUAL:
        y = net.conv(x, channels, count, 3, stride)
        y = net.conv(y, count, count, 3, relu=False)
        x = (
            x
            if (count, stride) == (channels, 1)
            else net.conv(x, channels, count, 1, stride, relu=False)
        )
        x, channels = net.add("Relu", net.add("Add", x, y)), count
    return net.head(x, channels)


def mobile() -> onnx.ModelProto:
    """Return depthwise and pointwise convolutions in turn (Howard et al., 2017)."""
    net, channels = Builder(), 32
    x = net.conv("x", 3, channels, 3, 2)
    for count, stride in MOBILE:
        x = net.conv(x, channels, channels, 3, stride, by=channels)
        x, channels = net.conv(x, channels, count, 1), count
    return net.head(x, channels)


def data() -> Iterator[dict[str, np.ndarray]]:
    """Return calibration data, the last of which is the input that is measured."""
    rng = np.random.default_rng(6)
    for _ in range(4):
        yield {"x": rng.standard_normal((1, 3, 2 * SIZE, 2 * SIZE)).astype(np.float32)}


def unsigned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a QDQ model whose weights are uint8 around `ZERO`."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    held = {t.name: t for t in made.graph.initializer}
    for node in made.graph.node:
        codes = held.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if codes is None or codes.data_type != TensorProto.INT8:
            continue
        zero = held[node.input[2]]
        array = np.clip(numpy_helper.to_array(codes).astype(int) + ZERO, 0, 255).astype(np.uint8)
        codes.CopyFrom(numpy_helper.from_array(array, codes.name))
        shape = numpy_helper.to_array(zero).shape
        zero.CopyFrom(numpy_helper.from_array(np.full(shape, ZERO, np.uint8), zero.name))
    return made


def describe(plan: Any) -> str:
    """Return passes by variant."""
    return ", ".join(f"{n} {v}" for v, n in Counter(p.variant for p in plan.passes).most_common())


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--passes", action="store_true")
    options = parser.parse_args()
    one = onnxruntime.SessionOptions()
    one.intra_op_num_threads = 1
    (*_, feed) = data()
    print("| network | form | ms | ONNX Runtime, ms | passes | constants, KB | wrong |")
    print("|---|---|---|---|---|---|---|")
    with gpuedge.open(options.device) as opened:
        for name, make in (("residual", residual), ("mobile", mobile)):
            model = make()
            q = gpuedge.quantize(model, data())
            forms = {"float32": model, "qdq": q, "unsigned": unsigned(q)}
            for form, proto in forms.items():
                graph = OnnxModel.load(proto).specialise({"x": feed["x"].shape})
                made = opened.executor.compile(graph)
                ort = onnxruntime.InferenceSession(proto.SerializeToString(), one,
                                                   providers=["CPUExecutionProvider"])  # fmt: skip
                runs = {"own": partial(made.run, feed), "ort": partial(ort.run, None, feed)}
                times = processor(runs, rounds=options.runs)
                plan = made.plan
                size = sum(
                    t.nbytes for t in plan.tensors.values() if t.is_constant and t.memory == t.name
                )
                got = next(iter(made.run(feed).values()))
                wanted = ort.run(None, feed)[0]
                wrong = f"{np.mean(got != wanted):.2f}"
                own, ort_ms = (1000 * times[key] for key in ("own", "ort"))
                print(f"| {name} | {form} | {own:.2f} | {ort_ms:.2f} | {len(plan.passes)} "
                      f"| {size / 1000:.0f} | {wrong} |", flush=True)  # fmt: skip
                if options.passes:
                    print(f"  {describe(plan)}")
                    for step in plan.steps:
                        print(f"    {'+'.join(step.ops)}: {'+'.join(step.variants)}")
                made.close()


if __name__ == "__main__":
    main()
