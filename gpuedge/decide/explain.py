"""Saying a decision in words: one sentence, one table, and details on request.

Every sentence of the room is here. Pure, no terminal library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from gpuedge.core.reasons import SENTENCES
from gpuedge.core.text import Table, counted, duration, plain, table
from gpuedge.decide.belief import MICRO
from gpuedge.decide.chooser import opens_after
from gpuedge.decide.decision_record import AUTO, CPU, DecisionRecord, DeviceCandidate
from gpuedge.decide.options import DEFAULT, MOST

if TYPE_CHECKING:
    from gpuedge.decide.decision import CandidateRow, Decision

TITLES = ("device", "result", "time per request", "why")
RESULTS = {"selected": "used", "rejected": "not used", "waiting": "not yet"}

IT = "\0"
"""Where a reason names its device: the device's label in a sentence, "it" in the table."""

ABOUT_AS_FAST = range(953, 1050)
"""Speeds, in thousandths of the CPU path's, that nobody would call slower or faster."""

_CLOSENESS = (
    "takes-over", "on-trial", "opening", "open-late", "not-yet", "too-little",
    "measured-slower", "slower",
    "drifted", "run-failed", "compile-failed", "misses-deadline", "too-much-memory", "deadline",
    "open-failed", "does-not-fit", "unsupported-op", "software",
)  # fmt: skip
"""Which GPU is told of where none is used: the one that came nearest."""

_NOTHING = ("no-device", "no-candidates")
_ABSENT = ("no-loader", "not-named", *_NOTHING)
"""Codes of what was never in the running: drivers without a device, and devices not asked for."""


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
class Weighed:
    """A candidate with what it is compared by.

    `used` is the device that answers and `due` the one that takes over from it, empty if none does.
    `losses` are what the CPU and this one are expected to lose, in millionths, `figures` what is
    told of its speed, and `code` what became of it.
    """

    gpu: DeviceCandidate
    record: DecisionRecord
    used: str
    due: str
    losses: tuple[int, int] | None = None
    figures: Comparison | None = None
    code: str = ""

    @property
    def is_used(self) -> bool:
        """Whether it answers."""
        return self.gpu.device == self.used

    @property
    def best(self) -> str:
        """The device that is chosen, now or after the one that answers."""
        return self.due or self.used

    @property
    def is_worth(self) -> bool:
        """Whether it is expected to lose less than the CPU."""
        return self.losses is not None and self.losses[1] < self.losses[0]

    @property
    def opens_after(self) -> int | None:
        """The requests after which it is opened, while the CPU answers."""
        if self.record.in_use != CPU:
            return None
        return opens_after(self.gpu, self.record.cpu.latency_ns, self.record.policy)

    @property
    def keeps_deadline(self) -> bool:
        """Whether it keeps the deadline, if there is one."""
        limit = self.record.policy.deadline_ns
        return limit is None or self.gpu.tail_ns <= limit

    @property
    def why(self) -> str:
        """Why it has its code, with `IT` for its name."""
        if self.code in _REASONS:
            return _REASONS[self.code](self)
        return sentence(self.code, self.gpu.detail if self.code == self.gpu.code else "")


# -- pieces ----------------------------------------------------------------------------------------


def memory(nbytes: int) -> str:
    """Return bytes as text, in the largest unit that leaves a whole number before the point."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes} B"


def sentence(code: str, detail: str = "") -> str:
    """Return a code's sentence, or the more specific `detail` where there is one."""
    return detail.rstrip(". ") or SENTENCES[code]


def _speed(figures: Comparison, digits: int = 2) -> str:
    """Return how fast a GPU is: ``3.1 times as fast as the CPU``."""
    if figures.milli in ABOUT_AS_FAST:
        return "about as fast as the CPU"
    is_slow = figures.milli < 1000
    ratio = figures.gpu_ns / figures.cpu_ns if is_slow else figures.cpu_ns / figures.gpu_ns
    number = f"{ratio:.{2 if ratio < 2 else digits}g}" if ratio < 10 else f"{ratio:.0f}"
    if not is_slow and ratio < 1.5:  # rounded down: too little must not look as if it were enough
        number = f"{figures.milli // 10 / 100:g}"
    elif ratio >= 1000:
        number = "over 1,000"
    about = "about " if figures.is_rough and ratio < 1000 else ""
    return f"{about}{number} times as {'slow' if is_slow else 'fast'} as the CPU"


def _needs(candidate: DeviceCandidate, record: DecisionRecord) -> str:
    limit = record.policy.deadline_ns or 0
    return f"needs {_tail(candidate, record)}, and the deadline is {duration(limit)}"


def _tail(candidate: DeviceCandidate, record: DecisionRecord) -> str:
    share = f" for {record.policy.percentile} % of requests" if candidate.at_ns else ""
    return f"{duration(candidate.tail_ns)}{share}"


# -- why a GPU is used or not ----------------------------------------------------------------------


def _named(case: Weighed) -> str:
    gpu = case.gpu
    but = "" if gpu.code == "ok" else f", although {sentence(gpu.code, gpu.detail)}"
    return f"{SENTENCES['named']}{but}"


def _selected(case: Weighed) -> str:
    gpu, record, figures = case.gpu, case.record, case.figures
    limit, cpu_at = record.policy.deadline_ns, record.cpu.tail_ns
    if gpu.device == CPU:
        if case.due:
            return f"until {case.due} takes over"
        late = f"{_needs(gpu, record)}, but nothing is known to be faster"
        return late if record.is_late else "no other device has proved enough faster"
    if limit and gpu.tail_ns and (record.is_late or not case.is_worth):
        keeps = "keeps" if case.keeps_deadline else "comes nearest to"
        text = f"{keeps} the deadline of {duration(limit)} with {_tail(gpu, record)}"
        text += f"; the CPU needs {duration(cpu_at)}" if cpu_at else ""
    elif figures is None:
        text = "compared with the CPU, and faster"
    else:
        is_even = case.is_worth and figures.milli in ABOUT_AS_FAST
        text = "a little faster than the CPU" if is_even else _speed(figures)
        about = "about " if figures.is_rough else ""
        text += f", {about}{duration(figures.gpu_ns)} against {duration(figures.cpu_ns)} a request"
        text += ", as measured in earlier application starts" if gpu.is_remembered else ""
        text += "" if case.is_worth or case.due else "; changing back would gain too little"
    if case.due:
        text += f"; {'the CPU' if case.due == CPU else case.due} {_takes_over(record)}"
    if gpu.is_demoted:
        text += "; the capability database puts it behind others, but none is fast enough"
    return text


def _start(case: Weighed) -> str:
    """Return how fast a GPU is or should be, with its verb."""
    figures = case.figures
    if figures is None:
        return f"{IT} was not tried yet"
    if not case.gpu.is_measured:
        return f"{IT} should be {_speed(figures, 1)}"
    if case.gpu.is_remembered:
        return f"{IT} was {_speed(figures)} in earlier application starts"
    return f"{IT} was compared and is {_speed(figures)}"


def _compared(case: Weighed) -> str:
    if case.gpu.device == CPU:
        return f"changing back to {IT} would gain too little"
    if case.figures is None:
        return f"{IT} was compared with the CPU and is not enough faster"
    is_faster = case.figures.milli >= ABOUT_AS_FAST.stop
    return f"{_start(case)}{', too little to change for' if is_faster else ''}"


def _waits(case: Weighed) -> str:
    """Say from when on opening a GPU pays, if it should be faster."""
    start, gpu, record = _start(case), case.gpu, case.record
    if case.used != CPU:
        return f"{start}, but was not compared with {case.used}"
    after = case.opens_after
    is_slower = case.figures is not None and case.figures.milli < 1000
    if after is not None and record.requests >= after:
        return f"{start}, and is opened next"
    served = f"{record.requests:,} {'was' if record.requests == 1 else 'were'} served"
    pays = "" if after is None else f"pays after about {_rounded(after)} requests; {served}"
    if is_slower:
        why = f"predictions may be off by a factor of {DEFAULT.prior_factor:g}"
        return f"{start}; {why}, so trying it {pays}" if pays else start
    takes = f"takes about {duration(gpu.startup_ns, 2)}" if gpu.startup_ns else ""
    both = ", which ".join(part for part in (takes, pays) if part)
    if case.figures is None:
        return f"{start}: opening it {both}" if both else start
    return f"{start}, but {f'opening it {both}' if both else 'is not opened yet'}"


def _rounded(count: int) -> str:
    """Return a count with two significant digits."""
    return f"{int(float(f'{count:.2g}')):,}" if count < 10**9 else "a billion"


def _takes_over(record: DecisionRecord) -> str:
    """Say when another side will answer."""
    if not record.waits_ns:
        return "takes over after the next request"
    most = f"{DEFAULT.switches_per_minute} times a minute"
    return f"takes over in {duration(record.waits_ns, 2)}, as sides change at most {most}"


def _due(case: Weighed) -> str:
    start = IT if case.gpu.device == CPU else f"{_start(case)}, and"
    return f"{start} {_takes_over(case.record)}"


def _late(case: Weighed) -> str:
    waited, retry = duration(case.gpu.waited_ns), duration(case.gpu.retry_ns)
    return f"opening {IT} had not ended after {waited}; it is tried again in {retry}"


def _too_large(case: Weighed) -> str:
    needs, limit = memory(case.gpu.memory_bytes), memory(case.record.policy.max_memory_bytes or 0)
    return f"{IT} needs {needs} of device memory, and the policy allows {limit}"


_REASONS: dict[str, Callable[[Weighed], str]] = {
    "named": _named,
    "selected": _selected,
    "software": lambda _: f"{IT} is {SENTENCES['software']}",
    "too-much-memory": _too_large,
    "misses-deadline": lambda case: f"{IT} {_needs(case.gpu, case.record)}",
    "not-yet": _waits,
    "slower": _waits,
    "opening": lambda case: f"{_start(case)}, and is being opened in the background",
    "open-late": _late,
    "on-trial": lambda _: f"{IT} is being compared with the CPU on real requests",
    "takes-over": _due,
    "measured-slower": _compared,
    "too-little": _compared,
    "not-best": lambda case: f"{case.best} is faster",
    "other-route": lambda case: f"the same device as {case.used}, reached through another API",
}


def in_table(text: str) -> str:
    """Return a reason as the table shows it."""
    return text.removeprefix(f"{IT} ").replace(IT, "it")


def on_cpu(cases: Sequence[Weighed]) -> str:
    """Return the sentence for a decision that takes the CPU, by what became of the candidates."""
    why, record = _why_cpu([case for case in cases if case.gpu.device != CPU]), cases[0].record
    if record.is_late and record.asked == AUTO:
        needs = _needs(record.cpu, record)
        why += f"; the CPU {needs.partition(', and')[0] if 'deadline' in why else needs}"
    return f"Runs on cpu: {why}."


def _why_cpu(gpus: Sequence[Weighed]) -> str:
    if not gpus:
        return "no GPU driver was found"
    bare = sum(case.code == "no-device" for case in gpus)
    if bare == len(gpus) > 1:
        return f"none of {bare} drivers offers a device here"
    order = {code: place for place, code in enumerate(_CLOSENESS)}

    def distance(case: Weighed) -> tuple[bool, int, int]:
        # A rasteriser would have been excluded, whatever else is the matter with it.
        is_aside = case.record.asked == AUTO and not case.record.policy.allow_software
        code = "software" if is_aside and case.gpu.is_software else case.code
        return case.code in _ABSENT, order.get(code, len(order) - 1), case.opens_after or MOST

    nearest = min(gpus, key=distance)
    label, text = nearest.gpu.label, nearest.why
    return text.replace(IT, label) if IT in text else f"{label} was left out: {text}"


# -- the whole -------------------------------------------------------------------------------------


def _table(decision: Decision) -> Table:
    """Return the reason, and below it a row for each candidate that has something to offer."""
    rows = [
        (row.device, RESULTS[row.status], _time(row), row.reason)
        for row in decision.rows
        if row.code not in _NOTHING
    ]
    return Table(f"{decision.reason}\n", TITLES, rows)


def _time(row: CandidateRow) -> str | None:
    if row.time_ns is None:
        return None
    return f"about {duration(row.time_ns, 2)}" if row.is_rough else duration(row.time_ns)


def as_text(decision: Decision, *, verbose: bool = False) -> str:
    """Return the reason and a table as wide as the terminal; details only if `verbose`."""
    return "\n".join([str(_table(decision)), *(["", *_details(decision)] if verbose else ())])


def as_html(decision: Decision) -> str:
    """Return the same as an HTML fragment for notebooks; everything is escaped."""
    head, *body = _table(decision).cells

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    shown = row(head, "th") + "".join(row(cells, "td") for cells in body)
    return f"<p>{escape(decision.reason)}</p><table>{shown}</table>"


# -- what it rests on ------------------------------------------------------------------------------


def _details(decision: Decision) -> list[str]:
    """Return what a decision rests on, in four sections; `Decision.to_json` has all of it."""
    record, lines, worth = decision.record, list[str](), list[tuple[str, str]]()
    pairs = [*zip(decision.rows, record.candidates, strict=True)]
    if record.asked == AUTO and record.cpu.latency_ns:
        even = record.cpu.latency_ns * 1000 // record.policy.speedup_milli
        worth = [("any GPU", f"is worth it below {duration(even, 2)} a request")]
    for title, tell, first in (
        ("What was known", _known, [("start", _about(record))]),
        ("What was predicted before anything was opened", _predicted, []),
        ("What was measured", _measured, []),
        ("What would change the pick", _changes, worth),
    ):
        cells = [("", ""), *first]
        cells += [
            (row.device, told) for row, e in pairs
            if row.code not in _ABSENT and (told := tell(row, e, record))
        ]  # fmt: skip
        lines += ["", title, *(table(cells)[1:] or ["nothing"])]
    return lines[1:]


def _joined(*parts: object) -> str:
    return "; ".join(str(part) for part in parts if part)


def _about(record: DecisionRecord) -> str:
    earlier = ", ".join(f"{count:,}" for count in record.previous_requests) or "none known"
    wishes = [(f, getattr(record.policy, f.name)) for f in fields(record.policy) if f.compare]
    other = [f"{f.name}={value!r}" for f, value in wishes if value != f.default]
    return _joined(
        f"{counted(record.requests, 'request')} so far, in earlier application starts {earlier}",
        f"Policy({', '.join(other)})", f"isolation {record.isolation}",
        f"gpuedge {record.version}",
        f"capability database {plain(record.database, 20) or 'not asked'}",
    )  # fmt: skip


def _known(row: CandidateRow, e: DeviceCandidate, record: DecisionRecord) -> str:
    return _joined(
        plain(e.name), e.is_software and "a software rasteriser",
        e.entries and f"entries of the capability database in force: {', '.join(e.entries)}",
        e.memory_bytes and f"the model takes {memory(e.memory_bytes)}",
    )  # fmt: skip


def _predicted(row: CandidateRow, e: DeviceCandidate, record: DecisionRecord) -> str:
    return _joined(
        e.predicted_ns and f"{duration(e.predicted_ns, 2)} a request", _opening(e, was_opened=False)
    )


def _opening(e: DeviceCandidate, *, was_opened: bool) -> str:
    if not e.startup_ns or was_opened != (e.is_measured or e.phase in ("trial", "ready")):
        return ""
    return f"{duration(e.startup_ns, 2)} to open it, compile and warm up"


def _measured(row: CandidateRow, e: DeviceCandidate, record: DecisionRecord) -> str:
    share = ""
    if e.is_measured:
        low, high = (math.exp(e.belief.theta + way * e.belief.sd) for way in (-1, 1))
        by = f"{counted(e.belief.windows, 'comparison')} in this application start and earlier ones"
        share = f"{low:.2g} to {high:.2g} times as long as the CPU (two times in three), by {by}"
    return _joined(
        e.latency_ns and f"{duration(e.latency_ns)} a request (median)", share,
        _opening(e, was_opened=True), e.served and f"answered {counted(e.served, 'request')}",
    )  # fmt: skip


_CHANGES = {
    "named": "device='auto'",
    "software": "Policy(allow_software=True), or asking for it by name",
    "too-much-memory": "a larger Policy(max_memory_bytes=...)",
    "misses-deadline": "a longer Policy(deadline_s=...)",
}


def _changes(row: CandidateRow, e: DeviceCandidate, record: DecisionRecord) -> str:
    """Say what would have a GPU taken, or given up."""
    cpu_ns, cpu, gpu = record.cpu.latency_ns, row.loss_cpu_ppm, row.loss_gpu_ppm
    if row.code in _CHANGES or e.device == CPU or record.asked != AUTO:
        return _CHANGES.get(row.code, "")
    if e.code == "unsupported-op":
        return "what gpuedge check MODEL says of its operators"
    if e.code != "ok":
        return "another application start" if e.phase == "failed" else "what gpuedge doctor advises"
    told = ""
    if cpu_ns and cpu is not None and gpu is not None:
        lost = (duration(cpu_ns * ppm // MICRO, 2) for ppm in (cpu, gpu))
        told = "a request is expected to lose {} on the CPU, {} there".format(*lost)
    after = opens_after(e, cpu_ns, record.policy) if record.in_use == CPU else None
    opened = after and f"it is opened after about {_rounded(after)} requests"
    return _joined(opened, told)
