"""From a probe report to a decision: filter cheaply, calibrate only what is left, then decide.

Nothing is opened or measured unless a GPU survives the cheap filters, and no GPU is opened before
the CPU path has been measured (a GPU that warms up shares its power budget).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median_low
from typing import TYPE_CHECKING, Protocol

from gpuedge.core.errors import GpuEdgeError, KernelError, ModelError
from gpuedge.core.reasons import SENTENCES, Reason
from gpuedge.decide.calibrate import Clock, open_and_calibrate
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.exact import exp, ln, quantile
from gpuedge.decide.gather import Background, CandidateEvidence, Report, facts_of, gather
from gpuedge.decide.model import MIN_SPREAD, MOST_NS, Z90, DeviceModel, Prediction
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import AUTO, BY_NAME, CPU, Evidence, Record
from gpuedge.decide.segments import Mixed, mixture
from gpuedge.decide.store import CalibrationStore, calibration_key
from gpuedge.decide.words import TIMED

if TYPE_CHECKING:
    from gpuedge.decide.trial import Alternative
    from gpuedge.executors.base import Executor, Work

    Load = Work | Mixed

CPU_SHARE = 0.4
"""Share of the budget the CPU may take; it has no driver to open and compiles faster."""

TIMED_SHARE = 0.25
"""Share of what is left of the budget that timing the model itself on the CPU may take."""

TIMED_SIGMA = 0.21
"""What is claimed of a median of warm runs (`gpuedge.decide.belief.Noise.window`)."""

MIN_WINDOW_S = 0.1
"""Below this the CPU does not answer ten graphs."""

MIN_OPENING_S = 0.5
"""Below this no GPU is opened and answers ten graphs; the first one gets at least this. A device
that was begun too late would look like one that hangs."""


class Parts(Protocol):
    """What is needed of what cuts a model that a device cannot run as a whole."""

    def of(self, device: str) -> Mixed | None:
        """Return its segments; None where it is not to be cut. Must not open the device."""

    def settle(self, device: str, alternatives: tuple[Alternative, ...]) -> None:
        """Take where each segment would run."""


WorkOf = Callable[[str], "Work"]
"""Counts the model's cost on a device; raises UnsupportedOpError or KernelLimitError if it cannot
run there. Must not open the device."""


def choose(
    graph_work: WorkOf,
    report: Report,
    policy: Policy,
    open_executor: Callable[[str], Executor],
    cpu: Executor,
    *,
    asked: str = AUTO,
    kernel_of: Callable[[str], str] | None = None,
    store: CalibrationStore | None = None,
    on_hang: Callable[[str], None] | None = None,
    on_back: Callable[[str], None] | None = None,
    clock: Clock = time.perf_counter_ns,
    background: Background | None = None,
    budget_s: float | None = None,
    on_spent: Callable[[int], None] | None = None,
    time_cpu: Callable[[float], Sequence[int]] | None = None,
    parts: Parts | None = None,
) -> Decision:
    """Decide where a model runs.

    Parameters
    ----------
    graph_work : callable
        `WorkOf`: device string to `Work`; called with ``cpu`` too.
    report : Report
        What probing found.
    policy : Policy
    open_executor : callable
        Opens a device by its string. What it returns stays the caller's: nothing is closed here.
        It is called from a worker thread, within the budget; it must not hold, while it opens, a
        lock that the caller holds or will need.
    cpu : Executor
        The CPU path that would run the model.
    asked : str
        ``auto``, or a device string; naming a device opens and measures nothing here.
    kernel_of : callable, optional
        Device string to what computes there, with its version: part of the cache key.
    store : CalibrationStore, optional
        Where calibrations are kept, one per process; None keeps none.
    on_hang : callable, optional
        Called with the string of a device that did not come back in time. A thread is still in
        it: it must be left alone, neither used nor closed.
    on_back : callable, optional
        Called with that string, in that thread, if it comes back after all: the device was slow.
    clock : callable
        Monotonic, in integer nanoseconds.
    background : Background, optional
        What is known beside probing and calibration.
    budget_s : float, optional
        Seconds that calibrating may take, by default all that the policy allows; other models of
        this launch, and trials, take their part of that.
    on_spent : callable, optional
        Told how many nanoseconds calibrating and timing took.
    time_cpu : callable, optional
        Runs the model itself on the CPU path for about so many seconds, and returns the
        nanoseconds of warm runs. They take the place of what is predicted for the CPU: predictions
        of both sides may be wrong, in opposite directions.
    parts : Parts, optional
        Knows the segments of a model that a device cannot run as a whole; without it such a device
        is left alone.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        The device asked for by name is not there or cannot be used.
    """
    known = background or Background()
    found = gather(report)
    if asked == AUTO:
        budget = _Budget(policy.calibration_s if budget_s is None else budget_s, clock)
        chooser = _Chooser(
            graph_work,
            policy,
            open_executor,
            cpu,
            store,
            kernel_of or (lambda _: ""),
            on_hang or (lambda _: None),
            on_back or (lambda _: None),
            budget,
            known,
            time_cpu,
            parts,
        )
        candidates, calibration = chooser.predict(found)
        if on_spent is not None and budget.begin is not None:
            on_spent(round((budget.seconds - budget.left()) * 1e9))
        candidates = [known.added(e) for e in candidates]
    else:
        candidates = [e for e, _ in found] + [Evidence(CPU, is_software=False)]
        calibration = BY_NAME
    from gpuedge import __version__

    return decide(
        Record(
            asked, policy, tuple(candidates), __version__, calibration, known.database,
            known.conditions, known.previous,
        )
    )  # fmt: skip


class _Budget:
    """What is left of the time all calibrations share."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self.clock = clock
        self.begin: int | None = None
        self.used: list[str] = []

    def left(self) -> float:
        if self.begin is None:
            self.begin = self.clock()
        return self.seconds - (self.clock() - self.begin) / 1e9

    def summary(self, cached: int) -> str:
        if not self.used:
            return "cached" if cached else "none"
        spent = self.seconds - self.left()
        text = f"measured {', '.join(self.used)} in {spent:.2f} s"
        return text + (", the rest cached" if cached else "")


@dataclass
class _Chooser:
    """Predicts for every GPU that survives the cheap filters, and for the CPU."""

    graph_work: WorkOf
    policy: Policy
    open_executor: Callable[[str], Executor]
    cpu: Executor
    store: CalibrationStore | None
    kernel_of: Callable[[str], str]
    on_hang: Callable[[str], None]
    on_back: Callable[[str], None]
    budget: _Budget
    known: Background
    time_cpu: Callable[[float], Sequence[int]] | None = None
    parts: Parts | None = None
    cached: int = 0
    cpu_model: DeviceModel | None = None
    host: Prediction | None = None

    def predict(
        self, found: Sequence[tuple[Evidence, CandidateEvidence]]
    ) -> tuple[list[Evidence], str]:
        """Return the evidence with predictions, the CPU last, and how calibration went."""
        cpu = Evidence(CPU, is_software=False)
        looked = [(*self._filter(e), row) for e, row in found]
        if all(work is None for _, work, _ in looked):
            evidence = [e for e, _, _ in looked]
            return [*evidence, cpu], "not needed: no GPU came into question"
        cpu = self._predict_cpu(cpu)
        if cpu.prediction is None:
            why = f"the CPU path could not be predicted: {cpu.detail}"
            evidence = [
                replace(e, code="not-calibrated", detail=why) if work is not None else e
                for e, work, _ in looked
            ]
            return [*evidence, replace(cpu, code="ok", detail="")], why
        possible = [e for e, work, _ in looked if work is not None]
        if self._has_new(possible):
            cpu = self._timed(cpu, cpu.prediction)
        self.host = cpu.prediction
        return [*self._predict_gpus(looked), cpu], self.budget.summary(self.cached)

    def _has_new(self, possible: Sequence[Evidence]) -> bool:
        """Say whether a device was not compared with the CPU yet by any of its routes.

        Of the routes to one device the best is weighed; the others are timed against that one.
        """
        known = {e.physical or e.device for e in possible if self.known.launch_of(e.device)}
        return any((e.physical or e.device) not in known for e in possible)

    def _timed(self, cpu: Evidence, predicted: Prediction) -> Evidence:
        """Put what the CPU path takes for the model itself in place of what was predicted."""
        share = self.budget.left() * TIMED_SHARE
        if self.time_cpu is None or 2 * predicted.p50_s > share:
            return cpu
        runs = self.time_cpu(share)
        if not runs:
            return cpu
        return replace(cpu, prediction=_measured(predicted, runs, self.policy.percentile))

    def _predict_gpus(
        self, looked: Sequence[tuple[Evidence, Load | None, CandidateEvidence]]
    ) -> list[Evidence]:
        """Predict for the best route to each device that works, and for others already measured."""
        waiting = {e.physical or e.device for e, work, _ in looked if work is not None}
        served: dict[str, str] = {}
        evidence = []
        for e, work, row in looked:
            name = e.physical or e.device
            if work is None:
                evidence.append(e)
            elif name in served:
                evidence.append(self._with_cached(e, work, row, served[name]))
            else:
                share = max(self.budget.left() / max(len(waiting), 1), MIN_OPENING_S)
                opener = partial(self.open_executor, e.device)
                evidence.append(self._with_model(e, work, row, share, opener))
                if evidence[-1].prediction is not None:
                    served[name] = e.device
                    waiting.discard(name)
        return evidence

    def _with_cached(
        self, e: Evidence, work: Load, row: CandidateEvidence, better: str
    ) -> Evidence:
        """Add the prediction of a route that an earlier choice measured; nothing is opened."""
        key = calibration_key(e.device, facts_of(row), self.kernel_of(e.device))
        model = self.store.get(key) if self.store is not None else None
        if model is None:
            detail = f"{SENTENCES['other-route']}, {better}"
            return replace(e, code="other-route", detail=detail)
        self.cached += 1
        return self._predicted(e, work, model, "cached")

    def _predicted(self, e: Evidence, work: Load, model: DeviceModel, source: str) -> Evidence:
        """Add the prediction of a calibrated device, for the whole model or parts of it."""
        if not isinstance(work, Mixed):
            return replace(e, prediction=model.predict(work, self.policy.percentile), source=source)
        cpu, host = self.cpu_model, self.host
        if cpu is not None and host is not None and self.parts is not None:
            found = mixture(work, model, cpu, host, self.policy)
            if found is not None:
                self.parts.settle(e.device, found.alternatives)
                return replace(e, prediction=found.prediction, source=source)
        why = f"{e.detail}, and the parts that can run there would not pay for what crosses"
        return replace(e, code="unsupported-op", detail=why)

    def _filter(self, e: Evidence) -> tuple[Evidence, Load | None]:
        """Return the evidence and the work, or what speaks against the device and None."""
        if e.code != "ok" or (e.is_software and not self.policy.allow_software):
            return e, None
        try:
            work = self.graph_work(e.device)
            return self._fitted(e, work)
        except (KernelError, ModelError) as error:
            found = None if self.parts is None else self.parts.of(e.device)
            if found is not None and found.is_possible:
                return self._fitted(replace(e, detail=_sentence(error)), found)
            return replace(e, code="unsupported-op", detail=_sentence(error)), None
        except GpuEdgeError as error:
            return replace(e, code="not-calibrated", detail=_sentence(error)), None

    def _fitted(self, e: Evidence, work: Load) -> tuple[Evidence, Load | None]:
        """Leave a device alone on which the model takes more memory than it may: unopened."""
        bound = self.policy.max_memory_bytes
        if bound is None:
            return e, work
        e = replace(e, memory_bytes=self.known.memory_of(e.device))
        return e, None if e.memory_bytes is not None and e.memory_bytes > bound else work

    def _predict_cpu(self, cpu: Evidence) -> Evidence:
        try:
            work = self.graph_work(CPU)
        except GpuEdgeError as error:
            return replace(cpu, code="not-calibrated", detail=_sentence(error))
        share = self.budget.seconds * CPU_SHARE
        return self._with_model(cpu, work, None, share, lambda: self.cpu)

    def _with_model(
        self,
        e: Evidence,
        work: Load,
        row: CandidateEvidence | None,
        share: float,
        opener: Callable[[], Executor],
    ) -> Evidence:
        """Add the prediction of a cached or freshly calibrated model, or the reason for none."""
        key = calibration_key(e.device, facts_of(row), self.kernel_of(e.device))
        model = self.store.get(key) if self.store is not None else None
        source = "cached"
        if model is not None:
            self.cached += 1
        else:
            answer = self._calibrate(e.device, key, share, opener)
            if isinstance(answer, Reason):
                return replace(e, code=answer.code, detail=answer.sentence)
            model, source = answer, "measured"
        if e.device == CPU:
            self.cpu_model = model
        return self._predicted(e, work, model, source)

    def _calibrate(
        self, device: str, key: str, share: float, opener: Callable[[], Executor]
    ) -> DeviceModel | Reason:
        share = min(share, self.budget.left())
        before = self.store.failure(key, share) if self.store is not None else None
        if before is not None:
            return before
        if share < (MIN_WINDOW_S if device == CPU else MIN_OPENING_S):
            return Reason("not-calibrated", f"no time left of {self.policy.calibration_s:g} s")
        self.budget.used.append(device)
        late = Reason("deadline", f"calibration did not end within {share:.3g} s")
        slow = Reason("not-calibrated", late.detail)

        def left(reason: Reason, tell: Callable[[str], None]) -> None:
            if self.store is not None:
                self.store.fail(key, reason, share)
            tell(device)

        answer = open_and_calibrate(
            opener, share, clock=self.budget.clock,
            on_late=partial(left, late, self.on_hang), on_back=partial(left, slow, self.on_back),
        )  # fmt: skip
        if self.store is not None and isinstance(answer, DeviceModel):
            self.store.put(key, answer)
        elif self.store is not None and isinstance(answer, Reason) and answer.code != "deadline":
            self.store.fail(key, answer, share)
        return answer


def _measured(predicted: Prediction, runs: Sequence[int], percentile: int) -> Prediction:
    """Return the prediction of a device on which the model itself was timed.

    A window of a moment is `TIMED_SIGMA` off what the long run has; what opening costs stays.
    """
    ordered = sorted(max(ns, 1) for ns in runs)
    middle = median_low(ordered)
    spread = ln(max(ordered[len(ordered) * 9 // 10] / middle, MIN_SPREAD)) / Z90

    def at(percent: int) -> int:
        return min(round(middle * exp(quantile(percent / 100) * spread)), MOST_NS)

    factor = exp(TIMED_SIGMA)
    return replace(
        predicted, p50_ns=middle, p90_ns=at(90), at_ns=at(percentile), p99_ns=at(99),
        low_ns=round(middle / factor), high_ns=min(round(middle * factor), MOST_NS),
        sigma_micro=round(TIMED_SIGMA * 10**6), confidence=TIMED,
    )  # fmt: skip


def _sentence(error: GpuEdgeError) -> str:
    return " ".join(error.what.split()).rstrip(".")
