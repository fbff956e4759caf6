"""Products by weights of 4 and 8 bits against float32: a device, and ONNX Runtime on the CPU.

``python benchmarks/nbits.py DEVICE`` prints processor time in milliseconds, the least of some runs,
device memory of constants, and the error against float32 weights, for 1 and 64 rows of 1024 by
1024 x 4096. ONNX Runtime has one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import gpuedge
from gpuedge.graph.reader import OnnxModel

DEPTH, COLUMNS, BLOCK = 1024, 4096, 32


def codes_of(w: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return symmetric codes (N, K) and scales (N, blocks)."""
    middle = 1 << (bits - 1)
    blocks = w.T.reshape(COLUMNS, -1, BLOCK)
    most = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    scale = (most / -middle).astype(np.float32)
    codes = np.clip(np.rint(blocks / scale) + middle, 0, 2 * middle - 1).astype(np.uint8)
    return codes.reshape(COLUMNS, -1), scale[..., 0]


def model(rows: int, w: np.ndarray, bits: int) -> onnx.ModelProto:
    """Return a product of `rows` by weights of 32, 8 or 4 bits."""
    if bits == 32:
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        held = [numpy_helper.from_array(w, "w")]
    else:
        codes, scale = codes_of(w, bits)
        packed = codes[:, ::2] | codes[:, 1::2] << 4 if bits == 4 else codes
        packed = packed.reshape(COLUMNS, DEPTH // BLOCK, -1)
        held = [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scale, "s")]
        node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft",
                                K=DEPTH, N=COLUMNS, bits=bits, block_size=BLOCK)  # fmt: skip
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, n])
            for name, n in (("x", DEPTH), ("y", COLUMNS))]  # fmt: skip
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], held)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def least(run: Callable[[], object], count: int) -> float:
    """Return processor time of the fastest of `count` runs, milliseconds."""
    run()
    found = []
    for _ in range(count):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return 1000 * min(found)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((DEPTH, COLUMNS)) / 32).astype(np.float32)
    threads = onnxruntime.SessionOptions()
    threads.intra_op_num_threads = 1
    print("| rows | weights | device, ms | kernel | constants, MB | ONNX Runtime, ms | error |")
    print("|---|---|---|---|---|---|---|")
    with gpuedge.open(options.device) as opened:
        for rows in (1, 64):
            x = rng.standard_normal((rows, DEPTH)).astype(np.float32)
            exact = x.astype(np.float64) @ w
            for bits in (32, 8, 4):
                proto = model(rows, w, bits)
                made = opened.executor.compile(OnnxModel.load(proto).specialise({"x": x.shape}))
                own = least(partial(made.run, {"x": x}), options.runs)
                y = made.run({"x": x})["y"]
                held = [t for t in made.plan.tensors.values() if t.is_constant]
                size = sum(t.nbytes for t in held if t.memory == t.name) / 1e6
                ort = onnxruntime.InferenceSession(proto.SerializeToString(), threads,
                                                   providers=["CPUExecutionProvider"])  # fmt: skip
                theirs = least(partial(ort.run, None, {"x": x}), options.runs)
                error = np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2))
                kernel = made.rows[0].kernel
                print(f"| {rows} | {bits} bits | {own:.2f} | {kernel} | {size:.1f} "
                      f"| {theirs:.2f} | {error:.1e} |", flush=True)  # fmt: skip
                made.close()


if __name__ == "__main__":
    main()
