"""Times a case on several subjects in turn: A B B A, so that slow drift meets all alike.

In a round every subject has a new process and two blocks, in the order of the subjects and then in
reverse: whatever changes linearly within a round adds the same to each subject's mean. Processes
that run the same code differ by a few percent for as long as they live (where memory came to lie;
Mytkowicz et al., ASPLOS 2009; Kalibera and Jones, ISMM 2013). So a round, which starts anew, is
what is counted.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from gpuedge.bench.cases import BenchCase, ReadyCase, error_of, prepared
from gpuedge.bench.meters import Meter, meters
from gpuedge.bench.results import WHEN, Accuracy, BenchResult, Cold, Energy
from gpuedge.bench.subjects import LOAD_S, OWN, SubjectName, TimedProcess, check_build
from gpuedge.core.text import duration
from gpuedge.safety import temporary

ROUNDS = 12
"""With one the signed-rank test can say nothing; with twelve it finds a shift of 1.1 deviations."""

MAX_ROUNDS = 1000

BLOCK_NS, MOST_RUNS = 10_000_000, 64
"""A block takes at least so long, or has so many runs: of short ones the first few vary most."""

BLOCK_S = 120.0
"""Deadline of a block."""

Say = Callable[[str], None]


def machine_name() -> str:
    """Return what results call this machine by default: nothing that names a person."""
    return f"{platform.system()}-{platform.machine()}-{os.cpu_count() or 1}".lower()


def now() -> str:
    """Return the time as results have it."""
    return datetime.now(UTC).strftime(WHEN)


class _Side:
    """One subject while it is measured."""

    def __init__(self, subject: SubjectName, folder: Path, *, is_fresh: bool) -> None:
        self.subject, self.folder, self._is_fresh = subject, folder, is_fresh
        self.process: TimedProcess | None = None
        self.about: dict[str, str] = {}
        self.failed = ""
        self.cold: list[Cold] = []
        self.accuracy: Accuracy | None = None
        self.blocks: list[tuple[int, ...]] = []
        self.leads: list[int] = []
        self.peak: int | None = None
        self.energy: dict[str, list[float]] = {}

    def start(self, ready: ReadyCase) -> None:
        """Start a new process: everything that is cold, and the warm-up."""
        cache = str(self.folder / f"cache-{len(self.cold)}") if self._is_fresh else ""
        self.process = TimedProcess(self.subject, self.folder, cache)
        outputs = self.folder / "outputs.npz"
        answer = self._ask(
            LOAD_S, do="load", peer=self.subject.peer, device=self.subject.device,
            call=ready.case.call, folder=str(Path.cwd()), model=ready.model, inputs=ready.feeds,
            names=ready.names, outputs=str(outputs),
        )  # fmt: skip
        if answer is None:
            return
        self.failed = check_build(self.subject, answer)
        self.about = {n: str(answer[n]) for n in ("device", "version", "python")}
        if ready.wanted:
            self._compare(outputs, answer["names"], ready)
        warm_up: tuple[int, ...] = ()
        if ready.case.warm_up:
            found = self._ask(BLOCK_S, do="time", runs=ready.case.warm_up - 1)
            if found is None:
                return
            warm_up = (found["lead_ns"], *found["took_ns"])
        took = [max(1, answer[n]) for n in ("open_ns", "compile_ns", "first_ns")]
        self.cold.append(Cold(took[0], took[1], took[2], warm_up))

    def _ask(self, deadline_s: float, **asked: Any) -> dict[str, Any] | None:
        """Return an answer; None, and `failed` is set, where there is none."""
        answer = {} if self.process is None else self.process.ask(deadline_s, **asked)
        if "failed" not in answer:
            return answer
        is_missing = answer.get("missing") and self.subject.peer != OWN
        self.failed = "not installed" if is_missing else answer["failed"]
        return None

    def _compare(self, outputs: Path, names: Sequence[str], ready: ReadyCase) -> None:
        """Keep the largest error of all starts."""
        with np.load(outputs, allow_pickle=False) as file:
            found = {n: file[f"arr_{i}"] for i, n in enumerate(names)}
        apart = error_of(found, ready.wanted or {})
        before = self.accuracy
        if apart is not None and (before is None or (before.relative or 0.0) <= apart[1]):
            finite = [float(x) if np.isfinite(x) else None for x in apart]
            if before is None or before.relative is not None:
                self.accuracy = Accuracy(finite[0], finite[1], ready.reference)

    def close(self) -> None:
        """End its process."""
        if self.process is not None:
            self.process.close()

    def block(self, runs: int, counters: Sequence[Meter]) -> None:
        """Time a block."""
        for counter in counters:
            counter.start()
        begin = time.perf_counter()
        answer = self._ask(BLOCK_S, do="time", runs=runs)
        seconds = time.perf_counter() - begin
        if answer is None:
            return
        for counter in counters:
            joules = counter.joules(seconds)
            if joules is not None:
                sums = self.energy.setdefault(counter.name, [0.0, 0.0, 0.0])
                for at, more in enumerate((joules, seconds, runs + 1)):
                    sums[at] += more
        self.blocks.append(tuple(answer["took_ns"]))
        self.leads.append(answer["lead_ns"])
        self.peak = answer["peak_bytes"]


class Interleaved:
    """A case on subjects, to be timed round by round (`interleaved` makes it)."""

    def __init__(
        self, ready: ReadyCase, sides: Sequence[_Side], machine: str, counters: Sequence[Meter]
    ) -> None:
        self._ready, self._sides, self._counters = ready, sides, counters
        self._machine, self._when, self._session = machine, now(), secrets.token_hex(6)
        self._done = 0

    def _runs(self, rounds: int) -> int:
        """Return the runs of a block with which all rounds make the case's iterations, or more."""
        colds = [side.cold[0] for side in self._sides if side.cold]
        shortest = min(((*c.warm_up_ns, c.first_ns)[0] for c in colds), default=BLOCK_NS)
        least = -(-self._ready.case.iterations // (2 * rounds))
        return max(least, min(MOST_RUNS, BLOCK_NS // shortest))

    def round(self, rounds: int) -> None:
        """Time one of so many rounds: new processes, two blocks of each that has not failed.

        Every other round begins with the last subject.
        """
        order = [side for side in self._sides if not side.failed]
        order = order[::-1] if self._done % 2 else order
        self._done += 1
        with ExitStack() as stack:
            for side in order:
                stack.callback(side.close)
                side.start(self._ready)
            for side in (*order, *reversed(order)):
                if not side.failed:
                    side.block(self._runs(rounds), self._counters)

    def results(self) -> list[BenchResult]:
        """Return what was measured so far; a subject that failed has no times."""
        return [
            BenchResult(
                self._ready.case.name, side.subject.text, self._when, self._machine,
                self._session, side.about.get("version", ""), side.subject.commit,
                side.about.get("device", ""), side.about.get("python", ""), side.failed,
                tuple(side.cold), () if side.failed else tuple(side.blocks), tuple(side.leads),
                side.accuracy, self._ready.work, side.peak,
                tuple(Energy(n, s[0], s[1], int(s[2])) for n, s in side.energy.items()),
            )
            for side in self._sides
        ]  # fmt: skip


@contextmanager
def interleaved(
    case: BenchCase,
    subjects: Sequence[SubjectName],
    *,
    machine: str = "",
    is_fresh: bool = False,
    say: Say = lambda _: None,
) -> Iterator[Interleaved]:
    """Write what a case needs; each round then starts every subject.

    Parameters
    ----------
    case : BenchCase
    subjects : sequence of SubjectName
        With their commits checked out.
    machine : str
        What results call this machine; by default `machine_name`.
    is_fresh : bool
        Give every process an empty cache folder of gpuedge, so that cold means without any cache.
    say : callable
        Told what is being done.

    Raises
    ------
    InputError (GE-203), ModelError (GE-5xx) and others
        The case; no subject was started.
    """
    with temporary.folder("gpuedge-bench-") as folder:
        say(f"preparing {case.name}")
        ready = prepared(case, folder)
        sides = []
        for at, subject in enumerate(subjects):
            own = folder / str(at)
            own.mkdir()
            sides.append(_Side(subject, own, is_fresh=is_fresh))
        yield Interleaved(ready, sides, machine or machine_name(), meters())


def measure_case(
    case: BenchCase,
    subjects: Sequence[SubjectName],
    *,
    rounds: int = ROUNDS,
    machine: str = "",
    is_fresh: bool = False,
    say: Say = lambda _: None,
) -> list[BenchResult]:
    """Time a case on subjects in turn: `interleaved`, then so many rounds.

    All rounds together make at least the case's iterations.
    """
    with interleaved(case, subjects, machine=machine, is_fresh=is_fresh, say=say) as timed:
        begin = time.perf_counter()
        for at in range(rounds):
            spent = duration((time.perf_counter() - begin) * 1e9)
            say(f"{case.name}: round {at + 1} of {rounds}, after {spent}")
            timed.round(rounds)
        return timed.results()
