"""What the latency of each candidate was taken to be when choosing, and where that came from."""

from __future__ import annotations

from dataclasses import dataclass

from gpuedge.decide import words
from gpuedge.decide.assess import Assessment
from gpuedge.decide.record import AUTO, CPU, Evidence, Record
from gpuedge.decide.rules import Outcome, judge

PREDICTED = "predicted"
MEASURED = "measured"
EARLIER = "earlier launch"
SERVICE = "in service"


@dataclass(frozen=True, slots=True)
class Figure:
    """The latency that a choice rests on.

    Attributes
    ----------
    at_ns : int
        At the policy's percentile.
    startup_ns : int
        What opening and compiling take once.
    source : {"predicted", "measured", "earlier launch", "in service"}
    """

    at_ns: int
    startup_ns: int
    source: str


@dataclass(frozen=True, slots=True)
class View:
    """A decision's evidence as it is explained.

    Attributes
    ----------
    found : Outcome or None
        What the rules found, None where a device was asked for by name.
    figures : tuple of Figure or None
        By position in the record; None where nothing was predicted.
    """

    found: Outcome | None
    figures: tuple[Figure | None, ...]

    def assessment(self, i: int) -> Assessment | None:
        """Return how a candidate was weighed, None if it was not."""
        return None if self.found is None else self.found.assessments[i]


def view(record: Record) -> View:
    """Return what a decision is explained with."""
    if record.asked != AUTO:
        return View(None, tuple(plain(c) for c in record.candidates))
    found = judge(record)
    pairs = zip(record.candidates, found.assessments, strict=True)
    made = [_weighed(c, w) for c, w in pairs]
    for i, candidate in enumerate(record.candidates):
        if candidate.device == CPU:
            made[i] = _cpu(candidate, found, made)
    return View(found, tuple(made))


def plain(candidate: Evidence) -> Figure | None:
    """Return a candidate's figure as it was before any window of measurements."""
    known = candidate.prediction
    if known is None:
        return None
    source = MEASURED if known.confidence == words.TIMED else PREDICTED
    return Figure(known.at_ns, known.startup_ns, source)


def _weighed(candidate: Evidence, weighed: Assessment | None) -> Figure | None:
    if weighed is None:
        return plain(candidate)
    source = PREDICTED
    if weighed.belief.visits:
        is_new = weighed.seen is not None or candidate.duel
        source = SERVICE if candidate.served else MEASURED if is_new else EARLIER
    return Figure(weighed.at_ns, weighed.stakes.startup_ns, source)


def _cpu(cpu: Evidence, found: Outcome, made: list[Figure | None]) -> Figure | None:
    """Return the CPU path's figure: from the window that measured it, if one did."""
    before = plain(cpu)
    if before is None or found.cpu_at_ns is None:
        return before
    for i in (found.best, *range(len(made))):
        weighed = None if i is None else found.assessments[i]
        figure = None if i is None else made[i]
        if weighed is not None and figure is not None and weighed.belief.visits:
            return Figure(found.cpu_at_ns, before.startup_ns, figure.source)
    return before
