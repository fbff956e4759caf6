"""Kills processes at random moments while they write every cache there is, and starts again.

Usage: python tools/kill_campaign.py [--n N] [--seed S] [--folder DIR] [--out FILE]

Each of N rounds (default 1,000) forks two writers on one cache folder and kills each with SIGKILL
after a random time. Then a start is made, and checked: every file that is there reads as a whole
and holds what was reported as written, the lock is free, nothing of the dead is left behind, and
new data can be written. Every 100th round a fresh process starts, too. The exit status is 1 if
anything was amiss.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cache_formats import PHYSICAL, ROOT, _row, formats

from gpuedge import lang
from gpuedge.backends.base import Candidate
from gpuedge.backends.vulkan import pipeline_cache
from gpuedge.core.kernel import KernelBlob
from gpuedge.decide import history
from gpuedge.lang.cache import BlobCache
from gpuedge.probing.verdicts import Store
from gpuedge.safety import paths
from gpuedge.safety.blocklist import Blocklist
from gpuedge.safety.lock import Lock

LONGEST_S = 0.1
"""A writer lives up to this long: it writes each file several times in it."""

WRITERS = 2
MOST_LEFT = 1500
"""Half-written files there may be at any time: those of a minute."""


class Writer:
    """What a doomed process does: it writes all caches in turn and reports what is written."""

    def __init__(self, folder: Path, seed: int, blob: KernelBlob, report: int) -> None:
        self._folder = folder
        self._dice = random.Random(seed)
        self._blob = blob
        self._report = report
        self._name = f"w{seed}"

    def work(self) -> None:
        """Write until killed."""
        acts = (self.verdict, self.launch, self.kernels, self.pipeline, self.marker)
        while True:
            act = self._dice.choice(acts)
            act()

    def _written(self, what: str, key: str) -> None:
        os.write(self._report, f"{what} {key}\n".encode())

    def verdict(self) -> None:
        """Save a verdict."""
        found = {self._name: (Candidate(self._name, "/k", "f"), [_row(self._name)])}
        if Store(self._folder).save(found, 4.0, time.time()):
            self._written("verdict", self._name)

    def launch(self) -> None:
        """Save how many requests a model had."""
        if history.History(self._folder).keep(self._name, 1, 1_000):
            self._written("launch", self._name)

    def kernels(self) -> None:
        """Save a printed kernel."""
        cache = BlobCache(self._folder / "kernels.bin")
        cache.put(self._name, self._blob)
        if cache.flush():
            self._written("kernels", self._name)

    def pipeline(self) -> None:
        """Save a pipeline cache, and use it for the first time."""
        data = self._dice.randbytes(self._dice.randrange(100, 9000))
        file = pipeline_file(self._folder).with_suffix(".new")
        paths.write_atomic(file, pipeline_cache.pack(PHYSICAL, data))
        paths.sweep(file)
        pipeline_cache.rename(file, ".trial")
        pipeline_cache.rename(file.with_suffix(".trial"), ".bin")

    def marker(self) -> None:
        """Open a device, run, and close it."""
        watch = Blocklist(self._folder).begin(self._name[:2], "fake:0")
        for step in ("open", "compile", "first", "first"):
            watch.step(step)
            watch.quiet()
        watch.close()


def pipeline_file(folder: Path) -> Path:
    """Return where the pipeline cache lies."""
    return folder / "pipelines" / "device.bin"


class Campaign:
    """Rounds of killing and checking on one folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        source = ROOT / "tests" / "golden" / "spirv" / "affine.kern"
        self._blob = lang.print_kernel(lang.load(source.read_text(), filename=source.name))
        self._folder = folder
        self._dice = random.Random(seed)
        self._seed = seed
        self._readers = {f.name: f.read for f in formats()}
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.most = 0

    def round(self, number: int) -> None:
        """Start writers, kill them, and look at what they left."""
        reported: set[tuple[str, str]] = set()
        running = [self._start(number * WRITERS + i) for i in range(WRITERS)]
        for pid, reader in running:
            time.sleep(self._dice.uniform(0, LONGEST_S))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.counts["kills"] += 1
            with open(reader, "rb") as lines:
                words = [line.decode().split() for line in lines.read().splitlines()]
            reported |= {(what, key) for what, key in words}
        self.counts["writes reported"] += len(reported)
        left = [p for p in self._folder.rglob(".*") if p.is_file()]
        self.counts["half-written files left"] += bool(left)
        self.most = max(self.most, len(left))
        if len(left) > MOST_LEFT:
            self._fault(number, f"{len(left)} half-written files lie about")
        try:
            self._check(reported, number)
        except Exception as error:
            self._fault(number, f"{type(error).__name__}: {error}")

    def _start(self, seed: int) -> tuple[int, int]:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                Writer(self._folder, self._seed * 1_000_003 + seed, self._blob, writer).work()
            finally:
                os._exit(1)
        os.close(writer)
        return pid, reader

    def _fault(self, number: int, text: str) -> None:
        self.faults.append(f"round {number}: {text}")

    def _check(self, reported: set[tuple[str, str]], number: int) -> None:
        folder = self._folder
        begin = time.monotonic()
        with Lock(folder) as is_held:
            if not is_held:
                self._fault(number, "the lock was not released")
        self.counts["slow locks"] += time.monotonic() - begin > 0.1
        store = Store(folder)
        launches = folder / history.FILE
        text = launches.read_text() if launches.exists() else ""
        kernels, memory = BlobCache(folder / "kernels.bin"), Blocklist(folder)
        believed: dict[str, Callable[[str], object]] = {
            "verdict": lambda k: store.find(k, 4.0, time.time()),
            "launch": lambda k: k in text,
            "kernels": kernels.get,
        }
        for what, key in sorted(reported):
            if not believed[what](key):
                self._fault(number, f"the {what} {key} was reported as written and is lost")
        self._whole(number)
        memory.entries()
        # One that was killed before it wrote its facts is kept for a while, as it may be under way.
        markers = list(Path(memory.folder).glob("*.mark"))
        if any(path.stat().st_size for path in markers):
            self._fault(number, "markers of the dead were left")
        if not store.save({"mine": (Candidate("mine", "/m", "f"), [_row("mine")])}, 4.0, 1e9):
            self._fault(number, "a verdict could not be saved")
        if number % 100 == 0:
            self._fresh(number)

    def _whole(self, number: int) -> None:
        """See that every file that lies in place reads as a whole."""
        names = {
            "verdicts.json": "verdicts", history.FILE: "launches",
            "kernels.bin": "kernels",
            **{f"pipelines/device.{x}": "pipelines" for x in ("bin", "new", "trial")},
        }  # fmt: skip
        for name, kind in names.items():
            path = self._folder / name
            if path.exists():
                self.counts["files read"] += 1
                if self._readers[kind](path.read_bytes()) is None:
                    self._fault(number, f"{name} is damaged")

    def _fresh(self, number: int) -> None:
        environ = {**os.environ, "GPUEDGE_CACHE_DIR": str(self._folder)}
        command = [sys.executable, "-m", "gpuedge", "cache", "--json"]
        done = subprocess.run(command, check=False, env=environ, cwd=ROOT, capture_output=True)
        self.counts["fresh starts"] += 1
        if done.returncode != 0:
            self._fault(number, f"a fresh start failed: {done.stderr.decode()[-300:]}")


def campaign(
    n: int, seed: int, folder: Path, progress: Callable[[str], object] = lambda _: None
) -> dict[str, Any]:
    """Run `n` rounds and return the summary."""
    begin, run = time.perf_counter(), Campaign(folder, seed)
    for number in range(n):
        run.round(number)
        if number % 50 == 0:
            progress(f"round {number} of {n}, {len(run.faults)} faults")
    strikes = sum(map(len, Blocklist(folder).entries().values()))
    return {
        "schema": "gpuedge.kill-campaign/1",
        "rounds": n,
        "seed": seed,
        "seconds": round(time.perf_counter() - begin, 1),
        "counts": dict(sorted(run.counts.items())),
        "most_half_written_files": run.most,
        "strikes_kept": strikes,
        "quarantined": len(list(folder.rglob("*.bad"))),
        "faults": run.faults[:50],
        "is_good": not run.faults,
    }


def main() -> int:
    """Run, print and write the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the caches lie (default: a new folder)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        summary = campaign(
            options.n, options.seed, folder, lambda text: print(text, file=sys.stderr, flush=True)
        )
    text = json.dumps(summary, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return 0 if summary["is_good"] else 1


if __name__ == "__main__":
    sys.exit(main())
