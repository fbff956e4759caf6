"""The decision: a pure function of a record, with a reason for every candidate.

Nothing here measures, opens or looks at the machine, and everything that is compared is a whole
number, so a saved decision replays to the same bytes anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuedge.core.errors import InputError, NoUsableDeviceError
from gpuedge.core.reasons import SENTENCES
from gpuedge.core.text import plain
from gpuedge.decide import explain, words
from gpuedge.decide.assess import Assessment
from gpuedge.decide.belief import Belief, Weighing
from gpuedge.decide.model import Prediction, printable
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import AUTO, CPU, SCHEMA, Evidence, Record
from gpuedge.decide.rules import RuleOutcome, judge

MOST_PPM = 10**30
"""Beyond what any stakes come to: `gpuedge.decide.model.MOST_NS` in millionths of a nanosecond."""


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One candidate and what became of it.

    `status` is ``selected`` or ``rejected``, `code` a stable reason code, `reason` its sentence
    with the specifics. `startup_s` is None where nothing was predicted. `belief` and `verdict` say
    how a GPU compares with the CPU path, None where it was not weighed; `confidence` what that
    rests on: ``screened``, ``prior only``, ``1 window``, ``n windows`` or ``in service``. `entries`
    are the ids of the capability database's entries in force.
    """

    device: str
    status: str
    code: str
    reason: str
    prediction: Prediction | None = None
    is_software: bool | None = None
    name: str = ""
    belief: Belief | None = None
    verdict: Weighing | None = None
    confidence: str = ""
    entries: tuple[str, ...] = ()

    @property
    def startup_s(self) -> float | None:
        """Seconds that opening the device and compiling take once, None if not predicted."""
        return None if self.prediction is None else self.prediction.startup_s

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of what was decided; the evidence is in the record."""
        known, verdict = self.belief, self.verdict
        return {
            "belief": None if known is None else [known.mean, known.var, known.windows],
            "code": self.code,
            "confidence": self.confidence,
            "device": self.device,
            "reason": self.reason,
            "status": self.status,
            "verdict": None if verdict is None else asdict(verdict),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], known: Evidence) -> CandidateRow:
        """Rebuild from `to_dict` and the evidence. Raises if it does not fit."""
        belief, verdict = record["belief"], record["verdict"]
        return cls(
            _text(record["device"]),
            _text(record["status"]),
            _text(record["code"]),
            _text(record["reason"]),
            prediction=known.prediction,
            is_software=known.is_software,
            name=known.name,
            belief=None if belief is None else Belief(*belief),
            verdict=None if verdict is None else _verdict(verdict),
            confidence=_text(record["confidence"]),
            entries=known.entries,
        )


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
    """

    device: str
    reason: str
    rows: tuple[CandidateRow, ...]
    record: Record

    @property
    def policy(self) -> Policy:
        """The policy that was applied."""
        return self.record.policy

    @property
    def percentile(self) -> int:
        """The percentile of latency that was compared."""
        return self.record.policy.percentile

    @property
    def predicted(self) -> Prediction | None:
        """The chosen device's predicted latency, None if nothing had to be predicted."""
        return next((r.prediction for r in self.rows if r.status == "selected"), None)

    @property
    def calibration(self) -> str:
        """How calibration was done, or why it was not needed."""
        return self.record.calibration

    @property
    def version(self) -> str:
        """The gpuedge version that decided."""
        return self.record.version

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
            "rows": [row.to_dict() for row in self.rows],
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
            rows = tuple(
                CandidateRow.from_dict(row, known)
                for row, known in zip(record["rows"], made.candidates, strict=True)
            )
            judge(made)  # runs that no trial makes are found out here, not when printing
            return cls(_text(record["device"]), _text(record["reason"]), rows, made)
        except (
            AttributeError, KeyError, TypeError, ValueError, ArithmeticError, RecursionError
        ) as error:  # fmt: skip
            known = plain(f"{type(error).__name__}: {error}", 300)
            raise InputError("This saved decision is damaged.", known=known) from None

    def __str__(self) -> str:
        return explain.as_text(self)

    def __repr__(self) -> str:
        return f"<Decision {self.device}: {self.reason}>"

    def _repr_html_(self) -> str:
        return explain.as_html(self)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text of a saved decision is none")
    return printable(value)


def _verdict(fields: Mapping[str, Any]) -> Weighing:
    made = Weighing(**fields)
    for name, value in fields.items():
        is_flag = name in ("use_gpu", "is_settled")
        is_whole = type(value) is int and abs(value) <= MOST_PPM
        if not (type(value) is bool if is_flag else is_whole):
            raise TypeError(f"Verdict.{name} is not what a verdict has")
    return made


def decide(record: Record) -> Decision:
    """Choose a device. The result depends on `record` only.

    A device asked for by name is taken. Otherwise `gpuedge.decide.rules` judges.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        The device asked for by name is not there or cannot be used.
    """
    return _automatic(record) if record.asked == AUTO else _named(record)


def _automatic(record: Record) -> Decision:
    found = judge(record)
    cpu = next((c for c in record.candidates if c.device == CPU), Evidence(CPU))
    rows: list[CandidateRow] = []
    for i, candidate in enumerate(record.candidates):
        weighed = found.assessments[i]
        if candidate.device == CPU:
            rows.append(_cpu_row(candidate, found, record))
            continue
        code, reason = found.why[i] or _not_best(record, cpu, found, i)
        if found.best is None or weighed is None:
            rows.append(_row(candidate, "rejected", code, reason, weighed))
        elif i == found.best:
            code = "kept" if found.is_kept else "selected"
            why = explain.selected(candidate, cpu, weighed, record, found)
            rows.append(_row(candidate, "selected", code, why, weighed))
        else:
            rows.append(_row(candidate, "rejected", code, reason, weighed))
    if found.best is None:
        return Decision(CPU, explain.why_cpu(rows, record, found), tuple(rows), record)
    chosen = record.candidates[found.best]
    why = f"{rows[found.best].reason}{explain.routes(found.best, rows, record)}"
    reason = f"{explain.runs_on(chosen)}: {why}."
    return Decision(chosen.device, reason, tuple(rows), record)


def _not_best(record: Record, cpu: Evidence, found: RuleOutcome, i: int) -> tuple[str, str]:
    """Return why a GPU that nothing speaks against was not the one that is taken."""
    if found.best is None:
        return "not-best", SENTENCES["not-best"]
    best = record.candidates[found.best]
    if record.candidates[i].is_demoted and not best.is_demoted:
        return "demoted", SENTENCES["demoted"]
    return "not-best", explain.behind(best, cpu, record, found)


def _cpu_row(cpu: Evidence, found: RuleOutcome, record: Record) -> CandidateRow:
    if found.best is not None:
        best = record.candidates[found.best]
        return _row(cpu, "rejected", *explain.beside(best, cpu, record, found))
    compared = cpu.prediction is not None and any(
        c.prediction is not None for c in record.candidates if c.device != CPU
    )
    if found.is_kept:
        return _row(cpu, "selected", "kept", SENTENCES["kept"])
    code = "selected" if compared else "fallback"
    sentence = "no device is enough faster" if compared else SENTENCES["fallback"]
    limit = record.policy.deadline_ns
    if found.is_by_deadline and limit is not None and found.cpu_at_ns is not None:
        sentence = f"{words.deadline(found.cpu_at_ns, limit)}, but nothing is faster"
    return _row(cpu, "selected", code, sentence)


def _row(
    candidate: Evidence, status: str, code: str, reason: str, weighed: Assessment | None = None
) -> CandidateRow:
    return CandidateRow(
        candidate.device, status, code, reason,
        prediction=candidate.prediction, is_software=candidate.is_software, name=candidate.name,
        belief=None if weighed is None else weighed.belief,
        verdict=None if weighed is None else weighed.verdict,
        confidence="" if weighed is None else words.windows(weighed, candidate.served),
        entries=candidate.entries,
    )  # fmt: skip


_STILL_RUNS = ("ok", "unsupported-op", "not-calibrated")
"""What does not stop a named device: nodes it cannot run are placed elsewhere or refused later."""


def _named(record: Record) -> Decision:
    index = _find(record)
    chosen = record.candidates[index]
    rows = [
        _row(c, "rejected", c.code, words.sentence(c.code, c.detail))
        if c.code not in _STILL_RUNS
        else _row(c, "rejected", "not-named", SENTENCES["not-named"])
        for c in record.candidates
    ]
    note = "" if chosen.code == "ok" else words.sentence(chosen.code, chosen.detail)
    reason = SENTENCES["named"] + (f", although {note}" if note else "")
    rows[index] = _row(chosen, "selected", "named", reason)
    return Decision(chosen.device, f"{explain.runs_on(chosen)}: {reason}.", tuple(rows), record)


def _find(record: Record) -> int:
    """Return which candidate was named; a bare backend name means its first usable device."""
    rows = list(enumerate(record.candidates))
    exact = [i for i, c in rows if c.device == record.asked]
    family = [i for i, c in rows if c.device.split(":")[0] == record.asked]
    usable = [i for i in exact + family if record.candidates[i].code in _STILL_RUNS]
    if usable:
        return usable[0]
    why = [record.candidates[i] for i in exact + family]
    known = "; ".join(f"{c.label}: {words.sentence(c.code, c.detail)}" for c in why)
    there = ", ".join(c.device for _, c in rows if c.code == "ok") or "none"
    raise NoUsableDeviceError(
        f"The device {record.asked!r} cannot be used on this machine.",
        asked_by=f"device={record.asked!r}",
        known=known or f"there is no such device; usable here: {there}",
        hint="gpuedge probe shows every driver; device='auto' takes what works",
    )
