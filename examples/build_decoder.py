"""Builds the small transformer of 15_decoder.py, with weights that are drawn.

Each step takes one token and its place, and gives the scores of the next. What earlier tokens left
behind lies in caches of a fixed size: TensorScatter writes a row of each, Attention looks at those
that are filled (nonpad_kv_seqlen).
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LETTERS = "abcdefghijklmnopqrstuvwxyz .,;!?"
LAYERS, WIDTH, HEADS, SHARED, SIZE = 2, 32, 4, 2, 8
"""Layers, width, heads of queries, heads of keys and values that they share, size of a head."""
PLACES = 64
"""Tokens that fit into the cache."""


def decoder(places: int = PLACES, seed: int = 7) -> onnx.ModelProto:
    """Return the model; its weights are drawn, so what it writes makes no sense."""
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, *shape: int) -> str:
        weights[name] = (3 * rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name

    def add(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    turns = np.arange(places)[:, None] / 100.0 ** (np.arange(SIZE // 2) / (SIZE // 2))
    weights |= {"cos": np.cos(turns).astype(np.float32), "sin": np.sin(turns).astype(np.float32),
                "one": np.array(1, np.int64), "ones": np.ones(WIDTH, np.float32),
                "row": np.array([1, 1], np.int64)}  # fmt: skip
    x = add("Gather", [weight("letters", len(LETTERS), WIDTH), "token"], "x")
    add("Reshape", ["place", "row"], "places")
    add("Add", ["place", "one"], "filled")
    for i in range(LAYERS):
        n = add("RMSNormalization", [x, "ones"], f"n{i}")
        q = add("MatMul", [n, weight(f"wq{i}", WIDTH, HEADS * SIZE)], f"q{i}")
        k = add("MatMul", [n, weight(f"wk{i}", WIDTH, SHARED * SIZE)], f"k{i}")
        v = add("MatMul", [n, weight(f"wv{i}", WIDTH, SHARED * SIZE)], f"v{i}")
        q, k = (
            add("RotaryEmbedding", [y, "cos", "sin", "places"], f"{y}/turned", num_heads=heads)
            for y, heads in ((q, HEADS), (k, SHARED))
        )
        keys = add("TensorScatter", [f"keys{i}", k, "place"], f"new_keys{i}")
        values = add("TensorScatter", [f"values{i}", v, "place"], f"new_values{i}")
        y = add("Attention", [q, keys, values, "", "", "", "filled"], f"a{i}",
                q_num_heads=HEADS, kv_num_heads=SHARED)  # fmt: skip
        y = add("MatMul", [y, weight(f"wo{i}", HEADS * SIZE, WIDTH)], f"o{i}")
        x = add("Add", [x, y], f"x{i}")
        n = add("RMSNormalization", [x, "ones"], f"m{i}")
        y = add("MatMul", [n, weight(f"up{i}", WIDTH, 4 * WIDTH)], f"up{i}/y")
        y = add(
            "MatMul", [add("Gelu", [y], f"g{i}"), weight(f"down{i}", 4 * WIDTH, WIDTH)], f"d{i}"
        )
        x = add("Add", [x, y], f"y{i}")
    n = add("RMSNormalization", [x, "ones"], "n")
    add("MatMul", [n, weight("out", WIDTH, len(LETTERS))], "scores")
    cache = [f"{what}{i}" for what in ("keys", "values") for i in range(LAYERS)]
    shape = [1, places, SHARED * SIZE]
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "decoder",
        [helper.make_tensor_value_info("token", TensorProto.INT64, [1, 1]),
         helper.make_tensor_value_info("place", TensorProto.INT64, [1]),
         *(helper.make_tensor_value_info(name, floats, shape) for name in cache)],
        [helper.make_tensor_value_info("scores", floats, [1, 1, len(LETTERS)]),
         *(helper.make_tensor_value_info(f"new_{name}", floats, shape) for name in cache)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
