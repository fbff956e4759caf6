"""ONNX's own cases of single operators, by what the descriptions say, in numpy."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from planrun import plan_device

import gpuedge
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.reader import OnnxModel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from onnx_cases import CASES

FAMILIES = 16
"""Parts that the cases are tried in."""


@cache
def models() -> dict[str, Any]:
    """Return the core cases of single operators by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {case.name.removeprefix("test_"): case for case in collect_testcases(None)}
    return {name: found[name] for name in CASES if name in found}


def differs(case: Any) -> str:
    """Return what is wrong with a case; empty if nothing is."""
    model = OnnxModel.load(case.model)
    for given, wanted in case.data_sets:
        arrays = dict(zip(model.inputs, map(_array, given), strict=True))
        fixed = {n: a for n, a in arrays.items() if n in model.parameters}
        graph = model.specialise({n: a.shape for n, a in arrays.items()}, fixed)
        engine = CpuExecutor(engine="numpy")
        why = [w for node in graph.nodes if (w := engine.supports(node, graph)) is not None]
        if why:
            return "unsupported: " + why[0]
        try:
            got = engine.compile(graph).run(arrays)
        except UnsupportedOpError as error:
            return f"unsupported: {error.what}"
        for name, right in zip(model.outputs, map(_array, wanted), strict=True):
            if got[name].dtype != right.dtype or got[name].shape != right.shape:
                return f"{got[name].dtype} {got[name].shape} instead of {right.dtype} {right.shape}"
            if not np.allclose(got[name], right, rtol=case.rtol, atol=case.atol, equal_nan=True):
                return "other values"
    return ""


def _array(value: Any) -> Any:
    return value if isinstance(value, np.ndarray | np.generic) else numpy_helper.to_array(value)


@pytest.mark.parametrize("part", range(FAMILIES))
def test_every_case(part: int) -> None:
    names = list(models())[part::FAMILIES]
    found = {name: differs(models()[name]) for name in names}
    assert {name: why for name, why in found.items() if why} == {}


def test_a_session_is_compiled_for_the_values_of_parameters() -> None:
    """A named device takes the shape of a Reshape as an input, and keeps what it compiled."""
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in (("x", [6]), ("y", [None, None]))]  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Neg", ["r"], ["y"])],
        "g", [ends[0], shape], ends[1:])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.arange(6, dtype=np.float32)
    with gpuedge.Session(model, device=plan_device(), fallback="error") as session:
        assert session.placement == ()  # nothing to plan before the first request
        for extents in ((2, 3), (3, 2), (2, 3), (1, 6)):
            got = session.run({"x": x, "shape": np.array(extents, np.int64)})["y"]
            np.testing.assert_array_equal(got, -x.reshape(extents))
        assert session.profile()["compile"]["count"] == 3
