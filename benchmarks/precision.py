"""How far float32, storage and arithmetic in float16 are from float64, on networks from seeds.

Usage: python -m benchmarks.precision vulkan-lavapipe wgpu-lavapipe [--models 12]

Each network of `tests/modelgen` is made of so many seeds, and run under four policies on each
configuration of `tests/drivers/farm.py`, in a process of its own. Errors are those of the outputs,
in units of the largest number of the output: the largest of any element, and the root of the mean
square over all of them. `bound` is the largest error in units of what a result may be off
(`tests/modelgen/judge.py`; for storage nothing is judged here). `time` is the median of seven runs
after a first one, in units of float32's, and the geometric mean of that over the models.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from modelgen.case import Builder, Case  # noqa: E402
from modelgen.judge import judge  # noqa: E402
from modelgen.meanings import CannotError  # noqa: E402
from modelgen.networks import inverted, residual, temporal, transformer, u_net  # noqa: E402
from workers import device_of, environment_of  # noqa: E402

import gpuedge  # noqa: E402

KINDS = {"residual": residual, "inverted residual": inverted, "U-Net": u_net,
         "temporal": temporal, "transformer": transformer}  # fmt: skip
POLICIES = {
    "float32": {},
    "storage float16": {"storage": "float16"},
    "arithmetic float16": {"arithmetic": "float16"},
    "both": {"storage": "float16", "arithmetic": "float16"},
}
OPSET, RUNS = 17, 7


def made(kind: str, seed: int) -> Case:
    """Return a network; a seed whose choices cannot be made gives way to a later one."""
    for number in range(seed * 1000, seed * 1000 + 100):
        b = Builder(np.random.default_rng(number), OPSET, is_whole=False)
        try:
            b.case.outputs = [KINDS[kind](b)]
        except CannotError:
            continue
        return b.case.pruned()
    raise RuntimeError(f"no {kind} from seed {seed}")


def measured(case: Case, device: str, how: dict[str, Any]) -> dict[str, float]:
    """Return the errors of one network under one policy, and what a run takes."""
    policy = gpuedge.Policy(crosscheck=0.0, **how)
    (name,) = case.outputs
    with gpuedge.Session(case.proto(), device=device, policy=policy, fallback="error") as session:
        found = session.run(case.feeds)
        spent = []
        for _ in range(RUNS):
            start = time.perf_counter()
            session.run(case.feeds)
            spent.append(time.perf_counter() - start)
    want = case.values[name]
    off = (found[name].astype(np.float64) - want) / np.abs(want).max()
    row = {"max": float(np.abs(off).max()), "squares": float(np.mean(off**2)),
           "s": statistics.median(spent)}  # fmt: skip
    if "storage" not in how:
        verdict = judge(case, found, in_half="arithmetic" in how)
        row["bound"] = np.inf if verdict.why else verdict.worst
    return row


def child(device: str, models: int) -> None:
    """Print one JSON line for each network and policy."""
    gpuedge.probe(deadline_s=60.0)
    for kind in KINDS:
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in POLICIES}
        for seed in range(1, models + 1):
            case = made(kind, seed)
            for name, how in POLICIES.items():
                rows[name].append(measured(case, device, how))
        for name, all_of in rows.items():
            ratios = [a["s"] / b["s"] for a, b in zip(all_of, rows["float32"], strict=True)]
            print(json.dumps({
                "network": kind, "policy": name, "max": max(r["max"] for r in all_of),
                "rms": float(np.sqrt(np.mean([r["squares"] for r in all_of]))),
                "bound": max((r["bound"] for r in all_of if "bound" in r), default=None),
                "time": float(np.exp(np.mean(np.log(ratios)))),
            }), flush=True)  # fmt: skip


def main() -> None:
    """Print the table of each configuration."""
    parser = argparse.ArgumentParser()
    parser.add_argument("configurations", nargs="*")
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.models)
        return
    for one in options.configurations:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.precision",
                   "--child", device_of(one), "--models", str(options.models)]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, env=environment_of(one), check=True,
                              capture_output=True, text=True)  # fmt: skip
        print(f"\n## {one}\n\n| network | policy | largest error | rms error | bound | time |")
        print("|---|---|---|---|---|---|")
        for row in map(json.loads, done.stdout.splitlines()):
            bound = "" if row["bound"] is None else f"{row['bound']:.2f}"
            print(f"| {row['network']} | {row['policy']} | {row['max']:.1e} | {row['rms']:.1e} "
                  f"| {bound} | {row['time']:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
