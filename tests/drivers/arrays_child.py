"""Gives a device arrays of every awkward kind; run by test_edges for each level.

``python arrays_child.py DEVICE`` prints a JSON object: for each array and each way of computing,
"right" or what came instead.
"""

from __future__ import annotations

import json
import mmap
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import gpuedge

BASE = np.arange(-12, 12, dtype=np.float32).reshape(4, 6)


class Touchy(np.ndarray):  # type: ignore[type-arg]
    """An array that raises where numpy's functions are called on it."""

    def __array_function__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a function was called on the caller's array")

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a ufunc was called on the caller's array")


def arrays() -> dict[str, Any]:
    """Return arrays of the values of BASE, or others of its shape, in awkward forms."""
    read_only = BASE.copy()
    read_only.flags.writeable = False
    unaligned = np.zeros(97, np.uint8)[1:].view(np.float32).reshape(4, 6)
    unaligned[:] = BASE
    mapped = np.frombuffer(mmap.mmap(-1, 4096), np.float32, 24).reshape(4, 6)
    mapped[:] = BASE
    packed = np.zeros((4, 6), [("pad", "u1"), ("value", "f4")])
    packed["value"] = BASE
    return {
        "backwards": BASE[::-1, ::-1],
        "columns first": np.asfortranarray(BASE),
        "every other": np.repeat(BASE, 2, axis=1)[:, ::2],
        "one number everywhere": np.broadcast_to(np.float32(-2), (4, 6)),
        "overlapping windows": np.lib.stride_tricks.sliding_window_view(
            np.arange(-5, 4, dtype=np.float32), 6
        ),
        "read-only": read_only,
        "unaligned": unaligned,
        "unaligned with strides": packed["value"],
        "other byte order": BASE.astype(BASE.dtype.newbyteorder()),
        "shared memory": mapped,
        "matrix": np.matrix(BASE),
        "record array": np.rec.array(BASE),
        "touchy subclass": BASE.view(Touchy),
        "list": BASE.tolist(),
        "memoryview": memoryview(BASE),
        "empty": np.zeros((0, 6), np.float32),
        "empty inside": np.zeros((4, 0), np.float32),
    }


def network() -> bytes:
    """Return a model of one Relu over any matrix."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", "M"]) for name in ("x", "y")
    ]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


def ways(device: str, session: gpuedge.Session) -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """Return how to compute, and what numpy says of the same."""

    def run_async(a: Any) -> Any:
        return session.run_async({"x": a}).result(60)["y"]

    fused = gpuedge.elementwise("relu(x) * 0.5 + 1.0")
    return {
        "run": (lambda a: session.run({"x": a})["y"], lambda v: np.maximum(v, 0)),
        "run_async": (run_async, lambda v: np.maximum(v, 0)),
        "relu": (lambda a: gpuedge.relu(a, device=device), lambda v: np.maximum(v, 0)),
        "twice": (lambda a: gpuedge.add(a, a, device=device), lambda v: v + v),
        "fused": (lambda a: fused(a, device=device), lambda v: np.maximum(v, 0) * 0.5 + 1),
    }


def judged(compute: Any, formula: Any, array: Any) -> str:
    """Return "right" or what is not."""
    plain = np.array(array, np.float32)
    bits = None if isinstance(array, list) else bytes(memoryview(np.array(array)))
    with np.errstate(all="ignore"):
        wanted = formula(plain)
    try:
        found = compute(array)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if type(found) is not np.ndarray or not found.flags.writeable or found.dtype != np.float32:
        return f"gave a {type(found)} of {found.dtype}"
    if isinstance(array, np.ndarray) and np.shares_memory(found, array.view(np.ndarray)):
        return "gave the caller's own memory"
    if bits is not None and bits != bytes(memoryview(np.array(array))):
        return "changed its input"
    return "right" if np.array_equal(found, wanted) else f"gave {found.ravel()[:4]}"


def changing(session: gpuedge.Session) -> str:
    """Change an input while it is computed with: nothing worse than some mixture may come out."""
    shared = np.ones((64, 64), np.float32)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            shared[:] = 3 - shared

    thread = threading.Thread(target=change)
    thread.start()
    try:
        outs = [session.run({"x": shared})["y"] for _ in range(40)]
        later = session.run_async({"x": np.full((64, 64), 5, np.float32)})
    finally:
        stop.set()
        thread.join()
    if session.health.crosschecks_failed:
        return "was taken for drift"
    mixed = all(np.isin(out, (1.0, 2.0)).all() for out in outs)
    return "right" if mixed and (later.result(60)["y"] == 5).all() else "gave other numbers"


def reused(session: gpuedge.Session) -> str:
    """Overwrite an input as soon as run_async has returned: it was the caller's all the time."""
    x = np.ones((64, 64), np.float32)
    futures = []
    for i in range(20):
        x[:] = i
        futures.append(session.run_async({"x": x}))
    x[:] = -1
    found = [float(f.result(60)["y"].mean()) for f in futures]
    return "right" if found == [float(i) for i in range(20)] else f"gave {found}"


def main() -> None:
    """Print what came of everything."""
    device = sys.argv[1]
    outcome: dict[str, str] = {}
    if device != "cpu":
        gpuedge.probe(deadline_s=60)  # this machine may be busy with other tests
    with gpuedge.Session(network(), device=device) as session:
        for name, array in arrays().items():
            for way, (compute, formula) in ways(device, session).items():
                outcome[f"{name}, {way}"] = judged(compute, formula, array)
        outcome["reused"] = reused(session)
        on_device = session.placement[0].device
    with gpuedge.Session(
        network(), device=device, policy=gpuedge.Policy(crosscheck=0.5)
    ) as session:
        outcome["changing"] = changing(session)
    print(json.dumps({"outcome": outcome, "device": on_device}))


if __name__ == "__main__":
    main()
