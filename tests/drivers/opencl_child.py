"""Checks of the OpenCL plug-in in processes of their own; `test_opencl` starts them.

``contract`` runs the contract of devices; the others print what came of them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

import gpuedge

LEVEL = "opencl"
KEEPS = {"keeps_memory": False, "synchronous": False}
LEFT_OUT = ("other_device_is_refused", "lost", "busy")
"""Rules that ask for what only our own backends have: a number of the maker, ways to lose them."""


def contract() -> None:
    """Check the contract of devices, all rules for devices whose tensors are buffers."""
    import device_contract as checks

    names = [n for n, r in checks.RULES.items() if {"vulkan", "wgpu", "gles31"} <= {*r.levels}]
    wanted = [*(n for n in names if n not in LEFT_OUT), "too_large"]
    facts = {
        "api": LEVEL, "level": LEVEL, "dialect": "opencl_c", "forms": ["group", "map"],
        "storages": ["buffer", "buffer_f16", "buffer_u8", "buffer_s8"], "device_type": "CPU",
        "software": True, "is_software": True, "has_suballocation": True, "name": "pthread",
        "known": ["driverName", "driverInfo"],
        "least": {"max_invocations": 64, "max_shared_bytes": 16384, "max_storage_buffers": 8},
    }  # fmt: skip
    checks.main(LEVEL, {"checks": wanted, "facts": facts, **KEEPS})


def model() -> bytes:
    """Return two convolutions with whole weights, whose results are exact."""
    rng = np.random.default_rng(3)
    weights = [
        rng.integers(-2, 3, shape).astype(np.float32) for shape in ((8, 3, 3, 3), (4, 8, 1, 1))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", 1, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", 1, [1, 4, 16, 16])],
        [onnx.numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialised: bytes = made.SerializeToString()
    return serialised


def image(seed: int) -> npt.NDArray[np.float32]:
    """Return an input of whole numbers."""
    return np.random.default_rng(seed).integers(-8, 9, (1, 3, 16, 16)).astype(np.float32)


def chosen() -> dict[str, Any]:
    """Return which device `auto` takes, without and with software rasterisers, and why."""
    policy = gpuedge.Policy(allow_software=True, decide="load")
    with gpuedge.config(backends=LEVEL), gpuedge.Session(model(), policy=policy) as session:
        session.run({"x": image(0)})
        takes = {row.device: row.code for row in session.explain().rows}
    with gpuedge.config(backends=LEVEL), gpuedge.Session(model()) as session:
        leaves = {row.device: row.code for row in session.explain().rows}
        answered = session.explain().device
    with gpuedge.config(backends=LEVEL):
        best = gpuedge.open(policy=policy).name
    (row,) = gpuedge.probe(backends=[LEVEL]).devices
    kind = row.caps["device_class"]
    return {"class": kind, "best": best, "takes": takes, "leaves": leaves, "answered": answered}


def serve(device: str, isolation: str) -> dict[str, Any]:
    """Return what came of six requests on a device, and what is said of it."""
    right = []
    with gpuedge.Session(model(), device="cpu") as session:
        right = [session.run({"x": image(seed)})["y"] for seed in range(6)]
    policy = gpuedge.Policy(crosscheck=0.0, watchdog_s=20.0)  # kernels are built in it
    with gpuedge.Session(
        model(), device=device, policy=policy, isolation=isolation, fallback="cpu"
    ) as session:
        found = [session.run({"x": image(seed)})["y"] for seed in range(6)]
        health = session.health
    equal = [a.tobytes() == b.tobytes() for a, b in zip(found, right, strict=True)]
    return {
        "equal": equal, "codes": sorted({f.code for f in health.failures}),
        "on": [health.on_device, health.on_cpu],
    }  # fmt: skip


def network(name: str) -> dict[str, Any]:
    """Return the row of a network of tools/networks.py."""
    sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tools")]
    import networks

    return networks.one(name, LEVEL)


if __name__ == "__main__":
    gpuedge.probe(backends=[LEVEL], deadline_s=120)
    if sys.argv[1] == "contract":
        contract()
    else:
        print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
        os._exit(0)  # a thread may be stuck in the driver
