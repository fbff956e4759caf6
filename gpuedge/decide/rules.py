"""Which candidate of a record is taken, and the reason code of every other one. Pure.

The order of the rules: what rules a device out whatever its speed; the deadline; energy, where that
is preferred and metered; the expected loss; the choice of an earlier launch where nothing speaks
clearly for another; and devices that the database demotes only after all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuedge.core.reasons import SENTENCES
from gpuedge.decide import words
from gpuedge.decide.assess import Assessment, assess, with_correlated
from gpuedge.decide.record import CPU, Evidence, Record

KEEP_PPM = 20_000
"""The choice of an earlier launch is kept where another is not expected to save at least this much
of the CPU path's latency, in millionths."""

Why = tuple[str, str]
"""A reason code and its sentence."""


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """What `judge` found, by position in the record.

    Attributes
    ----------
    best : int or None
        The GPU that is taken, None for the CPU.
    why : tuple
        What speaks against each candidate, None where nothing does.
    assessments : tuple
        None where a candidate could not be weighed.
    is_kept : bool
        Whether the choice is that of an earlier launch, and not what the figures alone say.
    cpu_at_ns : int or None
        The CPU path's latency at the percentile: measured if it was, else predicted.
    is_by_deadline : bool
        Whether the CPU path misses the deadline, so that meeting it decides.
    """

    best: int | None
    why: tuple[Why | None, ...]
    assessments: tuple[Assessment | None, ...]
    is_kept: bool = False
    cpu_at_ns: int | None = None
    is_by_deadline: bool = False


def judge(record: Record) -> RuleOutcome:
    """Judge every candidate of a record whose device was not asked for by name."""
    return _Judge(record).outcome()


class _Judge:
    """The candidates of one record, weighed against its CPU."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.policy = record.policy
        self.candidates = record.candidates
        self.cpu = next((c for c in self.candidates if c.device == CPU), Evidence(CPU))
        self.found: list[Assessment | None] = []
        self.hard: list[Why | None] = []
        for candidate in self.candidates:
            why = None if candidate.device == CPU else self._ruled_out(candidate)
            is_gpu = candidate.device != CPU and why is None
            weighed = assess(candidate, self.cpu, self.policy) if is_gpu else None
            if is_gpu and weighed is None:
                missing = "" if candidate.prediction is None else "the CPU path has no prediction"
                why = "not-calibrated", words.sentence("not-calibrated", missing)
            self.found.append(weighed)
            self.hard.append(why)
        self.found = list(with_correlated(self.found, self.candidates))

    def _ruled_out(self, candidate: Evidence) -> Why | None:
        """Return what speaks against a GPU whatever its speed."""
        if candidate.code != "ok":
            return candidate.code, words.sentence(candidate.code, candidate.detail)
        if self.record.is_by_name:  # the one that was named failed: no other was asked for
            return "not-named", SENTENCES["not-named"]
        if candidate.is_software and not self.policy.allow_software:
            return "software", SENTENCES["software"]
        bound, needs = self.policy.max_memory_bytes, candidate.memory_bytes
        if bound is not None and needs is not None and needs > bound:
            return "too-much-memory", words.memory(needs, bound)
        return None

    def outcome(self) -> RuleOutcome:
        late = self._late()
        why: list[Why | None] = []
        for i, candidate in enumerate(self.candidates):
            weighed = self.found[i]
            if candidate.device == CPU or weighed is None or self.hard[i] is not None:
                why.append(self.hard[i])
            elif late is not None:
                why.append(late[i])
            else:
                why.append(self._not_worth(candidate, weighed))
        worth = [i for i, w in enumerate(self.found) if w is not None and why[i] is None]
        best = min(worth, key=self._rank, default=None)
        kept = self._kept(best, worth) if late is None and not self._is_by_energy(best) else best
        if kept is not None and why[kept] is not None:
            why[kept] = None
        if kept is None and best is not None:
            why = [self._not_clearly(i) if i in worth else w for i, w in enumerate(why)]
        return RuleOutcome(
            kept, tuple(why), tuple(self.found), kept != best, self._cpu_at(kept), late is not None
        )

    def _rank(self, i: int) -> tuple[bool, int, int]:
        """Order what is worth taking: demoted last, then by cost, then as probing ordered it."""
        candidate, weighed = self.candidates[i], self.found[i]
        cost = weighed.cost_ppm if weighed is not None else 0
        if self._is_by_energy(i):
            cost = candidate.energy_uj or 0
        return candidate.is_demoted, cost, i

    # -- deadline -----------------------------------------------------------------------------

    def _late(self) -> list[Why | None] | None:
        """Return what the deadline says of each candidate; None where it does not decide.

        It decides where the CPU misses it: then the GPUs that meet it are in and all others are
        out, and if none does, only the fastest stays, if it is faster than the CPU.
        """
        deadline, host = self.policy.deadline_ns, self._cpu_at()
        if deadline is None or host is None or host <= deadline:
            return None
        times = {i: w.at_ns for i, w in enumerate(self.found) if w is not None}
        meets = {i for i, at in times.items() if at <= deadline}
        if not meets:
            fastest = min(times, key=lambda i: (times[i], i), default=-1)
            meets = {fastest} if times.get(fastest, host) < host else set()
        return [
            None if i in meets else ("misses-deadline", words.deadline(times.get(i), deadline))
            for i in range(len(self.candidates))
        ]

    def _cpu_at(self, best: int | None = None) -> int | None:
        """Return the CPU path's latency at the percentile: measured if it was, else predicted.

        Where two windows measured it, that of the GPU that is taken counts.
        """
        first = [] if best is None else [self.found[best]]
        known = (w for w in (*first, *self.found) if w is not None)
        measured = (w.stakes.cpu_ns for w in known if w.belief.windows)
        predicted = None if self.cpu.prediction is None else self.cpu.prediction.at_ns
        return next(measured, predicted)

    # -- worth --------------------------------------------------------------------------------

    def _is_by_energy(self, i: int | None) -> bool:
        """Whether energy decides about a candidate: wanted, and metered on both."""
        if self.policy.prefer != "energy" or self.cpu.energy_uj is None:
            return False
        return i is not None and self.candidates[i].energy_uj is not None

    def _not_worth(self, candidate: Evidence, weighed: Assessment) -> Why | None:
        deadline = self.policy.deadline_ns
        if deadline is not None and weighed.at_ns > deadline:  # which the CPU meets
            return "misses-deadline", words.deadline(weighed.at_ns, deadline)
        mine, host = candidate.energy_uj, self.cpu.energy_uj
        if self.policy.prefer == "energy" and mine is not None and host is not None:
            return None if mine < host else ("more-energy", words.energy(mine, host))
        verdict = weighed.verdict
        if verdict.use_gpu:
            return None
        if verdict.loss_gpu_ppm < verdict.loss_cpu_ppm:
            return "unsure", words.unsure(weighed)
        code = "measured-slower" if weighed.belief.windows else "slower"
        return code, words.comparison(weighed, self.policy, self._cpu_at() or 0)

    # -- hysteresis ---------------------------------------------------------------------------

    def _kept(self, best: int | None, worth: Sequence[int]) -> int | None:
        """Return the choice, which is that of the earlier launch unless another clearly wins."""
        before = self.record.previous
        if before == CPU:
            weighed = None if best is None else self.found[best]
            is_close = weighed is not None and -_gain(weighed) < KEEP_PPM
            return None if is_close else best
        place = next((i for i, c in enumerate(self.candidates) if c.device == before), None)
        weighed = None if place is None else self.found[place]
        if place is None or place == best or weighed is None or not weighed.belief.windows:
            return best
        if weighed.verdict.harm_ppm > weighed.rule.alpha_ppm or self.hard[place] is not None:
            return best
        if self.candidates[place].is_demoted or self._is_by_energy(place):
            return best
        if best is None:
            return place if _gain(weighed) < KEEP_PPM else None
        other = self.found[best]
        is_close = other is not None and weighed.cost_ppm - other.cost_ppm < KEEP_PPM
        return place if place in worth and is_close else best

    def _not_clearly(self, i: int) -> Why:
        weighed = self.found[i]
        saved = 0 if weighed is None else -_gain(weighed)
        return "kept", words.kept(CPU, saved)


def _gain(weighed: Assessment) -> int:
    """Return what the CPU path is expected to save against the GPU, in millionths."""
    return weighed.verdict.loss_gpu_ppm - weighed.verdict.loss_cpu_ppm
