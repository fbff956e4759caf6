"""From a camera's frame to a result: one model with the preprocessing in it, against numpy's way.

A frame of 480 x 640 becomes an image of 224 x 224 for a network like MobileNet. Numpy's way is what
a program would do by hand, and onnxruntime after that. On the CPU and under ``auto`` the ratio is
to be at most 1.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from common import devices, medians, processor, report
from onnx import helper, numpy_helper

import gpuedge
from gpuedge.executors.cpu import spinning

SIDE, WIDTH = 224, 0.25
HEIGHT_IN, WIDTH_IN = 480, 640
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2),
          (1024, 1))  # fmt: skip
"""Channels and strides. Howard et al., MobileNets, 2017, table 1; here a quarter as wide."""
MEAN = np.float32([0.485, 0.456, 0.406]).reshape(3, 1, 1)
STD = np.float32([0.229, 0.224, 0.225]).reshape(3, 1, 1)
RNG = np.random.default_rng(0)
Array = Any


def network() -> onnx.ModelProto:
    """Return MobileNet with random weights."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def conv(x: str, before: int, after: int, size: int, *, stride: int = 1, group: int = 1) -> str:
        name = f"conv{len(nodes)}"
        noise = RNG.normal(size=(after, before // group, size, size)) * (2 / before) ** 0.5
        weights.append(numpy_helper.from_array(noise.astype(np.float32), f"{name}/w"))
        how = {"pads": [size // 2] * 4, "strides": [stride] * 2, "group": group}
        nodes.append(helper.make_node("Conv", [x, f"{name}/w"], [name], **how))
        nodes.append(helper.make_node("Relu", [name], [f"{name}/relu"]))
        return f"{name}/relu"

    channels = int(32 * WIDTH)
    x = conv("x", 3, channels, 3, stride=2)
    for wide, stride in BLOCKS:
        x = conv(x, channels, channels, 3, stride=stride, group=channels)
        x = conv(x, channels, int(wide * WIDTH), 1)
        channels = int(wide * WIDTH)
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"]))
    image = helper.make_tensor_value_info("x", 1, [1, 3, SIDE, SIDE])
    result = helper.make_tensor_value_info("y", 1, [1, channels, 1, 1])
    graph = helper.make_graph(nodes, "mobilenet", [image], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_numpy(mode: str) -> Callable[[Array], Array]:
    """Return a function from a frame to an image, as it would be written by hand."""
    places = [(np.arange(SIDE) + 0.5) * n / SIDE - 0.5 for n in (HEIGHT_IN, WIDTH_IN)]
    factor, shift = 1 / 255 / STD, -MEAN / STD
    rows, columns = (np.ceil(p - 0.5).astype(int) for p in places)
    low = [np.floor(p).astype(int) for p in places]
    down, across = (np.float32(p - i)[:, None] for p, i in zip(places, low, strict=True))

    def nearest(frame: Array) -> Array:
        x = frame.take(rows, 0).take(columns, 1).transpose(2, 0, 1).astype(np.float32)
        x *= factor
        x += shift
        return x[None]

    def linear(frame: Array) -> Array:
        x = frame.take(low[0], 0).astype(np.float32)
        x += (frame.take(low[0] + 1, 0) - x) * down[:, None]
        left = x.take(low[1], 1)
        x = left + (x.take(low[1] + 1, 1) - left) * across
        x = x.transpose(2, 0, 1) * factor
        x += shift
        return x[None]

    return {"nearest": nearest, "linear": linear}[mode]


def uploaded(session: gpuedge.Session, frame: Array) -> str:
    """Return how many bytes go to the device for a frame."""
    steps = session.profile({"frame": frame})["steps"]
    return "".join(str(step["nbytes"]) for step in steps if step["ops"] == ["upload"])


def plain(model: onnx.ModelProto) -> ort.InferenceSession:
    """Return onnxruntime with the options that gpuedge gives it."""
    options = ort.SessionOptions()
    options.add_session_config_entry(*spinning(ort.__version__))
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def main() -> None:
    """Measure and print."""
    model, rows = network(), []
    session = plain(model)
    frame = RNG.integers(0, 256, (HEIGHT_IN, WIDTH_IN, 3), dtype=np.uint8)
    for mode in ("nearest", "linear"):
        prepared = by_numpy(mode)
        made = gpuedge.for_frames(
            model, frame.shape[:2], resize=mode, mean=MEAN.ravel(), std=STD.ravel()
        )
        sessions = {d: gpuedge.Session(made, device=d) for d in ("cpu", "auto", *devices())}
        candidates: dict[str, Callable[[], Any]] = {
            "numpy": lambda prepared=prepared: session.run(None, {"x": prepared(frame)})[0],
            **{d: lambda s=s: s.run({"frame": frame})["y"] for d, s in sessions.items()},
        }
        wanted = candidates["numpy"]()
        worst = {n: np.abs(call() - wanted).max() / wanted.max() for n, call in candidates.items()}
        found, wall = processor(candidates), medians(candidates, rounds=5)
        for name, seconds in found.items():
            ratio = f"{seconds / found['numpy']:.2f}"
            sent = uploaded(sessions[name], frame) if name in sessions else ""
            rows.append((mode, name, f"{seconds * 1e3:.2f}", ratio, f"{wall[name] * 1e3:.2f}",
                         sent, f"{worst[name]:.0e}"))  # fmt: skip
        for each in sessions.values():
            each.close()
    header = ("resize", "by", "ms", "times numpy and onnxruntime", "wall ms", "bytes uploaded",
              "relative difference")  # fmt: skip
    report(
        "from a frame of 480 x 640 to MobileNet's result, processor milliseconds",
        header,
        rows,
    )


if __name__ == "__main__":
    main()
