"""What gpuedge adds to one inference: over onnxruntime on the CPU, over bare submits on a GPU."""

from __future__ import annotations

import numpy as np
import onnxruntime
from common import devices, medians, percentiles, report
from onnx import TensorProto, helper
from truth.models import MODELS, NETWORKS, sample

import gpuedge


def relu_model(size: int) -> bytes:
    """Return a model of one Relu over `size` values: as little work as a model can have."""
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [size]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "relu", value[:1], value[1:]
    )
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())


def served(name: str) -> list[object]:
    """A network under ``auto``, where the CPU answers, against ONNX Runtime alone.

    Two kinds of that: as it is, when its threads keep all cores busy for a while after each run,
    and so that they do not, as gpuedge has it.
    """
    model, quiet = MODELS[name](), onnxruntime.SessionOptions()
    quiet.add_session_config_entry("session.force_spinning_stop", "1")
    plain = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    still = onnxruntime.InferenceSession(model, quiet, providers=["CPUExecutionProvider"])
    with gpuedge.Session(model) as session:
        feeds = {"x": sample(session.inputs["x"][1])}
        found = percentiles(
            {
                "auto": lambda: session.run(feeds),
                "plain": lambda: plain.run(None, feeds),
                "still": lambda: still.run(None, feeds),
            }
        )
        device = session.health.device
    mine = found.pop("auto")
    ratios = [f"{mine[what] / theirs[what]:.2f}" for theirs in found.values() for what in mine]
    return [name, device, *(f"{seconds * 1e6:.0f}" for seconds in mine.values()), *ratios]


def main() -> None:
    """Measure and print."""
    report(
        "networks under auto, microseconds per inference, and times those of onnxruntime",
        ("network", "device", "p50", "p90", "processor", "p50 /", "p90 /", "processor /",
         "without spinning: p50 /", "p90 /", "processor /"),
        [served(name) for name in NETWORKS],
    )  # fmt: skip
    model, x = relu_model(16), np.ones(16, np.float32)
    direct = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    rows = []
    for device in ("auto", "cpu"):
        with gpuedge.Session(model, device=device) as session:
            found = medians(
                {
                    "direct": lambda: direct.run(None, {"x": x}),
                    "session": lambda s=session: s.run({"x": x}),
                    "op": lambda d=device: gpuedge.relu(x, device=d),
                }
            )
        for name, what in (("session", "Session.run"), ("op", "gpuedge.relu")):
            rows.append(row(device, what, "onnxruntime alone", found[name], found["direct"]))
    for device in devices():
        with gpuedge.Session(model, device=device, fallback="error") as session:
            session.run({"x": x})
            executable = session._latest.choice.placed.whole  # the recorded work itself
            impl, recording = executable.executor.impl, executable.recordings[0]
            found = medians(
                {
                    "bare": lambda i=impl, r=recording: i.wait(i.submit(r), 10.0),
                    "session": lambda s=session: s.run({"x": x}),
                }
            )
        rows.append(
            row(device, "Session.run", "bare submit + wait", found["session"], found["bare"])
        )
    report(
        "one kernel over 16 values, microseconds per inference",
        ("device", "call", "compared with", "us", "peer us", "ratio"),
        rows,
    )


def row(device: str, what: str, peer: str, mine: float, theirs: float) -> tuple[str, ...]:
    """Return one line of the table."""
    return device, what, peer, f"{mine * 1e6:.1f}", f"{theirs * 1e6:.1f}", f"{mine / theirs:.2f}"


if __name__ == "__main__":
    main()
