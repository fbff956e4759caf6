"""Runs models with an If whose condition planning knows; run by test_branches for some levels.

``python branches_child.py DEVICE`` prints a list: of each model opset, kind, shape, whether the
result is that of ONNX Runtime, and on what its nodes ran.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import gpuedge

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnx_models import model, value, weight

OPSETS = (11, 13, 17, 21)
SHAPES = ((1, 3), (4, 3))


def branch(name: str, nodes: list[onnx.NodeProto], out: str, **weights: Any) -> onnx.GraphProto:
    held = [weight(n, array) for n, array in weights.items()]
    return helper.make_graph(nodes, name, [], [value(out, None)], held)


def choice(test: str, out: str, factor: float) -> onnx.NodeProto:
    """Return x * factor + 1 or -x, by names that every such If has."""
    two = np.full(3, factor, np.float32)
    then = [
        helper.make_node("Mul", ["x", "f"], ["t"]),
        helper.make_node("Add", ["t", "one"], ["r"]),
    ]
    return helper.make_node(
        "If", [test], [out],
        then_branch=branch("then", then, "r", f=two),
        else_branch=branch("else", [helper.make_node("Neg", ["x"], ["r"])], "r"),
    )  # fmt: skip


def from_shape(opset: int) -> onnx.ModelProto:
    """Ifs of equal names inside, by whether the batch is 1, and by whether it is not."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Equal", ["n", "single"], ["is"]),
        helper.make_node("Not", ["is"], ["not"]),
        choice("is", "a", 2.0), choice("is", "b", 4.0), choice("not", "c", 8.0),
        helper.make_node("Sum", ["a", "b", "c"], ["y"]),
    ]  # fmt: skip
    held = [weight("zero", np.array(0)), weight("single", np.array(1)),
            weight("one", np.ones(3, np.float32))]  # fmt: skip
    return model(nodes, [value("x", ["N", 3])], [value("y", ["N", 3])], held, opset)


def nested(opset: int) -> onnx.ModelProto:
    """An If in an If, whose branches give a weight and an outer value as they are."""
    inner = helper.make_node(
        "If", ["no"], ["u", "v"],
        then_branch=helper.make_graph([], "t", [], [value("k", [3]), value("k", [3])],
                                      [weight("k", np.ones(3, np.float32))]),
        else_branch=helper.make_graph(
            [helper.make_node("Exp", ["m"], ["k"]), helper.make_node("Identity", ["m"], ["l"])],
            "e", [], [value("k", None), value("l", None)]),
    )  # fmt: skip
    outer = [
        helper.make_node("Relu", ["x"], ["m"]),
        inner,
        helper.make_node("Sub", ["u", "v"], ["k"]),
    ]
    last = helper.make_node(
        "If", ["yes"], ["y"], then_branch=branch("then", outer, "k"),
        else_branch=branch("else", [helper.make_node("Abs", ["x"], ["k"])], "k"),
    )  # fmt: skip
    held = [weight("yes", np.array(True)), weight("no", np.array([False]))]
    return model([last], [value("x", ["N", 3])], [value("y", ["N", 3])], held, opset)


def main() -> None:
    gpuedge.probe(deadline_s=60)
    found = []
    for opset in OPSETS:
        for make in (from_shape, nested):
            proto = make(opset)
            truth = onnxruntime.InferenceSession(proto.SerializeToString())
            with gpuedge.Session(proto, device=sys.argv[1], fallback="error") as session:
                for shape in SHAPES:
                    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 2
                    (wanted,) = truth.run(None, {"x": x})
                    got = session.run({"x": x})["y"]
                    near = np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()
                    is_same = bool(near if make is nested else np.array_equal(got, wanted))
                    where = sorted({row.device for row in session.placement})
                    found.append([opset, make.__name__, shape, is_same, where])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
