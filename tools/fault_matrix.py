"""Runs the fault matrix: every fault of tests/faults at every point of every API, several times.

Each trial runs in a worker, a long-lived process that plays an application (see
tests/faults/matrix_trials.py). A worker that ends or falls silent is what must never happen; this
program would see it. Results are appended to a file, and a rerun does only what is missing there.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "faults"
sys.path.insert(0, str(FAULTS))

import matrix_plan  # noqa: E402 - lies beside the kit
import matrix_table  # noqa: E402
from matrix_worker import Worker  # noqa: E402


class Run:
    """The trials to do, shared by all workers, and the file of results."""

    def __init__(self, trials: Sequence[dict[str, Any]], path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.computing: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        for trial in trials:
            (self.waiting if trial["is_waiting"] else self.computing).put(trial)
        self.left = len(trials)
        self.wrong: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.on_result = lambda result: None

    def work(self, number: int, own: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Do trials until there are none; every worker has its own thread here."""
        worker = Worker(self.folder / f"worker{number}")
        try:
            while True:
                try:
                    trial = own.get_nowait()
                except queue.Empty:
                    return
                self._note(trial, worker.run(trial))
        finally:
            worker.stop()

    def _note(self, trial: dict[str, Any], result: dict[str, Any]) -> None:
        line = {"name": trial["name"], "seed": trial["seed"], **result}
        with self._lock:
            self.left -= 1
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            if line["wrong"]:
                self.wrong.append(line)
            self.on_result(line)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the results so far; a torn last line is not one."""
    found = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def chosen(arguments: argparse.Namespace) -> list[matrix_plan.Planned]:
    """Return the cells of this run."""
    cells = [c for c in matrix_plan.plan() if all(o in c.name for o in arguments.only)]
    if not cells:
        raise SystemExit(f"--only {' '.join(arguments.only)}: no cell's name holds all of these")
    part, of = (int(n) for n in arguments.shard.split("/"))
    if not 1 <= part <= of:
        raise SystemExit(f"--shard {arguments.shard}: i/n with 1 <= i <= n")
    return cells[part - 1 :: of]


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard", default="1/1", help="i/n: the i-th of n parts")
    parser.add_argument("--only", nargs="*", default=[], help="texts that a cell's name holds")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="applications that compute")
    parser.add_argument("--waiting", type=int, default=5, help="applications for hanging drivers")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "fault-matrix.jsonl")
    parser.add_argument("--again", action="store_true", help="do what went wrong once more")
    parser.add_argument(
        "--table", action="store_true", help="write docs/tables/faults.md from the results"
    )
    parser.add_argument("--list", action="store_true", help="list the cells and stop")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the matrix and say what was not right; 1 if anything was not."""
    arguments = arguments_of(argv)
    if arguments.table:
        return matrix_table.write(
            ROOT / "docs" / "tables" / "faults.md", read_results(arguments.results)
        )
    cells = chosen(arguments)
    if arguments.list:
        print("\n".join(c.name for c in cells))
        return 0
    results = read_results(arguments.results)
    if arguments.again:
        results = [r for r in results if not r["wrong"]]
        lines = "".join(json.dumps(r) + "\n" for r in results)
        arguments.results.write_text(lines, encoding="utf-8")
    done = {(r["name"], r["seed"]) for r in results}
    trials = [
        {**c.trial(seed), "is_waiting": c.is_waiting}
        for seed in range(1, arguments.seeds + 1)
        for c in cells
        if (c.name, seed) not in done
    ]
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="fault-matrix-"))
    (folder / "verdicts").mkdir()
    try:
        return _carry_out(Run(trials, arguments.results, folder), arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _carry_out(run: Run, arguments: argparse.Namespace) -> int:
    lanes = [run.computing] * arguments.workers + [run.waiting] * arguments.waiting
    with Progress() as progress:
        task = progress.add_task("trials", total=run.left)

        def shown(result: dict[str, Any]) -> None:
            progress.advance(task)
            if result["wrong"]:
                progress.console.print(f"{result['name']} seed {result['seed']}:", markup=False)
                for text in result["wrong"]:
                    progress.console.print(f"    {text[:500]}", markup=False)

        run.on_result = shown
        threads = [
            threading.Thread(target=run.work, args=(number, lane), daemon=True)
            for number, lane in enumerate(lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)
    print(f"{len(run.wrong)} trials were not right")
    for name in sorted({r["name"] for r in run.wrong}):
        print(f"  python tools/fault_matrix.py --again --only {' '.join(name.split())}")
    return 1 if run.wrong or run.left else 0


if __name__ == "__main__":
    sys.exit(main())
