"""Threads of ONNX Runtime: how long they wait for the next run."""

from __future__ import annotations

import onnxruntime
import pytest
from onnx import TensorProto, helper

from gpuedge.executors.cpu import _session, spinning


@pytest.mark.parametrize("version", ["1.17.0", "1.25.2"])
def test_threads_of_an_old_runtime_stop_at_once(version: str) -> None:
    assert spinning(version) == ("session.force_spinning_stop", "1")


@pytest.mark.parametrize("version", ["1.26.0", "1.33.0.dev20261101", "2.0.1"])
def test_threads_of_a_new_one_wait_for_a_millisecond(version: str) -> None:
    assert spinning(version) == ("session.intra_op.spin_duration_us", "1000")


def test_the_runtime_here_takes_the_setting() -> None:
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    made = _session(model.SerializeToString(), threads=2)
    key, wanted = spinning(onnxruntime.__version__)
    assert made.get_session_options().get_session_config_entry(key) == wanted
