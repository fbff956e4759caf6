"""What trials of the fault matrix compute, and what they must leave as it was."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import gpuedge

SETTLE_S = 20.0
"""Seconds for threads and processes of a trial to end before they count as left behind."""

# --- what is computed ------------------------------------------------------------------------


def _weight(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def network() -> bytes:
    """Return a small network whose numbers are integers that float32 holds exactly.

    So a right answer is the CPU's, bit for bit, whatever device computed which part of it.
    """
    rng = np.random.default_rng(5)

    def integers(*shape: int) -> Any:
        return rng.integers(-3, 4, shape).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["image", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p0", "w1", "b1"], ["c1"], pads=[0, 1, 1, 0]),
        helper.make_node("Add", ["c1", "p0"], ["a1"]),
        helper.make_node("Flatten", ["a1"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["scores"], transB=1),
    ]
    weights = [
        _weight("w0", integers(4, 2, 3, 3)), _weight("b0", integers(4)),
        _weight("w1", integers(4, 4, 2, 2)), _weight("b1", integers(4)),
        _weight("w2", integers(16, 64)), _weight("b2", integers(16)),
    ]  # fmt: skip
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 2, 8, 8])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 16])
    maps = helper.make_tensor_value_info("r0", TensorProto.FLOAT, [1, 4, 8, 8])
    graph = helper.make_graph(nodes, "small", [image], [scores, maps], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


def answered(session: gpuedge.Session, image: Any) -> Any:
    """Run the network and return all its outputs in one row."""
    outputs = session.run({"image": image})
    return np.concatenate([outputs[name].ravel() for name in ("scores", "r0")])


def images(seed: int) -> Iterator[Any]:
    """Yield inputs, each another."""
    rng = np.random.default_rng(seed)
    while True:
        yield rng.integers(-4, 5, (1, 2, 8, 8)).astype(np.float32)


def single_operations(seed: int, device: str) -> list[Any]:
    """Compute some single operations; integers, too."""
    rng = np.random.default_rng(seed + 100)
    a, b = rng.integers(-9, 10, (2, 6, 7)).astype(np.float32)
    x = rng.integers(-9, 10, (1, 3, 9, 9)).astype(np.float32)
    w = rng.integers(-3, 4, (5, 3, 3, 3)).astype(np.float32)
    return [
        gpuedge.add(a, b, device=device),
        gpuedge.relu(a * b, device=device),
        gpuedge.matmul(a, b.T.copy(), device=device),
        gpuedge.conv2d(x, w, padding=1, device=device),
    ]


# --- what must not change --------------------------------------------------------------------


HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)


def _listed(folder: str) -> list[str]:
    try:
        return sorted(path.name for path in Path(folder).iterdir())
    except OSError:
        return []


def _children() -> list[int]:
    found: list[int] = []
    for thread in _listed("/proc/self/task"):
        try:
            text = Path(f"/proc/self/task/{thread}/children").read_text()
        except OSError:
            continue
        found += [int(word) for word in text.split()]
    return sorted(found)


def state(temporary: Path) -> dict[str, Any]:
    """Return what a trial must leave as it was: counts, and what counts alone do not tell."""
    return {
        "descriptors": len(_listed("/proc/self/fd")),
        "threads": len(_listed("/proc/self/task")),
        "children": len(_children()),
        "folder": str(Path.cwd()),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "handlers": [str(signal.getsignal(s)) for s in HANDLED],
        "environment": dict(os.environ),
        "temporary": [n for n in _listed(str(temporary)) if n.startswith("gpuedge")],
        "shared": [n for n in _listed("/dev/shm") if str(os.getpid()) in n],
    }  # fmt: skip


def left_behind(before: Mapping[str, Any], temporary: Path) -> list[str]:
    """Return what is not as it was; threads and processes may take a moment to end."""
    until = time.monotonic() + SETTLE_S
    while True:
        now = state(temporary)
        found = [k for k in before if _is_worse(k, before[k], now[k])]
        if not found or time.monotonic() > until:
            extra = {"children": f" ({_told()})"}
            return [
                f"{k}: {_short(before[k])} -> {_short(now[k])}{extra.get(k, '')}" for k in found
            ]
        time.sleep(0.05)


def _told() -> str:
    """Say what the children are: state and command line."""
    told = []
    for child in _children():
        try:
            status = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        told.append(f"{child} {status} {command[:150]}")
    return "; ".join(told)


def _is_worse(name: str, before: Any, now: Any) -> bool:
    is_count = name in ("descriptors", "threads", "children")
    return bool(now > before) if is_count else bool(now != before)


def _short(value: Any) -> str:
    return str(value)[:200]
