"""The tuner: times the kernels that a choice is between on the very device, in turns.

What there is to choose from, and what is chosen without it, is the planner's answer
(`gpuedge.plan.plan.VariantChoice`). What was found is one more input of the planner, kept on disk
(`gpuedge.runtime.tunings`). The nodes of one step of a plan are compiled once for each candidate.
What a candidate computes from random numbers is compared with the CPU, by the bounds of the
cross-check; one that the driver refuses, or that is wrong, is noted and never used.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from gpuedge.core.errors import GpuEdgeError, OutOfMemoryError
from gpuedge.core.text import plain
from gpuedge.decide.speeds import class_of, predict, speeds_of
from gpuedge.executors.base import Progress, Work
from gpuedge.executors.gpu import GpuExecutable
from gpuedge.executors.programs import RefusedPassError
from gpuedge.graph.cost import count
from gpuedge.graph.partition import part
from gpuedge.plan.planner import label
from gpuedge.plan.storages import EXACT, FIXED, StoragePrecision
from gpuedge.plan.tuned import BEGUN, Effort, TunedKernel, label_of
from gpuedge.runtime import clock, tunings
from gpuedge.runtime.crosscheck import CrossCheck
from gpuedge.runtime.devices import DEVICE_FATAL_ERRORS
from gpuedge.runtime.inputs import samples

if TYPE_CHECKING:
    from gpuedge.executors.cpu import CpuExecutor
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.graph.ir import Array, Graph
    from gpuedge.plan.plan import Plan

FAST_S = 2.0
"""What `fast` may take of a model's first start. Nothing is begun that would not fit in."""

FAST_MOST = 6
"""Candidates of a kernel that `fast` times, the usual one included."""

COMPILING = 0.6
"""Share of the time left in which candidates of one kernel are compiled, once there are two. The
rest is for timing them: on a busy machine six take all of it."""

ROUNDS: dict[Effort, int] = {"fast": 7, "full": 21}
"""How often each candidate is timed, in turns: the error of a median of 21 is 0.6 of that of 7."""

HOPELESS, LOOKS = 1.5, 2
"""What took so many times as long as the best so far is not timed after so many rounds."""

ENOUGH = 5
"""Rounds that say something where time ended before all of them."""

LEAST = math.log(1.05)
"""Nats that are no difference: a variant compiled twice differed by up to 4.8 % (medians of 21
rounds of six convolutions, three times each, on lavapipe and two busy cores)."""

ERRORS = 3.0
"""Standard errors that a difference must have: of five candidates as fast as the usual one, one
kernel in 150 would get another one."""

REPACKS = ("pack", "unpack")
"""Operations that lie between steps, in other places where a step is compiled alone."""

Timer = Callable[[str, Callable[[], int]], int]
"""Given a variant's id and what runs it once and returns nanoseconds; returns those that count."""

log = logging.getLogger("gpuedge")


def margin(usual: Sequence[int], other: Sequence[int]) -> float:
    """Return by how many nats a candidate is faster than the usual one, beyond noise; else <= 0.

    Runs are compared pair by pair, as they took turns: what slows both down cancels. The
    difference is the median of ln(usual / other). Its standard error is that of a median of
    normal numbers, 1.2533 sd / sqrt(n) (sqrt(pi / 2)), with 1.4826 times the median deviation for
    sd. `ERRORS` of these, and at least `LEAST`, are taken off.
    """
    logs = [math.log(u / o) for u, o in zip(usual, other, strict=False)]
    middle = median(logs)
    deviation = 1.4826 * median(abs(x - middle) for x in logs)
    error = 1.2533 * deviation / math.sqrt(len(logs))
    return middle - max(LEAST, ERRORS * error)


@dataclass
class _TimedVariant:
    """A variant compiled for a step: what runs its passes, and what that took."""

    variant: str
    spent: Callable[[], int]
    times: list[int] = field(default_factory=list)


@dataclass
class _Trial:
    """A choice that is tuned in one step: the variants to try, and what is not to be used."""

    key: str
    step: Graph
    usual: str
    variants: Sequence[str]
    left_out: dict[str, str]


class Tuner:
    """Tunes the kernels of models on one open device.

    Parameters
    ----------
    executor : GpuExecutor
    cpu : CpuExecutor
        What results are compared with.
    effort : {"fast", "full"}
        ``fast``: at most `FAST_MOST` candidates of a kernel, and `FAST_S` of work from now on.
        ``full``: all that fit, without a limit.
    progress : callable
        Called between the steps, with ``tune``, how many kernels are done, and of how many. What
        it takes is no work.
    is_anew : bool
        Whether what is known already is timed again, and what is left out tried again.
    most_bytes : int, optional
        Device memory that the candidates of a kernel may take together.
    timer : callable
        Takes the time of a run.

    Attributes
    ----------
    known : dict of str to TunedKernel
        What is known of the device, and what was found.
    keys : set of str
        Those of the choices of the segments that were tuned.
    is_kept : bool
        Whether all that was found could be kept on disk.
    """

    def __init__(
        self,
        executor: GpuExecutor,
        cpu: CpuExecutor,
        effort: Effort,
        progress: Progress,
        *,
        is_anew: bool = False,
        most_bytes: int | None = None,
        timer: Timer = lambda _, spent: spent(),
    ) -> None:
        self._executor, self._cpu, self._timer = executor, cpu, timer
        self._effort, self._is_anew = effort, is_anew
        self._most_bytes = math.inf if most_bytes is None else most_bytes
        self._progress, self._place = progress, (0, 1)
        self._identity = executor.impl.info.identity
        self._paused_ns = self._longest_ns = 0
        self._until = self._now() + FAST_S * 1e9 if effort == "fast" else math.inf
        self._done = set[str]()
        self._precision, self._rewrites = EXACT, True
        self.known = tunings.kept(self._identity)
        self.keys = set[str]()
        self.is_kept = True

    def tune(
        self, graph: Graph, precision: StoragePrecision = EXACT, *, rewrites: bool = True
    ) -> None:
        """Find the best variants for a segment, those of the most expensive kernels first.

        Raises DeviceError (GE-4xx) where the device is of no use any more.
        """
        if precision.kind == FIXED:  # whose ranges clip: nothing could be compared
            return
        self._precision, self._rewrites = precision, rewrites
        whole = self._executor.planned(graph, precision, rewrites=rewrites)
        steps = self._by_cost(graph, whole)
        if steps:
            self._load_cpu(steps[0])
        for number, step in enumerate(steps):
            self._place = number, len(steps)
            self._rest()
            while (key := self._next(step, whole)) is not None:
                self._tune(key, step)
        self.keys |= whole.choices.keys() | self._done
        left = {k: c.variants[0] for k, c in whole.choices.items() if k not in self.known}
        if left:  # no time for these, or they are no step's: the next start is not to pay again
            self._keep({key: TunedKernel(usual, usual) for key, usual in left.items()})
        self._place = len(steps), len(steps)
        self._rest()

    def _load_cpu(self, step: Graph) -> None:
        """Have the CPU path loaded: a first request does that anyway, so it costs no time here."""
        start = self._now()
        with suppress(GpuEdgeError), closing(self._cpu.compile(step)):
            self._until += self._now() - start

    def _now(self) -> int:
        """Return the time in nanoseconds, which stands still in pauses."""
        return clock.now_ns() - self._paused_ns

    def _rest(self, *_: object) -> None:
        start = clock.now_ns()
        self._progress("tune", *self._place)
        self._paused_ns += clock.now_ns() - start

    def _keep(self, kernels: Mapping[str, TunedKernel], tried: Collection[str] = ()) -> None:
        self.known |= {k: new.after(self.known.get(k), tried) for k, new in kernels.items()}
        self.is_kept &= tunings.keep(self._identity, kernels, tried)

    def _planned(self, graph: Graph, but: str = "", kernel: TunedKernel | None = None) -> Plan:
        """Return the plan of a graph by what is known, of one choice by nothing or `kernel`."""
        table = {key: self._trusted(key) for key in self.known if key != but}
        if kernel is not None:
            table[but] = kernel
        return self._executor.planned(
            graph, self._precision, rewrites=self._rewrites, tuned=table
        )  # fmt: skip

    def _trusted(self, key: str) -> TunedKernel:
        """Return what is known of a choice, without what is to be tried again."""
        known = self.known[key]
        is_old = self._is_anew and key not in self._done
        return replace(known, left_out={}) if is_old else known

    # -- what to tune, and in which order ------------------------------------------------------

    def _by_cost(self, graph: Graph, whole: Plan) -> list[Graph]:
        """Return the steps with choices that are due, one of those that are alike, as graphs.

        First come those that take most of a run, as `gpuedge.decide.speeds` predicts it.
        """
        nodes = {label(n): n for n in graph.nodes}
        alike: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
        for step in whole.steps:
            own = set(step.passes)
            keys = tuple(k for k, c in whole.choices.items() if not own.isdisjoint(c.passes))
            if any(map(self._is_due, keys)):
                alike[keys].append(step.nodes)
        speeds = speeds_of(class_of(self._identity))
        backend = self._executor.impl.info.candidate.backend
        costs = []
        for steps in alike.values():
            first = part(graph, [nodes[name] for name in steps[0]])
            costs.append((len(steps) * predict(Work(**count(first)), speeds, backend), first))
        return [first for _, first in sorted(costs, key=lambda pair: -pair[0])]

    def _is_due(self, key: str) -> bool:
        """Tell whether a choice was looked into less than it is to be."""
        if key in self._done:
            return False
        known = self.known.get(key)
        is_less = self._effort == "full" and known is not None and known.effort != "full"
        return self._is_anew or known is None or is_less

    def _next(self, step: Graph, whole: Plan) -> str | None:
        """Return a choice of a step that is due; None where there is none, or no time."""
        if not self._has_time():
            return None
        choices = self._planned(step).choices
        due = [
            key for key, choice in choices.items()
            if self._is_due(key) and (key in whole.choices or choice.op not in REPACKS)
        ]  # fmt: skip
        return min(due, key=lambda key: choices[key].op in REPACKS, default=None)

    def _has_time(self) -> bool:
        """Tell whether a piece of work fits in that takes as long as the longest so far."""
        return self._now() + self._longest_ns < self._until

    # -- one kernel ----------------------------------------------------------------------------

    def _tune(self, key: str, step: Graph) -> None:
        """Find the best variant of one choice.

        Each variant is kept as begun first: where a driver ends the process, it is left out.
        """
        self._done.add(key)
        choice = self._planned(step, key).choices.get(key)
        if choice is None:  # by now only one variant fits
            return
        usual, known = choice.variants[0], self.known.get(key)
        left_out = dict(known.left_out) if known is not None else {}
        variants = [v for v in choice.variants if self._is_anew or v not in left_out]
        trial = _Trial(key, step, usual, variants, left_out)
        try:
            with ExitStack() as stack:
                candidates = list(self._candidates(trial, stack))
                self._note(trial)
                is_timed = self._time(candidates)
        except BaseException:
            self._note(trial)
            raise
        if is_timed:
            kernel = self._best(candidates, usual, left_out)
            log.info("%s: %s: %s after %s, %.2f times as fast", self._executor.device,
                     label_of(key), kernel.variant, usual, kernel.gain)  # fmt: skip
            self._keep({key: kernel}, variants)

    def _note(self, trial: _Trial, begun: Mapping[str, str] = MappingProxyType({})) -> None:
        """Keep how far a trial has come, and what is begun now."""
        left_out = {**trial.left_out, **begun}
        kernel = TunedKernel(trial.usual, trial.usual, left_out=left_out)
        self._keep({trial.key: kernel}, trial.variants)

    def _candidates(self, trial: _Trial, stack: ExitStack) -> Iterator[_TimedVariant]:
        """Yield what was compiled and is right; keep `left_out` to what is not."""
        key, step, variants, left_out = trial.key, trial.step, trial.variants, trial.left_out
        why_not = self._judge(step)
        seen, nbytes, count, begun_ns = set[object](), 0, 0, self._now()
        until = begun_ns + COMPILING * (self._until - begun_ns)
        most = FAST_MOST if self._effort == "fast" else len(variants)
        for variant in variants:
            is_late = count > 1 and self._now() >= until
            if len(seen) == most or nbytes > self._most_bytes or is_late or not self._has_time():
                return
            start = self._now()
            try:
                planned = self._planned(step, key, TunedKernel(variant, variants[0]))
                passes = tuple((p.source, p.variant, p.groups) for p in planned.passes)
                if passes in seen:  # of some, what they take the place of comes to the same
                    continue
                seen.add(passes)
                self._note(trial, {variant: BEGUN})
                made = GpuExecutable(self._executor, step, planned, self._rest, stays=False)
                stack.enter_context(closing(made))
                nbytes += sum(made.memory.values())
                why = why_not(made)
                left_out.pop(variant, None)
                if why is None:
                    spent = stack.enter_context(made.alone(_own_passes(planned, key)))
                    yield _TimedVariant(variant, spent)
                    count += 1
                elif why:
                    left_out[variant] = _brief(why)
            except OutOfMemoryError:
                return
            except RefusedPassError as error:
                left_out[variant] = _brief(f"the driver refused it: {error.error.what}")
            except GpuEdgeError as error:
                left_out[variant] = _brief(error.what)
                if isinstance(error, DEVICE_FATAL_ERRORS):
                    raise
            self._longest_ns = max(self._longest_ns, self._now() - start)
            self._rest()

    def _judge(self, step: Graph) -> Callable[[GpuExecutable], str | None]:
        """Return what says how a result of a step differs from the CPU's: None if it does not.

        Empty where that cannot be told.
        """
        inputs = _numbers(step)
        how = self._precision
        check = CrossCheck(step, 1.0, self._cpu, storage=how.kind, arithmetic=how.arithmetic)

        @cache
        def wanted() -> Mapping[str, Array]:
            with closing(self._cpu.compile(step)) as compiled:
                return compiled.run(inputs)

        def why_not(made: GpuExecutable) -> str | None:
            difference = check.compare(inputs, made.run(inputs), lambda _: wanted())
            return difference or (None if not check.note else "")

        return why_not

    def _time(self, candidates: list[_TimedVariant]) -> bool:
        """Time candidates in turns, each round the other way round; False if there was no time."""
        if len(candidates) < 2:
            return self._has_time()
        running, rounds = candidates, ROUNDS[self._effort]
        for number in range(-1, rounds):
            if self._now() >= self._until:
                return number >= ENOUGH
            for one in running[:: -1 if number % 2 else 1]:
                ns = max(self._timer(one.variant, one.spent), 1)
                if number >= 0:  # the first time may take longer
                    one.times.append(ns)
            self._rest()
            if number >= LOOKS - 1:
                most = HOPELESS * min(min(one.times) for one in running)
                running = [c for c in running if c is running[0] or min(c.times) <= most]
        return True

    def _best(
        self, candidates: list[_TimedVariant], usual: str, left_out: Mapping[str, str]
    ) -> TunedKernel:
        """Return what is to be used: the usual one, unless another one is faster beyond noise."""
        if not candidates:  # all are wrong: then none is used
            return TunedKernel(usual, usual, effort=self._effort, left_out=left_out)
        first, *others = candidates
        faster = [
            c for c in others
            if len(c.times) == len(first.times) and margin(first.times, c.times) > 0
        ]  # fmt: skip
        best = min([first, *faster], key=_median_ns)
        usual_ns = _median_ns(first) if first.variant == usual else 0
        return TunedKernel(
            best.variant, usual, _median_ns(best), usual_ns, self._effort, left_out
        )  # fmt: skip


def _median_ns(candidate: _TimedVariant) -> int:
    return round(median(candidate.times)) if candidate.times else 0


def _own_passes(planned: Plan, key: str) -> Sequence[int]:
    """Return the passes that a choice is about, without what only surrounds a step by itself."""
    choice = planned.choices[key]
    if choice.op in REPACKS:
        return choice.passes
    return [i for i, p in enumerate(planned.passes) if not p.variant.startswith(REPACKS)]


def _numbers(graph: Graph) -> dict[str, Array]:
    """Return inputs of a graph: random numbers from -1 to 1, so that a wrong neighbour shows."""
    draw = np.random.default_rng(0)
    return {
        name: draw.uniform(-1, 1, array.shape).astype(array.dtype) if array.dtype.kind == "f"
        else array
        for name, array in samples(graph).items()
    }  # fmt: skip


def _brief(why: str) -> str:
    """Return a reason as a record holds it: in one line of 400 characters at most."""
    return plain(why, 200)
