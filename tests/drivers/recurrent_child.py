"""Runs recurrent layers and a tagger on one device; run by test_recurrent.

``python recurrent_child.py DEVICE`` prints a list: of each model its name, whether all results are
within the derived bound of float64, the largest bound, and on what its nodes ran.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

import gpuedge

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recurrent_reference import DEFAULTS, drawn, reference

from gpuedge.graph.expand import program
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset.errors import FACTOR, exact, tensor_errors

ORDER = ("X", "W", "R", "B", "lens", "h", "c", "P")
CASES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("LSTM", {}, ""),
    ("LSTM", {"direction": "bidirectional"}, "B lens h c P"),
    ("LSTM", {"direction": "reverse", "layout": 1, "input_forget": 1, "clip": 0.4}, "B lens h c P"),
    ("LSTM", {"direction": "bidirectional", "activations": ["HardSigmoid", "Softsign", "Relu",
              "Sigmoid", "ScaledTanh", "LeakyRelu"], "activation_alpha": [0.3, 0.7, 0.1],
              "activation_beta": [0.4, 0.6]}, "B"),
    ("GRU", {"direction": "bidirectional"}, "B lens h"),
    ("GRU", {"direction": "reverse", "linear_before_reset": 1, "layout": 1}, "B lens h"),
    ("GRU", {"linear_before_reset": 1, "clip": 0.3}, "h"),
    ("RNN", {"direction": "bidirectional", "activations": ["Affine", "Elu"],
             "activation_alpha": [0.5, 0.7], "activation_beta": [0.1]}, "B lens h"),
    ("RNN", {"direction": "reverse", "activations": ["Softplus"]}, "B"),
)  # fmt: skip


def single(op: str, attrs: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Return a model of one layer whose weights are constants."""
    names = [n if n in given else "" for n in (ORDER if op == "LSTM" else ORDER[:6])]
    while not names[-1]:
        names.pop()
    outs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, names, outs, hidden_size=given["R"].shape[2], **attrs)
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in given.items()}
    held = [numpy_helper.from_array(given[n], n) for n in ("W", "R", "B", "P") if n in given]
    ends = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in given.items()
            if n in ("X", "lens", "h", "c")]  # fmt: skip
    results = [helper.make_tensor_value_info(o, kinds["X"], None) for o in outs]
    graph = helper.make_graph([node], "layer", ends, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def tagger() -> tuple[Any, dict[str, Any], list[Any]]:
    """Return a tagger of sequences, inputs, and what it gives in float64.

    An embedding, two LSTM in both directions over sequences of several lengths, and a product.
    """
    rng, steps, batch, width, hidden, tags = np.random.default_rng(7), 12, 3, 8, 10, 5
    attrs, ends = {"direction": "bidirectional"}, (width, 2 * hidden)
    sizes = {"steps": steps, "batch": batch, "hidden": hidden}
    layers = [drawn("LSTM", i, width=n, attrs=attrs, has="B", **sizes) for i, n in enumerate(ends)]
    table = rng.normal(0, 1, (30, width)).astype(np.float32)
    last = rng.normal(0, 0.3, (2 * hidden, tags)).astype(np.float32)
    feeds = {"words": rng.integers(0, 30, (steps, batch)), "lens": np.array([12, 5, 1], np.int32)}
    held = {"table": table, "last": last, "to": np.array([0, 0, -1])}
    nodes = [helper.make_node("Gather", ["table", "words"], ["x0"])]
    x = table[feeds["words"]]
    for i, layer in enumerate(layers):
        held |= {f"{n}{i}": layer[n] for n in "WRB"}
        given = [f"x{i}", *(f"{n}{i}" for n in "WRB"), "lens"]
        nodes += [helper.make_node("LSTM", given, [f"y{i}"], hidden_size=hidden, **attrs),
                  helper.make_node("Transpose", [f"y{i}"], [f"t{i}"], perm=[0, 2, 1, 3]),
                  helper.make_node("Reshape", [f"t{i}", "to"], [f"x{i + 1}"])]  # fmt: skip
        y = reference("LSTM", attrs, {**layer, "X": x, "lens": feeds["lens"]})[0]
        x = y.transpose(0, 2, 1, 3).reshape(steps, batch, -1)
    nodes.append(helper.make_node("MatMul", ["x2", "last"], ["tags"]))
    ins = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
           for n, a in feeds.items()]  # fmt: skip
    outs = [helper.make_tensor_value_info("tags", 1, None)]
    weights = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "tagger", ins, outs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return made, feeds, [x @ last.astype(np.float64)]


def run(model: Any, feeds: Mapping[str, Any], wanted: Sequence[Any]) -> list[Any]:
    """Return whether a device gives what is wanted, the largest bound, and where nodes ran."""
    graph = OnnxModel.load(model).specialise({n: a.shape for n, a in feeds.items()})
    known = program(graph)
    numbers = {n: exact(a) for n, a in feeds.items()}
    bounds = tensor_errors([known[n] for n in graph.outputs], numbers, 0.0)
    policy = gpuedge.Policy(crosscheck=0)
    with gpuedge.Session(
        model, device=sys.argv[1], policy=policy, fallback="error"
    ) as session:  # fmt: skip
        results = session.run(dict(feeds))
        where = sorted({row.device for row in session.placement})
    near, most = True, 0.0
    for name, value, bound in zip(graph.outputs, wanted, bounds, strict=True):
        u = 2.0**-11 if results[name].dtype == np.float16 else 0.0
        allowed = FACTOR * bound.e + u * (np.abs(value) + 2.0**-13)
        near = near and bool((np.abs(results[name].astype(np.float64) - value) <= allowed).all())
        most = max(most, float(allowed.max()))
    return [near, most, where]


def main() -> None:
    gpuedge.probe(deadline_s=60)
    found = []
    for number, (op, attrs, has) in enumerate(CASES):
        for dtype in ("float32", "float16"):
            given = drawn(op, number, attrs=attrs, has=has, dtype=dtype)
            if "lens" in given:
                given["lens"][0] = 0
            feeds = {n: a for n, a in given.items() if n in ("X", "lens", "h", "c")}
            wanted = reference(op, attrs, given)
            found.append([f"{op} {number} {dtype}", *run(single(op, attrs, given), feeds, wanted)])
    found.append(["tagger", *run(*tagger())])
    assert set(DEFAULTS) == {case[0] for case in CASES}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
