"""Probes many times in one process and checks after each that the process is as it was before.

Usage: python tools/probe_audit.py [--probes N] [--seed S] [--json FILE]

Probes answered from the store, probes of a good driver and of drivers that crash, end the process,
hang, flood, leave a process behind or leak a lock come in random order. What is compared: open
descriptors and what they are, threads, child processes, processes that carry a mark in their
environment wherever they went, file locks, temporary and cache files, the environment, the working
folder, signal handlers and masks, the umask, resource limits, descriptor flags of the standard
streams, `sys.path` and the handlers of the root logger. Needs the fault kit and a C compiler.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "faults")]

import kit as fault_kit  # noqa: E402
from kit_vulkan import good_manifest  # noqa: E402

import gpuedge  # noqa: E402

MARK = "GPUFAULT_AUDIT"
"""A variable whose value every process started here inherits, however far it goes."""

LIMITS = sorted({getattr(resource, n) for n in dir(resource) if n.startswith("RLIMIT_")})

GRACE_S = 1.0
"""How long a process that was killed may take to be gone."""


@dataclass(frozen=True)
class Sort:
    """One sort of probe: the fault in its way, whether the store may answer, and what is right."""

    name: str
    share: int
    fault: str | None = None
    is_cached: bool = False
    deadline_s: float = 30.0
    status: str = "ok"


SORTS = (
    Sort("good", 4),
    Sort("cached", 72, is_cached=True),
    Sort("segv", 5, "segv@load", status="crashed"),
    Sort("abort while opening", 3, "abort@create", status="crashed"),
    Sort("exit(0)", 5, "exit0@load", status="crashed"),
    Sort("hang", 5, "hang@load", deadline_s=0.5, status="timeout"),
    Sort("flood", 2, "flood@load"),
    Sort("process left behind", 2, "daemon@load"),
    Sort("leaked lock", 2, "leak-lock@load", deadline_s=0.5, status="timeout"),
)


@contextmanager
def variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables, and put back what was there."""
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in [n for n in os.environ if n not in before]:
            del os.environ[name]
        os.environ.update(before)


def descriptors() -> dict[str, str]:
    """Return what each open descriptor is."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            found[path.name] = str(path.readlink())
        except FileNotFoundError:  # the one that lists them
            continue
    return found


def processes(mark: str) -> list[str]:
    """Return the processes, this one apart, that carry the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(f"{folder.name} {(folder / 'comm').read_text().strip()}")
        except OSError:
            continue
    return found


def children() -> list[str]:
    """Return the ids of all children, those among them that ended and were not waited for."""
    lists = [task.read_text() for task in Path("/proc/self/task").glob("*/children")]
    return sorted(pid for text in lists for pid in text.split())


def status_lines() -> list[str]:
    """Return the signal masks and the number of threads as the kernel shows them."""
    wanted = ("Threads", "SigBlk", "SigIgn", "SigCgt", "Umask", "TracerPid")
    lines = Path("/proc/self/status").read_text().splitlines()
    return [line for line in lines if line.startswith(wanted)]


def locks(folder: Path) -> list[str]:
    """Return the files of a folder that somebody holds a lock on."""
    held = []
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    held.append(str(path))
    return held


def files(*folders: Path) -> list[str]:
    """Return the files below folders; what is written anew under its name is the same."""
    return sorted(str(path) for folder in folders for path in folder.rglob("*"))


def state(temporary: Path, cache: Path) -> dict[str, Any]:
    """Return everything that a probe is to leave as it was."""
    return {
        "descriptors": descriptors(),
        "children": children(),
        "status": status_lines(),
        "locks": locks(cache),
        "files": files(temporary, cache),
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "handlers": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
        "limits": [resource.getrlimit(n) for n in LIMITS],
        "flags": [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in range(3)],
        "path": list(sys.path),
        "logging": [str(h) for h in logging.getLogger().handlers],
    }


def resident_kib() -> int:
    """Return the memory in use."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


class Audit:
    """The probes and what was found after them."""

    def __init__(self, work: Path, seed: int) -> None:
        self.kit = fault_kit.build()
        self.random = random.Random(seed)
        self.mark = f"{MARK}={uuid.uuid4()}"
        self.temporary, self.cache = work / "tmp", work / "cache"
        for folder in (self.temporary, self.cache):
            folder.mkdir()
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {sort.name: [] for sort in SORTS}

    def run(self, probes: int) -> None:
        """Probe so many times; each sort once before that, for what is opened once and for all."""
        name, _, value = self.mark.partition("=")
        own = {"GPUEDGE_CACHE_DIR": str(self.cache), "VK_DRIVER_FILES": str(good_manifest(None))}
        os.environ.update({name: value, **own})
        tempfile.tempdir = str(self.temporary)
        for sort in SORTS:
            self.probe(sort)
        self.settle()
        time.sleep(0.2)  # the kernel counts a thread for a moment after it was joined
        before = state(self.temporary, self.cache)
        wanted = self.random.choices(SORTS, [s.share for s in SORTS], k=probes)
        for number, sort in enumerate(wanted):
            self.probe(sort)
            self.compare(f"{number} ({sort.name})", before)

    def probe(self, sort: Sort) -> None:
        """Probe once, and check the verdict."""
        wanted = {} if sort.fault is None else self.kit.environment("vulkan", sort.fault)
        with variables(wanted):
            start = time.perf_counter()
            report = gpuedge.probe(
                backends=["vulkan"], refresh=not sort.is_cached, deadline_s=sort.deadline_s
            )
            self.seconds[sort.name].append(time.perf_counter() - start)
            for thread in threading.enumerate():  # what was cut off is looked at again
                if thread.name == "gpuedge-probe":
                    thread.join()
        self.counts[sort.name] += 1
        found = [row.status for row in report.tried]
        if found != [sort.status] or any(r.is_cached is not sort.is_cached for r in report.tried):
            self.faults.append(f"{sort.name}: {[r.to_dict() for r in report.tried]}")

    def settle(self) -> None:
        """End what a driver left behind on purpose; nothing else may be there."""
        ends = time.monotonic() + GRACE_S
        while (left := self.left()) and time.monotonic() < ends:
            time.sleep(0.002)
        self.faults += [f"a process is left: {one}" for one in left]

    def left(self) -> list[str]:
        """Return processes that are left, after ending the ones a driver leaves on purpose.

        Those go into a session of their own, where nobody finds them who does not look at all.
        """
        for pid in (int(one.split()[0]) for one in processes(self.mark)):
            with suppress(OSError):
                if b"GPUFAULT=daemon@" in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        return processes(self.mark)

    def compare(self, name: str, before: Mapping[str, Any]) -> None:
        """Compare with the state before the first probe."""
        self.settle()
        ends = time.monotonic() + GRACE_S
        while (after := state(self.temporary, self.cache)) != before and time.monotonic() < ends:
            time.sleep(0.005)
        for part, value in before.items():
            if after[part] != value:
                self.faults.append(f"after probe {name}: {part}: {value} became {after[part]}")


def main() -> int:
    """Audit, print a summary, and return 1 where something was left."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--probes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    logging.getLogger("gpuedge").addHandler(logging.NullHandler())
    logging.getLogger("gpuedge").propagate = False
    with tempfile.TemporaryDirectory(prefix="audit-") as work:
        audit = Audit(Path(work), given.seed)
        memory = resident_kib()
        audit.run(given.probes)
        grown = resident_kib() - memory
    record = {
        "schema": "gpuedge.probe-audit/1", "probes": given.probes, "seed": given.seed,
        "counts": dict(audit.counts), "memory_grown_kib": grown, "faults": audit.faults,
        "longest_s": {name: round(max(s), 4) for name, s in audit.seconds.items() if s},
    }  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, count in audit.counts.items():
        print(f"{count:6} {name:22} longest {max(audit.seconds[name]):.3f} s")
    print(f"{given.probes} probes, memory grew by {grown} KiB, {len(audit.faults)} faults")
    for fault in audit.faults[:20]:
        print("  " + fault[:600])
    return 1 if audit.faults else 0


if __name__ == "__main__":
    sys.exit(main())
