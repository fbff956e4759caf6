"""Infinity inside of models, on a named device: answers, placement and errors, as JSON.

Usage: python infinity_child.py DEVICE [finite]

With `finite` the device counts as one whose known answers with infinities were wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx_models import model, value, weight

import gpuedge
from gpuedge.core.errors import GpuEdgeError
from gpuedge.executors.gpu import GpuExecutor

INF = np.float32(np.inf)
Case = tuple[str, onnx.ModelProto, dict[str, Any]]


def attention(name: str, masks: dict[str, Any], **attrs: int) -> Case:
    """Return a masked Attention of four heads."""
    rng = np.random.default_rng(3)
    feeds = {n: rng.standard_normal((1, 6, 32)).astype(np.float32) for n in "qkv"} | masks
    heads = {"q_num_heads": 4, "kv_num_heads": 4}
    node = helper.make_node("Attention", [*feeds], ["y"], name="first", **heads, **attrs)
    kinds = [value(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in feeds.items()]
    return name, model([node], kinds, [value("y", None)], opset=23), feeds


def chain(name: str, nodes: list[Any], held: dict[str, Any]) -> Case:
    """Return a model of six by six numbers; the last node computes `y`."""
    made = [helper.make_node(op, i, [o], name=label) for op, i, o, label in nodes]
    ends = [value("x", [6, 6])], [value("y", [6, 6])]
    x = np.random.default_rng(4).standard_normal((6, 6)).astype(np.float32)
    proto = model(made, *ends, [weight(n, a) for n, a in held.items()])
    return name, proto, {"x": x}


def cases() -> Iterator[Case]:
    below = np.tril(np.ones((6, 6), bool))
    above = np.where(below, np.float32(0), -INF)
    yield attention("causal", {}, is_causal=1)
    yield attention("masked", {"m": below})
    last = ("Softmax", ["a"], "y", "last")
    yield chain("add", [("Add", ["x", "u"], "a", "first"), last], {"u": above})
    yield chain("where", [("Where", ["m", "x", "u"], "a", "first"), last], {"m": below, "u": -INF})
    nodes = [("Relu", ["x"], "r", "before"), ("Add", ["r", "u"], "a", "first"), last]
    yield chain("between", nodes, {"u": above})
    for name, low, high in [("low", -INF, 0.5), ("high", 0, INF), ("none", -INF, INF)]:
        held = {"lo": np.float32(low), "hi": np.float32(high)}
        yield chain(f"clip {name}", [("Clip", ["x", "lo", "hi"], "y", "first")], held)
    yield chain("clip all", [("Clip", ["x", "lo"], "y", "first")], {"lo": INF})


def answer(proto: onnx.ModelProto, feeds: dict[str, Any], want: Any, fallback: str) -> Any:
    """Return how far off a session is and what ran where, or its error."""
    try:
        with gpuedge.Session(proto, device=sys.argv[1], fallback=fallback) as session:
            got = session.run(feeds)["y"]
            session.profile(feeds)
            health = session.health
            return {
                "off": float(np.abs(np.where(got == want, 0, got - want)).max()),
                "cpu": [n for row in session.placement if row.device == "cpu" for n in row.nodes],
                "health": [health.state, health.on_device, health.on_cpu, health.failures],
            }
    except GpuEdgeError as error:
        return f"{error.code} {error}"


def main() -> None:
    found: dict[str, Any] = {}
    if sys.argv[2:] == ["finite"]:
        made = GpuExecutor.__init__
        GpuExecutor.__init__ = lambda *a, **more: made(  # type: ignore[method-assign]
            *a, **more | {"is_finite_only": True}
        )
    for name, proto, feeds in cases():
        read = onnxruntime.InferenceSession(proto.SerializeToString())
        want = read.run(None, feeds)[0]
        found[name] = {f: answer(proto, feeds, want, f) for f in ("cpu", "error")}
        if name in ("between", "clip low"):
            feeds["x"][2, 1] = -INF
            want = read.run(None, feeds)[0]
            found[f"{name}, own"] = {"cpu": answer(proto, feeds, want, "cpu")}
    print(json.dumps(found))


main()
