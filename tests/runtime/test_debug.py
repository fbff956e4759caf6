"""The ladder of GPUEDGE_DEBUG: each level adds its own lines, level 0 is silent."""

from __future__ import annotations

import numpy as np
import pytest
from faulty import FaultyPool
from single_node import single

from gpuedge.core import debug
from gpuedge.graph.ir import TensorType
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.request import Request

MARKS = ["Runs on vulkan:0", " us", "elementwise_map {", "kernel map elementwise"]


@pytest.mark.parametrize("level", range(5))
def test_each_level_adds_its_lines(
    level: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUEDGE_DEBUG", str(level))
    graph = single("Relu", {"x": TensorType("float32", (4,))}, {})
    CompiledModel(graph, Request("vulkan"), FaultyPool()).run({"x": np.ones(4, np.float32)})
    said = capsys.readouterr().err
    assert [mark in said for mark in MARKS] == [i < level for i in range(4)]
    assert bool(said) == bool(level)


def test_level_five_shows_every_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUEDGE_DEBUG", "5")

    class Target:
        size = 3

        def add(self, a: int, b: bytes) -> int:
            return a + len(b)

    traced = debug.Traced(Target())
    assert traced.size == 3
    assert traced.add(1, b"xy") == 3
    assert "gpuedge[5] add(1, bytes)" in capsys.readouterr().err
