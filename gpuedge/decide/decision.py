"""The decision: a pure function of a record, with a reason for every candidate.

Nothing here measures, opens or looks at the machine. The side is chosen by the rule that chooses
while a model serves (`gpuedge.decide.chooser.best_side`), from what was known then. What is
compared is rounded to whole numbers, so a saved decision replays to the same bytes anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from gpuedge.core.errors import ConfigError, InputError
from gpuedge.core.reasons import SENTENCES
from gpuedge.core.record import UnfitError, read
from gpuedge.core.record import plain as plain_data
from gpuedge.core.text import plain
from gpuedge.decide import explain
from gpuedge.decide.belief import MICRO, losses
from gpuedge.decide.chooser import best_side
from gpuedge.decide.decision_record import AUTO, CPU, DecisionRecord, DeviceCandidate, Line
from gpuedge.decide.explain import Comparison, Weighed
from gpuedge.decide.options import MOST, Count

CandidateStatus = Literal["selected", "rejected", "waiting"]
STATUSES = get_args(CandidateStatus)


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One candidate and what became of it.

    `status` is ``selected``, ``rejected``, or ``waiting`` for what may be taken later in this
    launch; `code` a stable reason code and `reason` its sentence with the specifics. `time_ns` is
    what one request takes there, and `is_rough` says that it was not measured as it stands. The
    losses are what the CPU and the GPU are expected to lose per request against knowing which is
    faster, in millionths of the CPU path's latency. None is unknown.
    """

    device: Line
    status: CandidateStatus
    code: str
    reason: Line
    time_ns: Count | None = None
    is_rough: bool = False
    loss_cpu_ppm: Count | None = None
    loss_gpu_ppm: Count | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES or self.code not in SENTENCES:
            raise ValueError(f"unknown status or code {self.status!r}, {self.code!r}")


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
    record : DecisionRecord
        What the choice rests on.
    is_verbose : bool
        Whether it prints that, too.
    """

    SCHEMA: ClassVar = "gpuedge.decision/6"

    device: Line
    reason: Line
    rows: tuple[CandidateRow, ...]
    record: DecisionRecord
    is_verbose: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
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
        """Choose again from the record alone, by the rule that chose."""
        return decide(self.record)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; times are whole nanoseconds."""
        fields: dict[str, Any] = plain_data(self)
        return fields

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
        if schema != cls.SCHEMA:
            old = isinstance(schema, str) and schema.startswith("gpuedge.decision/")
            raise InputError(
                "This saved decision is of another version." if old
                else "This is not a saved decision.",
                known=f"its schema is {plain(repr(schema))}; this version reads {cls.SCHEMA!r}",
                hint="make one with Session.explain().to_json()",
            )  # fmt: skip
        try:
            decision = read(cls, dict(record))
            if decision.to_dict() != record:
                raise UnfitError("not every field is there, as this version writes it")
        except (UnfitError, ConfigError) as error:
            known = plain(getattr(error, "what", str(error)), 300)
            raise InputError("This saved decision is damaged.", known=known) from None
        return decision

    def __str__(self) -> str:
        return self.explain(verbose=self.is_verbose)

    def __repr__(self) -> str:
        return f"<Decision {self.device}: {self.reason}>"

    def _repr_html_(self) -> str:
        return explain.as_html(self)


def decide(record: DecisionRecord) -> Decision:
    """Choose a device. The result depends on `record` only.

    A device asked for by name is taken where it can be used, else the CPU. Under ``auto`` it is the
    best side, or the one in use where that has to answer on (`DecisionRecord.waits_ns`).
    """
    used, due = _chosen(record)
    weighed = [_weighed(candidate, record, used, due) for candidate in record.candidates]
    cases = [replace(case, code=_code(case, weighed)) for case in weighed]
    rows = tuple(map(_row, cases))
    if used == CPU != record.asked:
        return Decision(used, explain.on_cpu(cases), rows, record)
    place = next(i for i, case in enumerate(cases) if case.is_used)
    sentence = f"Runs on {cases[place].gpu.label}: {rows[place].reason}."
    return Decision(used, sentence, rows, record)


def _row(case: Weighed) -> CandidateRow:
    """Return what is told of a candidate: of one without figures what was measured or predicted."""
    gpu, figures, code = case.gpu, case.figures, case.code
    status = "selected" if case.is_used else _STATUS.get(code, "rejected")
    reason = "; ".join(filter(None, (explain.in_table(case.why), gpu.note)))
    is_rough = gpu.device != CPU or not gpu.latency_ns
    time_ns = gpu.predicted_ns if is_rough else gpu.latency_ns
    if figures is not None:
        time_ns, is_rough = figures.gpu_ns, figures.is_rough
    return CandidateRow(
        gpu.device, status, code, reason, time_ns or None, is_rough, *(case.losses or (None, None))
    )


def _chosen(record: DecisionRecord) -> tuple[str, str]:
    """Return the side that answers, and the one that takes over from it; empty if none does."""
    if record.asked != AUTO:
        named = [c for c in record.candidates if c.device == record.asked]
        is_usable = any(c.code in _STILL_RUNS for c in named)
        return record.asked if is_usable else CPU, ""
    gpus = [c for c in record.candidates if c.device != CPU]
    at_ns = {c.device: c.at_ns for c in record.candidates}
    best = best_side(
        gpus, record.policy, record.in_use, at_ns.__getitem__, has_switched=record.has_switched
    )
    if record.waits_ns is None or best == record.in_use:
        return best, ""
    return record.in_use, best


_UNDER_WAY = {"opening": "opening", "trial": "on-trial", "late": "open-late",
              "failed": "run-failed"}  # fmt: skip
_STATUS: dict[str, CandidateStatus] = dict.fromkeys(
    ("not-yet", "opening", "takes-over", "on-trial", "open-late"), "waiting"
)
_STILL_RUNS = ("ok", "unsupported-op")
"""What does not stop a named device: nodes it cannot run are placed elsewhere or refused later."""


# -- weighing --------------------------------------------------------------------------------------


def _weighed(gpu: DeviceCandidate, record: DecisionRecord, used: str, due: str) -> Weighed:
    """Return a candidate with what either choice is expected to lose, and the figures to tell."""
    if not gpu.phase or gpu.device == CPU:
        return Weighed(gpu, record, used, due)
    cpu, there = (min(ppm, MOST) for ppm in losses(gpu.belief, 1 / record.policy.min_speedup))
    return Weighed(gpu, record, used, due, (cpu, there), _figures(gpu, record, there - cpu))


def _figures(gpu: DeviceCandidate, record: DecisionRecord, more_ppm: int) -> Comparison | None:
    """Return the figures to tell of a GPU that is expected to lose so much more than the CPU.

    Measured medians are told where they agree with what is expected, and else the latter: what is
    said of a device must not contradict what is done with it.
    """
    enough, cpu_ns = record.policy.speedup_milli, record.cpu.latency_ns
    if not cpu_ns:
        return None
    ratio = 1000 / enough + more_ppm / MICRO
    if gpu.is_measured and gpu.latency_ns:
        measured = Comparison(gpu.latency_ns, cpu_ns)
        if (measured.milli >= enough) == (more_ppm < 0):
            return measured
    elif not gpu.is_measured:
        ratio = math.exp(gpu.belief.theta)
    return Comparison(min(max(round(cpu_ns * ratio), 1), MOST), cpu_ns, True)


# -- saying why ------------------------------------------------------------------------------------


def _code(case: Weighed, cases: Sequence[Weighed]) -> str:
    """Return the reason code of a candidate."""
    gpu, record = case.gpu, case.record
    if record.asked != AUTO:
        if case.is_used:
            return "named" if gpu.device == record.asked else "fallback"
        return "not-named" if gpu.code in _STILL_RUNS else gpu.code
    if case.is_used:
        gpus = (other.gpu for other in cases if other.gpu.device != CPU)
        is_alone = gpu.device == CPU and all(other.ruled_out(record.policy) for other in gpus)
        return "fallback" if is_alone else "selected"
    if gpu.device == case.due:
        return "takes-over"
    if gpu.device == CPU:
        return _code_of_cpu(case, cases)
    return gpu.ruled_out(record.policy) or _UNDER_WAY.get(gpu.phase, "") or _not_taken(case, cases)


def _code_of_cpu(case: Weighed, cases: Sequence[Weighed]) -> str:
    """Return the code of the CPU where a GPU is used, and is to be."""
    if case.record.is_late:
        return "misses-deadline"
    if case.due or case.used != case.record.in_use:
        return "not-best"
    is_kept = any(c.is_used and not c.is_worth for c in cases)  # as sides do not change for little
    return "too-little" if is_kept else "not-best"


def _not_taken(case: Weighed, cases: Sequence[Weighed]) -> str:
    """Return the code of a GPU that could be used, and is not the one taken."""
    gpu = case.gpu
    is_slower = case.figures is not None and case.figures.milli < explain.ABOUT_AS_FAST.start
    if not gpu.is_measured:
        is_same = gpu.physical and any(
            c.is_used and c.gpu.device != CPU and c.gpu.physical == gpu.physical for c in cases
        )
        return "other-route" if is_same else "slower" if is_slower else "not-yet"
    if not case.keeps_deadline:
        return "misses-deadline"
    if not case.is_worth:
        return "measured-slower" if is_slower else "too-little"
    if gpu.phase != "ready":  # it was closed, or not opened in this launch
        return "not-yet"
    others = (c.gpu for c in cases if c.gpu.phase == "ready")
    if gpu.is_demoted and not all(other.is_demoted for other in others):
        return "demoted"
    return "too-little" if case.best == CPU else "not-best"
