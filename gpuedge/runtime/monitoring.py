"""Watching a model in service on two alternatives, both open: a GPU, and the CPU path.

Requests themselves are what is timed. The alternative that is not in use answers a few of them now
and then, in bursts: that costs what it is slower by, needs no copies and no thread of its own, and
works under full load, where there is no time between requests. What follows from the times is
`gpuedge.decide.monitor`'s.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuedge.decide.attempts import in_service
from gpuedge.decide.monitor import BURST, Monitor
from gpuedge.decide.record import CPU
from gpuedge.decide.rules import judge
from gpuedge.runtime import clock, conditions

if TYPE_CHECKING:
    from gpuedge.decide.assess import Assessment
    from gpuedge.decide.decision import Decision
    from gpuedge.decide.trial import Alternative

log = logging.getLogger("gpuedge")


def weighed(decision: Decision, device: str) -> Assessment | None:
    """Return how a decision weighs a device against the CPU path; None where it does not."""
    found = judge(decision.record).assessments
    rows = zip(decision.record.candidates, found, strict=True)
    return next((one for c, one in rows if c.device == device), None)


class Service:
    """One model in service; not for several threads at once.

    Parameters
    ----------
    decision : Decision
        Chose between the two, or the CPU for now.
    device : str
        The GPU that is open.
    known : Assessment
        How that one compares with the CPU path, as far as is known.

    Attributes
    ----------
    decision : Decision
        The latest; its device is the one in use.
    switches : int
        How often the alternative in use changed.
    """

    def __init__(self, decision: Decision, device: str, known: Assessment) -> None:
        self.decision = decision
        self.device = device
        self.switches = 0
        self._known = known
        self._served = 0
        self._burst: list[int] | None = None
        self.monitor = Monitor(
            known.belief,
            "cpu" if decision.device == CPU else "gpu",
            cpu_ns=known.stakes.cpu_ns,
            noise=known.noise,
            now=clock.now_ns(),
            speedup_milli=decision.policy.speedup_milli,
        )
        # What the other alternative took in its trial: by the ratio alone, a burst would seem the
        # dearer the slower the alternative in use becomes, and would never come.
        usual = {"cpu": known.stakes.cpu_ns, "gpu": known.at_ns}
        self.monitor.served(self.monitor.other, usual[self.monitor.other], clock.now_ns())

    def begin(self) -> Alternative:
        """Return which alternative is to answer the next request; may change the one in use."""
        if self._burst is not None:
            return self.monitor.other
        now = clock.now_ns()
        before = self.monitor.alternative
        if self.monitor.choose(now, conditions.current()) != before:
            self._switch()
        elif self.monitor.wants_burst(now):
            self._burst = []
            return self.monitor.other
        return self.monitor.alternative

    def end(self, alternative: Alternative, ns: int) -> None:
        """Take the time of a request that an alternative has answered."""
        self._served += 1
        if self._burst is None:
            self.monitor.served(alternative, ns, clock.now_ns())
            return
        self._burst.append(ns)
        if len(self._burst) >= BURST or self.monitor.is_too_dear(self._burst):
            self.give_up()

    def fail(self, ns: int) -> bool:
        """Take that a request ended with an error after so long; say if that ended a burst.

        Then the alternative in use is to answer the request.
        """
        burst, self._burst = self._burst, None
        if burst is None:
            return False
        self.monitor.failed([*burst, ns], clock.now_ns())
        return True

    def give_up(self) -> None:
        """End a burst with what there is of it."""
        burst, self._burst = self._burst, None
        if burst is None:
            return
        pair: tuple[list[int], list[int]]
        pair = (burst, []) if self.monitor.other == "gpu" else ([], burst)
        self.monitor.burst(*pair, clock.now_ns())

    def _switch(self) -> None:
        """Decide again on what was seen; where the rules do not agree, nothing is changed."""
        found = self._decided(self.device if self.monitor.alternative == "gpu" else CPU)
        if found is None:
            self.monitor.refuse()
            return
        self.switches += 1
        self.decision = found
        log.info("%s", found.reason)

    def shown(self) -> Decision:
        """Return the decision with the latest of what was seen, as long as it says the same."""
        return self._decided(self.decision.device) or self.decision

    def _decided(self, device: str) -> Decision | None:
        """Return the decision for a device that follows from the service; None if none does."""
        if not self.monitor.bursts:
            return None
        record = self.decision.record
        candidates = tuple(
            # Start-up is paid: both are open.
            replace(c, startup_ns=0) if c.device == self.device else c
            for c in record.candidates
        )
        now = replace(
            record, candidates=candidates, previous=device, conditions=conditions.current()
        )
        made = in_service(
            replace(self.decision, record=now), self.device, self.monitor.belief, self._cpu_ns(),
            max(self._served, 1),
        )  # fmt: skip
        return made if made.device == device else None

    def _cpu_ns(self) -> int:
        """Return the CPU path's latency near the policy's percentile, as it was served."""
        found = self.monitor.percentiles("cpu")
        if found is None:
            return self._known.stakes.cpu_ns
        percentile = self.decision.percentile
        return found[0 if percentile <= 65 else 1 if percentile <= 95 else 2]
