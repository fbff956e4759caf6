"""Divides the least integers by -1 on the CPU, by inputs, computed values, weights and in a branch.

Usage: python division_child.py DTYPE
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import gpuedge

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnx_models import model, value, weight

DTYPE = np.dtype(sys.argv[1])
LEAST, BITS, ELEMENT = np.iinfo(DTYPE).min, DTYPE.itemsize * 8, {4: 6, 8: 7}[DTYPE.itemsize]
A = np.array([LEAST, LEAST, 7, -7, -7, 5], DTYPE)
B = np.array([-1, 1, -1, 2, -2, LEAST], DTYPE)


def wanted(op: str) -> list[int]:
    """Return quotients cut off, modulo 2^BITS, or remainders with the sign of the divisor."""
    pairs = [(int(a), int(b)) for a, b in zip(A, B, strict=True)]
    if op == "Mod":
        return [a % b for a, b in pairs]
    cut = [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in pairs]
    return [(q - LEAST) % 2**BITS + LEAST for q in cut]


def built(op: str, how: str) -> tuple[Any, dict[str, Any]]:
    """Return a model that divides, and its inputs."""
    inputs, feed, held = [value("a", [6], ELEMENT)], {"a": A}, []
    if how == "weight":
        held = [weight("b", B)]
    else:
        inputs, feed = [*inputs, value("b", [6], ELEMENT)], {**feed, "b": B}
    node = helper.make_node(op, ["a", "b"], ["y"], name="n")
    nodes = [node]
    if how == "computed":
        held = [weight("zero", np.zeros(1, DTYPE))]
        nodes = [helper.make_node("Sub", ["b", "zero"], ["c"]),
                 helper.make_node(op, ["a", "c"], ["y"])]  # fmt: skip
    if how == "branch":
        branches = {
            f"{name}_branch": helper.make_graph(
                [helper.make_node(kind, ["a", "b"], [name])], name, [], [value(name, [6], ELEMENT)]
            )
            for name, kind in (("then", op), ("else", "Sub"))
        }
        nodes = [helper.make_node("If", ["test"], ["y"], **branches)]
        inputs = [*inputs, value("test", [], TensorProto.BOOL)]
        feed["test"] = np.array(True)
    return model(nodes, inputs, [value("y", [6], ELEMENT)], held), feed


count = 0
for op in ("Div", "Mod"):
    for how in ("input", "computed", "weight", "branch"):
        proto, feed = built(op, how)
        for opset in (10, 17):
            proto.opset_import[0].version = opset
            for device in ("cpu", "auto"):
                with gpuedge.Session(proto, device=device) as session:
                    found = session.run(feed)["y"]
                assert found.tolist() == wanted(op), (op, how, opset, device, found)
                count += 1
print(count)
