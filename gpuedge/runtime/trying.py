"""Timing a GPU against the CPU path on the model itself, and keeping what came of it.

What to time, in which order and what it means is `gpuedge.decide`'s; here it meets the clock, the
time a launch may spend, and what earlier launches left on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.reasons import Reason
from gpuedge.decide.assess import begin
from gpuedge.decide.attempts import Attempt, next_attempt, outcome, with_trial
from gpuedge.decide.belief import Rule, draw
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.record import CPU
from gpuedge.decide.rules import judge
from gpuedge.decide.store import LaunchStore, PastLaunch, launch_key
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.runtime import clock
from gpuedge.runtime.devices import reason_of

if TYPE_CHECKING:
    from gpuedge.decide.policy import Policy
    from gpuedge.decide.trial import Alternative
    from gpuedge.runtime.assignment import Assignment
    from gpuedge.runtime.compiled import CompiledModel
    from gpuedge.runtime.meters import Meter

CONFIRM_S = 0.25
"""Time for a trial of a GPU that is chosen by prediction, however little of the budget is left: a
promise never to be slower than the CPU path cannot rest on a prediction."""

WORTH_S = 0.25
"""Time below which no trial is begun that a choice does not wait for: a later launch has more."""

TRIAL_SHARE = 0.3
"""Share of a launch's budget that calibrating devices leaves for trials."""

DAY_S = 86_400

log = logging.getLogger("gpuedge")


SMALL = 64
"""Elements up to which constants may be sizes, axes and the like, on which latency depends."""

TIMED = 7
"""Warm runs of the CPU path that are enough to replace its prediction."""


class TimeBudget:
    """The time that one launch may still spend on measuring one model, over all its input shapes.

    Parameters
    ----------
    seconds : float
    """

    def __init__(self, seconds: float) -> None:
        self.left_s = seconds

    def spend(self, ns: int) -> None:
        """Take out what was used; never less than nothing is left."""
        self.left_s = max(self.left_s - ns / 1e9, 0.0)


@dataclass(frozen=True)
class LaunchHistory:
    """Where what earlier launches found about one model is kept.

    Parameters
    ----------
    store : LaunchStore
    digest : callable
        Makes the model's digest; not called before it is needed.
    key_of : callable
        Device string to the device's key, driver included.
    percentile : int
        Of the policy.
    """

    store: LaunchStore
    digest: Callable[[], str]
    key_of: Callable[[str], str]
    percentile: int

    @cached_property
    def model(self) -> str:
        """The model's digest."""
        return self.digest()

    @property
    def previous(self) -> str:
        """The device that an earlier launch chose; empty if there was none."""
        return self.store.previous(self.model, self.percentile)

    def launch_of(self, device: str) -> PastLaunch | None:
        """Return what earlier launches came to believe about a device."""
        return self.store.get(self._key(device))

    def draw_of(self, device: str) -> int:
        """Return today's number for random exploration."""
        return draw(self.key_of(device), self.model, clock.epoch_s() // DAY_S)

    def keep(self, device: str, launch: PastLaunch) -> None:
        """Keep what this launch came to believe."""
        self.store.put(self._key(device), launch)

    def chose(self, device: str) -> None:
        """Keep which device was chosen."""
        self.store.chose(self.model, self.percentile, device)

    def _key(self, device: str) -> str:
        return launch_key(self.model, self.key_of(device), self.percentile)


class TrialRunner:
    """What one launch measures of one model.

    Parameters
    ----------
    policy : Policy
    budget : TimeBudget
    past : LaunchHistory, optional
        Without it nothing is kept, and a GPU is only tried where it is about to be chosen.
    meter : Meter, optional
        Where energy is to decide, and is metered.
    type_of : callable, optional
        Device string to the type of the device, which says what meter sees it.
    """

    def __init__(
        self,
        policy: Policy,
        budget: TimeBudget,
        past: LaunchHistory | None,
        meter: Meter | None = None,
        type_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self.policy = policy
        self.budget = budget
        self.meter = meter
        self._past = past
        self._type_of = type_of
        self._done: set[str] = set()

    def next(self, decision: Decision) -> Attempt | None:
        """Return the trial that a decision asks for now, None where it is good as it is."""
        left_s = CONFIRM_S if self._past is None else max(self.budget.left_s, CONFIRM_S)
        budget_ns = round(left_s * 1e9)
        needed = self._unmeasured(decision, budget_ns)
        if needed is not None or self._past is None or self.budget.left_s < WORTH_S:
            return needed
        budget_ns = round(self.budget.left_s * 1e9)
        unmetered = self._unmetered(decision, budget_ns)
        if unmetered is not None:
            return unmetered
        return next_attempt(decision, skip=self._skipped(decision), budget_ns=budget_ns)

    def _unmeasured(self, decision: Decision, budget_ns: int) -> Attempt | None:
        """Return the trial of a GPU that is chosen although nothing was measured of it yet."""
        record = decision.record
        if decision.device == CPU or record.is_by_name or decision.device in self._done:
            return None
        for candidate, weighed in zip(record.candidates, judge(record).assessments, strict=True):
            if candidate.device == decision.device and weighed and not weighed.belief.windows:
                cpu = next(c for c in record.candidates if c.device == CPU)
                trial = begin(candidate, cpu, record.policy, budget_ns)
                return Attempt(candidate.device, trial, "unmeasured")
        return None

    def sees(self, device: str) -> bool:
        """Say whether the energy of a device is to decide, and is metered."""
        return self.meter is not None and self.meter.sees(self._type_of(device))

    def _unmetered(self, decision: Decision, budget_ns: int) -> Attempt | None:
        """Return the trial of the fastest GPU that is metered, where energy is to decide."""
        record = decision.record
        if self.meter is None or self._done or record.is_by_name:
            return None
        found = judge(record).assessments
        known = [
            (weighed.cost_ppm, i)
            for i, (c, weighed) in enumerate(zip(record.candidates, found, strict=True))
            if weighed is not None and self.sees(c.device)
        ]
        if not known:
            return None
        candidate = record.candidates[min(known)[1]]
        cpu = next(c for c in record.candidates if c.device == CPU)
        trial = begin(candidate, cpu, record.policy, budget_ns)
        return Attempt(candidate.device, trial, "energy")

    def _skipped(self, decision: Decision) -> Collection[str]:
        """Return the devices that had a window a moment ago, or as many as are worth it."""
        rule, now = Rule(), clock.epoch_s()
        skipped = set(self._done)
        for candidate in decision.record.candidates:
            if candidate.belief is None or self._past is None:
                continue
            past = self._past.launch_of(candidate.device)
            if past is not None and not past.is_due(now, rule):
                skipped.add(candidate.device)
        return skipped

    def run(
        self, attempt: Attempt, alternatives: Mapping[Alternative, Callable[[], object]]
    ) -> None:
        """Time the alternatives as the trial asks for. Raises whatever they raise."""
        now, trial = clock.now_ns, attempt.trial
        begin = now()
        self._done.add(attempt.device)
        try:
            while (alternative := trial.next(now())) is not None:
                start = now()
                alternatives[alternative]()
                trial.add(alternative, max(now() - start, 0))
        finally:
            self.budget.spend(now() - begin)

    def keep(self, decision: Decision, attempt: Attempt) -> None:
        """Keep for later launches what a trial showed."""
        found = outcome(decision, attempt.device)
        if self._past is None or found is None:
            return
        belief, cpu_ns = found
        trial = attempt.trial
        loss = trial.verdict.loss_ppm
        launch = PastLaunch(belief, cpu_ns, trial.stakes.startup_ns, loss, clock.epoch_s())
        self._past.keep(attempt.device, launch)
        self._past.chose(decision.device)


class RunningTrial:
    """One trial on its way, of the device that an assignment has opened for it.

    Attributes
    ----------
    device : str
    outputs : dict
        Those of the first run on the device.
    """

    def __init__(
        self, assigned: Assignment, trials: TrialRunner, before: Decision, attempt: Attempt
    ):
        self.device = attempt.device
        self.outputs: dict[str, Array] = {}
        self._assigned = assigned
        self._trials = trials
        self._before = before
        self._attempt = attempt

    @classmethod
    def begin(cls, assigned: Assignment) -> RunningTrial | None:
        """Open what is to be tried next; None if there is nothing, or nothing more."""
        before, trials = assigned.decision, assigned.trials
        attempt = assigned.attempt()
        if attempt is None or trials is None:
            return None
        return cls(assigned, trials, before, attempt)

    def started(self, compile_ns: int) -> None:
        """Take how long compiling took, with uploading what is constant."""
        self._attempt.trial.started(self._assigned.opened_ns() + compile_ns)

    def run(
        self, gpu: Callable[[], dict[str, Array] | None], cpu: Callable[[], object]
    ) -> bool:  # fmt: skip
        """Time both alternatives; False if the device failed. Raises what the alternatives raise.

        Parameters
        ----------
        gpu : callable
            Returns outputs, or None if the device failed and something else answered.
        cpu : callable
        """

        def on_gpu() -> None:
            made = gpu()
            if made is None:
                raise _FailedError
            self.outputs = self.outputs or made

        try:
            self._trials.run(self._attempt, {"cpu": cpu, "gpu": on_gpu})
        except _FailedError:
            return False
        return True

    def decided(self) -> Decision:
        """Decide again with the runs."""
        if not self._attempt.trial.runs:
            return self._before  # there was no time even for one
        return with_trial(self._before, self.device, self._attempt.trial)

    def metered(
        self, decision: Decision, gpu: Callable[[], object], cpu: Callable[[], object]
    ) -> Decision:
        """Decide again with the energy of both alternatives, where it decides and is metered.

        Raises whatever the alternatives raise.
        """
        meter, trials = self._trials.meter, self._trials
        if meter is None or not trials.sees(self.device):
            return decision
        start = clock.now_ns()
        taken = {CPU: meter.per_run(cpu), self.device: meter.per_run(gpu)}
        trials.budget.spend(clock.now_ns() - start)
        candidates = tuple(
            replace(c, energy_uj=taken[c.device]) if c.device in taken else c
            for c in decision.record.candidates
        )
        return decide(replace(decision.record, candidates=candidates))

    def keep(self, decision: Decision) -> None:
        """Keep for later launches what the runs showed, and what came of it."""
        if self._attempt.trial.runs:
            self._trials.keep(decision, self._attempt)

    def is_worth_holding(self, decision: Decision) -> bool:
        """Say whether a device that did not win is to be watched all the same.

        It stays open then, and with it its memory: only where much may be lost without it.
        """
        policy, verdict = self._trials.policy, self._attempt.trial.verdict
        is_wanted = policy.monitor and policy.prefer != "energy" and bool(self.outputs)
        return is_wanted and decision.device == CPU and verdict.loss_cpu_ppm >= Rule().eps_ppm


class _FailedError(Exception):
    """The device failed during its trial."""


def run_trials(model: CompiledModel) -> bool:
    """Time what ``auto`` thinks of on the model itself; tell whether that left it compiled."""
    is_compiled = False
    while (trial := RunningTrial.begin(model.assigned)) is not None:
        model.close_parts()
        is_compiled = False
        if model.held.device != trial.device:
            continue  # it did not open, and was ruled out
        start = clock.now_ns()
        model.compile()
        is_compiled = True
        if model.held.device == trial.device:
            trial.started(clock.now_ns() - start)
            _time(model, trial)
    return is_compiled


def _time(model: CompiledModel, trial: RunningTrial) -> None:
    """Time the device that is open against the CPU, and go on with what is better."""
    inputs = samples(model.graph)
    model.settle(inputs)

    def on_device() -> dict[str, Array] | None:
        before = model.failures
        outputs = model.answer(inputs)
        return outputs if model.failures == before else None

    try:
        model.prepare_cpu()
        is_done = trial.run(on_device, lambda: model.run_on_cpu(inputs))
        if model.held.device == trial.device:
            if is_done:
                _conclude(model, trial, inputs)
            else:
                model.leave(Reason("out-of-memory"))
    except GpuEdgeError as error:  # the CPU's too: what cannot be compared is not taken
        if model.held.device == trial.device:
            model.leave(reason_of(error))
    finally:
        model.reset_ranges()
    if model.held.device != trial.device:
        model.assigned.is_away = False  # it failed unconfirmed: it is not waited for


def _conclude(model: CompiledModel, trial: RunningTrial, inputs: Mapping[str, Array]) -> None:
    """Decide with the runs of a trial; a device whose numbers differ does not win."""
    decision = trial.metered(
        trial.decided(), lambda: model.run_parts(inputs), lambda: model.run_on_cpu(inputs)
    )
    holds = model.is_session and trial.is_worth_holding(decision)
    if trial.outputs and (holds or decision.device == trial.device):
        wrong = model.differs(inputs)
        if wrong is not None:
            reason = Reason("drifted", wrong.rstrip("."))
            log.warning("%s: %s", trial.device, reason.sentence)
            model.fail(reason, is_final=True)
            model.leave(reason)
            return
    trial.keep(decision)
    is_kept = decision.device == trial.device or (decision.device == CPU and holds)
    if not is_kept:
        model.close_parts()
    model.assigned.take(decision, holds=holds)
    if not is_kept:
        model.compile()


def cpu_timer(model: CompiledModel) -> Callable[[float], list[int]]:
    """Return what times a graph on the CPU for about so many seconds: warm runs in nanoseconds."""

    def time_cpu(seconds: float) -> list[int]:
        inputs = samples(model.graph)
        try:
            return timed(lambda: model.run_on_cpu(inputs), seconds)
        except GpuEdgeError as error:
            log.debug("the CPU path cannot be timed: %s", error)
            return []

    return time_cpu


def timed(run: Callable[[], object], seconds: float) -> list[int]:
    """Run once, then until so much time has passed; return the warm runs in nanoseconds.

    What the first run takes does not count: it compiles. Where it takes all of the time, it is the
    only one.
    """
    now, runs = clock.now_ns, list[int]()
    start = now()
    run()
    if now() - start >= round(seconds * 1e9):
        return runs
    until = now() + round(seconds * 1e9)
    while len(runs) < TIMED and (not runs or now() + runs[-1] < until):
        start = now()
        run()
        runs.append(now() - start)
    return runs


def samples(graph: Graph) -> dict[str, Array]:
    """Return inputs of a graph whose timing is that of ordinary data."""
    return {name: _sample(graph.types[name]) for name in graph.inputs}


def _sample(kind: TensorType) -> Array:
    if np.dtype(kind.dtype).kind == "f":
        count = int(np.prod(kind.shape))
        return np.linspace(-1, 1, count).reshape(kind.shape).astype(kind.dtype)
    return np.zeros(kind.shape, kind.dtype)


def digest_of(graph: Graph, *more: str) -> str:
    """Return a digest of what the latency of a graph depends on.

    Weights count by type and shape only: reading all of a large model takes longer than it runs.
    """
    import hashlib

    made = hashlib.sha256()

    def add(*parts: object) -> None:
        made.update(repr(parts).encode("utf-8", "surrogatepass"))

    for node in graph.nodes:
        attrs = sorted((k, _brief(v)) for k, v in node.attrs.items())
        add(node.domain, node.op, node.inputs, node.outputs, attrs)
    add(graph.inputs, graph.outputs, sorted(graph.opset.items()), more)
    for name, kind in sorted(graph.types.items()):
        add(name, kind.dtype, kind.shape)
    for name, array in sorted(graph.constants.items()):
        add(name, _brief(array))
    return made.hexdigest()


def _brief(value: object) -> object:
    """Return what tells a constant or attribute from others without reading much of it."""
    if not isinstance(value, np.ndarray):
        return value
    return value.dtype.str, value.shape, value.tobytes() if value.size <= SMALL else b""
