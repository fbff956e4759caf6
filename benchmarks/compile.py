"""Whether reading, planning and compiling a model grow linearly with its nodes.

Usage: python benchmarks/compile.py [--save]    (a few minutes on one core)

Graphs of 10 to 5,000 nodes of six kinds, each in a process of its own: processor milliseconds of
every step from the model's bytes to a plan with its memory, and how far the process grew. Segments
are cut at every Mul. --save writes results/DATE-compile.md.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpuedge.core.caps import VULKAN_MINIMUM  # noqa: E402
from gpuedge.graph.cost import count  # noqa: E402
from gpuedge.graph.partition import partition  # noqa: E402
from gpuedge.graph.reader import OnnxModel  # noqa: E402
from gpuedge.graph.writer import to_bytes  # noqa: E402
from gpuedge.plan.arrange import arrange  # noqa: E402
from gpuedge.plan.planner import plan, why_not  # noqa: E402

SIZES = (10, 100, 1000, 5000)
SHAPE = (1, 4, 8, 8)


class Model:
    """An ONNX model in the making."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(1)

    def weight(self, *shape: int) -> str:
        """Add a weight and return its name."""
        name = f"w{len(self.weights)}"
        array = self.rng.standard_normal(shape).astype(np.float32) * 0.1
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, *inputs: str, **attrs: object) -> str:
        """Add a node and return the name of its output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def conv(self, x: str) -> str:
        """Add a convolution by weights of its own."""
        return self.add("Conv", x, self.weight(4, 4, 3, 3), pads=[1, 1, 1, 1])

    def done(self, last: str) -> bytes:
        """Return the model that gives a value."""
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in ("x", last)]
        graph = helper.make_graph(self.nodes, "g", ends[:1], ends[1:], self.weights)
        imports = [helper.make_opsetid("", 17)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=8)
        return bytes(made.SerializeToString())


def chain(nodes: int) -> bytes:
    """Return Conv, Relu, Conv, Relu, ..."""
    made, x = Model(), "x"
    for i in range(nodes):
        x = made.add("Relu", x) if i % 2 else made.conv(x)
    return made.done(x)


def residual(nodes: int) -> bytes:
    """Return blocks of Conv, Relu, Conv, Add, Relu."""
    made, x = Model(), "x"
    while len(made.nodes) < nodes:
        y = made.conv(made.add("Relu", made.conv(x)))
        x = made.add("Relu", made.add("Add", x, y))
    return made.done(x)


def dag(nodes: int) -> bytes:
    """Return nodes that read an earlier value of the last hundred, and a constant of their own."""
    made, values = Model(), ["x"]
    for i in range(nodes - 1):
        one = values[-1 - int(made.rng.integers(min(100, len(values))))]
        if i % 3 == 2:
            values.append(made.add("Add", values[-1], one))
        elif i % 3:
            values.append(made.add("Mul", one, made.weight(4, 1, 1)))
        else:
            values.append(made.conv(one))
    return made.done(made.add("Add", values[-1], values[-1]))


def elementwise(nodes: int) -> bytes:
    """Return a chain of elementwise operators, each with a scalar constant."""
    made, x = Model(), "x"
    for i in range(nodes):
        x = made.add(("Add", "Mul", "Sub", "Max")[i % 4], x, made.weight(1))
    return made.done(x)


def wide(nodes: int) -> bytes:
    """Return convolutions of the input, summed two by two: half of them are alive at once."""
    made = Model()
    row = [made.conv("x") for _ in range((nodes + 1) // 2)]
    while len(row) > 1:
        row = [made.add("Add", *row[i : i + 2]) if i + 1 < len(row) else row[i]
               for i in range(0, len(row), 2)]  # fmt: skip
    return made.done(made.add("Relu", row[0]))


def folded(nodes: int) -> bytes:
    """Return a chain of convolutions whose weights are made of Constant nodes."""
    made, x = Model(), "x"
    while len(made.nodes) < nodes:
        array = made.rng.standard_normal((4, 4, 3)).astype(np.float32)
        flat = made.add("Constant", value=numpy_helper.from_array(array))
        axes = made.add("Constant", value=numpy_helper.from_array(np.array([3])))
        x = made.add("Conv", x, made.add("Unsqueeze", flat, axes), pads=[1, 0, 1, 0])
    return made.done(x)


GRAPHS: dict[str, Callable[[int], bytes]] = {
    "chain": chain, "residual": residual, "dag": dag, "elementwise": elementwise,
    "wide": wide, "folded": folded,
}  # fmt: skip


def steps(data: bytes) -> dict[str, float]:
    """Return the seconds that each step of compiling takes, and the bytes at the end."""
    found: dict[str, float] = {}

    def timed(name: str, step: Callable[[], object]) -> object:
        start = time.process_time()
        result = step()
        found[name] = time.process_time() - start
        return result

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = timed("read", lambda: OnnxModel.load(data))
    graph = timed("specialise", model.specialise)
    timed("supports", lambda: [why_not(n, graph, VULKAN_MINIMUM) for n in graph.nodes])
    timed("partition", lambda: partition(graph, lambda n: n.op if n.op == "Mul" else "gpu"))
    timed("count", lambda: count(graph))
    made = timed("plan", lambda: plan(graph, VULKAN_MINIMUM))
    timed("arrange", lambda: arrange(made, 256))
    timed("arrange whole", lambda: arrange(made, 16, has_suballocation=False))
    timed("write", lambda: to_bytes(graph))
    found["MiB"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return found


def main() -> None:
    """Measure and print, or run one case."""
    if len(sys.argv) > 2:
        print(json.dumps(steps(GRAPHS[sys.argv[1]](int(sys.argv[2])))))
        return
    lines: list[str] = []
    for name in GRAPHS:
        for size in SIZES:
            command = [sys.executable, __file__, name, str(size)]
            out = subprocess.run(command, capture_output=True, text=True, check=True)
            row = json.loads(out.stdout)
            grown = row.pop("MiB")
            if not lines:
                lines = [f"| graph | nodes | {' | '.join(row)} | ms a node | MiB |"]
                lines.append("|---" * (len(row) + 4) + "|")
            cells = [f"{1000 * s:.0f}" for s in row.values()]
            each = 1000 * sum(row.values()) / size
            lines.append(f"| {name} | {size} | {' | '.join(cells)} | {each:.2f} | {grown:.0f} |")
            print("\n".join(lines if len(lines) == 3 else lines[-1:]), flush=True)
    if "--save" in sys.argv:
        path = ROOT / "benchmarks" / "results" / f"{time.strftime('%Y-%m-%d')}-compile.md"
        title = (
            "# What compiling costs, by nodes\n\nProcessor milliseconds (benchmarks/compile.py)."
        )
        path.write_text("\n".join([title, "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
