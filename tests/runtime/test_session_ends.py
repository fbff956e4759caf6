"""Requests that were given up, forks and the end of the program: bounded, and a clean status."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import os, sys, time
import numpy as np
import gpuedge
from onnx import TensorProto, helper, numpy_helper

def loop(count, size):
    value = helper.make_tensor_value_info
    kept = [size, size]
    body = helper.make_graph(
        [helper.make_node("MatMul", ["a", "w"], ["t"]), helper.make_node("Tanh", ["t"], ["b"]),
         helper.make_node("Identity", ["c"], ["d"])], "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []),
         value("a", TensorProto.FLOAT, kept)],
        [value("d", TensorProto.BOOL, []), value("b", TensorProto.FLOAT, kept)])
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], "graph",
        [value("x", TensorProto.FLOAT, kept)], [value("y", TensorProto.FLOAT, kept)],
        [numpy_helper.from_array(np.array(count, np.int64), "n"),
         numpy_helper.from_array(np.eye(size, dtype=np.float32), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

x = np.zeros((256, 256), np.float32)
"""


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + program], capture_output=True, text=True, check=False,
        timeout=60, env={k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"},
    )  # fmt: skip


@pytest.mark.parametrize("closes", [True, False])
def test_long_runs_on_the_cpu_that_were_given_up_end(closes: bool) -> None:
    """Each would take a minute; a session with two of them closes, and so does the program."""
    done = ended(f"""
session = gpuedge.Session(loop(60_000, 256), device="cpu")
for _ in range(2):
    try:
        session.run({{"x": x}}, timeout_s=0.3)
    except gpuedge.GpuEdgeError as error:
        print(error.code)
start = time.monotonic()
if {closes}:
    session.close()
    assert time.monotonic() - start < 30
""")
    assert (done.returncode, done.stdout.split()) == (0, ["GE-406", "GE-406"]), done.stderr
    assert done.stderr == ""


def test_the_session_goes_on_after_a_run_that_was_given_up() -> None:
    done = ended("""
session = gpuedge.Session(loop(3_000, 256), device="cpu")
try:
    session.run({"x": x}, timeout_s=0.1)
except gpuedge.GpuEdgeError as error:
    print(error.code)
print(session.run({"x": x})["y"].sum(), session.health.state)
""")
    assert (done.returncode, done.stdout.split()) == (0, ["GE-406", "0.0", "cpu"]), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("leave", ["sys.exit(3)", "del session; sys.exit(3)"])
def test_a_child_forked_after_a_run_ends_with_its_own_status(leave: str) -> None:
    """What ONNX Runtime holds would be destroyed there without its threads."""
    done = ended(f"""
session = gpuedge.Session(loop(4, 256), device="cpu")
session.run({{"x": x}})
gpuedge.matmul(x, x, device="cpu")
pid = os.fork()
if pid == 0:
    {leave}
until = time.monotonic() + 20
while (found := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < until:
    time.sleep(0.01)
print(found[0] == pid, os.waitstatus_to_exitcode(found[1]) if found[0] else os.kill(pid, 9))
""")
    assert (done.returncode, done.stdout.split()) == (0, ["True", "3"]), done.stderr
