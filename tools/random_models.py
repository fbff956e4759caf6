"""Runs random models on a driver configuration and compares with float64.

Usage: python tools/random_models.py --configuration vulkan-lavapipe --n 2000 [--seed S] [--resume]
       python tools/random_models.py --configuration vulkan-lavapipe --only SEED...    (prints)
       python tools/random_models.py --page

Model number i is made from the number S + i alone (`tests/modelgen`): residual, inverted residual,
shuffle, U-Net, temporal and transformer networks, and graphs of any operators that have a
description; operator sets 7 to 21. A named device computes all of a model, or it is `unsupported`
and never left to the CPU; each is run twice. `wrong` is a result beyond its bound, an error that
is none of "not supported", a process that died or took too long. Rows go to
out/random/CONFIGURATION.jsonl; a model that failed is shrunk, and lies beside it. --resume goes on
where a run ended. The exit status is 1 if a model is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from modelgen.case import Case  # noqa: E402
from modelgen.judge import Verdict, judge  # noqa: E402
from modelgen.networks import random_case  # noqa: E402
from modelgen.shrink import shrunk, told  # noqa: E402
from workers import Worker  # noqa: E402

import gpuedge  # noqa: E402
from gpuedge.core.errors import (  # noqa: E402
    InexactError,
    NotFiniteError,
    UnsupportedOpError,
)

OUT = ROOT / "out" / "random"
PASSED, UNSUPPORTED, WRONG = STATUSES = ("passed", "unsupported", "wrong")
PROBE_S = 60.0
"""How long a driver may take to open where other work keeps the processor busy."""
PATIENCE_S = 240.0
"""Longest a model may take, with shrinking it."""
REFUSALS = (UnsupportedOpError, NotFiniteError, InexactError)
TELL_EACH_S = 10.0
PAGE = ROOT / "docs" / "tables" / "random-models.md"
INTRODUCTION = """\
# Random models

Made by `python tools/random_models.py --page`; do not edit. Models from seeds (residual, inverted
residual, shuffle, U-Net, temporal, transformer, and graphs of any operators; operator sets 7 to 21)
on configurations of `tests/drivers/farm.py`. A device computes all of a model, twice, or the model
counts as unsupported. Results are compared with float64: what float32 computes without rounding
must be that number, all else lie within eight running errors of the operators
([numerics](../numerics.md)). `worst` is the largest error in units of that; of models with wide
bounds, half of an output may be a hundredth of its largest number off.
"""


# --- in a process of its own ---------------------------------------------------------------------


def answers(case: Case, device: str, *, rewrites: bool) -> tuple[Verdict, list[str]]:
    """Return what is to be said of a case on a device, and where its nodes ran."""
    policy = gpuedge.Policy(crosscheck=0.0, rewrites=rewrites)
    model = case.proto().SerializeToString()
    with gpuedge.Session(model, device=device, policy=policy, fallback="error") as session:
        first = session.run(case.feeds)
        again = session.run(case.feeds)
        places = sorted({row.device for row in session.placement})
    strange = [p for p in places if p.startswith("cpu") and device != "cpu"]
    if strange:
        return Verdict(f"{strange} computed a part of it"), places
    for name in case.outputs:
        if not np.array_equal(first[name], again[name], equal_nan=True):
            return Verdict(f"{name} differs in the second run"), places
    return judge(case, first), places


def verdict(case: Case, device: str, *, rewrites: bool) -> dict[str, Any]:
    """Return status, reason and figures of a case."""
    try:
        found, places = answers(case, device, rewrites=rewrites)
    except REFUSALS as error:
        return {"status": UNSUPPORTED, "why": _brief(error)}
    except Exception as error:  # whatever it is, it is a finding
        return {"status": WRONG, "why": f"{type(error).__name__}: {_brief(error)}"}
    row = {"status": WRONG if found.why else PASSED, "why": found.why, "on": places}
    return row | {"worst": round(min(found.worst, 1e9), 4), "vague": found.is_vague}


def _brief(error: Exception) -> str:
    return " ".join(str(getattr(error, "known", None) or error).split())[:300]


def one(seed: int, device: str, folder: Path | None) -> dict[str, Any]:
    """Return the row of a model; where it is wrong, shrink it and keep it in a folder."""
    start = time.monotonic()
    kind, case = random_case(seed)
    rewrites = seed % 8 != 7
    ops = sorted({node.op_type for node in case.nodes})
    row = {"seed": seed, "kind": kind, "opset": case.opset, "ops": ops}
    row |= verdict(case, device, rewrites=rewrites)
    if row["status"] == WRONG and folder is not None:

        def fails(trial: Case) -> bool:
            return bool(verdict(trial, device, rewrites=rewrites)["status"] == WRONG)

        small = shrunk(case, fails)
        row["small"] = told(small)
        row["small_why"] = verdict(small, device, rewrites=rewrites)["why"]
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(small.proto(), folder / f"{seed}.onnx")
        np.savez(folder / f"{seed}.npz", **small.feeds)  # type: ignore[arg-type]
    return row | {"s": round(time.monotonic() - start, 3)}


def child(device: str, folder: str) -> None:
    """Run the models whose seeds come in on standard input."""
    if device != "cpu":
        gpuedge.probe(deadline_s=PROBE_S)
    for line in sys.stdin:
        print(json.dumps(one(int(line), device, Path(folder))), flush=True)


# --- over all models -----------------------------------------------------------------------------


def rows_of(configuration: str, seeds: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield the row of each seed; a process that died counts against the model that it had."""
    worker: Worker | None = None
    folder = str(OUT / configuration)
    try:
        for seed in seeds:
            if worker is None or not worker.is_alive:
                worker = Worker(configuration, __file__, arguments=["--folder", folder])
            row = worker.ask(str(seed), PATIENCE_S)
            yield row if "seed" in row else {"seed": seed, "status": WRONG, **row}
    finally:
        if worker is not None:
            worker.close()


def read(file: Path) -> dict[int, dict[str, Any]]:
    """Return the rows of a file by seed."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {row["seed"]: row for row in map(json.loads, lines)}


def campaign(configuration: str, seeds: Sequence[int], *, resume: bool) -> int:
    """Run seeds into the configuration's file; return how many are wrong."""
    OUT.mkdir(parents=True, exist_ok=True)
    file = OUT / f"{configuration}.jsonl"
    done = {s: r for s, r in read(file).items() if r["status"] != WRONG} if resume else {}
    counted = Counter(done[s]["status"] for s in seeds if s in done)
    left, told_at = [s for s in seeds if s not in done], time.monotonic()
    with file.open("w", encoding="utf-8") as out:
        for row in done.values():
            print(json.dumps(row), file=out)
        for row in rows_of(configuration, left):
            print(json.dumps(row), file=out, flush=True)
            counted[row["status"]] += 1
            if row["status"] == WRONG:
                print(f"{configuration} seed {row['seed']}: {row['why']}", flush=True)
            if time.monotonic() - told_at > TELL_EACH_S:
                told_at = time.monotonic()
                print(f"{sum(counted.values())} of {len(seeds)}: {_figures(counted)}",
                      file=sys.stderr, flush=True)  # fmt: skip
    print(configuration, _figures(counted), _slack(read(file).values()), flush=True)
    return counted[WRONG]


def _figures(counted: Counter[str]) -> str:
    return " ".join(f"{status} {counted[status]}" for status in STATUSES)


def _slack(rows: Iterable[dict[str, Any]]) -> str:
    passed = [row for row in rows if row["status"] == PASSED]
    worst = max((row["worst"] for row in passed), default=0.0)
    vague = sum(row["vague"] for row in passed)
    return f"(worst {worst:.2f} of a bound; {vague} with wide bounds)"


def page(found: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
    """Return the page of rows by configuration and seed."""
    lines = [INTRODUCTION, "| configuration | models | passed | unsupported | wrong | operators |"
             " worst | wide bounds |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, rows in found.items():
        counted = Counter(row["status"] for row in rows.values())
        passed = [row for row in rows.values() if row["status"] == PASSED]
        ops = {op for row in passed for op in row.get("ops", ())}
        cells = " | ".join(str(counted[s]) for s in STATUSES)
        worst = max((row["worst"] for row in passed), default=0.0)
        vague = sum(row["vague"] for row in passed)
        lines.append(f"| {name} | {len(rows)} | {cells} | {len(ops)} | {worst:.2f} | {vague} |")
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return 1 if a model is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--child", metavar="DEVICE", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--configuration", default="vulkan-lavapipe")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--only", type=int, nargs="+", metavar="SEED")
    chosen = parser.parse_args(arguments)
    if chosen.child:
        child(chosen.child, chosen.folder)
        return 0
    if chosen.page:
        PAGE.write_text(page({f.stem: read(f) for f in sorted(OUT.glob("*.jsonl"))}), "utf-8")
        return 0
    if chosen.only:
        rows = list(rows_of(chosen.configuration, chosen.only))
        for row in rows:
            print(json.dumps(row, indent=1))
        return int(any(row["status"] == WRONG for row in rows))
    seeds = range(chosen.seed, chosen.seed + chosen.n)
    return int(campaign(chosen.configuration, seeds, resume=chosen.resume) > 0)


if __name__ == "__main__":
    sys.exit(main())
