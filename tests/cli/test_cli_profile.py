"""``gpuedge run --profile`` and ``--trace``, and what `Session.profile` says of each step."""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest

import gpuedge
from gpuedge.cli import profile
from gpuedge.cli.main import main
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.reader import OnnxModel

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
IMAGE = np.random.default_rng(2).random((4, 1, 8, 8), np.float32)

TRACE = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object", "additionalProperties": {"type": "string"}},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "ph", "pid", "tid"],
                "properties": {
                    "name": {"type": "string"}, "cat": {"type": "string"},
                    "pid": {"type": "integer"}, "tid": {"type": "integer"},
                    "args": {"type": "object"},
                },
                "oneOf": [
                    {
                        "required": ["ts", "dur"],
                        "properties": {
                            "ph": {"const": "X"},
                            "ts": {"type": "number", "minimum": 0},
                            "dur": {"type": "number", "minimum": 0},
                        },
                    },
                    {
                        "required": ["args"],
                        "properties": {
                            "ph": {"const": "M"},
                            "name": {"enum": ["process_name", "thread_name"]},
                            "args": {"required": ["name"]},
                        },
                    },
                ],
            },
        },
    },
}  # fmt: skip
"""Complete and metadata events, as the description of the Trace Event Format has them."""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", IMAGE)
    return tmp_path / "x.npy"


def check_trace(body: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Check a trace: its form, and that no two events of a line are at the same time."""
    jsonschema.validate(body, TRACE)
    events = [e for e in body["traceEvents"] if e["ph"] == "X"]
    lines = {e["tid"]: e["args"]["name"] for e in body["traceEvents"] if e["name"] == "thread_name"}
    assert {e["tid"] for e in events} == set(lines)
    for line in lines:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == line)
        assert all(end <= start + 2 for (_, end), (start, _) in pairwise(own))
    drawn = [e for e in events if e["cat"] == "step"]
    assert [e["args"]["nodes"] for e in drawn] == [s["nodes"] for s in steps]
    assert [lines[e["tid"]] for e in drawn] == [s["device"] for s in steps]
    np.testing.assert_allclose(
        [e["dur"] for e in drawn], [s["seconds"] * 1e6 for s in steps], atol=1e-3
    )


def test_a_trace_has_every_step_of_the_run(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "new" / "trace.json"
    given = ["run", str(DIGITS), "--input", f"image={image}", "--device", "cpu", "--repeat", "3"]
    assert main([*given, "--trace", str(trace), "--json"]) == 0
    body, drawn = json.loads(capsys.readouterr().out), json.loads(trace.read_text())
    check_trace(drawn, body["steps"])
    assert body["trace"] == str(trace)
    assert [e["name"] for e in drawn["traceEvents"] if e.get("cat") == "run"] == [
        "open", "first run", "run", "run"
    ]  # fmt: skip
    assert drawn["otherData"]["device"] == "cpu"
    assert sum(s["seconds"] for s in body["steps"]) < 5


def test_a_table_has_a_row_for_each_step(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", str(DIGITS), "--input", f"image={image}", "--device", "cpu"]
    assert main(given) == 0
    assert "Time of each step" not in capsys.readouterr().out
    assert main([*given, "--profile"]) == 0
    out = capsys.readouterr().out
    assert out.partition("Time of each step")[2].count("onnxruntime 1.") >= 5
    shares = [word for word in out.split() if word.endswith("%")]
    assert abs(sum(float(s[:-1]) for s in shares) - 100) < 0.06 * len(shares)
    assert "one step at a time" in out


def test_steps_on_the_cpu_are_those_of_onnxruntime() -> None:
    with gpuedge.Session(DIGITS, device="cpu") as session:
        assert session.profile()["steps"] == []
        begin = time.perf_counter()
        steps = session.profile({"image": IMAGE})["steps"]
        end = time.perf_counter()
        assert session.health.on_cpu == 1
    assert {s["device"] for s in steps} == {"cpu"}
    ops = [op for s in steps for op in s["ops"]]
    assert [op for op in ops if op in ("Conv", "MaxPool", "Softmax")] == [
        "Conv", "MaxPool", "Conv", "MaxPool", "Softmax"
    ]  # fmt: skip
    assert steps[-1]["nodes"] == ["softmax"]
    assert steps[-1]["nbytes"] == 2 * 4 * 10 * 4  # reads and writes (4, 10) float32
    for before, after in pairwise(steps):
        assert begin < before["start_s"] < after["start_s"] < end
        assert 0 <= before["seconds"] < end - begin


def test_numpy_is_one_step() -> None:
    graph = OnnxModel.load(DIGITS).specialise({"image": IMAGE.shape})
    one = CpuExecutor(engine="numpy").compile(graph)
    found, (step,) = one.timed({"image": IMAGE})
    np.testing.assert_array_equal(
        found["probabilities"], one.run({"image": IMAGE})["probabilities"]
    )
    assert len(step.row.nodes) == 11
    assert step.row.kernel == "numpy"
    assert step.nbytes == IMAGE.nbytes + 4 * 10 * 4
    assert step.ns > 0


def test_a_model_that_computes_nothing_has_no_steps(tmp_path: Path) -> None:
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])
    graph = onnx.helper.make_graph([], "empty", [info], [info])
    model = onnx.helper.make_model(graph, ir_version=8)
    with gpuedge.Session(model, device="cpu") as session:
        assert session.profile({"x": np.zeros(3, np.float32)})["steps"] == []


def test_wrong_inputs_of_a_profile_are_told() -> None:
    with (
        gpuedge.Session(DIGITS, device="cpu") as session,
        pytest.raises(gpuedge.GpuEdgeError, match="picture"),
    ):
        session.profile({"picture": IMAGE})


def test_a_sum_of_nothing_is_no_division_by_zero() -> None:
    step = {
        "ops": ["Add"],
        "kernel": "k",
        "device": "cpu",
        "seconds": 0.0,
        "nbytes": 0,
        "nodes": [],
    }
    assert profile.rows([step])[0][5] == "0.0%"
    assert sys.getsizeof(profile.trace([("open", 1.0, 2.0)], [], {"model": "m"})) > 0
