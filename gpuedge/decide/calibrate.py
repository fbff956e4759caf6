"""Calibration: time a few small graphs on an executor, inside a budget that holds.

The runs happen in a worker thread. It starts nothing that it expects to end after its deadline;
if a driver hangs all the same, the caller stops waiting when the budget is over and the thread,
a daemon, is left behind with the device it is stuck in. Every failure becomes a `Reason`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuedge.core.errors import (
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    GpuEdgeError,
    KernelError,
    ModelError,
    OutOfMemoryError,
)
from gpuedge.core.reasons import Reason
from gpuedge.decide.model import DeviceModel
from gpuedge.safety.deadline import DeadlineCall

if TYPE_CHECKING:
    from gpuedge.decide.fit import Sample
    from gpuedge.executors.base import Executable, Executor, Work
    from gpuedge.graph.ir import Array

log = logging.getLogger("gpuedge.decide")

Clock = Callable[[], int]
"""A monotonic clock in integer nanoseconds."""

SOFT = 0.85
"""Share of the budget after which nothing new is started; the rest absorbs a run that took longer
than the one before it."""

MIN_RUNS, MAX_RUNS = 3, 25
"""Warm runs per case. The median of three already ignores one interruption; past 25 a window of
two seconds holds no more information, because slow noise outlasts it."""

MARGIN = 1.5
"""A run may take this much longer than the last one before it is thought to miss the deadline."""


def calibrate(
    executor: Executor, budget_s: float, *, clock: Clock = time.perf_counter_ns
) -> DeviceModel | Reason:
    """Calibrate an open executor; see `open_and_calibrate`."""
    return open_and_calibrate(lambda: executor, budget_s, clock=clock)


def open_and_calibrate(
    opener: Callable[[], Executor],
    budget_s: float,
    *,
    clock: Clock = time.perf_counter_ns,
    on_late: Callable[[], None] | None = None,
    on_back: Callable[[], None] | None = None,
) -> DeviceModel | Reason:
    """Open an executor and time it, both inside the budget.

    Parameters
    ----------
    opener : callable
        Returns the executor, which stays the caller's: nothing is closed here.
    budget_s : float
        Seconds of wall time after which this function has returned.
    clock : callable
        Times the runs, in integer nanoseconds; the outer limit always uses the real clock.
    on_late : callable, optional
        Called before this function returns with code ``deadline``.
    on_back : callable, optional
        Called after `on_late`, in the thread that was left behind, if it comes back: the executor
        is in use by nobody then.

    Returns
    -------
    DeviceModel or Reason
        A reason says why there is no model. After code ``deadline`` the executor is still in use
        by the thread that hangs in it, and must be neither used nor closed.
    """
    try:
        call = DeadlineCall(lambda: _guarded(opener, budget_s, clock), "gpuedge-calibrate")
    except RuntimeError as error:  # no more threads, or the interpreter is ending
        return Reason("not-calibrated", _one_line(error))
    if call.wait(budget_s) or not call.give_up(on_back, now=on_late):
        return call.result()
    return Reason("deadline", f"calibration did not end within {budget_s:.3g} s")


def _guarded(opener: Callable[[], Executor], budget_s: float, clock: Clock) -> DeviceModel | Reason:
    """Run the calibration; whatever goes wrong in a plug-in or driver becomes a reason."""
    window = _Window(budget_s, clock)
    try:
        return window.calibrate(opener)
    except Exception as error:
        log.debug("calibration failed", exc_info=True)
        return Reason(_code(error, window.doing), _one_line(error))


def _code(error: Exception, doing: str) -> str:
    for kind, code in (
        (DeviceLostError, "device-lost"),
        (OutOfMemoryError, "out-of-memory"),
        (DeviceTimeoutError, "run-failed"),
    ):
        if isinstance(error, kind):
            return code
    return doing if isinstance(error, DeviceError) else "not-calibrated"


def _one_line(error: Exception) -> str:
    text = error.what if isinstance(error, GpuEdgeError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300].rstrip(".")


class _Window:
    """One calibration: its deadline, its clock, and the reason code of what it is doing."""

    def __init__(self, budget_s: float, clock: Clock) -> None:
        # Imported before the clock starts: numpy may be loaded here for the first time, which is
        # no property of the device (the outer limit counts it all the same).
        import gpuedge.decide.cases
        import gpuedge.decide.fit  # noqa: F401

        self.budget_s = budget_s
        self.clock = clock
        self.doing = "open-failed"
        self.samples: list[Sample] = []
        self.seen: list[Sample] = []  # those with too few runs too: good enough to foresee others
        self.begin = clock()
        self.deadline = self.begin + round(budget_s * SOFT * 1e9)

    def calibrate(self, opener: Callable[[], Executor]) -> DeviceModel | Reason:
        from gpuedge.decide.cases import ESSENTIAL, ORDER
        from gpuedge.decide.fit import fit

        executor = opener()
        open_s = (self.clock() - self.begin) / 1e9
        for place, name in enumerate(ORDER):
            share = (self.deadline - self.clock()) // (len(ORDER) - place)
            sample = self._time(executor, name, share)
            if sample is not None:
                self.samples.append(sample)
            elif name in ESSENTIAL:
                return Reason(
                    "not-calibrated",
                    f"the {name} graph could not be timed within {self.budget_s:.3g} s",
                )
        complete = len(self.samples) == len(ORDER)
        return fit(executor.device, self.samples, open_s, complete)

    def _fits(self, work: Work, compile_too: bool) -> bool:
        """Whether compiling and the first run are expected to end before the deadline."""
        from statistics import median

        from gpuedge.decide.fit import expected_s

        seconds = expected_s(work, self.seen)
        if compile_too and self.seen:
            # The median: the first one of all also loads libraries.
            seconds += work.launches * median(s.startup_per_pass_s for s in self.seen)
        return self.clock() + round(seconds * 1e9) < self.deadline

    def _time(self, executor: Executor, name: str, share: int) -> Sample | None:
        """Time one case; None if it does not fit or this executor cannot run it.

        `share` bounds how long warm runs are repeated; the deadline bounds everything.
        """
        from gpuedge.decide.cases import case
        from gpuedge.decide.fit import Sample

        graph = case(name)
        if not self._fits(graph.work, compile_too=True):
            return None
        begin = self.clock()
        self.doing = "compile-failed"
        try:
            executable = executor.compile(graph.graph)
        except (KernelError, ModelError) as error:  # cannot do it: not a fault of the device
            log.debug("%s cannot run the %s graph: %s", executor.device, name, error)
            return None
        compile_ns = self.clock() - begin
        self.doing = "run-failed"
        try:
            work = executable.work
            if not self._fits(work, compile_too=False):
                return None
            first, runs = self._runs(executable, graph.inputs(), share)
            work = replace(work, bytes_moved=max(work.bytes_moved - graph.unread_bytes, 0.0))
        finally:
            executable.close()
        sample = Sample(name, work, compile_ns, first, tuple(runs) or (first,))
        self.seen.append(sample)
        return sample if len(runs) >= MIN_RUNS else None

    def _runs(
        self, executable: Executable, inputs: Mapping[str, Array], share: int
    ) -> tuple[int, list[int]]:
        """Return the cold run and the warm ones, in nanoseconds."""
        begin = self.clock()
        executable.run(inputs)
        last = first = self.clock() - begin
        runs: list[int] = []
        # The first warm run is expected to be no slower than the cold one.
        while len(runs) < MAX_RUNS and self.clock() + round(MARGIN * last) <= self.deadline:
            if len(runs) >= MIN_RUNS and self.clock() - begin > share:
                break
            started = self.clock()
            executable.run(inputs)
            last = self.clock() - started
            runs.append(last)
        return first, runs
