"""The decision: a pure function of a record, with a reason for every candidate.

Nothing here measures, opens or looks at the machine. What is compared is rounded to whole numbers,
so a saved decision replays to the same bytes anywhere. The order of the rules: what rules a device
out whatever its speed; the deadline; the expected loss against the CPU path; and devices that the
capability database demotes only after all others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuedge.core.errors import InputError, NoUsableDeviceError
from gpuedge.core.reasons import SENTENCES
from gpuedge.core.text import plain
from gpuedge.decide import explain
from gpuedge.decide.belief import MICRO, losses
from gpuedge.decide.explain import Comparison, Weighed
from gpuedge.decide.options import MOST
from gpuedge.decide.record import AUTO, Evidence, Record
from gpuedge.decide.saved import UNFIT, Saved
from gpuedge.decide.sides import CPU

SCHEMA = "gpuedge.decision/4"
STATUSES = ("selected", "rejected", "waiting")


@dataclass(frozen=True, slots=True)
class CandidateRow(Saved):
    """One candidate and what became of it.

    `status` is ``selected``, ``rejected``, or ``waiting`` for what may be taken later in this
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
        Saved.__post_init__(self)
        if self.status not in STATUSES or self.code not in SENTENCES:
            raise ValueError(f"unknown status or code {self.status!r}, {self.code!r}")


@dataclass(frozen=True, slots=True, repr=False)
class Decision(Saved):
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

    def __post_init__(self) -> None:
        Saved.__post_init__(self)
        if [row.device for row in self.rows] != [c.device for c in self.record.candidates]:
            raise ValueError("the rows are not those of the candidates")

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
        return {"schema": SCHEMA, **Saved.to_dict(self)}

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
        try:
            return cls.read({name: value for name, value in record.items() if name != "schema"})
        except UNFIT as error:
            known = plain(f"{type(error).__name__}: {getattr(error, 'what', error)}", 300)
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
    cases = [_weighed(candidate, record) for candidate in record.candidates]
    chosen = (_best if record.asked == AUTO else _named)(cases, record)
    codes = [_code(case, chosen, cases) for case in cases]
    due = next((c.gpu for c, code in zip(cases, codes, strict=True) if code == "takes-over"), None)
    taken = record.cpu if chosen is None else chosen.gpu
    cases = [replace(case, used=taken.device, due=due) for case in cases]
    reasons = [case.reason(code) for case, code in zip(cases, codes, strict=True)]
    rows = [
        CandidateRow(
            case.gpu.device, "selected" if case.gpu is taken else _STATUS.get(code, "rejected"),
            code, "; ".join(filter(None, (explain.in_table(why), case.gpu.note))), *_time(case),
            *(case.losses or (None, None)),
        )
        for case, code, why in zip(cases, codes, reasons, strict=True)
    ]  # fmt: skip
    if chosen is None:
        sentence = explain.on_cpu(codes, reasons, record)
    else:
        why = next(row.reason for row in rows if row.status == "selected")
        sentence = f"Runs on {taken.label}: {why}."
    return Decision(taken.device, sentence, tuple(rows), record)


_UNDER_WAY = {"opening": "opening", "trial": "on-trial", "late": "open-late",
              "failed": "run-failed"}  # fmt: skip
_STATUS = dict.fromkeys(("not-yet", "opening", "takes-over", "on-trial", "open-late"), "waiting")
_STILL_RUNS = ("ok", "unsupported-op")
"""What does not stop a named device: nodes it cannot run are placed elsewhere or refused later."""


# -- weighing --------------------------------------------------------------------------------------


def _weighed(gpu: Evidence, record: Record) -> Weighed:
    """Return a candidate with what either choice is expected to lose, and the figures to tell.

    Measured medians are told where they agree with what is expected, and else the latter: what is
    said of a device must not contradict what is done with it.
    """
    if gpu.belief is None or gpu.device == CPU:
        return Weighed(gpu, record)
    enough, cpu_ns = record.policy.speedup_milli, record.cpu.latency_ns
    cpu, there = (min(ppm, MOST) for ppm in losses(gpu.belief, 1000 / enough))
    case = Weighed(gpu, record, (cpu, there))
    if not cpu_ns:
        return case
    expected = 1000 / enough + (there - cpu) / MICRO
    if gpu.is_measured and gpu.latency_ns:
        made = Comparison(gpu.latency_ns, cpu_ns)
        if (made.milli >= enough) == case.is_worth:
            return replace(case, found=made)
    elif not gpu.is_measured:
        expected = math.exp(gpu.belief.theta)
    told = min(max(round(cpu_ns * expected), 1), MOST)
    return replace(case, found=Comparison(told, cpu_ns, True))


def _time(case: Weighed) -> tuple[int | None, bool]:
    """Return what a request takes, and whether that is not measured as it stands."""
    if case.found is not None:
        return case.found.gpu_ns, case.found.is_rough
    if case.gpu.device == CPU and case.gpu.latency_ns is not None:
        return case.gpu.latency_ns, False
    return case.gpu.predicted_ns, True


# -- choosing --------------------------------------------------------------------------------------


def _ruled_out(case: Weighed) -> str:
    """Return the code of what speaks against a GPU whatever its speed, empty if nothing."""
    gpu, policy = case.gpu, case.record.policy
    if gpu.code != "ok":
        return gpu.code
    if gpu.is_software and not policy.allow_software:
        return "software"
    bound = policy.max_memory_bytes
    return "too-much-memory" if bound is not None and (gpu.memory_bytes or 0) > bound else ""


def _best(cases: Sequence[Weighed], record: Record) -> Weighed | None:
    """Return the GPU that answers or is to be taken, None for the CPU."""
    if record.in_use is not None:
        used = [case for case in cases if case.gpu.device == record.in_use != CPU]
        return used[0] if used else None
    ready = [
        case for case in cases
        if case.gpu.phase == "ready" and case.gpu.is_measured and case.gpu.device != CPU
        and not _ruled_out(case)
    ]  # fmt: skip
    if record.is_late:
        ready = [case for case in ready if 0 < case.at_ns < (record.cpu.tail_ns or 0)]
        keeps = [case for case in ready if case.keeps_deadline]
        return min(keeps, key=_rank, default=min(ready, key=lambda c: c.at_ns, default=None))
    worth = [case for case in ready if case.is_worth and case.keeps_deadline]
    return min(worth, key=_rank, default=None)


def _rank(case: Weighed) -> tuple[bool, int]:
    """Order what may be taken: demoted last, then by expected loss (then as probed)."""
    cpu, gpu = case.losses or (0, 0)
    return case.gpu.is_demoted, gpu - cpu


def _named(cases: Sequence[Weighed], record: Record) -> Weighed | None:
    """Return which candidate was named; a bare backend name means its first usable device.

    None where it cannot be used and the CPU stands in.
    """
    exact = [c for c in cases if c.gpu.device == record.asked]
    family = [c for c in cases if c.gpu.device.split(":")[0] == record.asked]
    usable = [c for c in exact + family if c.gpu.code in _STILL_RUNS]
    if usable or record.falls_back:
        return usable[0] if usable else None
    known = "; ".join(
        f"{c.gpu.label}: {explain.sentence(c.gpu.code, c.gpu.detail)}" for c in exact + family
    )
    there = ", ".join(c.gpu.device for c in cases if c.gpu.code == "ok") or "none"
    raise NoUsableDeviceError(
        f"The device {record.asked!r} cannot be used on this machine.",
        asked_by=f"device={record.asked!r}",
        known=known or f"there is no such device; usable here: {there}",
        hint="gpuedge probe shows every driver; device='auto' takes what works",
    )


# -- saying why ------------------------------------------------------------------------------------


def _code(case: Weighed, chosen: Weighed | None, cases: Sequence[Weighed]) -> str:
    """Return the reason code of a candidate."""
    gpu, is_auto = case.gpu, case.record.asked == AUTO
    if case is chosen:
        return "selected" if is_auto else "named"
    if is_auto and gpu.device == CPU:
        return _cpu_code(chosen, cases)
    if is_auto:
        return _ruled_out(case) or _under_way(gpu) or _not_taken(case, chosen)
    if gpu.code in _STILL_RUNS:
        return "fallback" if gpu.device == CPU and chosen is None else "not-named"
    return gpu.code


def _cpu_code(chosen: Weighed | None, cases: Sequence[Weighed]) -> str:
    if chosen is None:
        others = (case for case in cases if case.gpu.device != CPU)
        return "fallback" if all(map(_ruled_out, others)) else "selected"
    if chosen.record.is_late:
        return "misses-deadline"
    return "not-best" if chosen.is_worth else "takes-over"


def _under_way(gpu: Evidence) -> str:
    return _UNDER_WAY.get(
        "trial" if gpu.phase == "ready" and not gpu.is_measured else gpu.phase, ""
    )


def _not_taken(case: Weighed, chosen: Weighed | None) -> str:
    """Return the code of a GPU that could be used, and is not the one taken."""
    gpu, is_ready = case.gpu, case.gpu.phase == "ready"
    is_slower = case.found is not None and case.found.milli < explain.ABOUT_AS_FAST.start
    if not gpu.is_measured:
        if chosen is not None and "" != gpu.physical == chosen.gpu.physical:
            return "other-route"
        return "slower" if is_slower else "not-yet"
    if not case.keeps_deadline:
        return "misses-deadline"
    if not case.is_worth:
        return "measured-slower" if is_slower else "too-little"
    if chosen is None or not is_ready:  # not ready: it was closed, or not opened in this launch
        return "takes-over" if is_ready else "not-yet"
    return "demoted" if gpu.is_demoted and not chosen.gpu.is_demoted else "not-best"
