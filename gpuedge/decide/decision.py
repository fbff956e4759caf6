"""The decision: a pure function of a record, with a reason for every candidate.

Nothing here measures, opens or looks at the machine. What is compared is rounded to whole numbers,
so a saved decision replays to the same bytes anywhere. The order of the rules: what rules a device
out whatever its speed; the deadline; the expected loss against the CPU path; and devices that the
capability database demotes only after all others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from gpuedge.core.errors import InputError, NoUsableDeviceError
from gpuedge.core.reasons import SENTENCES
from gpuedge.core.text import plain
from gpuedge.decide import explain
from gpuedge.decide.belief import MICRO, losses
from gpuedge.decide.record import AUTO, CPU, MOST, SCHEMA, Evidence, Record, fields_of, whole

STATUSES = ("selected", "rejected", "waiting")


class Comparison(NamedTuple):
    """What one request takes on a GPU and on the CPU path, in the figures that are told.

    `is_rough` says that `gpu_ns` was not measured as it stands.
    """

    gpu_ns: int
    cpu_ns: int
    is_rough: bool = False

    @property
    def milli(self) -> int:
        """Speed on the GPU, in thousandths of that on the CPU path."""
        return self.cpu_ns * 1000 // self.gpu_ns


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One candidate and what became of it.

    `status` is ``selected``, ``rejected``, or ``waiting`` for a GPU that may be taken later in this
    launch; `code` a stable reason code and `reason` its sentence with the specifics. `time_ns` is
    what one request takes there, and `is_rough` says that it was not measured as it stands. The
    losses are what the CPU and the GPU are expected to lose per request against knowing which is
    faster, in millionths of the CPU path's latency. None is unknown.
    """

    device: str
    status: str
    code: str
    reason: str
    time_ns: int | None = None
    is_rough: bool = False
    loss_cpu_ppm: int | None = None
    loss_gpu_ppm: int | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES or self.code not in SENTENCES:
            raise ValueError(f"unknown status or code {self.status!r}, {self.code!r}")
        for value in (self.time_ns, self.loss_cpu_ppm, self.loss_gpu_ppm):
            if value is not None:
                whole("a number of a row", value)
        if type(self.is_rough) is not bool or plain(self.reason, None) != self.reason:
            raise ValueError("a field of a row is not what it should be")


@dataclass(frozen=True, slots=True, repr=False)
class Decision:
    """Which device runs a model, and why; prints as a sentence followed by a table.

    Attributes
    ----------
    device : str
        The chosen device.
    reason : str
        Why, in one sentence.
    rows : tuple of CandidateRow
        Every candidate, in the order of the record.
    record : Record
        What the choice rests on.
    is_verbose : bool
        Whether it prints that, too.
    """

    device: str
    reason: str
    rows: tuple[CandidateRow, ...]
    record: Record
    is_verbose: bool = field(default=False, compare=False)

    @property
    def version(self) -> str:
        """The gpuedge version that decided."""
        return self.record.version

    def explain(self, *, verbose: bool = False) -> str:
        """Return the sentence and the table, and with `verbose` what they rest on."""
        return explain.as_text(self, verbose=verbose)

    def replay(self) -> Decision:
        """Decide again from the record alone."""
        return decide(self.record)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; times are whole nanoseconds."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "reason": self.reason,
            "record": self.record.to_dict(),
            "rows": [asdict(row) for row in self.rows],
        }

    def to_json(self) -> str:
        """Return canonical JSON: sorted keys, no spaces, ASCII. Equal decisions, equal bytes."""
        return json.dumps(
            self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True,
            allow_nan=False,
        )  # fmt: skip

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Decision:
        """Rebuild a decision from `to_dict` as it was made, without deciding again.

        Raises
        ------
        InputError (GE-203)
            It is not a decision, or of a version this gpuedge does not read.
        """
        schema = record.get("schema") if isinstance(record, Mapping) else None
        if schema != SCHEMA:
            old = isinstance(schema, str) and schema.startswith("gpuedge.decision/")
            raise InputError(
                "This saved decision is of another version." if old
                else "This is not a saved decision.",
                known=f"its schema is {plain(repr(schema))}; this version reads {SCHEMA!r}",
                hint="make one with Session.explain().to_json()",
            )  # fmt: skip
        made = Record.from_dict(record.get("record", {}))
        try:
            rows = tuple(CandidateRow(**fields_of(CandidateRow, row)) for row in record["rows"])
            if [row.device for row in rows] != [known.device for known in made.candidates]:
                raise ValueError("the rows are not those of the candidates")
            device, reason = record["device"], record["reason"]
            if plain(device + reason, None) != device + reason:
                raise ValueError("a text of more than one line")
            return cls(device, reason, rows, made)
        except (
            AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError
        ) as error:  # fmt: skip
            known = plain(f"{type(error).__name__}: {error}", 300)
            raise InputError("This saved decision is damaged.", known=known) from None

    def __str__(self) -> str:
        return self.explain(verbose=self.is_verbose)

    def __repr__(self) -> str:
        return f"<Decision {self.device}: {self.reason}>"

    def _repr_html_(self) -> str:
        return explain.as_html(self)


def decide(record: Record) -> Decision:
    """Choose a device. The result depends on `record` only.

    A device asked for by name is taken. Otherwise a GPU that was compared with the CPU path and is
    ready is taken where that is expected to lose less than staying on the CPU.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        The device asked for by name is not there or cannot be used, and the record does not fall
        back.
    """
    return _Judge(record).decision()


_UNDER_WAY = {"opening": "opening", "trial": "on-trial", "late": "open-late",
              "failed": "run-failed"}  # fmt: skip
_WAITING = ("not-yet", "opening", "takes-over", "on-trial", "open-late")
_STILL_RUNS = ("ok", "unsupported-op")
"""What does not stop a named device: nodes it cannot run are placed elsewhere or refused later."""


class _Judge:
    """The candidates of one record, each weighed against its CPU path."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.policy = record.policy
        self.k = 1000 / record.policy.speedup_milli
        self.losses = [self._losses(candidate) for candidate in record.candidates]
        self.compared = [self._comparison(i) for i in range(len(record.candidates))]
        self.chosen = self._best() if record.asked == AUTO else _find(record)

    def decision(self) -> Decision:
        """Return the choice with a row for each candidate."""
        rows, reasons, record = [], [], self.record
        taken = self.chosen or record.cpu
        for i, candidate in enumerate(record.candidates):
            code = self._code(i, candidate)
            case = explain.RowCase(candidate, record, self.compared[i], self.chosen)
            reasons.append(case.reason(code))
            status = "waiting" if code in _WAITING else "rejected"
            status = "selected" if candidate is taken else status
            told, lost = explain.in_table(reasons[-1]), self.losses[i] or (None, None)
            rows.append(
                CandidateRow(candidate.device, status, code, told, *self._time(i, candidate), *lost)
            )
        if self.chosen is None:
            sentence = explain.on_cpu([row.code for row in rows], reasons, record)
        else:
            why = next(row.reason for row in rows if row.status == "selected")
            sentence = f"Runs on {taken.label}: {why}."
        return Decision(taken.device, sentence, tuple(rows), record)

    # -- weighing ------------------------------------------------------------------------------

    def _losses(self, candidate: Evidence) -> tuple[int, int] | None:
        known = candidate.belief
        return None if known is None or candidate.device == CPU else losses(known, self.k)

    def _is_worth(self, i: int) -> bool:
        found = self.losses[i]
        return found is not None and found[1] < found[0]

    def _comparison(self, i: int) -> Comparison | None:
        """Return the figures to tell, None where the CPU path or the GPU has none.

        Measured medians are told where they agree with what is expected, and else the latter: what
        is said of a device must not contradict what is done with it.
        """
        gpu, found = self.record.candidates[i], self.losses[i]
        cpu_ns = gpu.cpu_ns or self.record.cpu.cpu_ns
        if gpu.belief is None or found is None or not cpu_ns:
            return None
        expected = self.k + (found[1] - found[0]) / MICRO
        if gpu.is_measured and gpu.gpu_ns:
            made = Comparison(gpu.gpu_ns, cpu_ns)
            if (made.milli >= self.policy.speedup_milli) == self._is_worth(i):
                return made
        elif not gpu.is_measured:
            expected = math.exp(gpu.belief.mean / MICRO)
        return Comparison(min(max(round(cpu_ns * expected), 1), MOST), cpu_ns, True)

    def _time(self, i: int, candidate: Evidence) -> tuple[int | None, bool]:
        """Return what a request takes, and whether that is not measured as it stands.

        The CPU path's time is that of the comparison that is told of.
        """
        times = [(found.gpu_ns, found.is_rough)] if (found := self.compared[i]) else []
        if candidate.device == CPU:
            pairs = zip(self.record.candidates, self.compared, strict=True)
            told = [c.cpu_ns for gpu, c in pairs if c and self.chosen in (None, gpu)]
            times = [(ns, False) for ns in (*told, candidate.cpu_ns) if ns is not None]
        return times[0] if times else (candidate.predicted_ns, True)

    # -- choosing ------------------------------------------------------------------------------

    def _ruled_out(self, gpu: Evidence) -> str:
        """Return the code of what speaks against a GPU whatever its speed, empty if nothing."""
        if gpu.code != "ok":
            return gpu.code
        if gpu.is_software and not self.policy.allow_software:
            return "software"
        bound, needs = self.policy.max_memory_bytes, gpu.memory_bytes
        return "too-much-memory" if bound is not None and (needs or 0) > bound else ""

    def _best(self) -> Evidence | None:
        """Return the GPU that answers or is to be taken, None for the CPU."""
        gpus, limit = self.record.candidates, self.policy.deadline_ns
        if self.record.in_use is not None:
            used = self.record.in_use
            return None if used == CPU else next(c for c in gpus if c.device == used)
        ready = [
            i for i, c in enumerate(gpus)
            if c.phase == "ready" and c.is_measured and c.device != CPU and not self._ruled_out(c)
        ]  # fmt: skip
        at = {i: self.record.at_ns(gpus[i]) or 0 for i in ready}
        if self.record.is_late:
            faster = [i for i in ready if 0 < at[i] < (self.record.at_ns(self.record.cpu) or 0)]
            keeps = [i for i in faster if at[i] <= (limit or 0)]
            best = min(keeps, key=self._rank, default=min(faster, key=at.__getitem__, default=None))
        else:
            worth = [i for i in ready if self._is_worth(i) and (limit is None or at[i] <= limit)]
            best = min(worth, key=self._rank, default=None)
        return None if best is None else gpus[best]

    def _rank(self, i: int) -> tuple[bool, int, int]:
        """Order what may be taken: demoted last, then by expected loss, then as probed."""
        cpu, gpu = self.losses[i] or (0, 0)
        return self.record.candidates[i].is_demoted, gpu - cpu, i

    # -- saying why ----------------------------------------------------------------------------

    def _code(self, i: int, candidate: Evidence) -> str:
        """Return the reason code of a candidate."""
        if self.record.asked != AUTO:
            if candidate is self.chosen:
                return "named"
            if candidate.code in _STILL_RUNS:
                is_cpu = candidate.device == CPU and self.chosen is None
                return "fallback" if is_cpu else "not-named"
            return candidate.code
        if candidate.device == CPU:
            return self._cpu_code()
        if candidate is self.chosen:
            return "selected"
        return self._ruled_out(candidate) or self._not_taken(i, candidate)

    def _cpu_code(self) -> str:
        if self.chosen is not None:
            return "misses-deadline" if self.record.is_late else "not-best"
        gpus = (c for c in self.record.candidates if c.device != CPU)
        return "fallback" if all(map(self._ruled_out, gpus)) else "selected"

    def _not_taken(self, i: int, gpu: Evidence) -> str:
        """Return the code of a GPU that could be used, and is not the one taken."""
        best, limit, at = self.chosen, self.policy.deadline_ns, self.record.at_ns(gpu) or 0
        if gpu.phase in _UNDER_WAY or (gpu.phase == "ready" and not gpu.is_measured):
            return _UNDER_WAY.get(gpu.phase, "on-trial")
        if gpu.is_measured and limit is not None and at > limit:
            return "misses-deadline"
        if best is not None and gpu.phase == "ready" and self._is_worth(i):
            return "demoted" if gpu.is_demoted and not best.is_demoted else "not-best"
        if best is not None and not gpu.is_measured and "" != gpu.physical == best.physical:
            return "other-route"
        return self._by_speed(i, gpu)

    def _by_speed(self, i: int, gpu: Evidence) -> str:
        found = self.compared[i]
        is_slower = found is not None and found.milli < explain.ABOUT_AS_FAST.start
        if not gpu.is_measured:
            return "slower" if is_slower else "not-yet"
        if self._is_worth(i):  # else it was closed, or not opened in this launch
            return "takes-over" if gpu.phase == "ready" else "not-yet"
        return "measured-slower" if is_slower else "too-little"


def _find(record: Record) -> Evidence | None:
    """Return which candidate was named; a bare backend name means its first usable device.

    None where it cannot be used and the CPU stands in.
    """
    exact = [c for c in record.candidates if c.device == record.asked]
    family = [c for c in record.candidates if c.device.split(":")[0] == record.asked]
    usable = [c for c in exact + family if c.code in _STILL_RUNS]
    if usable or record.falls_back:
        return usable[0] if usable else None
    known = "; ".join(f"{c.label}: {explain.sentence(c.code, c.detail)}" for c in exact + family)
    there = ", ".join(c.device for c in record.candidates if c.code == "ok") or "none"
    raise NoUsableDeviceError(
        f"The device {record.asked!r} cannot be used on this machine.",
        asked_by=f"device={record.asked!r}",
        known=known or f"there is no such device; usable here: {there}",
        hint="gpuedge probe shows every driver; device='auto' takes what works",
    )
