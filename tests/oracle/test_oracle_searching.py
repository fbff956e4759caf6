"""What the suite asks of operators that search, count or sample is what ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import pytest
from planrun import plan_device

import gpuedge
from gpuedge.conformance.case import compare
from gpuedge.conformance.catalogue import drawn
from gpuedge.conformance.searching import DRAWERS
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.opset.bounds import Array

ROWS = {op: (count, draw, kinds) for count, kinds, row in DRAWERS for op, draw in row.items()}


@pytest.mark.parametrize("op", ROWS)
def test_the_oracle_says_what_onnx_runtime_computes(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuExecutor, "_made", lambda self, graph, _: self._written(graph))
    device = gpuedge.open("cpu")
    results: list[Array] = []
    for case in drawn(f"every onnx {op}", *ROWS[op]):
        built = case.build()
        runs = built.runs(device)
        results.append(next(runs))
        verdict = compare(results[-1], built.reference(None), case.dtype)
        assert verdict.ok, (case.id, verdict.message)
        runs.close()
    assert len(results) == ROWS[op][0]
    assert sum(len(np.unique(result)) > 1 for result in results) >= len(results) / 2


@pytest.mark.parametrize("op", ROWS)
def test_a_device_is_given_the_operator_itself(op: str) -> None:
    """Not what it is written as for ONNX Runtime."""
    _, draw, kinds = ROWS[op]
    for case in drawn(f"every onnx {op}", 2, draw, kinds):
        verdict = case.judge(plan_device())
        assert verdict.ok, (case.id, verdict.message)
