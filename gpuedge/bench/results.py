"""What was measured of one case on one subject, and what follows from it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Annotated, Any

from gpuedge.bench.estimates import LEVEL, Quantile, Ratio, as_json, paired, quantile, unpaired
from gpuedge.core.record import Record

SCHEMA = "gpuedge.bench.result/1"

PERCENTILES = (50, 90, 99)

COLD = ("open", "compile", "first")
"""What happens once in a process."""

WHEN = "%Y-%m-%dT%H:%M:%S.%fZ"
"""Times of results: UTC."""

COMMIT, PYTHON = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})?"), re.compile(r"[\w.+-]{0,80}")
"""Both become parts of the names of files."""

Nanoseconds = Annotated[int, range(1, 1 << 63)]


def _time(text: str) -> str:
    if datetime.fromisoformat(text).strftime(WHEN) != text:
        raise ValueError(f"{text!r} is not of the form {WHEN}")
    return text


def _rounds(blocks: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    if len(blocks) % 2:
        raise ValueError("a round has two blocks")
    return blocks


class WorkFields(Record):
    """What the work of a result always has."""

    IS_OPEN = True

    flops: float
    bytes_moved: float


@dataclass(frozen=True, slots=True)
class Cold:
    """The first of everything in one process, never mixed with warm runs.

    Attributes
    ----------
    open_ns : int
        Importing the runtime and opening its device.
    compile_ns : int
        Reading and compiling the model.
    first_ns : int
        The first run.
    warm_up_ns : tuple of int
        Further runs before the first block.
    """

    open_ns: Nanoseconds
    compile_ns: Nanoseconds
    first_ns: Nanoseconds
    warm_up_ns: tuple[Nanoseconds, ...] = ()


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far outputs are from what they are compared with; None: not finite, or other sizes."""

    absolute: float | None
    relative: float | None
    reference: str


@dataclass(frozen=True, slots=True)
class Energy:
    """What a meter of the machine counted while this subject's blocks ran."""

    meter: str
    joules: float
    seconds: float
    runs: int


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One case on one subject.

    Attributes
    ----------
    when : str
        UTC, as ISO 8601.
    machine : str
        A name that the user gives, else system, processor kind and cores.
    session : str
        The same for all subjects that were interleaved.
    failed : str
        Why there are no numbers; empty if there are.
    cold : tuple of Cold
        One for each process that was started.
    blocks : tuple of tuple of int
        Nanoseconds of every warm run, block by block.
    lead_ns : tuple of int
        The run before each block, after the other subjects' turn: neither cold nor warm.
    work : mapping or None
        Counted from the graph (`cases.ReadyCase`).
    peak_bytes : int or None
        Largest resident set of the subject's process.
    """

    case: str
    subject: str
    when: Annotated[str, _time]
    machine: Annotated[str, range(1, 1 << 31)]
    session: str
    version: str = ""
    commit: Annotated[str, COMMIT] = ""
    device: str = ""
    python: Annotated[str, PYTHON] = ""
    failed: str = ""
    cold: tuple[Cold, ...] = ()
    blocks: Annotated[
        tuple[Annotated[tuple[Nanoseconds, ...], range(1, 1 << 31)], ...], _rounds
    ] = ()
    lead_ns: tuple[Nanoseconds, ...] = ()
    accuracy: Accuracy | None = None
    work: Annotated[Mapping[str, float] | None, WorkFields] = None
    peak_bytes: int | None = None
    energy: tuple[Energy, ...] = ()

    @property
    def warm(self) -> list[int]:
        """All warm runs in nanoseconds."""
        return [ns for block in self.blocks for ns in block]

    @property
    def rounds(self) -> list[float]:
        """The logarithm of the median, for each round: the mean of its two blocks."""
        logs = [math.log(median(block)) for block in self.blocks]
        return [(a + b) / 2 for a, b in zip(logs[::2], logs[1::2], strict=False)]

    def latency(self) -> dict[str, Quantile]:
        """Return the percentiles of warm latency in nanoseconds, by name such as ``p90``."""
        return {f"p{p}": quantile(self.warm, p / 100) for p in PERCENTILES} if self.blocks else {}

    def starts(self) -> dict[str, Quantile]:
        """Return medians over processes of what is cold, in nanoseconds."""
        return (
            {
                name: quantile([getattr(cold, f"{name}_ns") for cold in self.cold], 0.5)
                for name in COLD
            }
            if self.cold
            else {}
        )

    @property
    def throughput(self) -> float | None:
        """Warm runs per second, one after another."""
        return len(self.warm) / (sum(self.warm) * 1e-9) if self.blocks else None

    @property
    def power(self) -> list[dict[str, Any]] | None:
        """Watts and joules per run by meter; None where the machine has no meter."""
        return [
            {"meter": e.meter, "watts": e.joules / e.seconds, "joules_per_run": e.joules / e.runs}
            for e in self.energy if e.seconds > 0 and e.runs
        ] or None  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Return everything for a reader of JSON; what is not known is None."""
        rate = None if self.work is None or not self.blocks else self.work["flops"]
        typical = self.latency().get("p50")
        return {
            "case": self.case, "subject": self.subject, "device": self.device,
            "version": self.version, "commit": self.commit or None, "failed": self.failed or None,
            "runs": len(self.warm),
            "latency_ns": {n: as_json(q) for n, q in self.latency().items()},
            "throughput_per_s": self.throughput,
            "cold_ns": {n: as_json(q) for n, q in self.starts().items()},
            "starts": len(self.cold),
            "accuracy": None if self.accuracy is None else {
                "absolute": self.accuracy.absolute, "relative": self.accuracy.relative,
                "reference": self.accuracy.reference},
            "work": None if self.work is None else dict(self.work),
            "flops_per_s": rate / (typical.value * 1e-9) if rate is not None and typical else None,
            "peak_bytes": self.peak_bytes, "power": self.power,
        }  # fmt: skip


def ratio(before: BenchResult, after: BenchResult, level: float = LEVEL) -> Ratio:
    """Return how many times as long `after` takes; both have times.

    Round by round where the two were interleaved; else their rounds are not paired.
    """
    if before.session == after.session:
        pairs = zip(before.rounds, after.rounds, strict=False)
        return paired([b - a for a, b in pairs], level)
    return unpaired(before.rounds, after.rounds, level)
