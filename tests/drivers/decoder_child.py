"""Generates text with a decoder whose cache stays on a device; run by test_decoder for each level.

``python decoder_child.py DEVICE PLACES`` prints a JSON object: the tokens, and for each step what
was moved between host and device (bytes), and how often a plan, a kernel and a recording were made.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import gpuedge
from gpuedge.plan import planner
from gpuedge.runtime.devices import POOL

DEVICE, PLACES = sys.argv[1], int(sys.argv[2])
counts = {"bytes": 0, "plans": 0, "kernels": 0, "recordings": 0}


def counting(what: str, made: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        counts[what] += len(args[1]) if what == "bytes" else 1
        return made(*args, **more)

    return call


def watch() -> None:
    """Count what crosses the interface to devices, and plans wherever they are asked for."""
    impl = POOL.executor(DEVICE).impl
    for name, what in {"write": "bytes", "read": "bytes", "build": "kernels",
                       "record": "recordings"}.items():  # fmt: skip
        setattr(impl, name, counting(what, getattr(impl, name)))
    plan = planner.plan
    for module in [m for n, m in sys.modules.items() if n.startswith("gpuedge.")]:
        for name in [n for n, value in vars(module).items() if value is plan]:
            setattr(module, name, counting("plans", plan))


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
decoder: Any = import_module("15_decoder")
model = decoder.decoder(PLACES)
rules = gpuedge.Policy(crosscheck=0)
gpuedge.array([1.0], device=DEVICE).numpy()
steps, tokens = [], []
with gpuedge.Session(model, device=DEVICE, policy=rules, fallback="error") as session:
    POOL.executor(DEVICE)
    watch()
    before = dict(counts)
    for token in decoder.generate(session, "t", 40, DEVICE):
        tokens.append(token)
        steps.append({name: counts[name] - before[name] for name in counts})
        before = dict(counts)
    devices = sorted({row.device for row in session.placement})
print(json.dumps({"tokens": tokens, "steps": steps, "devices": devices}))
