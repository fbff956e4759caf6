"""What you will see: six steps on a device in one kernel, and two models without a way back."""

import numpy as np

import gpuedge
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.graph.writer import to_bytes


def dense(size: int) -> bytes:
    """Return a model: y = relu(x @ w)."""
    builder = GraphBuilder()
    x = builder.input("x", TensorType("float32", (1, size)))
    w = builder.constant("w", np.eye(size, dtype=np.float32)[::-1].copy())
    builder.output(builder.add("Relu", [builder.add("MatMul", [x, w])], output="y"))
    return to_bytes(builder.build())


rng = np.random.default_rng(0)
a, b = (rng.integers(-4, 5, (256, 256)).astype(np.float32) for _ in range(2))
wanted = np.maximum(((a + b) * a - b) * b, 0) + a

for device in ["cpu", *(row.device for row in gpuedge.probe().devices)]:
    x, y = gpuedge.array(a, device=device), gpuedge.array(b, device=device)
    z = gpuedge.relu(((x + y) * x - y) * y) + x  # nothing has run yet
    what = z.explain().splitlines()[0].partition(":")[0]
    with (
        gpuedge.Session(dense(8), device=device) as first,
        gpuedge.Session(dense(8), device=device) as second,
    ):
        row = first.input("x")  # written in place, read by each run
        one, two = first.bind({"x": row}), None
        row[:] = np.arange(8)
        there = one.run()["y"]  # stays on the device
        two = second.bind({"x": there})
        back = two.run()["y"]
        is_right = bool((np.asarray(back) == row).all())
    print(f"{device:10s} {what}; right: {bool((z.numpy() == wanted).all())} | models: {is_right}")
