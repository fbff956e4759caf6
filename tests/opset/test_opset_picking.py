"""Results whose length only values tell, in models: what leaves a device, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from planrun import plan_device
from single_node import single

import gpuedge
from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.graph.ir import TensorType


def kinds(**shapes: tuple[int, ...]) -> dict[str, TensorType]:
    return {name: TensorType("float32", shape) for name, shape in shapes.items()}


def test_what_no_device_picks() -> None:
    with pytest.raises(UnsupportedOpError, match="elements of a scalar"):
        single("NonZero", kinds(x=()))
    most = {"most": np.array([2**40])}
    with pytest.raises(UnsupportedOpError, match="up to 600 boxes"):
        single("NonMaxSuppression", kinds(boxes=(1, 600, 4), scores=(1, 2, 600)), None, most)
    with pytest.raises(ShapeError, match="needs boxes"):
        single("NonMaxSuppression", kinds(boxes=(1, 9, 4), scores=(1, 2, 8)), None, most)


def model(*, is_read: bool) -> Any:
    """Return a model of what is not zero in -x; where it is read, times two."""
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4]),
            helper.make_tensor_value_info("y", TensorProto.INT64, None)]  # fmt: skip
    nodes = [helper.make_node("Neg", ["x"], ["n"], "neg"),
             helper.make_node("NonZero", ["n"], ["z" if is_read else "y"], "places")]  # fmt: skip
    if is_read:
        nodes.append(helper.make_node("Add", ["z", "z"], ["y"], "twice"))
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 4]], np.float32)


def test_a_result_of_any_length_leaves_the_device_cut() -> None:
    with gpuedge.Session(model(is_read=False), device=plan_device(), fallback="error") as session:
        for x in (X, X * 0, X + 1):
            got = session.run({"x": x})["y"]
            np.testing.assert_array_equal(got, np.stack(np.nonzero(x)))
        assert session.profile()["compile"]["count"] == 1
        assert session.refusals == {}


def test_what_is_read_by_other_nodes_runs_on_the_cpu() -> None:
    """A kernel has no way to work on part of a tensor; said by name."""
    with gpuedge.Session(model(is_read=True), device=plan_device()) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], 2 * np.stack(np.nonzero(X)))
        on_cpu = {n for row in session.placement if row.device == "cpu" for n in row.nodes}
        assert on_cpu == {"places", "twice"}
        assert "whose size only values tell" in session.refusals["places"]
    with pytest.raises(UnsupportedOpError, match="cannot run") as refused:
        gpuedge.Session(model(is_read=True), device=plan_device(), fallback="error")
    assert "'twice' reads 'z', whose size only values tell" in str(refused.value)
