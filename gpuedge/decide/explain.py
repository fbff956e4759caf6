"""Saying a decision in words: one sentence, one table, and details on request.

Every sentence of the room is here. Pure, no terminal library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from gpuedge.core.reasons import SENTENCES
from gpuedge.core.text import counted, plain, table
from gpuedge.decide.record import AUTO, CPU, MOST, Evidence, Record

if TYPE_CHECKING:
    from gpuedge.decide.decision import Comparison, Decision

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
    "open-failed", "unsupported-op", "software",
)  # fmt: skip
"""Which GPU is told of where none is used: the one that came nearest."""

_NOTHING = ("no-device", "no-candidates")
_ABSENT = ("no-loader", "not-named", *_NOTHING)
"""Codes of what was never in the running: drivers without a device, and devices not asked for."""


# -- pieces ----------------------------------------------------------------------------------------


def duration(ns: int, digits: int = 3) -> str:
    """Return nanoseconds as text with so many significant digits.

    >>> duration(1_250_000), duration(999_999), duration(61_000_000_000), duration(1_236_000, 2)
    ('1.25 ms', '1 ms', '61 s', '1.2 ms')
    """
    for unit, size in (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9)):
        value = float(f"{ns / size:.{digits}g}")
        if value < 1000 or unit == "s":
            break
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _memory(nbytes: int) -> str:
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= one:
            return f"{nbytes / one:.4g} {unit}"
    return f"{nbytes} B"


def sentence(code: str, detail: str = "") -> str:
    """Return a code's sentence, or the more specific `detail` where there is one."""
    return detail.rstrip(". ") or SENTENCES[code]


def _speed(found: Comparison, digits: int = 2) -> str:
    """Return how fast a GPU is: ``3.1 times as fast as the CPU``."""
    if found.milli in ABOUT_AS_FAST:
        return "about as fast as the CPU"
    is_slow = found.milli < 1000
    ratio = found.gpu_ns / found.cpu_ns if is_slow else found.cpu_ns / found.gpu_ns
    number = f"{ratio:.{2 if ratio < 2 else digits}g}" if ratio < 10 else f"{ratio:.0f}"
    if not is_slow and ratio < 1.5:  # rounded down: too little must not look as if it were enough
        number = f"{found.milli // 10 / 100:g}"
    elif ratio >= 1000:
        number = "over 1,000"
    about = "about " if found.is_rough and ratio < 1000 else ""
    return f"{about}{number} times as {'slow' if is_slow else 'fast'} as the CPU"


def _needs(candidate: Evidence, record: Record) -> str:
    at = record.at_ns(candidate)
    needs = "an unknown time" if at is None else duration(at)
    return f"needs {needs}, and the deadline is {duration(record.policy.deadline_ns or 0)}"


# -- why a GPU is used or not ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowCase:
    """What a reason is told of: a GPU, the record, its figures, and the GPU that is used if any."""

    gpu: Evidence
    record: Record
    found: Comparison | None = None
    chosen: Evidence | None = None

    def reason(self, code: str) -> str:
        """Return why the GPU has this code, with `IT` for its name."""
        if code in _REASONS:
            return _REASONS[code](self)
        return sentence(code, self.gpu.detail if code == self.gpu.code else "")

    @property
    def used(self) -> str:
        """Device string of the GPU that is used."""
        return CPU if self.chosen is None else self.chosen.device


def _named(case: RowCase) -> str:
    gpu = case.gpu
    but = "" if gpu.code == "ok" else f", although {sentence(gpu.code, gpu.detail)}"
    return f"{SENTENCES['named']}{but}"


def _selected(case: RowCase) -> str:
    gpu, record, found = case.gpu, case.record, case.found
    at, limit, cpu_at = record.at_ns(gpu), record.policy.deadline_ns, record.at_ns(record.cpu)
    if gpu.device == CPU:
        late = f"{_needs(gpu, record)}, but nothing is known to be faster"
        return late if record.is_late else "no other device has proved enough faster"
    if record.is_late and limit and at and cpu_at:
        keeps = "keeps" if at <= limit else "comes nearest to"
        text = (
            f"{keeps} the deadline of {duration(limit)} with {duration(at)}; the CPU needs "
            f"{duration(cpu_at)}"
        )
    elif found is None:
        text = "compared with the CPU, and faster"
    else:
        speed = _speed(found)
        if found.milli in ABOUT_AS_FAST:
            speed = "a little faster than the CPU"
        gpu_time = ("about " if found.is_rough else "") + duration(found.gpu_ns)
        text = f"{speed}, {gpu_time} against {duration(found.cpu_ns)} a request"
        if gpu.compared:
            noun = "run" if record.policy.decide == "load" else "request"
            text += f", compared on {counted(gpu.compared, noun)}"
        elif gpu.source == "earlier":
            text += ", as earlier launches measured"
    if found is not None and found.milli < ABOUT_AS_FAST.start and not record.is_late:
        text += "; the CPU takes over within a minute"
    if gpu.is_demoted:
        text += "; the capability database puts it behind others, but none is fast enough"
    return text


def _compared(case: RowCase) -> str:
    if case.found is None:
        return f"{IT} was compared with the CPU and is not enough faster"
    is_faster = case.found.milli >= ABOUT_AS_FAST.stop
    return f"{IT} {_pace(case.gpu, case.found)}{', too little to change for' if is_faster else ''}"


def _pace(gpu: Evidence, found: Comparison) -> str:
    """Return a verb with how fast a GPU is or should be."""
    if not gpu.is_measured:
        return f"should be {_speed(found, 1)}"
    if gpu.source == "earlier":
        return f"was {_speed(found)} in earlier launches"
    return f"was compared and is {_speed(found)}"


def _start(case: RowCase) -> str:
    if case.found is None:
        return f"{IT} was not tried yet"
    return f"{IT} {_pace(case.gpu, case.found)}"


def _waits(case: RowCase) -> str:
    """Say from when on opening a GPU pays, if it should be faster."""
    start, gpu, record = _start(case), case.gpu, case.record
    if case.chosen is not None:
        return f"{start}, but was not compared with {case.used}"
    after, is_slower = gpu.opens_after, case.found is not None and case.found.milli < 1000
    if after is not None and record.requests >= after:
        return f"{start}, and is opened next"
    served = f"{record.requests:,} {'was' if record.requests == 1 else 'were'} served"
    pays = "" if after is None else f"pays after about {_rounded(after)} requests; {served}"
    if is_slower:
        return f"{start}, and trying it {pays}" if pays else start
    takes = "" if gpu.startup_ns is None else f"takes about {duration(gpu.startup_ns, 2)}"
    both = ", which ".join(part for part in (takes, pays) if part)
    if case.found is None:
        return f"{start}: opening it {both}" if both else start
    return f"{start}, but {f'opening it {both}' if both else 'is not opened yet'}"


def _rounded(count: int) -> str:
    """Return a count with two significant digits."""
    return f"{int(float(f'{count:.2g}')):,}" if count < 10**9 else "a billion"


def _trial(case: RowCase) -> str:
    so_far = f", {case.gpu.compared} so far" if case.gpu.compared else ""
    return f"{IT} is being compared with the CPU on real requests{so_far}"


def _late(case: RowCase) -> str:
    waited, retry = case.gpu.waited_ns, case.gpu.retry_ns
    after = "in time" if waited is None else f"after {duration(waited)}"
    again = "later" if retry is None else f"in {duration(retry)}"
    return f"opening {IT} had not ended {after}; it is tried again {again}"


def _too_large(case: RowCase) -> str:
    needs, bound = case.gpu.memory_bytes or 0, case.record.policy.max_memory_bytes or 0
    return f"{IT} needs {_memory(needs)} of device memory, and the policy allows {_memory(bound)}"


_REASONS: dict[str, Callable[[RowCase], str]] = {
    "named": _named,
    "selected": _selected,
    "software": lambda _: f"{IT} is {SENTENCES['software']}",
    "too-much-memory": _too_large,
    "misses-deadline": lambda case: f"{IT} {_needs(case.gpu, case.record)}",
    "not-yet": _waits,
    "slower": _waits,
    "opening": lambda case: f"{_start(case)}, and is being opened in the background",
    "open-late": _late,
    "on-trial": _trial,
    "takes-over": lambda case: f"{_start(case)}, and takes over within a minute",
    "measured-slower": _compared,
    "too-little": _compared,
    "not-best": lambda case: f"{case.used} is faster",
    "other-route": lambda case: f"the same device as {case.used}, reached through another API",
}


def in_table(text: str) -> str:
    """Return a reason as the table shows it."""
    return text.removeprefix(f"{IT} ").replace(IT, "it")


def on_cpu(codes: Sequence[str], reasons: Sequence[str], record: Record) -> str:
    """Return the sentence for a decision that takes the CPU, by what became of the candidates."""
    why = _why_cpu(codes, reasons, record)
    if record.is_late and record.asked == AUTO:
        needs = _needs(record.cpu, record)
        why += f"; the CPU {needs.partition(', and')[0] if 'deadline' in why else needs}"
    return f"Runs on cpu: {why}."


def _why_cpu(codes: Sequence[str], reasons: Sequence[str], record: Record) -> str:
    gpus = [i for i, candidate in enumerate(record.candidates) if candidate.device != CPU]
    if not gpus:
        return "no GPU driver was found"
    bare = sum(codes[i] == "no-device" for i in gpus)
    if bare == len(gpus) > 1:
        return f"none of {bare} drivers offers a device here"
    order = {code: place for place, code in enumerate(_CLOSENESS)}
    is_aside = not record.policy.allow_software and record.asked == AUTO

    def distance(i: int) -> tuple[bool, int, int]:
        # A rasteriser would have been excluded, whatever else is the matter with it.
        gpu = record.candidates[i]
        code = "software" if is_aside and gpu.is_software else codes[i]
        after = MOST if gpu.opens_after is None else gpu.opens_after
        return codes[i] in _ABSENT, order.get(code, len(order) - 1), after

    nearest = min(gpus, key=distance)
    label, text = record.candidates[nearest].label, reasons[nearest]
    return text.replace(IT, label) if IT in text else f"{label} was left out: {text}"


# -- the whole -------------------------------------------------------------------------------------


def _cells(decision: Decision) -> list[tuple[str, ...]]:
    """Return the titles and a row for each candidate that has something to offer."""
    cells: list[tuple[str, ...]] = [TITLES]
    for row in decision.rows:
        if row.code not in _NOTHING:
            time = "-"
            if row.time_ns is not None:
                rough = f"about {duration(row.time_ns, 2)}"
                time = rough if row.is_rough else duration(row.time_ns)
            cells.append((row.device, RESULTS[row.status], time, row.reason))
    return cells


def as_text(decision: Decision, *, verbose: bool = False) -> str:
    """Return the reason and a table as wide as the terminal; details only if `verbose`."""
    lines = [decision.reason, "", *table(_cells(decision))]
    return "\n".join([*lines, "", *_details(decision)] if verbose else lines)


def as_html(decision: Decision) -> str:
    """Return the same as an HTML fragment for notebooks; everything is escaped."""
    head, *body = _cells(decision)

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    shown = row(head, "th") + "".join(row(cells, "td") for cells in body)
    return f"<p>{escape(decision.reason)}</p><table>{shown}</table>"


def _details(decision: Decision) -> list[str]:
    """Return everything that the record holds, in the words of its fields."""
    record = decision.record
    general = {n: getattr(record, n) for n in record.__dataclass_fields__ if n != "candidates"}
    lines = [f"{name}: {value}" for name, value in (general | record.policy.to_dict()).items()
             if name != "policy"]  # fmt: skip
    if record.policy.storage != "float32":
        lines.append(f"{record.policy.storage} storage asked for: exact where a device lacks it")
    for row, known in zip(decision.rows, record.candidates, strict=True):
        shown = [f"code {row.code}"]
        for name in known.__dataclass_fields__:
            value = getattr(known, name)
            if value and name not in ("device", "code", "belief"):
                is_time = name.endswith("_ns")
                text = duration(value) if is_time else plain(str(value), 300)
                shown.append(f"{name.removesuffix('_ns')} {text}")
        lines.append(f"{row.device}: {', '.join(shown)}")
        if known.belief is not None:
            mean, sd = known.belief.mean / 10**6, (known.belief.var / 10**6) ** 0.5
            lines.append(
                f"{row.device}: belief: ln(GPU latency / CPU latency) {mean:.3f}, standard "
                f"deviation {sd:.3f}, {counted(known.belief.windows, 'window')}"
            )
        if row.loss_cpu_ppm is not None and row.loss_gpu_ppm is not None:
            cpu, gpu = (f"{ppm / 10**4:.3g} %" for ppm in (row.loss_cpu_ppm, row.loss_gpu_ppm))
            lines.append(f"{row.device}: expected loss, in parts of the CPU path's time: {cpu} on "
                         f"the CPU, {gpu} on the GPU")  # fmt: skip
    return lines
