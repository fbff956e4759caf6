"""In a child: what sessions choose under two policies, in a process that starts without caches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import gpuedge
from gpuedge.decide.decision import Decision
from predictions.models import MODELS

POLICIES: dict[str, float] = {"any gain": 1.0, "default": 1.2}
"""Least speed-ups by name; 1.2 is that of the default policy."""

PROBE_S = 60.0

Say = Callable[[str], None]


def decided(say: Say) -> dict[str, Any]:
    """Return what became of every model under every policy."""
    row = gpuedge.probe(deadline_s=PROBE_S).devices[0]
    found: dict[str, Any] = {}
    for name, make in MODELS.items():
        data = make()
        found[name] = {policy: _one(data, least) for policy, least in POLICIES.items()}
        shown = ", ".join(
            f"{policy}: {one['device']} ({one['confidence']}, {one['runs']} runs)"
            for policy, one in found[name].items()
        )
        say(f"{name:24s} {shown}")
    return {"device": row.device, "version": gpuedge.__version__, "cases": found}


def _one(data: bytes, min_speedup: float) -> dict[str, Any]:
    policy = gpuedge.Policy(allow_software=True, min_speedup=min_speedup)
    begin = time.perf_counter()
    with gpuedge.Session(data, device="auto", policy=policy) as session:
        seconds = time.perf_counter() - begin
        decision = session.explain()
    text = decision.to_json()
    if Decision.from_dict(json.loads(text)).replay().to_json() != text:
        raise SystemExit(f"a decision did not replay to the same bytes: {text}")
    gpus = [r for r in decision.rows if r.device != "cpu" and r.prediction is not None]
    known = decision.record.candidates
    return {
        "device": decision.device,
        "reason": decision.reason,
        "confidence": gpus[0].confidence if gpus else "",
        "code": gpus[0].code if gpus else "",
        "runs": sum(len(c.runs) for c in known),
        "seconds": round(seconds, 3),
        "predicted_ns": {
            "cpu" if r.device == "cpu" else "gpu": r.prediction.p50_ns
            for r in decision.rows
            if r.prediction is not None
        },
    }
