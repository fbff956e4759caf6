"""In a child: one launch of an application that serves every model for a while under ``auto``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import gpuedge
from gpuedge.decide.decision import Decision
from truth.measure import PROBE_S, graph_of
from truth.models import MODELS, sample

SERVE_S = 3.0
"""Seconds that each model is served in a launch, request after request."""

Say = Callable[[str], None]


def served(say: Say) -> dict[str, Any]:
    """Return what became of every model under the default policy, software devices allowed."""
    row = gpuedge.probe(deadline_s=PROBE_S).devices[0]
    found: dict[str, Any] = {}
    for name, make in MODELS.items():
        one = found[name] = _one(make())
        say(f"{name:24s} {one['device']:10s} {one['requests']:7d} requests, {one['reason']}")
    return {"device": row.device, "version": gpuedge.__version__, "cases": found}


def _one(data: bytes) -> dict[str, Any]:
    graph = graph_of(data)
    inputs = {name: sample(graph.types[name].shape) for name in graph.inputs}
    policy = gpuedge.Policy(allow_software=True)
    count, times = 0, list[int]()
    with gpuedge.Session(data, device="auto", policy=policy) as session:
        begin = time.perf_counter()
        while time.perf_counter() - begin < SERVE_S:
            start = time.perf_counter_ns()
            session.run(inputs)
            times.append(time.perf_counter_ns() - start)
            count += 1
        decision, health = session.explain(), session.health.to_dict()
    text = decision.to_json()
    if Decision.from_dict(json.loads(text)).replay().to_json() != text:
        raise SystemExit(f"a decision did not replay to the same bytes: {text}")
    rows = [r for r in decision.rows if r.device != "cpu"]
    return {
        "device": decision.device, "reason": decision.reason, "requests": count,
        "code": rows[0].code if rows else "", "total_ns": sum(times), "first_ns": times[0],
        "health": health,
    }  # fmt: skip
