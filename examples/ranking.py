"""A ranking model like DLRM (Naumov et al., 2019), with weights that are drawn, and requests.

Dense features go through a bottom network; each group of categories picks rows of its table and
adds them up; pairs of all vectors are multiplied; a top network makes one score of them. A
candidate has up to six categories in a group; -1 fills the rest.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DENSE, WIDTH, MOST = 13, 16, 6
TABLES = (1000, 200, 5000)
"""Categories of each group."""


def model(rng: np.random.Generator) -> onnx.ModelProto:
    """Return the network with weights that are drawn."""
    nodes: list[onnx.NodeProto] = []
    held: list[onnx.TensorProto] = []

    def keep(name: str, array: np.ndarray) -> str:
        held.append(numpy_helper.from_array(array, name))
        return name

    def add(op: str, inputs: list[str], output: str, **attrs: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], output, **attrs))
        return output

    def network(name: str, x: str, *sizes: int) -> str:
        for i, (before, after) in enumerate(pairwise(sizes)):
            w = keep(f"{name}{i}/w", (rng.normal(size=(after, before)) / before**0.5).astype("f4"))
            b = keep(f"{name}{i}/b", (rng.normal(size=after) / 8).astype("f4"))
            x = add("Gemm", [x, w, b], f"{name}{i}", transB=1)
            x = x if after == 1 else add("Relu", [x], f"{name}{i}/relu")
        return x

    vectors = [network("bottom", "dense", DENSE, 32, WIDTH)]
    zero, one = keep("zero", np.array(0, np.int64)), keep("one", np.array([1], np.int64))
    last = keep("last", np.array([-1], np.int64))
    for i, count in enumerate(TABLES):
        table = keep(f"table{i}", (rng.normal(size=(count, WIDTH)) / 4).astype("f4"))
        ids = f"ids{i}"
        is_there = add("GreaterOrEqual", [ids, zero], f"{ids}/there")
        safe = add("Where", [is_there, ids, zero], f"{ids}/safe")
        rows = add("Gather", [table, safe], f"{ids}/rows")
        mask = add("Cast", [is_there], f"{ids}/mask", to=TensorProto.FLOAT)
        column = add("Unsqueeze", [mask, last], f"{ids}/column")
        bag = add("Mul", [rows, column], f"{ids}/masked")
        vectors.append(add("ReduceSum", [bag, one], f"{ids}/bag", keepdims=0))
    parts = [add("Unsqueeze", [v, one], f"{v}/row") for v in vectors]
    stacked = add("Concat", parts, "stacked", axis=1)
    turned = add("Transpose", [stacked], "turned", perm=[0, 2, 1])
    pairs = add("MatMul", [stacked, turned], "pairs")
    n = len(vectors)
    above = [i * n + j for i in range(n) for j in range(i)]
    flat = add("Flatten", [pairs], "flat")
    chosen = add("Gather", [flat, keep("above", np.array(above))], "chosen", axis=1)
    features = add("Concat", [vectors[0], chosen], "features", axis=1)
    logit = network("top", features, WIDTH + len(above), 64, 32, 1)
    add("Sigmoid", [logit], "score")
    ids = [(f"ids{i}", TensorProto.INT64, ["N", MOST]) for i in range(len(TABLES))]
    inputs = [("dense", TensorProto.FLOAT, ["N", DENSE]), *ids]
    graph = helper.make_graph(
        nodes, "ranking", [helper.make_tensor_value_info(*given) for given in inputs],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1])], held,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def requests(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Return features of `count` candidates."""
    feed: dict[str, np.ndarray] = {"dense": rng.normal(size=(count, DENSE)).astype(np.float32)}
    for i, size in enumerate(TABLES):
        ids = rng.integers(0, size, (count, MOST))
        ids[rng.integers(0, MOST + 1, count)[:, None] <= np.arange(MOST)] = -1
        feed[f"ids{i}"] = ids
    return feed
