"""The switch of all rewrites: the same results operator by operator, from more kernels.

`test_plan_fuzz` compares random graphs without rewrites with float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model, value, weight
from planrun import FLOAT_TEXTURES, TEXTURES, WIDE, plan_device, run_graph, seen_by

import gpuedge
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import ConfigError
from gpuedge.graph.ir import Array, Graph
from gpuedge.graph.reader import OnnxModel
from gpuedge.plan.planner import plan

DEVICES = {
    "minimum": VULKAN_MINIMUM, "wide": WIDE, "gles30": FLOAT_TEXTURES, "gles20": TEXTURES,
}  # fmt: skip
RNG = np.random.default_rng(3)


def whole(*shape: int) -> Array:
    return RNG.integers(-2, 3, shape).astype(np.float32)


def network() -> onnx.ModelProto:
    """Every rewrite in one model: folding, epilogues, chains, views, concatenation."""
    node = helper.make_node
    nodes = [
        node("Add", ["half", "half"], ["shift"]),
        node("Conv", ["x", "w", "bias"], ["conv"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["conv", "scale", "shift", "mean", "var"], ["bn"], epsilon=0.0),
        node("Relu", ["bn"], ["relu"]),
        node("Conv", ["relu", "w2"], ["conv2"], pads=[1, 1, 1, 1]),
        node("Add", ["conv2", "relu"], ["sum"]),
        node("Transpose", ["sum"], ["last"], perm=[0, 2, 3, 1]),
        node("Mul", ["last", "two"], ["twice"]),
        node("Transpose", ["twice"], ["first"], perm=[0, 3, 1, 2]),
        node("Concat", ["first", "relu"], ["both"], axis=1),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Concat", ["batch", "rest"], ["to"], axis=0),
        node("Reshape", ["both", "to"], ["flat"]),
        node("MatMul", ["flat", "matrix"], ["product"]),
        node("Max", ["product", "two"], ["y"]),
    ]
    weights: dict[str, Any] = {
        "half": whole(4), "w": whole(4, 3, 3, 3),
        "bias": whole(4), "scale": whole(4), "mean": whole(4), "var": np.ones(4, np.float32),
        "w2": whole(4, 4, 3, 3), "two": np.float32(2), "zero": np.array([0]),
        "rest": np.array([-1]), "matrix": whole(8 * 25, 6),
    }  # fmt: skip
    held = [weight(n, v) for n, v in weights.items()]
    return model(nodes, [value("x", [2, 3, 5, 5])], [value("y", None)], held)


def both(proto: onnx.ModelProto) -> tuple[Graph, Graph]:
    read = OnnxModel.load(proto)
    return read.specialise(), read.specialise(rewrites=False)


def differences(
    graphs: tuple[Graph, Graph], feeds: dict[str, Array], caps: Caps, bound: float
) -> None:
    rewritten, plain = graphs
    got = run_graph(rewritten, feeds, caps)
    want = run_graph(plain, feeds, caps, rewrites=False)
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("device", DEVICES)
def test_a_network_gives_the_same_bits_without_rewrites(device: str) -> None:
    differences(both(network()), {"x": whole(2, 3, 5, 5)}, DEVICES[device], 0.0)


def test_without_rewrites_every_operator_has_kernels_of_its_own() -> None:
    rewritten, plain = both(network())
    views = {"Reshape"}
    steps = plan(plain, WIDE, rewrites=False).steps
    assert [step.ops for step in steps] == [(n.op,) for n in plain.nodes]
    assert all(step.variants for step in steps if not views & set(step.ops))
    assert len(plan(rewritten, WIDE).passes) < len(plan(plain, WIDE, rewrites=False).passes)


def test_what_planning_needs_is_folded_all_the_same() -> None:
    rewritten, plain = both(network())
    assert [n.outputs[0] for n in rewritten.folded] == ["shift", "shape", "batch", "to"]
    assert [n.outputs[0] for n in plain.folded] == ["shape", "batch", "to"]


def test_a_session_is_told_by_its_policy() -> None:
    proto, x = network(), whole(2, 3, 5, 5)
    results, passes = [], []
    for rewrites in (True, False):
        device = plan_device(WIDE)
        policy = gpuedge.Policy(rewrites=rewrites, crosscheck=0)
        with gpuedge.Session(proto, device=device, policy=policy) as session:
            results.append(session.run({"x": x})["y"])
        passes.append(seen_by(device).passes)
    np.testing.assert_array_equal(*results)
    assert passes[0] < passes[1]
    with pytest.raises(ConfigError, match="rewrites"):
        gpuedge.Policy(rewrites=1)  # type: ignore[arg-type]
