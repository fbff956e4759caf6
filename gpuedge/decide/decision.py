"""The decision: a pure function of a record, with a reason for every candidate.

Nothing here measures, opens or looks at the machine, and everything that is compared is a whole
number, so a saved decision replays to the same bytes anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuedge.core.errors import InputError, NoUsableDeviceError
from gpuedge.core.reasons import SENTENCES
from gpuedge.decide import explain
from gpuedge.decide.model import Prediction
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import AUTO, CPU, SCHEMA, Evidence, Record


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One candidate and what became of it.

    `status` is ``selected`` or ``rejected``, `code` a stable reason code, `reason` its sentence
    with the specifics. `startup_s` is None where nothing was predicted.
    """

    device: str
    status: str
    code: str
    reason: str
    prediction: Prediction | None = None
    is_software: bool | None = None
    name: str = ""

    @property
    def startup_s(self) -> float | None:
        """Seconds that opening the device and compiling take once, None if not predicted."""
        return None if self.prediction is None else self.prediction.startup_s


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
            "rows": [
                {"device": r.device, "status": r.status, "code": r.code, "reason": r.reason}
                for r in self.rows
            ],
        }

    def to_json(self) -> str:
        """Return canonical JSON: sorted keys, no spaces, ASCII. Equal decisions, equal bytes."""
        import json

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
            raise InputError(
                "This is not a saved decision.",
                known=f"its schema is {schema!r}; this version reads {SCHEMA!r}",
                hint="make one with Session.explain().to_json()",
            )
        made = Record.from_dict(record.get("record", {}))
        try:
            rows = tuple(
                _row(known, str(row["status"]), str(row["code"]), str(row["reason"]))
                for row, known in zip(record["rows"], made.candidates, strict=True)
            )
            return cls(str(record["device"]), str(record["reason"]), rows, made)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                "This saved decision is damaged.", known=f"{type(error).__name__}: {error}"
            ) from None

    def __str__(self) -> str:
        return explain.as_text(self)

    def __repr__(self) -> str:
        return f"<Decision {self.device}: {self.reason}>"

    def _repr_html_(self) -> str:
        return explain.as_html(self)


def decide(record: Record) -> Decision:
    """Choose a device. The result depends on `record` only.

    A device asked for by name is taken. Otherwise the CPU is, unless a GPU that nothing speaks
    against satisfies ``(latency + startup / inferences) * min_speedup <= CPU latency`` at the
    policy's percentile and is strictly faster; the fastest such GPU wins, ties go to the first.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        The device asked for by name is not there or cannot be used.
    """
    return _automatic(record) if record.asked == AUTO else _named(record)


def _automatic(record: Record) -> Decision:
    cpu = next((c for c in record.candidates if c.device == CPU), Evidence(CPU))
    verdicts = [_ruled_out(c, cpu, record) for c in record.candidates]
    worth = [
        (_cost(c.prediction, record.policy), i)
        for i, c in enumerate(record.candidates)
        if verdicts[i] is None and c.prediction is not None and c.device != CPU
    ]
    _, best = min(worth, default=(0, None))
    rows: list[CandidateRow] = []
    for i, candidate in enumerate(record.candidates):
        code, reason = verdicts[i] or ("not-best", SENTENCES["not-best"])
        if candidate.device == CPU:
            rows.append(_cpu_row(candidate, best is None, record))
        elif i == best:
            why = explain.speedup(candidate, cpu, record.policy)
            rows.append(_row(candidate, "selected", "selected", why))
        else:
            rows.append(_row(candidate, "rejected", code, reason))
    if best is None:
        return Decision(CPU, explain.why_cpu(rows, record), tuple(rows), record)
    chosen = record.candidates[best]
    reason = f"{explain.runs_on(chosen)}: {rows[best].reason}{explain.roads(best, rows, record)}."
    return Decision(chosen.device, reason, tuple(rows), record)


def _cost(prediction: Prediction, policy: Policy) -> int:
    """Nanoseconds of all declared inferences with start-up, at the policy's percentile."""
    return prediction.at_ns * policy.inferences + prediction.startup_ns


def _ruled_out(candidate: Evidence, cpu: Evidence, record: Record) -> tuple[str, str] | None:
    """Return the code and sentence of what speaks against a GPU in ``auto``, None if nothing."""
    policy = record.policy
    if candidate.code != "ok":
        return candidate.code, explain.sentence(candidate.code, candidate.detail)
    if record.is_by_name:  # the one that was named failed: no other was asked for
        return "not-named", SENTENCES["not-named"]
    if candidate.is_software and not policy.allow_software:
        return "software", SENTENCES["software"]
    if candidate.prediction is None or cpu.prediction is None:
        missing = "" if candidate.prediction is None else "the CPU path has no prediction"
        return "not-calibrated", explain.sentence("not-calibrated", missing)
    cost = _cost(candidate.prediction, policy)
    limit = cpu.prediction.at_ns * policy.inferences
    if cost < limit and cost * policy.speedup_milli <= limit * 1000:
        return None
    return "slower", explain.comparison(candidate, cpu, policy)


def _cpu_row(cpu: Evidence, is_chosen: bool, record: Record) -> CandidateRow:
    if not is_chosen:
        return _row(cpu, "rejected", "not-best", SENTENCES["not-best"])
    compared = cpu.prediction is not None and any(
        c.prediction is not None for c in record.candidates if c.device != CPU
    )
    code = "selected" if compared else "fallback"
    sentence = "no device is enough faster" if compared else SENTENCES["fallback"]
    return _row(cpu, "selected", code, sentence)


def _row(candidate: Evidence, status: str, code: str, reason: str) -> CandidateRow:
    return CandidateRow(
        candidate.device, status, code, reason,
        prediction=candidate.prediction, is_software=candidate.is_software, name=candidate.name,
    )  # fmt: skip


_STILL_RUNS = ("ok", "unsupported-op", "not-calibrated")
"""What does not stop a named device: nodes it cannot run are placed elsewhere or refused later."""


def _named(record: Record) -> Decision:
    index = _find(record)
    chosen = record.candidates[index]
    rows = [
        _row(c, "rejected", c.code, explain.sentence(c.code, c.detail))
        if c.code not in _STILL_RUNS
        else _row(c, "rejected", "not-named", SENTENCES["not-named"])
        for c in record.candidates
    ]
    note = "" if chosen.code == "ok" else explain.sentence(chosen.code, chosen.detail)
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
    known = "; ".join(f"{c.label}: {explain.sentence(c.code, c.detail)}" for c in why)
    there = ", ".join(c.device for _, c in rows if c.code == "ok") or "none"
    raise NoUsableDeviceError(
        f"The device {record.asked!r} cannot be used on this machine.",
        asked_by=f"device={record.asked!r}",
        known=known or f"there is no such device; usable here: {there}",
        hint="gpuedge probe shows every driver; device='auto' takes what works",
    )
