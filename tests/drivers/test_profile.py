"""Runs step by step: the same results to the bit, and a time for everything that runs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from farm import answer

from gpuedge.backends.device import OpenDevice
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.reader import OnnxModel
from gpuedge.plan.planner import label

CHILD = Path(__file__).with_name("profile_child.py")
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
MOVES = [["submit"], ["upload"], ["download"]]


@pytest.mark.parametrize("rewrites", [True, False])
def test_steps_compute_what_one_run_computes(vulkan_device: OpenDevice, rewrites: bool) -> None:
    graph = OnnxModel.load(DIGITS).specialise({"image": (5, 1, 8, 8)})
    executor = GpuExecutor(vulkan_device, "vulkan:0")
    feed = {"image": np.random.default_rng(1).random((5, 1, 8, 8), np.float32)}
    try:
        one = executor.compile(graph, rewrites=rewrites)
        wanted = one.run(feed)
        submits = vulkan_device.counters.submits
        found, times = one.timed(feed)
        counted = vulkan_device.counters.submits - submits
        assert counted == len(times) + 1  # and one run before
        one.run({"image": feed["image"][::-1].copy()})
        one._compute = lambda _: None  # type: ignore[method-assign]  # nothing of it is left there
        again, _ = one.timed(feed)
        del one._compute  # type: ignore[method-assign]
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)
            np.testing.assert_array_equal(again[name], array)
        np.testing.assert_array_equal(one.run(feed)["probabilities"], wanted["probabilities"])
        one.close()
    finally:
        executor.closed = True
    named = [name for step in times for name in step.row.nodes]
    views = {name for row in one.rows if row.kernel == "view" for name in row.nodes}
    assert sorted(named) == sorted(label(n) for n in graph.nodes if label(n) not in views)
    assert len(views) < 2
    assert all(step.ns > 0 for step in times)
    assert [list(s.row.ops) for s in (*times[:2], times[-1])] == MOVES
    assert times[-1].nbytes >= 5 * 10 * 4


@pytest.mark.driver
@pytest.mark.parametrize(
    ("name", "isolation"),
    [("gles20-llvmpipe", "process"), ("gles31-llvmpipe", "inline"), ("wgpu-lavapipe", "inline")],
)
def test_every_level_says_what_its_steps_take(name: str, isolation: str, tmp_path: Path) -> None:
    body = json.loads(answer(CHILD, name, isolation))
    assert body["same"]
    steps = body["steps"]
    ran = [(s["nodes"], s["kernel"]) for s in steps if s["nodes"]]
    assert ran == [(r["nodes"], r["kernel"]) for r in body["rows"] if r["kernel"] != "view"]
    assert [s["ops"] for s in (*steps[:2], steps[-1])] == MOVES
    for before, after in pairwise(steps):
        assert before["start_s"] + before["seconds"] <= after["start_s"]
