"""Computes in float16 on a device; run by test_half_arithmetic for each configuration.

``python half_child.py SEEDS DEVICE`` prints a JSON object: the known answers that are wrong, those
whose bits differ from the interpreter's, and the random networks that lie beyond their bounds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from modelgen.judge import judge
from modelgen.networks import random_case
from planrun import PlanExecutor

import gpuedge
from gpuedge.core.errors import InexactError, NotFiniteError, UnsupportedOpError
from gpuedge.probing import kat


def known(device: str) -> dict[str, list[str]]:
    """Return which known answers are wrong, and which are other numbers than the interpreter's."""
    found: dict[str, list[str]] = {"wrong": [], "other": [], "kernels": []}
    with gpuedge.open(device) as opened:
        executor = opened.executor
        for case in kat.cases(executor.caps, "kernels"):
            if case.precision.arithmetic != "float16":
                continue
            made = executor.compile(case.graph, case.precision)
            got = made.run(case.inputs)[case.output]
            found["kernels"] += [k for row in made.rows for k in row.kernel.split("+")]
            made.close()
            if kat.compare(case, got, {}) is not None:
                found["wrong"].append(case.name)
            (meant,) = PlanExecutor(executor.caps).compile(case.graph, case.precision).run(
                case.inputs).values()  # fmt: skip
            if not np.array_equal(got, meant):
                found["other"].append(case.name)
    return found


def networks(device: str, seeds: int) -> list[str]:
    """Return which random networks are wrong; one that the cross-check finds is one of them."""
    found, run = [], 0
    for seed in range(500, 500 + seeds):
        kind, case = random_case(seed)
        policy = gpuedge.Policy(arithmetic="float16", crosscheck=1.0)
        model = case.proto().SerializeToString()
        try:
            with gpuedge.Session(model, device=device, policy=policy, fallback="error") as session:
                verdict = judge(case, session.run(case.feeds), in_half=True)
                health = session.health
        except (UnsupportedOpError, InexactError, NotFiniteError):
            continue
        run += 1
        if verdict.why or health.crosschecks_failed:
            found.append(f"{seed} {kind}: {verdict.why or health}")
    return [*found, *(["none ran"] if run < seeds // 2 else [])]


if __name__ == "__main__":
    seeds, device = int(sys.argv[1]), sys.argv[2]
    gpuedge.probe(deadline_s=60.0)
    print(json.dumps({**known(device), "networks": networks(device, seeds)}))
