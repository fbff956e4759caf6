"""Simulate the fleet: ``python -m benchmarks.fleet.run --seeds 31 32 33 34 --pairs 10000``.

Every case on every seed is a task of its own, kept as a file in ``out/fleet/`` under the digest of
the code that made it, so that a run can be interrupted and goes on where it was. At the end the
tables are printed; ``--save`` writes them and the plots into the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from . import cases, faults
from .tables import Results, report

ROOT = Path(__file__).resolve().parents[2]
FIELD = ("fleet/cases", "fleet/population", "fleet/noise")
CODE: dict[str, tuple[str, ...]] = {
    "gates": (*FIELD, "fleet/faults"),
    "serve": (
        *FIELD, "fleet/launch",
        *(f"decide/{n}" for n in ("options", "belief", "trial", "decision_record", "chooser")),
    ),
}  # fmt: skip
"""What code takes part, by kind of task."""

FOLDERS = {"fleet": "benchmarks/fleet", "decide": "gpuedge/decide"}

Task = tuple[str, str, int]


def digest(kind: str) -> str:
    """Return a digest of all code that takes part: results of other code are not mixed in."""
    found = hashlib.sha256()
    for name in CODE[kind]:
        folder, _, module = name.partition("/")
        found.update((ROOT / FOLDERS[folder] / f"{module}.py").read_bytes())
    return found.hexdigest()[:12]


def place(folder: Path, task: Task, pairs: int) -> Path:
    """Return the file of a task's result."""
    kind, name, seed = task
    plain = re.sub(r"[^a-z0-9.+]+", "-", name.lower())
    return folder / digest(kind) / f"{kind}_{plain}_{seed}_{pairs}.json"


def work(task: Task, pairs: int) -> dict[str, Any]:
    """Run one task."""
    kind, name, seed = task
    begin = time.process_time()
    if kind == "gates":
        found: dict[str, Any] = dict(faults.simulate(seed, pairs, *faults.CASES[name]))
    else:
        found = dict(cases.run(name, seed, pairs))
    return found | {"cpu_s": time.process_time() - begin}


def tasks(seeds: list[int], kinds: list[str]) -> list[Task]:
    """Return all tasks."""
    names = {"serve": list(cases.CASES), "gates": list(faults.CASES)}
    return [(k, n, s) for k in kinds for s in seeds for n in names[k]]


def run(todo: list[Task], pairs: dict[str, int], folder: Path, jobs: int) -> None:
    """Run what has no result yet, `jobs` at a time; each result is written as soon as it is there.

    Ctrl-C leaves what is done; the next call goes on from there.
    """
    files = {t: place(folder, t, pairs[t[0]]) for t in todo}  # of the code as it is now
    left = [t for t in todo if not files[t].exists()]
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    pool = ProcessPoolExecutor(jobs)
    try:
        with Progress(*columns) as shown:
            bar = shown.add_task("fleet", total=len(todo), completed=len(todo) - len(left))
            running: dict[Future[dict[str, Any]], Task] = {
                pool.submit(work, task, pairs[task[0]]): task for task in left
            }
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    task = running.pop(future)
                    _keep(files[task], future.result())
                    shown.update(bar, advance=1, description=f"{task[0]}: {task[1]}"[:40])
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _keep(path: Path, result: dict[str, Any]) -> None:
    """Write a result whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(path)


def gathered(todo: list[Task], pairs: dict[str, int], folder: Path) -> Results:
    """Return the results by kind, name and seed."""
    found: Results = {}
    for kind, name, seed in todo:
        text = place(folder, (kind, name, seed), pairs[kind]).read_text(encoding="utf-8")
        found.setdefault(kind, {}).setdefault(name, {})[seed] = json.loads(text)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run the simulator from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.run", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[31, 32, 33, 34])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument(
        "--gates", type=int, default=500_000, help="pairs that gates are counted on"
    )
    parser.add_argument("--kinds", nargs="+", choices=list(CODE), default=list(CODE))
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "fleet")
    parser.add_argument("--save", action="store_true", help="write tables and plots for the docs")
    given = parser.parse_args(arguments)
    folder, counts = given.out, {"serve": given.pairs, "gates": given.gates}
    todo = tasks(given.seeds, given.kinds)
    try:
        run(todo, counts, folder, given.jobs)
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on from here") from None
    results = gathered(todo, counts, folder)
    hours = max(round(cases.HOURS * given.pairs), 1)
    text = report(results, given.seeds, given.pairs, hours)
    print(text)
    if given.save:
        from .plots import draw_all  # noqa: PLC0415 - needs matplotlib, a tool of developers

        draw_all(results, ROOT / "docs" / "images")
        date = time.strftime("%Y-%m-%d")
        place = ROOT / "benchmarks" / "results" / f"{date}-fleet"
        place.with_suffix(".md").write_text(text, encoding="utf-8")
        place.with_suffix(".json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
